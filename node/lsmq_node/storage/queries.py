"""Questions a store answers: bounds of queues, messages by offset, by many queues at once, by time."""

from __future__ import annotations

from itertools import groupby

import numpy as np

from lsmq.errors import CorruptFile, OffsetOutOfRange, UnknownQueue, UnknownTopic
from lsmq.record_batch import Column

from .columns import I64, U32, queue_key, queue_keys
from .memtable import SortedRecords
from .reader import (
    FileRange,
    MissingRecords,
    QueueRead,
    Slice,
    concatenate,
    encode_records,
    read_memtables_many,
    read_queue,
)
from .state import ShardState, TopicState
from .stats import Counters
from .tables import TableSet


class Queries:
    """Reads of a store. Thread-safe; no lock is held while the disk is read."""

    def __init__(self, state: ShardState, tables: TableSet, counters: Counters) -> None:
        self._state = state
        self._tables = tables
        self._counters = counters

    def topic_state(self, topic_id: int) -> TopicState:
        """Raises ``UnknownTopic``."""
        state = self._state.topics.get(topic_id)
        if state is None:
            raise UnknownTopic(f"there is no topic with id {topic_id}", topic_id=topic_id)
        return state

    def bounds(self, topic_id: int, queue: int) -> tuple[int, int]:
        """First offset kept and next offset to be read of a queue. Raises ``UnknownTopic``, ``UnknownQueue``."""
        state = self.topic_state(topic_id)
        if not state.first <= queue < state.end:
            raise UnknownQueue(
                f"topic {state.topic.name!r} has queues 0 to {state.topic.queues - 1}; there is no queue {queue} here",
                topic=state.topic.name,
                queue=queue,
                queues=state.topic.queues,
            )
        return int(state.start[queue - state.first]), int(state.committed[queue - state.first])

    def latest_offsets(self, topic_id: int, queues: U32 | None = None) -> I64:
        """The next offset a reader will see of each queue; of all of them when ``queues`` is None."""
        state = self.topic_state(topic_id)
        return self.values(state, state.committed, queues)

    def earliest_offsets(self, topic_id: int, queues: U32 | None = None) -> I64:
        """The first offset kept of each queue; of all of them when ``queues`` is None."""
        state = self.topic_state(topic_id)
        return self.values(state, state.start, queues)

    def values(self, state: TopicState, values: I64, queues: U32 | None) -> I64:
        if queues is None:
            return values[: state.end - state.first].copy()
        wanted = np.asarray(queues, np.int64)
        if len(wanted) and not (state.first <= wanted.min() and wanted.max() < state.end):
            raise UnknownQueue(
                f"topic {state.topic.name!r} has queues 0 to {state.topic.queues - 1}, not {int(wanted.min())} to "
                f"{int(wanted.max())}",
                topic=state.topic.name,
                queues=state.topic.queues,
            )
        return values[wanted - state.first]

    def read(
        self, topic_id: int, queue: int, offset: int, *, max_records: int = 1000, max_bytes: int = 1 << 20
    ) -> Slice:
        """Records of a queue from ``offset`` on, at least one when there is one.

        Raises ``OffsetOutOfRange`` with ``earliest`` and ``latest`` unless ``offset`` is between them,
        ``CorruptFile`` when a table is damaged.
        """
        earliest, latest = self.bounds(topic_id, queue)
        if not earliest <= offset <= latest:
            topic = self.topic_state(topic_id).topic.name
            raise OffsetOutOfRange(
                f"offset {offset} is not in queue {queue} of topic {topic!r}, which holds {earliest} to {latest - 1} "
                f"(next: {latest})",
                topic=topic,
                queue=queue,
                earliest=earliest,
                latest=latest,
            )
        found = self.read_records(topic_id, queue, offset, latest, max_records, max_bytes)
        return _slice(found.parts, [queue], [found.next_offset], found.record_count)

    def read_many(
        self, topic_id: int, queues: U32, offsets: I64, *, max_records: int = 1000, max_bytes: int = 1 << 20
    ) -> Slice:
        """Records of many queues; cost follows what is returned. Queues are served in the order given.

        An offset below the earliest starts at the earliest; one at or beyond the latest finds nothing.
        """
        state = self.topic_state(topic_id)
        latest = self.values(state, state.committed, queues)
        starts = np.maximum(offsets, self.values(state, state.start, queues))
        active = np.flatnonzero(starts < latest)
        if len(active) == 0:
            return Slice()
        if len(active) > 1 and not state.deletes:
            fast = self._read_memtable(topic_id, queues[active], starts[active], max_records, max_bytes)
            if fast is not None:
                return fast
        parts: list[SortedRecords | FileRange] = []
        moved: list[int] = []
        positions: list[int] = []
        records_left, bytes_left = max_records, max_bytes
        for at in active.tolist():
            if records_left <= 0 or bytes_left <= 0:
                break
            queue, start, end = int(queues[at]), int(starts[at]), int(latest[at])
            found = self.read_records(topic_id, queue, start, end, records_left, bytes_left)
            parts += found.parts
            moved.append(queue)
            positions.append(found.next_offset)
            records_left -= found.record_count
            bytes_left -= found.size_bytes
        return _slice(parts, moved, positions, max_records - records_left)

    def _read_memtable(self, topic_id: int, queues: U32, starts: I64, max_records: int, max_bytes: int) -> Slice | None:
        """The fast way: all that is wanted is in the newest memtable. One batch for any number of queues."""
        count = min(len(queues), max_records)
        order = np.argsort(queues[:count], kind="stable")
        wanted, offsets = queues[:count][order], starts[:count][order]
        if (wanted[1:] == wanted[:-1]).any():
            return None
        many = read_memtables_many(self._tables.version, queue_keys(topic_id, wanted), offsets, order, max_records)
        if many is None:
            return None
        records, owners = many
        sizes = np.cumsum(records.columns[Column.LENGTH], dtype=np.int64)
        keep = max(1, int(np.searchsorted(sizes, max_bytes, side="right")))
        if keep < len(records):
            columns = {column: values[:keep] for column, values in records.columns.items()}
            records = SortedRecords(records.keys[:keep], columns, records.payload[: int(sizes[keep - 1])])
            owners = owners[:keep]
        lasts = np.append(np.flatnonzero(owners[1:] != owners[:-1]), len(owners) - 1)
        self._counters.records_read += len(records)
        part = encode_records(records)
        next_offsets = records.columns[Column.OFFSET][lasts] + 1
        return Slice([part], wanted[owners[lasts]], next_offsets, len(records), len(part))

    def read_records(
        self, topic_id: int, queue: int, offset: int, end: int, max_records: int, max_bytes: int
    ) -> QueueRead:
        """A queue's records in ``[offset, end)`` as columns and whole blocks, not yet encoded.

        ``offset`` must not be below the queue's earliest, nor ``end`` beyond its latest.
        """
        state = self.topic_state(topic_id)
        key = queue_key(topic_id, queue)
        while True:
            version = self._tables.version
            deletes = state.deletes > 0  # asked after: what the version lacks was deleted before
            try:
                found = read_queue(version, key, offset, end, max_records, max_bytes, deletes=deletes)
            except FileNotFoundError as error:  # merged away between choosing and opening the table
                if self._tables.version is version:
                    raise self._tables.missing_table(error) from error
            except MissingRecords as missing:
                self.topic_state(topic_id)  # raises UnknownTopic when it was deleted while we were looking
                start = int(state.start[queue - state.first])
                if start <= missing.offset:
                    raise _lost(state, queue, missing.offset) from missing
                offset = min(max(offset, start), end)  # the log start moved on while we were looking
            else:
                self._counters.records_read += found.record_count
                return found

    def offset_for_time(self, topic_id: int, queue: int, time_ms: int) -> int:
        """First offset of the queue stored at or after ``time_ms``; the latest offset when there is none."""
        low, high = self.bounds(topic_id, queue)
        while low < high:
            middle = (low + high) // 2
            found = self.read(topic_id, queue, middle, max_records=1, max_bytes=1)
            first = next((batch for batch in found.batches() if batch.record_count), None)
            if first is None:
                high = middle
                continue
            offsets, stored = first.column(Column.OFFSET), first.column(Column.STORED_MS)
            at = next((i for i, offset in enumerate(offsets) if offset >= middle), len(offsets) - 1)
            if stored[at] >= time_ms:
                high = middle
            else:
                low = offsets[at] + 1
        return low

    def committed_offsets(self, group: str, topic_id: int, queues: U32 | None = None) -> I64:
        """A group's committed offsets; -1 where it has none."""
        state = self.topic_state(topic_id)
        values = self._state.offsets.get((group, topic_id))
        count = state.end - state.first
        whole = np.zeros(count, np.int64)
        if values is not None:
            known = min(count, len(values))
            whole[:known] = values[:known]
        whole -= 1
        return whole if queues is None else self.values(state, whole, queues)

    def groups(self) -> list[str]:
        """Names of the groups that have committed offsets here."""
        return sorted({group for group, _ in list(self._state.offsets)})


def _lost(state: TopicState, queue: int, offset: int) -> CorruptFile:
    return CorruptFile(
        f"offset {offset} of queue {queue} of topic {state.topic.name!r} was written and not deleted, but no table has "
        "it. Restore this shard from a replica or a backup.",
        topic=state.topic.name,
        queue=queue,
        offset=offset,
    )


def _slice(
    parts: list[SortedRecords | FileRange], queues: list[int], next_offsets: list[int], record_count: int
) -> Slice:
    """Encode what was read: neighbours in memory become one batch."""
    encoded: list[bytes | FileRange] = []
    for in_memory, group in groupby(parts, lambda part: isinstance(part, SortedRecords)):
        if in_memory:
            encoded.append(encode_records(concatenate([part for part in group if isinstance(part, SortedRecords)])))
        else:
            encoded.extend(part for part in group if isinstance(part, FileRange))
    size = sum(len(part) if isinstance(part, bytes) else part.length for part in encoded)
    return Slice(encoded, np.array(queues, np.uint32), np.array(next_offsets, np.int64), record_count, size)
