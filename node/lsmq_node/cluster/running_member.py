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
import dataclasses
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import structlog
from aiohttp import web

from lsmq.errors import InvalidRequest, LsmqError
from lsmq_coordinator.auth import ClusterSecret, Verifier, auth_middleware
from lsmq_coordinator.control import ControlClient, ControlTiming
from lsmq_coordinator.control_http import MAX_ANSWER_BYTES
from lsmq_coordinator.control_routes import control_routes
from lsmq_coordinator.death import DeathNotice, Sentinel
from lsmq_coordinator.first_look import look_first
from lsmq_coordinator.joining import displaced, join
from lsmq_coordinator.journal import OS_DISK, DelayedDisk
from lsmq_coordinator.overseer import Overseer
from lsmq_coordinator.parts import Part, Parts, kept
from lsmq_coordinator.raft_control import RaftConfig, RaftControl
from lsmq_coordinator.state import ClusterState, NodeState
from lsmq_coordinator.tls import Certificates, dialling_context
from lsmq_coordinator.zookeeper import ZooKeeperConfig, ZooKeeperRegistry
from lsmq_node.broker import WaiterTable
from lsmq_node.broker.layout import store_options
from lsmq_node.cluster_config import ClusterConfig
from lsmq_node.config import NodeConfig
from lsmq_node.connections import INTERNAL_CONNECTIONS, Doorkeeper, Limits
from lsmq_node.descriptors import shares
from lsmq_node.listening import listening_socket
from lsmq_node.replication import ReplicaMessage
from lsmq_node.storage import StoreOptions
from lsmq_node.tls_settings import peer_files

from .founding import founding_of
from .hosted import HostedReplicas
from .identity import member_disks
from .links import Links
from .member import ClusterMember
from .peers import API, ClusterPeers
from .replica import Replica, ReplicaPorts
from .transfer import Snapshots

_log = structlog.get_logger("lsmq.cluster")

_MAX_INTERNAL_BODY_BYTES = 16 << 20
#: Messages of so many bytes may take so many times as many as JSON.
_TEXT_TIMES = 6
_JOIN_RETRY_S = 1.0
#: A connection on which nothing is asked for so long is closed; clients keep theirs for 30 s.
_KEEPALIVE_S = 60.0
_CONFIRM_TIMEOUT_S = 2.0


@asynccontextmanager
async def running_member(config: NodeConfig, waiters: WaiterTable, parts: Parts) -> AsyncIterator[ClusterMember]:
    """A broker's replicated shards, for as long as the scope lasts. Ends in order: replicas, links, control plane.

    ``waiters`` are woken, and ``parts`` are the whole node's.

    Raises what cannot be started: ``InvalidConfig``, ``SecretUnusable``, ``AddressInUse``, ``DataDirectoryLocked``,
    ``CorruptFile`` ... Replicas are opened later, see ``ClusterMember.not_ready``.
    """
    settings = config.cluster
    assert settings is not None
    async with AsyncExitStack() as scope:
        secret = ClusterSecret.load(settings.secret_file)
        files = peer_files(config)
        tls = None if files is None else Certificates(files)
        disks = scope.enter_context(member_disks(config, settings))
        listener = scope.enter_context(
            listening_socket(settings.internal_host, settings.internal_port, "cluster.internal_port")
        )
        proven = auth_middleware(Verifier(secret), unread=API)
        app = web.Application(middlewares=[proven], client_max_size=_MAX_INTERNAL_BODY_BYTES)
        raft, overseer = _voter(config, settings, secret, tls)
        app.add_routes(control_routes(raft, overseer, secret))
        await look_first(raft, settings.control_urls, secret, tls)
        await raft.start()
        scope.push_async_callback(raft.stop)
        timing = ControlTiming(settings.heartbeat_ms / 1000, settings.lease_ms / 1000, settings.lease_ms / 1000)
        control = ControlClient(
            settings.node,
            settings.control_urls,
            secret,
            raft=raft,
            overseer=overseer,
            timing=timing,
            progress=lambda: member.progress(),
            problems=lambda: member.problems(),
            sizes=lambda: member.sizes(),
            parts=parts,
            tls=tls,
        )
        member = ClusterMember(config, control, disks, waiters, parts)
        member.rights.voucher_keys = secret.keys("vouchers")

        def received(sender: str, shard: int, message: ReplicaMessage, payload: memoryview) -> None:
            replica = member.replicas.get(shard)
            if replica is not None:
                replica.received(sender, message, payload)

        def broken(peer: str) -> None:
            for replica in member.replicas.all().values():
                replica.stream_broken(peer)

        links = Links(settings.node, secret, lambda node: _internal_url(control, node), received, broken, parts, tls)
        snapshots = Snapshots(
            secret,
            store=lambda shard: replica.store if (replica := member.replicas.get(shard)) and replica.is_open else None,
            address=lambda node: _internal_url(control, node),
            bytes_per_s=settings.snapshot_bytes_per_s,
            tls=tls,
        )
        ports = ReplicaPorts(
            send=links.send,
            propose_in_sync=member.propose_in_sync,
            propose_leave=member.propose_leave,
            register_start=member.register_start,
            ask_election=member.ask_election,
            fetch_snapshot=snapshots.fetch,
            gather_snapshot=snapshots.gather,
            let_snapshot_go=snapshots.let_go,
            touched=waiters.wake,
            changed=member.role_changed,
            placed=member.topics.placed,
            congested=links.congested,
            client_url=member.client_url,
        )
        options, timings = store_options(config), settings.replication_timings()
        ack_timeout_s = settings.ack_timeout_ms / 1000

        def agreed() -> StoreOptions:
            founded = control.state.settings.segment_bytes
            if options.segment_bytes != founded:
                _log.warning("setting_not_taken", setting="segment_bytes", given=options.segment_bytes, founded=founded)
            return dataclasses.replace(options, segment_bytes=founded)

        def make(shard: int, directory: Path) -> Replica:
            return Replica(shard, settings.node, directory, agreed(), timings, ports, ack_timeout_s, clock=member.clock)

        member.replicas = HostedReplicas(
            settings.node, disks, control, make, parts, rebuild_after_s=settings.rebuild_after_ms / 1000
        )
        peers = member.peers = ClusterPeers(
            secret,
            lambda shard: _leader_url(control, shard),
            max_answer_bytes=MAX_ANSWER_BYTES + _TEXT_TIMES * config.max_response_bytes,
            tls=tls,
        )
        app.add_routes(links.routes())
        app.add_routes(peers.routes())
        app.add_routes(snapshots.routes())
        await scope.enter_async_context(_serving(app, listener, tls))
        await scope.enter_async_context(control)
        await scope.enter_async_context(snapshots)
        await scope.enter_async_context(peers)
        links.start()
        scope.push_async_callback(links.close)
        scope.callback(control.on_change(lambda state: links.look(_members(state))))
        registry = _registry(config, settings, secret, raft, parts.part("zookeeper", essential=False))
        if registry is not None:
            registry.start()
            scope.push_async_callback(asyncio.to_thread, registry.stop)
            scope.callback(control.on_change(registry.publish))
        scope.callback(control.on_change(member.viewed))
        scope.callback(control.on_lease(member.replicas.leased))
        member.viewed(control.state)
        sentinel = Sentinel(
            DeathNotice(settings.node, control.life),
            secret,
            control.voters,
            patience_s=2 * settings.node_timeout_ms / 1000,
            part=parts.part("sentinel", essential=False),
            tls=files,
        )
        scope.callback(control.on_change(lambda _: sentinel.aim(control.voters)))
        membership, voter = parts.part("membership"), parts.part("voter")
        works: dict[str, Callable[[], Awaitable[None]]] = {
            "replicas": member.replicas.run,
            "housekeeping": member.tidy,
            "watch": member.watch,
            "overseer": overseer.run,
        }
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(kept(parts.part(name), work), name=name) for name, work in works.items()]
            background.append(tasks.create_task(sentinel.run(), name="sentinel"))
            background.append(tasks.create_task(_belong(config, settings, control, membership), name="membership"))
            if tls is not None:
                part = parts.part("cluster-certificate", essential=False)
                background.append(tasks.create_task(tls.watch(part, lambda: _log.info("certificate_reloaded"))))
            background.append(tasks.create_task(raft.keep(voter), name="voter"))
            try:
                yield member
            finally:
                for task in background:
                    task.cancel()


def _voter(
    config: NodeConfig, settings: ClusterConfig, secret: ClusterSecret, tls: Certificates | None
) -> tuple[RaftControl, Overseer]:
    disk = DelayedDisk(settings.raft_sync_delay_ms / 1000) if settings.raft_sync_delay_ms else OS_DISK
    raft = RaftControl(
        RaftConfig(
            settings.node,
            settings.raft_voters,
            config.data,
            secret,
            bind=settings.raft_bind,
            address=settings.advertised_raft,
            timing=settings.raft_timing(),
            disk=disk,
            tls=tls,
        )
    )
    return raft, Overseer(raft, timing=settings.overseer_timing())


def _internal_url(control: ControlClient, node: str) -> str | None:
    known = control.state.nodes.get(node)
    return None if known is None else known.internal_url


def _members(state: ClusterState) -> set[str]:
    return {node.id for node in state.nodes.values() if node.state is not NodeState.REMOVED}


def _leader_url(control: ControlClient, shard: int) -> str | None:
    known = control.state.shards.get(shard)
    return None if known is None or known.leader is None else _internal_url(control, known.leader)


def _registry(
    config: NodeConfig, settings: ClusterConfig, secret: ClusterSecret, raft: RaftControl, part: Part
) -> ZooKeeperRegistry | None:
    if not settings.zookeeper:
        return None
    zookeeper = ZooKeeperConfig(
        settings.zookeeper,
        settings.name,
        settings.node,
        config.public_url,
        tuple(key.hex() for key in secret.keys("zookeeper")),
        _zookeeper_tls(settings),
        refresh_s=settings.zookeeper_refresh_s,
    )
    loop = asyncio.get_running_loop()

    def newest() -> int | None:
        if not raft.is_leader:
            return None
        asked = asyncio.run_coroutine_threadsafe(raft.confirmed_version(), loop)
        try:
            return asked.result(_CONFIRM_TIMEOUT_S)
        except (LsmqError, TimeoutError):
            asked.cancel()
            return None

    return ZooKeeperRegistry(zookeeper, eager=lambda: raft.is_leader, newest=newest, part=part)


def _zookeeper_tls(settings: ClusterConfig) -> Callable[[], ssl.SSLContext] | None:
    """What makes a context for each connection to ZooKeeper; None without TLS. Raises ``TlsUnusable``."""
    if not settings.zookeeper_by_tls:
        return None
    tls = partial(dialling_context, settings.zookeeper_tls_ca, settings.zookeeper_tls_cert, settings.zookeeper_tls_key)
    tls()  # What is of no use now is told at the start.
    return tls


@asynccontextmanager
async def _serving(app: web.Application, listener: socket.socket, tls: Certificates | None) -> AsyncIterator[None]:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5, keepalive_timeout=_KEEPALIVE_S)
    await runner.setup()
    assert runner.server is not None
    most = min(INTERNAL_CONNECTIONS, shares().connections // 2)
    door = Doorkeeper(listener, runner.server, Limits.of(most, 50), tls)
    try:
        door.start()
        yield
    finally:
        door.close()
        await runner.cleanup()


async def _belong(config: NodeConfig, settings: ClusterConfig, control: ControlClient, part: Part) -> None:
    """Found the cluster, or make this start of the node known to it, and see that it stays the one that is known.

    A node that the cluster refuses, or knows another start of, goes on without it, for people to look at.
    """
    while True:
        try:
            urls = config.public_url, settings.advertised_internal_url
            founding = founding_of(settings, config.segment_bytes) if settings.is_voter else None
            await join(control, *urls, founding, **settings.labels, waits=part.retrying)
            part.running()
            await displaced(control)
            part.stopped(
                f"another process has registered as node {settings.node!r}: give each its own cluster.node and data "
                "directory, and restart this one"
            )
            break
        except InvalidRequest as error:
            part.stopped(error.message)
            break
        except LsmqError as error:  # Such as a voter with another secret.
            part.retrying(error.message)
            await asyncio.sleep(_JOIN_RETRY_S)
    await asyncio.Event().wait()
