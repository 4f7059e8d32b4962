"""Fixtures of the client's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lsmq_lab.local_cluster import LocalCluster
from support.clusters import running_cluster
from support.coroutine_tests import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call"]


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalCluster]:
    """Three nodes without ZooKeeper."""
    small = {"segment_bytes": 4 << 20, "memtable_bytes": 8 << 20}
    with running_cluster(request.module.__name__, tmp_path / "c", settings=small) as cluster:
        yield cluster
