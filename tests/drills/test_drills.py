"""A short form of every drill, on real clusters of processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lsmq_lab.drills import DRILLS, print_report, run_drill
from support.extent import soaked
from support.waiting import PATIENCE_S

DRILLS_BY_NAME = (
    "kill-leader",
    "kill-follower",
    "pause-leader",
    "partition-leader",
    "deafen-leader",
    "isolate-minority",
    "rolling-restart",
    "kill-all-power",
    "zookeeper-outage",
    "disk-full-follower",
    "lost-disk",
    "slow-disk",
    "set-back-disk",
    "add-node",
    "drain-node",
    "self-heal",
    "kill-consumer",
    "slow-consumer",
    "rebalance-storm",
    "kill-producer-in-transaction",
    "kill-worker",
    "kill-keyed-worker",
    "reject-port",
    "clock-skew",
    "full-disk-voter",
)
#: Each of another kind: who dies, what is cut, what is full, late, gone or an older copy.
USUAL = (
    "kill-leader",
    "partition-leader",
    "isolate-minority",
    "kill-all-power",
    "disk-full-follower",
    "slow-disk",
    "set-back-disk",
    "self-heal",
    "kill-consumer",
    "kill-worker",
    "reject-port",
    "full-disk-voter",
)


def test_every_drill_is_tested() -> None:
    assert tuple(DRILLS) == DRILLS_BY_NAME


def lsmq(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lsmq", *arguments], capture_output=True, text=True, timeout=PATIENCE_S
    )


def test_the_command_lists_the_drills() -> None:
    listed = lsmq("drill")
    assert listed.returncode == 0, listed.stderr
    assert tuple(line.split()[0] for line in listed.stdout.splitlines()) == DRILLS_BY_NAME


def test_an_unknown_drill_is_wrong_usage() -> None:
    refused = lsmq("drill", "kill-leaders")
    assert refused.returncode == 2
    assert "kill-leader, kill-follower" in refused.stderr


def test_every_drill_stands_in_the_page_on_operations() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    assert [name for name in DRILLS if f"| `{name}` |" not in page] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", soaked(DRILLS_BY_NAME, but=USUAL))
def test_nothing_is_lost_in(name: str, tmp_path: Path) -> None:
    report = run_drill(name, rounds=1, seed=1, directory=tmp_path)
    print_report(report)
    assert report.ok, report.to_dict()
    assert report.replicas_compared == 3 * report.shards
