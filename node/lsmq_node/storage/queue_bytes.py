"""How many bytes single queues hold, of topics in which that has a limit (``queue_max_bytes``).

The leader counts what is put in line. What a queue had before, in earlier rounds of the line or under other leaders,
is read once, in the background, about a second after it was first written to; until then it is taken to be nothing.
So a queue may hold twice its limit for so long, after a failover or when the limit has changed. What of the oldest
piece (:mod:`.queue_pieces`) is gone still counts until all of it is, so a queue counts as holding too much by a 32nd
of the limit, or by one message, and never too little.

Nothing of this is stored, and a topic without the limit has none of it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from lsmq import runtime
from lsmq.errors import CorruptFile

from .columns import I64, group_starts
from .queue_pieces import QueuePieces, count_pieces

if TYPE_CHECKING:
    from .queries import Queries
    from .state import TopicState

#: Queues that are remembered, 1.2 KiB each at most. Whoever was written to longest ago is forgotten, and read again.
MAX_KNOWN_QUEUES = 65_536


class QueueBytes:
    """Of one topic on a shard that leads it. Thread-safe; ``round_number`` is the line's, and each has its own count.

    Rows are places of queues in their topic's state.
    """

    __slots__ = ("_known", "_lock", "_over", "_round", "_unread", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = runtime.Lock()  # guards all below; whoever holds it asks for no other
        self._round: int | None = None
        self._known: dict[int, QueuePieces] = {}  # least recently written first
        self._unread: dict[int, int] = {}  # rows, and up to where they are to be read
        self._over: set[int] = set()  # rows that were over the limit, to be looked at in the background

    def held(self, item: TopicState, rows: I64, round_number: int) -> I64:
        """Bytes that are known of each row, before more is put in line."""
        with self._lock:
            self._begin(round_number)
            found = np.zeros(len(rows), np.int64)
            for at, row in enumerate(rows.tolist()):
                pieces = self._known.get(row)
                if pieces is not None:
                    pieces.drop_below(item.first_live(row))
                    found[at] = pieces.size_bytes
            return found

    def add(self, item: TopicState, rows: I64, offsets: I64, lengths: I64, round_number: int) -> I64:
        """Messages are in line; returns the rows that are over the limit now."""
        order = np.argsort(rows, kind="stable")
        offsets, lengths, firsts = offsets[order], lengths[order].astype(np.int64), group_starts(rows[order])
        sizes = np.add.reduceat(lengths, firsts).tolist()
        begins, ends = firsts.tolist(), [*firsts[1:].tolist(), len(rows)]
        over = []
        with self._lock:
            self._begin(round_number)
            for row, begin, end, size in zip(rows[order[firsts]].tolist(), begins, ends, sizes, strict=True):
                pieces = self._known.pop(row, None)
                if pieces is None:
                    pieces = self._enter(item, row, int(offsets[begin]))
                self._known[row] = pieces
                if end - begin == 1:
                    pieces.add_piece(int(offsets[begin]) + 1, size)
                else:
                    pieces.add(offsets[begin:end], lengths[begin:end])
                if pieces.size_bytes > self.limit:
                    pieces.drop_below(item.first_live(row))
                    if pieces.size_bytes > self.limit:
                        over.append(row)
        return np.array(over, np.int64)

    def starts_within(self, item: TopicState, rows: I64) -> I64:
        """Where these are to begin so that they are within the limit; their newest message stays."""
        with self._lock:
            return self._starts_within(item, rows.tolist())

    def note_over(self, rows: I64) -> None:
        """:meth:`bring_down` is to look at these."""
        with self._lock:
            self._over.update(rows.tolist())

    def read(self, item: TopicState, queries: Queries, stop: Callable[[], bool]) -> None:
        """Count what queues had before they were written to here, as far as it can be read, or until ``stop`` says."""
        with self._lock:
            unread = list(self._unread.items())
        for row, end in unread:
            if stop():
                return
            if item.committed.item(row) < end:
                continue  # it cannot be read yet
            before = QueuePieces(self.limit, item.first_live(row))
            with suppress(CorruptFile):  # Others are not held up by it, and rather too much stays than too little.
                count_pieces(queries, item, row, before, end)
            with self._lock:
                if self._unread.get(row) != end:
                    continue  # another round has begun, or it was forgotten
                del self._unread[row]
                before.add_all(self._known[row])
                before.drop_below(item.first_live(row))
                self._known[row] = before
                if before.size_bytes > self.limit:
                    self._over.add(row)

    def over(self, item: TopicState) -> tuple[I64, I64]:
        """Rows to be brought down in the background, and where they are to begin."""
        with self._lock:
            rows = sorted(row for row in self._over if row in self._known)
            starts = self._starts_within(item, rows)
            self._over = {row for row, start in zip(rows, starts.tolist(), strict=True) if start > item.first_live(row)}
            return np.array(rows, np.int64), starts

    def forget(self) -> None:
        """Another shard leads."""
        with self._lock:
            self._begin(None)

    def _begin(self, round_number: int | None) -> None:
        if round_number != self._round:
            self._round = round_number
            self._known, self._unread, self._over = {}, {}, set()

    def _enter(self, item: TopicState, row: int, first: int) -> QueuePieces:
        if item.first_live(row) < first:
            self._unread[row] = first
        if len(self._known) >= MAX_KNOWN_QUEUES:
            oldest = next(iter(self._known))
            del self._known[oldest]
            self._unread.pop(oldest, None)
            self._over.discard(oldest)
        return QueuePieces(self.limit, first)

    def _starts_within(self, item: TopicState, rows: list[int]) -> I64:
        """Of a row that is forgotten by now, as it was in a batch for more than are remembered, where it begins."""
        starts = ((self._known.get(row), item.first_live(row)) for row in rows)
        return np.array([start if known is None else known.start_within(start) for known, start in starts], np.int64)
