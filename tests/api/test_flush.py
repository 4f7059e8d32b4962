"""A topic or a request says how durable a message is before it counts: every way to send obeys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import lsmq
from lsmq import sync
from support.node_process import NodeProcess
from support.python_process import run_python

from .calls import Api

SENT = 10


@pytest.fixture
def node(make_node: Callable[..., NodeProcess]) -> Iterator[NodeProcess]:
    """Of one shard, which syncs what is only written when the test is over."""
    return make_node(flush_interval_ms=60_000).start()


def send_over_http(node: NodeProcess, topic: str, queue: int | str, flush: str | None) -> None:
    more: dict[str, Any] = {} if flush is None else {"flush": flush}
    for number in range(SENT):
        Api(node.url).send(topic, {"queue": queue, "body": str(number)}, **more)


def send_with_a_producer(node: NodeProcess, topic: str, queue: int | str, flush: Any) -> None:
    with sync.Client(node.url) as client, sync.Producer(client, topic, flush=flush, linger_ms=0) as producer:
        for number in range(SENT):
            producer.send_and_wait(str(number), queue=queue)


def send_with_a_group(node: NodeProcess, topic: str, queue: int | str, flush: Any) -> None:
    async def send() -> None:
        async with (
            lsmq.Client(node.url) as client,
            lsmq.GroupProducer(client, topic, "g", flush=flush, linger_ms=0) as producer,
        ):
            last = producer.last_acknowledged(queue=queue)
            first = 0 if last is None else last + 1
            for position in range(first, first + SENT):
                await (await producer.send(str(position - first), position=position, queue=queue))

    asyncio.run(send())


def send_with_the_command(node: NodeProcess, topic: str, queue: int | str, flush: str | None) -> None:
    said = [] if flush is None else ["--flush", flush]
    for number in range(SENT):
        arguments = ["-m", "lsmq", "produce", topic, "--url", node.url, "--queue", str(queue), *said]
        assert run_python(*arguments, input=str(number).encode()).returncode == 0


WAYS = (send_over_http, send_with_a_producer, send_with_a_group, send_with_the_command)


@pytest.mark.part(2)
@pytest.mark.parametrize("send", WAYS)
def test_every_way_to_send_obeys(node: NodeProcess, send: Callable[..., None]) -> None:
    api = Api(node.url)
    queue, queues = (0, 1) if send is send_with_a_group else ("inbox", "named")  # groups send to numbers alone
    assert api.create("loose", queues, flush="async")["options"]["flush"] == "async"
    api.create("firm", 1)

    def syncs_for(topic: str, queue: int | str, flush: str | None) -> float:
        before = api.metric("lsmq_store_fsyncs_total")
        send(node, topic, queue, flush)
        return api.metric("lsmq_store_fsyncs_total") - before

    send(node, "loose", queue, "sync")  # The name is there, and whoever sends has begun.
    assert syncs_for("loose", queue, None) < SENT / 2
    assert syncs_for("loose", queue, "sync") >= SENT
    assert syncs_for("firm", 0, None) >= SENT
    assert syncs_for("firm", 0, "async") < SENT / 2
    assert api.all_bodies("firm", 0) == [str(number) for number in range(SENT)] * 2
    node.kill9()  # The process dies, the machine lives: nothing written is lost.
    node.restart()
    assert api.all_bodies("firm", 0) == [str(number) for number in range(SENT)] * 2


def test_it_is_altered_and_described_and_holds_after_a_restart(node: NodeProcess) -> None:
    with sync.Client(node.url) as client:
        assert client.create_topic("t", flush="async").options["flush"] == "async"
        assert client.alter_topic("t", flush="sync").options["flush"] == "sync"
        node.kill9()
        node.restart()
        assert client.topic("t").options["flush"] == "sync"
        assert client.alter_topic("t", flush=None).options.get("flush") is None


def test_another_word_is_refused_by_name(node: NodeProcess) -> None:
    api = Api(node.url)
    api.create("t", 1)
    asked = (
        api.call("PUT", "/v1/topics/other", {"queues": 1, "flush": "never"}, status=400),
        api.call("PATCH", "/v1/topics/t", {"flush": "never"}, status=400),
        api.send("t", {"body": "x"}, status=400, flush="never"),
        api.send_batch("t", b"", status=400, query="?flush=never"),
    )
    for answer in asked:
        for word in ("flush", "'sync'", "'async'", "never"):
            assert word in answer.error["message"]
    assert api.all_bodies("t", 0) == []
