"""Messages that come later, with the Python client and on the command line."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import time
from collections.abc import Callable

import pytest

from lsmq import (
    AlreadyDelivered,
    Client,
    Consumer,
    DelayedMessages,
    InvalidRequest,
    Message,
    Producer,
    Schedules,
    UnknownMessage,
    UnknownSchedule,
    sync,
)
from support.node_process import NodeProcess
from support.python_process import run_python

HOUR_MS = 3_600_000


async def test_a_delayed_message_comes_when_it_is_due(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=1)
        async with Producer(client, topic_name) as producer:
            later = await producer.send_and_wait("later", key="k", delay_ms=300)
            at = await producer.send_and_wait("at", deliver_at_ms=time.time_ns() // 1_000_000 + 150)
            now = await producer.send_and_wait("now")
            past = await producer.send_and_wait("past", deliver_at_ms=1_000_000_000_000)
            many = await (await producer.send_many(["a", ("k", "b")], delay_ms=400))
        assert later.offset == -1 and later.due_ms is not None and at.due_ms is not None
        assert (now.offset, now.due_ms, past.offset) == (0, None, 1)
        assert [each.offset for each in many] == [-1, -1]
        found = []
        async with Consumer(client, topic_name, start="earliest") as consumer:
            async for message in consumer:
                found.append(message)
                if len(found) == 6:
                    break
        assert [message.text() for message in found] == ["now", "past", "at", "later", "a", "b"]
        assert found[3].key == "k" and found[3].stored_ms >= later.due_ms


async def test_what_comes_within_moments_is_in_order_and_once_whatever_is_put_before_it(
    shared_node: NodeProcess, topic_name: str
) -> None:
    """Delays of a few milliseconds, so that messages are put before, cancelled and moved that are being fetched."""
    chance, count = random.Random(7), 600
    due: dict[str, int] = {}
    gone: set[str] = set()

    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=1)
        delayed = DelayedMessages(client, topic_name)
        async with Producer(client, topic_name, linger_ms=0) as producer:

            async def send(body: str) -> None:
                sent = await producer.send_and_wait(body, queue=0, delay_ms=chance.choice((2, 5, 10, 20, 30, 60, 120)))
                assert sent.due_ms is not None
                due[body] = sent.due_ms
                try:
                    if chance.random() < 0.1:
                        await delayed.cancel(sent.id)
                        gone.add(body)
                    elif chance.random() < 0.1:
                        moved = await delayed.reschedule(sent.id, delay_ms=chance.choice((1, 5, 20, 60)))
                        due[body] = moved.due_ms
                except AlreadyDelivered:
                    pass

            async def send_some(worker: int) -> None:
                for number in range(count // 10):
                    await send(f"{worker}-{number}")

            await asyncio.gather(*(send_some(worker) for worker in range(10)))
            await producer.send_and_wait("end", queue=0, delay_ms=200)
        found: list[Message] = []
        async with Consumer(client, topic_name, start="earliest") as consumer:
            while not found or found[-1].text() != "end":
                found += await consumer.poll()
    bodies = [message.text() for message in found[:-1]]
    assert sorted(bodies) == sorted(due.keys() - gone)
    assert gone and len(due) == count
    came = [due[body] for body in bodies]
    assert came == sorted(came)
    assert all(message.stored_ms >= due[message.text()] for message in found[:-1])


async def test_a_delayed_message_goes_to_a_queue_by_its_name(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues="named")
        async with Producer(client, topic_name) as producer:
            soon = await producer.send_and_wait("soon", queue="a", delay_ms=1)
            later = await (await producer.send_many(["x", "y"], queue="b.1", delay_ms=HOUR_MS))
            assert (soon.queue_name, soon.offset) == ("a", -1) and soon.due_ms is not None
            delayed = DelayedMessages(client, topic_name)
            found = [each async for each in delayed.read() if each.due_ms > soon.due_ms]
            assert [(each.message.queue_name, each.message.queue) for each in found] == [("b.1", -1)] * 2
            assert [each.to_dict()["queue"] for each in found] == ["b.1"] * 2
            moved = await delayed.reschedule(later[0].id, delay_ms=2 * HOUR_MS)
            assert (moved.queue_name, moved.offset) == ("b.1", -1)
            await client.delete_queue(topic_name, "b.1")
            await delayed.reschedule(later[1].id, delay_ms=1)
            schedules = Schedules(client, topic_name)
            made = await schedules.put("s", "@yearly", "x", queue="c")
            assert (made.message.queue_name, made.to_dict()["queue"]) == ("c", "c")
            await schedules.delete("s")
        async with Consumer(client, topic_name, start="earliest") as consumer:
            got = {}
            async for message in consumer:
                got[message.queue_name] = message.text()
                if len(got) == 2:
                    break
        assert got == {"a": "soon", "b.1": "y"}


async def test_of_a_cancellation_and_a_new_time_at_once_one_counts(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=1)
        async with Producer(client, topic_name) as producer:
            sent = await (await producer.send_many([f"{number}" for number in range(100)], delay_ms=HOUR_MS))
            # Deliveries go on meanwhile, since these begin to look again and again.
            await (await producer.send_many(["x"] * 50, delay_ms=1))
            delayed, ends = DelayedMessages(client, topic_name), []
            for each in sent:
                outcomes = await asyncio.gather(
                    producer.send_and_wait("x", delay_ms=1),
                    delayed.cancel(each.id),
                    delayed.reschedule(each.id, delay_ms=HOUR_MS),
                    delayed.cancel(each.id),
                    return_exceptions=True,
                )
                ends.append([not isinstance(outcome, UnknownMessage) for outcome in outcomes[1:]])
        assert {sum(counted) for counted in ends} == {1}, "one of three has it"
        left = [each async for each in delayed.read() if each.message.text() != "x"]
        assert len(left) == sum(counted[1] for counted in ends)


async def test_a_page_finds_the_few_messages_of_a_topic_behind_many_of_another(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with Client(shared_node.url) as client:
        for name in (topic_name, f"{topic_name}-few"):
            await client.create_topic(name, queues=1)
        async with Producer(client, topic_name) as many, Producer(client, f"{topic_name}-few") as few:
            await (await many.send_many([b"x"] * 5_000, delay_ms=2 * HOUR_MS))
            last = await few.send_and_wait("last", delay_ms=3 * HOUR_MS)
        page = await client.ask("GET", f"/v1/topics/{topic_name}-few/delayed?max=10")
    assert [each["id"] for each in page["messages"]] == [str(last.id)], "in one request"


async def test_pending_messages_are_seen_cancelled_and_put_at_another_time(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=3)
        async with Producer(client, topic_name) as producer:
            sent = await (await producer.send_many([f"{number}" for number in range(1200)], queue=1, delay_ms=HOUR_MS))
            soon = await producer.send_and_wait(
                b"\xff", queue=2, key=b"\xfe", delay_ms=HOUR_MS // 2, headers=[("h", b"v")]
            )
        delayed = DelayedMessages(client, topic_name)
        found = [each async for each in delayed.read()]
        assert [each.id for each in found] == [soon.id, *(each.id for each in sent)]
        assert [(each.message.queue, each.message.offset) for each in found[:2]] == [(2, -1), (1, -1)]
        assert (soon.queue, soon.offset, soon.due_ms) == (2, -1, found[0].due_ms)
        assert found[0].message.body == b"\xff" and found[0].message.headers == (("h", b"v"),)
        assert (await delayed.get(sent[5].id)) == found[6]
        await delayed.cancel(sent[5].id)
        with pytest.raises(UnknownMessage):
            await delayed.get(sent[5].id)
        moved = await delayed.reschedule(sent[6].id, delay_ms=1)
        with pytest.raises(UnknownMessage, match="come later"):
            await client.message(sent[7].id)
        async with Consumer(client, topic_name, start="earliest") as consumer:
            async for message in consumer:
                assert message.text() == "6"
                break
        with pytest.raises(AlreadyDelivered):
            await delayed.cancel(moved.id)
        with pytest.raises(InvalidRequest):
            await delayed.reschedule(sent[8].id)


@pytest.mark.parametrize(
    "options", [{"delay_ms": -1}, {"delay_ms": 1.5}, {"delay_ms": 1 << 60}, {"delay_ms": 5, "deliver_at_ms": 10**13}]
)
async def test_a_delay_that_cannot_be_is_refused_at_the_call(
    shared_node: NodeProcess, topic_name: str, options: dict[str, int]
) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=1)
        async with Producer(client, topic_name) as producer:
            with pytest.raises(InvalidRequest, match=r"delay_ms|deliver_at_ms"):
                await producer.send("x", **options)  # type: ignore[arg-type]
            with pytest.raises(InvalidRequest, match=r"delay_ms|deliver_at_ms"):
                await producer.send_many(["x"], **options)  # type: ignore[arg-type]
            await producer.send_and_wait("good")


def test_the_blocking_face_has_delayed_messages(shared_node: NodeProcess, topic_name: str) -> None:
    with sync.Client(shared_node.url) as client:
        client.create_topic(topic_name, queues=1)
        with sync.Producer(client, topic_name) as producer:
            sent = producer.send_and_wait("x", delay_ms=HOUR_MS)
            producer.send_many(["y", "z"], delay_ms=2 * HOUR_MS).wait()
        delayed = sync.DelayedMessages(client, topic_name)
        assert [each.message.text() for each in delayed.read()] == ["x", "y", "z"]
        delayed.cancel(sent.id)
        assert [each.message.text() for each in delayed.read()] == ["y", "z"]


@pytest.fixture
def run_lsmq(shared_node: NodeProcess) -> Callable[..., str]:
    """Runs a command; what it prints, or what it says where it fails."""

    def run(*arguments: str, stdin: str = "", status: int = 0) -> str:
        environment = {**os.environ, "LSMQ_URL": shared_node.url, "COLUMNS": "200"}
        ran = run_python("-m", "lsmq", *arguments, input=stdin, text=True, env=environment)
        assert ran.returncode == status, ran.stderr
        return ran.stdout if status == 0 else ran.stderr

    return run


def test_the_command_line_sends_lists_cancels_and_moves(run_lsmq: Callable[..., str], topic_name: str) -> None:
    run_lsmq("topic", "create", topic_name, "--queues", "1")
    receipts = run_lsmq("produce", topic_name, "--delay", "2h", "--receipts", stdin="one\ntwo\nthree\n")
    ids = [json.loads(line)["id"] for line in receipts.splitlines()]
    assert all(json.loads(line)["offset"] is None for line in receipts.splitlines())
    line = json.dumps({"body": "four", "delay_ms": HOUR_MS})
    run_lsmq("produce", topic_name, "--json-lines", stdin=line)
    listed = [json.loads(each) for each in run_lsmq("delayed", "list", topic_name, "--json").splitlines()]
    assert [each["body"] for each in listed] == ["four", "one", "two", "three"]
    run_lsmq("delayed", "cancel", topic_name, ids[0], ids[1])
    moved = run_lsmq("delayed", "reschedule", topic_name, ids[2], "--delay", "5m").strip()
    table = run_lsmq("delayed", "list", topic_name)
    assert moved in table and "three" in table and "one" not in table


def test_one_that_cannot_be_cancelled_is_named_and_the_others_are(
    run_lsmq: Callable[..., str], topic_name: str
) -> None:
    run_lsmq("topic", "create", topic_name, "--queues", "1")
    receipts = run_lsmq("produce", topic_name, "--delay", "2h", "--receipts", stdin="one\ntwo\n")
    first, second = (json.loads(line)["id"] for line in receipts.splitlines())
    run_lsmq("delayed", "cancel", topic_name, first)
    said = run_lsmq("delayed", "cancel", topic_name, first, "nonsense", second, status=1)
    assert f"error: {first}: unknown_message" in said and "error: nonsense: " in said
    assert f"cancelled {second}" in said and run_lsmq("delayed", "list", topic_name, "--json") == ""
    assert "unknown_topic" in run_lsmq("delayed", "cancel", f"{topic_name}-none", first, second, status=1)


def test_schedules_in_both_faces_and_on_the_command_line(
    run_lsmq: Callable[..., str], shared_node: NodeProcess, topic_name: str
) -> None:
    with sync.Client(shared_node.url) as client:
        client.create_topic(topic_name, queues=4)
        schedules = sync.Schedules(client, topic_name)
        made = schedules.put(
            "b", "*/5 * * * *", b"\xff", key="k", queue=3, properties={"a": "b"}, headers=[("h", b"v")]
        )
        assert (made.cron, made.tz, made.count, made.message.body) == ("*/5 * * * *", "UTC", 0, b"\xff")
        assert (made.message.queue, made.message.offset) == (3, -1)
        assert made.message.headers == (("h", b"v"),) and made.next_ms % 300_000 == 0
        assert schedules.get("b") == made
        with pytest.raises(InvalidRequest, match="delay_ms"):
            schedules.put("c", "@daily", "x", delay_ms=5)
        with pytest.raises(UnknownSchedule):
            schedules.get("c")
        said = run_lsmq(
            "schedule",
            "put",
            "a",
            "--topic",
            topic_name,
            "--cron",
            "0 9 * * 1-5",
            "--tz",
            "Europe/Berlin",
            "--body",
            "go",
        )
        assert re.fullmatch(r"next: \d{4}-\d\d-\d\d 09:00:00\+0[12]:00 = 0[78]:00:00Z\n", said), said
        listed = [
            json.loads(line) for line in run_lsmq("schedule", "list", "--topic", topic_name, "--json").splitlines()
        ]
        assert [each["name"] for each in listed] == ["a", "b"] == [each.name for each in schedules.read()]
        assert "Europe/Berlin" in run_lsmq("schedule", "list")
        run_lsmq("schedule", "delete", "a", "--topic", topic_name)
        schedules.delete("b")
        assert list(schedules.read()) == []


def test_a_schedule_of_the_command_line_has_the_queue_that_the_topic_knows(
    run_lsmq: Callable[..., str], shared_node: NodeProcess, topic_name: str
) -> None:
    def put(topic: str, queue: str) -> str:
        return run_lsmq("schedule", "put", "s", "--topic", topic, "--cron", "@yearly", "--body", "x", "--queue", queue)

    with sync.Client(shared_node.url) as client:
        client.create_topic(topic_name, queues=4)
        client.create_topic(f"{topic_name}.named", queues="named")
        assert put(topic_name, "3").startswith("next: ")
        assert sync.Schedules(client, topic_name).get("s").message.queue == 3
        assert put(f"{topic_name}.named", "3").startswith("next: "), "a name may be a number"
        assert sync.Schedules(client, f"{topic_name}.named").get("s").message.queue_name == "3"


async def test_json_shows_all_that_a_message_has(shared_node: NodeProcess, topic_name: str) -> None:
    said = {"key": b"\xff", "tag": "t", "type": "refund", "priority": 3, "subpriority": 2}
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=1)
        async with Producer(client, topic_name) as producer:
            await producer.send_and_wait("pay", delay_ms=HOUR_MS, ttl_ms=2 * HOUR_MS, headers=[("h", b"\xff")], **said)
        (delayed,) = [each async for each in DelayedMessages(client, topic_name).read()]
        schedule = await Schedules(client, topic_name).put("s", "@yearly", "pay", ttl_ms=1, **said)
        for shown in (delayed.to_dict(), schedule.to_dict()):
            assert {name: shown.get(name) for name in said} == {**said, "key": None}
            assert (shown["key_b64"], shown["body"]) == ("/w==", "pay")
        assert delayed.to_dict()["expires_ms"] == delayed.due_ms + 2 * HOUR_MS
        assert schedule.to_dict()["ttl_ms"] == 1
        assert delayed.to_dict()["headers"] == [{"name": "h", "value_b64": "/w=="}]
        await Schedules(client, topic_name).delete("s")
