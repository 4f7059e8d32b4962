"""Requests of web pages: whose may pass, on every path, and by which names a node is reached."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lsmq.errors import HostNotAllowed, OriginNotAllowed
from lsmq_node.api.app import route_table
from lsmq_node.api.origins import Hosts, Origins
from lsmq_node.config import NodeConfig
from support.node_process import NodeProcess

from .calls import Api

EVIL = {"Origin": "https://evil.example"}
CHANGES: list[tuple[str, str, Any]] = [
    ("POST", "/v1/topics/{topic}/messages", {"messages": [{"body": "x"}]}),
    ("PUT", "/v1/topics/{topic}-2", {"queues": 1}),
    ("DELETE", "/v1/topics/{topic}", None),
    ("POST", "/v1/topics/{topic}/delete", {"queues": [0], "offsets": [0]}),
    ("POST", "/v1/groups/g/offsets", {"topic": "{topic}", "queues": [0], "offsets": [0], "reset": True}),
    ("POST", "/v1/groups/g/pop", {"topic": "{topic}"}),
    ("POST", "/v1/cluster/nodes/local/drain", None),
    ("GET", "/v1/topics", None),
    ("GET", "/metrics", None),
]


@pytest.mark.parametrize(("method", "path", "document"), CHANGES)
def test_pages_of_other_origins_are_refused_whatever_they_ask(
    api: Api, topic_name: str, method: str, path: str, document: Any
) -> None:
    api.create(topic_name, 1)
    path = path.replace("{topic}", topic_name)
    body = None if document is None else json.dumps(document).replace("{topic}", topic_name)
    for origin in ("https://evil.example", "null", "http://127.0.0.1.evil.example", "", "\xff\xfe"):
        refused = api.call(method, path, body=body, headers={"Origin": origin}, status=403)
        assert refused.code == "origin_not_allowed"
    assert api.bodies(topic_name, 0) == []


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_so_they_are_on_every_path_by_every_method(api: Api, method: str) -> None:
    for path in sorted({route.path for route in route_table(NodeConfig(data=Path("unused")))}):
        refused = api.call(method, path.replace("{", "").replace("}", ""), headers=EVIL)
        assert refused.status == 403, path
        assert method == "HEAD" or refused.code == "origin_not_allowed"
        assert "Access-Control-Allow-Origin" not in refused.headers


def test_a_page_that_this_node_serves_may(api: Api, topic_name: str) -> None:
    own = {"Origin": f"http://{api.host}:{api.port}", "Content-Type": "application/json"}
    api.call("PUT", f"/v1/topics/{topic_name}", {"queues": 1}, headers=own, status=201)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_pages_send_json_as_json(api: Api, topic_name: str, kind: str) -> None:
    """What a form or an image can send is never taken for JSON, not even from a page of one's own."""
    for page in ({"Origin": f"http://{api.host}:{api.port}"}, {"Sec-Fetch-Site": "same-origin"}):
        headers = {**page, **({"Content-Type": kind} if kind else {})}
        refused = api.call("PUT", f"/v1/topics/{topic_name}", {"queues": 1}, headers=headers, status=415)
        assert refused.code == "unsupported_media_type"


def test_programs_that_say_no_type_go_on_working(api: Api, topic_name: str) -> None:
    for kind in ({}, {"Content-Type": "application/x-www-form-urlencoded"}):
        assert api.call("PUT", f"/v1/topics/{topic_name}", {"queues": 1}, headers=kind).status in (200, 201)


def test_pages_of_named_origins_may_use_the_whole_api(make_node: Callable[..., NodeProcess]) -> None:
    api = Api(make_node(browser_origins="https://shop.example").start().url)
    page = {"Origin": "https://shop.example"}
    asked = {"Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "authorization,content-type"}
    answer = api.call("OPTIONS", "/v1/topics/t", headers={**page, **asked}, status=204)
    assert answer.headers["Access-Control-Allow-Origin"] == "https://shop.example"
    assert "PUT" in answer.headers["Access-Control-Allow-Methods"]
    assert "Authorization" in answer.headers["Access-Control-Allow-Headers"]
    made = api.call("PUT", "/v1/topics/t", {"queues": 1}, headers={**page, "Content-Type": "application/json"})
    failed = api.get("/v1/topics/nothing", 404, headers=page)
    for each in (made, failed):
        assert (each.headers["Access-Control-Allow-Origin"], each.headers["Vary"]) == (page["Origin"], "Origin")
    assert "Access-Control-Allow-Origin" not in api.get("/v1/topics").headers
    for refused in (
        api.call("OPTIONS", "/v1/topics/t", headers={**EVIL, **asked}, status=403),
        api.get("/v1/topics", 403, headers=EVIL),
    ):
        assert "Access-Control-Allow-Origin" not in refused.headers


def test_a_name_that_leads_here_by_somebody_elses_doing_is_refused(api: Api) -> None:
    refused = api.call("GET", "/v1/topics", headers={"Host": f"rebound.evil.example:{api.port}"}, status=403)
    assert refused.code == "host_not_allowed" and "allowed_hosts" in refused.error["message"]
    for host in ("localhost", f"node1:{api.port}", f"127.0.0.1:{api.port}", "[::1]:7600", "n1.cluster.local"):
        api.call("GET", "/v1/topics", headers={"Host": host}, status=200)


def config(**settings: Any) -> NodeConfig:
    return NodeConfig(data=Path("nowhere"), **settings)


def test_names_are_those_of_the_configuration() -> None:
    hosts = Hosts(config(advertised_url="https://q.shop.example/", allowed_hosts="mq.example, .internal.example"))
    for name in ("q.shop.example", "mq.example:80", "A.INTERNAL.EXAMPLE.:1", "10.1.2.3", "[fe80::1]:2", "db.internal"):
        hosts.check(name)
    for name in ("shop.example", "xinternal.example", "mq.example.evil", "127.0.0.1.evil.example"):
        with pytest.raises(HostNotAllowed):
            hosts.check(name)
    Hosts(config(allowed_hosts="*")).check("anything.example")


def test_origins_are_those_of_the_configuration() -> None:
    origins = Origins(config(browser_origins="https://shop.example/, https://other.example"))
    for origin in ("https://shop.example", "HTTPS://OTHER.example", "http://127.0.0.1:7600"):
        origins.check(origin, None)
    origins.check("http://node1:7600", "node1:7600")
    for origin in ("http://shop.example", "https://shop.example:444", "null", "http://node1:7601"):
        with pytest.raises(OriginNotAllowed):
            origins.check(origin, "node1:7600")
    Origins(config(browser_origins="*")).check("null", None)
