"""The queues of a named topic: listed over all shards, described, declared, trimmed, deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

from lsmq.errors import ConnectionFailed, InvalidRequest, NotLeader, Unavailable
from lsmq_node.storage import NamesBehind, StoredTopic

from .admission import Admission
from .leader_calls import LeaderCalls
from .name_admission import NameAdmission
from .names import BrokerNames, unknown_queue
from .own_options import OwnOptions
from .placement import queue_ranges
from .read_redirects import ReadFrom
from .topology import Ack, ShardPort, Topology

OPERATION = "list-queues"
_ASK_TIMEOUT_S = 10.0
#: Queues that a leader is asked for at a time.
_AT_A_TIME = 1_001

QueueRow = tuple[str, int, int, int]
"""A queue's name, the first offset kept, the next to be written, and its number."""


class QueueLists:
    """Loop thread only."""

    def __init__(
        self,
        topology: Topology,
        names: BrokerNames,
        own_options: OwnOptions,
        admission: Admission,
        name_admission: NameAdmission,
    ) -> None:
        self._topology = topology
        self._names = names
        self._own_options = own_options
        self._admission = admission
        self._name_admission = name_admission
        self._leaders = LeaderCalls(topology, OPERATION, self._own_page, _ASK_TIMEOUT_S)

    async def page(self, topic: StoredTopic, prefix: str, after: str, limit: int) -> list[QueueRow]:
        """Up to ``limit`` queues whose names begin with ``prefix`` and come behind ``after``, in order of their names.

        Raises ``Unavailable`` where the leader of a shard cannot be asked.
        """
        shards = [part.shard for part in queue_ranges(topic, self._topology.home_shards)]
        pages = await asyncio.gather(*(self._page_of(shard, topic, prefix, after, limit) for shard in shards))
        return sorted((row for rows in pages for row in rows), key=lambda row: row[0])[:limit]

    async def _page_of(self, shard: int, topic: StoredTopic, prefix: str, after: str, limit: int) -> Sequence[QueueRow]:
        rows: list[QueueRow] = []
        while len(rows) < limit:
            some = min(limit - len(rows), _AT_A_TIME)
            asked = {"topic": topic.id, "prefix": prefix, "after": rows[-1][0] if rows else after, "limit": some}
            try:
                found = (await self._leaders.ask(shard, asked))["queues"]
            except (NotLeader, ConnectionFailed) as error:
                message = f"the leader of shard {shard} cannot be asked: {error.message}"
                raise Unavailable(message, shard=shard) from error
            rows += [(name, earliest, latest, number) for name, earliest, latest, number in found]
            if len(found) < some:
                break
        return rows

    async def _own_page(self, shard: int, asked: dict[str, Any]) -> dict[str, Any]:
        topic = await self._topology.topics.by_id(asked["topic"])
        limit = min(int(asked["limit"]), _AT_A_TIME)
        (port,) = await self._names.ports(topic, [shard], ReadFrom.LEADER)
        begins, behind = str(asked["prefix"]).encode(), str(asked["after"]).encode()
        listing = port.store.named.listing(topic.id)
        while True:
            await self._names.current(port, topic)
            try:
                found = await self._names.in_threads(lambda: listing.page(begins, behind, limit))
            except NamesBehind:
                continue
            break
        numbers = np.array([number for _, number in found], np.uint32)
        earliest = port.store.earliest_offsets(topic.id, numbers).tolist()
        latest = port.store.latest_offsets(topic.id, numbers).tolist()
        port.check_readable()
        rows = zip(found, earliest, latest, strict=True)
        return {"queues": [(raw.decode(), low, high, number) for (raw, number), low, high in rows]}

    # Declaring and deleting

    async def declare(self, topic: StoredTopic, name: str) -> bool:
        """The queue is there, durably; whether this call made it. Raises ``TooManyQueues`` and what a write raises."""
        while True:
            port = await self._writable(topic, name)
            names = port.store.names(topic.id)
            try:
                made = not names.will_have(name)
                slots, admit = self._names.slots(topic, port.number), self._name_admission.of(port.store)
                appended = names.declare((name,), slots, admit)
            except NamesBehind:
                await self._names.catch_up(port, topic)
                continue
            if appended is not None:
                await port.wait(appended, Ack.QUORUM)
            return made

    async def delete(self, topic: StoredTopic, name: str) -> None:
        """The queue and all its messages are gone, durably, and so are options of its own.

        Raises ``UnknownQueue`` and what a write raises.
        """
        while True:
            await self._own_options.forget(topic, name)  # Nothing is awaited between this and the append.
            port = await self._writable(topic, name)
            try:
                appended, gone = port.store.names(topic.id).delete((name,))
            except NamesBehind:
                await self._names.catch_up(port, topic)
                continue
            if not gone:
                raise unknown_queue(topic, name)
            if appended is not None:
                await port.wait(appended, Ack.QUORUM)
            return

    async def trim(self, topic: StoredTopic, name: str, before: int) -> None:
        """What lies below an offset of the queue is gone, durably. Raises ``UnknownQueue``, ``OffsetOutOfRange``."""
        while True:
            port = await self._writable(topic, name)
            try:
                appended = port.store.names(topic.id).trim(name, before)
            except NamesBehind:
                await self._names.catch_up(port, topic)
                continue
            if appended is None:
                raise unknown_queue(topic, name)
            await port.wait(appended, Ack.QUORUM)
            return

    async def _writable(self, topic: StoredTopic, name: str) -> ShardPort:
        """The shard of a name; nothing is awaited between this and an append but reading names, after which it is asked
        again."""
        self._admission.write()
        port = self._topology.port(self._names.shard_of(topic, name))
        port.check_writable(Ack.QUORUM)
        await port.prepare(topic)
        port.check_writable(Ack.QUORUM)
        return port


def need_names(topic: StoredTopic) -> None:
    """Raises ``InvalidRequest`` for a topic whose queues have no names."""
    if not topic.named:
        raise InvalidRequest(
            f"the queues of topic {topic.name!r} are the numbers from 0 to {topic.queues - 1}; only those of a "
            "topic that was created with queues 'named' are listed, declared and deleted",
            topic=topic.name,
            field="queue",
        )
