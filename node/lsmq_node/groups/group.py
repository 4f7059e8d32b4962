"""A consumer group as a state machine: heartbeats, leaves, time and topics in; plans to store, and answers, out.

Pure: no clock, no disk, no network. The shell (:mod:`.coordinator`) stores a plan with :meth:`CoordinatedGroup.stage`,
and calls :meth:`CoordinatedGroup.publish` when it is durable. Answers are made from the published plan alone; while one
is staged, nobody is given a queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from lsmq.errors import (
    GroupModeMismatch,
    GroupPatternMismatch,
    InvalidRequest,
    StaleGeneration,
    TooManyMembers,
    UnknownMember,
)

from .assignment import Demand, assign
from .holdings import Holdings, MemberHolding, Owned
from .plan import GenerationPlan, MemberSpec, Mode, TopicPlan
from .ranges import NONE, RangePairs, count, intersect, union

MAX_MEMBERS = 1_000
MAX_TOPICS = 100
MAX_GROUP_TOPICS = 1_000
HEARTBEATS_PER_SESSION = 3
#: A group whose document was lost is told of a later generation, but not of one that nothing can come behind.
_MOST_AHEAD = 1 << 32
_VERSIONS = 1 << 20  # of one member, so that none of another incarnation of it is mistaken

Catalog = Callable[[str], tuple[int, int] | None]
"""Id and number of queues of a topic; None when there is none."""


@dataclass(frozen=True, slots=True)
class Beat:
    """A member's heartbeat. ``epoch`` and ``version`` are of the last answer it has read; 0 when it joins."""

    member: str
    topics: tuple[str, ...]
    epoch: int = 0
    version: int = 0
    owned: Owned = field(default_factory=dict)
    static_id: str | None = None
    session_ms: int = 10_000
    stalled: bool = False
    client: str = ""
    mode: Mode = Mode.CLUSTERED
    pattern: str | None = None

    def spec(self) -> MemberSpec:
        topics = tuple(sorted(set(self.topics)))
        return MemberSpec(self.member, self.static_id, self.session_ms, topics, self.client, self.pattern)


@dataclass(frozen=True, slots=True)
class BeatAnswer:
    """What a member is told. ``version`` changes with anything else here but ``waiting_for``."""

    member: str
    epoch: int
    version: int
    heartbeat_ms: int
    assigned: Mapping[str, RangePairs]
    topics: Mapping[str, tuple[int, int]]  # id and number of queues
    waiting_for: int
    standby: bool


class LiveMember:
    """A live member. ``change``: the group's change that concerned it last."""

    __slots__ = ("change", "seen_at", "spec", "stalled", "told")

    def __init__(self, spec: MemberSpec, now: float, change: int) -> None:
        self.spec = spec
        self.seen_at = now
        self.stalled = False
        self.change = change
        self.told: tuple[object, ...] = ()


class CoordinatedGroup:
    """One group. ``first_version`` is a random number, other with each coordinator; ``now`` is seconds."""

    def __init__(self, name: str, plan: GenerationPlan, first_version: int, now: float) -> None:
        self.name = name
        self.plan = plan
        self.staged: GenerationPlan | None = None
        self.members = {id: LiveMember(spec, now, 0) for id, spec in plan.members.items()}
        self.holdings = Holdings()
        self.holdings.presume(plan, first_version)
        self.mode = plan.mode
        self._first_version = first_version
        self._changes = 0
        self._raised = 0  # the change that the generation rises for
        self._least_generation = 0
        self._renamed: dict[str, str] = {}
        self._none_ends_before = float("-inf")  # no session does

    @property
    def dirty(self) -> bool:
        """Whether something has happened that no plan says yet."""
        return self._changes > (self.staged or self.plan).changes

    @property
    def is_nothing(self) -> bool:
        """Whether there is nothing to remember of it."""
        return self._is_new and not self.members

    def _changed(self, *, raises: bool = True) -> int:
        self._changes += 1
        if raises:
            self._raised = self._changes
        return self._changes

    # What happens

    def declare(self, mode: Mode) -> None:
        """The group shall have this mode; a new group takes it. Raises ``GroupModeMismatch``."""
        if self._is_new:
            self.mode = mode
            self._changed()
        self._check_mode(mode)

    @property
    def _is_new(self) -> bool:
        return not self.plan.generation and not self._changes

    def _check_mode(self, mode: Mode) -> None:
        if mode is not self.mode:
            raise GroupModeMismatch(
                f"group {self.name!r} is in mode {self.mode.value}, not {mode.value}; use another name, or delete it",
                group=self.name,
                mode=self.mode.value,
            )

    def hear(self, beat: Beat, now: float) -> bool:
        """A heartbeat; whether others may be given something now.

        Raises ``GroupModeMismatch``, ``GroupPatternMismatch``, ``UnknownMember``, ``StaleGeneration``,
        ``TooManyMembers``, ``InvalidRequest``.
        """
        if not self._is_new:
            self._check_mode(beat.mode)
        self._check_epoch(beat.epoch)
        member = self.members.get(beat.member)
        if beat.static_id is not None:
            rival = next((other for other in self.members.values() if other.spec.static_id == beat.static_id), None)
            if rival is not None and rival is not member:
                member = self._take_over(rival, beat, now)
        if member is None:
            member = self._join(beat, now)
        member.seen_at = max(member.seen_at, now)
        member.stalled = beat.stalled
        if beat.epoch > max(self.plan.generation, self._least_generation):
            self._least_generation = beat.epoch
            member.change = self._changed()
        holder = self.holdings.by_member.get(beat.member)
        if holder is None or holder.is_late(beat.version):
            return False
        spec = beat.spec()
        if (spec.topics, spec.pattern) != (member.spec.topics, member.spec.pattern):
            self._check_topics(spec)
            self._check_pattern(spec, self.members.values())
            member.change = self._changed()
        elif spec != member.spec:
            self._changed(raises=False)
        if spec.session_ms < member.spec.session_ms:
            self._none_ends_before = float("-inf")
        member.spec = spec
        return self.holdings.report(beat.member, beat.version, beat.owned, self.plan)

    def _check_epoch(self, epoch: int) -> None:
        limit = max(self.plan.generation, self._least_generation) + _MOST_AHEAD
        if epoch > limit:
            raise InvalidRequest(
                f"epoch is {epoch}, and group {self.name!r} is in generation {self.plan.generation}: none above "
                f"{limit} can have been. Send the epoch of the last answer",
                field="epoch",
                limit=limit,
            )

    def _check_topics(self, spec: MemberSpec) -> None:
        names = set(spec.topics).union(*(member.spec.topics for member in self.members.values()))
        if len(names) > MAX_GROUP_TOPICS:
            raise InvalidRequest(
                f"the members of group {self.name!r} would subscribe to {len(names)} topics; the limit of a group is "
                f"{MAX_GROUP_TOPICS}: use several groups",
                group=self.name,
                limit=MAX_GROUP_TOPICS,
            )

    def _check_pattern(self, spec: MemberSpec, others: Iterable[LiveMember]) -> None:
        """Members of a topic read the same of it: else nobody would read what the owner of a slot leaves out."""
        for other in others:
            if other.spec.pattern == spec.pattern:
                continue
            for name in set(spec.topics).intersection(other.spec.topics):
                theirs = "all queues" if other.spec.pattern is None else f"the pattern {other.spec.pattern!r}"
                wanted = "all queues" if spec.pattern is None else f"the pattern {spec.pattern!r}"
                raise GroupPatternMismatch(
                    f"members of group {self.name!r} subscribe to {theirs} of topic {name!r}, not to {wanted}: end "
                    "these first, or use another group",
                    group=self.name,
                    topic=name,
                    pattern=other.spec.pattern,
                )

    def _join(self, beat: Beat, now: float) -> LiveMember:
        if beat.epoch:
            raise UnknownMember(
                f"group {self.name!r} does not know member {beat.member!r} (any more): its session may have ended. "
                "Drop all queues and join again, with epoch 0",
                group=self.name,
                member=beat.member,
            )
        if len(self.members) >= MAX_MEMBERS:
            raise TooManyMembers(
                f"group {self.name!r} has {len(self.members)} members, which is the limit; let each of them handle "
                "more messages at a time",
                group=self.name,
                limit=MAX_MEMBERS,
            )
        self._check_topics(beat.spec())
        self._check_pattern(beat.spec(), self.members.values())
        if self._is_new:
            self.mode = beat.mode
        member = self.members[beat.member] = LiveMember(beat.spec(), now, self._changed())
        self._none_ends_before = float("-inf")
        return member

    def _take_over(self, rival: LiveMember, beat: Beat, now: float) -> LiveMember:
        """A static id has a new process: it gets the place of the old one, and no generation is needed for that."""
        if beat.epoch:
            # The other one, which took the id over, and this one are both alive: what this one commits must not count.
            self._changed()
            raise StaleGeneration(
                f"static id {beat.static_id!r} of group {self.name!r} is another process's now "
                f"({rival.spec.client or rival.spec.id}); stop this one, or give it an id of its own",
                group=self.name,
                static_id=beat.static_id,
            )
        is_same = beat.pattern == rival.spec.pattern
        if not is_same:
            self._check_topics(beat.spec())
        self._check_pattern(beat.spec(), [other for other in self.members.values() if other is not rival])
        del self.members[rival.spec.id]
        self._renamed = {old: beat.member if new == rival.spec.id else new for old, new in self._renamed.items()}
        if rival.spec.id in self.plan.members:
            self._renamed[rival.spec.id] = beat.member
        spec = replace(beat.spec(), topics=rival.spec.topics) if is_same else beat.spec()
        member = self.members[beat.member] = LiveMember(spec, now, 0)
        self._none_ends_before = float("-inf")
        member.change = self._changed(raises=not is_same or rival.spec.id not in self.plan.members)
        return member

    def leave(self, member: str) -> bool:
        """A member has given up everything and goes; whether it was one."""
        return self._drop([member])

    def expire(self, now: float) -> list[str]:
        """Drop the members whose session is over; returns their ids. Looks at them where the next one may be."""
        if now <= self._none_ends_before:
            return []
        ends = {id: member.seen_at + member.spec.session_ms / 1000 for id, member in self.members.items()}
        gone = [id for id, end in ends.items() if now > end]
        self._none_ends_before = min((end for end in ends.values() if now <= end), default=float("inf"))
        self._drop(gone)
        return gone

    def _drop(self, gone: list[str]) -> bool:
        known = [id for id in gone if self.members.pop(id, None) is not None]
        if known:
            self._changed()
        return bool(known)

    def look(self, catalog: Catalog) -> None:
        """Notice topics that were deleted, made anew, or have grown."""
        if self.staged is not None:
            return
        for name in {name for member in self.members.values() for name in member.spec.topics}:
            known, found = self.plan.topics.get(name), catalog(name)
            if (None if known is None else (known.id, known.queues)) != found:
                self._changed()
                return

    # Plans

    def stage(self, catalog: Catalog) -> GenerationPlan:
        """The next plan, with all that has happened. To be stored, and then published or given up."""
        assert self.staged is None
        old, renamed = self.plan, self._renamed
        members = {id: member.spec for id, member in sorted(self.members.items())}
        topics: dict[str, TopicPlan] = {}
        if self._raised > old.changes:
            generation = max(old.generation + 1, self._least_generation + (self._least_generation > old.generation))
            subscribers: dict[str, list[str]] = {}
            for id, spec in members.items():
                for name in spec.topics:
                    subscribers.setdefault(name, []).append(id)
            found = {name: info for name in sorted(subscribers) if (info := catalog(name)) is not None}
            if not members:  # Who asks whether it has any topic left is told of these.
                topics = {name: replace(topic, shares={}, pending={}) for name, topic in old.topics.items()}
            demands = {name: Demand(info[1], tuple(subscribers[name])) for name, info in found.items()}
            shares = self._shares(demands, {name: info[0] for name, info in found.items()})
            for name, (topic_id, queues) in found.items():
                pending = self._pending(name, topic_id, shares[name], members)
                topics[name] = TopicPlan(topic_id, queues, shares[name], pending)
        else:
            generation = old.generation
            for name, topic in old.topics.items():
                own = {renamed.get(member, member): ranges for member, ranges in topic.shares.items()}
                topics[name] = TopicPlan(topic.id, topic.queues, own, self._pending(name, topic.id, own, members))
        self.staged = GenerationPlan(generation, self.mode, members, topics, self._changes, self._patterns(catalog))
        return self.staged

    def _patterns(self, catalog: Catalog) -> dict[str, str]:
        """Of topics that nobody subscribes to any more, as the last members did."""
        specs = [member.spec for member in self.members.values()]
        subscribed = {name for spec in specs for name in spec.topics}
        found = {name: spec.pattern for spec in specs if spec.pattern is not None for name in spec.topics}
        left = ((name, pattern) for name, pattern in self.plan.patterns.items() if name not in subscribed)
        kept = islice(((name, pattern) for name, pattern in left if catalog(name)), MAX_GROUP_TOPICS)
        return {**found, **dict(kept)}

    def _shares(self, demands: Mapping[str, Demand], ids: Mapping[str, int]) -> dict[str, dict[str, RangePairs]]:
        if self.mode is not Mode.CLUSTERED:
            everything = self.mode is Mode.BROADCAST
            return {
                name: {member: ((0, demand.queues),) for member in demand.members if everything}
                for name, demand in demands.items()
            }
        previous = {
            name: {self._renamed.get(member, member): ranges for member, ranges in topic.shares.items()}
            for name, topic in self.plan.topics.items()
            if topic.id == ids.get(name)
        }
        return assign(demands, previous)

    def _pending(
        self, name: str, id: int, shares: Mapping[str, RangePairs], members: Mapping[str, MemberSpec]
    ) -> dict[str, RangePairs]:
        known = self.plan.topics.get(name)
        if self.mode is not Mode.CLUSTERED or known is None or known.id != id:
            return {}
        return {member: held for member, held in self.holdings.pending(name, shares).items() if member in members}

    def give_up_staged(self) -> None:
        """The staged plan could not be put in line: as if it had not been made."""
        self.staged = None

    def publish(self) -> None:
        """The staged plan is durable: from now on answers are made from it."""
        plan, old = self.staged, self.plan
        assert plan is not None
        self.plan, self.staged = plan, None
        self._renamed = {before: after for before, after in self._renamed.items() if after not in plan.members}
        for name, topic in old.topics.items():
            now = plan.topics.get(name)
            if now is None or now.id != topic.id:
                for holder in self.holdings.by_member.values():
                    holder.forget(name)
        known = self.holdings.by_member
        self.holdings.by_member = {id: known.get(id) or self._new_holder() for id in plan.members}
        self.holdings.compare(plan)

    def _new_holder(self) -> MemberHolding:
        self._first_version += _VERSIONS
        return MemberHolding(self._first_version, heard=True)

    # Answers

    def is_settled(self, member: str) -> bool:
        """Whether the published plan says what happened last to the member."""
        live = self.members.get(member)
        return member in self.plan.members and (live is None or live.change <= self.plan.changes)

    def answer(self, member: str, owned: Owned) -> BeatAnswer:
        """What to tell a member, which says it has ``owned``, of the published plan. Raises ``UnknownMember``."""
        live = self.members.get(member)
        if live is None or member not in self.plan.members:
            raise UnknownMember(
                f"group {self.name!r} does not know member {member!r} any more; drop all queues and join again",
                group=self.name,
                member=member,
            )
        holder = self.holdings.by_member[member]
        keeps = {} if holder.heard else self.holdings.may_hold(member, owned, self.plan)
        assigned: dict[str, RangePairs] = {}
        waiting_for, any_share = 0, False
        for name in self.plan.members[member].topics:
            topic = self.plan.topics.get(name)
            share = NONE if topic is None else topic.shares.get(member, NONE)
            if not share:
                continue
            any_share = True
            if self.mode is Mode.CLUSTERED:
                free, blocked = self.holdings.wanted(member, name, share)
                if free and self.staged is None:
                    holder.give(name, free)
                waiting_for += count(blocked)
                share = intersect(share, union(holder.held.get(name, NONE), keeps.get(name, NONE)))
            if share:
                assigned[name] = share
        topics = {
            name: (topic.id, topic.queues)
            for name in self.plan.members[member].topics
            if (topic := self.plan.topics.get(name)) is not None
        }
        told = (self.plan.generation, assigned, topics)
        if told != live.told:
            live.told = told
            holder.version += 1
        interval_ms = max(1, live.spec.session_ms // HEARTBEATS_PER_SESSION)
        return BeatAnswer(
            member, self.plan.generation, holder.version, interval_ms, assigned, topics, waiting_for, not any_share
        )

    def may_commit(self, member: str, static_id: str | None = None) -> dict[str, tuple[int, RangePairs]] | None:
        """By topic, its id and the queues that a member may commit for; None where it is none, or was told nothing.

        ``static_id``: for the offsets of the member of a broadcast group that has it.
        """
        if member not in self.members or member not in self.plan.members:
            return None
        if static_id is None:
            return self.holdings.may_commit(member, self.plan)
        if self.mode is not Mode.BROADCAST or self.members[member].spec.static_id != static_id:
            return {}
        topics = ((name, self.plan.topics.get(name)) for name in self.plan.members[member].topics)
        return {name: (topic.id, ((0, topic.queues),)) for name, topic in topics if topic is not None}

    def live_members(self, static_id: str | None = None) -> int:
        """How many members it has; of those, with this static id."""
        if static_id is None:
            return len(self.members)
        return sum(member.spec.static_id == static_id for member in self.members.values())

    @property
    def state(self) -> str:
        """``empty``, ``recovering`` (a new coordinator has not heard of all), ``rebalancing`` or ``stable``."""
        if not self.members:
            return "empty"
        if not all(holder.heard for holder in self.holdings.by_member.values()):
            return "recovering"
        return "rebalancing" if self.dirty or self.staged or self.holdings.blocked_queues else "stable"
