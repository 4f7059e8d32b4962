"""Plain HTTP calls to a node, one connection each, and what tests need around them."""

from __future__ import annotations

import base64
import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import msgpack

from lsmq.record_batch import BatchBuilder
from support.clusters import believed

from .declared_errors import assert_declared

TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def msgpack(self) -> Any:
        return msgpack.unpackb(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error the answer carries; fails when it carries none."""
        error: dict[str, Any] = self.json()["error"]
        assert {"code", "message", "retriable", "refresh_route"} <= error.keys()
        return error

    @property
    def code(self) -> str:
        code: str = self.error["code"]
        return code


class Api:
    """The HTTP API of one node, asked from an address of this machine."""

    def __init__(self, url: str, source: str = "127.0.0.1") -> None:
        self.source = source
        self.moved(url)

    def moved(self, url: str) -> None:
        """The node was started anew, and is there now."""
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None
        self.host, self.port, self.tls = parts.hostname, parts.port, parts.scheme == "https"

    def call(
        self,
        method: str,
        path: str,
        document: Any = None,
        *,
        body: Any = None,
        headers: dict[str, str] | None = None,
        status: int | None = None,
        chunked: bool = False,
    ) -> Answer:
        """One request. ``document`` is sent as JSON, ``body`` as it is; ``status`` is required."""
        source = None if self.source == "127.0.0.1" else (self.source, 0)
        connection = (
            http.client.HTTPSConnection(
                self.host, self.port, timeout=TIMEOUT_S, source_address=source, context=believed()
            )
            if self.tls
            else http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT_S, source_address=source)
        )
        try:
            if document is not None:
                body = json.dumps(document)
            connection.request(method, path, body, headers or {}, encode_chunked=chunked)
            response = connection.getresponse()
            answer = Answer(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()
        if status is not None:
            assert answer.status == status, answer.body[:1000]
        assert_declared(method, path, answer.status, answer.headers.get("Content-Type", ""), answer.body)
        return answer

    def get(self, path: str, status: int | None = 200, **rest: Any) -> Answer:
        return self.call("GET", path, status=status, **rest)

    def create(self, topic: str, queues: int | str = 4, **options: Any) -> dict[str, Any]:
        answer = self.call("PUT", f"/v1/topics/{quote(topic, safe='')}", {"queues": queues, **options})
        assert answer.status in (200, 201), answer.body
        created: dict[str, Any] = answer.json()
        return created

    def send(self, topic: str, *messages: dict[str, Any], status: int | None = 200, **envelope: Any) -> Answer:
        document = {"messages": list(messages), **envelope}
        return self.call("POST", f"/v1/topics/{topic}/messages", document, status=status)

    def read(self, topic: str, queue: int, status: int | None = 200, **query: Any) -> Answer:
        text = "&".join(f"{name}={value}" for name, value in query.items())
        return self.get(f"/v1/topics/{topic}/queues/{queue}/messages?{text}", status)

    def bodies(self, topic: str, queue: int, **query: Any) -> list[str]:
        return [message["body"] for message in self.read(topic, queue, **query).json()["messages"]]

    def all_bodies(self, topic: str, queue: int) -> list[str]:
        """Every body of a queue, from the earliest on."""
        return [message["body"] for message in self.all_messages(topic, queue)]

    def all_messages(self, topic: str, queue: int) -> list[dict[str, Any]]:
        """Every message of a queue, from the earliest on."""
        found: list[dict[str, Any]] = []
        offset: int | str = "earliest"
        while True:
            page = self.read(topic, queue, offset=offset, max=10_000).json()
            if not page["messages"]:
                return found
            found.extend(page["messages"])
            offset = page["next_offset"]

    def send_batch(self, topic: str, batch: bytes, status: int | None = 200, query: str = "") -> Answer:
        headers = {"Content-Type": "application/vnd.lsmq.batch"}
        path = f"/v1/topics/{topic}/batches{query}"
        return self.call("POST", path, body=batch, headers=headers, status=status)

    def fetch(self, topic: str, positions: dict[int, int], status: int | None = 200, **rest: Any) -> Answer:
        document = {
            "queues": b"".join(queue.to_bytes(4, "little") for queue in positions),
            "offsets": b"".join(offset.to_bytes(8, "little") for offset in positions.values()),
            **rest,
        }
        headers = {"Content-Type": "application/msgpack", "Accept": "application/json"}
        path = f"/v1/topics/{topic}/fetch"
        return self.call("POST", path, body=msgpack.packb(document), headers=headers, status=status)

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.get("/v1/status").json()
        return status

    def metric(self, name: str) -> float:
        """The sum of a metric's samples over its labels."""
        found = [
            float(line.rpartition(" ")[2])
            for line in self.get("/metrics").body.decode().splitlines()
            if line.startswith((f"{name} ", f"{name}{{"))
        ]
        assert found, f"no metric {name}"
        return sum(found)


def pack(*records: tuple[int, bytes], **producer: int) -> bytes:
    """A batch of bodies by queue."""
    builder = BatchBuilder()
    for queue, body in records:
        builder.add(queue, body)
    return builder.build(**producer)


def text(body: bytes) -> str:
    return base64.b64encode(body).decode()
