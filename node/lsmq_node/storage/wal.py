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
     2     2     flags        see EntryFlag
     4     4     epoch        leader epoch of the shard
     8     8     durable_lsn  how far the log was known to be on disk when this entry was made
    16     8     time_ms      the leader's clock
    24     4     topic_id
    28     4     count        records in the entry
    32     8     check        for RECORDS the sum of the assigned offsets modulo 2**64, for TRIM why (:mod:`.losses`)

Recovery reads to the first fragment that is not intact. Whether that is the torn end of the last write or
damage to something acknowledged is told by ``durable_lsn``: if any intact entry further on says that the log
was durable beyond the bad fragment, the damage is in the middle and the log is refused by name.

Not supported: a change of the segment size of an existing shard.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag

import crc32c

from .disk import Buffer
from .failures import damaged, newer

BLOCK_BYTES = 32 * 1024
FRAGMENT = struct.Struct("<IHB")
FRAGMENT_BYTES = FRAGMENT.size  # 4 + 2 + 1 = 7
SEGMENT_HEADER = struct.Struct("<8sIIQ")
SEGMENT_HEADER_BYTES = FRAGMENT_BYTES + SEGMENT_HEADER.size  # 7 + 24 = 31
MAGIC = b"LSMQWAL1"
VERSION = 1
ENTRY = struct.Struct("<BBHIQqIIQ")
ENTRY_BYTES = ENTRY.size  # 1 + 1 + 2 + 4 + 8 + 8 + 4 + 4 + 8 = 40
ENTRY_VERSION = 2


class Fragment(IntEnum):
    """Fragment types by their number on disk. Never renumber."""

    FULL = 1
    FIRST = 2
    MIDDLE = 3
    LAST = 4
    SEGMENT = 5


#: By whether a fragment is the first of its entry, and whether it is the last.
_KINDS = {
    (True, True): Fragment.FULL,
    (True, False): Fragment.FIRST,
    (False, False): Fragment.MIDDLE,
    (False, True): Fragment.LAST,
}


class EntryKind(IntEnum):
    """What a log entry does. Numbers are on disk: never renumber."""

    RECORDS = 1  # a record batch: messages put
    CATALOG = 2  # msgpack: a topic created, changed or deleted
    OFFSETS = 3  # a group's committed offsets
    TRIM = 4  # log start offsets moved up
    DELETE = 5  # a record batch of tombstones: messages deleted
    EPOCH = 6  # a new leader epoch begins here, see :mod:`.epochs`
    # 7 is free: it was never written
    DOCUMENT = 8  # msgpack: documents put and deleted
    PRODUCER = 12  # msgpack: somebody goes on with the id of an idempotent producer, in a newer epoch


class EntryFlag(IntFlag):
    """Bits of an entry's flags. Never renumber."""

    IDS = 1  # RECORDS: the deduplication ids of the batch are remembered from here on
    REPEATS = 2  # RECORDS: some messages are not stored; behind the batch stands which, see :mod:`.dedupe`
    SYNC = 4  # durable means synced for this entry, whatever a replica's ``flush_mode``
    ASYNC = 8  # durable means written for this entry; it is synced in the background


@dataclass(frozen=True, slots=True)
class LogEntry:
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
    flags: int = 0


def encode_entry_header(
    kind: EntryKind,
    epoch: int,
    durable_lsn: int,
    time_ms: int,
    topic_id: int,
    count: int,
    check: int,
    flags: int = 0,
) -> bytes:
    return ENTRY.pack(ENTRY_VERSION, kind, flags, epoch, durable_lsn, time_ms, topic_id, count, check)


def decode_entry(lsn: int, end_lsn: int, parts: Sequence[memoryview], source: str) -> LogEntry:
    """``parts``: the payloads of its fragments.

    Raises ``UnsupportedFormat`` for a newer version, ``CorruptFile`` for what cannot be an entry.
    """
    if len(parts[0]) < ENTRY_BYTES:
        parts = (memoryview(b"".join(parts)),)
    first = parts[0]
    if len(first) < ENTRY_BYTES:
        raise damaged(source, f"the log entry at LSN {lsn} has only {len(first)} bytes", lsn)
    version, kind, flags, epoch, durable_lsn, time_ms, topic_id, count, check = ENTRY.unpack_from(first)
    if version != ENTRY_VERSION:
        raise newer(source, f"the log entry at LSN {lsn} has version", version, ENTRY_VERSION)
    body = b"".join((first[ENTRY_BYTES:], *parts[1:]))
    return LogEntry(lsn, end_lsn, kind, epoch, durable_lsn, time_ms, topic_id, count, check, body, flags)


def segment_name(lsn: int) -> str:
    return f"{lsn:016x}.wal"


def segment_header(lsn: int, segment_bytes: int) -> bytes:
    payload = SEGMENT_HEADER.pack(MAGIC, VERSION, segment_bytes, lsn)
    crc = crc32c.crc32c(payload, _kind_seed(Fragment.SEGMENT, segment_seed(lsn)))
    return FRAGMENT.pack(crc, len(payload), Fragment.SEGMENT) + payload


def segment_seed(segment_lsn: int) -> int:
    """What the checksums of a segment's fragments start from."""
    return crc32c.crc32c(segment_lsn.to_bytes(8, "little"))


def _kind_seed(kind: int, seed: int) -> int:
    """What the checksum of a fragment's payload starts from."""
    return crc32c.crc32c(bytes((kind,)), seed)


class Appender:
    """Turns entries into the bytes of the stream. Pure: it knows positions, not files.

    ``lsn`` is where the next entry goes. ``take`` hands over the bytes made since the last call. They are in
    parts, those of an entry as they were given: so they are copied once, and all together.
    """

    __slots__ = ("_parts", "_pending_lsn", "_seeds", "lsn", "segment_bytes")

    def __init__(self, lsn: int, segment_bytes: int) -> None:
        self.segment_bytes = segment_bytes
        self.reset(lsn)

    def reset(self, lsn: int) -> None:
        """Forget what is pending and continue at ``lsn``."""
        self.lsn = lsn
        self._parts: list[Buffer] = []
        self._pending_lsn = lsn
        self._use(segment_seed(lsn - lsn % self.segment_bytes))

    def _use(self, seed: int) -> None:
        #: As :data:`_KINDS` has them: a fragment's kind, and the seed of its checksum.
        self._seeds = {key: (kind, _kind_seed(kind, seed)) for key, kind in _KINDS.items()}

    def append(self, entry: Buffer, body: Buffer = b"") -> tuple[int, int]:
        """Add an entry, whose ``body`` may be apart; returns its first LSN and the LSN after it."""
        start = self.lsn
        head, rest = memoryview(entry), memoryview(body)
        if not (head.readonly and rest.readonly):
            head, rest = memoryview(bytes(head)), memoryview(bytes(rest))  # nobody is to change them meanwhile
        at, size, first, add = 0, len(rest), True, self._parts.append
        while True:
            self._start_segment()
            room = BLOCK_BYTES - self.lsn % BLOCK_BYTES - FRAGMENT_BYTES
            if room < 0:
                add(bytes(FRAGMENT_BYTES + room))
                self.lsn += FRAGMENT_BYTES + room
                continue
            if len(head) > room:  # it goes on in the next block
                head, rest = memoryview(b""), memoryview(b"".join((head, rest)))
                at, size = 0, len(rest)
            piece = rest[at : at + room - len(head)]
            at += len(piece)
            kind, crc = self._seeds[first, at == size]
            length = len(head) + len(piece)
            if head:
                crc = crc32c.crc32c(head, crc)
            add(FRAGMENT.pack(crc32c.crc32c(piece, crc), length, kind))
            if head:
                add(head)
                head = head[:0]
            add(piece)
            self.lsn += FRAGMENT_BYTES + length
            if at == size:
                return start, self.lsn
            first = False

    def _start_segment(self) -> None:
        if self.lsn % self.segment_bytes == 0:
            self._use(segment_seed(self.lsn))
            self._parts.append(segment_header(self.lsn, self.segment_bytes))
            self.lsn += SEGMENT_HEADER_BYTES

    @property
    def pending_bytes(self) -> int:
        return self.lsn - self._pending_lsn

    def take(self) -> tuple[int, list[Buffer]]:
        """LSN of the first pending byte, and the bytes in parts: to copy them need not be waited for by who appends."""
        taken = self._pending_lsn, self._parts
        self._parts = []
        self._pending_lsn = self.lsn
        return taken
