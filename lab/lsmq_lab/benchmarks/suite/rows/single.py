"""One message at a time: each client waits for the acknowledgement of one before it sends the next."""

from __future__ import annotations

import shutil
import statistics
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from ...report import BenchFailed, Option, percentile_ms
from ..row import LSMQ, Case, FigureColumn, FigureTarget, Plot, Row, Values, figure, over
from ..systems import PEERS, system
from ..systems.system import LOOP, TOPIC, ClientLoad, System, measure

_QUEUES = 16
_COUNTS = (1, 10, 100, 1_000)
_CURL = "curl, HTTP and JSON"
_CURL_TIMEOUT_S = 300
_P50_MS = 0.45


def run(place: Path, measured: System, clients: int, values: Values) -> dict[str, float]:
    """As many tasks of one client process."""
    messages = max(values["messages"], 4 * clients)
    with measured.running(place / "server") as server:
        measured.prepare(server.address, _QUEUES, 0)
        load = ClientLoad(
            measured.module, server.address, LOOP, messages, values["message_bytes"], _QUEUES, in_flight=clients
        )
        return measure(server, [load])


def curl(place: Path, values: Values) -> dict[str, float]:
    """One curl over one connection, a POST after the other."""
    measured = system(LSMQ)
    with measured.running(place / "server") as server:
        measured.prepare(server.address, _QUEUES, 0)
        body = "x" * values["message_bytes"]
        url = f"{server.address}/v1/topics/{TOPIC}/messages"
        lines = [
            'header = "Content-Type: application/json"',
            f'data = "{{\\"messages\\": [{{\\"queue\\": 0, \\"body\\": \\"{body}\\"}}]}}"',
            'write-out = "%{http_code} %{time_total}\\n"',
            "silent",
        ]
        for _ in range(values["messages"]):
            lines += [f'url = "{url}"', 'output = "/dev/null"']
        config = place / "curl.conf"
        config.write_text("\n".join(lines))
        done = subprocess.run(["curl", "-K", str(config)], capture_output=True, text=True, timeout=_CURL_TIMEOUT_S)
    answers = [line.split() for line in done.stdout.splitlines()]
    seconds = [float(each[1]) for each in answers if each[0] == "200"]
    if done.returncode != 0 or len(seconds) != values["messages"]:
        raise BenchFailed(f"curl had {len(seconds)} of {values['messages']} messages stored: {done.stderr[-300:]}")
    # The first has the connection to make.
    return {
        "per_s": 1 / statistics.mean(seconds[1:]),
        "p50_ms": percentile_ms(seconds[1:], 0.5),
        "p99_ms": percentile_ms(seconds[1:], 0.99),
        "is_remote": 1.0,
        "waits_for_each": 1.0,
    }


def _cases(values: Values, peers: tuple[str, ...]) -> list[Case]:
    return list(_each_case(values, peers))


def _each_case(values: Values, peers: tuple[str, ...]) -> Iterator[Case]:
    for clients in _counts(values):
        for name in (LSMQ, *peers):
            measured = system(name)
            yield Case(
                f"{name}, {clients:,} clients",
                name,
                partial(run, measured=measured, clients=clients, values=values),
                x=clients,
            )
    if shutil.which("curl"):
        yield Case(_CURL, "curl", partial(curl, values=values), x=1)


def _counts(values: Values) -> list[int]:
    return [count for count in _COUNTS if count <= values["most_clients"]]


def _targets(values: Values) -> list[FigureTarget]:
    ours = f"{LSMQ}, 1 clients"
    found = [FigureTarget("p50 of one client", figure(ours, "p50_ms"), _P50_MS, "ms", at_most=True, case=ours)]
    for clients in _counts(values):
        mine = f"{LSMQ}, {clients:,} clients"
        found += [
            FigureTarget(
                f"p99 of {clients:,} clients over {peer}'s",
                over(mine, f"{peer}, {clients:,} clients", "p99_ms"),
                1.0,
                at_most=True,
                case=mine,
            )
            for peer in ("kafka", "nats", "rabbitmq")
        ]
    return found


ROW = Row(
    name="single",
    title="one message at a time",
    work="Tasks of one client process, each of which sends a message of 100 bytes, waits until it is on the disk, and "
    "sends the next. Beside it curl, with JSON over one connection.",
    options=(
        Option("messages", 5_000, "Messages of a case.", quick=200),
        Option("message_bytes", 100, "Size of a message.", low=16),
        Option("most_clients", 1_000, "Most tasks.", quick=10),
    ),
    cases=_cases,
    columns=(
        FigureColumn("p50_ms", "p50", "ms"),
        FigureColumn("p99_ms", "p99", "ms"),
        FigureColumn("per_s", "messages", "/s"),
        FigureColumn("processor_us", "processor a message", "us"),
        FigureColumn("client_us", "of it the client", "us"),
    ),
    targets=_targets,
    plots=(
        Plot("p50_ms", "median time to the acknowledgement", "ms", "clients"),
        Plot("p99_ms", "99th percentile", "ms", "clients"),
        Plot("per_s", "messages a second", "/s", "clients"),
    ),
    peers=PEERS,
    notes=(
        "RocketMQ: a thread of its own load tool for each client; what stands as p50 is the average that it prints.",
        "lsmq, redis, nats and rabbitmq: asyncio in Python. kafka: librdkafka, with callbacks on one thread.",
    ),
)
