"""Applications that use a cluster while it suffers, and what must hold of what they were told.

Producers send to ``orders``; members of a group read it; workers take ``jobs``; a transactional producer writes pairs
to ``ledger``. All are the client library, in processes of their own. What each was told is kept for the verdict.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from lsmq import Client, Consumer, Producer, Task, TransactionalProducer, WorkQueue
from lsmq.errors import LsmqError, ReceiptExpired
from lsmq_lab.history import History

from .simulated_cluster import SimulatedCluster
from .uses import USES, Use
from .uses.use import DEADLINE_MS, AskedWork, UsedTopics, UseRole, all_of, text_of

QUEUES = 4
#: What clients do beside orders where nothing else is said: each in a topic of its name.
USUAL = ("jobs", "ledger")
_ACCOUNTS = ("account-1", "account-2", "account-3")


class RolledBack(Exception):
    """Ends a transaction that is not to be."""


class Clients:
    """Orders that are sent and read by a group, and the ``uses`` that are named: ``jobs``, ``ledger``, and those of
    :mod:`.uses`. Until ``stopping``; then :meth:`read_back`, and :meth:`verdict`."""

    def __init__(self, cluster: SimulatedCluster, uses: Sequence[str] = USUAL) -> None:
        self.cluster = cluster
        self.random = cluster.world.random.__class__(cluster.world.random.getrandbits(64))
        self.orders = History()
        self.members = self.orders.reading("group")
        self.stopping = False
        self.pace = self.random.choice((1.0, 2.0, 4.0))
        self.sent_jobs: set[int] = set()
        self.got_jobs: set[int] = set()
        self.done_jobs: dict[tuple[int, int], float] = {}  # when they were known to be
        self._acked_jobs: set[tuple[int, int]] = set()  # somebody has tried to
        self._last_job: dict[tuple[int, str], tuple[int, float]] = {}  # by queue and key: the greatest offset, and when
        self.outcomes: dict[int, str] = {}
        self.acknowledged = self.unknown = 0
        self.running = 0
        self._numbers = 0
        self._places: dict[int, tuple[int, int]] = {}
        self._pending: dict[str, list[int]] = {}
        self.uses: list[Use] = [USES[name](self) for name in uses if name in USES]
        roles: list[UseRole] = [
            ("producer1", self._produce),
            ("producer2", self._produce),
            ("member1", self._consume),
            ("member2", self._consume),
        ]
        if "jobs" in uses:
            roles += [("sender", self._send_jobs), ("worker1", self._work), ("worker2", self._work)]
        if "ledger" in uses:
            roles.append(("bank", self._transact))
        self._topics: UsedTopics = {
            topic: {"queues": QUEUES} for topic in ("orders", *USUAL) if topic in ("orders", *uses)
        }
        hosts = (f"10.0.1.{number}" for number in count(1))
        for name, role in roles:
            self._start(name, next(hosts), role, self._topics)
        for use in self.uses:
            for name, role in use.roles():
                self._start(name, next(hosts), role, use.topics)

    def _start(self, name: str, host: str, role: Callable[[Client], Awaitable[None]], topics: UsedTopics) -> None:
        world = self.cluster.world
        process = world.process(name, host, steady_s=5_000.0 + len(name))
        self.running += 1
        self.cluster.client_hosts.append(host)

        async def live() -> None:
            async with Client(self.cluster.urls, deadline_ms=DEADLINE_MS) as client:
                await self._prepare(client, topics)
                await role(client)

        def main() -> None:
            try:
                world.loop_run(live)
            except BaseException as error:
                self.cluster.broke(f"client {name}", error)
            finally:
                self.running -= 1

        world.scheduler.spawn(main, "main", process)

    async def _prepare(self, client: Client, topics: UsedTopics) -> None:
        while True:
            try:
                for topic, options in topics.items():
                    await client.create_topic(topic, exist_ok=True, **options)
                return
            except LsmqError:
                await asyncio.sleep(0.2)

    async def pause(self, least_s: float, most_s: float) -> None:
        """Between one thing and the next: in some runs everybody is busy, in others nobody."""
        await asyncio.sleep(self.pace * self.random.uniform(least_s, most_s))

    def number(self) -> int:
        """A new one, of everything that is sent."""
        self._numbers += 1
        return self._numbers

    def broke(self, what: str) -> None:
        """Something that must never happen."""
        self.cluster.problems.append(what)
        self.cluster.note(f"BROKE {what}")

    async def _produce(self, client: Client) -> None:
        name = self.cluster.world.scheduler.process.name
        async with Producer(client, "orders", deadline_ms=DEADLINE_MS, linger_ms=2) as producer:
            while not self.stopping:
                keys = [f"{name}-{self.random.randrange(3)}" for _ in range(self.random.randint(1, 4))]
                numbers = [self.number() for _ in keys]
                receipts = []
                for key, number in zip(keys, numbers, strict=True):
                    try:
                        receipts.append(await producer.send(f"{number} {'x' * self.random.randrange(300)}", key=key))
                    except LsmqError:
                        self.orders.unknown([key], [number])
                for key, number, receipt in zip(keys, numbers, receipts, strict=False):
                    try:
                        sent = await receipt
                    except LsmqError as error:
                        self.unknown += 1
                        self.cluster.note(f"unknown {number}: {error.code}")
                        self.orders.unknown([key], [number])
                    else:
                        self.acknowledged += 1
                        self.orders.acknowledged([sent.queue], [sent.offset], [key], [number])
                await self.pause(0.01, 0.15)

    async def _consume(self, client: Client) -> None:
        me = int(self.cluster.world.scheduler.process.name[-1])
        while not self.stopping:
            try:
                async with Consumer(client, "orders", group="readers", session_ms=2_000, wait_ms=300) as consumer:
                    while not self.stopping:
                        messages = await consumer.poll(50, timeout_ms=500)
                        if messages:
                            self.members.received(
                                [message.queue for message in messages],
                                [message.offset for message in messages],
                                [text_of(message.key) for message in messages],
                                [int(message.text().split()[0]) for message in messages],
                                consumer=me,
                            )
                        if self.random.random() < 0.3:
                            await consumer.commit()
                        if self.random.random() < 0.03:
                            break
                        if self.random.random() < 0.3:
                            await self.pause(0, 0.3)
            except LsmqError as error:
                self.cluster.note(f"member {me}: {error.code}")
                await asyncio.sleep(0.05)

    async def _send_jobs(self, client: Client) -> None:
        async with Producer(client, "jobs", deadline_ms=DEADLINE_MS) as producer:
            while not self.stopping:
                number = self.number()
                try:
                    key = self.random.choice((None, *_ACCOUNTS))
                    await producer.send_and_wait(str(number), key=key)
                    self.sent_jobs.add(number)
                except LsmqError:
                    pass
                await self.pause(0.01, 0.2)

    def _crew(self, client: Client, visibility_ms: int) -> AskedWork:
        world = self.cluster.world
        more: dict[str, Any] = {"visibility_ms": visibility_ms, "wait_ms": 300, "order": "key"}
        return AskedWork(client, "jobs", "crew", now=lambda: world.now, **more)

    async def _configure(self, work: WorkQueue) -> None:
        await work.configure(order="key", max_deliveries=1_000)

    def _came(self, work: AskedWork, task: Task) -> tuple[int, int]:
        place, number = (task.message.queue, task.message.offset), int(task.text())
        if self.done_jobs.get(place, work.asked[task.receipt]) < work.asked[task.receipt]:
            self.broke(f"job {number} at {place} was asked for after it was acknowledged, and came")
        self.got_jobs.add(number)
        if task.message.key is not None:
            self._in_order(place, text_of(task.message.key) or "", work.asked[task.receipt])
        return place

    def _in_order(self, place: tuple[int, int], key: str, asked: float) -> None:
        """Of a key, the next one comes when the one before was acknowledged, and none of before after it."""
        queue, offset = place
        last, since = self._last_job.get((queue, key), (-1, 0.0))
        if offset < last and asked > since:
            self.broke(f"job {offset} of {key} in queue {queue} was asked for after {last} had come, and came")
        if offset > last:
            if last >= 0 and (queue, last) not in self._acked_jobs:
                self.broke(f"job {offset} of {key} in queue {queue} came before {last} was acknowledged")
            self._last_job[queue, key] = offset, self.cluster.world.now

    async def _work(self, client: Client) -> None:
        while not self.stopping:
            work = self._crew(client, visibility_ms=1_000)
            try:
                await self._configure(work)
                while not self.stopping:
                    for task in await work.poll(4, timeout_ms=500):
                        place = self._came(work, task)
                        chance = self.random.random()
                        try:
                            if chance < 0.7:
                                self._acked_jobs.add(place)
                                await task.ack()
                                self.done_jobs[place] = self.cluster.world.now
                            elif chance < 0.85:
                                await task.nack(delay_ms=100)
                            elif chance < 0.9:
                                await asyncio.sleep(1.2)
                        except ReceiptExpired:
                            pass
            except LsmqError as error:
                self.cluster.note(f"worker: {error.code}")
                await asyncio.sleep(0.05)
            finally:
                await work.close()

    async def _transact(self, client: Client) -> None:
        while not self.stopping:
            try:
                async with TransactionalProducer(
                    client,
                    "bank",
                    session_ms=3_000,
                    check_after_ms=1_500,
                    check_every_ms=500,
                    max_checks=1,
                    deadline_ms=DEADLINE_MS,
                ) as producer:
                    while not self.stopping:
                        number = self.number()
                        self.outcomes[number] = "unknown"
                        try:
                            async with producer.transaction(reference=str(number)) as transaction:
                                for queue in self.random.sample(range(QUEUES), 2):
                                    await transaction.send("ledger", str(number), queue=queue)
                                if self.random.random() < 0.25:
                                    raise RolledBack
                            self.outcomes[number] = "committed"
                        except RolledBack:
                            self.outcomes[number] = "rolled back"
                        except LsmqError as error:
                            self.cluster.note(f"transaction {number}: {error.code}")
                        await self.pause(0.02, 0.2)
            except LsmqError as error:
                self.cluster.note(f"bank: {error.code}")
                await asyncio.sleep(0.05)

    # Afterwards

    async def read_back(self, client: Client) -> None:
        """Read everything, once the cluster is well, and compare."""
        whole = self.orders.reading("read back")
        for message in await all_of(client, "orders"):
            whole.received(
                [message.queue],
                [message.offset],
                [text_of(message.key)],
                [int(message.text().split()[0])],
            )
        if "ledger" in self._topics:
            await self._look_at_ledger(client)
        if "jobs" in self._topics:
            await self._drain_jobs(client)
        for use in self.uses:
            await use.read_back(client)

    async def _look_at_ledger(self, client: Client) -> None:
        wrong: list[str] = []
        for _ in range(60):  # What is committed is seen soon, and what nobody decided is rolled back in time.
            counts: dict[int, int] = {}
            for message in await all_of(client, "ledger"):
                number = int(message.text())
                counts[number] = counts.get(number, 0) + 1
            wanted = {"committed": (2,), "rolled back": (0,), "unknown": (0, 2)}
            wrong = [
                f"transaction {number} was {outcome}, and {counts.get(number, 0)} of 2 messages are seen"
                for number, outcome in self.outcomes.items()
                if counts.get(number, 0) not in wanted[outcome]
            ]
            if not wrong:
                return
            await asyncio.sleep(0.5)
        for each in wrong:
            self.broke(each)

    async def _drain_jobs(self, client: Client) -> None:
        work = self._crew(client, visibility_ms=30_000)
        try:
            await self._configure(work)  # Nobody may have come to it.
            for _ in range(400):
                if self.sent_jobs <= self.got_jobs:
                    return
                for task in await work.poll(100, timeout_ms=500):
                    self._acked_jobs.add(self._came(work, task))
                    with suppress(ReceiptExpired):  # Another leader does not know of the delivery.
                        await task.ack()
        finally:
            await work.close()
        self.broke(f"jobs {sorted(self.sent_jobs - self.got_jobs)[:5]} were acknowledged and never came")

    def verdict(self) -> list[str]:
        """What is wrong with the orders."""
        again = {"lost", "received twice", "went back", "skipped", "out of order"}
        verdict = self.orders.check()
        return [
            str(anomaly)
            for anomaly in verdict.anomalies
            # The group may be handed things again, and need not have come to the end.
            if not (anomaly.reading == "group" and anomaly.kind.value in again)
        ]
