"""One run from a seed: faults for a number of steps, then peace, then everything must settle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lsmq_node.replication import ReplicaCore

from .clients import Clients
from .cluster import Cluster, CoreFactory
from .faults import Faults
from .invariants import InvariantViolated, Monitor
from .replica import SimReplica
from .world import Options, World


@dataclass(frozen=True, slots=True)
class Outcome:
    """``violated`` names the invariant, ``detail`` what was seen; both empty when all held."""

    seed: int
    steps: int
    seconds: float
    counts: dict[str, int]
    violated: str = ""
    detail: str = ""
    last_lines: tuple[str, ...] = ()


class Simulation:
    """Everything of one run."""

    def __init__(
        self,
        seed: int,
        options: Options | None = None,
        *,
        make_core: CoreFactory = ReplicaCore,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.seed = seed
        self.options = options or Options()
        self.world = World(seed, tell=tell)
        self.cluster = Cluster(self.world, self.options, make_core)
        self.monitor = self.cluster.monitor = Monitor(self.cluster)
        self.cluster.replicas = {name: SimReplica(self.cluster, name) for name in self.cluster.names}
        self.clients = Clients(self.cluster)
        self.faults = Faults(self.cluster)

    def run(self) -> Outcome:
        try:
            self._run()
        except InvariantViolated as violation:
            return self._outcome(violation.name, str(violation))
        except AssertionError as error:
            return self._outcome("assertion", f"{error!r}")
        return self._outcome("", "")

    def _outcome(self, violated: str, detail: str) -> Outcome:
        world = self.world
        lines = tuple(world.last_lines()) if violated else ()
        return Outcome(self.seed, world.steps, world.now, self.monitor.counts, violated, detail, lines)

    def _run(self) -> None:
        world = self.world
        for replica in self.cluster.replicas.values():
            replica.start()
        self._look()
        self.clients.start()
        self.faults.start()
        while world.steps < self.options.steps:
            world.run_one()
        self._settle()
        self.monitor.finished(self.clients.writes)

    def _look(self) -> None:
        self.cluster.control.look()
        self.world.after(0.05, self._look)

    def _settle(self) -> None:
        """Faults end at once; load ends a little later, so that writes are seen to go on."""
        world, monitor = self.world, self.monitor
        world.note("faults", "END")
        self.faults.end()
        deadline = world.now + self.options.settle_s
        quiet_from = world.now + 1.0
        reason: str | None = "not yet looked at"
        while reason is not None:
            look_at = world.now + 0.25
            while world.now < look_at:
                world.run_one()
            if world.now >= quiet_from:
                self.clients.stopped = True
                reason = monitor.unsettled()
            if reason is not None and world.now > deadline:
                raise InvariantViolated("settles", f"{self.options.settle_s} s after the last fault {reason}")


def simulate(seed: int, options: Options | None = None, *, make_core: CoreFactory = ReplicaCore) -> Outcome:
    """Run a seed."""
    return Simulation(seed, options, make_core=make_core).run()
