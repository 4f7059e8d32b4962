"""The broker: appends, commits, reads and long polls over the shards of one node.

Everything here runs on the loop thread except what is handed to one of three places: the committers'
threads (fdatasync), the read pool (anything that may touch the disk for a consumer) and the control thread
(creating and deleting topics). Appending only touches memory and happens on the loop thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from lsmq.errors import ShuttingDown, UnknownQueue
from lsmq.record_batch import RecordBatch
from lsmq_node.config import NodeConfig
from lsmq_node.storage import Appended, FileRange, ShardStore, Slice, Topic, TopicOptions

from .budget import ByteBudget, Hold
from .catalog import Catalog
from .committer import Committer
from .layout import open_shards
from .placement import QueueRange, queue_ranges, shard_of, split_by_shard
from .waiters import WaiterTable

Result = TypeVar("Result")


@dataclass(slots=True)
class Fetched:
    """What a read found, in the order of shards. ``queues`` and ``next_offsets`` are those that moved."""

    parts: list[bytes | FileRange] = field(default_factory=list)
    queues: list[NDArray[Any]] = field(default_factory=list)
    next_offsets: list[NDArray[Any]] = field(default_factory=list)
    record_count: int = 0
    size_bytes: int = 0
    slices: list[Slice] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.queues) or self.record_count > 0

    def add(self, piece: Slice) -> None:
        self.slices.append(piece)
        self.parts.extend(piece.parts)
        queues, next_offsets = piece.positions
        if len(queues):
            self.queues.append(queues)
            self.next_offsets.append(next_offsets)
        self.record_count += piece.record_count
        self.size_bytes += piece.size_bytes

    @property
    def file_bytes(self) -> int:
        return sum(part.length for part in self.parts if isinstance(part, FileRange))

    def load(self) -> bytes:
        """All parts in memory, checksums verified. Blocking."""
        return b"".join(piece.load() for piece in self.slices)


async def _all(waits: Sequence[asyncio.Future[None] | None]) -> None:
    """Wait for all commits, then raise what the first failed one raises."""
    futures = [future for future in waits if future is not None]
    if futures:
        await asyncio.wait(futures)
        for future in futures:
            future.result()


class Broker:
    """The asyncio face of a node's shards. Make one with :meth:`open`, end it with :meth:`close`."""

    def __init__(self, config: NodeConfig, stores: Sequence[ShardStore]) -> None:
        """``stores`` belong to the broker from here on. Must run in the loop's thread."""
        self.config = config
        self.stores = list(stores)
        self.started_at = time.monotonic()
        self.waiters = WaiterTable(config.max_waiters)
        self.budget = ByteBudget(config.max_inflight_bytes)
        self.committers = [Committer(shard, store, self.waiters.wake) for shard, store in enumerate(self.stores)]
        self.writes_delayed = 0
        self.sendfile_bytes = 0  # counted by who sends
        self.shutting_down = False
        self._catalog = Catalog(self.stores)
        self._control = ThreadPoolExecutor(1, "lsmq-control")
        self._readers = ThreadPoolExecutor(config.read_threads, "lsmq-read")
        self._read_slots = asyncio.Semaphore(config.read_threads)
        self._next_queue: dict[int, int] = {}
        self._fetches = 0

    @classmethod
    async def open(cls, config: NodeConfig) -> Broker:
        """Open the data directory and start the committers. Raises what :func:`open_shards` raises."""
        stores = await asyncio.to_thread(open_shards, config)
        broker = cls(config, stores)
        for committer in broker.committers:
            committer.start()
        await broker._in_control(broker._catalog.complete)
        return broker

    def begin_shutdown(self) -> None:
        """Answer held long polls at once and refuse writes from here on; reads go on."""
        self.shutting_down = True
        self.waiters.close()

    async def close(self) -> None:
        """Finish the writes in flight and close the stores. No call may be in progress but appends' waits."""
        self.begin_shutdown()
        for committer in self.committers:
            await committer.close()
        await asyncio.to_thread(self._readers.shutdown)
        await asyncio.to_thread(self._control.shutdown)
        for store in self.stores:
            await asyncio.to_thread(store.close)

    # Topics

    def topics(self) -> list[Topic]:
        return sorted(self.stores[0].topics(), key=lambda topic: topic.name)

    def topic(self, name: str) -> Topic:
        """Raises ``UnknownTopic``."""
        return self.stores[0].topic(name)

    def topic_by_id(self, topic_id: int) -> Topic:
        """Raises ``UnknownTopic``."""
        return self.stores[0].topic_by_id(topic_id)

    async def create_topic(self, name: str, queues: int, options: TopicOptions) -> tuple[Topic, bool]:
        """The topic, durable, and whether this call made it. Raises ``TopicExists``, ``InvalidTopicName``."""
        self._check_writable()

        def create() -> tuple[Topic, bool]:
            before = {topic.name for topic in self.stores[0].topics()}
            return self._catalog.create(name, queues, options), name not in before

        return await self._in_control(create)

    async def delete_topic(self, name: str) -> None:
        """Delete the topic and its messages. Who waits for it is told. Raises ``UnknownTopic``."""
        self._check_writable()
        topic = await self._in_control(lambda: self._catalog.delete(name))
        self._next_queue.pop(topic.id, None)
        self.waiters.wake_topic(topic.id)

    def ranges(self, topic: Topic) -> tuple[QueueRange, ...]:
        """Which shard holds which of the topic's queues."""
        return queue_ranges(topic.queues, len(self.stores))

    def shard_of(self, topic: Topic, queue: int) -> int:
        return shard_of(queue, topic.queues, len(self.stores))

    def check_queue(self, topic: Topic, queue: int) -> None:
        """Raises ``UnknownQueue`` naming the queues there are."""
        if not 0 <= queue < topic.queues:
            raise UnknownQueue(
                f"topic {topic.name!r} has no queue {queue}; its queues are 0 to {topic.queues - 1}",
                topic=topic.name,
                queue=queue,
                queues=topic.queues,
            )

    def check_queues(self, topic: Topic, queues: NDArray[Any]) -> None:
        """:meth:`check_queue` of many; the first bad one is named."""
        if len(queues) and (int(queues.max()) >= topic.queues or int(queues.min()) < 0):
            self.check_queue(topic, int(queues[(queues < 0) | (queues >= topic.queues)][0]))

    def next_queue(self, topic: Topic) -> int:
        """Round robin over the topic's queues, for messages with neither queue nor key."""
        queue = self._next_queue.get(topic.id, 0)
        self._next_queue[topic.id] = (queue + 1) % topic.queues
        return queue

    # Writes

    async def append(self, topic: Topic, batches: Sequence[tuple[int, RecordBatch]]) -> list[Appended]:
        """Append one batch a shard and return when all are committed.

        Atomic and durable for each shard, not across shards. Raises what ``ShardStore.append`` and
        ``commit`` raise; a batch of another shard may be stored all the same.
        """
        await self.admit([shard for shard, _ in batches])
        if len(batches) == 1:
            ((shard, batch),) = batches
            appended = self.stores[shard].append(topic.id, batch)
            future = self.committers[shard].wait(appended)
            if future is not None:
                await future
            return [appended]
        results: list[Appended] = []
        waits = []
        for shard, batch in batches:
            results.append(self.stores[shard].append(topic.id, batch))
            waits.append(self.committers[shard].wait(results[-1]))
        await _all(waits)
        return results

    async def admit(self, shards: Sequence[int]) -> None:
        """Let a write through, late when flushing and merging fall behind, not at all when stopping."""
        self._check_writable()
        if any(self.stores[shard].pressure == "slow" for shard in shards):
            self.writes_delayed += 1
            await asyncio.sleep(self.config.slow_write_delay_ms / 1000)
            self._check_writable()

    def _check_writable(self) -> None:
        if self.shutting_down:
            raise ShuttingDown("the node is stopping; send this to another node, or again when it is back")

    # Reads

    async def read(
        self,
        topic: Topic,
        queue: int,
        offset: int,
        *,
        max_records: int,
        max_bytes: int,
        wait_ms: int,
        hold: Hold,
    ) -> Fetched:
        """Messages of one queue from ``offset``, waiting up to ``wait_ms`` for the first.

        ``hold`` reserves memory for what is read. Raises ``OffsetOutOfRange``, ``Unavailable``.
        """
        self.check_queue(topic, queue)
        store = self.stores[self.shard_of(topic, queue)]

        def read() -> Fetched:
            found = Fetched()
            piece = store.read(topic.id, queue, offset, max_records=max_records, max_bytes=max_bytes)
            if piece.record_count or int(piece.positions[1][0]) > offset:
                found.add(piece)
            return found

        def arrived() -> bool:
            return store.bounds(topic.id, queue)[1] > offset

        return await self._poll(topic, np.array((queue,)), read, arrived, max_bytes, wait_ms, hold)

    async def fetch(
        self,
        topic: Topic,
        queues: NDArray[np.uint32],
        offsets: NDArray[np.int64],
        *,
        max_records: int,
        max_bytes: int,
        wait_ms: int,
        hold: Hold,
    ) -> Fetched:
        """Messages of many queues, each from its own offset, waiting up to ``wait_ms`` for the first.

        ``queues`` are sorted, without repeats, and not empty. Offsets below what is kept start at what is
        kept. Raises ``UnknownQueue``, ``Unavailable``.
        """
        self.check_queues(topic, queues)
        pieces = [
            (self.stores[shard], queues[places], offsets[places])
            for shard, places in split_by_shard(queues, topic.queues, len(self.stores))
        ]

        def read() -> Fetched:
            found = Fetched()
            self._fetches += 1
            for store, some, starts in pieces:
                records_left, bytes_left = max_records - found.record_count, max_bytes - found.size_bytes
                if records_left <= 0 or bytes_left <= 0:
                    break
                # Begin one queue further each time: busy queues that fill an answer must not starve the others.
                turn = -(self._fetches % len(some))
                found.add(
                    store.read_many(
                        topic.id,
                        np.roll(some, turn),
                        np.roll(starts, turn),
                        max_records=records_left,
                        max_bytes=bytes_left,
                    )
                )
            pieces.append(pieces.pop(0))  # The next read, if this one found nothing, begins elsewhere.
            return found

        def arrived() -> bool:
            return any(bool((store.latest_offsets(topic.id, some) > starts).any()) for store, some, starts in pieces)

        return await self._poll(topic, queues, read, arrived, max_bytes, wait_ms, hold)

    async def _poll(
        self,
        topic: Topic,
        queues: NDArray[Any],
        read: Callable[[], Fetched],
        arrived: Callable[[], bool],
        max_bytes: int,
        wait_ms: int,
        hold: Hold,
    ) -> Fetched:
        """Read; if there is nothing, wait until something arrives and read again, until time is up."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        found = await self._read_held(read, max_bytes, hold)
        if found or wait_ms == 0 or self.waiters.closed:
            return found
        with self.waiters.waiting(topic.id, queues) as waiter:
            if arrived():  # Between the read and the registration; no await stands between these two.
                waiter.set()
            while not found and await waiter.wait(deadline):
                waiter.clear()
                found = await self._read_held(read, max_bytes, hold)
                if self.waiters.closed:
                    break
        return found

    async def _read_held(self, read: Callable[[], Fetched], max_bytes: int, hold: Hold) -> Fetched:
        """Read with memory reserved: what was asked for while reading, what was found afterwards."""
        async with self._read_slots:  # So that no more reserve the most they may than can read.
            hold.resize(max_bytes)
            found = await self.in_readers(read)
            hold.resize(found.size_bytes - found.file_bytes)
        return found

    async def in_readers(self, blocking: Callable[[], Result]) -> Result:
        """Run something that may read from disk in the read pool."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, blocking)

    async def _in_control(self, blocking: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._control, blocking)

    def bounds(self, topic: Topic, queue: int) -> tuple[int, int]:
        """Earliest offset kept and the next to be written, of one queue."""
        self.check_queue(topic, queue)
        return self.stores[self.shard_of(topic, queue)].bounds(topic.id, queue)

    def offsets(self, topic: Topic, queues: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """:meth:`bounds` of many queues, in their order."""
        self.check_queues(topic, queues)
        earliest, latest = np.zeros(len(queues), np.int64), np.zeros(len(queues), np.int64)
        for shard, places in split_by_shard(queues, topic.queues, len(self.stores)):
            earliest[places] = self.stores[shard].earliest_offsets(topic.id, queues[places])
            latest[places] = self.stores[shard].latest_offsets(topic.id, queues[places])
        return earliest, latest

    async def offsets_for_time(self, topic: Topic, queues: Sequence[int], time_ms: int) -> list[int]:
        """The first offset stored at or after ``time_ms``, of each queue."""

        def find() -> list[int]:
            return [
                self.stores[self.shard_of(topic, queue)].offset_for_time(topic.id, queue, time_ms) for queue in queues
            ]

        return await self.in_readers(find)

    # Groups

    def groups(self) -> list[str]:
        return sorted({group for store in self.stores for group in store.groups()})

    async def commit_offsets(
        self, group: str, topic: Topic, queues: NDArray[Any], offsets: NDArray[np.int64], *, reset: bool
    ) -> None:
        """Store a group's offsets, as durably as messages. Without ``reset`` none goes back.

        Raises ``UnknownQueue``, and ``OffsetOutOfRange`` for an offset beyond the end of its queue.
        """
        self.check_queues(topic, queues)
        parts = split_by_shard(queues, topic.queues, len(self.stores))
        await self.admit([shard for shard, _ in parts])
        waits = []
        for shard, places in parts:
            appended = self.stores[shard].commit_offsets(group, topic.id, queues[places], offsets[places], reset=reset)
            waits.append(self.committers[shard].wait(appended))
        await _all(waits)

    def committed_offsets(
        self, group: str, topic: Topic, queues: NDArray[Any] | None
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The queues that have a committed offset (of those given, or of all) and the offsets."""
        if queues is None:
            queues = np.arange(topic.queues, dtype=np.uint32)
        self.check_queues(topic, queues)
        offsets = np.full(len(queues), -1, np.int64)
        for shard, places in split_by_shard(queues, topic.queues, len(self.stores)):
            offsets[places] = self.stores[shard].committed_offsets(group, topic.id, queues[places])
        present = offsets >= 0
        return queues[present], offsets[present]
