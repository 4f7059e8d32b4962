"""Work queues at their limits, in a node of the test's own process: of open messages, and of those in flight."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from lsmq_node.broker import Broker
from lsmq_node.storage import documents
from lsmq_node.workqueue import ledger, open_messages, shard_work
from lsmq_node.workqueue.burial import DeadLetterMover
from lsmq_node.workqueue.reading import read_again
from support.waiting import comes_true

from .in_process import Session, node_of, with_node
from .test_work_queue_insides import pop, settle

OPEN = 3


@pytest.fixture
def few_open() -> Iterator[None]:
    with patch.object(ledger, "MAX_OPEN", OPEN), patch.object(shard_work, "MAX_OPEN", OPEN):
        yield


async def configure(session: Session, **settings: Any) -> None:
    answer = await session.put("/v1/groups/g/work-queue", json={"topic": "t", **settings})
    assert answer.status == 200, await answer.text()


async def send(session: Session, count: int, **fields: Any) -> None:
    messages = [{"queue": 0, "body": f"{number}", **fields} for number in range(count)]
    assert (await session.post("/v1/topics/t/messages", json={"messages": messages})).status == 200


@pytest.mark.usefixtures("few_open")
@pytest.mark.parametrize("settings", [{"order": "priority"}, {"fair_by": "tag"}, {"order": "key"}, {}])
def test_a_pop_is_held_while_as_many_are_open_as_may_be(tmp_path: Path, settings: dict[str, str]) -> None:
    async def test(session: Session, broker: Broker) -> None:
        await configure(session, **settings)
        await send(session, OPEN + 2)
        first = await pop(session)
        assert len(first) == OPEN
        held = asyncio.create_task(pop(session, wait_ms=3_000))
        await comes_true(lambda: node_of(session).work.held.count == 1, "it is held, and the node does other things")
        assert await settle(session, "ack", first[:1]) == 200
        assert [message["body"] for message in await held] == [f"{OPEN}"]

    with_node(tmp_path, test)


def most(found: list[dict[str, Any]]) -> int:
    """Of one queue."""
    return max(Counter(message["queue"] for message in found).values())


@pytest.mark.parametrize("settings", [{}, {"order": "key"}])
def test_retries_and_new_messages_of_one_queue_count_together_for_what_may_be_in_flight(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    async def test(session: Session, broker: Broker) -> None:
        await configure(session, max_in_flight_per=6, **settings)
        await send(session, 20)
        for _ in range(2):
            assert await settle(session, "nack", await pop(session), delay_ms=1_000) == 200
        (work,) = node_of(session).work.shards()
        await comes_true(lambda: work.figures()["ready"] == 12, "they are due again")
        found = await pop(session, max=10)
        assert most(found) <= 6 and work.figures()["in_flight"] <= 6

    with_node(tmp_path, test)


@pytest.mark.usefixtures("few_open")
def test_of_one_tenant_no_more_is_in_flight_while_as_many_are_open_as_may_be(tmp_path: Path) -> None:
    async def test(session: Session, broker: Broker) -> None:
        await configure(session, fair_by="tag")
        await send(session, OPEN + 1, tag="a")
        assert await settle(session, "nack", await pop(session), delay_ms=0) == 200
        await configure(session, fair_by="tag", max_in_flight_per=1)
        first = await pop(session)
        held = asyncio.create_task(pop(session, wait_ms=10_000))
        await comes_true(lambda: node_of(session).work.held.count == 1, "it is held, and the node does other things")
        assert len(first) == 1 and await settle(session, "nack", first, delay_ms=600_000) == 200
        assert len(await held) == 1

    with_node(tmp_path, test)


@pytest.mark.parametrize("settings", [{"order": "priority"}, {}])
def test_a_backlog_that_went_costs_few_reads_and_what_came_behind_it_keeps_its_order(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    count, reads = 2_000, 0

    def counted(*given: Any) -> None:
        nonlocal reads
        reads += 1
        read_again(*given)

    async def test(session: Session, broker: Broker) -> None:
        await configure(session, **settings)
        await send(session, count)
        (first,) = await pop(session, max=1)
        if not settings:
            assert await settle(session, "nack", [first, *await pop(session, max=count)], delay_ms=0) == 200
        assert (await session.post("/v1/topics/t/purge", json={})).status == 200
        await send(session, 6, tag="a")
        with patch.object(shard_work, "read_again", counted):
            found = [message["body"] for _ in range(6) for message in await pop(session, max=1)]
        assert found == [f"{number}" for number in range(6)]
        assert reads < 30

    with_node(tmp_path, test)


def test_many_messages_that_fail_with_long_reasons_are_stored_whatever_that_takes(tmp_path: Path) -> None:
    queues, reason = 32, "why" * 160

    async def test(session: Session, broker: Broker) -> None:
        await session.delete("/v1/topics/t")
        assert (await session.put("/v1/topics/t", json={"queues": queues})).status == 201
        messages = [{"queue": number % queues, "body": "x"} for number in range(2_000)]
        assert (await session.post("/v1/topics/t/messages", json={"messages": messages})).status == 200
        store = broker.topology.ports()[0].store
        found = await pop(session, max=1_000)
        assert await settle(session, "nack", found, delay_ms=600_000, reason=reason) == 200
        waiting = store.stats().documents_bytes
        assert waiting < 1_000 * len(reason) / 4, "why they failed last is not kept of what comes again"
        again = await pop(session, max=1_000)
        with patch.object(DeadLetterMover, "wake"):
            assert await settle(session, "nack", again, dead_letter=True, reason=reason) == 200
        (work,) = node_of(session).work.shards()
        assert work.figures() == {"waiting": 1_000, "dead": 1_000, "in_flight": 0, "ready": 0, "blocked": 0}
        assert store.stats().documents_bytes > waiting + 1_000 * len(reason)

    with (
        patch.object(open_messages, "_CHANGE_BYTES", 20_000),
        patch.object(documents, "MAX_CHANGE_BYTES", 80_000),
    ):
        with_node(tmp_path, test)
