"""Merges as they are done: chosen, given their space, written, put in place of what they were made of.

Two threads merge at a time, one of level 0 and one of the rest, and never the same tables. A merge of generations is
done in pieces of ``PIECE_TABLES`` tables, in key order: after each the tables that are used up go, those that are used
up in part are clipped, and what is new is a generation that stands before them. So it needs the space of a piece, not
of all, and what a crash leaves is a set of runs like any other.

No merge begins unless the disk has room for what it may write beside what is kept free for the flush.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lsmq import runtime
from lsmq.errors import CorruptFile

from .columns import I64, U64
from .compaction import Unreadable, merge
from .delayed import HAND, Hand, is_due_topic, live_from
from .disk import Clock, Disk
from .edits import Edit
from .garbage import GarbageCounter, concerns, graves_of
from .merge_choice import choose_level0, choose_tier
from .merge_output import MergeOutput
from .options import StoreOptions
from .sieve import Expired
from .state import ShardState
from .stats import Counters
from .table import Table
from .tables import TableSet
from .version import TableRun, Version

#: A merge of generations is put in place after so many tables.
PIECE_TABLES = 8
#: What is written anew of a table of level 0 is one again, whatever its size.
_ONE_TABLE = 1 << 62
#: Of what a sample says is dead, so much is relied on where space is reserved.
_TRUSTED_PERCENT = 95
#: With less than so many times ``min_free_bytes`` left, the disk is nearly full.
_SHORT_BELOW = 2
#: A look for garbage that took long is repeated only after so many times as long.
_LOOK_PAUSE = 20

_log = logging.getLogger("lsmq.storage")


class NoRoom(Exception):
    """The disk has no space for a merge: nothing was written."""


@dataclass(frozen=True, slots=True)
class DueMerge:
    """Work that is due.

    Attributes:
        runs: what is merged, oldest first. Of one run ``tables`` alone are written anew, where they are given.
        in_pieces: put in place piece by piece.
        dead_bytes: what will not be written again, about.
    """

    runs: tuple[TableRun, ...]
    tables: tuple[Table, ...] = ()
    in_pieces: bool = False
    dead_bytes: int = 0

    @property
    def sources(self) -> tuple[Table, ...]:
        return self.tables or tuple(table for run in self.runs for table in run.tables)

    def needed_bytes(self, table_bytes: int) -> int:
        """Space that it takes while it is done."""
        size = sum(table.meta.size_bytes for table in self.sources)
        if self.in_pieces:
            return min(size, (PIECE_TABLES + 1) * table_bytes)
        return size - _TRUSTED_PERCENT * self.dead_bytes // 100


class Merger:
    """Thread-safe; each of ``merge_level0`` and ``merge_rest`` is for one thread at a time."""

    def __init__(
        self,
        path: Path,
        options: StoreOptions,
        disk: Disk,
        clock: Clock,
        tables: TableSet,
        state: ShardState,
        counters: Counters,
        expired: Expired,
    ) -> None:
        self._path = path
        self._options = options
        self._disk = disk
        self._clock = clock
        self._tables = tables
        self._state = state
        self._counters = counters
        self._expired = expired
        self.garbage = GarbageCounter(state, self.log_starts, expired, self.is_nowhere)
        self._counting = runtime.Lock()  # one thread refreshes at a time
        self._next_look = 0.0
        self.looks_later = False
        self._lock = runtime.Lock()  # guards the three below
        self._busy: set[int] = set()  # numbers of tables that are being merged
        self._reserved_bytes = 0
        self._giving_back = 0  # merges that take less space than they free

    # -- what is due -------------------------------------------------------------------------------------

    def due_level0(self) -> DueMerge | None:
        """The next merge of level 0. Cheap.

        A table of level 0 that is damaged goes, when it is the oldest there, into a generation of its own: it is the
        only run then, and the tables before it are merged however few they are. So tables behind it can go on.
        """
        version, options = self._tables.version, self._options
        level0 = list(version.level0[::-1])
        barrier = next((at for at, run in enumerate(level0) if run.damaged), None)
        if barrier == 0:
            return DueMerge((level0[0],))
        level0 = level0[:barrier]
        if self._any_busy(level0):
            return None
        generations = self._free_generations(version)[-1]
        pick = choose_level0(
            [run.size_bytes for run in level0],
            [run.size_bytes for run in generations],
            least=options.level0_merge if barrier is None else 1,
            busy=options.slow_level0,
            limit_bytes=options.generation_bytes,
        )
        if pick is None:
            return None
        return DueMerge((*generations[len(generations) - pick.generations :], *level0[: pick.level0]))

    def due_rest(self, *, at_once: bool = True) -> DueMerge | None:
        """The next merge of generations, or the next tables to be written anew for their garbage.

        Unless ``at_once``, garbage is not looked for again soon after a look that took long; see ``looks_later``.
        """
        version = self._tables.version.on_disk()
        for stretch in self._free_generations(version):
            tier = choose_tier(
                [run.size_bytes for run in stretch],
                [self._expires(run) for run in stretch],
                self._options.generation_bytes,
            )
            if tier is not None:
                found = DueMerge(tuple(stretch[slice(*tier)]), in_pieces=True)
                short = found.needed_bytes(self._options.table_bytes) > self._room_bytes()
                return (self._due_garbage(version, at_once) or found) if short else found
        return self._due_garbage(version, at_once)

    def _due_garbage(self, version: Version, at_once: bool) -> DueMerge | None:
        now = self._clock.monotonic()
        self.looks_later = False
        if not self.garbage.is_fresh(version):
            if now < self._next_look and not at_once:
                self.looks_later = True
                return None
            if not self.count_garbage():
                self.looks_later = True
                return None
            self._next_look = self._clock.monotonic() + _LOOK_PAUSE * (self._clock.monotonic() - now)
        with self._lock:
            busy = set(self._busy)
        if self.short_bytes() and (work := next(self._worthwhile(version, busy), None)) is not None:
            return work
        options = self._options
        limit_bytes = max(options.table_bytes, min(PIECE_TABLES * options.table_bytes, self._room_bytes()))
        found = self.garbage.choose(version, busy, options.table_bytes, limit_bytes)
        if found is None:
            return None
        dead = sum(self.garbage.known[table.meta.number].dead_bytes for table in found.tables)
        return DueMerge((found.run,), tables=found.tables, dead_bytes=dead)

    def count_garbage(self) -> bool:
        """Whether it is known how much garbage there is, as of now. In any thread; reads what has changed."""
        with self._counting:
            version = self._tables.version.on_disk()
            if not self.garbage.is_fresh(version):
                try:
                    self.garbage.refresh(version, lambda: self._tables.closing)
                except FileNotFoundError:  # merged away meanwhile: look again at what there is then
                    return False
            return not self._tables.closing

    def short_bytes(self) -> int:
        """What the disk lacks of what is to be free: above 0 it is nearly full. Level 0 needs room for its merge."""
        if not self._options.min_free_bytes:
            return 0
        short = _SHORT_BELOW * self._options.min_free_bytes - self._disk.free_bytes(self._path)
        waiting = None if self._reserved_bytes else self.due_level0()
        if waiting is not None:
            short = max(short, waiting.needed_bytes(self._options.table_bytes) - self._room_bytes())
        return max(0, short)

    def missing_bytes(self) -> int:
        """:meth:`short_bytes` but for the garbage that is about to go. 0 while it goes, or is not known."""
        short = self.short_bytes()
        if not short or not self.count_garbage():
            return 0
        with self._lock:
            if self._giving_back:
                return 0
        coming = sum(work.dead_bytes for work in self._worthwhile(self._tables.version.on_disk()))
        return max(0, short - coming)

    def _worthwhile(self, version: Version, busy: Container[int] = ()) -> Iterator[DueMerge]:
        """Tables that are written anew on a disk that is nearly full, where there is room for it: for that some may be
        used of what is kept for the flush."""
        free = self._disk.free_bytes(self._path) - self._options.min_free_bytes // 2
        for run, table, dead in self.garbage.worthwhile(version, busy):
            work = DueMerge((run,), (table,), dead_bytes=dead)
            if work.needed_bytes(self._options.table_bytes) <= free:
                yield work

    def _free_generations(self, version: Version) -> list[list[TableRun]]:
        """Stretches of neighbouring generations that may be merged, oldest first; the last one ends with the newest."""
        stretches: list[list[TableRun]] = [[]]
        for run in version.generations[::-1]:
            if run.damaged or self._any_busy([run]):
                stretches.append([])
            else:
                stretches[-1].append(run)
        return stretches

    def _any_busy(self, runs: list[TableRun]) -> bool:
        with self._lock:
            return any(meta.number in self._busy for run in runs for meta in run.metas)

    def _expires(self, run: TableRun) -> bool:
        """Whether most of a run is of topics that are to expire, or are gone."""
        expiring = 0
        for meta in run.metas:
            for topic_id, size in zip(meta.topics, meta.topic_bytes, strict=True):
                item = self._state.topics.get(topic_id)
                options = None if item is None else item.topic.options
                expiring += (
                    size if options is None or options.retention_ms or options.retention_bytes or options.ttl_ms else 0
                )
        return 2 * expiring > run.size_bytes

    # -- doing it ----------------------------------------------------------------------------------------

    def merge_level0(self) -> None:
        """Do what :meth:`due_level0` says. Raises ``NoRoom`` before anything is written, ``OSError``."""
        self._do(self.due_level0)

    def merge_rest(self, *, at_once: bool = True) -> None:
        """Do what :meth:`due_rest` says. Raises ``NoRoom`` before anything is written, ``OSError``."""
        self._do(lambda: self.due_rest(at_once=at_once))

    def _do(self, due: Callable[[], DueMerge | None]) -> None:
        work = due()
        if work is None:
            return
        if not work.in_pieces and len(work.runs) == 1 and not work.tables and work.runs[0].damaged:
            numbers = frozenset(work.runs[0].numbers)
            self._tables.edit(Edit(gone=numbers, added=work.runs[0].metas, sources=numbers))
            return
        started = self._clock.monotonic()
        with self._claimed(work) as claimed:
            if not claimed:
                return
            try:
                with self._reserved(work):
                    self._merge(work)
            except CorruptFile as damage:
                if not any(table.damage for table in self._tables.version.tables()):
                    raise
                _log.error("%s. The table is kept as it is, out of merges", damage.message)
        self._counters.merge_seconds += self._clock.monotonic() - started

    @contextmanager
    def _claimed(self, work: DueMerge) -> Iterator[bool]:
        """Whether the tables are there and nobody else merges them; nobody does until the end."""
        numbers = {table.meta.number for table in work.sources}
        with self._lock:
            present = set(map(id, self._tables.version.tables()))
            claimed = not numbers & self._busy and present.issuperset(map(id, work.sources))
            if claimed:
                self._busy |= numbers
        try:
            yield claimed
        finally:
            if claimed:
                with self._lock:
                    self._busy -= numbers
                with self._tables.changed:
                    self._tables.changed.notify_all()

    def _room_bytes(self, kept: int | None = None) -> int:
        """What merges may still write. So much is kept free for flushing: without ``kept``, what is usual."""
        if kept is None:
            kept = self._options.min_free_bytes and self._options.min_free_bytes + self._options.memtable_bytes
        return self._disk.free_bytes(self._path) - kept - self._reserved_bytes

    @contextmanager
    def _reserved(self, work: DueMerge) -> Iterator[None]:
        size = work.needed_bytes(self._options.table_bytes)
        # What gives space back may use some of what is kept for the flush, or a full disk would stay full.
        gives_back = 2 * work.dead_bytes > size or (work.dead_bytes > 0 and self.short_bytes() > 0)
        kept = self._options.min_free_bytes // 2 if gives_back else None
        if gives_back and self._room_bytes(kept) < size:
            self._tables.drop_spares()
        with self._lock:
            if self._room_bytes(kept) < size:
                raise NoRoom(f"{self._path}: a merge needs {size >> 20} MiB of free space for a while")
            self._reserved_bytes += size
            self._giving_back += gives_back
        try:
            yield
        finally:
            with self._lock:
                self._reserved_bytes -= size
                self._giving_back -= gives_back

    def _merge(self, work: DueMerge) -> None:
        sources = work.sources
        numbers = {table.meta.number for table in sources}
        buried = [table for table in sources if table.meta.tombstone_count]

        def others_of(version: Version) -> Iterator[Table]:
            for table in version.tables():
                if table.meta.number not in numbers and any(concerns(grave, table) for grave in buried):
                    yield table

        def read_beside(version: Version) -> Iterator[Table]:
            yield from others_of(version)
            yield from (table for run in graves_of(version) for table in run.tables if table not in sources)

        version, held = self._tables.hold(read_beside)
        try:
            others, graves = tuple(others_of(version)), graves_of(version)
            table_bytes = self._options.table_bytes
            output = MergeOutput(
                self._tables,
                sources,
                clean_lsn=max(table.meta.end_lsn for table in version.tables()),
                in_place=bool(work.tables),
                table_bytes=_ONE_TABLE if work.runs[0] in version.level0 and work.tables else table_bytes,
                piece_bytes=PIECE_TABLES * table_bytes if work.in_pieces else None,
            )
            runs = (TableRun(work.tables),) if work.tables else work.runs
            unreadable = Unreadable(
                self.log_starts, graves, others, self._expired, self.is_nowhere, self._state.lasting
            )
            output.write(merge(runs, unreadable), lambda: self._tables.closing)
        finally:
            self._tables.drop(held)
        if work.tables and not output.written_bytes:
            self._counters.dropped_tables += len(work.tables)
        self._counters.merges += 1
        self._counters.merged_bytes += output.written_bytes

    def drop(self, tables: list[Table]) -> int:
        """Drop tables of which nobody can read anything, but for those that are being merged; returns how many."""
        with self._lock:
            free = frozenset(table.meta.number for table in tables if table.meta.number not in self._busy)
            free &= {table.meta.number for table in self._tables.version.tables()}
            self._busy |= free
        try:
            if free:
                self._tables.edit(Edit(gone=free))
        finally:
            with self._lock:
                self._busy -= free
        self._counters.dropped_tables += len(free)
        return len(free)

    def is_nowhere(self, targets: U64) -> NDArray[np.bool_]:
        """Which targets of delayed messages are of topics that are gone; 0 is of a message that is not delayed."""
        topics = targets >> np.uint64(32)
        gone = [topic for topic in np.unique(topics).tolist() if topic and topic not in self._state.topics]
        return np.isin(topics, np.array(gone, np.uint64))

    def log_starts(self, keys: U64) -> I64:
        """Earliest offset kept of each of the sorted queues; everything of a topic that is gone goes."""
        starts = np.full(len(keys), np.iinfo(np.int64).max, np.int64)
        topics = keys >> np.uint64(32)
        for topic_id in np.unique(topics).tolist():
            item = self._state.topics.get(topic_id)
            if is_due_topic(topic_id):
                mine = topics == np.uint64(topic_id)
                starts[mine] = live_from(keys[mine], Hand.decode(self._state.documents.get(HAND)))
            elif item is not None:
                mine = topics == np.uint64(topic_id)
                starts[mine] = item.live_from((keys[mine] & np.uint64(0xFFFFFFFF)).astype(np.int64) - item.first)
        return starts
