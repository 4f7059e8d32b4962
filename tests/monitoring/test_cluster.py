"""Numbers by topic and group of a cluster: the sum over its nodes, whoever leads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from api.calls import Api
from lsmq_lab.local_cluster import LocalCluster
from support.clusters import running_cluster
from support.waiting import eventually

from .test_series import samples

QUEUES = 12


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    small = {"segment_bytes": 1 << 20, "memtable_bytes": 4 << 20}
    with running_cluster(__name__, tmp_path / "cluster", settings=small) as cluster:
        yield cluster


def total(nodes: list[Api], name: str, **labels: str) -> float:
    return sum(sum(samples(node, name, **labels).values()) for node in nodes)


@pytest.mark.slow
def test_the_lag_of_a_group_goes_over_to_whoever_leads(cluster: LocalCluster) -> None:
    nodes = [Api(node.url) for node in cluster.plan.nodes]
    nodes[0].create("t", QUEUES)
    nodes[0].send("t", *[{"queue": queue, "body": "x"} for queue in range(QUEUES) for _ in range(10)])
    for queue in range(QUEUES):
        document = {"topic": "t", "queues": [queue], "offsets": [4], "reset": True}
        nodes[0].call("POST", "/v1/groups/g/offsets", document, status=200)
    waiting = QUEUES * 6.0

    def is_counted(nodes: list[Api]) -> bool:
        return total(nodes, "lsmq_group_lag_messages", topic="t") == waiting

    eventually(lambda: is_counted(nodes), "the nodes together tell of all messages that wait")
    assert all(samples(node, "lsmq_group_lag_messages", topic="t") for node in nodes), "each of those that it leads"
    assert total(nodes, "lsmq_topic_written_messages_total", topic="t") == QUEUES * 10
    cluster.kill("n1")
    eventually(lambda: is_counted(nodes[1:]), "others tell of what the dead one led")
    assert total(nodes[1:], "lsmq_topic_written_messages_total", topic="t") < QUEUES * 10, "nobody counts twice"
    cluster.start("n1")
    eventually(lambda: is_counted(nodes) and bool(samples(nodes[0], "lsmq_group_lag_messages")), "it tells again")


@pytest.mark.slow
def test_the_last_hour_of_a_group_is_told_by_every_node_and_begins_anew_with_another_leader(
    cluster: LocalCluster,
) -> None:
    nodes = [Api(node.url) for node in cluster.plan.nodes]
    nodes[0].create("t", QUEUES)
    nodes[0].send("t", *[{"queue": queue, "body": "x"} for queue in range(QUEUES)])
    nodes[0].call("POST", "/v1/groups/g/offsets", {"topic": "t", "queues": [0], "offsets": [1]}, status=200)

    def past(node: Api) -> list[int | None]:
        lags: list[int | None] = node.get("/v1/groups/g/lag/history?topic=t").json()["lags"]
        return lags

    eventually(lambda: all(past(node)[-2:] == [QUEUES - 1] * 2 for node in nodes), "all tell of all shards")
    before = len(past(nodes[1]))
    cluster.kill("n1")
    eventually(lambda: past(nodes[1])[-1:] == [QUEUES - 1], "others have begun to keep what the dead one led")
    assert len(past(nodes[2])) < before + 1, "and do not know how that was before"
