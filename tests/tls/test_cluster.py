"""Everything that nodes of a cluster say to each other under TLS: who is let in, what can be read on the way."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from lsmq import Consumer, Producer
from lsmq.client import Client
from lsmq.sync import Client as SyncClient
from lsmq.sync import Consumer as SyncConsumer
from lsmq.sync import Producer as SyncProducer
from lsmq_coordinator.authority import Authority
from lsmq_lab.local_cluster import LocalCluster, found_plan
from lsmq_lab.local_cluster.plan import HOST
from lsmq_node.cluster_config import ClusterConfig
from lsmq_node.settings import InvalidConfig
from support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.slow

QUEUES, MESSAGES = 9, 300
SETTINGS = {
    "segment_bytes": 1 << 20,
    "memtable_bytes": 4 << 20,
    "cluster.node_timeout_ms": 20_000,
    "cluster.ack_timeout_ms": 20_000,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Whoever dies here is replaced only because his sentinel says so: his time-out is longer than a test waits."""
    cluster = LocalCluster.found(
        tmp_path_factory.mktemp("tls") / "c", found_plan(zookeeper="none", tls=True, settings=SETTINGS)
    )
    cluster.up()
    with cluster.trusted():
        yield cluster
    cluster.down(delete=True)


def client(cluster: LocalCluster) -> Client:
    return Client([node.url for node in cluster.plan.nodes], deadline_ms=int(1000 * PATIENCE_S))


async def test_what_was_acknowledged_survives_a_leader_whose_death_is_told_by_tls(cluster: LocalCluster) -> None:
    async with client(cluster) as asking:
        await asking.create_topic("survives", queues=QUEUES)
        async with Producer(asking, "survives") as producer:
            for number in range(MESSAGES):
                await producer.send(f"{number}", queue=number % QUEUES)
            leader = cluster.status().shards[0].leader
            assert leader is not None
            cluster.kill(leader)
            await asyncio.to_thread(
                eventually,
                lambda: all(shard.leader not in (leader, None) for shard in cluster.status().shards),
                "another leads, long before the node's time is out",
                15.0,
            )
            for number in range(MESSAGES, 2 * MESSAGES):
                await producer.send(f"{number}", queue=number % QUEUES)
        await asyncio.to_thread(cluster.start, leader)
        found: set[str] = set()
        async with Consumer(asking, "survives", start="earliest") as consumer:
            while len(found) < 2 * MESSAGES:
                found |= {message.text() for message in await consumer.poll()}
    await asyncio.to_thread(
        eventually,
        lambda: all(len(shard.in_sync) == 3 for shard in cluster.status().shards),
        "the node that was killed is in sync again",
    )
    assert found == {f"{number}" for number in range(2 * MESSAGES)}


def test_ports_for_nodes_let_in_who_has_a_certificate_of_the_cluster(cluster: LocalCluster, tmp_path: Path) -> None:
    stranger = Authority.create(tmp_path / "other").issue("n1", ("localhost",))
    node = cluster.plan.nodes[0]
    own = cluster.directory / "tls"
    for port in (node.internal_port, node.raft_port):
        assert answer(port, own / "ca.crt", None) == b"", "who shows none"
        assert answer(port, own / "ca.crt", stranger) == b"", "who shows one of another authority"
        with pytest.raises(ssl.SSLError, match=r"(?i)version"):
            answer(port, own / "ca.crt", (own / "n2.crt", own / "n2.key"), ssl.TLSVersion.TLSv1_2)
        with closing(socket.create_connection((HOST, port), timeout=10)) as plain:
            plain.sendall(b"GET /internal/replication?node=n2 HTTP/1.1\r\nHost: n1\r\n\r\n")
            assert b"HTTP/1.1" not in until_closed(plain)
    without_secret = answer(node.internal_port, own / "ca.crt", (own / "n2.crt", own / "n2.key"))
    assert without_secret.startswith(b"HTTP/1.1 401 "), "a certificate alone makes nobody a node"
    assert "handshake" in (cluster.directory / node.id / "node.log").read_text()


def answer(
    port: int, ca: Path, shown: tuple[Path, Path] | None, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> bytes:
    """The beginning of what is answered over TLS; nothing where who asks is let in no further than the handshake.

    Raises ``OSError`` where that does not come about.
    """
    context = ssl.create_default_context(cafile=ca)
    context.maximum_version = version
    if shown is not None:
        context.load_cert_chain(*shown)
    with (
        socket.create_connection((HOST, port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        try:
            connection.sendall(b"GET /internal/replication?node=n2 HTTP/1.1\r\nHost: n1\r\n\r\n")
            return connection.recv(13)
        except OSError:
            return b""


def until_closed(plain: socket.socket) -> bytes:
    received = b""
    try:
        while part := plain.recv(4_096):
            received += part
    except ConnectionError:
        pass
    return received


async def test_nodes_take_certificates_that_change_and_their_links_are_made_anew(cluster: LocalCluster) -> None:
    """The authority stays; each node is given another certificate, and one of them is started again."""
    authority = Authority(cluster.directory / "tls")
    for node in cluster.plan.nodes:
        authority.issue(node.id, (HOST, "localhost"))
    for node in cluster.plan.nodes:
        log = cluster.directory / node.id / "node.log"
        await asyncio.to_thread(
            eventually, lambda log=log: log.read_text().count("certificate_reloaded") >= 2, "both ports have taken it"
        )
    node = cluster.plan.nodes[2].id
    await asyncio.to_thread(cluster.stop, node)
    await asyncio.to_thread(cluster.start, node)
    await asyncio.to_thread(
        eventually, lambda: all(len(shard.in_sync) == 3 for shard in cluster.status().shards), "all are in sync"
    )
    async with client(cluster) as asking:
        await asking.create_topic("renewed", queues=QUEUES)
        async with Producer(asking, "renewed") as producer:
            await producer.send("x", queue=0)


async def test_a_node_that_shows_a_certificate_for_another_name_is_not_dialled(cluster: LocalCluster) -> None:
    node = cluster.plan.nodes[2]
    shown = Authority(cluster.directory / "tls").issue("elsewhere", ("elsewhere.example",))
    settings = dict(zip(("cluster.tls_cert", "cluster.tls_key"), shown, strict=True))
    await asyncio.to_thread(cluster.stop, node.id)
    before = len((cluster.directory / "n1" / "node.log").read_text())
    await asyncio.to_thread(lambda: cluster.start(node.id, settings=settings))
    try:

        def names_it() -> bool:
            said = (cluster.directory / "n1" / "node.log").read_text()[before:]
            return "certificate is not valid for" in said or "IP address mismatch" in said

        await asyncio.to_thread(eventually, names_it, "whoever dials it says why it does not")
    finally:
        await asyncio.to_thread(cluster.stop, node.id)
        await asyncio.to_thread(cluster.start, node.id)
    await asyncio.to_thread(
        eventually, lambda: all(len(shard.in_sync) == 3 for shard in cluster.status().shards), "all are in sync"
    )


def test_a_cluster_that_is_there_is_changed_as_a_whole_and_keeps_what_it_has(tmp_path: Path) -> None:
    """As the page says: all nodes are stopped, their files and addresses changed, and they are started."""
    cluster = LocalCluster.found(tmp_path / "c", found_plan(settings=SETTINGS))
    try:
        cluster.up()
        with SyncClient([node.url for node in cluster.plan.nodes]) as plain:
            plain.create_topic("kept", queues=QUEUES)
            with SyncProducer(plain, "kept") as producer:
                for number in range(QUEUES):
                    producer.send(f"{number}", queue=number)
        cluster.down()
        authority = Authority.create(cluster.directory / "tls")
        for node in cluster.plan.nodes:
            authority.issue(node.id, (HOST, "localhost"))
            (cluster.directory / node.id / "node.toml").unlink()
        nodes = tuple(replace(node, tls=True) for node in cluster.plan.nodes)
        replace(cluster.plan, tls=True, nodes=nodes).write(cluster.directory)
        cluster = LocalCluster(cluster.directory)
        cluster.up()
        with cluster.trusted(), SyncClient([node.url for node in cluster.plan.nodes]) as client:
            routes = client.topic("kept").routes
            assert all(route.leader is not None and route.leader.startswith("https://") for route in routes)
            with SyncProducer(client, "kept") as producer:
                producer.send("in TLS", queue=0)
            found: set[str] = set()
            with SyncConsumer(client, "kept", start="earliest") as consumer:
                while len(found) < QUEUES + 1:
                    found |= {message.text() for message in consumer.poll(timeout_ms=20_000)}
        assert found == {*map(str, range(QUEUES)), "in TLS"}
    finally:
        cluster.down(delete=True)


VOTERS = {"n1": {"url": "https://a:1", "internal_url": "{scheme}://a:2", "raft": "a:3"}}


@pytest.mark.parametrize(
    ("settings", "scheme", "words"),
    [
        ({"tls_ca": "a"}, "http", "let all internal_url begin with https"),
        ({}, "https", "let all internal_url begin with http://"),
        ({"tls_cert": "a", "tls_key": "b"}, "http", r"set cluster.tls_ca"),
        ({"tls_ca": "a", "tls_cert": "a"}, "https", r"set cluster.tls_key"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, str], scheme: str, words: str) -> None:
    voters = {id: {name: text.format(scheme=scheme) for name, text in voter.items()} for id, voter in VOTERS.items()}
    table = {"node": "n1", "replicas": 1, "secret_file": "s", "voters": voters, **settings}
    with pytest.raises(InvalidConfig, match=words):
        ClusterConfig.load({"test": table})
