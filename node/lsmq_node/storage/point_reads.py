"""A few messages of one queue as plain bytes: the way of ``QueueStore.get``.

The same search as :mod:`.reader`, without its arrays: what is found is small, and at this size making arrays costs
more than reading the disk. Newest source first; what a source holds of a queue follows on from what older ones hold,
so each is asked for what the newer ones have left. Where there are many, those that are too new are passed over
(:mod:`.locate`).

Not supported: topics with tombstones, limits of bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from .block import Block
from .bloom import Probe, bloom_probe
from .locate import FEW_RUNS, newest_holding
from .version import Run, Version

#: So many queues are remembered with the block they were last read from.
PLACE_LIMIT = 64
#: Larger blocks are not remembered: they would be memory beyond the cache's limit.
PLACE_BYTES = 256 * 1024


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

    Messages never change, so a place is right for ever; whether they may still be read is for the caller to say. A
    queue's place may be taken by another queue's. Thread-safe without a lock: a slot is read or replaced as a whole.
    """

    __slots__ = ("_slots",)

    def __init__(self) -> None:
        self._slots: list[tuple[int, Place] | None] = [None] * PLACE_LIMIT

    def get(self, key: int, offset: int) -> Place | None:
        slot = self._slots[key % PLACE_LIMIT]
        if slot is None or slot[0] != key:
            return None
        place = slot[1]
        return place if place.first <= offset < place.end else None

    def note(self, key: int, place: Place) -> None:
        if place.block.memory_bytes <= PLACE_BYTES:
            self._slots[key % PLACE_LIMIT] = key, place

    def __len__(self) -> int:
        return PLACE_LIMIT - self._slots.count(None)


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
    runs = version.runs()
    skip = 0
    for run in runs:
        if skip:
            skip -= 1
            continue
        begins = _collect(run, key, probe, offset, begins, found, places)
        if begins <= offset:
            return _joined(found)
        if run is runs[0] and len(runs) > FEW_RUNS:
            skip = newest_holding(runs[1:], key, probe, begins - 1)
    raise NotFound


def _joined(found: list[list[bytes]]) -> list[bytes]:
    return found[0] if len(found) == 1 else [record for part in reversed(found) for record in part]


def _collect(run: Run, key: int, probe: Probe, offset: int, end: int, found: list[list[bytes]], places: Places) -> int:
    """:meth:`.memtable.Memtable.collect` from a run."""
    taken: list[bytes] = []
    begins = end
    for table, page, row in run.rows_from(key, probe, offset, end):
        block = table.block_of(page, row)
        at, stop = block.span(key)
        if at == stop:
            continue
        first, count = block.offset(at), stop - at
        if count > 1 and block.offset(stop - 1) != first + count - 1:
            raise NotFound
        stops = first + count
        low = first if first > offset else offset
        high = stops if stops < end else end
        if low < high:
            begins = low if low < begins else begins
            shift = at - first
            taken += block.record_bytes(low + shift, high + shift)
        if high < stops:
            places.note(key, Place(block, at, first, stops))
            break
    if begins + len(taken) != end:
        raise NotFound
    if taken:
        found.append(taken)
    return begins
