"""Messages that go to another topic when they expire (``expired_to``), or when they are over a limit (``dropped_to``).

Merges keep what has expired, and log starts stop before what is to be moved, until whoever moves it has deleted it
here, in the same piece of the log as it is stored elsewhere. So what is left to do stands in the store, and nobody has
to remember how far they are.

What is over a limit, retention finds (:mod:`.retention`, :mod:`.evictions`), again and again until it is gone. To find
what has expired, the leader looks through such a topic once, and at what comes later as it comes. Of each *stretch*, of
``STRETCH`` offsets of a queue, it remembers which message expires next: a stretch is looked at again when that has.
What is remembered is forgotten with the leader: some 24 bytes a stretch that has messages which expire, and 8 a queue.

What has expired by the clock at the start alone waits for an hour, as in merges (:mod:`.shard_time`).
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lsmq import runtime
from lsmq.errors import CorruptFile
from lsmq.record_batch import Column, Flag, RecordBatch, split_batches

from .batch_checks import encode_positions
from .columns import DTYPES, I64, U32, U64, decode_column
from .line import Appended, Behind, Line
from .losses import LossReason
from .queries import Queries
from .shard_time import ShardTime
from .sieve import Expired, none_expired
from .state import ShardState, TopicState
from .wal import EntryKind

_STRETCH_BITS: Final = 12
#: Offsets of a queue that are remembered together.
STRETCH: Final = 1 << _STRETCH_BITS
#: So many offsets are looked at in one go, about, and read at once.
_AT_ONCE = 1 << 16
_READ_RECORDS = 4_096
_READ_BYTES = 4 << 20
#: Before log starts move, so many are looked through at a time, about.
_MOST_AT_ONCE = 1 << 20
_NONE: I64 = np.empty(0, np.int64)

_log = logging.getLogger("lsmq.storage")

LapsedRows = NDArray[Any]


@dataclass(slots=True)
class _Next:
    """Of stretches, by key (row, and number of the stretch), which message expires next: when it was stored, and when
    it expires. Sorted by key."""

    keys: U64 = field(default_factory=lambda: np.empty(0, np.uint64))
    stored_ms: I64 = field(default_factory=lambda: _NONE)
    expires_ms: I64 = field(default_factory=lambda: _NONE)

    def with_others(self, keys: U64, stored_ms: I64, expires_ms: I64) -> _Next:
        """With more messages; of each stretch the one that expires first is kept."""
        all_keys = np.concatenate((self.keys, keys))
        stored, expires = np.concatenate((self.stored_ms, stored_ms)), np.concatenate((self.expires_ms, expires_ms))
        order = np.lexsort((expires, all_keys))
        chosen = order[_firsts(all_keys[order])]
        return _Next(all_keys[chosen], stored[chosen], expires[chosen])

    def without(self, keys: U64) -> _Next:
        left = ~np.isin(self.keys, keys)
        return _Next(self.keys[left], self.stored_ms[left], self.expires_ms[left])


@dataclass(slots=True)
class _Known:
    """Of a topic: up to where its queues were looked at, by row; and what expires next."""

    seen: I64 = field(default_factory=lambda: _NONE)
    next: _Next = field(default_factory=_Next)
    version: int = -1  # of the topic, at which all was seen
    over_next: bool = False  # what is over a limit has its turn, whatever expires or comes


@dataclass(frozen=True, slots=True)
class _Over:
    """What is over a limit: messages of these queues below ``ends``; if there are ``places``, these alone."""

    queues: U32
    ends: I64
    places: frozenset[tuple[int, int]] | None = None

    def with_others(self, others: _Over) -> _Over:
        """Both; where one has places and the other has not, the topic was altered in between, and the others count."""
        if (self.places is None) != (others.places is None):
            return others
        queues, ends = np.append(self.queues, others.queues), np.append(self.ends, others.ends)
        order = np.lexsort((-ends, queues))
        chosen = order[_firsts(queues[order])]
        places = None if self.places is None or others.places is None else self.places | others.places
        return _Over(queues[chosen], ends[chosen], places)

    def has(self, queues: U32, offsets: I64) -> NDArray[np.bool_]:
        """Which messages of the queues are among them, if they are below the ends."""
        if self.places is None:
            return np.ones(len(queues), np.bool_)
        places = zip(queues.tolist(), offsets.tolist(), strict=True)
        return np.fromiter((place in self.places for place in places), np.bool_, len(queues))


@dataclass(slots=True)
class Lapsed:
    """Messages that are to be moved: batches, and which of their messages are, by queue and offset.

    ``look``: what was learned with them, for :meth:`Lapses.moved`.
    """

    topic_id: int
    batches: list[tuple[RecordBatch, frozenset[tuple[int, int]]]]
    queues: U32
    offsets: I64
    look: _Look

    @property
    def why(self) -> LossReason:
        return LossReason.LAPSED if self.look.over is None else LossReason.OVERFLOW


@dataclass(slots=True)
class _Look:
    """At a part of a stretch of each of some queues: ``keys`` of the stretches, and the offsets ``[at, ends)`` that are
    left to look at."""

    rows: I64
    keys: U64
    at: I64
    ends: I64
    again: bool = False
    over: _Over | None = None  # it is at what is over a limit, not at what expires
    found: _Next = field(default_factory=_Next)

    def first_half(self) -> _Look:
        some = slice(len(self.rows) // 2)
        return _Look(self.rows[some], self.keys[some], self.at[some], self.ends[some], self.again, self.over)


class Lapses:
    """One thread at a time, but for :meth:`held_back` and :meth:`drop`, which are another one's."""

    def __init__(
        self, state: ShardState, queries: Queries, line: Line, time: ShardTime, of_before: Lapses | None = None
    ) -> None:
        self._state = state
        self._queries = queries
        self._line = line
        self._time = time
        self._known: dict[int, _Known] = {}
        self._damaged: set[int] = set()  # topics that were told of
        #: By topic, what is over a limit: replaced with each look of retention.
        self.over: dict[int, _Over] = {} if of_before is None else of_before.over
        #: Whoever holds it finds what is over in force as long.
        self._lock: AbstractContextManager[bool] = runtime.Lock() if of_before is None else of_before._lock

    # -- what waits for being moved ------------------------------------------------------------------------------

    def held_back(self, topic_id: int, queues: U32, offsets: I64, why: LossReason) -> tuple[U32, I64, bool]:
        """Queues whose log starts may move by themselves, and up to where: to ``offsets``, but not past what is to be
        moved; and whether all may move as far as they were to.

        What is over a limit is handed over with that, to be found. Reads what is to go, where some of it may have to be
        moved; so much of it at once that nobody waits for long. In the thread that moves log starts.
        """
        item = self._queries.topic_state(topic_id)
        drops = why == LossReason.OVERFLOW and item.topic.options.dropped_to is not None
        expires = item.topic.options.expired_to is not None
        if why == LossReason.DISK or not (
            drops or expires
        ):  # On a full disk nothing is moved: that would take more of it.
            return queues, offsets, True
        rows = queues.astype(np.int64) - item.first
        at, limits = item.live_from(rows), offsets.copy()
        unsure = np.flatnonzero((at < offsets) & (drops | (at < item.holes_ends(rows))))
        order = unsure[np.argsort(queues[unsure])]

        def stays(stored_ms: I64, expires_ms: I64) -> NDArray[np.bool_]:
            expired = self._time.expired(stored_ms, expires_ms)
            return np.where(expired, expires, drops)

        limits[order] = self._before_first(item, queues[order], at[order], offsets[order], stays)
        if drops:
            over = np.flatnonzero(limits < offsets)
            if len(over):
                self._hand_over(topic_id, _Over(queues[over], offsets[over]))
        movable = limits > item.start[rows]
        return queues[movable], limits[movable], bool((limits == offsets).all())

    def drop(self, topic_id: int, queues: U32, offsets: I64) -> bool:
        """Whether these messages, which are over a limit, are to be moved: then they are handed over, to be found."""
        if self._queries.topic_state(topic_id).topic.options.dropped_to is None:
            return False
        order = np.lexsort((offsets, queues))
        queues, offsets = queues[order], offsets[order]
        firsts = _firsts(queues)
        lasts = np.append(firsts[1:], len(queues)) - 1
        places = frozenset(zip(queues.tolist(), offsets.tolist(), strict=True))
        self._hand_over(topic_id, _Over(queues[firsts], offsets[lasts] + 1, places))
        return True

    def forget_over(self) -> bool:
        """Another look of retention begins; whether there was something over a limit. Of that nothing is put in line
        from now on."""
        with self._lock:
            there_was = bool(self.over)
            self.over.clear()
            return there_was

    def _hand_over(self, topic_id: int, over: _Over) -> None:
        """Beside what was handed over before, in the same look of retention."""
        known = self.over.get(topic_id)
        self.over[topic_id] = over if known is None else known.with_others(over)

    def _before_first(self, item: TopicState, queues: U32, at: I64, ends: I64, stays: Expired) -> I64:
        """Of each of the sorted queues, how far nothing ``stays``: not further than it was looked through."""
        assert (queues[1:] > queues[:-1]).all(), "each queue is asked for once"
        topic_id, ends, left = item.topic.id, ends.copy(), _MOST_AT_ONCE
        try:
            while len(active := np.flatnonzero(at < ends)):
                if left <= 0:
                    return np.minimum(at, ends)
                read = self._queries.read_many(
                    topic_id,
                    queues[active],
                    at[active],
                    ends=ends[active],
                    max_records=_READ_RECORDS,
                    max_bytes=_READ_BYTES,
                    expired=none_expired,
                )
                moved, next_offsets = read.positions
                for batch in split_batches(read.load(), source="store"):
                    part = _Part(batch, topic_id, queues, at, ends)
                    kept = part.mine[stays(part.stored_ms, part.expires_ms)[part.mine]]
                    np.minimum.at(ends, part.places[kept], part.offset[kept])
                left -= int(np.maximum(next_offsets - at[queues.searchsorted(moved)], 0).sum())
                np.maximum.at(at, queues.searchsorted(moved), next_offsets)
                np.maximum(at, item.live_from(queues.astype(np.int64) - item.first), out=at)
        except CorruptFile:  # What it holds cannot be told, so it stays; the table remembers the damage.
            if len(queues) == 1:
                return np.minimum(at, ends)
            half = len(queues) // 2
            halves = (slice(half), slice(half, None))
            parts = [self._before_first(item, queues[some], at[some], ends[some], stays) for some in halves]
            return np.concatenate(parts)
        return ends

    # -- finding -------------------------------------------------------------------------------------------------

    def begin(self) -> Lapses:
        """One that knows nothing: somebody else may have led since."""
        return Lapses(self._state, self._queries, self._line, self._time, self)

    def topics(self) -> list[int]:
        """Ids of the topics of which something may have to be moved."""
        expiring = {topic_id for topic_id in map(int, self._state.moving) if topic_id in self._state.topics}
        for topic_id in self._known.keys() - expiring:
            del self._known[topic_id]
        for topic_id in self.over.keys() - self._state.topics.keys():
            self.over.pop(topic_id, None)
        return sorted(expiring | self.over.keys())

    def find(self, topic_id: int, max_messages: int, max_bytes: int) -> Lapsed | None:
        """Some messages that are to be moved, if any; None where there is nothing to look at by now.

        Ends at about ``max_messages`` or ``max_bytes`` of them, and one at least. Reads. To be answered with
        :meth:`moved`, before the next one, when they are moved; else they are found again. Raises ``UnknownTopic``.
        """
        item = self._queries.topic_state(topic_id)
        known = self._known.setdefault(topic_id, _Known())
        look = self._over_limit(item) if known.over_next else None
        known.over_next = False
        if look is None and item.topic.options.expired_to is not None:
            count = item.end - item.first
            if count > len(known.seen):
                known.seen = np.append(known.seen, np.zeros(count - len(known.seen), np.int64))
            look = self._due(item, known) or self._fresh(item, known)
            known.over_next = look is not None
        look = look or self._over_limit(item)
        while look is not None:
            try:
                return self._read(item, look, max_messages, max_bytes)
            except CorruptFile as damage:
                if len(look.rows) > 1:
                    look = look.first_half()
                elif look.again:  # Look at it as if it were new, as far as it can be read.
                    known.seen[look.rows] = np.minimum(known.seen[look.rows], look.at)
                    known.version = -1
                    look.at, look.found = look.ends.copy(), _Next()
                    return Lapsed(topic_id, [], np.empty(0, np.uint32), _NONE, look)
                elif look.ends[0] - look.at[0] > 1:
                    look.ends = look.at + (look.ends - look.at) // 2
                else:  # It cannot be moved; the table remembers the damage.
                    if topic_id not in self._damaged:
                        _log.warning("messages of topic %r are not moved: %s", item.topic.name, damage.message)
                    self._damaged.add(topic_id)
                    look.at = look.ends.copy()
                    return Lapsed(topic_id, [], np.empty(0, np.uint32), _NONE, look)
        return None

    def _over_limit(self, item: TopicState) -> _Look | None:
        """At what was handed over."""
        over = self.over.get(item.topic.id)
        if over is None or item.topic.options.dropped_to is None:
            self.over.pop(item.topic.id, None)
            return None
        rows = over.queues.astype(np.int64) - item.first
        at = item.live_from(rows)
        order = np.argsort(rows)
        order = order[at[order] < over.ends[order]]
        if not len(order):
            self.over.pop(item.topic.id, None)
            return None
        return _Look(rows[order], _keys(rows[order], at[order]), at[order], over.ends[order], over=over)

    def _due(self, item: TopicState, known: _Known) -> _Look | None:
        """At stretches of which a message has expired, one of each queue."""
        over = np.flatnonzero(self._time.surely_expired(known.next.stored_ms, known.next.expires_ms))
        if not len(over):
            return None
        keys = known.next.keys[over]
        keys = keys[_firsts(keys >> np.uint64(32))]
        keys = keys[: max(1, _AT_ONCE >> _STRETCH_BITS)]
        rows = (keys >> np.uint64(32)).astype(np.int64)
        begins = (keys & np.uint64(0xFFFFFFFF)).astype(np.int64) << _STRETCH_BITS
        at = np.maximum(begins, item.live_from(rows))
        return _Look(rows, keys, at, np.minimum(begins + STRETCH, known.seen[rows]), again=True)

    def _fresh(self, item: TopicState, known: _Known) -> _Look | None:
        """At what has come since, to the end of a stretch in each queue."""
        version = item.version
        if known.version == version:
            return None
        rows = np.arange(item.end - item.first)
        at, committed = np.maximum(known.seen[rows], item.live_from(rows)), item.committed[rows]
        active = np.flatnonzero(at < committed)
        if not len(active):
            known.version = version
            return None
        at = at[active]
        ends = np.minimum(committed[active], (at >> _STRETCH_BITS) + 1 << _STRETCH_BITS)
        some = max(1, int(np.cumsum(ends - at).searchsorted(_AT_ONCE, "right")))
        active, at, ends = active[:some], at[:some], ends[:some]
        return _Look(active, _keys(active, at), at, ends)

    def _read(self, item: TopicState, look: _Look, max_messages: int, max_bytes: int) -> Lapsed:
        topic_id, size_bytes = item.topic.id, 0
        queues = (look.rows + item.first).astype(np.uint32)
        found = Lapsed(topic_id, [], np.empty(0, np.uint32), _NONE, look)
        begin = look.at.copy()
        while len(active := np.flatnonzero(look.at < look.ends)):
            if len(found.queues) >= max_messages or size_bytes >= max_bytes:
                break
            try:
                read = self._queries.read_many(
                    topic_id,
                    queues[active],
                    look.at[active],
                    ends=look.ends[active],
                    max_records=min(_READ_RECORDS, max_messages),
                    max_bytes=min(_READ_BYTES, max_bytes),
                    expired=none_expired,
                )
                batches = list(split_batches(read.load(), source="store"))
            except CorruptFile:
                if len(found.queues):  # These are not lost with it.
                    break
                look.at = begin
                raise
            for batch in batches:
                size_bytes += self._add(found, _Part(batch, topic_id, queues, look.at, look.ends), batch)
            moved, next_offsets = read.positions
            np.maximum.at(look.at, queues.searchsorted(moved), next_offsets)
            np.maximum(look.at, item.live_from(look.rows), out=look.at)
        return found

    def _add(self, found: Lapsed, part: _Part, batch: RecordBatch) -> int:
        """Those of a batch that are to be moved; how many bytes they have."""
        look = found.look
        if look.over is None:
            expired = self._time.surely_expired(part.stored_ms, part.expires_ms)
            gone = part.mine[expired[part.mine]]
            later = part.mine[(~expired & (part.expires_ms > 0))[part.mine]]
            if len(later):
                keys = look.keys[part.places[later]]
                look.found = look.found.with_others(keys, part.stored_ms[later], part.expires_ms[later])
        else:
            expired = self._time.expired(part.stored_ms, part.expires_ms)
            gone = part.mine[(~expired & look.over.has(part.queue, part.offset))[part.mine]]
        if len(gone):
            queues, offsets = part.queue[gone], part.offset[gone]
            found.batches.append((batch, frozenset(zip(queues.tolist(), offsets.tolist(), strict=True))))
            found.queues, found.offsets = np.append(found.queues, queues), np.append(found.offsets, offsets)
        return int(part.lengths[gone].sum(dtype=np.int64))

    def moved(self, lapsed: Lapsed) -> None:
        """They are stored elsewhere and deleted here, durably; or there were none."""
        known, look = self._known.get(lapsed.topic_id), lapsed.look
        if look.over is not None:
            if (look.at >= look.ends).all() and self.over.get(lapsed.topic_id) is look.over:
                self.over.pop(lapsed.topic_id, None)
            return
        if known is None:
            return
        if look.again:
            whole = look.keys[look.at >= look.ends]
            found = look.found
            learned = np.isin(found.keys, whole)
            known.next = known.next.without(whole).with_others(
                found.keys[learned], found.stored_ms[learned], found.expires_ms[learned]
            )
        else:
            np.maximum.at(known.seen, look.rows, look.at)
            known.next = known.next.with_others(look.found.keys, look.found.stored_ms, look.found.expires_ms)

    # -- moving --------------------------------------------------------------------------------------------------

    def move(self, lapsed: Lapsed, target_id: int, batch: RecordBatch) -> Appended | None:
        """Put in line that ``batch``, made of them, is stored in another topic, and behind it that they are deleted.

        None where retention has looked anew since it found them to be over a limit: then they are found again, or stay.
        A crash may leave the first without the second, never the second without the first. Raises what
        :meth:`.ShardStore.append` and :meth:`.ShardStore.delete` raise.
        """
        item, target = self._queries.topic_state(lapsed.topic_id), self._queries.topic_state(target_id)
        latest = self._queries.latest_offsets(lapsed.topic_id, lapsed.queues)
        body = encode_positions(item.topic, lapsed.queues, lapsed.offsets, latest)
        behind = Behind(EntryKind.DELETE, lapsed.topic_id, len(lapsed.queues), body, lapsed.why)
        with self._lock:
            if lapsed.look.over is not None and self.over.get(lapsed.topic_id) is not lapsed.look.over:
                return None
            return self._line.append_records(((target, batch),), behind=behind)[-1]


class _Part:
    """Of a batch that was read: which of its messages lie in what was asked for (``mine``), and columns."""

    def __init__(self, batch: RecordBatch, topic_id: int, queues: U32, begins: I64, ends: I64) -> None:
        def column(number: Column) -> LapsedRows:
            return decode_column(batch.buffer, batch.directory.get(number), batch.record_count, DTYPES[number])

        self.queue, self.offset = column(Column.QUEUE), column(Column.OFFSET).astype(np.int64)
        self.stored_ms, self.expires_ms = column(Column.STORED_MS), column(Column.EXPIRES_MS)
        self.lengths = column(Column.LENGTH)
        self.places = np.minimum(queues.searchsorted(self.queue), len(queues) - 1)
        mine = (queues[self.places] == self.queue) & (self.offset >= begins[self.places])
        mine &= self.offset < ends[self.places]
        if Column.TOPIC in batch.directory:
            mine &= column(Column.TOPIC) == topic_id
        mine &= column(Column.FLAGS) & np.uint8(Flag.TOMBSTONE | Flag.POSITION) == 0
        self.mine = np.flatnonzero(mine)


def _keys(rows: I64, offsets: I64) -> U64:
    """Of stretches: the row of the queue, and the number of the stretch in it."""
    keys: U64 = rows.astype(np.uint64) << np.uint64(32) | (offsets >> _STRETCH_BITS).astype(np.uint64)
    return keys


def _firsts(values: LapsedRows) -> I64:
    """Of sorted values the first of each."""
    fresh = np.ones(len(values), np.bool_)
    fresh[1:] = values[1:] != values[:-1]
    return np.flatnonzero(fresh)
