"""Replicas of one shard in one process: real stores, real links over loopback, and a control plane of one object."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from aiohttp import web

from lsmq.errors import LogTrimmed, Unavailable
from lsmq.record_batch import BatchBuilder, RecordBatch
from lsmq_coordinator.auth import ClusterSecret, Verifier, auth_middleware
from lsmq_coordinator.lives import UNCLAIMED, InSyncMember, LifeId, RegisteredStart
from lsmq_node.broker.topology import Ack
from lsmq_node.cluster.links import Links
from lsmq_node.cluster.ports import ReplicaPorts, TransferProgress
from lsmq_node.cluster.replica import Replica
from lsmq_node.cluster.transfer import Snapshots
from lsmq_node.replication import ControlView, ReplicaMessage, Timings
from lsmq_node.replication.actions import ProposeInSync, ProposeLeave, RegisterStart
from lsmq_node.replication.identity import recognises
from lsmq_node.storage import ShardStore, StoreOptions
from lsmq_node.storage.disk import Clock, Disk
from lsmq_node.storage.state import StoredTopic, TopicOptions
from storage.harness import bodies, small
from support.waiting import PATIENCE_S, comes_true

SECRET = ClusterSecret(b"a secret of sixteen bytes or more")
SHARD = 3
QUEUES = 4
TIMINGS = Timings(heartbeat_s=0.05, retry_s=0.05, replica_timeout_s=1.0, replica_lag_s=2.0)
LEASE_S = 0.4
NAMES = ("a", "b", "c")


async def until(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Return as soon as the condition holds; fail when it does not in time."""
    await comes_true(condition, what, timeout_s)


def batch(*contents: bytes, queue: int = 0, producer: tuple[int, int] | None = None) -> RecordBatch:
    builder = BatchBuilder()
    for content in contents:
        builder.add(queue, content)
    if producer is None:
        return RecordBatch(builder.build())
    return RecordBatch(builder.build(producer_id=producer[0], sequence=producer[1]))


@dataclass
class Site:
    """A node: its directory survives, the rest lives from start to stop."""

    name: str
    path: Path
    disk: Disk | None = None
    clock: Clock | None = None
    url: str = ""
    replica: Replica | None = None
    links: Links | None = None
    scope: AsyncExitStack | None = None
    leased: bool = True

    @property
    def there(self) -> Replica:
        assert self.replica is not None, f"{self.name} is down"
        return self.replica

    @property
    def store(self) -> ShardStore:
        return self.there.store


class Group:
    """The nodes and the control plane. Proposals are committed at once, compare-and-set."""

    def __init__(self, directory: Path, names: tuple[str, ...], min_in_sync: int, options: StoreOptions) -> None:
        self.sites = {name: Site(name, directory / name / f"shard-{SHARD}") for name in names}
        self.options = options
        self.timings = TIMINGS
        self.ack_timeout_s = 10.0
        self.view = ControlView(
            epoch=0,
            version=1,
            leader=None,
            in_sync=frozenset(InSyncMember(name, UNCLAIMED) for name in names),
            replicas=frozenset(names),
            min_in_sync=min_in_sync,
        )
        self.asked: list[int] = []
        self.frozen = False  # no change of the in-sync set is committed
        self.spoiled: set[str] = set()  # the next frame with bytes that comes here has a wrong one
        self.cut_off: set[str] = set()  # nothing of these nodes arrives anywhere, and nothing there

    # The control plane

    def change(self, **fields: object) -> None:
        self.view = replace(self.view, version=self.view.version + 1, **fields)  # type: ignore[arg-type]
        self.tell()

    def tell(self) -> None:
        for site in self.sites.values():
            if site.replica is not None and site.leased:
                site.replica.leased(time.monotonic() + LEASE_S, self.view)

    def elect(self, name: str, *, without: tuple[str, ...] = ()) -> None:
        left = frozenset(member for member in self.view.in_sync if member.node not in without)
        kept = left if len(left) >= self.view.min_in_sync else self.view.in_sync
        start = self.view.start_of(name)
        leading = start.life if start is not None else LifeId(UNCLAIMED, 0)
        self.change(epoch=self.view.epoch + 1, leader=name, leading=leading, in_sync=kept)

    def register(self, name: str, action: RegisterStart, refused: Callable[[str], None]) -> None:
        asyncio.get_running_loop().call_soon(self._register, name, action, refused)

    def _register(self, name: str, action: RegisterStart, refused: Callable[[str], None]) -> None:
        known, start = self.view.start_of(name), action.starts[-1]
        same = known is not None and known.incarnation == action.incarnation
        if same and known is not None and not recognises(action.starts, action.registered, known):
            refused("the disk went back")
            return
        now = RegisteredStart(name, action.incarnation, *start, action.registered >= start.number)
        if now != known:
            self.change(starts=frozenset(other for other in self.view.starts if other.node != name) | {now})

    def propose(self, action: ProposeInSync) -> None:
        if (action.epoch, action.expected_version) == (self.view.epoch, self.view.version) and not self.frozen:
            asyncio.get_running_loop().call_soon(self._commit, action)

    def _commit(self, action: ProposeInSync) -> None:
        if action.expected_version == self.view.version:
            self.change(in_sync=action.members)

    def propose_leave(self, action: ProposeLeave) -> None:
        if action.expected_version == self.view.version and len(self.view.in_sync) > 1:
            leader = None if self.view.leader == action.member.node else self.view.leader
            asyncio.get_running_loop().call_soon(
                lambda: self.change(in_sync=self.view.in_sync - {action.member}, leader=leader)
            )

    async def heartbeats(self) -> None:
        while True:
            self.tell()
            await asyncio.sleep(0.05)

    # Nodes

    async def start(self, name: str) -> Replica:
        site = self.sites[name]
        scope = AsyncExitStack()

        def received(sender: str, shard: int, message: ReplicaMessage, payload: memoryview) -> None:
            if site.replica is not None and shard == SHARD and not self.cut_off & {name, sender}:
                if len(payload) and name in self.spoiled:
                    self.spoiled.remove(name)
                    payload = memoryview(bytes(payload[:-1]) + bytes([payload[-1] ^ 1]))
                site.replica.received(sender, message, payload)

        def broken(peer: str) -> None:
            if site.replica is not None:
                site.replica.stream_broken(peer)

        site.links = links = Links(name, SECRET, lambda peer: self.sites[peer].url, received, broken)
        snapshots = Snapshots(
            SECRET,
            lambda shard: None if site.replica is None else site.replica.store,
            lambda peer: self.sites[peer].url,
            1 << 30,
            patience_s=2.0,
            min_free_bytes=0,
        )

        async def fetch(shard: int, peer: str, path: Path, progress: TransferProgress) -> Callable[[], None]:
            return await snapshots.fetch(shard, peer, path, progress)

        app = web.Application(middlewares=[auth_middleware(Verifier(SECRET))])
        app.add_routes(links.routes())
        app.add_routes(snapshots.routes())
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        scope.push_async_callback(runner.cleanup)
        port = int(site.url.rsplit(":", 1)[1]) if site.url else 0
        server = web.TCPSite(runner, "127.0.0.1", port, reuse_address=True)
        await server.start()
        site.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        await scope.enter_async_context(snapshots)
        links.start()
        scope.push_async_callback(links.close)
        ports = ReplicaPorts(
            send=links.send,
            propose_in_sync=lambda shard, action: self.propose(action),
            propose_leave=lambda shard, action: self.propose_leave(action),
            register_start=lambda shard, action, refused: self.register(name, action, refused),
            ask_election=lambda shard, above, elsewhere: self.asked.append(above),
            fetch_snapshot=fetch,
            gather_snapshot=snapshots.gather,
            let_snapshot_go=snapshots.let_go,
            congested=links.congested,
        )
        given = {"disk": site.disk, "clock": site.clock}
        replica = Replica(SHARD, name, site.path, self.options, self.timings, ports, self.ack_timeout_s, **given)
        await replica.open()
        site.replica, site.scope = replica, scope
        scope.push_async_callback(replica.close)
        self.tell()
        await until(lambda: replica.life is not None, f"the start of {name} is registered")
        return replica

    async def stop(self, name: str) -> None:
        site = self.sites[name]
        scope, site.scope = site.scope, None
        if scope is not None:
            await scope.aclose()
        site.replica = site.links = None

    def __getitem__(self, name: str) -> Replica:
        return self.sites[name].there

    # What tests do

    async def lead(self, name: str, *, without: tuple[str, ...] = ()) -> Replica:
        self.elect(name, without=without)
        replica = self[name]
        await until(lambda: replica.serving, f"{name} serves")
        return replica

    async def all_in_sync(self, *names: str) -> None:
        expected = set(names or self.sites)

        def reached() -> bool:
            claimed = {member.node for member in self.view.in_sync if member.incarnation != UNCLAIMED}
            return claimed == expected

        await until(reached, f"{sorted(expected)} are in sync")

    async def make_topic(self, leader: Replica) -> None:
        leader.check_writable(Ack.QUORUM)
        appended = leader.store.put_topic(StoredTopic(1, "t", QUEUES, TopicOptions(), 1), 0, QUEUES)
        await leader.wait(appended, Ack.QUORUM)

    async def put(self, leader: Replica, *contents: bytes, queue: int = 0, ack: Ack = Ack.QUORUM) -> int:
        """Its LSN, acknowledged."""
        leader.check_writable(ack)
        appended = leader.store.append(1, batch(*contents, queue=queue))
        await leader.wait(appended, ack)
        return appended.lsn

    async def equal(self, *names: str) -> None:
        """Everything is everywhere, byte for byte, and readable."""
        replicas = [self[name] for name in names or self.sites]

        def settled() -> bool:
            with suppress(Unavailable):  # one of them is being opened
                ends = {replica.end_lsn for replica in replicas}
                applied = {replica.store.committed_lsn for replica in replicas}
                return len(ends | applied) == 1
            return False

        await until(settled, f"all logs are equal and applied: {[replica.figures() for replica in replicas]}")
        logs: list[bytes] = []

        def read() -> bool:
            with suppress(LogTrimmed):  # what was flushed has just been let go
                first = max(replica.store.replica.first_lsn() for replica in replicas)
                logs[:] = [log_bytes(replica.store, first) for replica in replicas]
                return True
            return False

        await until(read, "the logs can be read from one place on")
        assert all(log == logs[0] for log in logs), "logs differ"
        if replicas[0].store.has_topic(1):
            contents = [[bodies(replica.store, 1, queue) for queue in range(QUEUES)] for replica in replicas]
            assert all(content == contents[0] for content in contents), "messages differ"


def log_bytes(store: ShardStore, first: int) -> bytes:
    parts = []
    while piece := store.replica.read(first, 1 << 20):
        parts.append(piece)
        first += len(piece)
    return b"".join(parts)


@asynccontextmanager
async def group(
    directory: Path,
    *,
    names: tuple[str, ...] = NAMES,
    min_in_sync: int = 2,
    options: StoreOptions | None = None,
    start: bool = True,
) -> AsyncIterator[Group]:
    """A group whose nodes run, led by nobody yet."""
    made = Group(directory, names, min_in_sync, options or small())
    beats = asyncio.get_running_loop().create_task(made.heartbeats())
    try:
        if start:
            for name in names:
                await made.start(name)
        yield made
    finally:
        beats.cancel()
        for site in made.sites.values():  # nobody dials any more, and what was dialled ends while its server lives
            if site.links is not None:
                await site.links.close()
        await asyncio.sleep(0.01)
        for name in names:
            await made.stop(name)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(240):
            await test()

    asyncio.run(main())
