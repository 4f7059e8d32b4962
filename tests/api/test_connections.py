"""Connections: how many there may be, and what happens where the system has no room for another."""

from __future__ import annotations

import asyncio
import errno
import json
import select
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from lsmq_node import connections
from lsmq_node.api import serve
from lsmq_node.api.serve import client_limits
from lsmq_node.config import NodeConfig
from lsmq_node.connections import Doorkeeper, Limits
from lsmq_node.descriptors import shares
from lsmq_node.listening import listening_socket
from support.node_process import NodeProcess
from support.waiting import PATIENCE_S, eventually
from support.waiting import comes_true as until

from .calls import Api


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        assert isinstance(self.transport, asyncio.Transport)
        self.transport.write(data)


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def is_served(self) -> bool:
        self.writer.write(b"x")
        return await self.reader.read(1) == b"x"

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


class Door:
    """A doorkeeper, and those who come to it."""

    def __init__(self, listener: socket.socket, limits: Limits) -> None:
        self.keeper = Doorkeeper(listener, Echo, limits)
        self.clients: list[Client] = []
        self._port = listener.getsockname()[1]

    async def connect(self, source: str = "127.0.0.1") -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self._port, local_addr=(source, 0)))
        self.clients.append(client)
        return client


@asynccontextmanager
async def door(limits: Limits, listener: socket.socket | None = None) -> AsyncIterator[Door]:
    with listener or listening_socket("127.0.0.1", 0, "--port") as listening:
        found = Door(listening, limits)
        found.keeper.start()
        try:
            yield found
        finally:
            for client in found.clients:
                await client.close()
            await until(lambda: found.keeper.count == 0, "all are gone")
            found.keeper.close()


def test_one_connection_more_than_there_may_be_is_told_so_and_places_come_back() -> None:
    async def test() -> None:
        async with door(Limits(2, 2)) as at:
            held = [await at.connect() for _ in range(2)]
            assert all([await each.is_served() for each in held])
            head, _, body = (await (await at.connect()).reader.read()).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503") and b"Retry-After: 1" in head
            error = json.loads(body)["error"]
            assert (error["code"], error["retriable"], error["limit"]) == ("too_many_connections", True, 2)
            await held[0].close()
            await until(lambda: at.keeper.count == 1, "its place is free")
            assert await (await at.connect()).is_served()
            assert (at.keeper.accepted, at.keeper.refused) == (4, 1)

    asyncio.run(test())


def test_who_is_refused_is_told_so_also_behind_a_large_body(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node(max_connections=40, address_share_percent=100).start()
    api = Api(node.url)
    held: list[socket.socket] = []
    try:
        for _ in range(80):
            held.append(socket.create_connection((api.host, api.port), timeout=20))
        eventually(lambda: len(select.select(held, [], [], 0)[0]) >= 39, "all places are taken")
        for size in (1, 1 << 20, 8 << 20):
            for _ in range(5):
                answer = api.call("POST", "/v1/topics/t/messages", body=bytes(size))
                assert (answer.status, answer.code) == (503, "too_many_connections")
    finally:
        for connection in held:
            connection.close()


async def send_for_ever(client: Client) -> None:
    with suppress(ConnectionError):
        while True:
            client.writer.write(bytes(1 << 16))
            await client.writer.drain()


def test_who_is_refused_and_goes_on_sending_is_heard_for_a_while_only_and_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        async with door(Limits(16, 16)) as at:
            for _ in range(16):
                assert await (await at.connect()).is_served()
            # Up to so many bytes.
            await asyncio.wait_for(send_for_ever(await at.connect()), PATIENCE_S)
            # For so long, who sends nothing and closes nothing; two at a time, and more are closed at once.
            silent = [await at.connect() for _ in range(5)]
            await until(lambda: at.keeper.refused == 6, "all are refused")
            for client in silent:
                assert (await client.reader.read()).startswith(b"HTTP/1.1 503")
            await until(lambda: at.keeper.heard == 0, "nobody is heard any more")
            # Nor when the door is closed.
            monkeypatch.setattr(connections, "_HEARD_S", 1_000.0)
            last = await at.connect()
            await until(lambda: at.keeper.heard == 1, "it is heard")
            assert (await last.reader.read()).startswith(b"HTTP/1.1 503")
            at.keeper.close()
            await until(lambda: at.keeper.heard == 0, "nobody is heard any more")

    asyncio.run(test())


@pytest.mark.parametrize("begun", [b"", b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-More: "])
def test_a_request_that_is_never_whole_keeps_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    assert serve.KEEPALIVE_S == 75.0
    monkeypatch.setattr(serve, "KEEPALIVE_S", 0.5)

    async def test() -> None:
        async with serve.serving(NodeConfig(data=tmp_path, port=0)) as node, asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", node.broker.config.port)
            writer.write(begun)
            assert await reader.read() == b""
            writer.close()

    asyncio.run(test())


def test_one_address_has_its_share_and_others_theirs() -> None:
    async def test() -> None:
        async with door(Limits.of(8, 25)) as at:
            for _ in range(5):
                await at.connect()
            await until(lambda: at.keeper.accepted == 5, "all came")
            assert (at.keeper.count, at.keeper.refused) == (2, 3)
            assert await (await at.connect("127.0.0.2")).is_served()

    asyncio.run(test())


class NoRoom(socket.socket):
    """A listener for whose connections the system has no descriptor."""

    failing = True

    def accept(self) -> tuple[socket.socket, object]:
        if self.failing:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_without_descriptors_it_is_tried_again_and_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_RETRY_S", 0.001)

    async def test() -> None:
        plain = listening_socket("127.0.0.1", 0, "--port")
        listener = NoRoom(plain.family, plain.type, plain.proto, plain.detach())
        with capture_logs() as logs:
            async with door(Limits(8, 8), listener) as at:
                pending = await at.connect()
                await until(lambda: at.keeper.accept_failures >= 20, "it was tried often")
                assert [line["event"] for line in logs] == ["not_accepted"]
                listener.failing = False
                assert await pending.is_served()

    asyncio.run(test())


def test_nobody_waits_at_a_closed_door() -> None:
    async def test() -> None:
        async with door(Limits(8, 8)) as at:
            staying = await at.connect()
            assert await staying.is_served()
            at.keeper.close()
            with pytest.raises(ConnectionRefusedError):
                await at.connect()
            assert await staying.is_served()

    asyncio.run(test())


def test_clients_leave_descriptors_to_the_store() -> None:
    config = NodeConfig(data=None, max_connections=20_000)  # type: ignore[arg-type]
    limits = client_limits(config)
    assert limits.most == min(20_000, shares().connections) and limits.most_of_one == limits.most // 2
    for limit in (64, 256, 1_024, 1 << 20):
        split = shares(limit)
        assert split.tables + split.store + split.connections == limit and split.reserve <= split.store


def test_a_node_goes_on_writing_while_somebody_takes_all_connections(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node(max_connections=40, address_share_percent=100).start()
    api = Api(node.url)
    api.create("t", 1)
    idle = []
    try:
        for _ in range(80):
            idle.append(socket.create_connection((api.host, api.port), timeout=20))
        # The connection of the call above may have had the place of one of them.
        eventually(lambda: len(select.select(idle, [], [], 0)[0]) >= 39, "the others are refused")
        for connection in select.select(idle, [], [], 0)[0]:
            assert connection.recv(4_096).startswith(b"HTTP/1.1 503")
    finally:
        for connection in idle:
            connection.close()
    eventually(lambda: api.get("/metrics", None).status == 200, "their places are free again")
    assert api.metric("lsmq_connections_refused_total") >= 39
    api.send("t", {"body": "still here"})
