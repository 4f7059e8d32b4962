"""What one address may take of a cluster: it counts where things are kept, whichever node passes its requests on."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from api.calls import Answer, Api
from lsmq_lab.local_cluster import LocalCluster
from support.clusters import running_cluster
from support.waiting import eventually

SHARDS = 3
#: Of 200 things an address may have two.
SETTINGS = {
    "segment_bytes": 1 << 20,
    "memtable_bytes": 4 << 20,
    "address_share_percent": 1,
    "max_groups": 200,
    "max_forwarded": 200,
    "max_named_queues": 200,
    "max_connections": 2_000,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("shares") / "cluster"
    with running_cluster(__name__, directory, shards=SHARDS, settings=SETTINGS) as cluster:
        first = Api(cluster.plan.nodes[0].url, "127.0.2.1")
        first.create("t", SHARDS)
        yield cluster


def call(who: Api, method: str, path: str, document: object, **headers: str) -> Answer:
    """Asked again where a leader changes meanwhile."""
    answers: list[Answer] = []

    def is_answered() -> bool:
        answers.append(who.call(method, path, document, headers=headers))
        return answers[-1].status < 500

    eventually(is_answered, f"{method} {path} is answered")
    return answers[-1]


def commit(who: Api, group: str, queue: int, **headers: str) -> Answer:
    document = {"topic": "t", "queues": [queue], "offsets": [0]}
    return call(who, "POST", f"/v1/groups/{group}/offsets", document, **headers)


def while_nobody_else_leads(cluster: LocalCluster, check: Callable[[int], None]) -> None:
    """Whoever begins to lead counts anew: then it is checked once more, as the next of several."""

    def epochs() -> dict[int, int]:
        shown = Api(cluster.plan.nodes[0].url, "127.0.2.1").get("/v1/cluster").json()
        return {shard["id"]: shard["epoch"] for shard in shown["shards"]}

    for number in range(10):
        before = epochs()
        try:
            check(number)
        except AssertionError:
            if epochs() == before:
                raise
        else:
            return
    raise AssertionError("leaders change all the time")


def test_groups_count_for_the_address_whichever_node_it_asks_and_whatever_it_says_of_itself(
    cluster: LocalCluster,
) -> None:
    urls = itertools.cycle(node.url for node in cluster.plan.nodes)

    def check(number: int, queue: int) -> None:
        address, other, name = f"127.0.2.{100 + 2 * number}", f"127.0.2.{101 + 2 * number}", f"g{queue}-{number}"
        for which in range(2):
            assert commit(Api(next(urls), address), f"{name}-{which}", queue).status == 200
        for _ in cluster.plan.nodes:
            refused = commit(Api(next(urls), address), f"{name}-more", queue)
            assert refused.status == 429
            assert (refused.code, refused.error["setting"]) == ("too_many_groups", "address_share_percent")
            forged = commit(Api(next(urls), address), f"{name}-more", queue, **{"Lsmq-Address": "10.9.8.7"})
            assert forged.status == 429 and forged.code == "too_many_groups"
        for _ in cluster.plan.nodes:
            assert commit(Api(next(urls), address), f"{name}-0", queue).status == 200
        assert commit(Api(next(urls), other), f"{name}-more", queue).status == 200

    for queue in range(SHARDS):
        while_nobody_else_leads(cluster, partial(check, queue=queue))


def test_schedules_count_for_the_address_at_the_leader(cluster: LocalCluster) -> None:
    urls = itertools.cycle(node.url for node in cluster.plan.nodes)

    def put(address: str, name: str) -> Answer:
        document = {"cron": "0 9 * * *", "tz": "UTC", "message": {"body": "x", "queue": 1}}
        return call(Api(next(urls), address), "PUT", f"/v1/topics/t/schedules/{name}", document)

    def check(number: int) -> None:
        address, other, name = f"127.0.2.{150 + 2 * number}", f"127.0.2.{151 + 2 * number}", f"s{number}"
        assert {put(address, f"{name}-{at}").status for at in range(100)} <= {200, 201}
        for _ in cluster.plan.nodes:
            answer = put(address, f"{name}-more")
            assert answer.status == 429 and answer.code == "too_many_schedules"
        assert put(other, f"{name}-more").status in (200, 201)

    while_nobody_else_leads(cluster, check)


def test_queues_with_names_count_for_the_address_at_the_leader(cluster: LocalCluster) -> None:
    urls = itertools.cycle(node.url for node in cluster.plan.nodes)
    call(Api(next(urls), "127.0.2.1"), "PUT", "/v1/topics/names", {"queues": "named"})

    def put(address: str, name: str) -> Answer:
        document = {"messages": [{"body": "x", "queue": name}]}
        return call(Api(next(urls), address), "POST", "/v1/topics/names/messages", document)

    def check(number: int) -> None:
        address, other = f"127.0.2.{200 + 2 * number}", f"127.0.2.{201 + 2 * number}"
        names = [f"{number}-{at}" for at in range(60)]
        answers = [put(address, name) for name in names]
        assert {answer.status for answer in answers} == {200, 429}
        assert {answer.code for answer in answers if answer.status == 429} == {"too_many_queues"}
        made = [name for name, answer in zip(names, answers, strict=True) if answer.status == 200]
        assert len(made) == 2 * SHARDS, "two in each shard"
        left = next(name for name in names if name not in made)
        for _ in cluster.plan.nodes:
            assert {put(address, name).status for name in made} == {200}
            assert put(address, left).status == 429
        assert put(other, left).status == 200

    while_nobody_else_leads(cluster, check)


def test_an_address_has_its_share_of_what_is_passed_on_at_a_time(cluster: LocalCluster) -> None:
    def metric(name: str) -> float:
        return sum(Api(node.url, "127.0.2.1").metric(name) for node in cluster.plan.nodes)

    shown = Api(cluster.plan.nodes[0].url, "127.0.2.1").get("/v1/topics/t").json()
    route = next(each for each in shown["routes"] if each["leader"] not in (None, cluster.plan.nodes[0].url))
    queue = route["first"]
    path = f"/v1/topics/t/queues/{queue}/messages?offset=0&wait_ms=60000"
    asked = Api(cluster.plan.nodes[0].url, "127.0.2.40")
    polls = [threading.Thread(target=asked.call, args=("GET", path)) for _ in range(2)]
    for poll in polls:
        poll.start()
    eventually(lambda: metric("lsmq_forwards_held") == 2, "both are passed on")
    refused = asked.call("GET", path)
    assert (refused.status, refused.code) == (503, "unavailable")
    assert "max_forwarded" in refused.error["message"] and refused.error["setting"] == "address_share_percent"
    other = threading.Thread(target=Api(cluster.plan.nodes[0].url, "127.0.2.41").call, args=("GET", path))
    other.start()
    eventually(lambda: metric("lsmq_forwards_held") == 3, "another address's is passed on beside")
    Api(cluster.plan.nodes[0].url, "127.0.2.1").send("t", {"body": "now", "queue": queue})
    for thread in (*polls, other):
        thread.join()
