"""Messages of many queues at once: the way of consumers that own many queues.

Offsets have no gaps, so what is wanted of each queue is known before anything is looked at: a range of offsets. Each
source, newest first, is asked for all ranges at once and gives what it has of them; the older ones are asked for what
is left. Inside a table, the ranges are spread over its blocks by one search of the index, and a block is read once for
all the queues that have records in it.

Queues with blocks of their own are left to :mod:`.reader`, which sends such blocks as they are.

Not supported: topics with tombstones.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from lsmq.record_batch import Column

from .block import Block
from .block_pieces import BlockPieces
from .bloom import Probes, bloom_probes
from .columns import I64, U64, group_starts, spread, stable_sort
from .index import IndexColumn, PageRows
from .sieve import Sieve
from .sorted_records import SortedPart, SortedRecords, TooMuch, concatenate, select
from .table import Table
from .version import TableRun, Version

RangePart = tuple[SortedRecords, I64]
"""Records, and for each the queue it belongs to: an index into the queues asked for."""

#: Records of so few queues are cut out of a block one by one.
_FEW_QUEUES = 4


class RangeReader:
    """Reads ranges of offsets of many queues. One thread at a time.

    Attributes:
        apart: queues (indices into ``keys``) that are to be read one by one: they have blocks of their own, or
            something is not as it should be and the thorough search says what. Nothing of them is in the result.
    """

    def __init__(self, keys: U64, starts: I64, ends: I64, limit_bytes: int, sieve: Sieve | None = None) -> None:
        """Of queue ``keys[i]``, in any order, the records ``[starts[i], ends[i])``, which exist, all or those that
        ``sieve`` lets through.

        No more than ``limit_bytes`` of records are held: ``TooMuch`` says that there are more.
        """
        self._order, self._keys = stable_sort(keys)
        self._starts = starts[self._order]
        self._wanted_ends = ends[self._order]
        self._limit_bytes = limit_bytes
        self._sieve = sieve
        self.apart = np.zeros(len(keys), np.bool_)

    @property
    def distinct(self) -> bool:
        """Whether no queue is asked for twice; only then may be read."""
        return bool((self._keys[1:] != self._keys[:-1]).all())

    def _begin(self) -> None:
        self._ends = self._wanted_ends.copy()  # not found yet: [starts, ends)
        self._left = np.arange(len(self._keys))  # the queues of which something is not found yet
        self._found: list[RangePart] = []
        self._cuts = BlockPieces()
        self._cut_owners: list[int] = []
        self._pieces: list[tuple[I64, I64, I64]] = []  # of the present source: owners, first offsets, counts
        self._room_bytes = self._limit_bytes
        self._apart = np.zeros(len(self._keys), np.bool_)

    def read(self, version: Version) -> RangePart | None:
        """The records, ordered as the queues are, and by offset, and the queue of each. None when there is nothing.

        Raises ``TooMuch``, ``CorruptFile``, or ``FileNotFoundError`` for a table that was merged away meanwhile.
        """
        self._begin()
        for memtable in version.memtables:
            for chunks in memtable.newest_first() if len(self._left) else ():
                for chunk in chunks:
                    self._from_part(chunk, self._left)
                self._close_source()
                if not len(self._left):
                    break
        for run in version.runs():
            if len(self._left):
                self._from_run(run)
                self._close_source()
        self._apart[self._left] = True
        self.apart[self._order] = self._apart
        return self._result()

    def _close_source(self) -> None:
        """What a source had must follow on from what is left, all of it."""
        if self._pieces:
            owners, offsets, counts = (np.concatenate(values) for values in zip(*self._pieces, strict=True))
            self._pieces = []
            first = self._ends.copy()
            np.minimum.at(first, owners, offsets)
            self._apart |= self._ends - first != np.bincount(owners, counts, len(self._keys))
            self._ends = first
        left = self._left
        self._left = left[(self._starts[left] < self._ends[left]) & ~self._apart[left]]

    def _from_run(self, run: TableRun) -> None:
        left = self._left
        halves, marks = bloom_probes(self._keys[left])
        for table in run.tables:
            meta = table.meta
            first, end = self._keys[left].searchsorted(np.array((meta.first_key, meta.last_key + 1), np.uint64))
            if first < end:
                self._from_table(table, left[first:end], (halves[first:end], marks[first:end]))

    def _from_table(self, table: Table, owners: I64, probes: Probes) -> None:
        keys, root = self._keys[owners], table.root()
        numbers = root.column(IndexColumn.LAST_KEY).searchsorted(keys)
        lasts = root.column(IndexColumn.FIRST_KEY).searchsorted(keys, "right") - 1
        inside = numbers == lasts
        if not inside.all():
            self._apart[owners[numbers < lasts]] = True  # of more pages than one: most likely with blocks of its own
            owners, numbers, probes = owners[inside], numbers[inside], (probes[0][inside], probes[1][inside])
        if len(owners) == 0:
            return
        starts = group_starts(numbers)
        rows = PageRows([table.page(number) for number in numbers[starts].tolist()])
        which = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(numbers))) if len(starts) > 1 else starts
        may_have = rows.may_contain_many(probes, which)
        if may_have.any():
            self._from_rows(table, rows, owners[may_have])

    def _from_rows(self, table: Table, rows: PageRows, owners: I64) -> None:
        firsts, counts, alone = rows.blocks_of(self._keys[owners], self._starts[owners], self._ends[owners])
        self._apart[owners[alone]] = True
        some = (counts > 0) & ~alone
        if not some.any():
            return
        owners, numbers = np.repeat(owners[some], counts[some]), spread(firsts[some], counts[some])
        positions, sizes = rows.column(IndexColumn.POSITION), rows.column(IndexColumn.SIZE)
        few: list[tuple[int, int, int]] = []
        for group, stop in pairwise((*group_starts(numbers).tolist(), len(numbers))):
            number = numbers.item(group)
            block = table.block(positions.item(number), sizes.item(number))
            if stop - group > _FEW_QUEUES or self._sieve is not None:
                self._from_part(block, owners[group:stop])
            else:
                self._cut(block, owners[group:stop].tolist(), few)
        if few:
            pieces = np.array(few, np.int64)
            self._pieces.append((pieces[:, 0], pieces[:, 1], pieces[:, 2]))

    def _cut(self, block: Block, owners: list[int], pieces: list[tuple[int, int, int]]) -> None:
        """Take the records of so few queues that arrays are not worth making."""
        for owner in owners:
            key = self._keys.item(owner)
            at, stop = block.span(key)
            if at < stop:
                begins = block.offset(at)
                low = max(begins, self._starts.item(owner))
                high = min(begins + stop - at, self._ends.item(owner))
                if low < high:
                    self._room_bytes -= self._cuts.add(block, key, at + low - begins, at + high - begins)
                    if self._room_bytes < 0:
                        raise TooMuch
                    self._cut_owners.append(owner)
                    pieces.append((owner, low, high - low))

    def _from_part(self, part: SortedPart, owners: I64) -> None:
        here, firsts, counts = part.spans(self._keys[owners])
        if len(here) == 0:
            return
        owners, begins = owners[here], part.column_at(Column.OFFSET, firsts)
        skips = np.maximum(self._starts[owners] - begins, 0)
        counts = np.minimum(counts, self._ends[owners] - begins) - skips
        some = counts > 0
        if some.any():
            owners, offsets, counts = owners[some], (begins + skips)[some], counts[some]
            rows, whose = spread((firsts + skips)[some], counts), np.repeat(owners, counts)
            if self._sieve is not None:
                keep = self._sieve.look(lambda column: part.column_at(column, rows), len(rows))
                rows, whose = rows[keep], whose[keep]
            self._pieces.append((owners, offsets, counts))
            if len(rows):
                records = part.chosen(rows, self._room_bytes)
                self._room_bytes -= len(records.payload)
                self._found.append((records, whose))

    def _result(self) -> RangePart | None:
        """All that was found and is not apart, in order."""
        if len(self._cuts):
            self._found.append((self._cuts.records(), np.repeat(np.array(self._cut_owners), self._cuts.counts)))
        if not self._found:
            return None
        records = concatenate([records for records, _ in self._found])
        found = np.concatenate([owners for _, owners in self._found])
        steps, owners = records.offsets - self._starts[found], self._order[found]
        bits = int((self._wanted_ends - self._starts).max()).bit_length()
        order, _ = stable_sort(owners << bits | steps)
        order = order[~self.apart[owners[order]]]
        if len(order) == 0:
            return None
        return select(records, order), owners[order]
