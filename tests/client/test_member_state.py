"""What a member knows of itself, and the sets of queues it does it with."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq import runtime
from lsmq._member_state import MemberState
from lsmq._queue_positions import QueuePositions
from lsmq._queue_ranges import contains, count, intersect, subtract, to_ranges, union
from lsmq._work_in_progress import ReadInProgress, WorkInProgress
from lsmq.groups import AssignedTopic, Assignment, Heartbeat, Ranges

QUEUES = st.sets(st.integers(0, 40))


def as_set(ranges: Ranges) -> set[int]:
    return {queue for part in ranges for queue in part}


@given(QUEUES, QUEUES)
def test_ranges_are_sets(one: set[int], other: set[int]) -> None:
    left, right = to_ranges(one), to_ranges(other)
    assert as_set(left) == one and count(left) == len(one)
    for found, expected in (
        (union(left, right), one | other),
        (intersect(left, right), one & other),
        (subtract(left, right), one - other),
    ):
        assert as_set(found) == expected
        assert all(part for part in found)
        assert all(before.stop <= after.start for before, after in itertools.pairwise(found))
    assert all(contains(left, queue) == (queue in one) for queue in range(42))


@given(st.lists(st.tuples(QUEUES, QUEUES), max_size=5))
def test_positions_stay_with_their_queues_when_others_come_and_go(steps: list[tuple[set[int], set[int]]]) -> None:
    positions = QueuePositions((), track_changes=True)
    expected: dict[int, int] = {}
    for number, (owned, moved) in enumerate(steps, 1):
        positions.own(to_ranges(owned))
        expected = {queue: expected.get(queue, 0) for queue in owned}
        assert dict(positions) == expected
        assert set(positions.changed) <= owned
        for queue in moved & owned:
            positions.hand_out(queue, number)
            expected[queue] = number
        assert [positions.slot(queue) >= 0 for queue in range(42)] == [queue in owned for queue in range(42)]
    assert {queue: positions.changed[queue] for queue in positions.changed} == {
        queue: offset for queue, offset in expected.items() if queue in positions.changed
    }


def answer(epoch: int, version: int, *assigned: range, id: int = 1) -> Assignment:
    topics = {"t": AssignedTopic(id, 10)}
    return Assignment("m", epoch, version, 3_000, {"t": assigned} if assigned else {}, topics, 0, not assigned)


def joined(*assigned: range, patience_s: float | None = 60) -> MemberState:
    member = MemberState(Heartbeat("m", ("t",)), patience_s)
    assert member.hear(answer(1, 7, *assigned)).gained == {"t": assigned}
    return member


def test_a_queue_is_owned_from_the_answer_until_it_is_given_up() -> None:
    member = joined(range(6))
    assert member.beat().owned == {"t": (range(6),)} and member.beat().version == 7
    change = member.hear(answer(2, 8, range(3)))
    assert (change.gained, change.leaving, change.lost) == ({}, {"t": (range(3, 6),)}, {})
    assert member.beat().owned == {"t": (range(6),)}, "it is not given up yet"
    assert member.staying("t") == (range(3),)
    member.give_up("t", (range(3, 5),))
    assert member.beat().owned == {"t": (range(3), range(5, 6))}
    assert member.still_leaving("t", (range(3, 6),)) == (range(5, 6),)
    member.give_up("t", (range(5, 6),))
    assert member.beat().owned == {"t": (range(3),)} and member.epoch == 2


def test_a_queue_that_is_on_its_way_out_and_given_again_is_given_up_first() -> None:
    member = joined(range(6))
    member.hear(answer(2, 8, range(3)))
    change = member.hear(answer(3, 9, range(6)))
    assert (change.gained, change.leaving) == ({}, {}), "nothing to do: it goes on being given up"
    member.give_up("t", (range(3, 6),))
    assert member.hear(answer(3, 10, range(6))).gained == {"t": (range(3, 6),)}


def test_who_is_not_known_any_more_has_nothing_and_joins_anew() -> None:
    member = joined(range(6))
    member.hear(answer(2, 8, range(3)))
    assert member.lose().lost == {"t": (range(6),)}
    beat = member.beat()
    assert (beat.epoch, beat.version, beat.owned) == (0, 0, {})
    assert member.still_leaving("t", (range(3, 6),)) == ()
    member.give_up("t", (range(3, 6),))
    assert not member.owns("t", 4)


def test_a_topic_made_anew_is_lost_and_gained() -> None:
    member = joined(range(6))
    change = member.hear(answer(2, 8, range(4), id=2))
    assert (change.gained, change.leaving, change.lost) == ({"t": (range(4),)}, {}, {"t": (range(6),)})


@pytest.mark.parametrize("patience_s", [0.0, None])
def test_what_is_not_given_up_in_time_is_lost(patience_s: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    member = joined(range(6), patience_s=patience_s)
    member.hear(answer(2, 8, range(3)))
    monkeypatch.setattr(runtime, "monotonic", lambda: time.monotonic() + 0.001)
    lost = member.overdue().lost
    assert lost == ({"t": (range(3, 6),)} if patience_s is not None else {})
    assert member.owns("t", 4) is (patience_s is None)
    assert member.overdue().lost == {}


def test_a_later_generation_that_others_know_is_told() -> None:
    member = joined(range(6))
    member.must_be(9)
    assert member.beat().epoch == 9 and member.epoch == 1
    member.hear(answer(12, 8, range(6)))
    assert member.beat().epoch == 12


async def test_who_waits_for_what_is_handed_out_next_is_not_told_of_what_was_put_down_before() -> None:
    """Else a member gives up queues of which it was just handed messages."""
    reading = ReadInProgress(WorkInProgress())
    reading.take()
    first = asyncio.create_task(reading.empty())
    await asyncio.sleep(0)
    second = asyncio.create_task(reading.empty())  # Another order has come, and begins in the next turn of the loop.
    reading.put_down()
    reading.take()  # In this one the application reads on.
    for _ in range(3):
        await asyncio.sleep(0)
    assert first.done() and not second.done()
    reading.put_down()
    await second


@pytest.mark.virtual_time
async def test_what_another_thread_puts_down_as_somebody_looks_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading = ReadInProgress(WorkInProgress())
    reading.take()
    loop = asyncio.get_running_loop()

    def meanwhile() -> asyncio.AbstractEventLoop:
        reading.put_down()
        return loop

    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "get_running_loop", meanwhile)
        waiting = asyncio.ensure_future(reading.empty(), loop=loop)
        await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await waiting
