"""Streams of named topics from a cluster: each message once while leaders die, and read where it is replicated."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from lsmq.sync import Client
from lsmq_lab.local_cluster import LocalCluster
from support.clusters import running_cluster
from support.played_query import NamedSender, PlayedQuery
from support.waiting import eventually

SETTINGS = {"memtable_bytes": 1 << 20, "max_message_bytes": 256 << 10, "cluster.ack_timeout_ms": 2_000}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes with three shards, each shard on all of them."""
    directory = tmp_path_factory.mktemp("named") / "cluster"
    with running_cluster(__name__, directory, replicas=3, settings=SETTINGS) as cluster:
        in_sync(cluster)
        yield cluster


def in_sync(cluster: LocalCluster) -> None:
    def all_are() -> bool:
        return all(shard.leader and len(shard.in_sync) == 3 for shard in cluster.status().shards)

    eventually(all_are, "3 replicas are in sync")


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.part(3)
def test_a_stream_has_each_message_once_while_leaders_die(
    cluster: LocalCluster, topic_name: str, restarts: bool
) -> None:
    """With the driver that was there, and with one that knows nothing but the checkpoint."""
    chance, shard = random.Random(restarts), int(restarts)
    url = ",".join(node.url for node in cluster.status().nodes)
    with Client(url) as client:
        client.create_topic(topic_name, queues="named")
        sender = NamedSender(client, topic_name)
        query = PlayedQuery(url, topic=topic_name, startingOffsets="earliest", maxMessagesPerTrigger=100)
        for turn in range(3):
            sender.send([f"agents.{chance.randrange(60 * (turn + 1))}" for _ in range(250)])
            first = query.batch(ReadMaxRows(100))
            assert first
            in_sync(cluster)
            victim = next(each.leader for each in cluster.status().shards if each.id == shard)
            assert victim is not None
            cluster.kill(victim)
            try:
                if restarts:
                    query.again()
                assert query.read(query.ended[-2], query.ended[-1]) == first, "the batch is the same again"
                sender.send([f"agents.{number}" for number in range(30)])
                query.batch(ReadMaxRows(100))
                if turn:
                    client.delete_queue(topic_name, "comes-and-goes")
                sender.send(["comes-and-goes"])
            finally:
                cluster.start(victim)
            while query.batch(ReadMaxRows(100)) is not None:
                pass
            assert sorted(query.bodies) == sorted(sender.sent)
        query.reader.stop()
