"""The write-ahead log: every change is appended here, and durable here, before anything else happens.

A shard's log is one stream of bytes; an LSN is a position in it. The stream is cut into segment files of
equal size, named by the LSN of their first byte in hex, and each segment into blocks of 32 KiB. A log entry
is stored as one or more fragments, none of which crosses a block (thesis 3.4, LevelDB's log format)::

    fragment, little-endian
    offset width field
    0      4     crc      CRC32C of type and payload, seeded with the CRC32C of the segment's LSN (8 bytes)
    4      2     length   of the payload, bytes
    6      1     type     1 FULL, 2 FIRST, 3 MIDDLE, 4 LAST, 5 SEGMENT
    7      n     payload

When fewer than 7 bytes are left in a block they are zeros. Each segment begins with a SEGMENT fragment
(payload: magic ``LSMQWAL1``, version u32, segment size u32, LSN u64); it belongs to the stream, so that all
replicas hold the same bytes at the same LSNs. The seed makes a recycled segment's old fragments invalid.

The payload of an entry starts with its header::

    offset width field
     0     1     version      1
     1     1     kind         see EntryKind
     2     2     flags        0
     4     4     epoch        leader epoch of the shard
     8     8     durable_lsn  how far the log was known to be on disk when this entry was made
    16     8     time_ms      the leader's clock
    24     4     topic_id
    28     4     count        records in the entry
    32     8     check        for RECORDS the sum of the assigned offsets modulo 2**64

Recovery reads to the first fragment that is not intact. Whether that is the torn end of the last write or
damage to something acknowledged is told by ``durable_lsn``: if any intact entry further on says that the log
was durable beyond the bad fragment, the damage is in the middle and the log is refused by name.

Not supported: a change of the segment size of an existing shard.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import crc32c

from lsmq.errors import CorruptFile, UnsupportedFormat

from .disk import Buffer, Disk, File

BLOCK_BYTES = 32 * 1024
FRAGMENT = struct.Struct("<IHB")
FRAGMENT_BYTES = FRAGMENT.size  # 4 + 2 + 1 = 7
SEGMENT_HEADER = struct.Struct("<8sIIQ")
SEGMENT_HEADER_BYTES = FRAGMENT_BYTES + SEGMENT_HEADER.size  # 7 + 24 = 31
MAGIC = b"LSMQWAL1"
VERSION = 1
ENTRY = struct.Struct("<BBHIQqIIQ")
ENTRY_BYTES = ENTRY.size  # 1 + 1 + 2 + 4 + 8 + 8 + 4 + 4 + 8 = 40
ENTRY_VERSION = 1


class Fragment(IntEnum):
    """Fragment types by their number on disk. Never renumber."""

    FULL = 1
    FIRST = 2
    MIDDLE = 3
    LAST = 4
    SEGMENT = 5


class EntryKind(IntEnum):
    """What a log entry does. Numbers are on disk: never renumber."""

    RECORDS = 1  # a record batch: messages put
    CATALOG = 2  # msgpack: a topic created, changed or deleted
    OFFSETS = 3  # a group's committed offsets
    TRIM = 4  # log start offsets moved up
    DELETE = 5  # a record batch of tombstones: messages deleted
    EPOCH = 6  # a new leader epoch begins here
    NAMES = 7  # msgpack: names given to queues


@dataclass(frozen=True, slots=True)
class Entry:
    """A decoded log entry. ``body`` is what follows the entry header; ``[lsn, end_lsn)`` is where it lies."""

    lsn: int
    end_lsn: int
    kind: int
    epoch: int
    durable_lsn: int
    time_ms: int
    topic_id: int
    count: int
    check: int
    body: bytes


def encode_entry_header(
    kind: EntryKind, epoch: int, durable_lsn: int, time_ms: int, topic_id: int, count: int, check: int
) -> bytes:
    return ENTRY.pack(ENTRY_VERSION, kind, 0, epoch, durable_lsn, time_ms, topic_id, count, check)


def decode_entry(lsn: int, end_lsn: int, payload: bytes, source: str) -> Entry:
    """Raises ``UnsupportedFormat`` for a newer version, ``CorruptFile`` for what cannot be an entry."""
    if len(payload) < ENTRY_BYTES:
        raise CorruptFile(
            f"{source}: the log entry at LSN {lsn} has only {len(payload)} bytes", file=source, position=lsn
        )
    version, kind, _flags, epoch, durable_lsn, time_ms, topic_id, count, check = ENTRY.unpack_from(payload)
    if version != ENTRY_VERSION:
        raise UnsupportedFormat(
            f"{source}: the log entry at LSN {lsn} has version {version}; this release reads {ENTRY_VERSION}. "
            "Start the release that wrote it, or a newer one."
        )
    return Entry(lsn, end_lsn, kind, epoch, durable_lsn, time_ms, topic_id, count, check, payload[ENTRY_BYTES:])


def segment_name(lsn: int) -> str:
    return f"{lsn:016x}.wal"


def segment_header(lsn: int, segment_bytes: int) -> bytes:
    payload = SEGMENT_HEADER.pack(MAGIC, VERSION, segment_bytes, lsn)
    return _fragment(Fragment.SEGMENT, payload, _seed(lsn)) + payload


def _seed(segment_lsn: int) -> int:
    return crc32c.crc32c(segment_lsn.to_bytes(8, "little"))


def _fragment(kind: int, payload: Buffer, seed: int) -> bytes:
    crc = crc32c.crc32c(payload, crc32c.crc32c(bytes((kind,)), seed))
    return FRAGMENT.pack(crc, len(payload), kind)


class Appender:
    """Turns entries into the bytes of the stream. Pure: it knows positions, not files.

    ``lsn`` is where the next entry goes. ``take`` hands over the bytes made since the last call.
    """

    __slots__ = ("_pending", "_pending_lsn", "_seed", "lsn", "segment_bytes")

    def __init__(self, lsn: int, segment_bytes: int) -> None:
        self.segment_bytes = segment_bytes
        self.reset(lsn)

    def reset(self, lsn: int) -> None:
        """Forget what is pending and continue at ``lsn``."""
        self.lsn = lsn
        self._pending = bytearray()
        self._pending_lsn = lsn
        self._seed = _seed(lsn - lsn % self.segment_bytes)

    def append(self, entry: Buffer) -> tuple[int, int]:
        """Add an entry; returns its first LSN and the LSN after it."""
        start = self.lsn
        view = memoryview(entry)
        position, size = 0, len(view)
        pending = self._pending
        first = True
        while True:
            self._start_segment()
            room = BLOCK_BYTES - self.lsn % BLOCK_BYTES
            if room < FRAGMENT_BYTES:
                pending += bytes(room)
                self.lsn += room
                continue
            piece = view[position : position + room - FRAGMENT_BYTES]
            position += len(piece)
            last = position == size
            if first:
                kind = Fragment.FULL if last else Fragment.FIRST
            else:
                kind = Fragment.LAST if last else Fragment.MIDDLE
            pending += _fragment(kind, piece, self._seed)
            pending += piece
            self.lsn += FRAGMENT_BYTES + len(piece)
            first = False
            if last:
                return start, self.lsn

    def _start_segment(self) -> None:
        if self.lsn % self.segment_bytes == 0:
            self._seed = _seed(self.lsn)
            self._pending += segment_header(self.lsn, self.segment_bytes)
            self.lsn += SEGMENT_HEADER_BYTES

    @property
    def pending_bytes(self) -> int:
        return len(self._pending)

    def take(self) -> tuple[int, bytearray]:
        """LSN of the first pending byte, and the bytes."""
        taken = self._pending_lsn, self._pending
        self._pending = bytearray()
        self._pending_lsn = self.lsn
        return taken


class SegmentFiles:
    """The segment files of a log: written at LSNs, synced, preallocated ahead, recycled behind.

    One thread writes at a time; ``prepare_next`` and ``release`` may run in another.
    """

    def __init__(self, disk: Disk, directory: Path, segment_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self.segment_bytes = segment_bytes
        self._open: dict[int, File] = {}
        self._unsynced: set[int] = set()
        self._names_lock = threading.Lock()  # preparing, recycling
        self._unsynced_lock = threading.Lock()
        self.fsync_count = 0
        self.written_bytes = 0

    def start_lsns(self) -> list[int]:
        """First LSN of each segment on disk, ascending."""
        return sorted(
            int(name[:-4], 16) for name in self._disk.list(self._directory) if name.endswith(".wal")
        )

    def has(self, lsn: int) -> bool:
        """Whether the segment of ``lsn`` is allocated, so that a write to it cannot run out of space."""
        return lsn - lsn % self.segment_bytes in self._open

    def prepare(self, lsn: int) -> None:
        """Allocate the segment of ``lsn``: a recycled file or a new one. Raises ``OSError`` when it cannot."""
        start = lsn - lsn % self.segment_bytes
        if start not in self._open:
            with self._names_lock:
                if start not in self._open:
                    self._open[start] = self._allocate(start)

    def _allocate(self, start: int) -> File:
        path = self._directory / segment_name(start)
        spare = next((name for name in self._disk.list(self._directory) if name.endswith(".spare")), None)
        if spare is not None:
            self._disk.rename(self._directory / spare, path)
            file = self._disk.open(path, write=True)
        else:
            temporary = path.with_suffix(".new")
            file = self._disk.create(temporary)
            try:
                file.preallocate(self.segment_bytes)
                file.sync()
                self._disk.rename(temporary, path)
            except OSError:
                file.close()
                self._disk.remove(temporary)
                raise
        self._disk.sync_directory(self._directory)
        return file

    def write(self, lsn: int, buffer: Buffer) -> None:
        """Write bytes of the stream at their LSN, over as many segments as they span."""
        view = memoryview(buffer)
        while view:
            start = lsn - lsn % self.segment_bytes
            file = self._segment(start)
            piece = view[: start + self.segment_bytes - lsn]
            file.pwrite(piece, lsn - start)
            with self._unsynced_lock:
                self._unsynced.add(start)
            self.written_bytes += len(piece)
            view = view[len(piece) :]
            lsn += len(piece)

    def _segment(self, start: int) -> File:
        file = self._open.get(start)
        if file is None:
            self.prepare(start)
            file = self._open[start]
        return file

    def open_for_append(self, lsn: int) -> None:
        """Open the segment that ``lsn`` lies in, where it exists already."""
        start = lsn - lsn % self.segment_bytes
        path = self._directory / segment_name(start)
        if start not in self._open and path.name in self._disk.list(self._directory):
            file = self._disk.open(path, write=True)
            if file.size() < self.segment_bytes:
                file.preallocate(self.segment_bytes)
            self._open[start] = file

    def sync(self) -> None:
        """Make all that was written durable. Raises ``OSError``; the log must not be used after that."""
        with self._unsynced_lock:
            unsynced, self._unsynced = self._unsynced, set()
        for start in sorted(unsynced):
            file = self._open.get(start)
            if file is not None:  # else it was flushed to tables and released meanwhile
                file.sync()
                self.fsync_count += 1

    def erase(self, start: int, end: int) -> None:
        """Overwrite ``[start, end)`` with zeros and make that durable: what lay there was never accepted."""
        zeros = bytes(1 << 20)
        while start < end:
            piece = min(end - start, len(zeros))
            self.write(start, memoryview(zeros)[:piece])
            start += piece
        self.sync()

    def release(self, before_lsn: int, keep_spares: int = 2) -> None:
        """Recycle or delete the segments that end at or below ``before_lsn``."""
        with self._names_lock:
            self._release(before_lsn, keep_spares)

    def _release(self, before_lsn: int, keep_spares: int) -> None:
        spares = sum(name.endswith(".spare") for name in self._disk.list(self._directory))
        changed = False
        for start in self.start_lsns():
            if start + self.segment_bytes > before_lsn:
                break
            self._open.pop(start, None)  # closed when a sync that is under way has done with it
            path = self._directory / segment_name(start)
            if spares < keep_spares:
                self._disk.rename(path, path.with_suffix(".spare"))
                spares += 1
            else:
                self._disk.remove(path)
            changed = True
        if changed:
            self._disk.sync_directory(self._directory)

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where a scan stopped: ``lsn`` after the last whole entry, and why."""

    lsn: int
    reason: str


class LogReader:
    """Reads entries from an LSN on, block by block.

    Args:
        read_segment: the bytes of the segment file that starts at an LSN.
        segments: first LSN of each segment there is.
        source: what to call the log in errors.
    """

    def __init__(
        self, read_segment: Callable[[int], bytes], segments: Iterable[int], segment_bytes: int, source: str
    ) -> None:
        self._read_segment = read_segment
        self._segments = sorted(segments)
        self._segment_bytes = segment_bytes
        self._source = source
        self._segment_lsn = -1
        self._segment = b""
        self.end = LogEnd(0, "not read yet")

    def entries(self, lsn: int) -> Iterator[Entry]:
        """Whole entries from ``lsn``, an entry's start, to the first fragment that is not intact.

        Afterwards ``end`` says where and why it stopped. Raises ``CorruptFile`` when what follows shows that
        the bytes missing had been durable, ``UnsupportedFormat`` for a log of a newer version.
        """
        entry_lsn = lsn
        parts: list[memoryview] = []
        while True:
            fragment = self._fragment(lsn)
            if isinstance(fragment, str):
                self._refuse_damage(entry_lsn, lsn, fragment)
                self.end = LogEnd(entry_lsn, fragment)
                return
            kind, payload, next_lsn = fragment
            if kind == Fragment.SEGMENT:
                lsn = next_lsn
                continue
            if (kind in (Fragment.FULL, Fragment.FIRST)) != (not parts):
                reason = f"fragment of type {kind} out of place"
                self._refuse_damage(entry_lsn, lsn, reason)
                self.end = LogEnd(entry_lsn, reason)
                return
            parts.append(payload)
            lsn = next_lsn
            if kind in (Fragment.FULL, Fragment.LAST):
                whole = bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
                yield decode_entry(entry_lsn, lsn, whole, self._source)
                parts = []
                entry_lsn = lsn

    def _load(self, lsn: int) -> int | None:
        start = lsn - lsn % self._segment_bytes
        if start != self._segment_lsn:
            if start not in self._segments:
                return None
            self._segment, self._segment_lsn = self._read_segment(start), start
        return start

    def _fragment(self, lsn: int) -> tuple[int, memoryview, int] | str:
        room = BLOCK_BYTES - lsn % BLOCK_BYTES
        if room < FRAGMENT_BYTES:
            lsn += room
        start = self._load(lsn)
        if start is None:
            return "end of the last segment"
        position = lsn - start
        if position + FRAGMENT_BYTES > len(self._segment):
            return "segment file is short"
        crc, length, kind = FRAGMENT.unpack_from(self._segment, position)
        if kind == 0 and crc == 0 and length == 0:
            return "nothing written from here"
        if not Fragment.FULL <= kind <= Fragment.SEGMENT:
            return f"no fragment has type {kind}"
        if length > BLOCK_BYTES - lsn % BLOCK_BYTES - FRAGMENT_BYTES:
            return f"a fragment of {length} bytes does not fit its block"
        first = position + FRAGMENT_BYTES
        if first + length > len(self._segment):
            return "segment file is short"
        payload = memoryview(self._segment)[first : first + length]
        if crc32c.crc32c(payload, crc32c.crc32c(bytes((kind,)), _seed(start))) != crc:
            return "checksum does not match"
        if kind == Fragment.SEGMENT:
            self._check_segment(payload, start)
        return kind, payload, lsn + FRAGMENT_BYTES + length

    def _check_segment(self, payload: memoryview, start: int) -> None:
        name = f"{self._source}/{segment_name(start)}"
        if len(payload) != SEGMENT_HEADER.size:
            raise CorruptFile(f"{name}: segment header has {len(payload)} bytes", file=name, position=0)
        magic, version, segment_bytes, lsn = SEGMENT_HEADER.unpack(payload)
        if magic != MAGIC or lsn != start:
            raise CorruptFile(f"{name}: not the segment its name says", file=name, position=0)
        if version != VERSION:
            raise UnsupportedFormat(
                f"{name}: log version {version}; this release reads {VERSION}. "
                "Start the release that wrote it, or a newer one."
            )
        if segment_bytes != self._segment_bytes:
            raise CorruptFile(
                f"{name}: written with segments of {segment_bytes} bytes, opened with {self._segment_bytes}",
                file=name,
                position=0,
            )

    def _refuse_damage(self, entry_lsn: int, bad_lsn: int, reason: str) -> None:
        """Look at every block after the bad fragment for an entry that knew it to be durable."""
        block = bad_lsn - bad_lsn % BLOCK_BYTES + BLOCK_BYTES
        known = self._durable_beyond(bad_lsn, block)
        if known is not None:
            start = bad_lsn - bad_lsn % self._segment_bytes
            name = f"{self._source}/{segment_name(start)}"
            raise CorruptFile(
                f"{name}: {reason} at byte {bad_lsn - start} (LSN {bad_lsn}), in the middle of the log: a later "
                f"entry shows that the log was durable up to LSN {known}. The entry from LSN {entry_lsn} on is "
                "lost. Restore this directory from a replica or a backup; nothing was changed.",
                file=name,
                position=bad_lsn - start,
            )

    def _blocks_from(self, block: int) -> Iterator[int]:
        for start in self._segments:
            yield from range(max(start, block), start + self._segment_bytes, BLOCK_BYTES)

    def _durable_beyond(self, bad_lsn: int, block: int) -> int | None:
        for lsn in self._blocks_from(block):
            block = lsn + BLOCK_BYTES
            while lsn < block and block - lsn >= FRAGMENT_BYTES:
                fragment = self._fragment(lsn)
                if isinstance(fragment, str):
                    break
                kind, payload, lsn = fragment
                if kind in (Fragment.FULL, Fragment.FIRST) and len(payload) >= ENTRY_BYTES:
                    durable_lsn = ENTRY.unpack_from(payload)[4]
                    if durable_lsn > bad_lsn:
                        return int(durable_lsn)
        return None
