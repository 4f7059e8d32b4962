"""A delivery that was cut off anywhere is carried out once: by whoever leads next, from what the log has of it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from lsmq.errors import NotEnoughReplicas, TimedOut, TooManyProducers
from lsmq.record_batch import LAST_DUE_MS, BatchBuilder, RecordBatch
from lsmq_node.broker import Broker
from lsmq_node.cluster.disk_thread import DiskThread
from lsmq_node.cluster.single import LocalShard
from lsmq_node.delayed import DelayedId
from lsmq_node.delayed.deliveries import batches, topics_of
from lsmq_node.storage import HAND, Hand, ShardStore
from lsmq_node.storage.delayed import BEGIN, DUE
from lsmq_node.storage.delayed_records import DelayedRecords
from lsmq_node.storage.sorted_records import SortedRecords, select
from support.clock import SimClock
from support.waiting import comes_true

from . import in_process
from .in_process import SMALL, Session, node_of, with_node

MESSAGES = 30


def due_records(store: ShardStore) -> SortedRecords:
    read = store.delayed.read(BEGIN, LAST_DUE_MS, 10_000, 1 << 20)
    assert read.records is not None and not read.more
    return read.records


def begun(path: Path, stored_batches: int, deleted: str | None, planned: int = MESSAGES) -> None:
    """A store whose leader was about to deliver to three topics when it died, so many messages of them."""
    store = ShardStore.open(path / "shard-0", SMALL, clock=SimClock())
    ids = {name: store.create_topic(name, 1).id for name in ("a", "b", "c")}
    for number in range(MESSAGES):
        builder = BatchBuilder()
        builder.add(0, b"%d" % number, key="k", due_ms=1 + number // 3)
        store.wait(store.append(ids["abc"[number % 3]], RecordBatch(builder.build())))
    records = select(due_records(store), np.arange(planned))
    due_ms, offset = int(records.keys[-1] & ~DUE), int(records.offsets[-1])
    topics = topics_of(records.columns[15])
    plan = Hand(BEGIN, (due_ms, offset), 1, 0, topics)
    store.wait(store.put_documents({HAND: plan.encode()}))
    for topic_id, batch in batches(records, topics, 1, topics, 0)[:stored_batches]:
        store.wait(store.append(topic_id, batch))
    if deleted is not None:
        store.delete_topic(deleted)
    store.flush()
    store.close()


@pytest.mark.parametrize(
    ("deleted", "planned"),
    [(None, MESSAGES), ("a", MESSAGES), ("b", MESSAGES), ("c", MESSAGES), (None, MESSAGES - 1), (None, MESSAGES - 2)],
)  # Others of the same moment may come behind what was planned.
@pytest.mark.parametrize("stored_batches", [0, 1, 2, 3])
def test_what_was_about_to_be_delivered_comes_once(
    tmp_path: Path, stored_batches: int, deleted: str | None, planned: int
) -> None:
    begun(tmp_path, stored_batches, deleted, planned)

    async def check(client: Session, broker: Broker) -> None:
        sent = await client.post("/v1/topics/t/messages", json={"messages": [{"queue": 0, "body": "x", "delay_ms": 1}]})
        assert sent.status == 200, "the machine works"
        last = await client.get("/v1/topics/t/queues/0/messages?wait_ms=20000")
        assert [each["body"] for each in (await last.json())["messages"]] == ["x"]
        for at, name in enumerate("abc"):
            answer = await client.get(f"/v1/topics/{name}/queues/0/messages?max=1000")
            if name == deleted:
                assert answer.status == 404
                continue
            found = [int(each["body"]) for each in (await answer.json())["messages"]]
            assert found == list(range(at, MESSAGES, 3))
        dropped = node_of(client).delayed.counts.dropped
        assert dropped == (MESSAGES // 3 if deleted is not None else 0), "what is stored already is not lost"

    with_node(tmp_path, check)


def test_a_message_put_at_another_time_comes_once_though_that_took_too_long_and_nobody_waits(tmp_path: Path) -> None:
    async def check(client: Session, broker: Broker) -> None:
        port, machine = broker.topology.port(0), await node_of(client).delayed.shard(0)
        assert isinstance(port, LocalShard)
        document = {"messages": [{"queue": 0, "body": "x", "delay_ms": 500}]}
        answer = await client.post("/v1/topics/t/messages", json=document)
        (sent,) = (await answer.json())["results"]
        place, topic = DelayedId.parse(sent["id"], 1).place, await broker.topic("t")
        with patch.object(DiskThread, "kick_soon"):  # Nothing is committed.
            moving = asyncio.create_task(machine.reschedule(place, topic.id, 1_500))
            await comes_true(lambda: place in machine._cancelled, "it is in line")
            moving.cancel()
            await asyncio.wait([moving])
            port._writes.expire(math.inf, lambda: TimedOut("not enough replicas have it yet"))
            await comes_true(
                lambda: not machine.is_current or machine.hand.to >= place, "it is due, or to be looked at"
            )
        delayed, moved = node_of(client).delayed, place[0] + 1_000

        async def has_come() -> bool:
            await broker.own_options.alter(topic, 1, {"retention_messages": 5})  # All that is in line is committed.
            return any(shard.hand.to[0] >= moved for shard in delayed.shards())

        await comes_true(has_come, "it has come")
        await (await delayed.shard(0)).barrier()
        assert (await broker.offsets(topic, np.array((0,))))[1].tolist() == [1], "once"

    with_node(tmp_path, check)


def test_what_is_cancelled_when_it_was_read_already_does_not_come_and_is_not_remembered_for_ever(
    tmp_path: Path,
) -> None:
    async def check(client: Session, broker: Broker) -> None:
        machine = await node_of(client).delayed.shard(0)
        has_read, go_on = asyncio.Event(), asyncio.Event()
        in_readers = machine._in_readers

        async def held(blocking: Callable[[], Any]) -> Any:
            found = await in_readers(blocking)
            if isinstance(found, tuple) and found[0].records is not None:
                has_read.set()
                await go_on.wait()
            return found

        messages = [{"queue": 0, "body": body, "delay_ms": 1} for body in ("goes", "stays")]
        with patch.object(machine, "_in_readers", held):
            answer = await client.post("/v1/topics/t/messages", json={"messages": messages})
            goes, _ = (await answer.json())["results"]
            await has_read.wait()
            assert (await client.delete(f"/v1/topics/t/delayed/{goes['id']}")).status == 200
            assert (await client.delete(f"/v1/topics/t/delayed/{goes['id']}")).status == 404
            go_on.set()
            answer = await client.get("/v1/topics/t/queues/0/messages?wait_ms=20000")
            assert [each["body"] for each in (await answer.json())["messages"]] == ["stays"]
        await comes_true(lambda: not (machine._cancelled or machine._cancellations or machine._open_reads), "forgotten")

    with_node(tmp_path, check)


def test_what_is_due_and_cannot_be_stored_is_seen_to_be_late_until_it_comes(tmp_path: Path) -> None:
    refused = NotEnoughReplicas("too few replicas are in sync")

    async def check(client: Session, broker: Broker) -> None:
        machine = await node_of(client).delayed.shard(0)

        async def overdue() -> float:
            text = await (await client.get("/metrics")).text()
            return float(text.partition("\nlsmq_delayed_overdue_seconds ")[2].split("\n", 1)[0])

        async def is_late() -> bool:
            return await overdue() > 0.5

        document = {"messages": [{"queue": 0, "body": "x", "delay_ms": 300}]}
        assert (await client.post("/v1/topics/t/messages", json=document)).status == 200
        with patch.object(LocalShard, "check_writable", side_effect=refused):
            await comes_true(is_late, "it is refused again and again")
        answer = await client.get("/v1/topics/t/queues/0/messages?wait_ms=20000")
        assert [each["body"] for each in (await answer.json())["messages"]] == ["x"]
        await machine.barrier()
        assert await overdue() == 0

        assert (await client.post("/v1/topics/t/messages", json=document)).status == 200
        with patch.object(DiskThread, "kick_soon"):
            await comes_true(is_late, "it is in line, and nothing is committed")
        await machine.barrier()
        assert await overdue() == 0

    with_node(tmp_path, check)


def test_the_next_one_is_found_with_few_looks_behind_many_that_were_cancelled(tmp_path: Path) -> None:
    many = 5_000

    async def check(client: Session, broker: Broker) -> None:
        store, topic = broker.topology.port(0).store, await broker.topic("t")
        builder = BatchBuilder()
        for number in range(many):
            builder.add(0, b"%d" % number, due_ms=LAST_DUE_MS - many + number)
        await asyncio.to_thread(store.wait, store.append(topic.id, RecordBatch(builder.build())))
        records = due_records(store)
        places = list(zip((records.keys & ~DUE).tolist(), records.offsets.tolist(), strict=True))
        await asyncio.to_thread(store.wait, store.delayed.cancel(places[:-1]))
        machine = await node_of(client).delayed.shard(0)
        with patch.object(DelayedRecords, "read", autospec=True, side_effect=DelayedRecords.read) as looked:
            document = {"messages": [{"queue": 0, "body": "soon", "delay_ms": 1}]}
            assert (await client.post("/v1/topics/t/messages", json=document)).status == 200
            await comes_true(lambda: machine._next_ms == LAST_DUE_MS - 1, "the next one is known")
        assert looked.call_count < 50

    with_node(tmp_path, check)


def test_what_was_taken_comes_although_a_shard_knows_as_many_producers_as_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_process, "SMALL", replace(SMALL, max_producers=1))

    async def check(client: Session, broker: Broker) -> None:
        topic, store = await broker.topic("t"), broker.topology.port(0).store
        builder = BatchBuilder()
        builder.add(1, b"x")
        await asyncio.to_thread(store.wait, store.append(topic.id, RecordBatch(builder.build(producer_id=1))))
        with pytest.raises(TooManyProducers):
            store.append(topic.id, RecordBatch(builder.build(producer_id=2)))
        document = {"messages": [{"queue": 0, "body": "later", "delay_ms": 1}]}
        assert (await client.post("/v1/topics/t/messages", json=document)).status == 200
        answer = await client.get("/v1/topics/t/queues/0/messages?wait_ms=5000")
        assert [each["body"] for each in (await answer.json())["messages"]] == ["later"]

    with_node(tmp_path, check)
