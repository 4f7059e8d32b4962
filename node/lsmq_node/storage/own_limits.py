"""Limits that queues have of their own (:mod:`.queue_options`), as retention obeys them: by row of their topic.

For a limit in bytes it must be known how the bytes of a queue lie. They are counted from the columns of its messages:
once all of them, when that begins, and later what came since. What is kept are pieces (:mod:`.queue_pieces`); a limit
is held to within a piece, and rather too much stays than too little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from lsmq.errors import CorruptFile

from .columns import I64
from .queries import Queries
from .queue_options import UNLIMITED, LimitValue, QueueOptions, decode, topic_of
from .queue_pieces import QueuePieces, count_pieces
from .state import ShardState, TopicState

_NEVER = 1 << 62

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
) -> tuple[dict[int, QueueOwnLimits], dict[int, CorruptFile]]:
    """By topic, and why where they cannot be read: of such a topic nobody knows what may go.

    ``numbers_of`` has the numbers of a topic's queues by their names, below 0 where there is none. Raises what that
    raises but ``CorruptFile``.
    """
    by_topic: dict[int, list[LimitsDocument]] = {}
    for key, body in documents:
        by_topic.setdefault(topic_of(key), []).append((key, body))
    found: dict[int, QueueOwnLimits] = {}
    unknown: dict[int, CorruptFile] = {}
    for topic_id, documents_of in by_topic.items():
        item = state.topics.get(topic_id)
        if item is None:
            continue
        try:
            each = [decode(key, body) for key, body in documents_of]
            called = [queue for queue, _ in each]
            if item.named:
                numbers = numbers_of(topic_id, [str(queue) for queue in called])
            else:
                numbers = np.array(called, np.int64)
        except CorruptFile as damage:
            unknown[topic_id] = damage
            continue
        rows = numbers - item.first
        there = np.flatnonzero((numbers >= 0) & (rows >= 0) & (rows < item.end - item.first))
        if len(there):
            there = there[np.argsort(rows[there])]
            found[topic_id] = QueueOwnLimits(rows[there], tuple(each[at][1] for at in there.tolist()))
    return found, unknown


class QueueSizes:
    """Which offsets are beyond limits of bytes. One thread at a time."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._known: dict[tuple[int, int], QueuePieces] = {}  # by topic and row

    def keep(self, sized: Iterable[tuple[int, int]]) -> None:
        """Forget queues that are not among these topics and rows."""
        wanted = set(sized)
        self._known = {place: known for place, known in self._known.items() if place in wanted}

    def starts(self, item: TopicState, sized: Sequence[tuple[int, int]]) -> I64:
        """Where each of these rows is to begin. Reads what came since the last time, as far as it can be read."""
        return np.array([self._start(item, row, limit) for row, limit in sized], np.int64)

    def _start(self, item: TopicState, row: int, limit: int) -> int:
        start, end, place = item.first_live(row), item.committed.item(row), (item.topic.id, row)
        known = self._known.get(place)
        if known is None or known.limit != limit or known.seen > end:
            known = self._known[place] = QueuePieces(limit, start)
        known.seen = max(known.seen, start)
        with suppress(CorruptFile):  # Rather too much stays than too little; the table remembers the damage.
            count_pieces(self._queries, item, row, known, end)
        return known.cut(start)
