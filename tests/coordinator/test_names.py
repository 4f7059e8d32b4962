"""Names that hang or vanish hold up nothing else."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from lsmq_coordinator import names
from lsmq_coordinator.names import MAX_NAMES, Names


class NameServer:
    """In the place of ``socket.getaddrinfo``: answers what it is told to, or hangs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.addresses: dict[str, str] = {}
        self.hanging: set[str] = set()
        self.asked: list[str] = []
        self.released = threading.Event()
        monkeypatch.setattr(names.socket, "getaddrinfo", self)

    def __call__(self, host: str, *_: Any, **__: Any) -> list[Any]:
        self.asked.append(host)
        if host in self.hanging:
            self.released.wait(10)
        if host not in self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (self.addresses[host], 0))]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    server = NameServer(monkeypatch)
    yield server
    server.released.set()


def test_addresses_need_no_name_server(server: NameServer) -> None:
    async def run() -> None:
        found = Names()
        assert await found.address("127.0.0.1") == "127.0.0.1"
        assert [entry["host"] for entry in await found.resolve("::1", 80, socket.AF_UNSPEC)] == ["::1"]

    asyncio.run(run())
    assert server.asked == []


def test_one_lookup_serves_all_who_ask_and_is_remembered(server: NameServer) -> None:
    server.addresses["n1"] = "10.0.0.1"

    async def run() -> None:
        found = Names()
        assert await asyncio.gather(*(found.address("n1") for _ in range(20))) == ["10.0.0.1"] * 20
        assert await found.address("n1") == "10.0.0.1"

    asyncio.run(run())
    assert server.asked == ["n1"]


def test_a_name_that_hangs_does_not_hold_up_another(server: NameServer) -> None:
    server.addresses |= {"n1": "10.0.0.1", "gone": "10.0.0.9"}
    server.hanging.add("gone")

    async def run() -> None:
        found = Names()
        waiting = [asyncio.create_task(found.address("gone")) for _ in range(100)]
        assert await found.address("n1") == "10.0.0.1"
        assert not any(task.done() for task in waiting)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(run())
    assert server.asked.count("gone") == 1


def test_the_last_good_address_is_used_while_the_name_server_is_away(
    server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.addresses["n1"] = "10.0.0.1"
    monkeypatch.setattr(names, "FRESH_S", 0.0)

    async def run() -> None:
        found = Names()
        assert await found.address("n1") == "10.0.0.1"
        del server.addresses["n1"]
        assert await found.address("n1") == "10.0.0.1"
        server.hanging.add("n1")
        assert await found.address("n1") == "10.0.0.1"
        server.released.set()
        server.hanging.clear()
        server.addresses["n1"] = "10.0.0.2"
        while await found.address("n1") != "10.0.0.2":
            pass

    asyncio.run(run())


def test_of_names_that_come_and_go_so_many_are_kept_and_those_in_use_among_them(server: NameServer) -> None:
    server.addresses = {f"n{number}": "10.0.0.1" for number in range(MAX_NAMES + 20)}

    async def run() -> None:
        found = Names()
        for host in server.addresses:
            assert await found.address(host) == await found.address("n0") == "10.0.0.1"
        assert len(found._names) == MAX_NAMES
        assert "n0" in found._names

    asyncio.run(run())


def test_a_name_that_never_was_is_an_error(server: NameServer) -> None:
    async def run() -> None:
        with pytest.raises(OSError, match="not known"):
            await Names().address("nobody")

    asyncio.run(run())
