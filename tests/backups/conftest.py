"""Fixtures of the tests of backups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from client.conftest import small_cluster
from lsmq_lab.local_cluster import LocalCluster
from support.coroutine_tests import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three nodes without ZooKeeper."""
    yield from small_cluster(tmp_path, tls=False)
