"""The merge: records of several runs in key order, without those that nobody can read.

Left out are records below their queue's log start, records of deleted topics, records with a tombstone, wherever that
lies, records that have expired, and tombstones that nothing is left for. What is merged when is in
:mod:`.merge_choice`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lsmq.record_batch import Column

from .block import Block
from .block_pieces import BlockPieces
from .columns import I64, U64, group_starts, stable_sort
from .sieve import Expired
from .sorted_records import SHADOW, TOMBSTONE_TOPIC, SortedRecords, select
from .table import Table
from .version import TableRun

PARTITION_BYTES = 4 << 20

Mask = NDArray[np.bool_]
#: Earliest offset kept of each of the given queue keys; a topic that is gone keeps nothing.
LogStarts = Callable[[U64], I64]
#: Queue key and offset, which records are ordered by.
KeyPlace = tuple[int, int]
#: Which targets of delayed messages are of topics that are gone.
Nowhere = Callable[[U64], Mask]


def _somewhere(targets: U64) -> Mask:
    return np.zeros(len(targets), np.bool_)


def _as_they_are(keys: U64, expires_ms: I64) -> I64:
    return expires_ms


@dataclass(frozen=True, slots=True)
class Unreadable:
    """How a merge knows what nobody can read.

    Attributes:
        tombstones: all runs there are with tombstones.
        others: tables that are not merged and may hold messages for the tombstones that are.
        expired: which messages have.
        nowhere: which delayed messages are for a topic that is gone.
        lasting: when records expire, by their queues' keys, as far as that makes them go.
    """

    log_starts: LogStarts
    tombstones: tuple[TableRun, ...]
    others: tuple[Table, ...]
    expired: Expired
    nowhere: Nowhere = _somewhere
    lasting: Callable[[U64, I64], I64] = _as_they_are

    def needed(self, keys: U64, offsets: I64) -> Mask:
        """Which tombstones may still have their message somewhere. ``keys``, of the messages, are sorted."""
        needed = np.zeros(len(keys), np.bool_)
        for table in self.others:
            left = np.flatnonzero(~needed)
            needed[left] = table.may_have_many(keys[left], offsets[left])
        return needed


def merge(runs: Sequence[TableRun], unreadable: Unreadable) -> Iterator[tuple[KeyPlace, SortedRecords]]:
    """Records of ``runs`` (oldest first) in key order, piece by piece, each with the place that it reaches to.

    Holds about ``PARTITION_BYTES`` at a time, whatever the size of the runs.
    """
    after = (0, -1)
    for cut in _cuts(runs):
        pieces = BlockPieces()
        for run in runs:
            for block, first, stop in _part(run, after, cut):
                pieces.add_rows(block, first, stop)
        after = cut
        if len(pieces):
            yield cut, _readable(_sort(pieces.records()), unreadable)


def _cuts(runs: Sequence[TableRun]) -> Iterator[KeyPlace]:
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


def _block_ends(run: TableRun) -> Iterator[tuple[int, int, int]]:
    """Last key and offset, and size, of each block."""
    for table in run.tables:
        for page in table.pages():
            yield from zip(page.last_keys, page.last_offsets, page.sizes, strict=True)


def _part(run: TableRun, after: KeyPlace, upto: KeyPlace) -> Iterator[tuple[Block, int, int]]:
    """The run's records in ``(after, upto]``: blocks, and which rows of each."""
    for table in run.tables:
        meta = table.meta
        if (meta.last_key, meta.last_offset) <= after:
            continue
        if (meta.first_key, meta.first_offset) > upto:
            return
        begin, end = max((after[0], after[1] + 1), (meta.first_key, meta.first_offset)), (upto[0], upto[1] + 1)
        root = table.root()
        for number in range(root.seek(*begin), root.count):
            if (root.first_keys[number], root.first_offsets[number]) > upto:
                return
            page = table.page(number)
            first_row, last_row = page.seek(*begin), min(page.seek(*upto), page.count - 1)
            sizes = page.sizes[first_row : last_row + 1]
            for row, block in enumerate(table.blocks(page.positions[first_row], sizes), first_row):
                first = block.place(*begin) if row == first_row else 0
                stop = block.place(*end) if row == last_row else block.count
                if first < stop:
                    yield block, first, stop


def _sort(records: SortedRecords) -> SortedRecords:
    """Records of several runs, oldest first, in key order."""
    order, keys = stable_sort(records.keys)
    tail = int(keys.searchsorted(SHADOW))
    if tail < len(order):
        shadow = order[tail:]
        order[tail:] = shadow[np.lexsort((records.offsets[shadow], keys[tail:]))]
    return select(records, order)


def _readable(records: SortedRecords, unreadable: Unreadable) -> SortedRecords:
    keys, offsets = records.keys, records.offsets
    keep = ~below(keys, offsets, unreadable.log_starts)
    shadow_from = int(keys.searchsorted(SHADOW))
    if shadow_from < len(keys):
        dead_keys, dead_offsets = keys[shadow_from:] & ~SHADOW, offsets[shadow_from:]
        fresh = np.ones(len(dead_keys), np.bool_)  # a message may be deleted twice
        fresh[1:] = (dead_keys[1:] != dead_keys[:-1]) | (dead_offsets[1:] != dead_offsets[:-1])
        wanted = np.flatnonzero(keep[shadow_from:] & fresh)
        keep[shadow_from:] = False
        keep[shadow_from + wanted[unreadable.needed(dead_keys[wanted], dead_offsets[wanted])]] = True
    if Column.TARGET in records.columns:
        keep &= ~unreadable.nowhere(records.columns[Column.TARGET])
    if unreadable.tombstones and shadow_from > 0:
        keep[:shadow_from] &= ~tombstoned(unreadable.tombstones, keys[:shadow_from], offsets[:shadow_from])
    expires = records.columns.get(Column.EXPIRES_MS)
    if expires is not None and expires.any():
        keep &= ~unreadable.expired(records.columns[Column.STORED_MS], unreadable.lasting(keys, expires))
    if keep.all():
        return records
    return select(records, np.flatnonzero(keep))


def below(keys: U64, offsets: I64, log_starts: LogStarts) -> Mask:
    """Which records, sorted by key, lie below the log starts of their queues."""
    starts = group_starts(keys)
    kept_from = log_starts(keys[starts] & ~SHADOW)
    if (offsets[starts] >= kept_from).all():
        return np.zeros(len(keys), np.bool_)  # as with most queues: offsets only grow
    gone: Mask = offsets < np.repeat(kept_from, np.diff(starts, append=len(keys)))
    return gone


def tombstoned(runs: Sequence[TableRun], keys: U64, offsets: I64) -> Mask:
    """Which messages, sorted by key and offset, have a tombstone in the runs."""
    marked = np.zeros(len(keys), np.bool_)
    low = (int(keys[0]) | TOMBSTONE_TOPIC << 32, int(offsets[0]) - 1)
    high = (int(keys[-1]) | TOMBSTONE_TOPIC << 32, int(offsets[-1]))
    for run in runs:
        for block, first, stop in _part(run, low, high):
            part = block.records(first, stop)
            _mark(marked, keys, offsets, part.keys & ~SHADOW, part.offsets)
    return marked


def tombstones_among(records: SortedRecords, tombstones: Sequence[SortedRecords]) -> Mask:
    """Which records, sorted by key and offset, have one of the tombstones."""
    marked = np.zeros(len(records), np.bool_)
    for part in tombstones:
        _mark(marked, records.keys, records.offsets, part.keys & ~SHADOW, part.offsets)
    return marked


def _mark(marked: Mask, keys: U64, offsets: I64, dead_keys: U64, dead_offsets: I64) -> None:
    """Set ``marked`` where (key, offset) is among the dead ones; both sides sorted by (key, offset)."""
    both_keys = np.concatenate((keys, dead_keys))
    both_offsets = np.concatenate((offsets, dead_offsets))
    order = np.lexsort((both_offsets, both_keys))
    sorted_keys, sorted_offsets = both_keys[order], both_offsets[order]
    same = (sorted_keys[1:] == sorted_keys[:-1]) & (sorted_offsets[1:] == sorted_offsets[:-1])
    pairs = order[:-1][same]
    marked[pairs[pairs < len(keys)]] = True
