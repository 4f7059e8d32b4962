"""Queues of named topics, by their names: which shard knows a name, and its number there.

What a shard knows of names is in memory, or is read first, in the read pool. Everything else here runs on the loop
thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lsmq.errors import UnknownQueue
from lsmq.queue_names import SEPARATOR, queue_slot
from lsmq_node.storage import Accounts, NamesBehind, Slots, StoredTopic, TopicNames

from .placement import shard_of, shard_of_slot, slots_of, split_by_shard
from .read_redirects import ReadFrom
from .topology import Ack, ShardPort, Topology
from .waiters import WaiterTable

Ports = Callable[[StoredTopic, Sequence[int], ReadFrom], Awaitable[list[ShardPort]]]
InThreads = Callable[[Callable[[], Any]], Awaitable[Any]]


class QueueOfNumber(NamedTuple):
    """The queue that has a number: its name, and the first offset that is its own and kept."""

    name: str
    earliest: int


class BrokerNames:
    """Loop thread only."""

    def __init__(self, topology: Topology, waiters: WaiterTable, ports: Ports, in_threads: InThreads) -> None:
        """``ports``: as of :class:`.Reads`."""
        self._topology = topology
        self._waiters = waiters
        self.ports = ports
        self.in_threads = in_threads

    def shard_of(self, topic: StoredTopic, name: str) -> int:
        """The shard that a queue of this name lies on, whether it is there or not."""
        if self._topology.shard_count == 1:
            return 0
        return shard_of_slot(queue_slot(name), topic, self._topology.home_shards)

    def slots(self, topic: StoredTopic, shard: int) -> Slots:
        """The slots of a topic that lie on a shard."""
        return Slots(*slots_of(topic, shard, self._topology.home_shards))

    async def current(self, port: ShardPort, topic: StoredTopic) -> TopicNames:
        """The names of a shard, with all that are committed by now. Raises ``UnknownTopic``, ``CorruptFile``."""
        names = port.store.names(topic.id)
        while not names.is_current():
            await self.in_threads(names.refresh)
        return names

    async def catch_up(self, port: ShardPort, topic: StoredTopic) -> None:
        """What helps after ``NamesBehind`` of a write: what is committed is known then, and what is in line and was not
        known, as where a thread was torn out of putting names there, is committed. Raises what a write raises."""
        names = await self.current(port, topic)
        if not names.knows_the_line() and (barrier := port.store.barrier()) is not None:
            await port.wait(barrier, Ack.QUORUM)

    def lasting(self, port: ShardPort, topic_id: int, names: Sequence[str]) -> NDArray[np.uint32] | None:
        """The numbers of queues that are there, good for a write before anything is awaited; None where some are not.

        Then :meth:`declare` them, and ask again.
        """
        try:
            return port.store.names(topic_id).lasting_numbers(SEPARATOR.join(names).encode())
        except NamesBehind:
            return None

    async def declare(self, port: ShardPort, topic: StoredTopic, names: Sequence[str], accounts: Accounts = ()) -> None:
        """The queues are there, durably, where no other write came between. Raises what a write raises.

        ``accounts``: whom those count for that were not there.
        """
        known = await self.current(port, topic)
        port.check_writable(Ack.QUORUM)
        try:
            appended = known.declare(names, self.slots(topic, port.number), lambda count: accounts)
        except NamesBehind:
            await self.catch_up(port, topic)
            return
        if appended is not None:
            await port.wait(appended, Ack.QUORUM)

    async def numbers(self, topic: StoredTopic, names: Sequence[str], source: ReadFrom = ReadFrom.LEADER) -> list[int]:
        """The number of each queue, -1 for those that are not there. Raises ``NotLeader``, ``Unavailable``."""
        by_shard: dict[int, list[int]] = {}
        for place, name in enumerate(names):
            by_shard.setdefault(self.shard_of(topic, name), []).append(place)
        numbers = [-1] * len(names)
        ports = await self.ports(topic, list(by_shard), source)
        for port, places in zip(ports, by_shard.values(), strict=True):
            if port.store.has_topic(topic.id):
                while True:
                    known = await self.current(port, topic)
                    try:
                        found = known.find([names[place] for place in places]).tolist()
                    except NamesBehind:
                        continue
                    break
                for place, number in zip(places, found, strict=True):
                    numbers[place] = number
            port.check_readable(follower=source is not ReadFrom.LEADER)
        return numbers

    async def names_of(
        self, topic: StoredTopic, numbers: Iterable[int], source: ReadFrom = ReadFrom.LEADER
    ) -> dict[int, QueueOfNumber]:
        """The names of queues on shards that are here, by number; those that are not there are left out.

        What was read of a number before this is asked may be of a queue that was deleted since, and the number
        another's by now: whatever lies below ``earliest`` is not of the queue of this name. Raises ``NotLeader``,
        ``Unavailable``.
        """
        found: dict[int, QueueOfNumber] = {}
        wanted = np.array(sorted(set(numbers)), np.uint32)
        parts = split_by_shard(wanted, topic, self._topology.home_shards) if len(wanted) else []
        ports = await self.ports(topic, [shard for shard, _ in parts], source)
        for port, (_, places) in zip(ports, parts, strict=True):
            own = wanted[places]
            known = (await self.current(port, topic)).names(own)
            earliest = port.store.earliest_offsets(topic.id, own).tolist()  # asked after the names
            rows = zip(own.tolist(), known, earliest, strict=True)
            found.update((number, QueueOfNumber(name, begin)) for number, name, begin in rows if name)
        return found

    async def number(self, topic: StoredTopic, name: str, source: ReadFrom = ReadFrom.LEADER, wait_ms: int = 0) -> int:
        """The number of a queue, once it is there. Raises ``UnknownQueue``, ``NotLeader``, ``Unavailable``."""
        (number,) = await self.numbers(topic, (name,), source)
        if number < 0 and source is not ReadFrom.LEADER:  # A follower has not got it yet, or it is not there.
            source = ReadFrom.LEADER
            (number,) = await self.numbers(topic, (name,), source)
        if number >= 0:
            return number
        if wait_ms and not self._waiters.closed:
            deadline = asyncio.get_running_loop().time() + wait_ms / 1000
            with self._waiters.waiting(topic.names_id, np.zeros(1, np.uint32)) as waiter:
                while number < 0:
                    waiter.clear()
                    (number,) = await self.numbers(topic, (name,), source)
                    if number < 0 and (self._waiters.closed or not await waiter.wait(deadline)):
                        break
        if number < 0:
            raise unknown_queue(topic, name)
        return number

    def names(self, topic: StoredTopic, number: int) -> str | None:
        """The name of a number whose shard is here and current; None where it has none."""
        port = self._topology.port(shard_of(number, topic, self._topology.home_shards))
        return port.store.names(topic.id).names(np.array((number,), np.uint32))[0]


def unknown_queue(topic: StoredTopic, name: str) -> UnknownQueue:
    return UnknownQueue(
        f"topic {topic.name!r} has no queue {name!r}; it is there once something was sent to it, or it was declared",
        topic=topic.name,
        queue=name,
    )


def queue_replaced(topic: StoredTopic, name: str) -> UnknownQueue:
    return UnknownQueue(
        f"queue {name!r} of topic {topic.name!r} was deleted while it was read; one that is made under its name again "
        "is another: read that from its beginning",
        topic=topic.name,
        queue=name,
    )
