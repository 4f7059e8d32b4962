"""Clients of a real cluster whose leaders are killed and stopped under them: nothing lost, doubled or out of order."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lsmq import Client
from lsmq_lab.local_cluster import ClusterStatus, LocalCluster
from support.clusters import running_cluster
from support.traffic import Traffic

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster-client")]

SMALL = {"segment_bytes": 4 << 20, "memtable_bytes": 8 << 20}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("cluster") / "c"
    with running_cluster(__name__, directory, zookeeper="local", settings=SMALL) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: LocalCluster) -> LocalCluster:
    running.up()
    return running


def urls(cluster: LocalCluster) -> list[str]:
    return [node.url for node in cluster.plan.nodes]


def some_leader(status: ClusterStatus, number: int) -> str:
    leaders = sorted({shard.leader for shard in status.shards if shard.leader is not None})
    return leaders[number % len(leaders)]


@pytest.mark.part(1)
async def test_leaders_killed_one_after_the_other(cluster: LocalCluster) -> None:
    async with (
        Client(urls(cluster)) as sending,
        Client(urls(cluster)[1]) as reading,
        asyncio.TaskGroup() as group,
    ):
        traffic = Traffic("killed", sending, reading)
        await traffic.run(group)
        for turn in range(3):
            await traffic.progress()
            status = await asyncio.to_thread(cluster.wait_ready)
            victim = some_leader(status, turn)
            await asyncio.to_thread(cluster.kill, victim)
            await traffic.progress()  # On two nodes, while the third is down.
            await asyncio.to_thread(cluster.start, victim)
        await traffic.progress()
        await traffic.finish()


async def test_leaders_that_stop_answering(cluster: LocalCluster) -> None:
    """Their kernels take connections and requests. Requests may take longer than this test."""
    endless: dict[str, Any] = {"request_timeout_ms": 600_000, "deadline_ms": 600_000}
    async with (
        Client(urls(cluster), **endless) as sending,
        Client(urls(cluster), **endless) as reading,
        asyncio.TaskGroup() as group,
    ):
        traffic = Traffic("paused", sending, reading)
        await traffic.run(group)
        for turn in range(3):
            await traffic.progress()
            status = await asyncio.to_thread(cluster.wait_ready)
            victim = some_leader(status, turn)
            cluster.pause(victim)
            try:
                await traffic.progress()
                async with Client(urls(cluster), **endless) as fresh:
                    assert "paused" in [topic.name for topic in await fresh.topics()]
            finally:
                cluster.resume(victim)
        await traffic.progress()
        await traffic.finish()


async def test_nodes_found_in_zookeeper_and_then_done_without_it(cluster: LocalCluster, tmp_path: Path) -> None:
    assert cluster.zookeeper is not None
    options: dict[str, Any] = {"zookeeper": cluster.zookeeper.hosts, "cluster": cluster.plan.name}
    async with (
        Client(**options, cache_dir=tmp_path) as sending,
        Client(**options, cache_dir=tmp_path) as reading,
        asyncio.TaskGroup() as group,
    ):
        traffic = Traffic("zookeeper", sending, reading)
        await traffic.run(group)
        await traffic.progress()
        assert sorted(sending.urls) == sorted(urls(cluster))
        await asyncio.to_thread(cluster.stop_zookeeper, signal.SIGKILL)
        victim = some_leader(await asyncio.to_thread(cluster.status), 0)
        await asyncio.to_thread(cluster.kill, victim)
        await traffic.progress()
        async with Client(**options, cache_dir=tmp_path) as fresh:  # From the copy on disk.
            assert "zookeeper" in [topic.name for topic in await fresh.topics()]
        await asyncio.to_thread(cluster.start_zookeeper)
        await asyncio.to_thread(cluster.start, victim)
        await traffic.progress()
        await traffic.finish()
