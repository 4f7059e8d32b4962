"""Requests and replies: a request is a message that says where its reply goes, and a reply a message that says to what.

A requester reads one queue of a topic for replies, chosen at random among many, only while it waits for something, and
from where the queue ends when that begins. Replies to others, and those that come too late, are passed over.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from lsmq import runtime
from lsmq._message_parts import Body
from lsmq.background_tasks import BackgroundTasks, as_lsmq_error
from lsmq.consumer import Consumer
from lsmq.errors import (
    BufferFull,
    ClientClosed,
    InvalidRequest,
    LsmqError,
    QuotaExceeded,
    TimedOut,
    TopicReplaced,
    UnknownTopic,
)
from lsmq.messages import Message, MessageOptions
from lsmq.producer import Producer
from lsmq.topics import Topic

if TYPE_CHECKING:
    from lsmq._receipts import Sent
    from lsmq.client import Client

#: Properties of requests and replies begin with it.
PREFIX: Final = "lsmq."
REPLY_TOPIC: Final = "lsmq.reply-topic"
REPLY_QUEUE: Final = "lsmq.reply-queue"
CORRELATION: Final = "lsmq.correlation"

DEFAULT_REPLY_TOPIC: Final = "lsmq-replies"
#: The topic for replies is made with so many queues, and keeps replies for so long.
REPLY_QUEUES: Final = 1024
REPLY_RETENTION_MS: Final = 3_600_000
MAX_IN_FLIGHT: Final = 10_000
DEFAULT_REQUEST_MS: Final = 30_000
MAX_TIMEOUT_MS: Final = 604_800_000
#: It reads on for so long after the last reply that it waited for.
_LINGER_S = 2.0
_SHOWN = 60
_QUEUE_NUMBER = re.compile(r"[0-9]{1,10}")
_MOST_PRODUCERS = 64
_MOST_INBOXES = 64

_Take = Callable[[Message], None]
_Fail = Callable[[set[str], LsmqError], None]


class Requests:
    """The requests that a client has under way, and the producers that requests and replies go out by."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._name = f"{runtime.random_bits(64):016x}"
        self._count = 0
        self._waiting: dict[str, asyncio.Future[Message]] = {}
        self._inboxes: dict[str, _Inbox] = {}
        #: By topic, and whether they wait where that is full: who answers goes on with other requests.
        self._producers: OrderedDict[tuple[str, bool], Producer] = OrderedDict()
        self._starting = asyncio.Lock()
        self._closed = False

    async def request(
        self, topic: str, body: Body, timeout_ms: float, reply_topic: str, options: MessageOptions
    ) -> Message:
        """See :meth:`.Client.request`."""
        self._check_open()
        if type(timeout_ms) not in (int, float) or not 0 < timeout_ms <= MAX_TIMEOUT_MS:
            raise InvalidRequest(
                f"timeout_ms is {str(timeout_ms)[:_SHOWN]}; it must be a number above 0 and up to {MAX_TIMEOUT_MS}",
                field="timeout_ms",
                limit=MAX_TIMEOUT_MS,
            )
        if len(self._waiting) >= MAX_IN_FLIGHT:
            raise BufferFull(
                f"{MAX_IN_FLIGHT} requests of this client wait for their replies; wait for some, or use another client",
                limit=MAX_IN_FLIGHT,
            )
        properties = dict(options.get("properties") or {})
        if taken := [name for name in properties if name.startswith(PREFIX)]:
            raise InvalidRequest(f"the property {taken[0]!r} is the client's; choose a name without {PREFIX!r}")
        self._count += 1
        correlation = f"{self._name}-{self._count}"
        reply: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[correlation] = reply
        inbox: _Inbox | None = None
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                inbox = self._inbox(reply_topic)
                inbox.waiting.add(correlation)
                await inbox.open()
                properties |= {
                    REPLY_TOPIC: reply_topic,
                    REPLY_QUEUE: str(inbox.queue),
                    CORRELATION: correlation,
                }
                sent = await self._send(topic, body, {**options, "properties": properties}, waits_for_room=True)
                if sent.dropped:
                    raise QuotaExceeded(
                        f"the request was not stored, and nobody will reply to it: {_dropped(topic)}", topic=topic
                    )
                return await (self._earlier_reply(sent.id) if sent.duplicate else reply)
        except TimeoutError:
            raise TimedOut(
                f"no reply to the request to topic {topic!r} within {timeout_ms / 1000:g} s; it may be handled all the "
                "same, and a reply that comes now is passed over",
                topic=topic,
                maybe_stored=True,
            ) from None
        finally:
            del self._waiting[correlation]
            reply.cancel()
            if inbox is not None:
                inbox.done(correlation)

    async def _earlier_reply(self, id: str) -> Message:
        """The reply to a request that was stored before: where that one has it sent to, it may lie by now."""
        topic, queue, correlation = reply_address(await self._client.message(id))
        wanted = f"""\"{CORRELATION}\" = '{correlation.replace("'", "''")}'"""
        async with Consumer(
            self._client, topic, queues=[queue], start="earliest", filter=wanted, read_from="leader"
        ) as consumer:
            return (await consumer.poll(1))[0]

    async def reply(self, message: Message, body: Body, options: MessageOptions) -> Sent:
        """See :meth:`.Client.reply`."""
        self._check_open()
        topic, queue, correlation = reply_address(message)
        properties = {**(options.get("properties") or {}), CORRELATION: correlation}
        addressed: MessageOptions = {**options, "properties": properties, "queue": queue}
        sent = await self._send(topic, body, addressed, waits_for_room=False)
        if sent.dropped:
            raise QuotaExceeded(f"the reply was not stored: {_dropped(topic)}", topic=topic)
        return sent

    async def _send(self, topic: str, body: Body, options: MessageOptions, *, waits_for_room: bool) -> Sent:
        try:
            return await (await self._producer(topic, waits_for_room)).send_and_wait(body, **options)
        except TopicReplaced:  # Nobody asked for the one of before.
            return await (await self._producer(topic, waits_for_room)).send_and_wait(body, **options)

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("this client is closed; make a new one")

    def _inbox(self, topic: str) -> _Inbox:
        """The one of a topic; those that were not used for the longest are forgotten beyond a number of them."""
        inbox = self._inboxes.pop(topic, None) or _Inbox(self._client, topic, self._take, self._fail)
        idle = [name for name, each in self._inboxes.items() if each.is_idle]
        for name in idle[: max(0, len(self._inboxes) + 1 - _MOST_INBOXES)]:
            del self._inboxes[name]
        self._inboxes[topic] = inbox
        return inbox

    def _take(self, message: Message) -> None:
        reply = self._waiting.get(message.properties.get(CORRELATION, ""))
        if reply is not None and not reply.done():
            reply.set_result(message)

    def _fail(self, waiting: set[str], error: LsmqError) -> None:
        for correlation in sorted(waiting):
            reply = self._waiting.get(correlation)
            if reply is not None and not reply.done():
                reply.set_exception(error)

    async def _producer(self, topic: str, waits_for_room: bool) -> Producer:
        """The one of a topic; those that were not used for the longest are closed beyond a number of them."""
        key = topic, waits_for_room
        async with self._starting:
            self._check_open()
            producer = self._producers.pop(key, None)
            if producer is not None and producer._replaced is not None:
                await producer.abort()
                producer = None
            if producer is None:
                producer = Producer(self._client, topic, linger_ms=0)
                producer._options = replace(producer._options, waits_for_room=waits_for_room)
                await producer.start()
                if self._closed:  # Meanwhile, by whoever did not find it.
                    await producer.abort()
                    self._check_open()
            self._producers[key] = producer
            idle = [other for other, each in self._producers.items() if not each.buffered_bytes and other != key]
            for other in idle[: max(0, len(self._producers) - _MOST_PRODUCERS)]:
                await self._producers.pop(other).abort()  # What failed before is none of this one's business.
            return producer

    async def close(self) -> None:
        """Requests that wait fail with ``ClientClosed``."""
        self._closed = True
        self._fail(set(self._waiting), ClientClosed("the client was closed before the reply came"))
        async with AsyncExitStack() as closing:
            for producer in self._producers.values():
                closing.push_async_callback(producer.abort)
            for inbox in self._inboxes.values():
                closing.push_async_callback(inbox.close)


class _Inbox:
    """The queue of a topic that replies of one client come to."""

    def __init__(self, client: Client, topic: str, take: _Take, fail: _Fail) -> None:
        self._client = client
        self._topic = topic
        self._take = take
        self._fail = fail
        self.queue: int | None = None  # none before the first request
        self.waiting: set[str] = set()
        self._position = 0
        self._opening = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None
        self._background = BackgroundTasks(self._broke)

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for a reply, and nothing is read any more."""
        return not self.waiting and (self._reading is None or self._reading.done())

    async def open(self) -> None:
        """From here on replies are read. Returns once it is known where they begin.

        Looked up whenever reading begins: meanwhile the topic may have been made anew, or others may have had many.
        """
        async with self._opening:
            if self._reading is not None and not self._reading.done():
                return
            topic = await self._made()
            if topic.named:
                raise InvalidRequest(
                    f"the queues of topic {self._topic!r} have names; replies come to a topic with numbered queues",
                    field="reply_topic",
                )
            if self.queue is None or self.queue >= topic.queues:
                self.queue = runtime.random.randrange(topic.queues)
            self._position = (await self._client.offsets(self._topic, [self.queue])).latest[0]
            self._reading = self._background.begin(self._read(), f"lsmq replies {self._topic}")

    async def _made(self) -> Topic:
        try:
            return await self._client.topic(self._topic)
        except UnknownTopic:
            return await self._client.create_topic(self._topic, queues=REPLY_QUEUES, retention_ms=REPLY_RETENTION_MS)

    def done(self, correlation: str) -> None:
        """Nobody waits for this reply any more."""
        self.waiting.discard(correlation)

    async def _read(self) -> None:
        while True:
            await self._read_a_while()
            if not self.waiting:  # Others may have come while the consumer was closed.
                return

    async def _read_a_while(self) -> None:
        assert self.queue is not None
        quiet_s = runtime.monotonic()
        async with Consumer(
            self._client, self._topic, queues=[self.queue], start={self.queue: self._position}, read_from="leader"
        ) as consumer:
            while self.waiting or runtime.monotonic() - quiet_s < _LINGER_S:
                messages = await consumer.poll(timeout_ms=1000 * _LINGER_S / 2)
                for message in messages:
                    self._take(message)
                    self._position = message.offset + 1
                if self.waiting:
                    quiet_s = runtime.monotonic()

    def _broke(self, error: Exception) -> None:
        self._fail(self.waiting, as_lsmq_error(error, f"reading replies of topic {self._topic!r}"))

    async def close(self) -> None:
        await self._background.end()


def _dropped(topic: str) -> str:
    return f"topic {topic!r}, or a queue of it, is full and drops what comes (overflow is drop_newest)"


def reply_address(message: Message) -> tuple[str, int, str]:
    """Topic and queue that the reply to a message goes to, and what it answers.

    Raises ``InvalidRequest`` for a message that asks for none.
    """
    properties: Mapping[str, str] = message.properties
    topic, queue, correlation = (properties.get(name) for name in (REPLY_TOPIC, REPLY_QUEUE, CORRELATION))
    if not topic or not correlation or not queue or not _QUEUE_NUMBER.fullmatch(queue):
        raise InvalidRequest(
            f"the message {message.id} asks for no reply: it lacks the properties {REPLY_TOPIC}, {REPLY_QUEUE} and "
            f"{CORRELATION}, which request() gives"
        )
    return topic, int(queue), correlation
