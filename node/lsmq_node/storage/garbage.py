"""Garbage: how much of each table nobody can read, and which tables to write anew for the space.

A table's sample (:mod:`.sample`) is held against what is known to be gone: log starts, deleted topics, tombstones, what
has expired, and tombstones that nothing is left for. That costs one small read a table, and only when something changed
that concerns it; what comes out is a few numbers.

Tables are written anew, one at a time or with their neighbours, where the store is more than ``MAX_SHARE`` garbage,
the worst first: where messages go in the order they came, tables are mostly dead when their turn comes, and cost
little. After it a table has no garbage, so each turn ends. On a disk that is nearly full that share is not waited for:
each table is written anew that is worth it and for which there is room.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Container
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from lsmq.errors import CorruptFile

from .columns import I64
from .compaction import LogStarts, Mask, Nowhere, Unreadable, below, tombstoned
from .delayed import is_due_topic
from .sample import Sample
from .sieve import Expired
from .sorted_records import SHADOW, TOMBSTONE_TOPIC
from .state import ShardState
from .table import Table
from .version import TableRun, Version

#: With more garbage than this of all bytes, tables are written anew: used bytes are then 1.43 times the live ones.
MAX_SHARE = 0.3
#: A table with less is not worth it.
_LEAST_SHARE = 0.1
#: A neighbour goes with a table, so that many small ones do not stay, from this on.
_NEIGHBOUR_SHARE = 0.25
#: A table of which messages expire is looked at again each time that another one of so many has, spread over them.
_EXPIRING_POINTS = 16


@dataclass(frozen=True, slots=True)
class Deadness:
    """What is known of a table: how many bytes would go if it were written anew, and how many more are tombstones."""

    dead_bytes: int = 0
    tombstone_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Tables of one run, neighbours, to be written anew."""

    run: TableRun
    tables: tuple[Table, ...]


class GarbageCounter:
    """Keeps the deadness of all tables. One thread at a time refreshes; ``known`` is replaced as a whole."""

    def __init__(self, state: ShardState, log_starts: LogStarts, expired: Expired, nowhere: Nowhere) -> None:
        self._state = state
        self._nowhere = nowhere
        self._log_starts = log_starts
        self._expired = expired
        #: Of tables of which messages expire: when some were stored, and when they expire, the first ones first.
        self._expiring: dict[int, tuple[I64, I64]] = {}
        self._next: tuple[I64, I64] | None = None  # the same of the message that expires next
        self._seen: tuple[Version, int] | None = None
        self._marks: dict[int, tuple[int, ...]] = {}
        self.known: dict[int, Deadness] = {}

    def is_fresh(self, version: Version) -> bool:
        """Whether nothing has changed since the last look that could make garbage."""
        if self._seen is None:
            return False
        if self._next is not None and self._expired(*self._next)[0]:
            return False
        seen, changes = self._seen
        return changes == self._state.space_changes and seen.runs() == version.runs()

    def refresh(self, version: Version, over: Callable[[], bool] = lambda: False) -> None:
        """Look at the tables about which something has changed, until it is ``over``.

        Raises ``FileNotFoundError`` for a table that was merged away meanwhile.
        """
        version = version.on_disk()
        seen = (version, self._state.space_changes)
        known: dict[int, Deadness] = {}
        marks: dict[int, tuple[int, ...]] = {}
        look = _Look(version, self._state)
        for table in look.tables:
            number = table.meta.number
            marks[number] = self._mark(table, look)
            if marks[number] == self._marks.get(number):
                known[number] = self.known[number]
            elif table.damage is None and not over():
                known[number] = self._deadness(table, look) if look.may_have_garbage(table) else Deadness()
            else:
                marks[number], known[number] = (), self.known.get(number, Deadness())
        self._marks, self.known, self._seen = marks, known, seen
        self._expiring = {number: points for number, points in self._expiring.items() if number in marks}
        coming = [
            (int(expires[left[0]]), int(stored[left[0]]))
            for stored, expires in self._expiring.values()
            if len(left := np.flatnonzero(~self._expired(stored, expires)))
        ]
        self._next = None
        if coming:
            expires_ms, stored_ms = min(coming)
            self._next = np.array((stored_ms,), np.int64), np.array((expires_ms,), np.int64)

    def _mark(self, table: Table, look: _Look) -> tuple[int, ...]:
        """What the deadness of a table follows from: as long as this is the same, so is that."""
        states = [self._state.topics.get(topic) for topic in _owners(table)]
        losses = sum(item.losses for item in states if item is not None)
        if any(map(is_due_topic, table.meta.topics)):
            losses += self._state.due_losses + self._state.dropped_topics
        gone = sum(item is None for item in states)
        meta = table.meta
        older = look.clean_sum if meta.tombstone_count else 0
        expiring = self._expiring.get(meta.number)
        gone += 0 if expiring is None else int(np.count_nonzero(self._expired(*expiring)))
        return losses, gone, look.tombstones_after(meta.clean_lsn), older, meta.first_key, meta.first_offset

    def _deadness(self, table: Table, look: _Look) -> Deadness:
        try:
            sample = table.sample()
            if len(sample) == 0:
                return Deadness()
            dead = self._dead(table, look, sample)
        except CorruptFile:  # its blocks may be whole: it is merged in its turn
            return Deadness()
        spared = ~dead & ((sample.keys & SHADOW) != 0)
        size = table.meta.index_position
        return Deadness(
            size * int(np.count_nonzero(dead)) // len(sample), size * int(np.count_nonzero(spared)) // len(sample)
        )

    def _dead(self, table: Table, look: _Look, sample: Sample) -> Mask:
        keys, offsets = sample.keys, sample.offsets
        dead = below(keys, offsets, self._log_starts) | sample.before(table.meta.first_key, table.meta.first_offset)
        if sample.expires_ms is not None:
            expires = self._state.lasting(keys, sample.expires_ms)
            dead |= self._expired(sample.stored_ms, expires)
            self._expiring[table.meta.number] = _spread(sample.stored_ms, expires)
        shadow_from = int(keys.searchsorted(SHADOW))
        if shadow_from < len(keys):
            others = tuple(other for other in look.tables if other is not table and concerns(table, other))
            unreadable = Unreadable(self._log_starts, (), others, self._expired)
            dead[shadow_from:] |= ~unreadable.needed(keys[shadow_from:] & ~SHADOW, offsets[shadow_from:])
        dead |= self._nowhere(sample.targets)
        alive = np.flatnonzero(~dead[:shadow_from])
        graves = [run for run in look.graves if any(concerns(other, table) for other in run.tables)]
        if len(alive) and graves:
            dead[alive] = tombstoned(graves, keys[alive], offsets[alive])
        return dead

    def dead_bytes(self) -> int:
        """What is known to be of no use to a reader, tombstones included."""
        return sum(dead.dead_bytes + dead.tombstone_bytes for dead in self.known.values())

    def worthwhile(self, version: Version, busy: Container[int] = ()) -> list[tuple[TableRun, Table, int]]:
        """Tables with garbage enough to write them anew, by themselves, on a disk that is nearly full; the worst first.

        With the run of each, and how many bytes would go. No table of ``busy`` ones.
        """
        found = [
            (run, table, self.known[table.meta.number].dead_bytes)
            for run in version.runs()
            for table in run.tables
            if self._share(table) > _LEAST_SHARE and table.meta.number not in busy and table.damage is None
        ]
        return sorted(found, key=lambda each: self._share(each[1]), reverse=True)

    def choose(self, version: Version, busy: set[int], table_bytes: int, limit_bytes: int) -> Rewrite | None:
        """What to write anew next, if anything: the table with the most garbage, and neighbours that are like it.

        No table of ``busy`` ones, and no more than ``limit_bytes`` at once.
        """
        used = sum(run.size_bytes for run in version.runs())
        if self.dead_bytes() <= MAX_SHARE * used:
            return None
        worst, worst_share = None, _LEAST_SHARE
        for run in version.runs():
            for at, table in enumerate(run.tables):
                share = self._share(table)
                if share > worst_share and table.meta.number not in busy and table.damage is None:
                    worst, worst_share = (run, at), share
        if worst is None:
            return None
        run, first = worst
        end, size = first + 1, run.tables[first].meta.size_bytes
        while end < len(run.tables) and self._joins(run.tables[end], busy, table_bytes):
            size += run.tables[end].meta.size_bytes
            if size > limit_bytes:
                break
            end += 1
        return Rewrite(run, run.tables[first:end])

    def _joins(self, table: Table, busy: set[int], table_bytes: int) -> bool:
        if table.meta.number in busy or table.damage is not None:
            return False
        return self._share(table) >= _NEIGHBOUR_SHARE or table.meta.size_bytes < table_bytes // 4

    def _share(self, table: Table) -> float:
        return self.known.get(table.meta.number, Deadness()).dead_bytes / max(1, table.meta.index_position)


class _Look:
    """What all tables together say of tombstones, and the state of losses."""

    def __init__(self, version: Version, state: ShardState) -> None:
        self._state = state
        self._losing: dict[int, bool] = {}
        self.tables = version.tables()
        self.graves = graves_of(version)
        self.clean_sum = sum(table.meta.clean_lsn for table in self.tables)
        by_age = sorted((table.meta.end_lsn, table.meta.tombstone_count) for table in self.tables)
        self._ends = [end for end, _ in by_age]
        self._counts = [0, *accumulate(count for _, count in by_age)]

    def may_have_garbage(self, table: Table) -> bool:
        """False for a table of topics of which nothing ever went: as long as all stays, no table is read for this."""
        if self._counts[-1]:
            return True
        return any(self._loses(topic) for topic in table.meta.topics)

    def _loses(self, topic_id: int) -> bool:
        known = self._losing.get(topic_id)
        if known is None:
            item = self._state.topics.get(topic_id)
            known = item is None or item.deletions is not None or bool(item.start.any())
            self._losing[topic_id] = known
        return known

    def tombstones_after(self, lsn: int) -> int:
        """How many there are in tables that reach beyond an LSN."""
        return self._counts[-1] - self._counts[bisect_right(self._ends, lsn)]


def graves_of(version: Version) -> tuple[TableRun, ...]:
    """The runs that have tombstones."""
    return tuple(run for run in version.runs() if run.tombstone_count)


def concerns(grave: Table, table: Table) -> bool:
    """Whether ``grave`` may have tombstones for messages of ``table`` that this was not yet freed of."""
    if not grave.meta.tombstone_count or grave.meta.end_lsn <= table.meta.clean_lsn:
        return False
    return any(topic | TOMBSTONE_TOPIC in grave.meta.topics for topic in table.meta.topics if topic < TOMBSTONE_TOPIC)


def _spread(stored_ms: I64, expires_ms: I64) -> tuple[I64, I64]:
    """``_EXPIRING_POINTS`` of those that expire, the first and the last among them."""
    order = np.argsort(expires_ms, kind="stable")
    order = order[np.count_nonzero(expires_ms == 0) :]
    chosen = order[np.linspace(0, len(order) - 1, min(len(order), _EXPIRING_POINTS)).astype(np.int64)]
    return stored_ms[chosen], expires_ms[chosen]


def _owners(table: Table) -> set[int]:
    return {topic & ~TOMBSTONE_TOPIC for topic in table.meta.topics}
