"""``lsmq bench control``: what the control plane's decisions cost in a cluster of many nodes and many shards.

The decisions are pure functions, so the cluster need not be there: a state is made up, of any size, and what the leader
of the control plane does with it is measured, without its disk and its network.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from types import MappingProxyType
from typing import Any

import msgpack

from lsmq_coordinator.balance import Situation, first_moves, plan
from lsmq_coordinator.commands import MAX_BATCH, apply
from lsmq_coordinator.election import ReplicaProgress
from lsmq_coordinator.heartbeats import NodeHeartbeat
from lsmq_coordinator.lives import InSyncMember, RegisteredStart
from lsmq_coordinator.overseer import departures, failovers, transfers
from lsmq_coordinator.overview import overview
from lsmq_coordinator.pieces import NamedPieces, Pieces
from lsmq_coordinator.reassignment import handover, next_steps
from lsmq_coordinator.state import ClusterSettings, ClusterState, NodeRecord, QueueRange, Shard, TopicRecord
from lsmq_coordinator.witness import Witness

from .callable import CallableBench
from .environment import describe, environment
from .isolate import scratch
from .report import QUICK, BenchReport, Option, TellProgress, TextTable, spread

_Reports = dict[str, dict[int, ReplicaProgress]]


def made_up(nodes: int, shards: int, replicas: int, topics: int = 0) -> ClusterState:
    """A cluster in which all is well: every replica is in sync and has registered its start, and nothing is uneven."""
    names = [f"node-{number:04}" for number in range(nodes)]
    # Each turn over the nodes has another distance between the replicas of a shard: the nodes stay even.
    apart = [1 + turn % max(1, (nodes - 1) // replicas) for turn in range(shards // nodes + 1)]
    placed = {
        id: tuple(names[(id + place * apart[id // nodes]) % nodes] for place in range(replicas)) for id in range(shards)
    }
    state = _with_replicas(names, placed)
    uneven = plan(state, Situation(alive=frozenset(names)))
    even = _with_replicas(names, placed | {move.shard: move.replicas for moves in uneven for move in moves})
    made = [
        TopicRecord(id, f"topic-{id}", 16, MappingProxyType({}), 1, (QueueRange(0, 16, 0),)) for id in range(topics)
    ]
    return replace(even, topics=NamedPieces({topic.name: topic for topic in made}), next_topic_id=topics)


def _with_replicas(names: Sequence[str], placed: Mapping[int, tuple[str, ...]]) -> ClusterState:
    replicas = len(placed[0])
    known = {
        name: NodeRecord(name, f"http://{name}:7600", f"http://{name}:7601", voter=name in names[:3]) for name in names
    }
    found = {}
    for id, holders in placed.items():
        starts = tuple(RegisteredStart(node, 1 << 60, 1, 1 << 60, confirmed=True) for node in sorted(holders))
        leading = next(start.life for start in starts if start.node == holders[0])
        members = tuple(InSyncMember(node, 1 << 60) for node in holders)
        found[id] = Shard(id, holders, holders[0], 1, members, 1, leading=leading, starts=starts)
    settings = ClusterSettings("bench", len(placed), replicas, replicas // 2 + 1, 64 << 20)
    return ClusterState(1, settings, MappingProxyType(known), Pieces(found))


def _reports(state: ClusterState) -> _Reports:
    found: _Reports = {node: {} for node in state.nodes}
    for shard in state.shards.values():
        for start in shard.starts:
            found[start.node][shard.id] = ReplicaProgress(shard.epoch, 1 << 40, *start.life, 1 << 40)
    return found


class _Cases:
    """Each method is measured; what it needs is made before."""

    def __init__(self, nodes: int, shards: int, replicas: int, topics: int) -> None:
        self.state = state = made_up(nodes, shards, replicas, topics)
        self.reports = _reports(state)
        self.alive = frozenset(state.nodes)
        self.encoded = state.encode()
        self.lost = next(iter(state.nodes))
        self.left = self.alive - {self.lost}
        elections = failovers(state, self.left, self.reports)
        self.elections = {"op": "batch", "request_id": "elect", "commands": elections[:MAX_BATCH]}
        shard = state.shards[0]
        self.election = {**handover(shard, shard.replicas[-1]), "request_id": "one"}
        # Of the node that is lost nothing is led any more when its replicas are made again.
        failed_over, _ = apply(state, self.elections)
        self.bereft = Situation(alive=self.left, gone=frozenset({self.lost}))
        self.failed_over = failed_over
        self.changes = failed_over.encode_changes(state)
        named = {"name": "another", "queues": 16, "created_ms": 1}
        self.create = {"op": "create_topic", "request_id": "topic", **named}
        self.with_topic, _ = apply(state, self.create)
        self.topic_changes = self.with_topic.encode_changes(state)
        newcomer = NodeRecord("node-new", "http://node-new:7600", "http://node-new:7601", voter=False)
        self.grown = replace(state, nodes=MappingProxyType({**state.nodes, newcomer.id: newcomer}))
        self.larger = Situation(alive=self.alive | {newcomer.id})
        beat = NodeHeartbeat(self.lost, "0" * 32, self.reports[self.lost])
        self.beat = msgpack.packb(beat.to_dict())
        self.witness = Witness()

    def look(self) -> None:
        """All that the overseer looks for when there is nothing to do."""
        state, alive = self.state, self.alive
        assert not failovers(state, alive, self.reports)
        assert not departures(state, alive, set())
        assert not next_steps(state, alive)

    def spread_leaders(self) -> None:
        assert not transfers(self.state, self.alive, self.reports)

    def plan_nothing(self) -> None:
        assert not first_moves(plan(self.state, Situation(alive=self.alive)), self.state, self.alive, 4)

    def fail_over(self) -> None:
        assert failovers(self.state, self.left, self.reports)

    def begin_rebuilding(self) -> None:
        assert first_moves(plan(self.failed_over, self.bereft), self.failed_over, self.left, 4)

    def plan_rebuilding(self) -> None:
        assert list(plan(self.failed_over, self.bereft))

    def begin_sharing(self) -> None:
        assert first_moves(plan(self.grown, self.larger), self.grown, self.larger.alive, 4)

    def plan_sharing(self) -> None:
        assert list(islice(plan(self.grown, self.larger), 1_000))

    def elect_one(self) -> None:
        assert apply(self.state, self.election)[1]["ok"]

    def elect_all(self) -> None:
        assert all(result["ok"] for result in apply(self.state, self.elections)[1]["results"])

    def encode(self) -> None:
        assert self.state.encode()

    def decode(self) -> None:
        assert ClusterState.decode(self.encoded).version

    def encode_changes(self) -> None:
        assert self.failed_over.encode_changes(self.state)

    def take_changes(self) -> None:
        assert self.state.changed(self.changes).version == self.failed_over.version

    def create_topic(self) -> None:
        assert apply(self.state, self.create)[1]["ok"]

    def encode_topic(self) -> None:
        assert self.with_topic.encode_changes(self.state)

    def take_topic(self) -> None:
        assert len(self.state.changed(self.topic_changes).topics) == len(self.with_topic.topics)

    def hear_heartbeat(self) -> None:
        beat = NodeHeartbeat.from_dict(msgpack.unpackb(self.beat, strict_map_key=False))
        self.witness.hear(self.state, beat.node, beat.progress or {})

    def show(self) -> None:
        assert overview(self.state)["shards"]


#: What is measured, by the name of its method, in the order of the table.
_MEASURED = {
    "elect_one": "a command: one election",
    "elect_all": "a batch: the elections after the loss of a node",
    "look": "a look of the leader, with nothing to do",
    "spread_leaders": "whether leaders are where they should be",
    "plan_nothing": "whether anything is uneven",
    "fail_over": "whom to elect after the loss of a node",
    "begin_rebuilding": "the first moves after a node is gone",
    "plan_rebuilding": "the whole plan",
    "begin_sharing": "the first moves after a node is added",
    "plan_sharing": "the whole plan, 1,000 moves at most",
    "hear_heartbeat": "a heartbeat",
    "encode_changes": "what those elections changed, as bytes",
    "take_changes": "the state that they make of the one before",
    "create_topic": "a command: one topic more",
    "encode_topic": "what that changed, as bytes",
    "take_topic": "the state that it makes of the one before",
    "encode": "the state as bytes",
    "decode": "the state from bytes",
    "show": "the state for people",
}


def _time_ms(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - began)


def _run(values: Mapping[str, Any], progress: TellProgress) -> BenchReport:
    nodes, shards, replicas = values["nodes"], values["shards"], values["replicas"]
    with scratch("") as directory:
        facts = environment(directory)
    cases = _Cases(nodes, shards, replicas, values["topics"])
    figures: dict[str, dict[str, float]] = {}
    for name in _MEASURED:
        figures[name] = spread([_time_ms(getattr(cases, name)) for _ in range(values["repeat"])])
        progress(f"{_MEASURED[name]}: {figures[name]['median']:,.2f} ms")
    held = len(cases.reports[cases.lost])
    result = {
        "environment": facts,
        "nodes": nodes,
        "shards": shards,
        "replicas": replicas,
        "topics": values["topics"],
        "state_bytes": len(cases.encoded),
        "changes_bytes": len(cases.changes),
        "heartbeat_bytes": len(cases.beat),
        "milliseconds": figures,
    }
    rows = [
        (_MEASURED[name], *(f"{found[part]:,.2f}" for part in ("median", "min", "max")))
        for name, found in figures.items()
    ]
    title = f"{nodes:,} nodes, {shards:,} shards of {replicas} replicas, {values['topics']:,} topics"
    notes = [
        describe(facts),
        f"the state takes {len(cases.encoded):,} bytes; what the elections after the loss of a node changed "
        f"{len(cases.changes):,}, what one topic more did {len(cases.topic_changes):,}",
        f"a heartbeat of a node with {held:,} replicas takes {len(cases.beat):,} bytes",
        "pure functions on a state that was made up, in one thread: no disk, no network",
    ]
    return BenchReport(result, [TextTable(title, ("", "ms, median", "least", "most"), rows)], notes)


BENCH = CallableBench(
    "control",
    "What the control plane's decisions cost in a cluster of many nodes and shards, as pure functions.",
    (
        Option("nodes", 1_000, "Nodes of the cluster.", quick=20, low=4),
        Option("shards", 100_000, "Shards of the cluster.", quick=200, low=4),
        Option("replicas", 3, "Replicas of each shard."),
        Option("topics", 0, "Topics of the cluster, below 100,000.", quick=100, low=0),
        Option("repeat", 3, "Repetitions of each.", quick=1),
        QUICK,
    ),
    _run,
)
