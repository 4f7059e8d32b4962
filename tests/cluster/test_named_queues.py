"""Named queues on a real cluster: shards have their slots, followers know the names, a leader's death loses none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from api.calls import Answer, Api
from lsmq.queue_names import queue_slot
from lsmq.record_batch import Column, Flag, split_batches
from lsmq_lab.local_cluster import LocalCluster
from support.clusters import running_cluster
from support.waiting import eventually

SETTINGS = {
    "max_message_bytes": 256 << 10,
    "memtable_bytes": 1 << 20,
    "segment_bytes": 1 << 20,
    "wal_keep_bytes": 1 << 20,
    "cluster.ack_timeout_ms": 2_000,
}
NAMES = [f"agents.{at}.inbox" for at in range(60)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("named") / "cluster"
    with running_cluster(__name__, directory, settings=SETTINGS) as cluster:
        in_sync(cluster)
        yield cluster


def in_sync(cluster: LocalCluster, count: int = 3) -> None:
    def all_are() -> bool:
        return all(shard.leader and len(shard.in_sync) == count for shard in cluster.status().shards)

    eventually(all_are, f"{count} replicas are in sync")


class Clients:
    """Requests to whoever leads, by the routes that a node gives."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster

    def nodes(self) -> list[Api]:
        return [Api(node.url) for node in self.cluster.plan.nodes if self.cluster.process(node.id).pid is not None]

    def routes(self, topic: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.nodes()[0].get(f"/v1/topics/{topic}").json()["routes"]
        return found

    def leader(self, topic: str, name: str) -> Api:
        slot = queue_slot(name)
        (route,) = [route for route in self.routes(topic) if route["first"] <= slot < route["end"]]
        return Api(route["leader"])

    def send(self, topic: str, *items: tuple[str, str]) -> None:
        """One request a shard, again until its leader has taken it."""
        parts: dict[int, list[dict[str, str]]] = {}
        for name, body in items:
            shard = queue_slot(name) * 3 // 4096
            parts.setdefault(shard, []).append({"queue": name, "body": body})
        for messages in parts.values():

            def taken(messages: list[dict[str, str]] = messages) -> bool:
                try:
                    return self.leader(topic, messages[0]["queue"]).send(topic, *messages, status=None).status == 200
                except (OSError, TypeError, AssertionError):
                    return False

            eventually(taken, "the leader takes messages")

    def read(self, topic: str, name: str, query: str = "") -> Answer:
        return self.leader(topic, name).get(f"/v1/topics/{topic}/queues/{quote(name, safe='')}/messages{query}", None)

    def fetched(self, topic: str, **document: Any) -> dict[str, list[str]]:
        """Of all leaders, by name."""
        found: dict[str, list[str]] = {}
        leaders = {route["leader"] for route in self.routes(topic)}
        for url in leaders:
            answer = Api(url).call("POST", f"/v1/topics/{topic}/fetch", document, status=200)
            names: dict[int, str] = {}
            for batch in split_batches(answer.body, source="answer"):
                flags, lengths = list(batch.column(Column.FLAGS)), list(batch.column(Column.LENGTH))
                end = 0
                for at, queue in enumerate(batch.column(Column.QUEUE)):
                    begin, end = end, end + lengths[at]
                    text = bytes(batch.payload[begin:end]).decode()
                    if flags[at] == Flag.NAMES:
                        names[queue] = text
                    elif flags[at] == 0:
                        found.setdefault(names[queue], []).append(text)
        return found


def test_names_survive_the_death_of_a_leader_and_go_on_under_the_next(cluster: LocalCluster) -> None:
    clients, topic = Clients(cluster), "survives"
    options = {"queues": "named", "dedupe_window_ms": "forever"}
    made = clients.nodes()[0].call("PUT", f"/v1/topics/{topic}", options).json()
    assert [(route["first"], route["end"]) for route in made["routes"]] == [(0, 1365), (1365, 2730), (2730, 4096)]
    clients.send(topic, *((name, "1") for name in NAMES))
    gone = NAMES[0]
    known = {"queue": gone, "body": "3", "dedupe_id": "known"}
    clients.leader(topic, gone).send(topic, known)
    clients.leader(topic, gone).call("DELETE", f"/v1/topics/{topic}/queues/{gone}", status=204)

    def listed() -> list[str]:
        answer = clients.nodes()[1].get(f"/v1/topics/{topic}/queues", None)  # A shard may be about to change hands.
        return [row["name"] for row in answer.json()["queues"]] if answer.status == 200 else []

    eventually(lambda: listed() == sorted(NAMES[1:]), "those that are left are listed")
    victim = cluster.status().shards[0].leader
    assert victim is not None
    cluster.kill(victim)
    try:
        clients.send(topic, *((name, "2") for name in (*NAMES[1:], "new")))
        expected = {**{name: ["1", "2"] for name in NAMES[1:]}, "new": ["2"]}
        assert clients.fetched(topic, pattern="**", start="earliest") == expected
        assert clients.read(topic, gone).code == "unknown_queue"
    finally:
        cluster.up()
    in_sync(cluster)
    results = [clients.leader(topic, gone).send(topic, known).json()["results"][0] for _ in range(2)]
    assert ["duplicate" in result for result in results] == [False, True], "ids went with the queue that was deleted"
    assert [message["body"] for message in clients.read(topic, gone).json()["messages"]] == ["3"]


def test_a_follower_answers_by_name(cluster: LocalCluster) -> None:
    clients, topic = Clients(cluster), "followed"
    clients.nodes()[0].call("PUT", f"/v1/topics/{topic}", {"queues": "named"})
    in_sync(cluster)
    clients.send(topic, ("box", "1"))
    url = next(route for route in clients.routes(topic) if route["first"] <= queue_slot("box") < route["end"])
    follower = Api(url["followers"][0])

    def bodies() -> list[str]:
        answer = follower.get(f"/v1/topics/{topic}/queues/box/messages?from=any", None)
        return [message["body"] for message in answer.json()["messages"]] if answer.status == 200 else []

    eventually(lambda: bodies() == ["1"], "the follower has the queue")
    clients.send(topic, ("box", "2"))
    eventually(lambda: bodies() == ["1", "2"], "the follower has the next message")
    clients.leader(topic, "box").call("DELETE", f"/v1/topics/{topic}/queues/box", status=204)
    eventually(
        lambda: follower.get(f"/v1/topics/{topic}/queues/box/messages?from=any", None).status == 404,
        "the follower knows that the queue is gone",
    )
    passed_on = follower.send(topic, {"queue": "box", "body": "3"})
    assert passed_on.json()["results"][0]["queue"] == "box"


@pytest.mark.slow
def test_a_replica_that_is_filled_anew_knows_the_names(cluster: LocalCluster) -> None:
    clients, topic = Clients(cluster), "filled"
    clients.nodes()[0].call("PUT", f"/v1/topics/{topic}", {"queues": "named"})
    in_sync(cluster)
    behind = next(node.id for node in cluster.plan.nodes if node.id != cluster.status().shards[0].leader)
    cluster.kill(behind)
    try:
        for turn in range(12):
            clients.send(topic, *((name, f"{turn}" + "x" * 20_000) for name in NAMES))
    finally:
        cluster.up()
    in_sync(cluster)
    api = Api(next(node.url for node in cluster.plan.nodes if node.id == behind))

    def all_there() -> bool:
        answers = [api.get(f"/v1/topics/{topic}/queues/{name}/messages?from=any&max=100", None) for name in NAMES]
        return all(answer.status == 200 and len(answer.json()["messages"]) == 12 for answer in answers)

    eventually(all_there, "the replica has all queues by name")
