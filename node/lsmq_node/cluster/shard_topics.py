"""The topics of one shard's log, where a control plane decides which there are.

A shard's store learns of a topic by an entry in the shard's log, so that followers and later leaders have it at the
same place. The leader writes that entry before the first message of the topic (:meth:`ShardTopics.prepare`), another
for each change of its options (:meth:`ShardTopics.bring_altered`), and the one that says a topic is gone some time
after the control plane said so (:meth:`ShardTopics.forget_deleted`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from lsmq_coordinator.state import ClusterState
from lsmq_node.broker.topology import Ack, ShardPort
from lsmq_node.storage import StoredTopic


class ShardTopics:
    """The topics of one shard's log. Only a leader that serves writes to it."""

    def __init__(self, shard: ShardPort, placed: Callable[[int, StoredTopic], tuple[StoredTopic, int, int]]) -> None:
        """``placed``: see :class:`.ReplicaPorts`."""
        self._shard = shard
        self._placed = placed
        self._preparing: dict[int, asyncio.Task[None]] = {}
        self._followed: tuple[object, ...] = ()  # at which topics, of the control plane and of the store

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

    async def follow(self, state: ClusterState, topics: Callable[[], Sequence[StoredTopic]]) -> bool:
        """Write down what the control plane has deleted, and changed of ``topics``, as agreed on; whether it looked.

        There is nothing to look for where neither the control plane nor the store has other topics than the last time.
        Raises what a write raises.
        """
        store = self._shard.store
        mark = store, store.topic_changes(), state.topics_version
        if mark == self._followed:
            return False
        await self.forget_deleted(state)
        await self.bring_altered(topics())
        self._followed = mark
        return True

    async def bring_altered(self, topics: Sequence[StoredTopic]) -> None:
        """Write down the options of topics that the control plane has changed since; of ``topics``, as agreed on."""
        known = {topic.id: topic.options.revision for topic in self._shard.store.topics()}
        stale = [topic for topic in topics if topic.options.revision > known.get(topic.id, topic.options.revision)]
        await asyncio.gather(*(self.prepare(topic) for topic in stale))

    async def forget_deleted(self, state: ClusterState) -> None:
        """Write down that topics are gone which the control plane has deleted.

        Ids rise: one that ``state`` may be too old to know is left alone.
        """
        shard = self._shard
        live = {topic.id for topic in state.topics.values()}
        gone = [
            topic.id
            for topic in shard.store.topics()
            if topic.id not in live and topic.id < state.next_topic_id and topic.id not in self._preparing
        ]
        if not gone:
            return
        shard.check_writable(Ack.QUORUM)
        waits = [shard.wait(shard.store.drop_topic(topic_id), Ack.QUORUM) for topic_id in gone]
        await asyncio.gather(*waits)
