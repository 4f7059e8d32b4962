"""Heartbeats of group members, in a thread of their own: an application that keeps its event loop busy keeps its place.

A handler that blocks the event loop (or computes for a minute) would hold up heartbeats that ran beside it, the group
would take its member for dead, and its work would be done twice. So each client has one thread with an event loop and
connections of its own, in which all its consumers' members heartbeat for as long as the process lives. The thread also
keeps the time: it says when a handler has not come back in time (*stalled*), and gives up queues that the event loop
should have given up and did not.

It goes on until the member leaves, or its client or its event loop is closed. What stops it: a stopped process, and
code that holds the interpreter's lock for longer than a session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from lsmq._member_state import AssignmentChange, MemberState
from lsmq._rate_limited import RateLimitedWarnings
from lsmq._retries import Backoff
from lsmq._work_in_progress import WorkInProgress
from lsmq.background_tasks import BackgroundTasks, as_lsmq_error, unless
from lsmq.client import Client
from lsmq.errors import (
    ClientClosed,
    GroupModeMismatch,
    GroupPatternMismatch,
    InvalidRequest,
    LsmqError,
    StaleGeneration,
    TooManyMembers,
    UnknownMember,
    UnknownTopic,
)
from lsmq.groups import Group
from lsmq.loop_thread import LoopThread

T = TypeVar("T")

_FINAL = (
    StaleGeneration,
    GroupModeMismatch,
    GroupPatternMismatch,
    TooManyMembers,
    UnknownTopic,
    InvalidRequest,
    ClientClosed,
)
_LEAVE_DEADLINE_MS = 5_000
_MAX_TICK_S = 0.5
_TOO_SOON_S = 0.02
_log = logging.getLogger("lsmq")


class _NobodyThere(Exception):
    """The consumer's event loop is closed."""


class HeartbeatThread:
    """The thread of one client, with a client of its own, for as long as somebody uses it and the client is open."""

    def __init__(self, client: Client) -> None:
        self.client = client._twin()
        self._thread = LoopThread("lsmq heartbeats")
        self._users = 0
        self._hearts: dict[object, Callable[[], Coroutine[Any, Any, None]]] = {}  # in the thread: how each ends

    @classmethod
    def of(cls, client: Client) -> HeartbeatThread:
        """The client's thread, started where it is not; to be given back with :meth:`release`."""
        found = client._heartbeats
        if found is None:
            found = client._heartbeats = cls(client)
        found._users += 1
        return found

    async def release(self, client: Client) -> None:
        self._users -= 1
        if not self._users:
            client._heartbeats = None
            await self.close()

    async def close(self) -> None:
        """Nobody heartbeats any more: whoever still does leaves, and is told that the client is closed."""
        with suppress(ClientClosed):  # It has ended.
            await self.call(self._end())
        await asyncio.to_thread(self._thread.stop)

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` in the thread, from another event loop. Raises ``ClientClosed`` once it has ended."""
        return await asyncio.wrap_future(self._thread.submit(work))

    # In the thread

    def begins(self, heart: object, end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Somebody heartbeats; ``end`` is called where the client is closed first."""
        self._hearts[heart] = end

    def ends(self, heart: object) -> None:
        """He has ended as he was to."""
        self._hearts.pop(heart, None)

    async def forsaken(self, heart: object) -> None:
        """His event loop is closed, so nobody gives the thread back for him. It ends with the last of these."""
        self._hearts.pop(heart, None)
        self._users -= 1
        if not self._users:
            await self.client.close()
            self._thread.begin_stop()

    async def _end(self) -> None:
        await asyncio.gather(*(end() for end in list(self._hearts.values())))
        await self.client.close()


class Heart:
    """Keeps one member in its group. ``tell`` is called in the thread with each change, or with what ended it all."""

    def __init__(
        self,
        thread: HeartbeatThread,
        group: str,
        member: MemberState,
        in_progress: WorkInProgress,
        max_handler_s: float | None,
        tell: Callable[[AssignmentChange | LsmqError], None],
    ) -> None:
        self._thread = thread
        self._group = Group(thread.client, group)
        self._member = member
        self._in_progress = in_progress
        self._max_handler_s = max_handler_s
        self._tell = tell
        self._inner: asyncio.AbstractEventLoop | None = None
        self._nudged = asyncio.Event()
        self._background = BackgroundTasks(self._broke)  # in the thread
        self._is_known = False  # to the group, perhaps
        self._unheard, self._placeless, self._overdue, self._stalled = (
            RateLimitedWarnings(),
            RateLimitedWarnings(),
            RateLimitedWarnings(),
            RateLimitedWarnings(),
        )

    # From the consumer's event loop

    async def start(self) -> None:
        await self._thread.call(self._start())

    def nudge(self) -> None:
        """Say at once what is new. From any thread."""
        if self._inner is not None:
            with suppress(RuntimeError):  # It is closed.
                self._inner.call_soon_threadsafe(self._nudged.set)

    async def stop(self, *, leave: bool) -> None:
        """Heartbeat no more; tell the group where that means that the member goes for good."""
        with suppress(ClientClosed):  # It has ended with the client.
            await self._thread.call(self._stop(leave))

    # In the thread

    async def _start(self) -> None:
        self._inner = asyncio.get_running_loop()
        self._thread.begins(self, self._end)
        self._background.begin(self._beat_for_ever(), "lsmq heartbeats")
        self._background.begin(self._keep_time(), "lsmq stalled handlers")

    async def _end(self) -> None:
        await self._stop(leave=self._member.beat().static_id is None)
        with suppress(_NobodyThere):
            self._say(ClientClosed("the client was closed before its consumer"))
            self._say(self._member.lose())

    async def _stop(self, leave: bool) -> None:
        self._thread.ends(self)
        await self._background.end()
        if leave and self._is_known:
            try:
                await self._group.leave(self._member.beat(), deadline_ms=_LEAVE_DEADLINE_MS)
            except LsmqError as error:
                _log.warning("member could not leave, its session will end: group=%s error=%s", self._group.name, error)

    async def _beat_for_ever(self) -> None:
        backoff = Backoff()
        loop = asyncio.get_running_loop()
        in_doubt = False
        try:
            while True:
                asked_at, version = loop.time(), self._member.version
                try:
                    change = await self._beat()
                except UnknownMember:
                    if not in_doubt and self._member.beat().static_id is not None:
                        # Joining again would take the place from whoever has the static id now, if somebody has: that
                        # is what the group says to the same heartbeat, sent anew.
                        in_doubt = True
                        continue
                    self._placeless.warn("member lost its place: group=%s member=%s", self._group.name, self._member.id)
                    self._say(self._member.lose())
                    await backoff.pause()
                    continue
                except LsmqError as error:
                    if self._is_final(error):
                        self._is_known = False
                        lost = self._member.lose()
                        self._say(error)
                        self._say(lost)
                        return
                    self._unheard.warn("no heartbeat: group=%s error=%s", self._group.name, error)
                    await backoff.pause()
                    continue
                if change is not None:
                    backoff.reset()
                    in_doubt = False
                    self._say(change)
                    if version == self._member.version and loop.time() - asked_at < _TOO_SOON_S:
                        await self._rest()
        except _NobodyThere:
            await self._thread.forsaken(self)

    def _is_final(self, error: LsmqError) -> bool:
        """Whether trying again is in vain: also whatever does not pass and keeps out a member that is not in yet."""
        return isinstance(error, _FINAL) or not (error.retriable or self._member.version)

    def _broke(self, error: Exception) -> None:
        """A member that does not say that it lives, or does not notice who stalls, is none any more."""
        lost = self._member.lose()
        with suppress(_NobodyThere):
            self._say(as_lsmq_error(error, f"heartbeating in group {self._group.name!r}"))
            self._say(lost)

    def _say(self, news: AssignmentChange | LsmqError) -> None:
        try:
            self._tell(news)
        except RuntimeError as error:
            raise _NobodyThere from error

    async def _beat(self) -> AssignmentChange | None:
        """One heartbeat, held until something is new; ``None`` when there is something to say before."""
        self._nudged.clear()
        self._is_known = True
        member = self._member
        beat = self._group.heartbeat(member.beat(), wait_ms=member.heartbeat_ms)
        answer = await unless(self._nudged, beat)
        return None if answer is None else member.hear(answer)

    async def _rest(self) -> None:
        """The node does not hold heartbeats now."""
        try:
            async with asyncio.timeout(self._member.heartbeat_ms / 2000):
                await self._nudged.wait()
        except TimeoutError:
            return

    async def _keep_time(self) -> None:
        """Notice handlers and give-ups that take too long."""
        limit_s = self._max_handler_s
        if limit_s is None:
            return
        try:
            while True:
                await asyncio.sleep(min(_MAX_TICK_S, limit_s / 4))
                stalled = self._in_progress.longest_s() > limit_s
                if self._member.stall(stalled):
                    about = (self._group.name, self._member.id, limit_s)
                    if stalled:
                        self._stalled.warn("a handler has not come back: group=%s member=%s max_handler_s=%s", *about)
                    else:
                        _log.info("handlers come back again: group=%s member=%s max_handler_s=%s", *about)
                    self._nudged.set()
                overdue = self._member.overdue()
                if overdue.lost:
                    self._overdue.warn(
                        "queues given up while they were worked on: group=%s queues=%s", self._group.name, overdue.lost
                    )
                    self._say(overdue)
                    self._nudged.set()
        except _NobodyThere:
            return
