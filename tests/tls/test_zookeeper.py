"""A real cluster and clients that find it in a ZooKeeper which speaks TLS to those with a certificate alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lsmq import Client as AsyncClient
from lsmq import Unavailable
from lsmq._tls import ClientTls
from lsmq._zookeeper import ZooKeeperRoutes
from lsmq.sync import Client, Consumer, Producer
from lsmq_coordinator.authority import Authority
from lsmq_lab.local_cluster import LocalCluster, NodeEnded, found_plan
from lsmq_lab.local_cluster.status import ask
from support.waiting import PATIENCE_S, comes_true, eventually
from support.zookeeper_server import SecureZooKeeper

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("zookeeper-tls")]

SMALL = {"segment_bytes": 1 << 20, "memtable_bytes": 4 << 20}


class Site:
    """The ZooKeeper has another authority than the nodes."""

    def __init__(self, directory: Path) -> None:
        self.authority = self._new_authority(directory / "authority")
        self.zookeeper = SecureZooKeeper(directory / "zookeeper", self.authority, tick_ms=1_000)
        files = {"ca": "ca.crt", "cert": "node.crt", "key": "node.key"}
        own = {f"cluster.zookeeper_tls_{name}": str(directory / "authority" / file) for name, file in files.items()}
        plan = found_plan(
            nodes=1, shards=1, replicas=1, zookeeper=self.zookeeper.secure_hosts, tls=True, settings={**SMALL, **own}
        )
        self.cluster = LocalCluster.found(directory / "cluster", plan)
        assert self.cluster.ca is not None
        self.both = directory / "both.crt"
        self._believe_both()

    @staticmethod
    def _new_authority(directory: Path) -> Authority:
        for name in ("ca.crt", "ca.key"):
            (directory / name).unlink(missing_ok=True)
        made = Authority.create(directory)
        for name in ("node", "alice"):
            made.issue(name, [])
        return made

    def _believe_both(self) -> None:
        assert self.cluster.ca is not None
        self.both.write_bytes(self.cluster.ca.read_bytes() + self.authority.cert.read_bytes())

    def renew(self) -> None:
        """Another authority in the same files, and all certificates of it; ZooKeeper is started again with them."""
        self.authority = self._new_authority(self.authority.directory)
        self.authority.issue("zookeeper")
        self._believe_both()
        self.zookeeper.stop()
        self.zookeeper.start()
        self.zookeeper.wait_ready()

    def client(self, **files: Any) -> Client:
        return Client(zookeeper=self.zookeeper.secure_hosts, cache_dir="", deadline_ms=60_000, **files)

    @property
    def alice(self) -> dict[str, Path]:
        return {
            name: self.authority.directory / f"alice.{kind}" for name, kind in (("cert", "crt"), ("cert_key", "key"))
        }


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site"))
    made.zookeeper.start()
    try:
        made.zookeeper.wait_ready()
        made.cluster.up()
        yield made
    finally:
        made.cluster.down(delete=True)
        made.zookeeper.stop()


def test_clients_find_nodes_in_it(site: Site) -> None:
    with site.client(ca=site.both, **site.alice) as client:
        client.create_topic("t", queues=1)
        with Producer(client, "t") as producer:
            producer.send("found", queue=0)
        with Consumer(client, "t", queues=[0], start="earliest") as consumer:
            assert [message.text() for message in consumer.poll(timeout_ms=20_000)] == ["found"]


def test_a_client_that_does_not_believe_it_says_so(site: Site) -> None:
    client = Client(zookeeper=site.zookeeper.secure_hosts, ca=site.cluster.ca, cache_dir="", deadline_ms=3_000)
    with client, pytest.raises(Unavailable, match="its certificate is not believed"):
        client.topics()


def test_a_client_that_shows_no_certificate_is_told_that_one_may_be_wanted(site: Site) -> None:
    client = Client(zookeeper=site.zookeeper.secure_hosts, ca=site.both, cache_dir="", deadline_ms=3_000)
    with client, pytest.raises(Unavailable, match="may want to see a certificate"):
        client.topics()


def test_a_client_that_speaks_without_tls_is_told_what_to_write(site: Site) -> None:
    hosts = site.zookeeper.secure_hosts.removeprefix("tls://")
    client = Client(zookeeper=hosts, ca=site.cluster.ca, cache_dir="", deadline_ms=3_000)
    with client, pytest.raises(Unavailable, match="if it speaks TLS alone, write tls:// before its hosts"):
        client.topics()


async def test_nodes_and_clients_take_another_authority_and_its_certificates_while_they_run(site: Site) -> None:
    """What was published before they took it is not what is looked for."""
    heard: list[str] = []
    tls = ClientTls(site.both, site.alice["cert"], site.alice["cert_key"])
    routes = ZooKeeperRoutes(site.zookeeper.secure_hosts, "lsmq", refresh_s=0.2, copy=None, tls=tls.context)
    for name in ("before", "after"):
        routes.follow(name)
    routes.start(lambda documents: heard.extend(topic.name for topic in documents.topics))
    try:
        async with AsyncClient([site.cluster.plan.nodes[0].url], ca=site.cluster.ca) as nodes:
            await nodes.create_topic("before", queues=1)
            await comes_true(lambda: "before" in heard, "it is published and read")
            await asyncio.to_thread(site.renew)
            await nodes.create_topic("after", queues=1)
            await comes_true(lambda: "after" in heard, "it is published and read by the new certificates")
    finally:
        await routes.stop()


def test_a_node_that_does_not_believe_it_is_ready_and_says_so(site: Site) -> None:
    node = site.cluster.plan.nodes[0]
    site.cluster.stop(node.id)
    assert site.cluster.ca is not None
    site.cluster.start(node.id, settings={"cluster.zookeeper_tls_ca": site.cluster.ca})

    def warns() -> bool:
        said = (ask(f"{node.url}/readyz", PATIENCE_S, site.cluster.ca) or {}).get("warnings", [])
        return any("zookeeper" in each and "its certificate is not believed" in each for each in said)

    eventually(warns, "it takes requests, and warns")
    site.cluster.stop(node.id)
    site.cluster.up()


def test_a_node_with_files_of_no_use_does_not_start_and_names_them(site: Site) -> None:
    node = site.cluster.plan.nodes[0].id
    site.cluster.stop(node)
    with pytest.raises(NodeEnded, match=r"ca\.crt\.gone: cannot be read"):
        site.cluster.start(node, settings={"cluster.zookeeper_tls_ca": f"{site.authority.cert}.gone"})
    site.cluster.up()
