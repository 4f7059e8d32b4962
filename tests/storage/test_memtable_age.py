"""Time passes: what lies in memory goes to tables though nothing more is written, and its log goes with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq_lab.world.drive import Drive
from lsmq_node.storage import QueueStore, ShardStore, TopicOptions
from lsmq_node.storage.memtable_age import MemtableAge
from support.clock import SimClock
from support.waiting import eventually

from .harness import KIB, Put, abandon, batch_of, body, house_round, merge, open_stepped, profile, put, retain, tiny
from .leading import TOPIC, Leader, catch_up

MINUTE_MS = 60_000
AGE_MS = 10 * MINUTE_MS


# -- when --------------------------------------------------------------------------------------------------


@profile(200)
@given(
    limit_ms=st.integers(1, 10**9), shard=st.text(max_size=20), begins=st.integers(0, 2**60), now=st.floats(0, 10**9)
)
def test_a_memtable_is_due_in_the_last_quarter_of_its_time(limit_ms: int, shard: str, begins: int, now: float) -> None:
    age = MemtableAge(limit_ms, shard)
    assert not age.is_due(begins, begins, now)
    assert not age.is_due(begins, begins + 1, now)
    assert not age.is_due(begins, begins + 9, now + 0.74 * limit_ms / 1000)
    assert age.is_due(begins, begins + 9, now + 1.01 * limit_ms / 1000 + 1)
    assert not age.is_due(begins + 9, begins + 10, now + 2 * limit_ms / 1000 + 2), "the next one begins anew"


def test_shards_that_filled_together_are_flushed_one_after_another() -> None:
    shards = {number: MemtableAge(AGE_MS, f"data/shard-{number}") for number in range(100)}
    due: dict[int, list[int]] = {}
    for second in range(AGE_MS // 1000 + 1):
        for number, age in list(shards.items()):
            if age.is_due(0, 1, second):
                due.setdefault(second, []).append(number)
                del shards[number]
    assert not shards
    assert max(map(len, due.values())) <= 5
    assert len(due) > 50


# -- a store -------------------------------------------------------------------------------------------------


class Idle:
    """A stepped store on a simulated disk whose housekeeper makes a round a minute."""

    def __init__(self, root: Path, replicated: bool = False) -> None:
        self.path = root / "shard"
        self.disk, self.clock = Drive(root), SimClock()
        self.options = tiny(memtable_age_ms=AGE_MS)
        self.store = open_stepped(self.path, self.options, self.disk, self.clock, replicated=replicated)

    def pass_minutes(self, count: int) -> int:
        """Returns how many flushes there were."""
        before = self.store.stats().flushes_total
        for _ in range(count):
            self.clock.time_ms += MINUTE_MS
            house_round(self.store)
            while self.store._tables.frozen:
                self.store._tables.flush_oldest()
        return self.store.stats().flushes_total - before


@pytest.fixture
def idle(tmp_path: Path) -> Idle:
    return Idle(tmp_path)


def test_what_is_written_is_in_a_table_after_a_while_and_then_nothing_happens(idle: Idle) -> None:
    topic = idle.store.create_topic("t", 2)
    put(idle.store, topic.id, (0, b"one"), (1, b"two"))
    assert idle.pass_minutes(7) == 0
    assert idle.pass_minutes(4) == 1
    assert idle.store.stats().flushed_lsn == idle.store.committed_lsn
    before = len(idle.disk.log)
    assert idle.pass_minutes(600) == 0
    assert len(idle.disk.log) == before, "an idle store touches no file"
    abandon(idle.store)


def test_a_new_store_that_nothing_is_written_to_touches_no_file(idle: Idle) -> None:
    idle.pass_minutes(1)
    before = len(idle.disk.log)
    assert idle.pass_minutes(600) == 0
    assert len(idle.disk.log) == before
    abandon(idle.store)


def test_little_written_again_and_again_is_flushed_at_most_once_in_the_time(idle: Idle) -> None:
    topic = idle.store.create_topic("t", 1)
    flushes = 0
    for _ in range(100):
        put(idle.store, topic.id, (0, b"x"))
        flushes += idle.pass_minutes(1)
    assert 9 <= flushes <= 14
    abandon(idle.store)


def test_what_was_read_back_from_the_log_grows_old_too(idle: Idle) -> None:
    topic = idle.store.create_topic("t", 1)
    put(idle.store, topic.id, (0, b"x"))
    abandon(idle.store)
    idle.store = open_stepped(idle.path, idle.options, idle.disk.kill(), idle.clock)
    assert idle.store.stats().memtable_bytes > 0
    assert idle.pass_minutes(11) == 1
    assert idle.store.stats().memtable_bytes == 0
    abandon(idle.store)


def test_the_space_of_what_an_idle_topic_lost_comes_back(idle: Idle) -> None:
    topic = idle.store.create_topic("t", 4)
    for number in range(20):
        put(idle.store, topic.id, *((queue, body(number, 500)) for queue in range(4)))
    idle.store.wait(idle.store.trim(topic.id, np.arange(4, dtype=np.uint32), np.full(4, 20)))
    assert idle.store.stats().memtable_bytes > 40_000
    idle.pass_minutes(11)
    merge(idle.store)
    stats = idle.store.stats()
    assert (stats.memtable_bytes, stats.tables, stats.table_bytes) == (0, 0, 0)
    abandon(idle.store)


def test_an_idle_topic_is_cut_to_its_size(idle: Idle) -> None:
    topic = idle.store.create_topic("t", 1, TopicOptions(retention_bytes=5 * KIB))
    for number in range(40):
        put(idle.store, topic.id, (0, body(number, 500)))
        idle.clock.time_ms += 1_000
    retain(idle.store)
    assert 25 <= idle.store.bounds(topic.id, 0)[0] <= 30, "in memory"
    idle.pass_minutes(11)
    retain(idle.store)
    assert 25 <= idle.store.bounds(topic.id, 0)[0] <= 35, "and in tables, where it takes somewhat more"
    abandon(idle.store)


def test_only_what_waits_alone_grows_old(idle: Idle) -> None:
    """Where flushes fail for want of space, memtables do not pile up behind them."""
    topic = idle.store.create_topic("t", 1)
    put(idle.store, topic.id, (0, b"x"))
    for _ in range(100):
        idle.clock.time_ms += AGE_MS
        house_round(idle.store)
        put(idle.store, topic.id, (0, b"y"))
    assert idle.store.stats().frozen_memtables == 1
    abandon(idle.store)


def test_a_follower_flushes_what_is_committed_and_nothing_else(tmp_path: Path) -> None:
    leading, following = Idle(tmp_path / "a", replicated=True), Idle(tmp_path / "b", replicated=True)
    leader = Leader(leading.store)
    leader.put(500)
    catch_up(leader.store, following.store)
    committed_lsn = leader.store.committed_lsn
    leader.store.append(TOPIC, batch_of([Put(0, b"not committed")]))
    leader.store.replica.write()
    piece = leader.store.replica.read(committed_lsn, KIB)
    following.store.replica.receive(committed_lsn, piece)
    following.store.replica.sync()
    for idle in (leading, following):
        assert idle.pass_minutes(30) == 1
        assert idle.store.stats().flushed_lsn == committed_lsn < idle.store.replica.end_lsn
        abandon(idle.store)


def test_the_log_goes_once_the_last_replica_has_it_though_nothing_is_written(tmp_path: Path) -> None:
    idle = Idle(tmp_path, replicated=True)
    leader, replica = Leader(idle.store), idle.store.replica
    replica.keep_from(0)
    for _ in range(60):
        leader.put(7_000)
    idle.pass_minutes(11)
    assert (idle.store.stats().flushed_lsn, replica.first_lsn()) == (replica.end_lsn, 0)
    for at in (replica.end_lsn // 2, replica.end_lsn):
        replica.keep_from(at)
        idle.pass_minutes(1)
        segment_bytes = idle.store.segment_bytes
        assert replica.first_lsn() == at - at % segment_bytes
    abandon(idle.store)


def test_a_replica_that_was_started_again_keeps_its_log_until_it_knows_who_lacks_it(tmp_path: Path) -> None:
    idle = Idle(tmp_path, replicated=True)
    leader = Leader(idle.store)
    idle.store.replica.keep_from(0)
    for _ in range(60):
        leader.put(7_000)
    idle.pass_minutes(11)
    idle.store.replica.save_high_watermark()
    abandon(idle.store)
    again = open_stepped(idle.path, idle.options, idle.disk.kill(), idle.clock, replicated=True)
    house_round(again)
    assert again.stats().flushed_lsn > 3 * again.segment_bytes
    assert again.replica.first_lsn() == 0
    abandon(again)


def test_the_threads_of_a_store_do_it_by_themselves(tmp_path: Path) -> None:
    clock = SimClock()
    with QueueStore(tmp_path / "q", clock=clock, memtable_age_ms=AGE_MS, min_free_bytes=0) as store:
        store.put("a", b"x")
        shard = store.store

        def flushed() -> bool:
            clock.time_ms += MINUTE_MS
            with shard._tables.changed:
                shard._tables.changed.notify_all()
            return shard.stats().flushes_total == 1

        eventually(flushed, "the memtable is flushed")
        assert shard.stats().flushed_lsn == shard.committed_lsn
        assert store.get("a", 0, 1) == [b"x"]


def test_a_store_that_is_closed_meanwhile_loses_nothing(tmp_path: Path) -> None:
    store = ShardStore.open(tmp_path / "s", tiny(memtable_age_ms=1))
    topic = store.create_topic("t", 1)
    for number in range(50):
        put(store, topic.id, (0, body(number, 100)))
    store.close()
    with ShardStore.open(tmp_path / "s", tiny(memtable_age_ms=1)) as again:
        assert again.bounds(topic.id, 0) == (0, 50)
