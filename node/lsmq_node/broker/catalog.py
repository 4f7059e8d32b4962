"""Topics of a node: one list, of which every shard's store holds its range of queues.

The first shard is the authority and gives the ids. A topic is created there last, so that whoever sees it finds it in
all shards, and deleted there first; what a crash or a full disk left undone, or left behind, in the others is put right
before the next change, and at start. Where the queues of a topic lie that has grown, or was made when shards had come,
is a document of the first shard, written before any shard has the new ones. All of it blocks on the disk: one thread at
a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgpack

from lsmq.errors import InvalidRequest, UnknownTopic
from lsmq_coordinator.state import QueueRange, grown_ranges, leveled_ranges
from lsmq_node.storage import ShardStore, StoredTopic, TopicOptions

from .meant_topic import deleted
from .placement import queue_ranges, stored_range

#: Keys of the documents with the ranges of topics that have them: this and the topic's id.
RANGES = "ranges/"

ShardRanges = tuple[tuple[int, int, int], ...]


class NodeCatalog:
    """Creates and deletes topics in all shards of a node alike."""

    def __init__(self, stores: Mapping[int, ShardStore], shards: int, home_shards: int) -> None:
        """``stores`` by number, the first among them, of the ``shards`` that there are. One that is missing learns at a
        later start what has become of the topics. ``home_shards``: how many shards there were at first."""
        self._stores = dict(sorted(stores.items()))
        self._shards = shards
        self._home_shards = home_shards
        self._first = stores[0]
        self._ranges: dict[int, ShardRanges] = {}
        self._complete_at: tuple[int, ...] = ()  # the changes of each store's topics when all had the same

    def topics(self) -> list[StoredTopic]:
        known = self._first.topics()
        return [self._placed(topic) for topic in known] if self._ranges else known

    def count(self) -> int:
        return self._first.topic_count()

    def queue_count(self) -> int:
        return self._first.queue_count()

    def topic(self, name: str) -> StoredTopic:
        """Raises ``UnknownTopic``."""
        return self._placed(self._first.topic(name))

    def find(self, name: str) -> StoredTopic | None:
        try:
            topic = self.topic(name)
        except UnknownTopic:
            return None
        return None if topic.is_internal else topic

    def topic_by_id(self, topic_id: int) -> StoredTopic:
        """Raises ``UnknownTopic``."""
        topic = self._first.topic_by_id(topic_id)
        if topic.is_internal:
            raise UnknownTopic(f"there is no topic with id {topic_id}", topic_id=topic_id)
        return self._placed(topic)

    def _placed(self, topic: StoredTopic) -> StoredTopic:
        """The topic with its ranges, where it has grown: of the queues it has, which come after their places."""
        ranges = self._ranges.get(topic.id)
        if ranges is None:
            return topic
        if not topic.named and ranges[-1][1] > topic.queues:
            ranges = tuple(
                (first, min(end, topic.queues), shard) for first, end, shard in ranges if first < topic.queues
            )
        return replace(topic, ranges=ranges)

    def add(self, stores: Sequence[ShardStore]) -> None:
        """There are these shards as well from here on. They know the topics on return."""
        self._stores |= dict(enumerate(stores, self._shards))
        self._shards += len(stores)
        self.complete()

    def complete(self) -> None:
        """Make the other shards' topics those of the first, with all queues they have grown to.

        Looks at all of them, unless every change since it did so was made in all shards.
        """
        if self.changes() == self._complete_at:
            return
        with self._in_all_shards():
            self._complete()

    def changes(self) -> tuple[int, ...]:
        """Of each store's topics: raised as one comes, goes or changes."""
        return tuple(store.topic_changes() for store in self._stores.values())

    @contextmanager
    def _in_all_shards(self) -> Iterator[None]:
        """In the block a change is made in all shards; one that is cut short is completed by whoever comes next."""
        self._complete_at = ()
        yield
        self._complete_at = self.changes()

    def _complete(self) -> None:
        found = {
            int(key.removeprefix(RANGES)): tuple((first, end, shard) for first, end, shard in msgpack.unpackb(value))
            for key, value in self._first.documents(RANGES)
        }
        self._complete_topics(found)
        for topic in self._first.topics():
            if topic.id in found:
                self._grow(topic, found[topic.id])

    def _complete_topics(self, ranges: Mapping[int, ShardRanges]) -> None:
        wanted = {topic.name: topic for topic in self._first.topics()}
        for store in list(self._stores.values())[1:]:
            for extra in store.topics():
                topic = wanted.get(extra.name)
                if topic is None or topic.id != extra.id:
                    store.wait(store.drop_topic(extra.id))
            present = {topic.name: topic for topic in store.topics()}
            for topic in wanted.values():
                if topic.name not in present:
                    self._create_rest(replace(topic, ranges=ranges.get(topic.id, ())))
                elif topic.options != present[topic.name].options:
                    store.alter_topic(topic.name, topic.options)

    def create(self, name: str, queues: int, options: TopicOptions) -> StoredTopic:
        """Create the topic everywhere; durable on return. The same again is the same topic."""
        if self._shards == 1:
            return self._first.create_topic(name, queues, options)
        self.complete()
        if self.find(name) is not None:
            return self._placed(self._first.create_topic(name, queues, options))
        # Of an id that a shard has heard of messages may be left there, though the first one never had that topic.
        id = max(store.next_topic_id() for store in self._stores.values())
        topic = StoredTopic(id, name, queues, options)
        with self._in_all_shards():
            if self._shards > self._home_shards:
                topic = replace(topic, ranges=grown_ranges((), queues, self._shards))
                self._put_ranges(topic.id, topic.ranges)
                self._ranges[topic.id] = topic.ranges  # Whoever sees the topic knows where it lies.
            self._create_rest(topic)
            first, end = stored_range(topic, 0, self._home_shards)
            self._first.create_topic(name, queues, options, topic_id=topic.id, first=first, end=end)
        return self.topic(name)

    def _put_ranges(self, topic_id: int, ranges: ShardRanges | None) -> None:
        packed = None if ranges is None else msgpack.packb(ranges)
        self._first.wait(self._first.put_documents({f"{RANGES}{topic_id}": packed}))

    def _create_rest(self, topic: StoredTopic) -> None:
        for shard, store in list(self._stores.items())[1:]:
            first, end = stored_range(topic, shard, self._home_shards)
            store.create_topic(topic.name, topic.queues, topic.options, topic_id=topic.id, first=first, end=end)

    def grow(self, name: str, queues: int) -> StoredTopic:
        """Give the topic more queues, durably. Raises ``UnknownTopic``, and ``InvalidRequest`` where it has more."""
        topic = self.topic(name)
        if topic.named:
            raise has_names(topic)
        if queues < topic.queues:
            raise can_only_grow(topic, queues)
        if queues == topic.queues:
            return topic
        if self._shards == 1:
            return self._first.grow_topic(name, queues)
        self.complete()
        ranges = grown_ranges(queue_ranges(topic, self._home_shards), queues, self._shards)
        with self._in_all_shards():
            self._put_ranges(topic.id, ranges)
            self._grow(topic, ranges)
        return self.topic(name)

    def spread_queues(self, topic: StoredTopic) -> int:
        """How many queues it will have when it is spread."""
        return self._spread(topic)[-1].end

    def spread(self, name: str, *, pins_keys: bool) -> StoredTopic:
        """Give the topic queues on shards that have too few of them, durably. Raises ``UnknownTopic``.

        ``pins_keys``: a key stays in its queue for ever. Cut short, it is done again by the same call.
        """
        self.complete()
        topic = self.topic(name)
        ranges = self._spread(topic)
        if ranges[-1].end > topic.queues:
            with self._in_all_shards():
                if pins_keys and topic.options.key_queues is None:
                    options = topic.options.altered({"key_queues": topic.queues})
                    for store in self._stores.values():
                        store.alter_topic(name, options)
                self._put_ranges(topic.id, ranges)
                self._grow(topic, ranges)
        return self.topic(name)

    def _spread(self, topic: StoredTopic) -> tuple[QueueRange, ...]:
        return leveled_ranges(queue_ranges(topic, self._home_shards), self._shards)

    def _grow(self, topic: StoredTopic, ranges: ShardRanges) -> None:
        """The first shard last: from then on the new queues are there."""
        if topic.named:
            self._ranges[topic.id] = ranges
            return
        for shard, store in reversed(self._stores.items()):
            end = max((end for _, end, holder in ranges if holder == shard), default=0)
            if shard == 0:
                self._ranges[topic.id] = ranges
            store.grow_topic(topic.name, ranges[-1][1], end)

    def alter(
        self, name: str, changes: Mapping[str, Any], check: Callable[[StoredTopic, TopicOptions], None]
    ) -> StoredTopic:
        """Change options of the topic, durably; None takes one away. ``check`` may refuse what comes out.

        Raises ``UnknownTopic``, ``InvalidRequest``.
        """
        self.complete()
        topic = self.topic(name)
        options = topic.options.altered(changes)
        check(topic, options)
        with self._in_all_shards():
            for store in self._stores.values():
                store.alter_topic(name, options)
        return self.topic(name)

    def delete(self, name: str, meant: int | None = None) -> StoredTopic:
        """Delete the topic everywhere, if it has the id ``meant``. Raises ``UnknownTopic``."""
        if self._shards > 1:
            self.complete()
        topic = self._first.topic(name)
        if meant is not None and meant != topic.id:
            raise deleted(name, meant)
        with self._in_all_shards():
            for store in self._stores.values():
                store.delete_topic(name)
            if self._ranges.pop(topic.id, None) is not None:
                self._put_ranges(topic.id, None)
        return topic


def has_names(topic: StoredTopic) -> InvalidRequest:
    return InvalidRequest(
        f"topic {topic.name!r} has named queues: there is one for each name that is used, and no number to grow",
        topic=topic.name,
        field="queues",
    )


def stays_on_shards(topic: StoredTopic) -> InvalidRequest:
    return InvalidRequest(
        f"topic {topic.name!r} has named queues, and where a name lies is told by the name for ever: it stays on the "
        "shards that it was made on; make another topic, which uses all, and move over to it",
        topic=topic.name,
    )


def can_only_grow(topic: StoredTopic, queues: int) -> InvalidRequest:
    return InvalidRequest(
        f"topic {topic.name!r} has {topic.queues} queues, and cannot have {queues}: a topic can only grow; make "
        "another one with fewer",
        topic=topic.name,
        queues=topic.queues,
    )
