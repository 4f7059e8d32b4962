"""Transactions on a cluster of processes, whose leaders are killed and stopped at every step."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from lsmq import Client, Consumer
from lsmq.group_values import new_member_id
from lsmq.groups import Group
from lsmq.producer_groups import ProducerGroup
from lsmq_lab.local_cluster import LocalCluster
from support.clusters import running_cluster
from support.waiting import comes_true

TOPIC, QUEUES = "t", 3
GROUP = "g"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    small = {"segment_bytes": 1 << 20, "memtable_bytes": 4 << 20}
    with running_cluster(__name__, tmp_path / "cluster", settings=small) as cluster:
        yield cluster


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """``played`` ends what never comes true."""
    while True:
        if await condition():
            return
        await asyncio.sleep(0.05)


class Work:
    """One producer's transactions, a message for each shard in each."""

    def __init__(self, cluster: LocalCluster, client: Client) -> None:
        self.cluster = cluster
        self.client = client
        self.group = ProducerGroup(client, GROUP)
        self.member = new_member_id()
        self.number = 0
        self.committed: list[str] = []

    async def join(self) -> None:
        await self.group.heartbeat(self.member, join=True, session_ms=300_000)

    async def begin(self) -> str:
        self.number += 1
        messages = [{"topic": TOPIC, "queue": queue, "body": f"{self.number}"} for queue in range(QUEUES)]
        found = await self.group.begin(self.member, self.number, messages, check_after_ms=3_600_000)
        return found.id

    async def commit(self, id: str) -> None:
        await self.group.commit(id, member=self.member)
        self.committed.append(id.rpartition("-")[2])

    async def read(self) -> dict[int, list[str]]:
        """All that is there now, by queue."""
        latest = (await self.client.offsets(TOPIC)).latest
        found: dict[int, list[str]] = {queue: [] for queue in range(QUEUES)}
        async with Consumer(self.client, TOPIC, queues=range(QUEUES), start="earliest") as consumer:
            while any(len(found[queue]) < count for queue, count in enumerate(latest)):
                for message in await consumer.poll(1_000, timeout_ms=2_000):
                    found[message.queue].append(message.text())
        return found

    async def check(self) -> None:
        """Each shard has what was committed, once and in order, and nothing else."""
        for number in self.committed:
            await self.delivered(f"{self.member}-{number}")
        assert await self.read() == dict.fromkeys(range(QUEUES), self.committed)

    async def delivered(self, id: str) -> None:
        async def is_delivered() -> bool:
            found = await self.group.transaction(id)
            assert found.state == "committed"
            return found.delivered

        await until(is_delivered)

    async def leader(self, shard: int) -> str:
        async def is_known() -> bool:
            return self.cluster.status().shards[shard].leader is not None

        await until(is_known)
        return str(self.cluster.status().shards[shard].leader)

    async def coordinator(self) -> tuple[int, str]:
        shard = (await Group(self.client, GROUP).coordinator()).shard
        return shard, await self.leader(shard)

    async def without(self, node: str, work: Callable[[], Awaitable[None]]) -> None:
        """Kill a node, do something, and have it back and in sync."""
        await asyncio.to_thread(self.cluster.kill, node)
        await work()
        await asyncio.to_thread(self.cluster.start, node)
        await self.in_sync()

    async def in_sync(self) -> None:
        async def are() -> bool:
            return all(set(shard.in_sync) == set(shard.replicas) for shard in self.cluster.status().shards)

        await until(are)


def played(cluster: LocalCluster, test: Callable[[Work], Awaitable[None]]) -> None:
    async def work() -> None:
        urls = [node.url for node in cluster.status().nodes]
        async with Client(urls, deadline_ms=60_000, request_timeout_ms=3_000) as client, asyncio.timeout(180):
            await client.create_topic(TOPIC, queues=QUEUES)
            await test(Work(cluster, client))

    asyncio.run(work())


@pytest.mark.slow
def test_the_coordinator_is_killed_between_any_two_steps(cluster: LocalCluster) -> None:
    async def test(work: Work) -> None:
        await work.join()
        _, node = await work.coordinator()
        ids: list[str] = []

        async def begin() -> None:
            ids.append(await work.begin())

        await work.without(node, begin)
        (id,) = ids
        _, node = await work.coordinator()

        async def add() -> None:
            more = [{"topic": TOPIC, "queue": queue, "body": "more"} for queue in range(QUEUES)]
            assert (await work.group.add(id, 1, more)).parts == 2
            assert await work.read() == {queue: [] for queue in range(QUEUES)}

        await work.without(node, add)
        _, node = await work.coordinator()

        async def commit() -> None:
            await work.group.commit(id, member=work.member)

        await work.without(node, commit)
        other = await work.begin()
        _, node = await work.coordinator()
        await work.group.commit(other, member=work.member)

        async def delivered() -> None:
            for each in (id, other):
                await work.delivered(each)

        await work.without(node, delivered)
        assert await work.read() == {queue: ["1", "more", "2"] for queue in range(QUEUES)}

    played(cluster, test)


@pytest.mark.slow
def test_leaders_are_killed_and_stopped_while_deliveries_are_under_way(cluster: LocalCluster) -> None:
    async def test(work: Work) -> None:
        await work.join()
        shard, node = await work.coordinator()
        victims = [await work.leader(other) for other in range(QUEUES) if other != shard] + [node]

        async def some(count: int) -> None:
            for _ in range(count):
                await work.commit(await work.begin())

        async def more() -> None:
            enough = len(work.committed) + 2
            await comes_true(lambda: len(work.committed) >= enough, "transactions are committed")

        for victim in victims:
            busy = asyncio.create_task(some(40))
            await more()
            await work.without(victim, lambda: asyncio.wait_for(busy, 60))  # noqa: B023
        await work.check()

        # The coordinator is stopped with deliveries on its way; another goes on; it wakes.
        _, node = await work.coordinator()
        busy = asyncio.create_task(some(40))
        await more()
        await asyncio.to_thread(work.cluster.pause, node)
        await busy
        await asyncio.to_thread(work.cluster.resume, node)
        await some(5)
        await work.in_sync()
        await work.check()

    played(cluster, test)
