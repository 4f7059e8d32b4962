"""Entry point: options, the two runs, the checks and the final table. Exit 0 only if every check held."""

from __future__ import annotations

import argparse
import math
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn

from lsmq_lab.history import Verdict

from .check import checks, judge, latency, pause_s, receive_rate, refused_s, send_rate
from .cluster import NODES, SHARDS, ClusterFailed, DemoCluster
from .display import Display, mebibytes
from .flights import Flights, TableNotFound, find_table, read_flights
from .runs import FirstRun, Plan, SecondRun, WorkerFailed, first_run, second_run

LIVE_PART = 12  # the last twelfth of the year, December, is sent at a pace


def main(arguments: list[str] | None = None) -> int:
    """Run the demo. 0: every check held; 1: one did not, or the demo could not be carried through."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _terminate)
    display = Display.recorded() if options.record else Display()
    directory = Path(options.keep) if options.keep else Path(tempfile.mkdtemp(prefix="lsmq-demo-"))
    directory.mkdir(parents=True, exist_ok=True)
    try:
        code = _demo(options, display, directory)
        if options.record:
            display.save(Path(options.record))
        return code
    except (TableNotFound, ClusterFailed, WorkerFailed) as error:
        display.console.print(f"[bold red]error:[/bold red] {error}")
        return 1
    except KeyboardInterrupt:
        display.console.print("stopped")
        return 130
    finally:
        if not options.keep:
            shutil.rmtree(directory, ignore_errors=True)


def _demo(options: argparse.Namespace, display: Display, directory: Path) -> int:
    began = time.monotonic()
    table = Path(options.table) if options.table else find_table()
    flights = read_flights(table, options.rows)
    row_count = len(flights)
    plan = Plan(
        table=table,
        limit=options.rows,
        row_count=row_count,
        live_from=row_count - row_count // LIVE_PART,
        live_rate=options.live_rate,
        queue_count=options.queues,
        consumer_count=options.consumers,
        directory=directory,
    )
    display.console.print(
        f"{row_count:,} flights of {flights.aircraft_count:,} aircraft ({mebibytes(flights.size_bytes)}): "
        f"one message a flight, keyed by tail number, tagged by carrier.\n"
        f"{flights.keys.count(None):,} have no tail number (cancelled): they go without a key, in no order."
    )
    cluster = DemoCluster(directory)
    try:
        start_s = cluster.start()
        routes = "a ZooKeeper" if cluster.zookeeper else "no ZooKeeper (clients ask the nodes)"
        display.note(
            f"lsmq {cluster.version()}: a cluster of {NODES} nodes and {SHARDS} shards, 3 replicas each, {routes}, "
            f"ready after {start_s:.2f} s"
        )
        display.heading(f"First run: into {plan.queue_count:,} queues and back")
        one = first_run(cluster, plan, display)
        disk_one, memory_one = cluster.disk_bytes(), cluster.peak_resident_bytes
        verdict = judge(flights, one.sends, {"by the consumers": one.receipts})
        held = _show_checks(display, flights, verdict)
        display.heading("Second run: the leader of a shard is killed on the way")
        two = second_run(cluster, plan, display)
        disk_two, memory_two = cluster.disk_bytes(), cluster.peak_resident_bytes
        readings = {"while the leader died": two.followed, "read again": two.read_again}
        held &= _show_checks(display, flights, judge(flights, two.sends, readings))
    finally:
        cluster.stop()
    rows = _figures(plan, one, two)
    rows.append(("disk of all nodes, both topics in the end", mebibytes(disk_one), mebibytes(disk_two)))
    rows.append(("resident memory of a node, greatest", mebibytes(memory_one), mebibytes(memory_two)))
    title = f"{NODES} nodes, {SHARDS} shards, 3 replicas, ack=quorum, flush mode sync"
    display.table(title, ("", "first run", "with kill -9"), rows)
    _explain(display, plan)
    outcome = "every check held" if held else "[bold red]a check failed[/bold red]"
    display.console.print(f"\n{outcome}, after {time.monotonic() - began:.0f} s")
    return 0 if held else 1


def _show_checks(display: Display, flights: Flights, verdict: Verdict) -> bool:
    statements = checks(flights, verdict)
    for statement in statements:
        display.check(statement)
    return all(statement.ok for statement in statements)


def _figures(plan: Plan, one: FirstRun, two: SecondRun) -> list[tuple[str, ...]]:
    paced = latency(one.sends, one.receipts, plan.live_from)
    moved = [(route.first, route.end) for route in two.routes if route.shard in two.kill.shards]
    refused = refused_s(two.sends, two.kill.at_ns, two.back_ns, moved)
    mending = pause_s(two.sends, two.back_ns, moved)
    return [
        ("messages", f"{plan.row_count:,}", f"{plan.row_count:,}"),
        ("queues", f"{plan.queue_count:,}", f"{plan.queue_count:,}"),
        (
            "messages/s in",
            f"{send_rate(one.sends, 0, plan.live_from):,.0f}",
            f"{send_rate(two.sends, 0, plan.row_count):,.0f}",
        ),
        (
            "messages/s out",
            f"{receive_rate(one.receipts, one.reading_began_ns, plan.live_from):,.0f}",
            f"{receive_rate(two.read_again, two.reading_began_ns, plan.row_count):,.0f}",
        ),
        ("send to receive, p50", _milliseconds(paced.p50_ms), ""),
        ("send to receive, p99", _milliseconds(paced.p99_ms), ""),
        ("send to receive, greatest", _milliseconds(paced.greatest_ms), ""),
        ("writes refused: last of the killed to first of the new", "", _milliseconds(refused * 1000)),
        ("longest pause of writes while the node came back", "", _milliseconds(mending * 1000)),
        ("in sync again after the stream's end", "", f"{two.rejoin_s:.2f} s"),
    ]


def _explain(display: Display, plan: Plan) -> None:
    display.console.print(
        "in: one producer, from its first send to its last acknowledgement (on the disk of all replicas\n"
        "  in sync, by fdatasync);\n"
        "  in the second run beside the consumers and through the outage.\n"
        f"out: {plan.consumer_count} consumers, from their first request to the last message;\n"
        "  in the second run those that read again.\n"
        "writes refused: of the shards that the killed node led, the longest time between two acknowledgements,\n"
        "  from the kill until the node is started again; and the same from then on.\n"
        f"send to receive: of the paced part, {plan.live_rate:,} messages a second, from the moment\n"
        "  a message was due to the moment a consumer was handed it; the producer's linger of 5 ms included."
    )


def _milliseconds(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.1f} ms"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument("--rows", type=_positive, help="flights to stream (default: all 336,776)")
    parser.add_argument("--queues", type=_positive, default=4096, help="queues of a topic (default: 4096)")
    parser.add_argument("--consumers", type=_positive, default=4, help="receiving processes (default: 4)")
    parser.add_argument(
        "--live-rate",
        type=_positive,
        default=2500,
        help="messages a second in the paced part (default: 2500)",
    )
    parser.add_argument("--table", help="another flights.csv or flights.csv.zip than the installed one")
    parser.add_argument("--record", metavar="FILE", help="keep what is printed as a picture, an SVG")
    parser.add_argument("--keep", metavar="DIR", help="work in DIR, and leave data and log there")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{value} is not above 0")
    return value


def _terminate(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
