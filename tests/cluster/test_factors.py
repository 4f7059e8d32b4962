"""Replication factors 1, 2 and 5 on real clusters: what survives a killed leader, and what waits for it.

Three replicas are those of ``test_local_cluster`` and of most drills.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lsmq.errors import InvalidRequest, LsmqError
from lsmq.sync import Client, Consumer, Producer
from lsmq_lab.local_cluster import LocalCluster, found_plan
from support.clusters import running_cluster
from support.waiting import eventually

SMALL = {"segment_bytes": 1 << 20, "memtable_bytes": 4 << 20}
TOPIC = "t"


@contextmanager
def running(directory: Path, nodes: int, replicas: int, **plan: int) -> Iterator[LocalCluster]:
    """A cluster of one shard, whose leader is the first replica, with everybody in sync."""
    with running_cluster(
        __name__, directory / "c", nodes=nodes, replicas=replicas, shards=1, settings=SMALL, **plan
    ) as cluster:
        in_sync(cluster, replicas)
        yield cluster


def in_sync(cluster: LocalCluster, count: int) -> None:
    eventually(lambda: len(cluster.status().shards[0].in_sync) == count, f"{count} replicas are in sync")


def leader(cluster: LocalCluster) -> str:
    found = cluster.status().shards[0].leader
    assert found is not None
    return found


def client(cluster: LocalCluster) -> Client:
    return Client([node.url for node in cluster.plan.nodes], deadline_ms=60_000)


def write(client: Client, *bodies: str, deadline_ms: int = 60_000) -> None:
    with Producer(client, TOPIC, ack="quorum", deadline_ms=deadline_ms) as producer:
        for body in bodies:
            producer.send(body, queue=0)


def read(client: Client, count: int) -> list[str]:
    with Consumer(client, TOPIC, start="earliest") as consumer:
        found: list[str] = []
        while len(found) < count:
            found += [message.body.decode() for message in consumer.poll(count, timeout_ms=20_000)]
    return found


@pytest.mark.slow
def test_of_five_replicas_two_leaders_may_die_one_after_the_other_and_writes_go_on(tmp_path: Path) -> None:
    with running(tmp_path, 5, 5) as cluster, client(cluster) as asked:
        asked.create_topic(TOPIC, queues=1)
        write(asked, "0")
        victims = []
        for death in range(2):
            victims.append(leader(cluster))
            cluster.kill(victims[-1])
            write(asked, str(death + 1))
        assert leader(cluster) not in victims
        assert read(asked, 3) == ["0", "1", "2"]
        for victim in victims:
            cluster.start(victim)
        in_sync(cluster, 5)


@pytest.mark.part(2)
def test_a_replica_that_is_made_under_another_size_of_segments_takes_that_of_the_others(tmp_path: Path) -> None:
    """The setting was changed, which is said to do nothing, and later a disk was lost."""
    with running(tmp_path, 3, 3) as cluster, client(cluster) as asked:
        asked.create_topic(TOPIC, queues=1)
        write(asked, "before")
        victim = cluster.status().shards[0].replicas[0]
        cluster.stop(victim)
        home = tmp_path / "c" / victim
        shutil.rmtree(home / "data")
        file = home / "node.toml"
        text, changes = re.subn(r"(?m)^segment_bytes = .*$", f"segment_bytes = {1 << 21}", file.read_text())
        assert changes == 1
        file.write_text(text)
        cluster.start(victim)
        in_sync(cluster, 3)
        eventually(lambda: leader(cluster) == victim, "it leads again")
        bodies = [f"{number}" + "x" * 500_000 for number in range(6)]  # beyond the end of several segments
        write(asked, *bodies)
        assert read(asked, 7) == ["before", *bodies]
        in_sync(cluster, 3)
        assert "setting_not_taken" in (home / "node.log").read_text()


def test_with_two_replicas_writes_wait_for_the_dead_one_and_nothing_is_lost(tmp_path: Path) -> None:
    with running(tmp_path, 3, 2) as cluster, client(cluster) as asked:
        asked.create_topic(TOPIC, queues=1)
        write(asked, "0")
        victim = leader(cluster)
        other = next(node for node in cluster.status().shards[0].replicas if node != victim)
        cluster.kill(victim)
        with pytest.raises(LsmqError) as refused:
            write(asked, "1", deadline_ms=1_500)
        assert refused.value.code == "timed_out" and refused.value.details["maybe_stored"] in (True, False)
        eventually(lambda: leader(cluster) == other, "the other replica is elected")
        assert not cluster.status().shards[0].serving, "it cannot know that its write is on two disks"
        cluster.start(victim)
        write(asked, "2")
        assert [body for body in read(asked, 2) if body != "1"] == ["0", "2"]
        in_sync(cluster, 2)


def test_with_two_replicas_and_one_in_sync_a_dead_follower_costs_nothing(tmp_path: Path) -> None:
    with running(tmp_path, 3, 2, min_in_sync=1) as cluster, client(cluster) as asked:
        asked.create_topic(TOPIC, queues=1)
        shard = cluster.status().shards[0]
        follower = next(node for node in shard.replicas if node != shard.leader)
        cluster.kill(follower)
        write(asked, "0")
        assert leader(cluster) == shard.leader
        assert read(asked, 1) == ["0"]


@pytest.mark.part(2)
def test_with_one_replica_a_dead_leader_is_waited_for_and_other_shards_go_on(tmp_path: Path) -> None:
    with running_cluster(__name__, tmp_path / "c", replicas=1, settings=SMALL) as cluster, client(cluster) as asked:
        routes = asked.create_topic(TOPIC, queues=3).routes
        with Producer(asked, TOPIC) as producer:
            for queue in range(3):
                producer.send("before", queue=queue)
        victim = cluster.status().shards[routes[0].shard].leader
        assert victim is not None
        cluster.kill(victim)
        with Producer(asked, TOPIC, deadline_ms=1_500) as producer:
            for queue in (1, 2):
                assert producer.send_and_wait("meanwhile", queue=queue).offset == 1
            with pytest.raises(LsmqError):
                producer.send_and_wait("refused", queue=0)
        cluster.start(victim)
        with Producer(asked, TOPIC) as producer:
            producer.send("after", queue=0)
        with Consumer(asked, TOPIC, queues=[0], start="earliest") as consumer:
            found: list[bytes] = []
            while found[-1:] != [b"after"]:
                found += [message.body for message in consumer.poll(10, timeout_ms=20_000)]
        assert [body for body in found if body != b"refused"] == [b"before", b"after"]


def test_more_replicas_than_founding_voters_are_refused_with_what_to_do() -> None:
    for nodes, replicas, remedy in ((2, 2, "three"), (4, 4, "five")):
        with pytest.raises(InvalidRequest, match=f"founded on .* {remedy} nodes"):
            found_plan(nodes=nodes, replicas=replicas)
