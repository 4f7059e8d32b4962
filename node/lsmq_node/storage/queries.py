"""Questions a store answers: bounds of queues, messages by offset, by many queues at once, by time."""

from __future__ import annotations

import numpy as np

from lsmq.errors import OffsetOutOfRange, UnknownQueue, UnknownTopic
from lsmq.record_batch import Column

from .columns import I64, U32, queue_key, queue_keys
from .memtable import SortedRecords
from .reader import FileRange, Slice, concatenate, encode_records, read_memtables_many, read_queue
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
        found = Slice(queues=np.array((queue,), np.uint32))
        next_offset = self._read_into(found, topic_id, queue, offset, latest, max_records, max_bytes)
        found.next_offsets = np.array((next_offset,), np.int64)
        return found

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
        found = Slice()
        if len(active) == 0:
            return found
        if len(active) > 1 and not state.deletes:
            fast = self._read_memtable(topic_id, queues[active], starts[active], max_records, max_bytes)
            if fast is not None:
                return fast
        moved, positions = [], []
        for at in active.tolist():
            if found.record_count >= max_records or found.size_bytes >= max_bytes:
                break
            queue = int(queues[at])
            position = self._read_into(
                found,
                topic_id,
                queue,
                int(starts[at]),
                int(latest[at]),
                max_records - found.record_count,
                max_bytes - found.size_bytes,
            )
            moved.append(queue)
            positions.append(position)
        found.queues, found.next_offsets = np.array(moved, np.uint32), np.array(positions, np.int64)
        return found

    def _read_memtable(self, topic_id: int, queues: U32, starts: I64, max_records: int, max_bytes: int) -> Slice | None:
        """The fast way: all that is wanted is in the newest memtable. One batch for any number of queues."""
        count = min(len(queues), max_records)
        order = np.argsort(queues[:count], kind="stable")
        wanted, offsets = queues[:count][order], starts[:count][order]
        if (wanted[1:] == wanted[:-1]).any():
            return None
        many = read_memtables_many(self._tables.version, queue_keys(topic_id, wanted), offsets, max_records)
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
        part = encode_records(records)
        return Slice(
            [part],
            wanted[owners[lasts]],
            records.columns[Column.OFFSET][lasts] + 1,
            len(records),
            len(part),
        )

    def _read_into(
        self,
        found: Slice,
        topic_id: int,
        queue: int,
        offset: int,
        latest: int,
        max_records: int,
        max_bytes: int,
    ) -> int:
        if offset >= latest:
            return offset
        state = self.topic_state(topic_id)
        while True:
            version = self._tables.version
            try:
                read = read_queue(
                    version,
                    queue_key(topic_id, queue),
                    offset,
                    latest,
                    max_records,
                    max_bytes,
                    deletes=state.deletes > 0,
                )
                break
            except FileNotFoundError as error:  # merged away between choosing and opening the table
                if self._tables.version is version:
                    raise self._tables.missing_table(error) from error
        small: list[SortedRecords] = []
        for part in read.parts:
            if isinstance(part, FileRange):
                if small:
                    found.parts.append(encode_records(concatenate(small)))
                    small = []
                found.parts.append(part)
            else:
                small.append(part)
        if small:
            found.parts.append(encode_records(concatenate(small)))
        found.record_count += read.record_count
        found.size_bytes += read.size_bytes
        self._counters.records_read += read.record_count
        return read.next_offset

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
