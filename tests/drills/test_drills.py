"""A short form of every drill, on real clusters of processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from lsmq_lab.drills import DRILLS, print_report, run_drill
from support.extent import part_of
from support.python_process import run_python

#: Those that show the same kind of promise.
DRILLS_BY_KIND = {
    "nodes die": ("kill-leader", "kill-follower", "pause-leader", "rolling-restart", "kill-all-power"),
    "nodes are cut off": ("partition-leader", "deafen-leader", "isolate-minority", "reject-port", "zookeeper-outage"),
    "disks fail": ("disk-full-follower", "full-disk-voter", "lost-disk", "slow-disk", "set-back-disk"),
    "replicas move": ("add-node", "drain-node", "self-heal", "clock-skew"),
    "consumers die": ("kill-consumer", "slow-consumer", "rebalance-storm"),
    "workers and producers die": ("kill-worker", "kill-keyed-worker", "kill-producer-in-transaction"),
}


def test_every_drill_is_tested() -> None:
    assert sorted(DRILLS) == sorted(name for names in DRILLS_BY_KIND.values() for name in names)


def test_the_command_lists_the_drills() -> None:
    listed = run_python("-m", "lsmq", "drill", text=True)
    assert listed.returncode == 0, listed.stderr
    assert [line.split()[0] for line in listed.stdout.splitlines()] == list(DRILLS)


def test_an_unknown_drill_is_wrong_usage() -> None:
    refused = run_python("-m", "lsmq", "drill", "kill-leaders", text=True)
    assert refused.returncode == 2
    assert "kill-leader, kill-follower" in refused.stderr


def test_every_drill_stands_in_the_page_on_operations() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    assert [name for name in DRILLS if f"| `{name}` |" not in page] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", DRILLS_BY_KIND)
def test_nothing_is_lost_when(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One drill of each kind, up to chance; all in a soak."""
    names = DRILLS_BY_KIND[kind]
    for name in part_of(names, len(names)):
        (directory := tmp_path / name).mkdir()
        report = run_drill(name, rounds=1, seed=1, directory=directory)
        print_report(report)
        assert report.ok, report.to_dict()
        assert report.replicas_compared == 3 * report.shards
        assert f"{name}: 1 of 1 rounds, " in capsys.readouterr().err
