"""Work queues in the client: tasks are settled one by one, kept while they are handled, and given back at the end."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import msgpack
import pytest
from click.testing import CliRunner

from lsmq import Client, InvalidRequest, Producer, ReceiptExpired, Task, Topic, UnknownGroup, WorkQueue, sync
from lsmq._transport import Response
from lsmq.cli import root
from lsmq.runtime import wall_ms
from support.fault_proxy import FaultProxy
from support.node_process import NodeProcess
from support.waiting import comes_true

SHORT_MS = 300


@asynccontextmanager
async def a_topic(node: NodeProcess, name: str, count: int, queues: int = 4) -> AsyncIterator[Client]:
    async with Client(node.url) as client:
        await client.create_topic(name, queues=queues)
        async with Producer(client, name) as producer:
            await (await producer.send_many(f"{number}" for number in range(count)))
        yield client


async def test_tasks_are_handed_out_acknowledged_and_do_not_come_again(shared_node: NodeProcess) -> None:
    async with a_topic(shared_node, "wq-iterate", 30) as client:
        seen: Counter[str] = Counter()
        async with WorkQueue(client, "wq-iterate", "workers") as work:
            async for task in work:
                seen[task.text()] += 1
                assert task.deliveries == 1 and task.message.topic == "wq-iterate"
                await task.ack()
                assert task.settled
                if len(seen) == 30:
                    break
        async with WorkQueue(client, "wq-iterate", "workers") as work:
            assert await work.poll(timeout_ms=300) == []
        assert set(seen.values()) == {1}


@pytest.mark.part(3)
async def test_a_work_queue_says_how_far_it_is(shared_node: NodeProcess) -> None:
    async with a_topic(shared_node, "wq-state", 10) as client, WorkQueue(client, "wq-state", "wq-state") as work:
        with pytest.raises(UnknownGroup):
            await work.describe()
        await work.configure(max_deliveries=3)
        state = await work.describe()
        assert (state.undelivered, state.new, state.in_flight) == (10, 10, 0)
        assert (state.settings.max_deliveries, state.dead_letter_topic) == (3, "wq-state.dlq")
        (task,) = await work.poll(1)
        await task.nack(delay_ms=3_600_000)
        state = await work.describe()
        assert (state.waiting, state.undelivered + state.in_flight) == (1, 10)
        with sync.Client(shared_node.url) as blocking, sync.WorkQueue(blocking, "wq-state", "wq-state") as other:
            assert other.describe().waiting == 1
        command = ["group", "describe", "wq-state", "--url", shared_node.url]
        shown = await asyncio.to_thread(CliRunner().invoke, root, [*command, "--json"])
        (found,) = json.loads(shown.output)["work_queues"]
        assert (found["topic"], found["waiting"], found["settings"]["max_deliveries"]) == ("wq-state", 1, 3)
        for_people = (await asyncio.to_thread(CliRunner().invoke, root, command)).output
        assert "undelivered" in for_people and "not kept" in for_people and "generation" not in for_people


async def test_what_was_not_handed_out_is_given_back_when_it_is_closed(shared_node: NodeProcess) -> None:
    async with a_topic(shared_node, "wq-close", 10) as client:
        async with WorkQueue(client, "wq-close", "workers", visibility_ms=60_000) as work:
            (first,) = await work.poll(1)
        async with WorkQueue(client, "wq-close", "workers") as work:
            rest: list[Task] = []
            while len(rest) < 9:
                rest += await work.poll(10, timeout_ms=5_000)
            assert all(task.deliveries == 1 for task in rest)
            assert first.message.id not in {task.message.id for task in rest}
            await first.ack()


async def test_a_late_acknowledgement_is_refused_and_the_message_comes_to_another(shared_node: NodeProcess) -> None:
    async with (
        a_topic(shared_node, "wq-late", 1) as client,
        WorkQueue(client, "wq-late", "workers", visibility_ms=SHORT_MS) as slow,
        WorkQueue(client, "wq-late", "workers") as quick,
    ):
        (late,) = await slow.poll(1)
        await slow.close()  # Else it is asked as well who takes it next.
        (again,) = await quick.poll(1, timeout_ms=10_000)
        assert again.message.id == late.message.id and again.deliveries == 2
        for what in (late.ack(), late.nack(), late.extend()):
            with pytest.raises(ReceiptExpired):
                await what
        await again.ack()


async def test_run_keeps_tasks_hidden_while_their_handlers_run(shared_node: NodeProcess) -> None:
    async with a_topic(shared_node, "wq-run", 12) as client:
        handled: Counter[str] = Counter()
        running = 0
        most = 0

        async def handle(task: Task) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(2 * SHORT_MS / 1000)
            running -= 1
            handled[task.text()] += 1
            if len(handled) == 12:
                asyncio.get_running_loop().call_later(0.5, lambda: asyncio.ensure_future(work.close()))

        work = WorkQueue(client, "wq-run", "workers", visibility_ms=SHORT_MS)
        await work.run(handle, concurrency=4)
        assert set(handled.values()) == {1} and len(handled) == 12
        assert most <= 4


async def test_a_held_pop_hands_its_message_out_however_short_the_visibility(shared_node: NodeProcess) -> None:
    visibility_ms = 900
    async with (
        a_topic(shared_node, "wq-held", 0) as client,
        WorkQueue(client, "wq-held", "workers", visibility_ms=visibility_ms) as work,
    ):
        polling = asyncio.create_task(work.poll(timeout_ms=30_000))
        await asyncio.sleep(2 * visibility_ms / 1000)  # the pop is held for longer than what it finds is hidden
        async with Producer(client, "wq-held") as producer:
            await (await producer.send("to be had at once"))
        (task,) = await polling
        assert task.deliveries == 1
        await task.ack()


async def test_tasks_stay_hidden_while_another_shard_is_silent(make_node: Callable[..., NodeProcess]) -> None:
    queues, topic = 8, "wq-silent"
    async with FaultProxy(make_node(shards=2).start().url) as proxy, Client(proxy.url) as client:
        await client.create_topic(topic, queues=queues)
        async with Producer(client, topic) as producer:
            for queue in range(queues):
                await (await producer.send(f"{queue}", queue=queue))
        begun: Counter[str] = Counter()
        done: set[str] = set()
        bodies: dict[str, str] = {}  # by receipt
        go_on = asyncio.Event()

        async def handle(task: Task) -> None:
            begun[task.text()] += 1
            bodies[task.receipt] = task.text()
            await go_on.wait()
            await task.ack()
            done.add(task.text())

        def extended() -> list[set[str]]:
            asked = [msgpack.unpackb(body)["receipts"] for body in proxy.bodies["extend"]]
            return [{bodies[receipt] for receipt in receipts} for receipts in asked]

        proxy.delay("extend", 60.0)
        work = WorkQueue(client, topic, "workers", visibility_ms=3_000)
        running = asyncio.create_task(work.run(handle, concurrency=queues))
        await comes_true(lambda: set().union(*extended()) == set(map(str, range(queues))), "all are extended")
        silent = extended()[0]
        assert len(silent) == queues // 2, "the first was to be of one shard"
        go_on.set()
        await comes_true(lambda: len(done) == queues, "all are done")
        assert {body: begun[body] for body in done - silent} == dict.fromkeys(done - silent, 1)
        await work.close()
        await running


async def test_what_a_handler_says_of_visibility_holds_though_its_task_is_extended_meanwhile(
    shared_node: NodeProcess, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_topic(shared_node, topic_name, 1) as client:
        ask, begun, go_on = client._router.ask_leader, asyncio.Event(), asyncio.Event()

        async def late(topic: Topic, shard: int, method: str, path: str, **options: Any) -> Response:
            """The queue's first extension comes to the node behind the handler's."""
            if path.endswith("/extend") and not begun.is_set():
                begun.set()
                await go_on.wait()
            return await ask(topic, shard, method, path, **options)

        monkeypatch.setattr(client._router, "ask_leader", late)

        async def handle(task: Task) -> None:
            await begun.wait()
            await task.extend(600_000)
            go_on.set()
            await comes_true(lambda: not task._extending, "the queue's is answered")
            await comes_true(shows_it, "the node has heard what was said")
            assert task.remaining_ms > 500_000
            await work.close()

        async def shows_it() -> bool:
            (held,) = await work.held()
            return held.until_ms > wall_ms() + 500_000

        work = WorkQueue(client, topic_name, "workers", visibility_ms=30_000)
        monkeypatch.setattr("lsmq.work_queue._EXTENSIONS_PER_VISIBILITY", 100)
        await work.run(handle)


async def test_a_handler_that_fails_gets_its_task_again_and_others_go_on(shared_node: NodeProcess) -> None:
    async with a_topic(shared_node, "wq-fail", 6) as client:
        work = WorkQueue(client, "wq-fail", "workers")
        await work.configure(max_deliveries=3, retry_first_ms=50)
        handled: Counter[str] = Counter()

        async def handle(task: Task) -> None:
            handled[task.text()] += 1
            if task.text() == "3":
                raise ValueError("three is not liked")
            if task.text() == "4" and task.deliveries == 1:
                await task.nack(delay_ms=0)

        running = asyncio.create_task(work.run(handle))
        wanted = {"0": 1, "1": 1, "2": 1, "3": 3, "4": 2, "5": 1}
        await comes_true(lambda: handled == wanted, "three is tried three times, four twice")
        await client.create_topic("wq-fail.dlq")  # where it is not there yet
        async with WorkQueue(client, "wq-fail.dlq", "readers") as dead:
            (letter,) = await dead.poll(timeout_ms=20_000)
        assert letter.text() == "3"
        reason = letter.message.properties["lsmq-dlq-reason"]
        assert reason == "negative acknowledgement: ValueError: three is not liked"
        await work.close()
        await running


async def test_many_tasks_that_fail_are_a_few_warnings(
    shared_node: NodeProcess, caplog: pytest.LogCaptureFixture
) -> None:
    count = 50
    async with a_topic(shared_node, "wq-poison", count) as client:
        failed: Counter[str] = Counter()

        async def handle(task: Task) -> None:
            failed[task.text()] += 1
            raise ValueError("poison")

        work = WorkQueue(client, "wq-poison", "workers")
        await work.configure(max_deliveries=2, retry_first_ms=0)
        running = asyncio.create_task(work.run(handle, concurrency=10))
        await comes_true(lambda: failed.total() == 2 * count, "all have failed twice")
        await work.close()
        await running
    said = [record.getMessage() for record in caplog.records if "the handler failed" in record.getMessage()]
    assert "ValueError('poison')" in said[0]
    assert len(said) < count / 5


async def test_a_handler_over_its_time_is_not_covered_any_more(shared_node: NodeProcess) -> None:
    async with a_topic(shared_node, "wq-stalled", 1) as client:
        first = WorkQueue(client, "wq-stalled", "workers", visibility_ms=SHORT_MS, max_handler_ms=SHORT_MS)
        stalled = asyncio.Event()

        async def stall(task: Task) -> None:
            stalled.set()
            await asyncio.sleep(60)

        running = asyncio.create_task(first.run(stall))
        await stalled.wait()
        async with WorkQueue(client, "wq-stalled", "workers") as second:
            (again,) = await second.poll(timeout_ms=20_000)
            await again.ack()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await first.close()


async def test_wrong_use_is_refused(shared_node: NodeProcess) -> None:
    async with a_topic(shared_node, "wq-wrong", 0) as client:
        with pytest.raises(InvalidRequest, match="max_messages"):
            WorkQueue(client, "wq-wrong", "workers", max_messages=0)
        async with WorkQueue(client, "wq-wrong", "workers") as work:
            with pytest.raises(InvalidRequest, match="concurrency"):
                await work.run(lambda task: asyncio.sleep(0), concurrency=0)
            with pytest.raises(InvalidRequest, match="max_deliveries"):
                await work.configure(max_deliveries=0)


def test_the_blocking_work_queue_does_the_same(shared_node: NodeProcess) -> None:
    with sync.Client(shared_node.url) as client:
        client.create_topic("wq-sync", queues=2)
        with sync.Producer(client, "wq-sync") as producer:
            producer.send_many(f"{number}" for number in range(10)).wait()
        with sync.WorkQueue(client, "wq-sync", "workers") as work:
            work.configure(retry_first_ms=10)
            task = next(work)
            task.nack(delay_ms=0)
            (second,) = work.poll(1)
            second.extend(60_000)
            second.ack()
            handled: list[str] = []

            def handle(task: sync.Task) -> None:
                handled.append(task.text())
                if len(handled) == 9:
                    work.close()

            work.run(handle, concurrency=3)
            assert len(set(handled)) == 9 and second.text() not in handled


async def test_what_somebody_has_is_listed_and_taken_from_him(shared_node: NodeProcess) -> None:
    async with a_topic(shared_node, "wq-listed", 3) as client, WorkQueue(client, "wq-listed", "wq-listers") as work:
        with pytest.raises(UnknownGroup):
            await work.held()
        tasks = [task for _ in range(3) for task in await work.poll(1)]
        found = await work.held()
        assert {each.receipt for each in found} == {task.receipt for task in tasks}
        assert len(await work.held(limit=2)) == 2
        by_id = {each.id: each for each in found}
        await work.end_held(by_id[tasks[0].message.id], "release")
        (again,) = await work.poll(1)
        assert (again.text(), again.deliveries) == (tasks[0].text(), 1)
        with pytest.raises(ReceiptExpired):
            await tasks[0].ack()
        with pytest.raises(ReceiptExpired):
            await work.end_held(by_id[tasks[0].message.id], "release")
        with pytest.raises(InvalidRequest, match="one of release, dead_letter, ack"):
            await work.end_held(found[1], "done")  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="one of the messages of held"):
            await work.end_held(found, "ack")  # type: ignore[arg-type]
        await work.end_held(by_id[tasks[1].message.id], "ack")
        command = ["group", "held", "wq-listers", "--topic", "wq-listed", "--url", shared_node.url]
        shown = await asyncio.to_thread(CliRunner().invoke, root, [*command, "--json"])
        assert [each["id"] for each in json.loads(shown.stdout)] == [each.id for each in await work.held()]
        assert tasks[2].message.id in (await asyncio.to_thread(CliRunner().invoke, root, command)).stdout
        command[1] = "settle"
        more = [tasks[2].message.id, "--as", "dead-letter", "--yes"]
        with mock.patch.object(WorkQueue, "held", mock.AsyncMock(return_value=found)):  # as it was a while ago
            partly = await asyncio.to_thread(CliRunner().invoke, root, [*command, tasks[0].message.id, *more])
        assert partly.exit_code == 1
        assert f"error: {tasks[0].message.id}: receipt_expired" in partly.output, "who is too late for one is told so"
        assert f"{tasks[2].message.id}: dead-letter" in partly.output, "and the others are settled"
        assert [each.id for each in await work.held()] == [again.message.id]
        refused = await asyncio.to_thread(CliRunner().invoke, root, [*command, *more])
        assert refused.exit_code == 1 and "nobody has message" in str(refused.exception)
        await again.ack()
    with sync.Client(shared_node.url) as blocking, sync.WorkQueue(blocking, "wq-listed", "wq-listers") as work:
        assert work.held() == []


async def test_a_shard_that_a_topic_grows_into_behaves_as_was_said_before(
    make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    node = make_node(shards=3).start()
    async with Client(node.url) as client, WorkQueue(client, "grows", "workers", order="key") as work:
        await client.create_topic("grows", queues=1)
        await work.configure(order="key", max_deliveries=5)
        topic = await client.grow_topic("grows", queues=6)
        assert len({route.shard for route in topic.routes}) == 3
        async with Producer(client, "grows") as producer:
            for queue in range(6):
                await producer.send(f"{queue}", queue=queue)
        found: set[str] = set()
        while len(found) < 6:
            found |= {task.text() for task in await work.poll(10)}  # refused by a shard that keeps no order
