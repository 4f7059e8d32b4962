"""One run: a cluster, its clients, a plan of faults, and the verdict. Each in a process of its own."""

from __future__ import annotations

import gc
import json
import math
import os
import resource
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NoReturn

from lsmq import Client

from .aimed import SCENES
from .checks import Checks, compare_stores
from .clients import USUAL, Clients
from .faults import Fault, Weather, drawn, smaller
from .machine import World, world
from .protocol import Protocol
from .scenes import Scene
from .scheduler import Deadlock, Overtime
from .simulated_cluster import SimulatedCluster
from .uses import USES

BEGIN_S = 0.3
_SHORT_S = 1.0
#: Longer for who asks for it, or short, before the first seed is played.
TROUBLE_S = 3.0
MOST_USES = 3
#: Compacted topics are looked through, and what is too much goes, within seconds.
_SETTINGS = {"retention_interval_ms": 500}
_HEAL_LIMIT_S = 60.0
_CPU_A_SECOND_S = 15
_SCENE_LIMIT_S = 200.0


@dataclass
class SeedReport:
    """What came of a seed. Equal seeds give equal fingerprints."""

    seed: int
    scene: str = ""
    problems: list[str] = field(default_factory=list)
    plan: list[Fault] = field(default_factory=list)
    uses: list[str] = field(default_factory=list)
    fingerprint: str = ""
    steps: int = 0
    virtual_s: float = 0.0
    cpu_s: float = 0.0
    figures: dict[str, int] = field(default_factory=dict)
    trace: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems

    @classmethod
    def from_json(cls, text: str) -> SeedReport:
        fields = json.loads(text)
        fields["plan"] = [Fault(**each) for each in fields["plan"]]
        return cls(**fields)


def shorten() -> None:
    """Of seeds that are played from now on: one use in each, and as many faults in a third of the time."""
    global TROUBLE_S, MOST_USES
    TROUBLE_S, MOST_USES = _SHORT_S, 1


def plan_of(seed: int) -> list[Fault]:
    members = moves_members(seed)
    return drawn(Random(f"plan {seed}"), 4 if members else 3, BEGIN_S, TROUBLE_S, membership=members)


def moves_members(seed: int) -> bool:
    """Whether a fourth node joins in a seed, and replicas move."""
    return Random(f"members {seed}").random() < 0.25


def is_early(seed: int) -> bool:
    """Whether clients and weather are there in a seed before the cluster is founded."""
    return Random(f"early {seed}").random() < 0.15


def uses_of(seed: int) -> tuple[str, ...]:
    """What clients do in a seed beside orders: so many things that a run stays short."""
    chance = Random(f"uses {seed}")
    if MOST_USES == 1:
        return (chance.choice((*USUAL, *sorted(USES))),)
    usual = [use for use in USUAL if chance.random() < 0.5]
    return *usual, *sorted(chance.sample(sorted(USES), chance.randint(1, MOST_USES - len(usual))))


def run(
    seed: int,
    plan: Sequence[Fault] | None = None,
    uses: Sequence[str] | None = None,
    *,
    scene: str = "",
    directory: Path | None = None,
) -> SeedReport:
    """Play a seed, in this process: with its own plan and uses, or others; or a scene by its name."""
    report = SeedReport(seed, scene=scene, plan=[] if scene else list(plan_of(seed) if plan is None else plan))
    report.uses = [] if scene else list(uses_of(seed) if uses is None else uses)
    began = time.process_time()
    weather = Random(f"weather {seed}")
    with world(seed, preemption=weather.choice((0.0, 0.02, 0.2)), directory=directory) as made:
        joiners = int(any(max(fault.node, fault.other) > 3 for fault in report.plan))
        settings = {} if scene else _SETTINGS
        cluster = SimulatedCluster(
            made, shards=1 if scene else weather.choice((1, 2)), joiners=joiners, settings=settings
        )
        try:
            protocol = Protocol(cluster)
            cluster.on_disk_change = protocol.disk_changes
            with cluster.installed(), protocol.watching():
                if scene:
                    _play_scene(cluster, protocol, scene)
                else:
                    _play(cluster, report)
        except BaseException as error:
            cluster.broke("the run ended", error)
        report.problems = [problem.replace(str(made.files.root), "") for problem in cluster.problems]
        report.trace = made.scheduler.trace
        report.fingerprint, report.steps = made.scheduler.fingerprint, made.scheduler.steps
        report.virtual_s = round(made.now, 6)
    report.cpu_s = round(time.process_time() - began, 3)
    return report


def _play(cluster: SimulatedCluster, report: SeedReport) -> None:
    made = cluster.world
    for node in cluster.founders:
        node.start()
    checks = Checks(cluster)
    # Who asks while there is nothing yet asks again and again: half of all that a run would do.
    if not is_early(report.seed) and not _until(made, cluster.whole, _HEAL_LIMIT_S):
        cluster.problems.append(f"not founded after {_HEAL_LIMIT_S:.0f} s: {_state(cluster)}")
        return
    clients, weather = Clients(cluster, report.uses), Weather(cluster, report.plan)
    end = made.now + TROUBLE_S
    made.scheduler.run(lambda: made.now >= end or bool(cluster.problems), limit_s=TROUBLE_S + 1)
    if cluster.problems:
        return
    weather.mend()
    if not _until(made, lambda: not weather.mending and cluster.whole(), _HEAL_LIMIT_S):
        cluster.problems.append(f"not whole {_HEAL_LIMIT_S:.0f} s after all was mended: {_state(cluster)}")
        return
    clients.stopping = True
    if not _until(made, lambda: not clients.running, _HEAL_LIMIT_S):
        cluster.problems.append("clients do not come to an end")
        return
    reader = made.process("reader", "10.0.2.1", steady_s=9_000.0)

    async def read_back() -> None:
        async with Client(cluster.urls) as client:
            await clients.read_back(client)

    if not cluster.problems:
        made.run_async(read_back, process=reader, limit_s=120.0)
        _until(made, lambda: False, 0.3)
        if not _until(made, cluster.settled, _HEAL_LIMIT_S):
            cluster.problems.append(f"replicas do not come to the same in {_HEAL_LIMIT_S:.0f} s: {_state(cluster)}")
        checks.end()
        cluster.problems += clients.verdict()
        expiring = [topic for use in clients.uses if use.expires for topic in use.topics]
        cluster.problems += compare_stores(cluster, expiring)
    report.figures = {
        "acknowledged": clients.acknowledged,
        "unknown": clients.unknown,
        "jobs": len(clients.done_jobs),
        "transactions": sum(outcome == "committed" for outcome in clients.outcomes.values()),
        "faults": len(weather.done),
        "destroyed": weather.destroyed,
        "ordered": weather.ordered,
        "served": checks.serving,
        "leaders": len(checks._leaders),
        "shards": len(state.shards) if (state := cluster.state()) is not None else 0,
        **{use.name: use.counted for use in clients.uses},
    }


def _play_scene(cluster: SimulatedCluster, protocol: Protocol, name: str) -> None:
    made = cluster.world
    scene = Scene(cluster, protocol)
    with scene.installed():
        for node in cluster.nodes:
            node.start()
        checks = Checks(cluster)
        scene.play(SCENES[name])
        made.scheduler.run(lambda: scene.over or bool(cluster.problems), limit_s=_SCENE_LIMIT_S)
        if not cluster.problems:
            made.run_async(scene.writer.read_back, process=made.process("reader", "10.0.2.1"), limit_s=60.0)
            _until(made, lambda: False, 0.3)
            checks.end()
            cluster.problems += compare_stores(cluster)


def _until(made: World, reached: Callable[[], bool], limit_s: float) -> bool:
    """Whether it was reached in time, or nothing is left to happen."""
    end = made.now + limit_s
    looked = [made.now]

    def look() -> bool:
        if made.now >= end:
            return True
        if made.now - looked[0] < 0.01:
            return False
        looked[0] = made.now
        return reached()

    with suppress(Deadlock, Overtime):
        made.scheduler.run(look, limit_s=limit_s + 60)
    return reached()


def _state(cluster: SimulatedCluster) -> str:
    found = []
    for node in cluster.nodes:
        if not node.up or node.broker is None:
            found.append(f"{node.id} is down")
            continue
        member: Any = node.broker.topology
        found.append(f"{node.id}: {list(member.not_ready())} {list(member.problems())}")
        found += [
            f"  shard {shard.id} leader {shard.leader} epoch {shard.epoch} in sync {shard.in_sync_nodes}"
            for shard in member.control.state.shards.values()
        ]
        found += [
            f"  replica {replica.shard} {replica.role} serving {replica.serving} hw {replica.high_watermark}"
            for replica in member.replicas.all().values()
        ]
    return "\n".join(found)


# Many, each in a process of its own


def prepare() -> None:
    """Once, before processes are forked: what is there by now is everybody's."""
    import lsmq_node.cluster.running_member  # noqa: F401  (with all that it imports)

    gc.collect()
    gc.freeze()


def _cpu_limit_s() -> int:
    return math.ceil(_CPU_A_SECOND_S * TROUBLE_S)


class SeedProcess:
    """A seed that is played in a forked process: whatever it leaves behind goes with it."""

    def __init__(
        self,
        seed: int,
        plan: Sequence[Fault] | None = None,
        before: Callable[[], None] | None = None,
        uses: Sequence[str] | None = None,
        scene: str = "",
    ) -> None:
        """``before`` is called in the new process."""
        self.seed = seed
        self._pipe, writing = os.pipe()
        sys.stdout.flush()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._pipe)
            _play_and_tell(seed, plan, before, uses, scene, writing)
        os.close(writing)

    def report(self) -> SeedReport:
        """Waits for it."""
        with open(self._pipe, "rb") as pipe:
            content = pipe.read()
        status = os.waitpid(self._pid, 0)[1]
        if not content:
            return SeedReport(self.seed, problems=[f"the process ended with {status}, or took over {_cpu_limit_s()} s"])
        return SeedReport.from_json(content.decode())


def _play_and_tell(
    seed: int,
    plan: Sequence[Fault] | None,
    before: Callable[[], None] | None,
    uses: Sequence[str] | None,
    scene: str,
    writing: int,
) -> NoReturn:
    resource.setrlimit(resource.RLIMIT_CPU, (_cpu_limit_s(), _cpu_limit_s()))
    gc.disable()  # The process ends with the seed: what a world leaves is not worth a look.
    try:
        if before is not None:
            before()
        content = json.dumps(asdict(run(seed, plan, uses, scene=scene)))
    except BaseException:
        content = json.dumps({"seed": seed, "problems": [traceback.format_exc()], "plan": []})
    with open(writing, "wb") as pipe:
        pipe.write(content.encode())
    os._exit(0)


def in_child(
    seed: int,
    plan: Sequence[Fault] | None = None,
    before: Callable[[], None] | None = None,
    uses: Sequence[str] | None = None,
    *,
    scene: str = "",
) -> SeedReport:
    """Play a seed in a process of its own."""
    return SeedProcess(seed, plan, before, uses, scene).report()


def shrunk(report: SeedReport, *, tries: int = 60, before: Callable[[], None] | None = None) -> SeedReport:
    """A run of the same seed with fewer faults, or shorter ones, that has a problem too."""
    left = tries
    while left:
        # What was to come after the problem did not bring it about.
        report.plan = [fault for fault in report.plan if fault.at_s <= report.virtual_s]
        for plan in smaller(report.plan):
            left -= 1
            found = in_child(report.seed, plan, before, report.uses)
            if not found.ok:
                report = found
                break
            if not left:
                break
        else:
            break
    return report


def played(
    seeds: Sequence[int], jobs: int = 1, scenes: Sequence[str] = ("",), uses: Sequence[str] | None = None
) -> Iterator[SeedReport]:
    """Reports in the order of the seeds, each in every scene, or in its own weather; so many are played at a time.

    ``uses``: what clients do beside orders, instead of what each seed says.
    """
    prepare()
    running: deque[SeedProcess] = deque()
    for seed in seeds:
        for scene in scenes:
            running.append(SeedProcess(seed, uses=uses, scene=scene))
            if len(running) == jobs:
                yield running.popleft().report()
    for child in running:
        yield child.report()
