"""A node in two processes, as several modules want it: ``from .two_processes import two_processes``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.node_process import NodeProcess


@pytest.fixture(name="node")
def two_processes(tmp_path: Path) -> Iterator[NodeProcess]:
    """They hold a shard each, and nobody else could."""
    found = NodeProcess(tmp_path / "data", processes=2)
    found.start()
    yield found
    if found.alive:
        found.kill9()
