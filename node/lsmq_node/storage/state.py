"""What a shard remembers beside its messages: topics and the ends of their queues, committed offsets, producers,
documents.

It is the deterministic result of the log: every replica that has applied the same entries has the same state. A flush
takes along what has *changed* since the one before (:class:`StateChange`), so that the log before it can go; see
:mod:`.checkpoint`. What changed is noted where it changes, so all changes go through the methods here.

Three numbers a queue, in arrays of 8 bytes over the queues of a topic: where the next record will go
(``next``), how far readers may read (``committed``), and the first offset kept (``start``). Arrays that
nothing touches take no memory, so an idle queue of a large topic costs nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsmq.errors import InvalidTopicName
from lsmq.queue_names import MAX_TOPIC_NAME, NUMBER_BITS

from .columns import I64, U32, U64
from .dedupe import DedupeIds
from .dedupe_layer import IdLayer
from .delayed import DUE
from .deletions import Deleted, Deletions
from .documents import Documents
from .epochs import StoredEpochStart
from .group_offsets import GroupOffsets
from .losses import Losses, LossReason, add
from .options import StoreOptions
from .pages import PAGE_BITS
from .producers import Layer, Producers
from .queue_options import PREFIX as QUEUE_OPTIONS
from .quotas import Quota
from .topic_options import TopicOptions

#: Set in the id of the topic that holds the names of a named topic's queues on a shard.
NAMES_TOPIC = 1 << 29
#: Rows that a named topic begins with; it grows with the numbers that are used.
_FIRST_ROWS = 1 << 10
_KEPT_CHANGES = 1_000
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def check_topic_name(name: str) -> None:
    """Raises ``InvalidTopicName`` with the legal form."""
    if not 1 <= len(name) <= MAX_TOPIC_NAME or not _NAME_CHARACTERS.issuperset(name) or name in (".", ".."):
        raise InvalidTopicName(
            f"{name!r} is not a legal topic name: use 1 to {MAX_TOPIC_NAME} letters, digits, '.', '_' and '-'",
            topic=name,
        )


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """A topic: ``queues`` logical queues in the cluster, of which a shard holds some.

    ``ranges`` are ``(first, end, shard)``, half-open and in order, once the topic has grown: a queue stays where it is.
    Empty, they are cut evenly. A store knows nothing of them.

    Of a named topic ``queues`` are slots, and so are the ranges. A queue of it is known by its number: the place of its
    range in the upper bits, and in the lower :data:`NUMBER_BITS` a number that the shard gave.
    """

    id: int
    name: str
    queues: int
    options: TopicOptions = field(default_factory=TopicOptions)
    created_ms: int = 0
    ranges: tuple[tuple[int, int, int], ...] = field(default=(), compare=False)

    @property
    def key_queues(self) -> int:
        """How many queues the hash of a key chooses from."""
        return self.options.key_queues or self.queues

    @property
    def named(self) -> bool:
        """Whether queues have names."""
        return self.options.named

    @property
    def names_id(self) -> int:
        """The id of the topic that holds the names of a named one's queues."""
        return self.id | NAMES_TOPIC

    @property
    def is_internal(self) -> bool:
        """Whether it is the log of another topic's names, of which clients know nothing."""
        return self.id & NAMES_TOPIC != 0


def names_topic(topic: StoredTopic) -> StoredTopic:
    """The topic beside a named one that holds the names of its queues, as the messages of its only queue."""
    return StoredTopic(topic.names_id, f"{topic.name}/names", 1)


@dataclass(frozen=True, slots=True)
class PageChange:
    """The queues of a topic from ``PAGE_QUEUES * number`` on: their ends, log starts, and what is deleted of them."""

    number: int
    ends: I64
    starts: I64
    deleted: Deleted | None


@dataclass(frozen=True, slots=True)
class TopicChange:
    """A topic, what has gone of it so far and why, and the pages of its queues that changed."""

    topic: StoredTopic
    first: int
    end: int
    pages: list[PageChange]
    gone: Losses = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StateChange:
    """What changed in a shard's state between two LSNs; a copy, which stays as it is.

    Attributes:
        time_ms: of the last entry.
        dropped: ids of topics that were deleted.
        dropped_groups: groups whose offsets were dropped, of all topics (None) or of one, before ``offsets`` were set.
        offsets: group, topic id, page, and the committed offsets + 1 of its queues.
        documents: None for one that was deleted.
    """

    first_lsn: int
    end_lsn: int
    time_ms: int
    next_topic_id: int
    topics: list[TopicChange]
    dropped: list[int]
    offsets: list[tuple[str, int, int, I64]]
    dropped_groups: list[tuple[str, int | None]]
    documents: dict[str, bytes | None]
    epochs: list[StoredEpochStart]
    producers: Layer
    ids: IdLayer


class TopicState:
    """A topic's queues ``[first, end)`` on this shard. Arrays are indexed by ``queue - first``.

    Once a topic has grown, queues in between may be other shards': nothing is ever stored in those rows.

    The three numbers of a queue lie side by side, so that an append and its commit touch one cache line of it.

    Of a named topic the arrays grow with the numbers that messages come with, and ``end`` with those that were applied.
    """

    __slots__ = (
        "_changed",
        "_rows",
        "begins",
        "committed",
        "deletions",
        "end",
        "first",
        "gone",
        "guarded",
        "losses",
        "named",
        "next",
        "quota",
        "scratch",
        "start",
        "topic",
        "version",
        "waiting",
    )

    def __init__(self, topic: StoredTopic, first: int, end: int) -> None:
        self.topic = topic
        self.first = first
        self.end = end
        self.next: I64
        self.committed: I64
        self.start: I64
        self.scratch: I64  # of whoever advances ``next``
        self.named = topic.named
        #: Whether applying its records may replace arrays: then whoever does holds the line's lock.
        self.guarded = topic.named or topic.is_internal
        self._use(np.zeros((max(end - first, _FIRST_ROWS) if topic.named else end - first, 4), np.int64))
        self._changed = np.zeros((len(self._rows) >> PAGE_BITS) + 1, np.bool_)  # by page
        self.deletions: Deletions | None = None  # None when nothing was deleted
        self.losses = 0  # raised by whatever makes records unreadable
        #: Messages that are kept in all queues together, and the version that was counted in.
        self.waiting: tuple[int, int] | None = None
        self.gone: Losses = {}
        self.version = 0  # raised by every change
        self.quota = Quota(topic.options) if topic.options.has_quota else None
        #: Of a named topic, by row: what lies below was another queue's that had the number. It may be shorter.
        self.begins: I64 = np.zeros(0, np.int64)

    def _use(self, rows: NDArray[np.int64]) -> None:
        self.next, self.committed, self.start, self.scratch = rows.T
        self._rows = rows

    def land(self, index: NDArray[Any], ends: I64) -> None:
        """Records are readable: these are the ends of their queues."""
        self.committed[index] = ends
        self._changed[index >> PAGE_BITS if len(self._changed) > 1 else 0] = True
        if self.named:
            self.end = max(self.end, self.first + int(index.max()) + 1)
        self.version += 1

    def restore(self, page: PageChange) -> None:
        """Take over a page of a checkpoint."""
        begin, count = page.number << PAGE_BITS, len(page.ends)
        queues = slice(begin, begin + count)
        self.next[queues] = self.committed[queues] = page.ends
        self.start[queues] = page.starts
        if page.deleted is not None and self.deletions is None:
            self.deletions = Deletions(len(self._rows))
        if self.deletions is not None:
            self.deletions.restore(begin, count, page.deleted)

    def grow(self, topic: StoredTopic, end: int) -> None:
        """More queues at the end."""
        self.make_room(end - self.first)
        self.topic, self.end = topic, max(end, self.end) if self.named else end
        if not topic.options.has_quota:
            self.quota = None
        elif self.quota is None:
            self.quota = Quota(topic.options)
        else:
            self.quota.use(topic.options)
        self.version += 1

    def make_room(self, count: int) -> None:
        """Have rows for so many queues. Arrays double, so that growing one by one stays cheap.

        Nobody may change them meanwhile: whoever appends to a named topic, or applies to it, holds the line's lock.
        """
        if count > len(self._rows):
            rows = np.zeros((max(count, 2 * len(self._rows), 1024), 4), np.int64)
            rows[: len(self._rows)] = self._rows
            changed = np.zeros((len(rows) >> PAGE_BITS) + 1, np.bool_)
            changed[: len(self._changed)] = self._changed
            if self.deletions is not None:  # first: who counts all rows, without the lock, looks there for each
                self.deletions.widen(len(rows))
            self._use(rows)
            self._changed = changed  # in one step: a flush may be looking

    def cover(self, end: int) -> None:
        """A named topic has queues below ``end``, with messages or without."""
        if end > self.end:
            self.make_room(end - self.first)
            self.end = end
            self.version += 1

    @property
    def last_end(self) -> int:
        """The queue that no append may name, nor any beyond it."""
        return self.first + (1 << NUMBER_BITS) if self.named else self.end

    def take_change(self) -> TopicChange:
        """What changed since the last time. Costs a copy of the pages that were written to."""
        count = self.end - self.first
        changed = np.flatnonzero(self._changed).tolist()
        deleted = {} if self.deletions is None else self.deletions.take(changed, PAGE_BITS, self.start[:count])
        pages = []
        for page in changed:
            queues = slice(page << PAGE_BITS, min(count, page + 1 << PAGE_BITS))
            ends, starts = self.committed[queues].copy(), self.start[queues].copy()
            assert (starts <= ends).all(), "a queue's log start is not beyond its end"
            pages.append(PageChange(page, ends, starts, deleted.get(page)))
        self._changed[:] = False
        return TopicChange(self.topic, self.first, self.end, pages, self.gone.copy())

    def touch_all(self) -> None:
        """Have :meth:`take_change` give all there is."""
        count = self.end - self.first
        used = np.flatnonzero((self.committed[:count] > 0) | (self.start[:count] > 0))
        self._changed[used >> PAGE_BITS] = True

    def trim(self, rows: I64, offsets: I64, why: int) -> int:
        """Move log starts up, never beyond what is committed; returns how many messages went, deleted ones aside."""
        touched = np.unique(rows) if len(rows) > 1 else rows
        before = int(self.live_from(touched).sum())
        np.maximum.at(self.start, rows, np.minimum(offsets, self.committed[rows]))
        count = int(self.live_from(touched).sum()) - before
        add(self.gone, why, count)
        if self.deletions is not None:
            self.deletions.trimmed(rows, self.start)
        self._lost(rows)
        return count

    def delete(self, rows: I64, offsets: I64) -> NDArray[np.bool_]:
        """Messages are deleted; returns which of them need a tombstone."""
        if self.deletions is None:
            self.deletions = Deletions(len(self._rows))
        needed = self.deletions.apply(rows, offsets, self.start, self.committed)
        self._lost(rows)
        return needed

    def will_expire(self, rows: NDArray[Any], ends: I64) -> None:
        """Messages were stored that expire: from now on there may be holes in these queues up to these ends.

        So it follows from the log where holes may be, whenever each replica finds a message expired and drops it.
        """
        if self.deletions is None:
            self.deletions = Deletions(len(self._rows))
        np.maximum.at(self.deletions.end, rows, ends)

    def _lost(self, rows: I64) -> None:
        self._changed[rows >> PAGE_BITS] = True
        self.losses += 1
        self.version += 1

    def live_from(self, rows: I64) -> I64:
        """Below these offsets nothing of the queues can be read: log starts, or what is deleted behind them."""
        starts: I64 = self.start[rows]
        return starts if self.deletions is None else np.maximum(starts, self.deletions.floor[rows])

    def first_live(self, row: int) -> int:
        """:meth:`live_from` of one queue."""
        start = self.start.item(row)
        return start if self.deletions is None else max(start, self.deletions.floor.item(row))

    def is_empty(self) -> bool:
        """Whether no message of it can be read."""
        rows = np.arange(self.end - self.first)
        return bool((self.live_from(rows) >= self.committed[: len(rows)]).all())

    def count_messages(self, *, in_line: bool = True) -> int:
        """Of all its queues: those that can be read, and those in line; single ones that are deleted count."""
        rows = np.arange(len(self._rows) if self.named else self.end - self.first)
        ends = self.next if in_line else self.committed
        return int((ends[: len(rows)] - self.live_from(rows)).sum())

    def begins_of(self, queues: U32) -> I64:
        """From which offsets on these are the queues that have the numbers now."""
        rows = queues.astype(np.int64) - self.first
        begins = np.zeros(len(rows), np.int64)
        known = rows < len(self.begins)
        begins[known] = self.begins[rows[known]]
        return begins

    def holes_ends(self, rows: I64) -> I64:
        """:meth:`holes_end` of many queues."""
        return np.zeros(len(rows), np.int64) if self.deletions is None else self.deletions.end[rows]

    def holes_end(self, row: int) -> int:
        """From here on nothing of the queue is deleted."""
        return 0 if self.deletions is None else self.deletions.end.item(row)


class ShardState:
    """Topics, committed offsets, producers and documents of a shard, as of the last applied entry."""

    def __init__(self) -> None:
        self.topics: dict[int, TopicState] = {}
        self.space_changes = 0  # raised by whatever makes records unreadable
        self.gone: Losses = {}  # of all topics, since the store was opened
        self.due_losses = 0  # raised by whatever does so with delayed ones
        self.dropped_topics = 0
        self.topic_changes = 0  # raised as a topic comes, goes, grows or is given other options
        self._changed_lately: deque[tuple[int, int]] = deque(maxlen=_KEPT_CHANGES)  # those numbers, and the topics' ids
        self.by_name: dict[str, TopicState] = {}
        #: Those whose queues have names; beside each there is the internal one of these.
        self.named: dict[int, TopicState] = {}
        self.numbered_queues = 0  # of all topics whose queues have no names, those of this shard
        self.numbered_queues_in_all = 0  # and of other shards
        #: Topics of which messages may go by themselves.
        self.letting_go: dict[int, TopicState] = {}
        #: Those for which it matters what other shards hold of them.
        self.sharing: dict[int, TopicState] = {}
        #: Ids of topics whose expired messages are moved elsewhere, and kept until then. Replaced as a whole.
        self.moving: U64 = np.zeros(0, np.uint64)
        self.next_topic_id = 1
        self.offsets = GroupOffsets()
        self.producers = Producers()
        self.ids = DedupeIds()
        self.documents = Documents()
        self.epochs: list[StoredEpochStart] = []  # as far as they are needed
        self.time_ms = 0  # the latest that an applied entry is stamped with
        self._taken_lsn = 0
        self._changed: dict[int, TopicState] = {}
        self._dropped: list[int] = []

    def put_topic(self, topic: StoredTopic, first: int, end: int) -> None:
        """Create a topic, or give an existing one new options or more queues."""
        state = self.topics.get(topic.id)
        self._note_change(topic.id)
        if state is not None:
            self._uncount(state)
        if state is None:
            state = TopicState(topic, first, end)
            self.topics[topic.id] = state
            if not topic.is_internal:
                self.by_name[topic.name] = state
                self.next_topic_id = max(self.next_topic_id, topic.id + 1)
        else:
            state.grow(topic, end)
        if not (topic.named or topic.is_internal):
            self.numbered_queues += state.end - state.first
            self.numbered_queues_in_all += topic.queues
        options = topic.options
        roles = (self.named, topic.named), (self.letting_go, options.lets_go), (self.sharing, options.needs_rest)
        for special, is_one in roles:
            if is_one:
                special[topic.id] = state
            else:
                special.pop(topic.id, None)
        self._note_moving(topic.id, moves=topic.options.expired_to is not None)
        self._changed[topic.id] = state
        if topic.named:
            self.put_topic(names_topic(topic), 0, 1)

    def drop_topic(self, topic_id: int) -> None:
        state = self.topics.pop(topic_id, None)
        self._note_moving(topic_id, moves=False)
        for special in (self.named, self.letting_go, self.sharing):
            special.pop(topic_id, None)
        self.space_changes += 1
        self.dropped_topics += 1
        self._note_change(topic_id)
        if state is not None:
            self._uncount(state)
            if self.by_name.get(state.topic.name) is state:  # else one that was made anew under its name has it
                del self.by_name[state.topic.name]
            self._dropped.append(topic_id)
            if state.named:
                self.drop_topic(topic_id | NAMES_TOPIC)
        self._changed.pop(topic_id, None)
        self.offsets.drop(topic_id=topic_id)
        for key, _ in self.documents.with_prefix(f"{QUEUE_OPTIONS}{topic_id}/"):
            self.documents.put(key, None)

    def _note_change(self, topic_id: int) -> None:
        self._changed_lately.append((self.topic_changes + 1, topic_id))
        self.topic_changes += 1

    def topics_changed_since(self, number: int) -> set[int] | None:
        """Ids of topics that clients know of and that came, went or changed after ``topic_changes`` was ``number``.

        None where that is too long ago. In any thread.
        """
        if number == self.topic_changes:
            return set()
        lately = list(self._changed_lately)
        if not lately or lately[0][0] > number + 1:
            return None
        return {topic_id for change, topic_id in lately if change > number and not topic_id & NAMES_TOPIC}

    def _uncount(self, state: TopicState) -> None:
        if not (state.named or state.topic.is_internal):
            self.numbered_queues -= state.end - state.first
            self.numbered_queues_in_all -= state.topic.queues

    def known_topics(self) -> list[StoredTopic]:
        """Those that clients know of. In any thread."""
        # A list of values takes no turns with other threads, one of items does: garbage may be collected as it is made.
        return [state.topic for state in list(self.topics.values()) if not state.topic.id & NAMES_TOPIC]

    @property
    def topic_count(self) -> int:
        """Topics that clients know of."""
        return len(self.topics) - len(self.named)

    @property
    def queue_count(self) -> int:
        """Their queues. Costs what topics have queues with names."""
        return self.numbered_queues + sum(state.end - state.first for state in list(self.named.values()))

    def _note_moving(self, topic_id: int, *, moves: bool) -> None:
        others = self.moving[self.moving != topic_id]
        if moves:
            self.moving = np.append(others, np.uint64(topic_id))
        elif len(others) < len(self.moving):
            self.moving = others
            self.space_changes += 1
            if topic_id in self.topics:
                self.topics[topic_id].losses += 1  # What has expired is garbage now.

    def lasting(self, keys: U64, expires_ms: I64) -> I64:
        """When records expire, by their keys; 0, never, for those that are kept until they come, or are moved."""
        lasting = keys >= DUE
        if len(self.moving):
            lasting |= np.isin(keys >> np.uint64(32), self.moving)
        kept: I64 = np.where(lasting, 0, expires_ms)
        return kept

    def land(self, state: TopicState, index: NDArray[Any], ends: I64) -> None:
        """Records are readable: these are the ends of their queues. No effect where the topic is gone."""
        state.land(index, ends)
        self._note(state)

    def trim(self, topic_id: int, queues: U32, offsets: I64, why: int = LossReason.ASKED) -> None:
        """Move log starts up, to the end at most."""
        state = self.topics.get(topic_id)
        if state is not None:
            add(self.gone, why, state.trim(queues.astype(np.int64) - state.first, offsets, why))
            self.space_changes += 1
            self._note(state)

    def note_dropped(self, state: TopicState, count: int) -> None:
        """New messages found no room, and were not stored."""
        add(state.gone, LossReason.OVERFLOW, count)
        add(self.gone, LossReason.OVERFLOW, count)
        self._note(state)

    def delete(self, topic_id: int, queues: U32, offsets: I64, why: int = LossReason.ASKED) -> NDArray[np.bool_]:
        """Messages are deleted; returns which of them need a tombstone: none of a topic that is gone."""
        state = self.topics.get(topic_id)
        if state is None:
            return np.zeros(len(queues), np.bool_)
        rows = queues.astype(np.int64) - state.first
        if why != LossReason.ASKED:
            live = np.count_nonzero((offsets >= state.live_from(rows)) & (offsets < state.committed[rows]))
            add(state.gone, why, int(live))
            add(self.gone, why, int(live))
        needed = state.delete(rows, offsets)
        self.space_changes += 1
        self._note(state)
        return needed

    def _note(self, state: TopicState) -> None:
        topic_id = state.topic.id
        if topic_id not in self._changed and self.topics.get(topic_id) is state:
            self._changed[topic_id] = state

    def commit_offsets(self, group: str, topic_id: int, queues: U32, offsets: I64, *, reset: bool) -> None:
        """Set a group's committed offsets; without ``reset`` they only move forward."""
        state = self.topics.get(topic_id)
        if state is not None:
            index = queues - np.uint32(state.first)
            self.offsets.commit(group, topic_id, len(state.next), index, offsets + 1, reset=reset)

    def drop_group(self, group: str) -> None:
        """Forget all committed offsets of a group."""
        self.offsets.drop(group)

    def restored(self, lsn: int, time_ms: int) -> None:
        """All of a checkpoint of this LSN but its producers was put in here: nothing of it has changed since."""
        self.take_change(lsn)
        self.time_ms = time_ms
        self.producers = Producers()
        self.ids = DedupeIds()

    def take_whole(self, lsn: int) -> StateChange:
        """All there is but the producers in files, as a change from nothing: for a checkpoint that stands alone."""
        self._taken_lsn = self._taken_epochs = 0
        self._changed, self._dropped = dict(self.topics), []
        for state in self.topics.values():
            state.touch_all()
        self.offsets.touch_all()
        self.documents.touch_all()
        return self.take_change(lsn)

    def is_large(self, options: StoreOptions) -> bool:
        """Whether what changed takes so much memory that a flush is due."""
        unflushed = self.producers.unflushed_bytes + self.ids.unflushed_bytes
        return unflushed > options.memtable_bytes // 2

    def take_change(self, lsn: int) -> StateChange:
        """What changed since the last time. Call between two entries; costs a copy of what was written to."""
        offsets, dropped_groups = self.offsets.take_change()
        change = StateChange(
            first_lsn=self._taken_lsn,
            end_lsn=lsn,
            time_ms=self.time_ms,
            next_topic_id=self.next_topic_id,
            topics=[state.take_change() for state in self._changed.values()],
            dropped=self._dropped,
            offsets=offsets,
            dropped_groups=dropped_groups,
            documents=self.documents.take_change(),
            epochs=list(self.epochs),
            producers=self.producers.freeze(),
            ids=self.ids.freeze(),
        )
        assert change.first_lsn <= lsn, "changes are taken in the order of the log"
        self._taken_lsn = lsn
        self._changed, self._dropped = {}, []
        return change
