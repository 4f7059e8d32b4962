"""Who holds which queues of a group right now, as its coordinator knows it. In memory only.

A queue is *held* from the moment its owner is told of it until the owner says that it has given it up. What a member
should own and another one holds is not given to it yet.

Answers are lost, and requests come late and twice. So each answer that says something new has a *version*, and a
request says which one it has read:

- a queue given in version 7 is given up only by a request that has read 7 and does not name it;
- a request that has read less than another one before it changes nothing.

A new coordinator knows from the group's plan who may hold what, and believes that a queue is free when that member has
read an answer of its own and does not name it. Versions begin at a random number with each coordinator: one of another
is not mistaken, however late it comes. Until then a member is told to keep what it says it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .plan import GenerationPlan
from .ranges import NONE, RangePairs, count, intersect, overlap, subtract, union

Owned = Mapping[str, RangePairs]


class MemberHolding:
    """One member's part. ``heard``: it has said what it owns since this coordinator began."""

    __slots__ = ("_given", "_read", "heard", "held", "version")

    def __init__(self, version: int, *, heard: bool) -> None:
        self.version = self._read = version
        self.heard = heard
        self.held: dict[str, RangePairs] = {}
        self._given: list[tuple[int, str, RangePairs]] = []  # by version, what was given since the one that was read

    def give(self, topic: str, ranges: RangePairs) -> None:
        """It holds these as well, from the next version on."""
        self.held[topic] = union(self.held.get(topic, NONE), ranges)
        self._given.append((self.version + 1, topic, ranges))

    def report(self, version: int, owned: Owned, may_hold: Owned) -> bool:
        """A request that is not late says what it owns; whether that frees queues. ``may_hold`` counts for the first
        report."""
        if not self.heard:
            self.heard = True
            for name, ranges in owned.items():
                self._set(name, union(self.held.get(name, NONE), intersect(ranges, may_hold.get(name, NONE))))
        self._read = version
        self._given = [given for given in self._given if given[0] > version]
        freed = False
        for name, held in list(self.held.items()):
            kept = union(owned.get(name, NONE), *(ranges for _, topic, ranges in self._given if topic == name))
            left = intersect(held, kept)
            if left != held:
                freed = True
                self._set(name, left)
        return freed

    def is_late(self, version: int) -> bool:
        """Whether a request that has read this version counts no more: a repeat, or for another coordinator."""
        return not self._read <= version <= self.version

    def forget(self, topic: str) -> None:
        """The topic is gone, and what was held of it with it."""
        self.held.pop(topic, None)
        self._given = [given for given in self._given if given[1] != topic]

    def take(self, topic: str, ranges: RangePairs) -> None:
        """Somebody who must know says that it holds these."""
        self._set(topic, subtract(self.held.get(topic, NONE), ranges))

    def _set(self, topic: str, ranges: RangePairs) -> None:
        if ranges:
            self.held[topic] = ranges
        else:
            self.held.pop(topic, None)


class Holdings:
    """All members' parts, and what of them is in the way of the plan."""

    def __init__(self) -> None:
        self.by_member: dict[str, MemberHolding] = {}
        self._in_the_way: dict[str, dict[str, RangePairs]] = {}  # by topic and member: held, and another's by plan
        self._blocked: dict[str, RangePairs] = {}  # by topic: all of it

    def presume(self, plan: GenerationPlan, version: int) -> None:
        """A new coordinator: each member may hold what is its own by the plan, and what the plan says beside that."""
        self.by_member = {member: MemberHolding(version, heard=False) for member in plan.members}
        for name, topic in plan.topics.items():
            pending = union(*topic.pending.values())
            for member, holder in self.by_member.items():
                own = subtract(topic.shares.get(member, NONE), pending)
                if held := union(own, topic.pending.get(member, NONE)):
                    holder.held[name] = held
        self.compare(plan)

    def report(self, member: str, version: int, owned: Owned, plan: GenerationPlan) -> bool:
        """What a member says it owns; whether others may now have something they waited for."""
        holder = self.by_member[member]
        first = not holder.heard
        freed = holder.report(version, owned, self.may_hold(member, owned, plan) if first else {})
        if not (freed or first):
            return False
        affected = [member]
        if first:
            for name, held in list(holder.held.items()):
                for other_name, other in self.by_member.items():
                    if other is holder or not overlap(other.held.get(name, NONE), held):
                        continue
                    if other.heard:  # it said so first
                        holder.take(name, other.held[name])
                    else:
                        other.take(name, held)
                        affected.append(other_name)
        self.compare(plan, affected)
        return True

    def compare(self, plan: GenerationPlan, members: Iterable[str] | None = None) -> None:
        """Find anew what ``members`` (all of them, when left out) hold that is not theirs."""
        if members is None:
            self._in_the_way.clear()
            self._blocked.clear()
            members = self.by_member
        touched: set[str] = set()
        for member in members:
            for name, places in self._in_the_way.items():
                if places.pop(member, None):
                    touched.add(name)
            for name, held in self.by_member[member].held.items():
                topic = plan.topics.get(name)
                if topic is not None and (wrong := subtract(held, topic.shares.get(member, NONE))):
                    self._in_the_way.setdefault(name, {})[member] = wrong
                    touched.add(name)
        for name in sorted(touched):
            self._blocked[name] = union(*self._in_the_way[name].values())

    def wanted(self, member: str, topic: str, share: RangePairs) -> tuple[RangePairs, RangePairs]:
        """Of a member's share, what it may be given now, and what others still hold."""
        missing = subtract(share, self.by_member[member].held.get(topic, NONE))
        free = subtract(missing, self._blocked.get(topic, NONE))
        return free, missing if not free else subtract(missing, free)

    def pending(self, topic: str, shares: Mapping[str, RangePairs]) -> dict[str, RangePairs]:
        """What members hold of a topic beyond these shares, for a plan."""
        found = {
            member: subtract(holder.held.get(topic, NONE), shares.get(member, NONE))
            for member, holder in self.by_member.items()
        }
        return {member: ranges for member, ranges in found.items() if ranges}

    def may_hold(self, member: str, owned: Owned, plan: GenerationPlan) -> dict[str, RangePairs]:
        """Of what a member says it owns, what a coordinator before this one may have given it under this plan."""
        found = {}
        for name, ranges in owned.items():
            topic = plan.topics.get(name)
            if topic is not None:
                may = union(topic.shares.get(member, NONE), topic.pending.get(member, NONE))
                found[name] = intersect(ranges, may)
        return found

    def may_commit(self, member: str, plan: GenerationPlan) -> dict[str, tuple[int, RangePairs]]:
        """By topic, its id and the queues that a member owns, or may own as far as is known under this plan."""
        holder = self.by_member[member]
        found = {}
        for name, topic in plan.topics.items():
            ranges = holder.held.get(name, NONE)
            if not holder.heard:
                ranges = union(ranges, topic.shares.get(member, NONE), topic.pending.get(member, NONE))
            if ranges:
                found[name] = topic.id, ranges
        return found

    @property
    def blocked_queues(self) -> int:
        """How many queues have to change hands before their owners have them."""
        return sum(count(ranges) for ranges in self._blocked.values())
