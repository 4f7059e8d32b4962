"""The delayed messages of a store: what is due when, and cancelling. See :mod:`.delayed` for how they are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lsmq.record_batch import Column

from .columns import encode_columns
from .delayed import HAND, STORED, DuePlace, Hand, delayed_count, split_due
from .due_reads import DueRead
from .line import Appended, Line
from .queries import Queries
from .shard_time import ShardTime
from .state import ShardState
from .wal import EntryKind


class DelayedRecords:
    """Thread-safe."""

    def __init__(self, state: ShardState, queries: Queries, line: Line, time: ShardTime) -> None:
        self._state = state
        self._queries = queries
        self._line = line
        self._time = time

    def now_ms(self) -> int:
        """The time that an entry is stamped with: whatever comes from now on is due after it, or at once."""
        return self._time.now_ms()

    @property
    def ahead_ms(self) -> int:
        """How far that is ahead of the clock: above 0 it stands still."""
        return self._time.ahead_ms

    def wait_ms(self, due_ms: int) -> int:
        """How long it is until then: while stamps stand still, until the clock is where they are, and on to then."""
        return due_ms - self.now_ms() + self.ahead_ms

    def let_a_moment_pass(self) -> None:
        """What is stamped from now on is later than all there is: so what was put at now is due, though stamps stand
        still."""
        self._time.saw(self._time.last_ms + 1)

    @property
    def hand(self) -> Hand:
        """How far they are delivered, as committed. Raises ``CorruptFile``."""
        return Hand.decode(self._state.documents.get(HAND))

    @property
    def count(self) -> int:
        """See :func:`.delayed.delayed_count`."""
        return delayed_count(self._state.documents)

    @property
    def stored(self) -> int:
        """How many were delayed when they came, less those that were cancelled: what :attr:`.Hand.done` comes to when
        nothing is pending, but for those of deleted topics that merges have taken away."""
        return int(self._state.documents.get(STORED) or 0)

    def read(self, after: DuePlace, upto_ms: int, max_records: int, max_bytes: int) -> DueRead:
        """Those behind ``after`` that are due up to ``upto_ms``, as far as they are committed.

        See :func:`.due_reads.read_due`. Raises ``CorruptFile``.
        """
        return self._queries.read_due(after, upto_ms, max_records, max_bytes)

    def first_in_line(self) -> int | None:
        """When the first is due of those that are in line, and not committed; None where there are none."""
        return self._line.first_due_in_line()

    def on_new(self, listener: Callable[[int], None]) -> None:
        """Call ``listener`` with the first due time of what is put in line; there is one listener.

        It is called with the line's lock held: it must be quick, and not raise.
        """
        self._line.on_delayed = listener

    def cancel(self, places: Sequence[DuePlace]) -> Appended:
        """Put in line that some are gone, which are there, and were not delivered; not waited for."""
        by_topic: dict[int, list[tuple[int, int]]] = {}
        for due_ms, offset in places:
            topic_id, queue = split_due(due_ms)
            by_topic.setdefault(topic_id, []).append((queue, offset))
        with self._line.lock:
            self._line.check_room(0)
            for topic_id, rows in by_topic.items():
                queues, offsets = (np.array(column) for column in zip(*rows, strict=True))
                body = encode_columns(len(rows), {Column.QUEUE: queues, Column.OFFSET: offsets})
                appended = self._line.append_entry(EntryKind.DELETE, topic_id, len(rows), body)
        return appended
