"""``lsmq bench spark``: Spark reads and writes a topic, beside its own Kafka source on Kafka, and beside Parquet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lsmq_lab.benchmarks import spark_cases, spark_kafka
from lsmq_lab.benchmarks.callable import CallableBench
from lsmq_lab.benchmarks.environment import describe, environment
from lsmq_lab.benchmarks.isolate import run_case, scratch
from lsmq_lab.benchmarks.node_servers import LSMQ, Setup, running
from lsmq_lab.benchmarks.report import (
    QUICK,
    BenchFailed,
    BenchReport,
    Option,
    TellProgress,
    TextTable,
    rate_text,
    ratio,
    ratio_text,
    spread,
)

OPTIONS = (
    Option("messages", 500_000, "Messages that are written and read.", quick=20_000),
    Option("message_bytes", 200, "Size of a message's value; its key comes on top."),
    Option("partitions", 8, "Queues of the topic, partitions of Kafka's."),
    Option("cores", 1, "Cores that Spark may use for tasks."),
    Option("repeat", 3, "Repetitions, after one that is not counted.", quick=1),
    Option("no_kafka", False, "Leave Kafka out."),
    Option("directory", "", "Where to keep the files while it runs (default: where temporary files go)."),
    QUICK,
)
KEYS = 1000


SYSTEMS = ("lsmq", "kafka", "parquet")


def run(values: Mapping[str, Any], progress: TellProgress) -> BenchReport:
    """Each system on fresh files, one after the other, each under a Spark of its own."""
    remedies: list[str] = []
    taken: dict[str, dict[str, Any]] = {}
    with scratch(values["directory"]) as directory:
        facts = environment(directory)
        progress(describe(facts))
        for system in SYSTEMS:
            if system == "kafka" and values["no_kafka"]:
                continue
            progress(system)
            try:
                taken[system] = measure(system, values, directory, progress)
            except BenchFailed as error:
                if system != "kafka":
                    raise
                remedies.append(str(error))
                progress(str(error))
    systems = [{"system": system, **_figures(found, values["messages"])} for system, found in taken.items()]
    result: dict[str, Any] = {
        "bench": "spark",
        "environment": facts,
        "options": dict(values),
        "missing": remedies,
        "systems": systems,
        "ratios": _ratios(systems),
    }
    return BenchReport(result, [_table(result)], [*_NOTES, *remedies])


def measure(system: str, values: Mapping[str, Any], directory: Path, progress: TellProgress) -> dict[str, Any]:
    """Write the rows to one system and read them back; seconds and processor seconds of each repetition."""
    rows = directory / "rows.parquet"
    if not rows.exists():
        spark_cases.make_rows(str(rows), values["messages"], values["message_bytes"], KEYS)
    with _server(system, directory, values, progress) as (address, jars):
        return run_case(
            spark_cases.transfer,
            system=system,
            address=address,
            rows=str(rows),
            directory=str(directory),
            messages=values["messages"],
            message_bytes=values["message_bytes"],
            partitions=values["partitions"],
            cores=values["cores"],
            jars=jars,
            repeat=values["repeat"],
        )


@contextmanager
def _server(
    system: str, directory: Path, values: Mapping[str, Any], progress: TellProgress
) -> Iterator[tuple[str, str]]:
    """What the system needs running: its address, and the jars Spark needs for it."""
    if system == "lsmq":
        with running(Setup(LSMQ, "sync"), directory / "node") as server:
            yield server.address, ""
    elif system == "kafka":
        source = spark_kafka.jars(progress)
        with spark_kafka.broker(directory / "kafka") as (address, _):
            yield address, str(source)
    else:
        yield "", ""


def _figures(found: Mapping[str, Any], messages: int) -> dict[str, Any]:
    """Messages a second, and processor seconds of Spark for a million messages, of writes and reads."""
    return {
        name: {
            "rate": spread([messages / each["s"] for each in found[name]]),
            "cpu_s_per_million": spread([each["cpu_s"] * 1e6 / messages for each in found[name]]),
        }
        for name in ("write", "read")
    }


def _ratios(systems: list[dict[str, Any]]) -> dict[str, float | None]:
    by_name = {each["system"]: each for each in systems}
    return {
        f"{name}/{other}": ratio(by_name["lsmq"][name]["rate"], by_name[other][name]["rate"])
        for other in by_name
        if other != "lsmq"
        for name in ("write", "read")
    }


def _table(result: Mapping[str, Any]) -> TextTable:
    options = result["options"]
    title = f"{options['messages']:,} messages of {options['message_bytes']} bytes, Spark on {options['cores']} core(s)"
    columns = ("system", "write", "read", "Spark CPU s / M written", "Spark CPU s / M read")
    table = TextTable(title, columns, [])
    for each in result["systems"]:
        cpu = (f"{each[name]['cpu_s_per_million']['median']:.1f}" for name in ("write", "read"))
        table.rows.append((each["system"], *(rate_text(each[name]["rate"]) for name in ("write", "read")), *cpu))
    for other in ("kafka", "parquet"):
        if f"write/{other}" in result["ratios"]:
            figures = (ratio_text(result["ratios"][f"{name}/{other}"]) for name in ("write", "read"))
            table.rows.append((f"lsmq, {other} = 1", *figures, "", ""))
    return table


_NOTES = [
    "Rows of a key and a value: from a Parquet file into the system, and from it into nothing (Spark's noop), all "
    "columns of the source. Spark, the server and what they need share the machine.",
    "lsmq acknowledges after fdatasync; Kafka, one broker with acks=all, without; Parquet is Spark's own file sink.",
    "CPU is that of Spark's Java process and its Python workers, the server's is not in it.",
]

BENCH = CallableBench(
    name="spark",
    description="Spark reading and writing a topic; beside Spark's Kafka source on Kafka, and Parquet files.",
    options=OPTIONS,
    run=run,
)
