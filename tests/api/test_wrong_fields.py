"""Each field of each body, wrong by itself: the answer names it in the words of HTTP, not in those of Python."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lsmq_node.api.app import route_table
from lsmq_node.api.routing import ApiOperation
from lsmq_node.broker import Broker

from .calls import Api
from .in_process import Session, with_node

WRONG: list[Any] = [None, True, -1, 10**40, 1.5, "", "x" * 300, "\ud800", [], {}]
IN_PATH = {"topic": "t", "group": "g", "queue": "0", "shard": "0", "id": "0" * 32}
GIVEN = {"topic": "t", "topics": ["t"], "member": "m", "queues": [0], "offsets": [0], "receipts": ["r"], "number": 1}
GIVEN |= {"messages": [{"topic": "t", "body": "x"}], "message": {"body": "x"}, "cron": "0 9 * * *"}
OF_PYTHON = re.compile(r"\b(None|NoneType|True|False|int|str|dict|bool|float)\b|of type|<class")
SECONDS = 1_900_000_000

Place = tuple[str | int, ...]


def places(schema: Any, at: Place = ()) -> Iterator[Place]:
    for option in (schema, *schema.get("anyOf", ())):
        for name, field in option.get("properties", {}).items():
            yield (*at, name)
            yield from places(field, (*at, name))
        if "items" in option:
            yield from places(option["items"], (*at, 0))


def put(document: Any, place: Place, value: Any) -> Any:
    """``document`` with ``value`` there, and what must be around it."""
    if not place:
        return value
    first, *rest = place
    if isinstance(first, int):
        known = document if isinstance(document, list) and document else [None]
        return [put(known[0], tuple(rest), value), *known[1:]]
    known = document if isinstance(document, dict) else {}
    return {**known, first: put(known.get(first), tuple(rest), value)}


def wrong_bodies(route: ApiOperation) -> Iterator[tuple[Place, Any]]:
    schema: Any = route.request.schema if route.request is not None else None
    # The body of one is msgpack; and this node is in no cluster.
    if schema is None or route.operation == "sendBatches" or route.path.startswith("/v1/cluster"):
        return
    fitting = {name: copy.deepcopy(GIVEN.get(name, 0)) for name in schema.get("required", ())}
    for place in places(schema):
        for value in WRONG:
            yield place, put(fitting, place, value)


@pytest.mark.part(2)
def test_every_field_that_is_wrong_is_refused_in_the_words_of_http(tmp_path: Path) -> None:
    async def test(client: Session, broker: Broker) -> None:
        count = 0
        for route in route_table(broker.config):
            path = route.path
            for parameter in route.parameters:
                if route.is_in_path(parameter):
                    path = path.replace(f"{{{parameter.name}}}", IN_PATH.get(parameter.name, "x"))
            for place, body in wrong_bodies(route):
                headers = {"Content-Type": "application/json"}
                async with client.request(route.method, path, data=json.dumps(body), headers=headers) as answer:
                    said = await answer.read()
                assert answer.status < 500, (route.operation, place, said)
                if answer.status >= 400:
                    error = json.loads(said)["error"]
                    assert not OF_PYTHON.search(error["message"]), (route.operation, place, error)
                    where = str(error.get("field"))
                    assert route.operation != "putSchedule" or "messages[" not in where + error["message"], error
                    assert answer.status != 400 or "field" in error, (route.operation, place, error)
                    count += 1
        assert count > 1_000

    with_node(tmp_path, test)


def test_a_time_in_seconds_is_not_taken_for_one_in_1970(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    topic, query = f"/v1/topics/{topic_name}", f"topic={topic_name}"
    for method, path, body, field in (
        ("POST", f"{topic}/trim", {"before_ms": SECONDS}, "before_ms"),
        ("GET", f"{topic}/offsets?time_ms={SECONDS}", None, "time_ms"),
        ("GET", f"{topic}/queues/0?time_ms={SECONDS}", None, "time_ms"),
        ("GET", f"{topic}/messages?key=k&from_ms={SECONDS}", None, "from_ms"),
        ("GET", f"{topic}/messages?key=k&to_ms={SECONDS}", None, "to_ms"),
        ("GET", f"/v1/groups/g/reset?{query}&time_ms={SECONDS}", None, "time_ms"),
        ("POST", "/v1/groups/g/reset", {"topic": topic_name, "time_ms": SECONDS}, "time_ms"),
        ("POST", f"{topic}/messages", {"messages": [{"body": "x", "deliver_at_ms": SECONDS}]}, "deliver_at_ms"),
        ("POST", f"{topic}/messages", {"messages": [{"body": "x", "expires_at_ms": SECONDS}]}, "expires_at_ms"),
    ):
        error = api.call(method, path, body, status=400).error
        assert error["field"].endswith(field) and "seconds" in error["message"], error
    api.call("POST", f"{topic}/trim", {"before_ms": 0}, status=200)
