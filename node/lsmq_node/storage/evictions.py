"""Queues over their limit, of topics that drop by rank: those of lowest priority go, or those that expire next.

Nothing is kept in order of rank: what is over is found by looking through the queue, which the limit bounds. It happens
in the background, about once a second; what came since is over the limit for so long. What goes is deleted by an entry
of the log that says why, so replicas agree. Of messages of one rank the oldest go first.

A queue that holds many more than it may, since the limit is new, is brought down in rounds, each of which looks at its
first :data:`_AT_ONCE` messages and lets no more than half of them go: so what stays stands against what comes later.

A queue that cannot be read stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsmq.errors import CorruptFile
from lsmq.record_batch import Column, Flag, RecordBatch, priority_rank, split_batches

from .columns import DTYPES, I64, U32, decode_column
from .queries import Queries
from .state import TopicState

#: So many messages are looked at at once, of one queue or of many: more than twice what a queue may hold.
_AT_ONCE = 1 << 18
_READ_RECORDS = 4_096
_READ_BYTES = 4 << 20
_NO_DEADLINE = np.iinfo(np.int64).max

Delete = Callable[[int, U32, I64], None]
"""Delete messages of a topic, now or later, and say that they made room."""


class Evictions:
    """One thread at a time."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._within: dict[int, tuple[int, int]] = {}  # at which version nothing of a topic was to go, and the limit

    def forget_others(self, topic_ids: Container[int]) -> None:
        """Topics that are not among these are gone."""
        self._within = {topic_id: mark for topic_id, mark in self._within.items() if topic_id in topic_ids}

    def run(self, item: TopicState, delete: Delete) -> None:
        """Bring queues down to their limit, or nearer to it."""
        topic, version = item.topic, item.version
        limit = topic.options.queue_max_messages
        if limit is None or self._within.get(topic.id) == (version, limit):
            return
        rows = np.arange(item.end - item.first)
        starts, ends = item.live_from(rows), item.committed[: len(rows)].copy()
        over = np.flatnonzero(ends - starts > limit)
        held, first, going = np.minimum(ends - starts, _AT_ONCE)[over].cumsum(), 0, 0
        while first < len(over):
            before = int(held[first - 1]) if first else 0
            stop = max(first + 1, int(held.searchsorted(before + _AT_ONCE, "right")))
            some = over[first:stop]
            going += self._bring_down(item, some, starts[some], ends[some], limit, delete)
            first = stop
        if not going:
            self._within[topic.id] = version, limit

    def _bring_down(self, item: TopicState, rows: I64, starts: I64, ends: I64, limit: int, delete: Delete) -> int:
        """How many messages of these queues are to go."""
        queues = (rows + item.first).astype(np.uint32)
        try:
            queue, offset, rank, seen = self._look_through(item, queues, starts, ends)
        except CorruptFile:
            if len(rows) == 1:  # What ranks lowest cannot be told, so all stays; the table remembers the damage.
                return 0
            halves = np.array_split(np.arange(len(rows)), 2)
            return sum(self._bring_down(item, rows[some], starts[some], ends[some], limit, delete) for some in halves)
        order = np.lexsort((offset, rank, queue))
        firsts = queue[order].searchsorted(queues)
        counts = np.append(firsts[1:], len(order)) - firsts
        excess, whole = np.maximum(counts - limit, 0), seen >= ends
        excess = np.where(whole, excess, np.minimum(excess, counts // 2))
        places = np.arange(len(order)) - np.repeat(firsts, counts)
        gone = order[places < np.repeat(excess, counts)]
        if len(gone):
            delete(item.topic.id, queue[gone], offset[gone])
        return len(gone)

    def _look_through(self, item: TopicState, queues: U32, starts: I64, stops: I64) -> tuple[U32, I64, I64, I64]:
        """Of messages that are there: queue, offset, and rank, of which the lowest goes first; and up to where they are
        all of each queue."""
        at, topic_id = starts.copy(), item.topic.id
        pieces: list[tuple[NDArray[Any], ...]] = [(np.empty(0, np.uint32), *np.empty((2, 0), np.int64))]
        by_priority = item.topic.options.overflow == "drop_lowest_priority"
        held = 0
        while held < _AT_ONCE and len(active := np.flatnonzero(at < stops)):
            found = self._queries.read_many(
                topic_id,
                queues[active],
                at[active],
                ends=stops[active],
                max_records=_READ_RECORDS,
                max_bytes=_READ_BYTES,
            )
            moved, next_offsets = found.positions
            if not len(moved):
                break
            for batch in split_batches(found.load(), source="store"):
                pieces.append(_ranked(batch, topic_id, queues, at, stops, by_priority=by_priority))
                held += len(pieces[-1][0])
            np.maximum.at(at, active[queues[active].searchsorted(moved)], next_offsets)
        queue, offset, rank = (np.concatenate(column) for column in zip(*pieces, strict=True))
        return queue, offset, rank, at


def _ranked(
    batch: RecordBatch, topic_id: int, queues: U32, begins: I64, stops: I64, *, by_priority: bool
) -> tuple[NDArray[Any], ...]:
    """Of the messages of a batch that lie between ``begins`` and ``stops`` of the sorted ``queues``."""

    def column(number: Column) -> NDArray[Any]:
        return decode_column(batch.buffer, batch.directory.get(number), batch.record_count, DTYPES[number])

    queue, offset = column(Column.QUEUE), column(Column.OFFSET).astype(np.int64)
    at = np.minimum(queues.searchsorted(queue), len(queues) - 1)
    mine = (queues[at] == queue) & (offset >= begins[at]) & (offset < stops[at])
    if Column.TOPIC in batch.directory:
        mine &= column(Column.TOPIC) == topic_id
    mine &= column(Column.FLAGS) & np.uint8(Flag.TOMBSTONE | Flag.POSITION) == 0
    if by_priority:
        rank = priority_rank(column(Column.PRIORITY).astype(np.int64))
    else:
        expires = column(Column.EXPIRES_MS).astype(np.int64)
        rank = np.where(expires == 0, _NO_DEADLINE, expires)
    return queue[mine], offset[mine], rank[mine]
