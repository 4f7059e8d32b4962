"""Producers of a group: of those that send for one thing one is at work, and another goes on where it stopped."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self, Unpack

import xxhash

from lsmq._lifecycle import begun
from lsmq._message_parts import NO_EXTRAS, Body, parts_of
from lsmq._paths import topic_path
from lsmq._receipts import Receipt
from lsmq._shard_sender import Identity, ProducerStats
from lsmq.client import Client
from lsmq.errors import BufferFull, InvalidRequest, ProducerFenced, Unavailable
from lsmq.messages import Key, MessageOptions, check_key, key_hash, utf8, whole_queue
from lsmq.partitioners import Partitioner
from lsmq.producer import (
    DEFAULT_BATCH_BYTES,
    DEFAULT_LINGER_MS,
    DEFAULT_MAX_BUFFER_BYTES,
    Producer,
)
from lsmq.record_batch import Codec
from lsmq.topics import Ack, Flush, Topic

_MAX_POSITION = (1 << 63) - 1
_TRIES = 32


class GroupProducer:
    """Sends messages of a ``group`` to a topic, in the place of whoever did before.

    Starting it *takes over*: at every shard the one before is fenced, whose sends fail with ``ProducerFenced`` from
    then on. Each message has a ``position``, a number that grows from message to message: its place in the
    application's outbox, journal or file. The shards remember, with the messages, which came last. So a successor that
    sends again from anywhere before that, in the same order and with the same keys and queues, stores each message
    once: what is there already is passed over, and its receipt says ``duplicate``.

    A batch that cannot be stored ends it: later sends fail with the same error, since nobody knows what came of it.
    Begin again then with a new one, which knows. Positions are kept as long as a shard remembers its producers: a week
    after the last message (``producer_expiry_ms``).

    The other parameters are those of :class:`lsmq.Producer`. Use it as ``async with GroupProducer(client, topic,
    "billing") as producer``: leaving the block flushes. Belongs to one event loop.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        group: str,
        *,
        linger_ms: float = DEFAULT_LINGER_MS,
        batch_bytes: int = DEFAULT_BATCH_BYTES,
        max_buffer_bytes: int = DEFAULT_MAX_BUFFER_BYTES,
        max_message_bytes: int | None = None,
        ack: Ack | None = None,
        flush: Flush | None = None,
        partitioner: Partitioner | None = None,
        deadline_ms: int | None = None,
        request_timeout_ms: int | None = None,
        codec: Codec = Codec.NONE,
    ) -> None:
        if not isinstance(group, str) or not group:
            raise InvalidRequest(f"group is {group!r}; it must be the name of a group")
        utf8(group, "group")
        self._client = client
        self._group = group
        self._starting = asyncio.Lock()
        self._taken: dict[int, int | None] = {}  # by shard: the position that was found there
        self._epoch = 0
        self._id = 0
        self._topic: Topic | None = None
        self._producer = Producer(
            client,
            topic,
            linger_ms=linger_ms,
            batch_bytes=batch_bytes,
            max_buffer_bytes=max_buffer_bytes,
            max_message_bytes=max_message_bytes,
            ack=ack,
            flush=flush,
            partitioner=partitioner,
            deadline_ms=deadline_ms,
            request_timeout_ms=request_timeout_ms,
            codec=codec,
        )
        self._producer._identity_of = self._identity

    # Life

    async def start(self) -> None:
        """Take over. Entering ``async with`` or the first ``send`` does it.

        Raises ``ProducerFenced`` where another one takes over at the same time, and is later.
        """
        async with self._starting:
            if self._topic is None:
                await self._producer.start()
                topic = self._producer._topic
                assert topic is not None
                if topic.named:
                    raise InvalidRequest(
                        f"the queues of topic {topic.name!r} have names, and producers of a group send "
                        "to topics with numbered queues alone; use a dedupe_id for each message"
                    )
                await self._take_all(topic)
                self._topic = topic

    async def _take_all(self, topic: Topic) -> None:
        """At the shard of the first queue the epoch is decided, and so who of several is the latest.

        It is named, and has to be new there: a request whose answer was lost, and that comes once more, however late,
        begins no other.
        """
        hashed = xxhash.xxh3_64_intdigest(f"{self._group}\0{topic.id}".encode())
        self._id = hashed >> 1 or 1
        shards = list(dict.fromkeys(route.shard for route in topic.routes))
        epoch = 1
        for _ in range(_TRIES):
            self._taken.clear()
            try:
                for shard in shards:
                    self._taken[shard] = await self._take(topic, shard, epoch, new=shard == shards[0])
                self._epoch = epoch
                return
            except ProducerFenced as error:  # That one has begun.
                latest = error.details.get("latest")
                if type(latest) is not int or latest < epoch:
                    raise
                epoch = latest + 1
        raise Unavailable(f"others take over group {self._group!r} of topic {topic.name!r} all the time", sent=False)

    async def _take_new(self) -> None:
        """At shards that the topic has grown into since: before the first message to one, who may be there already."""
        async with self._starting:
            while (topic := self._producer._topic) is not None and topic is not self._topic:
                for shard in dict.fromkeys(route.shard for route in topic.routes):
                    if shard not in self._taken:
                        self._taken[shard] = await self._take(topic, shard, self._epoch)
                self._topic = topic

    async def _take(self, topic: Topic, shard: int, epoch: int, *, new: bool = False) -> int | None:
        """Begin an epoch at a shard; the position that was found there."""
        answer = await self._client._router.ask_leader(
            topic,
            shard,
            "POST",
            f"{topic_path(topic.name)}/producers/{self._id}/take",
            value={"shard": shard, "epoch": epoch, "new": new},
            deadline=self._client._deadline(),
        )
        return answer.parsed(lambda found: _position(found["position"]))

    def _identity(self, shard: int) -> Identity:
        return Identity(self._id, self._epoch, self._taken[shard])

    async def __aenter__(self) -> Self:
        await begun(self.start(), self.abort)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._producer.__aexit__(kind, error, trace)

    async def flush(self) -> None:
        """See :meth:`lsmq.Producer.flush`."""
        await self._producer.flush()

    async def close(self) -> None:
        """See :meth:`lsmq.Producer.close`."""
        await self._producer.close()

    async def abort(self) -> None:
        """See :meth:`lsmq.Producer.abort`."""
        await self._producer.abort()

    @property
    def buffered_bytes(self) -> int:
        """See :attr:`lsmq.Producer.buffered_bytes`."""
        return self._producer.buffered_bytes

    @property
    def stats(self) -> ProducerStats:
        """See :attr:`lsmq.Producer.stats`."""
        return self._producer.stats

    @property
    def epoch(self) -> int:
        """Which of the group's producers it is; the latest has the highest."""
        return self._epoch

    # Sending

    async def send(self, body: Body, *, position: int, **options: Unpack[MessageOptions]) -> Receipt:
        """Accept one message; waits only while the buffer is full. Await the receipt for its offset.

        ``position`` is above that of the message before it. What whoever went before has stored is not sent: its
        receipt has the offset -1, and says ``duplicate``. A message with neither key nor queue goes to the queue that
        its position gives. Raises as :meth:`lsmq.Producer.send`.
        """
        if type(position) is not int or not 0 <= position <= _MAX_POSITION:
            raise InvalidRequest(f"position is {position!r}; it must be a whole number from 0 to {_MAX_POSITION}")
        tracing = self._producer._tracing
        if tracing is not None and not tracing.is_sending:
            topic = self._producer._name
            return await tracing.send(topic, options, lambda traced: self.send(body, position=position, **traced))
        await self.start()
        producer = self._producer
        content, key, tag, queue, extras, dedupe = parts_of(body, options)
        extras = (extras or NO_EXTRAS)._replace(position=position)
        receipt: Receipt | None = None
        async with producer._space_turn:  # Also what would fit: positions grow.
            while receipt is None:
                if producer._topic is not self._topic:
                    await self._take_new()
                producer._space.clear()
                try:
                    receipt = producer._receipt(producer._add(content, key, tag, queue, extras, dedupe))
                except BufferFull:
                    await producer._space.wait()
        if receipt._index == 0:
            await asyncio.sleep(0)  # A new batch: let the batches before it get under way.
        return receipt

    def last_acknowledged(self, *, queue: int | None = None, key: Key | None = None) -> int | None:
        """The position up to which all messages of a queue's shard are stored; ``None``: none is. Must be started.

        With neither ``queue`` nor ``key`` the least of all shards: from there on an application sends again.
        """
        if self._topic is None:
            raise InvalidRequest(
                f"the producer of group {self._group!r} has not taken over yet; start() it before last_acknowledged()"
            )
        topic = self._producer._topic or self._topic
        if key is not None and queue is None:
            check_key(key)
            queue = key_hash(key) % topic.key_queues
        shards = {route.shard for route in topic.routes} if queue is None else {topic.route(whole_queue(queue)).shard}
        found = [self._acknowledged(shard) for shard in shards]
        return None if None in found else min(each for each in found if each is not None)

    def _acknowledged(self, shard: int) -> int | None:
        sender = self._producer._senders.get(shard)
        return self._taken.get(shard) if sender is None or sender.acknowledged is None else sender.acknowledged


def _position(said: Any) -> int | None:
    return None if said is None else int(said)
