"""A seed is one run: byte for byte the same log in every process, whatever its hashes and addresses are."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from lsmq_lab.world.runs import USUAL
from lsmq_lab.world.uses import USES

#: What was in the process before moves what comes after it to other addresses.
_PLAY = """
import sys
from lsmq_lab.world import runs

seed, uses, before = int(sys.argv[1]), sys.argv[2].split(","), int(sys.argv[3])
runs.prepare()
kept = [bytes(number % 600) for number in range(before)][::3]
runs.shorten()
report = runs.in_child(seed, uses=uses)
print(*report.plan, *report.trace, *report.problems, report.fingerprint, sep="\\n")
"""
_SEEDS = {
    12: ("urgent", "short-lived", "bounded"),
    15: ("moved", "consumed"),
    16: ("forgotten", "dead"),
    17: ("fair", "found", "requested"),
    18: ("aged", "taken"),
    20: ("jobs", "ledger", "compacted"),
    21: ("delayed", "named", "pushed"),
    22: ("ring", "scheduled", "deduplicated", "awaited", "together"),
}


def log_of(seed: int, hash_seed: int) -> list[str]:
    command = [sys.executable, "-c", _PLAY, str(seed), ",".join(_SEEDS[seed]), str(hash_seed * 1_000)]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_all_uses_are_replayed() -> None:
    assert {use for uses in _SEEDS.values() for use in uses} == {*USUAL, *USES}


@pytest.mark.part(3)
@pytest.mark.parametrize("seed", _SEEDS)
def test_a_log_depends_on_neither_hashes_nor_addresses(seed: int) -> None:
    first, again = log_of(seed, 1), log_of(seed, 7)
    assert first == again
    assert any("FAULT" in line for line in first)
