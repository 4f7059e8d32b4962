"""Fixtures of the client's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lsmq_lab.local_cluster import LocalCluster, found_plan
from support.coroutine_tests import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three nodes without ZooKeeper, under TLS."""
    yield from small_cluster(tmp_path, tls=True)


def small_cluster(tmp_path: Path, *, tls: bool) -> Iterator[LocalCluster]:
    small = {"segment_bytes": 4 << 20, "memtable_bytes": 8 << 20}
    cluster = LocalCluster.found(tmp_path / "c", found_plan(zookeeper="none", tls=tls, settings=small))
    try:
        cluster.up()
        with cluster.trusted():
            yield cluster
    finally:
        cluster.down(delete=True)
