"""Who may what, over HTTP: tokens, roles and grants of a node that asks who its clients are."""

from __future__ import annotations

import asyncio
import json
import stat
import threading
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import msgpack
import pytest

from lsmq.messages import message_id
from lsmq_node.api.access import ACCESS
from lsmq_node.api.app import route_table
from lsmq_node.api.routing import ApiOperation
from lsmq_node.api.schema import check
from lsmq_node.config import NodeConfig
from lsmq_node.rights import Action, ResourceKind
from support.node_process import NodeProcess
from support.waiting import PATIENCE_S, eventually

from .calls import Answer, Api, pack

ROUTES = route_table(NodeConfig(data=Path("unused")))
#: Bodies of those operations whose topics stand in the body, or that would refuse another body before they look.
BODIES: dict[str, Any] = {
    "heartbeat": {"member": "m", "topics": ["t"]},
    "commitOffsets": {"topic": "t", "queues": [0], "offsets": [0]},
    "resetGroup": {"topic": "t", "to": "earliest"},
    "fenceGroup": {"topic": "t", "member": "m", "epoch": 1, "queues": [[0, 1]]},
    "popMessages": {"topic": "t", "max": 1, "wait_ms": 0},
    "ackMessages": {"topic": "t", "receipts": ["r"]},
    "nackMessages": {"topic": "t", "receipts": ["r"]},
    "extendMessages": {"topic": "t", "receipts": ["r"]},
    "configureWorkQueue": {"topic": "t"},
    "beginTransaction": {"member": "m", "number": 1, "messages": [{"topic": "t", "body": "x"}]},
    "addToTransaction": {"part": 1, "messages": [{"topic": "t", "body": "x"}]},
}


class Asking(Api):
    """The API, as somebody with a token uses it."""

    def __init__(self, url: str, token: str | None) -> None:
        super().__init__(url)
        self.own = {} if token is None else {"Authorization": f"Bearer {token}"}

    def call(self, method: str, path: str, document: Any = None, **rest: Any) -> Answer:
        return super().call(method, path, document, headers={**self.own, **(rest.pop("headers", None) or {})}, **rest)


class Realm:
    """A node, its administrator, and whoever else it is told of."""

    def __init__(self, node: NodeProcess, token: str = "admin.token") -> None:
        """``token``: where that of the administrator lies in the node's directory."""
        self.node = node
        self.admin = Asking(node.url, (node.data / token).read_text().strip())
        self._count = 0

    @cached_property
    def nobody(self) -> tuple[str, Asking]:
        """Who has a token, and may nothing."""
        return self.somebody()

    def somebody(self, *roles: tuple[str, str], rights: tuple[tuple[str, str, str], ...] = ()) -> tuple[str, Asking]:
        self._count += 1
        name = f"somebody-{self._count}"
        given = [{"role": role, "prefix": prefix} for role, prefix in roles]
        made = self.admin.call("POST", "/v1/tokens", {"name": name, "roles": given}, status=201).json()
        if rights:
            listed = [{"kind": kind, "pattern": pattern, "action": action} for kind, pattern, action in rights]
            self.admin.call("POST", f"/v1/acl/{name}/grant", {"rights": listed}, status=204)
        return name, Asking(self.node.url, made["token"])


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    node = NodeProcess(tmp_path_factory.mktemp("rights") / "data", auth="token")
    node.start()
    try:
        eventually(lambda: (node.data / "admin.token").exists(), "the first token is written")
        realm = Realm(node)
        assert realm.admin.create("t", 2)["id"] == 1
        yield realm
    finally:
        node.stop()


def path_of(route: ApiOperation) -> str:
    names = {
        "topic": "t",
        "queue": "0",
        "id": message_id(1, 0, 0),
        "group": "g",
        "transaction": "t-1",
        "key": "k",
        "name": "s",
        "node": "local",
        "shard": "0",
        "stream": "0" * 32,
        "producer": "1",
        "sequence": "s",
        "principal": "p",
        "role": "r",
        "file": "f",
        "asset": "console.js",
    }
    path = route.path.format_map(names)
    given = {parameter.name for parameter in route.queries if parameter.required}
    query = "&".join(f"{name}={'t' if name == 'topic' else '1'}" for name in sorted(given))
    return f"{path}?{query}" if query else path


def ask(api: Api, route: ApiOperation, path: str | None = None) -> Answer:
    body = BODIES.get(route.operation, {} if route.request is not None else None)
    return api.call(route.method, path or path_of(route), body)


def test_every_operation_says_what_it_needs() -> None:
    assert {route.operation for route in ROUTES} == set(ACCESS)


def test_every_operation_whose_path_names_something_needs_a_right_to_that() -> None:
    for route in ROUTES:
        kinds = {need.kind for need in ACCESS[route.operation].needs}
        if "{topic}" in route.path:
            assert ResourceKind.TOPIC in kinds, route.operation
        if "/groups/{group}" in route.path and route.operation != "getCoordinator":
            assert ResourceKind.GROUP in kinds, route.operation
        if "/producer-groups/{group}" in route.path:
            assert ResourceKind.PRODUCER_GROUP in kinds, route.operation
        if route.path.startswith(("/v1/cluster", "/v1/shards")):
            assert ResourceKind.CLUSTER in kinds, route.operation


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.operation)
def test_nobody_does_anything_without_a_token_or_a_right(realm: Realm, route: ApiOperation) -> None:
    access = ACCESS[route.operation]
    stranger = ask(Asking(realm.node.url, None), route)
    if access.open:
        assert stranger.status == 200
        return
    assert (stranger.status, stranger.code) == (401, "unauthenticated")
    assert stranger.headers["WWW-Authenticate"] == "Bearer"
    if not access.needs:
        return
    if route.operation == "sendBatches":
        return  # Each batch is refused by itself, see below.
    name, nobody = realm.nobody
    refused = ask(nobody, route)
    assert (refused.status, refused.code) == (403, "forbidden"), refused.body
    need = access.needs[0]
    assert refused.error["right"].startswith(f"{need.action} {need.kind}")
    assert name in refused.error["message"]


@pytest.mark.parametrize(
    "route", [each for each in ROUTES if len(ACCESS[each.operation].needs) > 1], ids=lambda route: route.operation
)
def test_what_needs_two_rights_is_not_done_with_one(realm: Realm, route: ApiOperation) -> None:
    """Also where the topic is named in the body alone."""
    for missing in ACCESS[route.operation].needs:
        others = tuple(
            (need.kind, "*", need.action) for need in ACCESS[route.operation].needs if need.kind is not missing.kind
        )
        _, half = realm.somebody(rights=others)
        refused = ask(half, route)
        assert (refused.status, refused.code) == (403, "forbidden"), refused.body
        assert refused.error["right"].startswith(f"{missing.action} {missing.kind}")


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.operation)
def test_the_right_that_the_table_names_is_enough(realm: Realm, route: ApiOperation) -> None:
    if route.is_stream:
        return  # see below
    _, may = realm.somebody(rights=tuple((need.kind, "*", need.action) for need in ACCESS[route.operation].needs))
    # What is changed here is not what other tests use; whatever the answer is, it is no refusal.
    answer = ask(may, route, path_of(route).replace("/topics/t", "/topics/other"))
    assert answer.status not in (401, 403) and answer.status != 500, answer.body


def test_of_batches_that_are_sent_together_only_those_are_stored_that_may_be(realm: Realm) -> None:
    realm.admin.create("bundled", 1)
    name, may = realm.somebody(rights=((ResourceKind.TOPIC, "bundled", Action.WRITE),))
    parts = [{"topic": topic, "batch": pack((0, b"x"))} for topic in ("bundled", "t", "nowhere")]
    headers = {"Content-Type": "application/msgpack"}

    def send() -> None:
        answer = may.call("POST", "/v1/batches", body=msgpack.packb({"batches": parts}), headers=headers, status=200)
        stored, *refused = answer.msgpack()["results"]
        assert "batch" in stored
        assert [each["error"]["code"] for each in refused] == ["forbidden"] * 2

    def noted() -> list[str]:
        file = realm.node.data / "audit.jsonl"
        lines = map(json.loads, file.read_text().splitlines() if file.exists() else ())
        return [line["right"] for line in lines if line.get("principal") == name and line["event"] == "refused"]

    def both() -> bool:
        send()  # Again: of more than a hundred refusals in a second the rest is counted.
        return {"write topic t", "write topic nowhere"} <= set(noted())

    eventually(both, "the audit log has both refusals")


def test_the_first_token_is_for_the_nodes_user_alone_and_is_kept(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node(auth="token").start()
    file = node.data / "admin.token"
    eventually(file.exists, "the first token is written")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    token = file.read_text()
    node.stop()
    node.start()
    assert Realm(node).admin.get("/v1/whoami").json()["name"] == "admin@local"
    assert file.read_text() == token
    node.stop()
    file.unlink()
    node.start()
    eventually(file.exists, "another one is written")
    assert file.read_text() != token
    assert Realm(node).admin.get("/v1/whoami").json()["roles"] == [{"role": "admin", "prefix": ""}]
    assert Asking(node.url, token.strip()).get("/v1/whoami", 401).code == "unauthenticated"


def test_a_node_keeps_the_hash_of_a_token_and_never_the_token(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node(auth="token").start()
    eventually((node.data / "admin.token").exists, "the first token is written")
    _, somebody = Realm(node).somebody(("producer", ""))
    token = somebody.own["Authorization"].removeprefix("Bearer ").encode()
    node.stop()
    for file in node.data.rglob("*"):
        assert not file.is_file() or token not in file.read_bytes(), file
    assert token.decode() not in node.log()


def test_roles_say_what_their_names_say(realm: Realm) -> None:
    _, producer = realm.somebody(("producer", ""))
    _, consumer = realm.somebody(("consumer", ""))
    _, monitor = realm.somebody(("monitor", ""))
    message = {"messages": [{"body": "x", "queue": 0}]}
    producer.call("POST", "/v1/topics/t/messages", message, status=200)
    for other in (consumer, monitor):
        assert other.call("POST", "/v1/topics/t/messages", message, status=403).error["right"] == "write topic t"
    consumer.read("t", 0)
    for other in (producer, monitor):
        other.read("t", 0, 403)
    monitor.get("/metrics")
    monitor.get("/v1/tokens", 403)
    for any_of_them in (producer, consumer, monitor):
        any_of_them.get("/v1/topics/t")  # Whoever does anything with it may know of it.


def test_busy_topics_and_groups_are_shown_to_those_who_may_describe_them(realm: Realm) -> None:
    _, partly = realm.somebody(
        rights=(("cluster", "*", "describe"), ("topic", "o", "describe"), ("group", "s", "describe"))
    )
    _, monitor = realm.somebody(("monitor", ""))
    for topic in ("o", "p"):
        realm.admin.create(topic, 1)

    def shown(asking: Asking) -> tuple[set[str], set[str]]:
        for topic in ("o", "p"):
            realm.admin.send(topic, {"body": "x"})
            for group in ("s", "h"):
                commit = {"topic": topic, "queues": [0], "offsets": [0], "reset": True}
                realm.admin.call("POST", f"/v1/groups/{group}/offsets", commit, status=200)
        found = asking.get("/v1/busiest").json()
        pairs = {f"{each['group']} of {each['topic']}" for each in found["groups"]}
        return {each["topic"] for each in found["topics"]} & {"o", "p"}, {each for each in pairs if each[-1] in "op"}

    all_of_them = {"o", "p"}, {"s of o", "h of o", "s of p", "h of p"}
    eventually(lambda: shown(monitor) == all_of_them, "who may describe everything sees all")
    assert shown(partly) == ({"o"}, {"s of o"})


def test_a_tenant_has_all_that_begins_with_its_prefix_and_sees_nothing_else(realm: Realm) -> None:
    _, tenant = realm.somebody(("tenant", "acme."))
    tenant.create("acme.orders", 1)
    tenant.send("acme.orders", {"body": "x", "queue": 0})
    assert tenant.bodies("acme.orders", 0) == ["x"]
    tenant.call("POST", "/v1/groups/acme.kitchen/pop", {"topic": "acme.orders"}, status=200)
    for method, path, document in (
        ("PUT", "/v1/topics/acme", {"queues": 1}),
        ("PUT", "/v1/topics/globex.orders", {"queues": 1}),
        ("POST", "/v1/groups/kitchen/pop", {"topic": "acme.orders"}),
        ("POST", "/v1/groups/acme.kitchen/pop", {"topic": "t"}),
        ("GET", "/v1/cluster", None),
        ("GET", "/v1/tokens", None),
    ):
        assert tenant.call(method, path, document, status=403).code == "forbidden"
    assert [topic["name"] for topic in tenant.get("/v1/topics").json()["topics"]] == ["acme.orders"]
    assert tenant.get("/v1/groups").json()["groups"] == ["acme.kitchen"]
    assert {"t", "acme.orders"} <= {topic["name"] for topic in realm.admin.get("/v1/topics").json()["topics"]}
    refused = realm.admin.call("POST", "/v1/acl/x/grant", {"roles": [{"role": "tenant"}]}, status=400)
    assert refused.error["field"] == "prefix"


def test_what_is_not_well_is_told_to_those_who_may_describe_the_cluster(realm: Realm) -> None:
    group = "hidden-group"
    realm.admin.create("of-hidden", 1)
    beat = {"member": "hidden-host", "topics": ["of-hidden"], "stalled": True, "session_ms": 60_000}
    realm.admin.call("POST", f"/v1/groups/{group}/heartbeat", beat, status=200)
    _, monitor = realm.somebody(("monitor", ""))
    _, consumer = realm.somebody(("consumer", ""))
    for told in (realm.admin, monitor):
        assert any(group in line for line in told.get("/readyz").json()["warnings"])
    broken = Asking(realm.node.url, "lsmq_" + "0" * 43)
    for other in (consumer, realm.nobody[1], Asking(realm.node.url, None), broken):
        answered = other.get("/readyz").json()
        assert (answered["status"], answered["reasons"], len(answered["warnings"])) == ("ok", [], 1)
        assert "hidden" not in json.dumps(answered)
    realm.admin.call("POST", f"/v1/groups/{group}/heartbeat", {**beat, "leave": True}, status=200)


def test_whoever_says_where_dead_letters_go_may_write_there(realm: Realm) -> None:
    _, tenant = realm.somebody(("tenant", "own."))
    tenant.create("own.jobs", 1)
    path = "/v1/groups/own.workers/work-queue"
    for foreign in ("t", "of-nobody"):
        refused = tenant.call("PUT", path, {"topic": "own.jobs", "dead_letter": foreign}, status=403)
        assert refused.error["right"] == f"write topic {foreign}"
    tenant.call("PUT", path, {"topic": "own.jobs", "dead_letter": "own.dead"}, status=200)
    tenant.send("own.jobs", {"body": "x", "queue": 0})
    asked = {"topic": "own.jobs", "max": 1, "wait_ms": 0}
    (popped,) = tenant.call("POST", "/v1/groups/own.workers/pop", asked, status=200).json()["messages"]
    buried = {"topic": "own.jobs", "receipts": [popped["receipt"]], "dead_letter": True}
    tenant.call("POST", "/v1/groups/own.workers/nack", buried, status=200)
    eventually(lambda: tenant.get("/v1/topics/own.dead", None).status == 200, "there is a dead letter")


def test_whoever_has_a_work_queue_delete_what_is_done_may_delete_it(realm: Realm) -> None:
    own = (("group", "shop.*", "all"), ("topic", "t", "read"))
    _, reader = realm.somebody(rights=own)
    _, owner = realm.somebody(rights=(*own, ("topic", "t", "delete")))
    path, deleting = "/v1/groups/shop.workers/work-queue", {"topic": "t", "delete_on_ack": True}
    refused = reader.call("PUT", path, deleting, status=403)
    assert refused.error["right"] == "delete topic t"
    reader.call("PUT", path, {"topic": "t", "delete_on_ack": False}, status=200)
    owner.call("PUT", path, deleting, status=200)
    reader.call("PUT", path, {"topic": "t"}, status=200)


def test_whoever_has_messages_moved_to_a_topic_may_write_to_it(realm: Realm) -> None:
    _, tenant = realm.somebody(("tenant", "mine."))
    over = {"queue_max_messages": 1, "overflow": "drop_oldest"}
    for moving in ({"expired_to": "t"}, {"dropped_to": "t", **over}):
        refused = tenant.call("PUT", "/v1/topics/mine.a", {"queues": 1, **moving}, status=403)
        assert refused.error["right"] == "write topic t"
    tenant.create("mine.a", 1, expired_to="mine.late", **over)
    assert tenant.call("PATCH", "/v1/topics/mine.a", {"dropped_to": "t"}, status=403).error["right"] == "write topic t"
    tenant.call("PATCH", "/v1/topics/mine.a", {"dropped_to": "mine.over", "expired_to": None}, status=200)


def test_each_topic_of_a_request_for_many_is_looked_at(realm: Realm) -> None:
    _, some = realm.somebody(rights=(("producer-group", "*", "write"), ("topic", "mine", "write")))
    realm.admin.create("mine", 1)
    messages = [{"topic": "mine", "body": "a"}, {"topic": "t", "body": "b"}]
    body = {"member": "m", "number": 1, "messages": messages}
    assert some.call("POST", "/v1/producer-groups/p/transactions", body, status=403).error["right"] == "write topic t"
    _, reader = realm.somebody(rights=(("group", "*", "read"), ("topic", "mine", "read")))
    beat = {"member": "m", "topics": ["mine", "t"]}
    assert reader.call("POST", "/v1/groups/g2/heartbeat", beat, status=403).error["right"] == "read topic t"


def test_a_message_by_its_id_is_of_a_topic_that_one_may_read(realm: Realm) -> None:
    id = realm.admin.send("t", {"body": "x", "queue": 0}).json()["results"][0]["id"]
    _, other = realm.somebody(("consumer", "other."))
    refused = other.get(f"/v1/messages/{id}", 403)
    assert refused.code == "forbidden" and " t" not in refused.error["right"].removeprefix("read topic")
    _, reader = realm.somebody(rights=(("topic", "t", "read"),))
    reader.get(f"/v1/messages/{id}")


def test_two_tokens_are_good_while_one_is_exchanged_for_the_other(realm: Realm) -> None:
    name, first = realm.somebody(("monitor", ""))
    rotate = f"/v1/tokens/{name}/rotate"
    second = Asking(realm.node.url, realm.admin.call("POST", rotate, {}, status=201).json()["token"])
    first.get("/v1/whoami"), second.get("/v1/whoami")
    third = Asking(realm.node.url, realm.admin.call("POST", rotate, {}, status=201).json()["token"])
    first.get("/v1/whoami", 401), second.get("/v1/whoami"), third.get("/v1/whoami")
    realm.admin.call("POST", rotate, {"overlap_ms": 0}, status=201)
    third.get("/v1/whoami", 401)
    assert realm.admin.call("POST", "/v1/tokens", {"name": name}, status=400).error["field"] == "name"
    assert realm.admin.call("POST", "/v1/tokens/nobody/rotate", {}, status=404).code == "unknown_principal"


def test_a_token_ends_when_it_was_to(realm: Realm) -> None:
    made = realm.admin.call("POST", "/v1/tokens", {"name": "short", "ttl_ms": 1_000}, status=201).json()
    assert made["expires_ms"] - made["created_ms"] == 1_000
    short = Asking(realm.node.url, made["token"])
    eventually(lambda: short.get("/v1/whoami", None).status == 401, "it is not good any more")


def test_who_is_revoked_while_a_request_is_held_is_given_nothing(realm: Realm) -> None:
    name, reader = realm.somebody(("consumer", ""))
    realm.admin.create("held", 1)
    answers: list[Answer] = []
    path = "/v1/topics/held/queues/0/messages?offset=0&wait_ms=20000"
    waiting = threading.Thread(target=lambda: answers.append(reader.get(path, None)))
    waiting.start()
    eventually(lambda: realm.admin.get("/v1/status").json()["waiters"] > 0, "the request is held")
    realm.admin.call("DELETE", f"/v1/tokens/{name}", status=204)
    realm.admin.send("held", {"body": "secret", "queue": 0})
    waiting.join(30)
    assert [answer.code for answer in answers] == ["unauthenticated"]


def test_a_right_that_is_taken_back_ends_the_stream_that_rests_on_it(realm: Realm) -> None:
    name, reader = realm.somebody(("consumer", ""))

    async def run() -> None:
        async with aiohttp.ClientSession(headers=reader.own) as session:
            url = f"{realm.node.url}/v1/groups/streamed/push?topic=t"
            async with session.ws_connect(url, protocols=("lsmq.json",)) as socket:
                assert (await socket.receive_json(timeout=PATIENCE_S))["stream"]
                took = {"roles": [{"role": "consumer"}]}
                await asyncio.to_thread(realm.admin.call, "POST", f"/v1/acl/{name}/revoke", took, status=204)
                began = time.monotonic()
                async for frame in socket:
                    if "end" in (said := json.loads(frame.data)):
                        assert said["end"]["code"] == "forbidden"
                        break
                assert time.monotonic() - began < 20
            with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
                await session.ws_connect(url)

    asyncio.run(run())


def test_a_role_of_ones_own_and_what_it_would_allow(realm: Realm) -> None:
    rights = [{"kind": "topic", "pattern": "billing.*", "action": "write"}]
    realm.admin.call("PUT", "/v1/roles/biller", {"rights": rights}, status=204)
    name, biller = realm.somebody(("biller", ""))
    test = f"/v1/acl/{name}/test"
    asked = {"kind": "topic", "name": "billing.eu", "action": "write"}
    assert realm.admin.call("POST", test, asked).json() == {"allowed": True, "by": "role biller"}
    asked["name"] = "orders"
    assert realm.admin.call("POST", test, asked).json() == {"allowed": False, "by": None}
    assert biller.get("/v1/whoami").json()["roles"] == [{"role": "biller", "prefix": ""}]
    assert name in realm.admin.call("DELETE", "/v1/roles/biller", status=400).error["message"]
    realm.admin.call("POST", f"/v1/acl/{name}/revoke", {"roles": [{"role": "biller"}]}, status=204)
    realm.admin.call("DELETE", "/v1/roles/biller", status=204)
    realm.admin.call("PUT", "/v1/roles/admin", {"rights": rights}, status=400)
    assert realm.admin.call("DELETE", "/v1/roles/admin", status=404).code == "unknown_role"
    assert realm.admin.call("POST", f"/v1/acl/{name}/grant", {"roles": [{"role": "x"}]}, status=404).code


def test_answers_fit_the_document(realm: Realm) -> None:
    table = {route.operation: route for route in ROUTES}

    def fits(operation: str, method: str, path: str, body: Any = None, status: int = 200) -> None:
        answer = realm.admin.call(method, path, body, status=status)
        (content,) = (each for each in table[operation].answers if each.status == status)
        assert content.schema is not None
        check(answer.json(), content.schema, operation)

    name, _ = realm.somebody(("monitor", "x."), rights=(("topic", "y*", "all"),))
    fits("createToken", "POST", "/v1/tokens", {"name": "fitting", "ttl_ms": 60_000}, 201)
    fits("rotateToken", "POST", "/v1/tokens/fitting/rotate", {}, 201)
    fits("listTokens", "GET", "/v1/tokens")
    fits("listRoles", "GET", "/v1/roles")
    fits("listGrants", "GET", "/v1/acl")
    fits("whoami", "GET", "/v1/whoami")
    fits("testRights", "POST", f"/v1/acl/{name}/test", {"kind": "cluster", "action": "alter"})


@pytest.mark.parametrize(("path", "field"), [("tokens", "tokens"), ("roles", "roles"), ("acl", "principals")])
def test_lists_come_in_pages(realm: Realm, path: str, field: str) -> None:
    name, _ = realm.somebody(("monitor", ""))
    realm.admin.call("POST", f"/v1/tokens/{name}/rotate", {}, status=201)
    realm.admin.call("PUT", "/v1/roles/paged", {"rights": []}, status=204)
    whole = realm.admin.get(f"/v1/{path}").json()
    assert len(whole[field]) > 2 and whole["next"] is None
    found, after, pages = [], "", 0
    while after is not None:
        page = realm.admin.get(f"/v1/{path}?limit=1&after={quote(after)}").json()
        found += page[field]
        after, pages = page["next"], pages + 1
    assert found == whole[field] and pages == len(found)
    assert [each["name"] for each in found] == sorted(each["name"] for each in found)
    realm.admin.get(f"/v1/{path}?limit=10001", 400)


def noted(realm: Realm) -> list[dict[str, Any]]:
    file = realm.node.data / "audit.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_refusals_and_administration_are_noted_and_nothing_else(realm: Realm) -> None:
    name, somebody = realm.somebody(("producer", "noted."))
    admin = realm.admin.get("/v1/whoami").json()["name"]
    realm.admin.create("noted.t", 1)
    somebody.send("noted.t", {"body": "not noted"})
    refused = somebody.read("noted.t", 0, 403)
    Api(realm.node.url).call("DELETE", "/v1/topics/noted.t?x=secret", headers={"Authorization": "Bearer wrong"})

    def found() -> list[dict[str, Any]]:
        return [line for line in noted(realm) if "noted.t" in line.get("path", "")]

    eventually(lambda: any(line["operation"] == "deleteTopic" for line in found()), "the last is written")
    own = found()
    assert [(line["event"], line["principal"], line["operation"], line["status"]) for line in own] == [
        ("done", admin, "createTopic", 201),
        ("refused", name, "readMessages", 403),
        ("refused", None, "deleteTopic", 401),
    ]
    assert own[1]["right"] == refused.error["right"] == "read topic noted.t"
    assert ("done", admin) in {
        (line["event"], line["principal"]) for line in noted(realm) if line.get("path") == "/v1/tokens"
    }
    text = (realm.node.data / "audit.jsonl").read_text()
    assert "secret" not in text and "wrong" not in text and "lsmq_" not in text
    assert stat.S_IMODE((realm.node.data / "audit.jsonl").stat().st_mode) == 0o600


def test_what_deletes_much_or_resets_offsets_is_noted_whichever_way_it_is_asked_for(realm: Realm) -> None:
    admin, topic = realm.admin, "wiped.t"
    admin.create(topic, 1)
    admin.create("wiped.n", queues="named")
    for number in range(6):
        admin.send(topic, {"queue": 0, "body": str(number)})
        admin.send("wiped.n", {"queue": "a", "body": str(number)})
    own, commit = f"/v1/topics/{topic}", {"topic": topic, "queues": [0]}
    for method, path, document, status in (
        ("POST", f"{own}/delete", {"queues": [0], "offsets": [0]}, 200),
        ("POST", f"{own}/queues/0/trim", {"before": 1}, 200),
        ("POST", f"{own}/trim", {"queues": "0", "offset": 2}, 200),
        ("POST", f"{own}/purge", {}, 200),
        ("DELETE", "/v1/topics/wiped.n/queues/a", None, 204),
        ("POST", "/v1/groups/wiped.g/offsets", {**commit, "offsets": [3]}, 200),
        ("POST", "/v1/groups/wiped.g/offsets", {**commit, "offsets": [1], "reset": True}, 200),
    ):
        admin.call(method, path, document, status=status)

    def found() -> list[tuple[str, str]]:
        lines = [line for line in noted(realm) if "wiped." in line.get("path", "")]
        return [(line["event"], line["operation"]) for line in lines if line["operation"] != "createTopic"]

    eventually(lambda: ("done", "commitOffsets") in found(), "the last one is written")
    operations = ("trimQueue", "trimTopic", "purgeTopic", "deleteQueue", "commitOffsets")
    assert found() == [("done", operation) for operation in operations]


def test_who_knocks_again_and_again_does_not_fill_the_audit_log(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node(auth="token", audit_bytes=8_000).start()
    stranger = Api(node.url)
    for _ in range(300):
        stranger.get("/v1/topics", 401)
    eventually((node.data / "admin.token").exists, "the first token is written")
    file = node.data / "audit.jsonl"
    eventually(lambda: file.with_name("audit.jsonl.1").exists(), "the log has gone on in a second file")
    node.stop()
    assert sum(each.stat().st_size for each in (file, file.with_name("audit.jsonl.1"))) <= 8_000
    for line in (*file.read_text().splitlines(), *file.with_name("audit.jsonl.1").read_text().splitlines()):
        assert json.loads(line)["event"] in ("refused", "refused_more")


def test_a_reset_of_offsets_is_more_than_reading(realm: Realm) -> None:
    _, consumer = realm.somebody(("consumer", ""))
    commit = {"topic": "t", "queues": [0], "offsets": [0]}
    consumer.call("POST", "/v1/groups/resettable/offsets", commit, status=200)
    refused = consumer.call("POST", "/v1/groups/resettable/offsets", {**commit, "reset": True}, status=403)
    assert refused.error["right"] == "alter group resettable"


def test_what_a_header_may_look_like(realm: Realm) -> None:
    for given in ("", "Bearer", "Bearer ", "Basic eDp5", "Bearer lsmq_" + "0" * 64, "Bearer \xff"):
        refused = Api(realm.node.url).call("GET", "/v1/whoami", headers={"Authorization": given}, status=401)
        assert refused.code == "unauthenticated"


def test_of_two_headers_none_counts(realm: Realm) -> None:
    token = realm.admin.own["Authorization"]

    async def ask(*shown: str) -> tuple[int, str]:
        headers = [("Authorization", each) for each in shown]
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{realm.node.url}/v1/whoami", headers=headers) as answer,
        ):
            return answer.status, await answer.text()

    assert asyncio.run(ask(token))[0] == 200
    for shown in ((token, token), ("Bearer x", token), (token, "")):
        status, said = asyncio.run(ask(*shown))
        assert status == 401 and "send one" in said


def test_a_node_that_asks_nobody_has_no_tokens(api: Api) -> None:
    nobody = {"auth": "none", "name": None, "by": None, "expires_ms": None, "roles": [], "rights": []}
    assert api.get("/v1/whoami").json() == {**nobody, "allowed": None}
    assert api.call("POST", "/v1/tokens", {"name": "x"}, status=409).code == "authentication_off"
