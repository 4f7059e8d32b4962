"""Committed offsets of consumer groups over HTTP."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from support.node_process import NodeProcess

from .calls import Api


def commit(api: Api, group: str, topic: str, offsets: dict[int, int], status: int = 200, **rest: Any) -> Any:
    document = {"topic": topic, "queues": list(offsets), "offsets": list(offsets.values()), **rest}
    return api.call("POST", f"/v1/groups/{group}/offsets", document, status=status)


def committed(api: Api, group: str, topic: str, query: str = "") -> dict[int, int]:
    found = api.get(f"/v1/groups/{group}/offsets?topic={topic}{query}").json()
    return dict(zip(found["queues"], found["offsets"], strict=True))


def test_committed_offsets_are_those_committed_and_no_others(api: Api, topic_name: str) -> None:
    api.create(topic_name, 100)
    api.send(topic_name, *({"queue": queue, "body": "x"} for queue in (3, 3, 50)))
    assert commit(api, topic_name, topic_name, {3: 2, 50: 1}).json() == {"committed": 2}
    assert committed(api, topic_name, topic_name) == {3: 2, 50: 1}
    assert committed(api, topic_name, topic_name, "&queues=0-10") == {3: 2}
    assert committed(api, "another", topic_name) == {}
    assert topic_name in api.get("/v1/groups").json()["groups"]


def test_an_offset_goes_back_only_when_reset(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    api.send(topic_name, *({"queue": 0, "body": "x"} for _ in range(5)))
    commit(api, topic_name, topic_name, {0: 4})
    commit(api, topic_name, topic_name, {0: 2})
    assert committed(api, topic_name, topic_name) == {0: 4}
    commit(api, topic_name, topic_name, {0: 2}, reset=True)
    assert committed(api, topic_name, topic_name) == {0: 2}


def test_packed_integers_commit_too(api: Api, topic_name: str) -> None:
    api.create(topic_name, 4)
    api.send(topic_name, {"queue": 2, "body": "x"})
    document = {"topic": topic_name, "queues": b"\2\0\0\0", "offsets": b"\1" + bytes(7)}
    headers = {"Content-Type": "application/msgpack"}
    path = f"/v1/groups/{topic_name}/offsets"
    api.call("POST", path, body=msgpack.packb(document), headers=headers, status=200)
    assert committed(api, topic_name, topic_name) == {2: 1}


@pytest.mark.parametrize(
    ("document", "status", "message"),
    [
        ({"queues": [0], "offsets": [0]}, 400, "topic is missing"),
        ({"topic": "nowhere", "queues": [0], "offsets": [0]}, 404, "'nowhere'"),
        ({"topic": None, "queues": [0], "offsets": [0]}, 400, "topic is null; it must be text"),
        ({"topic": "{topic}", "queues": [9], "offsets": [0]}, 404, "no queue 9"),
        ({"topic": "{topic}", "queues": [0], "offsets": [-1]}, 400, "offsets[0] is -1"),
        ({"topic": "{topic}", "queues": [0], "offsets": [1]}, 416, "beyond the end of queue 0"),
        ({"topic": "{topic}", "queues": [0], "offsets": [0], "reset": 1}, 400, "reset is an integer"),
    ],
)
def test_a_wrong_commit_is_refused(
    api: Api, topic_name: str, document: dict[str, Any], status: int, message: str
) -> None:
    api.create(topic_name, 4)
    if document.get("topic") == "{topic}":
        document = {**document, "topic": topic_name}
    answer = api.call("POST", "/v1/groups/g/offsets", document, status=status)
    assert message in answer.error["message"]


def test_a_wrong_group_name_is_refused_with_the_legal_form(api: Api, topic_name: str) -> None:
    api.create(topic_name, 4)
    answer = commit(api, "a%20b", topic_name, {0: 0}, 400)
    assert "1 to 249 letters" in answer.error["message"]


def test_asking_without_a_topic_is_refused(api: Api) -> None:
    answer = api.get("/v1/groups/g/offsets", 400)
    assert "query parameter 'topic' is missing" in answer.error["message"]


def test_committed_offsets_survive_a_kill(node: NodeProcess) -> None:
    api = Api(node.url)
    api.create("t", 10)
    api.send("t", *({"queue": queue, "body": "x"} for queue in range(10)))
    commit(api, "g", "t", dict.fromkeys(range(10), 1))
    node.kill9()
    node.restart()
    assert committed(api, "g", "t") == dict.fromkeys(range(10), 1)
