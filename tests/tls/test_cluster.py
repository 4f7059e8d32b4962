"""Everything that nodes of a cluster say to each other under TLS: who is let in, what can be read on the way."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lsmq import Consumer, Producer
from lsmq.client import Client
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
        assert not answers(port, own / "ca.crt", None), "who shows none"
        assert not answers(port, own / "ca.crt", stranger), "who shows one of another authority"
        with closing(socket.create_connection((HOST, port), timeout=10)) as plain:
            plain.sendall(b"GET /internal/replication?node=n2 HTTP/1.1\r\nHost: n1\r\n\r\n")
            assert b"HTTP/1.1" not in until_closed(plain)
    assert answers(node.internal_port, own / "ca.crt", (own / "n2.crt", own / "n2.key"))
    assert "handshake" in (cluster.directory / node.id / "node.log").read_text()


def answers(port: int, ca: Path, shown: tuple[Path, Path] | None) -> bool:
    """Whether a request over TLS is answered, be it that it is refused."""
    context = ssl.create_default_context(cafile=ca)
    if shown is not None:
        context.load_cert_chain(*shown)
    try:
        with (
            socket.create_connection((HOST, port), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as connection,
        ):
            connection.sendall(b"GET /internal/replication?node=n2 HTTP/1.1\r\nHost: n1\r\n\r\n")
            return connection.recv(9) == b"HTTP/1.1 "
    except OSError:
        return False


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
