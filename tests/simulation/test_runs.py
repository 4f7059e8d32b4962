"""Whole clusters under seeds, each seed in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lsmq_lab.world.faults import Fault, smaller


def played(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lsmq_lab.world", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=900)


@pytest.mark.part(8)
@pytest.mark.parametrize("seeds", [f"{first}-{first + 1}" for first in range(0, 40, 2)])
def test_clusters_keep_their_promises(seeds: str) -> None:
    done = played("--seeds", seeds)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.part(3)
def test_the_same_seed_is_the_same_run_in_another_process() -> None:
    first, again = (played("--seeds", "2", "--fingerprints", "--trace") for _ in range(2))
    assert first.returncode == 0, first.stdout
    # The last line has the time it took.
    assert first.stdout.splitlines()[:-1] == again.stdout.splitlines()[:-1]
    assert "FAULT" in first.stdout


def test_smaller_plans_leave_something_out_or_are_shorter() -> None:
    plan = [Fault(1.0, "kill", 1, 2, 0.5), Fault(2.0, "pause", 2, 1, 0.05), Fault(3.0, "cut", 3, 1, 0.05)]
    found = smaller(plan)
    assert plan[1:] in found
    assert plan[:2] in found
    assert all(len(each) < 3 or each[0].lasting_s == 0.25 for each in found)
