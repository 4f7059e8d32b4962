"""The parts of one run tied together: replicas, network, control plane, monitor; and what passes between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lsmq_node.replication import ControlView, Message, Recovered, ReplicaCore, ReplicaRecord, Timings

from .control import ControlPlane
from .disk import LogEntry
from .network import CONTROL, Network
from .world import Options, World

if TYPE_CHECKING:
    from .invariants import Monitor
    from .replica import SimReplica

#: What a heartbeat says of a replica: its incarnation, its start, its high watermark.
Report = tuple[int, int, int]
CoreFactory = Callable[[str, Recovered, Timings], ReplicaCore]


@dataclass(slots=True)
class Write:
    """A producer's write and what became of it: refused, acknowledged, or unknown."""

    payload: int
    size: int
    ack: str
    outcome: str = "sent"
    epoch: int = 0
    end_lsn: int = 0
    chain: int = 0

    def refused(self) -> None:
        self.outcome = "refused"

    def unknown(self) -> None:
        self.outcome = "unknown"

    def appended(self, epoch: int, entry: LogEntry) -> None:
        self.outcome, self.epoch, self.end_lsn, self.chain = "unknown", epoch, entry.end_lsn, entry.chain


class Cluster:
    """One shard's replicas and spare nodes. ``make_core`` may be replaced to break the protocol on purpose."""

    monitor: Monitor
    replicas: dict[str, SimReplica]

    def __init__(self, world: World, options: Options, make_core: CoreFactory) -> None:
        random = world.random
        self.world = world
        self.options = options
        self.make_core = make_core
        self.network = Network(world)
        count = random.choice((3, 3, 3, 3, 5, 2))
        self.min_in_sync = {2: random.choice((1, 2)), 3: random.choice((2, 2, 2, 1, 3)), 5: 3}[count]
        names = [chr(ord("a") + index) for index in range(count)]
        self.spares = ["x"] if count == 3 else []
        self.names = names + self.spares
        self.control = ControlPlane(world, options, frozenset(names), self.min_in_sync)
        self.control.published = self._publish
        self.at_delicate_moment: Callable[[SimReplica], None] = lambda replica: None
        self.publishing_loss = random.choice((0.0, 0.1, 0.5))
        self.stale_views = random.choice((0.0, 0.0, 0.05))

    # Between replicas.

    def send(self, sender: str, peer: str, message: Message, entries: list[LogEntry]) -> None:
        receiver = self.replicas[peer]
        self.network.carry(
            sender, peer, partial(receiver.when_awake, partial(receiver.receive, sender, message, entries))
        )

    def stream_ends(self, node: str) -> None:
        """The others notice that a connection closed, some of them."""
        for name, replica in self.replicas.items():
            if name != node and self.world.chance(0.7):
                self.network.carry(node, name, partial(replica.when_awake, partial(replica.stream_broken, node)))

    # With the control plane.

    def command(self, sender: str, change: Callable[[], None]) -> None:
        self.network.carry(sender, CONTROL, partial(self._commanded, change))

    def _commanded(self, change: Callable[[], None]) -> None:
        """While the control plane is away a command is lost, or done when it is back: late."""
        if not self.control.away:
            change()
        elif self.world.chance(0.5):
            self.world.after(0.5 * self.world.random.random(), partial(self._commanded, change))

    def _publish(self, view: ControlView) -> None:
        self.monitor.control_changed()
        for name in self.names:
            if not self.world.chance(self.publishing_loss):
                self.show(name, view)

    def show(self, name: str, view: ControlView) -> None:
        replica = self.replicas[name]
        self.network.carry(CONTROL, name, partial(replica.when_awake, partial(replica.viewed, view)))

    def register(self, replica: SimReplica, life: int, disk: ReplicaRecord, durable_lsn: int) -> None:
        """A refusal is told, unless it is lost."""
        refusal = self.control.register_start(replica.name, disk, durable_lsn)
        if refusal is not None:
            told = partial(replica.when_awake, partial(replica.refused, life, refusal))
            self.network.carry(CONTROL, replica.name, told)

    def heartbeat(self, replica: SimReplica, life: int, report: Report, sent_at: float) -> None:
        """Answered with the state, and with a lease that says of which state it knows."""
        if self.control.away:
            return
        if not self.control.heard(replica.name, *report, life):
            return
        view = self.control.view
        if self.stale_views and self.world.chance(self.stale_views):
            self.show(replica.name, self.world.random.choice(self.control.past))
        leased = partial(replica.leased, life, sent_at, view)
        self.network.carry(CONTROL, replica.name, partial(replica.when_awake, leased))
