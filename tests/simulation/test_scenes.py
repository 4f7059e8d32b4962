"""Scenes: nothing is wrong in them while nothing is broken on purpose."""

from __future__ import annotations

import pytest

from lsmq_lab.world.aimed import SCENES
from lsmq_lab.world.runs import in_child, prepare


@pytest.mark.part(2)
@pytest.mark.parametrize("scene", SCENES)
def test_a_scene_ends_well(scene: str) -> None:
    prepare()
    report = in_child(0, scene=scene)
    assert report.ok, "\n".join(report.problems)
    assert "SCENE leader" in "\n".join(report.trace)
