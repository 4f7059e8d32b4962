"""Held streams of what is pushed, for whoever takes from all leaders itself: consumers, and nodes that relay.

:class:`PushStreams` holds a stream to each node that leads queues of a topic, makes one anew when it ends or leadership
moves, and tells its :class:`Audience` what comes. :class:`PushLink` is one of the streams: it answers pings, sends
acknowledgements, and notices when the node falls silent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import aiohttp
import msgpack

from lsmq._outages import Attempts
from lsmq._paths import group_path
from lsmq._queue_ranges import NONE, count, intersect, subtract, union
from lsmq._rate_limited import RateLimitedWarnings
from lsmq._retries import Backoff, Deadline, give_up
from lsmq._transport import Transport
from lsmq.background_tasks import BackgroundTasks
from lsmq.client import Client
from lsmq.errors import ConnectionFailed, LsmqError, NotLeader, TimedOut, Unauthenticated, Unavailable, from_dict
from lsmq.group_values import Ranges, from_pairs
from lsmq.topics import Topic

__all__ = ["Audience", "PushLink", "PushStreams"]

PROTOCOL = "lsmq.msgpack"
QUIET_S = 5.0  # Then the node is asked whether it lives.
SILENT_S = 15.0  # Then it does not.
_LOOK_S = 1.0
_CLOSE_S = 10.0
_DROP_S = 0.2
_ACKS_A_FRAME = 5_000
_LEADERLESS_S = 0.1
_SETTLED_S = 1.0  # What ends sooner, again and again, is not begun again at once.
_log = logging.getLogger("lsmq")


class PushLink:
    """``heard`` is called with each frame's kind and value; ``look`` each second while the node is silent."""

    def __init__(
        self,
        transport: Transport,
        url: str,
        topic: Topic,
        heard: Callable[[PushLink, str, Any], None],
        look: Callable[[], None],
    ) -> None:
        self.url = url
        self.queues: Ranges = NONE  # that the node sends here
        self.is_open = False
        self._transport = transport
        self._topic = topic
        self._heard = heard
        self._look = look
        self._acks: dict[int, int] = {}
        self._credit: dict[str, int] = {}
        self._acks_wait = asyncio.Event()
        self._flushing = asyncio.Lock()
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._closing = False

    async def run(self, path: str, params: Mapping[str, str], timeout_s: float) -> None:
        """Until :meth:`close`. Raises why it ended otherwise."""
        socket, has_newer_token = await self._transport.websocket(
            self.url + path, params=params, protocol=PROTOCOL, timeout_s=timeout_s, topic=self._topic
        )
        self._socket = socket
        if self._closing:  # Whoever closes it found no socket.
            await socket.close()
            return
        background = BackgroundTasks()
        background.begin(self._send_acks(socket), f"lsmq push acknowledgements to {self.url}", lasting=True)
        try:
            await background.until(self._listen(socket))
        except (aiohttp.ClientError, OSError) as error:
            if not self._closing:
                reason = str(error) or type(error).__name__
                raise ConnectionFailed(
                    f"the stream from {self.url} broke: {reason}; open another", url=self.url
                ) from error
        except Unauthenticated as error:
            if has_newer_token():
                raise Unavailable(f"the token of the stream from {self.url} is over, and there is another") from error
            raise
        finally:
            self.is_open = False
            await background.end()
            if not self._closing:  # Else whoever closes it waits for the node, too.
                with suppress(TimeoutError, ConnectionError, aiohttp.ClientError):
                    async with asyncio.timeout(_DROP_S):
                        await socket.close()

    async def close(self) -> bool:
        """Send what is acknowledged; whether the node has committed all of it, which it answers in time."""
        self._closing = True
        socket = self._socket
        if socket is None or socket.closed:
            return not self._acks
        with suppress(TimeoutError, ConnectionError, aiohttp.ClientError):
            async with asyncio.timeout(_CLOSE_S):
                await self._flush(socket)
                await socket.close()
                return socket.close_code == aiohttp.WSCloseCode.OK
        return False

    def acknowledge(self, queue: int, offset: int) -> None:
        """What the node sent of the queue is handled up to this offset. Sent soon, together with others."""
        self._acks[queue] = offset
        self._acks_wait.set()

    def set_credit(self, credit: int, credit_bytes: int) -> None:
        """The node may send so much that is not acknowledged; 0 messages pause it."""
        self._credit = {"credit": credit, "credit_bytes": credit_bytes}
        self._acks_wait.set()

    async def _send_acks(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            await self._acks_wait.wait()
            await asyncio.sleep(0)
            await self._flush(socket)

    async def _flush(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async with self._flushing:  # Who closes the stream goes behind what is on its way, which closing would cut off.
            self._acks_wait.clear()
            credit, self._credit = self._credit, {}
            if credit:
                await socket.send_bytes(msgpack.packb(credit))
            acks, self._acks = list(self._acks.items()), {}
            for start in range(0, len(acks), _ACKS_A_FRAME):
                await socket.send_bytes(msgpack.packb({"ack": acks[start : start + _ACKS_A_FRAME]}))

    async def _listen(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        quiet_s, silent_s = QUIET_S, 0.0
        while True:
            try:
                frame = await socket.receive(timeout=quiet_s)
            except TimeoutError:
                silent_s += quiet_s
                if silent_s >= SILENT_S:
                    raise TimedOut(f"{self.url} has said nothing for {silent_s:g} s", url=self.url) from None
                if quiet_s == QUIET_S:
                    await socket.ping()
                else:
                    self._look()
                quiet_s = _LOOK_S
                continue
            quiet_s, silent_s = QUIET_S, 0.0
            match frame.type:
                case aiohttp.WSMsgType.BINARY:
                    self._take_packed(frame.data)
                case aiohttp.WSMsgType.PING:
                    await socket.pong(frame.data)
                case aiohttp.WSMsgType.PONG:
                    pass
                case _ if self._closing:
                    return
                case _:
                    raise ConnectionFailed(f"the stream from {self.url} broke; open another", url=self.url)

    def _take_packed(self, packed: bytes) -> None:
        try:
            self._take(msgpack.unpackb(packed))
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError, msgpack.UnpackException) as error:
            raise ConnectionFailed(
                f"the stream from {self.url} has a frame that this client does not understand"
                f" ({type(error).__name__}: {error}): {packed[:80]!r}; use a client of the node's release",
                url=self.url,
            ) from error

    def _take(self, frame: Mapping[str, Any]) -> None:
        for kind, value in frame.items():
            match kind:
                case "end":
                    raise from_dict(value)
                case "queues":
                    self.is_open = True
                    before, self.queues = self.queues, from_pairs(value)
                    self._heard(self, kind, before)
                case _:
                    self._heard(self, kind, value)


class Audience(Protocol):
    """Who is told what comes."""

    def messages(self, link: PushLink, fields: Sequence[Mapping[str, Any]]) -> None:
        """Messages as the HTTP API has them, those of a queue in order."""

    def lost(self, ranges: Ranges, *, reset: bool) -> None:
        """What came of these queues and is not acknowledged will come again, here or elsewhere."""

    def gained(self) -> None:
        """Other queues than before are sent here."""

    def late(self, pairs: Sequence[tuple[int, int]]) -> None:
        """These acknowledgements came when their queues were not sent here any more: the messages come again."""


class PushStreams:
    """Belongs to one event loop. ``params`` are those of each stream's request."""

    def __init__(
        self,
        client: Client,
        topic: Topic,
        group: str,
        params: Mapping[str, str],
        audience: Audience,
        deadline_ms: float,
    ) -> None:
        self.topic = topic
        self.links: dict[str, PushLink] = {}  # by URL
        self.reconnects = 0
        self._client = client
        self._router = client._router
        self._path = f"{group_path(group)}/push"
        self._params = {**params, "topic": topic.name, "scope": "node"}
        self._audience = audience
        self._deadline_ms = deadline_ms
        self._attempts = Attempts(self._router.outages, f"streams of topic {topic.name!r}")
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._sent: Ranges = NONE  # here by now, by whatever node
        self._anew = RateLimitedWarnings()
        self._changed = asyncio.Event()

    @property
    def queues(self) -> Ranges:
        """What is sent here now."""
        return union(*(link.queues for link in self.links.values()))

    async def run(self) -> None:
        """Until cancelled. Raises an error that does not pass, and one that has not passed before the deadline."""
        self._router.follow(self.topic.name)
        self._router.table.listen(self._changed.set)
        background = BackgroundTasks()
        try:
            await background.until(self._hold(background))
        finally:
            await background.end()
            self._attempts.end()
            self._router.table.unlisten(self._changed.set)
            self._router.unfollow(self.topic.name)

    async def _hold(self, background: BackgroundTasks) -> None:
        """A stream to each node that leads queues, as they change."""
        while True:
            self._changed.clear()
            topic = await self._router.current(self.topic, Deadline(self._deadline_ms))
            leaders = {route.leader for route in topic.routes if route.leader is not None}
            for url in sorted(leaders - self._tasks.keys()):
                self._tasks[url] = background.begin(self._keep(url), f"lsmq push stream from {url}")
            for url in sorted(self._tasks.keys() - leaders):
                background.drop(self._tasks.pop(url))
                self._attempts.passed((url,))  # It leads nothing any more: others are tried.
            if any(route.leader is None for route in topic.routes):
                self._router._refresher.look_around(topic.name, beside=None)
                await asyncio.sleep(_LEADERLESS_S)
            else:
                await self._changed.wait()

    async def close(self) -> bool:
        """Let nodes commit what was acknowledged; whether all of them have. End :meth:`run` afterwards."""
        return all(await asyncio.gather(*(link.close() for link in self.links.values())))

    async def _keep(self, url: str) -> None:
        """Hold a stream to this node as long as it leads anything."""
        backoff, deadline = Backoff(), Deadline(self._deadline_ms)
        while True:
            link = PushLink(self._client._transport, url, self.topic, self._heard, lambda: self._glance(url))
            self.links[url] = link
            began_s = asyncio.get_running_loop().time()
            error: LsmqError | None = None
            try:
                await link.run(self._path, self._params, self._router.request_timeout_s)
                return
            except LsmqError as failure:
                error = failure
            finally:
                if self.links.get(url) is link:  # Not another one, begun when the node led queues again.
                    del self.links[url]
                self._lose(link, link.queues, reset=error is not None and _is_reset(error))
            if link.queues:
                deadline = Deadline(self._deadline_ms)
                if asyncio.get_running_loop().time() - began_s > _SETTLED_S:
                    backoff.reset()
            if not error.retriable:
                raise error
            if deadline.passed:
                raise give_up(error, "GET", f"{url}{self._path}", deadline) from error
            _log.info("stream from %s ended: %s; coming again", url, error)
            self._attempts.failed(error, (url,))
            self.reconnects += 1
            if isinstance(error, NotLeader):
                self._router.heed(error, ())
            self._router._refresher.look_around(self.topic.name, beside=url)
            await backoff.pause(deadline)

    def _glance(self, url: str) -> None:
        self._router._refresher.glance(self.topic.name, beside=url)

    def _heard(self, link: PushLink, kind: str, value: Any) -> None:
        if kind == "messages":
            self._audience.messages(link, value)
        elif kind == "late":
            self._audience.late([(queue, offset) for queue, offset in value])
        elif kind == "leaders":
            for shard, epoch, url in [(int(shard), int(epoch), url and str(url)) for shard, epoch, url in value]:
                self._router.table.learn_leader(shard, url, epoch)
        elif kind == "queues":
            self._attempts.passed((link.url,))
            self._note_gained(subtract(link.queues, value))
            lost = subtract(value, link.queues)
            self._lose(link, lost, reset=False)
            if lost:
                self._router._refresher.look_around(self.topic.name, beside=None)
            self._audience.gained()

    def _note_gained(self, ranges: Ranges) -> None:
        again, self._sent = intersect(self._sent, ranges), union(self._sent, ranges)
        if again and self._params["mode"] == "broadcast" and "subscriber" not in self._params:
            self._anew.warn(
                "%d queues of topic %r begin anew at the %s message, their streams had ended: of a broadcast group's"
                " subscriber without a name no offsets are kept; give subscriber=",
                count(again),
                self.topic.name,
                self._params["start"],
            )

    def _lose(self, link: PushLink, ranges: Ranges, *, reset: bool) -> None:
        """Unless another node sends them here by now."""
        others = union(*(other.queues for other in self.links.values() if other is not link))
        gone = subtract(ranges, others)
        if gone != NONE:
            self._audience.lost(gone, reset=reset)


def _is_reset(error: LsmqError) -> bool:
    """Whether the group's offsets were set by somebody, so that nothing known of them holds."""
    return bool(error.details.get("reset"))
