"""What the pipeline asks of nodes: who is read from, and what becomes of refusals. The nodes here are played."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest

from lsmq.batch_builder import Column, Flag, encode_batch
from lsmq.errors import LsmqError
from lsmq.topics import Topic
from lsmq_pipeline.client import PipelineClient, Want
from lsmq_pipeline.fetch import FetchPlan, SplitReader
from lsmq_pipeline.options import read_options
from lsmq_pipeline.reading import fetch_plan
from lsmq_pipeline.splits import Portion, plan
from support.played_node import Answer, played_node

ONE = encode_batch(1, {Column.QUEUE: 0, Column.OFFSET: 1, Column.FLAGS: int(Flag.POSITION)}, b"") + encode_batch(
    1, {Column.QUEUE: 0, Column.OFFSET: 0, Column.LENGTH: 3}, b"one"
)


def topic_at(url: str) -> dict[str, object]:
    route = {"first": 0, "end": 1, "shard": 0, "leader": url, "epoch": 1}
    return {"name": "t", "id": 1, "queues": 1, "options": {}, "created_ms": 0, "routes": [route]}


def openapi(*, follower_reads: bool) -> bytes:
    parameters = [{"name": "from", "in": "query"}] if follower_reads else []
    return bytes(msgpack.packb({"paths": {"/v1/topics/{topic}/fetch": {"post": {"parameters": parameters}}}}))


@pytest.mark.parametrize("follower_reads", [True, False])
def test_followers_are_read_where_nodes_offer_it_and_leaders_where_not(follower_reads: bool) -> None:
    asked: list[tuple[str, str]] = []

    def follower(method: str, path: str) -> Answer:
        asked.append(("follower", path))
        return 200, ONE

    def leader(method: str, path: str) -> Answer:
        if path.startswith("/v1/openapi.json"):
            return 200, openapi(follower_reads=follower_reads)
        if "/fetch" not in path:
            return 200, msgpack.packb(topic_at(leader_url))
        asked.append(("leader", path))
        if "from=" not in path:
            return 200, ONE
        error = {"code": "read_elsewhere", "message": "a follower has it", "url": follower_url, "retriable": False}
        return 307, msgpack.packb({"error": error})

    with played_node(follower) as follower_url, played_node(leader) as leader_url:
        options = read_options({"url": leader_url, "topic": "t", "deadlineMs": "2000"})
        with PipelineClient(options.connection) as cluster:
            topic = cluster.topic("t")
            how = fetch_plan(cluster, options)
            portion = Portion(topic, np.zeros(1, np.int64), np.ones(1, np.int64))
            (split,) = plan([portion], min_splits=1, max_messages=10, max_bytes=10, whole_queues=True)
            (records,) = SplitReader(cluster, split, how).records()
            assert len(records) == 1 and records.payload.tobytes() == b"one"
            again = cluster.fetch(topic, 0, Want(np.zeros(1), np.zeros(1), 1, 1), how.read_from).result()
            assert again == ONE
    if follower_reads:
        path = "/v1/topics/t/fetch?from=follower"
        assert asked == [("leader", path), ("follower", path), ("follower", path)], "the leader is asked once"
    else:
        assert asked == [("leader", "/v1/topics/t/fetch")] * 2


def test_a_follower_that_goes_away_is_replaced_by_the_leader() -> None:
    def leader(method: str, path: str) -> Answer:
        return (200, ONE) if "/fetch" in path else (200, msgpack.packb(topic_at(url)))

    with played_node(leader) as url:
        options = read_options({"url": url, "topic": "t", "deadlineMs": "2000"})
        with PipelineClient(options.connection) as cluster:
            cluster._elsewhere[0] = "http://127.0.0.1:9"
            found = cluster.fetch(cluster.topic("t"), 0, Want(np.zeros(1), np.zeros(1), 1, 1), "follower").result()
            assert found == ONE and not cluster._elsewhere


def test_a_follower_that_the_leader_names_and_that_is_none_any_more_is_no_end_of_a_read() -> None:
    asked: list[tuple[str, str]] = []

    def former(method: str, path: str) -> Answer:
        asked.append(("former", path))
        return 421, msgpack.packb({"error": {"code": "not_leader", "message": "n1 does not lead", "retriable": True}})

    def leader(method: str, path: str) -> Answer:
        if "/fetch" not in path:
            return 200, msgpack.packb(topic_at(leader_url))
        asked.append(("leader", path))
        if "from=" not in path:
            return 200, ONE
        error = {"code": "read_elsewhere", "message": "a follower has it", "url": former_url, "retriable": False}
        return 307, msgpack.packb({"error": error})

    with played_node(former) as former_url, played_node(leader) as leader_url:
        options = read_options({"url": leader_url, "topic": "t", "deadlineMs": "2000"})
        with PipelineClient(options.connection) as cluster:
            found = cluster.fetch(cluster.topic("t"), 0, Want(np.zeros(1), np.zeros(1), 1, 1), "follower").result()
            assert found == ONE and not cluster._elsewhere
    path = "/v1/topics/t/fetch"
    assert asked == [("leader", f"{path}?from=follower"), ("former", f"{path}?from=follower"), ("leader", path)]


@pytest.mark.parametrize("status", [401, 403])
def test_missing_credentials_are_told_at_once(status: int) -> None:
    with played_node(lambda method, path: (status, b"credentials, please")) as url:
        options = read_options({"url": url, "topic": "t", "deadlineMs": "60000"})
        with (
            PipelineClient(options.connection) as cluster,
            pytest.raises(LsmqError, match=f"answered {status}: credentials"),
        ):
            cluster.topic("t")


def test_messages_that_vanish_while_they_are_read_are_a_loss_or_passed_over() -> None:
    from lsmq_pipeline.errors import DataLoss

    def node(method: str, path: str) -> Answer:
        if "/fetch" in path:
            return 200, b""
        if "/offsets" in path:
            return 200, msgpack.packb({"queues": [0], "earliest": [0], "latest": [3]})
        return 200, msgpack.packb(topic_at(url))

    with played_node(node) as url:
        connection = read_options({"url": url, "topic": "t", "deadlineMs": "2000"}).connection
        with PipelineClient(connection) as cluster:
            topic: Topic = cluster.topic("t")
            portion = Portion(topic, np.full(1, 3, np.int64), np.full(1, 9, np.int64))
            (split,) = plan([portion], min_splits=1, max_messages=10, max_bytes=10, whole_queues=True)
            with pytest.raises(DataLoss, match="its latest is 3"):
                list(SplitReader(cluster, split, FetchPlan(True, None, 1000, 2000)).records())
            assert list(SplitReader(cluster, split, FetchPlan(False, None, 1000, 2000)).records()) == []


def test_an_audit_names_the_nodes_whose_replicas_it_could_not_read() -> None:
    from lsmq_pipeline.jobs.audit import _replicas

    node = {"voter": True, "state": "active", "shards_led": 0, "replicas": 1}
    shard = {
        "id": 0,
        "leader": "n1",
        "epoch": 1,
        "in_sync": ["n1"],
        "replicas": ["n1", "n2"],
        "adding": [],
        "target": [],
    }
    overview = {
        "cluster": "c",
        "version": 1,
        "control_leader": "n1",
        "nodes": [
            {"id": "n1", "url": "http://n1", "alive": True, **node},
            {"id": "n2", "url": "http://n2", "alive": False, **node},
            {"id": "n3", "url": "http://n3", "alive": False, **node},
        ],
        "shards": [shard],
    }

    class Played:
        def offers_follower_reads(self) -> bool:
            return True

        def ask(self, path: str) -> object:
            assert path == "/v1/cluster"
            return overview

    replicas, problems = _replicas(Played(), Topic.from_dict(topic_at("http://n1")))  # type: ignore[arg-type]
    assert [(replica.name, replica.node, replica.queues) for replica in replicas] == [
        ("leaders", None, ""),
        ("n1", "http://n1", "0-0"),
    ]
    assert problems == ["n2: was not read, since it is down"], "n3 holds nothing of the topic"
