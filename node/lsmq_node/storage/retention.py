"""What goes by itself: which messages have expired, are too many, or are done with.

By age (``retention_ms``), by size (``retention_bytes``) and at the limit of a topic (``overflow: drop_oldest``) it
comes down to a time: what was stored before it goes. Stored times never go back within a queue, so what goes is the
beginning of a queue, and its log start moves to the first message that stays. Where the records lie, in memory or in
tables shared with others, does not matter for that; their space is the concern of :mod:`.garbage`. By number
(``retention_messages``) and by what groups have committed (``delete_consumed``) it is offsets from the start.

For each queue the time of its first message is kept, once it is known, or one that is not later. So a round asks only
queues in which something has expired (:mod:`.time_cuts`), and a topic in which nothing can have is not looked at.

Nothing is dropped that a log start does not say is gone: the log start is logged first, in one entry a topic, reason
and round.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from lsmq import runtime
from lsmq.errors import CorruptFile

from .columns import I64, U32
from .compaction import LogStarts
from .delayed import is_due_topic
from .evictions import Delete, Evictions
from .extents import Extents, joined
from .group_patterns import PREFIX as GROUP_PATTERNS
from .losses import LossReason
from .named_topics import NamedTopics
from .own_limits import LimitsDocument, QueueOwnLimits, QueueSizes, read_limits
from .queries import Queries
from .queue_options import PREFIX as QUEUE_OPTIONS
from .shares import ALONE, Holding, Measurement, Rest, ToldFloors, Usage, kept_share
from .sorted_records import TOMBSTONE_TOPIC
from .state import ShardState, StoredTopic, TopicState
from .table import Table
from .tables import TableSet
from .time_cuts import TimeCut
from .topic_options import BY_RANK, TopicOptions

_NEVER = 1 << 62

_log = logging.getLogger("lsmq.storage")


class Gone(IntEnum):
    """What has become of that which is to go."""

    LATER = 0  # it is in line, and not applied yet
    SOME = 1  # all but what waits to be moved to another topic
    ALL = 2


Trim = Callable[[int, U32, I64, LossReason], Gone]
"""Move log starts of a topic's queues up to offsets, and say why. Raises ``LsmqError``."""


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
    """Finds what is to go. One thread at a time."""

    def __init__(
        self,
        state: ShardState,
        tables: TableSet,
        queries: Queries,
        log_starts: LogStarts,
        expired_before: Callable[[int], int],
        documents: Callable[[str], Sequence[LimitsDocument]],
        named: NamedTopics,
    ) -> None:
        """``expired_before`` tells when what has reached an age was stored, ``documents`` gives those of a prefix."""
        self._state = state
        self._tables = tables
        self._queries = queries
        self._expired_before = expired_before
        self._heads: dict[int, _Heads] = {}
        self._log_starts = log_starts
        self._extents = Extents(tables, log_starts)
        self._evictions = Evictions(queries)
        self._documents = documents
        self._named = named
        self._own: dict[int, QueueOwnLimits] = {}  # by topic
        self._sizes = QueueSizes(queries)
        self._unknown: set[int] = set()  # topics of which it cannot be read what their queues keep
        self._measured: dict[int, tuple[int, int]] = {}  # at which version of each topic
        self._newest: dict[int, tuple[int, int | None]] = {}  # at which version, and limit, of each topic
        self._rings: dict[int, int] = {}  # at which revision of each topic its queues were cut to a limit
        self._consumed: dict[int, tuple[int, int, frozenset[str] | None, Sequence[LimitsDocument]]] = {}
        self._patterns: Sequence[LimitsDocument] = ()  # what was told of those by which groups read
        self._told: dict[int, ToldFloors] = {}
        self._empty: dict[int, tuple[int, bool]] = {}  # at a version of the topic, whether it was
        #: What the other shards hold, by topic, as the node says: a topic that is not named is not known of. None where
        #: this shard is all there is of any topic. Replaced as a whole.
        self.rest: Mapping[int, Rest] | None = {}
        self._round_rest: Mapping[int, Rest] | None = self.rest  # as it is in this round
        self.leadership = ""  #: another one with each
        #: What this shard holds of topics whose limits are shared with others, as measured last.
        self.measurements: dict[int, Measurement] = {}
        #: Whether some topic may reach a limit at any time, so that the next look should come soon.
        self.is_watchful = False
        #: Bytes that are to be made free on the disk by dropping what is old.
        self.disk_shortage: Callable[[], int] = lambda: 0
        #: Shards on the same disk, of which each makes its part of the room.
        self.shards_on_disk = 1

    def begin(self) -> None:
        """Another leadership begins: others may count on what an earlier leader has told."""
        self._told.clear()
        self.leadership = runtime.token_hex(8)

    def run(self, trim: Trim | None, delete: Delete | None = None) -> bool:
        """One round: move the log starts of all topics past what is to go; False when some did not move yet.

        ``delete`` is for what goes from the middle of queues; without it nothing does. Without ``trim``, where another
        replica leads, it only learns which messages are the first. What an earlier round has let go must be gone.
        """
        self._round_rest = self.rest
        self._patterns = self._documents(GROUP_PATTERNS)
        if trim is None:
            self._rings.clear()
        by_topic = self._heads, self._measured, self._newest, self._rings, self._consumed, self._empty, self._told
        for known in by_topic:
            for topic_id in known.keys() - self._state.topics.keys():
                del known[topic_id]
        self._evictions.forget_others(self._state.topics)
        unknown: dict[int, CorruptFile] = {}
        self._own = {}
        if trim is not None:
            self._own, unknown = read_limits(self._documents(QUEUE_OPTIONS), self._state, self._named.numbers)
        self._tell_of(unknown)
        self._sizes.keep((topic_id, row) for topic_id, each in self._own.items() for row, _ in each.sized())
        letting_go = self._state.letting_go
        alone = [self._state.topics.get(topic_id) for topic_id in self._own if topic_id not in letting_go]
        items = [item for item in (*letting_go.values(), *alone) if item is not None and item.topic.id not in unknown]
        measured = {item.topic.id for item in items if item.topic.options.needs_rest} if trim is not None else set()
        self._extents.forget(measured)
        self.measurements = {topic_id: each for topic_id, each in self.measurements.items() if topic_id in measured}
        self.is_watchful = trim is not None and any(_is_watched(item) for item in items)
        done = applied = True
        for item in items:
            gone = self._look(item, trim)
            if gone is Gone.ALL and item.topic.id in measured and item.losses != self._measured[item.topic.id][1]:
                self._measure(item)  # The other shards are told what is left.
            done, applied = done and gone is Gone.ALL, applied and gone is not Gone.LATER
            if delete is not None and item.topic.options.overflow in BY_RANK:
                self._evictions.run(item, delete)
        if trim is not None and applied:
            done &= self._make_room(items, trim)
        return done

    def _tell_of(self, unknown: Mapping[int, CorruptFile]) -> None:
        """Of these topics it cannot be read what single queues keep."""
        for topic_id in unknown.keys() - self._unknown:
            item, damage = self._state.topics.get(topic_id), unknown[topic_id]
            name = topic_id if item is None else item.topic.name
            _log.warning("nothing goes by itself of topic %r: what its queues keep is not known: %s", name, damage)
        self._unknown = set(unknown)

    def _look(self, item: TopicState, trim: Trim | None) -> Gone:
        options, topic_id = item.topic.options, item.topic.id
        queue_bytes = None if item.quota is None else item.quota.queue_bytes
        if trim is None and queue_bytes is not None:
            queue_bytes.forget()
        if trim is not None and options.needs_rest:
            self._measure(item)
        before, own_befores = self._cuts(item, trim)
        heads = self._heads.get(topic_id)
        gone = Gone.ALL  # What waits in one queue holds up nothing else; what is in line would be counted as there.
        if before is not None:
            latest = before if own_befores is None else max(before, int(own_befores.max()))
            if not (heads and heads.have_nothing(latest, item.version)):
                gone = self._expire(item, before, trim, own_befores=own_befores)
        if trim is None:
            return gone
        if gone and (options.retention_messages is not None or topic_id in self._own):
            gone = min(gone, self._keep_newest(item, options.retention_messages, trim))
        if gone:
            gone = min(gone, self._shorten(item, trim))
        if gone and queue_bytes is not None:
            queue_bytes.read(item, self._queries, lambda: self._tables.closing)
            if options.overflow == "drop_oldest":
                gone = min(gone, self._move(item, *queue_bytes.over(item), trim, LossReason.OVERFLOW))
        if gone and options.overflow == "drop_oldest":
            gone = min(gone, self._drop_oldest(item, trim))
        if gone and options.delete_consumed:
            gone = min(gone, self._drop_consumed(item, trim))
        return gone

    def dead_tables(self) -> list[Table]:
        """Tables that hold nothing but what is gone, or what is of topics that are. Opens none of them.

        A tombstone that goes with one does not bring its message back: that was stored before it, and is gone too.
        """
        tables = self._tables.version.tables()  # before what is gone, which only grows
        return [table for table in tables if self._is_dead(table)]

    def _is_dead(self, table: Table) -> bool:
        for topic in table.meta.topics:
            topic_id = topic & ~TOMBSTONE_TOPIC
            if is_due_topic(topic_id):  # when it is full of garbage, it is merged
                return False
            item = self._state.topics.get(topic_id)
            if item is None:
                continue
            heads = self._heads.get(topic_id)
            if heads is not None and table.meta.end_lsn <= heads.asked_lsn and table.meta.max_ms < heads.oldest_ms:
                continue
            if not self._is_empty(item):
                return False
        return True

    def _is_empty(self, item: TopicState) -> bool:
        if not item.losses:
            return False
        version, known = item.version, self._empty.get(item.topic.id)
        if known is None or known[0] != version:
            known = self._empty[item.topic.id] = version, item.is_empty()
        return known[1]

    def usage(self, topic_id: int) -> Usage:
        """What the shard holds of a topic, what has gone of it by itself, and who consumes it; bytes where they are
        measured as they were last, and what was appended since.

        In any thread; may read the disk. Raises ``UnknownTopic``.
        """
        item = self._queries.topic_state(topic_id)
        known = self.measurements.get(topic_id)
        if known is None:
            size = Extents(self._tables, self._log_starts).of(item).size_bytes
        else:
            size = known.holding.size_bytes if item.quota is None else item.quota.size_bytes
        return self._usage(item, Measurement(Holding(item.count_messages(), size)))

    def _usage(self, item: TopicState, measured: Measurement) -> Usage:
        refused = 0 if item.quota is None else item.quota.refused
        return Usage(measured, item.gone.copy(), refused, frozenset(self._state.offsets.groups_of(item.topic.id)))

    def shared_topics(self) -> list[StoredTopic]:
        """Topics for which it matters what other shards hold. In any thread."""
        return [item.topic for item in list(self._state.sharing.values())]

    def known_usage(self, topic_id: int) -> Usage | None:
        """:meth:`usage` as it was measured last; None where it was not yet. A topic that is not here holds nothing."""
        item = self._state.topics.get(topic_id)
        if item is None:
            return Usage.of_nothing()
        measured = self.measurements.get(topic_id)
        return None if measured is None else self._usage(item, measured)

    # -- how much there is -------------------------------------------------------------------------------

    def _measure(self, item: TopicState) -> None:
        topic_id, quota = item.topic.id, item.quota
        appended_bytes = 0 if quota is None else quota.appended_bytes
        known, mark = self.measurements.get(topic_id), (item.version, item.losses)
        if known is None or self._measured.get(topic_id) != mark:
            held = Holding(item.count_messages(in_line=False), self._extents.of(item).size_bytes)
        else:
            held = known.holding
        rest = self._rest(topic_id)
        floor = _floor(held, item.topic.options, rest or ALONE)
        number = self._told.setdefault(topic_id, ToldFloors()).note(floor)
        heard = {} if rest is None else {shard: each.stamp for shard, each in rest.others.items()}
        self._measured[topic_id] = mark
        self.measurements[topic_id] = Measurement(held, floor, (self.leadership, number), heard)
        if quota is not None:
            quota.measured(held, appended_bytes, rest, item.topic.options)

    def _rest(self, topic_id: int) -> Rest | None:
        return ALONE if self._round_rest is None else self._round_rest.get(topic_id)

    def _kept(self, item: TopicState, limit: int, what: Callable[[Holding], int]) -> int:
        """Of a limit, what may stay here at least; see :mod:`.shares`."""
        rest = self._rest(item.topic.id) or ALONE
        if rest.heard:
            limit -= sum(what(each.floor) for each in rest.others.values())
        return max(limit, what(self._told[item.topic.id].floor(rest.heard)))

    # -- what has to go ----------------------------------------------------------------------------------

    def _cuts(self, item: TopicState, trim: Trim | None) -> tuple[int | None, I64 | None]:
        """What was stored before this has expired; None where nothing ever does. And of queues with limits of their own
        what counts for each; None where there are none.
        """
        options, own_limits = item.topic.options, self._own.get(item.topic.id)
        by_bytes = 0
        if options.retention_bytes is not None and trim is not None:
            extent = self._extents.of(item)
            keep = self._kept(item, options.retention_bytes, _size_of)
            by_bytes = extent.time_of_newest(keep)
        cuts = [] if options.retention_ms is None else [self._expired_before(options.retention_ms)]
        if own_limits is None:
            return max([*cuts, *([by_bytes] if by_bytes else [])], default=None), None
        befores = own_limits.befores(by_bytes, self._expired_before, options.retention_ms)
        return max([*cuts, by_bytes]), befores

    def _drop_oldest(self, item: TopicState, trim: Trim) -> Gone:
        """Make room at the topic's limits."""
        options, gone = item.topic.options, Gone.ALL
        if options.max_bytes is not None:
            self._measure(item)  # something may just have expired
            held, extent = self.measurements[item.topic.id].holding, self._extents.of(item)
            over = held.size_bytes - self._kept(item, options.max_bytes, _size_of)
            if over > 0:
                gone = self._expire(item, extent.time_of_oldest(over), trim, LossReason.OVERFLOW)
        if gone and options.max_messages is not None:
            self._measure(item)
            held, extent = self.measurements[item.topic.id].holding, self._extents.of(item)
            over = held.messages - self._kept(item, options.max_messages, _messages_of)
            if over > 0:
                before = extent.time_of_oldest_part(over / held.messages)
                gone = min(gone, self._expire(item, before, trim, LossReason.OVERFLOW, count=over))
        return gone

    def _keep_newest(self, item: TopicState, limit: int | None, trim: Trim) -> Gone:
        """Of each queue the newest; of those with limits of their own what these say, bytes among it."""
        topic_id, own_limits = item.topic.id, self._own.get(item.topic.id)
        mark = item.version, limit
        if own_limits is None and self._newest.get(topic_id) == mark:
            return Gone.ALL
        rows = np.arange(item.end - item.first) if limit is not None else np.empty(0, np.int64)
        wanted = item.committed[rows] - (limit or 0)
        if own_limits is not None:
            others = ~np.isin(rows, own_limits.rows)
            starts = item.committed[own_limits.rows] - own_limits.newest(limit)
            if sized := own_limits.sized():
                at = own_limits.rows.searchsorted([row for row, _ in sized])
                starts[at] = np.maximum(starts[at], self._sizes.starts(item, sized))
            rows, wanted = np.append(rows[others], own_limits.rows), np.append(wanted[others], starts)
        gone = self._move(item, rows, wanted, trim, LossReason.EXPIRED)
        if gone is Gone.ALL and own_limits is None:  # Those may be changed, or taken away, at any time.
            self._newest[topic_id] = mark
        return gone

    def _shorten(self, item: TopicState, trim: Trim) -> Gone:
        """Bring queues down to a limit that was set: who is written to keeps to it, the others are brought here."""
        topic_id, options = item.topic.id, item.topic.options
        limit = options.queue_max_messages
        if limit is None or options.overflow != "drop_oldest":
            return Gone.ALL
        if self._rings.get(topic_id) == options.revision and not options.moves:
            return Gone.ALL
        rows = np.arange(item.end - item.first)
        gone = self._move(item, rows, item.committed[: len(rows)] - limit, trim, LossReason.OVERFLOW)
        if gone is Gone.ALL:
            self._rings[topic_id] = options.revision
        return gone

    def _drop_consumed(self, item: TopicState, trim: Trim) -> Gone:
        rest = self._rest(item.topic.id)
        patterns = self._patterns if item.named else ()
        mark = (self._state.offsets.changes, item.version, None if rest is None else rest.groups, patterns)
        if self._consumed.get(item.topic.id) == mark:
            return Gone.ALL
        gone = Gone.ALL
        if groups := self._groups(item):
            floors, is_read = self._consumed_floors(item, groups)
            rows = np.flatnonzero(is_read)
            gone = self._move(item, rows, floors[rows], trim, LossReason.CONSUMED)
        if gone is Gone.ALL:
            self._consumed[item.topic.id] = (mark[0], item.version, *mark[2:])
        return gone

    def _groups(self, item: TopicState) -> dict[str, str | None] | None:
        """The groups of a topic, each with the pattern by which it reads; None where not all are known."""
        topic_id, rest = item.topic.id, self._rest(item.topic.id)
        if rest is None or rest.groups is None:
            return None
        groups = sorted(rest.groups.union(self._state.offsets.groups_of(topic_id)))
        return {group: self._named.patterns.of(group, topic_id) if item.named else None for group in groups}

    def _consumed_floors(self, item: TopicState, groups: Mapping[str, str | None]) -> tuple[I64, NDArray[np.bool_]]:
        """Below these offsets all groups that read a queue of the topic have done with it; and of which any does."""
        topic_id, count = item.topic.id, item.end - item.first
        # Before names are looked at: what comes to another queue that gets a number meanwhile lies behind.
        floors, is_read = item.committed[:count].copy(), np.zeros(count, np.bool_)
        for group, pattern in groups.items():
            found = self._state.offsets.get(group, topic_id)
            done = np.zeros(count, np.int64) if found is None else np.maximum(found.first(count) - 1, 0)
            numbers = None if pattern is None else self._named.patterns.numbers(topic_id, pattern)
            if numbers is None:
                np.minimum(floors, done, out=floors)
                is_read[:] = True
            else:
                rows = numbers.astype(np.int64) - item.first
                rows = rows[rows < count]
                floors[rows] = np.minimum(floors[rows], done[rows])
                is_read[rows] = True
        return floors, is_read

    def _make_room(self, items: list[TopicState], trim: Trim) -> bool:
        """On a disk that is nearly full, drop the oldest of topics that allow it, as far as no group waits for it."""
        yielding = [item for item in items if item.topic.options.on_disk_full == "drop_oldest"]
        shortage = self.disk_shortage() // self.shards_on_disk if yielding else 0
        if shortage <= 0:
            return True
        self.is_watchful = True
        before = joined([self._extents.of(item) for item in yielding]).time_of_oldest(shortage)
        done = True
        for item in yielding:
            groups = self._groups(item)
            if groups is None:
                continue  # whose messages these are is not known by now
            floors = self._consumed_floors(item, groups)[0] if groups else None
            done &= self._expire(item, before, trim, LossReason.DISK, floors) is Gone.ALL
        return done

    # -- moving log starts -------------------------------------------------------------------------------

    def _move(self, item: TopicState, rows: I64, wanted: I64, trim: Trim, why: LossReason) -> Gone:
        """Move log starts up to what is ``wanted`` of these rows."""
        moved = np.flatnonzero(np.minimum(wanted, item.committed[rows]) > item.start[rows])
        if not len(moved):
            return Gone.ALL
        offsets = np.minimum(wanted[moved], item.committed[rows[moved]])
        return trim(item.topic.id, (rows[moved] + item.first).astype(np.uint32), offsets, why)

    def _expire(
        self,
        item: TopicState,
        before: int,
        trim: Trim | None,
        why: LossReason = LossReason.EXPIRED,
        limits: I64 | None = None,
        own_befores: I64 | None = None,
        count: int | None = None,
    ) -> Gone:
        """Move log starts past what was stored ``before``, and none beyond its limit.

        ``own_befores``: what counts instead for queues with limits of their own. ``count``: past no more messages, and
        past so many if there are with those that were stored at that time.
        """
        rows = item.end - item.first
        heads = self._heads.setdefault(item.topic.id, _Heads())
        heads.widen(rows)
        asked_lsn, asked_ms = self._tables.applied_lsn, self._state.time_ms
        version = item.version
        starts = item.live_from(np.arange(rows)).copy()
        ends = item.committed[:rows].copy() if limits is None else np.minimum(item.committed[:rows], limits)
        known = heads.not_before_ms.copy()  # of the messages from ``found`` on
        cut = TimeCut(self._queries, item, starts.copy(), ends, known)
        found = cut.found
        befores = np.full(rows, before)
        if own_befores is not None:
            befores[self._own[item.topic.id].rows] = own_befores
        left = np.flatnonzero((found < ends) & (known[:rows] < befores))
        if trim is None:
            cut.learn(left)
        else:
            for each in np.unique(befores[left]).tolist():
                cut.pass_over(left[befores[left] == each], each, lambda: self._tables.closing)
            if count is not None:
                self._cut_to(cut, starts, before, count)
        moved = np.flatnonzero(found > starts)
        if trim is not None and len(moved):
            gone = trim(item.topic.id, (moved + item.first).astype(np.uint32), found[moved], why)
            if gone is not Gone.ALL:
                return gone
        if self._tables.closing or limits is not None:
            return Gone.LATER if self._tables.closing else Gone.ALL
        known[cut.unsure] = 0
        active = np.flatnonzero(found < ends)
        heads.not_before_ms = known
        heads.empty_at = version if len(active) == 0 and len(moved) == 0 else -1
        heads.oldest_ms = int(known[active].min()) if len(active) else _NEVER
        heads.asked_lsn, heads.asked_ms = asked_lsn, asked_ms
        return Gone.ALL

    def _cut_to(self, cut: TimeCut, starts: I64, before: int, count: int) -> None:
        """Have ``cut`` go past so many messages beyond ``starts``: beside those that it has gone past some of the next
        moment, or not past all of the last ones. What of one moment stays is of the last queues."""
        firsts = starts
        if int((cut.found - starts).sum()) < count:
            firsts = cut.found.copy()
            cut.pass_over(np.arange(len(firsts)), before + 1, lambda: self._tables.closing)
        passed = cut.found - firsts
        left = count - int((firsts - starts).sum()) - (np.cumsum(passed) - passed)
        given = np.minimum(passed, np.maximum(left, 0))
        cut.known[: len(passed)][given < passed] = 0
        cut.found[:] = firsts + given


_messages_of, _size_of = attrgetter("messages"), attrgetter("size_bytes")


def _floor(held: Holding, options: TopicOptions, rest: Rest) -> Holding:
    """Below this no limit has messages go."""
    drops = options.overflow == "drop_oldest"
    limits = [options.retention_bytes, options.max_bytes if drops else None]

    def part(limit: int | None, what: Callable[[Holding], int]) -> int:
        own = what(held)
        if limit is None:
            return own
        return min(own, kept_share(limit, own, [what(each.holding) for each in rest.others.values()], rest.place))

    return Holding(
        part(options.max_messages if drops else None, _messages_of),
        part(min((limit for limit in limits if limit is not None), default=None), _size_of),
    )


def _is_watched(item: TopicState) -> bool:
    options = item.topic.options
    limits = options.max_messages, options.max_bytes, options.queue_max_bytes
    by_itself = options.overflow in BY_RANK or any(limit is not None for limit in limits)
    return by_itself or (options.queue_max_messages is not None and options.moves)
