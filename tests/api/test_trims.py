"""Trimming and purging over HTTP: by time, by offset, and all there is, on all shards, in pieces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lsmq.record_batch import BatchBuilder, RecordBatch
from lsmq_node.broker import ProduceRequest, TrimRequest, trims
from lsmq_node.config import NodeConfig
from lsmq_node.node import Node, running_node
from lsmq_node.storage import TopicOptions
from support.node_process import NodeProcess

from .calls import Api


def send(api: Api, topic: str, *queues: int) -> None:
    messages = [{"queue": queue, "body": "x"} for queue in queues]
    api.call("POST", f"/v1/topics/{topic}/messages", {"messages": messages}, status=200)


def earliest(api: Api, topic: str) -> list[int]:
    found: list[int] = api.get(f"/v1/topics/{topic}/offsets").json()["earliest"]
    return found


def test_what_is_older_goes_of_some_queues_or_of_all(api: Api, topic_name: str) -> None:
    api.create(topic_name, 4)
    send(api, topic_name, 0, 0, 1, 2, 3)
    path = f"/v1/topics/{topic_name}"
    last = api.get(f"{path}/queues/3/messages").json()["messages"][0]["stored_ms"]
    while api.call("GET", f"{path}/queues/0?time_ms={last + 1}").json()["offset"] < 2:
        pass
    assert api.call("POST", f"{path}/trim", {"before_ms": last, "queues": "0-3"}).json() == {
        "messages": 0,
        "next": None,
    }
    assert api.call("POST", f"{path}/trim", {"before_ms": last + 1, "queues": "0,2"}).json()["messages"] == 3
    assert earliest(api, topic_name) == [2, 0, 1, 0]
    send(api, topic_name, 0)
    assert api.call("POST", f"{path}/trim", {"before_ms": last + 1}).json() == {"messages": 2, "next": None}
    assert earliest(api, topic_name)[1:] == [1, 1, 1]
    assert api.call("POST", f"{path}/purge", {}).json()["messages"] >= 1
    assert earliest(api, topic_name) == [3, 1, 1, 1]
    assert api.call("POST", f"{path}/purge", {}).json() == {"messages": 0, "next": None}
    send(api, topic_name, 0)
    assert api.get(f"{path}/queues/0/messages?offset=3").json()["messages"][0]["offset"] == 3, "offsets go on"


def test_one_queue_is_trimmed_to_an_offset(api: Api, topic_name: str) -> None:
    api.create(topic_name, 4)
    send(api, topic_name, 1, 1, 1, 2)
    path = f"/v1/topics/{topic_name}/trim"
    assert api.call("POST", path, {"offset": 2, "queues": "1"}).json() == {"messages": 2, "next": None}
    assert earliest(api, topic_name) == [0, 2, 0, 0]
    assert api.call("POST", path, {"offset": 1, "queues": "1"}).json()["messages"] == 0, "never back"
    refused = api.call("POST", path, {"offset": 9, "queues": "1"}, status=416)
    assert refused.code == "offset_out_of_range" and refused.error["latest"] == 3


@pytest.mark.parametrize("queues", [1, 2, 4])
def test_queues_that_a_topic_has_grown_into_other_shards_are_trimmed_and_no_others(
    make_node: Callable[..., NodeProcess], queues: int
) -> None:
    api = Api(make_node(shards=3).start().url)
    api.create("t", queues)
    api.call("PUT", "/v1/topics/t/queues", {"queues": queues + 5}, status=200)
    api.call("PUT", "/v1/topics/t/queues", {"queues": queues + 7}, status=200)
    kept = [3] * (queues + 7)
    send(api, "t", *range(len(kept)), *range(len(kept)), *range(len(kept)))
    for queue in reversed(range(len(kept))):
        operation, document = ("purge", {}) if queue % 2 else ("trim", {"offset": 2})
        answer = api.call("POST", f"/v1/topics/t/{operation}", {**document, "queues": f"{queue}"}, status=200).json()
        kept[queue] -= answer["messages"]
        assert answer == {"messages": 3 if queue % 2 else 2, "next": None}
        assert [3 - offset for offset in earliest(api, "t")] == kept
    send(api, "t", *range(len(kept)))
    assert api.call("POST", "/v1/topics/t/purge", {}).json()["messages"] == sum(kept) + len(kept)


@pytest.mark.parametrize(
    ("operation", "document", "says"),
    [
        ("trim", {}, "before_ms or offset"),
        ("trim", {"before_ms": 1, "offset": 1, "queues": "0"}, "one of the two"),
        ("trim", {"offset": 1}, "needs queues"),
        ("trim", {"before_ms": 1, "queues": "x"}, "queues"),
        ("trim", {"before_ms": 1, "after": "x"}, "after"),
        ("purge", {"queues": "3-1"}, "ends before it starts"),
        ("purge", {"before_ms": 1}, "before_ms"),
    ],
)
def test_a_trim_that_is_not_clear_is_refused(
    api: Api, topic_name: str, operation: str, document: Any, says: str
) -> None:
    api.create(topic_name, 4)
    refused = api.call("POST", f"/v1/topics/{topic_name}/{operation}", document, status=400)
    assert refused.code == "invalid_request" and says in refused.error["message"]


def test_a_queue_that_is_not_there_is_named(api: Api, topic_name: str) -> None:
    api.create(topic_name, 4)
    for operation in ("trim", "purge"):
        document = {"queues": "2-4", **({"before_ms": 1} if operation == "trim" else {})}
        refused = api.call("POST", f"/v1/topics/{topic_name}/{operation}", document, status=404)
        assert refused.code == "unknown_queue" and refused.error["queue"] == 4


async def fill(node: Node, name: str, queues: range) -> None:
    topic = await node.broker.topic(name)
    builders: dict[int, BatchBuilder] = {}
    for queue in queues:
        builders.setdefault(node.broker.shard_of(topic, queue), BatchBuilder()).add(queue, b"m")
    batches = [(shard, RecordBatch(builder.build())) for shard, builder in builders.items()]
    await node.broker.produce(ProduceRequest(topic, batches))


def test_long_work_is_done_in_pieces_over_all_shards_and_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trims, "PIECE_QUEUES", 4)
    monkeypatch.setattr(trims, "_SECONDS", -1.0)

    async def run() -> None:
        async with running_node(NodeConfig(data=tmp_path, shards=3)) as node:
            await node.broker.create_topic("t", 10, TopicOptions())
            topic = await node.broker.grow_topic("t", 40)
            await fill(node, "t", range(40))
            request, messages, calls = TrimRequest(topic, runs=((3, 25), (30, 31))), 0, 0
            while True:
                found = await node.trims.trim(request)
                messages, calls = messages + found.messages, calls + 1
                if found.following is None:
                    break
                request = replace(request, after=found.following)
            starts, _ = await node.broker.offsets(topic, np.arange(40))
            assert np.flatnonzero(starts).tolist() == [*range(3, 25), 30]
            assert messages == 23 and calls >= 6

    asyncio.run(run())


def test_queues_that_have_names_are_purged_and_limited_like_others(api: Api, topic_name: str) -> None:
    path = f"/v1/topics/{topic_name}"
    api.call("PUT", path, {"queues": "named", "queue_max_messages": 1}, status=201)
    api.send(topic_name, *[{"queue": name, "body": "x"} for name in ("a", "b", "agents.7.inbox")])
    refused = api.send(topic_name, {"queue": "a", "body": "x"}, status=507)
    assert refused.error["option"] == "queue_max_messages"
    assert api.call("POST", f"{path}/trim", {"before_ms": 1}).json()["messages"] == 0
    assert api.call("POST", f"{path}/purge", {}).json() == {"messages": 3, "next": None}
    assert api.get(f"{path}/usage").json()["messages"] == 0
    api.send(topic_name, {"queue": "a", "body": "y"})
    api.call("PATCH", path, {"overflow": "drop_oldest"})
    api.send(topic_name, {"queue": "a", "body": "z"}, {"queue": "new", "body": "n"}, {"queue": "new", "body": "o"})
    assert api.bodies(topic_name, "a", offset="earliest") == ["z"]  # type: ignore[arg-type]
    assert api.bodies(topic_name, "new", offset="earliest") == ["o"]  # type: ignore[arg-type]
    named = api.call("POST", f"{path}/purge", {"queues": "0"}, status=400)
    assert "has named queues" in named.error["message"]
