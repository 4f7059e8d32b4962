"""The arithmetic of ``lsmq sizing``."""

from __future__ import annotations

import json

import pytest

from lsmq.cli.sizing import sizing_of
from support.python_process import run_python

DAY_MS = 86_400_000


def test_disk_grows_with_retention_and_replicas_and_not_with_queues() -> None:
    day = sizing_of(1000, 500, DAY_MS)
    assert sizing_of(1000, 500, 2 * DAY_MS).disk_bytes - day.disk_bytes == pytest.approx(
        1000 * 86_400 * 516 * 1.6, rel=0.001
    )
    assert sizing_of(1000, 500, DAY_MS, queues=10**6).disk_bytes == day.disk_bytes
    assert sizing_of(1000, 500, DAY_MS, nodes=6, shards=6).disk_bytes < day.disk_bytes


def test_memory_grows_with_queues_and_not_with_what_is_stored() -> None:
    few, many = sizing_of(1000, 500, DAY_MS), sizing_of(1000, 500, DAY_MS, queues=10**6, named=True)
    assert many.memory_bytes - few.memory_bytes == 85 * 10**6
    assert sizing_of(1000, 500, 30 * DAY_MS).memory_bytes == few.memory_bytes


@pytest.mark.parametrize(("replicas", "survives"), [(1, 0), (3, 1), (5, 2)])
def test_a_minority_of_replicas_may_be_lost(replicas: int, survives: int) -> None:
    assert sizing_of(1, 1, 1, nodes=5, replicas=replicas).survives == survives


def test_the_command_prints_it_and_refuses_more_replicas_than_nodes() -> None:
    load = ["--messages-per-s", "2000", "--bytes", "500", "--retention", "30d"]
    ran = run_python("-m", "lsmq", "sizing", *load, text=True)
    assert ran.returncode == 0 and "TiB on each node" in ran.stdout and "1 node lost" in ran.stdout
    found = json.loads(run_python("-m", "lsmq", "sizing", *load, "--json", text=True).stdout)
    assert found["survives"] == 1 and found["replicas_per_node"] == 3
    ran = run_python("-m", "lsmq", "sizing", *load, "--nodes", "2", text=True)
    assert ran.returncode == 2 and "3 replicas need as many nodes" in ran.stderr
