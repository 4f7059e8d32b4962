"""Everything a member of a cluster runs, put together in one scope.

::

    public HTTP -> broker -> member -> replicas -> stores
                               |         |
                       control plane   links, snapshots   (both over the internal HTTP server)
                               |
                     Raft (voters), ZooKeeper
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web

from lsmq.errors import InvalidRequest
from lsmq_coordinator.auth import ClusterSecret, Verifier, auth_middleware
from lsmq_coordinator.control import ControlClient, ControlTiming
from lsmq_coordinator.control_routes import control_routes
from lsmq_coordinator.founding import founding_command
from lsmq_coordinator.joining import join
from lsmq_coordinator.overseer import Overseer, OverseerTiming
from lsmq_coordinator.raft_control import RaftConfig, RaftControl
from lsmq_coordinator.zookeeper import ZooKeeperConfig, ZooKeeperRegistry
from lsmq_node.broker import Broker, WaiterTable
from lsmq_node.broker.layout import store_options
from lsmq_node.cluster.config import ClusterConfig
from lsmq_node.config import NodeConfig
from lsmq_node.listening import listening_socket
from lsmq_node.replication import Message

from .hosted import HostedReplicas
from .identity import held_directory
from .links import Links
from .member import ClusterMember
from .replica import Replica, ReplicaPorts
from .transfer import Snapshots

_log = structlog.get_logger("lsmq.cluster")

_MAX_INTERNAL_BODY_BYTES = 16 << 20


@asynccontextmanager
async def running_member(config: NodeConfig) -> AsyncIterator[Broker]:
    """A broker on replicated shards, for as long as the scope lasts. Ends in order: replicas, links, control plane.

    Raises what cannot be started: ``InvalidConfig``, ``SecretUnusable``, ``AddressInUse``, ``DataDirectoryLocked``,
    ``CorruptFile`` ... Replicas are opened later, see ``ClusterMember.not_ready``.
    """
    settings = config.cluster
    assert settings is not None
    async with AsyncExitStack() as scope:
        secret = ClusterSecret.load(settings.secret_file)
        scope.enter_context(held_directory(config.data, settings))
        listener = scope.enter_context(
            listening_socket(settings.internal_host, settings.internal_port, "cluster.internal_port")
        )
        app = web.Application(middlewares=[auth_middleware(Verifier(secret))], client_max_size=_MAX_INTERNAL_BODY_BYTES)
        raft = overseer = None
        if settings.is_voter:
            raft, overseer = _voter(config, settings, secret)
            app.add_routes(control_routes(raft, overseer))
            await raft.start()
            scope.push_async_callback(raft.stop)
        waiters = WaiterTable(config.max_waiters)
        timing = ControlTiming(settings.heartbeat_ms / 1000, settings.lease_ms / 1000, settings.lease_ms / 1000)
        control = ControlClient(
            settings.node,
            settings.control_urls,
            secret,
            raft=raft,
            overseer=overseer,
            timing=timing,
            progress=lambda: member.progress(),
        )
        member = ClusterMember(config, control, waiters)

        def received(sender: str, shard: int, message: Message, payload: memoryview) -> None:
            replica = member.replicas.get(shard)
            if replica is not None:
                replica.received(sender, message, payload)

        def broken(peer: str) -> None:
            member.suspect(peer)  # Whether it led or followed: if it is gone, nobody need wait for it.
            for replica in member.replicas.all().values():
                replica.stream_broken(peer)

        links = Links(settings.node, secret, lambda node: _internal_url(control, node), received, broken)
        snapshots = Snapshots(
            secret,
            store=lambda shard: replica.store if (replica := member.replicas.get(shard)) and replica.is_open else None,
            address=lambda node: _internal_url(control, node),
            bytes_per_s=settings.snapshot_bytes_per_s,
        )
        ports = ReplicaPorts(
            send=links.send,
            suspect=member.suspect,
            propose_in_sync=member.propose_in_sync,
            propose_leave=member.propose_leave,
            ask_election=member.ask_election,
            fetch_snapshot=snapshots.fetch,
            gather_snapshot=snapshots.gather,
            touched=waiters.wake,
            changed=member.role_changed,
            congested=links.congested,
            client_url=member.client_url,
        )
        options, timings = store_options(config), settings.replication_timings()

        def make(shard: int, directory: Path) -> Replica:
            return Replica(shard, settings.node, directory, options, timings, ports, settings.ack_timeout_ms / 1000)

        member.replicas = HostedReplicas(settings.node, config.data, control, make)
        app.add_routes(links.routes())
        app.add_routes(snapshots.routes())
        await scope.enter_async_context(_serving(app, listener))
        await scope.enter_async_context(control)
        await scope.enter_async_context(snapshots)
        links.start()
        scope.push_async_callback(links.close)
        registry = _registry(config, settings, raft)
        if registry is not None:
            registry.start()
            scope.push_async_callback(asyncio.to_thread, registry.stop)
            scope.callback(control.on_change(registry.publish))
        scope.callback(control.on_change(member.viewed))
        scope.callback(control.on_lease(member.replicas.leased))
        member.viewed(control.state)
        broker = Broker(config, member, waiters)
        async with asyncio.TaskGroup() as tasks:
            background = [
                tasks.create_task(control.watch(), name="control"),
                tasks.create_task(member.replicas.run(), name="replicas"),
                tasks.create_task(_join(config, settings, control), name="join"),
                tasks.create_task(member.tidy(), name="tidy"),
            ]
            if overseer is not None:
                background.append(tasks.create_task(overseer.run(), name="overseer"))
            try:
                yield broker
            finally:
                await broker.close()
                for task in background:
                    task.cancel()


def _voter(config: NodeConfig, settings: ClusterConfig, secret: ClusterSecret) -> tuple[RaftControl, Overseer]:
    raft = RaftControl(RaftConfig(settings.node, settings.raft_voters, config.data, secret, bind=settings.raft_bind))
    return raft, Overseer(raft, timing=OverseerTiming(liveness=settings.liveness_timing()))


def _internal_url(control: ControlClient, node: str) -> str | None:
    known = control.state.nodes.get(node)
    return None if known is None else known.internal_url


def _registry(config: NodeConfig, settings: ClusterConfig, raft: RaftControl | None) -> ZooKeeperRegistry | None:
    if not settings.zookeeper:
        return None
    zookeeper = ZooKeeperConfig(
        settings.zookeeper, settings.name, settings.node, config.public_url, refresh_s=settings.zookeeper_refresh_s
    )
    return ZooKeeperRegistry(zookeeper, eager=lambda: raft is not None and raft.is_leader)


@asynccontextmanager
async def _serving(app: web.Application, listener: object) -> AsyncIterator[None]:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()  # type: ignore[arg-type]
        yield
    finally:
        await runner.cleanup()


def _founding(settings: ClusterConfig) -> dict[str, Any] | None:
    """What a voter proposes while there is no cluster yet."""
    if not settings.is_voter:
        return None
    nodes = {
        id: {"url": voter.url.rstrip("/"), "internal_url": voter.internal_url.rstrip("/")}
        for id, voter in settings.voters.items()
    }
    return founding_command(
        settings.name, settings.shards, settings.replicas, settings.min_in_sync, nodes, settings.first_leaders
    )


async def _join(config: NodeConfig, settings: ClusterConfig, control: ControlClient) -> None:
    """Found the cluster, or make this node known to it. A node that the cluster refuses goes on without it."""
    try:
        await join(control, config.public_url, settings.advertised_internal_url, _founding(settings))
    except InvalidRequest as error:
        _log.error("not_joined", node=settings.node, message=error.message)
