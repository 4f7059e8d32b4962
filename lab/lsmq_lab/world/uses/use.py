"""One way to use a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from typing import Any, ClassVar, Protocol

from lsmq import Client, Consumer, Message, Topic, WorkQueue
from lsmq.work_queue_values import PoppedMessage

from ..simulated_cluster import SimulatedCluster

DEADLINE_MS = 3_000
#: Options of topics by name.
UsedTopics = Mapping[str, Mapping[str, Any]]
UseRole = tuple[str, Callable[[Client], Awaitable[None]]]


class UseRunner(Protocol):
    """Who runs it."""

    cluster: SimulatedCluster
    random: Random
    stopping: bool

    async def pause(self, least_s: float, most_s: float) -> None:
        """Let some time go by, drawn between the two."""

    def number(self) -> int:
        """A new one, of everything that is sent."""

    def broke(self, what: str) -> None:
        """Something that must never happen."""


class Use:
    """``topics`` are made, each of ``roles`` is a client of its own until ``load.stopping``, then :meth:`read_back`."""

    name: str
    topics: ClassVar[UsedTopics] = {}
    #: Replicas may show other messages of them, each by its clock.
    expires = False

    def __init__(self, load: UseRunner) -> None:
        self.load = load
        self.random = Random(load.random.getrandbits(64))
        self.counted = 0

    def roles(self) -> Sequence[UseRole]:
        """Names of clients, and what each does."""
        raise NotImplementedError

    async def read_back(self, client: Client) -> None:
        """Compare, once the cluster is well and all roles have ended."""
        raise NotImplementedError

    @property
    def wall_ms(self) -> float:
        """By a clock that is right."""
        return self.load.cluster.world.scheduler.world.wall_time() * 1000

    def leaders(self) -> set[tuple[int, str, int]]:
        """Of each shard, and in which epoch."""
        replicas = self.load.cluster.replicas()
        return {(each.shard, node.id, each.epoch) for node, each in replicas if each.serving}

    def wrong(self, what: str) -> None:
        self.load.broke(f"{self.name}: {what}")


class AskedWork(WorkQueue):
    """Keeps when each delivery was asked for: it was made after that."""

    def __init__(self, *arguments: Any, now: Callable[[], float], **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._now = now
        self.asked: dict[str, float] = {}

    def _found(self, topic: Topic, popped: PoppedMessage, asked_at: float) -> None:
        ago = asyncio.get_running_loop().time() - asked_at
        self.asked[popped.receipt] = self._now() - ago
        super()._found(topic, popped, asked_at)


async def all_of(client: Client, topic: str, **named: Any) -> list[Message]:
    """Every message of a topic whose queues have numbers, from its earliest."""
    ends = await client.offsets(topic)
    bounds = zip(ends.queues, ends.earliest, ends.latest, strict=True)
    wanted = {queue: end for queue, first, end in bounds if first < end}
    return await read_to(Consumer(client, topic, wait_ms=200, **named), wanted)


async def read_to(consumer: Consumer, ends: Mapping[int, int]) -> list[Message]:
    """What comes until its positions are there, by queue."""
    found: list[Message] = []
    async with consumer:
        while any(consumer.positions.get(queue, 0) < end for queue, end in ends.items()):
            before = dict(consumer.positions)
            messages = await consumer.poll(500, timeout_ms=5_000)
            if not messages and dict(consumer.positions) == before:
                raise AssertionError(f"nothing more comes at {before} of {dict(ends)}")
            found += messages
    return found


def text_of(key: str | bytes | None) -> str | None:
    return key.decode() if isinstance(key, bytes) else key
