"""Deduplication: a message whose id was stored in its queue before, within the topic's window, is not stored again.

An id is text of the user's. What travels and is kept of it is its XXH3-128, in two columns of the batch; two ids of a
queue are taken for one with a chance of one in 10^20 where there are a billion of them. Ids are of a queue: the same id
in another queue is another id, so a retry must name the same queue, or have the same key.

The leader decides, when it puts a batch in line, by what is stored and what is in line before it, and notes in the
log which messages are repeats, and of which offsets (:func:`encode_repeats`). Replicas and replays do as the log says:
no look-up is made for that, so nothing depends on how far a merge has dropped ids that expired.

Ids outlive their messages. Those that came since the last flush are in memory (:mod:`.dedupe_layer`), the others in
files (:mod:`.dedupe_file`), which flushes write and merges join (:mod:`.dedupe_chain`). That a new id is in none of the
newer ones is known by one look at all of them (:mod:`.dedupe_recent`), and which of the full files may have an id by
another (:mod:`.dedupe_index`).
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsmq import runtime

from .columns import I64, U32, U64, mix, mix_one, queue_key, queue_keys
from .dedupe_file import IdFile
from .dedupe_index import SEATS, IdIndex, join
from .dedupe_layer import IdColumns, IdLayer, id_slabs, keys_of
from .dedupe_recent import KNOWN_IDS, NEVER, RecentIds, RecentLook, bits_of
from .failures import damaged, disappeared

_COUNT = struct.Struct("<I")
_NO_OFFSET = -1
#: Which of the two halves of an integer of 64 bits is the upper one in memory.
_UPPER = 1 if sys.byteorder == "little" else 0


@dataclass(frozen=True, slots=True)
class NotedIds:
    """Ids that are remembered from an entry of the log on.

    ``since``: number of the filter of :class:`.RecentIds` that they are in already, :data:`.NEVER` for none.
    """

    columns: IdColumns
    since: int = NEVER

    def __len__(self) -> int:
        return len(self.columns)


@dataclass(slots=True)
class BatchIds:
    """The ids of a batch's records, spread by queue; ``has`` says which records have one, None: all."""

    high: U64
    low: U64
    keys: U64
    has: NDArray[np.bool_] | None
    #: See :class:`NotedIds`.
    since: int = NEVER

    def noted(self, unstored: I64 | None, topic_id: int, offsets: I64, stored_ms: int) -> NotedIds:
        """What is kept of them, but for the ``unstored`` rows. ``offsets`` are of all records."""
        high, low, keys = self.high, self.low, self.keys
        if unstored is not None or self.has is not None:
            chosen = np.ones(len(high), np.bool_) if self.has is None else self.has.copy()
            if unstored is not None:
                chosen[unstored] = False
            high, low, keys, offsets = high[chosen], low[chosen], keys[chosen], offsets[chosen]
        return NotedIds(IdColumns(high, low, keys, offsets, stored_ms, topic_id), self.since)


def scoped(topic_id: int, queues: U32, high: U64, low: U64) -> BatchIds:
    """``high`` and ``low``: the columns as they are in the batch; both are 0 of a record without an id."""
    has = (high | low) != 0
    if len(queues) == 1 or (queues == queues[0]).all():
        high = high ^ np.uint64(mix_one(queue_key(topic_id, int(queues[0]))))
    else:
        high = high ^ mix(queue_keys(topic_id, queues))
    return BatchIds(high, low, keys_of(high, low), None if has.all() else has)


@dataclass(frozen=True, slots=True)
class Repeats:
    """Which records of a batch are not stored: the ``rows``, in order, and the ``offsets`` their ids have; -1 for those
    that were dropped, as there was no room.

    Where an id came first in the same batch, ``firsts`` has that row, and the offset is not known yet; else -1.
    """

    rows: I64
    offsets: I64
    firsts: I64

    @classmethod
    def dropped(cls, rows: I64, others: Repeats | None) -> Repeats:
        """Where ``rows`` are dropped, and others are repeats."""
        nowhere = np.full(len(rows), -1)
        if others is None:
            return cls(rows, nowhere, nowhere)
        joined = np.concatenate([others.rows, rows])
        order = np.argsort(joined)
        offsets = np.concatenate([others.offsets, nowhere])
        return cls(joined[order], offsets[order], np.concatenate([others.firsts, nowhere])[order])

    def fill(self, offsets: I64) -> None:
        """Put the offsets of repeats among those of the others; ``offsets`` has -1 for the rest."""
        offsets[self.rows] = np.where(self.firsts < 0, self.offsets, offsets[self.firsts])

    def marked(self, offsets: I64) -> I64:
        """All offsets of a batch, from which :func:`unmarked` tells which are those of repeats."""
        marked, of_repeats = offsets.copy(), offsets[self.rows]
        marked[self.rows] = np.where(of_repeats < 0, of_repeats, -2 - of_repeats)
        return marked


def unmarked(marked: I64) -> tuple[I64, NDArray[np.bool_] | None]:
    """What :meth:`Repeats.marked` was given: the offsets, and which are those of repeats, if any are."""
    repeats = marked < -1
    return (np.where(repeats, -2 - marked, marked), repeats) if repeats.any() else (marked, None)


def encode_repeats(rows: I64, offsets: I64) -> bytes:
    """What stands behind the batch in the log: how many (4), their rows (4 each), the offsets of their ids (8 each;
    -1 for those that were dropped)."""
    return _COUNT.pack(len(rows)) + rows.astype("<u4").tobytes() + offsets.astype("<i8").tobytes()


def decode_repeats(raw: bytes | memoryview, source: str, lsn: int) -> Repeats:
    """Raises ``CorruptFile``."""
    count = _COUNT.unpack_from(raw)[0] if len(raw) >= _COUNT.size else 0
    if len(raw) != _COUNT.size + 12 * count:
        raise damaged(source, f"the log entry at LSN {lsn} does not say which messages are repeats", lsn)
    rows = np.frombuffer(raw, "<u4", count, _COUNT.size).astype(np.int64)
    offsets = np.frombuffer(raw, "<i8", count, _COUNT.size + 4 * count).astype(np.int64)
    return Repeats(rows, offsets, np.full(count, -1))


class DedupePlan:
    """What becomes of batches with ids that are put in line together, in their order."""

    def __init__(self, batches: Sequence[BatchIds], offsets: Sequence[I64]) -> None:
        """``offsets``: of each record the offset its id has, or -1."""
        self._bounds = np.cumsum([0, *(len(each.high) for each in batches)])
        self._offsets = _joined(offsets)
        self._firsts = self._first_of_each(batches)
        self._has_repeats = self._firsts is not None or bool((self._offsets >= 0).any())

    @staticmethod
    def _first_of_each(batches: Sequence[BatchIds]) -> I64 | None:
        """Of each record the first one with its id; None where none has another's."""
        keys = _joined([each.keys if each.has is None else each.keys[each.has] for each in batches])
        ordered = keys.view(np.uint32)[_UPPER::2].copy()
        ordered.sort()
        if not (ordered[1:] == ordered[:-1]).any():  # as halves of keys: so they hardly ever are by chance
            return None
        has = _joined([np.ones(len(each.keys), np.bool_) if each.has is None else each.has for each in batches])
        places = np.flatnonzero(has)
        high, low = _joined([each.high for each in batches])[places], _joined([each.low for each in batches])[places]
        order = np.lexsort((low, high))
        high, low = high[order], low[order]
        fresh = np.ones(len(order), np.bool_)
        fresh[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
        if fresh.all():
            return None
        firsts = np.arange(len(has))
        firsts[places[order]] = places[order[fresh]][np.cumsum(fresh) - 1]
        return firsts

    def repeats(self, number: int) -> Repeats | None:
        """Of one of the batches; those before it have been :meth:`stored`."""
        if not self._has_repeats:
            return None
        begin, end = int(self._bounds[number]), int(self._bounds[number + 1])
        itself = np.arange(begin, end)
        firsts, offsets = itself if self._firsts is None else self._firsts[begin:end], self._offsets[begin:end]
        repeated = (offsets >= 0) | (firsts != itself)
        if not repeated.any():
            return None
        rows = np.flatnonzero(repeated)
        known = np.where(offsets[rows] >= 0, offsets[rows], self._offsets[firsts[rows]])
        return Repeats(rows, known, np.where(known >= 0, -1, firsts[rows] - begin))

    def stored(self, number: int, offsets: I64) -> None:
        """The batch's records have these offsets."""
        if self._has_repeats:
            self._offsets[int(self._bounds[number]) : int(self._bounds[number + 1])] = offsets


def _joined(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


IdSource = IdLayer | IdFile
#: So many files join the index at a time.
_JOINED_TOGETHER = 4


class DedupeIds:
    """The ids of a shard, as of the last entry in line, or applied where nothing is put in line.

    One thread at a time asks and notes; another may apply, freeze, flush and merge meanwhile.
    """

    def __init__(self) -> None:
        self._lock = runtime.Lock()  # guards the layer and the recent, and who replaces the sources
        self._recent = RecentIds()
        self.slabs = id_slabs()
        self._layer = IdLayer(0, self.slabs)
        self._sources: tuple[IdSource, ...] = (self._layer,)  # newest first; replaced as a whole
        self._index = IdIndex()  # of some of the files; replaced as a whole, by who merges

    @property
    def count(self) -> int:
        """Ids that are kept, those that expired included until a merge meets them."""
        return sum(source.count for source in self._sources)

    @property
    def unflushed_bytes(self) -> int:
        """Memory of what came since the last freeze."""
        return self._layer.size_bytes

    @property
    def memory_bytes(self) -> int:
        """Memory of all: filters, and layers."""
        sizes = (each.memory_bytes if isinstance(each, IdFile) else each.size_bytes for each in self._sources)
        return self._recent.size_bytes + self._index.memory_bytes + sum(sizes)

    # Asking

    def find(self, ids: BatchIds, since_ms: int) -> I64:
        """Of each record the offset its id was stored at, at ``since_ms`` or later; -1 where there is none.

        They are taken for ids that are about to be noted. Reads the disk for ids that are there, and rarely for others.
        Raises ``CorruptFile``, ``StoreBusy``.
        """
        while True:
            with self._lock:
                sources, index = self._sources, self._index
                look = self._know(ids)
                # By number of the filter; -1 and less: not known. What is noted meanwhile is in none of the sources.
                since = [source.since - look.oldest for source in sources]
            try:
                return self._find(list(zip(sources, since, strict=True)), index, look, ids, since_ms)
            except FileNotFoundError as error:
                if sources is self._sources:  # else a merge has removed it meanwhile
                    raise disappeared("a file of ids", error) from error

    def _find(
        self, sources: list[tuple[IdSource, int]], index: IdIndex, look: RecentLook, ids: BatchIds, since_ms: int
    ) -> I64:
        high, low = ids.high, ids.low
        offsets = np.full(len(high), _NO_OFFSET)
        suspicion = bool(look.may_have[0].any())  # by any filter
        if not suspicion and all(number >= 0 or not source.count for source, number in sources):
            return offsets
        everyone = np.arange(len(high)) if ids.has is None else np.flatnonzero(ids.has)
        if not len(everyone):
            return offsets
        suspected = [everyone.take(np.flatnonzero(each)) for each in look.may_have]
        seated: list[I64] | None = None
        is_found = np.zeros(len(high), np.bool_)
        for source, number in sources:
            if (number >= 0 and not suspicion) or not source.count:
                continue
            if isinstance(source, IdFile) and (seat := index.seats.get(source)) is not None:
                seated = seated or _seated(index, high, low, everyone)
                asked = seated[seat]
            else:
                asked = suspected[number] if number >= 0 else everyone
            asked = asked[~is_found[asked]]
            if not len(asked):
                continue
            if isinstance(source, IdLayer):
                with self._lock:
                    places, found, stored_ms = source.find(high[asked], low[asked])
            else:
                places, found, stored_ms = source.find(high[asked], low[asked])
            if len(places):
                alive = stored_ms >= since_ms
                is_found[asked[places]] = True
                offsets[asked[places[alive]]] = found[alive]
        return offsets

    def _know(self, ids: BatchIds) -> RecentLook:
        """Look for a batch's ids among the recent, and put them there."""
        keys = ids.keys if ids.has is None else ids.keys[ids.has]
        look = self._look(keys)
        ids.since = look.number
        return look

    def _look(self, keys: U64) -> RecentLook:
        recent, layer = self._recent, self._layer
        count = layer.count + len(keys)
        if (
            recent.would_begin(len(keys))
            and recent.fits_one(count)
            and all(each is layer or each.since < recent.oldest for each in self._sources)
        ):  # What has not been flushed is all that is known: then one filter knows it.
            recent.begin_anew(count)
            layer.since = recent.newest
            for some in layer.key_pieces():
                recent.look(some, bits_of(some))
        return recent.look(keys, bits_of(keys))

    # Changing

    def note(self, noted: NotedIds) -> None:
        """Ids of an entry that is put in line, or about to be applied; no two the same."""
        if len(noted):
            with self._lock:
                self._note(noted)

    def _note(self, noted: NotedIds) -> None:
        if noted.since < self._layer.since:  # never looked for, or before the layer began
            self._look(noted.columns.keys)
        self._layer.add(noted.columns)

    def landed(self, count: int) -> None:
        """The entry is applied that the oldest ``count`` ids in line are of."""
        with self._lock:
            self._layer.applied += count

    def drop_line(self) -> None:
        """What is in line is dropped."""
        with self._lock:
            self._layer.cut()

    def freeze(self) -> IdLayer:
        """What is applied since the last time. It is looked at until :meth:`replace` is told where it went."""
        with self._lock:
            frozen = self._layer
            self._layer = IdLayer(self._recent.newest, self.slabs)
            if frozen.count > frozen.applied:
                for columns in frozen.in_line():
                    self._note(NotedIds(columns))  # again, so that they are no older than the layer
            frozen.cut()
            self._sources = (self._layer, *self._sources) if frozen.count else (self._layer, *self._sources[1:])
        return frozen

    def open(self, files: Iterable[IdFile]) -> None:
        """Look into these too, which are older than all there is; the newest first."""
        with self._lock:
            self._sources = (*self._sources, *files)

    def replace(self, gone: Collection[IdSource], file: IdFile | None) -> None:
        """What is ``gone``, sources that follow one another, is in ``file`` now, or nowhere."""
        with self._lock:
            if file is not None:
                file.since = min(source.since for source in gone)
            at = next((place for place, source in enumerate(self._sources) if source in gone), None)
            if at is not None:
                kept = [source for source in self._sources if source not in gone]
                self._sources = (*kept[:at], *(() if file is None else (file,)), *kept[at:])
                self._index = self._index.without(gone)

    def unjoined(self, files: Sequence[IdFile], full_rows: int) -> list[IdFile]:
        """The full ones that the index of full files has yet to know: a few at a time."""
        index = self._index
        found = [file for file in files if file.count >= full_rows and index.lacks(file)]
        return found[:_JOINED_TOGETHER]

    def join(self, files: Sequence[IdFile], check: Callable[[], None]) -> None:
        """Have the index know them; with none it is made anew. Raises ``CorruptFile``, and what ``check`` raises."""
        join(lambda: self._index, self._hold, files, check)
        for file in files:
            file.forget_filter()

    def is_index_worn(self) -> bool:
        """Whether :meth:`join` is due, be it without files."""
        return self._index.is_worn()

    def _hold(self, index: IdIndex) -> None:
        with self._lock:
            self._index = index

    # Files of an earlier run

    def unknown(self, files: Sequence[IdFile]) -> IdFile | None:
        """The oldest of ``files``, the oldest first, that is to be read for :meth:`learn`: of those with the newest ids
        one that is looked into for every id."""
        found, count = None, 0
        with self._lock:
            for file in reversed(files):
                count += file.count
                if count > KNOWN_IDS:
                    break
                if file.since < self._recent.oldest and file.damage is None:
                    found = file
        return found

    def learn(self, file: IdFile, check: Callable[[], None]) -> None:
        """Know the file's ids as those that are noted. Raises ``CorruptFile``, and what ``check`` raises."""
        with self._lock:
            since = self._recent.newest
        for rows in file.scan():
            check()
            keys = keys_of(rows["high"], rows["low"])
            with self._lock:
                self._recent.look(keys, bits_of(keys))
        with self._lock:
            file.since = since


def _seated(index: IdIndex, high: U64, low: U64, places: I64) -> list[I64]:
    """Of each seat the ids, among those at ``places``, that may be in a file that has it."""
    found, seats = index.find(high[places], low[places])
    return [places[found[seats == seat]] for seat in range(SEATS)]
