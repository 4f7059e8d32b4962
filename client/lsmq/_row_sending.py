"""How rows get into a producer's batches: cut by shard, and where a batch or the buffer is full; where they ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lsmq._batch_receipts import BatchPart, BatchReceipt
from lsmq._column_builder import ColumnBuilder
from lsmq._receipts import NamedPendingBatch, PendingBatch, counts_of
from lsmq._rows import MessageRows
from lsmq.message_columns import column_array
from lsmq.record_batch import BatchBuilder, Column, Flag

try:
    import numpy as np
except ImportError:
    np = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lsmq.producer import Producer

_OVERHEAD_BYTES = BatchBuilder.RECORD_OVERHEAD_BYTES


async def send_rows(producer: Producer, rows: MessageRows, receipt: BatchReceipt) -> None:
    """Put all rows into batches, in order of queue; waits while the buffer is full."""
    lengths = rows.columns[Column.LENGTH]
    assert not isinstance(lengths, int)
    sizes = lengths + _OVERHEAD_BYTES
    if rows.names is not None:
        sizes += np.fromiter(map(len, rows.names), np.int64, rows.count)
    if rows.queues is None and rows.hashes is None:
        await _send_some(producer, rows, slice(0, rows.count), None, sizes, receipt)
        return
    first = 0
    while first < rows.count:
        end = _window(producer, sizes, first)
        queues = rows.queues_of(slice(first, end), producer._key_queues, producer._next_queue)
        for some, own in _by_range(producer._range_firsts, queues, first):
            await _send_some(producer, rows, some, own, sizes[some], receipt)
        first = end


def _window(producer: Producer, sizes: NDArray[Any], first: int) -> int:
    """Where the rows end that are cut by shard at once: as many as fill a batch of each, about."""
    ranges = len(producer._range_firsts)
    ends = np.cumsum(sizes[first : first + producer._batch_messages * ranges])
    return first + max(1, int(np.searchsorted(ends, producer._batch_bytes * ranges, "right")))


def _by_range(
    firsts: list[int], queues: NDArray[Any], first: int
) -> Iterator[tuple[slice | NDArray[Any], NDArray[Any]]]:
    """Rows from ``first`` on by the range that their queue is in, each in order, and their queues."""
    places = np.searchsorted(np.array(firsts, np.int64), queues, "right")
    if places.min() == places.max():
        yield slice(first, first + len(queues)), queues
        return
    order = np.argsort(places, kind="stable")
    for some in np.split(order, np.flatnonzero(np.diff(places[order])) + 1):
        yield some + first, queues[some]


async def _send_some(
    producer: Producer,
    rows: MessageRows,
    some: slice | NDArray[Any],
    queues: NDArray[Any] | None,
    sizes: NDArray[Any],
    receipt: BatchReceipt,
) -> None:
    """Rows of one shard, or in turn: what fits into the open batch, then into the next one, and so on."""
    ends = np.cumsum(sizes)
    at = done_bytes = 0
    while at < len(ends):
        if producer._topic is None or producer._closed or producer._replaced is not None:
            raise producer._not_open()
        queue = producer._next_queue if queues is None else int(queues[at])
        sender = producer._sender_of(queue)
        batch = sender.open
        if batch is not None and not isinstance(batch.builder, ColumnBuilder):
            sender.close_batch()  # What was sent before goes before.
            continue
        held_bytes, held = (0, 0) if batch is None else (batch.reserved_bytes, batch.count)
        free_bytes = producer._max_buffer_bytes - producer._buffered_bytes
        room_bytes = min(free_bytes, producer._batch_bytes - held_bytes)
        end = min(int(np.searchsorted(ends, done_bytes + room_bytes, "right")), at + producer._batch_messages - held)
        end = max(at, end)  # A batch of one message that is larger than a batch has less than no room.
        of_queue = counts_of(batch, producer._queue_messages)
        if of_queue is not None:
            end = at + (of_queue.take_of(queue, end - at) if queues is None else of_queue.take(queues[at:end].tolist()))
        if end == at:
            size_bytes = int(ends[at]) - done_bytes
            if size_bytes > free_bytes:
                await producer._wait_for_space(size_bytes)
                continue
            if batch is not None:
                sender.close_batch()
                continue
            end = at + 1  # A message larger than a batch has one of its own.
        cut = slice(some.start + at, some.start + end) if isinstance(some, slice) else some[at:end]
        columns, payload = rows.columns_of(cut), rows.payload(cut)
        batch = batch or sender.start_batch(ColumnBuilder())
        batch.of_queue = of_queue
        part = BatchPart(batch, batch.rows, cut, queue if queues is None else queues[at:end])
        columns[Column.QUEUE] = _queues_in(batch, rows, part)
        assert isinstance(batch.builder, ColumnBuilder)
        batch.builder.add(columns, part.count, payload)
        batch.rows += part.count
        receipt._parts.append(part)
        size_bytes = int(ends[end - 1]) - done_bytes
        batch.reserved_bytes += size_bytes
        if producer._tracing is not None:
            producer._tracing.placed(batch)
        producer._buffered_bytes += size_bytes
        at, done_bytes = end, int(ends[end - 1])
        if part.start == 0:
            await asyncio.sleep(0)  # A new batch: let the batches before it get under way.


def _queues_in(batch: PendingBatch, rows: MessageRows, part: BatchPart) -> NDArray[Any] | int:
    """The queues of a part as its batch has them: of those with names, their places."""
    if isinstance(batch, NamedPendingBatch):
        assert rows.names is not None
        names = rows.names[part.rows] if isinstance(part.rows, slice) else [rows.names[row] for row in part.rows]
        return np.fromiter(map(batch.place, names), np.int64, len(names))
    return part.queues if isinstance(part.queues, int) else part.queues.copy()


def places_of(parts: Sequence[BatchPart], count: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Queue and offset of each row, and whether it was dropped: parts that are stored, of so many rows in all."""
    queues, offsets, dropped = np.empty(count, np.int64), np.empty(count, np.int64), np.zeros(count, bool)
    for part in parts:
        stored = part.batch.stored
        assert stored is not None
        own = slice(part.start, part.start + part.count)
        named = isinstance(part.batch, NamedPendingBatch)
        queues[part.rows] = column_array((stored,), Column.QUEUE)[own] if named else part.queues
        offsets[part.rows] = column_array((stored,), Column.OFFSET)[own]
        if Column.FLAGS in stored.directory:
            dropped[part.rows] = column_array((stored,), Column.FLAGS)[own] & int(Flag.DROPPED) != 0
    offsets[dropped] = -1
    for column in (queues, offsets, dropped):
        column.flags.writeable = False
    return queues, offsets, dropped


def failed_of(parts: Sequence[BatchPart], count: int) -> NDArray[Any]:
    """The rows of batches that were given up."""
    failed = np.zeros(count, bool)
    for part in parts:
        failed[part.rows] = part.batch.error is not None
    return np.flatnonzero(failed)
