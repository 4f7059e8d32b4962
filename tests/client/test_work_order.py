"""Work queues with order by key, in the client: whatever fails, nobody sees two of a key at a time, or out of order."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from typing import Any

import pytest
from click.testing import CliRunner

from lsmq import Client, InvalidRequest, Producer, Task, Topic, WorkQueue, sync
from lsmq.cli import root
from lsmq.work_queue_values import PoppedMessage
from lsmq_lab.local_cluster import LocalCluster
from support.node_process import NodeProcess
from support.waiting import comes_true


class Watch:
    """What workers did with messages ``key number``: never a later one before an earlier one is acknowledged."""

    def __init__(self) -> None:
        self.acked: defaultdict[str, int] = defaultdict(int)  # by key: all below are
        self.wrong: list[str] = []
        self.came: defaultdict[str, int] = defaultdict(int)

    def arrive(self, text: str) -> None:
        """It came from a node, to whichever worker."""
        key, number = text.split()
        if int(number) < self.came[key]:
            self.wrong.append(f"{text} was handed out after {self.came[key]}")
        self.came[key] = max(self.came[key], int(number))

    def begin(self, text: str) -> tuple[str, int]:
        key, number = text.split()
        if int(number) < self.acked[key]:
            self.wrong.append(f"{text} comes again, though it was acknowledged")
        if int(number) > self.acked[key]:
            self.wrong.append(f"{text} comes, and {self.acked[key]} of its key is not done")
        return key, int(number)

    def done(self, text: str) -> None:
        key, number = text.split()
        self.acked[key] = max(self.acked[key], int(number) + 1)

    @property
    def count(self) -> int:
        return sum(self.acked.values())


async def test_workers_of_a_key_take_turns_in_order(shared_node: NodeProcess) -> None:
    topic, keys, each = "wo-turns", 20, 10
    async with Client(shared_node.url) as client:
        await client.create_topic(topic, queues=4)
        async with Producer(client, topic) as producer:
            for number in range(each):
                for key in range(keys):
                    await producer.send(f"{key} {number}", key=f"{key}")
            await producer.flush()
        watch, running = Watch(), set[str]()
        workers = [WorkQueue(client, topic, topic, order="key") for _ in range(3)]
        with pytest.raises(InvalidRequest, match="has 'none' in shard"):
            await workers[0].poll(1, timeout_ms=5_000)
        await workers[0].configure(order="key", retry_first_ms=10)
        assert (await workers[0].describe()).settings.order == "key"

        async def handle(task: Task) -> None:
            key, number = watch.begin(task.text())
            if key in running:
                watch.wrong.append(f"two of {key} at a time")
            running.add(key)
            await asyncio.sleep(0.001)
            running.remove(key)
            if task.deliveries == 1 and number % 3 == 1:
                raise ValueError("again")
            watch.done(task.text())  # the next one may come before the answer is here
            await task.ack()

        working = [asyncio.create_task(worker.run(handle, concurrency=8)) for worker in workers]
        await comes_true(lambda: watch.count == keys * each, "all is done")
        for worker in workers:
            await worker.close()
        await asyncio.gather(*working)
        assert not watch.wrong


def test_a_work_queue_is_configured_on_the_command_line_and_without_asyncio(shared_node: NodeProcess) -> None:
    topic = "wo-configured"
    with sync.Client(shared_node.url) as client:
        client.create_topic(topic, queues=2)
        with sync.WorkQueue(client, topic, topic, order="key") as work:
            work.configure(order="key")
            assert work.describe().settings.order == "key"
        command = ["group", "configure", topic, "--topic", topic, "--url", shared_node.url]
        ran = CliRunner().invoke(root, [*command, "--max-deliveries", "3", "--json"])
        assert ran.exit_code == 0, ran.output
        assert json.loads(ran.output)["settings"]["order"] == "none", "what is left out is the default again"
        ran = CliRunner().invoke(root, [*command, "--order", "key", "--visibility", "1m", "--delete-on-ack"])
        assert ran.exit_code == 0 and "order" in ran.output
        with sync.WorkQueue(client, topic, topic) as work:
            settings = work.describe().settings
        assert (settings.order, settings.visibility_ms, settings.delete_on_ack) == ("key", 60_000, True)
        assert settings.max_deliveries == 16
        turns = ["--fair-by", "tag", "--weight", "gold=5", "--weight", "a=b=2", "--max-in-flight-per", "3"]
        more = ["--order", "priority", "--priority-ageing", "10s", "--max-rate-per", "2.5"]
        ran = CliRunner().invoke(root, [*command, *turns, *more, "--json"])
        assert ran.exit_code == 0, ran.output
        found = json.loads(ran.output)["settings"]
        assert found["weights"] == {"gold": 5, "a=b": 2}
        assert (found["fair_by"], found["max_in_flight_per"], found["max_rate_per"]) == ("tag", 3, 2.5)
        assert (found["order"], found["priority_ageing_ms"]) == ("priority", 10_000)
        ran = CliRunner().invoke(root, [*command, "--weight", "gold"])
        assert ran.exit_code == 2 and "gold=5" in ran.output
        with sync.WorkQueue(client, topic, topic, order="priority") as work:
            work.configure(order="priority", fair_by="key", weights={"x": 2}, max_rate_per=1)
            assert work.describe().settings.weights == {"x": 2}
            work.configure(weights={0: 5})
            assert work.describe().settings.weights == {"0": 5}
            with pytest.raises(InvalidRequest, match="it must be text, or the number of a queue"):
                work.configure(fair_by="tag", weights={b"gold": 5})
            work.configure(fair_by="properties.customer")
            assert work.describe().settings.fair_by == "properties.customer"
        ran = CliRunner().invoke(root, [*command, "--fair-by", "properties.shop", "--json"])
        assert json.loads(ran.output)["settings"]["fair_by"] == "properties.shop"
        ran = CliRunner().invoke(root, [*command, "--fair-by", "colour"])
        assert ran.exit_code == 1 and "properties.customer" in str(ran.exception)


class _Workers(WorkQueue):
    """Tells what comes, in the order in which it does."""

    def __init__(self, *arguments: Any, watch: Watch, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._watch = watch

    def _found(self, topic: Topic, popped: PoppedMessage, asked_at: float) -> None:
        self._watch.arrive(popped.message.text())
        super()._found(topic, popped, asked_at)


@pytest.mark.slow
@pytest.mark.part(1)
async def test_leaders_die_and_no_key_is_out_of_order(cluster: LocalCluster) -> None:
    """Killed, or stopped for a while, twice: none of a key is handed out before the one before it is acknowledged, and
    none of before comes after it."""
    topic, keys = "ordered", 40
    async with Client([node.url for node in cluster.plan.nodes], deadline_ms=60_000) as client:
        await client.create_topic(topic, queues=12)
        watch, sent, stop = Watch(), 0, False

        async def produce() -> None:
            nonlocal sent
            async with Producer(client, topic, linger_ms=1) as producer:
                while not stop:
                    receipts = [await producer.send(f"{key} {sent}", key=f"{key}") for key in range(keys)]
                    for receipt in receipts:
                        await receipt
                    sent += 1
                    await asyncio.sleep(0.02)

        async def handle(task: Task) -> None:
            key, number = watch.begin(task.text())
            if hash((key, number)) % 11 == 0 and task.deliveries == 1:
                await task.nack(delay_ms=20)
                return
            # What the broker has taken as done may be followed by the next one before the answer is here.
            watch.done(task.text())
            await task.ack()

        consumers = [_Workers(client, topic, "g", visibility_ms=20_000, order="key", watch=watch) for _ in range(3)]
        await consumers[0].configure(order="key", max_deliveries=1_000, retry_first_ms=20)
        async with asyncio.TaskGroup() as tasks:
            producing = tasks.create_task(produce())
            for consumer in consumers:
                tasks.create_task(consumer.run(handle, concurrency=16))
            for stop_it, start_it in 2 * ((cluster.kill, cluster.start), (cluster.pause, cluster.resume)):
                goal = watch.count + 300
                await comes_true(lambda goal=goal: watch.count >= goal, "the work goes on")  # type: ignore[misc]
                leader = next(shard.leader for shard in cluster.status().shards if shard.leader is not None)
                await asyncio.to_thread(stop_it, leader)
                goal = watch.count + 100
                await comes_true(lambda goal=goal: watch.count >= goal, "the work goes on without")  # type: ignore[misc]
                await asyncio.to_thread(start_it, leader)
            stop = True
            await producing
            await comes_true(lambda: watch.count == sent * keys, "all is done")
            for consumer in consumers:
                await consumer.close()
            async with WorkQueue(client, topic, "g") as late:
                state = await late.describe()
        assert (state.undelivered, state.in_flight, state.dead) == (0, 0, 0)
        # An acknowledgement whose answer was lost may not have counted: such a message comes again, in its place.
        wrong = [line for line in watch.wrong if "comes again" not in line]
        assert not wrong
        assert all(watch.acked[f"{key}"] == sent for key in range(keys)), "none is lost"
