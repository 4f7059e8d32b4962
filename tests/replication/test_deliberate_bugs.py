"""The simulator can fail: it finds each rule of the protocol that is broken on purpose."""

from __future__ import annotations

import pytest

from lsmq_lab.simulation import Outcome, Simulation

from .bugs import BUGS, Bug


def found(bug: Bug) -> Outcome | None:
    for seed in range(bug.seeds):
        outcome = Simulation(seed, make_core=bug.make_core).run()
        if outcome.violated:
            return outcome
    return None


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_deliberate_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.apply(monkeypatch)
    outcome = found(bug)
    assert outcome is not None, f"{bug.seeds} seeds did not find: {bug.name}"
    assert outcome.last_lines
