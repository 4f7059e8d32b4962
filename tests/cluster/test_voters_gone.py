"""Voters of real clusters that are gone, and whom others replace without being told; or nobody does, and says why."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from click.testing import CliRunner

from lsmq import Client, ClusterAdmin
from lsmq.admin import AwayVoter
from lsmq.cli._root import root
from lsmq.errors import LsmqError
from lsmq_lab.local_cluster import LocalCluster
from support.clusters import believed, running_cluster
from support.traffic import Traffic
from support.waiting import comes_true

from .test_voters import knows, noted, seen, voters

pytestmark = pytest.mark.slow

GONE_S = 3.0
SETTINGS = {
    "segment_bytes": 4 << 20,
    "memtable_bytes": 8 << 20,
    "cluster.replace_voter_after_ms": int(1000 * GONE_S),
}


@contextmanager
def cluster_of(nodes: int, directory: Path) -> Iterator[LocalCluster]:
    """The first three vote."""
    with running_cluster(__name__, directory / "c", up=False, settings=SETTINGS) as cluster:
        while len(cluster.plan.nodes) < nodes:
            cluster.add_node()
        for node in cluster.plan.nodes:
            cluster.start(node.id)
        cluster.wait_ready()
        yield cluster


async def planned(admin: ClusterAdmin) -> tuple[AwayVoter, ...]:
    try:
        return (await admin.plan()).voters
    except LsmqError:
        return ()


async def come_to_vote(admin: ClusterAdmin, *nodes: str) -> None:
    async def voting() -> bool:
        info = await seen(admin)
        return info is not None and info.voter_change is None and await voters(admin) == list(nodes)

    await comes_true(voting, f"{', '.join(nodes)} vote")


async def test_a_voter_that_is_killed_is_replaced_and_when_it_comes_back_it_replaces_the_next_one(
    tmp_path: Path,
) -> None:
    with cluster_of(4, tmp_path) as cluster:
        urls = [node.url for node in cluster.plan.nodes]
        async with (
            Client(urls) as sending,
            Client(urls) as reading,
            Client(urls) as asking,
            asyncio.TaskGroup() as group,
        ):
            admin, traffic = ClusterAdmin(asking), Traffic("gone", sending, reading)
            await traffic.run(group)
            await traffic.progress()
            await asyncio.to_thread(cluster.kill, "n1")

            async def foreseen() -> bool:
                return [(each.old, each.new, each.waits_for) for each in await planned(admin)] == [("n1", "n4", None)]

            await comes_true(foreseen, "the plan says who is to vote")
            await come_to_vote(admin, "n2", "n3", "n4")
            assert not await planned(admin)
            await traffic.progress()

            await asyncio.to_thread(cluster.start, "n1")  # With its old disk, by which it votes.
            await knows(admin, "n1")
            await comes_true(lambda: noted(cluster, "n1") == {"n2", "n3", "n4"}, "n1 knows that it votes no more")
            assert await voters(admin) == ["n2", "n3", "n4"]
            await traffic.progress()

            await asyncio.to_thread(cluster.kill, "n2")
            await come_to_vote(admin, "n1", "n3", "n4")
            await asyncio.to_thread(cluster.start, "n2")
            await knows(admin, "n2")
            await traffic.finish()
        said = "".join(cluster.process(node).log.read_text() for node in ("n1", "n2", "n3", "n4"))
        assert "voter n1 is gone" in said and "voter n2 is gone" in said


async def test_where_nobody_can_take_its_place_the_plan_and_the_log_say_why_until_a_node_is_added(
    tmp_path: Path,
) -> None:
    with cluster_of(3, tmp_path) as cluster:
        urls = [node.url for node in cluster.plan.nodes]
        async with Client(urls) as client:
            admin = ClusterAdmin(client)
            await asyncio.to_thread(cluster.kill, "n3")

            async def stuck() -> bool:
                found = await planned(admin)
                return bool(found) and found[0].in_s == 0 and "start one" in (found[0].waits_for or "")

            await comes_true(stuck, "it is said why nobody takes the vote of n3")

            def shown() -> str:
                done = CliRunner().invoke(root, ["shard", "plan", "--url", urls[0]])
                assert done.exit_code == 0, done.output
                return done.stdout

            assert "voter n3 is away; another node takes its vote now, but: no node" in await asyncio.to_thread(shown)
            assert await voters(admin) == ["n1", "n2", "n3"]
            node = await asyncio.to_thread(cluster.add_node)
            await asyncio.to_thread(cluster.start, node.id)
            await come_to_vote(admin, "n1", "n2", "n4")
        assert "nobody takes its place" in "".join(cluster.process(node).log.read_text() for node in ("n1", "n2"))


async def test_where_a_majority_of_the_voters_is_paused_nobody_is_replaced_and_all_vote_as_before(
    tmp_path: Path,
) -> None:
    with cluster_of(5, tmp_path) as cluster:
        async with Client([cluster.plan.node("n4").url]) as outside, Client([cluster.plan.node("n1").url]) as client:
            admin = ClusterAdmin(outside)
            for node in ("n2", "n3"):
                await asyncio.to_thread(cluster.pause, node)

            def long_unled() -> bool:
                with urlopen(f"{cluster.plan.node('n4').url}/metrics", context=believed()) as answer:
                    found = re.search(r"^lsmq_node_unleased_seconds (\S+)", answer.read().decode(), re.MULTILINE)
                return found is not None and float(found[1]) > 2 * GONE_S

            await comes_true(lambda: asyncio.to_thread(long_unled), "nobody led the control plane for twice as long")
            for node in ("n2", "n3"):
                await asyncio.to_thread(cluster.resume, node)
            await knows(admin, "n2")
            await knows(admin, "n3")
            await client.create_topic("afterwards", queues=1)
            assert await voters(admin) == ["n1", "n2", "n3"]
            assert not any(noted(cluster, node.id) for node in cluster.plan.nodes), "who votes was never changed"
