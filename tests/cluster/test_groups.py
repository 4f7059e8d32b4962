"""A group whose coordinator is killed: nobody notices but by a pause."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from lsmq import Client, Producer
from lsmq.errors import StaleGeneration
from lsmq.groups import Group, Heartbeat, Ranges, new_member_id
from lsmq.topics import FORWARD_HEADER
from lsmq_lab.local_cluster import LocalCluster
from support.clusters import believed, running_cluster
from support.waiting import comes_true

TOPIC = "t"
QUEUES = 90


class Member:
    """A consumer's membership: one heartbeat after the other, each held. Whatever it hears is written down."""

    def __init__(self, urls: list[str], name: str, session_ms: int) -> None:
        self.urls = urls
        self.beat = Heartbeat(new_member_id(), (TOPIC,), session_ms=session_ms, client=name)
        self.epochs: list[int] = []
        self.shares: list[Ranges] = []
        self.answers = 0

    async def run(self) -> None:
        async with Client(self.urls, request_timeout_ms=2_000) as client:
            group = Group(client, "g")
            wait_ms = 0
            while True:
                answer = await group.heartbeat(self.beat, wait_ms=wait_ms)
                wait_ms = answer.heartbeat_ms
                self.answers += 1
                self.epochs.append(answer.epoch)
                share = answer.assigned.get(TOPIC, ())
                if not self.shares or self.shares[-1] != share:
                    self.shares.append(share)
                self.beat = replace(self.beat, epoch=answer.epoch, version=answer.version, owned=answer.assigned)

    @property
    def owned(self) -> Ranges:
        return self.beat.owned.get(TOPIC, ())


async def tell(url: str | None, beat: Heartbeat) -> str:
    """Send a heartbeat to one node, and wait however long it takes; the code of the error it answers with."""
    document = {"member": beat.member, "topics": list(beat.topics), "epoch": beat.epoch, "version": beat.version}
    address = f"{url}/v1/groups/g/heartbeat"
    own = {FORWARD_HEADER: "refuse"}  # its own answer, and no other node's
    connector = aiohttp.TCPConnector(ssl=believed())
    async with (
        aiohttp.ClientSession(headers=own, connector=connector) as session,
        session.post(address, json=document) as response,
    ):
        return str((await response.json()).get("error", {}).get("code", "an answer"))


def queues_of(*members: Member) -> list[int]:
    return sorted(queue for member in members for part in member.owned for queue in part)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    small = {"segment_bytes": 1 << 20, "memtable_bytes": 4 << 20}
    with running_cluster(__name__, tmp_path / "cluster", settings=small) as cluster:
        yield cluster


@pytest.mark.slow
def test_a_killed_coordinator_costs_nobody_a_queue_and_no_generation(cluster: LocalCluster) -> None:
    asyncio.run(check(cluster))


async def check(cluster: LocalCluster) -> None:
    urls = [node.url for node in cluster.status().nodes]
    async with Client(urls) as client, asyncio.TaskGroup() as tasks:
        await client.create_topic(TOPIC, queues=QUEUES)
        async with Producer(client, TOPIC) as producer:
            for queue in range(QUEUES):
                await producer.send("x", queue=queue)
        members = [Member(urls, f"member {number}", 10_000) for number in range(3)]
        running = [tasks.create_task(member.run()) for member in members]
        group = Group(client, "g")

        async def stable(*some: Member) -> None:
            async def is_stable() -> bool:
                found = await group.describe() if all(member.answers for member in some) else None
                everything = queues_of(*some) == list(range(QUEUES))
                return bool(found and found.state == "stable" and len(found.members) == len(some) and everything)

            await comes_true(is_stable, f"{len(some)} members share all queues")

        await stable(*members)
        shares, generation = [member.owned for member in members], members[0].beat.epoch
        for member in members:
            await group.fence(TOPIC, member.owned, member=member.beat.member, epoch=member.beat.epoch)
        answers = [member.answers for member in members]

        before = await group.coordinator()
        status = cluster.status()
        victim = next(node.id for node in status.nodes if node.url == before.leader)
        await asyncio.to_thread(cluster.kill, victim)
        await stable(*members)
        after = await group.coordinator()
        assert after.leader != before.leader and after.epoch > before.epoch
        assert all(member.answers > count for member, count in zip(members, answers, strict=True))
        assert [member.owned for member in members] == shares
        assert [member.shares[-1] for member in members] == shares
        assert {member.beat.epoch for member in members} == {generation}, "no rebalance for a coordinator"

        late = Member(urls, "late", 10_000)
        running.append(tasks.create_task(late.run()))
        await stable(*members, late)
        assert late.beat.epoch > generation
        await group.fence(TOPIC, late.owned, member=late.beat.member, epoch=late.beat.epoch)
        with pytest.raises(StaleGeneration):
            queue = late.owned[0][0]
            await group.commit(TOPIC, {queue: 1}, member=members[0].beat.member, epoch=generation)
        await group.commit(TOPIC, {queue: 1}, member=late.beat.member, epoch=late.beat.epoch)

        # One that is stopped is replaced as well, and says nothing when it wakes.
        await asyncio.to_thread(cluster.start, victim)
        asleep = await group.coordinator()
        node = next(node.id for node in cluster.status().nodes if node.url == asleep.leader)
        everybody = (*members, late)
        shares, answers = [member.owned for member in everybody], [member.answers for member in everybody]
        await asyncio.to_thread(cluster.pause, node)
        asked = asyncio.create_task(tell(asleep.leader, late.beat))
        await stable(*everybody)
        assert all(member.answers > count for member, count in zip(everybody, answers, strict=True))
        assert [member.owned for member in everybody] == shares
        await asyncio.to_thread(cluster.resume, node)
        assert await asked in ("not_leader", "unavailable")
        for member in everybody:
            assert member.epochs == sorted(member.epochs), "a generation went back"
        for task in running:
            task.cancel()
