"""A world finds what is broken on purpose."""

from __future__ import annotations

import pytest

from lsmq_lab.world.faults import Fault
from lsmq_lab.world.runs import in_child, prepare, shrunk
from replication.bugs import lease_is_ignored

from .bugs import BUGS, Bug


@pytest.mark.part(4)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_deliberate_bug_is_found(bug: Bug) -> None:
    prepare()
    with pytest.MonkeyPatch.context() as patch:
        reports = (in_child(seed, None, lambda: bug.apply(patch), scene=bug.scene) for seed in range(bug.seeds))
        found = next((report for report in reports if any(bug.breaks in problem for problem in report.problems)), None)
    assert found is not None, f"{bug.seeds} seeds did not find: {bug.name}"
    assert found.trace


@pytest.mark.slow
def test_a_plan_that_fails_shrinks_to_what_it_fails_by() -> None:
    prepare()
    plan = [
        Fault(0.3, "hang up", 2),
        Fault(0.35, "reset", 2, 3),
        Fault(0.6, "isolate", 0, 2, 1.5),
        Fault(2.3, "kill", 2, 1, 0.1),
        Fault(2.6, "pause", 3, 1, 0.1),
    ]
    with pytest.MonkeyPatch.context() as patch:

        def before() -> None:
            lease_is_ignored(patch)

        report = in_child(0, plan, before)
        assert any("at once" in problem for problem in report.problems), report.problems
        found = shrunk(report, tries=6, before=before)
    assert found.problems
    assert [fault.kind for fault in found.plan] == ["isolate"]
