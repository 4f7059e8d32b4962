"""Batches on their way out: what a producer has accepted and a node has not answered yet.

A :class:`PendingBatch` collects messages for one shard and settles once, with offsets or with an error. A
:class:`Receipt` is a message's place in it: two references, no future and no task, so that a message costs
its sender little. Whoever awaits a receipt gets a future of their own, and may be cancelled without harm to
others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from lsmq._queue_counts import QueueCounts
from lsmq.errors import LsmqError
from lsmq.messages import due_of_id
from lsmq.queue_names import SEPARATOR
from lsmq.record_batch import BatchBuilder, Column, Flag, RecordBatch, delayed_id, message_id

if TYPE_CHECKING:
    from lsmq._column_builder import ColumnBuilder
    from lsmq.tracing import Sending

_log = logging.getLogger("lsmq")


class Sent(NamedTuple):
    """Where a message was stored. ``id`` finds it again: ``client.message(id)``.

    ``topic_id`` is what the cluster numbers the topic by; 0 of one that comes later.
    ``duplicate``: it was not stored now, but an earlier one with its ``dedupe_id``, whose place this is.
    ``dropped``: it was not stored at all, since the topic or queue was full and ``overflow`` is ``drop_newest``; then
    ``offset`` is -1 and ``id`` empty.
    In a named topic ``queue_name`` is its queue, and ``queue`` the number that this has. One that comes later is in no
    queue yet: its ``offset`` is -1, and its ``id``, which is ``later_id``, is for :class:`lsmq.DelayedMessages`.
    """

    queue: int
    offset: int
    topic_id: int
    queue_name: str | None = None
    duplicate: bool = False
    dropped: bool = False
    later_id: str = ""

    @property
    def id(self) -> str:
        """Made when asked for, as most never are: it takes as long as all else that is done for a receipt."""
        return self.later_id if self.offset < 0 else message_id(self.topic_id, self.queue, self.offset)

    @property
    def due_ms(self) -> int | None:
        """When it comes into its queue, milliseconds since 1970; None where it was stored there."""
        return due_of_id(self.later_id) if self.later_id else None

    def __repr__(self) -> str:
        said = {"queue": self.queue, "offset": self.offset, "id": self.id}
        more = ("queue_name", "due_ms", "duplicate", "dropped")
        said |= {name: value for name in more if (value := getattr(self, name))}
        return f"Sent({', '.join(f'{name}={value!r}' for name, value in said.items())})"


class PendingBatch:
    """Messages for one shard, first collected, then sent, then settled.

    ``created_s`` is the monotonic time of its first message. Its ``builder`` takes single messages, or rows of
    columns; ``queues`` are those of single messages.
    """

    __slots__ = (
        "_flags",
        "_offsets",
        "_waiters",
        "builder",
        "created_s",
        "error",
        "error_seen",
        "has_ids",
        "later",
        "of_queue",
        "position",
        "queues",
        "reserved_bytes",
        "rows",
        "sendings",
        "settled",
        "shard",
        "stored",
    )

    def __init__(self, created_s: float, builder: BatchBuilder | ColumnBuilder) -> None:
        self.builder: BatchBuilder | ColumnBuilder | None = builder
        self.queues: Sequence[int] = builder.queues if isinstance(builder, BatchBuilder) else ()
        self.rows = 0
        self.created_s = created_s
        self.reserved_bytes = 0
        self.has_ids = False  # some message has a deduplication id
        self.of_queue: QueueCounts | None = None  # where that has a limit
        self.settled = False
        self.stored: RecordBatch | None = None  # what the node answered
        self._offsets: Sequence[int] | None = None  # of that, once looked at
        #: Of each message: ``Flag.REPEAT`` and ``Flag.DROPPED``; None where none has any.
        self._flags: Sequence[int] | None = None
        self.position: int | None = None  # of its last message, where they have any
        self.later: Mapping[int, int] = {}  # which messages come later, and when
        self.shard = 0
        self.error: LsmqError | None = None
        self.error_seen = False
        #: Spans of calls that sent its messages, where they are traced.
        self.sendings: list[Sending] | None = None
        self._waiters: list[Callable[[], None]] = []

    @property
    def count(self) -> int:
        """How many messages it has."""
        return self.rows or len(self.queues)

    def count_one(self, queue: int, most: int) -> None:
        """It gets a message of the queue, of which it may have so many."""
        self.of_queue = self.of_queue or QueueCounts(most)
        self.of_queue.take_of(queue, 1)

    def settle(self, stored: RecordBatch, shard: int) -> None:
        """The batch is stored; ``stored`` has a record for each of its messages, in order."""
        assert self.builder is not None, "a batch is settled once"
        self.later, self.shard = self.builder.due_times(stored.column(Column.STORED_MS)[0]), shard
        self.stored = stored
        self._finish()

    @property
    def offsets(self) -> Sequence[int]:
        """Of each message, where it is stored; unpacked when first asked for, as many never are."""
        if self._offsets is None:
            assert self.stored is not None
            self._look(self.stored)
            self._offsets = list(self.stored.column(Column.OFFSET))
        return self._offsets

    def _look(self, stored: RecordBatch) -> None:
        if Column.FLAGS in stored.directory:
            self._flags = list(stored.column(Column.FLAGS))

    def fail(self, error: LsmqError) -> None:
        """The batch is given up."""
        self.error = error
        self._finish()

    def _finish(self) -> None:
        self.builder = None  # frees the bodies; receipts may live long
        self.settled = True
        for sending in self.sendings or ():
            sending.settled(self)
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter()

    def sent(self, index: int, topic_id: int) -> Sent:
        """Where a message of the batch is stored, which it is."""
        offset, queue = (self._offsets or self.offsets)[index], self.queues[index]
        if self._flags is None and offset >= 0 and not self.later:  # as most are: a third of the time of what follows
            return tuple.__new__(Sent, (queue, offset, topic_id, None, False, False, ""))
        return self._sent(index, topic_id, queue, offset)

    def _sent(self, index: int, topic_id: int, queue: int, offset: int, name: str | None = None) -> Sent:
        """Of any message: it may come later, be stored nowhere, or be a repeat."""
        if index in self.later:
            return Sent(queue, -1, 0, name, later_id=delayed_id(self.shard, self.later[index], offset))
        dropped = self._is(index, Flag.DROPPED)
        if offset < 0 or dropped:  # Where it was not dropped, the one before in a group has stored it.
            return Sent(queue, -1, topic_id, name, not dropped, dropped)
        return Sent(queue, offset, topic_id, name, self._is(index, Flag.REPEAT))

    def _is(self, index: int, flag: Flag) -> bool:
        return self._flags is not None and self._flags[index] & flag != 0

    def on_settled(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once settled; at once when it is."""
        if self.settled:
            callback()
        else:
            self._waiters.append(callback)

    async def wait(self) -> None:
        """Return once settled, either way."""
        if not self.settled:
            await self.future()

    def future(self) -> asyncio.Future[None]:
        """A future of the caller's own that completes once settled, either way."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.on_settled(lambda: None if future.done() else future.set_result(None))
        return future

    def raise_error(self) -> None:
        """Raise the batch's error if it has one, as an error of the caller's own."""
        if self.error is not None:
            self.error_seen = True
            raise type(self.error)(self.error.message, **self.error.details) from self.error


def stored_before(queue: int) -> PendingBatch:
    """In place of a message of a group that its predecessor has stored."""
    batch = PendingBatch(0.0, BatchBuilder())
    batch.queues, batch._offsets = (queue,), (-1,)
    batch._finish()
    return batch


def counts_of(batch: PendingBatch | None, most: int | None) -> QueueCounts | None:
    """How many of each queue a batch has, or a new one, where it may have so many of each; None where that is any."""
    if most is None:
        return None
    return QueueCounts(most) if batch is None or batch.of_queue is None else batch.of_queue


class NamedPendingBatch(PendingBatch):
    """A batch for queues with names: its ``queues`` are places among them. Once stored, they have numbers."""

    __slots__ = ("_names", "_numbers", "_places")

    def __init__(self, created_s: float, builder: BatchBuilder | ColumnBuilder) -> None:
        super().__init__(created_s, builder)
        self._names: list[str] = []
        self._places: dict[str, int] = {}
        self._numbers: Sequence[int] = ()

    def place(self, name: str) -> int:
        """The place of a name that was checked; it gets one where it has none."""
        place = self._places.setdefault(name, len(self._names))
        if place == len(self._names):
            self._names.append(name)
        return place

    def names_block(self) -> bytes:
        """What stands before the batch when it is sent: how many bytes of names, and these."""
        names = SEPARATOR.join(self._names).encode()
        return len(names).to_bytes(4, "little") + names

    def _finish(self) -> None:
        self._places = {}
        super()._finish()

    def _look(self, stored: RecordBatch) -> None:
        super()._look(stored)
        self._numbers = list(stored.column(Column.QUEUE))

    def sent(self, index: int, topic_id: int) -> Sent:
        offset, queue = self.offsets[index], self._numbers[index]
        return self._sent(index, topic_id, queue, offset, self._names[self.queues[index]])


class Receipt:
    """A message that a producer has accepted. Await it for the :class:`Sent`, or for the error."""

    __slots__ = ("_batch", "_index", "_topic_id")

    def __init__(self, batch: PendingBatch, index: int, topic_id: int) -> None:
        self._batch = batch
        self._index = index
        self._topic_id = topic_id

    def __await__(self) -> Generator[asyncio.Future[None], None, Sent]:
        batch = self._batch
        if not batch.settled:
            yield from batch.future()
        if batch.error is not None:
            batch.raise_error()
        return batch.sent(self._index, self._topic_id)

    def done(self) -> bool:
        """Whether the message is stored or given up."""
        return self._batch.settled

    def result(self) -> Sent:
        """Where the message was stored.

        Raises the error its batch failed with, or ``asyncio.InvalidStateError`` while it is under way.
        """
        batch, index = self._batch, self._index
        batch.raise_error()
        if not batch.settled:
            raise asyncio.InvalidStateError("the message is still on its way; await the receipt")
        return batch.sent(index, self._topic_id)

    def exception(self) -> LsmqError | None:
        """The error the message's batch failed with, or ``None``."""
        if not self._batch.settled:
            raise asyncio.InvalidStateError("the message is still on its way; await the receipt")
        self._batch.error_seen = True
        return self._batch.error

    def add_done_callback(self, callback: Callable[[Receipt], object]) -> None:
        """Call ``callback(receipt)`` on the event loop once the message is stored or given up.

        What it raises is logged, and nobody else's matter.
        """

        def call() -> None:
            try:
                callback(self)
            except Exception:
                _log.exception("a callback of a receipt failed")

        self._batch.on_settled(call)


class Receipts:
    """Receipts of many messages in the order sent, held as runs. Await it for the list of :class:`Sent`."""

    __slots__ = ("_count", "_runs", "_topic_id")

    def __init__(self, topic_id: int) -> None:
        self._topic_id = topic_id
        self._runs: list[tuple[PendingBatch, int, int]] = []
        self._count = 0

    def _append_run(self, batch: PendingBatch, start: int, end: int) -> None:
        self._count += end - start
        if self._runs and self._runs[-1][0] is batch and self._runs[-1][2] == start:
            start = self._runs.pop()[1]
        self._runs.append((batch, start, end))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Receipt]:
        for batch, start, end in self._runs:
            for index in range(start, end):
                yield Receipt(batch, index, self._topic_id)

    def __await__(self) -> Generator[object, None, list[Sent]]:
        return self._settled().__await__()

    async def _settled(self) -> list[Sent]:
        await self.wait()
        return [receipt.result() for receipt in self]

    async def wait(self) -> None:
        """Return once all are stored. Raises the first error among them; the others may be stored."""
        for batch, _, _ in self._runs:
            await batch.wait()
        for batch, _, _ in self._runs:
            batch.raise_error()

    def done(self) -> bool:
        """Whether each is stored or given up."""
        return all(batch.settled for batch, _, _ in self._runs)
