"""How much of a node one principal may take; what the others notice of it: nothing."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest

from lsmq import Client, Consumer, Producer
from lsmq.errors import TooManyRequests
from support.node_process import NodeProcess
from support.waiting import PATIENCE_S, eventually

from .calls import Answer, Api
from .test_rights import Asking, Realm


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    node = NodeProcess(tmp_path_factory.mktemp("limits") / "data", auth="token")
    node.start()
    try:
        eventually((node.data / "admin.token").exists, "the first token is written")
        realm = Realm(node)
        realm.admin.create("t", 2)
        yield realm
    finally:
        node.stop()


def limited(realm: Realm, **limits: int | None) -> tuple[str, Asking]:
    """Somebody who may do everything, so often."""
    name, somebody = realm.somebody(("admin", ""))
    if limits:
        realm.admin.call("PATCH", f"/v1/limits/{name}", limits, status=204)
    return name, somebody


def at_once(api: Api, count: int, path: str = "/v1/topics/t") -> list[Answer]:
    async def ask() -> list[Answer]:
        return await asyncio.gather(*(asyncio.to_thread(api.get, path, None) for _ in range(count)))

    return asyncio.run(ask())


def held(api: Asking, count: int) -> tuple[list[threading.Thread], list[Answer]]:
    """Long polls that nothing comes for, each on a connection of its own."""
    answers: list[Answer] = []

    def poll() -> None:
        answers.append(api.call("GET", "/v1/topics/t/queues/1/messages?offset=0&wait_ms=60000"))

    threads = [threading.Thread(target=poll) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads, answers


def test_who_floods_is_delayed_then_refused_and_a_neighbour_is_served(realm: Realm) -> None:
    name, flood = limited(realm, requests_per_s=2)
    _, neighbour = limited(realm)
    answers = at_once(flood, 30)
    assert {answer.status for answer in answers} == {200, 429}
    refused = next(answer for answer in answers if answer.status == 429)
    assert refused.code == "too_many_requests" and refused.error["retriable"]
    assert (refused.error["limit"], refused.error["setting"]) == (2, "principal_requests_per_s")
    assert name in refused.error["message"] and refused.error["retry_after_ms"] > 0
    assert int(refused.headers["Retry-After"]) >= 1
    assert {answer.status for answer in at_once(neighbour, 30)} == {200}
    limit = '{limit="principal_requests_per_s"}'
    assert realm.admin.metric(f"lsmq_limit_refused_total{limit}") >= 1
    assert realm.admin.metric(f"lsmq_limit_delayed_total{limit}") >= 1
    assert flood.get("/healthz").status == 200


def test_bytes_of_a_principal_are_paid_for_by_his_requests_after(realm: Realm) -> None:
    _, flood = limited(realm, bytes_per_s=100_000)
    flood.send("t", {"body": "x" * 400_000, "queue": 0})
    refused = flood.get("/v1/topics/t", None)
    assert (refused.status, refused.code) == (429, "too_many_requests")
    assert refused.error["setting"] == "principal_bytes_per_s"
    _, neighbour = limited(realm)
    neighbour.send("t", {"body": "x", "queue": 0})


def test_bodies_count_that_come_to_nothing_or_do_not_say_their_length(realm: Realm) -> None:
    unknown = json.dumps({"messages": [{"body": "x" * 400_000, "unknown": 1}]}).encode()
    good = json.dumps({"messages": [{"body": "x" * 400_000, "queue": 0}]}).encode()
    for body, status in ((unknown, 400), (iter([good[:1_000], good[1_000:]]), 200)):
        _, flood = limited(realm, bytes_per_s=100_000)
        headers = {"Content-Type": "application/json"}
        flood.call("POST", "/v1/topics/t/messages", body=body, headers=headers, status=status)
        refused = flood.get("/v1/topics/t", None)
        assert (refused.status, refused.error["setting"]) == (429, "principal_bytes_per_s")


def test_a_principal_holds_so_many_requests_and_others_are_held_beside(realm: Realm) -> None:
    _, poller = limited(realm, open_requests=2)
    _, neighbour = limited(realm)
    threads, answers = held(poller, 2)
    eventually(lambda: realm.admin.metric("lsmq_waiters") == 2, "both are held")
    refused = poller.get("/v1/topics/t", None)
    assert (refused.status, refused.code) == (429, "too_many_requests")
    assert (refused.error["limit"], refused.error["setting"]) == (2, "principal_open_requests")
    others, others_answers = held(neighbour, 3)
    eventually(lambda: realm.admin.metric("lsmq_waiters") == 5, "the neighbour's are held beside")
    realm.admin.send("t", {"body": "now", "queue": 1})
    for thread in (*threads, *others):
        thread.join(PATIENCE_S)
    assert [answer.status for answer in (*answers, *others_answers)] == [200] * 5
    poller.get("/v1/topics/t")


def test_a_principal_has_so_many_connections_and_one_that_is_closed_makes_room(realm: Realm) -> None:
    _, many = limited(realm, connections=2)
    _, neighbour = limited(realm)
    address = urlsplit(realm.node.url)

    def ask(connection: HTTPConnection, who: Asking = many) -> tuple[int, dict[str, object]]:
        connection.request("GET", "/v1/topics/t", headers=who.own)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    def opened() -> HTTPConnection:
        return HTTPConnection(address.hostname or "", address.port, timeout=PATIENCE_S)

    first, second, third = (opened() for _ in range(3))
    assert [ask(each)[0] for each in (first, second, first, second)] == [200] * 4
    status, found = ask(third)
    assert (status, found["error"]["code"]) == (503, "too_many_connections")  # type: ignore[index]
    assert found["error"]["setting"] == "principal_connections"  # type: ignore[index]
    other = opened()
    assert ask(other, neighbour)[0] == 200
    first.close()
    fourth = opened()
    eventually(lambda: ask(fourth)[0] == 200, "there is room")
    assert ask(second, neighbour)[0] == 200, "a connection is of who asked by it last"
    assert ask(third)[0] == 200
    for each in (second, third, fourth, other):
        each.close()


def test_limits_are_set_changed_listed_and_taken_away(realm: Realm) -> None:
    name, _ = limited(realm, requests_per_s=100, connections=5)
    realm.admin.call("PATCH", f"/v1/limits/{name}", {"connections": None, "open_requests": 0}, status=204)

    def listed() -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        after = ""
        while after is not None:
            page = realm.admin.get(f"/v1/limits?limit=1&after={after}").json()
            found.update({each["name"]: each["limits"] for each in page["principals"]})
            after = page["next"]
        return found

    assert listed()[name] == {"requests_per_s": 100, "open_requests": 0}
    assert realm.admin.get("/v1/limits").json()["defaults"]["requests_per_s"] == 0
    realm.admin.call("DELETE", f"/v1/limits/{name}", status=204)
    assert name not in listed()
    assert realm.admin.call("DELETE", f"/v1/limits/{name}", status=404).code == "unknown_principal"
    for wrong in ({"requests_per_s": -1}, {"requests": 1}, {"requests_per_s": "many"}):
        assert realm.admin.call("PATCH", f"/v1/limits/{name}", wrong, status=400).code == "invalid_request"


def test_what_was_set_holds_after_a_restart_and_is_more_than_what_holds_for_everybody(
    make_node: Callable[..., NodeProcess],
) -> None:
    node = make_node(auth="token", principal_requests_per_s=2).start()
    eventually((node.data / "admin.token").exists, "the first token is written")
    admin = (node.data / "admin.token").read_text().strip()
    node.stop()
    node.start()
    realm = Realm(node)
    assert Asking(node.url, admin).get("/v1/limits").json()["defaults"]["requests_per_s"] == 2

    def patient(path: str, limits: dict[str, int]) -> None:
        eventually(lambda: realm.admin.call("PATCH", path, limits).status == 204, "it is set")

    patient("/v1/limits/admin@local", {"requests_per_s": 0})
    realm.admin.create("t", 1)
    _, somebody = realm.somebody(("admin", ""))
    node.stop()
    node.start()
    for each in (realm.admin, somebody):
        each.moved(node.url)
    assert {answer.status for answer in at_once(realm.admin, 30)} == {200}
    assert {answer.status for answer in at_once(somebody, 30)} == {200, 429}


def test_who_comes_to_a_limit_again_and_again_is_noted_once(realm: Realm) -> None:
    name, flood = limited(realm, requests_per_s=1)
    at_once(flood, 10)

    def notes() -> list[dict[str, str]]:
        lines = [json.loads(line) for line in (realm.node.data / "audit.jsonl").read_text().splitlines()]
        return [line for line in lines if line["event"] == "limited" and line["principal"] == name]

    eventually(lambda: bool(notes()), "it is written")
    at_once(flood, 10)
    realm.admin.call("PUT", "/v1/topics/after", {"queues": 1})
    eventually(lambda: "/v1/topics/after" in (realm.node.data / "audit.jsonl").read_text(), "what came later is there")
    assert [note["setting"] for note in notes()] == ["principal_requests_per_s"]


@pytest.mark.part(2)
def test_a_client_comes_again_when_it_is_told_to(realm: Realm) -> None:
    """Every request is answered in the end, and the node has little to refuse meanwhile."""
    _, somebody = limited(realm, requests_per_s=5)
    token = somebody.own["Authorization"].removeprefix("Bearer ")
    limit = '{limit="principal_requests_per_s"}'
    before = realm.admin.metric(f"lsmq_limit_refused_total{limit}")

    async def use() -> None:
        async with Client(realm.node.url, token=token) as client:
            for _ in range(4):
                await asyncio.gather(*(client.topic("t") for _ in range(8)))

    asyncio.run(use())
    assert realm.admin.metric(f"lsmq_limit_refused_total{limit}") - before < 40


def test_producers_and_consumers_go_on_however_often_they_are_told_to_come_later(realm: Realm) -> None:
    """Also where a batch costs more than a second's worth, so that each request after it is refused."""
    _, somebody = limited(realm, requests_per_s=5, bytes_per_s=20_000)
    token = somebody.own["Authorization"].removeprefix("Bearer ")
    bodies = [f"{number} {'x' * 15_000}".encode() for number in range(6)]
    realm.admin.create("slow", 1)

    async def use() -> list[bytes]:
        async with Client(realm.node.url, token=token) as client:
            async with Producer(client, "slow", linger_ms=0) as producer:
                for body in bodies:
                    await producer.send_and_wait(body)
            found: list[bytes] = []
            async with Consumer(client, "slow", start="earliest") as consumer:
                while len(found) < len(bodies):
                    found += [message.body for message in await consumer.poll(timeout_ms=1_000)]
            return found

    assert asyncio.run(use()) == bodies
    assert realm.admin.metric('lsmq_limit_refused_total{limit="principal_bytes_per_s"}') >= 1


def test_a_client_that_cannot_wait_so_long_is_told(realm: Realm) -> None:
    _, somebody = limited(realm, bytes_per_s=1_000)
    somebody.send("t", {"body": "x" * 100_000, "queue": 0})
    token = somebody.own["Authorization"].removeprefix("Bearer ")

    async def use() -> None:
        async with Client(realm.node.url, token=token, deadline_ms=1_000) as client:
            with pytest.raises(TooManyRequests, match="come again"):
                await client.topic("t")

    asyncio.run(use())
