"""Named topics on a real cluster whose leaders are killed: nothing is lost, repeated or out of order."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lsmq import Client, ClusterAdmin, Consumer, GroupPatternMismatch, Message, Producer
from lsmq.groups import Group
from lsmq.topics import FETCH_SESSION_HEADER
from lsmq_lab.local_cluster import LocalCluster
from support.clusters import believed, running_cluster
from support.waiting import PATIENCE_S, comes_true

pytestmark = pytest.mark.slow

TOPIC = "agents"
NAMES = [f"agents.{number}.inbox" for number in range(40)]


async def produce(client: Client, stop: asyncio.Event) -> int:
    """Numbers to each queue in turn, and now and then to a queue that is new; how many to each of the former."""
    rounds = 0
    async with Producer(client, TOPIC, linger_ms=1) as producer:
        while not stop.is_set():
            receipts = [await producer.send(f"{rounds}", queue=name) for name in [*NAMES, f"new.{rounds}"]]
            for receipt in receipts:
                await receipt
            rounds += 1
            await asyncio.sleep(0.01)
    return rounds


@pytest.mark.part(1)
async def test_leaders_die_and_readers_go_on(cluster: LocalCluster) -> None:
    async with Client([node.url for node in cluster.plan.nodes], deadline_ms=60_000) as client:
        topic = await client.create_topic(TOPIC, queues="named")
        stop = asyncio.Event()
        handled: list[Message] = []
        some: list[Message] = []
        read: dict[str, list[Message]] = {"pattern": [], "latest": [], "all": []}

        async def follow(consumer: Consumer, into: list[Message]) -> None:
            try:
                while True:
                    into += await consumer.poll()
            finally:
                await consumer.close()

        async with asyncio.TaskGroup() as tasks:
            readers = {
                "pattern": Consumer(client, TOPIC, pattern="agents.*.inbox"),
                "latest": Consumer(client, TOPIC, start="latest"),
                "all": Consumer(client, TOPIC),
            }
            for reader in readers.values():
                await reader.start()
            followers = [tasks.create_task(follow(reader, read[kind])) for kind, reader in readers.items()]
            members = [Consumer(client, TOPIC, group="workers", session_ms=4_000) for _ in range(2)]
            for member in members:
                await member.start()
                tasks.create_task(member.run(handled.append, concurrency=2))
            for _ in range(3):
                members.append(Consumer(client, TOPIC, group="inboxes", pattern="agents.*.inbox", session_ms=4_000))
                await members[-1].start()
                tasks.create_task(members[-1].run(some.append, concurrency=2))
            producing = tasks.create_task(produce(client, stop))
            await comes_true(lambda: len(handled) > 400, "all have begun")
            for _ in range(2):
                leader = (await client.topic(TOPIC)).routes[0].leader
                (node,) = [node.id for node in cluster.plan.nodes if node.url == leader]
                before = len(handled)
                await asyncio.to_thread(cluster.kill, node)
                await comes_true(lambda before=before: len(handled) > before + 800, "it goes on")  # type: ignore[misc]
                await asyncio.to_thread(cluster.start, node)
                await comes_true(lambda before=before: len(handled) > before + 1600, "it goes on")  # type: ignore[misc]
            stop.set()
            rounds = await producing
            total = rounds * (len(NAMES) + 1)
            await comes_true(lambda: len({message.id for message in handled}) == total, "all is handled")
            await comes_true(lambda: len(read["all"]) >= total, "all is read")
            await comes_true(lambda: len(read["latest"]) >= total, "all is read from the latest on")
            await comes_true(lambda: len(read["pattern"]) >= rounds * len(NAMES), "the pattern is read")
            await comes_true(lambda: len({m.id for m in some}) == rounds * len(NAMES), "members share the pattern")
            inboxes = Group(client, "inboxes")
            with pytest.raises(GroupPatternMismatch):
                await Consumer(client, TOPIC, group="inboxes").start()
            for member in members:
                await member.close()
            for follower in followers:
                follower.cancel()
        expected = {name: [f"{number}" for number in range(rounds)] for name in NAMES}
        fresh = {f"new.{number}": [f"{number}"] for number in range(rounds)}
        assert by_name(read["all"]) == by_name(read["latest"]) == expected | fresh
        assert by_name(read["pattern"]) == expected
        assert by_name(handled) == expected | fresh  # No member died.
        assert by_name(some) == expected
        assert (await Group(client, "workers").lag(TOPIC)).lag == 0
        lag = await inboxes.lag(TOPIC)
        assert (lag.lag, lag.queues, lag.uncommitted) == (0, len(NAMES), 0)
        assert (await inboxes.describe()).patterns == {TOPIC: "agents.*.inbox"}
        assert {queue.name for queue in await client.queues(TOPIC)} == set(NAMES) | set(fresh)
        assert len({route.shard for route in topic.routes}) > 1


async def test_a_reader_hears_of_a_shard_that_its_node_leads_since(tmp_path: Path) -> None:
    """Where it selected before: else nothing of that shard would come for as long as nothing else changes."""
    with running_cluster(__name__, tmp_path / "c", settings={"cluster.even_out": False}) as cluster:
        http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=believed()))
        async with Client([node.url for node in cluster.plan.nodes]) as client, http:
            moved, stays = (await client.create_topic(TOPIC, queues="named")).routes[:2]

            async def fetch(**said: Any) -> tuple[str, bytes]:
                async with http.post(f"{stays.leader}/v1/topics/{TOPIC}/fetch", json={"wait_ms": 0, **said}) as answer:
                    return answer.headers.get(FETCH_SESSION_HEADER, ""), await answer.read()

            session, _ = await fetch(pattern="**", start="earliest", keep=True)
            (node,) = [node.id for node in cluster.plan.nodes if node.url == stays.leader]
            await ClusterAdmin(client).transfer(moved.shard, node)

            async def is_told() -> bool:
                nonlocal session
                session, body = await fetch(session=session)
                assert session or b"unknown_fetch_session" in body, body
                return not session

            await comes_true(is_told, "it is told to select again")


async def test_a_stream_from_one_node_has_the_queues_of_all(cluster: LocalCluster) -> None:
    http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=believed()))
    async with Client([node.url for node in cluster.plan.nodes]) as client, http:
        topic = await client.create_topic(TOPIC, queues="named")
        url = f"{cluster.plan.nodes[0].url}/v1/groups/streams/push?topic={TOPIC}"
        async with http.ws_connect(url, protocols=("lsmq.json",)) as socket, Producer(client, TOPIC) as producer:
            for name in NAMES:
                await producer.send(name, queue=name)
            await producer.flush()
            got: list[dict[str, Any]] = []
            while len(got) < len(NAMES):
                got += (await socket.receive_json(timeout=PATIENCE_S)).get("messages", ())
            assert sorted(one["queue"] for one in got) == sorted(one["body"] for one in got) == sorted(NAMES)
            await socket.send_json({"ack": [[one["number"], one["offset"]] for one in got]})

            async def committed() -> bool:
                return (await Group(client, "streams").lag(TOPIC)).lag == 0

            await comes_true(committed, "all is committed")
        assert len({route.leader for route in topic.routes}) > 1


def by_name(messages: list[Message]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for message in messages:
        assert message.queue_name is not None
        found[message.queue_name].append(message.text())
    return found
