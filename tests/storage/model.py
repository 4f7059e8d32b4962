"""What a store should hold, in plain dicts and lists; and the same description taken from a store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from lsmq.record_batch import Message
from lsmq_node.storage import ShardStore

from .harness import Put, read_queue


class Row(NamedTuple):
    """What of a message must come back."""

    body: bytes
    key: str | None
    tag: str | None
    priority: int

    @classmethod
    def of(cls, item: Put | Message) -> Row:
        return cls(item.body, item.key, item.tag, item.priority)


@dataclass
class Queue:
    """A queue's messages from offset 0 on; ``None`` where one was deleted."""

    rows: list[Row | None] = field(default_factory=list)
    start: int = 0

    def readable(self, start: int | None = None) -> dict[int, Row]:
        first = self.start if start is None else start
        return {offset: row for offset, row in enumerate(self.rows) if row is not None and offset >= first}


@dataclass
class TopicModel:
    """A topic and its queues."""

    id: int
    queues: int
    touched: dict[int, Queue] = field(default_factory=dict)
    offsets: dict[str, dict[int, int]] = field(default_factory=dict)  # group, queue

    def copy(self) -> TopicModel:
        touched = {number: Queue(queue.rows.copy(), queue.start) for number, queue in self.touched.items()}
        offsets = {group: committed.copy() for group, committed in self.offsets.items()}
        return TopicModel(self.id, self.queues, touched, offsets)

    def queue(self, number: int) -> Queue:
        return self.touched.setdefault(number, Queue())


class QueueView(NamedTuple):
    """A queue as a reader sees it."""

    start: int
    latest: int
    rows: dict[int, Row]


class TopicView(NamedTuple):
    """A topic as a reader sees it."""

    id: int
    queues: int
    touched: dict[int, QueueView]
    offsets: dict[str, dict[int, int]]


View = dict[str, TopicView]


class Model:
    """Topics by name. Each method does what the store's does when it succeeds."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicModel] = {}

    def copy(self) -> Model:
        twin = Model()
        twin.topics = {name: topic.copy() for name, topic in self.topics.items()}
        return twin

    def create(self, name: str, topic_id: int, queues: int) -> None:
        self.topics.setdefault(name, TopicModel(topic_id, queues))

    def grow(self, name: str, queues: int) -> None:
        self.topics[name].queues = max(self.topics[name].queues, queues)

    def drop(self, name: str) -> None:
        del self.topics[name]

    def append(self, name: str, puts: list[Put]) -> list[int]:
        offsets = []
        for item in puts:
            rows = self.topics[name].queue(item.queue).rows
            offsets.append(len(rows))
            rows.append(Row.of(item))
        return offsets

    def trim(self, name: str, queue: int, offset: int) -> None:
        item = self.topics[name].queue(queue)
        item.start = max(item.start, min(offset, len(item.rows)))

    def delete(self, name: str, queue: int, offsets: list[int]) -> None:
        rows = self.topics[name].queue(queue).rows
        for offset in offsets:
            rows[offset] = None

    def commit_offsets(self, group: str, name: str, queue: int, offset: int) -> None:
        committed = self.topics[name].offsets.setdefault(group, {})
        committed[queue] = max(committed.get(queue, -1), offset)

    def view(self) -> View:
        return {
            name: TopicView(
                topic.id,
                topic.queues,
                {
                    number: QueueView(queue.start, len(queue.rows), queue.readable())
                    for number, queue in topic.touched.items()
                    if queue.rows
                },
                {group: offsets for group, offsets in topic.offsets.items() if offsets},
            )
            for name, topic in self.topics.items()
        }


def view(store: ShardStore, **limits: int) -> View:
    """Everything a store shows, read with ``max_records`` and ``max_bytes`` at a time."""
    found: View = {}
    for topic in store.topics():
        touched = {}
        for number in np.flatnonzero(store.latest_offsets(topic.id)).tolist():
            start, latest = store.bounds(topic.id, number)
            rows = {message.offset: Row.of(message) for message in read_queue(store, topic.id, number, **limits)}
            touched[number] = QueueView(start, latest, rows)
        offsets = {}
        for group in store.groups():
            committed = store.committed_offsets(group, topic.id)
            if (committed >= 0).any():
                offsets[group] = {queue: int(committed[queue]) for queue in np.flatnonzero(committed >= 0).tolist()}
        found[topic.name] = TopicView(topic.id, topic.queues, touched, offsets)
    return found


def assert_shows(store: ShardStore, before: Model, after: Model | None = None) -> bool:
    """The store shows ``before``, or ``after`` where that operation was under way; True for ``after``.

    Log starts may lie between the two, since retention moves them one after another.
    """
    found = view(store)
    first = before.view()
    if found == first:
        return False
    if after is None:
        assert found == first
    assert after is not None
    second = after.view()
    if found != second:
        assert _with_starts(before, found).view() == found, "neither what was before nor what came after"
        for name, topic in found.items():
            for number, queue in topic.touched.items():
                assert first[name].touched[number].start <= queue.start <= second[name].touched[number].start
    return True


def assert_shows_but_for_starts(store: ShardStore, model: Model) -> None:
    """The same messages; retention that failed half way may have moved log starts."""
    found = view(store)
    assert _with_starts(model, found).view() == found


def _with_starts(model: Model, found: View) -> Model:
    moved = model.copy()
    for name, topic in found.items():
        for number, queue in topic.touched.items():
            if name in moved.topics:
                moved.topics[name].queue(number).start = queue.start
    return moved
