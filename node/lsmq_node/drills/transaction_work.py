"""Transactions at work in a drill: producers that come, finish and are killed, and what to hold them to.

Of two topics, consumers must see all messages of the transactions whose local step was done, each once and in order,
and not one of any other.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from lsmq import Client, Consumer
from lsmq.errors import TimedOut
from lsmq.groups import Group
from lsmq.producer_groups import ProducerGroup
from lsmq_node.history import History, Verdict

from .transactors import Entry, main, read_ledger

_POLL_S = 0.1
_POLL_MS = 200
_SETTLE_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 60.0
_NOWHERE = 1 << 40  # an offset that no message has


@dataclass(slots=True)
class _Seen:
    """What one reader was handed of one topic, in order."""

    queues: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    digests: list[int] = field(default_factory=list)


class TransactionWork:
    """Transactional producers on topics of their own. ``producers`` are those that live, by number."""

    def __init__(self, urls: Sequence[str], name: str, queues: int) -> None:
        self.group = f"{name}-transactions"
        self.topics = (f"{name}-first", f"{name}-second")
        self.producers: dict[int, subprocess.Popen[bytes]] = {}
        self.killed = 0
        self._urls = list(urls)
        self._queues = queues
        self._numbers = itertools.count(1)
        self._directory = Path(tempfile.mkdtemp(prefix="lsmq-ledgers-"))
        self._client = Client(self._urls, deadline_ms=120_000)
        self._transactions = ProducerGroup(self._client, self.group)
        self._reader: asyncio.Task[None] | None = None
        self._live: dict[str, _Seen] = {}
        self._again: dict[str, _Seen] = {}

    async def start(self) -> int:
        """One more producer; its number."""
        if self._reader is None:
            for topic in self.topics:
                await self._client.create_topic(topic, queues=self._queues)
            self._reader = asyncio.create_task(self._read(self._live, None), name="transaction reader")
        number = next(self._numbers)
        options = {
            "urls": self._urls,
            "directory": str(self._directory),
            "topics": self.topics,
            "queues": self._queues,
            "group": self.group,
            "number": number,
        }
        command = [sys.executable, "-c", f"from {main.__module__} import main; main()", json.dumps(options)]
        self.producers[number] = await asyncio.to_thread(subprocess.Popen[bytes], command, stdin=subprocess.DEVNULL)
        return number

    async def until_working(self, count: int = 3) -> None:
        """Return when each living producer has done so many local steps more."""
        before = {number: len(self._entries(number)) for number in self.producers}
        began = time.monotonic()
        while any(self._done(number) < self._steps(before[number]) + count for number in before):
            for number in before:
                assert self.producers[number].poll() is None, f"producer {number} has ended"
            if time.monotonic() - began > _SETTLE_TIMEOUT_S:
                raise TimedOut(f"in {_SETTLE_TIMEOUT_S:.0f} s not every producer did {count} transactions")
            await asyncio.sleep(_POLL_S)

    def _entries(self, number: int) -> list[Entry]:
        path = self._directory / f"{number}"
        return read_ledger(path) if path.exists() else []

    def _done(self, number: int) -> int:
        return self._steps(len(self._entries(number)))

    def _steps(self, entries: int) -> int:
        return entries // (2 * min(self._queues, 3))

    async def kill(self, number: int) -> None:
        """SIGKILL, wherever it is in its transaction."""
        process = self.producers.pop(number)
        process.kill()
        await asyncio.to_thread(process.wait)
        self.killed += 1

    async def coordinator(self) -> int:
        """The shard that coordinates."""
        return (await Group(self._client, self.group).coordinator()).shard

    async def until_decided(self) -> None:
        """Return when nothing is open that those who are gone have begun, and nothing waits for its shard."""
        began = time.monotonic()
        while True:
            members = {member["id"] for member in (await self._transactions.describe())["members"]}
            left = [each for each in await self._transactions.transactions("open") if each.member not in members]
            left += await self._transactions.transactions("undelivered") if not self.producers else []
            if not left and len(members) <= len(self.producers):
                return
            if time.monotonic() - began > _SETTLE_TIMEOUT_S:
                raise TimedOut(f"in {_SETTLE_TIMEOUT_S:.0f} s these were not decided, or not delivered: {left}")
            await asyncio.sleep(_POLL_S)

    async def finish(self) -> None:
        """Have all producers end well, and read everything once more from the beginning."""
        if len(self.producers) < 1:
            await self.start()
        await self.until_decided()
        for number, process in list(self.producers.items()):
            process.terminate()
            code = await asyncio.to_thread(process.wait, _END_TIMEOUT_S)
            assert code == 0, f"producer {number} ended with {code}"
            del self.producers[number]
        await self.until_decided()
        latest = {}
        for topic in self.topics:
            offsets = await self._client.offsets(topic)
            latest[topic] = dict(zip(offsets.queues, offsets.latest, strict=True))
        await self._read(self._again, latest)
        assert self._reader is not None
        began = time.monotonic()
        while any(len(self._live[topic].queues) < len(self._again[topic].queues) for topic in self.topics):
            if time.monotonic() - began > _SETTLE_TIMEOUT_S:
                break  # What is missing will be called lost.
            await asyncio.sleep(_POLL_S)

    async def close(self) -> None:
        for process in self.producers.values():
            process.kill()
            process.wait()
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        await self._client.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _read(self, seen: dict[str, _Seen], latest: dict[str, dict[int, int]] | None) -> None:
        """Read both topics from the beginning: up to ``latest``, or until cancelled."""
        seen.update({topic: _Seen() for topic in self.topics})
        async with asyncio.TaskGroup() as tasks:
            for topic in self.topics:
                tasks.create_task(self._read_topic(topic, seen[topic], None if latest is None else latest[topic]))

    async def _read_topic(self, topic: str, seen: _Seen, latest: dict[int, int] | None) -> None:
        async with Consumer(self._client, topic, queues=range(self._queues), start="earliest") as consumer:
            while latest is None or any(consumer.positions.get(queue, 0) < end for queue, end in latest.items()):
                for message in await consumer.poll(1_000, timeout_ms=_POLL_MS):
                    sequence, key = message.body.split(b" ", 2)[:2]
                    seen.queues.append(message.queue)
                    seen.offsets.append(message.offset)
                    seen.keys.append(key.decode())
                    seen.sequences.append(int(sequence))
                    seen.digests.append(xxhash.xxh64_intdigest(message.body))

    # The verdict, after the end

    def verdicts(self) -> list[Verdict]:
        """What local steps say must be seen, against what was, topic by topic."""
        entries = [entry for path in self._directory.iterdir() for entry in read_ledger(path)]
        return [
            self._verdict(topic, [entry for entry in entries if f"-{topic}-" in entry.key]) for topic in self.topics
        ]

    def _verdict(self, topic: str, entries: Sequence[Entry]) -> Verdict:
        history, again = History(), self._again[topic]
        # Transactions are not told where their messages are: the second reading says it, to hold the first against it.
        places = dict(zip(again.sequences, again.offsets, strict=True))
        history.acknowledged(
            [entry.queue for entry in entries],
            [places.get(entry.sequence, _NOWHERE + at) for at, entry in enumerate(entries)],
            [entry.key for entry in entries],
            [entry.sequence for entry in entries],
            digests=[entry.digest for entry in entries],
        )
        for name, seen in (("live", self._live[topic]), ("read again", again)):
            history.reading(f"{topic} {name}").received(
                seen.queues, seen.offsets, seen.keys, seen.sequences, digests=seen.digests
            )
        return history.check()

    def summary(self, verdicts: Sequence[Verdict]) -> str:
        """A line for the report."""
        entries = [entry for path in self._directory.iterdir() for entry in read_ledger(path)]
        return (
            f"{len({entry.transaction for entry in entries}):,} transactions had their local step done, with "
            f"{sum(verdict.acknowledged for verdict in verdicts):,} messages in {len(self.topics)} topics; "
            f"{self.killed} producers were killed"
        )
