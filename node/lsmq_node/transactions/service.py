"""What the API asks of transactions: finds the shard, builds what it knows when this node leads it, keeps time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from lsmq.errors import InvalidRequest, UnknownTopic
from lsmq.messages import key_hash
from lsmq.record_batch import RecordBatch
from lsmq_node.broker import Ack, Broker, LedShards, ShardPort, Start

from .coordinator import ShardTransactions
from .counts import Counts
from .delivery import OPERATION, TIMEOUT_S, Delivery
from .lanes import fresh_batches, lane_key, producer_of, with_producer


class TransactionService:
    """One for each node. Loop thread only; ``start`` before anything else, ``stop`` at the end."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._shards = LedShards("transactions", broker, self._make)
        self._counts = Counts()
        broker.topology.peers.answer(OPERATION, self._answer)

    def _make(self, port: ShardPort, start: Start) -> ShardTransactions:
        broker = self._broker
        return ShardTransactions(port, start, broker.topology.shard_count, broker.config, self.send, self._counts)

    def start(self) -> None:
        self._shards.start()

    def begin_stop(self) -> None:
        """Answer held heartbeats at once, now and from here on."""
        self._shards.close()

    async def stop(self) -> None:
        """No request may be in progress."""
        await self._shards.stop()

    # Shards

    def shards(self) -> Sequence[ShardTransactions]:
        """What is known of the shards led here, by number."""
        return self._shards.current()

    def counts(self) -> Counts:
        return self._counts

    def shard_of(self, group: str) -> int:
        """The shard whose leader coordinates a producer group."""
        return key_hash(group) % self._broker.topology.shard_count

    async def coordinator(self, group: str) -> ShardTransactions:
        """What coordinates a producer group. Raises ``NotLeader``, ``Unavailable``."""
        return await self.shard(self.shard_of(group))

    async def shard(self, number: int) -> ShardTransactions:
        """Raises ``NotLeader``, and what reading it may raise."""
        return await self._shards.get(number)

    def hold_s(self, wait_ms: int) -> float:
        """How long a request may be held that asks for ``wait_ms``."""
        return self._shards.hold_s(wait_ms)

    # Deliveries

    async def send(self, shard: int, delivery: Delivery) -> int:
        """To the leader of ``shard``, wherever that is; how many batches were for topics that are gone."""
        topology = self._broker.topology
        if topology.leadership(shard).here:
            return await self.receive(shard, delivery)
        answer = await topology.peers.ask(shard, OPERATION, {"shard": shard, **delivery.to_dict()}, TIMEOUT_S)
        return int(answer["dropped"])

    async def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """A delivery of another node."""
        count, shard = self._broker.topology.shard_count, asked["shard"]
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
                await shard.port.prepare(await self._broker.topic_by_id(topic_id))
            except UnknownTopic:
                gone.add(topic_id)
        shard.check()
        shard.port.check_writable(Ack.QUORUM)
        coordinator = delivery.coordinator
        fresh = fresh_batches(number, shard.last.get(coordinator, 0), delivery)
        if fresh:
            items = [
                (topic_id, RecordBatch(with_producer(batch, *producer_of(coordinator, at)), verify=False))
                for at, topic_id, _, batch in fresh
                if topic_id not in gone
            ]
            documents = {lane_key(coordinator): b"%d" % fresh[-1][0]}
            *_, appended = shard.store.append_many(items, documents=documents)
            future = shard.port.wait(appended, Ack.QUORUM)
            shard.last[coordinator] = fresh[-1][0]
            await shard.durable(future)  # It is stored from here on, whoever leads: no error may say otherwise.
        else:
            await shard.barrier()
            shard.check()
        return sum(topic_id in gone for _, topic_id, _, _ in delivery.batches)
