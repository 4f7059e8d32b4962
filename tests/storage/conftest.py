"""Storage tests may have disks that fail as they are told."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="module")
def _drives(drives_there: None) -> None:
    pass
