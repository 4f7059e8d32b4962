"""When a memtable is flushed that is far from full: once it has held something for long enough.

What nobody can read any more takes space until it lies in a table that a merge can leave out, and so does the log it
came in. Where nothing more is written the memtable never fills, so time has to do it. A memtable that holds nothing has
no age: an idle shard writes one last table, and then nothing.
"""

from __future__ import annotations

import crc32c

#: Shards that began to fill at the same time are flushed over this part, one in so many, of the age that is allowed.
_SPREAD = 4


class MemtableAge:
    """How long the memtable that takes writes has held something, as far as who looks now and then can tell.

    One thread at a time. Pure: the time comes in as seconds on a clock that never goes back.
    """

    def __init__(self, limit_ms: int, shard: str) -> None:
        """``limit_ms``: the most it may come to, but for the time between two looks. ``shard`` names it."""
        self._limit_s = limit_ms / 1000
        self._shard = shard
        self._first_lsn = -1  # where the memtable begins that was looked at last, if it held something
        self._due_at = 0.0

    def is_due(self, first_lsn: int, applied_lsn: int, now_s: float) -> bool:
        """Look at the memtable of what was applied in ``[first_lsn, applied_lsn)``: whether it is to be flushed."""
        assert first_lsn <= applied_lsn, "a memtable begins where the one before ended"
        if first_lsn == applied_lsn:
            return False
        if first_lsn != self._first_lsn:
            self._first_lsn, self._due_at = first_lsn, now_s + self._limit_s * (1 - self._early(first_lsn) / _SPREAD)
        return now_s >= self._due_at

    def _early(self, first_lsn: int) -> float:
        """From 0 to 1: how much of the spread this one comes early. The same whenever it is asked."""
        return crc32c.crc32c(f"{self._shard} {first_lsn}".encode()) / 0xFFFFFFFF
