"""Reading many queues within one limit: rounds of queues with little to read, and the others one by one."""

from __future__ import annotations

from itertools import groupby
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lsmq.record_batch import Column

from .columns import I64, U32, queue_keys
from .file_range import FileRange
from .ranges import RangePart, RangeReader
from .reader import RECORD_OVERHEAD_BYTES, QueueRead, Slice
from .sieve import Sieve
from .sorted_records import SortedRecords, TooMuch, concatenate, encode_records, select

#: Queues with no more records to read than this are read together; others may have whole blocks to send.
FEW_RECORDS = 256
#: Records of the first round, before anything is known of their size.
FIRST_ROUND_RECORDS = 256
#: Where little is let through, rounds become this large.
MOST_ROUND_RECORDS = 32_768
#: A round holds at most this many times the bytes that may still be returned.
ROUND_FACTOR = 4
ROUND_BYTES = 256 * 1024


class Sources(Protocol):
    """Where records come from."""

    def read_records(
        self,
        topic_id: int,
        queue: int,
        offset: int,
        end: int,
        max_records: int,
        max_bytes: int,
        sieve: Sieve | None = None,
    ) -> QueueRead:
        """Records of one queue."""

    def read_ranges(self, ranges: RangeReader) -> RangePart | None:
        """Records of many queues."""


class ReadCollector:
    """Collects what was read, within a limit of records and bytes. The first record is always taken.

    With a sieve it is full, too, when that is spent.
    """

    def __init__(self, max_records: int, max_bytes: int, sieve: Sieve | None = None) -> None:
        self.sieve = sieve
        self.records_left = max_records
        self.bytes_left = max_bytes
        self.record_count = 0
        self._parts: list[SortedRecords | FileRange] = []
        self._queues: list[U32] = []
        self._next_offsets: list[I64] = []

    @property
    def has_room(self) -> bool:
        """Whether it may hold more."""
        return self.records_left > 0 and self.bytes_left > 0

    @property
    def full(self) -> bool:
        return not self.has_room or (self.sieve is not None and self.sieve.spent)

    def add_queue(self, queue: int, found: QueueRead) -> None:
        """Add what was read of one queue."""
        self._parts += found.parts
        self._moved(np.array((queue,), np.uint32), np.array((found.next_offset,), np.int64))
        self._count(found.record_count, found.size_bytes)
        if found.full:
            self.bytes_left = 0

    def add_let_through(
        self, records: SortedRecords | None, ranks: I64, first: int, queues: U32, starts: I64, ends: I64
    ) -> None:
        """Add what a sieve has let through of the queues from rank ``first`` on: all of them move to their ends, unless
        there is too much; then up to the first record that is left out."""
        taken = len(queues)
        if records is not None and len(records):
            sizes = np.cumsum(records.lengths.astype(np.int64) + RECORD_OVERHEAD_BYTES)
            keep = min(self._fitting(sizes), self.records_left)
            if keep < len(records):
                taken = int(ranks[keep]) - first
                self._moved(queues[taken : taken + 1], np.maximum(records.offsets[keep : keep + 1], starts[taken]))
                self.bytes_left = 0
            if keep:
                self._parts.append(_part(records, 0, keep))
                self._count(keep, int(sizes[keep - 1]))
        if taken:
            self._moved(queues[:taken], ends[:taken])

    def _fitting(self, sizes: I64) -> int:
        """How many of records fit, of which these are the sizes summed up."""
        return max(int(sizes.searchsorted(self.bytes_left, "right")), int(self.record_count == 0))

    def add_records(self, records: SortedRecords, ranks: I64, queues: U32) -> None:
        """Add records of many queues; ``ranks`` says of each which of ``queues`` it belongs to, ascending."""
        sizes = np.cumsum(records.columns[Column.LENGTH].astype(np.int64) + RECORD_OVERHEAD_BYTES)
        keep = self._fitting(sizes)
        if keep < len(records):
            self.bytes_left = 0
            records, ranks = select(records, np.arange(keep)), ranks[:keep]
        if keep:
            lasts = np.append(np.flatnonzero(ranks[1:] != ranks[:-1]), keep - 1)
            self._parts.append(records)
            self._moved(queues[ranks[lasts]], records.columns[Column.OFFSET][lasts] + 1)
            self._count(keep, int(sizes[keep - 1]))

    def pass_over(self, queues: U32, next_offsets: I64) -> None:
        """Queues of which all that was asked for is deleted."""
        if len(queues):
            self._moved(queues, next_offsets)

    def _moved(self, queues: U32, next_offsets: I64) -> None:
        self._queues.append(queues)
        self._next_offsets.append(next_offsets)

    def _count(self, record_count: int, size_bytes: int) -> None:
        self.record_count += record_count
        self.records_left -= record_count
        self.bytes_left -= size_bytes

    def slice(self) -> Slice:
        """Encode what was read: neighbours in memory become one batch."""
        spent = self.sieve is not None and self.sieve.spent
        if not self._queues:
            return Slice(spent=spent)
        encoded: list[bytes | FileRange] = []
        for in_memory, group in groupby(self._parts, lambda part: isinstance(part, SortedRecords)):
            if in_memory:
                encoded.append(encode_records(concatenate([part for part in group if isinstance(part, SortedRecords)])))
            else:
                encoded.extend(part for part in group if isinstance(part, FileRange))
        size = sum(len(part) if isinstance(part, bytes) else part.length for part in encoded)
        queues, next_offsets = np.concatenate(self._queues), np.concatenate(self._next_offsets)
        return Slice(encoded, queues, next_offsets, self.record_count, size, spent)


class ManyRead:
    """One read of ranges ``[starts[i], ends[i])`` of many queues of a topic, served in their order."""

    def __init__(
        self, sources: Sources, topic_id: int, queues: U32, starts: I64, ends: I64, answer: ReadCollector
    ) -> None:
        self._sources = sources
        self._topic_id = topic_id
        self._queues = queues
        self._starts = starts
        self._ends = ends
        self._answer = answer
        self._round_records = FIRST_ROUND_RECORDS

    def read(self, whole: NDArray[np.bool_]) -> None:
        """Fill the answer. Queues that are not ``whole``, since messages of them are deleted, are read one by one."""
        answer = self._answer
        single = np.flatnonzero(~whole | (np.minimum(self._ends - self._starts, answer.records_left) > FEW_RECORDS))
        at = 0
        for stop in (*single.tolist(), len(self._queues)):
            while at < stop and not answer.full:
                at += self._read_round(at, stop)
            if answer.full:
                return
            if stop < len(self._queues):
                self._read_one(stop)
                at = stop + 1

    def _read_one(self, at: int) -> None:
        answer = self._answer
        if not answer.full:
            queue, start, end = int(self._queues[at]), int(self._starts[at]), int(self._ends[at])
            answer.add_queue(
                queue,
                self._sources.read_records(
                    self._topic_id, queue, start, end, answer.records_left, answer.bytes_left, answer.sieve
                ),
            )

    def _read_round(self, at: int, stop: int) -> int:
        """Read the first of the queues ``[at, stop)`` at once; returns how many."""
        answer, sieve = self._answer, self._answer.sieve
        most = answer.records_left if sieve is None else sieve.records_left
        budget = min(self._round_records, most)
        if sieve is not None:
            budget = max(1, min(budget, sieve.most_at_once))
        totals = np.cumsum(self._ends[at:stop] - self._starts[at:stop])
        count = min(int(totals.searchsorted(budget)) + 1, stop - at)
        queues, starts = self._queues[at : at + count], self._starts[at : at + count]
        ends = self._ends[at : at + count].copy()
        ends[-1] -= max(0, int(totals[count - 1]) - most)
        keys = queue_keys(self._topic_id, queues)
        ranges = RangeReader(keys, starts, ends, ROUND_FACTOR * answer.bytes_left + ROUND_BYTES, sieve)
        if count == 1 or not ranges.distinct:
            for number in range(at, at + count):
                self._read_one(number)
            return count
        try:
            found = self._sources.read_ranges(ranges)
        except TooMuch:
            self._round_records = max(1, budget // ROUND_FACTOR)
            return 0
        records, ranks = None, np.empty(0, np.int64)
        if sieve is not None:
            self._round_records = min(ROUND_FACTOR * budget, MOST_ROUND_RECORDS)
        if found is not None and sieve is not None:
            records, ranks = sieve.passing_of(*found)
        elif found is not None:
            records, ranks = found
            self._round_records = (
                answer.bytes_left // (len(records.payload) // len(records) + RECORD_OVERHEAD_BYTES) + 1
            )
        done = first = 0
        for rank in (*np.flatnonzero(ranges.apart).tolist(), count):
            end = int(ranks.searchsorted(rank))
            if sieve is not None:
                if first < rank and answer.has_room:
                    some = None if records is None else _part(records, done, end)
                    moved = queues[first:rank], starts[first:rank], ends[first:rank]
                    answer.add_let_through(some, ranks[done:end], first, *moved)
                first = rank + 1
            elif records is not None and done < end and not answer.full:
                answer.add_records(_part(records, done, end), ranks[done:end], queues)
            if rank < count:
                self._read_one(at + rank)
            done = end
        return count


def _part(records: SortedRecords, first: int, end: int) -> SortedRecords:
    return records if end - first == len(records) else select(records, np.arange(first, end))
