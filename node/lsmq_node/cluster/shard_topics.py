"""The topics of one shard's log, where a control plane decides which there are.

A shard's store learns of a topic by an entry in the shard's log, so that followers and later leaders have it at the
same place. The leader writes that entry before the first message of the topic (:meth:`ShardTopics.prepare`), another
for each change of its options and the one that says a topic is gone some time after the control plane said so
(:meth:`ShardTopics.follow`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from lsmq_coordinator.pieces import NamedPieces
from lsmq_coordinator.state import ClusterState, TopicRecord
from lsmq_node.broker.topology import Ack, ShardPort
from lsmq_node.storage import ShardStore, StoredTopic


class ShardTopics:
    """The topics of one shard's log. Only a leader that serves writes to it."""

    def __init__(self, shard: ShardPort, placed: Callable[[int, StoredTopic], tuple[StoredTopic, int, int]]) -> None:
        """``placed``: see :class:`.ReplicaPorts`."""
        self._shard = shard
        self._placed = placed
        self._preparing: dict[int, asyncio.Task[None]] = {}
        # What was followed: the store, at the number of its changes, and the topics that were agreed on.
        self._followed: tuple[ShardStore | None, int] = (None, 0)
        self._agreed: NamedPieces[TopicRecord] = NamedPieces()

    async def prepare(self, topic: StoredTopic) -> None:
        """Return when the store knows the topic. Raises ``NotLeader``, ``NotEnoughReplicas`` and the like."""
        while not self._shard.store.knows(topic):
            task = self._preparing.get(topic.id)
            if task is None:
                task = self._preparing[topic.id] = asyncio.create_task(self._put(topic))
                task.add_done_callback(lambda done: self._done(topic.id, done))
            await asyncio.shield(task)

    def _done(self, topic_id: int, task: asyncio.Task[None]) -> None:
        del self._preparing[topic_id]
        if not task.cancelled():
            task.exception()  # Whoever waits raises it; that nobody waits any more is no failure.

    async def _put(self, topic: StoredTopic) -> None:
        shard = self._shard
        agreed, first, end = self._placed(shard.number, topic)
        shard.check_writable(Ack.QUORUM)
        await shard.wait(shard.store.put_topic(agreed, first, end), Ack.QUORUM)

    async def follow(self, state: ClusterState, find: Callable[[str], StoredTopic | None]) -> bool:
        """Write down what the control plane has deleted, and changed of the topics that are there; whether it looked.

        ``find`` gives a topic as it is agreed on, by name. Only topics are looked at that the control plane or the
        store has otherwise than the last time. Raises what a write raises.
        """
        store = self._shard.store
        mark = store, store.topic_changes()
        if mark == self._followed and state.topics is self._agreed:
            return False
        ids = self._to_look_at(store, state)
        stored = store.topics() if ids is None else [store.topic_by_id(id) for id in ids if store.has_topic(id)]
        await self._forget_deleted(stored, state)
        await self._bring_altered(stored, find)
        self._followed, self._agreed = mark, state.topics
        return True

    def _to_look_at(self, store: ShardStore, state: ClusterState) -> set[int] | None:
        """Ids of topics; None where it may be any."""
        known, number = self._followed
        ids = store.topics_changed_since(number) if store is known else None
        if ids is None:
            return None
        altered = state.topics.changed_since(self._agreed)
        former = [self._agreed[name] for name in altered if name in self._agreed]
        gone = state.topics.gone_since(self._agreed)
        return ids.union(topic.id for topic in (*altered.values(), *former, *gone.values()))

    async def _bring_altered(self, stored: Sequence[StoredTopic], find: Callable[[str], StoredTopic | None]) -> None:
        """Write down the options of topics that the control plane has changed since."""
        found = [(topic, find(topic.name)) for topic in stored]
        await asyncio.gather(
            *(
                self.prepare(agreed)
                for topic, agreed in found
                if agreed is not None and agreed.id == topic.id and agreed.options.revision > topic.options.revision
            )
        )

    async def _forget_deleted(self, stored: Sequence[StoredTopic], state: ClusterState) -> None:
        """Write down that topics are gone which the control plane has deleted.

        Ids rise: one that ``state`` may be too old to know is left alone.
        """
        shard = self._shard
        gone = [
            topic.id
            for topic in stored
            if (agreed := state.topics.get(topic.name)) is None or agreed.id != topic.id
            if topic.id < state.next_topic_id and topic.id not in self._preparing
        ]
        if not gone:
            return
        shard.check_writable(Ack.QUORUM)
        waits = [shard.wait(shard.store.drop_topic(topic_id), Ack.QUORUM) for topic_id in gone]
        await asyncio.gather(*waits)
