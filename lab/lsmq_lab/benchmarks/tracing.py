"""``lsmq bench tracing``: what traces cost where they are off, beside code without any, and where they are on.

``absent`` is the same code, of which every line of tracing was taken as it was imported (:mod:`~.without_tracing`);
``off`` is it as it is; ``off again`` is the same once more, which shows how far two measurements of one thing lie
apart; ``on`` traces every request at client and node, and tells a collector. Rounds: each case once, in an order that
turns, in a process of its own; ratios are of a round's cases, and of these the median.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from typing import Any

from lsmq_lab.benchmarks.callable import CallableBench
from lsmq_lab.benchmarks.environment import describe, environment
from lsmq_lab.benchmarks.isolate import TIMEOUT_S, scratch
from lsmq_lab.benchmarks.report import (
    QUICK,
    BenchFailed,
    BenchReport,
    Option,
    TellProgress,
    TextTable,
    spread,
    spreads,
)

OPTIONS = (
    Option("messages", 200_000, "Messages that are sent without waiting for each, and then read.", quick=2_000),
    Option("requests", 3_000, "Messages that are sent one a request, each waited for.", quick=200),
    Option("in_flight", 10_000, "Messages that wait for their acknowledgement, at most."),
    Option("rounds", 9, "Rounds; each case once a round.", quick=1),
    Option("directory", "", "Where to keep the files while it runs (default: where temporary files go)."),
    QUICK,
)
ABSENT, OFF, AGAIN, ON = "absent", "off", "off again", "on"
CASES = (ABSENT, OFF, AGAIN, ON)
FIGURES = {"request": "a message a request", "send": "a message sent", "read": "a message read"}


def run(values: Mapping[str, Any], progress: TellProgress) -> BenchReport:
    """Raises :class:`BenchFailed` where OpenTelemetry is not installed, or a case fails."""
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.exporter") is None:
        raise BenchFailed('OpenTelemetry is not installed, so nothing can be traced: pip install "lsmq[otel]"')
    rounds: list[dict[str, dict[str, float]]] = []
    with scratch(values["directory"]) as directory, _collecting() as collector:
        facts = environment(directory)
        progress(describe(facts))
        for number in range(values["rounds"]):
            found: dict[str, dict[str, float]] = {}
            at = number % len(CASES)
            for case in (*CASES[at:], *CASES[:at]):
                progress(f"{number + 1}/{values['rounds']}: {case}")
                with scratch(str(directory)) as place:
                    found[case] = _measure(values, case, str(place), collector if case == ON else "")
            rounds.append(found)
    places = {case: int(rounds[0][case].pop("places")) for case in CASES}
    for found in rounds[1:]:
        for case in CASES:
            found[case].pop("places")
    result: dict[str, Any] = {
        "bench": "tracing",
        "environment": facts,
        "options": dict(values),
        "rewritten": places[ABSENT],
        "cases": {case: spreads([found[case] for found in rounds]) for case in CASES},
        "ratios": {
            case: {name: spread([found[case][name] / found[ABSENT][name] for found in rounds]) for name in FIGURES}
            for case in CASES
        },
        "noise": {
            name: statistics.median(abs(found[AGAIN][name] / found[OFF][name] - 1) for found in rounds)
            for name in FIGURES
        },
    }
    return BenchReport(result, [_table(result)], _notes(result))


def _measure(values: Mapping[str, Any], case: str, directory: str, collector: str) -> dict[str, float]:
    sizes = {name: values[name] for name in ("messages", "requests", "in_flight")}
    arguments = {"directory": directory, "collector": collector, "absent": case == ABSENT, **sizes}
    command = [sys.executable, "-c", "from lsmq_lab.benchmarks.without_tracing import child; child()"]
    command += ["lsmq_lab.benchmarks.tracing_case", "measure", json.dumps(arguments)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL)
    if child.returncode:
        tail = "\n".join(child.stderr.splitlines()[-12:])
        raise BenchFailed(f"the case {case!r} failed with exit code {child.returncode}:\n{tail}")
    found: dict[str, float] = json.loads(child.stdout.splitlines()[-1])
    if (case == ABSENT) != bool(found["places"]):
        raise BenchFailed(f"the case {case!r} had {found['places']} places of tracing taken out of its code")
    return found


def _table(result: dict[str, Any]) -> TextTable:
    options = result["options"]
    table = TextTable(
        f"microseconds of processor time, client and node; {options['messages']:,} messages, {options['requests']:,} "
        f"requests, {options['rounds']} rounds",
        ("case", *FIGURES.values()),
        [],
    )
    for case, figures in result["cases"].items():
        table.rows.append((case, *(_span_text(figures[name], 2) for name in FIGURES)))
    for case in CASES[1:]:
        table.rows.append((f"{case}, {ABSENT} = 1", *(_span_text(result["ratios"][case][name], 3) for name in FIGURES)))
    return table


def _span_text(figures: Mapping[str, float], digits: int) -> str:
    low, middle, high = (f"{figures[name]:.{digits}f}" for name in ("min", "median", "max"))
    return middle if low == high else f"{middle} ({low}-{high})"


def _notes(result: dict[str, Any]) -> list[str]:
    noise = ", ".join(f"{said} {result['noise'][name]:.1%}" for name, said in FIGURES.items())
    return [
        "Medians (least-greatest) of the rounds; ratios are of the cases of a round.",
        f"absent: {result['rewritten']} conditions on tracing are decided as the code is imported, and what hangs on "
        "them is gone.",
        f"off and off again are the same: they differ by {noise} (median).",
        "on: every request is traced at client and node, and told to a collector in another process.",
    ]


@contextmanager
def _collecting() -> Iterator[str]:
    """The URL of a collector that takes all, and keeps nothing. Raises :class:`BenchFailed` where nothing came."""
    _Taking.taken_bytes = 0
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Taking)
    thread = threading.Thread(target=server.serve_forever, name="collector", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
        if not _Taking.taken_bytes:
            raise BenchFailed("nothing was told to the collector: nothing was traced")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Taking(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    taken_bytes = 0

    def do_POST(self) -> None:
        _Taking.taken_bytes += len(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nobody reads it."""


BENCH = CallableBench(
    name="tracing",
    description="Traces that are off beside code that has none, and traces that are on.",
    options=OPTIONS,
    run=run,
)
