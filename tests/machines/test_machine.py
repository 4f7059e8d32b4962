"""What every state machine of a shard is promised: durable steps, and memory that is what is stored."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from structlog.testing import capture_logs

from api.in_process import Session, with_node
from lsmq.errors import DiskFull, DocumentsFull, LsmqError, Unavailable
from lsmq_node.broker import Broker, ShardPort
from lsmq_node.machines import MachineService, ShardMachine, Step
from lsmq_node.machines import service as machine_service
from lsmq_node.storage.segments import SegmentFiles
from support.waiting import comes_true

KEY = "counter"


class Counter(ShardMachine):
    """Counts, durably; ``told`` are the counts that somebody might have been told of."""

    subject = "the counter"

    def __init__(self, service: Counters, port: ShardPort) -> None:
        super().__init__(service, port)
        self.count = 0
        self.told: list[int] = []
        self.each_tick = 0
        self.idle = False
        self.ended = False
        self.left: Any = None

    async def load(self, left: Any) -> None:
        await self.barrier()
        self.left = left
        self.count = int(self.store.document(KEY) or b"0")

    def add(self, count: int, size: int = 0) -> Step:
        total = self.count + count
        return Step(
            {KEY: b"%d" % total, **({"large": bytes(size)} if size else {})},
            appended=partial(setattr, self, "count", total),
            stored=partial(self.told.append, total),
        )

    def due(self) -> Iterable[Step]:
        return [self.add(self.each_tick)] if self.each_tick else []

    def leaves(self) -> int:
        return self.count

    @property
    def is_idle(self) -> bool:
        return self.idle

    def end(self) -> None:
        self.ended = True
        super().end()


class Counters(MachineService[Counter]):
    name = "counters"

    def __init__(self, broker: Broker, *, each: bool = True) -> None:
        self.built: list[Counter] = []
        super().__init__(broker, self.make if each else None)

    def make(self, port: ShardPort) -> Counter:
        self.built.append(Counter(self, port))
        return self.built[-1]


def with_counters(tmp_path: Path, test: Callable[[Counters], Awaitable[None]], *, each: bool = True) -> None:
    async def run(session: Session, broker: Broker) -> None:
        counters = Counters(broker, each=each)
        try:
            await test(counters)
        finally:
            await counters.stop()

    with_node(tmp_path, run)


def full_disk() -> Any:
    return patch.object(SegmentFiles, "prepare", side_effect=OSError(errno.ENOSPC, "no space left"))


def test_a_step_is_told_of_when_it_is_stored_and_not_before(tmp_path: Path) -> None:
    async def test(counters: Counters) -> None:
        counter = await counters.shard(0)
        future = counter.put(counter.add(3))
        assert (counter.count, counter.told) == (3, [])
        await counter.durable(future)
        assert counter.told == [3] and counter.store.document(KEY) == b"3"
        await counter.done(Step())
        assert counter.put(Step(stored=partial(counter.told.append, 0))) is None and counter.told == [3, 0]

    with_counters(tmp_path, test)


def test_a_step_is_told_of_although_nobody_waits_for_it_any_more(tmp_path: Path) -> None:
    async def test(counters: Counters) -> None:
        counter = await counters.shard(0)
        asking = asyncio.create_task(counter.done(counter.add(1)))
        await asyncio.sleep(0)
        asking.cancel()
        await comes_true(lambda: counter.told == [1], "it is stored")
        assert counter.is_current

    with_counters(tmp_path, test)


def test_a_step_that_is_refused_has_not_happened(tmp_path: Path) -> None:
    async def test(counters: Counters) -> None:
        counter = await counters.shard(0)
        with patch.object(counter.store, "put_documents", side_effect=DocumentsFull("no room")):
            with pytest.raises(DocumentsFull):
                counter.put(counter.add(1))
            assert not counter.put_aside(counter.add(1))
        assert (counter.count, counter.told) == (0, []) and counter.is_current
        await counter.done(counter.add(1))
        assert await counters.shard(0) is counter and counter.told == [1]

    with_counters(tmp_path, test)


def test_what_is_dropped_with_its_round_is_not_told_and_the_next_machine_knows_what_is_stored(tmp_path: Path) -> None:
    async def test(counters: Counters) -> None:
        counter = await counters.shard(0)
        await counter.done(counter.add(1))
        waiting = asyncio.create_task(counter.wait(("anything",), deadline=None))
        await asyncio.sleep(0)
        with full_disk(), pytest.raises(DiskFull):
            await counter.done(counter.add(1))
        await waiting  # Whoever is held looks again, and is told to come again.
        with pytest.raises(Unavailable, match="the counter is being read again") as caught:
            counter.check()
        assert isinstance(caught.value.__cause__, LsmqError) and counter.told == [1]
        following = await counters.shard(0)
        assert following is not counter and counter.ended
        assert (following.count, following.left) == (1, 2), "nobody else has led: it may go on with what was left"
        await comes_true(lambda: not counter.store.disk_full, "there is space")
        await following.done(following.add(5))
        assert following.store.document(KEY) == b"6"

    with_counters(tmp_path, test)


def test_what_was_left_in_another_epoch_or_long_ago_is_not_gone_on_with(tmp_path: Path) -> None:
    async def test(counters: Counters) -> None:
        counter = await counters.shard(0)
        counter.epoch -= 1
        counter.break_off(Unavailable("another leader"))
        counter = await counters.shard(0)
        assert counter.left is None
        counters.start()
        with patch.object(machine_service, "IDLE_S", 0.0):
            counter.break_off(Unavailable("once more"))
            await comes_true(lambda: counters.find(0) not in (None, counter), "the tick has built the next one")
            await comes_true(lambda: not counters._left, "what was left is forgotten")

    with_counters(tmp_path, test)


def test_one_machine_is_built_however_many_ask(tmp_path: Path) -> None:
    async def test(counters: Counters) -> None:
        found = await asyncio.gather(*(counters.shard(0) for _ in range(5)))
        assert len(set(map(id, found))) == 1 and counters.built == found[:1]

    with_counters(tmp_path, test)


def test_what_is_due_is_put_each_tick_and_a_machine_nobody_uses_goes(tmp_path: Path) -> None:
    async def test(counters: Counters) -> None:
        counter = await counters.shard(0, None, counters.make)
        counters.start()
        counter.each_tick = 1
        await comes_true(lambda: len(counter.told) >= 2, "it ticks")
        counter.each_tick = 0
        with patch.object(machine_service, "IDLE_S", 0.0):
            counter.idle = True
            await comes_true(lambda: counters.find(0) is None, "it is dropped")
        assert counter.ended and not counters.shards()
        with pytest.raises(Unavailable):
            counter.check()
        counted = counter.count
        assert (await counters.shard(0, None, counters.make)).count == counted

    with_counters(tmp_path, test, each=False)


def test_nobody_is_held_by_a_node_that_stops(tmp_path: Path) -> None:
    async def test(counters: Counters) -> None:
        counter = await counters.shard(0)
        assert counters.hold_s(1_000) == 1.0
        waiting = asyncio.create_task(counter.wait(("anything",), deadline=None))
        await asyncio.sleep(0)
        counters.begin_stop()
        await waiting
        assert counters.hold_s(1_000) == 0.0

    with_counters(tmp_path, test)


def test_a_machine_that_fails_holds_up_no_other_and_is_named(tmp_path: Path) -> None:
    def broken() -> Iterable[Step]:
        raise OSError(errno.EIO, "the disk")

    async def test(counters: Counters) -> None:
        bad = await counters.shard(0, "bad", counters.make)
        good = await counters.shard(0, "good", counters.make)
        good.each_tick = 1
        with patch.object(bad, "due", broken), capture_logs() as logs:
            counters.start()
            await comes_true(lambda: len(good.told) > 2, "the other one goes on")
            (problem,) = counters.broker.parts.problems(essential=True)
            assert "counters-timer" in problem and "shard 0" in problem and "the disk" in problem
            assert [line["event"] for line in logs].count("counters_tick_fails") == 1
        await comes_true(lambda: not counters.broker.parts.problems(essential=True), "it is well again")
        assert counters.find(0, "bad") is bad and bad.is_current

    with_counters(tmp_path, test, each=False)


def test_what_is_refused_again_and_again_is_told_once(tmp_path: Path) -> None:
    def full(*_: object) -> None:
        raise DiskFull("no room")

    async def test(counters: Counters) -> None:
        counter = await counters.shard(0)
        with capture_logs() as logs:
            for _ in range(2):
                with patch.object(type(counter.port), "check_writable", full):
                    assert not any(counter.put_aside(counter.add(1)) for _ in range(3))
                assert counter.put_aside(counter.add(1))
        assert [line["event"] for line in logs].count("step_refused") == 2

    with_counters(tmp_path, test)
