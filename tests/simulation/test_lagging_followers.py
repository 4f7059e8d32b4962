"""A node that is away for long is named by those who lead its shards, until it has caught up."""

from __future__ import annotations

from typing import Any

import pytest

from lsmq_coordinator.parts import Parts, PartState
from lsmq_lab.world import runs
from lsmq_lab.world.faults import Fault
from lsmq_node.cluster import lagging_followers


@pytest.mark.part(2)
def test_a_node_that_is_away_is_named_until_it_is_in_sync_again(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[PartState, str]] = []
    say = Parts._say

    def noted(self: Parts, name: str, essential: bool, state: PartState, why: str, after: str | None = None) -> None:
        if name == "followers":
            assert not essential
            said.append((state, why))
        say(self, name, essential, state, why, after)

    def last(state: PartState) -> Any:
        return max(at for at, each in enumerate(said) if each[0] is state)

    monkeypatch.setattr(Parts, "_say", noted)
    monkeypatch.setattr(lagging_followers, "PATIENCE_S", 2.0)
    monkeypatch.setattr(runs, "TROUBLE_S", 14.0)
    report = runs.run(0, [Fault(2.0, "kill", 2, 1, 9.0)], ["delayed"])
    assert report.ok, report.problems
    assert any(state is PartState.RETRYING and "n2 in shard" in why for state, why in said)
    assert not any("n1" in why or "n3" in why for _, why in said)
    assert last(PartState.RUNNING) > last(PartState.RETRYING)
