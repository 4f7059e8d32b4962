"""Merging: which runs to merge next, and the merge itself.

Level 0 holds one table a flush; level 1 is a list of *generations*, runs of tables in key order that do not
overlap, oldest first. When enough tables wait in level 0 they are merged, all of them, into the newest
generation; where the three newest generations are of about that size, they are merged with them, and so on. So
sizes grow by fours with age, a record is rewritten a logarithmic number of times, the number of runs a read may
have to look at stays small, and a generation holds messages of one stretch of time, which retention can drop
as whole files.

Merging drops what nobody can read: records below their queue's log start, records of deleted topics, and
records with a tombstone. A tombstone goes when nothing older is left that it could stand for. A table that was found
to be damaged is kept out of merges as it is.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lsmq.record_batch import Column

from .columns import I64, U64, gather, group_starts, stable_sort
from .memtable import TOMBSTONE_TOPIC, SortedRecords
from .options import StoreOptions
from .reader import concatenate, select
from .version import Run, Version

PARTITION_BYTES = 4 << 20
#: So many runs of about one size become one.
_FAN = 4
_SHADOW = np.uint64(TOMBSTONE_TOPIC << 32)

#: Earliest offset kept of each of the given queue keys; a topic that is gone keeps nothing.
LogStarts = Callable[[U64], I64]


@dataclass(frozen=True, slots=True)
class Pick:
    """What to merge: the oldest ``level0`` tables and the newest ``generations``."""

    level0: int
    generations: int


def choose(
    level0_bytes: Sequence[int],
    generation_bytes: Sequence[int],
    options: StoreOptions,
    *,
    records: int = 0,
    tombstones: int = 0,
    hurry: bool = False,
) -> Pick | None:
    """The next merge, or None. Sizes are oldest first. ``hurry`` takes any number of tables in level 0."""
    everything = Pick(len(level0_bytes), len(generation_bytes))
    if tombstones * 3 > records and len(level0_bytes) + len(generation_bytes) > 1:
        return everything
    if len(level0_bytes) < (1 if hurry else options.level0_merge):
        return None
    total = sum(level0_bytes)
    count = 0
    newest_first = generation_bytes[::-1]
    while True:
        tier = newest_first[count : count + _FAN - 1]
        full = len(tier) == _FAN - 1 and max(tier) <= 2 * total
        if not full or total + sum(tier) > options.generation_bytes:
            return Pick(len(level0_bytes), count)
        total += sum(tier)
        count += len(tier)


def choose_runs(version: Version, options: StoreOptions) -> tuple[Run, ...] | None:
    """The runs to merge next, oldest first, or None.

    What is damaged is not merged. A generation that is damaged ends the merging of those before it. A table of level 0
    that is damaged goes, when it is the oldest there, into a generation of its own: it is returned alone then, and
    the tables before it are merged however few they are. So tables behind it can go on.
    """
    level0, generations = list(version.level0[::-1]), list(version.generations[::-1])
    for number in range(len(generations) - 1, -1, -1):
        if generations[number].damaged:
            generations = generations[number + 1 :]
            break
    barrier = next((number for number, run in enumerate(level0) if run.damaged), None)
    if barrier == 0:
        return (level0[0],)
    level0 = level0[:barrier]
    runs = (*generations, *level0)
    pick = choose(
        [run.size_bytes for run in level0],
        [run.size_bytes for run in generations],
        options,
        records=sum(table.meta.record_count for run in runs for table in run.tables),
        tombstones=sum(run.tombstone_count for run in runs),
        hurry=barrier is not None,
    )
    if pick is None:
        return None
    return (*generations[len(generations) - pick.generations :], *level0[: pick.level0])


def merge(runs: Sequence[Run], log_starts: LogStarts, *, keep_tombstones: bool) -> Iterator[SortedRecords]:
    """Records of ``runs`` (oldest first) in key order, piece by piece, without what nobody can read.

    Holds about ``PARTITION_BYTES`` at a time, whatever the size of the runs.
    """
    after = (0, -1)
    for cut in _cuts(runs):
        parts = [part for run in runs for part in _part(run, after, cut)]
        after = cut
        if not parts:
            continue
        records = _sort(parts)
        records = _drop_unreadable(records, runs, log_starts, keep_tombstones=keep_tombstones)
        if len(records):
            yield records


def _cuts(runs: Sequence[Run]) -> Iterator[tuple[int, int]]:
    """Keys (queue key, offset) at which to cut the merge into partitions; the last is the end.

    Found while the merge goes on: what is held of the index is a page a run.
    """
    weight = key = offset = 0
    for key, offset, size in heapq.merge(*(_block_ends(run) for run in runs)):
        weight += size
        if weight >= PARTITION_BYTES:
            yield key, offset
            weight = 0
    if weight:
        yield key, offset


def _block_ends(run: Run) -> Iterator[tuple[int, int, int]]:
    """Last key and offset, and size, of each block."""
    for table in run.tables:
        for page in table.pages():
            yield from zip(page.last_keys, page.last_offsets, page.sizes, strict=True)


def _part(run: Run, after: tuple[int, int], upto: tuple[int, int]) -> Iterator[SortedRecords]:
    """The run's records in ``(after, upto]``."""
    for table in run.tables:
        meta = table.meta
        if (meta.last_key, meta.last_offset) <= after:
            continue
        if (meta.first_key, meta.first_offset) > upto:
            return
        begin, end = (after[0], after[1] + 1), (upto[0], upto[1] + 1)
        root = table.root()
        for number in range(root.seek(*begin), root.count):
            if (root.first_keys[number], root.first_offsets[number]) > upto:
                return
            page = table.page(number)
            first_row, last_row = page.seek(*begin), min(page.seek(*upto), page.count - 1)
            sizes = page.sizes[first_row : last_row + 1]
            for row, block in enumerate(table.blocks(page.positions[first_row], sizes), first_row):
                first = block.seek(*begin) if row == first_row else 0
                stop = block.seek(*end) if row == last_row else block.count
                if first < stop:
                    yield block.records(first, stop)


def _sort(parts: list[SortedRecords]) -> SortedRecords:
    """Records of several runs, oldest first, in key order."""
    records = concatenate(parts)
    order, keys = stable_sort(records.keys)
    tail = int(keys.searchsorted(_SHADOW))
    if tail < len(order):
        shadow = order[tail:]
        order[tail:] = shadow[np.lexsort((records.columns[Column.OFFSET][shadow], keys[tail:]))]
    lengths = records.columns[Column.LENGTH]
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    columns = {column: values[order] for column, values in records.columns.items()}
    return SortedRecords(keys, columns, gather(records.payload, starts[order], columns[Column.LENGTH]))


def _drop_unreadable(
    records: SortedRecords, runs: Sequence[Run], log_starts: LogStarts, *, keep_tombstones: bool
) -> SortedRecords:
    keys, offsets = records.keys, records.columns[Column.OFFSET]
    starts = group_starts(keys)
    kept_from = log_starts(keys[starts] & ~_SHADOW)
    if (offsets[starts] >= kept_from).all():  # as those of most queues, and then so are the offsets behind
        keep = np.ones(len(keys), np.bool_)
    else:
        keep = offsets >= np.repeat(kept_from, np.diff(starts, append=len(keys)))
    shadow_from = int(keys.searchsorted(_SHADOW))
    if shadow_from < len(keys):
        fresh = np.ones(len(keys), np.bool_)
        same = (keys[1:] == keys[:-1]) & (offsets[1:] == offsets[:-1])
        fresh[1:] = ~same
        keep[shadow_from:] &= fresh[shadow_from:] & keep_tombstones
    if any(run.tombstone_count for run in runs) and shadow_from > 0:
        keep[:shadow_from] &= ~_tombstoned(runs, keys[:shadow_from], offsets[:shadow_from])
    if keep.all():
        return records
    return select(records, np.flatnonzero(keep))


def _tombstoned(runs: Sequence[Run], keys: U64, offsets: I64) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which of the (key, offset) pairs, sorted, have a tombstone in the runs."""
    marked = np.zeros(len(keys), np.bool_)
    low = (int(keys[0]) | TOMBSTONE_TOPIC << 32, int(offsets[0]) - 1)
    high = (int(keys[-1]) | TOMBSTONE_TOPIC << 32, int(offsets[-1]))
    for run in runs:
        if run.tombstone_count:
            for part in _part(run, low, high):
                _mark(marked, keys, offsets, part.keys & ~_SHADOW, part.columns[Column.OFFSET])
    return marked


def _mark(
    marked: np.ndarray[tuple[int], np.dtype[np.bool_]],
    keys: U64,
    offsets: I64,
    dead_keys: U64,
    dead_offsets: I64,
) -> None:
    """Set ``marked`` where (key, offset) is among the dead ones; both sides sorted by (key, offset)."""
    both_keys = np.concatenate((keys, dead_keys))
    both_offsets = np.concatenate((offsets, dead_offsets))
    order = np.lexsort((both_offsets, both_keys))
    sorted_keys, sorted_offsets = both_keys[order], both_offsets[order]
    same = (sorted_keys[1:] == sorted_keys[:-1]) & (sorted_offsets[1:] == sorted_offsets[:-1])
    pairs = order[:-1][same]
    marked[pairs[pairs < len(keys)]] = True
