"""Limits that queues have of their own (:mod:`.queue_options`), as retention obeys them: by row of their topic.

For a limit in bytes it must be known how the bytes of a queue lie. They are counted from the columns of its messages:
once all of them, when that begins, and later what came since. What is kept is the end and the bytes of pieces, each a
32nd of the limit, so some dozens a queue; a limit is held to within a piece, and rather too much stays than too little.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsmq.record_batch import Column, Flag, split_batches

from .columns import DTYPES, I64, decode_column
from .queries import Queries
from .queue_options import UNLIMITED, LimitValue, QueueOptions, decode, topic_of
from .state import ShardState, TopicState

_NEVER = 1 << 62
_PIECES = 32
_READ_RECORDS = 1 << 14
_READ_BYTES = 4 << 20

LimitsDocument = tuple[str, bytes]


@dataclass(frozen=True, slots=True)
class QueueOwnLimits:
    """Of a topic: ``rows`` with limits of their own, ascending, and the options of each."""

    rows: I64
    options: tuple[QueueOptions, ...]

    def befores(self, everybody: int, expired_before: Callable[[int], int], topic_ms: int | None) -> I64:
        """What of each row was stored before this has expired, by its own age or the topic's, or as for ``everybody``.

        ``everybody`` is what goes by the topic's limit of bytes alone.
        """
        ages = (own(options.retention_ms, topic_ms) for options in self.options)
        found = [everybody if age is None else max(everybody, expired_before(age)) for age in ages]
        return np.array(found, np.int64)

    def newest(self, topic_messages: int | None) -> I64:
        """How many messages each row keeps."""
        counts = (own(options.retention_messages, topic_messages) for options in self.options)
        return np.array([_NEVER if count is None else count for count in counts], np.int64)

    def sized(self) -> list[tuple[int, int]]:
        """Rows with a limit of bytes, and that."""
        return [
            (row, options.retention_bytes)
            for row, options in zip(self.rows.tolist(), self.options, strict=True)
            if isinstance(options.retention_bytes, int)
        ]


def own(limit: LimitValue, of_topic: int | None) -> int | None:
    """What counts for a queue; None for no limit."""
    if limit is None:
        return of_topic
    return None if limit == UNLIMITED else int(limit)


def read_limits(
    documents: Iterable[LimitsDocument], state: ShardState, numbers_of: Callable[[int, Sequence[str]], I64]
) -> dict[int, QueueOwnLimits]:
    """By topic. ``numbers_of`` has the numbers of a topic's queues by their names, below 0 where there is none.

    Raises what that raises, and ``CorruptFile``.
    """
    by_topic: dict[int, list[tuple[int | str, QueueOptions]]] = {}
    for key, body in documents:
        by_topic.setdefault(topic_of(key), []).append(decode(key, body))
    found = {}
    for topic_id, each in by_topic.items():
        item = state.topics.get(topic_id)
        if item is None:
            continue
        called = [queue for queue, _ in each]
        if item.named:
            numbers = numbers_of(topic_id, [str(queue) for queue in called])
        else:
            numbers = np.array(called, np.int64)
        rows = numbers - item.first
        there = np.flatnonzero((numbers >= 0) & (rows >= 0) & (rows < item.end - item.first))
        if len(there):
            there = there[np.argsort(rows[there])]
            found[topic_id] = QueueOwnLimits(rows[there], tuple(each[at][1] for at in there.tolist()))
    return found


@dataclass(slots=True)
class _Sizes:
    """How the bytes of a queue lie: pieces, oldest first, each the offset behind it and its bytes."""

    limit: int
    seen: int  # up to here it was counted
    pieces: deque[tuple[int, int]] = field(default_factory=deque)
    size_bytes: int = 0

    def add(self, offsets: I64, lengths: I64) -> None:
        """Of messages, in order."""
        whole, step = np.cumsum(lengths), max(1, self.limit // _PIECES)
        cuts = np.unique(np.append(whole.searchsorted(np.arange(step, int(whole[-1]), step)), len(whole) - 1))
        before = 0
        for cut in cuts.tolist():
            self.pieces.append((int(offsets[cut]) + 1, int(whole[cut]) - before))
            before = int(whole[cut])
        self.size_bytes += before

    def cut(self, start: int) -> int:
        """Where the queue is to begin, which begins at ``start``."""
        pieces = self.pieces
        while pieces and (pieces[0][0] <= start or self.size_bytes - pieces[0][1] >= self.limit):
            end, size = pieces.popleft()
            self.size_bytes -= size
            start = max(start, end)
        return start


class QueueSizes:
    """Which offsets are beyond limits of bytes. One thread at a time."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._known: dict[tuple[int, int], _Sizes] = {}  # by topic and row

    def keep(self, sized: Iterable[tuple[int, int]]) -> None:
        """Forget queues that are not among these topics and rows."""
        wanted = set(sized)
        self._known = {place: known for place, known in self._known.items() if place in wanted}

    def starts(self, item: TopicState, sized: Sequence[tuple[int, int]]) -> I64:
        """Where each of these rows is to begin. Reads what came since the last time. Raises ``CorruptFile``."""
        return np.array([self._start(item, row, limit) for row, limit in sized], np.int64)

    def _start(self, item: TopicState, row: int, limit: int) -> int:
        start, end, place = item.first_live(row), item.committed.item(row), (item.topic.id, row)
        known = self._known.get(place)
        if known is None or known.limit != limit or known.seen > end:
            known = self._known[place] = _Sizes(limit, start)
        known.seen = max(known.seen, start)
        while known.seen < end:
            self._count(item, row, known, end)
        return known.cut(start)

    def _count(self, item: TopicState, row: int, known: _Sizes, end: int) -> None:
        places = np.array((row + item.first,), np.uint32), np.array((known.seen,), np.int64)
        found = self._queries.read_many(
            item.topic.id, *places, ends=np.array((end,)), max_records=_READ_RECORDS, max_bytes=_READ_BYTES
        )
        for batch in split_batches(found.load(), source="store"):
            offsets, lengths = _column(batch, Column.OFFSET), _column(batch, Column.LENGTH)
            mine = _column(batch, Column.FLAGS) & np.uint8(Flag.TOMBSTONE | Flag.POSITION) == 0
            mine &= (offsets >= known.seen) & (offsets < end)
            if mine.any():
                known.add(offsets[mine].astype(np.int64), lengths[mine].astype(np.int64))
        moved, following = found.positions
        known.seen = int(following[0]) if len(moved) else end  # what is left was deleted, or has expired


def _column(batch: Any, number: Column) -> NDArray[Any]:
    return decode_column(batch.buffer, batch.directory.get(number), batch.record_count, DTYPES[number])
