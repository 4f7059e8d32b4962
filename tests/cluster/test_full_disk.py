"""The disk of a leader fills up: others lead, where enough have room; else it stays, and refuses writes clearly."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lsmq.sync import Client, Consumer, Producer
from lsmq_lab.local_cluster import LocalCluster
from support.clusters import running_cluster
from support.mounts import tmpfs
from support.waiting import eventually

from .test_http import ask, overview, settled, shard, url_of

MIB = 1024 * 1024
SETTINGS = {
    "max_message_bytes": 256 << 10,
    "memtable_bytes": 1 << 20,
    "segment_bytes": 1 << 20,
    "min_free_bytes": 16 * MIB,
}
TOPIC = "t"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """A shard that n1 leads; n1 and n2 have small disks, which are not shared with what decides who leads."""
    small = running_cluster(__name__, tmp_path / "c", up=False, shards=1, settings=SETTINGS)
    with small as cluster, ExitStack() as scope:
        for node in ("n1", "n2"):
            scope.enter_context(tmpfs(cluster.directory / node / "data", "size=96m"))
        scope.callback(cluster.down)
        cluster.up()
        settled(cluster)
        yield cluster


def filler(cluster: LocalCluster, node: str) -> Path:
    return cluster.directory / node / "data" / "filler"


def fill(cluster: LocalCluster, node: str) -> None:
    """Leave a node less than it keeps free, and enough for what a follower and a voter write."""
    file = filler(cluster, node)
    file.write_bytes(bytes(shutil.disk_usage(file.parent).free - 12 * MIB))
    eventually(lambda: any("min_free_bytes" in problem for problem in problems(cluster, node)), f"{node} says so")


def problems(cluster: LocalCluster, node: str) -> list[str]:
    found: list[str] = next(entry for entry in overview(cluster)["nodes"] if entry["id"] == node)["problems"]
    return found


def write_once(cluster: LocalCluster, node: str) -> tuple[int, str | None]:
    """At this very node: the status and the code of a refusal."""
    status, answer = ask(f"{url_of(cluster, node)}/v1/topics/{TOPIC}/messages", "POST", {"messages": [{"body": "x"}]})
    return status, answer.get("error", {}).get("code")


@pytest.mark.slow
def test_a_leader_with_a_full_disk_hands_over_as_soon_as_enough_others_have_room(cluster: LocalCluster) -> None:
    with Client([node.url for node in cluster.plan.nodes], deadline_ms=120_000) as client:
        client.create_topic(TOPIC, queues=1)
        with Producer(client, TOPIC) as producer:
            producer.send_and_wait("before", queue=0)
            fill(cluster, "n2")
            fill(cluster, "n1")
            eventually(lambda: write_once(cluster, "n1") == (507, "disk_full"), "n1 refuses")
            assert ask(f"{url_of(cluster, 'n1')}/readyz")[0] == 200, "reads go on"
            before = shard(cluster, 0)
            assert before["leader"] == "n1", "two of three must have room for a write"
            filler(cluster, "n2").unlink()
            eventually(lambda: shard(cluster, 0)["leader"] == "n3", "who was full before does not lead")
            assert shard(cluster, 0)["epoch"] == before["epoch"] + 1
            producer.send_and_wait("meanwhile", queue=0)
            assert any("min_free_bytes" in problem for problem in problems(cluster, "n1"))
            filler(cluster, "n1").unlink()
            eventually(lambda: len(shard(cluster, 0)["in_sync"]) == 3, "all have caught up")
            producer.send_and_wait("after", queue=0)
        with Consumer(client, TOPIC, start="earliest") as consumer:
            found: list[bytes] = []
            while len(found) < 3:
                found += [message.body for message in consumer.poll(10, timeout_ms=20_000)]
    assert found == [b"before", b"meanwhile", b"after"]
