"""Methods and paths: HEAD wherever there is a GET, and errors that say what is wrong with either."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from lsmq import errors
from lsmq_node.api.app import route_table
from lsmq_node.api.routing import ApiOperation
from lsmq_node.config import NodeConfig
from support.waiting import PATIENCE_S

from .calls import Api

ROUTES = route_table(NodeConfig(data=Path("unused")))
GETS = [route for route in ROUTES if route.method == "GET" and not route.is_stream]
#: What differs from one moment to the next.
MOVING = {"Date", "Content-Length"}


def test_only_what_is_held_has_no_head() -> None:
    assert [route.operation for route in ROUTES if route.method == "GET" and route not in GETS] == ["push"]


@pytest.mark.parametrize("route", GETS, ids=lambda route: route.operation)
def test_head_answers_as_get_does_without_a_body(api: Api, topic_name: str, route: ApiOperation) -> None:
    path = _path(route.path, topic_name)
    api.create(topic_name, 2)
    whole, head = api.get(path, status=None), api.call("HEAD", path)
    assert (head.status, head.body) == (whole.status, b"")
    kept = [{name: text for name, text in each.headers.items() if name not in MOVING} for each in (whole, head)]
    assert kept[0] == kept[1]
    assert int(head.headers["Content-Length"]) > 0


def _path(template: str, topic: str) -> str:
    names = {"topic": topic, "queue": "0", "id": "0" * 32, "group": "g", "transaction": "t-1", "key": "k", "name": "s"}
    names |= {"shard": "0", "file": "f", "asset": "console.js"}
    path = template.format_map(names)
    if template.startswith("/v1/groups/"):
        return f"{path}?topic={topic}"
    return f"{path}?length=1" if "{file}" in template else path


def test_the_head_of_a_large_answer_has_its_length(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    api.send(topic_name, {"body": "x" * 200_000, "queue": 0})
    path = f"/v1/topics/{topic_name}/queues/0/messages"
    whole, head = api.get(path), api.call("HEAD", path, status=200)
    assert head.body == b""
    assert int(head.headers["Content-Length"]) == len(whole.body) > 200_000


def test_a_stream_has_no_head(api: Api) -> None:
    answer = api.call("HEAD", "/v1/groups/g/push?topic=t", status=405)
    assert answer.headers["Allow"] == "GET"


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/nothing", "/v1/topics/t/nothing", "/healthz/"])
def test_a_path_that_is_none_is_named(api: Api, path: str) -> None:
    answer = api.get(path, 404)
    assert answer.code == "unknown_path" and repr(path)[1:-1] in answer.error["message"]
    assert isinstance(errors.from_dict(answer.error), errors.UnknownPath)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/healthz", "GET, HEAD"),
        ("POST", "/v1/topics/t", "DELETE, GET, HEAD, PATCH, PUT"),
        ("GET", "/v1/topics/t/batches", "POST"),
    ],
)
def test_a_method_that_is_not_possible_says_which_are(api: Api, method: str, path: str, allowed: str) -> None:
    answer = api.call(method, path, status=405)
    assert answer.code == "method_not_allowed" and answer.headers["Allow"] == allowed
    assert answer.error["message"] == f"{method} is not possible on {path}; possible: {allowed}"
    assert isinstance(errors.from_dict(answer.error), errors.MethodNotAllowed)


@pytest.mark.part(3)
def test_who_waits_to_be_told_to_send_the_body_is_told_and_anything_else_is_expected_in_vain(
    api: Api, topic_name: str
) -> None:
    api.create(topic_name, 1)
    body = b'{"messages": [{"queue": 0, "body": "x"}]}'

    def head(expected: str) -> bytes:
        return (
            f"POST /v1/topics/{topic_name}/messages HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nExpect: {expected}\r\n\r\n"
        ).encode()

    for expected, told in (("100-Continue", b"HTTP/1.1 100 Continue"), ("200-ok", b"HTTP/1.1 417 ")):
        with (
            socket.create_connection((api.host, api.port), timeout=PATIENCE_S) as connection,
            connection.makefile("rb") as answers,
        ):
            connection.sendall(head(expected))
            line = answers.readline()
            assert line.startswith(told), line
            if expected == "100-Continue":
                assert answers.readline() == b"\r\n"
                connection.sendall(body)
                assert answers.readline().startswith(b"HTTP/1.1 200 ")
                assert answers.readlines()
            else:
                refused = json.loads(answers.readlines()[-1])["error"]
                assert refused["code"] == "invalid_request" and "it may be 100-continue" in refused["message"]
    assert api.bodies(topic_name, 0) == ["x"]
