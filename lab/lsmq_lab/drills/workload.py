"""Producers and consumers that work while a drill goes on, and remember all they sent and got.

Everything goes through the client library, as an application would do it: producers are idempotent and wait for
``ack=quorum``, consumers read all queues and commit.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import TypeVar

from lsmq import Client, Consumer, Producer
from lsmq.errors import LsmqError
from lsmq.topics import Topic
from lsmq_lab.history import History, Verdict

from .columns import DrillColumns
from .side_work import DEADLINE_MS, Judgement, SideWork

QUEUES_PER_SHARD = 4

_TICK_S = 0.025
_BURST = 3
_MAX_UNSETTLED = 20_000
_PADDING = "x" * 80
_COMMIT_S = 0.1
_WATCH_S = 0.2
_DRAIN_TIMEOUT_S = 180.0
_POLL_MS = 200
_WAIT_MS = 1_000


Side = TypeVar("Side", bound=SideWork)


class DrillWorkload:
    """``async with DrillWorkload(urls, shards) as work``: it works until :meth:`finish`. One event loop."""

    def __init__(self, urls: Sequence[str], shards: int, *, producers: int = 3, consumers: int = 2) -> None:
        self._urls = list(urls)
        self._queues = shards * QUEUES_PER_SHARD
        self._producers, self._consumers = producers, consumers
        self._acknowledged = DrillColumns()
        self._unanswered = DrillColumns()
        self._errors: set[str] = set()
        #: What each reader was handed, by its name.
        self._readings: dict[str, DrillColumns] = {}
        self._sequence = itertools.count()
        #: Of this run alone, so that a cluster that was drilled before may be drilled again.
        self._topic = f"drill-{uuid.uuid4().hex[:8]}"
        self._stopping = asyncio.Event()
        self._drained = asyncio.Event()
        #: Times of acknowledgements by shard, each rising.
        self._acknowledged_at: list[list[float]] = [[] for _ in range(shards)]
        self._latest: dict[int, int] | None = None
        self.offsets_that_went_back = 0
        self.topic: Topic
        self._sides: list[SideWork] = []

    async def __aenter__(self) -> DrillWorkload:
        async with self._client() as client:
            self.topic = await client.create_topic(self._topic, queues=self._queues)
        self._tasks = [
            *(
                asyncio.create_task(self._produce(number), name=f"producer {number}")
                for number in range(self._producers)
            ),
            *(
                asyncio.create_task(self._consume(number), name=f"consumer {number}")
                for number in range(self._consumers)
            ),
            asyncio.create_task(self._watch_commits(), name="watch commits"),
        ]
        await self.acknowledged_on(range(len(self._acknowledged_at)))
        return self

    async def __aexit__(self, *failure: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for side in self._sides:
            await side.close()

    def beside(self, kind: type[Side]) -> Side:
        """The side work of a kind; the first call makes it, and starts nothing yet."""
        for side in self._sides:
            if isinstance(side, kind):
                return side
        made = kind(self._urls, self._topic, self._queues)
        self._sides.append(made)
        return made

    def _client(self) -> Client:
        return Client(self._urls, deadline_ms=DEADLINE_MS)

    # What drills ask while it works

    def has_acknowledged(self, shard: int, since: float) -> bool:
        """Whether the shard has acknowledged a write after ``since``."""
        times = self._acknowledged_at[shard]
        return len(times) > bisect.bisect_right(times, since)

    async def acknowledged_on(self, shards: Iterable[int], since: float | None = None, count: int = 1) -> None:
        """Return when each of the shards has acknowledged ``count`` writes after ``since`` (now)."""
        since = time.monotonic() if since is None else since
        waiting = set(shards)
        while waiting:
            for task in self._tasks:
                if task.done() and not task.cancelled():
                    task.result()  # Raises what ended it.
            for shard in list(waiting):
                times = self._acknowledged_at[shard]
                if len(times) - bisect.bisect_right(times, since) >= count:
                    waiting.discard(shard)
            if waiting:
                await asyncio.sleep(_TICK_S)

    def longest_gap_s(self, shard: int, since: float, until: float | None = None) -> float:
        """The longest time without an acknowledgement of a shard, from the last one before ``since`` on."""
        times = self._acknowledged_at[shard]
        first = max(0, bisect.bisect_right(times, since) - 1)
        last = len(times) if until is None else bisect.bisect_left(times, until) + 1
        stretch = times[first:last]
        return max((later - earlier for earlier, later in itertools.pairwise(stretch)), default=0.0)

    # The end

    async def finish(self) -> None:
        """Stop producing, let the consumers get to the end, and read everything once more from the beginning."""
        producing, others = self._tasks[: self._producers], self._tasks[self._producers :]
        self._stopping.set()
        await asyncio.gather(*producing)
        async with self._client() as client:
            offsets = await client.offsets(self._topic)
            self._latest = dict(zip(offsets.queues, offsets.latest, strict=True))
            self._drained.set()
            await asyncio.gather(*others)
            for side in self._sides:
                await side.finish(self._latest)
            await self._read_again(client)

    async def _read_again(self, client: Client) -> None:
        receipts = self._readings["read again"] = DrillColumns()
        async with Consumer(client, self._topic, start="earliest", wait_ms=_WAIT_MS) as consumer:
            await self._read_to_the_end(consumer, receipts)

    def verdict(self) -> Verdict:
        """What was acknowledged against what each reader got. After :meth:`finish`."""
        history = self._history()
        for name, receipts in self._readings.items():
            receipts.hand_to(history.reading(name).received)
        return history.check()

    def judgements(self) -> list[Judgement]:
        """The same for each side work."""
        return [side.judge(self._history()) for side in self._sides]

    def _history(self) -> History:
        """All that was sent."""
        history = History()
        self._acknowledged.hand_to(history.acknowledged)
        unanswered = self._unanswered
        history.unknown(unanswered.keys, unanswered.sequences, digests=unanswered.digests)
        return history

    @property
    def errors(self) -> list[str]:
        """What sends failed with, for those whose answer never came."""
        return sorted(self._errors)

    # Producers

    async def _produce(self, number: int) -> None:
        """A burst to one queue of each shard a tick; each queue has one key of this producer."""
        shards = len(self._acknowledged_at)
        settling: set[asyncio.Task[None]] = set()
        async with self._client() as client, Producer(client, self._topic, ack="quorum", linger_ms=5) as producer:
            for tick in itertools.count(number):
                if self._stopping.is_set():
                    break
                for shard in range(shards):
                    queue = self._queue(shard, tick)
                    task = asyncio.create_task(self._send(producer, f"p{number}-q{queue}", queue, shard))
                    settling.add(task)
                    task.add_done_callback(settling.discard)
                    # The sends of one key must be handed over in the order of their sequences.
                    await asyncio.sleep(0)
                await asyncio.sleep(_TICK_S)
                while len(settling) * _BURST > _MAX_UNSETTLED:
                    await asyncio.wait(settling, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.gather(*settling)

    def _queue(self, shard: int, tick: int) -> int:
        """A queue of a shard; which, changes with the tick."""
        ranges = [range(route.first, route.end) for route in self.topic.routes if route.shard == shard]
        queues = ranges[tick % len(ranges)]
        return queues[tick % len(queues)]

    async def _send(self, producer: Producer, key: str, queue: int, shard: int) -> None:
        bodies = [f"{next(self._sequence)} {key} {_PADDING}".encode() for _ in range(_BURST)]
        offsets = [-1] * _BURST
        sent = self._unanswered
        try:
            receipts = await producer.send_many([(key, body) for body in bodies], queue=queue)
            offsets = [receipt.offset for receipt in await receipts]
            self._acknowledged_at[shard].append(time.monotonic())
            sent = self._acknowledged
        except LsmqError as error:
            self._errors.add(f"{error.code}: {error.message}")
        for offset, body in zip(offsets, bodies, strict=True):
            sent.add(queue, offset, body)

    # Consumers

    async def _consume(self, number: int) -> None:
        """One consumer of all queues with a group of its own, which commits what it was handed.

        The first reads alone, the others are the only members of their groups: a failover must not cost them that.
        """
        receipts = self._readings[f"consumer {number}"] = DrillColumns()
        group = self._group(number)
        queues = range(self._queues) if number == 0 else None
        async with (
            self._client() as client,
            Consumer(client, self._topic, queues=queues, group=group, wait_ms=_WAIT_MS) as consumer,
        ):
            await self._read_to_the_end(consumer, receipts, commit=True)
            handed = dict(consumer.positions)
            committed = await client.committed_offsets(group, self._topic)
            if any(committed.get(queue, 0) != position for queue, position in handed.items() if position):
                self.offsets_that_went_back += 1

    async def _read_to_the_end(self, consumer: Consumer, receipts: DrillColumns, *, commit: bool = False) -> None:
        """Read until the workload is over and all of it was handed out, or nothing has come for long."""
        committed_at = progress_at = time.monotonic()
        while not (self._drained.is_set() and self._is_at_end(consumer)):
            messages = await consumer.poll(1_000, timeout_ms=_POLL_MS)
            for message in messages:
                receipts.add(message.queue, message.offset, message.body)
            now = time.monotonic()
            if messages or not self._drained.is_set():
                progress_at = now
            elif now - progress_at > _DRAIN_TIMEOUT_S:
                break  # What is missing will be called lost.
            if commit and now - committed_at >= _COMMIT_S:
                await consumer.commit()
                committed_at = time.monotonic()
        if commit:
            await consumer.commit()

    def _is_at_end(self, consumer: Consumer) -> bool:
        assert self._latest is not None
        positions = consumer.positions
        return all(positions.get(queue, -1) >= latest for queue, latest in self._latest.items())

    async def _watch_commits(self) -> None:
        """Ask again and again what is committed: it must never go back."""
        known: dict[tuple[str, int], int] = {}
        async with self._client() as client:
            while not self._drained.is_set():
                groups = [self._group(number) for number in range(self._consumers)]
                for group in (*groups, *(side.name for side in self._sides if side.is_watched)):
                    committed = await client.committed_offsets(group, self._topic)
                    for queue, offset in committed.items():
                        if offset < known.get((group, queue), 0):
                            self.offsets_that_went_back += 1
                        known[group, queue] = offset
                await asyncio.sleep(_WATCH_S)

    def _group(self, number: int) -> str:
        return f"{self._topic}-{number}"
