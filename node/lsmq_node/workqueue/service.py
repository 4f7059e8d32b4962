"""What the API asks of work queues: finds the shards, builds what it knows when this node begins to lead one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from lsmq.errors import InvalidRequest, LsmqError, NotLeader, TooManyGroups
from lsmq_coordinator.parts import kept
from lsmq_node.broker import Ack, Background, Broker, Hold, ShardPort
from lsmq_node.groups import GroupService, Mode
from lsmq_node.storage import Topic

from .burial import too_few_queues
from .chunks import SETTINGS, prefix
from .receipts import Receipt, decode_receipt, group_hash
from .settings import Settings
from .shard_work import Delivery, ShardWork, Waiter
from .tasks import Counts, Refusal

_log = structlog.get_logger("lsmq.workqueue")

_TICK_S = 0.25
#: A group without consumers costs nothing after so long: commits are not followed for it any more.
_IDLE_S = 300.0
_MAX_DELETES = 10_000
#: Groups by topics and shards, that were used lately.
_MAX_WORKS = 5_000

Key = tuple[str, int, int]
"""Group, topic id and shard."""


class WorkService:
    """One for each node. Loop thread only; ``start`` before anything else, ``stop`` at the end."""

    def __init__(self, broker: Broker, groups: GroupService) -> None:
        self._broker = broker
        self._groups = groups
        self._works: dict[Key, ShardWork] = {}
        self._loading: dict[Key, asyncio.Task[ShardWork]] = {}
        self._former: dict[Key, ShardWork] = {}  # whose deliveries those that are being loaded go on with
        self._background = Background("workqueue")
        self._turn = 0
        self._stopping = False
        self.counts = Counts()
        self.held = 0

    def start(self) -> None:
        self._background.start(kept(self._broker.parts.part("workqueue-timer"), self._tick))

    def begin_stop(self) -> None:
        """Answer held pops at once, now and from here on."""
        self._stopping = True
        for work in self._works.values():
            work.wake_all()

    async def stop(self) -> None:
        """No request may be in progress."""
        self.begin_stop()
        for work in self._works.values():
            work.close()
        await self._background.stop()

    async def _tick(self) -> None:
        """Whoever waits at a shard that is led elsewhere by now is told so. What nobody uses is forgotten."""
        while True:
            await asyncio.sleep(_TICK_S)
            for key, work in list(self._works.items()):
                try:
                    work.check()
                    if work.is_idle and asyncio.get_running_loop().time() - work.used_at > _IDLE_S:
                        self._drop(key, work)
                except LsmqError:
                    if work.is_current:
                        work.wake_all()
                    else:
                        self._retire(key, work)
            for key, work in list(self._former.items()):
                if asyncio.get_running_loop().time() - work.used_at > _IDLE_S:
                    del self._former[key]

    def _retire(self, key: Key, work: ShardWork) -> None:
        """It is read again from what is stored when somebody asks."""
        self._drop(key, work)
        self._former.setdefault(key, work)

    def _drop(self, key: Key, work: ShardWork) -> None:
        work.close()
        if self._works.get(key) is work:
            del self._works[key]

    # Shards

    def works(self) -> Sequence[ShardWork]:
        """What is known of work queues in the shards led here."""
        return [work for work in self._works.values() if work.is_current]

    async def work(self, group: str, topic: Topic, shard: int) -> ShardWork:
        """The work queue in a shard that this node leads. Makes it, where it is new.

        Raises ``NotLeader``, ``GroupModeMismatch``, and what reading and writing may raise.
        """
        port = self._broker.topology.port(shard)
        port.check_readable()
        key = (group, topic.id, shard)
        known = self._works.get(key)
        if known is not None:
            if known.port is port and known.is_current:
                known.used_at = asyncio.get_running_loop().time()
                if topic.queues > known.topic.queues:
                    known.topic = topic
                return known
            self._retire(key, known)
        task = self._loading.get(key)
        if task is None:
            self._make_room(group)
            task = self._loading[key] = self._background.start(self._load(key, port, topic))
        return await asyncio.shield(task)

    def _make_room(self, group: str) -> None:
        """Put aside what was not used for longest. Raises ``TooManyGroups`` where all are busy."""
        if len(self._works) + len(self._loading) < _MAX_WORKS:
            return
        idle = [(work.used_at, key) for key, work in self._works.items() if work.is_idle]
        if not idle:
            raise TooManyGroups(
                f"work queues are busy in {_MAX_WORKS} shards of this node's topics, the limit; use fewer groups",
                limit=_MAX_WORKS,
                group=group,
            )
        _, key = min(idle)
        self._drop(key, self._works[key])

    async def _load(self, key: Key, port: ShardPort, topic: Topic) -> ShardWork:
        group = key[0]
        try:
            await port.prepare(topic)
            if port.store.document(prefix(group, topic.id) + SETTINGS) is None:
                await self._groups.declare_anywhere(group, Mode.WORK_QUEUE)
            work = ShardWork(self._broker, port, topic, group, self._background.start, self.counts)
            try:
                await work.load(self._former.get(key))
                work.check()
                if not work.known:
                    await self._forget_deleted_topics(group, port)
                    await work.put_settings({})
            except BaseException:
                work.close()
                raise
            work.used_at = asyncio.get_running_loop().time()
            self._works[key] = work
            self._former.pop(key, None)
            _log.info("work_queue_loaded", group=group, topic=topic.name, shard=port.number, **work.figures())
            return work
        finally:
            self._loading.pop(key, None)

    async def _forget_deleted_topics(self, group: str, port: ShardPort) -> None:
        """What is left of the group's work on topics that were deleted."""
        start = prefix(group)
        gone = [
            key
            for key, _ in port.store.documents(start)
            if not port.store.has_topic(int(key.removeprefix(start).partition("/")[0]))
        ]
        await self._delete_documents(port, gone)

    async def _delete_documents(self, port: ShardPort, keys: Sequence[str]) -> None:
        for at in range(0, len(keys), _MAX_DELETES):
            port.check_writable(Ack.QUORUM)
            appended = port.store.put_documents(dict.fromkeys(keys[at : at + _MAX_DELETES]))
            future = port.wait(appended, Ack.QUORUM)
            if future is not None:
                await asyncio.shield(future)

    def shards(self, topic: Topic, asked: Sequence[int] | None) -> list[int]:
        """Those of the topic among the shards asked for; those led here, where none are named.

        Raises ``NotLeader``, or ``InvalidRequest`` where the topic has none of the shards.
        """
        topology = self._broker.topology
        holding = sorted({part.shard for part in self._broker.ranges(topic)})
        if asked is not None:
            if found := [shard for shard in holding if shard in asked]:
                return found
            raise InvalidRequest(
                f"shards names none of topic {topic.name!r}, which is in {', '.join(map(str, holding))}", field="shards"
            )
        led = [shard for shard in holding if topology.leadership(shard).here]
        if not led:
            shard = holding[0]
            leads = topology.leadership(shard)
            raise NotLeader(
                f"this node leads no shard of topic {topic.name!r}; ask the leaders",
                shard=shard,
                leader=leads.url,
                epoch=leads.epoch,
            )
        return led

    def is_work_queue(self, group: str, topic: Topic) -> bool:
        """Whether a shard at this node has the group's work on the topic."""
        key = prefix(group, topic.id) + SETTINGS
        return any(port.store.document(key) is not None for port in self._broker.topology.ports())

    async def forget(self, group: str, shard: int) -> None:
        """Drop what a shard knows of the group's work. Durable on return."""
        port = self._broker.topology.port(shard)
        port.check_readable()
        keys = [key for key, _ in port.store.documents(prefix(group))]
        for key, work in list(self._works.items()):
            if key[0] == group and key[2] == shard:
                self._drop(key, work)
        self._former = {key: work for key, work in self._former.items() if (key[0], key[2]) != (group, shard)}
        await self._delete_documents(port, keys)

    # Delivering and settling

    async def pop(
        self,
        group: str,
        topic: Topic,
        shards: Sequence[int],
        *,
        limit: int,
        max_bytes: int,
        visibility_ms: int | None,
        wait_ms: int,
        gone: Callable[[], bool],
        hold: Hold,
    ) -> list[Delivery]:
        """Up to ``limit`` messages of these shards, waiting up to ``wait_ms`` for the first.

        Nothing is delivered to whom is ``gone``. ``hold`` reserves memory for what is read.
        Raises as :meth:`work`, ``UnknownTopic``, ``Unavailable``.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        while True:
            works = [await self.work(group, topic, shard) for shard in shards]
            try:
                found = await self._take(works, limit, max_bytes, visibility_ms, gone, hold)
                if found or wait_ms == 0 or loop.time() >= deadline or self._stopping or gone():
                    return found
                await self._wait(works, deadline)
            finally:
                for work in works:
                    if work.available:
                        work.wake_one()
            topic = await self._broker.topic_by_id(topic.id)

    async def _take(
        self,
        works: Sequence[ShardWork],
        limit: int,
        max_bytes: int,
        visibility_ms: int | None,
        gone: Callable[[], bool],
        hold: Hold,
    ) -> list[Delivery]:
        found: list[Delivery] = []
        size_bytes = 0
        self._turn += 1
        turn = self._turn % len(works) if works else 0
        for work in [*works[turn:], *works[:turn]]:
            work.check()
            if not work.available:
                continue
            hold.resize(max_bytes)
            visible_ms = work.settings.visibility_ms if visibility_ms is None else visibility_ms
            try:
                taken = await work.take(limit - len(found), max_bytes - size_bytes, visible_ms, gone)
            except LsmqError:
                if not found:
                    raise
                break
            finally:
                hold.resize(size_bytes)
            found += taken
            size_bytes += sum(delivery.record.size_bytes for delivery in taken)
            hold.resize(size_bytes)
            if len(found) >= limit or size_bytes >= max_bytes:
                break
        return found

    async def _wait(self, works: Sequence[ShardWork], deadline: float) -> None:
        """Until one of them has something, or ``deadline``. Raises ``Unavailable`` at the limit of held polls."""
        if any(work.available for work in works):
            return
        with self._broker.waiters.held():
            waiter = Waiter()
            for work in works:
                work.add_waiter(waiter)
            self.held += 1
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter.future
            except TimeoutError:
                pass
            finally:
                self.held -= 1
                for work in works:
                    work.remove_waiter(waiter)

    async def settle(
        self,
        group: str,
        topic: Topic,
        texts: Sequence[str],
        how: Callable[[ShardWork], Callable[[Receipt, int], Refusal | None]],
    ) -> list[Refusal | None]:
        """What became of each receipt; durable on return. ``how`` chooses what is done with one.

        Raises ``NotLeader``, before anything is done, where one belongs to a shard that is led elsewhere.
        """
        owner = group_hash(group)
        receipts = [decode_receipt(text, owner, topic.id) for text in texts]
        refusals: list[Refusal | None] = [Refusal.UNKNOWN] * len(texts)
        places: dict[int, list[int]] = {}
        for at, receipt in enumerate(receipts):
            if receipt is not None and receipt.queue < topic.queues:
                places.setdefault(self._broker.shard_of(topic, receipt.queue), []).append(at)
        works = {shard: await self.work(group, topic, shard) for shard in places}
        for shard, work in works.items():
            chosen = [receipt for at in places[shard] if (receipt := receipts[at]) is not None]
            for at, refusal in zip(places[shard], await work.settle(chosen, how(work)), strict=True):
                refusals[at] = refusal
        return refusals

    # Settings

    async def configure(
        self, group: str, topic: Topic, shards: Sequence[int], given: Mapping[str, Any]
    ) -> list[ShardWork]:
        """Set how the work queue behaves in these shards. Raises ``InvalidRequest`` for a topic of dead letters that
        has too few queues."""
        name = Settings.of(given).dead_letter_topic(topic.name)
        count = self._broker.topology.shard_count
        for known in self._broker.topology.topics.all():
            if known.name == name and len({part.shard for part in self._broker.ranges(known)}) < count:
                raise too_few_queues(known, count)
        works = [await self.work(group, topic, shard) for shard in shards]
        for work in works:
            await work.put_settings(given)
        return works
