"""A cluster in a world: each node is the daemon as ``lsmq serve --cluster`` composes it, on a machine of its own."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import structlog

from lsmq.errors import LsmqError
from lsmq_coordinator.death import Sentinel
from lsmq_coordinator.state import ClusterState
from lsmq_node import node as composition
from lsmq_node.api import serve
from lsmq_node.broker import Broker
from lsmq_node.cluster import running_member
from lsmq_node.cluster.replica import Replica
from lsmq_node.cluster_config import ClusterConfig
from lsmq_node.cluster_nodes import VoterAddresses
from lsmq_node.config import NodeConfig
from lsmq_node.storage.wal import segment_name

from .machine import World
from .medium import DirectoryNode
from .scheduler import SimulatedProcess

_PORT, _INTERNAL_PORT, _RAFT_PORT = 7600, 7601, 7602
_RESTART_S = 0.5
#: Small, so that logs are cut, tables written and merged within seconds.
_SETTINGS: Mapping[str, Any] = {
    "segment_bytes": 64 << 10,
    "memtable_bytes": 64 << 10,
    "max_message_bytes": 8 << 10,
    "cache_bytes": 1 << 20,
    "min_free_bytes": 1 << 20,
    "shutdown_grace_ms": 2_000,
}


class SimulatedNode:
    """One machine of the cluster, and the daemon on it while it runs."""

    def __init__(self, cluster: SimulatedCluster, number: int) -> None:
        self.cluster = cluster
        self.id, self.host = f"n{number}", f"10.0.0.{number}"
        self.url = f"http://{self.host}:{_PORT}"
        self.disk = cluster.world.files.disk(self.host)
        self.process: SimulatedProcess | None = None
        #: The daemon's insides, for those who check them.
        self.broker: Broker | None = None
        self.starts = 0
        self.wrong_s = 0.0
        #: To be running: one that ends by itself is started again.
        self.wanted = False
        self.backup: DirectoryNode | None = None
        self._loop: Any = None
        self.sentinel: Sentinel | None = None

    @property
    def up(self) -> bool:
        return self.process is not None and self.process.alive

    def start(self) -> None:
        self.wanted = True
        if self.up:
            return
        world = self.cluster.world
        self.starts += 1
        self.broker = self.sentinel = None
        self.process = world.process(f"{self.id}.{self.starts}", self.host, steady_s=1000.0 * int(self.id[1:]))
        self.process.wrong_s = self.wrong_s
        world.scheduler.spawn(self._main, "main", self.process)

    def _main(self) -> None:
        cluster, process = self.cluster, self.process
        assert process is not None
        process.node = self  # type: ignore[attr-defined]
        try:
            cluster.world.loop_run(self._serve)
        except BaseExceptionGroup as group:
            others = group.split(LsmqError)[1]
            cluster.note(f"{self.id} ended: {_leaves(group)}")
            if others is not None:
                cluster.broke(f"{self.id} ended", others)
        except LsmqError as error:
            cluster.note(f"{self.id} ended: {error.code}: {error.message}")
        except Exception as error:
            cluster.broke(f"{self.id} ended", error)
        world = cluster.world
        process.kill()
        world.network.killed(process)
        world.files.killed(process)
        if self.process is process:
            self.process = self.broker = None
            world.scheduler.call_later(_RESTART_S, lambda: self.start() if self.wanted and not self.up else None)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._unhandled)
        await serve._serve(self.cluster.config(self))

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.cluster.note(f"{self.id} unhandled: {context.get('message')} {error!r}")
        if error is not None and not isinstance(error, (OSError, asyncio.CancelledError)):
            self.cluster.broke(f"{self.id}: {context.get('message')}", error)

    # What befalls it

    def stop(self) -> None:
        """SIGTERM."""
        self.wanted = False
        if self.up and self._loop is not None and not self._loop.is_closed():
            self._loop.signal(signal.SIGTERM)

    def kill(self) -> None:
        self.wanted = False
        if self.process is not None and self.up:
            self.cluster.world.kill(self.process)
            self._tell_of_death()
        self.process = self.broker = None

    def cut_power(self) -> None:
        self.wanted = False
        if self.process is not None and self.up:
            self.cluster.world.cut_power(self.process)
        self.process = self.broker = None

    def lose_disk(self) -> None:
        self.cluster.on_disk_change(self, True)
        self.cut_power()
        self.disk.become(DirectoryNode())
        self.backup = None

    def set_back(self) -> None:
        """The disk becomes what it was at the time of the last copy."""
        self.cluster.on_disk_change(self, False)
        self.cut_power()
        if self.backup is not None:
            self.disk.become(self.backup)
            self.backup = self.disk.copy()

    def lose_tail(self) -> None:
        """Of each shard's log what was synced last and no table has, as if the disk had only said that it was."""
        self.cluster.on_disk_change(self, False)
        ends = {
            replica.shard: _log_behind_tables(replica)
            for node, replica in self.cluster.replicas()
            if node is self and replica.is_open
        }
        self.cut_power()
        size = self.cluster.segment_bytes
        for shard, (flushed, end) in ends.items():
            begin = max(flushed, end - self.cluster.world.random.randint(1, 20_000), end - end % size)
            self.disk.erase(f"{self.disk.root}/data/shard-{shard}/wal/{segment_name(end - end % size)}", begin % size)

    def _tell_of_death(self) -> None:
        """What the sentinel beside the process does."""
        if self.sentinel is None:
            return
        order: dict[str, Any] = self.sentinel._order
        world = self.cluster.world
        process = world.process(f"{self.id}.sentinel", self.host)

        async def tell(target: tuple[str, int]) -> None:
            try:
                async with asyncio.timeout(order["patience_s"]):
                    while True:
                        try:
                            reader, writer = await asyncio.open_connection(*target)
                            writer.write(order["request"].encode())
                            await reader.read(1024)
                            writer.close()
                            return
                        except OSError:
                            await asyncio.sleep(0.1)
            except TimeoutError:
                pass

        async def tell_all() -> None:
            await asyncio.gather(*(tell((host, port)) for host, port in order["targets"]))

        world.scheduler.spawn(lambda: world.loop_run(tell_all), "main", process)


class SimulatedCluster:
    """Nodes ``n1`` .. that are founded together; all vote. Behind them ``joiners``, which come later and do not."""

    def __init__(
        self,
        world: World,
        *,
        nodes: int = 3,
        joiners: int = 0,
        shards: int = 1,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.world, self.shards = world, shards
        self.settings = dict(settings or {})
        self.nodes = [SimulatedNode(self, number + 1) for number in range(nodes + joiners)]
        self.founders = self.nodes[:nodes]
        self.problems: list[str] = []
        self.clocks_were_wrong = False  # at any time
        self.client_hosts: list[str] = []
        #: Told of a node whose disk is about to become another one, and whether all of it is lost.
        self.on_disk_change: Callable[[SimulatedNode, bool], None] = lambda node, lost: None
        self.secret = world.files.root / "secret"
        self.secret.write_bytes(b"5eed" * 16)
        self.secret.chmod(0o600)

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.founders]

    @property
    def segment_bytes(self) -> int:
        """Of the nodes' logs."""
        size: int = {**_SETTINGS, **self.settings}["segment_bytes"]
        return size

    def node(self, id: str) -> SimulatedNode:
        return self.nodes[int(id[1:]) - 1]

    def note(self, text: str) -> None:
        self.world.scheduler.note(text)

    def broke(self, what: str, error: BaseException) -> None:
        """Something that must never happen."""
        text = "".join(traceback.format_exception(error))
        self.problems.append(f"{what}: {text}")
        self.note(f"BROKE {what}: {type(error).__name__}: {error}")

    def config(self, node: SimulatedNode) -> NodeConfig:
        own = {name: value for name, value in self.settings.items() if not name.startswith("cluster.")}
        asked = {name[8:]: value for name, value in self.settings.items() if name.startswith("cluster.")}
        table = {
            "node": node.id,
            "shards": self.shards,
            "replicas": min(3, len(self.founders)),
            "rebuild_after_ms": 1_500,
            "replace_voter_after_ms": 1_500,
            "secret_file": self.secret,
            "internal_host": node.host,
            "internal_port": _INTERNAL_PORT,
            "raft_port": _RAFT_PORT,
            "voters": {
                voter.id: VoterAddresses(
                    url=voter.url,
                    internal_url=f"http://{voter.host}:{_INTERNAL_PORT}",
                    raft=f"{voter.host}:{_RAFT_PORT}",
                )
                for voter in self.founders
            },
        }
        if node not in self.founders:
            table["internal_url"] = f"http://{node.host}:{_INTERNAL_PORT}"
            own["advertised_url"] = node.url
        cluster = ClusterConfig.load({"plan": table, "--set": asked})
        data = node.disk.root / "data"
        return NodeConfig.load(data=data, host=node.host, port=_PORT, cluster=cluster, **{**_SETTINGS, **own})

    def replicas(self) -> Iterator[tuple[SimulatedNode, Replica]]:
        """Of all daemons that run."""
        for node in self.nodes:
            if node.up and node.broker is not None:
                member: Any = node.broker.topology
                for replica in member.replicas.all().values():
                    yield node, replica

    def whole(self) -> bool:
        """Whether every shard is led, has the replicas it should have, and all of them are in sync."""
        state = self.state()
        if state is None or len(state.shards) < self.shards:
            return False
        served = {replica.shard for _, replica in self.replicas() if replica.serving}
        return all(
            shard.id in served and not shard.target and len(shard.in_sync) == len(shard.replicas)
            for shard in state.shards.values()
        )

    def settled(self) -> bool:
        """Whether it is whole, and all replicas in sync have applied the same."""
        state, applied = self.state(), dict[int, set[tuple[int, int]]]()
        if state is None or not self.whole():
            return False
        for node, replica in self.replicas():
            if node.id in state.shards[replica.shard].in_sync_nodes:
                if replica.stopped or replica.store is None:
                    return False
                lsns = replica.high_watermark, replica.store.replica.committed_lsn
                applied.setdefault(replica.shard, {lsns[::-1]}).add(lsns)
        return all(len(lsns) == 1 for lsns in applied.values())

    def state(self) -> ClusterState | None:
        """What nodes agree on, as far as one that runs knows it."""
        states = [node.broker.topology.control.state for node in self.nodes if node.broker is not None]  # type: ignore[attr-defined]
        return max(states, key=lambda state: state.version, default=None)

    def leader(self) -> SimulatedNode:
        """Of shard 0; the first node where nobody leads it."""
        leads = (node for node, replica in self.replicas() if replica.shard == 0 and replica.serving)
        return next(leads, self.nodes[0])

    def broker_of(self, broker: Broker) -> None:
        node: SimulatedNode = self.world.scheduler.process.node  # type: ignore[attr-defined]
        node.broker = broker

    @contextmanager
    def installed(self) -> Iterator[None]:
        """What a daemon has beside its process is the world's while this lasts: its log, its sentinel, its output."""
        cluster = self

        class WorldSentinel(Sentinel):
            async def run(self) -> None:
                cluster.world.scheduler.process.node.sentinel = self  # type: ignore[attr-defined]
                self._part.running()
                await asyncio.Event().wait()

        def made(config: Any, *arguments: Any) -> Broker:
            broker = Broker(config, *arguments)
            cluster.broker_of(broker)
            return broker

        with ExitStack() as scope:
            scope.enter_context(patch.object(running_member, "Sentinel", WorldSentinel))
            scope.enter_context(patch.object(composition, "Broker", made))
            scope.enter_context(patch.object(serve, "announce", lambda config, data: None))
            scope.enter_context(patch.object(gc, "collect", lambda *_: 0))
            scope.enter_context(patch.object(gc, "freeze", lambda: None))
            scope.callback(structlog.reset_defaults)
            for log in map(logging.getLogger, ("aiohttp", "lsmq", "lsmq_coordinator", "lsmq_node")):
                scope.enter_context(patch.object(log, "handlers", [_Told(self)]))
                scope.enter_context(patch.object(log, "propagate", False))
            structlog.configure(processors=[self._logged], cache_logger_on_first_use=False)
            yield

    def _logged(self, logger: object, method: str, event: Any) -> Any:
        if event.get("event") != "starting":
            said = " ".join(f"{name}={value!r}" for name, value in event.items() if name not in ("event", "exc_info"))
            self.note(f"{method} {event.get('event')} {said}"[:500])
            error = event.get("exc_info")
            if method in ("exception", "critical") or (isinstance(error, BaseException) and not _passes(error)):
                self.problems.append(f"logged {event.get('event')}: {said} {_told(error)}")
        raise structlog.DropEvent


def _log_behind_tables(replica: Replica) -> tuple[int, int]:
    return replica.store._tables.manifest.flushed_lsn, replica.end_lsn


class _Told(logging.Handler):
    """What is warned of is part of what happened; no error reaches aiohttp, which knows of none of ours."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        super().__init__(logging.WARNING)
        self._cluster = cluster

    def emit(self, record: logging.LogRecord) -> None:
        self._cluster.note(f"{record.levelname.lower()} {record.getMessage()[:300]}")
        if record.name.startswith("aiohttp") and record.levelno >= logging.ERROR:
            error = record.exc_info[1] if record.exc_info else None
            self._cluster.problems.append(f"aiohttp: {record.getMessage()} {_told(error)}")


def _passes(error: BaseException) -> bool:
    return isinstance(error, (OSError, LsmqError))


def _told(error: object) -> str:
    if isinstance(error, BaseException):
        return "".join(traceback.format_exception(error))
    return traceback.format_exc()


def _leaves(group: BaseExceptionGroup[Any]) -> list[str]:
    found: list[str] = []
    for error in group.exceptions:
        found.extend(_leaves(error) if isinstance(error, BaseExceptionGroup) else [f"{type(error).__name__}: {error}"])
    return found
