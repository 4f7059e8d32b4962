"""The broker: appends, commits, reads and long polls over the shards of one node.

Everything here runs on the loop thread except what is handed to one of three places: the shards' disk
threads (fdatasync), the read pool (:mod:`.reads`: anything that may touch the disk for a consumer) and the control
thread (creating and deleting topics). Appending only touches memory and happens on the loop thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from lsmq import runtime
from lsmq.errors import InvalidRequest, LsmqError, OffsetOutOfRange
from lsmq.queue_names import check_queue_name
from lsmq.record_batch import HEADER, Codec, Column, RecordBatch
from lsmq_coordinator.parts import Parts
from lsmq_coordinator.state import QueueRange
from lsmq_node.config import NodeConfig
from lsmq_node.storage import (
    Appended,
    KeyFound,
    KeyQuery,
    NamesBehind,
    SearchFound,
    SearchQuery,
    Slice,
    StoredTopic,
    TopicOptions,
)
from lsmq_node.workers import Workers

from .address_limits import TopicShares, asked_from
from .admission import Admission, column_of
from .allowances import NOBODY, Allowances, Maker
from .arrivals import ArrivalReads
from .budget import ByteBudget, Hold
from .catalog import stays_on_shards
from .compacted import check_keys_stay, check_limits
from .fetched import Fetched
from .forwarding import Forwarder
from .letter_targets import besides_options, check_moving, no_dead_letters
from .loop_work import in_turns, to_its_end
from .meant_topic import check_meant
from .name_admission import NameAdmission
from .own_options import OwnOptions
from .pacing import LimitPace
from .placement import queue_ranges, shard_of, split_by_shard
from .queue_lists import QueueLists
from .read_redirects import ReadFrom
from .reads import Reads
from .requests import DeleteRequest, FetchRequest, ProduceRequest, ReadRequest
from .stages import count_messages, stage, under_way
from .top_queues import QueueRanks
from .topology import Ack, KeysAtSpread, ShardPort, Topology
from .waiters import SHARED_WAITERS, WaiterTable

#: A smaller payload is decompressed within a millisecond.
_LARGE_PAYLOAD_BYTES = 512 * 1024

Result = TypeVar("Result")


async def _all(waits: Sequence[asyncio.Future[None] | None]) -> None:
    """Wait for all commits, then raise what the first failed one raises."""
    futures = [future for future in waits if future is not None]
    if futures:
        with stage("commit"):
            await asyncio.wait(futures)
        for future in futures:
            future.result()


async def _committed(port: ShardPort, appended: Appended, future: asyncio.Future[None]) -> None:
    """Wait for one commit: first until it is on this node's disk, then for other replicas."""
    with stage("commit"):
        await future
    if (stages := under_way.get()) is not None and (durable := port.durable_at(appended)) is not None:
        stages.divide("commit", durable, "replicate")


class Broker:
    """The asyncio face of a node's shards. End it with :meth:`close`."""

    def __init__(self, config: NodeConfig, topology: Topology, waiters: WaiterTable, parts: Parts) -> None:
        """``topology`` belongs to the broker from here on, and wakes ``waiters``. Must run in the loop's thread."""
        self.config = config
        #: Of the whole node: whatever works by itself says here how it is.
        self.parts = parts
        self.topology = topology
        self.started_at = runtime.monotonic()
        self.waiters = waiters
        self.budget = ByteBudget(config.max_inflight_bytes, config.inflight_share_bytes)
        self.request_pace = LimitPace("requests", "address_requests_per_s")
        self.byte_pace = LimitPace("bytes", "address_bytes_per_s")
        self.allowances = Allowances(config)
        self.topic_shares = TopicShares(self.allowances.addresses, config.max_topics, config.max_queues)
        self.name_admission = NameAdmission(config, self.allowances)
        waiters.share = self.allowances.addresses.share(config.max_waiters, SHARED_WAITERS)
        self.writes_delayed = 0
        self.sendfile_bytes = 0  # counted by who sends
        self.admission = Admission(config, topology)
        self.forwarder = Forwarder(config, topology, self.admission, self.allowances.addresses)
        self.workers = Workers()
        self.before_retiring: list[Callable[[], Awaitable[None]]] = []
        self.reads = Reads(config, topology, waiters)
        self.names = self.reads.names
        self.own_options = OwnOptions(topology, self.names, self.admission)
        self.queue_lists = QueueLists(topology, self.names, self.own_options, self.admission, self.name_admission)
        self.top_queues = QueueRanks(topology, self.names)
        self.arrivals = ArrivalReads(topology, self.names, self.admission)
        self.dead_letters = no_dead_letters  # where those of work queues go: these say it
        self._next_queue: dict[int, int] = {}

    async def retire(self) -> None:
        """The node is about to stop: others take over what they can, while requests are still served.

        What is ``before_retiring`` comes first: this node still leads what it led.
        """
        for callback in self.before_retiring:
            await callback()
        await self.topology.retire()

    def begin_shutdown(self) -> None:
        """Answer held long polls at once and refuse writes from here on; reads go on."""
        self.admission.stopping = True
        self.waiters.close()

    async def close(self) -> None:
        """Finish the writes in flight and close the stores. No call may be in progress but appends' waits."""
        self.begin_shutdown()
        await self.reads.close()
        await self.workers.close()
        await self.topology.close()

    # Topics

    async def topics(self) -> Sequence[StoredTopic]:
        """All there are, in any order."""
        return await self.topology.topics.newest()

    async def topic(self, name: str, meant: int | None = None, created_ms: int | None = None) -> StoredTopic:
        """The topic of this name, and no other that the caller may have meant by it: see :func:`check_meant`.

        Raises ``UnknownTopic``, ``TopicReplaced``, ``Unavailable``.
        """
        topic = await self.topology.topics.by_name(name)
        check_meant(topic, meant, created_ms)
        return topic

    async def topic_by_id(self, topic_id: int) -> StoredTopic:
        """Raises ``UnknownTopic``."""
        return await self.topology.topics.by_id(topic_id)

    @to_its_end
    async def create_topic(
        self, name: str, queues: int, options: TopicOptions, by: Maker = NOBODY
    ) -> tuple[StoredTopic, bool]:
        """The topic, durable, and whether this call made it; ``by`` somebody who may have limits.

        Raises ``TopicExists``, ``InvalidTopicName``, ``TooManyQueues``, and what admission raises.
        """
        topics, besides = self.topology.topics, await besides_options(self, options.to_dict())

        def admit() -> TopicOptions:
            there = topics.find(name)
            self.admission.create_topic(queues, options, is_new=there is None)
            check_moving(self, name, options, besides)
            if there is not None:
                return replace(options, made_by=there.options.made_by)
            check_limits(options, None)
            numbered = 0 if options.named else queues
            self.topic_shares.check(by.address, numbered, topics.all)
            return replace(options, made_by=self.allowances.make_topic(by.principal, numbered, topics.all))

        exact = by.principal is not None and self.allowances.limits_topics(by.principal)
        topic, is_new = await topics.create(name, queues, admit, exact=exact)
        if is_new:
            self.topic_shares.made(by.address, topic)
        return topic, is_new

    @to_its_end
    async def grow_topic(self, name: str, queues: int) -> StoredTopic:
        """Give the topic more queues, durably. Raises ``UnknownTopic``, ``TooManyQueues``, ``InvalidRequest``."""
        self.admission.write()
        before = await self.topology.topics.by_name(name)

        def check(topic: StoredTopic) -> None:
            check_keys_stay(topic, queues)
            self._check_growth(topic, queues)

        topic = await self.topology.topics.grow(name, queues, check)
        self.topic_shares.grew(asked_from.get(), before, topic)
        return topic

    def _check_growth(self, topic: StoredTopic, queues: int) -> None:
        """Whether a topic may have so many queues, beside all there are. Raises ``TooManyQueues``."""
        if topic.named or (more := queues - topic.queues) <= 0:
            return
        self.admission.more_queues(more)
        self.topic_shares.check_growth(asked_from.get(), more, self.topology.topics.all)
        if topic.options.made_by is not None:
            others = [each for each in self.topology.topics.all() if each.id != topic.id]
            self.allowances.grow_topic(topic.options.made_by, queues, others)

    @to_its_end
    async def spread_topic(self, name: str, keys: KeysAtSpread = KeysAtSpread.STAY) -> StoredTopic:
        """Give the topic queues on shards that came after it, durably. Raises as :meth:`grow_topic`."""
        self.admission.write()

        def check(topic: StoredTopic, queues: int) -> None:
            if topic.named:
                raise stays_on_shards(topic)
            if keys is KeysAtSpread.MOVE:
                check_keys_stay(topic, queues)
            self.admission.queues_of_topic(topic, queues)
            self._check_growth(topic, queues)

        before = await self.topology.topics.by_name(name)
        topic = await self.topology.topics.spread(name, keys, check)
        self.topic_shares.grew(asked_from.get(), before, topic)
        return topic

    async def alter_topic(self, name: str, changes: Mapping[str, Any]) -> StoredTopic:
        """Change options of the topic, durably; None takes one away. Raises ``UnknownTopic``, ``InvalidRequest``."""
        self.admission.write()
        besides = await besides_options(self, changes)

        def check(topic: StoredTopic, options: TopicOptions) -> None:
            self.admission.topic_options(topic.queues, options)
            check_limits(options, topic.options)
            check_moving(self, topic.name, options, besides)

        return await self.topology.topics.alter(name, changes, check)

    @to_its_end
    async def delete_topic(self, name: str, meant: int | None = None) -> None:
        """Delete the topic, which has the id ``meant``, and its messages. Raises ``UnknownTopic``."""
        self.admission.write()
        topic = await self.topology.topics.delete(name, meant)
        self._next_queue.pop(topic.id, None)
        self.waiters.wake_topic(topic.id)

    def ranges(self, topic: StoredTopic) -> tuple[QueueRange, ...]:
        """Which shard holds which of the topic's queues."""
        return queue_ranges(topic, self.topology.home_shards)

    def spans(self, topic: StoredTopic) -> dict[int, QueueRange]:
        """By shard, from the first queue it holds to the last: what a column of its store covers.

        Once the topic has grown, queues in between may be other shards': nothing is ever stored for them here.
        """
        found: dict[int, QueueRange] = {}
        for part in self.ranges(topic):
            found[part.shard] = QueueRange(found.get(part.shard, part).first, part.end, part.shard)
        return found

    def shard_of(self, topic: StoredTopic, queue: int) -> int:
        return shard_of(queue, topic, self.topology.home_shards)

    def next_queue(self, topic: StoredTopic) -> int:
        """Round robin over the topic's queues that this node leads, for messages with neither queue nor key."""
        queue = self._next_queue.get(topic.id, 0)
        if not self.topology.leadership(self.shard_of(topic, queue)).here:
            led = [part for part in self.ranges(topic) if self.topology.leadership(part.shard).here]
            if led:
                queue = next((part.first for part in led if part.first > queue), led[0].first)
        if topic.id not in self._next_queue and len(self._next_queue) >= self.config.max_topics:
            del self._next_queue[next(iter(self._next_queue))]  # Other nodes may have deleted its topic.
        self._next_queue[topic.id] = (queue + 1) % topic.queues
        return queue

    # Writes

    async def unpack(self, topic: StoredTopic, body: bytes, hold: Hold) -> tuple[int, RecordBatch]:
        """The batch that a producer packed, which is within the limits, and its shard; ``hold`` has what it takes.

        Raises ``InvalidBatch``, ``TooManyMessages``, ``InvalidRequest``, ``UnknownQueue``, ``Unavailable``.
        """
        unpacked_bytes = self.admission.unpacked_bytes(body)
        if unpacked_bytes > len(body):
            hold.resize_within(len(body) + unpacked_bytes)
        large = HEADER.unpack_from(body)[3] != Codec.NONE and unpacked_bytes >= _LARGE_PAYLOAD_BYTES
        batch = await self.workers.run(lambda: self.admission.batch(body), large=large)
        if self.topology.shard_count == 1:
            return 0, batch
        queues = column_of(batch, Column.QUEUE)
        self.admission.queues(topic, queues)
        parts = split_by_shard(queues, topic, self.topology.home_shards)
        if len(parts) > 1:
            shards = ", ".join(str(shard) for shard, _ in parts)
            raise InvalidRequest(
                f"the batch has queues of the shards {shards}; send one batch a shard (see the topic's routes)"
            )
        return parts[0][0], batch

    async def produce(self, request: ProduceRequest) -> list[Appended]:
        """Append the batches and return when all are acknowledged.

        Atomic and durable for each shard, not across shards. Raises ``NotLeader``, ``NotEnoughReplicas``, and what
        ``ShardStore.append`` and ``commit`` raise. A batch of another shard may be stored all the same: where one is
        put in line before another is refused, the refusal says ``sent``.
        """
        self.admission.produce(request)
        topic, batches = request.topic, request.batches
        count_messages(sum(batch.record_count for _, batch in batches))
        ack = Ack(topic.options.ack) if request.ack is None else request.ack
        ports = await self.writable(topic, [shard for shard, _ in batches], ack)
        begin = self._admit_producers(zip(ports, (batch for _, batch in batches), strict=True))
        if len(batches) == 1:
            appended = ports[0].store.append(topic.id, batches[0][1], flush=request.flush)
            self.allowances.began_producers(begin)
            future = ports[0].wait(appended, ack)
            if future is not None:
                await _committed(ports[0], appended, future)
            return [appended]
        results: list[Appended] = []
        waits = []
        for port, (_, batch) in zip(ports, batches, strict=True):
            try:
                results.append(port.store.append(topic.id, batch, flush=request.flush))
            except LsmqError as refusal:
                if results:
                    refusal.details["sent"] = True
                raise
            waits.append(port.wait(results[-1], ack))
        self.allowances.began_producers(begin)
        await _all(waits)
        return results

    def _admit_producers(self, parts: Iterable[tuple[ShardPort, RecordBatch]]) -> int:
        """How many begin with these, of a principal who may begin only so many. Raises ``TooManyProducers``."""
        if not self.allowances.counts_producers():
            return 0
        first = ((port, batch.producer_id) for port, batch in parts if batch.producer_id and not batch.sequence)
        count = sum(port.store.producer_epoch(id) is None for port, id in first)
        self.allowances.admit_producers(count)
        return count

    async def take_producer(
        self, topic: StoredTopic, shard: int, producer_id: int, epoch: int | None, new: bool
    ) -> tuple[int, int]:
        """Somebody goes on with a producer's id at a shard: the epoch that begins, and the position that is known.

        Durable on return. Raises ``ProducerFenced``, ``TooManyProducers``, ``NotLeader``, and what writes raise.
        """
        (port,) = await self.writable(topic, [shard], Ack.QUORUM)
        fresh = self.allowances.counts_producers() and port.store.producer_epoch(producer_id) is None
        self.allowances.admit_producers(fresh)
        appended, begun, position = port.store.take_producer(producer_id, epoch, new)
        self.allowances.began_producers(fresh)
        appended = appended or port.store.barrier()
        if appended is not None and (future := port.wait(appended, Ack.QUORUM)) is not None:
            await future
        return begun, position

    async def unpack_named(self, topic: StoredTopic, body: bytes, hold: Hold) -> tuple[int, bytes, RecordBatch]:
        """The batch of a producer that names its queues, its shard and the names: see :attr:`ProduceRequest.names`.

        Raises as :meth:`unpack`, and ``InvalidQueueName``.
        """
        joined, packed = self.admission.named_batch(body)
        first = joined.partition(b"\0")[0].decode(errors="surrogateescape")
        shard = self.names.shard_of(topic, check_queue_name(first))
        unpacked_bytes = self.admission.unpacked_bytes(packed)
        if unpacked_bytes > len(packed):
            hold.resize_within(2 * len(body) + unpacked_bytes)
        large = HEADER.unpack_from(packed)[3] != Codec.NONE and unpacked_bytes >= _LARGE_PAYLOAD_BYTES
        batch = await self.workers.run(lambda: self.admission.batch(packed), large=large)
        return shard, joined, batch

    async def produce_named(self, request: ProduceRequest) -> list[tuple[Appended, NDArray[np.uint32]]]:
        """:meth:`produce` for queues by their names; besides the number of each message's queue.

        Raises ``InvalidQueueName``, ``TooManyQueues`` besides.
        """
        self.admission.produce(request)
        topic = request.topic
        count_messages(sum(batch.record_count for _, batch in request.batches))
        ack = Ack(topic.options.ack) if request.ack is None else request.ack
        results: list[tuple[Appended, NDArray[np.uint32]]] = []
        waits = []
        for (shard, batch), joined in zip(request.batches, request.names, strict=True):
            try:
                port, appended, numbers = await self._append_named(request, ack, shard, joined, batch)
            except LsmqError as refusal:
                if results:
                    refusal.details["sent"] = True
                raise
            results.append((appended, numbers))
            waits.append(port.wait(appended, ack))
        await _all(waits)
        return results

    async def _append_named(
        self, request: ProduceRequest, ack: Ack, shard: int, joined: bytes, batch: RecordBatch
    ) -> tuple[ShardPort, Appended, NDArray[np.uint32]]:
        """Put in line; nothing is awaited between that and the return."""
        topic = request.topic
        while True:
            (port,) = await self.writable(topic, [shard], ack)
            begin = self._admit_producers([(port, batch)])
            try:
                slots = self.names.slots(topic, shard)
                names, admit = port.store.names(topic.id), self.name_admission.of(port.store)
                found = names.append(joined, batch, slots, flush=request.flush, admit=admit)
                self.allowances.began_producers(begin)
                return port, *found
            except NamesBehind:
                await self.names.catch_up(port, topic)

    async def delete(self, request: DeleteRequest) -> None:
        """Durable on return. Raises ``UnknownQueue``, ``NotLeader``, ``OffsetOutOfRange`` for what is not there yet."""
        self.admission.delete(request)
        topic, queues, offsets, before = request.topic, request.queues, request.offsets, request.before
        parts = split_by_shard(queues, topic, self.topology.home_shards)
        ports = await self.writable(topic, [shard for shard, _ in parts], Ack.QUORUM)
        for port, (_, places) in zip(ports, parts, strict=True):
            self._check_within(port, topic, queues[places], offsets[places], 0 if before else 1)
        waits = []
        for port, (_, places) in zip(ports, parts, strict=True):
            put = port.store.trim if before else port.store.delete
            waits.append(port.wait(put(topic.id, queues[places], offsets[places]), Ack.QUORUM))
        await _all(waits)

    async def writable(self, topic: StoredTopic, shards: Sequence[int], ack: Ack) -> list[ShardPort]:
        """The shards, if all of them may be written to now; nothing must be awaited until they are."""
        self.admission.write()
        ports = [self.topology.port(shard) for shard in shards]
        if any(port.store.pressure == "slow" for port in ports):
            self.writes_delayed += 1
            with stage("pressure"):
                await asyncio.sleep(self.config.slow_write_delay_ms / 1000)
            self.admission.write()
        for port in ports:
            port.check_writable(ack)
            await port.prepare(topic)
        for port in ports:  # Again: preparing may have taken time.
            port.check_writable(ack)
        return ports

    # Reads

    async def read(self, request: ReadRequest, hold: Hold) -> Fetched:
        """Messages of one queue, once there are any. ``hold`` reserves memory for what is read.

        Raises ``UnknownQueue``, ``OffsetOutOfRange``, ``NotLeader``, ``Unavailable``, and ``ReadElsewhere`` where the
        request's source lets it.
        """
        return await self.reads.read(self.admission.read(request), hold)

    async def fetch(self, request: FetchRequest, hold: Hold) -> Fetched:
        """Messages of many queues, once there are any in one. ``hold`` reserves memory for what is read.

        With ``AUTO``, what was found may say that queues are to be read elsewhere.
        Raises ``InvalidRequest``, ``UnknownQueue``, ``UnknownFetchSession``, ``NotLeader``, ``Unavailable``,
        ``ReadElsewhere``.
        """
        return await self.reads.fetch(self.admission.fetch(request), hold)

    async def find(self, topic: StoredTopic, shard: int, query: KeyQuery, make: Callable[[Slice], Any]) -> KeyFound:
        """Messages of a shard by key, newest first; see :meth:`ShardStore.find_key`.

        Raises ``NotLeader``, ``Unavailable``, ``CorruptFile``.
        """
        (port,) = await self.reads.ports(topic, [shard])
        found = await self.in_readers(lambda: port.store.find_key(query, make))
        port.check_readable()
        return found

    async def search(
        self, topic: StoredTopic, shard: int, query: SearchQuery, make: Callable[[SearchFound], Result]
    ) -> tuple[SearchFound, Result]:
        """What a filter picks of a shard's messages, and what is made of it; see :func:`.search.search`.

        Raises ``NotLeader``, ``Unavailable``, ``CorruptFile``.
        """
        (port,) = await self.reads.ports(topic, [shard])

        def found() -> tuple[SearchFound, Result]:
            if not port.store.has_topic(topic.id):
                return SearchFound(), make(SearchFound())
            found = port.store.search(query)
            return found, make(found)

        answer = await self.in_readers(found)
        port.check_readable()
        return answer

    async def in_readers(self, blocking: Callable[[], Result]) -> Result:
        """Run something that may read from disk in the read pool."""
        return await self.reads.in_threads(blocking)

    async def offsets(
        self, topic: StoredTopic, queues: NDArray[Any], source: ReadFrom = ReadFrom.LEADER
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Earliest offset kept and the next to be written, of each queue, in their order; as far as they are here."""
        self.admission.queues(topic, queues)
        earliest, latest = np.zeros(len(queues), np.int64), np.zeros(len(queues), np.int64)
        parts = split_by_shard(queues, topic, self.topology.home_shards)
        ports = await self.reads.ports(topic, [shard for shard, _ in parts], source)
        for port, (_, places) in zip(ports, parts, strict=True):
            async for piece in in_turns(places):
                if port.store.has_topic(topic.id, int(queues[piece].max())):
                    earliest[piece] = port.store.earliest_offsets(topic.id, queues[piece])
                    latest[piece] = port.store.latest_offsets(topic.id, queues[piece])
            port.check_readable(follower=source is not ReadFrom.LEADER)
        return earliest, latest

    async def offsets_for_time(self, topic: StoredTopic, queues: NDArray[Any], time_ms: int) -> NDArray[np.int64]:
        """The first offset stored at or after ``time_ms``, of each queue."""
        found = np.zeros(len(queues), np.int64)
        parts = split_by_shard(queues, topic, self.topology.home_shards)
        ports = await self.reads.ports(topic, [shard for shard, _ in parts])

        def find() -> None:
            for port, (_, places) in zip(ports, parts, strict=True):
                if port.store.has_topic(topic.id, int(queues[places].max())):
                    found[places] = port.store.offsets_for_time(topic.id, queues[places], time_ms)

        await self.in_readers(find)
        for port in ports:
            port.check_readable()
        return found

    # Groups

    def _check_within(
        self, port: ShardPort, topic: StoredTopic, queues: NDArray[Any], offsets: NDArray[np.int64], count: int = 0
    ) -> None:
        """Raises ``OffsetOutOfRange`` unless each queue has ``count`` messages, committed, from its offset on."""
        latest = port.store.latest_offsets(topic.id, queues)
        beyond = offsets + count > latest
        if beyond.any():
            at = int(np.argmax(beyond))
            queue, end = int(queues[at]), int(latest[at])
            called = (self.names.names(topic, queue) if topic.named else None) or queue
            raise OffsetOutOfRange(
                f"offset {offsets[at]} is beyond the end of queue {called!r} of topic {topic.name!r}, which is {end}",
                topic=topic.name,
                queue=called,
                earliest=0,
                latest=end,
            )

    async def commit_offsets(
        self,
        group: str,
        topic: StoredTopic,
        queues: NDArray[Any],
        offsets: NDArray[np.int64],
        *,
        reset: bool,
        allow: Callable[[ShardPort], None] = lambda port: None,
        allowed: Callable[[ShardPort], None] = lambda port: None,
    ) -> None:
        """Store a group's offsets, as durably as messages. Without ``reset`` none goes back.

        ``allow`` raises to refuse it; it is asked for each shard in the step of the loop that puts the offsets in line,
        and ``allowed`` is told of each shard where they are.
        Raises ``UnknownQueue``, ``NotLeader``, and ``OffsetOutOfRange`` for an offset beyond the end of its queue.
        """
        self.admission.queues(topic, queues)
        parts = split_by_shard(queues, topic, self.topology.home_shards)
        ports = await self.writable(topic, [shard for shard, _ in parts], Ack.QUORUM)
        for port, (_, places) in zip(ports, parts, strict=True):
            allow(port)
            self._check_within(port, topic, queues[places], offsets[places])
        waits = []
        for port, (_, places) in zip(ports, parts, strict=True):
            appended = port.store.commit_offsets(group, topic.id, queues[places], offsets[places], reset=reset)
            allowed(port)
            waits.append(port.wait(appended, Ack.QUORUM))
        await _all(waits)

    async def committed_offsets(
        self, group: str, topic: StoredTopic, queues: NDArray[Any] | None
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The queues that have a committed offset (of those given, or of all) and the offsets.

        Raises ``NotLeader`` unless this node leads all shards of the queues.
        """
        if queues is None:
            queues = np.arange(topic.queues, dtype=np.uint32)
        self.admission.queues(topic, queues)
        offsets = np.full(len(queues), -1, np.int64)
        parts = split_by_shard(queues, topic, self.topology.home_shards)
        ports = await self.reads.ports(topic, [shard for shard, _ in parts])
        for port, (_, places) in zip(ports, parts, strict=True):
            async for piece in in_turns(places):
                offsets[piece] = port.store.committed_offsets(group, topic.id, queues[piece])
            port.check_readable()
        present = offsets >= 0
        return queues[present], offsets[present]
