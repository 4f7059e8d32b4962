"""Shards that come, and topics that are spread to them, in whole clusters whose nodes are killed and cut off."""

from __future__ import annotations

from random import Random

import pytest

from lsmq_lab.world import runs
from lsmq_lab.world.faults import Fault

_END_S = 12.0


def growing(seed: int) -> list[Fault]:
    """Two shards come, and nobody has an easy time."""
    chance = Random(f"growth {seed}")
    plan = [Fault(2.0, "grow", 1), Fault(6.0, "grow", 1)]
    at = 1.8
    while (at := at + chance.expovariate(1.5)) < _END_S - 1:
        kind = chance.choice(("kill", "power", "power at step", "pause", "reset", "cut", "isolate"))
        node, other = chance.sample((1, 2, 3), 2)
        plan.append(Fault(round(at, 4), kind, node, other, round(0.3 * (0.5 + chance.random()), 4)))
    return sorted(plan, key=lambda fault: fault.at_s)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_shards_come_amid_faults_and_nothing_is_lost(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "TROUBLE_S", _END_S)
    report = runs.run(seed, growing(seed), ["jobs", "delayed"])
    assert report.ok, (report.problems, [str(fault) for fault in report.plan])
    assert report.figures["acknowledged"] > 0 and report.figures["shards"] in (3, 4), "one or two, and two more"
