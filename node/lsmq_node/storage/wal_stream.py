"""Entries out of the bytes of a log as they arrive from a leader, in pieces of any size."""

from __future__ import annotations

from collections.abc import Iterator

import crc32c

from lsmq.errors import CorruptFile

from .failures import damaged
from .wal import BLOCK_BYTES, FRAGMENT, FRAGMENT_BYTES, Fragment, LogEntry, decode_entry, segment_seed


class EntryStream:
    """Feed it the stream's bytes in order; it gives the entries that are whole.

    Attributes:
        lsn: after the last whole entry. A log that ends in the middle of an entry counts up to here.
        end_lsn: after the last byte fed.
    """

    def __init__(self, lsn: int, segment_bytes: int, source: str) -> None:
        self._segment_bytes = segment_bytes
        self._source = source
        self.lsn = self.end_lsn = lsn
        self._rest = b""  # of a fragment that is not whole yet
        self._at = lsn  # LSN of its first byte
        self._parts: list[memoryview] = []

    def feed(self, piece: bytes | memoryview) -> Iterator[LogEntry]:
        """The entries that ``piece`` completes. Raises ``CorruptFile`` for bytes that are no log.

        ``piece`` must not change any more.
        """
        view = memoryview(self._rest + piece if self._rest else piece)
        self.end_lsn += len(piece)
        consumed = 0
        try:
            while (fragment := self._fragment(view, consumed)) is not None:
                kind, payload, consumed = fragment
                if kind == Fragment.SEGMENT:
                    continue
                if (kind in (Fragment.FULL, Fragment.FIRST)) != (not self._parts):
                    raise self._damaged(self._at + consumed, f"a fragment of type {kind} out of place")
                self._parts.append(payload)
                if kind in (Fragment.FULL, Fragment.LAST):
                    start, self.lsn = self.lsn, self._at + consumed
                    entry = decode_entry(start, self.lsn, self._parts, self._source)
                    self._parts = []
                    yield entry
        finally:
            self._rest = bytes(view[consumed:])
            self._at += consumed

    def _fragment(self, view: memoryview, position: int) -> tuple[int, memoryview, int] | None:
        """Type, payload and end of the fragment at ``position``; None until it is whole."""
        room = BLOCK_BYTES - (self._at + position) % BLOCK_BYTES
        if room < FRAGMENT_BYTES:
            position += room
        if position + FRAGMENT_BYTES > len(view):
            return None
        crc, length, kind = FRAGMENT.unpack_from(view, position)
        lsn = self._at + position
        if not Fragment.FULL <= kind <= Fragment.SEGMENT:
            raise self._damaged(lsn, f"no fragment has type {kind}")
        if length > BLOCK_BYTES - lsn % BLOCK_BYTES - FRAGMENT_BYTES:
            raise self._damaged(lsn, f"a fragment of {length} bytes does not fit its block")
        first = position + FRAGMENT_BYTES
        if first + length > len(view):
            return None
        payload = view[first : first + length]
        seed = segment_seed(lsn - lsn % self._segment_bytes)
        if crc32c.crc32c(payload, crc32c.crc32c(bytes((kind,)), seed)) != crc:
            raise self._damaged(lsn, "a checksum does not match")
        return kind, payload, first + length

    def _damaged(self, lsn: int, reason: str) -> CorruptFile:
        return damaged(self._source, f"{reason} at LSN {lsn} of what the leader sent", lsn)
