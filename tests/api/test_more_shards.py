"""A node of its own that gets more shards while it runs: what there was stays, and what is new uses all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lsmq import sync
from lsmq.errors import InvalidRequest
from support.node_process import NodeProcess, StartFailed
from support.waiting import eventually

from .calls import Api
from .test_work_queues import Work


@pytest.fixture
def node(make_node: Callable[..., NodeProcess]) -> NodeProcess:
    return make_node().start()


def routes(api: Api, topic: str) -> list[tuple[int, int, int]]:
    found = api.get(f"/v1/topics/{topic}").json()["routes"]
    return [(route["first"], route["end"], route["shard"]) for route in found]


def grow(api: Api, shards: int) -> None:
    api.call("PUT", "/v1/cluster/shards", {"shards": shards}, status=200)


def test_topics_stay_where_they_are_and_new_ones_lie_on_all_shards(node: NodeProcess) -> None:
    api = Api(node.url)
    api.create("old", 4)
    api.send("old", *({"queue": queue, "body": f"q{queue}"} for queue in range(4)))
    assert api.get("/v1/cluster/growth?shards=3").json()["shards"] == [
        {"id": 1, "replicas": ["local"]},
        {"id": 2, "replicas": ["local"]},
    ]
    grow(api, 3)
    grow(api, 3)  # There are so many.
    api.create("new", 6)
    api.send("new", *({"queue": queue, "body": f"n{queue}"} for queue in range(6)))
    for _ in range(2):
        assert routes(api, "old") == [(0, 4, 0)]
        assert routes(api, "new") == [(0, 2, 0), (2, 4, 1), (4, 6, 2)]
        assert [api.bodies("old", queue) for queue in range(4)] == [[f"q{queue}"] for queue in range(4)]
        assert [api.bodies("new", queue) for queue in range(6)] == [[f"n{queue}"] for queue in range(6)]
        overview = api.get("/v1/cluster").json()
        assert (len(overview["shards"]), overview["home_shards"]) == (3, 1)
        node.kill9()
        node.restart()


def test_a_topic_is_spread_and_keeps_messages_offsets_groups_and_the_queues_of_keys(node: NodeProcess) -> None:
    api = Api(node.url)
    api.create("t", 4)
    keyed = [{"key": f"k{number}", "body": "before"} for number in range(50)]
    before = [result["queue"] for result in api.send("t", *keyed).json()["results"]]
    api.call("POST", "/v1/groups/g/offsets", {"topic": "t", "queues": [0, 1], "offsets": [1, 2]}, status=200)
    grow(api, 2)
    spread = api.call("POST", "/v1/topics/t/spread", {}, status=200).json()
    assert (spread["queues"], spread["options"]["key_queues"]) == (8, 4)
    after = [result["queue"] for result in api.send("t", *keyed).json()["results"]]
    assert after == before
    api.send("t", *({"queue": queue, "body": f"new{queue}"} for queue in range(4, 8)))
    api.call("POST", "/v1/groups/g/offsets", {"topic": "t", "queues": [7], "offsets": [1]}, status=200)
    for _ in range(2):
        assert routes(api, "t") == [(0, 4, 0), (4, 8, 1)]
        assert [api.bodies("t", queue) for queue in range(4, 8)] == [[f"new{queue}"] for queue in range(4, 8)]
        committed = api.get("/v1/groups/g/offsets?topic=t").json()
        assert dict(zip(committed["queues"], committed["offsets"], strict=True)) == {0: 1, 1: 2, 7: 1}
        assert api.call("POST", "/v1/topics/t/spread", {"keys": "move"}, status=200).json()["queues"] == 8
        node.kill9()
        node.restart()


def test_keys_move_where_that_is_asked_for(node: NodeProcess) -> None:
    api = Api(node.url)
    api.create("t", 1)
    grow(api, 4)
    assert "key_queues" not in api.call("POST", "/v1/topics/t/spread", {"keys": "move"}, status=200).json()["options"]
    keyed = ({"key": f"k{number}", "body": "x"} for number in range(64))
    assert {result["queue"] for result in api.send("t", *keyed).json()["results"]} == {0, 1, 2, 3}


def test_named_queues_stay_and_those_of_new_topics_use_all_shards(node: NodeProcess) -> None:
    api = Api(node.url)
    for topic in ("old", "new"):
        api.call("PUT", f"/v1/topics/{topic}", {"queues": "named"}, status=201)
        names = [f"{topic}-{number}" for number in range(64)]
        api.send(topic, *({"queue": name, "body": name} for name in names))
        grow(api, 3)
    refused = api.call("POST", "/v1/topics/old/spread", {}, status=400)
    assert "make another topic" in refused.error["message"]
    for _ in range(2):
        assert [shard for _, _, shard in routes(api, "old")] == [0]
        assert [shard for _, _, shard in routes(api, "new")] == [0, 1, 2]
        for topic in ("old", "new"):
            assert len(api.get(f"/v1/topics/{topic}/queues?limit=1000").json()["queues"]) == 64
            assert api.bodies(topic, f"{topic}-7") == [f"{topic}-7"]
            api.send(topic, {"queue": f"{topic}-later", "body": "x"})
        node.kill9()
        node.restart()
        for topic in ("old", "new"):
            api.call("DELETE", f"/v1/topics/{topic}/queues/{topic}-later", status=204)


def test_what_cannot_be_is_refused_and_changes_nothing(node: NodeProcess) -> None:
    api = Api(node.url)
    grow(api, 2)
    for shards, what in ((1, "only grow"), (257, "there may be 256")):
        assert what in api.call("PUT", "/v1/cluster/shards", {"shards": shards}, status=400).error["message"]
        assert api.get(f"/v1/cluster/growth?shards={shards}", status=400).error["field"] == "shards"
    assert len(api.get("/v1/cluster").json()["shards"]) == 2


def test_the_directory_says_how_many_shards_it_was_made_with_and_has(
    make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    node = make_node(shards=2).start()
    api = Api(node.url)
    api.create("t", 4)
    grow(api, 5)
    assert json.loads((node.data / "node.json").read_text()) == {"format": 3, "shards": 2, "grown": 5}
    node.kill9()
    node.settings["shards"] = 5
    with pytest.raises(StartFailed, match="shards=2"):
        node.restart()
    node.settings["shards"] = 2
    node.restart()
    assert routes(api, "t") == [(0, 2, 0), (2, 4, 1)]


def test_growth_that_was_cut_short_is_done_again(make_node: Callable[..., NodeProcess]) -> None:
    """A crash before ``node.json`` was written leaves stores that nobody has; one after it topics to tell."""
    node = make_node().start()
    api = Api(node.url)
    api.create("t", 2)
    grow(api, 2)
    node.kill9()
    (node.data / "node.json").write_text('{"format": 1, "shards": 1}\n')
    node.restart()
    assert len(api.get("/v1/cluster").json()["shards"]) == 1
    grow(api, 3)
    api.call("POST", "/v1/topics/t/spread", {}, status=200)
    api.send("t", *({"queue": queue, "body": "x"} for queue in range(6)))
    node.kill9()
    (node.data / "node.json").write_text('{"format": 3, "shards": 1, "grown": 4}\n')
    node.restart()
    api.call("POST", "/v1/topics/t/spread", {}, status=200)
    api.send("t", *({"queue": queue, "body": "y"} for queue in range(8)))
    assert [api.bodies("t", queue) for queue in range(8)] == [["x", "y"]] * 6 + [["y"]] * 2


def test_a_work_queue_and_its_dead_letters_follow_to_new_shards(node: NodeProcess) -> None:
    """With the settings that it has, and to the topic of dead letters that was made before."""
    api = Api(node.url)
    work, dead = Work(api, "t", queues=1), Work(api, "dead", queues=1)
    work.configure(max_deliveries=3, dead_letter="dead")
    grow(api, 2)
    api.call("POST", "/v1/topics/t/spread", {}, status=200)
    work.send("x", queue=1)
    (message,) = work.pop()
    described = api.get("/v1/groups/t/work-queue?topic=t").json()["shards"]
    assert [(shard["shard"], shard["settings"]["max_deliveries"]) for shard in described] == [(0, 3), (1, 3)]
    assert work.settle("nack", message, dead_letter=True) == []
    eventually(lambda: len(routes(api, dead.topic)) == 2 and api.bodies("dead", 1) == ["x"], "it is a dead letter")


def test_both_faces_and_the_command_grow_and_spread(node: NodeProcess) -> None:
    with sync.Client(node.url) as client:
        client.create_topic("t", queues=2)
        admin = sync.ClusterAdmin(client)
        assert [new.id for new in admin.plan_growth(3)] == [1, 2]
        admin.grow_shards(3)
        assert client.spread_topic("t").queues == 6
        with pytest.raises(InvalidRequest, match="only grow"):
            admin.grow_shards(2)
