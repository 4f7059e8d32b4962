"""Delayed messages over HTTP: they come when they are due, once, in their order; until then they can be changed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from lsmq.messages import MAX_DELAY_MS
from lsmq.record_batch import LAST_DUE_MS, BatchBuilder
from lsmq_node.disks.looking import shard_directory
from lsmq_node.storage import ShardStore
from lsmq_node.storage.delayed import BEGIN
from support.node_process import NodeProcess
from support.waiting import eventually

from .calls import Api

HOUR_MS = 3_600_000


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def come(api: Api, topic: str, count: int, queue: int = 0) -> list[dict[str, Any]]:
    """The messages of a queue, once there are so many."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        answer = api.read(topic, queue, offset=len(found), wait_ms=20_000).json()
        assert answer["messages"], f"only {len(found)} of {count} came"
        found += answer["messages"]
    return found


def delayed(api: Api, topic: str, path: str = "", method: str = "GET", status: int = 200, document: Any = None) -> Any:
    return api.call(method, f"/v1/topics/{topic}/delayed{path}", document, status=status)


def test_messages_come_in_the_order_in_which_they_are_due(api: Api, topic_name: str) -> None:
    api.create(topic_name, 2)
    now = wall_ms()
    sent = api.send(
        topic_name,
        {"queue": 0, "body": "third", "delay_ms": 400},
        {"queue": 0, "body": "first"},
        {"queue": 0, "body": "second", "deliver_at_ms": now + 150, "key": "k", "tag": "t", "properties": {"a": "b"}},
        {"queue": 0, "body": "past", "deliver_at_ms": 5},
        {"queue": 1, "body": "other", "delay_ms": 1, "headers": [{"name": "h", "value": "v"}], "priority": 7},
        {"queue": 0, "body": "fourth", "delay_ms": 400},
    ).json()["results"]
    assert [each["offset"] for each in sent] == [None, 0, None, 1, None, None]
    assert sent[2]["due_ms"] == now + 150 and "due_ms" not in sent[1]
    assert len({each["id"] for each in sent}) == 6
    found = come(api, topic_name, 5)
    assert [each["body"] for each in found] == ["first", "past", "second", "third", "fourth"]
    assert [each["offset"] for each in found] == [0, 1, 2, 3, 4]
    assert all(each["stored_ms"] >= sent[0]["due_ms"] for each in found[3:]), "none came early"
    assert (found[2]["key"], found[2]["tag"], found[2]["properties"]) == ("k", "t", {"a": "b"})
    (other,) = come(api, topic_name, 1, queue=1)
    assert other["headers"] == [{"name": "h", "value": "v"}] and other["priority"] == 7


def test_what_is_pending_survives_a_kill_and_comes_once(node: NodeProcess) -> None:
    api = Api(node.url)
    api.create("t", 1)
    soon = [{"queue": 0, "body": f"soon-{number}", "delay_ms": 300} for number in range(200)]
    late = [{"queue": 0, "body": f"late-{number}", "delay_ms": HOUR_MS} for number in range(50)]
    api.send("t", *soon, *late)
    come(api, "t", 1)  # in the middle of it, as far as the clock can tell
    node.kill9()
    api = Api(node.start().url)
    found = come(api, "t", 200)
    api.send("t", {"queue": 0, "body": "after", "delay_ms": 200})
    found = come(api, "t", 201)
    assert [each["body"] for each in found] == [each["body"] for each in soon] + ["after"]
    assert len(delayed(api, "t").json()["messages"]) == 50


def test_a_packed_batch_with_due_times_is_answered_with_places(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    builder = BatchBuilder()
    for number in range(300):
        builder.add(0, b"%d" % number, due_ms=(0, 100)[number % 2])
    api.send_batch(topic_name, builder.build(producer_id=77_323, sequence=0))
    again = api.send_batch(topic_name, builder.build(producer_id=77_323, sequence=0))
    assert again.headers["Lsmq-Duplicate"] == "1"
    bodies = [int(each["body"]) for each in come(api, topic_name, 300)]
    assert bodies == [*range(0, 300, 2), *range(1, 300, 2)]


def test_pending_messages_are_listed_in_pages_as_they_are_due(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    api.create(f"{topic_name}-2", 1)
    for number in range(7):
        api.send(topic_name, {"body": str(number), "key": f"k{number}", "delay_ms": HOUR_MS - 1000 * number})
        api.send(f"{topic_name}-2", {"body": "no", "delay_ms": HOUR_MS})
    listed: list[dict[str, Any]] = []
    after = ""
    while True:
        page = delayed(api, topic_name, f"?max=3{after}").json()
        assert len(page["messages"]) <= 3
        listed += page["messages"]
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert [each["body"] for each in listed] == ["6", "5", "4", "3", "2", "1", "0"]
    assert listed[0]["key"] == "k6" and listed[0]["offset"] is None
    one = delayed(api, topic_name, f"/{listed[2]['id']}").json()
    assert one == listed[2]


def test_a_cancelled_message_never_comes(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    sent = api.send(topic_name, *({"body": str(number), "delay_ms": 700} for number in range(4))).json()["results"]
    for each in (sent[0], sent[2]):
        assert delayed(api, topic_name, f"/{each['id']}", "DELETE").json() == {"cancelled": each["id"]}
    assert [each["body"] for each in come(api, topic_name, 2)] == ["1", "3"]
    assert delayed(api, topic_name, f"/{sent[1]['id']}", "DELETE", 409).code == "already_delivered"
    api.send(topic_name, {"body": "end"})
    assert [each["body"] for each in come(api, topic_name, 3)] == ["1", "3", "end"]


def test_a_message_that_comes_later_keeps_its_moment_and_is_not_put_behind_it(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    until = wall_ms() + HOUR_MS
    message = {"body": "x", "delay_ms": HOUR_MS // 2, "expires_at_ms": until, "priority": 1, "subpriority": 2}
    (sent,) = api.send(topic_name, message).json()["results"]
    error = delayed(api, topic_name, f"/{sent['id']}", "PUT", 400, {"deliver_at_ms": until}).error
    assert error["field"] == "deliver_at_ms" and "expires at" in error["message"]
    assert delayed(api, topic_name, f"/{sent['id']}").json()["subpriority"] == 2, "it is where it was"
    delayed(api, topic_name, f"/{sent['id']}", "PUT", document={"delay_ms": 1})
    (found,) = come(api, topic_name, 1)
    assert (found["expires_ms"], found["priority"], found["subpriority"]) == (until, 1, 2)


def test_a_message_that_was_taken_is_put_at_another_time_though_it_would_be_too_large_by_now(
    api: Api, topic_name: str
) -> None:
    api.create(topic_name, 1)
    (sent,) = api.send(topic_name, {"body": "x" * 200, "delay_ms": HOUR_MS}).json()["results"]
    api.call("PATCH", f"/v1/topics/{topic_name}", {"max_message_bytes": 100}, status=200)
    assert api.send(topic_name, {"body": "x" * 200}, status=413).code == "message_too_large"
    moved = delayed(api, topic_name, f"/{sent['id']}", "PUT", document={"delay_ms": 2 * HOUR_MS}).json()
    delayed(api, topic_name, f"/{moved['id']}", "PUT", document={"delay_ms": 1})
    assert come(api, topic_name, 1)[0]["body"] == "x" * 200


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT"])
def test_an_id_of_nothing_that_is_pending_is_refused_by_what_it_is(api: Api, topic_name: str, method: str) -> None:
    document = {"delay_ms": 5} if method == "PUT" else None
    api.create(topic_name, 1)
    api.create(f"{topic_name}-2", 1)
    ordinary, pending = api.send(topic_name, {"body": "x"}, {"body": "y", "delay_ms": HOUR_MS}).json()["results"]
    gone = api.send(topic_name, {"body": "x", "delay_ms": HOUR_MS}).json()["results"][0]["id"]
    delayed(api, topic_name, f"/{gone}", "DELETE")
    missing = f"{pending['id'][:16]}{1:016x}"
    for id in (ordinary["id"], "x", "f" * 32, gone, missing, f"4fff{pending['id'][4:]}"):
        assert delayed(api, topic_name, f"/{id}", method, 404, document).code == "unknown_message"
    assert delayed(api, f"{topic_name}-2", f"/{pending['id']}", method, 404, document).code == "unknown_message"
    assert delayed(api, topic_name, f"/{pending['id']}").json()["body"] == "y"


def test_a_rescheduled_message_comes_at_its_new_time_with_all_it_has(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    message = {"body": "x", "key": "k", "tag": "t", "properties": {"a": "b"}, "delay_ms": HOUR_MS, "priority": 3}
    (sent,) = api.send(topic_name, message).json()["results"]
    moved = delayed(api, topic_name, f"/{sent['id']}", "PUT", document={"delay_ms": 2 * HOUR_MS}).json()
    assert moved["due_ms"] > sent["due_ms"] and moved["offset"] is None and moved["id"] != sent["id"]
    (listed,) = delayed(api, topic_name).json()["messages"]
    assert (listed["id"], listed["due_ms"], listed["key"]) == (moved["id"], moved["due_ms"], "k")
    now = delayed(api, topic_name, f"/{moved['id']}", "PUT", document={"deliver_at_ms": 0}).json()
    (found,) = come(api, topic_name, 1)
    assert {name: found[name] for name in ("body", "key", "tag", "properties", "priority")} == {
        name: message[name] for name in ("body", "key", "tag", "properties", "priority")
    }
    assert now["queue"] == 0
    (by_key,) = api.get(f"/v1/topics/{topic_name}/messages?key=k&tag=t").json()["messages"]
    assert by_key["offset"] == found["offset"]
    assert delayed(api, topic_name).json() == {"messages": [], "next": None}


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"delay_ms": -1}, "messages[0].delay_ms is -1"),
        ({"delay_ms": "5"}, "messages[0].delay_ms"),
        ({"delay_ms": MAX_DELAY_MS + 1}, "messages[0].delay_ms"),
        ({"deliver_at_ms": 1.5}, "messages[0].deliver_at_ms"),
        ({"deliver_at_ms": (1 << 44) - 1}, "ten years"),
        ({"deliver_at_ms": 10**12, "delay_ms": 5}, "give one of the two"),
    ],
)
def test_a_delay_that_cannot_be_is_refused_by_its_name(
    api: Api, topic_name: str, message: dict[str, Any], said: str
) -> None:
    api.create(topic_name, 1)
    answer = api.send(topic_name, {"body": "x", **message}, status=400)
    assert answer.code == "invalid_request" and said in answer.error["message"]
    assert delayed(api, topic_name).json()["messages"] == []


@pytest.mark.part(2)
def test_many_that_are_due_at_one_moment_come_in_the_order_of_their_arrival(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    due_ms = wall_ms() + 1500
    for first in range(0, 20_000, 5_000):
        builder = BatchBuilder()
        for number in range(first, first + 5_000):
            builder.add(0, b"%d" % number, due_ms=due_ms)
        api.send_batch(topic_name, builder.build())
    assert [int(each["body"]) for each in come(api, topic_name, 20_000)] == list(range(20_000))


def test_pending_messages_go_with_their_topic(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    api.create(f"{topic_name}-2", 1)
    api.send(topic_name, {"body": "old", "delay_ms": 300})
    api.send(f"{topic_name}-2", {"body": "other", "delay_ms": 600})
    api.call("DELETE", f"/v1/topics/{topic_name}", status=204)
    api.create(topic_name, 1)
    assert delayed(api, topic_name).json()["messages"] == []
    come(api, f"{topic_name}-2", 1)
    assert api.bodies(topic_name, 0) == []


def test_a_shard_takes_no_more_than_its_limit(make_node: Callable[..., NodeProcess]) -> None:
    api = Api(make_node(max_delayed=3).start().url)
    api.create("t", 1)
    sent = api.send("t", *[{"body": "x", "delay_ms": HOUR_MS}] * 3).json()["results"]
    refused = api.send("t", {"body": "x", "delay_ms": 5}, status=429)
    assert refused.code == "too_many_delayed" and "max_delayed" in refused.error["message"]
    api.send("t", {"body": "at once"})
    delayed(api, "t", f"/{sent[0]['id']}", "DELETE")
    api.send("t", {"body": "x", "delay_ms": HOUR_MS})


def test_those_of_a_deleted_topic_do_not_count_for_ever(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node(max_delayed=3)
    api = Api(node.start().url)
    api.create("gone", 1)
    api.send("gone", *({"body": f"{number:09}" * 500, "delay_ms": HOUR_MS} for number in range(3)))
    api.call("DELETE", "/v1/topics/gone", status=204)
    assert node.stop() == 0
    with ShardStore.open(shard_directory(node.data, 0)) as store:
        store.compact()
        assert store.delayed.read(BEGIN, LAST_DUE_MS, 10, 1 << 20).records is None, "a merge has taken them away"
    api = Api(node.start().url)
    api.create("t", 1)
    three = [{"body": "x", "delay_ms": HOUR_MS}] * 3
    eventually(lambda: api.send("t", *three, status=None).status == 200, "none is pending")
    api.send("t", {"body": "x", "delay_ms": HOUR_MS}, status=429)


def test_metrics_say_what_is_pending_and_how_late_the_others_were(node: NodeProcess) -> None:
    api = Api(node.url)
    api.create("t", 1)
    api.send("t", {"body": "x", "delay_ms": 1}, {"body": "y", "delay_ms": HOUR_MS}, {"body": "z", "delay_ms": 30})
    come(api, "t", 2)
    text = api.get("/metrics").body.decode()
    assert "\nlsmq_delayed_pending 1.0\n" in text
    assert "\nlsmq_delayed_delivered_total 2.0\n" in text
    assert "\nlsmq_delayed_lateness_seconds_count 2.0\n" in text


def test_transactions_have_delayed_messages_too(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    group = f"g-{topic_name}"[:200]
    base = f"/v1/producer-groups/{group}"
    api.call("POST", f"{base}/heartbeat", {"member": "m", "session_ms": 10_000, "join": True}, status=200)
    messages = [
        {"topic": topic_name, "body": "later", "delay_ms": 300},
        {"topic": topic_name, "body": "at once"},
    ]
    document = {"member": "m", "number": 1, "messages": messages}
    begun = api.call("POST", f"{base}/transactions", document, status=200).json()
    api.call("POST", f"{base}/transactions/{begun['transaction']}/commit", {"member": "m", "wait_ms": 5000}, status=200)
    assert [each["body"] for each in come(api, topic_name, 2)] == ["at once", "later"]
