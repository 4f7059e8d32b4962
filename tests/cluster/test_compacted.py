"""Compacted topics of a real cluster: replicas keep the same messages, whoever leads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from lsmq import Client, Consumer, Producer
from lsmq_lab.local_cluster import LocalCluster
from support.clusters import running_cluster
from support.waiting import comes_true

KEYS = [f"key-{number}" for number in range(30)]
SETTINGS = {"segment_bytes": 1 << 20, "memtable_bytes": 4 << 20, "retention_interval_ms": 100}


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("compacted") / "cluster"
    with running_cluster(__name__, directory, shards=1, settings=SETTINGS) as cluster:
        yield cluster


async def contents(client: Client, read_from: str) -> dict[str, str]:
    """By key, up to where the queues end now; empty while a key has two messages."""
    ends = {queue: latest for queue, _, latest in (await client.offsets("table")).rows() if latest}
    found: dict[str, str] = {}
    async with Consumer(client, "table", start="earliest", read_from=read_from) as consumer:  # type: ignore[arg-type]
        while any(consumer.positions.get(queue, 0) < end for queue, end in ends.items()):
            for message in await consumer.poll(timeout_ms=1_000):
                assert isinstance(message.key, str)
                if message.key in found:
                    return {}
                found[message.key] = message.text()
    return found


@pytest.mark.slow
def test_replicas_keep_the_same_last_messages_after_a_leader_is_killed(cluster: LocalCluster) -> None:
    async def run() -> None:
        async with Client([node.url for node in cluster.plan.nodes], deadline_ms=60_000) as client:
            await client.create_topic("table", queues=4, cleanup="compact")
            values: dict[str, str] = {}

            async def write(rounds: int) -> None:
                async with Producer(client, "table") as producer:
                    for _ in range(rounds):
                        for key in KEYS:
                            values[key] = f"{key} {len(values)} {int(values.get(key, '0').split()[-1]) + 1}"
                            await producer.send(values[key], key=key)
                    await producer.flush()

            async def settled(read_from: str) -> None:
                async def same() -> bool:
                    return await contents(client, read_from) == values

                await comes_true(same, f"the last messages are left, as read from {read_from}")

            await write(5)
            await settled("leader")
            await settled("follower")
            for key in KEYS[:3]:
                found = await client.latest("table", key)
                assert found is not None and found.text() == values[key]
            leader = (await client.topic("table")).routes[0].leader
            (victim,) = (node.id for node in cluster.plan.nodes if node.url == leader)
            cluster.kill(victim)
            await write(3)
            await settled("leader")
            cluster.start(victim)
            await write(1)
            await settled("follower")
            async with Producer(client, "table") as producer:
                await producer.send_and_wait(b"", key=KEYS[0], delete=True)
            assert await client.latest("table", KEYS[0]) is None

    asyncio.run(run())
