"""Who may commit, as it is remembered: asks seldom, and never believes what somebody else's fence has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq.errors import FencedMember, GroupHasMembers, Unavailable, UnknownMember
from lsmq_node.groups import permits as rules
from lsmq_node.groups.permits import Permits, Standing, first_outside
from lsmq_node.groups.ranges import each, normal


class Coordinator:
    """What it would answer; ``meanwhile`` happens while it is asked."""

    def __init__(self) -> None:
        self.now = 0.0
        self.down = False
        self.standings: dict[str, Standing] = {}
        self.meanwhile: Callable[[], Awaitable[None] | None] = lambda: None
        self.permits = Permits(self.answer, lambda: self.now)

    async def answer(self, group: str, member: str | None) -> Standing:
        if self.down:
            raise Unavailable("nobody leads its shard")
        none = Standing(len(self.standings) if group == "g" else 0, "clustered", 5)
        found = none if member is None else self.standings.get(member, none)
        await asyncio.sleep(0)
        self.meanwhile()
        return found

    def gives(self, member: str, *ranges: tuple[int, int], generation: int = 5) -> None:
        self.standings[member] = Standing(1, "clustered", generation, {"t": (1, ranges)})

    async def admits(self, member: str, *queues: int, epoch: int = 5, topic_id: int = 1) -> None:
        where = np.array(queues, np.uint32)
        await self.permits.admit("g", member, epoch, "t", topic_id, where)
        self.permits.check("g", member, epoch, "t", topic_id, where)


async def test_who_commits_all_the_time_is_asked_for_once_in_a_while() -> None:
    group = Coordinator()
    group.gives("m", (0, 10))
    for _ in range(100):
        await group.admits("m", 0, 9)
    assert group.permits.asked == 1
    await asyncio.gather(*(group.admits("m", queue, epoch=4) for queue in range(10)))
    assert group.permits.asked == 1, "an earlier generation needs no other permit: fences tell them apart"
    group.now += rules.PERMIT_S
    await asyncio.gather(*(group.admits("m", queue) for queue in range(10)))
    assert group.permits.asked == 2, "one asks for all that wait"


async def test_who_owns_nothing_of_it_is_refused() -> None:
    group = Coordinator()
    group.gives("m", (0, 10))
    for queues, epoch, topic_id in (((10,), 5, 1), ((3, 12), 5, 1), ((3,), 6, 1), ((3,), 5, 2)):
        with pytest.raises(FencedMember):
            await group.admits("m", *queues, epoch=epoch, topic_id=topic_id)
    with pytest.raises(UnknownMember):
        await group.admits("zz", 3)
    group.gives("m", (0, 20), generation=6)
    await group.admits("m", 3, 12, epoch=6)


async def test_a_fence_ends_what_others_were_allowed() -> None:
    group = Coordinator()
    group.gives("m", (0, 10))
    await group.admits("m", 0, 9)
    group.permits.fenced("g", "n", "t", ((5, 10),))
    await group.admits("m", 4)
    group.gives("m", (0, 5))
    with pytest.raises(FencedMember):
        await group.admits("m", 5)
    asked = group.permits.asked
    group.permits.fenced("g", "m", "t", ((0, 5),))
    await group.admits("m", 4)
    assert group.permits.asked == asked, "its own ends nothing of what it has"


async def test_a_fence_counts_although_the_answer_was_on_its_way() -> None:
    group = Coordinator()
    group.gives("m", (0, 10))
    group.meanwhile = lambda: group.permits.fenced("g", "n", "t", ((5, 10),))
    with pytest.raises(FencedMember):
        await group.admits("m", 5)
    await group.admits("m", 4)
    group.meanwhile = lambda: None
    group.gives("m", (0, 10), generation=6)
    await group.admits("m", 5, epoch=6)  # they are its own again


async def test_members_go_on_without_a_coordinator_with_what_they_have() -> None:
    group = Coordinator()
    group.gives("m", (0, 10))
    await group.admits("m", 3)
    group.now, group.down = 10 * rules.PERMIT_S, True
    await group.admits("m", 3)
    for member, queue, epoch in (("m", 11, 5), ("m", 3, 6), ("n", 3, 5)):
        with pytest.raises(Unavailable):
            await group.admits(member, queue, epoch=epoch)


async def test_after_a_reset_members_show_that_they_live() -> None:
    group = Coordinator()
    group.gives("m", (0, 10))
    await group.admits("m", 3)
    del group.standings["m"]
    await group.admits("m", 3)  # nobody else has the queue: no harm
    group.permits.forget("g")
    assert not group.permits._members, "a group of which nobody is known takes no memory"
    with pytest.raises(UnknownMember):
        await group.admits("m", 3)


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MAX_PERMITS", 10)
    monkeypatch.setattr(rules, "MAX_VACANT", 10)
    group = Coordinator()
    for number in range(30):
        group.gives(f"m{number}", (0, 10))
        await group.admits(f"m{number}", 3)
        await group.admits("m0", 3)
        with pytest.raises(UnknownMember):
            await group.admits(f"zz{number}", 3)
    assert len(group.permits._known) <= 10
    assert sum(map(len, group.permits._members.values())) == len(group.permits._known)
    assert group.permits.asked == 60, "who commits often stays"
    for number in range(30):
        await group.permits.admit_stranger(f"vacant{number}")
    assert len(group.permits._vacant) <= 10


async def test_a_stranger_commits_while_there_are_no_members_and_asks_seldom() -> None:
    group = Coordinator()

    async def stranger() -> None:
        await group.permits.admit_stranger("g")
        group.permits.check_stranger("g")

    for _ in range(10):
        await stranger()
    assert group.permits.asked == 1
    group.gives("m", (0, 10))
    group.permits.fenced("g", "m", "t", ((0, 10),))
    with pytest.raises(Unavailable):
        group.permits.check_stranger("g")
    with pytest.raises(GroupHasMembers):
        await stranger()
    group.standings.clear()
    rivals = [lambda: group.permits.fenced("g", "m", "t", ((0, 10),))]
    group.meanwhile = lambda: rivals.pop()() if rivals else None
    await stranger()
    assert group.permits.asked == 4, "a fence while it was asked: asked again"


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8),
    st.lists(st.integers(0, 45), max_size=20),
)
def test_the_first_queue_outside_is_found(pieces: list[tuple[int, int]], queues: list[int]) -> None:
    inside = set(each(normal(pieces)))
    expected = next((queue for queue in queues if queue not in inside), None)
    assert first_outside(np.array(queues, np.uint32), normal(pieces)) == expected
