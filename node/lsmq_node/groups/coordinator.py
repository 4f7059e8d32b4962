"""Coordinating the groups of one shard while this node leads it: the shell around :class:`.group.CoordinatedGroup`.

While what is in memory is built anew, members keep their queues. Time for sessions is counted only while this node was
awake and could serve: a stopped process or a lost lease costs nobody his membership.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import structlog
from sortedcontainers import SortedDict

from lsmq import runtime
from lsmq.errors import LsmqError, ShuttingDown, StaleGeneration, TooManyGroups, UnknownGroup, UnknownMember
from lsmq_node.broker import Ack, Limited, Made, ShardPort, SharedThing
from lsmq_node.machines import HOUR_S, IdleNames, ShardMachine, Step
from lsmq_node.storage import group_patterns
from lsmq_node.storage.group_patterns import FENCE_PREFIX

from .group import Beat, BeatAnswer, CoordinatedGroup
from .plan import KEY_PREFIX, GenerationPlan, Mode, group_key

if TYPE_CHECKING:
    from .service import GroupService

_log = structlog.get_logger("lsmq.groups")

_LOAD_AT_ONCE = 200
_REMEMBERED_COMMITS = 100_000
_PLAN = None  # what requests wait for, beside a member, that the next plan of their group answers
_MOST_TOUCHED = 1_000  # an hour
_LOOKED_AT_ONCE = 100  # groups, before others on the loop have their turn
_LOOK_EACH = 4  # ticks: how often each group is asked whether its topics have changed
#: Of so many groups sessions end with a tick, of others with the next: after an outage all may end together.
_MOST_EXPIRED = 500
_LOOK_FOR_GONE_EACH = 20  # ticks: how often it is asked whose offsets went with their topics


@dataclass(slots=True)
class GroupCounts:
    """What happened to groups since the node began."""

    heartbeats: int = 0
    rebalances: int = 0
    expired: int = 0
    refused: int = 0


_SHARED_GROUPS = SharedThing(
    TooManyGroups, "groups in this shard", "max_groups", "delete groups that nobody uses (lsmq group delete)"
)


class ShardGroups(ShardMachine):
    """Groups and fences of one shard in one round of its store. Loop thread only."""

    subject = "groups"

    def __init__(self, service: GroupService, port: ShardPort) -> None:
        super().__init__(service, port)
        self.groups: SortedDict[str, CoordinatedGroup] = SortedDict()
        self._active: dict[str, None] = {}  # those that have members, or something to store: the others cost nothing
        self._committing: set[str] = set()  # groups with offsets here
        self._gone: set[str] = set()  # those of them that may have none any more
        self._max_groups = service.broker.config.max_groups
        allowances = service.broker.allowances
        self._made = Made(allowances, Limited.GROUPS, allowances.addresses.share(self._max_groups, _SHARED_GROUPS))
        self._is_in_use = service.is_in_use
        self._has_topics = service.has_topics
        retention_hours = service.broker.config.group_retention_hours
        self._forgets = retention_hours > 0
        self._idle = IdleNames("group", retention_hours)
        self._topicless: set[str] = set()  # those that had no topic any more an hour ago, and were not used since
        self._hour_began = 0.0
        self._forgetting = self._looking = False
        self.fences: dict[str, int] = {}
        self._patterns: dict[str, dict[int, str]] = {}  # of groups that have some here, by topic's id
        self.counts = service.counts
        self._last_commit: dict[tuple[str, int], float] = {}  # by group and topic's id, the latest last
        self._last_topics: dict[str, set[int]] = {}  # of these, by group
        self._catalog = service.catalog
        self._ticks = 0
        self._fencing: dict[str, asyncio.Future[None]] = {}

    async def load(self, left: Any) -> None:
        await self.barrier()
        now = self.now
        for at, (key, body) in enumerate(self.store.documents(KEY_PREFIX)):
            name = key.removeprefix(KEY_PREFIX)
            group = self.groups[name] = CoordinatedGroup(name, GenerationPlan.decode(body, key), _first_version(), now)
            if group.members:
                self._active[name] = None
            if at % _LOAD_AT_ONCE == _LOAD_AT_ONCE - 1:
                await asyncio.sleep(0)
        for key, body in self.store.documents(FENCE_PREFIX):
            self.fences[key.removeprefix(FENCE_PREFIX)] = int(body)
        for key, body in self.store.documents(group_patterns.PREFIX):
            name = key.removeprefix(group_patterns.PREFIX)
            self._patterns[name] = group_patterns.decode(body, self.store.document(FENCE_PREFIX + name))
        self._committing.update(self.store.groups())
        self.load_idle(self._idle)
        _log.info("groups_loaded", shard=self.port.number, groups=len(self.groups), round=self.round)

    # Members

    async def heartbeat(self, name: str, beat: Beat, wait_s: float) -> BeatAnswer:
        """Hear a member and answer; hold the answer up to ``wait_s`` while there is nothing new for it.

        Raises what :meth:`CoordinatedGroup.hear` raises, ``NotLeader``, and what a write raises.
        """
        self.check()
        self.counts.heartbeats += 1
        deadline = self._loop.time() + wait_s
        group = self._group_to_join(name, beat)
        self._touch(name)
        try:
            freed = group.hear(beat, self.now)
        finally:
            self._store(name, group)
            if group.is_nothing:
                self._drop(name)
        if freed:
            self.wake(name)
        while True:
            self.check()
            if self.groups.get(name) is not group:
                raise _no_group(name, beat.member)
            if group.is_settled(beat.member):
                answer: BeatAnswer = group.answer(beat.member, beat.owned)
                if answer.version != beat.version or self._loop.time() >= deadline or self.service.held.closed:
                    return answer
                await self.wait((name,), (name, beat.member), deadline=deadline)
            else:
                if beat.member not in group.members:
                    group.answer(beat.member, beat.owned)  # raises
                await self._planned(name, beat.member)

    def _group_to_join(self, name: str, beat: Beat) -> CoordinatedGroup:
        group: CoordinatedGroup | None = self.groups.get(name)
        if group is not None:
            return group
        if beat.epoch:
            raise _no_group(name, beat.member)
        return self._new_group(name)

    def _new_group(self, name: str) -> CoordinatedGroup:
        self._check_count(len(self.groups), name)
        self._make(name)
        group = self.groups[name] = CoordinatedGroup(name, GenerationPlan(), _first_version(), self.now)
        return group

    def _check_count(self, count: int, name: str) -> None:
        if count >= self._max_groups:
            raise TooManyGroups(
                f"shard {self.port.number} has {count} groups, the limit is {self._max_groups} (max_groups), and "
                f"{name!r} would be another; delete groups that nobody uses (lsmq group list, lsmq group delete)",
                limit=self._max_groups,
                group=name,
            )

    def _drop(self, name: str) -> None:
        self.groups.pop(name, None)
        self._drop_made(name)

    def _make(self, name: str) -> None:
        """Raises ``TooManyGroups`` where it is new, and whoever asks may not make it."""
        if name not in self.groups and name not in self._committing:
            self._made.make(name)

    def _drop_made(self, name: str) -> None:
        if name not in self.groups and name not in self._committing:
            self._made.gone(name)

    def admit_commit(self, group: str) -> None:
        """A group wants to commit here. Raises ``TooManyGroups`` where it is one more than there may be."""
        if group not in self._committing:
            self._check_count(len(self._committing), group)
            if group not in self.groups:
                self._made.check(group)

    def committed(self, group: str) -> None:
        """What :meth:`admit_commit` let through is in line."""
        if group not in self._committing:
            self._make(group)
            self._committing.add(group)
        self._gone.discard(group)
        self._touch(group)

    def note_commit(self, group: str, topic_id: int, at: float) -> None:
        """It has committed offsets of a topic, in seconds since 1970."""
        self._last_commit.pop((group, topic_id), None)
        self._last_commit[group, topic_id] = at
        self._last_topics.setdefault(group, set()).add(topic_id)
        if len(self._last_commit) > _REMEMBERED_COMMITS:
            oldest, topic_id = next(iter(self._last_commit))
            self._forget_commits(oldest, topic_id)

    def last_commit(self, group: str, topic_id: int) -> float | None:
        """When it last committed offsets of a topic here, where that is known."""
        return self._last_commit.get((group, topic_id))

    async def _look_for_gone(self) -> None:
        """Groups whose offsets went with their topics do not count any more."""
        self._looking = True
        try:
            self._gone = self._committing.difference(self.store.groups())
            if self._gone:
                await self.barrier()  # What was committed lately may not show yet.
                for name in self._gone.difference(self.store.groups()):
                    self._drop_committing(name)
        finally:
            self._looking = False

    def _drop_committing(self, group: str) -> None:
        self._committing.discard(group)
        self._forget_commits(group, *self._last_topics.get(group, ()))
        self._drop_made(group)

    def _forget_commits(self, group: str, *topic_ids: int) -> None:
        for topic_id in topic_ids:
            del self._last_commit[group, topic_id]
            self._last_topics[group].discard(topic_id)
        if not self._last_topics.get(group):
            self._last_topics.pop(group, None)

    def active_groups(self) -> Iterator[CoordinatedGroup]:
        """Those that have members, and perhaps others."""
        return (group for name in self._active if (group := self.groups.get(name)) is not None)

    async def leave(self, name: str, beat: Beat) -> None:
        """A member has given up everything and goes. Durable on return. Raises ``UnknownMember``."""
        self.check()
        group = self.groups.get(name)
        if group is None or not group.leave(beat.member):
            raise UnknownMember(f"group {name!r} does not know member {beat.member!r}", group=name, member=beat.member)
        self._store(name, group)
        self.wake(name, beat.member)
        while beat.member in group.plan.members and self.groups.get(name) is group:
            await self._planned(name, beat.member)
            self.check()

    async def declare(self, name: str, mode: Mode) -> CoordinatedGroup:
        """Make the group, or see that it has this mode. Durable on return. Raises ``GroupModeMismatch``."""
        self.check()
        group = self.groups.get(name) or self._new_group(name)
        group.declare(mode)
        self._topicless.discard(name)
        self._store(name, group)
        while not group.plan.generation and self.groups.get(name) is group:
            await self._planned(name, "")
            self.check()
        return group

    def group(self, name: str) -> CoordinatedGroup:
        """Raises ``UnknownGroup``."""
        self.check()
        group: CoordinatedGroup | None = self.groups.get(name)
        if group is None:
            raise UnknownGroup(f"no group {name!r} has members, or had some, here", group=name)
        return group

    async def forget(self, name: str) -> None:
        """The group is gone, with its members. Durable on return."""
        self.check()
        is_all = name not in self._committing and name not in self.fences
        documents = {group_key(name): None, **(self._idle.forget(name) if is_all else {})}
        future = self.put(Step(documents, appended=partial(self._drop, name)))
        self.wake(name)
        await self.durable(future)

    # Time

    def due(self) -> Iterator[Step]:
        """Sessions end, topics change."""
        self._ticks += 1
        now, expired = self.now, 0
        for place, name in enumerate(list(self._active)):
            if expired == _MOST_EXPIRED:
                break
            group = self.groups.get(name)
            if group is None or not (group.members or group.dirty or group.staged):
                self._active.pop(name, None)
                continue
            gone = group.expire(now)
            if gone:
                expired += 1
                self.counts.expired += len(gone)
                _log.info("members_expired", group=name, members=gone)
            if (self._ticks + place) % _LOOK_EACH == 0:
                group.look(self._catalog)
            self._store(name, group)
            for member in gone:
                self.wake(name, member)

        if self._ticks % _LOOK_FOR_GONE_EACH == 0 and not self._looking:
            self._start(self._look_for_gone())
        if now - self._hour_began >= HOUR_S:
            self._hour_began = now
            yield Step(self._idle.hour())
            yield Step(self._touched_first())
            if self._forgets and not self._forgetting:
                self._forgetting = True
                self._start(self._forget_unused())

    # Groups that nobody uses

    def _touch(self, group: str) -> None:
        """The group is used. Nobody waits for that; what is refused of it makes a group seem older by a part."""
        self._topicless.discard(group)
        self.put_aside(Step(self._idle.touch(group)))

    def _touched_first(self) -> dict[str, bytes | None]:
        """Those of whose fences an earlier release has not written down that they are used are used now."""
        unknown = (name for name in self.fences if not self._idle.knows(name))
        touched: dict[str, bytes | None] = {}
        for name in islice(unknown, _MOST_TOUCHED):
            touched |= self._idle.touch(name)
        return touched

    async def _forget_unused(self) -> None:
        try:
            await self._forget_topicless()
            await self._forget_idle(self._idle.idle())
        except LsmqError as error:
            _log.info("groups_not_forgotten", shard=self.port.number, code=error.code, message=error.message)
        finally:
            self._forgetting = False

    async def _forget_idle(self, groups: Sequence[str]) -> None:
        """Forget what is here of groups that their coordinators say have no members."""
        for name in groups:
            if await self._is_in_use(name):
                self._touch(name)
            elif self._idle.is_idle(name):  # Nor has anybody come since the first of them was asked about.
                await self._forget_here(name)

    async def _forget_topicless(self) -> None:
        """Forget what is here of groups whose topics are all gone: at the second look, an hour after the first."""
        candidates = {*self.groups, *self.fences, *self._idle.names()} - self._committing
        self._topicless &= candidates
        for number, name in enumerate(sorted(candidates)):
            if number % _LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)
            was_topicless = name in self._topicless
            if self.has_offsets(name.partition("/")[0]) or await self._has_topics(name):
                self._topicless.discard(name)
            elif not was_topicless:
                self._topicless.add(name)
            elif name in self._topicless:  # Nor has anybody come while it was asked about.
                self._topicless.discard(name)
                await self._forget_here(name)

    def has_offsets(self, group: str) -> bool:
        """Whether a group, or one of the members of a broadcast group, has offsets here, as applied by now."""
        of_members = self.store.groups(f"{group}/", 1)
        return bool(self.store.topics_of(group)) or any(each.startswith(f"{group}/") for each in of_members)

    async def _forget_here(self, name: str) -> None:
        await self.unfence(name, partial(self._forget_memberless, name))
        _log.info("group_forgotten", group=name, shard=self.port.number)

    def _forget_memberless(self, name: str) -> None:
        documents = self._idle.forget(name)
        if name in self.groups and not self.groups[name].members:
            self.put(Step({**documents, group_key(name): None}, appended=partial(self._drop, name)))
            self.wake(name)
        else:
            self.put_aside(Step(documents))

    # Storing

    def _store(self, name: str, group: CoordinatedGroup) -> None:
        """Put the next plan in line, if something has happened and no other is on its way."""
        if group.members or group.dirty:
            self._active[name] = None
        if not group.dirty or group.staged is not None or self.groups.get(name) is not group:
            return
        try:
            self.port.check_writable(Ack.QUORUM)  # before there is much to count
            document = group.stage(self._catalog).encode()
            self.put(Step({group_key(name): document}, stored=partial(self._publish, name, group)))
        except LsmqError as error:
            group.give_up_staged()
            _log.info("group_not_stored", group=name, code=error.code, message=error.message)
            self.service.held.fail((self.key, name, _PLAN), error)  # The next tick tries again.

    def _publish(self, name: str, group: CoordinatedGroup) -> None:
        before = group.plan.generation
        group.publish()
        if group.plan.generation > before:
            self.counts.rebalances += 1
            _log.info("group_generation", group=name, generation=group.plan.generation, members=len(group.members))
        self.wake(name)
        self._store(name, group)

    async def _planned(self, name: str, member: str) -> None:
        """Until the group, or the member, is woken. Raises why the next plan cannot be stored."""
        await self.wait((name,), (name, member), (name, _PLAN), deadline=None)

    def closing(self) -> None:
        """The node stops: no plan will come."""
        error = ShuttingDown("the node is stopping; another one coordinates the group soon")
        for name in self.groups:
            self.service.held.fail((self.key, name, _PLAN), error)

    # Fences

    def check_commit(self, group: str, epoch: int) -> None:
        """Raises ``StaleGeneration`` when a commit of that generation must not count any more."""
        fence = self.fences.get(group, 0)
        if epoch < fence:
            self.counts.refused += 1
            raise StaleGeneration(
                f"queues of group {group!r} in shard {self.port.number} were taken over in generation {fence}; what "
                f"generation {epoch} commits does not count. Heartbeat, and commit again if the queues are yours still",
                group=group,
                epoch=epoch,
                fence=fence,
            )

    async def fence(self, group: str, epoch: int, topic_id: int, pattern: str | None) -> None:
        """From here on commits below ``epoch`` are refused, and of the topic the group reads what fits the pattern, or
        all. Durable on return. Raises ``StaleGeneration``."""
        self.check()
        self.check_commit(group, epoch)
        self._touch(group)  # Whoever commits nothing here leaves a fence.
        known = self._patterns.get(group)
        patterns = {id: each for id, each in (known or {}).items() if id != topic_id and self.store.has_topic(id)}
        if pattern is not None:
            patterns[topic_id] = pattern
        if epoch > self.fences.get(group, 0) or patterns != (known or {}):
            documents: dict[str, bytes | None] = {FENCE_PREFIX + group: b"%d" % epoch}
            if known is not None or patterns:
                documents[group_patterns.PREFIX + group] = group_patterns.encode(epoch, patterns)
            future = self.put(Step(documents, appended=partial(self._fenced, group, epoch, patterns)))
            if future is not None:
                self._fencing[group] = future
        pending = self._fencing.get(group)
        if pending is not None:
            try:
                await self.durable(pending)
            finally:
                if self._fencing.get(group) is pending and pending.done():
                    del self._fencing[group]
        self.check()

    def _fenced(self, group: str, epoch: int, patterns: dict[int, str]) -> None:
        self.fences[group] = epoch
        self._patterns.pop(group, None)
        if patterns:
            self._patterns[group] = patterns

    def _unfenced(self, group: str) -> None:
        self.fences.pop(group, None)
        self._patterns.pop(group, None)

    async def unfence(self, group: str, also: Callable[[], None] = lambda: None) -> None:
        """Forget the fence and the committed offsets of a group in this shard, and what ``also`` puts in line. Durable
        on return."""
        self.check()
        self.port.check_writable(Ack.QUORUM)
        self.store.forget_group(group)
        also()
        self._drop_committing(group)
        documents = {FENCE_PREFIX + group: None, **({} if group in self.groups else self._idle.forget(group))}
        if group in self._patterns:
            documents[group_patterns.PREFIX + group] = None
        await self.durable(self.put(Step(documents, appended=partial(self._unfenced, group))))
        self.check()  # What was put in line first may have been dropped before the rest was.


def _no_group(name: str, member: str) -> UnknownMember:
    return UnknownMember(
        f"there is no group {name!r} (any more); drop all queues and join again, with epoch 0",
        group=name,
        member=member,
    )


def _first_version() -> int:
    return runtime.random.getrandbits(40) + 1
