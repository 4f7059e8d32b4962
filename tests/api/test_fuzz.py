"""Whatever is sent, the answer is the caller's fault or none: never a 5xx but 503 (and 507, 504 for what they say)."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgpack
import pytest

from lsmq_node.api.access import ACCESS
from lsmq_node.api.app import route_table
from lsmq_node.api.routing import ApiOperation
from lsmq_node.broker import Broker
from lsmq_node.config import Auth
from lsmq_node.rights import Action, CheckedRight, ResourceKind
from support.waiting import comes_true

from .calls import Api
from .in_process import Session, node_of, with_node

#: Held until somebody goes, or writes for seconds.
SKIPPED = {"push", "metrics", "openapi"}
ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, -(2**63), 10**40, int("9" * 4_299), 1.5,
    1e308, "", "t", "g", "\ud800", "\udfff!", "é\x00", "x" * 300, "0" * 5_000, "-", "1-", "٣", "a/b", "..", [], [[]],
    [0], [0, 0], [2**63], ["t"], {}, {"t": []}, {"": 0}, {"\ud800": 1}, {"t": [[0, 1]]}, {"t": [[5, 1]]},
]  # fmt: skip
BYTES: list[Any] = [
    b"",
    b"\x00",
    b"\xff" * 4,
    b"\x00" * 7,
    b"\x01" + bytes(11),
    float("nan"),
    float("inf"),
    -0.0,
    {1: 2},
    {b"x": 1},
    msgpack.Timestamp(1),
]
GIVEN: dict[str, list[Any]] = {
    "topic": ["t", "nowhere"],
    "topics": [["t"], ["nowhere"], ["t", "t"]],
    "queues": [[0], [0, 1], [1, 0], [0, 0], b"\x00" * 4, b"\x05\x00\x00\x00"],
    "offsets": [[0], [0, 0], b"\x00" * 8, b"\xff" * 8],
    "messages": [[{"body": "x"}], [{"body": "x", "topic": "t"}], [{"body": "x", "key": "k", "queue": 1}]],
    "member": ["m", "m2"],
    "receipts": [["AZe2"], ["x" * 43], [""]],
    "producer": [{"id": 1, "sequence": 0}, {"id": 1, "sequence": 0, "epoch": 2**32 - 1}],
}
HEADERS = [
    ("Content-Type", "application/msgpack;x=\xff"), ("Content-Type", "text/plain"), ("Accept", "application/msgpack"),
    ("Lsmq-Topic-Id", "1"), ("Lsmq-Topic-Id", "9" * 5_000), ("Content-Encoding", "gzip"), ("Content-Encoding", "\xe9"),
    ("Lsmq-Fetch-Shards", "0,1"), ("Lsmq-Fetch-Shards", "0,,\xb2"),
    ("Lsmq-Topic-Created", "1"), ("Lsmq-Topic-Created", "9" * 5_000),
    ("Expect", "x"), ("Host", "\xff"), ("Host", ""), ("Host", "[::1"), ("Origin", "\xff"), ("Origin", "null"),
    ("Accept", "\xff\xfe"), ("X-Odd", "\xff"),
]  # fmt: skip


def value(chance: random.Random, name: str, schema: Any, binary: bool) -> Any:
    """Sometimes what fits, sometimes what does not."""
    if name in GIVEN and chance.random() < 0.7:
        return chance.choice(GIVEN[name])
    if isinstance(schema, dict) and chance.random() < 0.6:
        if "enum" in schema:
            return chance.choice(schema["enum"])
        if schema.get("type") == "object":
            return document(chance, schema, binary)
        limits = [schema[key] for key in ("minimum", "maximum", "default") if key in schema]
        if limits:
            found = chance.choice(limits)
            return found + chance.choice((-1, 0, 0, 1)) if isinstance(found, int) else found
    return chance.choice(ODD + BYTES if binary else ODD)


def document(chance: random.Random, schema: Any, binary: bool) -> Any:
    fields = schema.get("properties", {}) if isinstance(schema, dict) else {}
    required = schema.get("required", ()) if isinstance(schema, dict) else ()
    found = {
        name: value(chance, name, item, binary)
        for name, item in fields.items()
        if chance.random() < (0.95 if name in required else 0.3)
    }
    if chance.random() < 0.1:
        found[chance.choice(["odd", "\ud800", ""])] = chance.choice(ODD)
    found.pop("wait_ms", None)
    return found


def encoded(chance: random.Random, route: ApiOperation, binary: bool) -> bytes:
    assert route.request is not None
    if chance.random() < 0.05:
        return chance.choice([b"", b"{", b"\xc1", b"\xff", b"[" * 10_000, b"1" * 5_000, b'"\xed\xa0\x80"', b"\x93\x01"])
    found = document(chance, route.request.schema, binary) if chance.random() < 0.9 else chance.choice(ODD)
    try:
        packed: bytes = msgpack.packb(found, unicode_errors="surrogatepass") if binary else json.dumps(found).encode()
    except (OverflowError, ValueError, TypeError):
        return b"\x80"
    if chance.random() < 0.1 and packed:
        at = chance.randrange(len(packed))
        packed = packed[:at] + bytes([chance.randrange(256)]) + packed[at + 1 :]
    return packed


def url(chance: random.Random, route: ApiOperation) -> str:
    path = route.path
    for parameter in route.parameters:
        if route.is_in_path(parameter):
            known = {"topic": "t", "group": "g", "queue": "0", "shard": "0", "id": "0" * 32}.get(parameter.name, "x")
            text = known if chance.random() < 0.85 else str(chance.choice(ODD))
            path = path.replace(f"{{{parameter.name}}}", quote(text.encode(errors="surrogatepass"), safe="") or "%00")
    asked = []
    for parameter in route.queries:
        if parameter.name not in ("wait_ms",) and chance.random() < (0.9 if parameter.required else 0.3):
            found = value(chance, parameter.name, parameter.schema, False)
            text = ",".join(map(str, found)) if isinstance(found, list) else str(found)
            asked.append(f"{parameter.name}={quote(text.encode(errors='surrogatepass'), safe='')}")
    if chance.random() < 0.05:
        asked.append("%ff%fe=%ed%a0%80")
    return path + ("?" + "&".join(asked) if asked else "")


def request(chance: random.Random, route: ApiOperation, token: str | None = None) -> bytes:
    binary = chance.random() < 0.4
    body = encoded(chance, route, binary) if route.request is not None else b""
    headers = [("Host", "x"), ("Content-Type", "application/msgpack" if binary else "application/json")]
    if chance.random() < 0.3:
        headers.append(("Accept", "application/msgpack"))
    if token is not None:
        headers.append(("Authorization", f"Bearer {token}"))
    if chance.random() < 0.1:
        name, text = chance.choice(HEADERS)
        headers = [(name, text), *(item for item in headers if item[0] != name)]
    lines = [f"{route.method} {url(chance, route)[:8_000]} HTTP/1.1", *(f"{name}: {text}" for name, text in headers)]
    head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "Connection: close", "", ""])
    return head.encode("latin-1", "replace") + body


async def status_of(client: Session, sent: bytes) -> int:
    reader, writer = await asyncio.open_connection(client.host, client.port)
    writer.write(sent)
    async with asyncio.timeout(30):
        line = await reader.readline()
        await reader.read()
    writer.close()
    return int(line.split()[1])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.part(2)
def test_nothing_that_is_sent_makes_the_node_fail(tmp_path: Path, seed: int) -> None:
    async def test(client: Session, broker: Broker) -> None:
        chance = random.Random(seed)
        routes = [route for route in route_table(broker.config) if route.operation not in SKIPPED]
        seen: set[int] = set()
        for turn in range(600):
            sent = request(chance, routes[turn % len(routes)])
            status = await status_of(client, sent)
            assert status < 500 or status == 503, sent[:2_000]
            seen.add(status)
        assert {200, 400, 404} <= seen
        assert (await client.get("/v1/topics")).status == 200

    with_node(tmp_path, test)


@pytest.mark.part(2)
def test_nothing_that_is_sent_does_more_than_its_sender_may(tmp_path: Path) -> None:
    """The same, where the node asks who that is: an administrator, somebody with half of the rights, one with none."""

    async def test(client: Session, broker: Broker) -> None:
        file = tmp_path / "admin.token"
        await comes_true(file.exists, "the first token is written")
        admin, rights = file.read_text().strip(), node_of(client).rights
        half = [CheckedRight(ResourceKind.TOPIC, "t", Action.READ), CheckedRight(ResourceKind.GROUP, "*", Action.READ)]
        _, reader = await rights.create_token("reader", None, (), "a test")
        await rights.grant("reader", (), half)
        _, nobody = await rights.create_token("nobody", None, (), "a test")
        chance = random.Random(5)
        routes = [route for route in route_table(broker.config) if route.operation not in SKIPPED]
        await status_of(client, asked("PUT", "/v1/topics/t", admin, b'{"queues":2}'))
        seen: dict[str | None, set[int]] = {token: set() for token in (admin, reader, nobody, None)}
        for turn in range(600):
            route, token = routes[turn % len(routes)], chance.choice(list(seen))
            if route.operation in ("revokeTokens", "rotateToken", "revokeRights", "grantRights") and token == admin:
                continue  # It may: of those that are asked here, too.
            sent = request(chance, route, token)
            status, access = await status_of(client, sent), ACCESS[route.operation]
            assert status < 500 or status == 503, sent[:2_000]
            if token in (None, nobody) and access.needs:
                assert status >= 400, sent[:2_000]
            if token == reader and status < 300:
                assert all(any(right.kind is need.kind for right in half) for need in access.needs), sent[:2_000]
                assert {need.action for need in access.needs} <= {Action.READ, Action.DESCRIBE}, sent[:2_000]
            seen[token].add(status)
        assert {200, 400} <= seen[admin] and 401 in seen[None] and 401 not in seen[nobody] | seen[reader]
        assert 403 in seen[nobody] and {200, 403} <= seen[reader]
        assert set(rights.book.grants) <= {"admin@local", "reader", "x"} and len(rights.book.tokens) <= 20

    with_node(tmp_path, test, auth=Auth.TOKEN)


def asked(method: str, path: str, token: str, body: bytes) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def test_what_was_once_answered_with_500(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    path = f"/v1/topics/{topic_name}"
    refused = api.call("POST", f"{path}/messages", body=b'{"messages":[{"body":"x"}],"\\ud800":1}', status=400)
    assert refused.code == "invalid_request" and "\\ud800" in refused.error["message"]
    for digits in (10, 4_299, 4_301, 6_000):
        assert api.get(f"{path}/offsets?queues={'9' * digits}", 400).code == "invalid_request"
        assert api.get(f"/v1/groups/g/lag?topic={topic_name}&ranges={'9' * digits}", None).status in (400, 404)
    with socket.create_connection((api.host, api.port), timeout=20) as connection:
        connection.sendall(b"GET /v1/topics HTTP/1.1\r\nHost: x\r\nOrigin: \xff\xfe\r\n\r\n")
        assert connection.recv(4_096).startswith(b"HTTP/1.1 403")
