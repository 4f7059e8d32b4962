"""Messages over HTTP as JSON and msgpack: what is accepted, what comes back, what is refused and how."""

from __future__ import annotations

import time
from typing import Any

import msgpack
import pytest

from lsmq.record_batch import key_hash, message_id
from support.waiting import eventually

from .calls import Api, text

MSGPACK = {"Content-Type": "application/msgpack"}


def test_what_is_sent_comes_back_in_order_with_all_its_fields(api: Api, topic_name: str) -> None:
    topic = api.create(topic_name, 4)
    sent = [
        {"queue": 2, "body": "one", "key": "k", "tag": "t", "properties": {"a": "b"}, "priority": 7},
        {"queue": 2, "body_b64": text(b"\xff\x00")},
        {"queue": 2, "body": "drei ü €"},
    ]
    results = api.send(topic_name, *sent).json()["results"]
    assert results == [{"queue": 2, "offset": offset, "id": message_id(topic["id"], 2, offset)} for offset in range(3)]
    page = api.read(topic_name, 2).json()
    assert page["next_offset"] == 3
    first, second, third = page["messages"]
    assert first == {
        "queue": 2,
        "offset": 0,
        "id": results[0]["id"],
        "key": "k",
        "tag": "t",
        "priority": 7,
        "properties": {"a": "b"},
        "stored_ms": first["stored_ms"],
        "body": "one",
    }
    assert second["body_b64"] == text(b"\xff\x00") and "body" not in second
    assert third["body"] == "drei ü €" and third["key"] is None


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_a_message_says_until_when_it_is_delivered_and_how_it_ranks_in_a_priority(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    until = now_ms() + 3_600_000
    api.send(topic_name, {"body": "until then", "expires_at_ms": until, "priority": 3, "subpriority": 255})
    api.send(topic_name, {"body": "for ever", "expires_at_ms": None, "subpriority": 0})
    api.send(topic_name, {"body": "soon over", "expires_at_ms": now_ms() + 400})
    first, second = api.read(topic_name, 0).json()["messages"][:2]
    assert (first["expires_ms"], first["priority"], first["subpriority"]) == (until, 3, 255)
    assert "expires_ms" not in second and "subpriority" not in second
    eventually(lambda: api.bodies(topic_name, 0) == ["until then", "for ever"], "it is over")
    assert api.bodies(topic_name, 0, filter="subpriority%20%3E%20254") == ["until then"]


@pytest.mark.parametrize(
    ("fields", "name", "says"),
    [
        ({"expires_at_ms": 1_700_000_000_000}, "expires_at_ms", "which is over"),
        ({"expires_at_ms": 1}, "expires_at_ms", "which is over"),
        ({"expires_at_ms": 1 << 43}, "expires_at_ms", "within ten years"),
        ({"expires_at_ms": "tomorrow"}, "expires_at_ms", "expires_at_ms is text; it must be an integer or null"),
        ({"expires_at_ms": 1_900_000_000}, "expires_at_ms", "seconds since 1970"),
        ({"deliver_at_ms": 1_900_000_000}, "deliver_at_ms", "give milliseconds, a thousand times as many"),
        ({"expires_at_ms": -1}, "expires_at_ms", "expires_at_ms is -1, which is over"),
        ({"ttl_ms": 1.5}, "ttl_ms", "ttl_ms is a number; it must be an integer or null"),
        ({"dedupe_id": 5}, "dedupe_id", "dedupe_id is an integer; it must be text or null"),
        ({"expires_at_ms": 1_900_000_000_000, "ttl_ms": 5}, "expires_at_ms", "one of the two"),
        ({"expires_at_ms": 1_900_000_000_000, "deliver_at_ms": 1_900_000_000_000}, "expires_at_ms", "expire later"),
        ({"subpriority": 256}, "subpriority", "255"),
        ({"subpriority": True}, "subpriority", "integer"),
        ({"ttl_ms": 0}, "ttl_ms", "from 1 to"),
    ],
)
def test_a_moment_or_a_rank_that_cannot_be_is_refused_by_name(
    api: Api, topic_name: str, fields: dict[str, Any], name: str, says: str
) -> None:
    api.create(topic_name, 1, dedupe_window_ms=1_000)
    error = api.send(topic_name, {"body": "x"}, {"body": "y", **fields}, status=400).error
    assert error["field"] == f"messages[1].{name}" and says in error["message"]
    assert api.bodies(topic_name, 0) == []


def test_results_stand_in_the_order_of_the_messages_over_many_queues(api: Api, topic_name: str) -> None:
    api.create(topic_name, 10)
    queues = [3, 1, 3, 9, 1, 3]
    results = api.send(topic_name, *({"queue": queue, "body": "x"} for queue in queues)).json()["results"]
    assert [(result["queue"], result["offset"]) for result in results] == [
        (3, 0),
        (1, 0),
        (3, 1),
        (9, 0),
        (1, 1),
        (3, 2),
    ]


def test_a_key_decides_the_queue_and_no_key_goes_round(api: Api, topic_name: str) -> None:
    api.create(topic_name, 7)
    keyed = api.send(topic_name, *({"key": f"k{number}", "body": "x"} for number in range(20))).json()["results"]
    assert [result["queue"] for result in keyed] == [key_hash(f"k{number}") % 7 for number in range(20)]
    round_robin = api.send(topic_name, *({"body": "x"} for _ in range(7))).json()["results"]
    assert sorted(result["queue"] for result in round_robin) == list(range(7))


def test_msgpack_both_ways_carries_bytes(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    body = msgpack.packb({"messages": [{"body": b"\x00\xff"}, {"body": "text"}, {"body_b64": "YQ=="}]})
    answer = api.call("POST", f"/v1/topics/{topic_name}/messages", body=body, headers=MSGPACK, status=200)
    assert [result["offset"] for result in answer.msgpack()["results"]] == [0, 1, 2]
    read = api.get(f"/v1/topics/{topic_name}/queues/0/messages", headers={"Accept": "application/msgpack"})
    assert [message["body"] for message in read.msgpack()["messages"]] == [b"\x00\xff", b"text", b"a"]


def test_an_error_is_msgpack_when_the_request_was(api: Api, topic_name: str) -> None:
    answer = api.call("POST", f"/v1/topics/{topic_name}/messages", body=b"\x80", headers=MSGPACK)
    assert answer.status == 404
    assert answer.msgpack()["error"]["code"] == "unknown_topic"


def test_reading_in_pages_gives_every_message_once(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    bodies = [str(number) for number in range(95)]
    api.send(topic_name, *({"body": body, "queue": 0} for body in bodies))
    found: list[str] = []
    offset = 0
    while page := api.read(topic_name, 0, offset=offset, max=10).json():
        if not page["messages"]:
            break
        assert len(page["messages"]) <= 10
        found += [message["body"] for message in page["messages"]]
        offset = page["next_offset"]
    assert found == bodies


def test_earliest_and_latest_are_offsets_too(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    api.send(topic_name, {"body": "x", "queue": 0})
    assert api.bodies(topic_name, 0, offset="earliest") == ["x"]
    latest = api.read(topic_name, 0, offset="latest").json()
    assert latest == {"messages": [], "next_offset": 1}


def test_an_offset_out_of_range_names_earliest_and_latest(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    api.send(topic_name, {"body": "x", "queue": 0})
    answer = api.read(topic_name, 0, 416, offset=2)
    assert answer.code == "offset_out_of_range"
    assert (answer.error["earliest"], answer.error["latest"]) == (0, 1)
    assert "holds 0 to 0 (next: 1)" in answer.error["message"]
    api.call("POST", f"/v1/topics/{topic_name}/purge", {})
    assert "is empty (next: 1)" in api.read(topic_name, 0, 416, offset=2).error["message"]


def test_a_message_is_found_by_its_id(api: Api, topic_name: str) -> None:
    api.create(topic_name, 3)
    results = api.send(topic_name, *({"body": f"b{number}", "key": "k"} for number in range(5))).json()["results"]
    found = api.get(f"/v1/messages/{results[3]['id']}").json()
    assert (found["topic"], found["body"], found["offset"]) == (topic_name, "b3", 3)


@pytest.mark.parametrize(
    "identity", ["zz", "0" * 31, "f" * 32, "+" + "0" * 31, "0" * 8 + "f" * 8 + "0" * 16, "0x" + "0" * 30]
)
def test_an_unknown_id_is_404(api: Api, identity: str) -> None:
    assert api.get(f"/v1/messages/{identity}", 404).code == "unknown_message"


def test_an_id_beyond_the_end_of_its_queue_is_404(api: Api, topic_name: str) -> None:
    topic = api.create(topic_name, 1)
    assert api.get(f"/v1/messages/{message_id(topic['id'], 0, 0)}", 404).code == "unknown_message"
    assert api.get(f"/v1/messages/{message_id(topic['id'], 5, 0)}", 404).code == "unknown_message"


@pytest.mark.parametrize(
    ("document", "code", "message"),
    [
        ({"messages": [{"body": "x"}, {}]}, "invalid_request", "messages[1] has neither body nor body_b64"),
        ({"messages": [{"key": "k", "delete": "yes"}]}, "invalid_request", "messages[0].delete is text"),
        ({"messages": [{"delete": True}]}, "invalid_request", "messages[0].delete says that a key is gone"),
        ({"messages": [{"key": "k", "delete": True, "body": "x"}]}, "invalid_request", "a deletion has no body"),
        ({"messages": [{"body": "x", "key": "k", "key_b64": "aw=="}]}, "invalid_request", "send one of the two"),
        ({"messages": [{"body": "x", "key_b64": "?"}]}, "invalid_request", "messages[0].key_b64 is not valid base64"),
        ({"messages": [{"body": "x", "headers": {"a": "b"}}]}, "invalid_request", "messages[0].headers is an object"),
        ({"messages": [{"body": "x", "headers": [{"name": "a"}]}]}, "invalid_request", "headers[0] has neither value"),
        (
            {"messages": [{"body": "x", "headers": [{"name": "a", "value_b64": "?"}]}]},
            "invalid_request",
            "messages[0].headers[0].value_b64 is not valid base64",
        ),
        ({"messages": [{"body": "x", "headers": [{"value": "a"}]}]}, "invalid_request", "headers[0].name is missing"),
        ({"messages": []}, "invalid_request", "messages has 0 items; it needs at least 1"),
        ({}, "invalid_request", "messages is missing"),
        ({"messages": {}}, "invalid_request", "messages is an object; it must be an array"),
        ({"messages": ["x"]}, "invalid_request", "messages[0] is text; it must be an object"),
        ({"messages": [{"body": 1}]}, "invalid_request", "messages[0].body is an integer; it must be text"),
        ({"messages": [{"body": "x", "b": 1}]}, "invalid_request", "messages[0].b is not known"),
        ({"messages": [{"body": "x", "key": 1}]}, "invalid_request", "messages[0].key is an integer"),
        ({"messages": [{"body": "x", "tag": []}]}, "invalid_request", "messages[0].tag is an array"),
        ({"messages": [{"body": "x", "priority": 256}]}, "invalid_request", "the limit is 255"),
        ({"messages": [{"body": "x", "delay_ms": -5}]}, "invalid_request", "messages[0].delay_ms is -5"),
        (
            {"messages": [{"body": "x", "properties": {"a": 1}}]},
            "invalid_request",
            "messages[0].properties.a",
        ),
        ({"messages": [{"body": "x", "properties": []}]}, "invalid_request", "messages[0].properties is an"),
        ({"messages": [{"body": "x", "queue": "0"}]}, "invalid_request", "messages[0].queue is text"),
        ({"messages": [{"body": "x", "queue": -1}]}, "invalid_request", "messages[0].queue is -1"),
        ({"messages": [{"body": "x", "body_b64": "YQ=="}]}, "invalid_request", "send one of the two"),
        ({"messages": [{"body_b64": "?"}]}, "invalid_request", "messages[0].body_b64 is not valid base64"),
        ({"messages": [{"body": "\ud800"}]}, "invalid_request", "messages[0].body holds half of a surrogate"),
        ({"messages": [{"body": "x", "key": "\ud800"}]}, "invalid_request", "messages[0].key holds half"),
        ({"messages": [{"body": "x", "tag": "\ud800"}]}, "invalid_request", "messages[0].tag holds half"),
        ({"messages": [{"body": "x"}], "ack": "all"}, "invalid_request", "ack is 'all'; it must be one of"),
        ({"messages": [{"body": "x"}], "akc": "leader"}, "invalid_request", "akc is not known"),
        (
            {"messages": [{"body": "x"}], "producer": {"id": 1}},
            "invalid_request",
            "producer.sequence is missing",
        ),
        (
            {"messages": [{"body": "x"}], "producer": {"id": 0, "sequence": 0}},
            "invalid_request",
            "producer.id",
        ),
    ],
)
def test_a_wrong_message_is_refused_by_its_place(
    api: Api, topic_name: str, document: Any, code: str, message: str
) -> None:
    api.create(topic_name, 4)
    answer = api.call("POST", f"/v1/topics/{topic_name}/messages", document, status=400)
    assert answer.code == code
    assert message in answer.error["message"]
    assert sum(api.get(f"/v1/topics/{topic_name}/offsets").json()["latest"]) == 0


def test_an_unknown_queue_is_refused_and_nothing_is_stored(api: Api, topic_name: str) -> None:
    api.create(topic_name, 4)
    answer = api.send(topic_name, {"body": "x", "queue": 0}, {"body": "x", "queue": 4}, status=404)
    assert answer.code == "unknown_queue"
    assert "0 to 3" in answer.error["message"]
    assert api.bodies(topic_name, 0) == []


@pytest.mark.parametrize(
    ("body", "headers", "message"),
    [
        (b"", {}, "the request has no body"),
        (b"{", {}, "not valid JSON: Expecting property name"),
        (b"\xff", {}, "text that is not UTF-8 at byte 0"),
        (b"NaN", {}, "NaN is not JSON"),
        (b"[" * 100_000, {}, "nested too deeply"),
        (b"\xc1", MSGPACK, "not valid application/msgpack"),
        (b"\x82\xa1a", MSGPACK, "not valid application/msgpack"),
        (b"\x80\x80", MSGPACK, "not valid application/msgpack"),
        (b"\x81\x01\x02", MSGPACK, "not valid application/msgpack"),
        (b"\x81\xa1a\xa1\xff", MSGPACK, "UTF-8"),
        (b"\xd4\x01\x01", MSGPACK, "must be an object"),
    ],
)
def test_a_body_that_cannot_be_decoded_is_refused(
    api: Api, topic_name: str, body: bytes, headers: dict[str, str], message: str
) -> None:
    api.create(topic_name, 1)
    headers = {**headers, "Accept": "application/json"}
    answer = api.call("POST", f"/v1/topics/{topic_name}/messages", body=body, headers=headers, status=400)
    assert answer.code == "invalid_request"
    assert message in answer.error["message"]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("offset=-1", "offset is -1; the least it may be is 0"),
        ("offset=first", "it must be an integer from 0 or 'earliest' or 'latest'"),
        ("max=0", "max is 0; the least it may be is 1"),
        ("max=10001", "max is 10001; the limit is 10000"),
        ("wait_ms=60001", "wait_ms is 60001; the limit is 60000"),
        ("wait=1", "query parameter 'wait' is not known"),
    ],
)
def test_wrong_read_parameters_are_refused(api: Api, topic_name: str, query: str, message: str) -> None:
    api.create(topic_name, 1)
    answer = api.get(f"/v1/topics/{topic_name}/queues/0/messages?{query}", 400)
    assert message in answer.error["message"]


def test_a_queue_that_is_no_number_is_refused(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    answer = api.get(f"/v1/topics/{topic_name}/queues/x/messages", 400)
    assert "are numbers from 0 to 0" in answer.error["message"]


def test_a_request_repeated_by_a_producer_is_stored_once(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    messages = [{"body": "a", "queue": 0}, {"body": "b", "queue": 0}]
    producer = {"id": 77_001, "sequence": 0}
    first = api.send(topic_name, *messages, producer=producer)
    again = api.send(topic_name, *messages, producer=producer)
    assert first.json() == again.json()
    assert "Lsmq-Duplicate" not in first.headers and again.headers["Lsmq-Duplicate"] == "1"
    assert api.bodies(topic_name, 0) == ["a", "b"]
    skipped = api.send(topic_name, *messages, producer={"id": 77_001, "sequence": 5}, status=409)
    assert skipped.code == "out_of_order_sequence"


def test_other_messages_under_the_sequence_of_a_producer_are_refused(api: Api, topic_name: str) -> None:
    api.create(topic_name, 2)
    messages = [{"body": "a", "queue": 0}, {"body": "b", "queue": 1}]
    producer = {"id": 77_002, "sequence": 0}
    api.send(topic_name, *messages, producer=producer)
    for others in (messages[:1], [*messages, messages[0]], messages[::-1]):
        assert api.send(topic_name, *others, producer=producer, status=409).code == "sequence_reused"
    api.send(topic_name, *messages, producer={**producer, "epoch": 1})
    assert api.send(topic_name, *messages, producer=producer, status=409).code == "producer_fenced"
    assert (api.bodies(topic_name, 0), api.bodies(topic_name, 1)) == (["a"] * 2, ["b"] * 2)


def test_messages_of_a_producer_without_queue_and_key_are_repeated_to_the_same_queue(api: Api, topic_name: str) -> None:
    api.create(topic_name, 8)
    messages = [{"body": "a"}, {"body": "b"}]
    first = api.send(topic_name, *messages, producer={"id": 77_003, "sequence": 0})
    again = api.send(topic_name, *messages, producer={"id": 77_003, "sequence": 0})
    assert again.headers["Lsmq-Duplicate"] == "1"
    assert first.json() == again.json()
    assert [result["queue"] for result in first.json()["results"]] == [77_003 % 8] * 2


def test_an_id_of_a_message_whose_topic_was_deleted_or_that_is_to_come_says_so(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    now, later = api.send(topic_name, {"body": "now"}, {"body": "later", "delay_ms": 600_000}).json()["results"]
    assert "id of a delayed message" in api.get(f"/v1/messages/{later['id']}", 404).error["message"]
    api.call("DELETE", f"/v1/topics/{topic_name}", status=204)
    refused = api.get(f"/v1/messages/{now['id']}", 404)
    assert refused.code == "unknown_message" and refused.error["message"].endswith("its topic was deleted")
