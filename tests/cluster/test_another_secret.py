"""A real cluster whose secret is changed for another one, by rolling restarts, while messages come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from kazoo.exceptions import NoAuthError
from prometheus_client.parser import text_string_to_metric_families

from lsmq import Client, LsmqError
from lsmq_coordinator import death
from lsmq_coordinator.auth import ClusterSecret
from lsmq_coordinator.control_http import ControlHttp
from lsmq_coordinator.death import DeathNotice
from lsmq_coordinator.errors import NotAuthenticated
from lsmq_coordinator.http_status import status_of
from lsmq_coordinator.tls import Certificates, TlsFiles
from lsmq_lab.believed import opener
from lsmq_lab.local_cluster import LocalCluster, NodeEnded
from support.clusters import running_cluster
from support.traffic import Traffic
from support.waiting import eventually
from support.zookeeper_server import asked

pytestmark = pytest.mark.slow

SETTINGS = {"segment_bytes": 4 << 20, "memtable_bytes": 8 << 20, "cluster.zookeeper_refresh_s": 1}
OLD, NEW = "the secret that all nodes had before", "the secret that all of them have afterwards"
#: What the file has in each step, from the one before to the one after.
STEPS = ((OLD, NEW), (NEW, OLD), (NEW,))
ROOT = "/lsmq/lsmq"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with running_cluster(__name__, tmp_path / "c", up=False, zookeeper="local", settings=SETTINGS) as cluster:
        write(cluster, OLD)
        cluster.up()
        yield cluster


def write(cluster: LocalCluster, *secrets: str) -> None:
    (cluster.directory / "secret").write_text("\n".join(secrets) + "\n")


def all_in_sync(cluster: LocalCluster) -> None:
    cluster.wait_ready()
    eventually(lambda: all(len(shard.in_sync) == 3 for shard in cluster.status().shards), "all replicas are in sync")


def accepted_secrets(url: str) -> float:
    with opener().open(f"{url}/metrics", timeout=30) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return next(family.samples[0].value for family in families if family.name == "lsmq_node_accepted_secrets")


def writers(cluster: LocalCluster) -> set[str]:
    """The digests under which what the cluster has in ZooKeeper may be written."""
    assert cluster.zookeeper is not None
    with asked(cluster.zookeeper) as client:
        for secret in (OLD, NEW):
            client.add_auth("digest", f"lsmq:{password(secret)}")
        topics = [f"{ROOT}/topics/{name}" for name in client.get_children(f"{ROOT}/topics")]
        paths = ("/lsmq", ROOT, f"{ROOT}/nodes", f"{ROOT}/topics", f"{ROOT}/cluster", *topics)
        return {acl.id.id for path in paths for acl in client.get_acls(path)[0] if acl.id.scheme == "digest"}


def password(secret: str) -> str:
    return ClusterSecret(secret.encode()).key("zookeeper").hex()


@pytest.mark.part(2)
async def test_the_secret_is_changed_while_messages_come_and_go(cluster: LocalCluster) -> None:
    urls = [node.url for node in cluster.plan.nodes]
    async with Client(urls) as sending, Client(urls) as reading, asyncio.TaskGroup() as group:
        traffic = Traffic("rotated", sending, reading)
        await traffic.run(group)
        await traffic.progress()
        before = await asyncio.to_thread(writers, cluster)
        assert len(before) == 1
        for step, secrets in enumerate(STEPS):
            write(cluster, *secrets)
            for node in cluster.plan.nodes:
                await asyncio.to_thread(cluster.stop, node.id)
                await traffic.progress()  # On two nodes, of the same step or not.
                await asyncio.to_thread(cluster.start, node.id)
                await asyncio.to_thread(all_in_sync, cluster)
                await traffic.progress()
                await sending.create_topic(f"made-{step}-{node.id}")
                assert await asyncio.to_thread(accepted_secrets, node.url) == len(secrets)
            if step == 0:
                assert await asyncio.to_thread(writers, cluster) == before
            else:
                await asyncio.to_thread(eventually, lambda: not writers(cluster) & before, "all is under the new one")
        await traffic.finish()
    for node in cluster.plan.nodes:
        log = cluster.process(node.id).log.read_text()
        assert "cluster secret" not in log, "nodes of two steps refused each other"

    assert cluster.zookeeper is not None
    await asyncio.to_thread(eventually, lambda: "made-2-n3" in published(cluster), "nodes write under the new one")
    await only_the_new_one_counts(cluster)


def published(cluster: LocalCluster) -> list[str]:
    assert cluster.zookeeper is not None
    with asked(cluster.zookeeper) as client:
        client.add_auth("digest", f"lsmq:{password(OLD)}")
        with pytest.raises(NoAuthError):
            client.set(f"{ROOT}/cluster", b"forged")
        names: list[str] = client.get_children(f"{ROOT}/topics")
        return names


async def only_the_new_one_counts(cluster: LocalCluster) -> None:
    """For requests to the nodes, and for notices of their deaths."""
    own = cluster.directory / "tls"
    tls = Certificates(TlsFiles(own / "n1.crt", own / "n1.key", own / "ca.crt")) if cluster.plan.tls else None
    for node in cluster.plan.nodes:
        for text, is_good in ((OLD, False), (NEW, True)):
            secret = ClusterSecret(text.encode())
            assert await is_obeyed(node.internal_url, secret, tls) == is_good
            assert await is_obeyed_on_death(node.internal_url, secret, tls) == is_good


async def is_obeyed(url: str, secret: ClusterSecret, tls: Certificates | None) -> bool:
    http = ControlHttp(secret, tls=tls)
    await http.start()
    try:
        await http.call(url, "GET", "/internal/control/version", None, 30.0)
    except NotAuthenticated:
        return False
    except LsmqError:  # It does not lead the control plane, and signs that.
        return True
    finally:
        await http.close()
    return True


async def is_obeyed_on_death(url: str, secret: ClusterSecret, tls: Certificates | None) -> bool:
    notice = DeathNotice("n1", "a life that nobody had")
    headers = {death.HEADER: notice.signature(secret)}
    connector = aiohttp.TCPConnector(ssl=True if tls is None else tls.client)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(url + death.PATH, data=notice.to_bytes(), headers=headers) as answer,
    ):
        return answer.status != status_of(NotAuthenticated)


def test_a_node_with_a_bad_file_does_not_start_and_says_why(cluster: LocalCluster) -> None:
    write(cluster, OLD, "short")
    cluster.stop("n2")
    with pytest.raises(NodeEnded, match="line 2 of the cluster secret has 5 bytes"):
        cluster.start("n2")
    write(cluster, OLD, NEW, "a third secret, long enough")
    with pytest.raises(NodeEnded, match="has 3 lines"):
        cluster.start("n2")
    write(cluster, OLD, NEW)
    cluster.start("n2")
    all_in_sync(cluster)
