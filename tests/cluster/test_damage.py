"""A bit flips in a table of a running replica: it is found, hidden from readers, and mended from the others."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lsmq.errors import CorruptFile
from lsmq.sync import Client, Consumer, Producer
from lsmq_coordinator.lives import UNCLAIMED, InSyncMember
from lsmq_lab.believed import opener
from lsmq_lab.local_cluster import LocalCluster
from lsmq_node.cluster.handing_over import FIRST_PAUSE_S, LONGEST_PAUSE_S, DamagedLeaders
from lsmq_node.cluster.repair import can_be_spared
from lsmq_node.replication import ControlView
from support.clusters import running_cluster
from support.waiting import eventually

TOPIC = "t"
MESSAGES = 3_000
SETTINGS = {
    "max_message_bytes": 256 << 10,
    "memtable_bytes": 1 << 20,
    "segment_bytes": 1 << 20,
    "wal_keep_bytes": 1 << 20,
    "cache_bytes": 0,
}


def body(number: int) -> bytes:
    return f"<{number}>".encode().ljust(1_000, b"x")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three replicas of a shard, with some tables each and a log that does not reach back to its beginning."""
    directory = tmp_path_factory.mktemp("damage") / "cluster"
    with running_cluster(__name__, directory, shards=1, settings=SETTINGS) as cluster:
        with client(cluster) as asked:
            asked.create_topic(TOPIC, queues=1)
            with Producer(asked, TOPIC) as producer:
                for number in range(MESSAGES):
                    producer.send(body(number), queue=0)
        yield cluster


@pytest.fixture(autouse=True)
def whole(cluster: LocalCluster) -> None:
    cluster.up()
    eventually(lambda: len(cluster.status().shards[0].in_sync) == 3, "all are in sync")
    eventually(lambda: min(figures(cluster, node.id).get("tables", 0) for node in cluster.plan.nodes) >= 1, "flushed")


def client(cluster: LocalCluster) -> Client:
    return Client([node.url for node in cluster.plan.nodes], deadline_ms=60_000)


def ask(url: str) -> Any:
    try:
        with opener().open(url, timeout=10) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return json.load(error)


def figures(cluster: LocalCluster, node: str) -> dict[str, Any]:
    """Of the node's replica; empty while it is being opened."""
    shards: list[dict[str, Any]] = ask(f"{cluster.plan.node(node).url}/v1/status")["shards"]
    return shards[0] if shards else {}


def damage(cluster: LocalCluster, node: str) -> int:
    """Flip a bit of a message in a table of the node's; the message's offset."""
    for table in sorted((cluster.directory / node / "data" / "shard-0" / "tables").glob("*.tbl")):
        raw = table.read_bytes()
        at = raw.find(b">x", len(raw) // 3)
        if at > 0:
            with table.open("r+b") as file:
                os.pwrite(file.fileno(), b"y", at + 1)
            return int(raw[raw.rindex(b"<", 0, at) + 1 : at])
    raise AssertionError(f"{node} has no table with a message")


def read_at(cluster: LocalCluster, node: str, offset: int) -> Any:
    return ask(f"{cluster.plan.node(node).url}/v1/topics/{TOPIC}/queues/0/messages?offset={offset}&max=1&from=follower")


def mended(cluster: LocalCluster, node: str, incarnation: int) -> bool:
    found = figures(cluster, node)
    return (
        found.get("incarnation", incarnation) != incarnation
        and found["damaged_tables"] == 0
        and len(cluster.status().shards[0].in_sync) == 3
    )


def bodies(cluster: LocalCluster) -> list[bytes]:
    with client(cluster) as asked, Consumer(asked, TOPIC, start="earliest", read_from="leader") as consumer:
        found: list[bytes] = []
        while len(found) < MESSAGES:
            found += [message.body for message in consumer.poll(1_000, timeout_ms=20_000)]
    return found


def set_aside(cluster: LocalCluster, node: str) -> list[Path]:
    return list((cluster.directory / node / "data").glob("shard-0.damaged-*"))


def test_a_follower_with_a_damaged_table_is_filled_again_while_writes_go_on(cluster: LocalCluster) -> None:
    shard = cluster.status().shards[0]
    node = next(replica for replica in shard.replicas if replica != shard.leader)
    before = figures(cluster, node)["incarnation"]
    offset = damage(cluster, node)
    assert read_at(cluster, node, offset)["error"]["code"] == "corrupt_file"
    with client(cluster) as asked:
        asked.create_topic("meanwhile", queues=1)
        with Producer(asked, "meanwhile") as producer:
            eventually(lambda: producer.send_and_wait("x") and mended(cluster, node, before), f"{node} is mended")
        assert len(set_aside(cluster, node)) == 1
    assert read_at(cluster, node, offset)["messages"][0]["body"] == body(offset).decode()
    after = cluster.status().shards[0]
    assert (after.leader, after.epoch) == (shard.leader, shard.epoch), "it cost no election"


def test_a_leader_with_a_damaged_table_hands_over_is_filled_again_and_leads_again(cluster: LocalCluster) -> None:
    shard = cluster.status().shards[0]
    node = shard.leader
    assert node is not None
    before = figures(cluster, node)["incarnation"]
    damage(cluster, node)
    assert bodies(cluster) == [body(number) for number in range(MESSAGES)], "a reader waits, and misses nothing"
    eventually(lambda: mended(cluster, node, before), f"{node} is mended")
    assert cluster.status().shards[0].epoch > shard.epoch
    eventually(lambda: cluster.status().shards[0].leader == node, "it is fit to lead again")
    cluster.wait_ready()
    assert bodies(cluster) == [body(number) for number in range(MESSAGES)]


def test_a_damaged_replica_that_is_needed_stays_and_is_mended_when_it_is_not(cluster: LocalCluster) -> None:
    shard = cluster.status().shards[0]
    node, other = (replica for replica in shard.replicas if replica != shard.leader)
    cluster.kill(other)
    eventually(lambda: set(cluster.status().shards[0].in_sync) == {shard.leader, node}, f"{other} has left")
    before = figures(cluster, node)["incarnation"]
    offset = damage(cluster, node)
    with client(cluster) as asked:
        asked.create_topic("needed", queues=1)
        with Producer(asked, "needed") as producer:
            for _ in range(20):
                assert read_at(cluster, node, offset)["error"]["code"] == "corrupt_file"
                producer.send_and_wait("x")
    assert figures(cluster, node)["damaged_tables"] == 1
    assert figures(cluster, node)["incarnation"] == before
    assert any("damaged" in warning for warning in ask(f"{cluster.plan.node(node).url}/readyz")["warnings"])
    cluster.start(other)
    eventually(lambda: mended(cluster, node, before), f"{node} is mended")


def test_a_cluster_of_one_replica_names_the_damage_and_goes_on(tmp_path: Path) -> None:
    one = running_cluster(__name__, tmp_path / "c", nodes=1, shards=1, replicas=1, settings=SETTINGS)
    with one as cluster:
        epoch = cluster.status().shards[0].epoch
        with client(cluster) as asked:
            asked.create_topic(TOPIC, queues=1)
            with Producer(asked, TOPIC) as producer:
                for number in range(2_000):
                    producer.send(body(number), queue=0)
            eventually(lambda: figures(cluster, "n1")["tables"] >= 1, "flushed")
            offset = damage(cluster, "n1")
            with (
                Consumer(asked, TOPIC, start={0: offset}, deadline_ms=1_000) as consumer,
                pytest.raises(CorruptFile, match=r"\.tbl"),
            ):
                consumer.poll(1, timeout_ms=10_000)
            with Producer(asked, TOPIC) as producer:
                assert producer.send_and_wait("more", queue=0).offset == 2_000
        found = figures(cluster, "n1")
        assert (found["damaged_tables"], found["failure"]) == (1, None)
        assert cluster.status().shards[0].epoch == epoch, "there is nobody to hand over to"


def test_a_damaged_leader_hands_over_when_that_is_known_and_again_ever_less_often() -> None:
    leaders = DamagedLeaders(report_s=0.3)
    assert leaders.wait_s(0, {"one"}, 100.0) == pytest.approx(0.3)
    assert leaders.wait_s(0, {"one"}, 100.2) == pytest.approx(0.1)
    assert leaders.wait_s(0, {"one"}, 100.4) == 0.0
    assert leaders.wait_s(0, {"one"}, 100.5) == pytest.approx(FIRST_PAUSE_S - 0.1)
    assert leaders.wait_s(0, {"one"}, 110.0) == 0.0
    assert leaders.wait_s(0, {"one"}, 110.0) > 2 * FIRST_PAUSE_S
    assert leaders.wait_s(0, {"one", "two"}, 111.0) == pytest.approx(0.3), "new damage is a new reason"
    now, pauses = 200.0, []
    for _ in range(12):
        assert leaders.wait_s(0, {"one"}, now) == 0.0
        pauses.append(leaders.wait_s(0, {"one"}, now))
        now += pauses[-1]
    assert pauses == sorted(pauses) and pauses[-1] == LONGEST_PAUSE_S


@pytest.mark.parametrize(
    ("leader", "in_sync", "spared"),
    [("a", "abc", True), ("a", "ac", True), ("a", "ab", False), ("b", "abc", False), (None, "abc", False)],
)
def test_who_can_be_spared(leader: str | None, in_sync: str, spared: bool) -> None:
    view = ControlView(
        epoch=1,
        version=1,
        leader=leader,
        in_sync=frozenset(InSyncMember(node, UNCLAIMED) for node in in_sync),
        replicas=frozenset("abc"),
        min_in_sync=2,
    )
    assert can_be_spared(view, "b") is spared
    assert not can_be_spared(None, "b")
