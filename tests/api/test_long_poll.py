"""Long polls: when they are answered, and that nothing is left of them."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lsmq.record_batch import Column, Flag, split_batches
from lsmq_node.broker import Broker
from lsmq_node.storage.queries import AT_HAND_RECORDS
from support.node_process import NodeProcess
from support.waiting import comes_true, eventually

from .calls import Answer, Api, pack
from .in_process import Session, with_node


@pytest.fixture
def pool() -> ThreadPoolExecutor:
    with ThreadPoolExecutor(16) as pool:
        yield pool


@pytest.fixture
def own_api(node: NodeProcess) -> Api:
    """The API of a node of the test's own, whose waiters can be counted."""
    return Api(node.url)


def held(api: Api, count: int) -> None:
    eventually(lambda: api.status()["waiters"] == count, f"{count} polls are held")


def poll(pool: ThreadPoolExecutor, api: Api, queue: int, wait_ms: int = 20_000) -> Future[Answer]:
    return pool.submit(api.read, "t", queue, wait_ms=wait_ms)


def moved(body: bytes) -> dict[int, int]:
    return {
        queue: offset
        for batch in split_batches(body)
        if batch.column(Column.FLAGS)[0] & Flag.POSITION
        for queue, offset in zip(batch.column(Column.QUEUE), batch.column(Column.OFFSET), strict=True)
    }


def test_a_message_that_arrives_while_waiting_answers_at_once(own_api: Api, pool: ThreadPoolExecutor) -> None:
    own_api.create("t", 2)
    waiting = poll(pool, own_api, 1)
    held(own_api, 1)
    own_api.send("t", {"queue": 0, "body": "not this one"})
    own_api.send("t", {"queue": 1, "body": "this one"})
    page = waiting.result().json()
    assert [message["body"] for message in page["messages"]] == ["this one"]
    assert page["next_offset"] == 1
    held(own_api, 0)


def test_a_message_that_arrived_between_polls_comes_at_once(own_api: Api) -> None:
    own_api.create("t", 1)
    assert own_api.bodies("t", 0) == []
    own_api.send("t", {"body": "x"})
    began = time.monotonic()
    assert own_api.bodies("t", 0, wait_ms=20_000) == ["x"]
    assert time.monotonic() - began < 10


def test_a_poll_whose_time_is_up_is_empty_and_gone(own_api: Api) -> None:
    own_api.create("t", 1)
    began = time.monotonic()
    page = own_api.read("t", 0, wait_ms=300).json()
    assert time.monotonic() - began >= 0.3
    assert page == {"messages": [], "next_offset": 0}
    assert own_api.status()["waiters"] == 0


def test_a_poll_of_many_queues_is_answered_by_any_of_them(own_api: Api, pool: ThreadPoolExecutor) -> None:
    own_api.create("t", 100_000)
    even = pool.submit(own_api.fetch, "t", dict.fromkeys(range(0, 100_000, 2), 0), wait_ms=20_000)
    dense = pool.submit(own_api.fetch, "t", dict.fromkeys(range(40_000, 50_000), 0), wait_ms=20_000)
    held(own_api, 2)
    own_api.send("t", {"queue": 77, "body": "nobody waits for it"})
    held(own_api, 2)
    own_api.send("t", {"queue": 45_001, "body": "dense"})
    assert moved(dense.result().body) == {45_001: 1}
    held(own_api, 1)
    own_api.send_batch("t", pack((99_998, b"a"), (1, b"b"), (2, b"c")))
    assert moved(even.result().body) == {2: 1, 99_998: 1}


def test_everybody_who_waits_for_a_queue_is_answered(own_api: Api, pool: ThreadPoolExecutor) -> None:
    own_api.create("t", 1)
    waiting = [poll(pool, own_api, 0) for _ in range(12)]
    held(own_api, 12)
    own_api.send("t", {"body": "x"})
    assert all(len(one.result().json()["messages"]) == 1 for one in waiting)


@pytest.mark.part(2)
def test_no_message_is_missed_however_polls_and_sends_fall(own_api: Api, pool: ThreadPoolExecutor) -> None:
    own_api.create("t", 3)
    count = 300

    def consume(queue: int) -> list[str]:
        bodies: list[str] = []
        while len(bodies) < count:
            page = own_api.read("t", queue, offset=len(bodies), wait_ms=10_000).json()
            assert page["messages"], f"a poll timed out after {len(bodies)} messages"
            bodies += [message["body"] for message in page["messages"]]
        return bodies

    consumers = [pool.submit(consume, queue) for queue in range(3)]
    for number in range(count):
        own_api.send("t", *({"queue": queue, "body": str(number)} for queue in range(3)))
    for consumer in consumers:
        assert consumer.result() == [str(number) for number in range(count)]


def test_a_message_between_the_read_and_the_wait_is_not_missed(tmp_path: Path) -> None:
    async def test(client: Session, broker: Broker) -> None:
        read_in_pool = broker.reads.in_threads
        arrivals = [True]

        async def read_then_send(blocking: Callable[[], object]) -> object:
            found = await read_in_pool(blocking)
            if arrivals and arrivals.pop():
                await client.post("/v1/topics/t/messages", json={"messages": [{"queue": 1, "body": "x"}]})
            return found

        broker.reads.in_threads = read_then_send  # type: ignore[method-assign, assignment]
        broker.reads._are_at_hand = lambda *_: False  # type: ignore[method-assign]
        async with asyncio.timeout(10):
            page = await (await client.get("/v1/topics/t/queues/1/messages?wait_ms=60000")).json()
            assert [message["body"] for message in page["messages"]] == ["x"]
            arrivals.append(True)
            document = {"queues": [0, 1], "offsets": [0, 1], "wait_ms": 60_000}
            assert moved(await (await client.post("/v1/topics/t/fetch", json=document)).read()) == {1: 2}
        assert not arrivals

    with_node(tmp_path, test)


def test_who_reads_what_came_just_now_waits_for_none_of_those_who_read_much(tmp_path: Path) -> None:
    async def test(client: Session, broker: Broker) -> None:
        go_on, reading = asyncio.Event(), [0]
        really = broker.reads.in_threads

        async def slow(blocking: Callable[[], object]) -> object:
            reading[0] += 1
            await go_on.wait()
            return await really(blocking)

        broker.reads.in_threads = slow  # type: ignore[method-assign, assignment]
        many = {"messages": [{"queue": 0, "body": "x"}] * (AT_HAND_RECORDS + 1)}
        assert (await client.post("/v1/topics/t/messages", json=many)).status == 200

        def fetch(queue: int) -> asyncio.Future[Any]:
            wanted = {"queues": [queue], "offsets": [0], "wait_ms": 60_000}
            return asyncio.ensure_future(client.post("/v1/topics/t/fetch", json=wanted))

        behind = [fetch(0) for _ in range(5)]
        await comes_true(lambda: reading[0] == 2, "both threads are taken")
        waiting = fetch(1)
        await comes_true(lambda: broker.waiters.count == 1, "it waits")
        soon = {"messages": [{"queue": 1, "body": "y"}]}
        assert (await client.post("/v1/topics/t/messages", json=soon)).status == 200
        async with asyncio.timeout(10):
            assert moved(await (await waiting).read()) == {1: 1}
        assert reading[0] == 2 and not any(each.done() for each in behind)
        go_on.set()
        assert [answer.status for answer in await asyncio.gather(*behind)] == [200] * 5

    with_node(tmp_path, test, read_threads=2)


def test_a_caller_who_goes_away_leaves_no_waiter(own_api: Api) -> None:
    own_api.create("t", 1)
    with socket.create_connection((own_api.host, own_api.port)) as connection:
        request = "GET /v1/topics/t/queues/0/messages?wait_ms=60000 HTTP/1.1\r\nHost: x\r\n\r\n"
        connection.sendall(request.encode())
        held(own_api, 1)
    held(own_api, 0)


def test_polls_beyond_the_limit_are_refused_for_now(
    make_node: Callable[..., NodeProcess], pool: ThreadPoolExecutor
) -> None:
    api = Api(make_node(max_waiters=2, address_share_percent=100).start().url)
    api.create("t", 1)
    waiting = [poll(pool, api, 0) for _ in range(2)]
    held(api, 2)
    refused = api.read("t", 0, 503, wait_ms=1000)
    assert refused.code == "unavailable" and refused.error["retriable"]
    assert "max_waiters" in refused.error["message"]
    assert refused.headers["Retry-After"] == "1"
    api.send("t", {"body": "x"})
    assert all(one.result().status == 200 for one in waiting)


def test_deleting_the_topic_answers_who_waits_for_it(own_api: Api, pool: ThreadPoolExecutor) -> None:
    own_api.create("t", 1)
    waiting = pool.submit(own_api.read, "t", 0, None, wait_ms=20_000)
    held(own_api, 1)
    own_api.call("DELETE", "/v1/topics/t", status=204)
    assert waiting.result().code == "unknown_topic"
    assert waiting.result().error["message"] == "topic 't' was deleted meanwhile"
