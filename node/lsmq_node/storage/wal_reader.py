"""Reading the write-ahead log back, and telling a torn end from damage (see :mod:`.wal` for the format)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import crc32c

from lsmq.errors import CorruptFile

from .failures import damaged, newer
from .log_mark import LogMark
from .wal import (
    BLOCK_BYTES,
    ENTRY,
    ENTRY_BYTES,
    FRAGMENT,
    FRAGMENT_BYTES,
    MAGIC,
    SEGMENT_HEADER,
    VERSION,
    Fragment,
    LogEntry,
    decode_entry,
    segment_name,
    segment_seed,
)

_NO_SEGMENT = "end of the last segment"
SHORT = "segment file is short"  #: segments are allocated whole before they get their names
_NOTHING = "nothing written from here"
#: So much of the log is in memory at a time: whole blocks, so whole fragments.
WINDOW_BYTES = 32 * BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where a scan stopped: ``lsn`` after the last whole entry, and why."""

    lsn: int
    reason: str


@dataclass(frozen=True, slots=True)
class LogFloor:
    """What is known to have been durable of a replica's log.

    An entry says how far the log of *the leader that made it* was durable. A follower may have written it next to
    bytes that it had not synced yet itself, so there it proves nothing: only what this replica has noted, and what
    entries say that it made as the leader.

    Attributes:
        lsn: the log was durable up to here.
        led_epoch: the last epoch that this replica led, if any.
    """

    lsn: int = 0
    led_epoch: int | None = None


class LogReader:
    """Reads entries from an LSN on, block by block, through a window of ``WINDOW_BYTES``.

    Args:
        read: up to so many bytes of the log at an LSN; fewer only where the segment's file ends.
        segments: first LSN of each segment there is.
        source: what to call the log in errors.
        floor: of a replica's log. Then damage is no error: it is put into ``damage``, and the log ends before it.
        mark: what was noted beside the log of its end, where that is known.
    """

    CLEAN_ENDS = (_NO_SEGMENT, _NOTHING)  #: reasons to end that are no sign of a torn write

    def __init__(
        self,
        read: Callable[[int, int], bytes],
        segments: Iterable[int],
        segment_bytes: int,
        source: str,
        floor: LogFloor | None = None,
        mark: LogMark | None = None,
    ) -> None:
        self._read = read
        self._segments = sorted(segments)
        self._segment_bytes = segment_bytes
        self._source = source
        self._window_lsn = -1
        self._window = b""
        self._floor = floor
        self._mark = mark
        self.end = LogEnd(0, "not read yet")
        self.damage: CorruptFile | None = None

    def entries(self, lsn: int) -> Iterator[LogEntry]:
        """Whole entries from ``lsn``, an entry's start, to the first fragment that is not intact.

        Afterwards ``end`` says where and why it stopped. Raises ``CorruptFile`` when what follows shows that
        the bytes missing had been durable, ``UnsupportedFormat`` for a log of a newer version.
        """
        entry_lsn = lsn
        parts: list[memoryview] = []
        while True:
            fragment = self.fragment(lsn)
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
                yield decode_entry(entry_lsn, lsn, parts, self._source)
                parts = []
                entry_lsn = lsn

    def first_entry(self, lsn: int) -> int:
        """LSN of the first entry that begins at or after ``lsn``, a segment's first: past the rest of an older one."""
        begin = lsn  # an entry begins before the header of the segment that it begins in
        while not isinstance(fragment := self.fragment(lsn), str):
            kind, _, lsn = fragment
            if kind in (Fragment.FULL, Fragment.FIRST):
                break
            if kind != Fragment.SEGMENT:
                begin = lsn
        return begin

    def has_entries_beyond(self, lsn: int) -> bool:
        """Whether whole fragments that begin an entry stand behind ``lsn``: in a block after it, of this log."""
        return any(True for _ in self._entries_beyond(lsn))

    def _load(self, lsn: int) -> int | None:
        """Have the window show ``lsn``. Returns where its segment starts; None when there is none."""
        position = lsn % self._segment_bytes
        start = lsn - position
        window_lsn = lsn - position % WINDOW_BYTES
        if window_lsn != self._window_lsn:
            if start not in self._segments:
                return None
            self._window, self._window_lsn = b"", -1  # what was shown goes before more comes
            length = min(WINDOW_BYTES, start + self._segment_bytes - window_lsn)
            self._window, self._window_lsn = self._read(window_lsn, length), window_lsn
        return start

    def raw(self, lsn: int, end_lsn: int) -> bytes:
        """Bytes of the log as they are, of one block; none where its segment is missing."""
        found = self._load(lsn) is not None
        return self._window[lsn - self._window_lsn : end_lsn - self._window_lsn] if found else b""

    def fragment(self, lsn: int) -> tuple[int, memoryview, int] | str:
        """Type, payload and end of the fragment at ``lsn``, or why there is none that is whole.

        Raises as :meth:`entries`.
        """
        lsn = self._place(lsn)
        start = self._load(lsn)
        if start is None:
            return _NO_SEGMENT
        position = lsn - self._window_lsn
        if position + FRAGMENT_BYTES > len(self._window):
            return SHORT
        crc, length, kind = FRAGMENT.unpack_from(self._window, position)
        if kind == 0 and crc == 0 and length == 0:
            return _NOTHING
        if not Fragment.FULL <= kind <= Fragment.SEGMENT:
            return f"no fragment has type {kind}"
        if length > BLOCK_BYTES - lsn % BLOCK_BYTES - FRAGMENT_BYTES:
            return f"a fragment of {length} bytes does not fit its block"
        first = position + FRAGMENT_BYTES
        if first + length > len(self._window):
            return SHORT
        payload = memoryview(self._window)[first : first + length]
        if crc32c.crc32c(payload, crc32c.crc32c(bytes((kind,)), segment_seed(start))) != crc:
            return "checksum does not match"
        if kind == Fragment.SEGMENT:
            self._check_segment(payload, start)
        return kind, payload, lsn + FRAGMENT_BYTES + length

    def _check_segment(self, payload: memoryview, start: int) -> None:
        name = f"{self._source}/{segment_name(start)}"
        if len(payload) != SEGMENT_HEADER.size:
            raise damaged(name, f"segment header has {len(payload)} bytes")
        magic, version, segment_bytes, lsn = SEGMENT_HEADER.unpack(payload)
        if magic != MAGIC or lsn != start:
            raise damaged(name, "not the segment its name says")
        if version != VERSION:
            raise newer(name, "log version", version, VERSION)
        if segment_bytes != self._segment_bytes:
            raise damaged(name, f"written with segments of {segment_bytes} bytes, opened with {self._segment_bytes}")

    @staticmethod
    def _place(lsn: int) -> int:
        """Where the fragment lies that follows ``lsn``: not in the last few bytes of a block."""
        room = BLOCK_BYTES - lsn % BLOCK_BYTES
        return lsn + room if room < FRAGMENT_BYTES else lsn

    def _refuse_damage(self, entry_lsn: int, bad_lsn: int, reason: str) -> None:
        """Refuse a log of which something acknowledged is missing: by what was noted, or by what stands behind."""
        at = self._place(bad_lsn)
        start = at - at % self._segment_bytes
        known = self.known_durable(entry_lsn, bad_lsn, reason)
        if known is None:
            return
        name = f"{self._source}/{segment_name(start)}"
        if reason == _NO_SEGMENT:
            reason = "the file is missing, and the log would go on in it"
        error = damaged(
            name,
            f"{reason} at byte {at - start} (LSN {bad_lsn}); the log was on the disk up to LSN "
            f"{known} at least. What was written from LSN {entry_lsn} on is lost or cannot be told",
            at - start,
        )
        if self._floor is None:
            raise error
        self.damage = error

    def known_durable(self, entry_lsn: int, bad_lsn: int, reason: str) -> int | None:
        """How far the log was on the disk, if it was beyond an entry that is not whole, as far as anything tells.

        ``bad_lsn`` is where :meth:`fragment` gave ``reason``.
        """
        at = self._place(bad_lsn)
        start = at - at % self._segment_bytes
        noted = max(self._floor.lsn if self._floor else 0, self._mark.durable_lsn if self._mark else 0)
        if entry_lsn < noted:
            return noted
        if self._mark is not None and reason in (_NO_SEGMENT, SHORT) and start < self._mark.segments_end_lsn:
            return bad_lsn
        return self._durable_in_block(bad_lsn) or self._durable_beyond(bad_lsn)

    def _proves(self, payload: memoryview) -> int:
        """How far the log was durable, as the entry with this payload proves it."""
        epoch, durable_lsn = ENTRY.unpack_from(payload)[3:5]
        return int(durable_lsn) if self._floor is None or epoch == self._floor.led_epoch else 0

    def _blocks_from(self, block: int) -> Iterator[int]:
        for start in self._segments:
            yield from range(max(start, block), start + self._segment_bytes, BLOCK_BYTES)

    def _durable_in_block(self, bad_lsn: int) -> int | None:
        """The rest of the bad fragment's block. Its length cannot be trusted: any byte may begin the next one."""
        lsn = self._place(bad_lsn)
        if self._load(lsn) is None:
            return None
        first = lsn + 1 - self._window_lsn
        rest = self._window[first : lsn - lsn % BLOCK_BYTES + BLOCK_BYTES - self._window_lsn]
        for kind in (Fragment.FULL, Fragment.FIRST):
            at = rest.find(kind, FRAGMENT_BYTES - 1)
            while at >= 0:
                known = self._durable_in(lsn + 1 + at - FRAGMENT_BYTES + 1, bad_lsn)
                if known is not None:
                    return known
                at = rest.find(kind, at + 1)
        return None

    def _durable_in(self, lsn: int, bad_lsn: int) -> int | None:
        """What the entry that begins at ``lsn``, if one does, knew to be durable, if that is beyond ``bad_lsn``."""
        fragment = self.fragment(lsn)
        if isinstance(fragment, str) or len(fragment[1]) < ENTRY_BYTES:
            return None
        durable_lsn = self._proves(fragment[1])
        return durable_lsn if bad_lsn < durable_lsn <= lsn else None

    def _durable_beyond(self, bad_lsn: int) -> int | None:
        return next((known for _, known in self._entries_beyond(bad_lsn) if known > bad_lsn), None)

    def _entries_beyond(self, bad_lsn: int) -> Iterator[tuple[int, int]]:
        """LSN of each entry that begins in a block behind ``bad_lsn``, and how far it proves the log was durable."""
        block = bad_lsn - bad_lsn % BLOCK_BYTES + BLOCK_BYTES
        for lsn in self._blocks_from(block):
            block = lsn + BLOCK_BYTES
            while lsn < block and block - lsn >= FRAGMENT_BYTES:
                fragment = self.fragment(lsn)
                if isinstance(fragment, str):
                    break
                kind, payload, end_lsn = fragment
                if kind in (Fragment.FULL, Fragment.FIRST) and len(payload) >= ENTRY_BYTES:
                    yield lsn, self._proves(payload)
                lsn = end_lsn
