"""Which queues members may commit for, as their groups' coordinators said lately.

Offsets lie where the queues lie; members are known elsewhere, to the coordinator of the group. So the leader of queues
asks the coordinator when a member takes them over, and remembers the answer: commits ask nobody.

What is remembered stays right although nobody is asked again:

- who takes over queues fences them here first, and from then on nobody else has a permit for them;
- a later generation of a member needs a permit of its own, which is asked for;
- resetting or deleting offsets takes all permits of the group away.

So an old permit is worth something only as long as its queues are nobody else's. It ends after :data:`PERMIT_S` all the
same, and counts beyond that only while the coordinator cannot be asked: then it cannot give the queues to anybody.
A *no* is never remembered but for a group that has no members (:data:`VACANT_S`, and until it fences here).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lsmq.errors import FencedMember, GroupHasMembers, Unavailable, UnknownMember

from .ranges import NONE, RangePairs, overlap, subtract, union

PERMIT_S = 30.0
VACANT_S = 1.0
#: Members and groups that are remembered. Whoever is forgotten is asked for again.
MAX_PERMITS = 10_000
MAX_VACANT = 10_000

QueueArray = NDArray[Any]
PermittedQueues = Mapping[str, tuple[int, RangePairs]]
"""By topic, its id and the queues that a member may commit for."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a coordinator says of a group, and of one member of it.

    ``held``: None where it is no member. ``patterns``: by topic, that by which it reads.
    """

    members: int
    mode: str | None
    generation: int = 0
    held: PermittedQueues | None = None
    patterns: Mapping[str, str] = field(default_factory=dict)


class Permit:
    """One member's. ``until``: when the coordinator is to be asked again. ``patterns``: by topic, as of it."""

    __slots__ = ("_held", "_lost", "asking", "generation", "patterns", "until")

    def __init__(self) -> None:
        self.asking = asyncio.Lock()
        self.generation = -1
        self.until = float("-inf")
        self.patterns: Mapping[str, str] = {}
        self._held: dict[str, tuple[int, RangePairs]] = {}
        self._lost: dict[str, RangePairs] = {}  # while the coordinator is asked: fenced by others meanwhile

    def ask(self) -> None:
        """The coordinator is asked from here on."""
        self._lost = {}

    def renew(self, standing: Standing, until: float) -> None:
        self.generation, self.until, self.patterns = standing.generation, until, standing.patterns
        held = standing.held or {}
        self._held = {name: (id, subtract(own, self._lost.get(name, NONE))) for name, (id, own) in held.items()}

    def take(self, topic: str, ranges: RangePairs) -> None:
        """Somebody else has these queues."""
        if self.asking.locked():
            self._lost[topic] = union(self._lost.get(topic, NONE), ranges)
        id, own = self._held.get(topic, (-1, NONE))
        if overlap(own, ranges):
            self._held[topic] = id, subtract(own, ranges)

    def lacks(self, topic: str, topic_id: int, queues: QueueArray) -> int | None:
        """A queue that it is not for, if there is one."""
        id, own = self._held.get(topic, (-1, NONE))
        return first_outside(queues, own if id == topic_id else NONE)

    def covers(self, epoch: int, topic: str, topic_id: int, queues: QueueArray) -> bool:
        return epoch <= self.generation and self.lacks(topic, topic_id, queues) is None


class Permits:
    """Loop thread only. ``ask`` asks the coordinator of a group for the standing of a member, or of none."""

    def __init__(self, ask: Callable[[str, str | None], Awaitable[Standing]], clock: Callable[[], float]) -> None:
        self._ask = ask
        self._clock = clock
        self._known: OrderedDict[tuple[str, str], Permit] = OrderedDict()
        self._members: dict[str, set[str]] = {}  # of those that are known, by group
        self._vacant: OrderedDict[str, float] = OrderedDict()  # groups without members: until when that is believed
        self._fences = 0
        self.asked = 0

    # Members

    async def admit(self, group: str, member: str, epoch: int, topic: str, topic_id: int, queues: QueueArray) -> None:
        """Return if the member may commit for these queues.

        Raises ``UnknownMember``, ``FencedMember``, and ``Unavailable`` where nobody can be asked.
        """
        permit = self._permit(group, member)
        if self._is_good(permit, epoch, topic, topic_id, queues):
            return
        async with permit.asking:
            if self._is_good(permit, epoch, topic, topic_id, queues):
                return  # Another commit has asked meanwhile.
            permit.ask()
            self.asked += 1
            try:
                standing = await self._ask(group, member)
            except Unavailable:
                if permit.covers(epoch, topic, topic_id, queues):
                    return
                if permit.generation < 0:
                    self._forget(group, member)
                raise
            permit.renew(standing, self._clock() + PERMIT_S)
        if standing.held is None:
            self._forget(group, member)
            raise _unknown(group, member)
        if not permit.covers(epoch, topic, topic_id, queues):
            raise _fenced(group, member, epoch, topic, permit.lacks(topic, topic_id, queues), permit.generation)

    def check(self, group: str, member: str, epoch: int, topic: str, topic_id: int, queues: QueueArray) -> None:
        """What was admitted still is. Raises ``Unavailable`` to come again where something happened since."""
        permit = self._known.get((group, member))
        if permit is None or not permit.covers(epoch, topic, topic_id, queues):
            raise Unavailable(
                f"queues of group {group!r} have just changed hands; heartbeat, and commit again", sent=False
            )

    def pattern(self, group: str, member: str, topic: str) -> str | None:
        """By which a member that is admitted reads a topic; None: all of it."""
        permit = self._known.get((group, member))
        return None if permit is None else permit.patterns.get(topic)

    def _is_good(self, permit: Permit, epoch: int, topic: str, topic_id: int, queues: QueueArray) -> bool:
        return self._clock() < permit.until and permit.covers(epoch, topic, topic_id, queues)

    def _permit(self, group: str, member: str) -> Permit:
        found = self._known.get((group, member))
        if found is None:
            found = self._known[group, member] = Permit()
            self._members.setdefault(group, set()).add(member)
            if len(self._known) > MAX_PERMITS:
                self._forget(*next(iter(self._known)))
        else:
            self._known.move_to_end((group, member))
        return found

    def _forget(self, group: str, member: str) -> None:
        if self._known.pop((group, member), None) is not None:
            members = self._members[group]
            members.discard(member)
            if not members:
                del self._members[group]

    # Those that are no members

    async def admit_stranger(self, group: str) -> None:
        """Return if the group has no members. Raises ``GroupHasMembers``, ``Unavailable``."""
        if self._clock() < self._vacant.get(group, float("-inf")):
            return
        while True:
            fences = self._fences
            self.asked += 1
            standing = await self._ask(group, None)
            if fences == self._fences:  # Else it may have got members since it was asked.
                break
        if standing.members:
            raise GroupHasMembers(
                f"group {group!r} has {standing.members} live members: let them commit, or say reset",
                group=group,
                members=standing.members,
            )
        self._vacant[group] = self._clock() + VACANT_S
        self._vacant.move_to_end(group)
        if len(self._vacant) > MAX_VACANT:
            self._vacant.popitem(last=False)

    def check_stranger(self, group: str) -> None:
        """Nobody has fenced since. Raises ``Unavailable`` to come again."""
        if group not in self._vacant:
            raise Unavailable(f"group {group!r} has just got members, or may have; try again", sent=False)

    # What happens here

    def fenced(self, group: str, member: str, topic: str, ranges: RangePairs) -> None:
        """The member has taken over these queues: whoever had them has them no more."""
        self._fences += 1
        self._vacant.pop(group, None)
        for other in self._members.get(group, ()):
            if other != member:
                self._known[group, other].take(topic, ranges)

    def forget(self, group: str) -> None:
        """The group's offsets were set or deleted by somebody: members show again that they are there."""
        self._vacant.pop(group, None)
        for member in list(self._members.get(group, ())):
            self._forget(group, member)


def first_outside(queues: QueueArray, ranges: RangePairs) -> int | None:
    """The first of the queues that lies in none of the ranges."""
    if not len(queues):
        return None
    if not ranges:
        return int(queues[0])
    low, high = int(queues.min()), int(queues.max())
    piece = bisect_right(ranges, low, key=itemgetter(0)) - 1
    if piece >= 0 and high < ranges[piece][1]:
        return None  # All lie in one of them, as mostly.
    firsts, ends = np.array(ranges, np.int64).T
    at = np.searchsorted(ends, queues, side="right")
    inside = at < len(ends)
    inside[inside] = firsts[at[inside]] <= queues[inside]
    return None if inside.all() else int(queues[cast(int, np.argmin(inside))])


def _unknown(group: str, member: str) -> UnknownMember:
    return UnknownMember(
        f"group {group!r} does not know member {member!r} (any more): what it commits does not count. Drop all queues "
        "and join again; to set offsets from outside, stop the members and commit without member",
        group=group,
        member=member,
    )


def _fenced(group: str, member: str, epoch: int, topic: str, queue: int | None, generation: int) -> FencedMember:
    why = (
        f"is in generation {generation}, not {epoch}"
        if queue is None or epoch > generation
        else f"has not given queue {queue} of topic {topic!r} to it, or has taken it back"
    )
    return FencedMember(
        f"member {member!r} may not commit: group {group!r} {why}. Heartbeat, and commit what is the member's own, "
        "with the epoch of the answer",
        group=group,
        member=member,
        epoch=epoch,
        generation=generation,
        queue=queue,
    )
