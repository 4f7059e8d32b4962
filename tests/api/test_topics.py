"""Topics over HTTP: creating, describing, deleting, and the bounds of queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from support.node_process import NodeProcess

from .calls import Api


def test_creating_gives_201_then_200_with_the_same_topic(api: Api, topic_name: str) -> None:
    path, document = f"/v1/topics/{topic_name}", {"queues": 8, "retention_ms": 60_000}
    first = api.call("PUT", path, document, status=201).json()
    again = api.call("PUT", path, document, status=200).json()
    assert first == again == api.get(path).json()
    assert first["queues"] == 8
    assert first["options"]["retention_ms"] == 60_000


def test_a_topic_shows_one_route_to_the_node_itself(api: Api, shared_node: NodeProcess, topic_name: str) -> None:
    created = api.create(topic_name, 8)
    route = {"first": 0, "end": 8, "shard": 0, "leader": shared_node.url, "epoch": 1, "followers": []}
    assert created["routes"] == [route]


def test_a_topic_grows_and_strict_order_keeps_its_keys(api: Api, topic_name: str) -> None:
    path = f"/v1/topics/{topic_name}"
    made = api.call("PUT", path, {"queues": 2, "order": "strict"}, status=201).json()
    assert made["options"]["key_queues"] == 2
    messages = {"messages": [{"key": f"{number}", "body": "x"} for number in range(20)]}
    before = [sent["queue"] for sent in api.call("POST", f"{path}/messages", messages).json()["results"]]
    for _ in range(2):
        grown = api.call("PUT", f"{path}/queues", {"queues": 9}).json()
        assert (grown["queues"], grown["routes"][-1]["end"], grown["id"]) == (9, 9, made["id"])
    after = [sent["queue"] for sent in api.call("POST", f"{path}/messages", messages).json()["results"]]
    assert before == after
    assert api.get(f"{path}/queues/8").json()["latest"] == 0
    refused = api.call("PUT", f"{path}/queues", {"queues": 8}, status=400)
    assert refused.code == "invalid_request" and "can only grow" in refused.error["message"]
    assert api.call("PUT", f"{path}x/queues", {"queues": 8}, status=404).code == "unknown_topic"


def test_creating_with_other_options_is_refused(api: Api, topic_name: str) -> None:
    api.create(topic_name, 8)
    answer = api.call("PUT", f"/v1/topics/{topic_name}", {"queues": 9}, status=409)
    assert answer.code == "topic_exists"
    assert "queues is 8, not 9" in answer.error["message"]


def test_options_are_changed_and_taken_away(api: Api, topic_name: str) -> None:
    path = f"/v1/topics/{topic_name}"
    made = api.create(topic_name, 2, retention_ms=60_000, max_message_bytes=10)
    assert made["revision"] == 0
    send = {"messages": [{"queue": 0, "body": "x" * 20}]}
    assert api.call("POST", f"{path}/messages", send, status=413).code == "message_too_large"
    altered = api.call("PATCH", path, {"max_message_bytes": None, "retention_bytes": 5_000, "ack": "leader"}).json()
    assert altered == api.get(path).json()
    assert altered["options"] == {
        "retention_ms": 60_000,
        "retention_bytes": 5_000,
        "ack": "leader",
        "max_message_bytes": None,
    }
    assert (altered["id"], altered["queues"], altered["revision"]) == (made["id"], 2, 1)
    api.call("POST", f"{path}/messages", send, status=200)
    assert api.call("PATCH", path, {"ack": "leader"}).json()["revision"] == 1, "nothing has changed"
    again = {"queues": 2, "retention_ms": 60_000, "retention_bytes": 5_000, "ack": "leader"}
    assert api.call("PUT", path, again, status=200).json()["revision"] == 1
    assert api.call("PATCH", f"{path}x", {"ack": "leader"}, status=404).code == "unknown_topic"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"queues": 9}, "PUT /v1/topics/{topic}/queues"),
        ({"key_queues": 1}, "make another topic"),
        ({"order": "strict"}, "make another topic"),
        ({"revision": 7}, "revision"),
        ({"retention_ms": 0}, "retention_ms"),
        ({"ack": "none"}, "'quorum', 'leader'"),
        ({"max_message_bytes": 2**31 - 1}, "the node's limit"),
        ({"retention": 5}, "retention"),
        (["ack"], "object"),
    ],
)
def test_what_cannot_be_changed_is_refused_by_name(api: Api, topic_name: str, change: Any, says: str) -> None:
    before = api.create(topic_name, 2)
    refused = api.call("PATCH", f"/v1/topics/{topic_name}", change, status=400)
    assert refused.code == "invalid_request" and says in refused.error["message"]
    assert api.get(f"/v1/topics/{topic_name}").json() == before


@pytest.mark.parametrize("name", ["a b", "a/b", "ä", "x" * 250, "..", "a:b", "%", "a\n"])
def test_an_illegal_name_is_refused_with_the_legal_form(api: Api, name: str) -> None:
    # Clients resolve a dot segment of a path before they send it; this one has none left to resolve.
    path = f"/v1/topics/{quote(name, safe='').replace('.', '%2E')}"
    answer = api.call("PUT", path, {"queues": 1}, status=400)
    assert answer.code == "invalid_topic_name"
    assert "letters, digits" in answer.error["message"]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "queues is missing"),
        ({"queus": 1}, "queus is not known; the fields are queues"),
        ({"queues": 0}, "queues is 0; the least it may be is 1"),
        ({"queues": 16_000_001}, "queues is 16000001; the limit is 16000000"),
        ({"queues": "4"}, "queues is '4'; it must be an integer from 1 or 'named'"),
        ({"queues": True}, "queues is true; it must be an integer from 1 or 'named'"),
        ({"queues": 4, "retention": 1}, "retention is not known; the fields are queues, retention_ms"),
        ({"queues": 4, "ack": "all"}, "ack is 'all'; it must be one of 'quorum', 'leader'"),
        ({"queues": 4, "retention_ms": 0}, "retention_ms is 0; the least it may be is 1"),
        ({"queues": 4, "order": "loose"}, "order is 'loose'; it must be one of 'ordinary', 'strict'"),
        ({"queues": 4, "key_queues": 5}, "key_queues is 5, and there are only 4 queues"),
        ({"queues": 4, "max_message_bytes": 2**30}, "the node's limit is 1048576"),
        ([], "the body is an array; it must be an object"),
    ],
)
def test_a_wrong_body_is_refused_by_field_and_limit(api: Api, topic_name: str, document: Any, message: str) -> None:
    answer = api.call("PUT", f"/v1/topics/{topic_name}", document, status=400)
    assert answer.code == "invalid_request"
    assert message in answer.error["message"]


def test_listing_holds_every_topic_by_name(api: Api, topic_name: str) -> None:
    names = [f"{topic_name}-{letter}" for letter in "cab"]
    for name in names:
        api.create(name)
    listed = [topic["name"] for topic in api.get("/v1/topics").json()["topics"]]
    assert [name for name in listed if name in names] == sorted(names)


def test_a_deleted_topic_is_gone_and_its_name_is_free_with_a_new_id(api: Api, topic_name: str) -> None:
    old = api.create(topic_name, 2)
    api.send(topic_name, {"body": "old", "queue": 0})
    api.call("DELETE", f"/v1/topics/{topic_name}", status=204)
    assert api.get(f"/v1/topics/{topic_name}", 404).code == "unknown_topic"
    new = api.create(topic_name, 3)
    assert new["id"] != old["id"]
    assert api.bodies(topic_name, 0) == []


@pytest.mark.parametrize(
    ("method", "path", "document"),
    [
        ("GET", "", None),
        ("DELETE", "", None),
        ("GET", "/queues/0", None),
        ("GET", "/offsets", None),
        ("POST", "/messages", {"messages": [{"body": "x"}]}),
        ("GET", "/queues/0/messages", None),
        ("POST", "/fetch", {"queues": [0], "offsets": [0]}),
    ],
)
def test_an_unknown_topic_is_404_everywhere(api: Api, method: str, path: str, document: Any) -> None:
    answer = api.call(method, f"/v1/topics/nowhere{path}", document, status=404)
    assert answer.code == "unknown_topic"
    assert "'nowhere'" in answer.error["message"]


def test_bounds_of_a_queue_and_offset_by_time(api: Api, topic_name: str) -> None:
    api.create(topic_name, 2)
    for body in "abc":
        api.send(topic_name, {"body": body, "queue": 1})
    stored = [message["stored_ms"] for message in api.read(topic_name, 1).json()["messages"]]
    path = f"/v1/topics/{topic_name}/queues/1"
    assert api.get(path).json() == {"queue": 1, "earliest": 0, "latest": 3}
    assert api.get(f"{path}?time_ms={stored[2]}").json()["offset"] == stored.index(stored[2])
    assert api.get(f"{path}?time_ms={stored[2] + 1}").json()["offset"] == 3
    assert api.get(f"{path}?time_ms=0").json()["offset"] == 0


def test_an_unknown_queue_is_404_and_names_those_there_are(api: Api, topic_name: str) -> None:
    api.create(topic_name, 2)
    answer = api.get(f"/v1/topics/{topic_name}/queues/2", 404)
    assert answer.code == "unknown_queue"
    assert "0 to 1" in answer.error["message"]


def test_bounds_of_many_queues_come_in_the_order_asked_for(api: Api, topic_name: str) -> None:
    api.create(topic_name, 300)
    api.send(topic_name, {"body": "x", "queue": 200}, {"body": "y", "queue": 200}, {"body": "z", "queue": 3})
    path = f"/v1/topics/{topic_name}/offsets"
    answer = api.get(f"{path}?queues=200,0-4&time_ms=0").json()
    assert answer == {
        "queues": [200, 0, 1, 2, 3, 4],
        "earliest": [0] * 6,
        "latest": [2, 0, 0, 0, 1, 0],
        "at_time": [0] * 6,
    }
    assert len(api.get(path).json()["latest"]) == 300


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("queues=a", "queues has 'a'; it must be numbers and ranges"),
        ("queues=3-1", "the range 3-1, whose end is before its start"),
        ("queues=0-", "queues has '0-'"),
        ("queues=1-9999999999999999", "are 0 to 3"),
        ("queues=7", "are 0 to 3"),
        ("time_ms=x", "time_ms is text; it must be an integer"),
        ("when=1", "query parameter 'when' is not known; expected: queues, time_ms"),
        ("time_ms=1&time_ms=2", "given more than once"),
    ],
)
def test_wrong_queries_are_refused(api: Api, topic_name: str, query: str, message: str) -> None:
    api.create(topic_name, 4)
    answer = api.get(f"/v1/topics/{topic_name}/offsets?{query}", 400)
    assert message in answer.error["message"]


@pytest.mark.parametrize(
    ("method", "path"), [("PUT", ""), ("DELETE", ""), ("GET", ""), ("POST", "/messages"), ("POST", "/fetch")]
)
def test_unknown_query_parameters_are_refused_everywhere(api: Api, topic_name: str, method: str, path: str) -> None:
    api.create(topic_name, 4)
    answer = api.call(method, f"/v1/topics/{topic_name}{path}?force=1", {"queues": 4}, status=400)
    expected = "from" if path == "/fetch" else "there are none here"
    assert f"query parameter 'force' is not known; expected: {expected}" in answer.error["message"]
    api.get(f"/v1/topics/{topic_name}")


def test_the_advertised_url_is_the_leader_of_routes(make_node: Callable[..., NodeProcess]) -> None:
    api = Api(make_node(advertised_url="http://queue.example:1/").start().url)
    assert api.create("t")["routes"][0]["leader"] == "http://queue.example:1"


def test_a_node_on_all_interfaces_is_where_the_caller_found_it(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node(host="0.0.0.0", insecure=True).start()
    api = Api(f"http://127.0.0.2:{node.port}")
    assert api.create("t")["routes"][0]["leader"] == f"http://127.0.0.2:{node.port}"


def test_topics_survive_a_kill(node: NodeProcess) -> None:
    api = Api(node.url)
    created = [api.create(f"t{number}", number + 1, retention_bytes=10**9) for number in range(5)]
    api.call("DELETE", "/v1/topics/t2", status=204)
    node.kill9()
    node.restart()
    expected = [topic for topic in created if topic["name"] != "t2"]
    assert api.get("/v1/topics").json()["topics"] == expected


def test_names_of_empty_queues_are_forgotten_from_a_change_on_and_numbers_have_no_names(
    api: Api, topic_name: str
) -> None:
    api.call("PUT", f"/v1/topics/{topic_name}", {"queues": "named"}, status=201)
    altered = api.call("PATCH", f"/v1/topics/{topic_name}", {"forget_empty_ms": 60_000}, status=200).json()
    assert (altered["queues"], altered["options"]["forget_empty_ms"], altered["revision"]) == ("named", 60_000, 1)
    api.create(f"{topic_name}-numbers", 2)
    refused = api.call("PATCH", f"/v1/topics/{topic_name}-numbers", {"forget_empty_ms": 60_000}, status=400)
    assert "forget_empty_ms" in refused.error["message"]
    refused = api.call("PATCH", f"/v1/topics/{topic_name}", {"named": False}, status=400)
    assert "named" in refused.error["message"]
