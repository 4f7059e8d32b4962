"""The push consumer: the broker sends, as much as there is credit for; what is handled is acknowledged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Literal

from lsmq import runtime
from lsmq._handler_lanes import HandlerRun
from lsmq._message_consumer import MessageConsumer
from lsmq._push_buffer import PushBuffer
from lsmq._retries import NEVER_MS, Deadline
from lsmq._work_in_progress import WorkInProgress
from lsmq.background_tasks import BackgroundTasks, as_lsmq_error
from lsmq.client import Client
from lsmq.errors import ClientClosed, InvalidRequest
from lsmq.filters import MessageFilter
from lsmq.group_values import Ranges
from lsmq.push_streams import PushStreams
from lsmq.record_batch import Message

_log = logging.getLogger("lsmq")

Mode = Literal["clustered", "broadcast"]

DEFAULT_CREDIT = 1_000
DEFAULT_CREDIT_BYTES = 1 << 20
DEFAULT_ACK_TIMEOUT_MS = 300_000
_MANY_QUEUES = 64  # Looking at so many after each message would take longer than the messages.
_MANY_PAUSE_S = 0.002


class PushConsumer(MessageConsumer):
    """Is sent the messages of a topic by the nodes that lead its queues, over held streams.

    The nodes keep the group's offsets: messages that are acknowledged are committed, and what is not comes again after
    a stream has ended, here or at another subscriber. With ``mode="clustered"`` the group's subscribers share the
    queues; with ``"broadcast"`` each is sent everything, and its offsets are kept under ``subscriber``, its name, where
    it has one; without one a queue whose stream has ended, as when its leader changes, begins anew at ``start``, and a
    warning says so. ``start`` (``"earliest"`` or ``"latest"``) is where the group begins in queues it has no offset of.

    Each node sends at most ``credit`` messages and ``credit_bytes`` that are not acknowledged: that bounds memory on
    both sides. A node ends a stream of which nothing is acknowledged for ``ack_timeout_ms`` (0: never).

    ``tag``, ``type`` and ``filter`` say which messages it is sent, as :class:`lsmq.Consumer` has them; the others count
    as handled.

    Streams that end are made anew, at other nodes if need be, for ever, and it is warned of (see
    :class:`lsmq.Client`); what does not pass, or not within ``deadline_ms`` where that is given, is raised by the next
    read. Use it as ``async with PushConsumer(client, topic, group=...) as consumer``; it belongs to
    one event loop, which must not be blocked for long: a node that hears nothing for a minute ends the stream.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        *,
        group: str,
        mode: Mode = "clustered",
        subscriber: str | None = None,
        start: Literal["earliest", "latest"] = "earliest",
        credit: int = DEFAULT_CREDIT,
        credit_bytes: int = DEFAULT_CREDIT_BYTES,
        ack_timeout_ms: int = DEFAULT_ACK_TIMEOUT_MS,
        deadline_ms: int | None = None,
        tag: str | Iterable[str] | None = None,
        type: str | Iterable[str] | None = None,
        filter: str | None = None,
    ) -> None:
        picked = MessageFilter.of(tag, type, filter)
        if mode not in ("clustered", "broadcast") or start not in ("earliest", "latest"):
            raise InvalidRequest("mode must be 'clustered' or 'broadcast', start 'earliest' or 'latest'")
        if min(credit, credit_bytes) < 1:
            raise InvalidRequest(f"credit is {credit} and credit_bytes {credit_bytes}; they must be 1 or more")
        if subscriber is None and mode == "clustered":
            subscriber = f"p-{runtime.token_hex(8)}"  # So that a stream that broke makes room for its successor.
        self.subscriber = subscriber
        self._client = client
        self._topic = topic
        self._group = group
        self._deadline_ms = NEVER_MS if deadline_ms is None else deadline_ms
        self._params = {
            "mode": mode,
            "start": start,
            "credit": str(credit),
            "credit_bytes": str(credit_bytes),
            "ack_timeout_ms": str(ack_timeout_ms),
            **({} if subscriber is None else {"subscriber": subscriber}),
            **({} if picked is None else picked.to_query()),
        }
        self._buffer = PushBuffer(topic, self._lost)
        self._streams: PushStreams | None = None
        self._background = BackgroundTasks(self._broke)
        super().__init__(self._buffer, WorkInProgress(), lambda: None)

    # Life

    async def start(self) -> None:
        """Open the streams. Entering ``async with`` or the first read does it. Raises ``UnknownTopic``."""
        self._check_open()
        if self._streams is None:
            await self._unless_closed(self._open())
            self._started = True

    def _name(self) -> str:
        return f"a push consumer of {self._topic} in group {self._group!r}"

    async def _open(self) -> None:
        # Asked afresh: what was known before may have been deleted, and made anew.
        topic = await self._client._router.topic(self._topic, Deadline(self._deadline_ms))
        if self._streams is None:
            self._streams = PushStreams(self._client, topic, self._group, self._params, self._buffer, self._deadline_ms)
            self._background.begin(self._streams.run(), f"lsmq push {self._topic}", lasting=True)

    def _broke(self, error: Exception) -> None:
        self._buffer.fail(as_lsmq_error(error, f"the push consumer of topic {self._topic!r}"))

    async def close(self) -> None:
        """Take no more. What handlers have in their hands is finished; what was acknowledged is durable on return."""
        self._closed = self._buffer.closed = True
        self._shut.set()
        self._buffer.wake()
        if self._handling is not None:
            if self._handling.is_inside():
                await self._close_from_inside()
                return
            self._handling.stop()
            await self._run_ended.wait()
        await self._finish()

    async def _close_from_inside(self) -> None:
        self._buffer.closed = True
        await super()._close_from_inside()

    async def _finish(self) -> None:
        async with self._finishing:
            try:
                if self._streams is not None and not await self._streams.close():
                    _log.warning(
                        "what was acknowledged last of topic %r is not known to be committed: it may come again",
                        self._topic,
                    )
            finally:
                await self._background.end()

    @property
    def assignment(self) -> Ranges:
        """The queues that are sent here now."""
        return () if self._streams is None else self._streams.queues

    @property
    def reconnects(self) -> int:
        """How often a stream was made anew."""
        return 0 if self._streams is None else self._streams.reconnects

    # Reading

    def ack(self, *messages: Message) -> None:
        """These messages, and those of their queues before them, are handled; without any: all that was handed out.

        It is said to the node at once and committed there within moments; :meth:`close` returns when it is. Messages
        whose stream has ended meanwhile come again.
        """
        for message in messages:
            self._buffer.acknowledge(message.queue, message.offset)
        if not messages:
            for queue, _, last in self._buffer.handed_out():
                self._buffer.acknowledge(queue, last)

    # Handling

    async def _run_through(self, handling: HandlerRun) -> None:
        try:
            await handling.run(self._acknowledge_while(handling))
        except ClientClosed:
            if not self._closed:
                raise
        finally:
            self._acknowledge_handled(handling)

    async def _acknowledge_while(self, handling: HandlerRun) -> None:
        while not handling.stopping:
            await handling.handled.wait()
            handling.handled.clear()
            queues = self._acknowledge_handled(handling)
            await asyncio.sleep(_MANY_PAUSE_S if queues > _MANY_QUEUES else 0)

    def _acknowledge_handled(self, handling: HandlerRun) -> int:
        """How many queues it has looked at."""
        unfinished: Mapping[int, int] = handling.unfinished(self._topic)
        queues = 0
        for queue, first, last in self._buffer.handed_out():
            queues += 1
            reached = min(last, unfinished.get(queue, last + 1) - 1)
            if reached >= first:
                self._buffer.acknowledge(queue, reached)
        return queues

    def _lost(self, ranges: Ranges, reset: bool) -> None:
        """What waits of these queues will come again; what is being handled goes on."""
        if self._handling is None:
            return
        if reset:
            self._handling.forget(self._topic, ranges, cancel=False)
        else:
            self._handling.lose(self._topic, ranges)
