"""How the bytes of a queue lie: pieces of its messages, oldest first, each a 32nd of a limit at most, or one message.

Bytes are those of messages, header and body. Sixteen bytes a piece, so about a KiB for a queue that is full.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lsmq.record_batch import Column, Flag, split_batches

from .columns import DTYPES, I64, decode_column

if TYPE_CHECKING:
    from .queries import Queries
    from .state import TopicState

_PIECES = 32
_READ_RECORDS = 1 << 14
_READ_BYTES = 4 << 20


class QueuePieces:
    """Of one queue. ``seen``: up to this offset its messages are counted."""

    __slots__ = ("_ends", "_sizes", "limit", "seen", "size_bytes")

    def __init__(self, limit: int, seen: int) -> None:
        self.limit = limit
        self.seen = seen
        self.size_bytes = 0
        self._ends = array("q")  # the offset behind each piece
        self._sizes = array("q")

    def add(self, offsets: I64, lengths: I64) -> None:
        """Messages that come next, in order."""
        whole, step = np.cumsum(lengths), max(1, self.limit // _PIECES)
        first, last = (whole - lengths) // step, (whole - 1) // step  # steps that each message lies in
        cuts = np.append(np.flatnonzero((last[:-1] != last[1:]) | (first[:-1] != last[:-1])), len(whole) - 1)
        before = 0
        for cut in cuts.tolist():
            self.add_piece(int(offsets[cut]) + 1, int(whole[cut]) - before)
            before = int(whole[cut])

    def add_piece(self, end: int, size: int) -> None:
        """Messages that come next, as one piece."""
        if self._sizes and self._sizes[-1] + size <= self.limit // _PIECES:
            self._ends[-1] = end
            self._sizes[-1] += size
        else:
            self._ends.append(end)
            self._sizes.append(size)
        self.size_bytes += size
        self.seen = max(self.seen, end)

    def add_all(self, later: QueuePieces) -> None:
        """Pieces that come next."""
        self._ends.extend(later._ends)
        self._sizes.extend(later._sizes)
        self.size_bytes += later.size_bytes
        self.seen = max(self.seen, later.seen)

    def drop_below(self, start: int) -> None:
        """The queue begins at ``start``: pieces that lie before it are gone. What is left of one counts whole."""
        gone = 0
        while gone < len(self._ends) and self._ends[gone] <= start:
            gone += 1
        self._drop(gone)

    def cut(self, start: int) -> int:
        """Drop what the limit does not keep, rather too little; where the queue is to begin, which begins at
        ``start``."""
        self.drop_below(start)
        gone, size = 0, self.size_bytes
        while gone < len(self._ends) and size - self._sizes[gone] >= self.limit:
            start, size = self._ends[gone], size - self._sizes[gone]
            gone += 1
        self._drop(gone)
        return start

    def start_within(self, start: int) -> int:
        """Where the queue is to begin so that it is within the limit, rather too far on; the last piece stays. Nothing
        is dropped here."""
        self.drop_below(start)
        size = self.size_bytes
        for end, piece in zip(self._ends[:-1], self._sizes[:-1], strict=True):
            if size <= self.limit:
                break
            start, size = end, size - piece
        return start

    def _drop(self, count: int) -> None:
        if count:
            self.size_bytes -= sum(self._sizes[:count])
            del self._ends[:count], self._sizes[:count]


def count_pieces(queries: Queries, item: TopicState, row: int, pieces: QueuePieces, end: int) -> None:
    """Count what a queue has from ``pieces.seen`` to ``end``. Reads it. Raises ``CorruptFile``."""
    while pieces.seen < end:
        start = pieces.seen
        places = np.array((row + item.first,), np.uint32), np.array((start,), np.int64)
        found = queries.read_many(
            item.topic.id, *places, ends=np.array((end,)), max_records=_READ_RECORDS, max_bytes=_READ_BYTES
        )
        for batch in split_batches(found.load(), source="store"):
            offsets, lengths = _column(batch, Column.OFFSET), _column(batch, Column.LENGTH)
            mine = _column(batch, Column.FLAGS) & np.uint8(Flag.TOMBSTONE | Flag.POSITION) == 0
            mine &= (offsets >= start) & (offsets < end)
            if mine.any():
                pieces.add(offsets[mine].astype(np.int64), lengths[mine].astype(np.int64))
        moved, following = found.positions
        pieces.seen = int(following[0]) if len(moved) else end  # what is left was deleted, or has expired


def _column(batch: Any, number: Column) -> NDArray[Any]:
    return decode_column(batch.buffer, batch.directory.get(number), batch.record_count, DTYPES[number])
