"""What a compacted topic cannot have: queues that its keys would go to, and limits that count what is superseded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lsmq_node.storage import ShardStore, StoreOptions, TopicOptions
from support.node_process import NodeProcess

from .calls import Api

COUNTING = ("max_messages", "queue_max_messages", "retention_messages", "queue_max_bytes")


def test_a_compacted_topic_grows_only_where_its_keys_stay(api: Api, topic_name: str) -> None:
    path = f"/v1/topics/{topic_name}"
    made = api.create(topic_name, 2, cleanup="compact")
    refused = api.call("PUT", f"{path}/queues", {"queues": 3}, status=400)
    assert refused.error["field"] == "queues" and "strict" in refused.error["message"]
    assert api.call("PUT", f"{path}/queues", {"queues": 2}, status=200).json() == made == api.get(path).json()
    assert "can only grow" in api.call("PUT", f"{path}/queues", {"queues": 1}, status=400).error["message"]
    api.create(f"{topic_name}-strict", 2, cleanup="compact", order="strict")
    assert api.call("PUT", f"{path}-strict/queues", {"queues": 3}, status=200).json()["queues"] == 3


def test_keys_of_a_compacted_topic_are_not_moved_where_it_is_spread(make_node: Callable[..., NodeProcess]) -> None:
    api = Api(make_node().start().url)
    api.create("t", 2, cleanup="compact")
    api.call("PUT", "/v1/cluster/shards", {"shards": 2}, status=200)
    refused = api.call("POST", "/v1/topics/t/spread", {"keys": "move"}, status=400)
    assert refused.error["field"] == "queues" and "strict" in refused.error["message"]
    assert api.call("POST", "/v1/topics/t/spread", {"keys": "stay"}, status=200).json()["queues"] == 4
    assert api.get("/v1/topics/t").json()["options"]["key_queues"] == 2


@pytest.mark.parametrize("limit", COUNTING)
def test_a_limit_that_counts_what_is_superseded_is_refused(api: Api, topic_name: str, limit: str) -> None:
    path = f"/v1/topics/{topic_name}"
    refused = api.call("PUT", path, {"queues": 2, "cleanup": "compact", limit: 100}, status=400)
    assert refused.error["field"] == limit and "retention_bytes" in refused.error["message"]
    api.create(topic_name, 2, cleanup="compact", max_bytes=1_000_000)
    assert api.call("PATCH", path, {limit: 100}, status=400).error["field"] == limit
    api.call("PATCH", path, {"cleanup": "delete", limit: 100}, status=200)
    assert api.call("PATCH", path, {"cleanup": "compact"}, status=400).error["field"] == limit
    api.call("PATCH", path, {"cleanup": "compact", limit: None}, status=200)


@pytest.mark.parametrize("limit", ["retention_messages", "retention_bytes"])
def test_so_is_one_of_a_single_queue(api: Api, topic_name: str, limit: str) -> None:
    path = f"/v1/topics/{topic_name}"
    api.create(topic_name, 2, cleanup="compact")
    assert api.call("PATCH", f"{path}/queues/1", {limit: 100}, status=400).error["field"] == limit
    api.call("PATCH", f"{path}/queues/1", {limit: "unlimited", "retention_ms": 1_000_000}, status=200)


def test_a_topic_that_has_such_a_limit_goes_on_and_can_be_altered(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node().start()
    Api(node.url).create("t", 2, cleanup="compact")
    node.stop()
    with ShardStore.open(node.data / "shard-0", StoreOptions()) as store:
        store.alter_topic("t", TopicOptions(cleanup="compact", max_messages=100, retention_messages=50, revision=1))
    api = Api(node.start().url)
    api.send("t", {"key": "a", "body": "1"})
    assert api.call("PATCH", "/v1/topics/t", {"retention_ms": 3_600_000}, status=200).json()["revision"] == 2
    api.call("PATCH", "/v1/topics/t", {"cleanup": "compact", "max_messages": 100}, status=200)
    assert api.call("PATCH", "/v1/topics/t", {"max_messages": 200}, status=400).error["field"] == "max_messages"
    left = api.call("PATCH", "/v1/topics/t", {"max_messages": None}, status=200).json()["options"]
    assert left["retention_messages"] == 50 and "max_messages" not in left
