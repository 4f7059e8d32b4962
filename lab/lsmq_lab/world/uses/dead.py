"""A work queue whose workers fail, refuse and leave; and somebody who sends its dead letters again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar

from lsmq import Client, Producer, Task, WorkQueue
from lsmq.dead_letters import DeadLetter, DeadLetters
from lsmq.errors import LsmqError, ReceiptExpired, UnknownTopic

from .use import DEADLINE_MS, Use, UsedTopics, UseRole

_QUEUES, _MOST = 2, 3
_VISIBLE_MS = 400
_REFUSED = "refused"
_PROMPT_S = 0.05  # in which nothing is tried twice
_LOOKS = 60
_CALM_JOBS = 2

Place = tuple[int, int]


class Dead(Use):
    """Each job is done or a dead letter in the end: none is neither, and none is dead before it failed so often."""

    name = "dead"
    topics: ClassVar[UsedTopics] = {"doomed": {"queues": _QUEUES}}

    def roles(self) -> Sequence[UseRole]:
        self._sent: set[int] = set()
        self._done: set[int] = set()
        self._surely_done: set[Place] = set()  # no attempt was lost that may have been late
        self._refused: set[Place] = set()  # a worker has tried to
        self._came: dict[Place, int] = {}
        return [
            ("employer", self._send),
            ("doomed1", self._work),
            ("doomed2", self._work),
            ("waker", self._replay),
        ]

    async def _send(self, client: Client) -> None:
        async with Producer(client, "doomed", deadline_ms=DEADLINE_MS) as producer:
            while not self.load.stopping:
                await self._put(producer)
                await self.load.pause(0.01, 0.1)

    async def _put(self, producer: Producer) -> Place | None:
        number = self.load.number()
        try:
            sent = await producer.send_and_wait(str(number), key=str(number))
        except LsmqError:
            return None
        self._sent.add(number)
        return sent.queue, sent.offset

    def _crew(self, client: Client, visibility_ms: int = _VISIBLE_MS) -> WorkQueue:
        return WorkQueue(client, "doomed", "wretches", visibility_ms=visibility_ms, wait_ms=300)

    async def _configure(self, work: WorkQueue) -> None:
        await work.configure(max_deliveries=_MOST, retry_first_ms=50, retry_max_ms=200)

    async def _work(self, client: Client) -> None:
        while not self.load.stopping:
            work = self._crew(client)
            try:
                await self._configure(work)
                while not self.load.stopping and self.random.random() < 0.97:
                    for task in await work.poll(3, timeout_ms=300):
                        with suppress(ReceiptExpired):
                            await self._settle(task)
            except LsmqError:
                await asyncio.sleep(0.05)
            finally:
                await work.close()

    async def _settle(self, task: Task) -> None:
        self._come(task)
        place, chance = _place(task), self.random.random()
        if chance < 0.4:
            await self._ack(task)
        elif chance < 0.75:
            await task.nack(delay_ms=self.random.choice((None, 0, 50)), reason="failed")
        elif chance < 0.85:
            self._refused.add(place)
            await task.nack(dead_letter=True, reason=_REFUSED)
        elif chance < 0.9:
            await asyncio.sleep(1.2 * _VISIBLE_MS / 1000)

    def _come(self, task: Task) -> None:
        place = _place(task)
        self._came[place] = self._came.get(place, 0) + 1
        if task.deliveries > _MOST:
            self.wrong(f"job {task.text()} at {place} is delivered for the {task.deliveries}th time")

    async def _ack(self, task: Task) -> None:
        began_s = asyncio.get_running_loop().time()
        try:
            await task.ack()
        except ReceiptExpired:
            return
        except LsmqError:
            self._done.add(int(task.text()))
            raise
        self._done.add(int(task.text()))
        if asyncio.get_running_loop().time() - began_s < _PROMPT_S:
            self._surely_done.add(_place(task))

    async def _replay(self, client: Client) -> None:
        letters = DeadLetters(client, "doomed.dlq")
        while not self.load.stopping:
            await self.load.pause(0.1, 0.4)
            try:
                found = [letter async for letter in letters.read()]
                self._look(found)
                if found:
                    await letters.replay(self.random.sample(found, self.random.randint(1, len(found))))
            except LsmqError:
                pass

    def _look(self, letters: Sequence[DeadLetter]) -> None:
        for letter in letters:
            what, place = f"job {letter.message.text()}", (letter.queue, letter.offset)
            if letter.reason == _REFUSED:
                if place not in self._refused:
                    self.wrong(f"{what} is dead as if somebody had refused it")
            elif letter.deliveries < _MOST:
                self.wrong(f"{what} is dead after {letter.deliveries} deliveries")
            if place in self._surely_done:
                self.wrong(f"{what} was done, and is dead")

    async def read_back(self, client: Client) -> None:
        await self._drain(client)
        letters = await _letters(client)
        self._look(letters)
        dead = {int(letter.message.text()) for letter in letters}
        if neither := self._sent - self._done - dead:
            self.wrong(f"jobs {sorted(neither)[:5]} were acknowledged, and are neither done nor dead")
        self.counted = sum(self._came.values()) - len(self._came)
        await self._fail_often(client)

    async def _drain(self, client: Client) -> None:
        """Until nothing waits for anybody."""
        work = self._crew(client, visibility_ms=30_000)
        left: tuple[int, ...] = ()
        try:
            await self._configure(work)  # Nobody may have come to it.
            for _ in range(_LOOKS):
                for task in await work.poll(100, timeout_ms=500):
                    self._come(task)
                    await self._ack(task)
                state = await work.describe()
                left = state.undelivered, state.in_flight, state.dead
                if not any(left):
                    return
        finally:
            await work.close()
        self.wrong(f"{left} jobs are still to be delivered, delivered, or on their way to the dead letters")

    async def _fail_often(self, client: Client) -> None:
        """In a calm each failure is known."""
        leaders, failed = self._leaders(), dict[Place, int]()
        work = self._crew(client, visibility_ms=30_000)
        try:
            async with Producer(client, "doomed") as producer:
                places = {await self._put(producer) for _ in range(_CALM_JOBS)}
            for _ in range(_CALM_JOBS * _MOST):
                for task in await work.poll(1, timeout_ms=5_000):
                    failed[_place(task)] = failed.get(_place(task), 0) + 1
                    await task.nack(delay_ms=0)
        except ReceiptExpired:  # Somebody else leads.
            pass
        finally:
            await work.close()
        for _ in range(_LOOKS):
            dead = {(letter.queue, letter.offset) for letter in await _letters(client)}
            if places <= dead or leaders != self._leaders():
                break
            await asyncio.sleep(0.2)
        if leaders == self._leaders() and failed != dict.fromkeys(places, _MOST):
            self.wrong(f"jobs were delivered {failed} times before they were dead, each to be {_MOST} times")
        if leaders == self._leaders() and not places <= dead:
            self.wrong(f"jobs {places - dead} have failed for the last time, and are no dead letters")

    def _leaders(self) -> set[tuple[int, str, int]]:
        replicas = self.load.cluster.replicas()
        return {(each.shard, node.id, each.epoch) for node, each in replicas if each.serving}


def _place(task: Task) -> Place:
    return task.message.queue, task.message.offset


async def _letters(client: Client) -> list[DeadLetter]:
    try:
        return [letter async for letter in DeadLetters(client, "doomed.dlq").read()]
    except UnknownTopic:
        return []
