"""A load that costs less than what it loads: HTTP requests packed beforehand, written to sockets again and again.

One thread for all connections, one request at a time on each. Of an answer it looks at the status and the length.
"""

from __future__ import annotations

import json
import resource
import selectors
import socket
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from lsmq import runtime
from lsmq.record_batch import Column
from lsmq_lab.benchmarks.report import BenchFailed
from lsmq_node.api.codec import BATCH_TYPE
from lsmq_node.storage.columns import encode_one

#: Different requests of a connection, which take turns.
_DIFFERENT = 4
_STATUS = b"HTTP/1.1 200"
_LENGTH = b"Content-Length: "
_READ_BYTES = 1 << 18
_TIMEOUT_S = 30.0


class _Connection:
    """Requests to one leader, the next when the one before is answered."""

    def __init__(self, url: str, requests: Sequence[bytes]) -> None:
        address = urlsplit(url)
        self.socket = socket.create_connection((str(address.hostname), address.port or 80), timeout=_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._requests = requests
        self._next = 0
        self._heard = b""
        self.answered = 0

    def send(self) -> None:
        self.socket.sendall(self._requests[self._next])
        self._next = (self._next + 1) % len(self._requests)

    def receive(self) -> bool:
        """Whether that was the rest of an answer. Raises ``BenchFailed`` for one that refuses."""
        part = self.socket.recv(_READ_BYTES)
        heard = self._heard = self._heard + part if self._heard else part
        end = heard.find(b"\r\n\r\n")
        if end < 0 and part:
            return False
        if not heard.startswith(_STATUS):
            raise BenchFailed(f"a request was refused: {heard[:400].decode(errors='replace')}")
        start = heard.find(_LENGTH) + len(_LENGTH)
        if len(heard) < end + 4 + int(heard[start : heard.find(b"\r", start)]):
            return False
        self._heard = b""
        self.answered += 1
        return True

    def close(self) -> None:
        self.socket.close()


def load(url: str, topic: str, batch: int, message_bytes: int, connections: int, seconds: float) -> dict[str, Any]:
    """Write to the leaders of all shards for so long. ``messages`` that were acknowledged, in ``seconds``, for
    ``cpu_seconds`` of this process."""
    with selectors.DefaultSelector() as selector, ExitStack() as scope:
        opened = [
            scope.enter_context(
                closing(_Connection(leader, _requests(leader, topic, first, end, batch, message_bytes)))
            )
            for first, end, leader in _routes(url, topic)
            for _ in range(connections)
        ]
        for each in opened:
            selector.register(each.socket, selectors.EVENT_READ, each)
        used = _cpu_seconds()
        began = time.perf_counter()
        for each in opened:
            each.send()
        while (now := time.perf_counter()) - began < seconds:
            for key, _ in selector.select(_TIMEOUT_S):
                if key.data.receive():
                    key.data.send()
        used = _cpu_seconds() - used
    messages = batch * sum(each.answered for each in opened)
    return {"messages": messages, "seconds": now - began, "cpu_seconds": used}


def _routes(url: str, topic: str) -> list[tuple[int, int, str]]:
    """First queue, end and leader of each range."""
    with urllib.request.urlopen(f"{url}/v1/topics/{topic}", timeout=_TIMEOUT_S) as answer:
        found = json.load(answer)["routes"]
    return [(route["first"], route["end"], route["leader"] or url) for route in found]


def _requests(leader: str, topic: str, first: int, end: int, count: int, message_bytes: int) -> list[bytes]:
    """Whole requests, each with a batch of as many messages to queues of the range, in turn."""
    found = []
    for number in range(_DIFFERENT):
        queues = first + (np.arange(count, dtype=np.int64) + number * count) % (end - first)
        payload = np.frombuffer(runtime.token_bytes(count * message_bytes), np.uint8)
        columns: dict[int, NDArray[Any]] = {
            Column.QUEUE: queues,
            Column.LENGTH: np.full(count, message_bytes, np.uint32),
        }
        body = encode_one(columns, payload)
        head = (
            f"POST /v1/topics/{topic}/batches HTTP/1.1\r\nHost: {urlsplit(leader).netloc}\r\n"
            f"Content-Type: {BATCH_TYPE}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        found.append(head.encode() + body)
    return found


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
