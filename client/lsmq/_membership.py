"""A consumer's part in a group: takes over the queues it is given, gives up those it is not, commits as a member.

Everything here runs in the consumer's event loop; heartbeats do not (:mod:`lsmq._heartbeats`). What they bring comes in
through :meth:`Membership.drain`, in order. Queues are taken over and given up piece by piece while the others go on:

- *taking over*: fence them (from then on no earlier owner can commit), begin where the group has committed, tell the
  application, fetch;
- *giving up*: stop fetching, wait until the application has let go of what it was handed, commit what it has handled,
  tell it, and only then tell the group, which gives them to somebody else.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from lsmq._heartbeats import Heart, HeartbeatThread
from lsmq._member_state import AssignmentChange, ByTopic, MemberState
from lsmq._named_positions import SOUGHT
from lsmq._named_selection import NamedSelection
from lsmq._queue_ranges import NONE, contains, intersect, subtract, union
from lsmq._reader import Reader
from lsmq._retries import Backoff, Deadline
from lsmq._router import replaced
from lsmq._start_offsets import check_named, needs_names
from lsmq._work_in_progress import WorkInProgress
from lsmq.background_tasks import BackgroundTasks
from lsmq.client import Client
from lsmq.errors import FencedMember, InvalidRequest, LsmqError, StaleGeneration, UnknownMember, UnknownQueue
from lsmq.group_values import DEFAULT_MAX_HANDLER_MS, DEFAULT_SESSION_MS, Heartbeat, Ranges, new_member_id
from lsmq.groups import Group
from lsmq.topics import Topic

Mode = Literal["clustered", "broadcast"]
AssignmentCallback = Callable[[ByTopic], Awaitable[None] | None]

_TAKING_OVER = "lsmq member takes over"
_GROWING_S = 0.05
#: Whoever is refused so has not heard of something yet, or is late.
_NOT_NOW = (StaleGeneration, FencedMember, UnknownMember)
_log = logging.getLogger("lsmq")
#: Whose callback is being called: also in a thread that it runs in, and in what it begins.
_calling: ContextVar[Membership | None] = ContextVar("calling", default=None)


class Application(Protocol):
    """Who works on the messages."""

    async def _let_go(self, topic: str, ranges: Ranges) -> None:
        """Begin nothing more of these queues; return when nothing of them is in hand, and commit what was handled."""

    def _forget(self, topic: str, ranges: Ranges) -> None:
        """These queues are gone: what is still done with them counts no more."""


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """See :class:`lsmq.Consumer`."""

    mode: Mode = "clustered"
    member_id: str | None = None
    static_id: str | None = None
    session_ms: int = DEFAULT_SESSION_MS
    max_handler_ms: int | None = DEFAULT_MAX_HANDLER_MS
    on_assigned: AssignmentCallback | None = None
    on_revoked: AssignmentCallback | None = None

    def check(self, *, is_member: bool) -> None:
        """Raises ``InvalidRequest``."""
        if self.mode not in ("clustered", "broadcast"):
            raise InvalidRequest(f"mode is {self.mode!r}; it must be 'clustered' or 'broadcast'")
        if self.session_ms <= 0 or (self.max_handler_ms is not None and self.max_handler_ms <= 0):
            raise InvalidRequest("session_ms and max_handler_ms must be above 0")
        given = (self.member_id, self.static_id, self.on_assigned, self.on_revoked)
        if not is_member and (self.mode != "clustered" or any(one is not None for one in given)):
            raise InvalidRequest(
                "mode, member_id, static_id, on_assigned and on_revoked are for members: give a group and no queues"
            )


class Membership:
    """One consumer's membership, from :meth:`join` to :meth:`leave`."""

    def __init__(
        self,
        client: Client,
        group: str,
        topics: tuple[str, ...],
        pattern: str | None,
        options: MemberOptions,
        uncommitted: str,
        reader: Reader,
        in_progress: WorkInProgress,
        application: Application,
    ) -> None:
        self.in_progress = in_progress
        self._client = client
        self._group = Group(client, group)
        self._pattern = pattern
        self._options = options
        self._uncommitted = uncommitted
        self._reader = reader
        self._application = application
        hello = Heartbeat(
            options.member_id or new_member_id(),
            topics,
            static_id=options.static_id,
            session_ms=options.session_ms,
            client=f"{socket.gethostname()}:{os.getpid()}",
            mode=options.mode,
            pattern=pattern,
        )
        patience_s = None if options.max_handler_ms is None else options.max_handler_ms / 1000
        self.member = MemberState(hello, patience_s)
        self._thread: HeartbeatThread | None = None
        self._heart: Heart | None = None
        self._inbox: deque[AssignmentChange | LsmqError] = deque()
        self._news = asyncio.Event()
        self._joined = False
        self._background = BackgroundTasks(self._broke)
        self._taking_over: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._calling = asyncio.Lock()

    @property
    def offsets_group(self) -> str | None:
        """The group that offsets are committed for; ``None`` where none are kept."""
        if self._options.mode == "clustered":
            return self._group.name
        return None if self._options.static_id is None else f"{self._group.name}/{self._options.static_id}"

    @property
    def is_dynamic(self) -> bool:
        """Whether its place is nobody's when it goes."""
        return self._options.static_id is None

    @property
    def is_calling(self) -> bool:
        """Whether it is one of its callbacks that asks."""
        return self._calling.locked() and _calling.get() is self

    def reads(self) -> dict[str, Ranges]:
        """By topic, the queues that are read now."""
        return {
            name: staying
            for name, loop in self._reader.loops.items()
            if (staying := intersect(loop.positions.ranges, self.member.staying(name)))
        }

    # Life

    async def join(self) -> None:
        """Return when this is a member and reads all queues it has been given. Raises what refuses it."""
        await self._reader.persist(self._group.coordinator)
        self._loop = asyncio.get_running_loop()
        self._thread = HeartbeatThread.of(self._client)
        self._heart = Heart(
            self._thread,
            self._group.name,
            self.member,
            self.in_progress,
            self.member.patience_s,
            self._tell_from_thread,
        )
        try:
            await self._heart.start()
            while True:
                self._reader.check()  # It may have been refused before the heart's start was over.
                if self._joined and not self._background:
                    return
                self._news.clear()
                await self._news.wait()
        except BaseException:
            await self.leave(for_good=True)
            raise

    async def leave(self, *, for_good: bool) -> None:
        """Give up everything in good order. The group is told if it is ``for_good``; else it keeps the place free."""
        heart, thread, self._thread = self._heart, self._thread, None
        if heart is None or thread is None:
            return
        try:
            self.drain()
            for task in self._background:
                if task.get_name() == _TAKING_OVER:
                    self._background.drop(task)
            works: list[Coroutine[Any, Any, object]] = [
                self._let_go_in_time(topic, self.member.staying(topic)) for topic in self._reader.loops
            ]
            if under_way := set(self._background):  # as they are now: they may be over when the wait begins
                works.append(asyncio.wait(under_way, timeout=self.member.patience_s))
            ended = await asyncio.gather(*works, return_exceptions=True)  # Where one fails the others let go no less.
            held = {topic: ranges for topic in self._reader.loops if (ranges := self.member.owned(topic))}
            await self._call(self._options.on_revoked, held)
            for failed in ended:
                if isinstance(failed, BaseException):
                    raise failed
        finally:
            self._heart = None  # Until here: what is let go of may have to be committed with a newer generation.
            await self._background.end()
            await heart.stop(leave=for_good)
            await thread.release(self._client)

    async def _let_go_in_time(self, topic: str, ranges: Ranges) -> None:
        try:
            async with asyncio.timeout(self.member.patience_s):
                await self._application._let_go(topic, ranges)
        except TimeoutError:
            _log.warning("closing while messages are worked on: group=%s topic=%s", self._group.name, topic)
            self._drop(topic, ranges)

    # News

    def _tell_from_thread(self, news: AssignmentChange | LsmqError) -> None:
        self._inbox.append(news)
        self._loop.call_soon_threadsafe(self.drain)

    def drain(self) -> None:
        """Do what heartbeats have brought. Whoever has kept the event loop busy calls it before going on."""
        while self._inbox:
            news = self._inbox.popleft()
            if isinstance(news, LsmqError):
                self._reader.broken = news
                self._reader.buffer.wake()
            else:
                self._follow(news)
                self._joined = True
            self._news.set()

    def _follow(self, change: AssignmentChange) -> None:
        for topic, ranges in change.lost.items():
            self._drop(topic, ranges)
        if change.lost:
            self._spawn(self._call(self._options.on_revoked, change.lost))
        for topic, ranges in change.leaving.items():
            self._spawn(self._give_up(topic, ranges))
        if self._thread is not None:  # Else it is leaving.
            for topic, ranges in change.gained.items():
                self._spawn(self._take_over(topic, ranges), _TAKING_OVER)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str = "lsmq member") -> None:
        """What goes wrong is raised to the application by its next read."""
        self._background.begin(work, name).add_done_callback(lambda _: self._news.set())

    def _broke(self, error: Exception) -> None:
        if self._reader.is_patient_with(error):
            _log.warning("queues were given up uncommitted, some messages come again: %s: %s", self._group.name, error)
        else:
            self._reader.buffer.put_error(error)
        self._news.set()

    async def _call(self, callback: AssignmentCallback | None, queues: ByTopic) -> None:
        if callback is not None and queues:
            async with self._calling:
                token = _calling.set(self)
                try:
                    pending = callback(dict(queues))
                    if pending is not None:
                        await pending
                finally:
                    _calling.reset(token)

    # Giving up

    def _drop(self, topic: str, ranges: Ranges) -> None:
        """Queues that are gone are neither read nor committed any more."""
        self._application._forget(topic, ranges)
        loop = self._reader.loops.get(topic)
        if loop is not None:
            loop.own(subtract(loop.positions.ranges, ranges))

    async def _give_up(self, topic: str, ranges: Ranges) -> None:
        loop = self._reader.loops.get(topic)
        if loop is not None:
            loop.pause(ranges)
        try:
            if intersect(ranges, NONE if loop is None else loop.positions.ranges):
                await self._application._let_go(topic, ranges)
                left = self.member.still_leaving(topic, ranges)
                await self._call(self._options.on_revoked, {topic: left} if left else {})
        finally:
            left = self.member.still_leaving(topic, ranges)
            self._drop(topic, left)
            self.member.give_up(topic, left)
            if self._heart is not None:
                self._heart.nudge()

    # Taking over

    async def _take_over(self, topic: str, ranges: Ranges) -> None:
        async with self._taking_over[topic]:
            deadline, backoff = Deadline(self._client.deadline_ms), Backoff()
            while True:
                try:
                    begun = await self._begin(topic, ranges)
                    break
                except Exception as error:
                    if isinstance(error, UnknownQueue) and not deadline.passed:
                        await asyncio.sleep(_GROWING_S)  # Who was asked has not heard yet that the topic has grown.
                        continue
                    self._news.set()
                    if self._reader.is_patient_with(error):
                        await backoff.pause()
                        continue
                    await self._reader.buffer.give(error)  # And then try again: queues must not be left lying.
        if self._options.on_assigned is not None and begun:
            try:
                await self._call(self._options.on_assigned, {topic: begun})
            finally:
                loop = self._reader.loops[topic]
                loop.resume(intersect(intersect(begun, self.member.staying(topic)), loop.positions.ranges))

    def _new(self, topic: str, ranges: Ranges) -> Ranges:
        """Of queues that were given, those that are its own still and not begun."""
        loop = self._reader.loops.get(topic)
        staying = intersect(ranges, self.member.staying(topic))
        return staying if loop is None else subtract(staying, loop.positions.ranges)

    async def _begin(self, name: str, ranges: Ranges) -> Ranges:
        """Read these queues; the ones that were begun. They are paused when the application is to be told first."""
        committed = await self._fenced(name, ranges)
        new = self._new(name, ranges)
        if not new:
            return NONE
        topic = await self._topic(name, new)
        loop = self._reader.loops.get(name)
        if loop is not None and not loop.topic.is_same(topic):
            raise replaced(loop.topic, topic)
        if topic.named:
            return self._begin_named(topic, new)
        if self._pattern is not None:
            raise needs_names(topic)
        old = intersect(new, (range(self.member.first_queues.get(name, topic.queues)),))
        queues = old[0] if len(old) == 1 else [queue for part in old for queue in part]
        begins = await self._reader.edge_offsets(topic, queues, self._uncommitted, besides=committed)
        if begins and self._uncommitted == "latest" and self.offsets_group is not None:
            # Else whoever has them next would begin at what is the latest then.
            await self.commit(topic, begins, reset=False)
        new = self._new(name, ranges)
        if new:
            if loop is None:
                loop = self._reader.add(topic, ())
            loop.topic = topic
            loop.own(union(loop.positions.ranges, new))
            loop.start_at({queue: offset for queue, offset in committed.items() if contains(new, queue)})
            edges = {queue: offset for queue, offset in begins.items() if contains(new, queue)}
            loop.positions.start_at(list(edges), list(edges.values()))
            if self._options.on_assigned is not None:
                loop.pause(new)
            self._reader.begin(name)
        return new

    def _begin_named(self, topic: Topic, slots: Ranges) -> Ranges:
        """Read the queues of these slots: a node knows where each begins."""
        check_named(topic, self._uncommitted)
        loop = self._reader.loops.get(topic.name)
        if loop is None:
            selection = NamedSelection(pattern=self._pattern, in_slots=True, group=self.offsets_group)
            loop = self._reader.add_named(topic, selection, ())
        loop.topic = topic
        loop.own(union(loop.positions.ranges, slots))
        if self._options.on_assigned is not None:
            loop.pause(slots)
        self._reader.begin(topic.name)
        return slots

    async def _topic(self, name: str, ranges: Ranges) -> Topic:
        """The topic as the group knows it, with these queues."""
        topic = await self._client._router.known(name, Deadline(self._client.deadline_ms))
        if topic.id != self.member.topic_ids.get(name) or ranges[-1].stop > topic.queues:
            topic = await self._client.topic(name)
        return topic

    async def _fenced(self, topic: str, ranges: Ranges) -> Mapping[int, int]:
        """Where the group has committed, once nobody else can commit any more."""
        deadline, backoff = Deadline(self._client.deadline_ms), Backoff()
        while new := self._new(topic, ranges):
            if self._options.mode == "broadcast":
                if self.offsets_group is None:
                    return {}
                known = await self._topic(topic, new)
                return {} if known.named else await self._client._committed_offsets(self.offsets_group, known)
            try:
                return await self._group.fence(topic, new, member=self.member.id, epoch=self.member.epoch)
            except _NOT_NOW as error:
                await self._heard_anew(error, deadline, backoff)
        return {}

    # Committing

    async def commit(self, topic: Topic, offsets: Mapping[int, int], *, reset: bool) -> None:
        """Commit, for queues that are its own still. Again, with the new generation, when the group has gone on."""
        group = self.offsets_group
        if group is None:
            raise InvalidRequest("a member of a broadcast group that is to commit needs a static_id, to find it by")
        deadline, backoff = Deadline(self._client.deadline_ms), Backoff()
        loop = self._reader.loops.get(topic.name)
        shares = {queue: queue if loop is None else loop.share(queue) for queue in offsets}
        while mine := {
            queue: offset
            for queue, offset in offsets.items()
            if shares[queue] == SOUGHT or self.member.owns(topic.name, shares[queue])  # The node knows whose it is.
        }:
            member, epoch = self.member.id, self.member.epoch
            try:
                await self._client._commit_offsets(group, topic, mine, reset=reset, member=member, epoch=epoch)
                return
            except _NOT_NOW as error:
                await self._heard_anew(error, deadline, backoff)

    async def _heard_anew(self, error: LsmqError, deadline: Deadline, backoff: Backoff) -> None:
        """Return when it is time to look what is still owned: after a heartbeat, and that of the generation that
        refused, where one did. Raises ``error`` when that does not come in time."""
        if self._reader.broken is not None:
            raise self._reader.broken from error
        if self._heart is None or deadline.passed:
            raise error
        fence = int(error.details.get("fence", 0))
        self.member.must_be(fence)
        self._heart.nudge()
        if self.member.epoch >= fence:  # It is told by the group itself what it has lost, or that it has not.
            await backoff.pause(deadline)
            return
        try:
            async with asyncio.timeout(deadline.remaining_s()):
                while self.member.epoch < fence:
                    self._news.clear()
                    await self._news.wait()
                    if self._reader.broken is not None:
                        raise error
        except TimeoutError:
            raise error from None
