"""Queues by name that are deleted, and used again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from lsmq import Client, Consumer, Message, Producer
from lsmq.errors import LsmqError
from lsmq.queue_names import check_pattern

from .use import DEADLINE_MS, Use, UsedTopics, UseRole, read_to

_WATCHED = check_pattern("*.*")


@dataclass
class _Name:
    """What became of it. One client uses it, one thing after another."""

    life: int = 0
    kept: list[int] = field(default_factory=list)  # acknowledged, and not deleted since
    perhaps: list[int] = field(default_factory=list)  # a deletion after it may have been done
    gone: set[int] = field(default_factory=set)  # was acknowledged, then its queue's deletion


class Named(Use):
    """A message is in the queue whose name it was sent to, and none of a queue that was deleted before."""

    name = "named"
    topics: ClassVar[UsedTopics] = {"agents": {"queues": "named"}}

    def roles(self) -> Sequence[UseRole]:
        self._names = {f"{owner}.{number}": _Name() for owner in ("boss1", "boss2") for number in range(3)}
        return [("boss1", self._use), ("boss2", self._use), ("watcher", self._watch)]

    async def _use(self, client: Client) -> None:
        owner = self.load.cluster.world.scheduler.process.name
        names = [name for name in self._names if name.startswith(owner)]
        async with Producer(client, "agents", deadline_ms=DEADLINE_MS) as producer:
            while not self.load.stopping:
                name = self.random.choice(names)
                known = self._names[name]
                if known.kept and self.random.random() < 0.15:
                    await self._delete(client, name, known)
                else:
                    number = self.load.number()
                    try:
                        await producer.send_and_wait(f"{name} {known.life} {number}", queue=name)
                        known.kept.append(number)
                    except LsmqError:
                        pass
                await self.load.pause(0.01, 0.12)

    async def _delete(self, client: Client, name: str, known: _Name) -> None:
        former, known.kept = known.kept, []
        known.life += 1
        try:
            await client.delete_queue("agents", name, missing_ok=True)
            known.gone.update(former, known.perhaps)
            known.perhaps = []
        except LsmqError:
            known.perhaps += former

    async def _watch(self, client: Client) -> None:
        while not self.load.stopping:
            try:
                group = self.random.choice((None, "watchers"))
                async with Consumer(client, "agents", pattern=_WATCHED, group=group, wait_ms=300) as consumer:
                    while not self.load.stopping and self.random.random() < 0.9:
                        for message in await consumer.poll(50, timeout_ms=300):
                            self._look(message)
            except LsmqError:
                await asyncio.sleep(0.05)

    def _look(self, message: Message) -> tuple[str, int, int]:
        name, life, number = message.text().split()
        if message.queue_name != name:
            self.wrong(f"message {number} was sent to {name}, and comes from {message.queue_name}")
        return name, int(life), int(number)

    async def read_back(self, client: Client) -> None:
        found: dict[str, list[tuple[int, int]]] = {name: [] for name in self._names}
        for queue in await client.queues("agents"):
            consumer = Consumer(client, "agents", queues=[queue.name], wait_ms=200)
            for message in await read_to(consumer, {queue.number: queue.latest} if queue.count else {}):
                name, life, number = self._look(message)
                found[name].append((life, number))
        for name, known in self._names.items():
            numbers = [number for _, number in found[name]]
            self.counted += len(numbers)
            if len(set(numbers)) < len(numbers):
                self.wrong(f"{name} has messages twice: {numbers}")
            if lost := set(known.kept) - set(numbers):
                self.wrong(f"{name} has lost {sorted(lost)}")
            if back := known.gone & set(numbers):
                self.wrong(f"{name} was deleted, and has {sorted(back)} again")
            if found[name] != sorted(found[name]) and len(found[name]) == len(known.kept):
                self.wrong(f"{name} has its messages in another order: {numbers}")
