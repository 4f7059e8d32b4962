"""Storage tests may have disks that fail as they are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from lsmq_lab.world.drive import Drive


@pytest.fixture(autouse=True, scope="module")
def _drives(drives_there: None) -> None:
    pass


@pytest.fixture
def disk(tmp_path: Path) -> Drive:
    return Drive(tmp_path)
