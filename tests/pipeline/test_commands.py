"""``lsmq pipeline`` and the example of the documentation, as their users run them."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from lsmq.cli import root
from lsmq.errors import LsmqError
from lsmq.sync import Client, Producer
from support.node_process import NodeProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parents[2]
SPARK = ("--master", "local[2]", "--memory", "700m")


def command(*words: str, code: int = 0) -> str:
    """Run ``lsmq pipeline``; what it printed, on standard error if it failed."""
    done = subprocess.run(
        [sys.executable, "-m", "lsmq", "pipeline", *words], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == code, done.stdout + done.stderr[-3000:]
    return done.stderr if code else done.stdout


def test_every_job_is_listed_and_says_what_it_does() -> None:
    listed = command("--help")
    for name in ("archive", "replay", "audit", "lagreport", "usage", "dedupe", "compact"):
        assert f"  {name} " in listed
    assert "--messages-per-run" in command("archive", "--help")
    assert "Missing option '--to'" in command("archive", "orders", code=2)


@pytest.mark.part(2)
def test_lag_is_reported_as_a_table_and_as_json(shared_node: NodeProcess, topic_name: str) -> None:
    with Client(shared_node.url) as client:
        client.create_topic(topic_name, queues=2)
        with Producer(client, topic_name) as producer:
            for _ in range(10):
                producer.send("x", queue=1)
        client.commit_offsets("billing", topic_name, {1: 4})
    found = json.loads(command("lagreport", topic_name, "--url", shared_node.url, "--json"))
    assert [(row["group"], row["lag"], row["queue"]) for row in found["rows"]] == [("billing", 6, 1)]
    assert "billing" in command("lagreport", topic_name, "--url", shared_node.url)
    assert "unknown_topic" in command("lagreport", "not-there", "--url", shared_node.url, code=1)


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
@pytest.mark.soak
def test_every_job_runs_as_a_command_and_shows_its_progress(
    spark: SparkSession, shared_node: NodeProcess, topic_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(shared_node.url) as client:
        client.create_topic(topic_name, queues=2)
        with Producer(client, topic_name) as producer:
            for number in range(60):
                producer.send(f"body {number % 20}", key=f"key-{number % 5}")

    def run(*words: str) -> dict[str, Any]:
        done = CliRunner().invoke(root, ["pipeline", *words, "--json"])
        assert done.exit_code == 0, done.output
        assert " ..." in done.stderr, "what is being done is told"
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    # The commands' own code, on the session there is: a Java for each would take most of the time.
    monkeypatch.setattr("lsmq_pipeline.commands.session", lambda *given: nullcontext(spark))
    at = ("--url", shared_node.url)
    path, again = str(tmp_path / "archive"), f"{topic_name}-again"
    assert run("archive", topic_name, "--to", path, "--messages-per-run", "40", *at)["runs"] == 2
    assert run("replay", path, topic_name, again, "--create", *at)["messages"] == 60
    audited = run("audit", again, *at)
    assert (audited["messages"], audited["deleted"], audited["problems"]) == (60, 0, [])
    assert run("usage", topic_name, "--archive", path, *at)["messages"] == 60
    assert run("dedupe", path, str(tmp_path / "once"), "--by", "body")["kept"] == 20
    assert run("compact", path, str(tmp_path / "latest"))["kept"] == 5


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
def test_what_fails_within_spark_is_told_by_what_it_was(
    spark: SparkSession, shared_node: NodeProcess, topic_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lsmq_pipeline.commands.session", lambda *given: nullcontext(spark))
    small, path = f"{topic_name}-small", str(tmp_path / "archive")
    with Client(shared_node.url) as client:
        client.create_topic(topic_name, queues=1)
        client.create_topic(small, queues=1, max_message_bytes=1_000)
        with Producer(client, topic_name) as producer:
            producer.send(b"x" * 2_000)

    def failed(*words: str, told: str = "") -> str:
        done = CliRunner().invoke(root, ["pipeline", *words, "--url", shared_node.url])
        error = done.exception
        assert isinstance(error, LsmqError) and told in done.stderr, done.stderr
        return f"{error.code}: {error.message}"

    assert failed("usage", "not-there") == "unknown_topic: there is no topic 'not-there'; create it first"
    CliRunner().invoke(root, ["pipeline", "archive", topic_name, "--to", path, "--url", shared_node.url])
    replayed = failed("replay", path, topic_name, small, told="the name of this replay is ")
    assert replayed.startswith("message_too_large: row 0 of an Arrow batch makes")
    elsewhere = failed("archive", topic_name, "--to", "nowhere://archive")
    assert elsewhere.startswith("job_failed: Spark says: ") and '"nowhere"' in elsewhere


@pytest.mark.slow
def test_a_topic_is_archived_by_a_command(shared_node: NodeProcess, topic_name: str, tmp_path: Path) -> None:
    with Client(shared_node.url) as client:
        client.create_topic(topic_name, queues=2)
        with Producer(client, topic_name) as producer:
            for number in range(100):
                producer.send(str(number))
    path = tmp_path / "archive"
    words = ("archive", topic_name, "--to", str(path), "--url", shared_node.url, *SPARK, "--json")
    assert json.loads(command(*words))["messages"] == 100
    assert [manifest.name for manifest in (path / "manifests").glob("*.json")] == ["000001.json"]


@pytest.mark.slow
@pytest.mark.soak
def test_the_example_answers_what_pandas_answers(shared_node: NodeProcess, topic_name: str, tmp_path: Path) -> None:
    example = ROOT / "docs" / "examples" / "spark" / "flights.py"
    words = ["--url", shared_node.url, "--topic", topic_name, "--directory", str(tmp_path), "--rows", "18000"]
    ran = subprocess.run(
        [sys.executable, str(example), *words, "--master", "local[2]"], capture_output=True, text=True, timeout=500
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "archived: 18,000 messages" in ran.stdout
    assert ran.stdout.count("the same as pandas") == 2
    assert (tmp_path / "delays.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.soak
def test_the_benchmark_compares_with_files_and_puts_every_figure_into_its_result() -> None:
    from lsmq_lab.benchmarks import BENCHES

    bench = BENCHES["spark"]
    said: list[str] = []
    report = bench.run(bench.values({"quick": True, "messages": 2_000, "no_kafka": True}), said.append)
    json.dumps(report.result)
    assert [each["system"] for each in report.result["systems"]] == ["lsmq", "parquet"]
    assert all(value is not None and value > 0 for value in report.result["ratios"].values())
    assert [row[0] for row in report.tables[0].rows] == ["lsmq", "parquet", "lsmq, parquet = 1"]
