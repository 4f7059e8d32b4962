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
from dataclasses import dataclass, field

import xxhash

from lsmq import Client, Consumer, Producer
from lsmq.errors import LsmqError
from lsmq.record_batch import Message
from lsmq.topics import Topic
from lsmq_node.history import History, Verdict

from .group_work import GroupWork
from .task_work import TaskWork
from .transaction_work import TransactionWork

QUEUES_PER_SHARD = 4

_TICK_S = 0.025
_BURST = 3
_MAX_UNSETTLED = 20_000
_PADDING = "x" * 80
_DEADLINE_MS = 120_000
_COMMIT_S = 0.1
_WATCH_S = 0.2
_DRAIN_TIMEOUT_S = 60.0
_POLL_MS = 200
_WAIT_MS = 1_000


@dataclass(slots=True)
class _Sends:
    """What one producer sent; a place of -1 is not known."""

    queues: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    digests: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def add(
        self, queue: int, offsets: Sequence[int], key: str, sequences: Sequence[int], bodies: Sequence[bytes]
    ) -> None:
        """Messages of one key that were sent together."""
        self.queues += [queue] * len(bodies)
        self.offsets += offsets
        self.keys += [key] * len(bodies)
        self.sequences += sequences
        self.digests += [xxhash.xxh64_intdigest(body) for body in bodies]


@dataclass(slots=True)
class _Receipts:
    """What one consumer was handed, in order."""

    name: str
    queues: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    digests: list[int] = field(default_factory=list)

    def add(self, messages: Iterable[Message]) -> None:
        for message in messages:
            sequence, key = message.body.split(b" ", 2)[:2]
            self.queues.append(message.queue)
            self.offsets.append(message.offset)
            self.keys.append(key.decode())
            self.sequences.append(int(sequence))
            self.digests.append(xxhash.xxh64_intdigest(message.body))


class Workload:
    """``async with Workload(urls, shards) as work``: it works until :meth:`finish`. One event loop."""

    def __init__(self, urls: Sequence[str], shards: int, *, producers: int = 3, consumers: int = 2) -> None:
        self._urls = list(urls)
        self._queues = shards * QUEUES_PER_SHARD
        self._producers, self._consumers = producers, consumers
        self._sends: list[_Sends] = []
        self._readings: list[_Receipts] = []
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
        #: A consumer group that shares the queues, where the drill is about one.
        self.shared: GroupWork | None = None
        #: Transactional producers, where the drill is about them.
        self.transactions: TransactionWork | None = None
        #: A work queue on the topic, where the drill is about one.
        self.tasks: TaskWork | None = None

    async def __aenter__(self) -> Workload:
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
        if self.shared is not None:
            await self.shared.close()
        if self.transactions is not None:
            await self.transactions.close()
        if self.tasks is not None:
            await self.tasks.close()

    def share(self) -> GroupWork:
        """The group that shares the queues; without members yet when this is the first call."""
        if self.shared is None:
            self.shared = GroupWork(self._urls, self._topic, self._queues)
        return self.shared

    def transact(self) -> TransactionWork:
        """Transactional producers, on topics of their own; none yet when this is the first call."""
        if self.transactions is None:
            self.transactions = TransactionWork(self._urls, self._topic, self._queues)
        return self.transactions

    def compete(self) -> TaskWork:
        """The work queue on the topic; without consumers yet when this is the first call."""
        if self.tasks is None:
            self.tasks = TaskWork(self._urls, self._topic)
        return self.tasks

    def _client(self) -> Client:
        return Client(self._urls, deadline_ms=_DEADLINE_MS)

    # What drills ask while it works

    @property
    def acknowledged(self) -> int:
        """Messages acknowledged so far."""
        return sum(len(sends.queues) for sends in self._sends)

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
            if self.shared is not None:
                await self.shared.finish(self._latest)
            if self.transactions is not None:
                await self.transactions.finish()
            if self.tasks is not None:
                await self.tasks.finish(self._latest)
            await self._read_again(client)

    async def _read_again(self, client: Client) -> None:
        receipts = self._reading("read again")
        assert self._latest is not None
        async with Consumer(client, self._topic, start="earliest", wait_ms=_WAIT_MS) as consumer:
            await self._read_to_the_end(consumer, receipts)

    def verdict(self) -> Verdict:
        """What was acknowledged against what each reader got. After :meth:`finish`."""
        history = self._history()
        for receipts in self._readings:
            history.reading(receipts.name).received(
                receipts.queues, receipts.offsets, receipts.keys, receipts.sequences, digests=receipts.digests
            )
        return history.check()

    def verdict_on_group(self) -> Verdict | None:
        """The same for the group that shares the queues. What it handled twice is up to :meth:`GroupWork.conduct`."""
        if self.shared is None:
            return None
        history = self._history()
        self.shared.tell(history.reading("group"))
        return history.check(redelivery=True)

    def verdict_on_tasks(self) -> Verdict | None:
        """The same for the work queue: what was handled, and its dead letters."""
        if self.tasks is None:
            return None
        history = self._history()
        self.tasks.tell(history.reading("work queue"))
        return history.check(redelivery=True)

    def _history(self) -> History:
        """All that was sent."""
        history = History()
        for sends in self._sends:
            known = [place for place, offset in enumerate(sends.offsets) if offset >= 0]
            history.acknowledged(
                [sends.queues[place] for place in known],
                [sends.offsets[place] for place in known],
                [sends.keys[place] for place in known],
                [sends.sequences[place] for place in known],
                digests=[sends.digests[place] for place in known],
            )
            unknown = [place for place, offset in enumerate(sends.offsets) if offset < 0]
            history.unknown(
                [sends.keys[place] for place in unknown],
                [sends.sequences[place] for place in unknown],
                digests=[sends.digests[place] for place in unknown],
            )
        return history

    @property
    def errors(self) -> list[str]:
        """What sends failed with, for those whose answer never came."""
        return sorted({error for sends in self._sends for error in sends.errors})

    # Producers

    async def _produce(self, number: int) -> None:
        """A burst to one queue of each shard a tick; each queue has one key of this producer."""
        sends = _Sends()
        self._sends.append(sends)
        shards = len(self._acknowledged_at)
        settling: set[asyncio.Task[None]] = set()
        async with self._client() as client, Producer(client, self._topic, ack="quorum", linger_ms=5) as producer:
            for tick in itertools.count(number):
                if self._stopping.is_set():
                    break
                for shard in range(shards):
                    queue = self._queue(shard, tick)
                    task = asyncio.create_task(self._send(producer, sends, f"p{number}-q{queue}", queue, shard))
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

    async def _send(self, producer: Producer, sends: _Sends, key: str, queue: int, shard: int) -> None:
        sequences = [next(self._sequence) for _ in range(_BURST)]
        bodies = [f"{sequence} {key} {_PADDING}".encode() for sequence in sequences]
        offsets = [-1] * _BURST
        try:
            receipts = await producer.send_many([(key, body) for body in bodies], queue=queue)
            offsets = [sent.offset for sent in await receipts]
            self._acknowledged_at[shard].append(time.monotonic())
        except LsmqError as error:
            sends.errors.append(f"{error.code}: {error.message}")
        sends.add(queue, offsets, key, sequences, bodies)

    # Consumers

    def _reading(self, name: str) -> _Receipts:
        receipts = _Receipts(name)
        self._readings.append(receipts)
        return receipts

    async def _consume(self, number: int) -> None:
        """One consumer of all queues with a group of its own, which commits what it was handed.

        The first reads alone, the others are the only members of their groups: a failover must not cost them that.
        """
        receipts = self._reading(f"consumer {number}")
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

    async def _read_to_the_end(self, consumer: Consumer, receipts: _Receipts, *, commit: bool = False) -> None:
        """Read until the workload is over and all of it was handed out, or nothing has come for long."""
        committed_at = progress_at = time.monotonic()
        while not (self._drained.is_set() and self._is_at_end(consumer)):
            messages = await consumer.poll(1_000, timeout_ms=_POLL_MS)
            receipts.add(messages)
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
                for group in groups if self.shared is None else [*groups, self.shared.name]:
                    committed = await client.committed_offsets(group, self._topic)
                    for queue, offset in committed.items():
                        if offset < known.get((group, queue), 0):
                            self.offsets_that_went_back += 1
                        known[group, queue] = offset
                await asyncio.sleep(_WATCH_S)

    def _group(self, number: int) -> str:
        return f"{self._topic}-{number}"
