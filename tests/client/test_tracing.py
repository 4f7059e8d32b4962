"""Traces through client and node: real nodes that tell a collector, and the SDK's exporter in this process."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import msgpack
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

from lsmq import Client, Consumer, GroupProducer, Message, Producer, TransactionalProducer, WorkQueue, sync
from lsmq._router import Router
from lsmq.errors import MessageTooLarge, TracingNotInstalled
from lsmq.record_batch import BatchBuilder
from lsmq.tracing import MAX_LINKS, context_of
from support.clusters import running_cluster
from support.collector import Collector, collecting
from support.node_process import NodeProcess
from support.python_process import run_python
from support.waiting import comes_true, eventually

MakeNode = Callable[..., NodeProcess]


class Spans:
    """Those of this process that have ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("application")

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def linked(span: ReadableSpan) -> set[int]:
    return {link.context.span_id for link in span.links}


async def test_a_message_is_one_trace_from_who_sends_it_to_who_handles_it(
    make_node: MakeNode, collector: Collector, spans: Spans
) -> None:
    node = make_node(trace_endpoint=collector.url).start()
    handled: list[int] = []
    async with Client(node.url, tracing=spans.provider) as client:
        await client.create_topic("t")
        with spans.tracer.start_as_current_span("order") as order:
            async with Producer(client, "t") as producer:
                await producer.send_and_wait("one pizza")
        async with Consumer(client, "t", start="earliest") as consumer:

            async def handle(message: Message) -> None:
                handled.append(trace.get_current_span().get_span_context().span_id)
                await consumer.close()

            await consumer.run(handle)
    node.stop()

    send, batch, handle_span = spans.one("send t"), spans.one("send batch t"), spans.one("handle t")
    receive = spans.one("receive t")
    trace_id = order.get_span_context().trace_id
    assert parent_of(send) == order.get_span_context().span_id
    assert parent_of(batch) == id_of(send) and parent_of(handle_span) == id_of(send)
    assert handled == [id_of(handle_span)]
    assert linked(receive) == {id_of(send)}
    there = collector.of_trace(trace_id)
    assert there["store t"].parent_id == f"{id_of(batch):016x}"
    assert there["commit"].parent_id == there["store t"].span_id
    assert there["store t"].begin_ns <= there["commit"].begin_ns <= there["commit"].end_ns <= there["store t"].end_ns
    assert there["store t"].attributes["messaging.batch.message_count"] == 1
    assert there["store t"].resource["service.name"] == "lsmq"
    assert receive.context is not None
    delivered = collector.of_trace(receive.context.trace_id)["deliver t"]
    assert delivered.parent_id == f"{id_of(receive):016x}"


async def test_a_batch_has_links_to_the_messages_of_other_traces(shared_node: NodeProcess, spans: Spans) -> None:
    async with Client(shared_node.url, tracing=spans.provider) as client:
        await client.create_topic("links")
        async with Producer(client, "links", linger_ms=60_000) as producer:
            for _ in range(MAX_LINKS + 10):
                await producer.send("x")
        first, *others = spans.named("send links")
        batch = spans.one("send batch links")
        assert parent_of(batch) == id_of(first)
        assert linked(batch) == {id_of(other) for other in others[:MAX_LINKS]}
        async with Consumer(client, "links", start="earliest") as consumer:
            message = (await consumer.poll(1))[0]
        assert trace.get_current_span(context_of(message)).get_span_context().span_id == id_of(first)


async def test_many_messages_of_one_call_are_one_span(shared_node: NodeProcess, spans: Spans) -> None:
    async with Client(shared_node.url, tracing=spans.provider) as client:
        await client.create_topic("many", queues=8)
        async with Producer(client, "many") as producer:
            await (await producer.send_many([("a", "1"), ("b", "2")]))
            await (await producer.send_batch(["3", "4"]))
        assert len(spans.named("send many")) == 2
        async with Consumer(client, "many", start="earliest") as consumer:
            messages: list[Message] = []
            while len(messages) < 4:
                messages += await consumer.poll(10)
        carried = {trace.get_current_span(context_of(message)).get_span_context().span_id for message in messages}
        assert carried == {id_of(spans.named("send many")[0]), 0}, "columns carry nothing"


async def test_every_way_to_send_and_to_take_work_is_traced(shared_node: NodeProcess, spans: Spans) -> None:
    async with Client(shared_node.url, tracing=spans.provider) as client:
        await client.create_topic("ways")
        async with Producer(client, "ways") as producer:
            await producer.send_nowait("1")
            await producer.send("2", headers=[("traceparent", b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01")])
        async with GroupProducer(client, "ways", group="g") as grouped:
            await (await grouped.send("3", position=1))
        async with TransactionalProducer(client, "tg") as transactional, transactional.transaction() as transaction:
            await transaction.send("ways", "4")
            await transaction.send_many("ways", ["5"])
        assert len(spans.named("send ways")) == 5
        seen = []
        queue = WorkQueue(client, "ways", "workers")

        async def work(task: object) -> None:
            seen.append(trace.get_current_span().get_span_context())
            if len(seen) == 5:
                await queue.close()

        await queue.run(work)
        sent = {id_of(span) for span in spans.named("send ways")}
        parents = {parent_of(span) for span in spans.named("handle ways")}
        assert len(parents & sent) == 4 and int("2" * 16, 16) in parents, "a context of the application's own stays"
        assert spans.named("receive ways")


async def test_what_fails_says_so_in_its_span(shared_node: NodeProcess, spans: Spans) -> None:
    async with Client(shared_node.url, tracing=spans.provider) as client:
        await client.create_topic("fails")
        async with Producer(client, "fails") as producer:
            with pytest.raises(MessageTooLarge):
                await producer.send(b"x" * (2 << 20))
        assert not spans.one("send fails").status.is_ok
        async with Producer(client, "fails") as producer:
            await producer.send_and_wait("x")
        async with Consumer(client, "fails", start="earliest") as consumer:

            def break_down(message: Message) -> None:
                raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await consumer.run(break_down)
        assert not spans.one("handle fails").status.is_ok


def test_the_blocking_face_carries_the_span_of_its_caller_and_into_its_handlers(
    shared_node: NodeProcess, spans: Spans, topic_name: str
) -> None:
    inside: list[int] = []
    with sync.Client(shared_node.url, tracing=spans.provider) as client:
        client.create_topic(topic_name)
        with spans.tracer.start_as_current_span("order") as order, sync.Producer(client, topic_name) as producer:
            producer.send_and_wait("x")
        with sync.Consumer(client, topic_name, start="earliest") as consumer:

            def handle(message: Message) -> None:
                inside.append(trace.get_current_span().get_span_context().trace_id)
                consumer.close()

            consumer.run(handle)
    assert inside == [order.get_span_context().trace_id]


async def test_only_what_is_sampled_is_told_and_nothing_of_polls_without_messages(
    make_node: MakeNode, collector: Collector
) -> None:
    node = make_node(trace_endpoint=collector.url).start()
    async with aiohttp.ClientSession(node.url) as session:
        await session.put("/v1/topics/t", json={"queues": 1})
        for sampled, trace_id in (("01", "a" * 32), ("00", "b" * 32)):
            header = {"traceparent": f"00-{trace_id}-{'1' * 16}-{sampled}"}
            await session.post("/v1/topics/t/messages", json={"messages": [{"body": "x"}]}, headers=header)
            await session.get("/v1/topics/t/queues/0/messages?offset=99999999", headers=header)
            await session.get("/v1/topics/t/queues/0/messages?offset=5", headers=header)
            await session.get("/healthz", headers=header)
        await session.post("/v1/topics/t/messages", json={"messages": [{"body": "x"}]})
    node.stop()
    assert {span.trace_id for span in collector.spans} == {"a" * 32}
    assert {span.name for span in collector.spans if span.parent_id == "1" * 16} == {"store t", "deliver t"}
    refused = [span for span in collector.spans if span.name == "deliver t"]
    assert {span.attributes["http.response.status_code"] for span in refused} == {416}


async def test_a_node_begins_traces_where_it_is_told_to(make_node: MakeNode, collector: Collector) -> None:
    node = make_node(trace_endpoint=collector.url, trace_percent=100).start()
    async with Client(node.url) as client:
        await client.create_topic("t")
        async with Producer(client, "t") as producer:
            await producer.send_and_wait("x")
    node.stop()
    stored = next(span for span in collector.spans if span.name == "store t")
    assert stored.parent_id == ""


@pytest.mark.part(2)
async def test_a_collector_that_does_not_answer_costs_spans_and_is_told_of(
    make_node: MakeNode, collector: Collector
) -> None:
    collector.status = 400
    node = make_node(trace_endpoint=collector.url, trace_percent=100).start()
    async with aiohttp.ClientSession(node.url) as session:
        await session.put("/v1/topics/t", json={"queues": 1})

        async def warned() -> bool:
            async with session.get("/readyz") as answer:
                return "tracing" in await answer.text()

        async def failed() -> bool:
            async with session.get("/metrics") as answer:
                found = re.search(r'lsmq_trace_spans_total\{outcome="failed"\} (\S+)', await answer.text())
                return found is not None and float(found[1]) > 0

        await comes_true(failed, "spans are lost")
        await comes_true(warned, "the node says that its tracing fails")
        async with session.get("/readyz") as answer:
            assert answer.status == 200, "it does its work without"


@pytest.mark.part(3)
def test_replication_has_a_span_of_its_own(tmp_path: Path, collector: Collector) -> None:
    settings = {
        "segment_bytes": 4 << 20,
        "memtable_bytes": 8 << 20,
        "trace_endpoint": collector.url,
        "trace_percent": 100,
    }
    with running_cluster(__name__, tmp_path / "c", settings=settings) as cluster:
        with sync.Client([node.url for node in cluster.plan.nodes]) as client:
            client.create_topic("t", queues=3)
            with sync.Producer(client, "t") as producer:
                producer.send_and_wait("x")
        eventually(lambda: any(span.name == "replicate" for span in collector.spans), "a write was replicated")
    by_id = {span.span_id: span for span in collector.spans}
    replicated = next(span for span in collector.spans if span.name == "replicate")
    assert by_id[replicated.parent_id].name == "store t"


async def test_log_lines_of_a_traced_request_have_its_trace(make_node: MakeNode, collector: Collector) -> None:
    node = make_node(trace_endpoint=collector.url, slow_request_ms=1, log_format="json", flush_interval_ms=100).start()
    async with aiohttp.ClientSession(node.url) as session:
        await session.put("/v1/topics/t", json={"queues": 1000})
        header = {"traceparent": f"00-{'c' * 32}-{'1' * 16}-01"}
        messages = [{"body": "x" * 1000, "queue": queue} for queue in range(1000)]
        await session.post("/v1/topics/t/messages", json={"messages": messages}, headers=header)
        await session.post("/v1/topics/t/messages", json={"messages": messages})
    node.stop()
    lines = [json.loads(line) for line in node.log().splitlines() if line.startswith("{")]
    slow = [line for line in lines if line["event"] == "slow_request" and line["operation"] == "sendMessages"]
    assert [line.get("trace_id") for line in slow] == ["c" * 32, None]


async def test_a_slow_request_is_logged_with_where_its_time_went(make_node: MakeNode) -> None:
    node = make_node(slow_request_ms=1, log_format="json").start()
    async with aiohttp.ClientSession(node.url) as session:
        await session.put("/v1/topics/t", json={"queues": 1000})
        messages = [{"body": "x" * 1000, "queue": queue} for queue in range(1000)]
        await session.post("/v1/topics/t/messages", json={"messages": messages})
        await session.get("/v1/topics/t/queues/0/messages?offset=1&wait_ms=1500")
        async with session.get("/metrics") as answer:
            metrics = await answer.text()
    node.stop()
    lines = [json.loads(line) for line in node.log().splitlines() if line.startswith("{")]
    (line,) = [line for line in lines if line["event"] == "slow_request" and line["operation"] == "sendMessages"]
    assert line["topic"] == "t" and line["status"] == 200
    parts = sum(value for name, value in line.items() if name.endswith("_ms"))
    assert line["commit_ms"] > 0 and parts == pytest.approx(line["ms"], abs=1)
    assert 'lsmq_http_slow_requests_total{operation="sendMessages"} 1' in metrics
    held = [line for line in lines if line["event"] == "slow_request" and line["operation"] == "readMessages"]
    assert all(line["ms"] < 1000 <= line["wait_ms"] for line in held), "what is held for messages is not slow"


async def test_batches_of_which_no_trace_is_kept_share_a_request(
    shared_node: NodeProcess, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths: list[str] = []
    attempt = Router.attempt

    async def noting(self: Router, topic: Any, url: str, shards: Any, method: str, path: str, **request: Any) -> Any:
        paths.append(path)
        return await attempt(self, topic, url, shards, method, path, **request)

    monkeypatch.setattr(Router, "attempt", noting)
    for sampler, together in ((ALWAYS_OFF, True), (ALWAYS_ON, False)):
        async with (
            Client(shared_node.url, tracing=TracerProvider(sampler=sampler)) as client,
            AsyncExitStack() as scope,
        ):
            await client.create_topic(topic_name)
            made = [await scope.enter_async_context(Producer(client, topic_name, linger_ms=0)) for _ in range(3)]
            await asyncio.gather(*(each.send_and_wait("first") for each in made))
            paths.clear()
            await asyncio.gather(*(each.send_and_wait("x") for each in made))
            assert ("/v1/batches" in paths) == together


async def test_no_stage_of_batches_that_are_sent_together_is_longer_than_their_request(make_node: MakeNode) -> None:
    node = make_node(slow_request_ms=1, log_format="json").start()
    builder = BatchBuilder()
    builder.add(0, b"x" * 1000)
    parts = [{"topic": "t", "batch": builder.build()}] * 500
    async with aiohttp.ClientSession(node.url, headers={"Content-Type": "application/msgpack"}) as session:
        await session.put("/v1/topics/t", json={"queues": 1}, headers={"Content-Type": "application/json"})
        await session.post("/v1/batches", data=msgpack.packb({"batches": parts}))
    node.stop()
    lines = [json.loads(line) for line in node.log().splitlines() if line.startswith("{")]
    (line,) = [line for line in lines if line["event"] == "slow_request" and line["operation"] == "sendBatches"]
    stages = {name: value for name, value in line.items() if name.endswith("_ms")}
    assert stages["commit_ms"] > 0 and max(stages.values()) <= line["ms"] + 0.1, line


def test_without_the_extra_client_and_node_say_what_to_install(tmp_path: Path) -> None:
    absent = "import sys; sys.modules['opentelemetry'] = None; "
    program = absent + "from lsmq import Client; Client(tracing=True)"
    ran = run_python("-c", program, text=True)
    assert TracingNotInstalled.code == "tracing_not_installed"
    assert 'pip install "lsmq[otel]"' in ran.stderr
    data = f"'--data', '{tmp_path / 'n'}', '--port', '0'"
    program = absent + f"sys.argv = ['lsmq', 'serve', {data}]; from lsmq.cli import main; main()"
    environment = {"LSMQ_TRACE_ENDPOINT": "http://127.0.0.1:1/v1/traces"}
    ran = run_python("-c", program, env=environment, text=True)
    assert ran.returncode == 1 and 'pip install "lsmq[node,otel]"' in ran.stderr


def test_a_client_without_tracing_imports_nothing_of_it(shared_node: NodeProcess) -> None:
    program = (
        "import sys; from lsmq.sync import *\n"
        f"with Client({shared_node.url!r}) as client:\n"
        "    client.create_topic('untraced')\n"
        "    with Producer(client, 'untraced') as producer: producer.send_and_wait('x')\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    ran = run_python("-c", program, text=True)
    assert ran.returncode == 0, ran.stderr


async def test_what_is_sent_when_a_message_was_stored_is_a_call_of_its_own(
    shared_node: NodeProcess, spans: Spans
) -> None:
    async with Client(shared_node.url, tracing=spans.provider) as client:
        await client.create_topic("then")
        async with Producer(client, "then") as producer:
            receipt = await producer.send("one")
            receipt.add_done_callback(lambda _: producer.send_nowait("two"))
            await receipt
            await producer.flush()
        assert len(spans.named("send then")) == 2


async def test_a_span_of_a_message_ends_with_its_batch(shared_node: NodeProcess, spans: Spans) -> None:
    async with Client(shared_node.url, tracing=spans.provider) as client:
        await client.create_topic("ends")
        async with Producer(client, "ends", linger_ms=60_000) as producer:
            receipt = await producer.send("x")
            await asyncio.sleep(0)
            assert spans.named("send ends") == []
            await producer.flush()
            await receipt
            assert spans.one("send ends").status.is_ok
