"""Many queues over the network, on one and on three nodes, every message on the disk before its acknowledgement."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from ...report import Option
from ..row import LSMQ, Case, FigureColumn, FigureTarget, Plot, Row, Values, least_over_greatest
from ..systems import PEERS, system
from ..systems.system import READ, WRITE, ClientLoad, System, measure, readers, split

_THREE = "lsmq3"
_COUNTS = (1, 1_000, 100_000, 1_000_000)
_FLAT = 0.8
_READING = (
    "each queue is handed out, followed and committed by itself, in Python; a message each costs what a queue does"
)


def run(place: Path, measured: System, queues: int, values: Values) -> dict[str, float]:
    """Write with several clients, each round and round over all queues, and read with as many, each its own queues."""
    messages, clients = max(values["messages"], queues), values["clients"]
    with measured.running(place / "server") as server:
        measured.prepare(server.address, queues, 0)
        whole = ClientLoad(
            measured.module, server.address, WRITE, messages, values["message_bytes"], queues, values["in_flight"]
        )
        starts = [queues * part // clients for part in range(clients)]
        shares = split(messages, clients)
        loads = [
            ClientLoad(whole.module, whole.address, WRITE, count, whole.message_bytes, queues, whole.in_flight, first)
            for count, first in zip(shares, starts, strict=True)
        ]
        found = measure(server, loads)
        if READ in measured.kinds:
            read = measure(server, readers(whole, clients))
            found |= {"read_per_s": read["per_s"], "read_processor_us": read["processor_us"]}
        found["peak_mib"] = server.peak_resident_bytes() / 2**20
    return found


def _cases(values: Values, peers: tuple[str, ...]) -> list[Case]:
    return list(_each_case(values, peers))


def _each_case(values: Values, peers: tuple[str, ...]) -> Iterator[Case]:
    for queues in _counts(values):
        for name in (LSMQ, _THREE, *peers):
            measured = system(name)
            if queues > measured.most_queues:
                continue
            label = "lsmq, three nodes" if name == _THREE else name
            yield Case(
                f"{label}, {queues:,} queues",
                LSMQ if name == _THREE else name,
                partial(run, measured=measured, queues=queues, values=values),
                x=queues,
                series=label,
            )


def _counts(values: Values) -> list[int]:
    return [count for count in _COUNTS if count <= values["most_queues"]]


def _targets(values: Values) -> list[FigureTarget]:
    found = []
    for label in (LSMQ, "lsmq, three nodes"):
        cases = [f"{label}, {count:,} queues" for count in _counts(values)]
        for figure, what in (("per_s", "writing"), ("read_per_s", "reading")):
            value = least_over_greatest(cases, figure)
            # What is known of the processor is that of writing.
            case, because = (cases[-1], "") if figure == "per_s" else ("", _READING)
            text = f"{label}: {what}, slowest over fastest"
            found.append(FigureTarget(text, value, _FLAT, case=case, because=because))
    return found


def _stops() -> tuple[str, ...]:
    named = [(name, system(name)) for name in PEERS]
    return tuple(
        f"{name} is not tried above {each.most_queues:,} queues: {each.stops}" for name, each in named if each.stops
    )


ROW = Row(
    name="many-queues",
    title="from one queue to a million, over the network",
    work="Clients write messages of 100 bytes round and round over all queues of one topic, each from another queue "
    "on; then they read everything, each its own queues. On one node, and on three with three replicas of everything.",
    options=(
        Option("messages", 1_000_000, "Messages of a case, or one a queue where that is more.", quick=4_000),
        Option("message_bytes", 100, "Size of a message.", low=16),
        Option("most_queues", 1_000_000, "Most queues.", quick=1_000),
        Option("clients", 4, "Clients that write, and that read.", quick=2),
        Option("in_flight", 40_000, "Messages of a client that wait for their acknowledgement, at most.", quick=1_000),
    ),
    cases=_cases,
    columns=(
        FigureColumn("per_s", "write", "/s"),
        FigureColumn("read_per_s", "read", "/s"),
        FigureColumn("processor_us", "processor a write", "us"),
        FigureColumn("read_processor_us", "processor a read", "us"),
        FigureColumn("peak_mib", "server's peak memory", "MiB"),
    ),
    targets=_targets,
    plots=(
        Plot("per_s", "writes a second, all clients together", "/s", "queues"),
        Plot("read_per_s", "reads a second, all clients together", "/s", "queues"),
    ),
    peers=PEERS,
    notes=(
        "Clients are Python processes; confluent-kafka is librdkafka inside, and RocketMQ's are its own load tool in "
        "Java (batches of 200). All nodes and clients share the machine: three nodes do three times the work on it.",
    ),
    gaps=_stops(),
)
