"""What replication costs: the cases of ``lsmq bench cluster``."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ... import cluster
from ...page_cache import page_cache
from ...report import Option
from ..row import LSMQ, Case, FigureColumn, FigureTarget, Plot, Row, Values, over


def run(place: Path, case: cluster.ClusterCase, values: Values) -> dict[str, float]:
    """Write with one client and with several, and read."""
    with page_cache(place) as cache, cluster.running_case(case, place / "servers") as servers:
        found = cluster.measure(values, case, servers, cache)
    return {"per_s": found["write_n"], "is_remote": 1.0, **found, "peak_mib": found["peak_resident_bytes"] / 2**20}


def _cases(values: Values, peers: tuple[str, ...]) -> list[Case]:
    return [Case(str(case), LSMQ, partial(run, case=case, values=values)) for case in cluster.CASES]


def _targets(values: Values) -> list[FigureTarget]:
    one, quorum, _ = map(str, cluster.CASES)
    because = f"{cluster.NODES} nodes and all clients share the cores and the disk of one machine"
    return [
        FigureTarget(f"quorum of three over one node, {clients}", over(quorum, one, name), 0.8, because=because)
        for name, clients in (("write_1", "one client"), ("write_n", f"{values['writers']} clients"))
    ]


ROW = Row(
    name="replicate",
    title="a quorum of three against one node",
    work="The same messages to one node, and to three with three replicas of everything: acknowledged when they are on "
    "the disks of all replicas in sync, or on the leader's. `lsmq bench cluster` has it alone.",
    options=(
        Option("messages", 1_000_000, "Messages of each measurement, over all its clients.", quick=2_000),
        Option("message_bytes", 58, "Size of a message.", low=16),
        Option("in_flight", 40_000, "Messages of one client that wait for their acknowledgement, at most."),
        Option("writers", 4, "Clients of the second write.", quick=2),
        Option("readers", 4, "Clients that read, each its own queues.", quick=2),
        Option("queues", 1_200, "Queues of the topic.", quick=30),
    ),
    cases=_cases,
    columns=(
        FigureColumn("write_1", "write, one client", "/s"),
        FigureColumn("write_n", "write, several", "/s"),
        FigureColumn("read_n", "read, several", "/s"),
        FigureColumn("peak_mib", "a node's peak memory", "MiB"),
    ),
    targets=_targets,
    plots=(Plot("write_n", "writes a second, several clients", "/s"),),
)
