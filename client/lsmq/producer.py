"""The producer: takes messages one by one, sends them in batches, and tells of each where it was stored."""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, Unpack

from lsmq import runtime
from lsmq._arguments import check_times
from lsmq._batch_receipts import BatchReceipt
from lsmq._many_sending import send_many
from lsmq._message_parts import Body, Extras, parts_of
from lsmq._receipts import NamedPendingBatch, PendingBatch, Receipt, Receipts, Sent, stored_before
from lsmq._shard_sender import Identity, ProducerStats, SenderOptions, ShardSender
from lsmq._unclosed_producers import open_producers, warn_of_unclosed
from lsmq.background_tasks import BackgroundTasks, CancelledByOthers
from lsmq.client import Client
from lsmq.errors import BufferFull, ClientClosed, InvalidRequest, LsmqError, MessageTooLarge, TopicReplaced
from lsmq.message_times import due_value
from lsmq.messages import (
    Key,
    MessageOptions,
    body_bytes,
    check_key,
    check_many,
    check_tag,
    dedupe_queue,
    encode_header,
    key_hash,
    named_dedupe_hash,
    tag_hash,
    type_hash,
    whole_queue,
)
from lsmq.partitioners import Partitioner
from lsmq.queue_names import check_queue_name, queue_slot
from lsmq.record_batch import BatchBuilder, Codec
from lsmq.topics import Ack, Flush, Topic, most_at_once, most_of_a_queue

DEFAULT_LINGER_MS = 5
DEFAULT_BATCH_BYTES = 1 << 20
DEFAULT_MAX_BUFFER_BYTES = 32 << 20
MAX_BATCH_BYTES = 4 << 20
MAX_BATCH_MESSAGES = 10_000

_OVERHEAD_BYTES = BatchBuilder.RECORD_OVERHEAD_BYTES
_REMEMBERED_FAILURES = 1024
_log = logging.getLogger("lsmq")


def _no_queue(key: Key | None, body: bytes, queues: int) -> int:
    raise InvalidRequest("the topic has queues with names, and the message names none; say queue (--queue)")


class Producer:
    """Sends messages to one topic.

    A message joins the open batch of its shard. The batch goes out when it holds ``batch_bytes``, or when ``linger_ms``
    have passed since its first message and the batch before it is done; so a lone message waits ``linger_ms``, and
    under load batches fill while others are on their way.

    At most ``max_buffer_bytes`` of messages are held; then :meth:`send` waits and :meth:`send_nowait` raises
    ``BufferFull``. A batch that cannot be stored is sent again, the same bytes, until ``deadline_ms`` after its first
    message; a node stores such a repeat once. What fails then is that batch: its receipts raise the error. An error
    that nobody looked at is raised by :meth:`flush`.

    A topic that is deleted and made anew under its name is another topic: batches fail, and sends raise,
    ``TopicReplaced`` from then on.

    ``ack`` is ``"quorum"`` or ``"leader"``, and ``flush`` ``"sync"`` or ``"async"``: a replica has a batch once it is
    on its disk, or once it is written. Left out they are the topic's own. ``partitioner`` chooses the
    queue of a message that names none (see :mod:`lsmq.partitioners`). ``codec`` compresses batches. In a named topic
    every message names its queue, which is there from its first message on.

    Use it as ``async with Producer(client, topic) as producer``: leaving the block flushes. Belongs to one
    event loop; any number of its tasks may send. What one holds that is never closed is lost when its event loop
    ends: a ``ResourceWarning`` says so.
    """

    _closed = True  # until it is made
    _told = False  # of messages that it held when it was dropped

    def __init__(
        self,
        client: Client,
        topic: str,
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
        if not isinstance(topic, str):
            raise InvalidRequest(f"topic is {topic!r}; it must be the name of a topic")
        if not isinstance(codec, Codec):
            raise InvalidRequest(f"codec is {codec!r}; it must be one of lsmq.Codec, such as Codec.ZSTD")
        if partitioner is not None and not callable(partitioner):
            raise InvalidRequest(f"partitioner is {partitioner!r}; it must be a function of key, body and queues")
        if not 0 < batch_bytes <= MAX_BATCH_BYTES:
            raise InvalidRequest(f"batch_bytes is {batch_bytes}; it must be 1 to {MAX_BATCH_BYTES}")
        if not max_buffer_bytes >= batch_bytes:
            raise InvalidRequest(f"max_buffer_bytes ({max_buffer_bytes}) is below batch_bytes, {batch_bytes}: lower it")
        if ack not in (None, "quorum", "leader"):
            raise InvalidRequest(f"ack is {ack!r}; it must be 'quorum' or 'leader'")
        if flush not in (None, "sync", "async"):
            raise InvalidRequest(f"flush is {flush!r}; it must be 'sync' or 'async'")
        check_times(least=0, linger_ms=linger_ms)
        check_times(deadline_ms=deadline_ms, request_timeout_ms=request_timeout_ms, or_inf=True)
        self._client = client
        self._tracing = client._tracing
        self._name = topic
        self._batch_bytes = batch_bytes
        self._max_buffer_bytes = max_buffer_bytes
        self._max_message_bytes = max_message_bytes or 0
        self._partitioner = partitioner
        self._options = SenderOptions(
            linger_ms / 1000,
            deadline_ms or client.deadline_ms,
            request_timeout_ms or client.request_timeout_ms,
            ack,
            flush,
            codec,
        )
        self._topic: Topic | None = None
        self._named = False
        self._queues = self._key_queues = self._next_queue = 0
        self._senders: dict[int, ShardSender] = {}
        self._gone_stats = ProducerStats()  # of senders that broke
        self._range_firsts: list[int] = []
        self._range_senders: list[ShardSender | None] = []  # of ranges that begin there, once they had any
        self._background = BackgroundTasks(self._broke)
        self._buffered_bytes = 0
        self._space = asyncio.Event()
        self._space_turn = asyncio.Lock()
        self._failed: deque[PendingBatch] = deque(maxlen=_REMEMBERED_FAILURES)
        self._replaced: TopicReplaced | None = None
        self._closed = False
        self._closing = asyncio.Lock()  # who closes it a second time waits for the first
        self._identity_of: Callable[[int], Identity] | None = None  # by shard, of a group
        open_producers.add(self)

    # Life

    async def start(self) -> None:
        """Learn the topic's queues and routes. Entering ``async with`` or the first ``send`` does it."""
        if self._closed:
            raise ClientClosed("this producer is closed; make a new one")
        if self._topic is None:
            topic = await self._client.topic(self._name)
            if self._topic is not None or self._closed:
                return await self.start()  # Another task has started it meanwhile, or closed it.
            if topic.named and self._partitioner is not None:
                raise InvalidRequest(
                    f"topic {topic.name!r} has queues with names, which no partitioner chooses: leave partitioner out,"
                    " and name the queue of each message"
                )
            if topic.named:
                self._partitioner = _no_queue
            self._take(topic)
            self._client._router.follow(topic.name)
            self._client._router.table.listen_to_topic(self._name, self._notice)
            self._max_message_bytes = self._max_message_bytes or topic.max_message_bytes
            self._next_queue = runtime.random.randrange(topic.queues)

    def _take(self, topic: Topic) -> None:
        """The topic is so large from now on."""
        self._topic = topic
        self._named = topic.named
        self._queues, self._key_queues = topic.queues, topic.key_queues
        self._batch_messages, self._batch_bytes = most_at_once(topic, MAX_BATCH_MESSAGES, self._batch_bytes)
        self._queue_messages = most_of_a_queue(topic)
        self._ids_apart = not topic.options.get("dedupe_window_ms")
        self._range_firsts = [route.first for route in topic.routes]
        self._range_senders = [None] * (len(topic.routes) or 1)

    def _notice(self) -> None:
        known = self._client._router.table.topic(self._name)
        if known is not None and self._topic is not None and known.queues > self._queues and known.is_same(self._topic):
            self._take(known)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        elif isinstance(error, Exception):
            try:
                await self.close()
            except Exception as second:
                error.add_note(f"closing the producer failed as well: {second}")
        else:
            await self.abort()

    @property
    def buffered_bytes(self) -> int:
        """Memory reserved for messages that are accepted and not settled."""
        return self._buffered_bytes

    @property
    def stats(self) -> ProducerStats:
        """Counts since the start."""
        return sum((sender.stats for sender in self._senders.values()), self._gone_stats)

    async def flush(self) -> None:
        """Send all that was accepted so far without lingering, and return when it is settled.

        Raises the error of a batch that failed, before or now, and that no receipt has told of yet.
        """
        await self._settle()
        while self._failed:
            batch = self._failed.popleft()
            if not batch.error_seen:
                batch.raise_error()

    async def _settle(self) -> None:
        batches = [batch for sender in self._senders.values() for batch in sender.unsettled()]
        for sender in self._senders.values():
            sender.close_batch()
        for batch in batches:
            await batch.wait()

    async def close(self) -> None:
        """Flush, then stop. Raises what :meth:`flush` raises, after stopping."""
        async with self._closing:
            if self._closed:
                return
            self._stop_accepting()
            for sender in self._senders.values():
                sender.stop()
            try:
                if senders := set(self._background):
                    await asyncio.wait(senders)
            finally:
                await self._background.end()
            await self.flush()

    async def abort(self) -> None:
        """Stop at once. Messages that are not stored yet fail with ``ClientClosed``."""
        self._stop_accepting()
        await self._background.end()

    def _stop_accepting(self) -> None:
        if not self._closed and self._topic is not None:
            self._client._router.unfollow(self._topic.name)
            self._client._router.table.unlisten_to_topic(self._name, self._notice)
        self._closed = True
        self._space.set()

    def __del__(self) -> None:
        warn_of_unclosed(self, "use 'async with', or await close()")

    def _unstored(self) -> int:
        """Messages that nobody knows to be stored, and nobody was told of. May be asked from any thread."""
        if self._closed:
            return 0
        batches = [batch for sender in list(self._senders.values()) for batch in sender.unsettled()]
        return sum(batch.count for batch in [*batches, *self._failed] if not batch.error_seen)

    def _broke(self, error: Exception) -> None:
        """A sender is gone, and its batches have failed; messages that come for its shard get a new one."""
        if (unstored := self._unstored()) or not isinstance(error, CancelledByOthers):
            _log.error("a producer's sender ended: topic=%s unstored=%d error=%r", self._name, unstored, error)
        gone = [shard for shard, sender in self._senders.items() if sender.broken]
        for shard in gone:
            self._gone_stats += self._senders.pop(shard).stats
        self._range_senders = [None] * len(self._range_senders)

    # Sending

    async def send(self, body: Body, **options: Unpack[MessageOptions]) -> Receipt:
        """Accept one message; waits only while the buffer is full. Await the receipt for its offset.

        The body is text, which is sent as UTF-8, or bytes, or like bytes. ``options`` are ``key``, ``tag``, ``queue``,
        ``properties``, ``headers``, ``priority``, ``subpriority``, ``type``, ``ttl_ms``, ``expires_at_ms``, ``delete``,
        ``delay_ms``, ``deliver_at_ms`` and ``dedupe_id``: see :class:`lsmq.messages.MessageOptions`. Raises
        ``InvalidRequest``, ``MessageTooLarge``, ``UnknownQueue`` and ``ClientClosed`` at once.
        """
        if self._tracing is not None and not self._tracing.is_sending:
            return await self._tracing.send(self._name, options, lambda traced: self.send(body, **traced))
        if self._topic is None:
            await self.start()
        key, tag, queue, extras, dedupe = None, None, None, None, 0
        if options:
            body, key, tag, queue, extras, dedupe = parts_of(body, options)
        if not self._space_turn.locked():
            try:
                batch = self._add(body, key, tag, queue, extras, dedupe)
            except BufferFull:
                pass
            else:
                assert self._topic is not None
                index = len(batch.queues) - 1
                if index == 0:
                    await asyncio.sleep(0)  # A new batch: let the batches before it get under way.
                return Receipt(batch, index, self._topic.id)
        async with self._space_turn:
            while True:
                self._space.clear()
                try:
                    return self._receipt(self._add(body, key, tag, queue, extras, dedupe))
                except BufferFull:
                    await self._space.wait()

    async def send_and_wait(self, body: Body, **options: Unpack[MessageOptions]) -> Sent:
        """Send one message and return where it was stored."""
        if self._tracing is None and self._topic is not None and not self._space_turn.locked():
            try:
                receipt = self.send_nowait(body, **options)
            except BufferFull:
                pass
            else:
                return await receipt
        return await (await self.send(body, **options))

    def send_nowait(self, body: Body, **options: Unpack[MessageOptions]) -> Receipt:
        """Like :meth:`send`, but raises ``BufferFull`` where that would wait. Must be started."""
        if self._tracing is not None and not self._tracing.is_sending:
            return self._tracing.send_at_once(self._name, options, lambda traced: self.send_nowait(body, **traced))
        return self._receipt(self._add(*parts_of(body, options)))

    def _receipt(self, batch: PendingBatch) -> Receipt:
        """Of the last message of ``batch``."""
        assert self._topic is not None
        return Receipt(batch, len(batch.queues) - 1, self._topic.id)

    async def send_many(
        self,
        messages: Iterable[Body | tuple[Key | None, Body]],
        *,
        tag: str | None = None,
        queue: int | str | None = None,
        delay_ms: int | None = None,
        deliver_at_ms: int | None = None,
    ) -> Receipts:
        """Accept many messages, each a body or a pair of key and body; waits while the buffer is full.

        Await the result for the list of where each was stored, in order. A message that is refused raises
        at once; those before it are accepted.
        """
        check_many(messages)
        if self._tracing is not None and not self._tracing.is_sending:
            send = partial(
                self.send_many, messages, tag=tag, queue=queue, delay_ms=delay_ms, deliver_at_ms=deliver_at_ms
            )
            return await self._tracing.send(self._name, {}, lambda _: send())
        headers = () if self._tracing is None else self._tracing.headers
        due_ms = due_value(delay_ms, deliver_at_ms, runtime.wall_ms())
        extras = Extras(due_ms=due_ms, headers=headers) if due_ms or headers else None
        if self._topic is None:
            await self.start()
        assert self._topic is not None
        receipts = Receipts(self._topic.id)
        later: MessageOptions = {}
        if extras is not None:
            later = {"delay_ms": delay_ms, "deliver_at_ms": deliver_at_ms, "headers": headers}
        await send_many(self, messages, receipts, tag, queue, extras, later)
        return receipts

    async def send_batch(
        self,
        bodies: Any,
        *,
        lengths: int | Sequence[int] | Any = None,
        queues: int | str | Sequence[int] | Sequence[str] | Any = None,
        keys: Key | Sequence[Key | None] | Any = None,
        tags: str | Sequence[str | None] | Any = None,
        types: str | Sequence[str | None] | Any = None,
        properties: Mapping[str, str] | Sequence[Mapping[str, str] | None] | Any = None,
        priorities: int | Sequence[int] | Any = None,
        ttl_ms: int | Sequence[int] | Any = None,
        subpriorities: int | Sequence[int] | Any = None,
        expires_at_ms: int | Sequence[int] | Any = None,
    ) -> BatchReceipt:
        """Accept many messages as columns, one row each; waits while the buffer is full. Makes no object of a message.

        ``bodies`` are a list, an array of Arrow of binary or text, or one buffer (bytes, a numpy array) and the
        ``lengths`` of the bodies in it, or one length for all. Or a table of Arrow with the column ``body``, and any of
        ``queue``, ``key``, ``tag``, ``type``, ``priority``, ``subpriority``, ``properties``, ``ttl_ms`` and
        ``expires_at_ms`` in place of the arguments here: each is a column (list, numpy, Arrow), or one value for all
        rows. A ``ttl_ms`` or ``expires_at_ms`` of 0 is for ever.

        Rows go where :meth:`send` would send them, in its order. All of them are checked before any is accepted:
        raises ``InvalidRequest``, ``MessageTooLarge`` or ``UnknownQueue``, which name the row. What was given may be
        changed once it returns. A call takes 1,000,000 rows, and holds up the event loop while it checks them. Needs
        numpy.
        """
        from lsmq.message_columns import check_columns  # With numpy, which nobody else needs.

        check_columns("send_batch")
        from lsmq._row_sending import send_rows
        from lsmq._rows import by_partitioner, check_rows

        if self._topic is None:
            await self.start()
        topic = self._topic
        assert topic is not None
        limit = min(self._max_message_bytes, self._max_buffer_bytes - _OVERHEAD_BYTES)
        columns = (lengths, queues, keys, tags, types, properties, priorities, ttl_ms, subpriorities, expires_at_ms)
        rows = check_rows(topic, bodies, *columns, max_message_bytes=limit)
        if self._partitioner is not None and rows.queues is None:
            rows = by_partitioner(rows, self._partitioner, topic, self._key_queues)
        receipt = BatchReceipt(topic.id, rows.count)
        if self._tracing is None:
            await send_rows(self, rows, receipt)
        else:
            await self._tracing.send(self._name, {}, lambda _: send_rows(self, rows, receipt))
        return receipt

    async def _wait_for_space(self, size_bytes: int) -> None:
        """Return once so much fits into the buffer, or it is closed; whoever waited before goes before."""
        async with self._space_turn:
            while self._buffered_bytes + size_bytes > self._max_buffer_bytes and not self._closed:
                self._space.clear()
                await self._space.wait()

    def _add(
        self,
        body: Body,
        key: Key | None,
        tag: str | None,
        queue: int | str | None,
        extras: Extras | None,
        dedupe: int,
    ) -> PendingBatch:
        """Put a message into the open batch of its shard; the batch it is now the last of."""
        if self._topic is None or self._closed or self._replaced is not None:
            raise self._not_open()
        if type(body) is not bytes:
            body = body_bytes(body)
        if key is not None and type(key) is not bytes and not (type(key) is str and key.isascii()):
            check_key(key)
        if tag is not None and not (type(tag) is str and tag.isascii()):
            check_tag(tag)
        header, position = b"", None
        if extras is not None:
            position = extras.position
            header = encode_header(key, tag, extras.properties, extras.headers, extras.type)
        elif key is not None or tag is not None:
            header = encode_header(key, tag, None)
        size_bytes = len(body) + len(header)
        if size_bytes > self._max_message_bytes:
            raise self._too_large(size_bytes, "max_message_bytes", self._max_message_bytes)
        size_bytes += _OVERHEAD_BYTES
        if self._buffered_bytes + size_bytes > self._max_buffer_bytes:
            if size_bytes > self._max_buffer_bytes:
                raise self._too_large(size_bytes, "max_buffer_bytes", self._max_buffer_bytes)
            raise BufferFull(
                f"{self._buffered_bytes} bytes wait to be sent, the limit is {self._max_buffer_bytes};"
                " await send(), or raise max_buffer_bytes",
                limit_bytes=self._max_buffer_bytes,
            )
        hashed, in_turn = 0, False
        name: str | None = None
        if queue is not None:
            if type(queue) is not int or self._named:
                if self._named:
                    name = check_queue_name(queue)
                    queue = queue_slot(name)
                    size_bytes += len(name)
                else:
                    queue = whole_queue(queue)
            if not 0 <= queue < self._queues:
                self._topic.check_queue(queue)
        elif self._partitioner is not None:
            queue = self._partitioner(key, body, self._queues if key is None else self._key_queues)
            queue = whole_queue(queue, "what the partitioner returned")
            self._topic.check_queue(queue)
        elif key is not None:
            hashed = key_hash(key)
            queue = hashed % self._key_queues
        elif dedupe:
            queue = dedupe_queue(dedupe, self._key_queues)
        elif position is not None:
            queue = position % self._key_queues  # As whoever sends it again chooses.
        else:
            queue = self._next_queue
            in_turn = True
        sender = self._range_senders[bisect_right(self._range_firsts, queue) - 1] or self._sender(queue)
        if position is not None:
            if sender.identity_position is not None and position <= sender.identity_position:
                return stored_before(queue)
            if sender.position is not None and position <= sender.position:
                raise InvalidRequest(
                    f"position is {position}, and a message of {sender.position} was sent before; positions grow",
                    field="position",
                )
        batch = sender.open
        if batch is None:
            batch = sender.start_batch()
        elif (
            batch.reserved_bytes + size_bytes > self._batch_bytes
            or len(batch.queues) >= self._batch_messages
            or (self._ids_apart and batch.has_ids != (dedupe != 0))  # Those with ids are refused, and no others.
            or type(batch.builder) is not BatchBuilder
            or (batch.of_queue is not None and not batch.of_queue.has_room(queue))
        ):
            sender.close_batch()
            if in_turn:
                return self._add(body, key, tag, None, extras, dedupe)  # It is the next queue's turn.
            batch = sender.start_batch()
        builder = batch.builder
        assert type(builder) is BatchBuilder
        if self._queue_messages is not None:
            batch.count_one(queue, self._queue_messages)
        if name is not None:
            assert isinstance(batch, NamedPendingBatch)
            queue = batch.place(name)
            dedupe = dedupe and named_dedupe_hash(dedupe, name)
        if key is not None and not hashed:
            hashed = key_hash(key)
        if extras is None:
            builder.add_packed(queue, body, header, hashed, 0 if tag is None else tag_hash(tag), dedupe)
        else:
            builder.add_packed(
                queue,
                body,
                header,
                hashed,
                0 if tag is None else tag_hash(tag),
                dedupe,
                priority=extras.priority,
                delete=extras.delete,
                type_hash=0 if extras.type is None else type_hash(extras.type),
                due_ms=extras.due_ms,
                expires=extras.expires,
            )
        if position is not None:
            batch.position = sender.position = position
        batch.has_ids |= dedupe != 0
        batch.reserved_bytes += size_bytes
        self._buffered_bytes += size_bytes
        if self._tracing is not None:
            self._tracing.placed(batch)
        return batch

    def _sender_of(self, queue: int) -> ShardSender:
        return self._range_senders[bisect_right(self._range_firsts, queue) - 1] or self._sender(queue)

    def _on_closed(self) -> None:
        self._next_queue = (self._next_queue + 1) % self._queues

    def _sender(self, queue: int) -> ShardSender:
        assert self._topic is not None
        route = self._topic.route(queue)
        shard = route.shard
        sender = self._senders.get(shard)
        if sender is None:
            identity = None if self._identity_of is None else self._identity_of(shard)
            sender = self._senders[shard] = ShardSender(
                self._client._bundles,
                self._topic,
                shard,
                self._options,
                self._on_closed,
                self._on_settled,
                identity,
                self._tracing,
            )
            self._background.begin(sender.run(), f"lsmq producer {self._name} shard {shard}")
        self._range_senders[self._topic.routes.index(route)] = sender
        return sender

    def _on_settled(self, batch: PendingBatch) -> None:
        self._buffered_bytes -= batch.reserved_bytes
        if batch.error is not None and not batch.error_seen:
            self._failed.append(batch)
        if isinstance(batch.error, TopicReplaced):
            self._replaced = batch.error
        self._space.set()

    def _not_open(self) -> LsmqError:
        if self._replaced is not None:
            return TopicReplaced(self._replaced.message, **self._replaced.details)
        if self._closed:
            return ClientClosed("this producer is closed; make a new one")
        return ClientClosed("this producer is not started; use 'async with', or await start() first")

    def _too_large(self, size_bytes: int, name: str, limit_bytes: int) -> MessageTooLarge:
        return MessageTooLarge(
            f"the message needs {size_bytes} bytes with key, tag and properties; {name} of topic {self._name!r}"
            f" allows {limit_bytes}; send it in parts or raise the limit",
            size_bytes=size_bytes,
            limit_bytes=limit_bytes,
        )
