"""How much of a topic a shard holds, and how that lies in time: by the tables' samples, and what is in memory.

Nothing is counted message by message: a table's sample (:mod:`.sample`) says which part of its bytes can be read and
when that was stored, right up to a point of it; of a memtable about as many points are taken. What is measured is
measured anew only where something has changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsmq.errors import CorruptFile
from lsmq.record_batch import Column

from .columns import I64, U64
from .compaction import LogStarts, below
from .memtable import Memtable
from .sample import MAX_POINTS, Sample
from .state import TopicState
from .table import Table
from .tables import TableSet

_ROUNDING = 0.5
#: Samples that are kept in memory, of 12 KiB at most.
_KEPT_SAMPLES = 256


@dataclass(frozen=True, slots=True)
class Extent:
    """Points of a topic's messages: when each was stored, and for how many bytes and messages it stands."""

    stored_ms: I64
    sizes: NDArray[np.float64]
    counts: NDArray[np.float64]

    @property
    def size_bytes(self) -> int:
        return int(self.sizes.sum())

    def time_of_newest(self, size_bytes: int) -> int:
        """What was stored before this is not among the newest so many bytes; 0 where all is.

        What is left is rather more than that, by less than a point.
        """
        order, newest_first = self._newest_first(self.sizes)
        reached = int(newest_first.searchsorted(size_bytes))
        return int(self.stored_ms[order[reached]]) if reached < len(order) else 0

    def time_of_oldest(self, size_bytes: float) -> int:
        """What was stored before this is the oldest so many bytes, or rather more, by less than a point.

        What was stored at the time of the newest message stays.
        """
        return self._time_of_oldest(self.sizes, size_bytes)

    def time_of_oldest_part(self, part: float) -> int:
        """Likewise of so great a part of the messages."""
        return self._time_of_oldest(self.counts, part * float(self.counts.sum()))

    def _time_of_oldest(self, weights: NDArray[np.float64], weight: float) -> int:
        order, newest_first = self._newest_first(weights)
        if not len(order):
            return 0
        kept = int(newest_first.searchsorted(newest_first[-1] - weight + _ROUNDING, "right"))
        return int(self.stored_ms[order[max(kept - 1, 0)]])

    def _newest_first(self, weights: NDArray[np.float64]) -> tuple[I64, NDArray[np.float64]]:
        order = np.argsort(-self.stored_ms, kind="stable")
        return order, np.cumsum(weights[order])


def joined(extents: list[Extent]) -> Extent:
    """Of several topics."""
    if not extents:
        return Extent(np.zeros(0, np.int64), np.zeros(0, np.float64), np.zeros(0, np.float64))
    return Extent(
        np.concatenate([extent.stored_ms for extent in extents]),
        np.concatenate([extent.sizes for extent in extents]),
        np.concatenate([extent.counts for extent in extents]),
    )


class Extents:
    """One thread at a time."""

    def __init__(self, tables: TableSet, log_starts: LogStarts) -> None:
        self._tables = tables
        self._log_starts = log_starts
        self._samples: dict[int, Sample] = {}
        self._known: dict[int, tuple[Any, Extent]] = {}

    def forget(self, topics: set[int]) -> None:
        """Keep what is known of these topics alone, and of tables that there are."""
        self._known = {topic: known for topic, known in self._known.items() if topic in topics}
        present = {table.meta.number for table in self._tables.version.tables()} if topics else set()
        self._samples = {number: sample for number, sample in self._samples.items() if number in present}

    def of(self, item: TopicState) -> Extent:
        """How a topic lies now."""
        topic_id = item.topic.id
        version = self._tables.version
        tables = [table for table in version.tables() if topic_id in table.meta.topics]
        mark = (item.version, item.losses, tuple(table.meta.number for table in tables))
        known = self._known.get(topic_id)
        if known is not None and known[0] == mark:
            return known[1]
        extents = [extent for table in tables if (extent := self._of_table(table, topic_id)) is not None]
        extents += [_of_memtable(memtable, item) for memtable in version.memtables]
        extent = joined(extents)
        self._known[topic_id] = mark, extent
        return extent

    def _of_table(self, table: Table, topic_id: int) -> Extent | None:
        """None for one that cannot be read: rather too much stays than too little."""
        try:
            sample = self._sample(table)
        except (CorruptFile, FileNotFoundError):
            return None
        first, end = sample.keys.searchsorted(np.array((topic_id << 32, (topic_id + 1) << 32), np.uint64))
        if first == end:
            return None
        gone = below(sample.keys[first:end], sample.offsets[first:end], self._log_starts)
        gone |= sample.before(table.meta.first_key, table.meta.first_offset)[first:end]
        stored_ms = sample.stored_ms[first:end][~gone]
        at = table.meta.topics.index(topic_id)
        each = table.meta.topic_bytes[at] / (end - first)
        counts = _counts(sample.keys[first:end], sample.offsets[first:end], table.meta.topic_records[at])
        return Extent(stored_ms, np.full(len(stored_ms), each), counts[~gone])

    def _sample(self, table: Table) -> Sample:
        number = table.meta.number
        found = self._samples.get(number)
        if found is None:
            found = table.sample()
            if len(self._samples) < _KEPT_SAMPLES:
                self._samples[number] = found
        return found


def _counts(keys: U64, offsets: I64, records: int) -> NDArray[np.float64]:
    """For how many of so many records each point stands: those since the one before it in its queue, and of the others
    the first points for as many each."""
    counts = np.diff(offsets, prepend=0).astype(np.float64)
    firsts = np.diff(keys, prepend=keys[:1] - np.uint64(1)) != 0
    counts[firsts] = max(0.0, records - float(counts[~firsts].sum())) / np.count_nonzero(firsts)
    return counts


def _of_memtable(memtable: Memtable, item: TopicState) -> Extent:
    keys, columns = memtable.arrived()
    rows = np.flatnonzero(keys >> np.uint64(32) == np.uint64(item.topic.id))
    if len(rows):
        queues = (keys[rows] & np.uint64(0xFFFFFFFF)).astype(np.int64) - item.first
        rows = rows[columns[Column.OFFSET][rows] >= item.live_from(queues)]
    sizes, counts = columns[Column.LENGTH][rows].astype(np.float64), np.ones(len(rows))
    stored_ms = columns[Column.STORED_MS][rows]
    if len(rows) > MAX_POINTS:
        firsts = np.arange(0, len(rows), -(-len(rows) // MAX_POINTS))
        sizes, counts = np.add.reduceat(sizes, firsts), np.add.reduceat(counts, firsts)
        stored_ms = stored_ms[firsts]
    return Extent(stored_ms, sizes, counts)
