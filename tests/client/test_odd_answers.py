"""Answers that no node would give: of what stands between, of other software at the address, of other releases."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from lsmq import (
    BackupAdmin,
    Client,
    ClusterAdmin,
    Consumer,
    DeadLetters,
    DelayedMessages,
    Forbidden,
    Group,
    LsmqError,
    Producer,
    RequestTimeout,
    RequestTooLarge,
    Rights,
    Schedules,
    TooManyRequests,
    TransactionalProducer,
    Unauthenticated,
    UnexpectedAnswer,
    WorkQueue,
    _transport,
    list_groups,
)
from lsmq.producer_groups import ProducerGroup
from lsmq.record_batch import Column, encode_batch
from lsmq.shard_requests import ShardRequests
from support.fault_proxy import FaultProxy
from support.node_process import NodeProcess
from support.waiting import comes_true


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
        (http(200, "application/json", b"[" * 100_000), UnexpectedAnswer, "an LSMQ node"),
        (http(200, "application/msgpack", b"\x81\x90\x01"), UnexpectedAnswer, "an LSMQ node"),
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


class OtherSoftware(FaultProxy):
    """Has the same answer to whatever it is asked for, but for a topic's routes, once it is told which."""

    answer: Any = None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if self.answer is None or (request.method == "GET" and request.path.startswith("/v1/topics/t")):
            return await super()._handle(request)
        await request.read()
        return web.json_response(self.answer["says"])


async def all_of(found: AsyncIterator[object]) -> list[object]:
    return [each async for each in found]


async def taken(client: Client) -> None:
    async with WorkQueue(client, "t", group="w") as work:
        await work.poll(timeout_ms=60_000)


async def joined(client: Client) -> None:
    async with Consumer(client, "t", group="g"):
        pass


async def transacted(client: Client) -> None:
    async with TransactionalProducer(client, "x") as producer, producer.transaction() as transaction:
        await transaction.send("t", b"a")


CALLS: list[Callable[[Client], Coroutine[Any, Any, object]]] = [
    lambda client: client.topics(),
    lambda client: client.create_topic("other"),
    lambda client: client.topic_usage("t"),
    lambda client: client.message(32 * "0"),
    lambda client: client.groups(),
    lambda client: client.committed_offsets("g", "t"),
    lambda client: Group(client, "g").coordinator(),
    lambda client: Group(client, "g").describe(),
    lambda client: Group(client, "g").delete(),
    lambda client: Group(client, "g").lag("t"),
    list_groups,
    joined,
    taken,
    transacted,
    lambda client: WorkQueue(client, "t", group="w").describe(),
    lambda client: WorkQueue(client, "t", group="w").held(),
    lambda client: ProducerGroup(client, "x").transactions(),
    lambda client: ClusterAdmin(client).overview(),
    lambda client: ClusterAdmin(client).plan(),
    lambda client: Rights(client).whoami(),
    lambda client: Rights(client).tokens(),
    lambda client: Rights(client).limits(),
    lambda client: Schedules(client, "t").get("noon"),
    lambda client: all_of(Schedules(client, "t").read()),
    lambda client: all_of(DelayedMessages(client, "t").read()),
    lambda client: all_of(DeadLetters(client, "t").read()),
    lambda client: BackupAdmin(client).state(),
]


@pytest.mark.parametrize("says", [{}, [], None, "hello", {"messages": "many", "shards": 3, "nodes": [], "shard": "x"}])
async def test_answers_of_another_form_are_named_whatever_was_asked_for(
    make_node: Callable[..., NodeProcess], says: Any
) -> None:
    node = make_node().start()
    async with OtherSoftware(node.url) as proxy:
        async with Client(proxy.url) as client:
            await client.create_topic("t")
        proxy.answer = {"says": says}
        for number, call in enumerate(CALLS):
            async with Client(proxy.url) as client:
                try:
                    await call(client)
                except LsmqError as error:
                    assert "defect" not in error.message, f"call {number}"


async def test_a_member_outlives_answers_to_its_heartbeats_that_are_none(
    shared_node: NodeProcess, topic_name: str
) -> None:
    group = f"g-{topic_name}"
    async with FaultProxy(shared_node.url) as proxy, Client(proxy.url) as client:
        await client.create_topic(topic_name)
        async with Producer(client, topic_name) as producer, Consumer(client, topic_name, group=group) as consumer:
            await producer.send_and_wait("a")
            assert [message.body for message in await consumer.poll()] == [b"a"]
            before = proxy.requests["heartbeat"]
            proxy.say("heartbeat", http(200, "application/json", b"{}"), times=3)
            await comes_true(lambda: proxy.requests["heartbeat"] > before + 4, "heartbeats go on")
            await producer.send_and_wait("b")
            assert [message.body for message in await consumer.poll()] == [b"b"]
            await consumer.commit()


async def test_a_list_that_begins_anew_with_each_page_ends(shared_node: NodeProcess, topic_name: str) -> None:
    page = http(200, "application/json", b'{"topics": [], "next": "a"}')
    async with FaultProxy(shared_node.url) as proxy, Client(proxy.url) as client:
        proxy.say("topics", page, times=1000)
        with pytest.raises(UnexpectedAnswer, match="names itself"):
            await client.topics()
        assert proxy.requests["topics"] == 2


async def test_batches_that_went_together_and_were_answered_by_something_else_are_stored_once(
    shared_node: NodeProcess, topic_name: str
) -> None:
    odd = http(200, "application/json", b'{"results": [{"batch": 1}, 2]}')
    async with FaultProxy(shared_node.url) as proxy, Client(proxy.url) as client:
        await client.create_topic(topic_name)
        producers = Producer(client, topic_name, linger_ms=60_000), Producer(client, topic_name, linger_ms=60_000)
        async with producers[0], producers[1]:
            proxy.say("batches", odd, carried_out=True)
            receipts = [await producer.send("a", queue=0) for producer in producers]
            await asyncio.gather(*(producer.flush() for producer in producers))
            assert sorted([(await receipt).offset for receipt in receipts]) == [0, 1]
        assert proxy.requests["batches"] == 3
        assert list((await client.offsets(topic_name)).latest) == [2]


async def test_what_does_not_hold_a_pop_is_not_asked_without_end(shared_node: NodeProcess, topic_name: str) -> None:
    async with FaultProxy(shared_node.url) as proxy, Client(proxy.url) as client:
        await client.create_topic(topic_name)
        proxy.say("pop", http(200, "application/json", b'{"messages": []}'), times=100_000)
        async with WorkQueue(client, topic_name, group=f"w-{topic_name}") as work:
            assert await work.poll(timeout_ms=1_000) == []
        assert proxy.requests["pop"] < 40


@pytest.mark.parametrize("coding", ["identity", "gzip"])
async def test_an_answer_that_goes_on_and_on_ends_where_answers_do(
    monkeypatch: pytest.MonkeyPatch, coding: str
) -> None:
    monkeypatch.setattr(_transport, "MAX_ANSWER_BYTES", 1 << 20)
    piece, hung_up = bytes(1 << 16), asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        if coding == "gzip":
            response.enable_compression(web.ContentCoding.gzip)
        await response.prepare(request)
        try:
            while True:
                await response.write(piece)
        finally:
            hung_up.set()

    application = web.Application()
    application.router.add_get("/v1/status", endless)
    async with TestServer(application) as server, Client(str(server.make_url(""))) as client:
        with pytest.raises(RequestTooLarge, match="over the client's limit"):
            await client.status()
        await hung_up.wait()


async def test_what_comes_unasked_on_an_idle_connection_is_no_answer_to_the_next_request() -> None:
    writers: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while path := (await reader.readuntil(b"\r\n\r\n")).split()[1]:
                writer.write(http(200, "application/json", json.dumps({"path": path.decode()}).encode()))

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, Client(url) as client, Client(url) as other:
        assert await client.ask("GET", "/v1/first") == {"path": "/v1/first"}
        writers[0].write(http(200, "application/json", b'{"path": "/v1/first"}'))
        await other.ask("GET", "/v1/other")  # What was written before has come by then.
        assert await client.ask("GET", "/v1/second") == {"path": "/v1/second"}
        assert len(writers) == 3
        assert await client.ask("GET", "/v1/third") == {"path": "/v1/third"}
        assert len(writers) == 3  # And clean ones are used again.
        for writer in writers:
            writer.close()


@pytest.mark.parametrize(
    "answer",
    [http(200, "text/html", b"<html>We are back soon</html>"), b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"],
)
async def test_nothing_counts_as_done_that_no_node_has_answered(
    shared_node: NodeProcess, topic_name: str, answer: bytes
) -> None:
    group = f"g-{topic_name}"
    async with FaultProxy(shared_node.url) as proxy, Client(proxy.url) as client:
        topic = await client.create_topic(topic_name)
        async with Producer(client, topic_name) as producer:
            await producer.send_and_wait("a")
        batch = encode_batch(1, {Column.QUEUE: [0]}, b"")
        calls: list[tuple[str, Coroutine[Any, Any, object]]] = [
            ("offsets", client.commit_offsets(group, topic_name, {0: 1})),
            ("delete", client.delete_messages(topic_name, [(0, 0)])),
            ("delete", client.trim_topic(topic_name, {0: 1})),
            ("work-queue", WorkQueue(client, topic_name, group=group).configure(max_deliveries=3)),
            ("noon", Schedules(client, topic_name).delete("noon")),
            ("batches", ShardRequests(client).store(topic, topic.routes[0].shard, batch)),
            ("offsets", client.offsets(topic_name)),
        ]
        for ending, call in calls:
            proxy.say(ending, answer)
            with pytest.raises(UnexpectedAnswer, match="which no node does"):
                await call
