"""Where in each queue a time lies: how far the messages go that were stored before it.

Stored times never go back within a queue, so what was stored before a time is the beginning of a queue. Many queues are
asked at once, a few messages each; a queue with much to go past is searched. What lies in memory, or in tables shared
with others, is found alike.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lsmq.errors import CorruptFile
from lsmq.record_batch import Column

from .columns import I64, U32, queue_keys
from .queries import Queries
from .ranges import RangeReader
from .sorted_records import TooMuch
from .state import TopicState

#: Queues that are asked at once, and messages of each.
_QUEUES = 4096
_FIRST_RECORDS = 32
_MOST_RECORDS = 512
_ROUND_BYTES = 16 << 20
_NEVER = 1 << 62


class TimeCut:
    """Moves ``found`` of a topic's queues past what was stored before a time. One thread.

    Attributes:
        found: of each queue, the first offset that is not passed over; nothing from ``ends`` on is looked at.
        known: of each queue, no message from ``found`` on was stored before this.
        unsure: rows of queues that cannot be read, which stay where they are.
    """

    def __init__(self, queries: Queries, item: TopicState, found: I64, ends: I64, known: I64) -> None:
        """The arrays have an item a row of the topic, and are changed in place."""
        self._queries = queries
        self._item = item
        self.found = found
        self.ends = ends
        self.known = known
        self.unsure: list[int] = []

    def pass_over(self, rows: I64, before_ms: int, is_over: Callable[[], bool] = lambda: False) -> None:
        """Move past all that was stored before a time, in these queues; until it ``is_over``."""
        records = _FIRST_RECORDS
        rows = self._left(rows, before_ms)
        while len(rows) and not is_over():
            self._ask_all(rows, before_ms, records)
            rows = self._left(rows, before_ms)
            records *= 4

    def learn(self, rows: I64) -> None:
        """Move nothing, and learn when the first messages of these queues were stored."""
        self._ask_all(self._left(rows, _NEVER), 0, 1)

    def _left(self, rows: I64, before_ms: int) -> I64:
        left: I64 = rows[(self.found[rows] < self.ends[rows]) & (self.known[rows] < before_ms)]
        return left

    def _ask_all(self, rows: I64, before_ms: int, records: int) -> None:
        for first in range(0, len(rows), _QUEUES):
            self._ask(rows[first : first + _QUEUES], before_ms, records)

    def _ask(self, rows: I64, before_ms: int, records: int) -> None:
        """Go past what was stored before of the next ``records`` messages of some queues."""
        alone, item = rows, self._item
        if records <= _MOST_RECORDS:
            stops = np.minimum(self.found[rows] + records, self.ends[rows])
            ranges = RangeReader(queue_keys(item.topic.id, rows + item.first), self.found[rows], stops, _ROUND_BYTES)
            try:
                part = self._queries.read_ranges(ranges)
            except (TooMuch, CorruptFile):
                if len(rows) > 1:
                    for some in np.array_split(rows, min(4, len(rows))):
                        self._ask(some, before_ms, records)
                    return
            else:
                alone = rows[ranges.apart]
                if part is not None:
                    self._advance(rows, part[1], part[0].columns[Column.STORED_MS], before_ms)
        for row in alone.tolist():
            self._search(row, before_ms)

    def _advance(self, rows: I64, owners: I64, stored_ms: I64, before_ms: int) -> None:
        """Take in the records of several queues: ``owners`` says of each which of ``rows`` it belongs to, ascending."""
        fresh = stored_ms >= before_ms
        count = len(rows)
        passed = np.bincount(owners, ~fresh, count).astype(np.int64)
        self.found[rows] += passed
        for_rows = np.full(count, _NEVER, np.int64)
        np.minimum.at(for_rows, owners[fresh], stored_ms[fresh])
        some = for_rows < _NEVER
        self.known[rows[some]] = for_rows[some]

    def _search(self, row: int, before_ms: int) -> None:
        topic_id, queue, end = self._item.topic.id, row + self._item.first, int(self.ends[row])
        found, known = self.found, self.known
        try:
            at = min(self._queries.offset_for_time(topic_id, queue, before_ms), end)
            found[row] = max(at, int(found[row]))
            first = None
            if found[row] < end:
                read = self._queries.read_records(topic_id, queue, int(found[row]), end, 1, 1)
                first = read.first(int(found[row]))
            known[row] = before_ms if first is None else max(first[1], before_ms)
        except CorruptFile:  # what it holds cannot be told, so it stays; the table remembers the damage
            known[row] = before_ms
            self.unsure.append(row)


def starts_after(
    queries: Queries, topic_id: int, rows: range, *, offset: int | None = None, before_ms: int | None = None
) -> tuple[U32, I64, int]:
    """Of the queues in these rows of the topic: which log starts have to move, where to, past how many messages.

    To ``offset``, or past what was stored before ``before_ms``, or to the end of each queue. May read the disk. Raises
    ``UnknownTopic``, ``CorruptFile``; ``OffsetOutOfRange`` for an offset beyond the end of a queue.
    """
    item = queries.topic_state(topic_id)
    end = min(rows.stop, item.end - item.first)
    some = np.arange(min(rows.start, end), end)
    starts, ends = np.zeros(end, np.int64), np.zeros(end, np.int64)
    starts[some], ends[some] = item.start[some], item.committed[some]
    if offset is not None:
        wanted = np.full(end, offset)
    elif before_ms is None:
        wanted = ends
    else:
        found = starts.copy()
        found[some] = np.minimum(item.live_from(some), ends[some])
        cut = TimeCut(queries, item, found, ends, np.zeros(end, np.int64))
        cut.pass_over(some, before_ms)
        for row in cut.unsure[:1]:
            queries.offset_for_time(topic_id, row + item.first, before_ms)  # raises what is wrong with it
        wanted = cut.found
    moved = some[wanted[some] > starts[some]]
    count = int((wanted[moved] - starts[moved]).sum())
    return (moved + item.first).astype(np.uint32), wanted[moved], count
