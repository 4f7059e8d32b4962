"""What a case of ``lsmq bench tracing`` measures, in a process of its own: a node and its clients, in one event loop.

Processor time counts, of all threads: the disk and who else uses the machine do not matter to it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsmq import Client, Consumer, Producer, Receipt, runtime
from lsmq_node.api.logs import configure_in_library
from lsmq_node.api.serve import serving
from lsmq_node.config import NodeConfig

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

TOPIC = "bench"
_BODY = b"x" * 58


def measure(directory: str, collector: str, messages: int, requests: int, in_flight: int) -> dict[str, Any]:
    """Microseconds of processor time a message or request. ``collector``: where spans go to; empty: no tracing."""
    runtime.share_closely()
    configure_in_library()
    return asyncio.run(_measure(Path(directory), collector, messages, requests, in_flight))


async def _measure(directory: Path, collector: str, messages: int, requests: int, in_flight: int) -> dict[str, Any]:
    traced: dict[str, Any] = {"trace_endpoint": collector} if collector else {}
    config = NodeConfig.load(data=directory / "data", port=0, flush_mode="async", **traced)
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(serving(config))
        given: dict[str, Any] = {}
        if collector:
            provider = _provider(collector)
            stack.push_async_callback(asyncio.to_thread, provider.shutdown)
            given = {"tracing": provider}
        client = await stack.enter_async_context(Client(node.broker.config.public_url, **given))
        await client.create_topic(TOPIC, queues=4)
        at_once = await stack.enter_async_context(Producer(client, TOPIC, linger_ms=0))
        for _ in range(min(requests, 200)):  # all is imported and connected
            await (await at_once.send(_BODY))
        producer = await stack.enter_async_context(Producer(client, TOPIC))
        found = {"request": await _requests(at_once, requests), "send": await _sends(producer, messages, in_flight)}
        consumer = await stack.enter_async_context(Consumer(client, TOPIC, start="earliest"))
        return {**found, "read": await _reads(consumer, messages)}


async def _requests(producer: Producer, count: int) -> float:
    """One message a request, each waited for: what a request costs, at client and node."""
    began_ns = time.process_time_ns()
    for _ in range(count):
        await (await producer.send(_BODY))
    return (time.process_time_ns() - began_ns) / count / 1e3


async def _sends(producer: Producer, count: int, in_flight: int) -> float:
    waiting: deque[Receipt] = deque()
    began_ns = time.process_time_ns()
    for _ in range(count):
        if len(waiting) == in_flight:
            await waiting.popleft()
        waiting.append(await producer.send(_BODY))
    await producer.flush()
    while waiting:
        await waiting.popleft()
    return (time.process_time_ns() - began_ns) / count / 1e3


async def _reads(consumer: Consumer, count: int) -> float:
    read, began_ns = 0, time.process_time_ns()
    while read < count:
        read += len(await consumer.poll(5_000))
    return (time.process_time_ns() - began_ns) / read / 1e3


def _provider(collector: str) -> TracerProvider:
    """As a program has it that traces: what it samples is all, and is told in batches."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(collector)))
    return provider
