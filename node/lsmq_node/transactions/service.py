"""What the API asks of transactions: finds the shard, and stores what other shards' coordinators deliver."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from lsmq.errors import UnknownTopic
from lsmq.messages import key_hash
from lsmq.queue_names import SEPARATOR
from lsmq.record_batch import RecordBatch
from lsmq_node.broker import NOBODY, Broker, ShardPort, asked_shard
from lsmq_node.machines import MachineService, Step, with_producer
from lsmq_node.storage import StoredTopic
from lsmq_node.storage.later_names import numbered

from .coordinator import ShardTransactions, TransactionCounts
from .delivery import OPERATION, TIMEOUT_S, TransactionDelivery, split_named
from .lanes import fresh_batches, lane_key, producer_of
from .names_to_come import NamesToCome


class _NamesMissing(Exception):
    """Queues of a delivery are not there yet."""

    def __init__(self, number: int, topic_id: int, names: list[str]) -> None:
        super().__init__(topic_id)
        self.number = number  # of the batch
        self.topic_id = topic_id
        self.names = names


class TransactionService(MachineService[ShardTransactions]):
    """One for each node. Loop thread only; ``start`` before anything else, ``stop`` at the end."""

    name = "transactions"

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker, partial(ShardTransactions, self))
        self.counts = TransactionCounts()
        self.names_to_come = NamesToCome(broker)
        broker.topology.peers.answer(OPERATION, self._answer)

    # Shards

    def shard_of(self, group: str) -> int:
        """The shard whose leader coordinates a producer group."""
        return key_hash(group) % self.broker.topology.home_shards

    async def coordinator(self, group: str) -> ShardTransactions:
        """What coordinates a producer group. Raises ``NotLeader``, ``Unavailable``."""
        return await self.shard(self.shard_of(group))

    # Deliveries

    async def send(self, shard: int, delivery: TransactionDelivery) -> int:
        """To the leader of ``shard``, wherever that is; how many batches were for topics that are gone."""
        topology = self.broker.topology
        if topology.leadership(shard).here:
            return await self.receive(shard, delivery)
        answer = await topology.peers.ask(shard, OPERATION, {"shard": shard, **delivery.to_dict()}, TIMEOUT_S)
        return int(answer["dropped"])

    async def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """A delivery of another node."""
        shard = asked_shard(self.broker.topology, asked)
        delivery = await asyncio.to_thread(TransactionDelivery.from_dict, asked, self.broker.topology.home_shards)
        return {"dropped": await self.receive(shard, delivery)}

    def _batch(self, port: ShardPort, coordinator: int, number: int, topic_id: int, packed: bytes) -> RecordBatch:
        """A batch as the store takes it now. Raises ``_NamesMissing``: then queues are to be declared before."""
        joined, batch = split_named(packed)
        found = RecordBatch(with_producer(batch, *producer_of(coordinator, number)), verify=False)
        if joined is None:
            return found
        names = joined.decode().split(SEPARATOR)
        numbers = self.broker.names.lasting(port, topic_id, names)
        if numbers is None:
            raise _NamesMissing(number, topic_id, names)
        return numbered(found, names, numbers)

    async def receive(self, number: int, delivery: TransactionDelivery) -> int:
        """Store what a coordinator has decided, unless it is here already. Durable, and visible, on return.

        Raises ``DeliveriesAhead``, ``NotLeader``, ``NotEnoughReplicas``, and what storing raises; all may pass.
        """
        shard = await self.shard(number)
        gone: set[int] = set()
        topics: dict[int, StoredTopic] = {}
        for topic_id in {topic_id for _, topic_id, _, _ in delivery.batches}:
            try:
                topics[topic_id] = topic = await self.broker.topic_by_id(topic_id)
                await shard.port.prepare(topic)
            except UnknownTopic:
                gone.add(topic_id)
        coordinator = delivery.coordinator
        while True:
            shard.check()
            fresh = fresh_batches(number, shard.last.get(coordinator, 0), delivery)
            try:
                items = [
                    (topic_id, self._batch(shard.port, coordinator, at, topic_id, packed))
                    for at, topic_id, _, packed in fresh
                    if topic_id not in gone
                ]
            except _NamesMissing as missing:
                maker = delivery.makers.get(missing.number, NOBODY)
                accounts = self.broker.name_admission.accounts(maker)
                await self.broker.names.declare(shard.port, topics[missing.topic_id], missing.names, accounts)
            else:
                break
        if fresh:
            last = fresh[-1][0]
            had = partial(shard.last.__setitem__, coordinator, last)
            # Once it is stored, whoever leads by then, no error may say otherwise.
            await shard.durable(shard.put(Step({lane_key(coordinator): b"%d" % last}, batches=items, appended=had)))
        else:
            await shard.barrier()
            shard.check()
        return sum(topic_id in gone for _, topic_id, _, _ in delivery.batches)
