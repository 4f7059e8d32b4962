"""Links between nodes over real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from lsmq_coordinator.auth import ClusterSecret, Verifier, auth_middleware
from lsmq_coordinator.lives import LifeId
from lsmq_coordinator.parts import Parts
from lsmq_node.cluster import outgoing
from lsmq_node.cluster.links import PATH, Links
from lsmq_node.replication import ReplicaMessage, ReplicaSession
from lsmq_node.replication.messages import Frame, PromiseRequest

from .replica_group import run, until

SECRET = ClusterSecret(b"a secret of sixteen bytes or more")
OTHER = ClusterSecret(b"quite another secret, as long as that")
BOTH = ClusterSecret(SECRET.value, OTHER.value)
SWAPPED = ClusterSecret(OTHER.value, SECRET.value)


def asking(epoch: int) -> PromiseRequest:
    """A message that stands for any."""
    return PromiseRequest(epoch, LifeId(1, 1))


class End:
    """A node with links, and what it heard."""

    def __init__(self, name: str, urls: dict[str, str], secret: ClusterSecret = SECRET) -> None:
        self.name = name
        self.urls = urls
        self.heard: list[tuple[str, int, ReplicaMessage, bytes]] = []
        self.broken: list[str] = []
        self.links = Links(name, secret, urls.get, self.on_message, self.broken.append)
        self.verifier = Verifier(secret)
        self.runner: web.AppRunner | None = None

    def on_message(self, sender: str, shard: int, message: ReplicaMessage, payload: memoryview) -> None:
        self.heard.append((sender, shard, message, bytes(payload)))

    async def start(self) -> None:
        app = web.Application(middlewares=[auth_middleware(self.verifier)])
        app.add_routes(self.links.routes())
        self.runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self.runner.setup()
        port = int(self.urls[self.name].rsplit(":", 1)[1]) if self.name in self.urls else 0
        await web.TCPSite(self.runner, "127.0.0.1", port, reuse_address=True).start()
        self.urls[self.name] = f"http://127.0.0.1:{self.runner.addresses[0][1]}"
        self.links.start()

    async def stop(self) -> None:
        await self.links.close()
        await asyncio.sleep(0.01)
        if self.runner is not None:
            await self.runner.cleanup()


@asynccontextmanager
async def ends(*names: str, secrets: dict[str, ClusterSecret] | None = None) -> AsyncIterator[list[End]]:
    urls: dict[str, str] = {}
    async with AsyncExitStack() as scope:
        made = [End(name, urls, (secrets or {}).get(name, SECRET)) for name in names]
        for end in made:
            await end.start()
        for end in made:
            scope.push_async_callback(end.stop)
        yield made


def frame(size: int, number: int = 1) -> Frame:
    return Frame(ReplicaSession(1, number), 1, 0, size, 0)


def test_messages_arrive_in_order_with_their_payloads_in_both_directions() -> None:
    async def test() -> None:
        async with ends("a", "b") as (a, b):
            payloads = [bytes([number]) * size for number, size in enumerate((0, 1, 100, 40_000, 3_000_000, 7))]
            for number, payload in enumerate(payloads):
                a.links.send("b", number, frame(len(payload), number), payload)
                b.links.send("a", 9, asking(number))
            await until(lambda: len(b.heard) == len(payloads) == len(a.heard), "all arrived")
            assert [(item[0], item[1], item[3]) for item in b.heard] == [
                ("a", number, payload) for number, payload in enumerate(payloads)
            ]
            assert [item[2] for item in a.heard] == [asking(number) for number in range(len(payloads))]
            assert a.broken == b.broken == []

    run(test)


def test_both_sides_hear_once_that_a_node_went_and_links_come_back_by_themselves() -> None:
    async def test() -> None:
        async with ends("a", "b") as (a, b):
            a.links.send("b", 1, asking(1))
            await until(lambda: len(b.heard) == 1, "it arrived")
            await b.stop()
            await until(lambda: a.broken == ["b"], "a hears of it")
            a.links.send("b", 1, asking(2))
            b.links, b.verifier = Links("b", SECRET, b.urls.get, b.on_message, b.broken.append), Verifier(SECRET)
            await b.start()

            def arrived() -> bool:
                a.links.send("b", 1, asking(3))
                return len(b.heard) > 1

            await until(arrived, "it is dialled again")
            assert a.broken == ["b"]
            assert b.broken == [], "a link that is closed on purpose is not broken"

    run(test)


def test_a_peer_that_dials_again_breaks_its_former_link() -> None:
    async def test() -> None:
        async with ends("a", "b") as (a, b):
            a.links.send("b", 1, asking(1))
            await until(lambda: len(b.heard) == 1, "it arrived")
            twin = End("a", dict(a.urls))
            twin.links.start()
            twin.links.send("b", 1, asking(2))
            await until(lambda: len(b.heard) == 2, "that one arrived as well")
            assert b.broken == ["a"]
            await until(lambda: a.broken == ["b"], "the former link is closed")
            await twin.links.close()
            await until(lambda: b.broken == ["a", "a"], "and the latter")

    run(test)


@pytest.mark.parametrize(("of_a", "of_b"), [(SECRET, BOTH), (BOTH, SWAPPED), (SWAPPED, OTHER)])
def test_while_the_secret_changes_nodes_of_either_step_hear_each_other(
    of_a: ClusterSecret, of_b: ClusterSecret
) -> None:
    async def test() -> None:
        async with ends("a", "b", secrets={"a": of_a, "b": of_b}) as (a, b):
            for number in range(3):
                a.links.send("b", 1, frame(1_000, number), b"a" * 1_000)
                b.links.send("a", 1, frame(1_000, number), b"b" * 1_000)
            await until(lambda: len(a.heard) == len(b.heard) == 3, "all arrived")
            assert {item[3] for item in a.heard} == {b"b" * 1_000} and {item[3] for item in b.heard} == {b"a" * 1_000}
            assert a.broken == b.broken == []

    run(test)


@pytest.mark.parametrize("stranger", ["a", "b"])
def test_who_does_not_know_the_secret_is_neither_heard_nor_spoken_to(stranger: str) -> None:
    async def test() -> None:
        async with ends("a", "b", secrets={stranger: OTHER}) as (a, b):
            for number in range(20):
                a.links.send("b", 1, asking(number))
                await asyncio.sleep(0.01)
            assert b.heard == []
            assert a.broken == b.broken == []

    run(test)


def test_a_server_without_the_secret_gets_nothing_but_the_request() -> None:
    """It answers as one would that replays what it has seen."""

    async def test() -> None:
        received, hung_up = bytearray(), asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\nLsmq-Auth-Answer: " + b"0" * 64 + b"\r\n\r\n")
            received.extend(await reader.read())
            writer.close()
            hung_up.set()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        urls = {"b": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}
        end = End("a", urls)
        end.links.start()
        end.links.send("b", 1, asking(1))
        async with asyncio.timeout(20):
            await hung_up.wait()
        await end.links.close()
        assert received == b""
        server.close()
        await server.wait_closed()

    run(test)


def test_the_route_refuses_who_has_no_proof_even_where_no_middleware_asks_for_it() -> None:
    async def test() -> None:
        links = Links("b", SECRET, lambda node: None, lambda *_: None, lambda peer: None)
        links.start()
        app = web.Application()
        app.add_routes(links.routes())
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}{PATH}?node=a"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            assert answer.status == 401
        await runner.cleanup()

    run(test)


def test_a_peer_that_does_not_read_is_dropped_rather_than_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "MAX_QUEUED_BYTES", 4 << 20)
    monkeypatch.setattr("lsmq_node.cluster.links.CONGESTED_BYTES", 1 << 20)

    async def test() -> None:
        async with ends("a", "b") as (a, b):
            a.links.send("b", 1, asking(1))
            await until(lambda: len(b.heard) == 1, "it arrived")
            (incoming,) = b.links._incoming.values()
            incoming._transport.pause_reading()
            was_congested = [a.links.congested("b")]

            def grows() -> bool:
                a.links.send("b", 1, frame(1 << 20), bytes(1 << 20))
                was_congested.append(a.links.congested("b"))
                return bool(a.broken)

            await until(grows, "the link is dropped")
            assert not was_congested[0] and any(was_congested), "it was said in time"
            assert a.broken == ["b"]

    run(test)


def test_what_is_no_message_ends_the_connection() -> None:
    async def test() -> None:
        async with ends("a", "b") as (a, b):
            a.links.send("b", 1, asking(1))
            await until(lambda: len(b.heard) == 1, "it arrived")
            stream = a.links._outgoing["b"]._stream
            assert stream is not None and stream.transport is not None
            stream.transport.write(b"GET / HTTP/1.1\r\n\r\n" * 3)
            await until(lambda: a.broken == ["b"] and b.broken == ["a"], "both hear of it")
            assert len(b.heard) == 1

    run(test)


def test_an_address_that_is_not_known_or_not_there_costs_nothing_but_the_message() -> None:
    async def test() -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            urls = {"gone": f"http://127.0.0.1:{free.getsockname()[1]}"}
            end = End("a", urls)
            end.links.start()
            for peer in ("unknown", "gone"):
                end.links.send(peer, 1, asking(1))
            await until(lambda: not any(link.queued_bytes for link in end.links._outgoing.values()), "nothing waits")
            await end.links.close()
            assert end.broken == []

    run(test)


def test_what_is_for_a_node_whose_address_another_has_by_now_is_not_given_to_that_one() -> None:
    async def test() -> None:
        async with ends("a", "b", "c") as (a, b, c):
            moved, a.urls["b"] = b.urls["b"], c.urls["c"]
            a.links.send("b", 1, asking(1))
            await until(lambda: not a.links._outgoing["b"].queued_bytes, "nothing waits")
            a.urls["b"] = moved

            def arrived() -> bool:
                a.links.send("b", 1, asking(2))
                return bool(b.heard)

            await until(arrived, "it is found where it is")
            assert c.heard == []

    run(test)


def test_a_node_that_moved_is_dialled_where_it_is_though_its_former_process_listens_on() -> None:
    async def test() -> None:
        async with ends("a", "b") as (a, b):
            a.links.send("b", 1, asking(1))
            await until(lambda: len(b.heard) == 1, "it arrived")
            moved = End("b", {})
            await moved.start()
            a.urls["b"] = moved.urls["b"]
            a.links.look({"a", "b"})
            await until(lambda: a.broken == ["b"], "the former link is over")

            def arrived() -> bool:
                a.links.send("b", 1, asking(2))
                return bool(moved.heard)

            await until(arrived, "it is found where it is")
            assert len(b.heard) == 1
            a.links.look({"a", "b"})
            assert a.broken == ["b"], "who stays where it is keeps its link"
            await moved.stop()

    run(test)


def test_of_nodes_that_come_and_go_nothing_is_kept() -> None:
    async def test() -> None:
        parts = Parts()
        async with ends("a", "b") as (a, b):
            await a.links.close()
            a.links = Links("a", SECRET, a.urls.get, a.on_message, a.broken.append, parts)
            a.links.start()
            for number in range(20):
                a.urls[f"n{number}"] = b.urls["b"]
                a.links.send(f"n{number}", 1, asking(1))
                a.links.look({"a", "b", f"n{number}"})
            a.links.send("b", 1, asking(2))
            await until(lambda: len(b.heard) == 1, "it arrived")
            a.links.look({"a", "b"})
            assert [report.name for report in parts.reports()] == ["link-b"]
            assert a.links._outgoing.keys() == {"b"}

            def links() -> list[str]:
                return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("link to")]

            await until(lambda: links() == ["link to b"], "nobody is left who dials")

    run(test)


@pytest.mark.parametrize("patient", [False, True])
def test_a_peer_that_takes_nothing_is_given_up_by_tcp(monkeypatch: pytest.MonkeyPatch, patient: bool) -> None:
    """Much less waits than the queue may hold; without the timeout the link would wait for as long as the peer."""
    monkeypatch.setattr(outgoing, "_USER_TIMEOUT_MS", 600_000 if patient else 300)

    async def test() -> None:
        async with ends("a", "b") as (a, b):
            a.links.send("b", 1, asking(1))
            await until(lambda: len(b.heard) == 1, "it arrived")
            incoming = b.links._incoming["a"]._transport
            for connection in (incoming, a.links._outgoing["b"]._stream.transport):  # type: ignore[union-attr]
                raw = connection.get_extra_info("socket")  # type: ignore[union-attr]
                timeout_ms = raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
                assert timeout_ms == outgoing._USER_TIMEOUT_MS
            incoming.pause_reading()  # type: ignore[attr-defined]
            for _ in range(16):
                a.links.send("b", 1, frame(1 << 20), bytes(1 << 20))
            if patient:
                await asyncio.sleep(1)
                assert a.broken == []
                incoming.resume_reading()  # type: ignore[attr-defined]
                await until(lambda: len(b.heard) == 17, "all arrived")
            else:
                await until(lambda: a.broken == ["b"], "a gives up")

    run(test)
