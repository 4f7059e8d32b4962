"""Clients of a real cluster whose leaders are killed and stopped under them: nothing lost, doubled or out of order."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lsmq import Client, Consumer, Message, Producer, Sent
from lsmq_lab.local_cluster import ClusterStatus, LocalCluster, found_plan

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster-client")]

QUEUES = 12
SMALL = {"segment_bytes": 4 << 20, "memtable_bytes": 8 << 20}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("cluster") / "c"
    cluster = LocalCluster.found(directory, found_plan(zookeeper="local", settings=SMALL))
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down(delete=True)


@pytest.fixture
def cluster(running: LocalCluster) -> LocalCluster:
    running.up()
    return running


def urls(cluster: LocalCluster) -> list[str]:
    return [node.url for node in cluster.plan.nodes]


def some_leader(status: ClusterStatus, number: int) -> str:
    leaders = sorted({shard.leader for shard in status.shards if shard.leader is not None})
    return leaders[number % len(leaders)]


class Traffic:
    """One producer and one consumer of a topic, each with a client of its own, until told to stop."""

    def __init__(self, topic: str, sending: Client, reading: Client) -> None:
        self.topic = topic
        self.receipts: list[Sent] = []
        self.messages: list[Message] = []
        self._sending = sending
        self._reading = reading
        self._progress = asyncio.Condition()
        self._stop = self._sent_all = False
        self._committed: dict[int, int] = {}

    async def run(self, group: asyncio.TaskGroup) -> None:
        await self._sending.create_topic(self.topic, queues=QUEUES)
        self._tasks = [group.create_task(self._produce()), group.create_task(self._consume())]

    async def _produce(self) -> None:
        async with Producer(self._sending, self.topic, linger_ms=1, batch_bytes=4000) as producer:
            while not self._stop:
                start = len(self.receipts)
                receipts = [await producer.send(f"{start + n}", queue=(start + n) % QUEUES) for n in range(60)]
                for receipt in receipts:
                    self.receipts.append(await receipt)
                async with self._progress:
                    self._progress.notify_all()
        self._sent_all = True
        assert (producer.stats.failed, producer.stats.lost_state) == (0, 0)

    async def _consume(self) -> None:
        async with Consumer(self._reading, self.topic, group="readers") as consumer:
            while not self._sent_all or len(self.messages) < len(self.receipts):
                self.messages += await consumer.poll(timeout_ms=100)
                await consumer.commit()
                committed = await self._reading.committed_offsets("readers", self.topic)
                assert all(committed[queue] >= offset for queue, offset in self._committed.items())
                assert committed == {queue: offset for queue, offset in consumer.positions.items() if offset}
                self._committed = committed
                async with self._progress:
                    self._progress.notify_all()

    async def progress(self) -> None:
        """Return once messages that are sent from now on are stored in every queue, and consumed."""
        stored, consumed = len(self.receipts), len(self.messages)
        async with self._progress:
            await self._progress.wait_for(
                lambda: len(self.receipts) >= stored + 300 and len(self.messages) >= consumed + 300
            )

    async def finish(self) -> None:
        """Stop, and check that what was acknowledged was read once, in order, and is where the receipt says."""
        self._stop = True
        await asyncio.gather(*self._tasks)
        found = {(message.queue, message.offset): message for message in self.messages}
        assert len(found) == len(self.messages) == len(self.receipts)
        for number, sent in enumerate(self.receipts):
            assert found[sent.queue, sent.offset].text() == f"{number}"
        for queue in range(QUEUES):
            mine = [message for message in self.messages if message.queue == queue]
            assert [message.offset for message in mine] == list(range(len(mine)))
            numbers = [int(message.text()) for message in mine]
            assert numbers == sorted(numbers)
        message = await self._reading.message(self.receipts[-1].id)
        assert message.text() == f"{len(self.receipts) - 1}"
        assert "readers" in await self._reading.groups()
        async with Consumer(self._reading, self.topic, group="readers") as consumer:
            assert await consumer.poll(timeout_ms=200) == []  # All of it is committed.


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
