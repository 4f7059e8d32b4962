"""Work queues in a node of the test's own process: what cannot be seen from outside."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import PropertyMock, patch

import numpy as np
import pytest

from lsmq.errors import NotLeader, Unavailable
from lsmq.filters import MessageFilter
from lsmq_node.broker import Broker, ByteBudget
from lsmq_node.cluster.disk_thread import DiskThread
from lsmq_node.groups import declared
from lsmq_node.machines import service as machine_service
from lsmq_node.storage.segments import SegmentFiles
from lsmq_node.workqueue import WorkService, burial, picks, shard_work
from lsmq_node.workqueue.burial import DeadLetterMover
from lsmq_node.workqueue.picks import Picks
from lsmq_node.workqueue.queue_turns import QueueTurns
from lsmq_node.workqueue.reading import Found, read_again
from lsmq_node.workqueue.receipts import DeliveryReceipt
from lsmq_node.workqueue.shard_work import ShardWork, WorkDelivery
from lsmq_node.workqueue.window import Window
from support.waiting import PATIENCE_S, comes_true

from .in_process import Session, node_of, with_node


async def pop(session: Session, **document: Any) -> list[dict[str, Any]]:
    answer = await session.post("/v1/groups/g/pop", json={"topic": "t", **document})
    assert answer.status == 200, await answer.text()
    found: list[dict[str, Any]] = (await answer.json())["messages"]
    return found


async def settle(session: Session, what: str, messages: list[dict[str, Any]], **more: Any) -> int:
    receipts = [message["receipt"] for message in messages]
    answer = await session.post(f"/v1/groups/g/{what}", json={"topic": "t", "receipts": receipts, **more})
    return answer.status


async def send(session: Session, *bodies: str) -> None:
    messages = [{"queue": 0, "body": body} for body in bodies]
    assert (await session.post("/v1/topics/t/messages", json={"messages": messages})).status == 200


def work_service(session: Session) -> WorkService:
    return node_of(session).work


def test_a_work_queue_nobody_uses_is_forgotten_and_goes_on_where_it_was(tmp_path: Path) -> None:
    async def test(session: Session, broker: Broker) -> None:
        await send(session, "0", "1", "2", "3")
        first, second, third, _ = await pop(session, visibility_ms=100)
        assert await settle(session, "ack", [first, third]) == 200
        assert await settle(session, "nack", [second], delay_ms=600_000) == 200
        known = work_service(session)
        with patch.object(machine_service, "IDLE_S", 0.0):
            await comes_true(lambda: not known.shards(), "it is forgotten")
        assert not broker.waiters._topics, "commits are not followed for it any more"
        await send(session, "4")
        found = [message["body"] for message in await pop(session)]
        assert sorted(found) == ["3", "4"], "what rests still rests, what was done is done"

    with_node(tmp_path, test)


def test_what_is_known_of_a_queue_is_forgotten_when_it_was_purged(tmp_path: Path) -> None:
    async def test(session: Session, broker: Broker) -> None:
        await send(session, "0", "1", "2")
        failed, *_ = await pop(session, visibility_ms=100)
        assert await settle(session, "nack", [failed], delay_ms=600_000) == 200
        known, (port,) = work_service(session), broker.topology.ports()
        with patch.object(machine_service, "IDLE_S", 0.0):
            await comes_true(lambda: not known.shards(), "it is not loaded")
        assert (await session.post("/v1/topics/t/purge", json={})).status == 200

        def documents() -> int:
            return len(list(port.store.documents("work/g/")))

        assert documents() == 2, "the settings, and a chunk"
        assert await pop(session) == []
        await comes_true(lambda: documents() == 1, "the chunk is gone")

    with_node(tmp_path, test)


def test_the_group_of_a_work_queue_that_is_used_is_made_again_unless_another_one_took_its_name(tmp_path: Path) -> None:
    async def test(session: Session, broker: Broker) -> None:
        async def pops() -> int:
            return (await session.post("/v1/groups/g/pop", json={"topic": "t"})).status

        async def is_a_work_queue() -> bool:
            await pops()
            answer = await session.get("/v1/groups/g")
            return answer.status == 200 and (await answer.json())["mode"] == "work_queue"

        async def is_taken() -> bool:
            await session.delete("/v1/groups/g")
            return (await session.put("/v1/groups/g", json={"mode": "clustered"})).status == 200

        async def is_refused() -> bool:
            return await pops() == 409

        assert await is_a_work_queue()
        # A worker came between the deletion of the group's work and of the group.
        assert (await session.delete("/v1/groups/g")).status == 204
        with patch.object(declared, "AGAIN_S", 0.0):
            await comes_true(is_a_work_queue, "it is made again")
            await comes_true(is_taken, "another one takes its name")
            await comes_true(is_refused, "it is another one's")
            assert (await session.delete("/v1/groups/g")).status == 204
            await comes_true(is_a_work_queue, "the name is free again")

    with_node(tmp_path, test)


def test_while_its_replica_is_opened_again_a_work_queue_is_dropped_and_then_goes_on(tmp_path: Path) -> None:
    async def test(session: Session, broker: Broker) -> None:
        await send(session, "0")
        assert await settle(session, "ack", await pop(session)) == 200
        known, port = work_service(session), type(broker.topology.port(0))
        opening = Unavailable("the replica is being opened")
        with (
            patch.object(port, "store", PropertyMock(side_effect=opening), create=True),
            patch.object(port, "check_readable", side_effect=opening),
        ):
            await comes_true(lambda: not known._known, "it is dropped")
            assert known.shards() == []
        await send(session, "1")
        assert [message["body"] for message in await pop(session)] == ["1"]

    with_node(tmp_path, test)


def test_all_queues_are_looked_at_once_and_then_only_those_with_messages(tmp_path: Path) -> None:
    looks = 0
    find = ShardWork._find_waiting

    def counted(self: ShardWork, windows: Sequence[tuple[int, int]]) -> np.ndarray[Any, np.dtype[np.int64]]:
        nonlocal looks
        looks += 1
        return find(self, windows)

    async def test(session: Session, broker: Broker) -> None:
        with patch.object(ShardWork, "_find_waiting", counted):
            for number in range(20):
                await send(session, f"{number}")
                (message,) = await pop(session)
                assert message["body"] == f"{number}"
                assert await settle(session, "ack", [message]) == 200
        assert looks == 1

    with_node(tmp_path, test)


def test_an_acknowledgement_that_cannot_be_stored_is_refused_and_counts_when_it_can(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "no space left")

    async def test(session: Session, broker: Broker) -> None:
        await send(session, "0", "1")
        messages = await pop(session)
        with patch.object(SegmentFiles, "prepare", side_effect=full):
            assert await settle(session, "ack", messages[:1]) == 507
        await comes_true(lambda: not broker.topology.ports()[0].store.disk_full, "there is space")
        # What is stored was read again; what is in flight stays hidden from others, and its receipts count.
        assert await pop(session) == []

        async def taken(message: dict[str, Any]) -> bool:  # What began before may still find the disk full.
            return await settle(session, "ack", [message]) == 200

        for message in messages:
            await comes_true(partial(taken, message), "the acknowledgement is taken")
        assert await pop(session) == []

    with_node(tmp_path, test)


def test_what_is_acknowledged_gives_its_space_back_where_that_is_asked_for(tmp_path: Path) -> None:
    body, rounds = "x" * 100_000, 8

    async def test(session: Session, broker: Broker) -> None:
        store = broker.topology.ports()[0].store
        settings = {"topic": "t", "delete_on_ack": True}
        assert (await session.put("/v1/groups/g/work-queue", json=settings)).status == 200
        for _ in range(rounds):
            await send(session, *[body] * 8)
            await asyncio.to_thread(store.flush)
            assert await settle(session, "ack", await pop(session, max=100)) == 200
        await asyncio.to_thread(store.flush)
        written = rounds * 8 * len(body)
        await comes_true(lambda: store.stats().table_bytes < written / 2, "merges have dropped it")
        assert (await (await session.get("/v1/topics/t/queues/0")).json())["earliest"] == rounds * 8

    with_node(tmp_path, test)


@pytest.mark.parametrize("before", ["that was asked for", "another one led"])
def test_what_was_acknowledged_before_gives_its_space_back_as_well(tmp_path: Path, before: str) -> None:
    async def test(session: Session, broker: Broker) -> None:
        async def ask_for_it() -> None:
            settings = {"topic": "t", "delete_on_ack": True}
            assert (await session.put("/v1/groups/g/work-queue", json=settings)).status == 200

        async def is_deleted() -> bool:
            earliest: int = (await (await session.get("/v1/topics/t/queues/0")).json())["earliest"]
            return earliest == 2

        await send(session, "0", "1", "2")
        if before == "another one led":
            await ask_for_it()
        with patch.object(shard_work, "delete_settled"):  # whoever had put it in line is gone
            assert await settle(session, "ack", (await pop(session))[:2]) == 200
        if before == "another one led":
            (work,) = work_service(session).shards()
            work.break_off(Unavailable("it is read again"))
            await pop(session)
        else:
            await ask_for_it()
        await comes_true(is_deleted, "it is deleted")

    with_node(tmp_path, test)


def test_dead_letters_come_although_moving_them_has_failed_in_an_unexpected_way(tmp_path: Path) -> None:
    bury, failures = DeadLetterMover._bury_all, 0

    async def fails_once(self: DeadLetterMover) -> None:
        nonlocal failures
        if not failures:
            failures += 1
            raise KeyError("a mistake")
        await bury(self)

    async def test(session: Session, broker: Broker) -> None:
        await send(session, "0", "1")
        assert await settle(session, "nack", await pop(session), dead_letter=True) == 200

        async def moved() -> bool:
            answer = await session.get("/v1/topics/t.dlq/queues/0/messages")
            return answer.status == 200 and len((await answer.json())["messages"]) == 2

        await comes_true(moved, "both are dead letters")
        assert failures == 1

    with patch.object(DeadLetterMover, "_bury_all", fails_once), patch.object(burial, "_FAILED_S", 0.05):
        with_node(tmp_path, test)


def test_dead_letters_come_although_their_topic_was_made_anew_while_they_were_moved(tmp_path: Path) -> None:
    bury, stored = ShardWork.bury, asyncio.Event()

    async def letters(session: Session) -> list[str]:
        answer = await session.get("/v1/topics/t.dlq/queues/0/messages")
        return [] if answer.status == 404 else [message["body"] for message in (await answer.json())["messages"]]

    async def test(session: Session, broker: Broker) -> None:
        async def is_cut_off(self: ShardWork, tasks: Sequence[Any]) -> None:
            if not stored.is_set():
                stored.set()
                assert (await session.delete("/v1/topics/t.dlq")).status == 204
                raise Unavailable("the letters are stored, and nobody knows")
            await bury(self, tasks)

        with patch.object(ShardWork, "bury", is_cut_off), patch.object(burial, "_RETRY_S", 0.05):
            await send(session, "0", "1", "2")
            messages = await pop(session)
            assert await settle(session, "nack", messages[:2], dead_letter=True) == 200
            await asyncio.wait_for(stored.wait(), PATIENCE_S)
            assert await settle(session, "nack", messages[2:], dead_letter=True) == 200

            async def moved() -> bool:
                return sorted(await letters(session)) == ["0", "1", "2"]

            await comes_true(moved, "all are dead letters")

    with_node(tmp_path, test)


@pytest.mark.parametrize(
    ("bodies", "limit"),
    [([f"{number}" for number in range(5)], {"queue_max_messages": 3}), (["x" * 60_000] * 50, {})],
    ids=["number", "bytes"],
)
def test_dead_letters_come_although_their_topic_takes_no_more_than_few_of_them_together(
    tmp_path: Path, bodies: list[str], limit: dict[str, int]
) -> None:
    """As many as fit: the limit of the topic, or of a batch, half of ``memtable_bytes``."""

    async def test(session: Session, broker: Broker) -> None:
        await session.put("/v1/topics/t.dlq", json={"queues": 1, **limit})
        for first in range(0, len(bodies), 10):
            await send(session, *bodies[first : first + 10])
        messages: list[dict[str, Any]] = []
        while len(messages) < len(bodies):
            messages += await pop(session, max=100)
        assert await settle(session, "nack", messages, dead_letter=True) == 200
        most = limit.get("queue_max_messages", len(bodies))

        async def are_there(count: int) -> bool:
            latest = (await broker.offsets(await broker.topic("t.dlq"), np.array((0,))))[1]
            return latest.tolist() == [count]

        await comes_true(partial(are_there, most), "as many as it holds are dead letters")
        if limit:
            assert (await session.patch("/v1/topics/t.dlq", json=dict.fromkeys(limit, 100))).status == 200
            await comes_true(partial(are_there, len(bodies)), "the others have room")

    with patch.object(burial, "_RETRY_S", 0.05):
        with_node(tmp_path, test)


def test_of_a_group_that_is_deleted_all_comes_again_also_to_those_who_wait(tmp_path: Path) -> None:
    async def test(session: Session, broker: Broker) -> None:
        await send(session, "0", "1")
        assert await settle(session, "ack", await pop(session)) == 200
        held = asyncio.create_task(pop(session, wait_ms=10_000))
        await comes_true(lambda: any(work.is_waited_for for work in work_service(session).shards()), "a pop is held")
        assert (await session.delete("/v1/groups/g/offsets?shard=0")).status == 204
        assert [message["body"] for message in await held] == ["0", "1"], "though none came since"

    with_node(tmp_path, test)


def test_a_work_queue_that_was_being_read_while_its_group_was_deleted_is_read_again(tmp_path: Path) -> None:
    find, deleted = ShardWork.find_waiting, asyncio.Event()

    async def test(session: Session, broker: Broker) -> None:
        async def finds_late(self: ShardWork, turns: QueueTurns) -> None:
            await find(self, turns)
            if not deleted.is_set():
                deleted.set()
                assert (await session.delete("/v1/groups/g/offsets?shard=0")).status == 204

        await send(session, "0", "1")
        assert await settle(session, "ack", await pop(session)) == 200
        known = work_service(session)
        with patch.object(machine_service, "IDLE_S", 0.0):
            await comes_true(lambda: not known.shards(), "it is forgotten")
        with patch.object(ShardWork, "find_waiting", finds_late):
            assert [message["body"] for message in await pop(session)] == ["0", "1"]
        assert deleted.is_set()

    with_node(tmp_path, test)


@pytest.mark.parametrize("lost", ["leadership", "memory"])
def test_what_was_taken_of_one_shard_is_answered_although_the_next_one_fails(tmp_path: Path, lost: str) -> None:
    take, available, max_bytes = ShardWork.take, ShardWork.available, 100

    async def test(session: Session, broker: Broker) -> None:
        service, budget, topics = work_service(session), ByteBudget(max_bytes), []
        for name in ("t", "u"):  # Shards are to a pop what topics of one shard are.
            await session.put(f"/v1/topics/{name}", json={"queues": 1})
            document = {"messages": [{"queue": 0, "body": name}]}
            assert (await session.post(f"/v1/topics/{name}/messages", json=document)).status == 200
            topics.append(await broker.topic(name))
        first, second = [await service.work("g", topic, 0) for topic in topics]
        other = budget.hold()

        async def takes(self: ShardWork, *given: Any) -> list[WorkDelivery]:
            found = await take(self, *given)
            if lost == "leadership":
                second.break_off(NotLeader("another one leads"))
            return found

        def looks(self: ShardWork, wanted: None) -> bool:
            if lost == "memory" and self is second:
                other.resize(max_bytes // 2)
            return available(self, wanted)

        service._turn = 1
        with patch.object(ShardWork, "take", takes), patch.object(ShardWork, "available", looks), budget.hold() as hold:
            found = await service._take([first, second], 10, max_bytes, None, None, lambda: False, hold)
            assert [delivery.record.body for delivery in found] == [b"t"]

    with_node(tmp_path, test)


def test_a_message_that_is_larger_than_what_is_asked_for_comes_though_memory_is_short(tmp_path: Path) -> None:
    async def test(session: Session, broker: Broker) -> None:
        await send(session, "x" * 1000)
        work = await work_service(session).work("g", await broker.topic("t"), 0)
        with ByteBudget(100).hold() as hold:
            (found,) = await work_service(session)._take([work], 10, 100, None, None, lambda: False, hold)
            assert hold.held_bytes == found.record.size_bytes == 1000

    with_node(tmp_path, test)


def test_what_a_filter_finds_at_first_is_not_disturbed_by_acknowledgements(tmp_path: Path) -> None:
    ahead_count = Window.ahead_count.fget
    assert ahead_count is not None
    loop_thread, receipts = threading.get_ident(), list[DeliveryReceipt]()

    async def test(session: Session, broker: Broker) -> None:
        loop = asyncio.get_running_loop()

        def counts(self: Window) -> int:
            if receipts and threading.get_ident() != loop_thread:
                settling = asyncio.run_coroutine_threadsafe(work.settle([receipts.pop()], work.ledger.ack), loop)
                settling.result(PATIENCE_S)
            return ahead_count(self)

        for body in ("old", "new"):
            messages = [{"queue": queue, "body": body, "tag": "a"} for queue in (0, 1)]
            assert (await session.post("/v1/topics/t/messages", json={"messages": messages})).status == 200
            if body == "old":
                assert len(await pop(session)) == 2
        work = await work_service(session).work("g", await broker.topic("t"), 0)
        receipts.extend(left.receipt for left in work.ledger.deliveries()[:1])
        with patch.object(Window, "ahead_count", property(counts)):
            found = await pop(session, tag="a")
        assert [message["body"] for message in found] == ["new", "new"]

    with_node(tmp_path, test)


def _is_given(work: ShardWork, given: dict[str, Any]) -> bool:
    return work.given == given


def test_settings_hold_although_whoever_set_them_went_before_they_were_stored(tmp_path: Path) -> None:
    async def test(session: Session, broker: Broker) -> None:
        await send(session, "0")
        work = await work_service(session).work("g", await broker.topic("t"), 0)
        for given in ({"max_deliveries": 1}, {"order": "key"}):
            setting = asyncio.create_task(work.put_settings(given))
            await asyncio.sleep(0)  # It is in line.
            setting.cancel()
            await asyncio.wait([setting])
            assert setting.cancelled()
            await comes_true(partial(_is_given, work, given), "they hold")
        assert not work.is_current, "turns are others: it is read again"

    with_node(tmp_path, test)


def test_an_acknowledgement_that_comes_again_waits_for_the_first_one(tmp_path: Path) -> None:
    async def test(session: Session, broker: Broker) -> None:
        assert (await session.put("/v1/groups/g/work-queue", json={"topic": "t", "order": "key"})).status == 200
        await send(session, "0", "1", "2")
        messages = await pop(session)
        assert await settle(session, "ack", messages[1:2]) == 200  # There is a document of the queue from here on.
        (work,) = work_service(session).shards()
        receipt = next(left.receipt for left in work.leaves() if left.receipt.offset == 2)

        def acknowledge() -> asyncio.Task[Any]:
            return asyncio.create_task(work.settle([receipt], work.ledger.ack))

        with patch.object(DiskThread, "kick_soon"):  # Nothing is committed.
            first = acknowledge()
            await comes_true(lambda: work._flushing is not None, "it is in line")
            work.ledger.line_up(0, [], [], 3, 1, work.now_ms())  # Somebody looks, and there is nothing.
            work.after()
            assert work._flush is not None
            await comes_true(lambda: work._flush is None, "that has nothing to store")
            again = acknowledge()
            for _ in range(20):
                await asyncio.sleep(0)
            assert not (first.done() or again.done())
        await work.barrier()
        assert [await first, await again] == [[None], [None]]

    with_node(tmp_path, test)


@pytest.mark.parametrize("how", ["fails", "is_cancelled"])
def test_what_a_pop_has_taken_and_cannot_answer_comes_again_at_once(tmp_path: Path, how: str) -> None:
    async def test(session: Session, broker: Broker) -> None:
        await session.put("/v1/topics/n", json={"queues": "named"})
        messages = [{"queue": "a", "body": "x"}]
        assert (await session.post("/v1/topics/n/messages", json={"messages": messages})).status == 200
        asked = asyncio.Event()

        async def names_of(*given: Any) -> Any:
            asked.set()
            if how == "fails":
                raise Unavailable("names cannot be read now")
            await asyncio.Event().wait()

        with patch.object(broker.names, "names_of", names_of):
            popping = asyncio.create_task(session.post("/v1/groups/g/pop", json={"topic": "n"}))
            await asked.wait()
            if how == "is_cancelled":
                popping.cancel()
                await asyncio.wait([popping])
            else:
                assert (await popping).status == 503
            (work,) = work_service(session).shards()
            await comes_true(lambda: not work.figures()["in_flight"], "nobody has it")
        answer = await session.post("/v1/groups/g/pop", json={"topic": "n"})
        (message,) = (await answer.json())["messages"]
        assert (message["body"], message["deliveries"]) == ("x", 1), "the first one does not count"

    with_node(tmp_path, test)


@pytest.mark.parametrize("looks_for", ["the next shard", "more that a filter picks"])
def test_what_a_pop_has_taken_when_it_is_cancelled_comes_again_at_once(tmp_path: Path, looks_for: str) -> None:
    async def test(session: Session, broker: Broker) -> None:
        service, works = work_service(session), list[ShardWork]()
        wanted = None if looks_for == "the next shard" else MessageFilter.of("a", None, None)
        for name in ("t", "u"):  # Shards are to a pop what topics of one shard are.
            await session.put(f"/v1/topics/{name}", json={"queues": 1})
            document = {"messages": [{"queue": 0, "body": name, "tag": "a"}]}
            assert (await session.post(f"/v1/topics/{name}/messages", json=document)).status == 200
            works.append(await service.work("g", await broker.topic(name), 0))
        some = works[:1] if wanted else works
        where = Picks if wanted else ShardWork
        take, taken = where._take_once, list[list[WorkDelivery]]()

        async def takes(self: Any, *given: Any) -> Any:
            if taken:
                await asyncio.Event().wait()
            found: Any = await take(self, *given)
            await send(session, "more")
            taken.append(found if wanted else found[0])
            return found

        service._turn = 1
        with patch.object(where, "_take_once", takes), ByteBudget(100_000).hold() as hold:
            popping = asyncio.create_task(service._take(some, 10, 1000, None, wanted, lambda: False, hold))
            await comes_true(lambda: bool(taken), "it has some")
            for _ in range(20):
                await asyncio.sleep(0)
            popping.cancel()
            await asyncio.wait([popping])
            assert popping.cancelled() and len(taken[0]) == 1
        (first,) = await works[0].take(1, 1000, 1000, lambda: False)
        assert (first.record.body, first.receipt.count) == (b"t", 1)

    with_node(tmp_path, test)


def test_what_cannot_be_read_for_damage_comes_again_also_where_only_filters_pop(tmp_path: Path) -> None:
    damaged = list[tuple[int, int]]()

    def reads(store: Any, topic_id: int, places: Sequence[tuple[int, int]], max_bytes: int, found: Found) -> None:
        if damaged:
            read_again(store, topic_id, places, max_bytes, found)
        else:
            damaged.extend(places)
            found.damaged.update(places)

    async def test(session: Session, broker: Broker) -> None:
        await session.post("/v1/topics/t/messages", json={"messages": [{"queue": 0, "body": "x", "tag": "a"}]})
        assert await settle(session, "nack", await pop(session, tag="a"), delay_ms=0) == 200
        with patch.object(picks, "read_again", reads), patch.object(shard_work, "_DAMAGED_S", 0.05):
            assert await pop(session, tag="a") == [] and damaged
            (message,) = await pop(session, tag="a", wait_ms=2_000)
        assert message["body"] == "x"

    with_node(tmp_path, test)
