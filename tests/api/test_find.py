"""Finding messages by key over HTTP: pages, times, keys of bytes, what was deleted, and what is refused."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from lsmq_node.api import search
from lsmq_node.broker import Broker
from support.node_process import NodeProcess
from support.waiting import clock_passes, eventually

from .calls import Api
from .in_process import Session, with_node

QUEUES = 4


@pytest.fixture
def topic(api: Api, topic_name: str) -> str:
    api.create(topic_name, QUEUES)
    return topic_name


def find(api: Api, topic: str, key: str | None, **query: Any) -> dict[str, Any]:
    asked = {**({} if key is None else {"key": key}), **query}
    path = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in asked.items())
    found: dict[str, Any] = api.get(f"/v1/topics/{topic}/messages?{path}").json()
    return found


def pages(api: Api, topic: str, key: str | None, **query: Any) -> list[str]:
    bodies: list[str] = []
    after: dict[str, str] = {}
    while True:
        found = find(api, topic, key, **query, **after)
        bodies += [message["body"] for message in found["messages"]]
        if found["next"] is None:
            return bodies
        after = {"after": found["next"]}


def test_messages_of_a_key_are_found_newest_first_in_whatever_queue(api: Api, topic: str) -> None:
    for number in range(10):
        sent = {"queue": number % QUEUES, "key": "anna", "body": str(number)}, {"key": "bert", "body": "x"}
        place = api.send(topic, *sent).json()["results"][0]
        (message,) = api.read(topic, place["queue"], offset=place["offset"], max=1).json()["messages"]
        clock_passes(message["stored_ms"])  # Of two of one millisecond neither is the newer one.
    expected = [str(number) for number in reversed(range(10))]
    found = find(api, topic, "anna")
    assert [message["body"] for message in found["messages"]] == expected and found["next"] is None
    assert all(message["key"] == "anna" and message["queue"] < QUEUES for message in found["messages"])
    for limit in (1, 3, 10):
        assert pages(api, topic, "anna", limit=limit) == expected
    assert pages(api, topic, "anna", queue=2) == ["6", "2"]
    assert find(api, topic, "nobody") == {"messages": [], "next": None}
    times = [message["stored_ms"] for message in found["messages"]]
    assert pages(api, topic, "anna", from_ms=times[4]) == expected[: len([at for at in times if at >= times[4]])]
    assert pages(api, topic, "anna", to_ms=times[4]) == expected[len([at for at in times if at >= times[4]]) :]


def test_keys_are_compared_as_bytes(api: Api, topic: str) -> None:
    raw = base64.b64encode(b"\xff\x00").decode()
    api.send(topic, {"key_b64": raw, "body": "raw"}, {"key": "größe & co", "body": "text"})
    (message,) = find(api, topic, None, key_b64=raw)["messages"]
    assert message["body"] == "raw" and message["key_b64"] == raw
    assert pages(api, topic, "größe & co") == ["text"]
    assert find(api, topic, None, key_b64=base64.b64encode("größe & co".encode()).decode())["messages"]


def test_what_was_deleted_is_not_found_and_what_says_that_a_key_is_gone_is(api: Api, topic: str) -> None:
    api.send(topic, *({"queue": 1, "key": "anna", "body": str(number)} for number in range(6)))
    api.send(topic, {"queue": 1, "key": "anna", "delete": True})
    api.call("POST", f"/v1/topics/{topic}/delete", {"queues": [1, 1], "offsets": [4, 2]})
    api.call("POST", f"/v1/topics/{topic}/delete", {"queues": [1], "offsets": [1], "before": True})
    found = find(api, topic, "anna", limit=2)
    assert found["messages"][0]["delete"] is True
    assert pages(api, topic, "anna", limit=2) == ["", "5", "3", "1"]


def test_a_search_reads_few_blocks_and_says_so(make_node: Callable[..., NodeProcess], topic_name: str) -> None:
    node = make_node(memtable_bytes=1 << 20, max_message_bytes=64 << 10).start()
    api = Api(node.url)
    api.create(topic_name, QUEUES)
    for number in range(40):
        api.send(topic_name, *({"key": f"k{number}-{at}", "body": "x" * 500} for at in range(200)))
        api.send(topic_name, {"key": "anna", "body": str(number)})
    found = find(api, topic_name, "anna", limit=3, explain=1)
    assert [message["body"] for message in found["messages"]] == ["39", "38", "37"]
    api = Api(node.restart().url)
    found = find(api, topic_name, "anna", limit=40, explain=1)
    assert [message["body"] for message in found["messages"]] == [str(number) for number in reversed(range(40))]
    (work,) = found["explain"]
    assert work["tables"] >= 1 and work["tables_without_keys"] == 0 and work["messages"] == 40
    assert work["blocks"] <= 40
    assert find(api, topic_name, "no such key", explain=1)["explain"][0]["blocks"] == 0


def test_what_cannot_be_asked_is_refused_by_name(api: Api, topic: str) -> None:
    base = f"/v1/topics/{topic}/messages"
    for query, field in {
        "": "key",
        "?key=a&key_b64=YQ==": "key",
        "?key_b64=%21": "key_b64",
        "?key=a&after=yesterday": "after",
        "?key=a&limit=0": "limit",
        "?key=a&limit=1001": "limit",
        "?key=a&shard=7": "shard",
        "?key=a&colour=red": "colour",
        "?key=a&tag=%7C%7C": "tag",
        "?type=a%7C%7C": "type",
    }.items():
        answer = api.get(base + query, 400)
        assert answer.error["field"] == field, query
    assert api.get(f"{base}?key=a&queue=99", 404).code == "unknown_queue"
    assert api.get("/v1/topics/nowhere/messages?key=a", 404).code == "unknown_topic"


def test_the_last_message_of_a_key_is_its_value(api: Api, topic: str) -> None:
    path = f"/v1/topics/{topic}/table"
    api.send(topic, {"queue": 1, "key": "a/b c", "body": "old"}, {"queue": 1, "key": "a/b c", "body": "new"})
    api.send(topic, {"key": "gone", "body": "x"})
    found = api.get(f"{path}/{quote('a/b c', safe='')}").json()
    assert (found["body"], found["key"], found["offset"]) == ("new", "a/b c", 1)
    assert api.get(f"{path}/gone").json()["body"] == "x"
    api.send(topic, {"key": "gone", "delete": True})
    assert api.get(f"{path}/gone", 404).code == "unknown_message"
    assert api.get(f"{path}/never", 404).code == "unknown_message"


def test_a_compacted_topic_keeps_the_last_message_of_each_key(
    make_node: Callable[..., NodeProcess], topic_name: str
) -> None:
    node = make_node(retention_interval_ms=100).start()
    api = Api(node.url)
    api.create(topic_name, QUEUES, cleanup="compact")
    for round_ in range(4):
        api.send(topic_name, *({"key": f"k{at}", "body": f"{at} {round_}"} for at in range(20)))

    def left(api: Api) -> list[str]:
        return sorted(body for queue in range(QUEUES) for body in api.all_bodies(topic_name, queue))

    expected = sorted(f"{at} 3" for at in range(20))
    eventually(lambda: left(api) == expected, "what is superseded is gone")
    api = Api(node.restart().url)
    assert left(api) == expected
    assert api.get(f"/v1/topics/{topic_name}/table/k7").json()["body"] == "7 3"
    altered = api.call("PATCH", f"/v1/topics/{topic_name}", {"cleanup": "delete"}, status=200).json()
    assert altered["options"].get("cleanup", "delete") == "delete"
    bad = api.call("PATCH", f"/v1/topics/{topic_name}", {"delete_retention_ms": 1000}, status=400)
    assert "cleanup" in bad.error["message"]


def test_a_search_gives_what_its_filter_picks_and_nothing_that_has_expired(api: Api, topic: str) -> None:
    for number in range(6):
        fields = {"tag": "odd" if number % 2 else "even", "type": "step", "properties": {"number": str(number)}}
        api.send(topic, {"queue": 0, "key": "anna", "body": str(number), **fields})
    api.send(topic, {"queue": 0, "key": "anna", "body": "soon over", "ttl_ms": 1})
    eventually(lambda: pages(api, topic, "anna") == ["5", "4", "3", "2", "1", "0"], "what has expired is not found")
    assert pages(api, topic, "anna", tag="odd") == ["5", "3", "1"]
    assert pages(api, topic, "anna", tag="odd || even", filter="number = '2'") == ["2"]
    assert pages(api, topic, "anna", type="other") == []
    assert pages(api, topic, "anna", filter="tag = 'even' AND type = 'step'", limit=1) == ["4", "2", "0"]
    bad = api.get(f"/v1/topics/{topic}/messages?key=anna&filter=number%20%3D", 400)
    assert bad.code == "invalid_filter"


def searched(api: Api, topic: str, **query: Any) -> list[str]:
    """What a filter picks, over all pages, each message as queue/offset:body."""
    found: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = find(api, topic, None, **query, **after)
        found += [f"{message['queue']}/{message['offset']}:{message['body']}" for message in page["messages"]]
        if page["next"] is None:
            return found
        after = {"after": page["next"]}


def test_all_that_a_filter_picks_is_found_queue_after_queue(api: Api, topic: str) -> None:
    for number in range(24):
        extra = {"tag": "odd"} if number % 2 else {"type": "even"}
        api.send(topic, {"queue": number % QUEUES, "body": str(number), "properties": {"n": str(number)}, **extra})
    odd = [f"{queue}/{offset}:{4 * offset + queue}" for queue in (1, 3) for offset in range(6)]
    for limit in (1, 5, 1_000):
        assert searched(api, topic, tag="odd", limit=limit) == odd
    assert searched(api, topic, tag="odd", queue=3) == odd[6:]
    assert searched(api, topic, type="even", filter="n > 19 OR n = 2") == ["0/5:20", "2/0:2", "2/5:22"]
    assert searched(api, topic, tag="none") == []
    times = sorted(message["stored_ms"] for message in find(api, topic, None, tag="odd", limit=100)["messages"])
    assert sorted(searched(api, topic, tag="odd", from_ms=times[0], to_ms=times[-1] + 1)) == sorted(odd)
    assert searched(api, topic, tag="odd", from_ms=times[-1] + 1) == []
    api.call("POST", f"/v1/topics/{topic}/delete", {"queues": [1], "offsets": [2]})
    api.call("POST", f"/v1/topics/{topic}/delete", {"queues": [3], "offsets": [5], "before": True})
    assert searched(api, topic, tag="odd", limit=2) == [*odd[:2], *odd[3:6], odd[11]]
    explained = find(api, topic, None, tag="odd", explain=1)["explain"]
    assert sum(work["looked_at"] for work in explained) == 19, "a deleted one is passed over"


def test_a_search_of_many_shards_is_bounded_as_that_of_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "SIEVED_RECORDS", 3)

    async def test(client: Session, broker: Broker) -> None:
        await client.put("/v1/topics/s", json={"queues": 6})
        sent = [
            {"queue": number // 2, "body": str(number), "tag": "odd" if number % 2 else None} for number in range(12)
        ]
        assert (await client.post("/v1/topics/s/messages", json={"messages": sent})).status == 200
        found, looked_at, after = [], [], ""
        while True:
            page = await (await client.get(f"/v1/topics/s/messages?tag=odd&explain=1{after}")).json()
            found += [message["body"] for message in page["messages"]]
            looked_at.append(sum(work["looked_at"] for work in page["explain"]))
            if page["next"] is None:
                break
            after = f"&after={page['next']}"
        assert found == [str(number) for number in range(1, 12, 2)]
        assert looked_at == [4, 4, 4], "of six shards two with each request"

    with_node(tmp_path, test, shards=6)


@pytest.mark.part(2)
def test_a_search_by_filter_that_finds_little_is_bounded_and_goes_on(
    make_node: Callable[..., NodeProcess], topic_name: str
) -> None:
    api = Api(make_node(memtable_bytes=4 << 20).start().url)
    api.create(topic_name, 3)
    for number in range(20):
        rare = [{"queue": 1, "body": f"{number}", "priority": 7}] if number % 10 == 0 else []
        api.send(topic_name, *[{"queue": 1, "body": "x"}] * 9_000, *rare)
    pages, looked, found = 0, 0, []
    after: dict[str, str] = {}
    while pages == 0 or after:
        page = find(api, topic_name, None, filter="priority = 7", explain=1, **after)
        (work,) = page["explain"]
        assert work["looked_at"] <= 150_000
        pages, looked = pages + 1, looked + work["looked_at"]
        found += [message["body"] for message in page["messages"]]
        after = {"after": page["next"]} if page["next"] else {}
    assert (pages, looked, found) == (2, 180_002, ["0", "10"])


def test_a_filter_that_is_taken_is_taken_beside_times(api: Api, topic: str) -> None:
    condition = "(" * 64 + "priority = 0" + ")" * 64
    api.send(topic, {"queue": 0, "body": "a"})
    for times in ({}, {"from_ms": 1}, {"from_ms": 1, "to_ms": 2**50}):
        assert len(find(api, topic, None, filter=condition, **times)["messages"]) == 1
    assert find(api, topic, None, filter=condition, to_ms=1)["messages"] == []


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({}, "at least one of tag, type, filter, from_ms and to_ms"),
        ({"tag": "a", "after": "1-2-3"}, "`next` of an earlier answer"),
        ({"tag": "a", "after": "999.0.0"}, "its shard is not among"),
        ({"key": "a", "after": "0.0.0"}, "`next` of an earlier answer"),
        ({"tag": "a", "queue_name": "b"}, "has queues with numbers"),
        ({"filter": "a = 1) OR (b = 2"}, "filter"),
    ],
)
def test_what_cannot_be_searched_for_is_refused(api: Api, topic: str, query: dict[str, str], words: str) -> None:
    asked = "&".join(f"{name}={quote(value)}" for name, value in query.items())
    answer = api.call("GET", f"/v1/topics/{topic}/messages?{asked}", status=400)
    assert words in answer.error["message"]


def test_by_a_time_alone_all_messages_of_it_are_found_page_by_page(api: Api, topic: str) -> None:
    stored: list[int] = []
    for number in range(8):
        place = api.send(topic, {"queue": number % QUEUES, "body": str(number)}).json()["results"][0]
        (message,) = api.read(topic, place["queue"], offset=place["offset"], max=1).json()["messages"]
        stored.append(message["stored_ms"])
        clock_passes(stored[-1])
    later, all_of_them = ["4", "5", "6", "7"], ["0", "4", "1", "5", "2", "6", "3", "7"]
    for limit in (1, 3, 100):
        assert pages(api, topic, None, from_ms=stored[4], limit=limit) == later
        assert pages(api, topic, None, to_ms=stored[4], limit=limit) == ["0", "1", "2", "3"]
        assert pages(api, topic, None, from_ms=0, limit=limit) == all_of_them
    assert pages(api, topic, None, from_ms=stored[2], to_ms=stored[6], queue=2) == ["2"]


def test_a_long_queue_is_looked_through_from_the_time_on_that_is_asked_for(api: Api, topic: str) -> None:
    for _ in range(6):
        api.send(topic, *({"queue": 1, "body": "old"} for _ in range(1_000)))
    (last,) = api.read(topic, 1, offset=5_999, max=1).json()["messages"]
    clock_passes(last["stored_ms"])
    sent = [api.send(topic, {"queue": queue, "body": f"new {queue}"}).json()["results"][0] for queue in range(QUEUES)]
    (first,) = api.read(topic, 0, offset=sent[0]["offset"], max=1).json()["messages"]
    for limit in (1, 3, 100):
        assert pages(api, topic, None, from_ms=first["stored_ms"], limit=limit) == [f"new {n}" for n in range(QUEUES)]
    explained = find(api, topic, None, from_ms=first["stored_ms"], explain=1)["explain"]
    assert sum(each["looked_at"] for each in explained) < 5_000
    assert len(pages(api, topic, None, from_ms=1, queue=1, limit=1_000)) == 6_001
    for where in ({}, {"queue": 1}):
        assert pages(api, topic, None, from_ms=2**50, to_ms=2**51, **where) == []
