"""What somebody has of a work queue: listed over all shards, and settled in his stead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lsmq_node.broker import Broker
from support.node_process import NodeProcess

from .calls import Api
from .in_process import Session, node_of, with_node

LONG_MS = 600_000


def pop(api: Api, topic: str, count: int) -> list[dict[str, Any]]:
    document = {"topic": topic, "max": count, "visibility_ms": LONG_MS}
    found: list[dict[str, Any]] = api.call("POST", "/v1/groups/g/pop", document, status=200).json()["messages"]
    return found


def held(api: Api, topic: str, more: str = "") -> Any:
    return api.get(f"/v1/groups/g/held?topic={topic}{more}").json()


def settle(api: Api, how: str, topic: str, receipt: str, **more: Any) -> Any:
    document = {"topic": topic, "receipts": [receipt], **more}
    return api.call("POST", f"/v1/groups/g/{how}", document, status=200).json()


def test_all_that_is_in_flight_is_listed_in_pages_and_nothing_else(make_node: Callable[..., NodeProcess]) -> None:
    api = Api(make_node(shards=3).start().url)
    api.create("t", 6)
    assert api.get("/v1/groups/g/held?topic=t", 404).code == "unknown_group"
    api.send("t", *({"queue": queue, "body": str(number)} for queue in range(6) for number in range(4)))
    assert pop(api, "t", 1) and len(held(api, "t")["messages"]) == 1, "though the other shards know of no group"
    taken: list[dict[str, Any]] = held(api, "t")["messages"]
    while len(taken) < 18:
        taken += pop(api, "t", 18 - len(taken))
    wanted = sorted((message["queue"], message["offset"]) for message in taken)
    everything = held(api, "t")
    assert everything["next"] is None
    assert [(message["queue"], message["offset"]) for message in everything["messages"]] == wanted
    assert {message["receipt"] for message in everything["messages"]} == {message["receipt"] for message in taken}
    assert {message["deliveries"] for message in everything["messages"]} == {1}
    pages, after = [], ""
    while after is not None:
        page = held(api, "t", f"&limit=5{after and '&after='}{after}")
        assert len(page["messages"]) <= 5
        pages += page["messages"]
        after = page["next"]
    assert pages == everything["messages"]
    shard = everything["messages"][0]["shard"]
    of_one = held(api, "t", f"&shard={shard}")["messages"]
    assert of_one == [message for message in everything["messages"] if message["shard"] == shard]
    assert api.get("/v1/groups/g/held?topic=t&after=x", 400).code == "invalid_request"
    assert api.get("/v1/groups/g/held?topic=t&limit=1001", 400).code == "invalid_request"


def test_a_delivery_is_ended_in_its_consumers_stead_who_is_refused_then(make_node: Callable[..., NodeProcess]) -> None:
    api = Api(make_node(shards=1).start().url)
    api.create("t", 1)
    api.send("t", *({"queue": 0, "body": body} for body in ("again", "dead", "done", "stays")))
    own = {message["body"]: message["receipt"] for message in pop(api, "t", 4)}
    listed = {message["offset"]: message["receipt"] for message in held(api, "t")["messages"]}
    settle(api, "nack", "t", listed[0], release=True)
    settle(api, "nack", "t", listed[1], dead_letter=True)
    settle(api, "ack", "t", listed[2])
    assert [message["offset"] for message in held(api, "t")["messages"]] == [3]
    for body in ("again", "dead"):
        (refused,) = settle(api, "ack", "t", own[body])["refused"]
        assert refused["code"] == "receipt_expired"
    assert settle(api, "ack", "t", own["done"])["refused"] == [], "it is done, as he wanted"
    (again,) = pop(api, "t", 4)
    assert (again["body"], again["deliveries"]) == ("again", 1)
    extended = {"topic": "t", "receipts": [own["stays"]], "visibility_ms": 2 * LONG_MS}
    before = held(api, "t")["messages"][-1]["until_ms"]
    api.call("POST", "/v1/groups/g/extend", extended, status=200)
    assert held(api, "t")["messages"][-1]["until_ms"] > before + LONG_MS // 2
    assert len(held(api, "t")["messages"]) == 2, "each once"
    assert settle(api, "ack", "t", held(api, "t")["messages"][-1]["receipt"])["refused"] == []


def test_queues_are_called_by_their_names(make_node: Callable[..., NodeProcess]) -> None:
    api = Api(make_node(shards=2).start().url)
    api.create("inboxes", queues="named")
    names = [f"agents/{number}" for number in range(8)]
    api.send("inboxes", *({"queue": name, "body": "x"} for name in names))
    taken = 0
    while taken < len(names):
        taken += len(pop(api, "inboxes", 8))
    pages, after = [], ""
    while after is not None:
        page = held(api, "inboxes", f"&limit=3{after and '&after='}{after}")
        pages += [message["queue"] for message in page["messages"]]
        after = page["next"]
    assert sorted(pages) == names
    gone = held(api, "inboxes")["messages"][0]["queue"]
    api.call("DELETE", f"/v1/topics/inboxes/queues/{gone.replace('/', '%2F')}", status=204)
    assert gone not in [message["queue"] for message in held(api, "inboxes")["messages"]]


def test_who_asks_for_one_shard_is_told_of_one_that_is_not_the_topics(make_node: Callable[..., NodeProcess]) -> None:
    api = Api(make_node(shards=3).start().url)
    api.create("t", 1)
    api.send("t", {"queue": 0, "body": "x"})
    (message,) = pop(api, "t", 1)
    its = message["shard"]
    assert len(held(api, "t", f"&shard={its}")["messages"]) == 1
    for shard in ((its + 1) % 3, 7):
        assert api.get(f"/v1/groups/g/held?topic=t&shard={shard}", 400).code == "invalid_request"


def test_whoever_looks_makes_no_work_queue_where_nobody_has_popped(tmp_path: Path) -> None:
    async def test(session: Session, broker: Broker) -> None:
        service = node_of(session).work
        assert (await session.put("/v1/topics/wide", json={"queues": 6})).status == 201
        messages = {"messages": [{"queue": queue, "body": "x"} for queue in range(6)]}
        assert (await session.post("/v1/topics/wide/messages", json=messages)).status == 200
        assert (await session.post("/v1/groups/g/pop", json={"topic": "wide", "shards": [1]})).status == 200
        for _ in range(2):
            described = await (await session.get("/v1/groups/g/work-queue?topic=wide")).json()
            counts = [(shard["new"], shard["undelivered"], shard["in_flight"]) for shard in described["shards"]]
            assert counts == [(2, 2, 0), (0, 0, 2), (2, 2, 0)]
            assert len((await (await session.get("/v1/groups/g/held?topic=wide")).json())["messages"]) == 2
            assert (await (await session.get("/v1/groups/g/held?topic=wide&shard=0")).json())["messages"] == []
        assert [work.port.number for work in service.shards()] == [1]
        stored = [port.number for port in broker.topology.ports() if port.store.documents("work/")]
        assert stored == [1]

    with_node(tmp_path, test, shards=3)
