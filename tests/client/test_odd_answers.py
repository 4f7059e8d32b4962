"""Answers that no node would give: of what stands between, of other software at the address, of other releases."""

from __future__ import annotations

import json

import pytest

from lsmq import (
    Client,
    Forbidden,
    LsmqError,
    Producer,
    RequestTimeout,
    RequestTooLarge,
    TooManyRequests,
    Unauthenticated,
)
from support.fault_proxy import FaultProxy
from support.node_process import NodeProcess


def http(status: int, content_type: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status} Odd\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def refused(status: int, error: object) -> bytes:
    return http(status, "application/json", json.dumps({"error": error}).encode())


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (refused(404, "not found"), LsmqError, "answered 404"),
        (refused(400, [1]), LsmqError, "answered 400"),
        (http(200, "application/json", b"[" * 100_000), LsmqError, "an LSMQ node"),
        (http(200, "application/msgpack", b"\x81\x90\x01"), LsmqError, "an LSMQ node"),
        (http(401, "text/html", b"<html>who?</html>"), Unauthenticated, "answered 401"),
        (http(403, "text/html", b"<html>no</html>"), Forbidden, "answered 403"),
        (http(302, "text/html", b""), LsmqError, "give the URL that this one leads to"),
        (http(413, "text/html", b"<html>too large</html>"), RequestTooLarge, "batch_bytes"),
    ],
)
async def test_what_is_no_answer_of_a_node_is_an_error_that_says_so(
    shared_node: NodeProcess, answer: bytes, kind: type[LsmqError], words: str
) -> None:
    async with FaultProxy(shared_node.url) as proxy, Client(proxy.url) as client:
        proxy.say("status", answer)
        with pytest.raises(LsmqError, match=words) as raised:
            await client.status()
        assert type(raised.value) is kind
        assert proxy.requests["status"] == 1
        assert (await client.status())["uptime_s"] > 0


async def test_a_proxy_that_waited_too_long_for_a_request_is_asked_again(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with FaultProxy(shared_node.url) as proxy, Client(proxy.url) as client:
        await client.create_topic(topic_name)
        proxy.say("batches", http(408, "text/html", b"<html>Request Time-out</html>"), times=2)
        async with Producer(client, topic_name) as producer:
            assert (await producer.send_and_wait("a")).offset == 0
        assert proxy.requests["batches"] == 3
        proxy.say("status", http(408, "text/html", b"<html>Request Time-out</html>"), times=1000)
        async with Client(proxy.url, deadline_ms=1) as hasty:
            with pytest.raises(RequestTimeout):
                await hasty.status()


@pytest.mark.parametrize("said", ["null", '"soon"', "1e999", "1" + 400 * "0", "NaN", "-5", "[]", "true"])
async def test_a_time_to_come_again_that_is_none_is_an_error_like_any_other(
    shared_node: NodeProcess, said: str
) -> None:
    error = b'{"error": {"code": "too_many_requests", "message": "m", "retry_after_ms": %s}}' % said.encode()
    async with FaultProxy(shared_node.url) as proxy, Client(proxy.url, deadline_ms=300) as client:
        proxy.say("status", http(429, "application/json", error), times=1000)
        with pytest.raises(TooManyRequests):
            await client.status()


async def test_a_leader_whose_url_is_none_is_an_error_that_names_it(shared_node: NodeProcess, topic_name: str) -> None:
    async with FaultProxy(shared_node.url) as proxy, Client(proxy.url, deadline_ms=300) as client:
        topic = await client.create_topic(topic_name)
        route = topic.routes[0]
        moved = {"code": "not_leader", "message": "m", "retriable": True, "shard": route.shard}
        proxy.say("offsets", refused(421, {**moved, "epoch": route.epoch + 1, "leader_url": "http://[::"}))
        with pytest.raises(LsmqError, match="not a URL of a node"):
            await client.offsets(topic_name)
