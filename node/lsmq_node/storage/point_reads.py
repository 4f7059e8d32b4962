"""A few messages of one queue as plain bytes: the way of ``QueueStore.get``.

The same search as :mod:`.reader`, without its arrays: what is found is small, and at this size making arrays costs
more than reading the disk. Newest source first; what a source holds of a queue follows on from what older ones hold,
so each is asked for what the newer ones have left.

Not supported: topics with tombstones, limits of bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from .block import Block
from .bloom import Probe, bloom_probe
from .table import Table, TableIndex
from .version import Run, Version

#: So many queues are remembered with the block they were last read from.
PLACE_LIMIT = 64


class NotFound(Exception):
    """Something is not as it should be: the thorough search (:func:`.reader.read_queue`) says what."""


@dataclass(frozen=True, slots=True)
class Place:
    """Records ``[first, end)`` of a queue, by offset, which lie in a block from position ``at`` on."""

    block: Block
    at: int
    first: int
    end: int

    def record_bytes(self, offset: int, end: int) -> list[bytes]:
        """Those of ``[offset, end)``, which must overlap."""
        shift = self.at - self.first
        return self.block.record_bytes(offset + shift, min(end, self.end) + shift)


class Places:
    """Where the last reads ended: who reads a queue from end to end finds the next messages in the same block.

    Messages never change, so a place is right for ever; whether they may still be read is for the caller to say.
    """

    __slots__ = ("_places",)

    def __init__(self) -> None:
        self._places: dict[int, Place] = {}

    def get(self, key: int, offset: int) -> Place | None:
        place = self._places.get(key)
        return place if place is not None and place.first <= offset < place.end else None

    def note(self, key: int, place: Place) -> None:
        self._places[key] = place
        while len(self._places) > PLACE_LIMIT:
            self._places.pop(next(iter(self._places)), None)


def read_point(version: Version, key: int, offset: int, end: int, places: Places) -> list[bytes]:
    """The bytes of each message in ``[offset, end)`` of a queue, which holds them all.

    Raises ``NotFound`` when not all are there, ``CorruptFile``.
    """
    found: list[list[bytes]] = []
    begins = end
    for memtable in version.memtables:
        begins = memtable.collect(key, offset, begins, found)
        if begins <= offset:
            return _joined(found)
    probe = bloom_probe(key)
    for run in version.runs():
        begins = _collect(run, key, probe, offset, begins, found, places)
        if begins <= offset:
            return _joined(found)
    raise NotFound


def _joined(found: list[list[bytes]]) -> list[bytes]:
    return found[0] if len(found) == 1 else [record for part in reversed(found) for record in part]


def _collect(run: Run, key: int, probe: Probe, offset: int, end: int, found: list[list[bytes]], places: Places) -> int:
    """:meth:`.memtable.Memtable.collect` from a run."""
    taken: list[bytes] = []
    begins = end
    for table in run.tables_from(key, offset, end):
        index = table.index()
        if index.may_have(probe):
            first = _collect_blocks(table, index, key, offset, end, taken, places)
            begins = min(begins, first)
    if begins + len(taken) != end:
        raise NotFound
    if taken:
        found.append(taken)
    return begins


def _collect_blocks(
    table: Table, index: TableIndex, key: int, offset: int, end: int, taken: list[bytes], places: Places
) -> int:
    """Add messages of ``[offset, end)`` from the table's blocks; returns the first offset, ``end`` for none."""
    begins = end
    for number in range(index.seek(key, offset), index.count):
        if (index.first_keys[number], index.first_offsets[number]) >= (key, end):
            break
        block = table.block(number)
        at, stop = block.span(key)
        if at < stop:
            first, count = block.offset(at), stop - at
            if count > 1 and block.offset(stop - 1) != first + count - 1:
                raise NotFound
            low, high = max(first, offset), min(first + count, end)
            if low < high:
                begins = min(begins, low)
                taken += block.record_bytes(at + low - first, at + high - first)
            if high < first + count:
                places.note(key, Place(block, at, first, first + count))
                break
        if stop < block.count:
            break
    return begins
