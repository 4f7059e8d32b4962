"""Reading a log on past its damage: whole entries, and the holes between them.

Behind a bad fragment the log is picked up again where an entry begins: at a fragment of the same block from which
whole fragments reach to the block's end, or else in a later block. Bytes of a message that happen to look like a
fragment do not do that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lsmq.errors import CorruptFile

from ..wal import BLOCK_BYTES, FRAGMENT_BYTES, Fragment, LogEntry, decode_entry
from ..wal_reader import SHORT, LogReader

_BEGINS = (Fragment.FULL, Fragment.FIRST)


@dataclass(frozen=True, slots=True)
class Hole:
    """``[lsn, end_lsn)`` of the log cannot be read; ``bad_lsn`` is where the damage was met, and ``reason`` what it is.

    ``acknowledged``: something says that the log was on the disk beyond its beginning. Else it may be a write that was
    cut short.
    """

    lsn: int
    end_lsn: int
    bad_lsn: int
    reason: str
    acknowledged: bool


class LogScan:
    """Entries of a log from an LSN on."""

    def __init__(self, reader: LogReader, segments: list[int], segment_bytes: int, source: str) -> None:
        self._reader = reader
        self._segments = sorted(segments)
        self._segment_bytes = segment_bytes
        self._source = source
        self.end_lsn = 0
        self.reason = ""

    def found(self, lsn: int) -> Iterator[LogEntry | Hole]:
        """From ``lsn``, where an entry begins or the log is missing. Raises ``UnsupportedFormat``."""
        entry_lsn = lsn
        parts: list[memoryview] = []
        while True:
            fragment = self._fragment(lsn)
            if isinstance(fragment, str):
                reason: str | None = fragment
            elif fragment[0] == Fragment.SEGMENT:
                lsn = fragment[2]
                continue
            else:
                reason = None if (fragment[0] in _BEGINS) != bool(parts) else "an entry that is not whole"
            if reason is None:
                assert not isinstance(fragment, str)
                kind, payload, lsn = fragment
                parts.append(payload)
                if kind in (Fragment.FULL, Fragment.LAST):
                    yield decode_entry(entry_lsn, lsn, parts, self._source)
                    parts, entry_lsn = [], lsn
                    self.end_lsn = lsn
                continue
            begin = self._next_begin(lsn)
            known = self._reader.known_durable(entry_lsn, lsn, reason)
            if known is None and reason == SHORT:
                known = lsn
            self.end_lsn, self.reason = entry_lsn, reason
            if begin is None:
                if known is not None:
                    yield Hole(entry_lsn, max(entry_lsn, known), lsn, reason, True)
                return
            yield Hole(entry_lsn, begin, lsn, reason, known is not None)
            parts, entry_lsn = [], begin
            lsn = begin

    def _fragment(self, lsn: int) -> tuple[int, memoryview, int] | str:
        try:
            return self._reader.fragment(lsn)
        except CorruptFile:
            return "not the segment that its name says"

    def _next_begin(self, bad_lsn: int) -> int | None:
        """Where the next entry behind a bad fragment begins; None where there is none."""
        room = BLOCK_BYTES - bad_lsn % BLOCK_BYTES
        at = bad_lsn + room if room < FRAGMENT_BYTES else bad_lsn
        found = self._in_block(at, boundary=not isinstance(self._fragment(at), str))
        block = at - at % BLOCK_BYTES + BLOCK_BYTES
        while found is None:
            start = next((s for s in self._segments if s + self._segment_bytes > block), None)
            if start is None:
                return None
            block = max(block, start)
            found = self._in_block(block, boundary=True)
            block += BLOCK_BYTES
        return found

    def _in_block(self, lsn: int, *, boundary: bool) -> int | None:
        """The first entry that begins at or behind ``lsn`` in its block; ``boundary``: a fragment begins at ``lsn``."""
        block_end = lsn - lsn % BLOCK_BYTES + BLOCK_BYTES
        if boundary:
            found, stopped = self._walk(lsn, block_end)
            if found is not None or stopped is None:
                return found
            lsn = stopped
        return self._search(lsn + 1, block_end)

    def _walk(self, lsn: int, block_end: int) -> tuple[int | None, int | None]:
        """Along whole fragments: the first that begins an entry, or where they stop before the block does."""
        while block_end - lsn >= FRAGMENT_BYTES:
            fragment = self._fragment(lsn)
            if isinstance(fragment, str):
                return None, lsn
            if fragment[0] in _BEGINS:
                return lsn, None
            lsn = fragment[2]
        return None, None

    def _search(self, lsn: int, block_end: int) -> int | None:
        raw = self._reader.raw(lsn, block_end)
        if not raw.strip(b"\0"):
            return None
        candidates = sorted(
            at - FRAGMENT_BYTES + 1 for kind in _BEGINS for at in _places(raw, kind) if at >= FRAGMENT_BYTES - 1
        )
        return next((lsn + at for at in candidates if self._reaches_end(lsn + at, block_end)), None)

    def _reaches_end(self, lsn: int, block_end: int) -> bool:
        """Whether whole fragments stand from here to the block's end, or to where nothing was written yet."""
        begin = lsn
        while block_end - lsn >= FRAGMENT_BYTES:
            fragment = self._fragment(lsn)
            if isinstance(fragment, str):
                return lsn > begin and not self._reader.raw(lsn, block_end).strip(b"\0")
            lsn = fragment[2]
        return lsn > begin


def _places(raw: bytes, kind: int) -> Iterator[int]:
    at = raw.find(kind)
    while at >= 0:
        yield at
        at = raw.find(kind, at + 1)
