"""Whether the OpenAPI document names an error: asked of every answer that tests get."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import msgpack

from lsmq.errors import LsmqError, MethodNotAllowed, UnknownPath
from lsmq_node.api.app import route_table
from lsmq_node.api.openapi import ANYWHERE
from lsmq_node.config import NodeConfig

#: Of what is no operation; and what nobody expected.
_BESIDE = {kind.code for kind in (UnknownPath, MethodNotAllowed, LsmqError)}


@cache
def _declared() -> list[tuple[str, re.Pattern[str], frozenset[str]]]:
    anywhere = {kind.code for kind in ANYWHERE} | _BESIDE
    # Paths with more words of their own come first: `/v1/groups` before `/v1/{..}`.
    routes = sorted(route_table(NodeConfig(data=Path("unused"))), key=lambda route: route.path.count("{"))
    return [
        (
            route.method,
            re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(route.path))),
            frozenset(anywhere | {kind.code for kind in route.errors}),
        )
        for route in routes
    ]


def assert_declared(method: str, path: str, status: int, content_type: str, body: bytes) -> None:
    """``body``: of the answer to a request; one that is no error is not looked at."""
    if status < 300 or status == 304 or not body or not path.startswith("/v1/"):
        return
    code = (msgpack.unpackb(body) if "msgpack" in content_type else json.loads(body))["error"]["code"]
    named = urlsplit(path).path
    for each, pattern, codes in _declared():
        if each == method and pattern.fullmatch(named):
            assert code in codes, f"{method} {pattern.pattern} answers {code}, which its errors leave out"
            return
