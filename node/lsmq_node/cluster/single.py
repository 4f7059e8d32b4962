"""A node of its own: a cluster of one. Every shard is here, and its in-sync set is this node.

No control plane is asked for what is always so: this node leads, and its lease never ends. Topics are kept in the
stores themselves (:mod:`lsmq_node.broker.catalog`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Never, TypeVar

from lsmq import runtime
from lsmq.errors import DiskFull, InvalidRequest, LsmqError, ShardStopped
from lsmq_coordinator.growth import check_growth
from lsmq_coordinator.parts import Parts
from lsmq_node.broker.background import Background
from lsmq_node.broker.catalog import NodeCatalog
from lsmq_node.broker.layout import OpenShards, add_shards, open_shards
from lsmq_node.broker.peers import NoPeers, Peers
from lsmq_node.broker.topology import Ack, AdmitTopic, CheckGrowth, CheckOptions, CheckSpread, KeysAtSpread, Leadership
from lsmq_node.choices import MAX_SHARDS_OF_ONE
from lsmq_node.config import NodeConfig
from lsmq_node.disks import NodeDisks
from lsmq_node.storage import Appended, Committed, ShardStore, StoredTopic, TopicOptions
from lsmq_node.storage.disk import SystemClock

from .disk_thread import DiskThread, ThreadFailed
from .mailbox import Mailbox
from .rights import LocalRights
from .writes import Touched, WaitingWrites

Result = TypeVar("Result")

_ONLY_NODE = "local"
_COMPLETE_RETRY_S = 1.0


class LocalShard:
    """A replica that is the whole in-sync set of its shard: what its disk has is committed, and the thread that wrote
    it applies it. It leads for ever, in the first epoch."""

    def __init__(self, number: int, store: ShardStore, touched: Touched) -> None:
        self.number = number
        self.store = store
        self._stopped: LsmqError | None = None
        self._writes = WaitingWrites(number, touched)
        mailbox: Mailbox[Committed | ThreadFailed] = Mailbox(self._heed)
        self._disk: DiskThread[Never] = DiskThread(number, store, mailbox.post)
        store.on_commit(mailbox.post)
        self._disk.start()

    def _heed(self, item: Committed | ThreadFailed) -> None:
        if isinstance(item, Committed):
            self._writes.committed(item)
        if item.error is not None and (self.store.stopped or isinstance(item, ThreadFailed)):
            self._stopped = self._stopped or item.error
            self._writes.fail(self._stopped)

    @property
    def stopped(self) -> LsmqError | None:
        if self._stopped is None and self.store.stopped:  # By a thread that nobody waited for.
            try:
                self.store.check_open()
            except LsmqError as error:
                self._stopped = error
        return self._stopped

    @property
    def waits(self) -> int:
        return self._writes.added

    @property
    def failures(self) -> int:
        return self._writes.failed_commits

    @property
    def wants_room(self) -> None:
        """It does nothing that cannot be refused."""

    def check_writable(self, ack: Ack) -> None:
        """Everything is writable; a store that stopped says so itself."""

    def check_readable(self, *, follower: bool = False, found: bool = False) -> None:
        """Everything is readable."""

    async def prepare(self, topic: StoredTopic) -> None:
        """The catalog has seen to it."""

    def wait(self, appended: Appended, ack: Ack) -> asyncio.Future[None]:
        future = self._writes.add(appended, Ack.QUORUM, self.store.committed_lsn, 0.0)
        self._disk.kick_soon()
        return future

    def durable_at(self, appended: Appended) -> float | None:
        return None

    def figures(self) -> dict[str, Any]:
        return {"role": "leading", "epoch": 1, "serving": self.stopped is None}

    async def close(self) -> None:
        """Commit what waits, end the thread, close the store. No append may come after."""
        await self._writes.settled()
        await asyncio.to_thread(self._disk.close)
        await asyncio.to_thread(self.store.close)


class LocalTopics:
    """The topics of a catalog. They are changed in a thread, one at a time."""

    def __init__(self, catalog: NodeCatalog) -> None:
        self._catalog = catalog
        self._thread = runtime.ThreadPoolExecutor(1, "lsmq-control")
        self._exact = asyncio.Lock()  # held from looking at topics until what was decided by that is done

    def all(self) -> Sequence[StoredTopic]:
        return self._catalog.topics()

    def changes(self) -> object:
        return self._catalog.changes()

    def count(self) -> int:
        return self._catalog.count()

    def queue_count(self) -> int:
        return self._catalog.queue_count()

    def find(self, name: str) -> StoredTopic | None:
        return self._catalog.find(name)

    async def newest(self) -> Sequence[StoredTopic]:
        return self.all()

    async def by_name(self, name: str) -> StoredTopic:
        return self._catalog.topic(name)

    async def by_id(self, topic_id: int) -> StoredTopic:
        return self._catalog.topic_by_id(topic_id)

    async def complete(self) -> None:
        await self._change(self._catalog.complete)

    async def create(
        self, name: str, queues: int, admit: AdmitTopic, *, exact: bool = False
    ) -> tuple[StoredTopic, bool]:
        def create(options: TopicOptions) -> tuple[StoredTopic, bool]:
            is_new = self._catalog.find(name) is None
            return self._catalog.create(name, queues, options), is_new

        async with self._exact if exact else nullcontext():
            options = admit()
            return await self._change(lambda: create(options))

    async def grow(self, name: str, queues: int, check: CheckGrowth | None = None) -> StoredTopic:
        async with self._exact if check else nullcontext():
            if check is not None:
                check(await self.by_name(name))
            return await self._change(lambda: self._catalog.grow(name, queues))

    async def alter(self, name: str, changes: Mapping[str, Any], check: CheckOptions) -> StoredTopic:
        return await self._change(lambda: self._catalog.alter(name, changes, check))

    async def delete(self, name: str, meant: int | None = None) -> StoredTopic:
        return await self._change(lambda: self._catalog.delete(name, meant))

    async def spread(self, name: str, keys: KeysAtSpread, check: CheckSpread) -> StoredTopic:
        async with self._exact:
            topic = await self.by_name(name)
            check(topic, self._catalog.spread_queues(topic))
            return await self._change(lambda: self._catalog.spread(name, pins_keys=keys is KeysAtSpread.STAY))

    async def add_shards(self, stores: Sequence[ShardStore]) -> None:
        """Topics may lie on these too from here on."""
        await self._change(lambda: self._catalog.add(stores))

    async def _change(self, blocking: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, blocking)

    async def close(self) -> None:
        await asyncio.to_thread(self._thread.shutdown)


class SingleNode:
    """The topology of a node of its own. Make it in the loop's thread."""

    def __init__(
        self, config: NodeConfig, disks: NodeDisks, shards: OpenShards, touched: Touched, parts: Parts
    ) -> None:
        """``shards`` belong to it from here on. ``parts`` are the whole node's."""
        self._config, self._touched, self._parts = config, touched, parts
        self._growing = asyncio.Lock()
        self._background = Background("topics")
        self.disks = disks
        self.clock = SystemClock()
        self.home_shards = config.shards
        self.peers: Peers = NoPeers(self.port)
        self._missing = shards.missing
        for number, why in shards.missing.items():
            if disks.find(number) is not None:  # Else its disk says so.
                parts.part(f"shard {number}", essential=False).stopped(why.message)
        self._ports = {number: LocalShard(number, store, touched) for number, store in shards.stores.items()}
        self.topics = LocalTopics(NodeCatalog(shards.stores, self.shard_count, config.shards))
        self.rights = LocalRights(shards.stores[0])

    @classmethod
    async def open(cls, config: NodeConfig, disks: NodeDisks, touched: Touched, parts: Parts) -> SingleNode:
        """Open the shards. Raises what :func:`open_shards` raises."""
        node = cls(config, disks, await asyncio.to_thread(open_shards, config, disks), touched, parts)
        try:
            await node.topics.complete()
        except DiskFull as error:
            node._background.start(node._complete_later(error))
        return node

    async def _complete_later(self, why: LsmqError) -> None:
        """A full disk has not heard of all topics: it does when it has room, and the node serves meanwhile."""
        part = self._parts.part("topics", essential=False)
        while True:
            part.retrying(why.message)
            await asyncio.sleep(_COMPLETE_RETRY_S)
            try:
                await self.topics.complete()
            except LsmqError as error:
                why = error
            else:
                part.running()
                return

    @property
    def shard_count(self) -> int:
        return len(self._ports) + len(self._missing)

    def ports(self) -> Sequence[LocalShard]:
        return list(self._ports.values())

    def port(self, shard: int) -> LocalShard:
        """Raises ``ShardStopped`` for one whose disk cannot be used."""
        missing = self._missing.get(shard)
        if missing is not None:
            raise ShardStopped(missing.message, **missing.details)
        return self._ports[shard]

    def lost_shards(self) -> Sequence[int]:
        return sorted(self._missing)

    def leadership(self, shard: int) -> Leadership:
        return Leadership(None, 1, here=shard in self._ports)

    def followers(self, shard: int) -> Sequence[str]:
        return ()

    def gauges(self) -> Mapping[str, float]:
        return {}

    def overview(self, own_url: str) -> dict[str, Any]:
        node: dict[str, Any] = {
            "id": _ONLY_NODE,
            "url": own_url,
            "internal_url": None,
            "voter": False,
            "state": "active",
            "only_votes": False,
            "alive": True,
            "problems": self._problems(),
            "clock_ms": None,
            "shards_led": len(self._ports),
            "replicas": self.shard_count,
            "host": None,
            "rack": None,
        }
        shard: dict[str, Any] = {
            "leader": _ONLY_NODE,
            "epoch": 1,
            "in_sync": [_ONLY_NODE],
            "replicas": [_ONLY_NODE],
            "adding": [],
            "target": [],
            "pinned": False,
            "problem": None,
            "misplaced": None,
            "revived": [],
        }
        lost = {number: {"leader": None, "problem": why.message} for number, why in self._missing.items()}
        shards = [{"id": number, **shard, **lost.get(number, {})} for number in range(self.shard_count)]
        alone = {"cluster": None, "version": 0, "control_leader": None, "moves_paused": False, "voter_change": None}
        return {**alone, "home_shards": self.home_shards, "nodes": [node], "shards": shards}

    def _problems(self) -> list[str]:
        stopped = [f"shard {port.number} stopped: {port.stopped.message}" for port in self.ports() if port.stopped]
        return [*self._parts.problems(essential=True), *stopped, *self._parts.problems(essential=False)]

    async def plan(self) -> dict[str, Any]:
        """There is nowhere to move anything to."""
        return {"version": 0, "paused": False, "moves": [], "more": False, "moving": [], "away": [], "voters": []}

    async def plan_growth(self, shards: int) -> dict[str, Any]:
        check_growth(self.shard_count, shards, MAX_SHARDS_OF_ONE)
        new = [{"id": number, "replicas": [_ONLY_NODE]} for number in range(self.shard_count, shards)]
        return {"version": 0, "expected_shards": self.shard_count, "shards": new}

    async def grow_shards(self, shards: int) -> dict[str, Any]:
        growing = asyncio.create_task(self._grow(shards))
        await asyncio.shield(growing)  # Who asked may go away; stores that are open have to come to their places.
        return {"version": 0}

    async def _grow(self, shards: int) -> None:
        async with self._growing:
            there = self.shard_count
            await self.plan_growth(shards)
            if shards > there:
                stores = await asyncio.to_thread(add_shards, self._config, self.disks, there, shards)
                for number, store in enumerate(stores, there):
                    self._ports[number] = LocalShard(number, store, self._touched)
                await self.topics.add_shards(stores)

    async def administer(self, command: Mapping[str, Any]) -> dict[str, Any]:
        raise InvalidRequest("this node is in no cluster; see docs/operations.md for how to make one")

    def not_ready(self) -> Sequence[str]:
        return ()

    async def retire(self) -> None:
        """Nobody else is there."""

    async def close(self) -> None:
        await self._background.stop()
        async with self._growing:
            await self.topics.close()
        for port in self._ports.values():
            await port.close()
