"""A world finds what is broken on purpose."""

from __future__ import annotations

import pytest

from lsmq_lab.world.runs import in_child, prepare

from .bugs import BUGS, Bug


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_deliberate_bug_is_found(bug: Bug) -> None:
    prepare()
    with pytest.MonkeyPatch.context() as patch:
        reports = (in_child(seed, bug.plan, lambda: bug.apply(patch)) for seed in range(bug.seeds))
        found = next((report for report in reports if not report.ok), None)
    assert found is not None, f"{bug.seeds} seeds did not find: {bug.name}"
    assert found.trace
