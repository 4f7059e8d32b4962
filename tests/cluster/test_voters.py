"""Voters of real clusters that are replaced while messages come and go, and the old ones that come back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from lsmq import Client, ClusterAdmin, Consumer, Producer
from lsmq.admin import ClusterInfo
from lsmq.cli._root import root
from lsmq.errors import InvalidRequest, LsmqError
from lsmq_lab.local_cluster import LocalCluster
from support.clusters import running_cluster
from support.traffic import Traffic
from support.waiting import comes_true

pytestmark = pytest.mark.slow

SETTINGS = {"segment_bytes": 4 << 20, "memtable_bytes": 8 << 20}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three voters and a fourth node, which does not vote."""
    with running_cluster(__name__, tmp_path / "c", up=False, settings=SETTINGS) as cluster:
        cluster.add_node()
        for node in cluster.plan.nodes:
            cluster.start(node.id)
        cluster.wait_ready()
        yield cluster


async def seen(admin: ClusterAdmin) -> ClusterInfo | None:
    """What a node that answers knows; None while it knows nothing of a leader."""
    try:
        info = await admin.overview()
    except LsmqError:
        return None
    return info if info.control_leader is not None else None


async def voters(admin: ClusterAdmin) -> list[str]:
    info = await seen(admin)
    return [] if info is None else [node.id for node in info.nodes if node.voter]


async def knows(admin: ClusterAdmin, node: str) -> None:
    """Return once the node is heard."""

    async def heard() -> bool:
        info = await seen(admin)
        return info is not None and any(each.id == node and each.alive for each in info.nodes)

    await comes_true(heard, f"{node} is heard")


async def replaced(admin: ClusterAdmin, old: str, new: str) -> None:
    await knows(admin, new)
    await admin.replace_voter(old, new)

    async def done() -> bool:
        info = await seen(admin)
        return info is not None and info.voter_change is None and new in await voters(admin)

    await comes_true(done, f"{new} votes in the place of {old}")


def noted(cluster: LocalCluster, node: str) -> set[str]:
    """Who votes, as a node noted it last."""
    file = cluster.directory / node / "data" / "voters.json"
    return set(json.loads(file.read_text())["membership"]["voters"]) if file.exists() else set()


async def test_a_voter_that_burns_down_is_replaced_and_then_another_one_may_be_lost(cluster: LocalCluster) -> None:
    urls = [node.url for node in cluster.plan.nodes]
    async with Client(urls) as sending, Client(urls) as reading, Client(urls) as asking, asyncio.TaskGroup() as group:
        admin = ClusterAdmin(asking)
        traffic = Traffic("replaced", sending, reading)
        await traffic.run(group)
        await traffic.progress()
        await asyncio.to_thread(cluster.kill, "n1")
        await traffic.progress()
        await replaced(admin, "n1", "n4")
        assert await voters(admin) == ["n2", "n3", "n4"]
        await admin.drain("n1")  # Its replicas are made again at the newcomer.

        async def drained() -> bool:
            info = await seen(admin)
            return info is not None and not info.replicas_on("n1")

        await comes_true(drained, "nothing is held at n1")
        await asyncio.to_thread(cluster.kill, "n2")
        await traffic.progress()  # Of the first three only one is left.
        await asyncio.to_thread(cluster.start, "n2")
        await knows(admin, "n2")
        await traffic.progress()

        for node in ("n2", "n3", "n4"):  # By their journals, whatever their configuration says.
            await asyncio.to_thread(cluster.stop, node)
            await asyncio.to_thread(cluster.start, node)
            await knows(admin, node)
            await traffic.progress()
        assert await voters(admin) == ["n2", "n3", "n4"]

        await asyncio.to_thread(cluster.start, "n1")  # With its old disk, by which it votes.
        await knows(admin, "n1")
        await comes_true(lambda: noted(cluster, "n1") == {"n2", "n3", "n4"}, "n1 has learned that it votes no more")
        assert await voters(admin) == ["n2", "n3", "n4"]
        await asyncio.to_thread(cluster.kill, "n3")
        await traffic.progress()
        await asyncio.to_thread(cluster.start, "n3")
        await knows(admin, "n3")
        await admin.remove("n1")  # What was a voter may be removed as others are.
        await traffic.finish()


@pytest.mark.part(2)
async def test_a_cluster_outlives_all_of_its_first_voters_and_is_started_again_without_them(
    cluster: LocalCluster,
) -> None:
    for _ in range(2):
        cluster.start(cluster.add_node().id)
    urls = [node.url for node in cluster.plan.nodes]
    async with Client(urls) as client:
        admin = ClusterAdmin(client)
        await client.create_topic("orders", queues=4)
        async with Producer(client, "orders") as producer:
            await producer.send_many(f"{number}" for number in range(100))
        for old, new in (("n1", "n4"), ("n2", "n5"), ("n3", "n6")):
            await replaced(admin, old, new)
            await admin.drain(old)

        async def moved() -> bool:
            info = await seen(admin)
            return info is not None and not any(info.replicas_on(node) for node in ("n1", "n2", "n3"))

        await comes_true(moved, "the first three hold nothing")
        for old in ("n1", "n2", "n3"):
            await admin.remove(old)
    for node in cluster.plan.nodes:
        await asyncio.to_thread(cluster.stop, node.id)
    left = ("n4", "n5", "n6")  # Whose configuration names the first three as those who vote.
    await asyncio.gather(*(asyncio.to_thread(cluster.start, node) for node in left))
    async with Client([cluster.plan.node(node).url for node in left]) as client:
        admin = ClusterAdmin(client)
        for node in left:
            await knows(admin, node)
        assert await voters(admin) == list(left)
        async with Consumer(client, "orders", start="earliest") as consumer:
            found: list[int] = []

            async def all_found() -> bool:
                found.extend(int(message.text()) for message in await consumer.poll(100, timeout_ms=500))
                return len(found) >= 100

            await comes_true(all_found, "all messages are there")
        assert sorted(found) == list(range(100))
        await asyncio.to_thread(cluster.start, "n1")  # With a disk that says that it votes, and who else.
        await client.create_topic("later", queues=1)
        assert await voters(admin) == list(left)


async def test_what_cannot_be_is_refused_by_name_and_a_change_is_called_off(cluster: LocalCluster) -> None:
    cluster.add_node()
    urls = [cluster.plan.node(node).url for node in ("n2", "n3")]
    async with Client(urls) as client:
        admin = ClusterAdmin(client)
        await knows(admin, "n4")

        async def refused(old: str, new: str, reason: str) -> str:
            with pytest.raises(InvalidRequest) as error:
                await admin.replace_voter(old, new)
            assert error.value.details["reason"] == reason, error.value
            return error.value.message

        assert "n1, n2, n3" in await refused("n4", "n1", "replaced")
        assert "n2" in await refused("n1", "n2", "votes_already")
        assert "n5" in await refused("n1", "n5", "unknown_node")
        with pytest.raises(InvalidRequest, match="nothing is under way"):
            await admin.keep_voter("n1")
        await asyncio.to_thread(cluster.kill, "n4")

        async def away() -> bool:
            info = await seen(admin)
            return info is not None and any(node.id == "n4" and node.alive is False for node in info.nodes)

        await comes_true(away, "n4 is known to be away")
        assert "start it first" in await refused("n1", "n4", "node_away")

        await asyncio.to_thread(cluster.start, "n4")
        await knows(admin, "n4")
        await asyncio.to_thread(cluster.pause, "n4")  # It is still held alive for a moment, and will not be filled.
        first = await client.ask("POST", "/v1/cluster/voters/n1/replace", {"by": "n4"})
        again = await client.ask("POST", "/v1/cluster/voters/n1/replace", {"by": "n4"})
        assert again["version"] >= first["version"]
        assert "one change at a time" in await refused("n2", "n4", "change_under_way")
        info = await admin.overview()
        assert info.voter_change is not None
        assert (info.voter_change.old, info.voter_change.new, info.voter_change.step) == ("n1", "n4", "filling")
        await admin.keep_voter("n1")
        await asyncio.to_thread(cluster.resume, "n4")
        await knows(admin, "n4")
        info = await admin.overview()
        assert info.voter_change is None and await voters(admin) == ["n1", "n2", "n3"]

    def lsmq(*arguments: str) -> str:
        done = CliRunner().invoke(root, [*arguments, "--url", urls[0]])
        assert done.exit_code == 0, done.output
        return done.stdout

    def listed() -> dict[str, bool]:
        return {row["node"]: row["votes"] for row in json.loads(lsmq("voter", "list", "--json"))}

    assert await asyncio.to_thread(listed) == {"n1": True, "n2": True, "n3": True}
    await asyncio.to_thread(lsmq, "voter", "replace", "n1", "n4")
    assert await asyncio.to_thread(listed) == {"n2": True, "n3": True, "n4": True}
    assert "n4" in await asyncio.to_thread(lsmq, "voter", "list")
