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

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsmq.errors import InvalidRequest, InvalidTopicName

from .columns import I64, U32
from .deletions import Deleted, Deletions
from .documents import Documents
from .epochs import EpochStart
from .group_offsets import GroupOffsets
from .options import StoreOptions
from .pages import PAGE_BITS
from .producers import Layer, Producers

MAX_TOPIC_NAME = 200
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def check_topic_name(name: str) -> None:
    """Raises ``InvalidTopicName`` with the legal form."""
    if not 1 <= len(name) <= MAX_TOPIC_NAME or not _NAME_CHARACTERS.issuperset(name) or name in (".", ".."):
        raise InvalidTopicName(
            f"{name!r} is not a legal topic name: use 1 to {MAX_TOPIC_NAME} letters, digits, '.', '_' and '-'",
            topic=name,
        )


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """How a topic behaves.

    Attributes:
        retention_ms: drop messages older than this; None keeps them.
        retention_bytes: drop the oldest beyond this many bytes of the topic on a shard; None keeps them.
        ack: ``quorum`` or ``leader``: when a write is acknowledged, unless the request says otherwise.
        max_message_bytes: refuse larger messages; None takes the node's limit.
        key_queues: spread keys over this many queues, the first, for ever: strict order, whatever the topic grows to.
            None spreads them over all there are.
    """

    retention_ms: int | None = None
    retention_bytes: int | None = None
    ack: str = "quorum"
    max_message_bytes: int | None = None
    key_queues: int | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TopicOptions:
        """Raises ``InvalidRequest`` naming an unknown option or a bad value."""
        known = [item.name for item in fields(cls)]
        for name in values:
            if name not in known:
                raise InvalidRequest(f"unknown topic option {name!r}; there are: {', '.join(known)}", option=name)
        for name in ("retention_ms", "retention_bytes", "max_message_bytes", "key_queues"):
            value = values.get(name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise InvalidRequest(f"topic option {name} must be a whole number above 0, not {value!r}", option=name)
        ack = values.get("ack", "quorum")
        if ack not in ("quorum", "leader"):
            raise InvalidRequest(f"topic option ack must be 'quorum' or 'leader', not {ack!r}", option="ack")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        values = asdict(self)
        if self.key_queues is None:
            del values["key_queues"]  # As topics of earlier releases are written down.
        return values


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic: ``queues`` logical queues in the cluster, of which a shard holds some.

    ``ranges`` are ``(first, end, shard)``, half-open and in order, once the topic has grown: a queue stays where it is.
    Empty, they are cut evenly. A store knows nothing of them.
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


@dataclass(frozen=True, slots=True)
class PageChange:
    """The queues of a topic from ``PAGE_QUEUES * number`` on: their ends, log starts, and what is deleted of them."""

    number: int
    ends: I64
    starts: I64
    deleted: Deleted | None


@dataclass(frozen=True, slots=True)
class TopicChange:
    """A topic, and the pages of its queues that changed."""

    topic: Topic
    first: int
    end: int
    pages: list[PageChange]


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
    epochs: list[EpochStart]
    producers: Layer


class TopicState:
    """A topic's queues ``[first, end)`` on this shard. Arrays are indexed by ``queue - first``.

    Once a topic has grown, queues in between may be other shards': nothing is ever stored in those rows.

    The three numbers of a queue lie side by side, so that an append and its commit touch one cache line of it.
    """

    __slots__ = (
        "_changed",
        "_rows",
        "committed",
        "deletions",
        "end",
        "first",
        "losses",
        "next",
        "scratch",
        "start",
        "topic",
        "version",
    )

    def __init__(self, topic: Topic, first: int, end: int) -> None:
        self.topic = topic
        self.first = first
        self.end = end
        self.next: I64
        self.committed: I64
        self.start: I64
        self.scratch: I64  # of whoever advances ``next``
        self._use(np.zeros((end - first, 4), np.int64))
        self.deletions: Deletions | None = None  # None when nothing was deleted
        self.losses = 0  # raised by whatever makes records unreadable
        self.version = 0  # raised by every change

    def _use(self, rows: NDArray[np.int64]) -> None:
        self._rows = rows
        self.next, self.committed, self.start, self.scratch = rows.T
        self._changed = np.zeros((len(rows) >> PAGE_BITS) + 1, np.bool_)  # by page

    def land(self, index: NDArray[Any], ends: I64) -> None:
        """Records are readable: these are the ends of their queues."""
        self.committed[index] = ends
        self._changed[index >> PAGE_BITS if len(self._changed) > 1 else 0] = True
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

    def grow(self, topic: Topic, end: int) -> None:
        """More queues at the end. Arrays double, so that growing one by one stays cheap."""
        count = end - self.first
        if count > len(self._rows):
            rows = np.zeros((max(count, 2 * len(self._rows), 1024), 4), np.int64)
            rows[: len(self._rows)] = self._rows
            changed = self._changed
            self._use(rows)
            self._changed[: len(changed)] = changed
        if self.deletions is not None:
            self.deletions.widen(len(self._rows))
        self.topic, self.end = topic, end
        self.version += 1

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
        return TopicChange(self.topic, self.first, self.end, pages)

    def touch_all(self) -> None:
        """Have :meth:`take_change` give all there is."""
        count = self.end - self.first
        used = np.flatnonzero((self.committed[:count] > 0) | (self.start[:count] > 0))
        self._changed[used >> PAGE_BITS] = True

    def trim(self, rows: I64, offsets: I64) -> None:
        """Move log starts up, never beyond what is committed."""
        np.maximum.at(self.start, rows, np.minimum(offsets, self.committed[rows]))
        if self.deletions is not None:
            self.deletions.trimmed(rows, self.start)
        self._lost(rows)

    def delete(self, rows: I64, offsets: I64) -> NDArray[np.bool_]:
        """Messages are deleted; returns which of them need a tombstone."""
        if self.deletions is None:
            self.deletions = Deletions(len(self._rows))
        needed = self.deletions.apply(rows, offsets, self.start, self.committed)
        self._lost(rows)
        return needed

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
        self.by_name: dict[str, TopicState] = {}
        self.next_topic_id = 1
        self.offsets = GroupOffsets()
        self.producers = Producers()
        self.documents = Documents()
        self.epochs: list[EpochStart] = []  # as far as they are needed
        self.time_ms = 0  # the latest that an applied entry is stamped with
        self._taken_lsn = 0
        self._changed: dict[int, TopicState] = {}
        self._dropped: list[int] = []

    def put_topic(self, topic: Topic, first: int, end: int) -> None:
        """Create a topic, or give an existing one new options or more queues."""
        state = self.topics.get(topic.id)
        if state is None:
            state = TopicState(topic, first, end)
            self.topics[topic.id] = self.by_name[topic.name] = state
            self.next_topic_id = max(self.next_topic_id, topic.id + 1)
        else:
            state.grow(topic, end)
        self._changed[topic.id] = state

    def drop_topic(self, topic_id: int) -> None:
        state = self.topics.pop(topic_id, None)
        self.space_changes += 1
        if state is not None:
            self.by_name.pop(state.topic.name, None)
            self._dropped.append(topic_id)
        self._changed.pop(topic_id, None)
        self.offsets.drop(topic_id=topic_id)

    def land(self, state: TopicState, index: NDArray[Any], ends: I64) -> None:
        """Records are readable: these are the ends of their queues. No effect where the topic is gone."""
        state.land(index, ends)
        self._note(state)

    def trim(self, topic_id: int, queues: U32, offsets: I64) -> None:
        """Move log starts up, to the end at most."""
        state = self.topics.get(topic_id)
        if state is not None:
            state.trim(queues.astype(np.int64) - state.first, offsets)
            self.space_changes += 1
            self._note(state)

    def delete(self, topic_id: int, queues: U32, offsets: I64) -> NDArray[np.bool_]:
        """Messages are deleted; returns which of them need a tombstone: none of a topic that is gone."""
        state = self.topics.get(topic_id)
        if state is None:
            return np.zeros(len(queues), np.bool_)
        needed = state.delete(queues.astype(np.int64) - state.first, offsets)
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
        return self.producers.unflushed_bytes > options.memtable_bytes // 2

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
        )
        assert change.first_lsn <= lsn, "changes are taken in the order of the log"
        self._taken_lsn = lsn
        self._changed, self._dropped = {}, []
        return change
