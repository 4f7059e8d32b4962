"""The catalog: which topics there are, and how that changes. Each change is an entry of the log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgpack

from lsmq import runtime
from lsmq.differences import asked_topic, differences
from lsmq.errors import InvalidRequest, TopicExists, UnknownTopic

from .disk import Clock
from .line import Appended, Line
from .state import ShardState, StoredTopic, TopicState, check_topic_name
from .topic_options import TopicOptions
from .wal import EntryKind

MAX_QUEUES = 16_000_000


class ShardCatalog:
    """Thread-safe. ``wait`` returns once a write is committed."""

    def __init__(self, state: ShardState, line: Line, clock: Clock, wait: Callable[[Appended], None]) -> None:
        self._state = state
        self._line = line
        self._clock = clock
        self._wait = wait
        self._lock = runtime.Lock()  # one change at a time, from question to commit

    def create(
        self, name: str, queues: int, options: TopicOptions, topic_id: int | None, first: int, end: int | None
    ) -> StoredTopic:
        """See :meth:`.shard_store.ShardStore.create_topic`."""
        check_topic_name(name)
        _check_queues(name, queues)
        with self._lock:
            with self._line.lock:
                existing = self._state.by_name.get(name)
                if existing is not None:
                    return _same(existing.topic, queues, options)
                topic = StoredTopic(topic_id or self._state.next_topic_id, name, queues, options, self._clock.now_ms())
                self._state.next_topic_id = max(self._state.next_topic_id, topic.id + 1)
                if end is None:
                    end = first if topic.named else queues
                appended = self._append(topic, first, end)
            self._wait(appended)
            return self.state_of(name).topic

    def grow(self, name: str, queues: int, end: int | None = None) -> StoredTopic:
        """Give a topic more queues at its end, up to ``end`` here. Durable on return; no effect when it has those."""
        _check_queues(name, queues)
        with self._lock:
            with self._line.lock:
                state = self.state_of(name)
                old, end = state.topic, queues if end is None else max(end, state.end)
                if queues <= old.queues and end <= state.end:
                    return old
                topic = StoredTopic(old.id, old.name, max(queues, old.queues), old.options, old.created_ms)
                appended = self._append(topic, state.first, end)
            self._wait(appended)
            return self.state_of(name).topic

    def alter(self, name: str, options: TopicOptions) -> StoredTopic:
        """Give a topic other options. Durable on return; no effect when it has those."""
        with self._lock:
            with self._line.lock:
                state = self.state_of(name)
                if state.topic.options == options:
                    return state.topic
                appended = self._append(replace(state.topic, options=options), state.first, state.end)
            self._wait(appended)
            return self.state_of(name).topic

    def delete(self, name: str) -> None:
        """Delete a topic. Durable on return."""
        with self._lock:
            with self._line.lock:
                appended = self._append_drop(self.state_of(name).topic.id)
            self._wait(appended)

    def put(self, topic: StoredTopic, first: int, end: int) -> Appended:
        """Put in line that there is ``topic``; one of the same name and another id is deleted with it."""
        with self._line.lock:
            former = self._state.by_name.get(topic.name)
            if former is not None and former.topic.id != topic.id:
                self._append_drop(former.topic.id)
            return self._append(topic, first, end)

    def drop(self, topic_id: int) -> Appended:
        """Put in line that a topic is gone."""
        with self._line.lock:
            return self._append_drop(topic_id)

    def count(self) -> int:
        """Topics that clients know of."""
        return self._state.topic_count

    def queue_count(self) -> int:
        """Queues of all topics whose queues have no names, be they in this shard or in others."""
        return self._state.numbered_queues_in_all

    def state_of(self, name: str) -> TopicState:
        """Raises ``UnknownTopic``."""
        state = self._state.by_name.get(name)
        if state is None:
            raise UnknownTopic(f"there is no topic {name!r}; create it first", topic=name)
        return state

    def _append(self, topic: StoredTopic, first: int, end: int) -> Appended:
        self._line.check_room(0)
        fields = [topic.id, topic.name, topic.queues, topic.options.to_dict(), topic.created_ms, first, end]
        return self._line.append_entry(EntryKind.CATALOG, topic.id, 0, msgpack.packb(["put", *fields]))

    def _append_drop(self, topic_id: int) -> Appended:
        return self._line.append_entry(EntryKind.CATALOG, topic_id, 0, msgpack.packb(["drop", topic_id]))


def _check_queues(name: str, queues: int) -> None:
    if not 1 <= queues <= MAX_QUEUES:
        raise InvalidRequest(f"a topic has 1 to {MAX_QUEUES} queues, not {queues}", topic=name, limit=MAX_QUEUES)


def _same(topic: StoredTopic, queues: int, options: TopicOptions) -> StoredTopic:
    there = asked_topic(topic.queues, topic.options.set())
    if different := differences(there, asked_topic(queues, options.set())):
        raise TopicExists(
            f"topic {topic.name!r} exists, and is another one than asked for: {different}. Delete it first, or create "
            "it with the same options",
            topic=topic.name,
            queues=there.pop("queues"),
            options=there,
        )
    return topic
