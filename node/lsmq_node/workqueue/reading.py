"""Reading the messages of deliveries from a store: new ones of many queues at once, and single ones again.

Runs in the read pool; knows nothing of ledgers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from lsmq.errors import CorruptFile, InvalidBatch, OffsetOutOfRange
from lsmq.messages import priority_rank
from lsmq.record_batch import Column, RecordBatch, decode_header, key_hash
from lsmq_node.letters import LetterRecord, records_of
from lsmq_node.storage import PointRecord, ShardStore, Slice
from lsmq_node.storage.sieve import Picked

from .settings import FairBy


@dataclass(slots=True)
class Fresh:
    """Of one queue: messages, and up to where there are no others."""

    records: list[LetterRecord] = field(default_factory=list)
    end: int = 0


@dataclass(slots=True)
class Found:
    """Attributes:
    again: the messages that were asked for by offset.
    gone: those that are not there any more.
    fresh: by queue. A queue that was not reached is not here.
    damaged, damaged_queues: what the disk gave wrong, of those asked for by offset and of the queues.
    """

    again: dict[tuple[int, int], LetterRecord] = field(default_factory=dict)
    gone: set[tuple[int, int]] = field(default_factory=set)
    fresh: dict[int, Fresh] = field(default_factory=dict)
    damaged: set[tuple[int, int]] = field(default_factory=set)
    damaged_queues: set[int] = field(default_factory=set)
    count: int = 0
    size_bytes: int = 0


def count_new(
    store: ShardStore, group: str, topic_id: int, windows: Iterable[tuple[int, int]] = ()
) -> tuple[int, NDArray[np.int64]]:
    """The shard's first queue of the topic, and how many messages of each the group has never got.

    ``windows``: of some queues, from where on that is so, whatever is committed.
    """
    first = store.numbers(topic_id)[0]
    latest, earliest = store.latest_offsets(topic_id), store.earliest_offsets(topic_id)
    size = min(len(latest), len(earliest))  # the topic may grow meanwhile
    starts = np.maximum(store.committed_offsets(group, topic_id)[:size], earliest[:size])
    for queue, following in windows:
        if queue - first < size:
            starts[queue - first] = max(following, earliest[queue - first])
    return first, np.maximum(latest[:size] - starts, 0)


def read_again(
    store: ShardStore, topic_id: int, places: Iterable[tuple[int, int]], max_bytes: int, found: Found
) -> None:
    """Messages by queue and offset, in that order, one at least and then about ``max_bytes``."""
    for queue, first, end in runs(places):
        if found.size_bytes >= max_bytes:
            return
        try:
            _read_run(store, topic_id, queue, first, end, max_bytes, found)
        except OffsetOutOfRange:
            continue  # retention moved on just now: another time
        except CorruptFile:
            found.damaged.update((queue, offset) for offset in range(first, end))


def _read_run(store: ShardStore, topic_id: int, queue: int, first: int, end: int, max_bytes: int, found: Found) -> None:
    if end == first + 1 and (one := store.read_one(topic_id, queue, first)) is not None:
        found.again[queue, first] = _letter(queue, first, one)
        found.size_bytes += len(one.record)
        found.count += 1
        return
    reached = start = min(max(first, store.bounds(topic_id, queue)[0]), end)
    if start < end:
        room = max(1, max_bytes - found.size_bytes)
        part = store.read(topic_id, queue, start, max_records=end - start, max_bytes=room)
        reached = _next_offset(part, queue, start)
        for record in _records(part):
            if record.queue == queue and start <= record.offset < end:
                found.again[queue, record.offset] = record
                found.size_bytes += record.size_bytes
                found.count += 1
                reached = max(reached, record.offset + 1)
    places = ((queue, offset) for offset in range(first, min(reached, end)))
    found.gone.update(place for place in places if place not in found.again)


def _letter(queue: int, offset: int, one: PointRecord) -> LetterRecord:
    header, body = one.record[: one.header_length], one.record[one.header_length :]
    return LetterRecord(
        queue, offset, header, body, one.priority, one.stored_ms, one.flags, one.key_hash, one.expires_ms
    )


Wanted = tuple[int, int, int]
"""A queue, and the offsets that are wanted of it: the first, and the end."""


def read_fresh(
    store: ShardStore,
    topic_id: int,
    wanted: Sequence[Wanted],
    limit: int,
    max_bytes: int,
    found: Found,
    picked: Picked | None = None,
) -> None:
    """Up to ``limit`` messages of what is wanted, in that order; those that are ``picked``."""
    try:
        _read_queues(store, topic_id, wanted, limit, max_bytes, found, picked)
    except CorruptFile:
        if len(wanted) == 1:
            found.damaged_queues.add(wanted[0][0])
            return
        before = found.count
        for each in wanted:
            room = limit - (found.count - before)
            if room > 0:
                read_fresh(store, topic_id, (each,), room, max_bytes, found, picked)


def _read_queues(
    store: ShardStore,
    topic_id: int,
    wanted: Sequence[Wanted],
    limit: int,
    max_bytes: int,
    found: Found,
    picked: Picked | None,
) -> None:
    part = _read_part(store, topic_id, wanted, limit, max_bytes, picked)
    records = list(_records(part))  # before anything is noted: what is damaged shows here
    first = {queue: start for queue, start, _ in wanted}
    for queue, end in zip(*part.positions, strict=True):
        found.fresh[int(queue)] = Fresh(end=int(end))
    for record in records:
        fresh = found.fresh.get(record.queue)
        if fresh is None or not first[record.queue] <= record.offset < fresh.end:
            continue
        if limit <= 0:
            fresh.end = record.offset
            continue
        limit -= 1
        fresh.records.append(record)
        found.size_bytes += record.size_bytes
        found.count += 1


def _read_part(
    store: ShardStore,
    topic_id: int,
    wanted: Sequence[Wanted],
    limit: int,
    max_bytes: int,
    picked: Picked | None = None,
) -> Slice:
    queues, starts, ends = zip(*wanted, strict=True)
    return store.read_many(
        topic_id,
        np.array(queues, np.uint32),
        np.array(starts, np.int64),
        ends=np.array(ends, np.int64),
        max_records=limit,
        max_bytes=max_bytes,
        picked=picked,
    )


TenantsOf = Callable[[RecordBatch], Sequence[int]]
"""Whose each message of a batch is."""

_COLUMNS = {
    FairBy.QUEUE: Column.QUEUE,
    FairBy.KEY: Column.KEY_HASH,
    FairBy.TAG: Column.TAG_HASH,
    FairBy.TYPE: Column.TYPE_HASH,
}


def tenants_by(fair_by: FairBy, name: str) -> TenantsOf:
    """Of what takes turns, as :meth:`.WorkSettings.tenant_weights` numbers it; 0 where a message has none."""
    if fair_by is not FairBy.PROPERTY:
        return lambda batch: batch.of_messages(_COLUMNS[fair_by])

    def by_property(batch: RecordBatch) -> Sequence[int]:
        payload = batch.payload
        return [_property_hash(payload[row[3] : row[4]], name) for row in batch.rows()]

    return by_property


def _property_hash(header: memoryview, name: str) -> int:
    try:
        value = decode_header(header).properties.get(name)
        return key_hash(value) if isinstance(value, str) else 0
    except (InvalidBatch, UnicodeEncodeError):
        return 0


@dataclass(slots=True)
class Seen:
    """Of one queue: columns of messages, and up to where there are no others."""

    offsets: list[int] = field(default_factory=list)
    tenants: list[int] = field(default_factory=list)
    levels: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    end: int = 0


def look(
    store: ShardStore,
    topic_id: int,
    wanted: Sequence[Wanted],
    tenants_of: TenantsOf,
    limit: int,
    max_bytes: int,
    damaged: set[int],
) -> dict[int, Seen]:
    """Up to ``limit`` messages of what is wanted, by queue: whose they are, rank of priority, and time."""
    try:
        part = _read_part(store, topic_id, wanted, limit, max_bytes)
        seen = {int(queue): Seen(end=int(end)) for queue, end in zip(*part.positions, strict=True)}
        first = {queue: start for queue, start, _ in wanted}
        for batch in part.batches():
            names = (Column.QUEUE, Column.OFFSET, Column.PRIORITY, Column.STORED_MS)
            rows = zip(*map(batch.of_messages, names), tenants_of(batch), strict=True)
            for queue, offset, level, stored_ms, tenant in rows:
                each = seen.get(queue)
                if each is not None and first[queue] <= offset < each.end:
                    each.offsets.append(offset)
                    each.tenants.append(tenant)
                    each.levels.append(priority_rank(level))
                    each.times.append(stored_ms)
        return seen
    except CorruptFile:
        if len(wanted) == 1:
            damaged.add(wanted[0][0])
            return {}
        seen = {}
        for each_wanted in wanted:
            seen |= look(store, topic_id, (each_wanted,), tenants_of, limit, max_bytes, damaged)
        return seen


def runs(places: Iterable[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Queue, first offset and end of each run of neighbours that come after one another, in the order of ``places``."""
    turn = {place: at for at, place in enumerate(dict.fromkeys(places))}
    ordered = sorted(turn)
    cuts = [0]
    for at, (a, b) in enumerate(pairwise(ordered), 1):
        if b != (a[0], a[1] + 1) or turn[b] < turn[a]:
            cuts.append(at)
    cuts.append(len(ordered))
    found = [(ordered[low][0], ordered[low][1], ordered[high - 1][1] + 1) for low, high in pairwise(cuts) if low < high]
    return sorted(found, key=lambda run: turn[run[:2]])


def _next_offset(part: Slice, queue: int, start: int) -> int:
    for moved, position in zip(*part.positions, strict=True):
        if int(moved) == queue:
            return int(position)
    return start


def _records(part: Slice) -> Iterable[LetterRecord]:
    for batch in part.batches():
        yield from records_of(batch)
