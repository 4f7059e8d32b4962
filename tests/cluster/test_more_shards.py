"""A cluster of real nodes that gets more shards while it runs, nodes are killed, and clients go on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lsmq import Client, ClusterAdmin, Consumer, Producer, TransactionalProducer
from lsmq.errors import InvalidRequest, LsmqError
from lsmq_lab.local_cluster import LocalCluster
from support.clusters import running_cluster
from support.traffic import Traffic
from support.waiting import comes_true

pytestmark = pytest.mark.slow

SETTINGS = {"segment_bytes": 4 << 20, "memtable_bytes": 8 << 20}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with running_cluster(__name__, tmp_path / "c", settings=SETTINGS) as cluster:
        yield cluster


def urls_of(cluster: LocalCluster) -> list[str]:
    return [node.url for node in cluster.plan.nodes]


async def grown(admin: ClusterAdmin, shards: int) -> None:
    """Asked for again until somebody can be asked, as whoever got no answer does."""

    async def done() -> bool:
        try:
            await admin.grow_shards(shards)
        except LsmqError:  # Also while a node that was killed has not been heard since.
            return False
        return True

    await comes_true(done, f"there are {shards} shards")


async def test_messages_groups_and_transactions_go_on_while_shards_come_and_the_control_leader_dies(
    cluster: LocalCluster,
) -> None:
    urls = urls_of(cluster)
    async with Client(urls) as sending, Client(urls) as reading, asyncio.TaskGroup() as group:
        admin = ClusterAdmin(sending)
        await sending.create_topic("paid", queues=3)
        traffic = Traffic("orders", sending, reading)
        await traffic.run(group)
        await traffic.progress()
        async with TransactionalProducer(sending, "billing") as deciding:
            async with deciding.transaction() as transaction:
                await transaction.send("paid", "before", queue=0)
            planned = await admin.plan_growth(5)
            assert [shard.id for shard in planned] == [3, 4]
            growing = asyncio.create_task(grown(admin, 5))
            leader = (await admin.overview()).control_leader
            assert leader is not None
            await asyncio.to_thread(cluster.kill, leader)
            await traffic.progress()
            await asyncio.to_thread(cluster.start, leader)
            await growing
            await traffic.progress()
            await sending.spread_topic("orders")
            spread = await sending.spread_topic("paid")
            assert spread.queues == 5 and {route.shard for route in spread.routes} == set(range(5))
            async with deciding.transaction() as transaction:
                for queue in range(5):
                    await transaction.send("paid", "after", queue=queue)
            await traffic.progress()
            async with Consumer(reading, "paid", start="earliest") as consumer:
                found: list[tuple[int, str]] = []
                while len(found) < 6:
                    found += [(message.queue, message.text()) for message in await consumer.poll(10, timeout_ms=1_000)]
        assert sorted(found) == [(0, "after"), (0, "before"), *((queue, "after") for queue in range(1, 5))]
        await traffic.finish()
    info = {shard.id: shard for shard in cluster.status().shards}
    assert sorted(info) == list(range(5)) and all(len(info[id].replicas) == 3 for id in (3, 4))


async def test_a_cluster_that_has_grown_starts_again_and_a_new_shard_outlives_its_leader(cluster: LocalCluster) -> None:
    urls = urls_of(cluster)
    async with Client(urls, deadline_ms=60_000) as client:
        await grown(ClusterAdmin(client), 4)
        topic = await client.create_topic("t", queues=4)
        (queue,) = [route.first for route in topic.routes if route.shard == 3]
        async with Producer(client, "t") as producer:
            assert (await producer.send_and_wait("a", queue=queue)).offset == 0
            leader = next(shard.leader for shard in cluster.status().shards if shard.id == 3)
            assert leader is not None
            await asyncio.to_thread(cluster.kill, leader)
            assert (await producer.send_and_wait("b", queue=queue)).offset == 1
        await asyncio.to_thread(cluster.start, leader)
    await asyncio.to_thread(cluster.down)
    for node in cluster.plan.nodes:
        found = json.loads((cluster.directory / node.id / "data" / "node.json").read_text())
        assert (found["format"], found["shards"], found["grown"]) == (3, 3, 4), "earlier releases refuse it"
    await asyncio.to_thread(cluster.up)
    async with Client(urls, deadline_ms=60_000) as client, Consumer(client, "t", start="earliest") as consumer:
        assert [message.text() for _ in range(2) for message in await consumer.poll(1)] == ["a", "b"]
        await client.spread_topic("t")


async def test_a_cluster_does_not_grow_while_a_node_is_of_an_unknown_release(cluster: LocalCluster) -> None:
    """One that has not been heard since the control plane has its leader."""
    async with Client(urls_of(cluster)[:2], deadline_ms=60_000) as client:
        admin = ClusterAdmin(client)
        await asyncio.to_thread(cluster.down)
        for node in ("n1", "n2"):
            await asyncio.to_thread(cluster.start, node)

        async def refused() -> bool:
            try:
                await admin.grow_shards(4)
            except InvalidRequest as error:
                return "n3 may run a release" in error.message
            except LsmqError:
                return False
            raise AssertionError("n3 was not asked")

        await comes_true(refused, "n3 is waited for")
        await asyncio.to_thread(cluster.start, "n3")
        await grown(admin, 4)
