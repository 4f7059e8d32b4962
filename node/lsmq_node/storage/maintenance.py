"""The threads behind a shard's back: flushing, merging, syncing, housekeeping; and the pressure they put on writers.

The *flusher* writes frozen memtables to level 0. One thread merges level 0 into level 1, another the generations, and
gives back the space of what nobody can read; a third one merges the files of the checkpoint. The *retainer* moves log
starts past what has expired; another thread deletes what later messages of a key supersede. The *syncer* keeps the
promise of asynchronous mode and does nothing else. The *housekeeper* allocates log segments ahead and lets go of those
behind, looks at the disk's free space, and puts a memtable in line for its flush that does not fill in time.

Writers never wait for a flush: up to ``max_memtables`` may queue for it. Beyond ``slow_memtables`` the store
reports pressure ``slow``, at the limit it refuses.
"""

from __future__ import annotations

import errno
import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from lsmq import runtime
from lsmq.errors import DiskFull, LsmqError, ShardStopped, StoreBusy
from lsmq_node.descriptors import SHORTAGE

from .checkpoint import MAX_INCREMENTS
from .disk import Clock, Disk
from .failures import FULL, WANT, no_descriptor
from .log_writer import LogWriter
from .memory import give_back
from .memtable_age import MemtableAge
from .merger import Merger, NoRoom
from .options import StoreOptions
from .segments import SegmentFiles
from .syncer import Syncer
from .tables import Closing, TableSet
from .version import TableRun

_AHEAD_FROM = 4  # the next segment is allocated when this part, one in so many, of the present one is used
_TICK_SECONDS = 1.0
#: Memory that no memtable has wanted for so long goes back to the system, and what else was freed meanwhile.
_TRIM_SECONDS = 10.0
#: So many attempts that find the disk full are waited for: the first may have begun before the caller came.
_ATTEMPTS = 2
#: The kinds of work that merge.
_MERGES = ("merge", "tidy", "state")
#: Work that found the disk full while it wrote is tried again after a pause, which doubles up to so many ticks.
_LONGEST_PAUSE = 64

_log = logging.getLogger("lsmq.storage")


class Flush:
    """A flush that was asked for: of what was applied below ``lsn``, whatever is written meanwhile."""

    def __init__(self, maintenance: Maintenance, lsn: int) -> None:
        self._maintenance = maintenance
        self.lsn = lsn
        self._limit = maintenance.failed_attempts("flush") + _ATTEMPTS

    def is_over(self) -> bool:
        """Whether there is nothing to wait for. Raises ``DiskFull``; the flush is tried again all the same."""
        return self._maintenance.is_over("flush", lambda: self._maintenance.flushed_lsn >= self.lsn, self._limit)


class Maintenance:
    """Runs the background threads of a store."""

    def __init__(
        self,
        path: Path,
        options: StoreOptions,
        disk: Disk,
        clock: Clock,
        tables: TableSet,
        merger: Merger,
        segments: SegmentFiles,
        writer: LogWriter,
        retain: Callable[[], bool],
    ) -> None:
        """``retain`` drops what has expired, every ``retention_interval_ms``; sooner when it could not (False)."""
        self._path = path
        self._options = options
        self._disk = disk
        self._clock = clock
        self._tables = tables
        self._segments = segments
        self._segment_bytes = segments.segment_bytes
        self._writer = writer
        self._retain = retain
        self.disk_full = False
        self.disk_free_bytes = 0
        self._end_lsn = writer.commits.lsn
        self._syncer = Syncer(options, writer)
        self._merger = merger
        self._age = MemtableAge(options.memtable_age_ms, str(path))
        self._settling = 0  # raised by who waits for merges
        #: By thread, when it last found nothing to do, and in which tables.
        self._settled: dict[str, tuple[int, tuple[TableRun, ...]] | None] = {"merge": None, "tidy": None}
        self._wants: Counter[str] = Counter()  # attempts that ended for want of space, or of a descriptor
        self._last_want: dict[str, int] = {}  # what the last of them failed with
        self._pauses: dict[str, int] = {}  # in ticks, of the kinds of work that last wanted something
        self._threads: list[runtime.Thread] = []
        #: Whether topics may reach their limits at any time, so that ``retain`` is to look every second.
        self.is_watchful: Callable[[], bool] = lambda: False
        #: Deletes what later messages of the same key supersede, every ``retention_interval_ms``.
        self.clean_keys: Callable[[], None] = lambda: None
        #: Called, in a background thread, when a flush or a merge has ended, well or not, and when all has stopped.
        self.on_progress: Callable[[], None] = lambda: None

    # -- admission ---------------------------------------------------------------------------------------

    def pressure(self) -> str:
        options, frozen, level0 = self._options, len(self._tables.frozen), len(self._tables.version.level0)
        if frozen >= options.max_memtables or level0 >= options.max_level0:
            return "refuse"
        if len(self._tables.checkpoint.files) >= MAX_INCREMENTS:
            return "refuse"
        if frozen >= options.slow_memtables or level0 >= options.slow_level0:
            return "slow"
        return "ok"

    def admit(self, size: int) -> None:
        """Raises ``DiskFull`` or ``StoreBusy`` when a write of ``size`` bytes must not be taken."""
        if self.disk_full:
            raise DiskFull(
                f"the disk of {self._path} has {_size_text(self.disk_free_bytes)} left, and "
                f"{_size_text(self._options.min_free_bytes)} are kept free for flushing (min_free_bytes). Free some "
                "space; reads go on, and writes are taken again then.",
                path=str(self._path),
                free_bytes=self.disk_free_bytes,
            )
        if self.pressure() == "refuse":
            if (kind := self._starved()) is not None:
                raise self._no_room_for(kind)
            raise StoreBusy(
                f"{len(self._tables.frozen)} memtables wait for their flush, {len(self._tables.version.level0)} "
                f"tables and {len(self._tables.checkpoint.files)} files of the checkpoint for their merge (limits "
                f"{self._options.max_memtables}, {self._options.max_level0} and {MAX_INCREMENTS}); try again in a "
                "moment, or write more slowly",
                frozen_memtables=len(self._tables.frozen),
                level0_tables=len(self._tables.version.level0),
            )

    def _starved(self) -> str | None:
        """The kind of work that writers wait for, where it waits for space itself."""
        frozen, level0 = len(self._tables.frozen), len(self._tables.version.level0)
        behind = {
            "flush": frozen >= self._options.max_memtables,
            "merge": level0 >= self._options.max_level0,
            "state": len(self._tables.checkpoint.files) >= MAX_INCREMENTS,
        }
        starved = (kind for kind, is_behind in behind.items() if is_behind and kind in self._pauses)
        return next((kind for kind in starved if self._last_want[kind] in FULL), None)

    def _no_room_for(self, kind: str) -> DiskFull:
        return DiskFull(
            f"the disk of {self._path} is full, and a {'merge' if kind in _MERGES else kind} found no space. It is "
            "tried again until there is some: free it, or add a disk. Reads go on.",
            path=str(self._path),
            frozen_memtables=len(self._tables.frozen),
        )

    def wait_for_room(self, timeout: float) -> None:
        """Block while writes are refused, ``timeout`` seconds at most; not when no room will ever come."""
        with self._tables.changed:
            self._tables.changed.wait_for(lambda: self._over() or self.pressure() != "refuse", timeout)

    def disk_is_full(self) -> None:
        self.disk_full = True

    def committed(self, end_lsn: int, size: int) -> None:
        """The log grew: have the next segment ready before it is needed, and sync in time."""
        crossed = self._ahead(end_lsn) != self._ahead(self._end_lsn)
        self._end_lsn = end_lsn
        if self._writer.lags:
            self._syncer.note_written()
        if crossed:
            with self._tables.changed:
                self._tables.changed.notify_all()

    def _ahead(self, end_lsn: int) -> int:
        """Which segment is to be there when the log ends at ``end_lsn``."""
        return (end_lsn + self._segment_bytes - self._segment_bytes // _AHEAD_FROM) // self._segment_bytes

    def applied(self, lsn: int) -> None:
        """Freeze a memtable whose stretch of the log is long: entries that are not records fill the log too."""
        if lsn - self._tables.memtable.first_lsn > 4 * self._options.memtable_bytes:
            self._tables.freeze()

    # -- threads -----------------------------------------------------------------------------------------

    def start(self) -> None:
        loops = [
            ("flush", self._flush_loop),
            ("merge", self._merge_loop),
            ("tidy", self._tidy_loop),
            ("state", self._checkpoint_loop),
            ("retain", self._retain_loop),
            ("keys", self._keys_loop),
            ("house", self._house_loop),
            ("sync", self._syncer.run),
        ]
        try:
            for name, loop in loops:
                thread = runtime.Thread(target=self._guard, args=(loop,), name=f"lsmq-{name}", daemon=True)
                thread.start()
                self._threads.append(thread)
        except BaseException:
            self.close()  # What was started must not go on with a directory that is free.
            raise

    def _guard(self, loop: Callable[[], None]) -> None:
        """A thread that fails stops the shard: nothing goes on as if it had not happened."""
        try:
            loop()
        except Closing:
            return
        except BaseException as error:
            failure = error if isinstance(error, LsmqError) else self._failed(error)
            self._writer.stop(failure)

    def progressed(self) -> None:
        """Let all who wait for background work look again."""
        with self._tables.changed:
            self._tables.changed.notify_all()
        self.on_progress()

    def _failed(self, error: BaseException) -> ShardStopped:
        return ShardStopped(
            f"background work on {self._path} failed: {error!r}. No more writes are taken; check the disk "
            "and restart the node.",
            path=str(self._path),
        )

    def _flush_loop(self) -> None:
        while True:
            with self._tables.changed:
                self._tables.changed.wait_for(lambda: self._tables.closing or self._tables.frozen)
                if self._tables.closing:
                    return
            self._retry_in_want(self._tables.flush_oldest, "flush")
            self.on_progress()

    def _merge_loop(self) -> None:
        merger = self._merger
        self._work_loop("merge", lambda _: merger.merge_level0(), lambda _: merger.due_level0() is not None)

    def _tidy_loop(self) -> None:
        merger = self._merger

        def due(urgent: bool) -> bool:
            return merger.due_rest(at_once=urgent) is not None or merger.looks_later

        self._work_loop("tidy", lambda urgent: merger.merge_rest(at_once=urgent), due)

    def _work_loop(self, kind: str, work: Callable[[bool], None], due: Callable[[bool], bool]) -> None:
        """Do ``work`` whenever it is ``due``; both are told whether somebody waits for it."""
        while not self._tables.closing:
            runs, settling = self._tables.version.runs(), self._settling
            known = self._settled[kind]
            urgent = known is None or settling > known[0]
            due_now = due(urgent)
            if due_now:
                self._retry_in_want(partial(work, urgent), kind)
                self.on_progress()
                if runs != self._tables.version.runs():
                    continue
            with self._tables.changed:
                if not due_now and known != (settling, runs):
                    self._settled[kind] = settling, runs
                    self._tables.changed.notify_all()
                self._tables.changed.wait_for(
                    lambda runs=runs, settling=settling: (  # type: ignore[misc]
                        self._tables.closing or self._tables.version.runs() != runs or self._settling != settling
                    ),
                    _TICK_SECONDS,
                )

    def _checkpoint_loop(self) -> None:
        checkpoint, ids = self._tables.checkpoint, self._tables.ids
        seconds = self._options.retention_interval_ms / 1000  # ids expire though nothing is written
        while True:
            with self._tables.changed:
                self._tables.changed.wait_for(
                    lambda: self._tables.closing or checkpoint.merge_due() or ids.is_due(), seconds
                )
                if self._tables.closing:
                    return
            self._retry_in_want(checkpoint.merge, "state")
            self._retry_in_want(ids.work, "state")

    def _retain_loop(self) -> None:
        while not self._tables.closing:
            done = self._retry_in_want(self._retain, "retain")
            interval = self._options.retention_interval_ms / 1000
            seconds = interval if done and not self.is_watchful() else min(interval, _TICK_SECONDS)
            with self._tables.changed:
                self._tables.changed.wait_for(lambda: self._tables.closing, seconds)

    def _keys_loop(self) -> None:
        while not self._over():
            self._retry_in_want(self.clean_keys, "keys")
            self.paused(self._options.retention_interval_ms / 1000)

    def paused(self, seconds: float) -> bool:
        """Wait for so long, unless the store is being closed; whether it is."""
        with self._tables.changed:
            return self._tables.changed.wait_for(lambda: self._over(), seconds)

    def _retry_in_want(self, work: Callable[[], object], kind: str) -> bool:
        """Do ``work``; False when it has to be done again.

        Work that reserves its space first is tried every tick, since an attempt writes nothing; other work that finds
        the disk full is tried after pauses that grow, since each may write until then.
        """
        try:
            done = work() is not False
        except NoRoom as error:
            if kind not in self._pauses:
                _log.warning("%s. It waits until there is", error)
            self._wait_in_want(kind, 1, errno.ENOSPC)
            return False
        except OSError as error:
            if error.errno not in WANT:
                raise
            pause = 1
            if error.errno in FULL:
                self.disk_is_full()
                if kind in ("merge", "tidy"):
                    pause = min(2 * self._pauses.get(kind, 0), _LONGEST_PAUSE) or 1
            assert error.errno is not None
            self._wait_in_want(kind, pause, error.errno)
            return False
        self._pauses.pop(kind, None)
        return done

    def _wait_in_want(self, kind: str, pause: int, wanted: int) -> None:
        with self._tables.changed:
            self._wants[kind] += 1
            self._last_want[kind] = wanted
        self._pauses[kind] = pause
        self.progressed()
        with self._tables.changed:
            self._tables.changed.wait_for(lambda: self._tables.closing, pause * _TICK_SECONDS)

    def _house_loop(self) -> None:
        next_trim = self._clock.monotonic()  # recovery has just used much that it needs no more
        while not self._tables.closing:
            self._check_space()
            self._flush_aged()
            self._retry_in_want(self._tables.release_log, "release")
            if self._clock.monotonic() >= next_trim:
                self._tables.trim()
                give_back()
                next_trim = self._clock.monotonic() + _TRIM_SECONDS
            with self._tables.changed:
                if not self._tables.closing:
                    self._tables.changed.wait(_TICK_SECONDS)

    def _check_space(self) -> None:
        """Have space ahead, the next segment too once a part of one is used, and see whether the disk takes writes."""
        ready = True
        try:
            end_lsn = self._end_lsn
            self._segments.prepare(end_lsn, end_lsn + self._segments.reserve_bytes)
            ahead_lsn = self._ahead(end_lsn) * self._segment_bytes
            self._segments.prepare(ahead_lsn, ahead_lsn)
        except OSError as error:
            if error.errno not in WANT:
                raise
            ready = error.errno in SHORTAGE  # a write that needs the segment by then tries again
        self.disk_free_bytes = self._disk.free_bytes(self._path)
        self.disk_full = self.disk_free_bytes < self._options.min_free_bytes or not ready

    def _flush_aged(self) -> None:
        """Put the memtable in line for its flush when it is old enough, and none waits there already."""
        tables, writer = self._tables, self._writer
        first_lsn = tables.memtable.first_lsn  # before what is applied, which only grows
        due = self._age.is_due(first_lsn, tables.applied_lsn, self._clock.monotonic())
        if due and not tables.frozen and not writer.stopped:
            writer.commits.between_entries(tables.freeze)

    @property
    def flushed_lsn(self) -> int:
        """Everything below is in tables."""
        return self._tables.manifest.flushed_lsn

    def failed_attempts(self, kind: str) -> int:
        """How often a ``flush`` or another kind of work has found no space, or no descriptor."""
        return self._wants[kind]

    def wait_flushed(self, flush: Flush) -> None:
        """Return when the flush is over. Raises ``DiskFull``, or ``StoreBusy`` for want of a descriptor; it goes on."""
        with self._tables.changed:
            self._tables.changed.wait_for(flush.is_over)

    def wait_merged(self) -> None:
        """Return when no merge is due, or none ever will be. Raises as :meth:`wait_flushed`."""
        changed = self._tables.changed
        with changed:
            self._settling += 1
            wanted = self._settling
            changed.notify_all()
            limits = {kind: self._wants[kind] + _ATTEMPTS for kind in _MERGES}
            changed.wait_for(
                lambda: any(self.is_over(kind, lambda: self._is_settled(wanted), limits[kind]) for kind in _MERGES)
            )

    def _is_settled(self, wanted: int) -> bool:
        """Whether those who merge have found nothing to do since ``wanted``."""
        runs = self._tables.version.runs()
        settled = all(known and known[0] >= wanted and known[1] == runs for known in self._settled.values())
        return settled and not self._tables.checkpoint.merge_due() and not self._tables.ids.is_due()

    def is_over(self, kind: str, done: Callable[[], bool], limit: int) -> bool:
        """Whether work is done, or never will be. Raises ``DiskFull`` or ``StoreBusy`` after ``limit`` attempts."""
        if self._over() or done():
            return True
        if self._wants[kind] >= limit:
            if self._last_want[kind] in SHORTAGE:
                raise no_descriptor(self._path)
            raise self._no_room_for(kind)
        return False

    def _over(self) -> bool:
        return self._tables.closing or self._writer.stopped

    def close(self) -> None:
        """Stop the threads and wait for them."""
        with self._tables.changed:
            self._tables.closing = True
            self._tables.changed.notify_all()
        self._syncer.close()
        for thread in self._threads:
            thread.join()


def _size_text(size_bytes: int) -> str:
    return f"{size_bytes >> 20} MiB" if size_bytes >= 10 << 20 else f"{size_bytes >> 10} KiB"
