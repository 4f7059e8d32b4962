"""Consumers that do not read, or do not acknowledge, cost the node next to nothing; nor do idle streams."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from api.calls import Api
from support.node_process import NodeProcess
from support.waiting import comes_true

from .streams import held

MIB = 1 << 20
STUCK = 40
BODY_BYTES = 32 * 1024
MESSAGES = 100
BUDGET_BYTES = 4 * MIB


def resident_bytes(node: NodeProcess) -> int:
    for line in Path(f"/proc/{node.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise LookupError("VmRSS")


def open_and_never_read(node: NodeProcess, subscriber: str) -> socket.socket:
    """A WebSocket with little room to receive."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", node.port))
    path = f"/v1/groups/g/push?topic=t&mode=broadcast&subscriber={subscriber}&credit=10000&credit_bytes={8 * MIB}"
    head = (
        f"GET {path} HTTP/1.1\r\nHost: n\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    connection.sendall(head.encode())
    return connection


async def test_consumers_that_do_not_read_do_not_grow_the_node(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node(max_push_bytes=BUDGET_BYTES, memtable_bytes=4 * MIB, cache_bytes=4 * MIB).start()
    api = Api(node.url)
    api.create("t", queues=4)
    limits = {"mode": "broadcast", "credit": 10_000, "credit_bytes": 8 * MIB}
    async with AsyncExitStack() as streams:
        for number in range(STUCK):
            streams.callback(open_and_never_read(node, f"s{number}").close)
        await comes_true(lambda: api.metric("lsmq_push_streams") == STUCK, "all are held")
        well = await streams.enter_async_context(held(node.url, "t", subscriber="well", **limits))
        await well.owns([0, 4])
        before = resident_bytes(node)

        async def produce() -> None:
            for start in range(0, MESSAGES, 20):
                messages = [{"queue": (start + n) % 4, "body": "x" * BODY_BYTES} for n in range(20)]
                await asyncio.to_thread(api.send, "t", *messages)

        producing = asyncio.create_task(produce())
        assert len(await well.messages(MESSAGES)) == MESSAGES
        await producing
        await comes_true(lambda: api.metric("lsmq_push_bytes_in_memory") > 0, "some connections take no more")
        assert api.metric("lsmq_push_bytes_in_memory") <= BUDGET_BYTES
        # All that they have credit for, and that waits for them, is 125 MiB.
        assert resident_bytes(node) - before < 60 * MIB
        assert api.metric("lsmq_push_streams") == STUCK + 1


async def test_consumers_without_credit_are_not_read_for(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node(max_push_bytes=BUDGET_BYTES).start()
    api = Api(node.url)
    api.create("t", queues=4)
    async with AsyncExitStack() as streams:
        for number in range(50):
            stream = await streams.enter_async_context(
                held(node.url, "t", mode="broadcast", subscriber=f"s{number}", credit=2)
            )
            await stream.owns([0, 4])
        await asyncio.to_thread(api.send, "t", *[{"queue": n % 4, "body": "x" * 1_000} for n in range(1_000)])
        await comes_true(lambda: api.metric("lsmq_push_streams_stalled") == 50, "all have used up their credit")
        assert api.metric("lsmq_push_messages_total") == api.metric("lsmq_push_unacknowledged") == 100
        assert api.metric("lsmq_push_bytes_in_memory") == 0
