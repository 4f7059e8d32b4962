"""The threads behind a shard's back: flushing, merging, housekeeping; and the pressure they put on writers.

The *flusher* writes frozen memtables to level 0, the *merger* merges level 0 into level 1, the *housekeeper*
allocates log segments ahead, syncs the log in asynchronous mode, looks at the disk's free space and drops what
retention has expired.

Writers never wait for a flush: up to ``max_memtables`` may queue for it. Beyond ``slow_memtables`` the store
reports pressure ``slow``, at the limit it refuses.
"""

from __future__ import annotations

import errno
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from lsmq.errors import DiskFull, LsmqError, ShardStopped, StoreBusy

from .disk import Clock, Disk
from .log_writer import LogWriter
from .options import FlushMode, StoreOptions
from .segments import SegmentFiles
from .tables import Closing, TableSet

_FULL = (errno.ENOSPC, errno.EDQUOT)
_AHEAD_FROM = 4  # the next segment is allocated when this part, one in so many, of the present one is used
_TICK_SECONDS = 1.0
#: Memory that no memtable has wanted for so long goes back to the system.
_TRIM_SECONDS = 10.0
#: So many attempts that find the disk full are waited for: the first may have begun before the caller came.
_ATTEMPTS = 2


class Maintenance:
    """Runs the background threads of a store."""

    def __init__(
        self,
        path: Path,
        options: StoreOptions,
        disk: Disk,
        clock: Clock,
        tables: TableSet,
        segments: SegmentFiles,
        writer: LogWriter,
        retain: Callable[[], None],
    ) -> None:
        """``retain`` drops what has expired; it is called every ``retention_interval_ms``."""
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
        self._end_lsn = writer.committed_lsn
        self._unsynced_bytes = 0
        self._merging = False
        self._no_space: Counter[str] = Counter()  # attempts that ended for want of space
        self._threads: list[threading.Thread] = []

    # -- admission ---------------------------------------------------------------------------------------

    def pressure(self) -> str:
        options, frozen, level0 = self._options, len(self._tables.frozen), len(self._tables.version.level0)
        if frozen >= options.max_memtables or level0 >= options.max_level0:
            return "refuse"
        if frozen >= options.slow_memtables or level0 >= options.slow_level0:
            return "slow"
        return "ok"

    def admit(self, size: int) -> None:
        """Raises ``DiskFull`` or ``StoreBusy`` when a write of ``size`` bytes must not be taken."""
        if self.disk_full:
            raise DiskFull(
                f"the disk of {self._path} has {self.disk_free_bytes >> 20} MiB left, and "
                f"{self._options.min_free_bytes >> 20} MiB are kept free for flushing (min_free_bytes). Free some "
                "space; reads go on, and writes are taken again then.",
                path=str(self._path),
                free_bytes=self.disk_free_bytes,
            )
        if self.pressure() == "refuse":
            raise StoreBusy(
                f"{len(self._tables.frozen)} memtables wait for their flush and {len(self._tables.version.level0)} "
                f"tables for their merge (limits {self._options.max_memtables} and {self._options.max_level0}); try "
                "again in a moment, or write more slowly",
                frozen_memtables=len(self._tables.frozen),
                level0_tables=len(self._tables.version.level0),
            )

    def wait_for_room(self, timeout: float) -> None:
        """Block while writes are refused, ``timeout`` seconds at most."""
        with self._tables.changed:
            self._tables.changed.wait_for(lambda: self._tables.closing or self.pressure() != "refuse", timeout)

    def disk_is_full(self) -> None:
        self.disk_full = True

    def committed(self, end_lsn: int, size: int) -> None:
        """The log grew: have the next segment ready before it is needed, and sync in time."""
        crossed = end_lsn // self._segment_bytes != self._end_lsn // self._segment_bytes
        self._end_lsn = end_lsn
        self._unsynced_bytes += size
        overdue = self._options.flush_mode is FlushMode.ASYNC and self._unsynced_bytes >= self._options.flush_bytes
        if crossed or overdue:
            with self._tables.changed:
                self._tables.changed.notify_all()

    def applied(self, lsn: int) -> None:
        """Freeze a memtable whose stretch of the log is long: entries that are not records fill the log too."""
        if lsn - self._tables.memtable.first_lsn > 4 * self._options.memtable_bytes:
            self._tables.freeze()

    # -- threads -----------------------------------------------------------------------------------------

    def start(self) -> None:
        for name, loop in (
            ("flush", self._flush_loop),
            ("merge", self._merge_loop),
            ("house", self._house_loop),
        ):
            thread = threading.Thread(target=self._guard, args=(loop,), name=f"lsmq-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _guard(self, loop: Callable[[], None]) -> None:
        """A thread that fails stops the shard: nothing goes on as if it had not happened."""
        try:
            loop()
        except Closing:
            return
        except Exception as error:
            failure = error if isinstance(error, LsmqError) else self._failed(error)
            self._writer.stop(failure)
            with self._tables.changed:
                self._tables.changed.notify_all()

    def _failed(self, error: Exception) -> ShardStopped:
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
            self._retry_when_full(self._tables.flush_oldest, "flush")

    def _merge_loop(self) -> None:
        while True:
            with self._tables.changed:
                self._merging = False
                self._tables.changed.notify_all()
                self._tables.changed.wait_for(lambda: self._tables.closing or self._tables.choose_merge() is not None)
                if self._tables.closing:
                    return
                self._merging = True
            self._retry_when_full(self._tables.merge, "merge")

    def _retry_when_full(self, work: Callable[[], None], kind: str = "") -> None:
        try:
            work()
        except OSError as error:
            if error.errno not in _FULL:
                raise
            self.disk_is_full()
            with self._tables.changed:
                self._no_space[kind] += 1
                self._tables.changed.notify_all()
                self._tables.changed.wait_for(lambda: self._tables.closing, _TICK_SECONDS)

    def _house_loop(self) -> None:
        interval = (
            self._options.flush_interval_ms / 1000 if self._options.flush_mode is FlushMode.ASYNC else _TICK_SECONDS
        )
        next_retention = 0.0
        next_trim = self._clock.monotonic() + _TRIM_SECONDS
        while not self._tables.closing:
            self._check_space()
            if self._options.flush_mode is FlushMode.ASYNC and self._unsynced_bytes:
                self._sync()
            if self._clock.monotonic() >= next_retention:
                self._retry_when_full(self._retain)  # a full disk is when dropping tables is wanted most
                next_retention = self._clock.monotonic() + self._options.retention_interval_ms / 1000
            if self._clock.monotonic() >= next_trim:
                self._tables.slabs.trim()
                next_trim = self._clock.monotonic() + _TRIM_SECONDS
            with self._tables.changed:
                if not self._tables.closing:
                    self._tables.changed.wait(min(interval, _TICK_SECONDS))

    def _check_space(self) -> None:
        """Have the segment ready, the next one too once a part of it is used, and see whether the disk takes writes."""
        ready = True
        try:
            self._segments.prepare(self._end_lsn)
            if self._end_lsn % self._segment_bytes >= self._segment_bytes // _AHEAD_FROM:
                self._segments.prepare(self._end_lsn + self._segment_bytes)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            ready = False
        self.disk_free_bytes = self._disk.free_bytes(self._path)
        self.disk_full = self.disk_free_bytes < self._options.min_free_bytes or not ready

    def _sync(self) -> None:
        self._unsynced_bytes = 0
        self._writer.sync_now()

    def wait_flushed(self) -> None:
        """Return when no memtable waits for its flush, or none ever will. Raises ``DiskFull``; it goes on then."""
        self._wait_for("flush", lambda: not self._tables.frozen)

    def wait_merged(self) -> None:
        """Return when no merge is due, or none ever will be. Raises ``DiskFull``; it goes on then."""
        self._wait_for("merge", lambda: not self._merging and self._tables.choose_merge() is None)

    def _wait_for(self, kind: str, done: Callable[[], bool]) -> None:
        with self._tables.changed:
            limit = self._no_space[kind] + _ATTEMPTS
            self._tables.changed.wait_for(lambda: self._over() or done() or self._no_space[kind] >= limit)
            if not self._over() and not done():
                raise DiskFull(
                    f"the disk of {self._path} is full, and a {kind} found no space. It is tried again until there is "
                    "some: free it, or add a disk. Reads go on.",
                    path=str(self._path),
                    frozen_memtables=len(self._tables.frozen),
                )

    def _over(self) -> bool:
        return self._tables.closing or self._writer.stopped

    def close(self) -> None:
        """Stop the threads and wait for them."""
        with self._tables.changed:
            self._tables.closing = True
            self._tables.changed.notify_all()
        for thread in self._threads:
            thread.join()
