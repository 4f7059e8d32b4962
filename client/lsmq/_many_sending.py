"""How ``send_many`` gets messages into batches: portion by portion, so that what is done for one costs it no call.

A portion in which something is not as in most (a body like bytes, a key that is none, what is refused) goes message by
message, as ``send`` does, which also says what is wrong with which.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any

from lsmq._message_parts import Body, Extras
from lsmq._receipts import PendingBatch, Receipts, counts_of
from lsmq.errors import BufferFull
from lsmq.messages import Key, MessageOptions, check_tag, encode_header, key_and_body, key_hashes, key_headers, tag_hash
from lsmq.record_batch import BatchBuilder

if TYPE_CHECKING:
    from lsmq.producer import Producer

_PORTION_MESSAGES = 1_000
_OVERHEAD_BYTES = BatchBuilder.RECORD_OVERHEAD_BYTES


@dataclass(slots=True)
class _Portion:
    """Messages that are alike, checked. ``queues`` are their own, or that of all; None: in turn."""

    bodies: list[bytes]
    lengths: list[int]  # of records
    headers: list[bytes] | bytes
    hashes: list[int] | None
    tag_hash: int
    queues: list[int] | int | None

    def picked(self, rows: Sequence[int]) -> _Portion:
        """These messages of it, which have keys."""
        assert isinstance(self.headers, list) and self.hashes is not None and isinstance(self.queues, list)
        return _Portion(
            [self.bodies[row] for row in rows],
            [self.lengths[row] for row in rows],
            [self.headers[row] for row in rows],
            [self.hashes[row] for row in rows],
            self.tag_hash,
            [self.queues[row] for row in rows],
        )


async def send_many(
    producer: Producer,
    messages: Iterable[Body | tuple[Key | None, Body]],
    receipts: Receipts,
    tag: str | None,
    queue: int | str | None,
    extras: Extras | None,
    later: MessageOptions,
) -> None:
    """Add all messages, and their places to ``receipts``. ``later`` is what ``extras`` were made of."""
    source = iter(messages)
    failed: Exception | None = None
    portion: list[Any] = []
    while failed is None:
        portion.clear()
        try:
            portion.extend(islice(source, _PORTION_MESSAGES))
        except Exception as error:
            failed = error  # What came before is sent all the same.
        if not portion:
            break
        alike = None if extras is not None else _alike(producer, portion, tag, queue)
        if alike is None:
            await _send_each(producer, portion, receipts, tag, queue, extras, later)
        else:
            await _send_alike(producer, alike, receipts)
    if failed is not None:
        raise failed


def _alike(producer: Producer, portion: list[Any], tag: str | None, queue: int | str | None) -> _Portion | None:
    """The portion as columns, or None where it is to go message by message."""
    topic = producer._topic
    if topic is None or topic.named or (queue is None and producer._partitioner is not None):
        return None
    if queue is not None and not (type(queue) is int and 0 <= queue < topic.queues):
        return None
    keys: Sequence[Any] | None = None
    bodies = portion
    kinds = set(map(type, portion))
    if kinds == {tuple}:
        if set(map(len, portion)) != {2}:
            return None
        keys, bodies = [key for key, _ in portion], [body for _, body in portion]
        kinds = set(map(type, bodies))
    try:
        if tag is not None:
            check_tag(tag)
        if kinds == {str}:
            bodies = list(map(str.encode, bodies))
        elif kinds != {bytes}:
            return None
        hashes = None if keys is None else key_hashes(keys)
    except (TypeError, ValueError):
        return None
    headers: list[bytes] | bytes
    lengths = list(map(len, bodies))
    if keys is None:
        headers = encode_header(None, tag, None)
        if headers:
            lengths = [length + len(headers) for length in lengths]
    else:
        headers = key_headers(keys, tag)
        lengths = [length + len(header) for length, header in zip(lengths, headers, strict=True)]
    if max(lengths) > min(producer._max_message_bytes, producer._max_buffer_bytes - _OVERHEAD_BYTES):
        return None
    queues: list[int] | int | None = queue if type(queue) is int else None
    if hashes is not None and queues is None:
        count = producer._key_queues
        queues = [hashed % count for hashed in hashes]
    return _Portion(bodies, lengths, headers, hashes, 0 if tag is None else tag_hash(tag), queues)


async def _send_alike(producer: Producer, portion: _Portion, receipts: Receipts) -> None:
    queues, firsts = portion.queues, producer._range_firsts
    if not isinstance(queues, list) or len(firsts) == 1:
        for batch, start, end in await _fill(producer, portion):
            receipts._append_run(batch, start, end)
        return
    by_range: dict[int, list[int]] = {}
    for row, queue in enumerate(queues):
        by_range.setdefault(bisect_right(firsts, queue), []).append(row)
    places: list[Any] = [None] * len(queues)
    for rows in by_range.values():
        runs = await _fill(producer, portion.picked(rows))
        own = ((batch, place) for batch, start, end in runs for place in range(start, end))
        for row, place in zip(rows, own, strict=True):
            places[row] = place
    for batch, place in places:
        receipts._append_run(batch, place, place + 1)


async def _fill(producer: Producer, portion: _Portion) -> list[tuple[PendingBatch, int, int]]:
    """Put messages of one shard, or in turn, into its open batch, and the next ones; where they are in these."""
    runs = []
    ends = list(accumulate(portion.lengths, lambda end, length: end + length + _OVERHEAD_BYTES, initial=0))
    at, count, queues = 0, len(portion.bodies), portion.queues
    while at < count:
        if producer._closed or producer._replaced is not None:
            raise producer._not_open()
        first = queues[at] if isinstance(queues, list) else queues
        sender = producer._sender_of(producer._next_queue if first is None else first)
        batch = sender.open
        if batch is not None and (type(batch.builder) is not BatchBuilder or (producer._ids_apart and batch.has_ids)):
            sender.close_batch()
            continue
        held_bytes, held = (0, 0) if batch is None else (batch.reserved_bytes, batch.count)
        free_bytes = producer._max_buffer_bytes - producer._buffered_bytes
        room_bytes = min(free_bytes, producer._batch_bytes - held_bytes)
        end = min(bisect_right(ends, ends[at] + room_bytes) - 1, at + producer._batch_messages - held)
        end = max(at, end)  # A batch of one message that is larger than a batch has less than no room.
        of_queue = counts_of(batch, producer._queue_messages)
        if of_queue is not None:
            end = at + (
                of_queue.take(queues[at:end])
                if isinstance(queues, list)
                else of_queue.take_of(producer._next_queue if queues is None else queues, end - at)
            )
        if end == at:
            if ends[at + 1] - ends[at] > free_bytes:
                await producer._wait_for_space(ends[at + 1] - ends[at])
                continue
            if batch is not None:
                sender.close_batch()
                continue
            end = at + 1  # A message larger than a batch has one of its own.
        queue = producer._next_queue if queues is None else queues
        batch = batch or sender.start_batch()
        batch.of_queue = of_queue
        builder = batch.builder
        assert type(builder) is BatchBuilder
        builder.extend(
            queue[at:end] if isinstance(queue, list) else queue,
            portion.bodies[at:end],
            portion.lengths[at:end],
            portion.headers[at:end] if isinstance(portion.headers, list) else portion.headers,
            None if portion.hashes is None else portion.hashes[at:end],
            portion.tag_hash,
        )
        size_bytes = ends[end] - ends[at]
        batch.reserved_bytes += size_bytes
        producer._buffered_bytes += size_bytes
        runs.append((batch, held, held + end - at))
        at = end
        if held == 0:
            await asyncio.sleep(0)  # A new batch: let the batches before it get under way.
    return runs


async def _send_each(
    producer: Producer,
    portion: list[Any],
    receipts: Receipts,
    tag: str | None,
    queue: int | str | None,
    extras: Extras | None,
    later: MessageOptions,
) -> None:
    for message in portion:
        key, body = key_and_body(message)
        try:
            batch = producer._add(body, key, tag, queue, extras, 0)
            place = len(batch.queues) - 1
            if place == 0:
                await asyncio.sleep(0)
        except BufferFull:
            options: MessageOptions = {"key": key, "tag": tag, "queue": queue, **later}
            receipt = await producer.send(body, **options)
            batch, place = receipt._batch, receipt._index
        receipts._append_run(batch, place, place + 1)
