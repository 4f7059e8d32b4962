"""A real cluster that goes from the release before to this one, and back, node by node, while messages come and go.

The release before is the tree that wrote the newest data of ``fixtures``, as the history of this repository has it.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import pytest

from lsmq import Client, ClusterAdmin, Consumer, DelayedMessages, Producer, TransactionalProducer, WorkQueue
from lsmq.errors import InvalidRequest, LsmqError
from lsmq_lab.local_cluster import LocalCluster
from support.clusters import running_cluster
from support.traffic import Traffic
from support.waiting import PATIENCE_S, comes_true, eventually

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PACKAGES = ("client", "coordinator", "node", "lab")
SETTINGS = {"segment_bytes": 4 << 20, "memtable_bytes": 8 << 20}
#: Otherwise than nodes of this release are started here, which are forked from an interpreter that has imported it.
_RUN = ("-m", "lsmq.__main__")


def _git(*arguments: str) -> bytes:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"this copy of the repository has no history: {done.stderr.decode().strip()}")
    return done.stdout


@pytest.fixture(scope="module")
def release_before(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where Python finds it, as ``PYTHONPATH`` says it."""
    newest = max((ROOT / "tests" / "fixtures").glob("data-*.tar.xz"), key=lambda path: int(path.name[5:-7]))
    written = _git("log", "--diff-filter=A", "--format=%H", "--", str(newest.relative_to(ROOT))).decode().split()
    if not written:
        pytest.skip("the history of this copy of the repository does not go back to the release before")
    directory = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=BytesIO(_git("archive", written[-1], *PACKAGES))) as packed:
        packed.extractall(directory, filter="data")
    return os.pathsep.join(str(directory / package) for package in PACKAGES)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with running_cluster(__name__, tmp_path / "c", up=False, settings=SETTINGS) as cluster:
        yield cluster


@pytest.fixture
def start_before(cluster: LocalCluster, release_before: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def start(node: str) -> None:
        with monkeypatch.context() as patch:
            patch.setenv("PYTHONPATH", release_before)
            cluster.start(node, program=_RUN)

    return start


def all_in_sync(cluster: LocalCluster) -> None:
    cluster.wait_ready()
    eventually(lambda: all(len(shard.in_sync) == 3 for shard in cluster.status().shards), "all replicas are in sync")


@pytest.mark.part(1)
async def test_nodes_go_to_this_release_and_back_while_messages_come_and_go(
    cluster: LocalCluster, release_before: str, start_before: Callable[[str], None]
) -> None:
    nodes, urls = [node.id for node in cluster.plan.nodes], [node.url for node in cluster.plan.nodes]
    for node in nodes:
        await asyncio.to_thread(start_before, node)
    await asyncio.to_thread(all_in_sync, cluster)
    async with Client(urls) as sending, Client(urls) as reading, asyncio.TaskGroup() as group:
        traffic = Traffic("rolled", sending, reading)
        await traffic.run(group)
        await traffic.progress()
        for step, start in enumerate((cluster.start, start_before, cluster.start)):
            await leave(sending, step)
            for node in nodes:
                await asyncio.to_thread(cluster.stop, node)
                await traffic.progress()  # On two nodes, of the same release or not.
                await asyncio.to_thread(start, node)
                await asyncio.to_thread(all_in_sync, cluster)
                await traffic.progress()
            await find(sending, step)
        await traffic.finish()
    for node in nodes:
        assert '"level": "critical"' not in cluster.process(node).log.read_text()


@pytest.mark.part(2)
async def test_no_voter_is_replaced_while_one_of_the_release_before_votes_and_then_none_of_it_votes(
    cluster: LocalCluster, release_before: str, start_before: Callable[[str], None]
) -> None:
    cluster.add_node()
    for node, start in (("n1", cluster.start), ("n2", cluster.start), ("n3", start_before), ("n4", cluster.start)):
        await asyncio.to_thread(start, node)
    await asyncio.to_thread(all_in_sync, cluster)
    async with Client([cluster.plan.node(node).url for node in ("n1", "n2", "n4")]) as client:
        admin = ClusterAdmin(client)

        async def refused() -> str:
            """Of a leader of the release before, by no reason that it would give a name."""
            try:
                await admin.replace_voter("n3", "n4")
            except InvalidRequest as error:
                return error.message
            raise AssertionError("a voter of the release before would not follow that")

        assert "upgrade all voters" in (said := await refused()) or "there is no command" in said
        await asyncio.to_thread(cluster.kill, "n3")

        async def replaced() -> bool:
            try:
                info = await admin.overview()
                if info.voter_change is None and not any(node.id == "n4" and node.voter for node in info.nodes):
                    await admin.replace_voter("n3", "n4")
                return info.voter_change is None and any(node.id == "n4" and node.voter for node in info.nodes)
            except LsmqError:
                return False

        await comes_true(replaced, "n4 votes in the place of n3")
        await asyncio.to_thread(start_before, "n3")  # It would vote by its configuration; nobody talks to it.
        await asyncio.to_thread(cluster.kill, "n1")
        await client.create_topic("afterwards", queues=1)
        await asyncio.to_thread(cluster.start, "n1")


@pytest.mark.part(2)
async def test_shards_do_not_come_while_a_node_of_the_release_before_runs(
    cluster: LocalCluster, release_before: str, start_before: Callable[[str], None]
) -> None:
    for node, start in (("n1", cluster.start), ("n2", cluster.start), ("n3", start_before)):
        await asyncio.to_thread(start, node)
    await asyncio.to_thread(all_in_sync, cluster)
    async with Client([cluster.plan.node(node).url for node in ("n1", "n2")], deadline_ms=60_000) as client:
        admin = ClusterAdmin(client)
        try:
            await admin.grow_shards(4)
            raise AssertionError("n3 would make something else of what follows")
        except InvalidRequest as error:
            assert "n3 may run a release" in error.message
        except LsmqError as error:
            assert "did not say its growth" in error.message  # It leads the control plane.
        await asyncio.to_thread(cluster.stop, "n3")
        await asyncio.to_thread(cluster.start, "n3")

        async def grown() -> bool:
            try:
                await admin.grow_shards(4)
            except LsmqError:
                return False
            return True

        await comes_true(grown, "all nodes know of it")
        await client.create_topic("all", queues=4)
        await asyncio.to_thread(cluster.stop, "n3")
        with pytest.raises(Exception, match=r"(?s)n3"):
            await asyncio.to_thread(start_before, "n3")
            await asyncio.to_thread(cluster.wait_ready)
        assert "upgrade lsmq" in cluster.process("n3").log.read_text()


def _topics(step: int) -> tuple[str, str, str]:
    return f"names-{step}", f"work-{step}", f"later-{step}"


async def leave(client: Client, step: int) -> None:
    """Something of each kind, under the release that runs now: all of it is half done."""
    names, work, later = _topics(step)
    await client.create_topic(names, queues="named")
    for topic in (work, later):
        await client.create_topic(topic, queues=3)
    for topic, options in ((names, {"queue": "user/1"}), (later, {"delay_ms": 86_400_000})):
        async with Producer(client, topic) as producer:
            await producer.send_and_wait(topic, **options)
    async with Producer(client, work) as producer:
        await producer.send_many((f"{number}" for number in range(6)), queue=0)
    async with TransactionalProducer(client, f"billing-{step}") as deciding, deciding.transaction() as transaction:
        await transaction.send(work, "decided", queue=0)
        await transaction.send(later, "decided", queue=0)
    assert await take(client, work, 3) == ["0", "1", "2"]


async def take(client: Client, topic: str, count: int) -> list[str]:
    """So many tasks of a work queue, done."""
    found = []
    async with WorkQueue(client, topic, "workers") as workers:
        while len(found) < count:
            for task in await workers.poll(count - len(found), timeout_ms=1_000):
                await task.ack()
                found.append(task.text())
    return found


async def find(client: Client, step: int) -> None:
    """All of it, under another release: nothing is lost, nothing comes twice."""
    names, work, later = _topics(step)
    async with Consumer(client, names, queues=["user/1"], start="earliest") as consumer:
        assert [message.text() for message in await consumer.poll(10, timeout_ms=PATIENCE_S * 1000)] == [names]
    assert await take(client, work, 4) == ["3", "4", "5", "decided"]
    delayed = DelayedMessages(client, later)
    (waiting,) = [one async for one in delayed.read()]
    await delayed.reschedule(waiting.id, delay_ms=1)
    found: set[str] = set()
    async with Consumer(client, later, start="earliest") as consumer:
        while len(found) < 2:
            found |= {message.text() for message in await consumer.poll(10, timeout_ms=1_000)}
    assert found == {"decided", later}
