"""A real cluster without its ZooKeeper, for nodes and clients: partition, expired sessions, restart, lost data."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kazoo.exceptions import KazooException, NoNodeError

from lsmq import Unavailable
from lsmq.sync import Client, Consumer, Producer
from lsmq_lab.local_cluster import LocalCluster
from support.clusters import running_cluster
from support.waiting import eventually
from support.wire import Wire
from support.zookeeper_server import ZooKeeperEnsemble

ROOT = "/lsmq/lsmq"
GROUP = "readers"
TOPIC = "t"
SETTINGS = {"segment_bytes": 1 << 20, "memtable_bytes": 4 << 20, "cluster.zookeeper_refresh_s": 1}


class Site:
    """A cluster, its ZooKeeper, and the wires between: nodes use one, the clients of these tests another."""

    def __init__(self, cluster: LocalCluster, ensemble: ZooKeeperEnsemble, nodes: Wire, clients: Wire) -> None:
        self.cluster, self.ensemble = cluster, ensemble
        self.nodes, self.clients = nodes, clients
        self.copies = cluster.directory.parent / "copies"
        self.written = 0
        self.read = 0

    def client(self, **options: Any) -> Client:
        """It knows nothing but ZooKeeper."""
        fields = {"deadline_ms": 60_000, "cache_dir": self.copies, "refresh_s": 1, **options}
        return Client(zookeeper=f"127.0.0.1:{self.clients.port}", **fields)

    def work(self, client: Client) -> None:
        """Produce, consume and commit, with a client of before or a new one."""
        with Producer(client, TOPIC, ack="quorum") as producer:
            for _ in range(3):
                producer.send(str(self.written), queue=0)
                self.written += 1
        with Consumer(client, TOPIC, queues=[0], group=GROUP, start="committed") as consumer:
            while self.read < self.written:
                for message in consumer.poll(10, timeout_ms=20_000):
                    assert message.body == str(self.read).encode()
                    self.read += 1
            consumer.commit()
        assert client.committed_offsets(GROUP, TOPIC) == {0: self.written}

    def fail_over(self) -> str:
        """Kill the leader; the node. Another leads when this returns, with a higher epoch."""
        before = self.cluster.status().shards[0]
        assert before.leader is not None
        self.cluster.kill(before.leader)
        eventually(lambda: self.cluster.status().shards[0].leader not in (before.leader, None), "another leads")
        return before.leader

    def whole(self) -> None:
        """Every node runs, and its replica is in sync."""
        self.cluster.up()
        eventually(lambda: len(self.cluster.status().shards[0].in_sync) == 3, "all are in sync")

    # What ZooKeeper holds

    def owners(self) -> dict[str, int]:
        """The session that registered each node."""
        with self._asked() as client:
            try:
                names = client.get_children(f"{ROOT}/nodes")
                return {name: client.get(f"{ROOT}/nodes/{name}")[1].ephemeralOwner for name in names}
            except NoNodeError:
                return {}

    @contextmanager
    def _asked(self) -> Iterator[Any]:
        client = self.ensemble.client()
        try:
            yield client
        finally:
            client.stop()
            client.close()

    def is_up_to_date(self, *topics: str) -> bool:
        """Whether ZooKeeper names all nodes, these topics and the leader of today at its epoch."""
        shard = self.cluster.status().shards[0]
        try:
            with self._asked() as client:
                document = json.loads(client.get(f"{ROOT}/cluster")[0] or b"{}")
                published = set(client.get_children(f"{ROOT}/topics"))
        except KazooException:
            return False
        entry = document.get("shards", {}).get("0", {})
        return (
            {*topics} <= published
            and (entry.get("leader"), entry.get("epoch")) == (shard.leader, shard.epoch)
            and len(self.owners()) == 3
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("zookeeper")
    ensemble = ZooKeeperEnsemble(directory).start()
    port = ensemble.servers[0].peer.client_port
    try:
        with (
            Wire(port) as nodes,
            Wire(port) as clients,
            running_cluster(
                __name__, directory / "c", shards=1, zookeeper=f"127.0.0.1:{nodes.port}", settings=SETTINGS
            ) as cluster,
        ):
            site = Site(cluster, ensemble, nodes, clients)
            with site.client() as client:
                client.create_topic(TOPIC, queues=2)
                site.work(client)
            eventually(lambda: site.is_up_to_date(TOPIC), "routes are published")
            yield site
    finally:
        ensemble.stop()


@pytest.fixture
def client(site: Site) -> Iterator[Client]:
    """One that has worked before ZooKeeper went away."""
    site.whole()
    with site.client() as client:
        site.work(client)
        eventually(lambda: any(TOPIC in copy.read_text() for copy in site.copies.glob("*.json")), "routes are kept")
        yield client


@pytest.mark.part(2)
def test_a_partition_from_zookeeper_longer_than_its_sessions(site: Site, client: Client) -> None:
    before = site.owners()
    assert set(before) == {"n1", "n2", "n3"}
    site.nodes.cut()
    site.clients.cut()
    try:
        eventually(lambda: not site.owners(), "the sessions of all nodes have expired")
        victim = site.fail_over()
        site.work(client)
        assert client.create_topic("made-in-a-partition", queues=1).queues == 1
        with site.client() as late:
            site.work(late)  # It has the copy on disk, whose leader is dead.
        with site.client(cache_dir="", deadline_ms=1_500) as stranger, pytest.raises(Unavailable, match="ZooKeeper at"):
            stranger.topics()
    finally:
        site.nodes.heal()
        site.clients.heal()
    site.cluster.start(victim)
    eventually(lambda: site.is_up_to_date(TOPIC, "made-in-a-partition"), "ZooKeeper has caught up")
    assert not set(site.owners().values()) & set(before.values()), "nodes registered anew, in new sessions"
    site.work(client)
    with site.client(cache_dir="") as stranger:
        assert {topic.name for topic in stranger.topics()} >= {TOPIC, "made-in-a-partition"}
        site.work(stranger)


@pytest.mark.part(2)
def test_clients_alone_are_cut_off_from_zookeeper(site: Site, client: Client) -> None:
    site.clients.cut()
    try:
        victim = site.fail_over()
        eventually(lambda: len(site.owners()) == 2, "ZooKeeper noticed that a node died")
        site.work(client)
        with site.client() as late:
            site.work(late)
    finally:
        site.clients.heal()
    site.cluster.start(victim)
    site.work(client)


@pytest.mark.parametrize("data", ["kept", "lost"])
@pytest.mark.part(3)
def test_zookeeper_ends_and_starts_again(site: Site, client: Client, data: str) -> None:
    server = site.ensemble.servers[0]
    server.stop(signal.SIGKILL)
    victim = site.fail_over()
    site.work(client)
    name = f"made-without-{data}"
    client.create_topic(name, queues=1)
    with site.client() as late:
        site.work(late)
    if data == "lost":
        shutil.rmtree(server.directory / "data")
    site.ensemble.start()
    site.cluster.start(victim)
    eventually(lambda: site.is_up_to_date(TOPIC, name), "ZooKeeper has caught up")
    site.work(client)
    with site.client(cache_dir="") as stranger:
        assert name in {topic.name for topic in stranger.topics()}
        site.work(stranger)
