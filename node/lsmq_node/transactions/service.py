"""What the API asks of transactions: finds the shard, and stores what other shards' coordinators deliver."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from lsmq.errors import InvalidRequest, UnknownTopic
from lsmq.messages import key_hash
from lsmq.record_batch import RecordBatch
from lsmq_node.broker import Broker
from lsmq_node.machines import MachineService, Step

from .coordinator import Counts, ShardTransactions
from .delivery import OPERATION, TIMEOUT_S, Delivery
from .lanes import fresh_batches, lane_key, producer_of, with_producer


class TransactionService(MachineService[ShardTransactions]):
    """One for each node. Loop thread only; ``start`` before anything else, ``stop`` at the end."""

    name = "transactions"

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker, partial(ShardTransactions, self))
        self.counts = Counts()
        broker.topology.peers.answer(OPERATION, self._answer)

    # Shards

    def shard_of(self, group: str) -> int:
        """The shard whose leader coordinates a producer group."""
        return key_hash(group) % self.broker.topology.shard_count

    async def coordinator(self, group: str) -> ShardTransactions:
        """What coordinates a producer group. Raises ``NotLeader``, ``Unavailable``."""
        return await self.shard(self.shard_of(group))

    # Deliveries

    async def send(self, shard: int, delivery: Delivery) -> int:
        """To the leader of ``shard``, wherever that is; how many batches were for topics that are gone."""
        topology = self.broker.topology
        if topology.leadership(shard).here:
            return await self.receive(shard, delivery)
        answer = await topology.peers.ask(shard, OPERATION, {"shard": shard, **delivery.to_dict()}, TIMEOUT_S)
        return int(answer["dropped"])

    async def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """A delivery of another node."""
        count, shard = self.broker.topology.shard_count, asked["shard"]
        if type(shard) is not int or not 0 <= shard < count:
            raise InvalidRequest(f"shard is {shard!r}; shards are 0 to {count - 1}")
        delivery = await asyncio.to_thread(Delivery.from_dict, asked, count)
        return {"dropped": await self.receive(shard, delivery)}

    async def receive(self, number: int, delivery: Delivery) -> int:
        """Store what a coordinator has decided, unless it is here already. Durable, and visible, on return.

        Raises ``DeliveriesAhead``, ``NotLeader``, ``NotEnoughReplicas``, and what storing raises; all may pass.
        """
        shard = await self.shard(number)
        gone: set[int] = set()
        for topic_id in {topic_id for _, topic_id, _, _ in delivery.batches}:
            try:
                await shard.port.prepare(await self.broker.topic_by_id(topic_id))
            except UnknownTopic:
                gone.add(topic_id)
        shard.check()
        coordinator = delivery.coordinator
        fresh = fresh_batches(number, shard.last.get(coordinator, 0), delivery)
        if fresh:
            items = [
                (topic_id, RecordBatch(with_producer(batch, *producer_of(coordinator, at)), verify=False))
                for at, topic_id, _, batch in fresh
                if topic_id not in gone
            ]
            last = fresh[-1][0]
            had = partial(shard.last.__setitem__, coordinator, last)
            # Once it is stored, whoever leads by then, no error may say otherwise.
            await shard.durable(shard.put(Step({lane_key(coordinator): b"%d" % last}, batches=items, appended=had)))
        else:
            await shard.barrier()
            shard.check()
        return sum(topic_id in gone for _, topic_id, _, _ in delivery.batches)
