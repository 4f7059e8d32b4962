"""Consumers of a work queue that pick, in the client: both faces, the command, and a cluster whose leaders die."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import suppress

import pytest
from click.testing import CliRunner

from lsmq import Client, InvalidFilter, Producer, ReceiptExpired, Task, WorkQueue, sync
from lsmq.cli import root
from lsmq_lab.local_cluster import LocalCluster
from support.node_process import NodeProcess
from support.waiting import comes_true


async def fill(client: Client, topic: str, first: int, count: int, queues: int) -> None:
    async with Producer(client, topic) as producer:
        for number in range(first, first + count):
            await producer.send(
                f"{number}", queue=number % queues, tag="abc"[number % 3], properties={"n": str(number)}
            )


async def test_workers_share_a_queue_by_what_they_pick(shared_node: NodeProcess) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic("wp-share", queues=4)
        await fill(client, "wp-share", 0, 300, 4)
        seen: dict[str, set[str]] = {"a": set(), "b": set(), "rest": set()}
        workers = {
            "a": WorkQueue(client, "wp-share", "g", tag="a"),
            "b": WorkQueue(client, "wp-share", "g", tag=["b", "x"], filter="n >= 100"),
        }

        async def work(name: str, worker: WorkQueue) -> None:
            async def handle(task: Task) -> None:
                seen[name].add(task.text())

            await worker.run(handle, concurrency=4)

        running = [asyncio.create_task(work(name, worker)) for name, worker in workers.items()]
        b = {f"{n}" for n in range(100, 300) if n % 3 == 1}
        a = {f"{n}" for n in range(300) if n % 3 == 0}
        await comes_true(lambda: seen["a"] == a and seen["b"] == b, "each has all that it picks")
        workers["rest"] = WorkQueue(client, "wp-share", "g")
        running.append(asyncio.create_task(work("rest", workers["rest"])))
        rest = {f"{n}" for n in range(300)} - a - b
        await comes_true(lambda: seen["rest"] == rest, "the rest was left for whoever takes anything")
        for worker in workers.values():
            await worker.close()
        await asyncio.gather(*running)
        with pytest.raises(InvalidFilter):
            WorkQueue(client, "wp-share", "g", filter="n >")


def test_the_blocking_face_and_the_command_pick_too(shared_node: NodeProcess) -> None:
    with sync.Client(shared_node.url) as client:
        client.create_topic("wp-sync", queues=1)
        with sync.Producer(client, "wp-sync") as producer:
            for number in range(9):
                producer.send(f"{number}", tag="abc"[number % 3])
        with sync.WorkQueue(client, "wp-sync", "g", tag="a") as work:
            tasks = work.poll(3, timeout_ms=20_000)
            while len(tasks) < 3:
                tasks += work.poll(3 - len(tasks), timeout_ms=20_000)
            assert [task.text() for task in tasks] == ["0", "3", "6"]
            for task in tasks:
                task.ack()
    command = ["work", "wp-sync", "--group", "g", "--url", shared_node.url, "--wait", "500ms"]
    found = CliRunner().invoke(root, [*command, "--tag", "b", "--max", "2", "--json"])
    assert found.exit_code == 0, found.output
    assert [json.loads(line)["body"] for line in found.output.splitlines()] == ["1", "4"]
    assert CliRunner().invoke(root, [*command, "--filter", "tag = 'c'"]).output == "2\n5\n8\n"
    assert CliRunner().invoke(root, command).output == "7\n"
    assert CliRunner().invoke(root, command).output == ""


@pytest.mark.slow
async def test_what_was_picked_and_settled_outlives_its_leader(cluster: LocalCluster) -> None:
    async with Client([node.url for node in cluster.plan.nodes], deadline_ms=60_000) as client:
        await client.create_topic("wp", queues=6)
        await fill(client, "wp", 0, 300, 6)
        acked: Counter[str] = Counter()

        async def handle(task: Task) -> None:
            assert task.message.tag == "b"
            await task.ack()
            acked[task.text()] += 1

        work = WorkQueue(client, "wp", "g", tag="b", visibility_ms=4_000)
        running = asyncio.create_task(work.run(handle, concurrency=4))
        await comes_true(lambda: len(acked) == 100, "all are done that it picks")
        status = await asyncio.to_thread(cluster.wait_ready)
        victim = next(shard.leader for shard in status.shards if shard.leader is not None)
        await asyncio.to_thread(cluster.kill, victim)
        await fill(client, "wp", 300, 300, 6)
        await comes_true(lambda: len(acked) == 200, "it goes on under another leader")
        await asyncio.to_thread(cluster.start, victim)
        await work.close()
        await asyncio.gather(running, return_exceptions=True)
        rest: set[str] = set()
        async with WorkQueue(client, "wp", "g") as others:
            while len(rest) < 400:
                for task in await others.poll(100, timeout_ms=20_000):
                    assert task.message.tag != "b", "it was settled under the leader before"
                    with suppress(ReceiptExpired):  # The leader that is back leads again, and has delivered it anew.
                        await task.ack()
                        rest.add(task.text())
        assert set(acked.values()) == {1}
