"""Messages that have expired, of topics that have them moved elsewhere (``expired_to``): kept until then, and found.

Merges keep them, and log starts stop before them, until whoever moves them has deleted them here, in the same piece of
the log as they are stored elsewhere. So what is left to do stands in the store, and nobody has to remember how far they
are.

To find them, the leader looks through such a topic once, and at what comes later as it comes. Of each *block*, of
``BLOCK`` offsets of a queue, it remembers which message expires next: a block is looked at again when that has. What is
remembered is forgotten with the leader: some 24 bytes a block that has messages which expire, and 8 a queue.

What has expired by the clock at the start alone waits for an hour, as in merges (:mod:`.shard_time`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lsmq.record_batch import Column, Flag, RecordBatch, split_batches

from .batch_checks import encode_positions
from .columns import DTYPES, I64, U32, U64, decode_column
from .line import Appended, Behind, Line
from .losses import Why
from .queries import Queries
from .shard_time import ShardTime
from .state import ShardState, TopicState
from .wal import EntryKind

_BLOCK_BITS: Final = 12
#: Offsets of a queue that are remembered together.
BLOCK: Final = 1 << _BLOCK_BITS
#: So many offsets are looked at in one go, about, and read at once.
_AT_ONCE = 1 << 16
_READ_RECORDS = 4_096
_READ_BYTES = 4 << 20
_NONE: I64 = np.empty(0, np.int64)

Rows = NDArray[Any]


@dataclass(slots=True)
class _Next:
    """Of blocks, by key (row, and number of the block), which message expires next: when it was stored, and when it
    expires. Sorted by key."""

    keys: U64 = field(default_factory=lambda: np.empty(0, np.uint64))
    stored_ms: I64 = field(default_factory=lambda: _NONE)
    expires_ms: I64 = field(default_factory=lambda: _NONE)

    def with_others(self, keys: U64, stored_ms: I64, expires_ms: I64) -> _Next:
        """With more messages; of each block the one that expires first is kept."""
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


@dataclass(slots=True)
class Lapsed:
    """Messages that have expired: batches, and which of their messages have, by queue and offset.

    ``look``: what was learned with them, for :meth:`Lapses.moved`.
    """

    topic_id: int
    batches: list[tuple[RecordBatch, frozenset[tuple[int, int]]]]
    queues: U32
    offsets: I64
    look: _Look


@dataclass(slots=True)
class _Look:
    """At a part of a block of each of some queues: ``keys`` of the blocks, and the offsets ``[at, ends)`` that are left
    to look at."""

    rows: I64
    keys: U64
    at: I64
    ends: I64
    again: bool
    found: _Next = field(default_factory=_Next)


class Lapses:
    """One thread at a time, but for :meth:`waits_in` and :meth:`first_of`."""

    def __init__(self, state: ShardState, queries: Queries, line: Line, time: ShardTime) -> None:
        self._state = state
        self._queries = queries
        self._line = line
        self._time = time
        self._known: dict[int, _Known] = {}

    # -- what waits for being moved ------------------------------------------------------------------------------

    def waits_in(self, topic_id: int) -> bool:
        """Whether expired messages of the topic are kept until they are moved."""
        return bool((self._state.moving == topic_id).any())

    def first_of(self, topic_id: int, queues: U32, offsets: I64) -> tuple[U32, I64, bool]:
        """Queues whose log starts may move, and up to where: to ``offsets``, but not past what has expired; and
        whether all may move as far as they were to. Reads what is to go, where messages expire."""
        item = self._queries.topic_state(topic_id)
        rows = queues.astype(np.int64) - item.first
        at, limits = item.live_from(rows), offsets.copy()
        unsure = np.flatnonzero((at < offsets) & (at < item.holes_ends(rows)))
        order = unsure[np.argsort(queues[unsure])]
        sorted_queues, at, ends = queues[order], at[order], offsets[order]
        while len(active := np.flatnonzero(at < ends)):
            read = self._queries.read_many(
                topic_id,
                sorted_queues[active],
                at[active],
                ends=ends[active],
                max_records=_READ_RECORDS,
                max_bytes=_READ_BYTES,
                expired=lambda stored, expires: ~self._time.expired(stored, expires),
            )
            moved, next_offsets = read.positions
            for batch in split_batches(read.load(), source="store"):
                part = _Part(batch, topic_id, sorted_queues, at, ends)
                gone = part.mine[self._time.expired(part.stored_ms, part.expires_ms)[part.mine]]
                np.minimum.at(ends, part.places[gone], part.offset[gone])
            np.maximum.at(at, sorted_queues.searchsorted(moved), next_offsets)
            np.maximum(at, item.live_from(sorted_queues.astype(np.int64) - item.first), out=at)
        limits[order] = ends
        movable = limits > item.start[rows]
        return queues[movable], limits[movable], bool((limits == offsets).all())

    # -- finding -------------------------------------------------------------------------------------------------

    def begin(self) -> Lapses:
        """One that knows nothing: somebody else may have led since."""
        return Lapses(self._state, self._queries, self._line, self._time)

    def topics(self) -> list[int]:
        """Ids of the topics whose expired messages are moved."""
        found = [topic_id for topic_id in map(int, self._state.moving) if topic_id in self._state.topics]
        for topic_id in self._known.keys() - set(found):
            del self._known[topic_id]
        return found

    def find(self, topic_id: int, max_messages: int, max_bytes: int) -> Lapsed | None:
        """Some messages that have expired, if any; None where there is nothing to look at by now.

        Ends at about ``max_messages`` or ``max_bytes`` of them, and one at least. Reads. To be answered with
        :meth:`moved`, before the next one, when they are moved; else they are found again. Raises ``UnknownTopic``.
        """
        item = self._queries.topic_state(topic_id)
        known = self._known.setdefault(topic_id, _Known())
        count = item.end - item.first
        if count > len(known.seen):
            known.seen = np.append(known.seen, np.zeros(count - len(known.seen), np.int64))
        look = self._due(item, known) or self._fresh(item, known)
        return None if look is None else self._read(item, look, max_messages, max_bytes)

    def _due(self, item: TopicState, known: _Known) -> _Look | None:
        """At blocks of which a message has expired, one of each queue."""
        over = np.flatnonzero(self._time.surely_expired(known.next.stored_ms, known.next.expires_ms))
        if not len(over):
            return None
        keys = known.next.keys[over]
        keys = keys[_firsts(keys >> np.uint64(32))]
        keys = keys[: max(1, _AT_ONCE >> _BLOCK_BITS)]
        rows = (keys >> np.uint64(32)).astype(np.int64)
        begins = (keys & np.uint64(0xFFFFFFFF)).astype(np.int64) << _BLOCK_BITS
        at = np.maximum(begins, item.live_from(rows))
        return _Look(rows, keys, at, np.minimum(begins + BLOCK, known.seen[rows]), again=True)

    def _fresh(self, item: TopicState, known: _Known) -> _Look | None:
        """At what has come since, to the end of a block in each queue."""
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
        ends = np.minimum(committed[active], (at >> _BLOCK_BITS) + 1 << _BLOCK_BITS)
        some = max(1, int(np.cumsum(ends - at).searchsorted(_AT_ONCE, "right")))
        active, at, ends = active[:some], at[:some], ends[:some]
        return _Look(active, _keys(active, at), at, ends, again=False)

    def _read(self, item: TopicState, look: _Look, max_messages: int, max_bytes: int) -> Lapsed:
        topic_id, size_bytes = item.topic.id, 0
        queues = (look.rows + item.first).astype(np.uint32)
        found = Lapsed(topic_id, [], np.empty(0, np.uint32), _NONE, look)
        while len(active := np.flatnonzero(look.at < look.ends)):
            if len(found.queues) >= max_messages or size_bytes >= max_bytes:
                break
            read = self._queries.read_many(
                topic_id,
                queues[active],
                look.at[active],
                ends=look.ends[active],
                max_records=min(_READ_RECORDS, max_messages),
                max_bytes=min(_READ_BYTES, max_bytes),
                expired=_all_live,
            )
            moved, next_offsets = read.positions
            for batch in split_batches(read.load(), source="store"):
                part = _Part(batch, topic_id, queues, look.at, look.ends)
                expired = self._time.surely_expired(part.stored_ms, part.expires_ms)
                gone = part.mine[expired[part.mine]]
                if len(gone):
                    places = zip(part.queue[gone].tolist(), part.offset[gone].tolist(), strict=True)
                    found.batches.append((batch, frozenset(places)))
                    found.queues = np.append(found.queues, part.queue[gone])
                    found.offsets = np.append(found.offsets, part.offset[gone])
                    size_bytes += int(part.lengths[gone].sum(dtype=np.int64))
                later = part.mine[(~expired & (part.expires_ms > 0))[part.mine]]
                if len(later):
                    keys = look.keys[part.places[later]]
                    look.found = look.found.with_others(keys, part.stored_ms[later], part.expires_ms[later])
            np.maximum.at(look.at, queues.searchsorted(moved), next_offsets)
            np.maximum(look.at, item.live_from(look.rows), out=look.at)
        return found

    def moved(self, lapsed: Lapsed) -> None:
        """They are stored elsewhere and deleted here, durably; or there were none."""
        known, look = self._known.get(lapsed.topic_id), lapsed.look
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

    def move(self, lapsed: Lapsed, target_id: int, batch: RecordBatch) -> Appended:
        """Put in line that ``batch``, made of them, is stored in another topic, and behind it that they are deleted.

        A crash may leave the first without the second, never the second without the first. Raises what
        :meth:`.ShardStore.append` and :meth:`.ShardStore.delete` raise.
        """
        item, target = self._queries.topic_state(lapsed.topic_id), self._queries.topic_state(target_id)
        latest = self._queries.latest_offsets(lapsed.topic_id, lapsed.queues)
        body = encode_positions(item.topic, lapsed.queues, lapsed.offsets, latest)
        behind = Behind(EntryKind.DELETE, lapsed.topic_id, len(lapsed.queues), body, Why.LAPSED)
        return self._line.append_records(((target, batch),), behind=behind)[-1]


class _Part:
    """Of a batch that was read: which of its messages lie in what was asked for (``mine``), and columns."""

    def __init__(self, batch: RecordBatch, topic_id: int, queues: U32, begins: I64, ends: I64) -> None:
        def column(number: Column) -> Rows:
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
    """Of blocks: the row of the queue, and the number of the block in it."""
    keys: U64 = rows.astype(np.uint64) << np.uint64(32) | (offsets >> _BLOCK_BITS).astype(np.uint64)
    return keys


def _firsts(values: Rows) -> I64:
    """Of sorted values the first of each."""
    fresh = np.ones(len(values), np.bool_)
    fresh[1:] = values[1:] != values[:-1]
    return np.flatnonzero(fresh)


def _all_live(stored_ms: I64, expires_ms: I64) -> NDArray[np.bool_]:
    return np.zeros(len(stored_ms), np.bool_)
