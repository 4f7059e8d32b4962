"""Retention: which messages have expired.

A topic's messages expire by age (``retention_ms``) and by size (``retention_bytes``). Both come down to a time: what
was stored before it goes. Stored times never go back within a queue, so what has expired is the beginning of a queue,
and its log start moves to the first message that has not. Where the records lie, in memory or in tables shared with
others, does not matter for that; their space is the concern of :mod:`.garbage`.

For each queue the time of its first message is kept, once it is known, or one that is not later. So a round asks only
queues in which something has expired, and a topic in which nothing can have is not looked at. Many queues are asked at
once, a few messages each; a queue with much to expire is searched.

Nothing is dropped that a log start does not say is gone: the log start is logged first, in one entry a topic and round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from lsmq.errors import CorruptFile
from lsmq.record_batch import Column

from .columns import I64, U32, queue_keys
from .compaction import LogStarts, below
from .queries import Queries
from .ranges import RangeReader
from .sorted_records import TOMBSTONE_TOPIC, TooMuch
from .state import ShardState, TopicState
from .table import Table
from .tables import TableSet

#: Queues that are asked at once, and messages of each.
_QUEUES = 4096
_FIRST_RECORDS = 32
_MOST_RECORDS = 512
_ROUND_BYTES = 16 << 20
_NEVER = 1 << 62

Trim = Callable[[int, U32, I64], bool]
"""Move log starts of a topic's queues up to offsets; returns whether that is applied by now. Raises ``LsmqError``."""


@dataclass(slots=True)
class _Heads:
    """What is known of a topic's queues.

    Attributes:
        not_before_ms: of each queue, its first message was not stored before this; 0 where nothing is known.
        oldest_ms: no message that came before ``asked_lsn`` and can be read was stored before this.
        asked_lsn, asked_ms: what came later was not stored before ``asked_ms``.
        empty_at: the version of the topic at which no queue had a message.
    """

    not_before_ms: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    oldest_ms: int = 0
    asked_lsn: int = 0
    asked_ms: int = 0
    empty_at: int = -1

    def have_nothing(self, before: int, version: int) -> bool:
        """Whether nothing can have been stored before a time."""
        return min(self.oldest_ms, self.asked_ms) >= before or self.empty_at == version

    def widen(self, count: int) -> None:
        if count > len(self.not_before_ms):
            wider = np.zeros(count, np.int64)
            wider[: len(self.not_before_ms)] = self.not_before_ms
            self.not_before_ms = wider


class Retention:
    """Finds what has expired. One thread at a time."""

    def __init__(
        self,
        state: ShardState,
        tables: TableSet,
        queries: Queries,
        log_starts: LogStarts,
        expired_before: Callable[[int], int],
    ) -> None:
        """``expired_before`` tells when what has reached an age was stored."""
        self._state = state
        self._tables = tables
        self._queries = queries
        self._log_starts = log_starts
        self._expired_before = expired_before
        self._heads: dict[int, _Heads] = {}
        self._unsure: list[int] = []  # queues of the present topic that cannot be read

    def run(self, trim: Trim | None) -> bool:
        """One round: move the log starts of all topics past what has expired; False when some did not move yet.

        Without ``trim``, where another replica leads, it only learns which messages are the first.
        """
        for topic_id in self._heads.keys() - self._state.topics.keys():
            del self._heads[topic_id]
        done = True
        for topic_id, item in list(self._state.topics.items()):
            before = self._cut(item)
            heads = self._heads.get(topic_id)
            if before is None or (heads and heads.have_nothing(before, item.version)):
                continue
            done &= self._expire(item, before, trim)
        return done

    def dead_tables(self) -> list[Table]:
        """Tables that hold nothing but what has expired, or what is of topics that are gone. Opens none of them.

        A tombstone that goes with one does not bring its message back: that was stored before it, and has expired too.
        """
        return [table for table in self._tables.version.tables() if self._is_dead(table)]

    def _is_dead(self, table: Table) -> bool:
        for topic in table.meta.topics:
            topic_id = topic & ~TOMBSTONE_TOPIC
            if topic_id in self._state.topics:
                heads = self._heads.get(topic_id)
                if heads is None or table.meta.end_lsn > heads.asked_lsn or table.meta.max_ms >= heads.oldest_ms:
                    return False
        return True

    # -- what has to go ----------------------------------------------------------------------------------

    def _cut(self, item: TopicState) -> int | None:
        """What was stored before this has expired; None where nothing ever does."""
        options = item.topic.options
        cuts = []
        if options.retention_ms is not None:
            cuts.append(self._expired_before(options.retention_ms))
        if options.retention_bytes is not None:
            cuts.append(self._over_size(item.topic.id, options.retention_bytes))
        return max(cuts, default=None)

    def _over_size(self, topic_id: int, limit_bytes: int) -> int:
        """The time from which on the topic's newest ``limit_bytes`` in tables were stored; 0 when there are no more.

        By the tables' samples: right up to a point of one.
        """
        tables = [table for table in self._tables.version.tables() if topic_id in table.meta.topics]
        billed = sum(table.meta.topic_bytes[table.meta.topics.index(topic_id)] for table in tables)
        if billed <= limit_bytes:
            return 0
        times, sizes = [np.zeros(0, np.int64)], [np.zeros(0, np.float64)]
        for table in tables:
            try:
                sample = table.sample()
            except (CorruptFile, FileNotFoundError):  # not billed: rather too much stays than too little
                continue
            first, end = sample.keys.searchsorted(np.array((topic_id << 32, (topic_id + 1) << 32), np.uint64))
            if first < end:
                keys, offsets = sample.keys[first:end], sample.offsets[first:end]
                gone = below(keys, offsets, self._log_starts)
                gone |= sample.before(table.meta.first_key, table.meta.first_offset)[first:end]
                times.append(sample.stored_ms[first:end][~gone])
                share = table.meta.topic_bytes[table.meta.topics.index(topic_id)] / (end - first)
                sizes.append(np.full(len(times[-1]), share))
        all_times, all_sizes = np.concatenate(times), np.concatenate(sizes)
        order = np.argsort(-all_times, kind="stable")
        reached = np.flatnonzero(np.cumsum(all_sizes[order]) >= limit_bytes)
        return int(all_times[order[reached[0]]]) if len(reached) else 0

    # -- moving log starts -------------------------------------------------------------------------------

    def _expire(self, item: TopicState, before: int, trim: Trim | None) -> bool:
        count = item.end - item.first
        heads = self._heads.setdefault(item.topic.id, _Heads())
        heads.widen(count)
        self._unsure = []
        asked_lsn, asked_ms = self._tables.applied_lsn, self._state.time_ms
        version = item.version
        starts = item.live_from(np.arange(count)).copy()
        ends = item.committed[:count].copy()
        known = heads.not_before_ms.copy()  # of the messages from ``found`` on
        found = starts.copy()
        records = _FIRST_RECORDS
        left = np.flatnonzero((found < ends) & (known[:count] < before))
        if trim is None:
            self._ask_all(item, left, found, ends, known, 0, 1)
            left = left[:0]
        while len(left) and not self._tables.closing:
            self._ask_all(item, left, found, ends, known, before, records)
            left = left[(found[left] < ends[left]) & (known[left] < before)]
            records *= 4
        moved = np.flatnonzero(found > starts)
        if (
            trim is not None
            and len(moved)
            and not trim(item.topic.id, (moved + item.first).astype(np.uint32), found[moved])
        ):
            return False
        if self._tables.closing:
            return False
        known[self._unsure] = 0
        active = np.flatnonzero(found < ends)
        heads.not_before_ms = known
        heads.empty_at = version if len(active) == 0 and len(moved) == 0 else -1
        heads.oldest_ms = int(known[active].min()) if len(active) else _NEVER
        heads.asked_lsn, heads.asked_ms = asked_lsn, asked_ms
        return True

    def _ask_all(
        self, item: TopicState, rows: I64, found: I64, ends: I64, known: I64, before: int, records: int
    ) -> None:
        for first in range(0, len(rows), _QUEUES):
            self._ask(item, rows[first : first + _QUEUES], found, ends, known, before, records)

    def _ask(self, item: TopicState, rows: I64, found: I64, ends: I64, known: I64, before: int, records: int) -> None:
        """Move ``found`` of some queues past what has expired of their next messages; raises ``known`` to match."""
        alone = rows
        if records <= _MOST_RECORDS:
            stops = np.minimum(found[rows] + records, ends[rows])
            ranges = RangeReader(queue_keys(item.topic.id, rows + item.first), found[rows], stops, _ROUND_BYTES)
            try:
                part = self._queries.read_ranges(ranges)
            except (TooMuch, CorruptFile):
                if len(rows) > 1:
                    for some in np.array_split(rows, min(4, len(rows))):
                        self._ask(item, some, found, ends, known, before, records)
                    return
            else:
                alone = rows[ranges.apart]
                if part is not None:
                    _advance(rows, part[1], part[0].columns[Column.STORED_MS], found, known, before)
        for row in alone.tolist():
            self._search(item, row, found, ends, known, before)

    def _search(self, item: TopicState, row: int, found: I64, ends: I64, known: I64, before: int) -> None:
        topic_id, queue = item.topic.id, row + item.first
        try:
            at = min(self._queries.offset_for_time(topic_id, queue, before), int(ends[row]))
            found[row] = max(at, int(found[row]))
            first = None
            if found[row] < ends[row]:
                read = self._queries.read_records(topic_id, queue, int(found[row]), int(ends[row]), 1, 1)
                first = read.first(int(found[row]))
            known[row] = before if first is None else max(first[1], before)
        except CorruptFile:  # what it holds cannot be told, so it stays; the table remembers the damage
            known[row] = before
            self._unsure.append(row)


def _advance(rows: I64, owners: I64, stored_ms: I64, found: I64, known: I64, before: int) -> None:
    """Take in the records of several queues: ``owners`` says of each which of ``rows`` it belongs to, ascending."""
    fresh = stored_ms >= before
    count = len(rows)
    expired = np.bincount(owners, ~fresh, count).astype(np.int64)
    found[rows] += expired
    for_rows = np.full(count, _NEVER, np.int64)
    np.minimum.at(for_rows, owners[fresh], stored_ms[fresh])
    some = for_rows < _NEVER
    known[rows[some]] = for_rows[some]
