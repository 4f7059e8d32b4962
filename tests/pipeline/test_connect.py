"""Spark Connect: a real server, and programs that have no Spark of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lsmq.sync import Client, Producer
from lsmq_pipeline.schema import COLUMNS
from support.node_process import NodeProcess
from support.spark_connect import SparkConnectServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

COUNT = 300


@pytest.fixture
def topic(shared_node: NodeProcess, topic_name: str) -> str:
    """A topic with the numbers up to ``COUNT``, and two empty ones beside it."""
    with Client(shared_node.url) as client:
        for suffix in ("", "-batch", "-stream"):
            client.create_topic(topic_name + suffix, queues=4)
        with Producer(client, topic_name) as producer:
            for number in range(COUNT):
                producer.send(str(number), key=f"key-{number % 8}")
    return topic_name


def run(*words: str, code: int = 0) -> str:
    """A program without Java: what it printed, on standard error if it failed."""
    environment = {**os.environ, "JAVA_HOME": "/nowhere", "PATH": "/nowhere"}
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == code, done.stdout + done.stderr[-4000:]
    return done.stderr if code else done.stdout


def test_programs_and_jobs_go_through_a_server_and_need_no_java_of_their_own(
    shared_node: NodeProcess, topic: str, tmp_path: Path
) -> None:
    # One server for all of it: that alone is most of the time this takes.
    with SparkConnectServer(tmp_path / "server") as server:
        a_program_reads_writes_and_streams(server.url, shared_node.url, topic, tmp_path)
        a_job_with_archives_says_what_it_needs(server.url, shared_node.url, topic, tmp_path)


def a_program_reads_writes_and_streams(server: str, url: str, topic: str, directory: Path) -> None:
    given = {"server": server, "url": url, "topic": topic, "directory": str(directory)}
    found: dict[str, Any] = json.loads(run(str(Path(__file__).with_name("connect_driver.py")), json.dumps(given)))
    assert found["session"].startswith("pyspark.sql.connect")
    assert found["columns"] == list(COLUMNS)
    for what in ("read", "own_schema", "written_twice", "stream", "files"):
        assert found[what] == list(range(COUNT)), what
    assert "UnknownTopic" in found["unknown_topic"] and "not-there" in found["unknown_topic"]
    assert "no column 'text'" in found["schema_mismatch"]
    assert found["usage"] == COUNT and found["audit"] == [COUNT], "jobs that have no archive work"
    assert found["registered"] == found["read"]


def a_job_with_archives_says_what_it_needs(server: str, url: str, topic: str, directory: Path) -> None:
    words = ("archive", topic, "--to", str(directory / "archive"), "--url", url, "--master", server)
    refused = run("-m", "lsmq", "pipeline", *words, code=1)
    assert "job_failed" in refused and "not Spark Connect" in refused
