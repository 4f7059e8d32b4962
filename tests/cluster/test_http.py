"""The HTTP API of a cluster, as any HTTP client sees it: three real nodes, asked one by one."""

from __future__ import annotations

import itertools
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import lsmq
from lsmq.cli import root
from lsmq_lab.believed import opener
from lsmq_lab.local_cluster import LocalCluster
from support.clusters import running_cluster
from support.waiting import eventually

SHARDS = 3
_IDS = itertools.count(1)  # of producers


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("http") / "cluster"
    settings = {"segment_bytes": 1 << 20, "memtable_bytes": 4 << 20, "cluster.ack_timeout_ms": 1000}
    with running_cluster(__name__, directory, shards=SHARDS, settings=settings) as cluster:
        yield cluster


def ask(url: str, method: str = "GET", body: Any = None) -> tuple[int, Any]:
    """Status and document of one request to this very node, whatever the status."""
    content = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Lsmq-Forward": "refuse"}
    request = urllib.request.Request(url, content, headers, method=method)
    try:
        with opener().open(request, timeout=10) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def overview(cluster: LocalCluster) -> dict[str, Any]:
    status, document = ask(f"{cluster.plan.nodes[0].url}/v1/cluster")
    assert status == 200, document
    found: dict[str, Any] = document
    return found


def shard(cluster: LocalCluster, number: int) -> dict[str, Any]:
    found: dict[str, Any] = overview(cluster)["shards"][number]
    return found


def url_of(cluster: LocalCluster, node: str) -> str:
    return cluster.plan.node(node).url


def settled(cluster: LocalCluster) -> None:
    """All nodes alive, all replicas in sync, every shard led by its preferred leader."""

    def well() -> bool:
        found = overview(cluster)
        return all(node["alive"] for node in found["nodes"]) and all(
            sorted(entry["in_sync"]) == sorted(entry["replicas"])
            and entry["leader"] == entry["replicas"][0]
            and not entry["target"]
            for entry in found["shards"]
        )

    eventually(lambda: ask(f"{cluster.plan.nodes[0].url}/v1/cluster")[0] == 200, "the cluster is known")
    eventually(well, "all is well")


def send(cluster: LocalCluster, topic: str, queue: int, body: str, **envelope: Any) -> Any:
    """The answer of the leader, as the routes of any node name it; again while it changes. It is stored once."""
    message = {"messages": [{"queue": queue, "body": body}], "producer": {"id": next(_IDS), "sequence": 0}, **envelope}
    answers: list[tuple[int, Any]] = []

    def stored() -> bool:
        _, described = ask(f"{cluster.plan.nodes[0].url}/v1/topics/{topic}")
        route = next(route for route in described["routes"] if route["first"] <= queue < route["end"])
        if route["leader"] is None:
            return False
        answers.append(ask(f"{route['leader']}/v1/topics/{topic}/messages", "POST", message))
        assert answers[-1][0] in (200, 421, 503), answers[-1]
        return answers[-1][0] == 200

    eventually(stored, f"a leader takes {body!r}")
    return answers[-1][1]


def test_a_topic_made_at_one_node_is_at_once_there_at_all(cluster: LocalCluster) -> None:
    urls = [node.url for node in cluster.plan.nodes]
    for place, url in enumerate(urls):
        name = f"made-{place}"
        assert ask(f"{url}/v1/topics/{name}", "PUT", {"queues": 6})[0] == 201
        for other in urls:
            status, topic = ask(f"{other}/v1/topics/{name}")
            assert status == 200 and topic["queues"] == 6
            assert [route["shard"] for route in topic["routes"]] == [0, 1, 2]
            assert {route["leader"] for route in topic["routes"]} <= set(urls)
    refused = ask(f"{urls[0]}/v1/topics/made-0", "PUT", {"queues": 7})[1]["error"]
    assert (refused["code"], refused["queues"], refused["options"]["ack"]) == ("topic_exists", 6, "quorum")
    assert ask(f"{urls[1]}/v1/topics/made-0", "DELETE")[0] == 204
    for url in urls:
        eventually(lambda url=url: ask(f"{url}/v1/topics/made-0")[0] == 404, f"{url} knows that it is gone")  # type: ignore[misc]


def test_who_does_not_lead_says_who_does(cluster: LocalCluster) -> None:
    settled(cluster)
    ask(f"{cluster.plan.nodes[0].url}/v1/topics/led", "PUT", {"queues": SHARDS})
    for number in range(SHARDS):
        leader = shard(cluster, number)["leader"]
        for node in cluster.plan.nodes:
            base = f"{node.url}/v1/topics/led"
            answers = [
                ask(f"{base}/messages", "POST", {"messages": [{"queue": number, "body": "x"}]}),
                ask(f"{base}/queues/{number}/messages"),
                ask(f"{base}/queues/{number}"),
                ask(f"{node.url}/v1/groups/g/offsets", "POST", {"topic": "led", "queues": [number], "offsets": [0]}),
            ]
            if node.id == leader:
                assert [status for status, _ in answers] == [200] * len(answers), answers
                continue
            for status, answer in answers:
                assert status == 421
                error = answer["error"]
                assert error["code"] == "not_leader" and error["retriable"] and error["refresh_route"]
                assert (error["shard"], error["leader"]) == (number, url_of(cluster, leader))
                assert error["epoch"] == shard(cluster, number)["epoch"]


def test_messages_without_queue_go_to_shards_that_the_node_leads(cluster: LocalCluster) -> None:
    settled(cluster)
    ask(f"{cluster.plan.nodes[0].url}/v1/topics/anywhere", "PUT", {"queues": 9})
    for node in cluster.plan.nodes:
        messages = [{"body": str(number)} for number in range(10)]
        status, answer = ask(f"{node.url}/v1/topics/anywhere/messages", "POST", {"messages": messages})
        assert status == 200
        led = {entry["id"] for entry in overview(cluster)["shards"] if entry["leader"] == node.id}
        assert {result["queue"] // 3 for result in answer["results"]} <= led


@pytest.mark.parametrize("ack", ["quorum", "leader"])
def test_a_message_is_read_back_whatever_acknowledged_it(cluster: LocalCluster, ack: str) -> None:
    name = f"acks-{ack}"
    ask(f"{cluster.plan.nodes[0].url}/v1/topics/{name}", "PUT", {"queues": 3})
    answer = send(cluster, name, 1, "hello", ack=ack)
    leader = url_of(cluster, shard(cluster, 1)["leader"])
    found = ask(f"{leader}/v1/topics/{name}/queues/1/messages?wait_ms=2000")[1]["messages"]
    assert [message["body"] for message in found] == ["hello"]
    assert ask(f"{leader}/v1/messages/{answer['results'][0]['id']}")[1]["body"] == "hello"


def test_leadership_is_handed_over_and_back(cluster: LocalCluster) -> None:
    settled(cluster)
    ask(f"{cluster.plan.nodes[0].url}/v1/topics/handed", "PUT", {"queues": 3})
    send(cluster, "handed", 0, "before")
    before = shard(cluster, 0)
    heir = next(node for node in before["in_sync"] if node != before["leader"])
    admin = f"{cluster.plan.nodes[1].url}/v1/cluster/shards/0/leader"
    assert ask(admin, "PUT", {"node": heir})[0] == 200
    eventually(lambda: shard(cluster, 0)["leader"] == heir, "leadership is handed over")
    assert shard(cluster, 0)["epoch"] > before["epoch"]
    send(cluster, "handed", 0, "after")
    found = ask(f"{url_of(cluster, heir)}/v1/topics/handed/queues/0/messages")[1]["messages"]
    assert [message["body"] for message in found] == ["before", "after"]
    refused = ask(admin, "PUT", {"node": "nobody"})
    assert refused[0] == 400 and "nobody" in refused[1]["error"]["message"]
    assert ask(admin, "PUT", {"node": before["leader"]})[0] == 200
    settled(cluster)


@pytest.mark.part(2)
def test_too_few_replicas_are_said_so_and_lose_nothing(cluster: LocalCluster) -> None:
    settled(cluster)
    ask(f"{cluster.plan.nodes[0].url}/v1/topics/few", "PUT", {"queues": 3})
    send(cluster, "few", 0, "kept")
    leader = shard(cluster, 0)["leader"]
    others = [node.id for node in cluster.plan.nodes if node.id != leader]
    for node in others:
        cluster.kill(node)
    body = {"messages": [{"queue": 0, "body": "maybe"}]}
    # Without a majority nobody may lead for long, and nothing is acknowledged.
    status, answer = ask(f"{url_of(cluster, leader)}/v1/topics/few/messages", "POST", body)
    assert status in (421, 503), answer
    assert answer["error"]["code"] in ("not_enough_replicas", "not_leader", "unavailable")
    assert answer["error"]["retriable"]
    for node in others:
        cluster.start(node)
    settled(cluster)
    send(cluster, "few", 0, "more")
    leader_url = url_of(cluster, shard(cluster, 0)["leader"])
    found = [message["body"] for message in ask(f"{leader_url}/v1/topics/few/queues/0/messages")[1]["messages"]]
    assert found[0] == "kept" and found[-1] == "more" and set(found) <= {"kept", "maybe", "more"}


def test_committed_offsets_survive_the_leader(cluster: LocalCluster) -> None:
    settled(cluster)
    ask(f"{cluster.plan.nodes[0].url}/v1/topics/committed", "PUT", {"queues": 3})
    for number in range(5):
        send(cluster, "committed", 2, str(number))
    leader = shard(cluster, 2)["leader"]
    commit = {"topic": "committed", "queues": [2], "offsets": [4]}
    assert ask(f"{url_of(cluster, leader)}/v1/groups/g/offsets", "POST", commit)[0] == 200
    cluster.kill(leader)
    alive = next(node for node in cluster.plan.nodes if node.id != leader)

    def successor() -> Any:
        return ask(f"{alive.url}/v1/cluster")[1]["shards"][2]["leader"]

    eventually(lambda: successor() not in (None, leader), "another one leads")
    heir = successor()
    path = f"{url_of(cluster, heir)}/v1/groups/g/offsets?topic=committed&queues=2"
    eventually(lambda: ask(path)[0] == 200, "it serves")
    assert ask(path)[1] == {"queues": [2], "offsets": [4]}
    cluster.start(leader)
    settled(cluster)


def test_every_node_shows_the_cluster_and_is_ready(cluster: LocalCluster) -> None:
    settled(cluster)
    for node in cluster.plan.nodes:
        status, health = ask(f"{node.url}/readyz")
        assert (status, health["status"], health["reasons"]) == (200, "ok", [])
        status, found = ask(f"{node.url}/v1/cluster")
        assert status == 200 and found["cluster"] == cluster.plan.name
        assert [entry["id"] for entry in found["nodes"]] == ["n1", "n2", "n3"]
        assert found["control_leader"] in ("n1", "n2", "n3")
        figures = ask(f"{node.url}/v1/status")[1]["shards"]
        assert [entry["shard"] for entry in figures] == [0, 1, 2]

        def lead_and_follow(url: str = node.url) -> bool:
            return {entry["role"] for entry in ask(f"{url}/v1/status")[1]["shards"]} == {"leading", "following"}

        eventually(lead_and_follow, "each node leads one shard and follows in the others")
        for entry in ask(f"{node.url}/v1/status")[1]["shards"]:
            assert entry["enough_in_sync"] is (True if entry["serving"] else None), "who follows says nothing of it"
    listed = CliRunner().invoke(root, ["node", "list", "--json", "--url", cluster.plan.nodes[0].url])
    rows = json.loads(listed.stdout)
    assert {(row["alive"], row["voter"], row["version"]) for row in rows} == {(True, True, lsmq.__version__)}


def test_any_node_says_how_far_a_group_is_behind_in_all_shards(cluster: LocalCluster) -> None:
    settled(cluster)
    ask(f"{cluster.plan.nodes[0].url}/v1/topics/behind", "PUT", {"queues": 6})
    for queue in range(6):
        for _ in range(queue + 1):
            send(cluster, "behind", queue, "x")
    commit = {"topic": "behind", "queues": [5], "offsets": [4], "reset": True}
    leader = url_of(cluster, shard(cluster, SHARDS - 1)["leader"])
    assert ask(f"{leader}/v1/groups/g/offsets", "POST", commit)[0] == 200
    for node in cluster.plan.nodes:
        status, lag = ask(f"{node.url}/v1/groups/g/lag?topic=behind")
        assert status == 200, lag
        counted = {name: lag[name] for name in ("queues", "lag", "behind", "uncommitted", "largest")}
        assert counted == {"queues": 6, "lag": 17, "behind": 6, "uncommitted": 5, "largest": 5}
        assert lag["last_commit_age_ms"] >= 0
        _, lag = ask(f"{node.url}/v1/groups/g/lag?topic=behind&ranges=1-4,5")
        assert lag["by_range"] == [2, 3 + 4, 5, 2], "cut where shards begin"
    status, answer = ask(f"{cluster.plan.nodes[0].url}/v1/groups/g/lag?topic=behind&ranges=0-6")
    assert (status, answer["error"]["code"]) == (404, "unknown_queue")


def test_a_node_that_does_not_know_the_cluster_shows_none(tmp_path: Path) -> None:
    """One without shards would have clients delete the offsets of no shard, and find the groups of none."""
    with running_cluster(__name__, tmp_path / "cluster", up=False, shards=SHARDS) as cluster:
        first, *others = (node.id for node in cluster.plan.nodes)
        url = f"{url_of(cluster, first)}/v1/cluster"
        cluster.start(first)
        status, answer = ask(url)
        assert (status, answer["error"]["code"], answer["error"]["retriable"]) == (503, "unavailable", True)
        assert "majority" in answer["error"]["message"]
        for node in others:
            cluster.start(node)
        eventually(lambda: ask(url)[0] == 200, "the cluster is known")
        assert [entry["id"] for entry in ask(url)[1]["shards"]] == [0, 1, 2]
