"""A node of several shards: one topic over all of them, and nothing a user of one shard would notice."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from lsmq.record_batch import Column, Flag, split_batches
from support.node_process import NodeProcess
from support.waiting import eventually

from .calls import Api, pack


@pytest.fixture
def sharded(make_node: Callable[..., NodeProcess]) -> NodeProcess:
    return make_node(shards=3).start()


def test_routes_cover_all_queues_by_shard(sharded: NodeProcess) -> None:
    routes = Api(sharded.url).create("t", 10)["routes"]
    assert [(route["first"], route["end"], route["shard"]) for route in routes] == [(0, 3, 0), (3, 6, 1), (6, 10, 2)]


def test_a_topic_of_fewer_queues_than_shards_works(sharded: NodeProcess) -> None:
    api = Api(sharded.url)
    assert len(api.create("t", 1)["routes"]) == 1
    api.send("t", {"body": "x"})
    sharded.kill9()
    sharded.restart()
    assert api.bodies("t", 0) == ["x"]


def test_a_request_may_span_shards_and_all_is_read_back(sharded: NodeProcess) -> None:
    api = Api(sharded.url)
    topic = api.create("t", 10)
    results = api.send("t", *({"queue": queue, "body": f"q{queue}"} for queue in range(9, -1, -1))).json()["results"]
    assert [result["queue"] for result in results] == list(range(9, -1, -1))
    assert api.get(f"/v1/messages/{results[2]['id']}").json()["body"] == "q7"
    sharded.kill9()
    sharded.restart()
    assert api.get("/v1/topics/t").json() == topic
    assert [api.bodies("t", queue) for queue in range(10)] == [[f"q{queue}"] for queue in range(10)]
    assert api.get("/v1/topics/t/offsets").json()["latest"] == [1] * 10


def test_a_batch_belongs_to_one_shard(sharded: NodeProcess) -> None:
    api = Api(sharded.url)
    api.create("t", 10)
    api.send_batch("t", pack((6, b"x"), (9, b"y")))
    refused = api.send_batch("t", pack((0, b"x"), (9, b"y")), 400)
    assert "shards 0, 2" in refused.error["message"]
    messages = [{"queue": queue, "body": "x"} for queue in (0, 9)]
    refused = api.send("t", *messages, producer={"id": 1, "sequence": 0}, status=400)
    assert refused.error["field"] == "producer"


def test_a_poll_over_all_shards_is_answered_by_any(sharded: NodeProcess) -> None:
    api = Api(sharded.url)
    api.create("t", 10)
    asked = dict.fromkeys(range(10), 0)
    for queue in (8, 0, 4):
        with ThreadPoolExecutor(1) as pool:
            poll = pool.submit(api.fetch, "t", asked, wait_ms=20_000)
            eventually(lambda: api.status()["waiters"] == 1, "the poll is held")
            api.send("t", {"queue": queue, "body": "x"})
            first = next(split_batches(poll.result().body))
        assert first.column(Column.FLAGS)[0] == Flag.POSITION
        moved = dict(zip(first.column(Column.QUEUE), first.column(Column.OFFSET), strict=True))
        assert moved == {queue: 1}
        asked |= moved


def test_one_fetch_reads_all_shards(sharded: NodeProcess) -> None:
    api = Api(sharded.url)
    api.create("t", 10)
    api.send("t", *({"queue": queue, "body": f"q{queue}"} for queue in range(10)))
    body = api.fetch("t", dict.fromkeys(range(10), 0)).body
    found = {message.queue: message.text() for batch in split_batches(body) for message in batch.messages("t")}
    assert found == {queue: f"q{queue}" for queue in range(10)}


def test_group_offsets_span_shards_and_deleting_reaches_all(sharded: NodeProcess) -> None:
    api = Api(sharded.url)
    api.create("t", 10)
    api.send("t", *({"queue": queue, "body": "x"} for queue in range(10)))
    document = {"topic": "t", "queues": [9, 0, 4], "offsets": [1, 1, 0]}
    api.call("POST", "/v1/groups/g/offsets", document, status=200)
    assert api.get("/v1/groups/g/offsets?topic=t").json() == {"queues": [0, 4, 9], "offsets": [1, 0, 1]}
    api.call("DELETE", "/v1/topics/t", status=204)
    api.create("t", 4)
    assert api.get("/v1/topics/t/offsets").json()["latest"] == [0] * 4
    sharded.kill9()
    sharded.restart()
    assert api.get("/v1/topics/t").json()["queues"] == 4


def test_a_refusal_by_one_shard_says_that_others_may_have_stored_their_part(sharded: NodeProcess) -> None:
    api = Api(sharded.url)
    api.call("PUT", "/v1/topics/t", {"queues": 3, "queue_max_messages": 1}, status=201)
    api.send("t", {"queue": 2, "body": "full"})
    messages = [{"queue": queue, "body": "x"} for queue in range(3)]
    error = api.call("POST", "/v1/topics/t/messages", {"messages": messages}, status=507).error
    assert (error["code"], error["queue"], error.get("sent")) == ("quota_exceeded", 2, True)
    error = api.call("POST", "/v1/topics/t/messages", {"messages": messages[2:]}, status=507).error
    assert "sent" not in error, "nothing else was asked for"
