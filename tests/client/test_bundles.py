"""Producers of many small topics in one client: what sets out together goes in one request, each with its own fate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lsmq import Client, Consumer, LsmqError, Producer
from lsmq._router import Router
from lsmq.errors import ConnectionFailed, UnknownPath
from support.node_process import NodeProcess


def watched(patch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the requests to leaders, as they are made."""
    paths: list[str] = []
    attempt = Router.attempt

    async def noting(self: Router, topic: Any, url: str, shards: Any, method: str, path: str, **request: Any) -> Any:
        paths.append(path.partition("?")[0])
        return await attempt(self, topic, url, shards, method, path, **request)

    patch.setattr(Router, "attempt", noting)
    return paths


@asynccontextmanager
async def producers(client: Client, name: str, count: int, **options: Any) -> AsyncIterator[list[Producer]]:
    """Of so many topics of one queue, each of which has a message."""
    async with AsyncExitStack() as scope:
        found = []
        for number in range(count):
            await client.create_topic(f"{name}-{number}", queues=1)
            producer = Producer(client, f"{name}-{number}", linger_ms=0, **options)
            found.append(await scope.enter_async_context(producer))
            await found[-1].send_and_wait("first")
        yield found


async def bodies(client: Client, topic: str, count: int) -> list[str]:
    async with Consumer(client, topic, start="earliest") as consumer:
        found: list[str] = []
        while len(found) < count:
            found += [message.text() for message in await consumer.poll(timeout_ms=5_000)]
    return found


async def test_batches_that_set_out_together_are_one_request(
    shared_node: NodeProcess, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Client(shared_node.url) as client, producers(client, topic_name, 20) as made:
        paths = watched(monkeypatch)
        for turn in range(5):
            stored = await asyncio.gather(*(each.send_and_wait(f"{turn}") for each in made))
            assert [place.offset for place in stored] == [turn + 1] * 20
        assert paths == ["/v1/batches"] * 5
        paths.clear()
        await made[3].send_and_wait("alone")
        assert paths == [f"/v1/topics/{topic_name}-3/batches"]
        assert await bodies(client, f"{topic_name}-7", 6) == ["first", "0", "1", "2", "3", "4"]


async def test_what_is_large_or_acknowledged_otherwise_goes_by_itself(
    shared_node: NodeProcess, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Client(shared_node.url) as client, producers(client, topic_name, 3) as made:
        await client.create_topic(f"{topic_name}-quick", queues=1, ack="leader")
        async with Producer(client, f"{topic_name}-quick", linger_ms=0) as quick:
            await quick.send_and_wait("first")
            paths = watched(monkeypatch)
            await asyncio.gather(
                made[0].send_and_wait("small"),
                made[1].send_and_wait("small"),
                made[2].send_and_wait(b"x" * 100_000),
                quick.send_and_wait("small"),
            )
        alone = sorted(path for path in paths if path != "/v1/batches")
        assert alone == [f"/v1/topics/{topic_name}-{last}/batches" for last in ("2", "quick")]
        assert paths.count("/v1/batches") == 1


async def test_one_that_is_refused_takes_no_other_with_it(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client, producers(client, topic_name, 5) as made:
        await client.delete_topic(f"{topic_name}-2")
        outcomes = await asyncio.gather(*(each.send_and_wait("x") for each in made), return_exceptions=True)
        assert [type(each).__name__ for each in outcomes] == ["Sent", "Sent", "UnknownTopic", "Sent", "Sent"]


async def test_a_node_that_takes_no_bundles_is_sent_each_batch_by_itself(
    shared_node: NodeProcess, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Client(shared_node.url) as client, producers(client, topic_name, 4) as made:
        paths = watched(monkeypatch)
        attempt = Router.attempt

        async def older(self: Router, topic: Any, url: str, shards: Any, method: str, path: str, **request: Any) -> Any:
            found = await attempt(self, topic, url, shards, method, path, **request)
            if path.startswith("/v1/batches"):
                raise UnknownPath("the API has nothing at /v1/batches")
            return found

        monkeypatch.setattr(Router, "attempt", older)
        for _ in range(2):
            await asyncio.gather(*(each.send_and_wait("x") for each in made))
        assert paths.count("/v1/batches") == 1 and len(paths) == 1 + 8
        assert await bodies(client, f"{topic_name}-0", 3) == ["first", "x", "x"]


async def test_an_answer_that_is_lost_is_asked_for_again_by_each(
    shared_node: NodeProcess, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Client(shared_node.url) as client, producers(client, topic_name, 4) as made:
        attempt, lost = Router.attempt, []

        async def losing(
            self: Router, topic: Any, url: str, shards: Any, method: str, path: str, **request: Any
        ) -> Any:
            found = await attempt(self, topic, url, shards, method, path, **request)
            if path.startswith("/v1/batches") and not lost:
                lost.append(path)
                raise ConnectionFailed("the connection broke", url=url, sent=True)
            return found

        monkeypatch.setattr(Router, "attempt", losing)
        stored = await asyncio.gather(*(each.send_and_wait("x") for each in made))
        assert lost and [place.offset for place in stored] == [1] * 4
        assert sum(each.stats.repeats for each in made) == 4
        assert await bodies(client, f"{topic_name}-0", 2) == ["first", "x"]


async def test_a_client_that_closes_ends_what_is_under_way(
    shared_node: NodeProcess, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(shared_node.url)
    async with AsyncExitStack() as scope:
        made = await scope.enter_async_context(producers(client, topic_name, 3, deadline_ms=2_000))
        under_way = asyncio.Event()

        async def silent(self: Router, *_: Any, **__: Any) -> Any:
            under_way.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(Router, "attempt", silent)
        sending = [asyncio.create_task(each.send_and_wait("x")) for each in made]
        await under_way.wait()
        await client.close()
        monkeypatch.undo()
        outcomes = await asyncio.gather(*sending, return_exceptions=True)
        assert all(isinstance(each, LsmqError) for each in outcomes)
        assert not len(client._bundles._requests)


async def test_what_a_request_has_no_room_for_together_is_sent_in_several(
    shared_node: NodeProcess, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Client(shared_node.url) as client, AsyncExitStack() as scope:
        await client.create_topic(topic_name, queues=1)
        made = [
            await scope.enter_async_context(Producer(client, topic_name, linger_ms=0, max_buffer_bytes=1 << 20))
            for _ in range(280)
        ]
        await asyncio.gather(*(each.send_and_wait("first") for each in made))
        paths = watched(monkeypatch)
        stored = await asyncio.gather(*(each.send_and_wait(b"x" * 32_670) for each in made))
        assert sorted(place.offset for place in stored) == list(range(280, 560))
        assert "/v1/batches" in paths and not any(each.stats.failed for each in made)


async def test_a_node_with_room_for_one_takes_each_by_itself(
    tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = NodeProcess(tmp_path / "data", max_request_bytes=64 << 10, max_message_bytes=32 << 10).start()
    try:
        async with Client(node.url) as client, producers(client, topic_name, 8) as made:
            paths = watched(monkeypatch)
            for _ in range(2):
                await asyncio.gather(*(each.send_and_wait(b"x" * 20_000) for each in made))
            assert paths.count("/v1/batches") == 1 and len(paths) == 1 + 16
            assert all(each.stats.failed == 0 for each in made)
    finally:
        node.stop()


async def test_many_messages_of_many_producers_are_more_than_one_request(
    shared_node: NodeProcess, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Client(shared_node.url) as client, producers(client, topic_name, 12) as made:
        paths = watched(monkeypatch)
        await asyncio.gather(*(each.send_many([b""] * 1_000) for each in made))
        await asyncio.gather(*(each.flush() for each in made))
        assert "/v1/batches" in paths and all(each.stats.failed == 0 for each in made)
        assert len(await bodies(client, f"{topic_name}-7", 1_001)) == 1_001
