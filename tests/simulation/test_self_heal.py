"""Replicas that the cluster makes again by itself, while the nodes that give and take them are killed and cut off."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from lsmq_coordinator.balancer import Balancer
from lsmq_lab.world import runs
from lsmq_lab.world.faults import Fault

_END_S = 14.0


def lost_for_good(seed: int) -> list[Fault]:
    """A fourth node joins, the first one is away until the end, and the others have no easy time."""
    chance = Random(f"self-heal {seed}")
    plan = [Fault(0.9, "join", 4, 1), Fault(2.0, "kill", 1, 2, _END_S - 2.5)]
    at = 5.0
    while (at := at + chance.expovariate(1.0)) < _END_S - 1:
        kind = chance.choice(("kill", "pause", "reset", "cut", "isolate"))
        node, other = chance.sample((2, 3, 4), 2)
        plan.append(Fault(round(at, 4), kind, node, other, round(0.3 * (0.5 + chance.random()), 4)))
    return plan


@pytest.mark.part(3)
@pytest.mark.parametrize("seed", [0, 1, 16])
def test_replicas_of_a_node_that_is_lost_are_made_again_amid_faults_and_nothing_is_lost(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[Any] = []
    due = Balancer.due

    def noted(self: Balancer, *situation: Any) -> list[dict[str, Any]]:
        steps = due(self, *situation)
        began.extend(steps)
        return steps

    monkeypatch.setattr(Balancer, "due", noted)
    monkeypatch.setattr(runs, "TROUBLE_S", _END_S)
    report = runs.run(seed, lost_for_good(seed), ["delayed"])
    assert report.ok, (report.problems, [str(fault) for fault in report.plan])
    assert any("n4" in step["replicas"] and "n1" not in step["replicas"] for step in began)
    assert report.figures["acknowledged"] > 0
