"""Clocks that are wrong: stamps never go back, and nothing expires early."""

from __future__ import annotations

import logging
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq_lab.world.drive import Drive
from lsmq_node.storage import TopicOptions, shard_time
from lsmq_node.storage.shard_time import MAX_ERAS, SETTLING_SECONDS, TOLERANCE_MS, ShardTime
from support.clock import SimClock

from .harness import abandon, bodies, flush, open_stepped, profile, put, read_queue, retain, tiny

DAY_MS = 86_400_000
MONTH_MS = 30 * DAY_MS


class Timed:
    """A store with a topic that keeps a week, and a clock that may be wrong."""

    def __init__(self, root: Path, wrong_ms: int = 0) -> None:
        self.root, self.disk, self.clock = root, Drive(root), SimClock(wrong_ms=wrong_ms)
        self.store = open_stepped(root / "shard", tiny(), self.disk, self.clock)
        self.topic = self.store.create_topic("t", 1, TopicOptions(retention_ms=7 * DAY_MS)).id

    def reopen(self) -> None:
        abandon(self.store)
        self.disk = self.disk.kill()
        self.store = open_stepped(self.root / "shard", tiny(), self.disk, self.clock)

    def shown(self) -> list[bytes]:
        retain(self.store)
        return list(bodies(self.store, self.topic, 0).values())


@pytest.mark.parametrize("flushed", [True, False])
@pytest.mark.parametrize("wrong_ms", [-MONTH_MS, MONTH_MS])
def test_a_minute_with_the_clock_a_month_off_deletes_nothing(tmp_path: Path, wrong_ms: int, flushed: bool) -> None:
    timed = Timed(tmp_path)
    put(timed.store, timed.topic, (0, b"before"))
    timed.clock.time_ms += DAY_MS
    timed.clock.wrong_ms = wrong_ms
    put(timed.store, timed.topic, (0, b"while"))
    assert timed.shown() == [b"before", b"while"]
    timed.clock.time_ms += 60_000
    timed.clock.wrong_ms = 0
    put(timed.store, timed.topic, (0, b"after"))
    if flushed:
        flush(timed.store)
    assert timed.shown() == [b"before", b"while", b"after"]
    times = [message.stored_ms for message in read_queue(timed.store, timed.topic, 0)]
    assert times == sorted(times)
    timed.clock.time_ms += 8 * DAY_MS
    assert timed.shown() == ([] if wrong_ms < 0 else [b"while", b"after"]), "and what is due goes"
    abandon(timed.store)


def test_a_clock_that_was_a_month_behind_from_the_beginning_deletes_nothing_when_it_is_set(tmp_path: Path) -> None:
    timed = Timed(tmp_path, -MONTH_MS)
    put(timed.store, timed.topic, (0, b"young"))
    timed.clock.time_ms += 60_000
    timed.clock.wrong_ms = 0
    assert timed.shown() == [b"young"]
    timed.clock.time_ms += 8 * DAY_MS
    assert timed.shown() == []
    abandon(timed.store)


def test_a_clock_that_is_a_month_ahead_at_the_start_and_set_within_the_hour_deletes_nothing(tmp_path: Path) -> None:
    timed = Timed(tmp_path)
    put(timed.store, timed.topic, (0, b"kept"))
    timed.clock.wrong_ms = MONTH_MS
    timed.reopen()
    assert timed.shown() == [b"kept"]
    timed.clock.time_ms += 1_000 * int(SETTLING_SECONDS) // 2
    timed.clock.wrong_ms = 0
    assert timed.shown() == [b"kept"]
    timed.clock.time_ms += 2_000 * int(SETTLING_SECONDS)
    assert timed.shown() == [b"kept"]
    abandon(timed.store)


def test_after_a_month_without_a_process_what_is_due_goes_within_the_hour(tmp_path: Path) -> None:
    timed = Timed(tmp_path)
    put(timed.store, timed.topic, (0, b"old"))
    timed.clock.time_ms += MONTH_MS
    timed.reopen()
    assert timed.shown() == [b"old"]
    timed.clock.time_ms += 1_000 * int(SETTLING_SECONDS)
    assert timed.shown() == []
    abandon(timed.store)


def test_a_step_of_the_clock_is_named_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    timed = Timed(tmp_path)
    put(timed.store, timed.topic, (0, b"x"))
    with caplog.at_level(logging.WARNING, "lsmq.storage"):
        timed.clock.wrong_ms = MONTH_MS
        retain(timed.store)
        put(timed.store, timed.topic, (0, b"x"))
        timed.clock.wrong_ms = 0
        retain(timed.store)
    stepped = [record.getMessage() for record in caplog.records if "the clock stepped by" in record.getMessage()]
    assert ["+2592000 s" in stepped[0], "-2592000 s" in stepped[1]] == [True, True]
    stats = timed.store.stats()
    assert (stats.clock_steps_total, stats.clock_ahead_seconds) == (2, MONTH_MS / 1000)
    abandon(timed.store)


@profile(200)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(("wait", "stamp", "jump", "right")),
            st.integers(1, 20 * DAY_MS),
            st.integers(-MONTH_MS, MONTH_MS),
        ),
        max_size=40,
    ),
    age_ms=st.integers(DAY_MS // 24, 7 * DAY_MS),
    most_eras=st.sampled_from((2, MAX_ERAS)),
)
def test_whatever_a_clock_does_stamps_do_not_go_back_and_nothing_expires_early(
    steps: list[tuple[str, int, int]], age_ms: int, most_eras: int
) -> None:
    with mock.patch.object(shard_time, "MAX_ERAS", most_eras):
        nothing_expires_early(steps, age_ms)


def nothing_expires_early(steps: list[tuple[str, int, int]], age_ms: int) -> None:
    clock = SimClock()
    time = ShardTime(clock, "test")
    time.opened(0)
    stamped: list[tuple[int, int]] = []  # stamp, and when that really was
    slack = 0  # steps below the tolerance are taken as they come
    for step, wait_ms, jump_ms in steps:
        if step == "wait":
            clock.time_ms += wait_ms
        elif step == "jump":
            slack += TOLERANCE_MS
            clock.wrong_ms += jump_ms
        elif step == "right":
            slack += TOLERANCE_MS
            clock.wrong_ms = 0
        else:
            stamped.append((time.now_ms(), clock.time_ms))
        before = time.expired_before(age_ms)
        assert [stamp for stamp, _ in stamped] == sorted(stamp for stamp, _ in stamped)
        for stamp, real_ms in stamped:
            assert stamp >= before or clock.time_ms - real_ms >= age_ms - slack


def test_a_clock_that_is_stepped_again_and_again_takes_no_more_memory_and_expires_nothing_early() -> None:
    clock = SimClock()
    time = ShardTime(clock, "test")
    time.opened(0)
    first = time.now_ms()
    for number in range(10 * MAX_ERAS):
        clock.time_ms += 1
        clock.wrong_ms = 0 if number % 3 == 0 else clock.wrong_ms + MONTH_MS
        time.now_ms()
        assert time.expired_before(number + 2) <= first
    assert len(time._eras) == MAX_ERAS
    clock.time_ms += DAY_MS
    assert time.expired_before(DAY_MS) > first, "and what is due goes"


def test_a_clock_that_jumps_ahead_twice_expires_nothing_early() -> None:
    clock = SimClock()
    time = ShardTime(clock, "test")
    time.opened(0)
    first = time.now_ms()
    for wrong_ms in (MONTH_MS, 0, MONTH_MS, 0, MONTH_MS):
        clock.wrong_ms = wrong_ms
        time.now_ms()
        assert time.expired_before(DAY_MS) <= first
