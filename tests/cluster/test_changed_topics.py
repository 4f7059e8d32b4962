"""Topics that are changed in a cluster of three real nodes: whoever leads obeys it, also after a failover."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lsmq_lab.local_cluster import LocalCluster
from support.clusters import running_cluster
from support.waiting import eventually

from .test_http import ask, send, settled, shard, url_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("changed") / "cluster"
    settings = {"segment_bytes": 1 << 20, "memtable_bytes": 4 << 20, "retention_interval_ms": 200}
    with running_cluster(__name__, directory, settings=settings) as cluster:
        yield cluster


def bounds(cluster: LocalCluster, topic: str, queue: int) -> tuple[int, int]:
    """Of the queue of a topic with a queue a shard, as its leader says; waits for one."""
    found: list[Any] = []

    def answered() -> bool:
        leader = shard(cluster, queue)["leader"]
        if leader is None:
            return False
        found[:] = ask(f"{url_of(cluster, leader)}/v1/topics/{topic}/queues/{queue}")
        return bool(found[0] == 200)

    eventually(answered, f"the leader of {topic} {queue} answers")
    return found[1]["earliest"], found[1]["latest"]


def successor(cluster: LocalCluster, number: int, killed: str) -> str:
    alive = next(node.url for node in cluster.plan.nodes if node.id != killed)
    eventually(
        lambda: ask(f"{alive}/v1/cluster")[1]["shards"][number]["leader"] not in (None, killed), "another one leads"
    )
    leader: str = ask(f"{alive}/v1/cluster")[1]["shards"][number]["leader"]
    return leader


def test_a_new_limit_is_obeyed_by_all_leaders_and_by_the_next_ones(cluster: LocalCluster) -> None:
    settled(cluster)
    url = f"{cluster.plan.nodes[0].url}/v1/topics/changed"
    ask(url, "PUT", {"queues": 3})
    for queue in range(3):
        for number in range(4):
            send(cluster, "changed", queue, f"{number}")
    assert [bounds(cluster, "changed", queue) for queue in range(3)] == [(0, 4)] * 3
    other = f"{cluster.plan.nodes[1].url}/v1/topics/changed"
    status, altered = ask(other, "PATCH", {"retention_ms": 1})
    assert (status, altered["options"]["retention_ms"], altered["revision"]) == (200, 1, 1)
    for queue in range(3):
        eventually(lambda queue=queue: bounds(cluster, "changed", queue) == (4, 4), "old messages go")  # type: ignore[misc]
    assert ask(url, "PATCH", {"queues": 9})[1]["error"]["code"] == "invalid_request"

    leader = shard(cluster, 0)["leader"]
    cluster.kill(leader)
    heir = successor(cluster, 0, leader)
    described = f"{url_of(cluster, heir)}/v1/topics/changed"
    assert ask(described)[1]["options"]["retention_ms"] == 1
    body = {"messages": [{"queue": 0, "body": "after"}]}
    eventually(lambda: ask(f"{described}/messages", "POST", body)[0] == 200, "the heir takes writes")
    eventually(lambda: ask(f"{described}/queues/0")[1]["earliest"] == 5, "what came after goes as well")
    assert ask(described, "PATCH", {"retention_ms": None})[1]["options"]["retention_ms"] is None
    cluster.start(leader)
    settled(cluster)


def test_any_node_trims_and_purges_all_shards_and_the_next_leaders_know(cluster: LocalCluster) -> None:
    settled(cluster)
    urls = [f"{node.url}/v1/topics/trimmed" for node in cluster.plan.nodes]
    ask(urls[0], "PUT", {"queues": 3})
    for queue in range(3):
        for number in range(4):
            send(cluster, "trimmed", queue, f"{number}")
    assert ask(f"{urls[1]}/trim", "POST", {"offset": 3, "queues": "0-1"}) == (200, {"messages": 6, "next": None})
    assert [bounds(cluster, "trimmed", queue) for queue in range(3)] == [(3, 4), (3, 4), (0, 4)]
    assert ask(f"{urls[2]}/trim", "POST", {"before_ms": 2**60}) == (200, {"messages": 6, "next": None})
    send(cluster, "trimmed", 2, "more")
    assert ask(f"{urls[2]}/purge", "POST", {}) == (200, {"messages": 1, "next": None})
    leader = shard(cluster, 2)["leader"]
    cluster.kill(leader)
    successor(cluster, 2, leader)
    cluster.start(leader)
    settled(cluster)
    assert [bounds(cluster, "trimmed", queue) for queue in range(3)] == [(4, 4), (4, 4), (5, 5)]


def test_limits_are_those_of_all_shards_and_what_went_is_known_to_the_next_leader(cluster: LocalCluster) -> None:
    settled(cluster)
    urls = [f"{node.url}/v1/topics/limited" for node in cluster.plan.nodes]
    options = {"max_messages": 12, "queue_max_messages": 5, "overflow": "refuse", "delete_consumed": True}
    assert ask(urls[0], "PUT", {"queues": 3, **options})[0] == 201

    def stored(queue: int) -> int:
        """Sends until it is refused; retries what may pass for other reasons."""
        for count in range(20):
            message = {"messages": [{"queue": queue, "body": "x"}]}
            answers: list[tuple[int, Any]] = []

            def answered(answers: list[tuple[int, Any]] = answers, message: Any = message) -> bool:
                leader = shard(cluster, queue)["leader"]
                answers.append(ask(f"{url_of(cluster, leader)}/v1/topics/limited/messages", "POST", message))
                return answers[-1][0] in (200, 507)

            eventually(answered, "a leader answers")
            if answers[-1][0] == 507:
                assert answers[-1][1]["error"]["code"] == "quota_exceeded", answers[-1]
                return count
        return 20

    assert stored(0) <= 5
    eventually(lambda: stored(1) + bounds(cluster, "limited", 1)[1] >= 5, "the second queue is filled")

    def full() -> bool:
        stored(2)
        return sum(bounds(cluster, "limited", queue)[1] for queue in range(3)) >= 12 or stored(0) + stored(1) > 0

    eventually(full, "the topic is filled")
    usage = ask(f"{urls[2]}/usage")[1]
    assert usage["messages"] <= 15 and usage["refused"] > 0
    leader = shard(cluster, 0)["leader"]
    held = bounds(cluster, "limited", 0)[1]
    commit = {"topic": "limited", "queues": [0], "offsets": [held - 1]}
    assert ask(f"{url_of(cluster, leader)}/v1/groups/g/offsets", "POST", commit)[0] == 200
    eventually(lambda: bounds(cluster, "limited", 0)[0] == held - 1, "what is consumed goes")
    assert ask(urls[0], "PATCH", {"overflow": "drop_newest"})[0] == 200

    def at_leader(rest: str = "messages") -> str:
        return f"{url_of(cluster, shard(cluster, 0)['leader'])}/v1/topics/limited/{rest}"

    def dropped() -> bool:
        answer = ask(at_leader(), "POST", {"messages": [{"queue": 0, "body": "x"}] * 6})
        return answer[0] == 200 and all("dropped" in each for each in answer[1]["results"])

    eventually(dropped, "the leader says what it drops")
    lost = ask(f"{urls[0]}/usage")[1]["dropped"]["overflow"]
    assert lost >= 6
    cluster.kill(leader)
    successor(cluster, 0, leader)
    alive = next(url for node, url in zip(cluster.plan.nodes, urls, strict=True) if node.id != leader)
    eventually(lambda: ask(f"{alive}/usage")[0] == 200, "the next leaders answer")
    usage = ask(f"{alive}/usage")[1]
    assert (usage["dropped"]["consumed"], usage["dropped"]["overflow"]) == (held - 1, lost)
    assert ask(alive, "PATCH", {"overflow": "drop_oldest", "max_messages": None})[0] == 200
    cluster.start(leader)
    settled(cluster)
    for number in range(8):
        send(cluster, "limited", 0, f"{number}")
    eventually(
        lambda: ask(f"{alive}/usage")[1]["dropped"]["overflow"] >= lost + 3, "as the next leader has it in its log"
    )
    earliest, latest = bounds(cluster, "limited", 0)
    assert latest - earliest <= 5
    assert ask(alive, "PATCH", {"overflow": "drop_lowest_priority"})[0] == 200
    counted = ask(f"{alive}/usage")[1]["dropped"]["overflow"]
    messages = [{"queue": 0, "body": f"{priority}", "priority": priority} for priority in (1, 9, 2, 8, 3, 7, 4, 6)]
    eventually(lambda: ask(at_leader(), "POST", {"messages": messages})[0] == 200, "a leader takes them")

    def kept() -> list[str]:
        found = ask(at_leader("queues/0/messages?offset=earliest"))[1]
        return [message["body"] for message in found["messages"]]

    eventually(lambda: kept() == ["9", "8", "7", "4", "6"], "those of the lowest priority go")
    assert ask(f"{alive}/usage")[1]["dropped"]["overflow"] == counted + latest - earliest + 3


def test_a_queue_holds_no_more_bytes_under_the_next_leader(cluster: LocalCluster) -> None:
    settled(cluster)
    urls = [f"{node.url}/v1/topics/bytes" for node in cluster.plan.nodes]
    assert ask(urls[0], "PUT", {"queues": 3, "queue_max_bytes": 4_000})[0] == 201

    def refused(leader: str | None) -> dict[str, Any] | None:
        """Sends one more to it, and what it says where there is no room."""
        if leader is None:
            return None
        message = {"messages": [{"queue": 0, "body": "x" * 900}]}
        status, answer = ask(f"{url_of(cluster, leader)}/v1/topics/bytes/messages", "POST", message)
        assert status != 507 or answer["error"]["option"] == "queue_max_bytes"
        return answer["error"] if status == 507 else None

    eventually(lambda: refused(shard(cluster, 0)["leader"]), "the queue is full")
    assert bounds(cluster, "bytes", 0) == (0, 4)
    leader = shard(cluster, 0)["leader"]
    cluster.kill(leader)
    following = successor(cluster, 0, leader)

    def stored() -> int:
        status, found = ask(f"{url_of(cluster, following)}/v1/topics/bytes/queues/0")
        return int(found["latest"]) if status == 200 else 1 << 40

    def full() -> bool:
        error = refused(following)
        return error is not None and error["held"] >= 900 * stored()

    eventually(full, "the next leader knows what is there once it has looked")
    assert 4 <= stored() <= 8, "until then it may take as much again"
    cluster.start(leader)
    settled(cluster)
