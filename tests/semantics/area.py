"""What a client knows of the cluster that it lives with, and the areas of what messages mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from lsmq import Client, Consumer, Message, Producer
from lsmq._retries import Deadline
from lsmq_lab.world.simulated_cluster import SimulatedCluster

#: Shard, node and epoch of each that leads.
Leaders = frozenset[tuple[int, str, int]]
KEYS = (None, "a", "b", "c")
TAGS = (None, "x", "y")
DAY_MS = 86_400_000


class Life:
    """One client, which does one thing after another: each answer is known."""

    def __init__(self, cluster: SimulatedCluster, client: Client) -> None:
        self.cluster, self.client = cluster, client
        self.producers: dict[str, Producer] = {}
        self._numbers = 0

    @property
    def last(self) -> int:
        """The number that was given last."""
        return self._numbers

    def number(self) -> int:
        """A new one, of everything that is sent."""
        self._numbers += 1
        return self._numbers

    async def producer(self, topic: str, *, name: str = "", **options: Any) -> Producer:
        """The one of that name, or of the topic."""
        name = name or topic
        if name not in self.producers:
            self.producers[name] = Producer(self.client, topic, linger_ms=0, **options)
            await self.producers[name].start()
        return self.producers[name]

    async def send(self, topic: str, body: bytes | str, **fields: Any) -> Any:
        """Its receipt."""
        return await (await self.producer(topic)).send_and_wait(body, **fields)

    async def close(self) -> None:
        for producer in self.producers.values():
            await producer.close()

    async def read(self, topic: str, queue: int, **options: Any) -> list[Message]:
        """All messages of a queue, to where it ends now."""
        found: list[Message] = []
        end = (await self.client.offsets(topic)).latest[queue]
        consumer = Consumer(self.client, topic, queues=[queue], start="earliest", wait_ms=200, **options)
        async with consumer:
            while consumer.positions.get(queue, 0) < end:
                messages = await consumer.poll(timeout_ms=1_000)
                found += messages
                if not messages and (await self.client.offsets(topic)).earliest[queue] >= end:
                    break  # It went meanwhile, and a reader moves with what comes.
        return found

    async def ask_crew(self, what: str, name: str, *, queue: int = 0, **fields: Any) -> Any:
        """The only worker asks who leads a queue for work, or settles it: without the client's consumer, which asks
        ahead, and what it has then is not the highest by now."""
        topic, path = await self.client.topic(name), f"/v1/groups/crew/{what}"
        value = {"topic": name, **fields}
        shard, deadline = topic.route(queue).shard, Deadline(60_000)
        answer = await self.client._router.ask_leader(topic, shard, "POST", path, value=value, deadline=deadline)
        return answer.value()

    async def pop(self, name: str, *, waits: bool) -> Mapping[str, Any] | None:
        """One piece of work of one queue, if there is any; ``waits`` where there must be."""
        found = (await self.ask_crew("pop", name, max=1, wait_ms=5_000 if waits else 0))["messages"]
        assert len(found) <= 1
        return found[0] if found else None

    async def settle_task(self, name: str, task: Mapping[str, Any], *, done: bool) -> None:
        """It is done, or given back."""
        more = {} if done else {"delay_ms": 0}
        settled = await self.ask_crew("ack" if done else "nack", name, receipts=[task["receipt"]], **more)
        assert settled["refused"] == []

    def leaders(self) -> Leaders:
        """Who leads which shard, since which epoch."""
        replicas = self.cluster.replicas()
        return frozenset((each.shard, node.id, each.epoch) for node, each in replicas if each.serving)


class Area:
    """A part of what messages mean: what a client does with topics of its own, and what a plain model says then.

    Each deed is a method that takes three numbers, from 0 to 59, which say how; it asserts that the cluster did as the
    model says.
    """

    #: By name, with their options.
    topics: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    #: Names of methods; what is more frequent in plans is there more often.
    deeds: ClassVar[Sequence[str]] = ()

    def __init__(self, life: Life) -> None:
        self.life, self.client = life, life.client

    async def start(self) -> None:
        """Once topics are there."""

    async def rouse(self) -> None:
        """Before time passes in which all settles."""

    async def settled(self) -> None:
        """So much time has passed that what goes in the background is gone, and what is due has come."""

    async def finish(self) -> None:
        """Look at all there is, once all has settled for the last time."""
