"""The composition root: one node, put together, whether it is alone or a member of a cluster.

::

    listeners (api/serve.py: HTTP)  parse requests into values, print answers
        Node                        the broker, and the services that stand on it
            Broker                  admission, reads, writes; see broker/
                Topology            the shards at this node: SingleNode, or ClusterMember

Whatever listens is given a :class:`Node` and nothing else. A service that is to be new is made here, and nowhere else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from lsmq_coordinator.parts import Parts
from lsmq_node.backups.service import NodeBackups
from lsmq_node.broker import Broker, Topology, Trims, WaiterTable
from lsmq_node.broker.backup_source import BackupSource
from lsmq_node.broker.disk_watch import DiskWatch
from lsmq_node.broker.layout import own_disks
from lsmq_node.broker.limit_sharing import LimitSharing
from lsmq_node.broker.name_cleaner import NameCleaner
from lsmq_node.broker.scrubber import Scrubber
from lsmq_node.broker.time_watch import TimeWatch
from lsmq_node.cluster.single import SingleNode
from lsmq_node.config import NodeConfig
from lsmq_node.delayed import DelayedService
from lsmq_node.delayed.metrics import DelayedCollector
from lsmq_node.groups import GroupService
from lsmq_node.groups.metrics import GroupCollector
from lsmq_node.history import NodeHistory
from lsmq_node.letters import LetterService
from lsmq_node.letters.metrics import LetterCollector
from lsmq_node.metrics import NodeMetrics, ScrubMetrics, SpanMetrics
from lsmq_node.monitoring import Monitoring, MonitoringCollector
from lsmq_node.parts import tell_part
from lsmq_node.push import PushService
from lsmq_node.push.metrics import PushCollector
from lsmq_node.rights import Audit, RightsService
from lsmq_node.schedules import ScheduleService
from lsmq_node.transactions import TransactionService
from lsmq_node.transactions.metrics import TransactionCollector
from lsmq_node.workqueue import WorkService
from lsmq_node.workqueue.metrics import WorkCollector

if TYPE_CHECKING:
    from lsmq_node.tracing import NodeTracing


@dataclass(frozen=True, slots=True)
class FellowProcess:
    """A process of a node of several, as their supervisor told of it last.

    ``pid`` is None while it does not run; ``problem`` says why, or that it hangs, and what helps.
    """

    name: str
    url: str
    pid: int | None
    problem: str | None


class _Service(Protocol):
    """What runs in a node beside the broker."""

    def start(self) -> None: ...

    def begin_stop(self) -> Awaitable[None] | None:
        """Answer what is held, and take no more."""

    async def stop(self) -> None: ...


class Node:
    """A broker and its services. Make it in the loop's thread; they run inside :meth:`running`."""

    def __init__(self, broker: Broker) -> None:
        """``broker`` outlives it."""
        self.broker = broker
        #: Of a node of several processes: all of them, this one among them, in the order of their ports.
        self.processes: tuple[FellowProcess, ...] = ()
        self.rights = RightsService(broker)
        self.audit = Audit(broker, on=self.rights.on)
        self.groups = GroupService(broker)
        self.work = WorkService(broker, self.groups)
        self.push = PushService(broker, self.groups)
        self.transactions = TransactionService(broker)
        self.trims = Trims(broker)
        self.limits = LimitSharing(broker)
        self.delayed = DelayedService(broker)
        self.letters = LetterService(broker)
        self.schedules = ScheduleService(broker)
        self.snapshots = BackupSource(broker)
        self.backups = NodeBackups(broker, self.snapshots)
        self.scrubber = Scrubber(broker)
        self.history = NodeHistory(broker)
        self.monitoring = Monitoring(broker)
        self.metrics = NodeMetrics(
            broker,
            GroupCollector(self.groups),
            WorkCollector(self.work),
            PushCollector(self.push),
            TransactionCollector(self.transactions),
            DelayedCollector(self.delayed),
            LetterCollector(self.letters),
            ScrubMetrics(self.scrubber.counts),
            MonitoringCollector(self.monitoring),
        )
        self.tracing = _tracing(broker)
        self.metrics.add(SpanMetrics() if self.tracing is None else SpanMetrics(self.tracing.outcomes))
        # In the order of their starts; they end the other way round.
        self._services: tuple[_Service, ...] = (
            *(() if self.tracing is None else (self.tracing,)),
            self.rights,
            self.audit,
            self.groups,
            self.work,
            self.transactions,
            self.delayed,
            self.letters,
            self.schedules,
            self.push,
            self.limits,
            self.snapshots,
            self.backups,
            self.scrubber,
            DiskWatch(broker),
            TimeWatch(broker),
            NameCleaner(broker),
            self.history,
            self.monitoring,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The services run in this block. No request may be in progress at its end."""
        for service in self._services:
            service.start()
        try:
            yield
        finally:
            for service in reversed(self._services):
                await service.stop()

    async def retire(self) -> None:
        """Hand over what others can do, while requests are still served; then :meth:`begin_stop`."""
        await self.broker.retire()
        await self.begin_stop()

    async def begin_stop(self) -> None:
        """Answer all requests that are held, and take no more writes: what listens can end then. Again does nothing."""
        if self.broker.admission.stopping:
            return
        self.broker.begin_shutdown()
        for service in reversed(self._services):
            if (ended := service.begin_stop()) is not None:
                await ended

    # Health

    def failures(self) -> list[str]:
        """Why the node must be restarted; empty when it need not be."""
        return [
            f"shard {port.number} stopped: {port.stopped.message}"
            for port in self.broker.topology.ports()
            if port.stopped is not None
        ]

    def not_ready(self) -> list[str]:
        """Why requests should not be sent here now; empty when they may."""
        stopping = ["the node is stopping"] if self.broker.admission.stopping else []
        essential = self.broker.parts.problems(essential=True)
        return [*self.failures(), *self.broker.topology.not_ready(), *essential, *stopping]

    def warnings(self) -> list[str]:
        """What people should look at though the node serves."""
        ports = self.broker.topology.ports()
        damages = [f"shard {port.number}: {damage}" for port in ports for damage in port.store.damage()]
        return [*damages, *self.groups.stalled(), *self.broker.parts.problems(essential=False)]


def _tracing(broker: Broker) -> NodeTracing | None:
    """None where nothing is traced. Raises ``TracingNotInstalled``."""
    config = broker.config
    if config.trace_endpoint is None:
        return None
    from lsmq_node.tracing import NodeTracing  # with OpenTelemetry, which nobody else needs

    name = config.public_url if config.cluster is None else config.cluster.node
    return NodeTracing(config, str(name), broker.parts.part("tracing", essential=False))


@asynccontextmanager
async def running_node(config: NodeConfig) -> AsyncIterator[Node]:
    """A node of this configuration, for as long as the block lasts.

    Raises what cannot be started: ``InvalidConfig``, ``DataDirectoryLocked``, ``CorruptFile``, ``AddressInUse`` ...
    """
    waiters, parts = WaiterTable(config.max_waiters), Parts(tell_part)
    async with _topology(config, waiters, parts) as topology:
        broker = Broker(config, topology, waiters, parts)
        try:
            node = Node(broker)
            async with node.running():
                yield node
        finally:
            await broker.close()


def _topology(config: NodeConfig, waiters: WaiterTable, parts: Parts) -> AbstractAsyncContextManager[Topology]:
    if config.cluster is None:
        return _single(config, waiters, parts)
    from lsmq_node.cluster.running_member import running_member  # a node of its own needs nothing of it

    return running_member(config, waiters, parts)


@asynccontextmanager
async def _single(config: NodeConfig, waiters: WaiterTable, parts: Parts) -> AsyncIterator[Topology]:
    with own_disks(config) as disks:
        yield await SingleNode.open(config, disks, waiters.wake, parts)
