"""Topics of a node: one list, of which every shard's store holds its range of queues.

The first shard is the authority and gives the ids. A topic is created there first and deleted there first;
what a crash or a full disk left undone in the others is completed before the next change, and at start. All
of it blocks on the disk: one thread at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from lsmq_node.storage import ShardStore, Topic, TopicOptions

from .placement import shard_cuts


class Catalog:
    """Creates and deletes topics in all shards of a node alike."""

    def __init__(self, stores: Sequence[ShardStore]) -> None:
        self._stores = stores
        self._first = stores[0]

    def complete(self) -> None:
        """Make the other shards' topics those of the first."""
        wanted = {topic.name: topic for topic in self._first.topics()}
        for store in self._stores[1:]:
            for extra in store.topics():
                topic = wanted.get(extra.name)
                if topic is None or topic.id != extra.id:
                    store.delete_topic(extra.name)
            present = {topic.name for topic in store.topics()}
            for topic in wanted.values():
                if topic.name not in present:
                    self._create_rest(topic)

    def create(self, name: str, queues: int, options: TopicOptions) -> Topic:
        """Create the topic everywhere; durable on return. The same again is the same topic."""
        if len(self._stores) == 1:
            return self._first.create_topic(name, queues, options)
        self.complete()
        topic = self._first.create_topic(name, queues, options, end=shard_cuts(queues, len(self._stores))[1])
        self._create_rest(topic)
        return topic

    def _create_rest(self, topic: Topic) -> None:
        cuts = shard_cuts(topic.queues, len(self._stores))
        for store, first, end in zip(self._stores[1:], cuts[1:], cuts[2:], strict=False):
            store.create_topic(topic.name, topic.queues, topic.options, topic_id=topic.id, first=first, end=end)

    def delete(self, name: str) -> Topic:
        """Delete the topic everywhere. Raises ``UnknownTopic``."""
        if len(self._stores) > 1:
            self.complete()
        topic = self._first.topic(name)
        for store in self._stores:
            store.delete_topic(name)
        return topic
