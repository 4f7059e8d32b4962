"""A voter that is lost and replaced, in whole clusters, while the others are killed and cut off."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from lsmq_coordinator.raft_membership import Electorate
from lsmq_coordinator.voter import Voter
from lsmq_lab.world import runs
from lsmq_lab.world.faults import Fault

_END_S = 14.0


def burnt_down(seed: int, *, told: bool) -> list[Fault]:
    """A fourth node joins, the first one is away until the end and the fourth takes its vote, told to or by itself; the
    others have no easy time."""
    chance = Random(f"voters {seed}")
    plan = [Fault(0.9, "join", 4, 1), Fault(2.0, "kill", 1, 2, _END_S - 2.5)]
    plan += [Fault(3.0, "replace", 1, 4)] if told else []
    at = 2.8
    while (at := at + chance.expovariate(1.0)) < _END_S - 1:
        kind = chance.choice(("kill", "power", "pause", "reset", "cut", "isolate"))
        node, other = chance.sample((2, 3, 4), 2)
        plan.append(Fault(round(at, 4), kind, node, other, round(0.3 * (0.5 + chance.random()), 4)))
    return plan


@pytest.mark.slow
@pytest.mark.parametrize("told", [True, False], ids=["told", "by-itself"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_voter_that_is_lost_is_replaced_amid_faults_and_nothing_is_lost(
    seed: int, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: list[Electorate] = []
    publish = Voter._publish

    def noted(self: Voter, now: float) -> None:
        publish(self, now)
        membership: Any = self.status.membership
        if self.status.settled and (not known or membership.number > known[-1].number):
            known.append(membership)

    monkeypatch.setattr(Voter, "_publish", noted)
    monkeypatch.setattr(runs, "TROUBLE_S", _END_S)
    report = runs.run(seed, burnt_down(seed, told=told), ["delayed"])
    assert report.ok, (report.problems, [str(fault) for fault in report.plan])
    assert set(known[-1].voters) == {"n2", "n3", "n4"} and known[-1].old is None
    assert report.figures["acknowledged"] > 0
