"""The newest part of a leader's log, in memory, so that shipping it to followers reads no file."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """One group commit: ``[lsn, end_lsn)``, its bytes, and the LSN at which each entry ends."""

    lsn: int
    end_lsn: int
    content: bytes
    ends: list[int]

    def cut(self, lsn: int, limit_lsn: int) -> memoryview | None:
        """Whole entries from ``lsn`` on: up to ``limit_lsn``, but one at least. None if no entry begins at ``lsn``."""
        first = bisect_right(self.ends, lsn)
        if lsn != self.lsn and self.ends[first - 1] != lsn:
            return None
        last = max(bisect_right(self.ends, limit_lsn) - 1, first)
        return memoryview(self.content)[lsn - self.lsn : self.ends[last] - self.lsn]


class LogTail:
    """Pieces without gaps, the oldest dropped beyond ``limit_bytes``. Loop thread only."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._pieces: list[Piece] = []
        self._starts: list[int] = []
        self._bytes = 0

    @property
    def end_lsn(self) -> int:
        """0 when it is empty."""
        return self._pieces[-1].end_lsn if self._pieces else 0

    def add(self, piece: Piece) -> None:
        if self._pieces and piece.lsn != self.end_lsn:
            self.clear()
        self._pieces.append(piece)
        self._starts.append(piece.lsn)
        self._bytes += len(piece.content)
        if self._bytes > 2 * self._limit_bytes:
            self._shrink()

    def _shrink(self) -> None:
        """Drop down to the limit; not each time a little, since a list's front is dear to cut."""
        count = 0
        while self._bytes > self._limit_bytes and count < len(self._pieces) - 1:
            self._bytes -= len(self._pieces[count].content)
            count += 1
        del self._pieces[:count], self._starts[:count]

    def clear(self) -> None:
        self._pieces.clear()
        self._starts.clear()
        self._bytes = 0

    def read(self, lsn: int, limit_lsn: int, max_bytes: int) -> bytes | memoryview | None:
        """Whole entries from ``lsn``, one at least; None when they are not here."""
        at = bisect_right(self._starts, lsn) - 1
        if at < 0 or lsn >= self._pieces[at].end_lsn:
            return None
        limit_lsn = min(limit_lsn, lsn + max_bytes)
        first = self._pieces[at].cut(lsn, limit_lsn)
        if first is None or self._pieces[at].end_lsn - lsn != len(first):
            return first
        views = [first]
        for index in range(at + 1, len(self._pieces)):
            piece = self._pieces[index]
            if piece.end_lsn > limit_lsn:
                break
            views.append(memoryview(piece.content))
        return first if len(views) == 1 else b"".join(views)
