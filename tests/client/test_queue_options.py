"""Queues that keep more or less than their topic, from Python and on the command line: over kills, and on a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from lsmq import Client, InvalidRequest, Producer, UnknownQueue, sync
from lsmq.cli import root
from support.clusters import running_cluster
from support.node_process import NodeProcess
from support.waiting import comes_true, eventually

NAMES = [f"agents.{number}" for number in range(6)]
QUICK = {"retention_interval_ms": 50}


async def send_to_all(client: Client, topic: str, count: int) -> None:
    async with Producer(client, topic) as producer:
        for number in range(count):
            for name in NAMES:
                await producer.send(f"{number}", queue=name)


async def counts(client: Client, topic: str) -> list[int]:
    return [queue.count for queue in await client.queues(topic)]


async def holds(client: Client, topic: str, expected: list[int]) -> bool:
    return await counts(client, topic) == expected


async def test_a_name_keeps_what_it_says_over_a_kill_whatever_its_number(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "data", shards=3, **QUICK).start()
    try:
        async with Client(node.url) as client:
            await client.create_topic("t", queues="named", retention_messages=4)
            await client.declare_queue("t", NAMES[1])
            assert await client.alter_queue("t", NAMES[1], retention_messages="unlimited") == {
                "retention_messages": "unlimited"
            }
            await send_to_all(client, "t", 10)
            await client.alter_queue("t", NAMES[2], retention_messages=1)
            await comes_true(lambda: holds(client, "t", [4, 10, 1, 4, 4, 4]), "each is brought down to what it keeps")
            node.kill9()
            node.start()
            assert await client.queue_options("t", NAMES[1]) == {"retention_messages": "unlimited"}
            await client.delete_queue("t", NAMES[2])
            await send_to_all(client, "t", 10)
            await comes_true(lambda: holds(client, "t", [4, 20, 4, 4, 4, 4]), "so they are afterwards, by name")
    finally:
        node.kill9()


def test_a_follower_that_comes_to_lead_keeps_what_the_queue_says(tmp_path: Path) -> None:
    settings = {"retention_interval_ms": 50}
    with running_cluster(__name__, tmp_path / "cluster", settings=settings) as cluster:
        eventually(lambda: all(len(shard.in_sync) == 3 for shard in cluster.status().shards), "all are in sync")
        with sync.Client([node.url for node in cluster.plan.nodes]) as client:
            client.create_topic("t", queues=3, retention_messages=2)
            client.alter_queue("t", 0, retention_messages=7)
            victim = cluster.status().shards[0].leader
            assert victim is not None
            cluster.kill(victim)
            with sync.Producer(client, "t") as producer:
                for _ in range(10):
                    for queue in range(3):
                        producer.send("x", queue=queue)
                producer.flush()
            assert client.queue_options("t", 0) == {"retention_messages": 7}
            eventually(lambda: list(client.offsets("t").earliest) == [3, 8, 8], "each queue keeps what it says")


async def test_what_names_no_queue_is_refused_before_it_is_sent(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=2)
        with pytest.raises(InvalidRequest, match=r"queue is 'a', and the queues of topic .* have numbers"):
            await client.alter_queue(topic_name, "a", retention_ms=5)
        with pytest.raises(UnknownQueue):
            await client.alter_queue(topic_name, 2, retention_ms=5)
        with pytest.raises(InvalidRequest, match="retention_ms"):
            await client.alter_queue(topic_name, 1, retention_ms=0)
        assert await client.queue_options(topic_name, 1) == {}


def test_the_command_alters_a_queue_and_shows_it(shared_node: NodeProcess, topic_name: str) -> None:
    def lsmq(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(root, [*arguments, "--url", shared_node.url])
        assert result.exit_code == code, result.output
        return result.output

    lsmq("topic", "create", topic_name, "--queues", "2")
    said = lsmq("queue", "alter", topic_name, "1", "--retention", "unlimited", "--retention-bytes", "1KiB")
    assert said == "queue 1: retention_ms=unlimited, retention_bytes=1024\n"
    lsmq("queue", "alter", topic_name, "1", "--unset", "retention", "--retention-messages", "5")
    shown = lsmq("queue", "options", topic_name, "1")
    assert shown == "queue 1: retention_bytes=1024, retention_messages=5\n"
    assert lsmq("queue", "options", topic_name, "0") == "queue 0: as the topic says\n"
    assert "say what to change" in lsmq("queue", "alter", topic_name, "1", code=2)
    assert "no such option" in lsmq("queue", "alter", topic_name, "1", "--unset", "ttl", code=2)
    assert "is not a number" in lsmq("queue", "alter", topic_name, "x", "--retention", "1d", code=2)
