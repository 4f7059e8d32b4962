"""Options of single queues at a node: obeyed, kept over restarts, gone with their queue, refused with words."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from lsmq.errors import NotEnoughReplicas, UnknownQueue
from lsmq_node.broker import Broker, own_options
from lsmq_node.broker.name_cleaner import NameCleaner
from lsmq_node.cluster.disk_thread import DiskThread
from lsmq_node.cluster.single import LocalShard
from lsmq_node.storage import StoredTopic
from lsmq_node.storage.queue_options import QueueOptions
from support.waiting import comes_true

from .calls import Api
from .in_process import Session, with_node
from .named_queues import named_topic, path, send

HOUR_MS = 3_600_000


def test_options_are_said_changed_and_taken_away(api: Api, topic_name: str) -> None:
    api.create(topic_name, 3, retention_ms=HOUR_MS)
    where = f"/v1/topics/{topic_name}/queues/1"
    assert api.get(where).json() == {"queue": 1, "earliest": 0, "latest": 0}
    changed = api.call("PATCH", where, {"retention_ms": "unlimited", "retention_bytes": 5}, status=200).json()
    assert changed == {
        "queue": 1,
        "earliest": 0,
        "latest": 0,
        "options": {"retention_ms": "unlimited", "retention_bytes": 5},
    }
    api.call("PATCH", where, {"retention_bytes": None, "retention_messages": 7}, status=200)
    assert api.get(where).json()["options"] == {"retention_ms": "unlimited", "retention_messages": 7}
    assert "options" not in api.get(f"/v1/topics/{topic_name}/queues/2").json()
    api.call("PATCH", where, {"retention_ms": None, "retention_messages": None}, status=200)
    assert "options" not in api.get(where).json()


@pytest.mark.parametrize(
    ("queue", "document", "status", "code", "words"),
    [
        ("1", {"retention_ms": 0}, 400, "invalid_request", "retention_ms"),
        ("1", {"retention_ms": "forever"}, 400, "invalid_request", "retention_ms"),
        ("1", {"ttl_ms": 5}, 400, "invalid_request", "ttl_ms"),
        ("3", {"retention_ms": 5}, 404, "unknown_queue", "queue 3"),
        ("x", {"retention_ms": 5}, 400, "invalid_request", "numbers from 0 to 2"),
    ],
)
def test_what_cannot_be_obeyed_is_refused_by_name(
    api: Api, topic_name: str, queue: str, document: dict[str, object], status: int, code: str, words: str
) -> None:
    api.create(topic_name, 3)
    refused = api.call("PATCH", f"/v1/topics/{topic_name}/queues/{queue}", document, status=status)
    assert refused.code == code and words in refused.error["message"]


def test_options_of_a_name_go_with_its_queue_and_hold_it(api: Api, topic_name: str) -> None:
    topic = named_topic(api, topic_name)
    refused = api.call("PATCH", path(topic, "a.b"), {"retention_ms": 5}, status=404)
    assert refused.code == "unknown_queue"
    send(api, topic, ("a.b", "1"), ("c", "1"))
    changed = api.call("PATCH", path(topic, "a.b"), {"retention_ms": HOUR_MS}, status=200).json()
    assert changed["options"] == {"retention_ms": HOUR_MS} and changed["name"] == "a.b"
    assert "options" not in api.get(path(topic, "c")).json()
    api.call("DELETE", path(topic, "a.b"), status=204)
    send(api, topic, ("a.b", "2"))
    assert "options" not in api.get(path(topic, "a.b")).json(), "the next queue of the name is another one"


def test_a_queue_with_options_is_not_forgotten_while_it_is_empty(tmp_path: Path) -> None:
    async def scenario(client: Session, broker: Broker) -> None:
        await client.put("/v1/topics/f", json={"queues": "named", "forget_empty_ms": 100})
        topic = await broker.topic("f")
        for name in ("kept", "not kept"):
            await broker.queue_lists.declare(topic, name)
        await broker.own_options.alter(topic, "kept", {"retention_ms": HOUR_MS})

        async def names() -> list[str]:
            return [row[0] for row in await broker.queue_lists.page(topic, "", "", 10)]

        async def is_forgotten(name: str) -> bool:
            return name not in await names()

        await comes_true(lambda: is_forgotten("not kept"), "the other one is forgotten")
        assert await names() == ["kept"]
        await broker.own_options.alter(topic, "kept", {"retention_ms": None})
        await comes_true(lambda: is_forgotten("kept"), "so is this one, when it has none any more")

    with_node(tmp_path, scenario)


def test_changes_at_once_are_all_obeyed_and_the_limit_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_options, "MAX_QUEUE_OPTIONS", 2)

    async def scenario(client: Session, broker: Broker) -> None:
        topic = await broker.topic("t")
        changes: list[dict[str, int]] = [{"retention_ms": 5}, {"retention_bytes": 6}, {"retention_messages": 7}]
        await asyncio.gather(*(broker.own_options.alter(topic, 0, each) for each in changes))
        assert broker.own_options.of(topic, 0).to_dict() == changes[0] | changes[1] | changes[2]
        await broker.own_options.alter(topic, 1, {"retention_ms": 5})
        await client.put("/v1/topics/u", json={"queues": 1})
        answer = await client.patch("/v1/topics/u/queues/0", json={"retention_ms": 5})
        error = (await answer.json())["error"]
        assert (answer.status, error["code"], error["limit"]) == (429, "too_many_queues", 2)
        await client.delete("/v1/topics/t")
        answer = await client.patch("/v1/topics/u/queues/0", json={"retention_ms": 5})
        assert answer.status == 200, "options of a topic go with it"

    with_node(tmp_path, scenario)


def test_a_queue_that_is_being_deleted_gets_no_options(tmp_path: Path) -> None:
    async def scenario(client: Session, broker: Broker) -> None:
        await client.put("/v1/topics/n", json={"queues": "named"})
        topic = await broker.topic("n")
        await broker.queue_lists.declare(topic, "a")
        with patch.object(DiskThread, "kick_soon"):  # Nothing is committed.
            deleting = asyncio.create_task(broker.queue_lists.delete(topic, "a"))
            await asyncio.sleep(0)
            altering = asyncio.create_task(broker.own_options.alter(topic, "a", {"retention_ms": 5}))
            for _ in range(20):
                await asyncio.sleep(0)
        await broker.queue_lists.declare(topic, "b")
        await deleting
        with pytest.raises(UnknownQueue):
            await altering
        await broker.queue_lists.declare(topic, "a")
        assert broker.own_options.of(topic, "a") == QueueOptions(), "it is another one"

    with_node(tmp_path, scenario)


@pytest.mark.parametrize("then", ["delete", "alter"])
@pytest.mark.parametrize("lost", ["caller", "answer"])
def test_what_comes_next_knows_of_options_that_nobody_waits_for_any_more(tmp_path: Path, lost: str, then: str) -> None:
    """Whoever set them is gone, or was told that they may be stored: they are."""

    async def scenario(client: Session, broker: Broker) -> None:
        await client.put("/v1/topics/n", json={"queues": "named"})
        topic, options, port = await broker.topic("n"), broker.own_options, broker.topology.port(0)
        assert isinstance(port, LocalShard)
        await broker.queue_lists.declare(topic, "a")
        with patch.object(DiskThread, "kick_soon"):  # Nothing is committed, as where replicas are away for long.
            altering = asyncio.create_task(options.alter(topic, "a", {"retention_ms": 5}))
            await comes_true(lambda: len(port._writes), "it is in line")
            if lost == "caller":
                altering.cancel()
                await asyncio.wait([altering])
            else:
                port._writes.expire(math.inf, lambda: NotEnoughReplicas("it may be stored", sent=True))
                with pytest.raises(NotEnoughReplicas):
                    await altering
            following: asyncio.Task[Any] = asyncio.create_task(
                broker.queue_lists.delete(topic, "a")
                if then == "delete"
                else options.alter(topic, "a", {"retention_bytes": 6})
            )
            for _ in range(20):
                await asyncio.sleep(0)  # What comes next waits, and does nothing before.
        await broker.queue_lists.declare(topic, "b")
        await following
        if then == "alter":
            assert options.of(topic, "a").to_dict() == {"retention_ms": 5, "retention_bytes": 6}
            return
        await broker.queue_lists.declare(topic, "a")
        assert options.of(topic, "a") == QueueOptions(), "it is another one"

    with_node(tmp_path, scenario)


def test_a_queue_that_is_being_forgotten_gets_no_options(tmp_path: Path) -> None:
    async def scenario(client: Session, broker: Broker) -> None:
        await client.put("/v1/topics/n", json={"queues": "named"})
        topic = await broker.topic("n")
        for name in ("a", "kept"):
            await broker.queue_lists.declare(topic, name)
        await broker.own_options.alter(topic, "kept", {"retention_ms": 5})
        numbers, altering = broker.names.numbers, list[asyncio.Task[Any]]()

        async def asked(*given: Any) -> list[int]:
            found = await numbers(*given)
            if not altering:
                altering.append(asyncio.create_task(broker.own_options.alter(topic, "a", {"retention_ms": 5})))
                await asyncio.wait(altering, timeout=0.2)  # It is done, or waits.
            return found

        cleaner, port = NameCleaner(broker), broker.topology.port(0)
        with patch.object(broker.names, "numbers", asked):
            await comes_true(lambda: _is_forgotten(cleaner, topic, broker), "it is seen to be empty, and forgotten")
        assert port.store.names(topic.id).count == 1
        with pytest.raises(UnknownQueue):
            await altering[0]
        await broker.queue_lists.declare(topic, "a")
        assert broker.own_options.of(topic, "a") == QueueOptions(), "it is another one"

    with_node(tmp_path, scenario)


async def _is_forgotten(cleaner: NameCleaner, topic: StoredTopic, broker: Broker) -> bool:
    port = broker.topology.port(0)
    await cleaner._forget(port, topic, 0.01)
    return port.store.names(topic.id).count < 2
