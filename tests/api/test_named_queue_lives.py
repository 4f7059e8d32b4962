"""The queues of a named topic over HTTP: listed, declared, trimmed, deleted, forgotten, and there after a kill."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import quote

import pytest

from lsmq.queue_names import SLOTS, queue_slot
from lsmq.record_batch import BatchBuilder, message_id
from lsmq_node.broker import Broker, name_cleaner
from lsmq_node.storage import topic_names
from support.node_process import NodeProcess
from support.waiting import comes_true

from .calls import Api
from .in_process import Session, with_node
from .named_queues import bodies, fetch, listed, named_topic, path, send


@pytest.fixture
def topic(api: Api, topic_name: str) -> str:
    return named_topic(api, topic_name)


def test_queues_are_listed_in_order_a_page_at_a_time(api: Api, topic: str) -> None:
    names = sorted(f"{kind}.{at}" for kind in ("a", "b") for at in range(20))
    send(api, topic, *((name, "x") for name in reversed(names)), ("a.0", "y"))
    found, after = [], ""
    while after is not None:
        page = api.get(f"/v1/topics/{topic}/queues?limit=7&after={after}").json()
        found += page["queues"]
        after = page["next"]
    assert [row["name"] for row in found] == names
    assert found[0].pop("number") >= 0
    assert found[0] == {"name": "a.0", "earliest": 0, "latest": 2, "count": 2}
    assert listed(api, topic, "?prefix=b.1") == sorted(name for name in names if name.startswith("b.1"))


def test_a_declared_queue_is_there_and_empty(api: Api, topic: str) -> None:
    made = api.call("PUT", path(topic, "d/1"), status=201).json()
    assert made == {"queue": "d/1", "name": "d/1", "earliest": 0, "latest": 0, "count": 0, "number": 0}
    assert api.call("PUT", path(topic, "d/1"), status=200).json() == made
    assert api.get(path(topic, "d/1")).json() == made
    assert bodies(api, topic, "d/1") == []
    assert api.call("PUT", path(topic, "\x07"), status=400).code == "invalid_queue_name"


def test_a_deleted_queue_is_gone_with_its_messages(api: Api, topic: str) -> None:
    sent = send(api, topic, ("a", "1"), ("a", "2")).json()["results"]
    api.call("DELETE", path(topic, "a"), status=204)
    for answer in (
        api.call("DELETE", path(topic, "a")),
        api.get(path(topic, "a"), None),
        api.get(f"{path(topic, 'a')}/messages", None),
    ):
        assert (answer.status, answer.code) == (404, "unknown_queue")
    assert api.get(f"/v1/messages/{sent[0]['id']}", 404).code == "unknown_message"
    assert listed(api, topic) == []
    (result,) = send(api, topic, ("b", "3")).json()["results"]
    assert result["id"] not in {each["id"] for each in sent}
    assert bodies(api, topic, "b") == ["3"], "nothing of another queue that had the number"
    assert bodies(api, topic, "b") == ["3"]


def test_the_beginning_of_a_queue_is_trimmed_by_name_and_by_number(api: Api, topic: str, topic_name: str) -> None:
    send(api, topic, *(("a", str(at)) for at in range(5)))
    trimmed = api.call("POST", f"{path(topic, 'a')}/trim", {"before": 3}, status=200).json()
    assert (trimmed["earliest"], trimmed["count"]) == (3, 2)
    assert bodies(api, topic, "a") == ["3", "4"]
    beyond = api.call("POST", f"{path(topic, 'a')}/trim", {"before": 6}, status=416)
    assert beyond.error["queue"] == "a" and "queue 'a'" in beyond.error["message"]
    assert api.call("POST", f"{path(topic, 'no')}/trim", {"before": 0}, status=404).code == "unknown_queue"
    numbered = f"{topic_name}-numbers"
    api.create(numbered, 1)
    api.send(numbered, *({"queue": 0, "body": str(at)} for at in range(3)))
    assert api.call("POST", f"/v1/topics/{numbered}/queues/0/trim", {"before": 2}, status=200).json() == {
        "queue": 0,
        "earliest": 2,
        "latest": 3,
    }


def test_internal_topics_are_not_reachable(api: Api, topic: str) -> None:
    send(api, topic, ("a", "1"))
    assert all("/" not in found["name"] for found in api.get("/v1/topics").json()["topics"])
    assert api.get(f"/v1/topics/{quote(topic + '/names', safe='')}", 404).code == "unknown_topic"
    id = api.get(f"/v1/topics/{topic}").json()["id"]
    assert api.get(f"/v1/messages/{message_id(id | 1 << 29, 0, 0)}", 404).code == "unknown_message"


def test_empty_queues_are_forgotten_and_others_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_cleaner, "_LOOK_S", 0.02)

    async def test(client: Session, broker: Broker) -> None:
        await client.put("/v1/topics/f", json={"queues": "named", "forget_empty_ms": 100})
        messages = [{"queue": name, "body": "x"} for name in ("kept", "trimmed")]
        await client.post("/v1/topics/f/messages", json={"messages": messages})
        await client.put("/v1/topics/f/queues/declared")
        await client.post("/v1/topics/f/queues/trimmed/trim", json={"before": 1})

        async def names() -> list[str]:
            found = await (await client.get("/v1/topics/f/queues")).json()
            return [row["name"] for row in found["queues"]]

        async def only_kept() -> bool:
            return await names() == ["kept"]

        await comes_true(only_kept, "the names of empty queues are forgotten")
        answer = await client.post("/v1/topics/f/messages", json={"messages": [{"queue": "trimmed", "body": "again"}]})
        assert answer.status == 200
        assert await names() == ["kept", "trimmed"]

    with_node(tmp_path, test)


def test_names_of_very_many_topics_are_looked_at_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_cleaner, "_LOOK_S", 0.02)
    monkeypatch.setattr(name_cleaner, "_LOOKED_AT_IN_A_ROW", 2)

    async def test(client: Session, broker: Broker) -> None:
        topics = [f"/v1/topics/f{number}" for number in range(5)]
        for topic in topics:
            await client.put(topic, json={"queues": "named", "forget_empty_ms": 100})
            await client.put(f"{topic}/queues/declared")

        async def none_is_left() -> bool:
            found = [await (await client.get(f"{topic}/queues")).json() for topic in topics]
            return not any(each["queues"] for each in found)

        await comes_true(none_is_left, "the names of empty queues of all topics are forgotten")

    with_node(tmp_path, test)


def test_however_long_a_machine_is_up_no_empty_queue_is_forgotten_early(tmp_path: Path) -> None:
    """The loop's time counts from the machine's start, or from long before."""

    async def test(client: Session, broker: Broker) -> None:
        await client.put("/v1/topics/named", json={"queues": "named"})
        await client.put("/v1/topics/named/queues/a")
        topic, (port,) = await broker.topic("named"), broker.topology.ports()
        numbers = port.store.names(topic.id).all_numbers()
        seen, began = name_cleaner._Seen(port.store), 200_000_001.0

        def is_due(after_s: float) -> bool:
            return bool(len(name_cleaner._due(seen, port.store, topic, numbers, began + after_s, 10.0)[0]))

        assert [is_due(after_s) for after_s in (0.0, 5.0, 9.9, 10.0)] == [False, False, False, True]

    with_node(tmp_path, test)


@pytest.mark.parametrize("options", [{}, {"queue_max_messages": 9, "overflow": "drop_oldest", "dropped_to": "over"}])
def test_queues_whose_messages_have_expired_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """Whether anybody reads them or not, and where what is over a limit would be moved."""
    monkeypatch.setattr(name_cleaner, "_LOOK_S", 0.02)

    async def test(client: Session, broker: Broker) -> None:
        await client.put("/v1/topics/f", json={"queues": "named", "forget_empty_ms": 100, **options})
        short = [{"queue": f"short-{number}", "body": "x", "ttl_ms": 50} for number in range(3) for _ in range(2)]
        mixed = [{"queue": "mixed", "body": "x", "ttl_ms": 50}, {"queue": "mixed", "body": "stays"}]
        late = [{"queue": "late", "body": "x", "ttl_ms": 3_600_000}, {"queue": "ever", "body": "x"}]
        await client.post("/v1/topics/f/messages", json={"messages": [*short, *mixed, *late]})

        async def names() -> list[str]:
            found = await (await client.get("/v1/topics/f/queues")).json()
            return [row["name"] for row in found["queues"]]

        async def are_forgotten() -> bool:
            return await names() == ["ever", "late", "mixed"]

        await comes_true(are_forgotten, "the names of queues without a message to be read are forgotten")
        for name, count in (("ever", 1), ("late", 1), ("mixed", 1)):
            found = await (await client.get(f"/v1/topics/f/queues/{name}/messages")).json()
            assert len(found["messages"]) == count

    with_node(tmp_path, test)


@pytest.mark.parametrize("window", [60_000, "forever"])
def test_a_queue_is_not_forgotten_before_the_ids_of_its_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int | str
) -> None:
    monkeypatch.setattr(name_cleaner, "_LOOK_S", 0.02)

    async def test(client: Session, broker: Broker) -> None:
        options = {"queues": "named", "forget_empty_ms": 50}
        await client.put("/v1/topics/short", json=options)
        await client.put("/v1/topics/window", json={**options, "dedupe_window_ms": window})
        for topic in ("window", "short"):
            await client.put(f"/v1/topics/{topic}/queues/before")
            one = {"queue": "q", "body": "x", **({"dedupe_id": "id"} if topic == "window" else {})}
            await client.post(f"/v1/topics/{topic}/messages", json={"messages": [one]})
            await client.post(f"/v1/topics/{topic}/queues/q/trim", json={"before": 1})

        async def forgotten() -> bool:
            return (await client.get("/v1/topics/short/queues/q")).status == 404

        await comes_true(forgotten, "the queue is forgotten")
        again = {"queue": "q", "body": "x", "dedupe_id": "id"}
        answer = await (await client.post("/v1/topics/window/messages", json={"messages": [again]})).json()
        assert answer["results"][0]["duplicate"]
        rows = (await (await client.get("/v1/topics/window/queues")).json())["queues"]
        assert [row["name"] for row in rows] == ["before", "q"]

    with_node(tmp_path, test)


def test_a_new_queue_is_not_forgotten_for_the_time_of_one_that_had_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name_cleaner, "_LOOK_S", 0.02)

    async def test(client: Session, broker: Broker) -> None:
        await client.put("/v1/topics/f", json={"queues": "named", "forget_empty_ms": 1_500})
        first = await (await client.put("/v1/topics/f/queues/first")).json()
        await asyncio.sleep(1.2)
        await client.delete("/v1/topics/f/queues/first")
        began = time.monotonic()
        second = await (await client.put("/v1/topics/f/queues/second")).json()
        assert second["number"] == first["number"]

        async def forgotten() -> bool:
            return (await client.get("/v1/topics/f/queues/second")).status == 404

        await comes_true(forgotten, "the queue is forgotten")
        assert time.monotonic() - began >= 1.5

    with_node(tmp_path, test)


def test_the_log_of_names_is_written_anew_once_most_of_it_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name_cleaner, "_LOOK_S", 0.02)
    monkeypatch.setattr(name_cleaner, "_SELDOM_S", 0.02)
    monkeypatch.setattr(topic_names, "LEAST_REWRITTEN", 20)

    async def test(client: Session, broker: Broker) -> None:
        topic = await (await client.put("/v1/topics/n", json={"queues": "named"})).json()
        store, names_id = broker.topology.port(0).store, topic["id"] | 1 << 29
        for turn in range(5):
            messages = [{"queue": f"temp.{at}", "body": "x"} for at in range(20)]
            messages.append({"queue": f"stays.{turn}", "body": "x"})
            await client.post("/v1/topics/n/messages", json={"messages": messages})
            for at in range(20):
                assert (await client.delete(f"/v1/topics/n/queues/temp.{at}")).status == 204

        def is_short() -> bool:
            first, end = store.bounds(names_id, 0)
            return first > 0 and end - first < 100

        await comes_true(is_short, "the log begins later")
        found = await (await client.get("/v1/topics/n/queues")).json()
        assert [row["name"] for row in found["queues"]] == [f"stays.{turn}" for turn in range(5)]

    with_node(tmp_path, test)


@pytest.mark.parametrize("shards", [1, 3])
def test_names_and_messages_are_there_after_a_kill(make_node: Callable[..., NodeProcess], shards: int) -> None:
    node = make_node(shards=shards).start()
    api = Api(node.url)
    api.call("PUT", "/v1/topics/n", {"queues": "named"}, status=201)
    names = [f"agents.{at}.inbox" for at in range(100)]
    send(api, "n", *((name, name) for name in names))
    api.call("DELETE", path("n", names[0]), status=204)
    if shards > 1:
        ids = [result["id"] for result in send(api, "n", *((name, "2") for name in names[1:])).json()["results"]]
        assert len({id[8:10] for id in ids}) == shards, "numbers say the range they are of"
        mixed = b"\0".join(name.encode() for name in names)
        builder = BatchBuilder()
        for at in range(len(names)):
            builder.add(at, b"x")
        headers = {"Content-Type": "application/vnd.lsmq.named-batch"}
        body = len(mixed).to_bytes(4, "little") + mixed + builder.build()
        answer = api.call("POST", "/v1/topics/n/batches", body=body, headers=headers)
        assert answer.status == 400 and "send one request a shard" in answer.error["message"]
    node.kill9()
    node.start()
    api = Api(node.url)
    assert listed(api, "n", "?limit=1000") == sorted(names[1:])
    found = fetch(api, "n", pattern="agents.**", start="earliest").messages
    assert found.keys() == set(names[1:]) and all(got[0] == name for name, got in found.items())
    assert api.get(f"{path('n', names[0])}/messages", 404).code == "unknown_queue"
    assert json.loads(send(api, "n", (names[0], "new")).body)["results"][0]["queue"] == names[0]
    assert bodies(api, "n", names[0]) == ["new"]


def test_limits_of_a_queue_hold_for_names(api: Api, topic_name: str) -> None:
    api.call("PUT", f"/v1/topics/{topic_name}", {"queues": "named", "queue_max_messages": 2}, status=201)
    for at in range(1_100):  # more than a topic's arrays begin with
        if at % 100 == 0:
            send(api, topic_name, *((f"q{each}", "1") for each in range(at, at + 100)))
    send(api, topic_name, ("q1099", "2"))
    refused = send(api, topic_name, ("q1099", "3"), status=507)
    assert refused.code == "quota_exceeded"
    assert refused.error["queue"] == "q1099"
    assert refused.error["message"].startswith(f"queue 'q1099' of topic {topic_name!r} holds 2 messages")
    refused = send(api, topic_name, ("q0", "2"), *[("new", "1")] * 3, status=413)
    assert refused.code == "too_many_messages" and refused.error["queue"] == "new"
    assert "sent together to queue 'new' of topic" in refused.error["message"]
    assert bodies(api, topic_name, "q1099") == ["1", "2"]


@pytest.mark.parametrize("shards", [1, 3])
def test_a_named_topic_is_purged_and_trimmed_as_a_whole(make_node: Callable[..., NodeProcess], shards: int) -> None:
    api = Api(make_node(shards=shards).start().url)
    api.call("PUT", "/v1/topics/n", {"queues": "named"}, status=201)
    names = [f"q{at}" for at in range(5_000)]  # more than a shard's slots
    for first in range(0, len(names), 1_000):
        send(api, "n", *((name, "1") for name in names[first : first + 1_000]))
    assert "named queues" in api.call("POST", "/v1/topics/n/purge", {"queues": "0-5"}, status=400).error["message"]
    purged = api.call("POST", "/v1/topics/n/purge", {}, status=200).json()
    assert (purged["messages"], purged["next"]) == (5_000, None)
    assert fetch(api, "n", pattern="**", start="earliest").messages == {}
    assert len(listed(api, "n")) == 1_000
    assert listed(api, "n", "?limit=4900") == sorted(names)[:4_900]
    assert listed(api, "n", "?limit=10000") == sorted(names)


@pytest.mark.parametrize("shards", [1, 3])
def test_messages_are_found_by_key_and_say_the_names_of_their_queues(
    make_node: Callable[..., NodeProcess], shards: int
) -> None:
    api = Api(make_node(shards=shards).start().url)
    api.call("PUT", "/v1/topics/n", {"queues": "named"}, status=201)
    names = [f"q{at}" for at in range(6)]
    api.send("n", *({"queue": name, "key": "k", "body": name} for name in names))
    found = api.get("/v1/topics/n/messages?key=k").json()["messages"]
    assert {message["queue"]: message["body"] for message in found} == {name: name for name in names}
    api.call("DELETE", path("n", "q3"), status=204)
    found = api.get("/v1/topics/n/messages?key=k").json()["messages"]
    assert {message["queue"] for message in found} == set(names) - {"q3"}


def test_filters_pick_messages_of_named_queues(api: Api, topic: str) -> None:
    api.send(
        topic,
        {"queue": "a.1", "body": "1", "tag": "x"},
        {"queue": "a.1", "body": "2", "tag": "y"},
        {"queue": "a.2", "body": "3", "tag": "y"},
    )
    found = fetch(api, topic, pattern="a.*", start="earliest", tag="y", keep=True)
    assert found.messages == {"a.1": ["2"], "a.2": ["3"]}
    api.send(topic, {"queue": "a.3", "body": "4", "tag": "y"}, {"queue": "a.1", "body": "5", "tag": "x"})
    assert fetch(api, topic, session=found.session, tag="y", wait_ms=20_000).messages == {"a.3": ["4"]}
    messages = api.get(f"{path(topic, 'a.1')}/messages?tag=x").json()["messages"]
    assert [(message["queue"], message["body"]) for message in messages] == [("a.1", "1"), ("a.1", "5")]


def test_no_more_names_are_told_at_once_than_a_request_may_have_queues(tmp_path: Path) -> None:
    async def test(client: Session, broker: Broker) -> None:
        await client.put("/v1/topics/n", json={"queues": "named"})
        for name in "abc":
            assert (await client.put(f"/v1/topics/n/queues/{name}")).status == 201

        async def status(first: int, end: int) -> int:
            wanted = {"slots": [[first, end]], "start": "latest", "with_names": True}
            return (await client.post("/v1/topics/n/fetch", json=wanted)).status

        assert await status(0, SLOTS) == 413
        slot = queue_slot("a")
        assert await status(slot, slot + 1) == 200

    with_node(tmp_path, test, max_queues_per_request=2)


def test_topics_that_forget_no_queue_are_looked_at_no_more_than_others_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What forgets empty queues sees a topic that is to from now on, and asks of others once."""
    monkeypatch.setattr(name_cleaner, "_LOOK_S", 0.02)

    async def test(client: Session, broker: Broker) -> None:
        topics, looked_at = broker.topology.topics, list[str]()
        find = topics.find
        with patch.object(topics, "find", lambda name: looked_at.append(name) or find(name)):
            for name in ("keeps", "forgets"):
                await client.put(f"/v1/topics/{name}", json={"queues": "named"})
                await client.put(f"/v1/topics/{name}/queues/empty")
            assert (await client.patch("/v1/topics/forgets", json={"forget_empty_ms": 100})).status == 200
            looked_at.clear()

            async def is_forgotten() -> bool:
                return not (await (await client.get("/v1/topics/forgets/queues")).json())["queues"]

            await comes_true(is_forgotten, "what forgets by now is looked at")
            assert looked_at.count("forgets") > 1 and looked_at.count("keeps") <= 1

    with_node(tmp_path, test)
