"""Compacted topics: of each key, in each queue, the last message is kept, and those before it are deleted.

The leader looks through a topic's messages once half as many as it kept the last time have come, or some time after
fewer have, and deletes through the log what a later message of the same queue and key supersedes. So replicas agree,
readers pass over what is gone as over anything deleted, and its space comes back with merges. A message that says that
its key is gone is kept for ``delete_retention_ms``, so that whoever reads along hears of it, and then deleted as well.
Messages without a key are left alone.

Keys are told apart by two hashes of 64 bits. What is held in memory is bounded: a queue with more keys than
``MAX_HELD_KEYS`` is looked through more than once, for a part of its keys each time. It takes a fraction of one
processor (``_SHARE``), whatever there is to do.

What it knows is forgotten with the process, and when another replica leads: then each topic is looked through once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from lsmq.errors import ClientClosed, CorruptFile, DiskFull, InvalidBatch, NotLeader, StoreBusy, UnknownTopic
from lsmq.record_batch import Column, Flag, RecordBatch, decode_header, split_batches

from .columns import DTYPES, I64, U32, U64, decode_column
from .disk import Clock
from .line import Appended, Line
from .log_writer import LogWriter
from .queries import Queries
from .shard_time import ShardTime
from .state import ShardState, TopicState

#: So many keys are held at a time, at some fifty bytes each.
MAX_HELD_KEYS = 1 << 18
#: Messages that are read at once, and their bytes.
_READ_RECORDS = 4096
_READ_BYTES = 4 << 20
#: An entry of the log deletes so many.
_DELETED_AT_ONCE = 1 << 14
#: Of one processor.
_SHARE = 0.25
#: A topic to which little has come is looked through after so long, or so many times as long as it took.
_PATIENCE_S = 600.0
_PAUSE = 20
#: How long it waits where too much is in line already.
_BUSY_S = 0.5
#: How long the last word on a key is kept where that is that it is gone, unless the topic says otherwise.
DELETE_RETENTION_MS = 24 * 3_600_000
_SECOND_SEED = 1

_log = logging.getLogger("lsmq.storage")

Values = NDArray[Any]


@dataclass(slots=True)
class _Looked:
    """What the last look through a topic found: where its queues ended, what it kept, and when it may begin again."""

    written: int
    kept: int
    deletes: int  # of what was kept, those that say that a key is gone
    not_before_s: float
    due_s: float  # where something was written since
    looked_s: float


class _Stopped(Exception):
    """The store is being closed, or another replica leads."""


class _TooManyKeys(Exception):
    """More than may be held at a time."""


class KeyCleaner:
    """One thread at a time runs it."""

    def __init__(
        self,
        state: ShardState,
        queries: Queries,
        clock: Clock,
        time: ShardTime,
        line: Line,
        writer: LogWriter,
        delete: Callable[[int, U32, I64], Appended],
        pause: Callable[[float], bool],
    ) -> None:
        """``delete`` puts in line that messages of a topic are deleted.

        ``pause`` waits so many seconds; True when the store is to be left alone.
        """
        self._state = state
        self._queries = queries
        self._clock = clock
        self._time = time
        self._line = line
        self._writer = writer
        self._put_in_line = delete
        self._pause = pause
        self._looked: dict[int, _Looked] = {}

    def run(self) -> None:
        """Look through the compacted topics that are due, where this replica leads."""
        if self._line.closed is not None:
            self._looked.clear()
            return
        for topic_id in self._looked.keys() - self._state.topics.keys():
            del self._looked[topic_id]
        for topic_id, item in self._state.topics.copy().items():
            if item.topic.options.cleanup == "compact" and self._is_due(topic_id, item):
                try:
                    self._look_through(topic_id, item)
                except (UnknownTopic, DiskFull, StoreBusy):
                    continue
                except CorruptFile as damage:
                    _log.warning("topic %r is not compacted: %s", item.topic.name, damage.message)
                    now = self._clock.monotonic()
                    self._looked[topic_id] = _Looked(0, 0, 0, now + _PATIENCE_S, 0.0, 0.0)
                except _Stopped:
                    return

    def _delete(self, topic_id: int, queues: U32, offsets: I64) -> None:
        while True:
            try:
                self._put_in_line(topic_id, queues, offsets)
                self._writer.commit()
                return
            except StoreBusy:  # Where writers never let up, what was found would be looked for again and again.
                if self._pause(_BUSY_S):
                    raise _Stopped from None
            except (NotLeader, ClientClosed):
                raise _Stopped from None

    def _is_due(self, topic_id: int, item: TopicState) -> bool:
        looked, now = self._looked.get(topic_id), self._clock.monotonic()
        written = int(item.committed.sum())
        if looked is None:
            return written > 0
        fresh = written - looked.written
        if now < looked.not_before_s:
            return False
        much = fresh > 0 and (2 * fresh >= looked.kept or now >= looked.due_s)
        # The topic may have been given another time since.
        return much or (looked.deletes > 0 and now >= looked.looked_s + _delete_retention_ms(item) / 1000)

    def _look_through(self, topic_id: int, item: TopicState) -> None:
        began_s, written = self._clock.monotonic(), int(item.committed.sum())
        count = item.end - item.first
        rows = np.arange(count)
        starts, ends = item.live_from(rows), item.committed[:count].copy()
        rows = np.flatnonzero(starts < ends)
        kept = deletes = 0
        first = 0
        sizes = np.cumsum(ends[rows] - starts[rows])
        while first < len(rows):
            held = sizes[first - 1] if first else 0
            stop = max(first + 1, int(sizes.searchsorted(held + MAX_HELD_KEYS, "right")))
            queues, until = (rows[first:stop] + item.first).astype(np.uint32), ends[rows[first:stop]]
            found = self._of_queues(topic_id, item, queues, until)
            kept, deletes, first = kept + found[0], deletes + found[1], stop
        now = self._clock.monotonic()
        took_s = now - began_s
        due_s = now + max(_PATIENCE_S, _PAUSE * took_s)
        self._looked[topic_id] = _Looked(written, kept, deletes, now + took_s, due_s, now)

    def _of_queues(self, topic_id: int, item: TopicState, queues: U32, ends: I64) -> tuple[int, int]:
        """Clean some queues up to ``ends``: how many messages are left, and how many of them say that a key is gone."""
        slices = 1
        while True:
            try:
                parts = [_Latest(item, self._delete, slices, part) for part in range(slices)]
                left = [self._of_slice(topic_id, queues, ends, latest) for latest in parts]
                return sum(kept for kept, _ in left), sum(deletes for _, deletes in left)
            except _TooManyKeys:
                if len(queues) > 1:
                    apart = [(queues[at : at + 1], ends[at : at + 1]) for at in range(len(queues))]
                    left = [self._of_queues(topic_id, item, *one) for one in apart]
                    return sum(kept for kept, _ in left), sum(deletes for _, deletes in left)
                slices *= 4

    def _of_slice(self, topic_id: int, queues: U32, ends: I64, latest: _Latest) -> tuple[int, int]:
        offsets = np.zeros(len(queues), np.int64)
        while True:
            active = np.flatnonzero(offsets < ends)
            if not len(active):
                break
            began_s = self._clock.monotonic()
            found = self._queries.read_many(
                topic_id, queues[active], offsets[active], max_records=_READ_RECORDS, max_bytes=_READ_BYTES
            )
            moved, next_offsets = found.positions
            if not len(moved):
                break
            places = active[queues[active].searchsorted(moved)]
            for batch in split_batches(found.load(), source="compaction"):
                latest.add(topic_id, batch, queues, offsets, ends)
            np.maximum.at(offsets, places, next_offsets)
            if self._pause((self._clock.monotonic() - began_s) * (1 / _SHARE - 1)):
                raise _Stopped
        return latest.finish(topic_id, self._time.expired_before(_delete_retention_ms(latest.item)))


class _Latest:
    """The last message of each key, of some queues and a part of the keys."""

    def __init__(self, item: TopicState, delete: Callable[[int, U32, I64], None], slices: int, part: int) -> None:
        self.item = item
        self._delete = delete
        self._slices, self._part = np.uint64(slices), np.uint64(part)
        self._pieces: list[tuple[Values, ...]] = []
        self._held = 0
        self._limit = MAX_HELD_KEYS
        self._without_key = 0

    def add(self, topic_id: int, batch: RecordBatch, queues: U32, begins: I64, ends: I64) -> None:
        """The messages of a batch that lie between ``begins`` and ``ends`` of the sorted ``queues``."""

        def column(number: Column) -> Values:
            return decode_column(batch.buffer, batch.directory.get(number), batch.record_count, DTYPES[number])

        queue, offset = column(Column.QUEUE), column(Column.OFFSET).astype(np.int64)
        at = np.minimum(queues.searchsorted(queue), len(queues) - 1)
        mine = (queues[at] == queue) & (offset >= begins[at]) & (offset < ends[at])
        if Column.TOPIC in batch.directory:
            mine &= column(Column.TOPIC) == topic_id
        digest, flags = column(Column.KEY_HASH), column(Column.FLAGS)
        mine &= flags & np.uint8(Flag.TOMBSTONE | Flag.POSITION) == 0
        keyed = mine & (digest != 0)
        if self._part == 0:
            self._without_key += int(np.count_nonzero(mine & ~keyed))
        # The lower bits of the hash have chosen the queue: all keys here may have the same.
        rows = np.flatnonzero(keyed & ((digest >> np.uint64(32)) % self._slices == self._part))
        second, whole = _second_hashes(batch, rows)
        rows = rows[whole]
        self._pieces.append(
            (queue[rows], digest[rows], second[whole], offset[rows], column(Column.STORED_MS)[rows], flags[rows])
        )
        self._held += len(rows)
        if self._held > self._limit:
            self._reduce(topic_id)

    def _reduce(self, topic_id: int) -> None:
        """Keep the last message of each key, and delete the others."""
        if not self._pieces:
            return
        columns = [np.concatenate(piece) for piece in zip(*self._pieces, strict=True)]
        queue, first, second, offset, _, _ = columns
        order = np.lexsort((offset, second, first, queue))
        queue, first, second, offset, stored_ms, flags = (values[order] for values in columns)
        last = np.ones(len(order), np.bool_)
        last[:-1] = (queue[1:] != queue[:-1]) | (first[1:] != first[:-1]) | (second[1:] != second[:-1])
        self._drop(topic_id, queue[~last], offset[~last])
        self._pieces = [tuple(values[last] for values in (queue, first, second, offset, stored_ms, flags))]
        self._held = int(np.count_nonzero(last))
        if self._held > MAX_HELD_KEYS:
            raise _TooManyKeys
        self._limit = 2 * MAX_HELD_KEYS

    def finish(self, topic_id: int, expired_before_ms: int) -> tuple[int, int]:
        """Delete what is left to delete; how many messages are left, and how many of them say that a key is gone."""
        self._reduce(topic_id)
        if not self._pieces:
            return self._without_key, 0
        queue, _, _, offset, stored_ms, flags = self._pieces[0]
        gone = flags & np.uint8(Flag.DELETE) != 0
        over = gone & (stored_ms < expired_before_ms)
        self._drop(topic_id, queue[over], offset[over])
        left = len(queue) - int(np.count_nonzero(over))
        return left + self._without_key, int(np.count_nonzero(gone & ~over))

    def _drop(self, topic_id: int, queues: Values, offsets: Values) -> None:
        order = np.lexsort((offsets, queues))
        for first in range(0, len(order), _DELETED_AT_ONCE):
            some = order[first : first + _DELETED_AT_ONCE]
            self._delete(topic_id, queues[some].astype(np.uint32), offsets[some].astype(np.int64))


def _second_hashes(batch: RecordBatch, rows: I64) -> tuple[U64, NDArray[np.bool_]]:
    """A hash of each message's key that KEY_HASH says nothing of; and which of them have a key that can be read."""
    ends = list(accumulate(batch.column(Column.LENGTH)))
    lengths, header_lengths = batch.column(Column.LENGTH), batch.column(Column.HEADER_LENGTH)
    payload = batch.payload
    hashes, whole = np.zeros(len(rows), np.uint64), np.ones(len(rows), np.bool_)
    for at, row in enumerate(rows.tolist()):
        start = ends[row] - lengths[row]
        try:
            key = decode_header(payload[start : start + header_lengths[row]]).key
        except InvalidBatch:
            key = None
        if key is None:
            whole[at] = False
        else:
            raw = key.encode() if isinstance(key, str) else key
            hashes[at] = xxhash.xxh3_64_intdigest(raw, _SECOND_SEED)
    return hashes, whole


def _delete_retention_ms(item: TopicState) -> int:
    given = item.topic.options.delete_retention_ms
    return DELETE_RETENTION_MS if given is None else given
