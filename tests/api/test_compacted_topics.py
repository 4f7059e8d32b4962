"""What a compacted topic cannot be given: queues that its keys would go to."""

from __future__ import annotations

from collections.abc import Callable

from support.node_process import NodeProcess

from .calls import Api


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
