"""What a node says of itself, walked: all operations of its OpenAPI document, by who may do all, little or nothing.

Nothing makes it fail, hang, or grow.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from support.extent import part_in_number
from support.node_process import NodeProcess
from support.waiting import PATIENCE_S, eventually

from .calls import Api
from .test_fuzz import ODD, document, value

#: Held until somebody goes.
HELD = {"push"}
KNOWN = {"topic": "t", "group": "g", "queue": "0", "shard": "0", "id": "0" * 32, "principal": "x", "role": "x"}
#: They would end what this test asks by.
LEFT_OUT_FOR_ADMIN = {"revokeTokens", "rotateToken", "revokeRights", "deleteRole", "alterLimits"}
AT_ONCE = 8
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Operation:
    """As the document has it."""

    method: str
    path: str
    id: str
    parameters: tuple[dict[str, Any], ...]
    body: Any
    statuses: frozenset[int]


def operations(described: dict[str, Any]) -> Iterator[Operation]:
    def resolved(found: Any) -> Any:
        while isinstance(found, dict) and "$ref" in found:
            target: Any = described
            for part in found["$ref"].removeprefix("#/").split("/"):
                target = target[part]
            found = target
        if isinstance(found, dict):
            return {name: resolved(item) for name, item in found.items()}
        return [resolved(item) for item in found] if isinstance(found, list) else found

    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            if method == "parameters" or operation["operationId"] in HELD:
                continue
            content = resolved(operation.get("requestBody", {})).get("content", {})
            yield Operation(
                method.upper(),
                path,
                operation["operationId"],
                tuple(each for each in map(resolved, operation["parameters"]) if each["in"] != "header"),
                content.get("application/json", {}).get("schema", {}) if content else None,
                frozenset(int(status) for status in operation["responses"] if status.isdigit()),
            )


def request(chance: random.Random, operation: Operation, token: str | None) -> bytes:
    path, asked = operation.path, []
    for parameter in operation.parameters:
        name, found = parameter["name"], value(chance, parameter["name"], parameter.get("schema"), False)
        if parameter["in"] == "path":
            text = KNOWN.get(name, "x") if chance.random() < 0.85 else str(chance.choice(ODD))
            path = path.replace(f"{{{name}}}", quote(text.encode(errors="surrogatepass"), safe="") or "%00")
        elif name != "wait_ms" and chance.random() < (0.9 if parameter.get("required") else 0.3):
            text = ",".join(map(str, found)) if isinstance(found, list) else str(found)
            asked.append(f"{name}={quote(text.encode(errors='surrogatepass'), safe='')}")
    url = (path + ("?" + "&".join(asked) if asked else ""))[:8_000]
    body = b"" if operation.body is None else json.dumps(document(chance, operation.body, False), default=repr).encode()
    head = [f"{operation.method} {url} HTTP/1.1", "Host: x", "Content-Type: application/json", "Connection: close"]
    if token is not None:
        head.append(f"Authorization: Bearer {token}")
    return "\r\n".join([*head, f"Content-Length: {len(body)}", "", ""]).encode() + body


async def statuses(node: NodeProcess, requests: list[tuple[Operation, bytes]]) -> list[tuple[Operation, bytes, int]]:
    """What each is answered, so many at a time. All are answered within :data:`PATIENCE_S`."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def ask(operation: Operation, sent: bytes) -> tuple[Operation, bytes, int]:
        async with slots, asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
            try:
                writer.write(sent)
                line = await reader.readline()
                await reader.read()
            finally:
                writer.close()
            return operation, sent, int(line.split()[1])

    return list(await asyncio.gather(*(ask(*each) for each in requests)))


@dataclass(frozen=True, slots=True)
class Size:
    """What a process has."""

    memory_bytes: int
    threads: int
    files: int

    @classmethod
    def of(cls, pid: int) -> Size:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        return cls(int(status["VmRSS"].split()[0]) * 1024, int(status["Threads"]), files)


@pytest.mark.slow
def test_all_that_a_node_says_it_does_can_be_asked_by_anybody_and_it_stays_as_it_is(
    make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    node = make_node(tmp_path / "data", auth="token", memtable_bytes=4 * MIB, cache_bytes=4 * MIB).start()
    file = tmp_path / "data" / "admin.token"
    eventually(file.exists, "the first token is written")
    admin = file.read_text().strip()
    api = Api(node.url)
    own = {"Authorization": f"Bearer {admin}"}
    api.call("PUT", "/v1/topics/t", {"queues": 2}, status=201, headers=own)
    tokens: dict[str | None, str | None] = {"admin": admin, None: None, "nobody": None, "tenant": None}
    for name, roles in (("nobody", []), ("tenant", [{"role": "tenant", "prefix": "g"}])):
        made = api.call("POST", "/v1/tokens", {"name": name, "roles": roles}, status=201, headers=own)
        tokens[name] = made.json()["token"]
    found = list(operations(api.get("/v1/openapi.json").json()))
    assert len(found) > 100 and {"sendMessages", "createToken", "beginTransaction"} <= {each.id for each in found}
    chance, seen = random.Random(7), {name: set[int]() for name in tokens}

    def walk(times: int) -> None:
        for _ in range(times):
            for name, token in tokens.items():
                asked = [each for each in found if name != "admin" or each.id not in LEFT_OUT_FOR_ADMIN]
                sent = [(each, request(chance, each, token)) for each in asked]
                for operation, what, status in asyncio.run(statuses(node, sent)):
                    assert status < 500 or status in (503, 507), (operation.id, status, what[:2_000])
                    if name != "admin":
                        assert status in operation.statuses or status >= 400, (operation.id, status)
                    seen[name].add(status)

    def counts() -> tuple[int, int]:
        topics = api.call("GET", "/v1/topics?limit=1000", headers=own).json()["topics"]
        return len(topics), len(api.call("GET", "/v1/groups?limit=1000", headers=own).json()["groups"])

    times = part_in_number(6, 2)
    walk(times)
    before, objects = Size.of(node.pid), counts()
    walk(times)
    after = Size.of(node.pid)
    assert after.memory_bytes < before.memory_bytes + 48 * MIB, (before, after)
    # Pools have all their threads at some moment: what grows with each walk would have grown by hundreds.
    assert after.threads <= before.threads + 16 and after.files <= before.files + 32, (before, after)
    assert all(later <= earlier + 8 for earlier, later in zip(objects, counts(), strict=True)), (objects, counts())
    assert {200, 400} <= seen["admin"] and 401 in seen[None] and 403 in seen["nobody"] & seen["tenant"]
    assert api.call("GET", "/readyz").status == 200
