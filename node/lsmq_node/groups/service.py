"""What the API asks of groups: finds the shard, builds what it knows when this node begins to lead it, keeps time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsmq import runtime
from lsmq.errors import (
    ConnectionFailed,
    GroupHasMembers,
    InvalidRequest,
    NotLeader,
    Unavailable,
    UnknownGroup,
    UnknownQueue,
    UnknownTopic,
)
from lsmq.messages import key_hash
from lsmq_node.broker import Broker, LeaderCalls, Leadership, ShardPort
from lsmq_node.broker.placement import split_by_shard
from lsmq_node.machines import MachineService
from lsmq_node.storage import ShardStore, StoredTopic

from .coordinator import GroupCounts, ShardGroups
from .group import Beat, BeatAnswer, CoordinatedGroup
from .lag import Lag, add, count_lag, join
from .named import NO_SLOT, count_named_lag, numbers_in, worth_committing
from .permits import Permits, Standing
from .plan import Mode
from .ranges import RangePairs, count, flat, from_flat, intersect

_ASK_TIMEOUT_S = 2.0
#: Sixteen million queues take a second.
_COUNT_TIMEOUT_S = 10.0
_COUNTED_AT_ONCE = 1 << 17
_SHOWN_STALLED = 10


class GroupService(MachineService[ShardGroups]):
    """One for each node. Loop thread only; ``start`` before anything else, ``stop`` at the end."""

    name = "groups"

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker, partial(ShardGroups, self))
        self.counts = GroupCounts()
        #: Whether a shard at this node has work of a group on a topic that is there.
        self.has_work: Callable[[ShardStore, str], bool] = lambda store, group: False
        self._permits = Permits(self._standing, asyncio.get_running_loop().time)
        self._lags = LeaderCalls(broker.topology, "group-lag", self._lag_here, _COUNT_TIMEOUT_S)
        self._offsets = LeaderCalls(broker.topology, "group-has-offsets", self._has_offsets_here, _ASK_TIMEOUT_S)
        broker.topology.peers.answer("declare-group", self._answer_declare)
        broker.topology.peers.answer("group-members", self._answer_members)

    def begin_stop(self) -> None:
        for shard in self.shards():
            shard.closing()
        super().begin_stop()

    def stalled(self) -> list[str]:
        """A line for each group of this node, up to a few, that has members whose handlers do not come back."""
        lines = []
        for shard in self.shards():
            for group in shard.active_groups():
                names = [member.spec.static_id or id for id, member in group.members.items() if member.stalled]
                if names:
                    shown = ", ".join(names[:_SHOWN_STALLED])
                    lines.append(
                        f"group {group.name}: {len(names)} of {len(group.members)} members are stalled: {shown}"
                    )
        return lines[:_SHOWN_STALLED]

    def catalog(self, name: str) -> tuple[int, int] | None:
        """Id and number of queues of a topic, as known here."""
        topic = self.broker.topology.topics.find(name)
        return None if topic is None else (topic.id, topic.queues)

    def names(self, after: str, limit: int) -> list[str]:
        """So many groups after a name, in order: those with offsets in the shards at this node, and those that it
        coordinates. Costs what is found."""
        found = set[str]().union(*(port.store.groups(after, limit) for port in self.broker.topology.ports()))
        for shard in self.shards():
            found.update(islice(shard.groups.irange(after, inclusive=(False, True)), limit))
        return sorted(found)[:limit]

    def topics_of(self, group: str) -> set[int]:
        """Ids of the topics that a group has committed offsets of, in the shards at this node."""
        return set[int]().union(*(port.store.topics_of(group) for port in self.broker.topology.ports()))

    # Coordination

    def shard_of(self, group: str) -> int:
        """The shard whose leader coordinates the group, or that of which it is a member's name for its offsets."""
        return key_hash(group.partition("/")[0]) % self.broker.topology.home_shards

    def coordinator(self, group: str) -> tuple[int, Leadership]:
        shard = self.shard_of(group)
        return shard, self.broker.topology.leadership(shard)

    async def heartbeat(self, name: str, beat: Beat, wait_ms: int) -> BeatAnswer:
        """See :meth:`ShardGroups.heartbeat`. A member that joins subscribes to topics that there are."""
        shard = await self.shard(self.shard_of(name))
        if beat.pattern is not None:
            self._check_names(beat.topics)
        if not beat.version:
            for topic in beat.topics:
                await self.broker.topic(topic)
            shard = await self.shard(shard.port.number)
        return await shard.heartbeat(name, beat, self.hold_s(wait_ms))

    def _check_names(self, topics: Sequence[str]) -> None:
        for name in topics:
            topic = self.broker.topology.topics.find(name)
            if topic is not None and not topic.named:
                raise InvalidRequest(
                    f"pattern is given, and the queues of topic {name!r} have numbers, not names: leave it out",
                    field="pattern",
                )

    async def leave(self, name: str, beat: Beat) -> None:
        await (await self.shard(self.shard_of(name))).leave(name, beat)

    async def declare(self, name: str, mode: Mode) -> CoordinatedGroup:
        return await (await self.shard(self.shard_of(name))).declare(name, mode)

    async def declare_anywhere(self, name: str, mode: Mode) -> None:
        """:meth:`declare` at the coordinator, wherever that is. Raises ``GroupModeMismatch``, ``Unavailable``."""
        number, leads = self.coordinator(name)
        if leads.here:
            try:
                await self.declare(name, mode)
            except NotLeader as error:
                raise _just_changed(name) from error
            return
        await self._ask(number, "declare-group", {"group": name, "mode": mode.value})

    async def group(self, name: str) -> tuple[ShardGroups, CoordinatedGroup]:
        """Raises ``UnknownGroup``, ``NotLeader``."""
        shard = await self.shard(self.shard_of(name))
        return shard, shard.group(name)

    async def delete(self, name: str, *, force: bool) -> None:
        """Forget a group's members and generation. Raises ``GroupHasMembers`` unless ``force``, ``UnknownGroup``."""
        shard, group = await self.group(name)
        if group.members and not force:
            raise _has_members(name, len(group.members), "stop them first, or delete it with force")
        await shard.forget(name)

    async def is_in_use(self, name: str) -> bool:
        """Whether the coordinator of a group knows of members, or that it is of a kind that has none it knows of.

        ``name`` may be that of a member of a broadcast group. Raises ``Unavailable``.
        """
        found = await self._standing(name.partition("/")[0], None)
        return bool(found.members) or found.mode in (Mode.PUSH.value, Mode.WORK_QUEUE.value)

    async def has_topics(self, name: str) -> bool:
        """Whether a group has members, a topic that its last members subscribed to, or offsets of one or work on it.

        Elsewhere than at its coordinator: whether that knows it. ``name`` as in :meth:`is_in_use`. Raises
        ``Unavailable``, ``NotLeader``, ``ConnectionFailed``.
        """
        group = name.partition("/")[0]
        number, leads = self.coordinator(group)
        if not leads.here:
            return (await self._standing(group, None)).mode is not None
        known = (await self.shard(number)).groups.get(group)
        if known is None:
            return False
        if known.members:
            return True
        for topic in known.plan.topics.values():
            try:
                await self.broker.topic_by_id(topic.id)  # Asks whoever knows all topics, where this node does not.
                return True
            except UnknownTopic:
                continue
        for shard in range(self.broker.topology.shard_count):
            if (await self._offsets.ask(shard, {"group": group}))["found"]:
                return True
        return False

    async def _has_offsets_here(self, number: int, asked: dict[str, Any]) -> dict[str, Any]:
        """Of a group, or one of the members of a broadcast group, in a shard that this node leads; or work."""
        group, shard = str(asked["group"]), await self.shard(number)
        await shard.barrier()  # What was committed lately may not show yet.
        shard.check()
        return {"found": shard.has_offsets(group) or self.has_work(shard.store, group)}

    async def check_no_members(self, name: str) -> None:
        """Raises ``GroupHasMembers``, ``Unavailable``."""
        if members := (await self._standing(name.partition("/")[0], None)).members:
            raise _has_members(name, members, "they go on from where they are; stop them first, or say force")

    async def _standing(self, name: str, member: str | None) -> Standing:
        """What the coordinator of a group says of it, and of one of its members. Raises ``Unavailable``.

        ``name`` may be that of a member of a broadcast group: then of this one.
        """
        group, _, static_id = name.partition("/")
        number, leads = self.coordinator(group)
        asked = {"group": group, "static_id": static_id or None, "member": member}
        if leads.here:
            try:
                found = await self._answer_members(asked)
            except NotLeader as error:
                raise _just_changed(group) from error
        else:
            found = await self._ask(number, "group-members", asked)
        held = found["held"]
        if held is not None:
            held = {topic: (id, from_flat(numbers)) for topic, (id, numbers) in held.items()}
        # A release before knows of no patterns.
        return Standing(found["members"], found["mode"], found["generation"], held, found.get("patterns", {}))

    async def _ask(self, number: int, operation: str, body: dict[str, Any]) -> dict[str, Any]:
        """Ask the coordinator of a group. Raises what it answers, ``Unavailable`` where it gave no answer."""
        try:
            return await self.broker.topology.peers.ask(number, operation, body, _ASK_TIMEOUT_S)
        except (NotLeader, ConnectionFailed) as error:
            raise Unavailable(
                f"the leader of shard {number}, which coordinates group {body['group']!r}, cannot be asked: "
                f"{error.message}",
                sent=False,
            ) from error

    async def _answer_declare(self, asked: dict[str, Any]) -> dict[str, Any]:
        await self.declare(str(asked["group"]), Mode(asked["mode"]))
        return {}

    async def _answer_members(self, asked: dict[str, Any]) -> dict[str, Any]:
        try:
            _, group = await self.group(str(asked["group"]))
        except UnknownGroup:
            return {"members": 0, "mode": None, "generation": 0, "held": None, "patterns": {}}
        member, static_id = asked["member"], asked["static_id"]
        held = None if member is None else group.may_commit(str(member), static_id)
        return {
            "members": group.live_members(static_id),
            "mode": group.mode.value,
            "generation": group.plan.generation,
            "held": held and {topic: [id, flat(ranges)] for topic, (id, ranges) in held.items()},
            "patterns": {name: pattern for name, pattern in group.plan.patterns.items() if held and name in held},
        }

    # Where the queues are

    async def commit(
        self,
        group: str,
        topic: StoredTopic,
        queues: NDArray[Any],
        offsets: NDArray[np.int64],
        *,
        reset: bool,
        member: str | None,
        epoch: int,
    ) -> None:
        """Commit offsets, if whoever does may.

        A member may for queues that its group has given to it; who is no member may while no members live, or to
        ``reset``. Raises ``StaleGeneration``, ``UnknownMember``, ``FencedMember``, ``GroupHasMembers``, and as the
        broker.
        """
        broker, permits = self.broker, self._permits
        broker.admission.queues(topic, queues)
        shares = queues
        if topic.named and member is not None:
            worth, shares = await worth_committing(broker, topic, queues, offsets, reset=reset)
            queues, offsets = queues[worth], offsets[worth]
            if not len(queues):
                return
        shards = [await self.shard(number) for number, _ in split_by_shard(queues, topic, broker.topology.home_shards)]
        if member is not None:
            for shard in shards:
                shard.check_commit(group, epoch)
            await permits.admit(group, member, epoch, topic.name, topic.id, shares)
        elif not reset and any(_has_owners(group, shard) for shard in shards):
            await permits.admit_stranger(group)

        def allow(port: ShardPort) -> None:
            shard = self.find(port.number)
            if shard is None or shard.port is not port:
                raise Unavailable(f"shard {port.number} has just changed its leader; try again", sent=False)
            shard.check()
            if member is not None:
                shard.check_commit(group, epoch)
                permits.check(group, member, epoch, topic.name, topic.id, shares)
            elif not reset and _has_owners(group, shard):
                permits.check_stranger(group)
            shard.admit_commit(group)

        def allowed(port: ShardPort) -> None:
            shard = self.find(port.number)
            assert shard is not None, "it was there in this step of the loop"
            shard.committed(group)
            shard.note_commit(group, topic.id, runtime.wall_time())

        if member is None and reset:
            permits.forget(group)
        await broker.commit_offsets(group, topic, queues, offsets, reset=reset, allow=allow, allowed=allowed)

    async def fence(
        self, group: str, member: str, topic: StoredTopic, ranges: RangePairs, epoch: int
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Refuse commits below ``epoch`` in the shards of these queues; the committed offsets of those that have one.

        Of a named topic ``ranges`` are slots, and no offsets are told.
        Raises ``StaleGeneration``, ``UnknownMember`` and ``FencedMember`` unless the group has given the queues to the
        member, ``NotLeader`` unless this node leads all of these shards.
        """
        self.check_ranges(topic, ranges)
        parts = [(part, intersect(ranges, ((part.first, part.end),))) for part in self.broker.ranges(topic)]
        wanted = [
            (part.shard, np.concatenate([np.arange(*run, dtype=np.uint32) for run in own]))
            for part, own in parts
            if own
        ]
        for number, _ in wanted:
            shard = await self.shard(number)
            await shard.port.prepare(topic)
            shard.check_commit(group, epoch)
        queues = np.concatenate([some for _, some in wanted])
        await self._permits.admit(group, member, epoch, topic.name, topic.id, queues)
        found: list[tuple[NDArray[Any], NDArray[np.int64]]] = []
        for number, some in wanted:
            shard = await self.shard(number)
            self._permits.check(group, member, epoch, topic.name, topic.id, some)
            self._permits.fenced(group, member, topic.name, ranges)
            pattern = self._permits.pattern(group, member, topic.name)
            await shard.fence(group, epoch, topic.id, pattern)
            if topic.named:
                continue
            offsets = shard.store.committed_offsets(group, topic.id, some)
            shard.check()
            present = offsets >= 0
            found.append((some[present], offsets[present]))
        if topic.named:
            return np.empty(0, np.uint32), np.empty(0, np.int64)
        return np.concatenate([each for each, _ in found]), np.concatenate([offsets for _, offsets in found])

    async def committed_in(
        self, group: str, topic: StoredTopic, slots: RangePairs
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The queues of a named topic that lie in these slots and have a committed offset, and these.

        Raises ``NotLeader`` unless this node leads all of their shards.
        """
        self.check_ranges(topic, slots, limited=False)
        found: list[tuple[NDArray[Any], NDArray[np.int64]]] = []
        for part in self.broker.ranges(topic):
            own = intersect(slots, ((part.first, part.end),))
            if own:
                (port,) = await self.broker.reads.ports(topic, [part.shard])
                numbers = await numbers_in(self.broker, port, topic, own)
                offsets = port.store.committed_offsets(group, topic.id, numbers)
                port.check_readable()
                found.append((numbers[offsets >= 0], offsets[offsets >= 0]))
        return np.concatenate([numbers for numbers, _ in found]), np.concatenate([offsets for _, offsets in found])

    async def lag(self, group: str, topic: StoredTopic, ranges: RangePairs) -> tuple[Lag, float | None]:
        """How far a group is behind in these queues, whoever leads them, and when it last committed (s since 1970).

        ``by_range`` follows the ranges, cut where shards begin. Of a named topic they are slots. Raises ``NotLeader``,
        ``Unavailable``, ``ConnectionFailed``.
        """
        self.check_ranges(topic, ranges, limited=False)
        asked: list[tuple[int, dict[str, Any]]] = []
        for part in self.broker.ranges(topic):
            own = intersect(ranges, ((part.first, part.end),))
            if own:
                asked.append((part.shard, {"group": group, "topic": topic.id, "ranges": own}))
        answers = await asyncio.gather(*(self._lags.ask(shard, body) for shard, body in asked))
        lags = [
            Lag(
                **{**answer["lag"], "by_range": tuple(answer["lag"]["by_range"])},
                # Releases before do not say these, nor take them within.
                uncommitted_lag=answer.get("uncommitted_lag", 0),
                uncommitted_behind=answer.get("uncommitted_behind", 0),
                committed_largest=answer.get("committed_largest", answer["lag"]["largest"]),
            )
            for answer in answers
        ]
        committed_at = [answer["committed_at"] for answer in answers if answer["committed_at"] is not None]
        return add(lags), max(committed_at, default=None)

    async def _lag_here(self, number: int, asked: dict[str, Any]) -> dict[str, Any]:
        """Of queues of one shard, which this node leads. Raises ``NotLeader``, ``UnknownTopic``."""
        group, topic = str(asked["group"]), await self.broker.topic_by_id(int(asked["topic"]))
        own: RangePairs = tuple((int(first), int(end)) for first, end in asked["ranges"])
        self.check_ranges(topic, own, limited=False)
        shard = await self.shard(number)
        await shard.port.prepare(topic)
        store = shard.store
        numbers = await numbers_in(self.broker, shard.port, topic, own, group) if topic.named else None

        def read() -> Lag:
            if numbers is not None:
                return _count_named(store, group, topic.id, numbers, own)
            return add([join([_count_lag(store, group, topic.id, *piece) for piece in _cut(*run)]) for run in own])

        lag = await self.broker.in_readers(read)
        shard.check()
        said = asdict(lag)
        return {
            **{name: said.pop(name) for name in ("uncommitted_lag", "uncommitted_behind", "committed_largest")},
            "lag": said,
            "committed_at": shard.last_commit(group, topic.id),
        }

    def check_ranges(self, topic: StoredTopic, ranges: RangePairs, *, limited: bool = True) -> None:
        limit = self.broker.config.max_queues_per_request
        if not ranges:
            raise InvalidRequest("queues names no queue", field="queues")
        if not topic.named:
            self.broker.admission.queue(topic, ranges[-1][1] - 1)
        elif ranges[-1][1] > topic.queues:
            raise UnknownQueue(
                f"topic {topic.name!r} has queues with names, which lie in {topic.queues} slots; there is no slot "
                f"{ranges[-1][1] - 1}",
                topic=topic.name,
                queue=ranges[-1][1] - 1,
                queues=topic.queues,
            )
        if limited and count(ranges) > limit:
            raise InvalidRequest(
                f"queues names {count(ranges)} queues, the limit is {limit} a request (max_queues_per_request); ask in "
                "parts",
                field="queues",
                limit=limit,
            )

    async def forget_offsets(self, group: str, shard: int, also: Callable[[], None]) -> None:
        """Drop committed offsets and the fence of a group in one shard, of a broadcast group those of its members too.

        ``also`` puts in line what is to go with them, in the same step of the loop. All of it is durable on return.
        """
        known = await self.shard(shard)
        await known.barrier()  # A member whose first offsets are in line is in no list yet.
        for name in known.store.groups():
            if name.startswith(f"{group}/"):
                self._permits.forget(name)
                await known.unfence(name)
        self._permits.forget(group)
        await known.unfence(group, also)


def _cut(first: int, end: int) -> Iterator[tuple[int, int]]:
    """A range in pieces whose columns take little memory, and the interpreter for a millisecond."""
    for low in range(first, end, _COUNTED_AT_ONCE):
        yield low, min(low + _COUNTED_AT_ONCE, end)


def _count_lag(store: ShardStore, group: str, topic_id: int, first: int, end: int) -> Lag:
    queues = np.arange(first, end, dtype=np.uint32)
    earliest, latest = store.earliest_offsets(topic_id, queues), store.latest_offsets(topic_id, queues)
    return count_lag(first, earliest, latest, store.committed_offsets(group, topic_id, queues), ((first, end),))


def _count_named(store: ShardStore, group: str, topic_id: int, numbers: Any, slots: RangePairs) -> Lag:
    lies_in = store.names(topic_id).slots_of(numbers)
    there = lies_in != NO_SLOT  # Those that are gone since they were asked for are passed over.
    numbers, lies_in = numbers[there], lies_in[there].astype(np.int64)
    earliest, latest = store.earliest_offsets(topic_id, numbers), store.latest_offsets(topic_id, numbers)
    return count_named_lag(lies_in, earliest, latest, store.committed_offsets(group, topic_id, numbers), slots)


def _has_members(group: str, members: int, remedy: str) -> GroupHasMembers:
    return GroupHasMembers(f"group {group!r} has {members} live members: {remedy}", group=group, members=members)


def _has_owners(group: str, shard: ShardGroups) -> bool:
    """Whether members may have queues of the shard: who takes over queues fences them, unless everybody has all."""
    return group in shard.fences or "/" in group


def _just_changed(group: str) -> Unavailable:
    return Unavailable(f"the coordinator of group {group!r} has just changed; try again", sent=False)
