"""What all drills share: a cluster, work on it, rounds of faults, and the verdict."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lsmq import Client
from lsmq.errors import InvalidRequest, LsmqError, TimedOut
from lsmq_coordinator.liveness import LivenessTiming
from lsmq_lab.local_cluster import ClusterStatus, LocalCluster, LocalNodeState, ShardStatus, found_plan
from lsmq_lab.local_cluster.status import ask
from lsmq_node.replication.insync import LONGEST_PAUSE_S
from lsmq_node.storage import StoreOptions

from .compare import Comparison, compare
from .faults import Faults, LocalFaults, mount_small_disk, unmount
from .network import FaultNetwork
from .report import DrillReport, OutageTimes, verdict_fields
from .side_work import Judgement
from .workload import DrillWorkload

#: Who was hurt again and again joins the in-sync set late, and is given its leaderships back later still.
SETTLE_TIMEOUT_S = LivenessTiming().longest_steady_s + LONGEST_PAUSE_S + 30.0
RECOVER_TIMEOUT_S = 180.0
#: Small files, so that flushing, merging and snapshots happen in a short drill.
SETTINGS: Mapping[str, Any] = {
    "segment_bytes": 4 * 1024 * 1024,
    "memtable_bytes": 2 * 1024 * 1024,
    "shutdown_grace_ms": 5000,
}

_POLL_S = 0.1
_NOTICED_S = 1.5
_STEADY_S = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """A drill by name: ``round`` is called once a round, with everything well before and after.

    The rest is what a local cluster for it must be like: ``proxied`` puts proxies between the nodes, ``small_disk``
    names a node that gets a file system of its own, ``zookeeper`` asks for one.
    """

    name: str
    summary: str
    round: Callable[[DrillRun], Awaitable[None]]
    nodes: int = 3
    shards: int = 3
    zookeeper: bool = False
    proxied: bool = False
    small_disk: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


#: Told of each step: the drill, rounds done, and what goes on.
TellRound = Callable[[int, str], None]


def _no_progress(done: int, text: str) -> None:
    pass


class DrillRun:
    """One run of a drill, as its rounds see it."""

    def __init__(self, faults: Faults, work: DrillWorkload, seed: int, tell: Callable[[str], None]) -> None:
        self.faults = faults
        self.work = work
        self.random = random.Random(seed)
        self.tell = tell
        self.round = 0
        self.refused_s: list[float] = []
        self.mended_s: list[float] = []
        self.notes: list[str] = []

    # Choosing

    async def status(self) -> ClusterStatus:
        return await self.faults.status()

    async def any_leader(self) -> tuple[str, list[int]]:
        """A node that leads shards, drawn by way of a shard, and all that it leads."""
        status = await self.status()
        shard = self.random.choice(status.shards)
        assert shard.leader is not None, "a round begins when every shard has a leader"
        return shard.leader, led_by(status, shard.leader)

    async def any_follower(self) -> tuple[str, list[int]]:
        """A node that follows somewhere, and the shards that it follows in."""
        status = await self.status()
        shard = self.random.choice(status.shards)
        node = self.random.choice(sorted(set(shard.replicas) - {shard.leader}))
        return node, [shard.id for shard in status.shards if node in shard.replicas and shard.leader != node]

    # Measuring

    @asynccontextmanager
    async def outage(self, shards: Iterable[int], *, of: str | None = None) -> AsyncIterator[None]:
        """Something is broken inside; ``of`` names a node whose leaderships must move. Leaves when each shard has
        acknowledged again, and notes the longest time that one did not.

        Answers that were under way arrive after a fault as well, and a follower is missed only after a while: so
        acknowledgements count from ``_NOTICED_S`` after the fault on.
        """
        shards, began = list(shards), time.monotonic()
        yield
        await asyncio.sleep(_NOTICED_S)
        if of is not None:
            await self.until(
                lambda status: all(status.shards[shard].leader not in (of, None) for shard in shards),
                f"shards {shards} have other leaders than {of}",
            )
        await self._acknowledged(shards, time.monotonic())
        self.refused_s += [self.work.longest_gap_s(shard, began) for shard in shards]

    @asynccontextmanager
    async def mending(self) -> AsyncIterator[None]:
        """What was broken comes back inside. Leaves when all is well again, and notes the longest gap in writes."""
        began = time.monotonic()
        yield
        status = await self.settled()
        self.mended_s += [self.work.longest_gap_s(shard.id, began, time.monotonic()) for shard in status.shards]

    async def steady(self, seconds: float = _STEADY_S) -> None:
        """Let the workload work for a while."""
        await asyncio.sleep(seconds)

    async def _acknowledged(self, shards: Iterable[int], since: float) -> None:
        try:
            async with asyncio.timeout(RECOVER_TIMEOUT_S):
                await self.work.acknowledged_on(shards, since, count=3)
        except TimeoutError:
            status = await self.status()
            raise TimedOut(
                f"no write was acknowledged on all of shards {list(shards)} within {RECOVER_TIMEOUT_S:.0f} s: "
                f"{status.shards}"
            ) from None

    # Waiting

    async def settled(self, timeout: float = SETTLE_TIMEOUT_S) -> ClusterStatus:
        """Return when all is as :func:`is_settled` says, and writes are acknowledged on all shards."""
        self.tell("waiting until all replicas are in sync and leaders are spread")
        status = await self.until(is_settled, "all replicas are in sync and leaders spread", timeout)
        await self._acknowledged([shard.id for shard in status.shards], time.monotonic())
        return status

    async def until(
        self, condition: Callable[[ClusterStatus], bool], what: str, timeout: float = RECOVER_TIMEOUT_S
    ) -> ClusterStatus:
        """The first status for which the condition holds. Raises ``TimedOut``."""
        deadline = time.monotonic() + timeout
        while True:
            status = await self.status()
            if condition(status):
                return status
            if time.monotonic() > deadline:
                raise TimedOut(f"in {timeout:.0f} s it never came true that {what}: {status}")
            await asyncio.sleep(_POLL_S)

    async def until_named(self, shards: Iterable[int]) -> None:
        """Return when the cluster says of each of these shards why nobody leads it."""
        wanted, deadline = set(shards), time.monotonic() + RECOVER_TIMEOUT_S
        while True:
            overview = await self.administer("GET", "/v1/cluster")
            problems = {shard["id"]: shard["problem"] for shard in overview["shards"] if shard["problem"]}
            if wanted <= problems.keys():
                self.notes += [f"shard {shard}: {problems[shard]}" for shard in sorted(wanted)[:1]]
                return
            if time.monotonic() > deadline:
                raise TimedOut(
                    f"not all of shards {sorted(wanted)} are named as without a leader: {overview['shards']}"
                )
            await asyncio.sleep(_POLL_S)

    async def refuses(self, node: str, shard: int) -> None:
        """A node that was cut off and replaced must not acknowledge, with whatever ``ack``, nor answer reads."""
        url = dict(zip(self.faults.nodes, self.faults.urls, strict=True))[node]
        queue = next(route.first for route in self.work.topic.routes if route.shard == shard)
        path = f"/v1/topics/{self.work.topic.name}"
        for method, tail, document in (
            ("POST", "/messages", {"messages": [{"queue": queue, "body": "none should take this"}], "ack": "leader"}),
            ("GET", f"/queues/{queue}/messages?offset=0&max=1", None),
        ):
            async with Client(url, deadline_ms=1) as client:
                try:
                    await client.ask(method, f"{path}{tail}", document)
                except LsmqError:
                    continue
            raise AssertionError(f"{node} was cut off and replaced, and still answered {method} {tail}")

    # Asking the cluster

    async def administer(self, method: str, path: str, document: Any = None, timeout: float = 20.0) -> dict[str, Any]:
        """A call of the cluster's API, at any node. Raises what the node answers.

        What was decided meanwhile may make a command stale; then it is given again, as an operator would do.
        """
        deadline = time.monotonic() + timeout
        async with Client(list(self.faults.urls), deadline_ms=int(timeout * 1000)) as client:
            while True:
                try:
                    answer: dict[str, Any] = await client.ask(method, path, document)
                    return answer
                except InvalidRequest as error:
                    if error.details.get("reason") != "stale" or time.monotonic() > deadline:
                        raise
                await asyncio.sleep(_POLL_S)


def led_by(status: ClusterStatus, node: str) -> list[int]:
    return [shard.id for shard in status.shards if shard.leader == node]


def is_settled(status: ClusterStatus) -> bool:
    """Whether all nodes answer, all shards serve with all replicas in sync, and leaders are spread evenly."""
    holders = {replica for shard in status.shards for replica in shard.replicas}
    led = [len(led_by(status, node)) for node in holders]
    return (
        all(node.state is LocalNodeState.RUNNING for node in status.nodes)
        and not status.waits_for
        and all(set(shard.in_sync) == set(shard.replicas) for shard in status.shards)
        and max(led) - min(led) <= 1
    )


def has_tls(name: str, seed: int) -> bool:
    """Whether all speak TLS in a drill of this seed: in one half of the drills, and of each in every other seed."""
    return (zlib.crc32(name.encode()) + seed) % 2 == 0


def run_local(
    drill: Drill,
    *,
    rounds: int,
    seed: int,
    directory: Path | None = None,
    progress: TellRound = _no_progress,
    zookeeper: str = "local",
) -> DrillReport:
    """Run a drill on a local cluster of its own. The cluster is taken down in the end; what is in ``directory`` stays,
    and in a temporary one what a failed drill has left."""
    home = directory or Path(tempfile.mkdtemp(prefix=f"lsmq-drill-{drill.name}-"))
    plan = found_plan(
        nodes=drill.nodes,
        shards=drill.shards,
        zookeeper=zookeeper if drill.zookeeper else "none",
        settings={**SETTINGS, **drill.settings},
        proxied=drill.proxied,
        tls=has_tls(drill.name, seed),
    )
    cluster = LocalCluster.found(home / "cluster", plan)
    with ExitStack() as scope:
        scope.enter_context(cluster.trusted())
        if drill.small_disk is not None:
            scope.enter_context(_small_disk(cluster, drill.small_disk, rounds))
        scope.callback(cluster.down)
        network = None
        if drill.proxied:
            network = FaultNetwork(cluster.directory)
            network.start()
            scope.callback(network.close)
        report = run_on(drill, LocalFaults(cluster, network), rounds=rounds, seed=seed, progress=progress)
    if directory is None and report.ok:
        shutil.rmtree(home, ignore_errors=True)
        return report
    return replace(report, directory=str(home))


@contextmanager
def _small_disk(cluster: LocalCluster, node: str, rounds: int) -> Iterator[None]:
    """A small file system for one node's data; without the right to mount, nothing."""
    target = cluster.directory / node / "data"
    mounted = mount_small_disk(target, rounds)
    try:
        yield
    finally:
        if mounted:
            unmount(target)


def run_on(drill: Drill, faults: Faults, *, rounds: int, seed: int, progress: TellRound = _no_progress) -> DrillReport:
    """Run a drill on any cluster: bring it up, work and hurt it, check everything, and take it down."""
    began = time.monotonic()
    fields = asyncio.run(_run(drill, faults, rounds, seed, progress))
    return DrillReport(
        drill=drill.name,
        rounds=rounds,
        seed=seed,
        seconds=round(time.monotonic() - began, 1),
        **fields,
    )


async def _run(drill: Drill, faults: Faults, rounds: int, seed: int, progress: TellRound) -> dict[str, Any]:
    """The fields of the report that only the run can know. What goes wrong is among them, not raised."""
    done = 0
    run: DrillRun | None = None
    failures: list[str] = []
    fields: dict[str, Any] = {}
    shape = {"nodes": drill.nodes, "shards": drill.shards}
    try:
        progress(0, "starting the cluster")
        await faults.up()
        status = await faults.status()
        shape = {"nodes": len(status.nodes), "shards": len(status.shards)}
        async with DrillWorkload(faults.urls, len(status.shards)) as work:
            run = DrillRun(faults, work, seed, lambda text: progress(done, text))
            await run.settled()
            for run.round in range(rounds):
                progress(done, f"round {run.round + 1}")
                await drill.round(run)
                done += 1
            await run.settled()
            progress(done, "reading everything")
            await work.finish()
        fields = verdict_fields(work.verdict())
        fields["offsets_went_back"] += work.offsets_that_went_back
        for judgement in work.judgements():
            _add(fields, judgement)
            run.notes += judgement.notes
        failures += work.errors
        progress(done, "comparing replicas")
        comparison = await _compare(run)
        fields |= {"replicas_compared": comparison.compared, "replicas_differ": comparison.differ}
        fields["findings"] += comparison.findings
    except (LsmqError, OSError, AssertionError) as error:
        code = getattr(error, "code", type(error).__name__)
        failures.append(f"in round {run.round + 1 if run else 0}: {code}: {error}")
    if run is not None:
        fields |= {
            "refused": OutageTimes.of(run.refused_s),
            "mended": OutageTimes.of(run.mended_s),
            "notes": tuple(run.notes),
        }
    return {**shape, **fields, "rounds_done": done, "failures": tuple(failures)}


def _add(fields: dict[str, Any], judgement: Judgement) -> None:
    """Count what a side work did wrong."""
    for found in (*map(verdict_fields, judgement.verdicts), asdict(judgement)):
        for name in ("lost", "duplicates", "order_violations", "other_anomalies", "findings"):
            fields[name] += found.get(name, 0)


async def _compare(run: DrillRun) -> Comparison:
    """Take the cluster down and compare all replicas up to where all have committed."""
    faults = run.faults
    nodes = dict(zip(faults.nodes, faults.urls, strict=True))
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while True:
        status = await faults.status()
        answers = {id: answer for id, url in nodes.items() if (answer := await asyncio.to_thread(_ask_status, url))}
        marks = {shard.id: _marks(shard, answers) for shard in status.shards}
        if is_settled(status) and all(len(set(of)) == 1 for of in marks.values()):
            break
        if time.monotonic() > deadline:
            raise TimedOut(f"not all replicas of a shard have come to its high watermark: {marks}")
        await asyncio.sleep(_POLL_S)
    config = next(iter(answers.values()))["config"]
    names = ("segment_bytes", "memtable_bytes", "max_message_bytes")
    options = StoreOptions(min_free_bytes=0, **{name: config[name] for name in names})
    await faults.down()
    with tempfile.TemporaryDirectory(prefix="lsmq-replicas-") as scratch:
        shards = {
            shard.id: (marks[shard.id][0], await faults.replicas(shard.id, shard.replicas, Path(scratch)))
            for shard in status.shards
        }
        return await asyncio.to_thread(compare, shards, options)


def _ask_status(url: str) -> Any:
    return ask(f"{url}/v1/status")


def _marks(shard: ShardStatus, answers: Mapping[str, Any]) -> list[int]:
    """The high watermark of each replica of a shard, as its node says it; -1 where it says nothing."""
    of = {
        node: found["high_watermark"]
        for node, answer in answers.items()
        for found in answer["shards"]
        if found["shard"] == shard.id
    }
    return [of.get(node, -1) for node in shard.replicas]
