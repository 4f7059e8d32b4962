"""Transactions at work in a drill: producers that come, finish and are killed, and what to hold them to.

Of two topics, consumers must see all messages of the transactions whose local step was done, each once and in order,
and not one of any other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from lsmq import Consumer
from lsmq.errors import TimedOut
from lsmq.groups import Group
from lsmq.producer_groups import ProducerGroup
from lsmq_lab.history import History, Verdict

from .columns import DrillColumns
from .side_work import POLL_S, SETTLE_TIMEOUT_S, Judgement, SideWork
from .transactors import LocalStep, main, read_ledger

_POLL_MS = 200
_NOWHERE = 1 << 40  # an offset that no message has


class TransactionWork(SideWork):
    """Transactional producers on topics of their own. Their records are the ledgers."""

    suffix = "transactions"
    noun = "producer"

    def __init__(self, urls: Sequence[str], topic: str, queues: int) -> None:
        super().__init__(urls, topic, queues)
        self.topics = (f"{topic}-first", f"{topic}-second")
        self._transactions = ProducerGroup(self._client, self.name)
        self._entries: list[LocalStep] = []
        self._live: dict[str, DrillColumns] = {}
        self._again: dict[str, DrillColumns] = {}

    async def start(self) -> None:
        """One more producer."""
        if not self._tasks:
            for topic in self.topics:
                await self._client.create_topic(topic, queues=self._queues)
            self._tasks.append(asyncio.create_task(self._read(self._live, None), name="transaction reader"))
        number = next(self._numbers)
        options = {"directory": str(self._directory), "topics": self.topics, "queues": self._queues}
        await self._spawn(number, main, number=number, **options)

    async def until_working(self, count: int = 3) -> None:
        """Return when each living producer has done so many local steps more."""
        await self._until_each(b"\n", count, f"did {count} transactions")

    async def coordinator(self) -> int:
        """The shard that coordinates."""
        return (await Group(self._client, self.name).coordinator()).shard

    async def until_decided(self) -> None:
        """Return when nothing is open that those who are gone have begun, and nothing waits for its shard."""
        began = time.monotonic()
        while True:
            members = {member["id"] for member in (await self._transactions.describe())["members"]}
            left = [each for each in await self._transactions.transactions("open") if each.member not in members]
            left += await self._transactions.transactions("undelivered") if not self.processes else []
            if not left and len(members) <= len(self.processes):
                return
            if time.monotonic() - began > SETTLE_TIMEOUT_S:
                raise TimedOut(f"in {SETTLE_TIMEOUT_S:.0f} s these were not decided, or not delivered: {left}")
            await asyncio.sleep(POLL_S)

    # The end

    async def finish(self, latest: Mapping[int, int]) -> None:
        """Besides, everything is read once more from the beginning."""
        if not self.processes:
            await self.start()
        await self.until_decided()
        await self._end_all()
        await self.until_decided()
        self._entries = [entry for ledger in self._directory.iterdir() for entry in read_ledger(ledger)]
        ends = {}
        for topic in self.topics:
            offsets = await self._client.offsets(topic)
            ends[topic] = dict(zip(offsets.queues, offsets.latest, strict=True))
        await self._read(self._again, ends)
        began = time.monotonic()
        while any(len(self._live[topic]) < len(self._again[topic]) for topic in self.topics):
            if time.monotonic() - began > SETTLE_TIMEOUT_S:
                break  # What is missing will be called lost.
            await asyncio.sleep(POLL_S)

    async def _read(self, seen: dict[str, DrillColumns], ends: dict[str, dict[int, int]] | None) -> None:
        """Read both topics from the beginning: up to ``ends``, or until cancelled."""
        seen.update({topic: DrillColumns() for topic in self.topics})
        async with asyncio.TaskGroup() as tasks:
            for topic in self.topics:
                tasks.create_task(self._read_topic(topic, seen[topic], None if ends is None else ends[topic]))

    async def _read_topic(self, topic: str, seen: DrillColumns, ends: dict[int, int] | None) -> None:
        async with Consumer(self._client, topic, queues=range(self._queues), start="earliest") as consumer:
            while ends is None or any(consumer.positions.get(queue, 0) < end for queue, end in ends.items()):
                for message in await consumer.poll(1_000, timeout_ms=_POLL_MS):
                    seen.add(message.queue, message.offset, message.body)

    def judge(self, sent: History) -> Judgement:
        """What local steps say must be seen, against what was, topic by topic."""
        verdicts = [self._verdict(topic) for topic in self.topics]
        note = (
            f"{len({entry.transaction for entry in self._entries}):,} transactions had their local step done, with "
            f"{sum(verdict.acknowledged for verdict in verdicts):,} messages in {len(self.topics)} topics; "
            f"{self.killed} producers were killed"
        )
        return Judgement(verdicts=verdicts, notes=(note,))

    def _verdict(self, topic: str) -> Verdict:
        history, again, steps = History(), self._again[topic], DrillColumns()
        # Transactions are not told where their messages are: the second reading says it, to hold the first against it.
        places = dict(zip(again.sequences, again.offsets, strict=True))
        for at, entry in enumerate(self._entries):
            if f"-{topic}-" in entry.key:
                offset = places.get(entry.sequence, _NOWHERE + at)
                steps.add_fields(entry.queue, offset, entry.key, entry.sequence, entry.digest)
        steps.hand_to(history.acknowledged)
        for name, seen in (("live", self._live[topic]), ("read again", again)):
            seen.hand_to(history.reading(f"{topic} {name}").received)
        return history.check()
