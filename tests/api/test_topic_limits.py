"""Limits of topics at a node: refused with words, shared over shards, kept after a restart, and seen."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from lsmq.errors import QuotaExceeded, TooManyMessages
from lsmq.record_batch import BatchBuilder, RecordBatch
from lsmq_node.broker import ProduceRequest
from lsmq_node.broker.topology import Leadership
from lsmq_node.config import NodeConfig
from lsmq_node.node import Node, running_node
from lsmq_node.storage import TopicOptions
from support.waiting import comes_true, eventually

from .calls import Api
from .test_groups import commit


async def send(node: Node, name: str, queue: int, count: int = 1) -> None:
    topic = await node.broker.topic(name)
    builder = BatchBuilder()
    for _ in range(count):
        builder.add(queue, b"x" * 100)
    batches = [(node.broker.shard_of(topic, queue), RecordBatch(builder.build()))]
    await node.broker.produce(ProduceRequest(topic, batches))


async def starts(node: Node, name: str) -> list[int]:
    topic = await node.broker.topic(name)
    found: list[int] = (await node.broker.offsets(topic, np.arange(topic.queues)))[0].tolist()
    return found


def config(path: Path, **more: Any) -> NodeConfig:
    return NodeConfig(data=path, shards=3, retention_interval_ms=50, **more)


def test_what_is_over_is_refused_with_words_and_seen(api: Api, topic_name: str) -> None:
    api.create(topic_name, 2, max_messages=3, queue_max_messages=2)
    api.send(topic_name, {"queue": 0, "body": "a"}, {"queue": 0, "body": "b"})
    refused = api.send(topic_name, {"queue": 0, "body": "c"}, status=507)
    assert refused.code == "quota_exceeded" and refused.error["retriable"]
    assert (refused.error["option"], refused.error["limit"], refused.error["queue"]) == ("queue_max_messages", 2, 0)
    refused = api.send(topic_name, {"queue": 1, "body": "c"}, {"queue": 1, "body": "d"}, status=507)
    assert (refused.error["option"], refused.error["held"]) == ("max_messages", 2)
    api.send(topic_name, {"queue": 1, "body": "c"})
    usage = api.get(f"/v1/topics/{topic_name}/usage").json()
    assert (usage["messages"], usage["refused"], usage["groups"]) == (3, 2, [])
    assert usage["bytes"] >= 3, "what came after a measurement counts"
    assert usage["dropped"] == {"expired": 0, "overflow": 0, "consumed": 0, "disk": 0, "lapsed": 0}
    path = f"/v1/topics/{topic_name}"
    api.call("PATCH", path, {"overflow": "drop_oldest"})
    api.send(topic_name, {"queue": 0, "body": "c"})
    assert api.bodies(topic_name, 0, offset="earliest") == ["b", "c"]
    assert api.get(f"{path}/usage").json()["dropped"]["overflow"] == 1
    for wrong in ("drop_any", "drop_newest_"):
        answer = api.call("PATCH", path, {"overflow": wrong}, status=400)
        assert "overflow" in answer.error["message"] and "drop_oldest" in answer.error["message"]
    api.call("PATCH", path, {"max_messages": None, "queue_max_messages": None, "overflow": None})
    api.send(topic_name, *[{"queue": 0, "body": "c"}] * 5)


def test_of_the_groups_of_a_topic_as_many_are_listed_as_are_asked_for(api: Api, topic_name: str) -> None:
    api.create(topic_name, 2)
    groups = [f"{topic_name}.{number}" for number in range(5)]
    for group in reversed(groups):
        commit(api, group, topic_name, {0: 0})
    for query, listed in (("", groups), ("?groups=2", groups[:2]), ("?groups=0", [])):
        usage = api.get(f"/v1/topics/{topic_name}/usage{query}").json()
        assert (usage["groups"], usage["group_count"]) == (listed, 5)


def test_a_queue_holds_no_more_bytes_than_it_may_by_number_and_by_name(api: Api, topic_name: str) -> None:
    body = "x" * 400
    for name, queues, place in ((topic_name, 2, {"queue": 1}), (f"{topic_name}.n", "named", {"queue": "a"})):
        api.create(name, queues, queue_max_bytes=1_000)
        api.send(name, *[{**place, "body": body}] * 2)
        refused = api.send(name, {**place, "body": body}, status=507)
        found = {key: refused.error[key] for key in ("code", "retriable", "option", "limit")}
        assert found == {"code": "quota_exceeded", "retriable": True, "option": "queue_max_bytes", "limit": 1_000}
        never = api.send(name, *[{**place, "body": body}] * 3, status=413)
        assert (never.code, never.error["option"]) == ("request_too_large", "queue_max_bytes")
        assert api.get(f"/v1/topics/{name}").json()["options"]["queue_max_bytes"] == 1_000
        api.call("PATCH", f"/v1/topics/{name}", {"overflow": "drop_oldest"})
        api.send(name, {**place, "body": body})
        assert api.get(f"/v1/topics/{name}/usage").json()["dropped"]["overflow"] == 1
        answer = api.call("PATCH", f"/v1/topics/{name}", {"queue_max_bytes": 0}, status=400)
        assert "queue_max_bytes is 0; the least it may be is 1" in answer.error["message"]


def test_what_is_new_is_dropped_and_said_to_be(api: Api, topic_name: str) -> None:
    api.create(topic_name, 2, queue_max_messages=1, overflow="drop_newest")
    results = api.send(topic_name, *({"queue": queue, "body": "x"} for queue in (0, 0, 1))).json()["results"]
    assert [(each["queue"], each["offset"], each.get("dropped")) for each in results] == [
        (0, 0, None),
        (0, None, True),
        (1, 0, None),
    ]
    assert results[1]["id"] is None
    usage = api.get(f"/v1/topics/{topic_name}/usage").json()
    assert (usage["messages"], usage["refused"], usage["dropped"]["overflow"]) == (2, 0, 1)


@pytest.mark.part(2)
def test_a_limit_is_the_topics_over_all_shards(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_node(config(tmp_path)) as node:
            await node.broker.create_topic("t", 3, TopicOptions(max_messages=30))
            rests = [port.store.retention for port in node.broker.topology.ports()]
            topic_id = (await node.broker.topic("t")).id

            async def told(*messages: int) -> bool:
                found = [(rest.rest or {}).get(topic_id) for rest in rests]
                return [None if each is None else each.messages for each in found] == list(messages)

            await comes_true(lambda: told(0, 0, 0), "each shard knows that the others hold nothing")
            await comes_true(
                lambda: (
                    rests[0]
                    ._state.topics[topic_id]
                    .quota.allowed(  # type: ignore[union-attr]
                        TopicOptions(max_messages=30)
                    )[0]
                    == 10
                ),
                "it may have a third",
            )
            await send(node, "t", 0, 10)
            with pytest.raises(QuotaExceeded):
                await send(node, "t", 0)
            await comes_true(lambda: told(0, 10, 10), "the others are told")

            async def more() -> bool:
                try:
                    await send(node, "t", 1, 15)
                except QuotaExceeded:
                    return False
                return True

            await comes_true(more, "what is left is for whoever needs it")
            usage = await node.limits.usage(await node.broker.topic("t"))
            assert usage.messages == 25
        async with running_node(config(tmp_path)) as node:
            with pytest.raises(TooManyMessages):
                await send(node, "t", 2, 31)

    asyncio.run(run())


def test_what_came_after_the_last_measurement_counts_in_what_is_seen(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_node(NodeConfig(data=tmp_path, shards=1, retention_interval_ms=600_000)) as node:
            topic, _ = await node.broker.create_topic("t", 1, TopicOptions(max_messages=30))
            retention = node.broker.topology.ports()[0].store.retention
            await asyncio.to_thread(retention._measure, retention._queries.topic_state(topic.id))
            assert (await node.limits.usage(topic)).size_bytes == 0
            await send(node, "t", 0, 3)
            usage = await node.limits.usage(topic)
            assert (usage.messages, usage.size_bytes) == (3, 300)

    asyncio.run(run())


def test_of_too_many_bytes_each_shard_loses_its_share_wherever_they_lie(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_node(config(tmp_path)) as node:
            await node.broker.create_topic("t", 3, TopicOptions(retention_bytes=5_000))
            for _ in range(80):
                await send(node, "t", 0)
            for _ in range(20):
                await send(node, "t", 1)

            async def half_of_it_has_gone() -> bool:
                """Within half a kibibyte: how much goes is estimated."""
                first, second, third = await starts(node, "t")
                return first >= 35 and second >= 2 and third == 0 and 45 <= first + second <= 50

            await comes_true(half_of_it_has_gone, "half of it has gone")

    asyncio.run(run())


def test_what_all_groups_have_done_with_goes_and_a_group_of_another_shard_is_waited_for(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_node(config(tmp_path)) as node:
            topic, _ = await node.broker.create_topic("t", 3, TopicOptions(delete_consumed=True))
            for queue in range(3):
                await send(node, "t", queue, 5)

            async def commit(group: str, queue: int, offset: int) -> None:
                await node.broker.commit_offsets(group, topic, np.array([queue]), np.array([offset]), reset=False)

            await commit("slow", 2, 1)
            await comes_true(lambda: _groups(node, topic.id) == {"slow"}, "it is known everywhere")
            await commit("quick", 0, 5)
            await commit("quick", 2, 5)

            async def went(*wanted: int) -> bool:
                return await starts(node, "t") == list(wanted)

            await comes_true(lambda: went(0, 0, 1), "what both have done with goes")
            await commit("slow", 0, 3)
            await comes_true(lambda: went(3, 0, 1), "and more")
            assert (await node.limits.usage(topic)).gone["consumed"] == 4

    asyncio.run(run())


def test_a_shard_that_was_led_elsewhere_knows_nothing_of_the_others_at_first(tmp_path: Path) -> None:
    """A group that began there meanwhile would lose what it has not read."""

    async def run() -> None:
        async with running_node(config(tmp_path)) as node:
            topic, _ = await node.broker.create_topic("t", 3, TopicOptions(delete_consumed=True))
            topology, retention = node.broker.topology, node.broker.topology.ports()[0].store.retention
            leadership = topology.leadership

            async def knows() -> bool:
                return topic.id in (retention.rest or {})

            async def knows_nothing() -> bool:
                return retention.rest == {}

            await comes_true(knows, "it is told what the others hold")
            with mock.patch.object(
                topology, "leadership", lambda shard: Leadership("x", 2) if shard == 0 else leadership(shard)
            ):
                await comes_true(knows_nothing, "it does not lead")
            await comes_true(knows, "it leads again")

    asyncio.run(run())


def _groups(node: Node, topic_id: int) -> set[str]:
    rest = node.broker.topology.ports()[0].store.retention.rest or {}
    return set() if topic_id not in rest else set(rest[topic_id].groups or ())


def test_a_node_with_one_shard_knows_that_there_are_no_others(api: Api, topic_name: str) -> None:
    path = f"/v1/topics/{topic_name}"
    api.create(topic_name, 1, delete_consumed=True)
    api.send(topic_name, *[{"queue": 0, "body": "x"}] * 3)
    api.call(
        "POST", f"/v1/groups/{topic_name}/offsets", {"topic": topic_name, "queues": [0], "offsets": [2]}, status=200
    )
    eventually(lambda: api.get(f"{path}/queues/0").json()["earliest"] == 2, "two are done with")
    assert api.get(f"{path}/usage").json()["groups"] == [topic_name]
