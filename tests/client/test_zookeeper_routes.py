"""Routes from a real ZooKeeper, published by the cluster's own code: found, followed, kept, and done without."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lsmq import Client, Consumer, InvalidRequest, Producer, Unavailable, ZooKeeperNotInstalled, sync
from lsmq._route_documents import RouteDocuments
from lsmq._tls import ClientTls
from lsmq._zookeeper import ZooKeeperRoutes
from lsmq_coordinator.commands import apply
from lsmq_coordinator.state import EMPTY
from lsmq_coordinator.zookeeper import ZooKeeperConfig, ZooKeeperRegistry
from support.node_process import NodeProcess
from support.played_cluster import PlayedCluster
from support.python_process import run_python
from support.waiting import comes_true, eventually
from support.zookeeper_server import ZooKeeperEnsemble

TOPIC = "flights"
NEVER_S = 10_000.0


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    started = ZooKeeperEnsemble(tmp_path_factory.mktemp("zookeeper")).start()
    yield started
    started.stop()


class Published:
    """The agreed state of a cluster whose nodes are the doors of a played one, published as the cluster does."""

    def __init__(self, hosts: str, name: str, cluster: PlayedCluster) -> None:
        self.hosts = hosts
        self.name = name
        self.played = cluster
        self.state = EMPTY
        ids = [f"n{number}" for number in range(len(cluster.doors))]
        self._run(
            op="bootstrap",
            settings={"cluster": name, "shards": 1, "replicas": len(ids), "min_in_sync": 1, "segment_bytes": 1 << 20},
            nodes={
                id: {"url": door.url, "internal_url": f"{door.url}0", "voter": True}
                for id, door in zip(ids, cluster.doors, strict=True)
            },
        )
        for id in ids:  # Twice: that it started, and that its disk remembers that.
            for known in (0, 1):
                disk = {"incarnation": 1, "starts": [[1, 1]], "registered": known, "durable_lsn": 0}
                self._run(op="register_start", shard=0, node=id, life="", went_back=False, **disk)
        config = ZooKeeperConfig(hosts, name, "n0", cluster.urls[0], refresh_s=0.2, retry_s=0.1, call_timeout_s=1.0)
        self.registry = ZooKeeperRegistry(config)
        self.registry.start()

    def _run(self, **command: Any) -> None:
        self.state, result = apply(self.state, {"request_id": f"{self.state.version}", **command})
        assert result["ok"], result

    async def publish(self) -> None:
        """Return once ZooKeeper says what is agreed."""
        self.registry.publish(self.state)
        await asyncio.to_thread(self.wait)

    def wait(self) -> None:
        version = self.state.version
        eventually(lambda: self.registry.status.published_version >= version, f"version {version} is published")

    async def topic(self, queues: int = 3) -> None:
        """A topic, made at the real node and told of in the documents under the same id."""
        async with Client(self.played.upstream) as client:
            made = await client.create_topic(TOPIC, queues=queues)
        self._run(op="create_topic", name=TOPIC, queues=queues, created_ms=made.created_ms)
        assert self.state.topics[TOPIC].id == made.id
        await self.publish()

    def elect(self, leader: int) -> None:
        """Agreed, and not published yet. The nodes do not tell of it themselves."""
        while self.state.shards[0].leader != f"n{leader}":
            self._run(op="elect", shard=0, candidate=f"n{leader}", expected_epoch=self.state.shards[0].epoch)
        self.played.leaders[0] = (leader, self.state.shards[0].epoch)

    def client(self, **options: Any) -> Client:
        return Client(zookeeper=self.hosts, cluster=self.name, **options)


@pytest.fixture
def published(
    ensemble: ZooKeeperEnsemble, node: NodeProcess, topic_name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[[PlayedCluster], Awaitable[Published]]]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made: list[Published] = []

    async def publish(cluster: PlayedCluster) -> Published:
        made.append(Published(ensemble.hosts, topic_name[:60], cluster))
        made[-1].elect(0)
        await made[-1].topic()
        return made[-1]

    yield publish
    ensemble.resume()
    for one in made:
        one.registry.stop()


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    ours = ("lsmq", "Thread-", "zk", "kazoo")
    left = {thread for thread in threading.enumerate() if thread.name.startswith(ours)} - before
    eventually(lambda: not any(thread.is_alive() for thread in left if "drain" not in thread.name), f"{left} end")


def the_copy(directory: Path) -> Path:
    """The file in which routes are kept, once it is there."""
    eventually(lambda: bool(list(directory.glob("routes-*.json"))), "routes are kept on disk")
    (copy,) = directory.glob("routes-*.json")
    return copy


Publish = Callable[[PlayedCluster], Awaitable[Published]]


async def test_zookeeper_alone_is_enough(node: NodeProcess, published: Publish) -> None:
    async with PlayedCluster(node.url) as cluster:
        agreed = await published(cluster)
        async with agreed.client() as client:
            assert [topic.name for topic in await client.topics()] == [TOPIC]
            assert client.urls == cluster.urls
            async with Producer(client, TOPIC) as producer:
                await producer.send_and_wait("x")
            async with Consumer(client, TOPIC) as consumer:
                assert [message.body for message in await consumer.poll()] == [b"x"]


async def test_a_refusal_makes_the_client_read_again_at_once(node: NodeProcess, published: Publish) -> None:
    """Nodes that know nothing themselves would never tell: only ZooKeeper names the new leader."""
    async with PlayedCluster(node.url) as cluster:
        agreed = await published(cluster)
        async with agreed.client(refresh_s=NEVER_S) as client, Producer(client, TOPIC) as producer:
            await producer.send_and_wait("one")
            for leader in (1, 2, 0):
                agreed.elect(leader)
                second = await producer.send("two")
                await cluster.doors[(leader - 1) % 3].asked("batches", 1)
                await agreed.publish()
                await second
                assert cluster.doors[leader].requests["batches"] >= 1
        async with Client(node.url) as direct:
            assert sum((await direct.offsets(TOPIC)).latest) == 4


async def test_an_idle_consumer_follows_by_the_timer(node: NodeProcess, published: Publish) -> None:
    async with PlayedCluster(node.url) as cluster:
        agreed = await published(cluster)
        async with (
            agreed.client(refresh_s=0.1) as client,
            Consumer(client, TOPIC, wait_ms=60_000, start="earliest") as consumer,
            Client(node.url) as direct,
            Producer(direct, TOPIC) as producer,
        ):
            for turn, leader in enumerate((1, 2)):
                await cluster.doors[(leader - 1) % 3].asked("fetch", 1)
                agreed.elect(leader)
                await agreed.publish()
                await cluster.doors[leader].asked("fetch", 1)
                await producer.send_and_wait(f"{turn}")
                assert [message.body for message in await consumer.poll()] == [f"{turn}".encode()]


async def test_without_zookeeper_the_copy_on_disk_is_a_start(
    ensemble: ZooKeeperEnsemble, node: NodeProcess, published: Publish, tmp_path: Path
) -> None:
    async with PlayedCluster(node.url) as cluster:
        agreed = await published(cluster)
        async with agreed.client(cache_dir=tmp_path / "copies") as client:
            await client.topics()
            async with Producer(client, TOPIC) as producer:
                await producer.send_and_wait("one")
                copy = await asyncio.to_thread(the_copy, tmp_path / "copies")
                await asyncio.to_thread(eventually, lambda: TOPIC in copy.read_text(), "the topic's routes are kept")
        assert json.loads(copy.read_bytes())["cluster"]["cluster"] == agreed.name
        ensemble.pause()
        async with agreed.client(cache_dir=tmp_path / "copies") as client, Producer(client, TOPIC) as producer:
            await producer.send_and_wait("two")
            agreed.elect(1)
            cluster.elect(0, 1)  # Nodes tell of it without ZooKeeper.
            await producer.send_and_wait("three")
        assert cluster.doors[1].requests["batches"] == 1
        async with agreed.client(cache_dir="", deadline_ms=300) as client:
            with pytest.raises(Unavailable, match=f"no node is known: ZooKeeper at {agreed.hosts} has not answered"):
                await client.topics()
        copy.write_text("{")
        async with agreed.client(cache_dir=tmp_path / "copies", deadline_ms=1500) as client:
            with pytest.raises(Unavailable, match="no copy of its routes at"):
                await client.topics()


async def test_what_zookeeper_says_wins_over_the_copy(
    ensemble: ZooKeeperEnsemble, node: NodeProcess, published: Publish, tmp_path: Path
) -> None:
    """As after a cluster was founded anew: the copy has later versions and epochs, of nodes that are gone."""
    async with PlayedCluster(node.url) as cluster:
        agreed = await published(cluster)
        async with agreed.client(cache_dir=tmp_path) as client:
            await client.topics()
            copy = await asyncio.to_thread(the_copy, tmp_path)
        fields = json.loads(copy.read_bytes())
        fields["cluster"]["version"] += 1000
        for shard in fields["cluster"]["shards"].values():
            shard["epoch"] += 1000
        for entry in fields["cluster"]["nodes"].values():
            entry["url"] = "http://127.0.0.1:9"
        copy.write_text(json.dumps(fields))
        ensemble.pause()
        async with agreed.client(cache_dir=tmp_path) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.5):
                    await client.topics()
            ensemble.resume()
            async with Producer(client, TOPIC) as producer:
                assert (await producer.send_and_wait("x")).offset == 0


async def test_while_zookeeper_is_away_work_goes_on_and_it_is_followed_when_it_returns(
    ensemble: ZooKeeperEnsemble, node: NodeProcess, published: Publish
) -> None:
    async with PlayedCluster(node.url) as cluster:
        agreed = await published(cluster)
        async with agreed.client(refresh_s=0.1) as client, Producer(client, TOPIC) as producer:
            await producer.send_and_wait("one")
            for server in ensemble.servers:
                await asyncio.to_thread(server.stop, signal.SIGKILL)
            agreed.elect(1)
            cluster.elect(0, 1)
            await producer.send_and_wait("two")
            for server in ensemble.servers:
                await asyncio.to_thread(server.start)
                await asyncio.to_thread(server.wait_ready)
            agreed.elect(0)
            agreed.elect(2)
            await agreed.publish()
            await producer.send_and_wait("three")
            assert cluster.doors[2].requests["batches"] == 1


async def test_a_cluster_that_is_not_there_is_named(ensemble: ZooKeeperEnsemble) -> None:
    async with Client(zookeeper=ensemble.hosts, cluster="absent", cache_dir="", deadline_ms=3000) as client:
        with pytest.raises(Unavailable, match="there is no /lsmq/absent/cluster; is the name of the cluster right"):
            await client.topics()


async def test_the_blocking_face_the_command_and_the_environment_take_zookeeper(
    node: NodeProcess, published: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with PlayedCluster(node.url) as cluster:
        agreed = await published(cluster)

        def blocking() -> None:
            with sync.Client(zookeeper=agreed.hosts, cluster=agreed.name) as client:
                with sync.Producer(client, TOPIC) as producer:
                    producer.send("x")
                assert client.urls == cluster.urls

        await asyncio.to_thread(blocking)
        monkeypatch.delenv("LSMQ_URL", raising=False)
        monkeypatch.setenv("LSMQ_ZOOKEEPER", agreed.hosts)
        monkeypatch.setenv("LSMQ_CLUSTER", agreed.name)
        async with Client() as client:
            assert [topic.name for topic in await client.topics()] == [TOPIC]
        async with Client("http://127.0.0.1:9", deadline_ms=100) as client:
            assert client.urls == ["http://127.0.0.1:9"]  # What is given wins over the environment.
        for arguments, environment in (
            (["--zookeeper", agreed.hosts, "--cluster", agreed.name], {}),
            ([], {"LSMQ_ZOOKEEPER": agreed.hosts, "LSMQ_CLUSTER": agreed.name}),
        ):
            inherited = {name: text for name, text in os.environ.items() if not name.startswith("LSMQ_")}
            done = await asyncio.to_thread(
                run_python,
                *("-m", "lsmq", "topic", "list", "--json", *arguments),
                env={**inherited, **environment},
                text=True,
            )
            assert done.returncode == 0, done.stderr
            assert [topic["name"] for topic in json.loads(done.stdout)] == [TOPIC]


def test_the_thread_that_is_woken_for_a_topic_knows_which(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever wakes it may not come to say so for a while."""
    tls, woken = ClientTls(None, None, None), []
    routes = ZooKeeperRoutes("127.0.0.1:1", "c", refresh_s=NEVER_S, copy=None, tls=tls.context)
    monkeypatch.setattr(routes._wake, "set", lambda: woken.append(routes._followed.copy()))
    routes.follow("a")
    routes.follow("b")
    routes.unfollow("a")
    assert woken == [{"a"}, {"a", "b"}] and routes._followed == {"b"}


def test_hosts_that_are_none_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="host:2181"):
        Client(zookeeper="host:port")


def test_without_kazoo_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "lsmq._zookeeper", raising=False)
    monkeypatch.setitem(sys.modules, "kazoo.client", None)
    with pytest.raises(ZooKeeperNotInstalled, match=r'pip install "lsmq\[zookeeper\]"'):
        Client(zookeeper="127.0.0.1:2181")


@pytest.mark.parametrize("state", ["away", "paused", "connected"])
def test_closing_leaves_no_thread_whatever_zookeeper_does(
    ensemble: ZooKeeperEnsemble, state: str, tmp_path: Path
) -> None:
    hosts = "127.0.0.1:9" if state == "away" else ensemble.hosts
    if state == "paused":
        ensemble.pause()
    before = set(threading.enumerate())
    try:
        with (
            sync.Client(zookeeper=hosts, cluster="absent", cache_dir=tmp_path, deadline_ms=500) as client,
            pytest.raises(Unavailable),
        ):
            client.topics()
        names = {thread.name for thread in set(threading.enumerate()) - before}
        assert not {"lsmq", "lsmq zookeeper"} & names
    finally:
        ensemble.resume()


@pytest.mark.parametrize("content", [b"", b"[]", b'{"name": 1}'])
async def test_a_topic_s_document_that_is_none_hides_no_others(
    ensemble: ZooKeeperEnsemble, node: NodeProcess, published: Publish, content: bytes
) -> None:
    """What a client goes by of the cluster and other topics is followed on."""
    heard: list[RouteDocuments] = []
    async with PlayedCluster(node.url) as cluster:
        agreed = await published(cluster)
        agreed.registry.stop()
        writer = ensemble.client()
        writer.create(f"/lsmq/{agreed.name}/topics/other", content)
        writer.stop()
        writer.close()
        tls = ClientTls(None, None, None).context
        routes = ZooKeeperRoutes(agreed.hosts, agreed.name, refresh_s=NEVER_S, copy=None, tls=tls)
        routes.start(heard.append)
        try:
            routes.follow("other")
            routes.follow(TOPIC)
            await comes_true(lambda: any(found.topics for found in heard), "the topic that is whole is heard of")
        finally:
            await routes.stop()
    assert [topic.name for topic in heard[-1].topics] == [TOPIC]
