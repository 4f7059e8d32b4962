"""Options of single queues: read and changed at the leader of the queue's shard, where they are a document each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from lsmq.errors import TooManyQueues
from lsmq_node.storage import NamesBehind, ShardStore, StoredTopic, queue_options
from lsmq_node.storage.queue_options import MAX_QUEUE_OPTIONS, QueueOptions

from .admission import Admission
from .compacted import check_own_limits
from .loop_work import to_its_end
from .names import BrokerNames, unknown_queue
from .placement import shard_of
from .topology import Ack, ShardPort, Topology


class OwnOptions:
    """One for each node. Loop thread only. Queues are said by number, or by name where they have names."""

    def __init__(self, topology: Topology, names: BrokerNames, admission: Admission) -> None:
        self._topology = topology
        self._names = names
        self._admission = admission
        #: Who changes options has read those of before; who holds it sees all, and nobody changes any.
        self.changing = asyncio.Lock()
        #: Shards where nobody has heard whether what was put in line is stored: it may be on its way still.
        self._in_doubt: set[int] = set()

    def of(self, topic: StoredTopic, queue: int | str) -> QueueOptions:
        """What is set of a queue. Raises ``NotLeader``, ``Unavailable``."""
        port = self._port(topic, queue)
        port.check_readable()
        return _known(port.store, topic, queue)

    @to_its_end  # Until it is stored nobody else may read what there was before.
    async def alter(self, topic: StoredTopic, queue: int | str, changes: Mapping[str, Any]) -> QueueOptions:
        """Change some; None has one follow the topic again. Durable on return.

        Raises ``UnknownQueue``, ``InvalidRequest``, ``TooManyQueues`` and what a write raises.
        """
        async with self.changing:
            if isinstance(queue, str):
                port = await self._lasting(topic, queue)  # Options of what is not there would stay for ever.
            else:
                self._admission.queue(topic, queue)
                port = await self._writable(topic, queue)
            known = _known(port.store, topic, queue)
            options = known.altered(changes)
            check_own_limits(topic, options, known)
            await self._put(port, topic, queue, options)
        return options

    async def forget(self, topic: StoredTopic, queue: str) -> None:
        """Before a queue is deleted: the next one of its name has none. Durable on return; raises what a write does."""
        async with self.changing:
            port = await self._writable(topic, queue)
            if _known(port.store, topic, queue) != QueueOptions():
                await self._put(port, topic, queue, QueueOptions())

    async def _put(self, port: ShardPort, topic: StoredTopic, queue: int | str, options: QueueOptions) -> None:
        key, body = queue_options.key_of(topic.id, queue), queue_options.encode(queue, options)
        is_new = body is not None and port.store.document(key) is None
        if is_new and len(port.store.documents(queue_options.PREFIX)) >= MAX_QUEUE_OPTIONS:
            raise TooManyQueues(
                f"{MAX_QUEUE_OPTIONS} queues of shard {port.number} have options of their own, the limit; set those of "
                "topics, or take some away",
                shard=port.number,
                limit=MAX_QUEUE_OPTIONS,
            )
        self._in_doubt.add(port.number)
        await port.wait(port.store.put_documents({key: body}), Ack.QUORUM)
        self._in_doubt.discard(port.number)

    async def _lasting(self, topic: StoredTopic, queue: str) -> ShardPort:
        """The shard of a queue that is there, and is not about to go. Raises ``UnknownQueue``."""
        while True:
            await self._names.number(topic, queue)
            port = await self._writable(topic, queue)
            try:
                if port.store.names(topic.id).lasting_numbers(queue.encode()) is None:
                    raise unknown_queue(topic, queue)
            except NamesBehind:
                await self._names.catch_up(port, topic)
                continue
            return port

    async def _writable(self, topic: StoredTopic, queue: int | str) -> ShardPort:
        self._admission.write()
        port = self._port(topic, queue)
        port.check_writable(Ack.QUORUM)
        await port.prepare(topic)
        if port.number in self._in_doubt and (behind := port.store.barrier()) is not None:
            await port.wait(behind, Ack.QUORUM)
        self._in_doubt.discard(port.number)
        port.check_writable(Ack.QUORUM)
        return port

    def _port(self, topic: StoredTopic, queue: int | str) -> ShardPort:
        if isinstance(queue, str):
            return self._topology.port(self._names.shard_of(topic, queue))
        return self._topology.port(shard_of(queue, topic, self._topology.home_shards))


def _known(store: ShardStore, topic: StoredTopic, queue: int | str) -> QueueOptions:
    key = queue_options.key_of(topic.id, queue)
    body = store.document(key)
    return QueueOptions() if body is None else queue_options.decode(key, body)[1]


def kept_names(store: ShardStore, topic: StoredTopic) -> list[str]:
    """Names of a topic's queues that have options of their own: these are not forgotten when they are empty."""
    found = store.documents(f"{queue_options.PREFIX}{topic.id}/")
    return [str(queue_options.decode(key, body)[0]) for key, body in found]
