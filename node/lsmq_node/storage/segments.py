"""The files of the write-ahead log: segments, made ahead and recycled behind.

A segment's file has its full size from the start, and space on the disk for a piece of it: for what is written next and
for a share of the log that there is, so that a small log takes little and a large one is seldom extended.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from lsmq import runtime

from .disk import Buffer, Disk, File, replace_file
from .failures import FULL, WANT
from .log_mark import LogMark, load_log_mark, store_log_mark
from .wal import segment_name

_PIECE_BYTES = 1 << 20  # read or erased at a time
#: Space is reserved in multiples of so many bytes, or of that part of a segment which is more.
_LEAST_ROOM_BYTES, _LEAST_ROOM_SHARE = 64 << 10, 64
#: Ahead of the log there is space for this part of it, one in so many.
_AHEAD_SHARE = 8
_SEGMENT_NAME = re.compile(r"[0-9a-f]{16}\.wal")


class SegmentFiles:
    """The segment files of a log: written at LSNs, synced, preallocated ahead, recycled behind.

    One thread writes at a time; ``prepare_next`` and ``release`` may run in another.
    """

    def __init__(self, disk: Disk, directory: Path, segment_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self.segment_bytes = segment_bytes
        self._room_bytes = min(segment_bytes, max(_LEAST_ROOM_BYTES, segment_bytes // _LEAST_ROOM_SHARE))
        #: Had ahead of the log's end, this is for the small entries that make room again when the disk is full.
        self.reserve_bytes = self._room_bytes // 2
        self._open: dict[int, File] = {}
        #: Up to where in each of these there is space on the disk.
        self._room: dict[int, int] = {}
        self._room_lock = runtime.Lock()
        self._unsynced: set[int] = set()
        self._names_lock = runtime.Lock()  # preparing, recycling
        self._unsynced_lock = runtime.Lock()
        self._mark: LogMark | None = None
        self._mark_lock = runtime.Lock()
        #: How far the log is on the disk and will not be cut off again.
        self.final_lsn: Callable[[], int] = lambda: 0
        self._sync_lock = runtime.Lock()  # who finds nothing left to sync waits for who is at it
        self._sync_failure: OSError | None = None
        self.fsync_count = 0
        self.written_bytes = 0
        #: The log on disk begins here, or later where it is not read back yet.
        self.begins_lsn = 0
        self._released_lsn = 0  # below it nothing is written any more; guarded by the lock of names

    def begin(self, lsn: int) -> None:
        """The log was read back and ends at ``lsn``, durably: from here on it is written. Raises ``OSError``.

        On a full disk what was noted before stays where it is true still, so that the store can be read and trimmed.
        """
        starts = self.start_lsns()
        self.begins_lsn = min(starts, default=0)
        mark = LogMark(lsn, max(starts, default=-self.segment_bytes) + self.segment_bytes)
        with self._mark_lock:
            try:
                self._store_mark(mark)
            except OSError as error:
                known = load_log_mark(self._disk, self._directory.parent)
                if error.errno not in FULL or known is None or not known.is_true_of(mark, self.segment_bytes):
                    raise
                self._mark = known

    def note(self, durable_lsn: int | None = None, segments_end_lsn: int = 0, *, closed: bool = False) -> None:
        """Note how far the log is durable, :attr:`final_lsn` unless said, and where its segments end.

        Durable on return. Nothing noted goes back but by :meth:`lower_mark` and :meth:`begin`. Raises ``OSError``.
        """
        with self._mark_lock:
            mark, lsn = self._mark, self.final_lsn() if durable_lsn is None else durable_lsn
            if mark is None:
                return  # what is there was not read back yet
            wanted = LogMark(max(mark.durable_lsn, lsn), max(mark.segments_end_lsn, segments_end_lsn), closed)
            if wanted != mark:
                self._store_mark(wanted)

    def lower_mark(self, lsn: int) -> None:
        """What lies from there on may go: no more than up to ``lsn`` is noted as durable. Raises ``OSError``."""
        with self._mark_lock:
            if self._mark is not None and lsn < self._mark.durable_lsn:
                self._store_mark(LogMark(lsn, self._mark.segments_end_lsn))

    def _store_mark(self, mark: LogMark) -> None:
        store_log_mark(self._disk, self._directory.parent, mark)
        self._mark = mark

    def start_lsns(self) -> list[int]:
        """First LSN of each segment on disk, ascending. Files of other names are not ours."""
        return sorted(int(name[:-4], 16) for name in self._disk.list(self._directory) if _SEGMENT_NAME.fullmatch(name))

    def prepare(self, lsn: int, end_lsn: int) -> None:
        """Have segments with space for what is written to ``[lsn, end_lsn]``. Raises ``OSError`` when it cannot."""
        for start in range(lsn - lsn % self.segment_bytes, end_lsn + 1, self.segment_bytes):
            self._prepare(start, min(end_lsn - start, self.segment_bytes))

    def _prepare(self, start: int, needed: int) -> None:
        """Have the segment, with space for its first ``needed`` bytes."""
        if self._room.get(start, -1) >= needed:
            return
        if start not in self._open:
            self._begin_segment(start, needed)
        with self._room_lock:  # which nobody holds while a file is made
            file, room = self._open.get(start), self._room.get(start, 0)
            if file is not None and room < needed:  # None: it was let go of meanwhile
                wanted = self._wanted_room(start, needed)
                try:
                    file.preallocate(room, wanted)
                except OSError as error:
                    if error.errno not in FULL or wanted == needed:
                        raise
                    wanted = needed
                    file.preallocate(room, wanted)
                self._room[start] = wanted

    def _begin_segment(self, start: int, needed: int) -> None:
        with self._names_lock:
            if start in self._open or start < self._released_lsn:  # it was let go of meanwhile
                return
            file, room = self._allocate(start, self._wanted_room(start, needed))
            try:
                self.note(segments_end_lsn=start + self.segment_bytes)
            except OSError:
                file.close()
                raise
            self._room[start] = room
            self._open[start] = file

    def _wanted_room(self, start: int, needed: int) -> int:
        """With what is to be ahead of the log's end, which is not in this segment while nothing of it is needed."""
        ahead = (start + needed - self.begins_lsn) // _AHEAD_SHARE if needed else 1
        pieces = -(-(needed + ahead) // self._room_bytes)
        return min(self.segment_bytes, pieces * self._room_bytes)

    def _allocate(self, start: int, room: int) -> tuple[File, int]:
        """A recycled file or a new one, and up to where it has space: ``room``, or more."""
        path = self._directory / segment_name(start)
        spare = next((name for name in self._disk.list(self._directory) if name.endswith(".spare")), None)
        if spare is not None:
            self._disk.rename(self._directory / spare, path)
            file, room = self._disk.open(path, write=True), self.segment_bytes
        else:
            temporary = path.with_suffix(".new")
            file = self._disk.create(temporary)
            try:
                file.preallocate(0, room)
                file.lengthen(self.segment_bytes)
                file.sync()
                self._disk.rename(temporary, path)
            except OSError:
                file.close()
                self._disk.remove(temporary)
                raise
        self._disk.sync_directory(self._directory)
        return file, room

    def write(self, lsn: int, buffer: Buffer) -> None:
        """Write bytes of the stream at their LSN, over as many segments as they span."""
        view = memoryview(buffer)
        while view:
            start = lsn - lsn % self.segment_bytes
            piece = view[: start + self.segment_bytes - lsn]
            self._prepare(start, lsn - start + len(piece))
            self._open[start].pwrite(piece, lsn - start)
            with self._unsynced_lock:
                self._unsynced.add(start)
            self.written_bytes += len(piece)
            view = view[len(piece) :]
            lsn += len(piece)

    def read(self, lsn: int, length: int) -> bytes:
        """Up to ``length`` bytes of the stream at ``lsn``, fewer at the end of a segment.

        Raises ``FileNotFoundError`` when the segment is gone.
        """
        start = lsn - lsn % self.segment_bytes
        file = self._open.get(start) or self._disk.open(self._directory / segment_name(start))
        return file.pread(min(length, start + self.segment_bytes - lsn), lsn - start)

    def first_lsn(self) -> int | None:
        """Where the log on disk begins; None when there is none."""
        return next(iter(self.start_lsns()), None)

    def open_for_append(self, lsn: int) -> None:
        """Open the segment that ``lsn`` lies in, where it exists already. It was written up to there."""
        start = lsn - lsn % self.segment_bytes
        path = self._directory / segment_name(start)
        if start not in self._open and path.name in self._disk.list(self._directory):
            file = self._disk.open(path, write=True)
            file.lengthen(self.segment_bytes)
            self._room[start] = lsn - start
            self._open[start] = file

    def make_durable(self, starts: Iterable[int], lsn: int, end_lsn: int) -> None:
        """Make segments durable that another process has written, perhaps without living to sync them.

        What it may have written from ``lsn`` on is written again, as it is read: where its sync failed, the system
        takes for clean what is not on the disk, and another sync would not put it there.
        """
        for start in starts:
            self.open_for_append(start)
            self._room[start] = min(self.segment_bytes, end_lsn - start)
            with self._unsynced_lock:
                self._unsynced.add(start)
            for at in range(max(start, lsn), min(start + self.segment_bytes, end_lsn), _PIECE_BYTES):
                self.write(at, self.read(at, min(_PIECE_BYTES, end_lsn - at)))
        self.sync()

    @property
    def sync_failed(self) -> bool:
        """Whether what the disk holds of the log cannot be known any more."""
        return self._sync_failure is not None

    def sync(self) -> None:
        """Make all that was written durable. Raises ``OSError``; the log must not be used after that."""
        with self._sync_lock:
            if self._sync_failure is not None:
                raise self._sync_failure
            with self._unsynced_lock:
                unsynced, self._unsynced = self._unsynced, set()
            try:
                self._sync(unsynced)
            except OSError as failure:
                self._sync_failure = failure
                raise

    def _sync(self, starts: Iterable[int]) -> None:
        for start in sorted(starts):
            file = self._open.get(start)
            if file is not None:  # else it was flushed to tables and released meanwhile
                file.sync()
                self.fsync_count += 1

    def erase(self, start: int, end: int) -> None:
        """Overwrite ``[start, end)`` with zeros and make that durable: what lay there was never accepted."""
        self.lower_mark(start)
        zeros = bytes(_PIECE_BYTES)
        while start < end:
            piece = min(end - start, len(zeros))
            self.write(start, memoryview(zeros)[:piece])
            start += piece
        self.sync()

    def erase_rest(self, lsn: int) -> None:
        """:meth:`erase` what there is from ``lsn`` to the end of its segment, which is read a piece at a time."""
        self.erase(lsn, self._written_end(lsn))

    def copy(self, start: int, target: Path) -> None:
        """Copy the segment that starts there, without the zeros at its end, to a file. Durable on return."""
        end_lsn = self._written_end(start)

        def write(file: File) -> None:
            for lsn in range(start, end_lsn, _PIECE_BYTES):
                file.pwrite(self.read(lsn, min(_PIECE_BYTES, end_lsn - lsn)), lsn - start)

        replace_file(self._disk, target, write)

    def _written_end(self, lsn: int) -> int:
        """Where the zeros at the end of a segment begin, from ``lsn`` on."""
        written_lsn = lsn
        for at, piece in self._pieces(lsn):
            kept = piece.rstrip(b"\0")
            if kept:
                written_lsn = at + len(kept)
        return written_lsn

    def _pieces(self, lsn: int) -> Iterator[tuple[int, bytes]]:
        """What there is of a segment from ``lsn`` on, and where each piece begins."""
        end_lsn = lsn - lsn % self.segment_bytes + self.segment_bytes
        while lsn < end_lsn and (piece := self.read(lsn, _PIECE_BYTES)):
            yield lsn, piece
            lsn += len(piece)

    def release(self, before_lsn: int, keep_spares: int = 2) -> None:
        """Recycle or delete the segments that end at or below ``before_lsn``, and note how far the log is by now."""
        try:
            self.note()
        except OSError as error:
            if error.errno not in WANT:
                raise
        with self._names_lock:
            self._release(before_lsn, keep_spares)

    def _release(self, before_lsn: int, keep_spares: int) -> None:
        spares = sum(name.endswith(".spare") for name in self._disk.list(self._directory))
        changed = False
        for start in self.start_lsns():
            if start + self.segment_bytes > before_lsn:
                break
            self.begins_lsn = self._released_lsn = start + self.segment_bytes
            self._open.pop(start, None)  # closed when whoever syncs it, or has space for it, has done with it
            self._room.pop(start, None)
            path = self._directory / segment_name(start)
            if spares < keep_spares:
                self._disk.rename(path, path.with_suffix(".spare"))
                spares += 1
            else:
                self._disk.remove(path)
            changed = True
        if changed:
            self._disk.sync_directory(self._directory)

    def drop_spares(self) -> None:
        """Give the disk back what is kept of the log to be used again."""
        with self._names_lock:
            spares = [name for name in self._disk.list(self._directory) if name.endswith(".spare")]
            for name in spares:
                self._disk.remove(self._directory / name)
            if spares:
                self._disk.sync_directory(self._directory)

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()
        self._room.clear()
