"""All tables of a damaged store as one stream of records in key order, whatever is missing of them.

Tables go into *runs* that do not overlap; of each run about ``READ_BYTES`` are held at a time. A record that several
tables have comes once, from the newest of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

import numpy as np

from lsmq.record_batch import Column

from ..columns import gather
from ..compaction import KeyPlace
from ..sorted_records import TOMBSTONE_TOPIC, SortedRecords, concatenate, select
from .table_scan import FIRST, LAST, TableSource, last_of

READ_BYTES = 2 << 20
#: Messages end before this place, and tombstones begin.
GRAVES: KeyPlace = (TOMBSTONE_TOPIC << 32, -1)
LAST_MESSAGE: KeyPlace = (GRAVES[0] - 1, LAST[1])

Scan = Callable[[TableSource, KeyPlace, KeyPlace], Iterator[SortedRecords]]


def runs_of(sources: Sequence[TableSource]) -> list[list[TableSource]]:
    """As few runs of tables that do not overlap as there can be."""
    ends: list[tuple[KeyPlace, int]] = []
    runs: list[list[TableSource]] = []
    for source in sorted(sources, key=lambda source: (source.first, source.number)):
        if ends and ends[0][0] < source.first:
            _, at = heapq.heapreplace(ends, (source.last, ends[0][1]))
            runs[at].append(source)
        else:
            heapq.heappush(ends, (source.last, len(runs)))
            runs.append([source])
    return runs


class HeldRecords:
    """What is held of a run of tables, or of any other records in order."""

    def __init__(self, pieces: Iterator[tuple[int, SortedRecords]]) -> None:
        self._pieces = pieces
        self._held: list[tuple[int, SortedRecords]] = []
        self._held_bytes = 0
        self.ended = False
        self.last: KeyPlace = FIRST

    def fill(self) -> bool:
        """Read on until enough is held. False when nothing is left."""
        while self._held_bytes < READ_BYTES and not self.ended:
            found = next(self._pieces, None)
            if found is None:
                self.ended = True
                break
            self._held.append(found)
            self._held_bytes += _size(found[1])
            self.last = last_of(found[1])
        return bool(self._held)

    def take_all(self, upto: KeyPlace) -> SortedRecords | None:
        """All that there is up to a place, included; of a run alone, in which nothing comes twice."""
        parts: list[SortedRecords] = []
        while self.fill():
            parts += (records for _, records in self.take(upto))
            if self._held:
                break
        return concatenate(parts) if parts else None

    def take(self, upto: KeyPlace) -> Iterator[tuple[int, SortedRecords]]:
        """Give away what there is up to a place, included, each with the rank of its table."""
        while self._held:
            rank, records = self._held[0]
            offsets = records.columns[Column.OFFSET]
            if last_of(records) <= upto:
                end = len(records)
            else:
                key = np.uint64(upto[0])
                low, high = int(records.keys.searchsorted(key)), int(records.keys.searchsorted(key, "right"))
                end = low + int(offsets[low:high].searchsorted(upto[1], "right"))
            if end == 0:
                return
            self._held_bytes -= _size(records)
            if end == len(records):
                del self._held[0]
                yield rank, records
                continue
            rest = select(records, np.arange(end, len(records)))
            self._held[0] = rank, rest
            self._held_bytes += _size(rest)
            yield rank, select(records, np.arange(end))
            return


def merged(
    sources: Sequence[TableSource], scan: Scan, first: KeyPlace, last: KeyPlace, others: Iterable[SortedRecords] = ()
) -> Iterator[SortedRecords]:
    """Records from ``first`` to ``last``, both included, in key order and each once; ``others`` are older than all."""
    ranks = {source: rank for rank, source in enumerate(sorted(sources, key=lambda s: (s.end_lsn, s.number)))}

    def pieces(source: TableSource) -> Iterator[tuple[int, SortedRecords]]:
        return ((ranks[source], records) for records in scan(source, first, last))

    runs = [HeldRecords(chain.from_iterable(map(pieces, run))) for run in runs_of(sources)]
    runs.append(HeldRecords((-1, records) for records in others))
    while True:
        runs = [run for run in runs if run.fill()]
        if not runs:
            return
        cut = min((run.last for run in runs if not run.ended), default=max(run.last for run in runs))
        parts = [part for run in runs for part in run.take(cut)]
        if parts:
            yield _sorted(parts)


def _sorted(parts: list[tuple[int, SortedRecords]]) -> SortedRecords:
    """In key order; of records that are there several times the one of the highest rank."""
    records = concatenate([part for _, part in parts])
    keys, offsets = records.keys, records.columns[Column.OFFSET]
    if len(parts) > 1:
        ranks = np.concatenate([np.full(len(part), -rank) for rank, part in parts])
        order = np.lexsort((ranks, offsets, keys))
        lengths = records.columns[Column.LENGTH]
        starts = np.cumsum(lengths, dtype=np.int64) - lengths
        columns = {column: values[order] for column, values in records.columns.items()}
        payload = gather(records.payload, starts[order], columns[Column.LENGTH])
        records = SortedRecords(keys[order], columns, payload)
        keys, offsets = records.keys, columns[Column.OFFSET]
    fresh = np.ones(len(keys), np.bool_)
    fresh[1:] = (keys[1:] != keys[:-1]) | (offsets[1:] != offsets[:-1])
    return records if fresh.all() else select(records, np.flatnonzero(fresh))


def _size(records: SortedRecords) -> int:
    return len(records.payload) + 40 * len(records)
