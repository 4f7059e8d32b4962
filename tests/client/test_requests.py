"""Requests and replies: who gets which, how long one waits, and what is read while nobody waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal
from unittest import mock

import pytest

from lsmq import (
    Client,
    ClientClosed,
    Consumer,
    Forbidden,
    InvalidRequest,
    LsmqError,
    Message,
    MessageTooLarge,
    Producer,
    QuotaExceeded,
    TimedOut,
    Topic,
    Unavailable,
    UnknownQueue,
    UnknownTopic,
    WorkQueue,
    sync,
)
from lsmq._requests import CORRELATION, MAX_IN_FLIGHT, REPLY_QUEUE, REPLY_TOPIC
from lsmq._transport import Response
from support.node_process import NodeProcess
from support.python_process import PythonProcess, run_python
from support.waiting import PATIENCE_S, comes_true


@asynccontextmanager
async def responder(
    url: str, topic: str, answer: Callable[[Message], bytes] = lambda message: message.body.upper()
) -> AsyncIterator[list[Message]]:
    """Answers what comes to a topic from now on."""
    seen: list[Message] = []

    async def serve(client: Client) -> None:
        async with Consumer(client, topic, start="earliest") as consumer:
            async for message in consumer:
                seen.append(message)
                await client.reply(message, answer(message))

    async with Client(url) as client:
        task = asyncio.create_task(serve(client))
        try:
            yield seen
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_many_requests_at_a_time_get_each_their_own_reply(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as one, Client(shared_node.url) as two:
        await one.create_topic(topic_name, queues=8)
        async with responder(shared_node.url, topic_name):
            wanted = [
                (client, f"{name} {number}") for name, client in (("a", one), ("b", two)) for number in range(100)
            ]
            replies = await asyncio.gather(*(client.request(topic_name, body) for client, body in wanted))
        assert [reply.text() for reply in replies] == [body.upper() for _, body in wanted]
        assert one._requests is not None and not one._requests._waiting, "nothing is kept of what is over"


async def test_without_a_reply_it_times_out_and_a_late_reply_is_passed_over(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        with pytest.raises(TimedOut, match="no reply"):
            await client.request(topic_name, b"first", timeout_ms=300)
        async with responder(shared_node.url, topic_name) as seen:  # which answers the first one, too
            assert (await client.request(topic_name, b"second")).body == b"SECOND"
            assert [message.body for message in seen] == [b"first", b"second"]


async def test_a_second_reply_is_passed_over(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        async with responder(shared_node.url, topic_name) as seen:
            first = await client.request(topic_name, b"x")
            await client.reply(seen[0], b"again")
            second = await client.request(topic_name, b"y")
        assert (first.body, second.body) == (b"X", b"Y")


async def test_a_request_that_a_worker_dropped_is_answered_by_the_next(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        asked = asyncio.create_task(client.request(topic_name, b"work"))
        async with WorkQueue(client, topic_name, f"g-{topic_name}", visibility_ms=1_000) as queue:
            (task,) = await queue.poll(1)
            await task.nack(delay_ms=0)  # Its worker failed: the task comes again.
            (again,) = await queue.poll(1)
            await client.reply(again.message, b"done")
            await again.ack()
        assert (await asked).body == b"done"


async def test_nothing_is_polled_while_nobody_waits_and_it_goes_on_where_it_was(
    shared_node: NodeProcess, topic_name: str
) -> None:
    with mock.patch("lsmq._requests._LINGER_S", 0.05):
        async with Client(shared_node.url) as client:
            await client.create_topic(topic_name)
            async with responder(shared_node.url, topic_name):
                for number in range(3):
                    assert (await client.request(topic_name, b"%d" % number)).body == b"%d" % number
                    assert client._requests is not None
                    (inbox,) = client._requests._inboxes.values()
                    assert inbox._reading is not None
                    await asyncio.wait_for(asyncio.shield(inbox._reading), 20)


async def test_what_cannot_be_asked_or_answered_is_refused_by_name(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        with pytest.raises(InvalidRequest, match="timeout_ms"):
            await client.request(topic_name, b"x", timeout_ms=0)
        for wrong in ("5", None, True, float("nan"), float("inf"), 10**400):
            with pytest.raises(InvalidRequest, match="timeout_ms is"):
                await client.request(topic_name, b"x", timeout_ms=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match=CORRELATION):
            await client.request(topic_name, b"x", properties={CORRELATION: "mine"})
        with pytest.raises(LsmqError, match="no-such-topic"):
            await client.request("no-such-topic", b"x", timeout_ms=5_000)
        plain = Message(topic_name, 0, 0, 1, b"")
        with pytest.raises(InvalidRequest, match="asks for no reply"):
            await client.reply(plain, b"x")
        for queue in ("9" * 5_000, "\u0663", "-1"):  # Whoever may write to the topic chooses it.
            properties = {REPLY_TOPIC: topic_name, REPLY_QUEUE: queue, CORRELATION: "1"}
            with pytest.raises(InvalidRequest, match="asks for no reply"):
                await client.reply(Message(topic_name, 0, 0, 1, b"", properties=properties), b"x")
        with mock.patch("lsmq._requests.MAX_IN_FLIGHT", 0), pytest.raises(LsmqError) as full:
            await client.request(topic_name, b"x")
        assert full.value.code == "buffer_full" and MAX_IN_FLIGHT == 10_000


async def test_whoever_asks_again_by_an_id_gets_the_reply_to_the_first_request(
    shared_node: NodeProcess, topic_name: str
) -> None:
    """Whether that has come already, or does later; also as another client."""
    async with Client(shared_node.url) as client, Client(shared_node.url) as other:
        await client.create_topic(topic_name, dedupe_window_ms="forever")
        with pytest.raises(TimedOut):
            await client.request(topic_name, b"x", dedupe_id="it's 7", timeout_ms=300)
        asking = asyncio.create_task(client.request(topic_name, b"x", dedupe_id="it's 7"))
        async with responder(shared_node.url, topic_name) as seen:
            first = await asking
            again = await other.request(topic_name, b"x", dedupe_id="it's 7", reply_topic=f"{topic_name}-2")
            assert await client.reply(seen[0], b"another"), "the first counts"
            last = await client.request(topic_name, b"x", dedupe_id="it's 7")
        assert first.body == b"X" and first == again == last and len(seen) == 1


async def test_who_asks_by_the_id_of_what_was_no_request_is_told_so(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, dedupe_window_ms="forever")
        async with Producer(client, topic_name) as producer:
            await producer.send_and_wait(b"x", dedupe_id="7")
        with pytest.raises(InvalidRequest, match="asks for no reply"):
            await client.request(topic_name, b"x", dedupe_id="7")


async def test_who_was_to_be_sent_a_reply_that_is_too_large_can_still_be_sent_another_one(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        await client.create_topic(f"{topic_name}-replies", max_message_bytes=1_000)
        asking = asyncio.create_task(client.request(topic_name, b"x", reply_topic=f"{topic_name}-replies"))
        async with Consumer(client, topic_name, start="earliest") as consumer:
            (message,) = await consumer.poll(1)
        with pytest.raises(MessageTooLarge):
            await client.reply(message, b"x" * 2_000)
        await client.reply(message, b"too large")
        assert (await asking).body == b"too large"


async def test_requests_that_cannot_be_answered_raise_what_whoever_answers_is_told_to_catch(
    shared_node: NodeProcess, topic_name: str
) -> None:
    names = {name: f"{topic_name}-{name}" for name in ("missing", "named", "small", "replies")}
    expected = [
        (names["missing"], "0", UnknownTopic),
        ("no name", "0", UnknownTopic),
        ("..", "0", InvalidRequest),
        (names["replies"], "7", UnknownQueue),
        (names["named"], "0", InvalidRequest),
        (names["small"], "0", MessageTooLarge),
        (names["replies"], "seven", InvalidRequest),
        (names["replies"], "0", None),
    ]
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        await client.create_topic(names["named"], queues="named")
        await client.create_topic(names["small"], max_message_bytes=10)
        await client.create_topic(names["replies"])
        async with Producer(client, topic_name) as producer:
            for topic, queue, _ in expected:
                asked = {REPLY_TOPIC: topic, REPLY_QUEUE: queue, CORRELATION: "1"}
                await producer.send_and_wait(b"x", properties=asked)
        raised: list[type[LsmqError] | None] = []
        async with Consumer(client, topic_name, start="earliest") as consumer:
            while len(raised) < len(expected):
                (message,) = await consumer.poll(1)
                try:
                    await client.reply(message, b"x" * 50)
                    raised.append(None)
                except (UnknownTopic, UnknownQueue, Forbidden, InvalidRequest) as error:
                    raised.append(type(error))
    for error, (topic, queue, wanted) in zip(raised, expected, strict=True):
        assert error is wanted if wanted is None or error is None else issubclass(error, wanted), (topic, queue)


async def test_a_request_that_a_full_topic_drops_is_not_waited_for(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, max_messages=1, overflow="drop_newest")
        async with Producer(client, topic_name) as producer:
            await producer.send_and_wait(b"x")
        with pytest.raises(QuotaExceeded, match="not stored"):
            await client.request(topic_name, b"y")


@pytest.mark.parametrize("overflow", ["refuse", "drop_newest"])
async def test_a_full_topic_for_replies_does_not_hold_who_answers(
    shared_node: NodeProcess, topic_name: str, overflow: Literal["refuse", "drop_newest"]
) -> None:
    full = f"{topic_name}-full"
    async with Client(shared_node.url, deadline_ms=600_000) as client:
        await client.create_topic(topic_name)
        await client.create_topic(full, max_messages=1, overflow=overflow)
        async with Producer(client, full) as producer:
            await producer.send_and_wait(b"x", queue=0)
        async with Consumer(client, topic_name, start="earliest") as consumer:
            async with asyncio.timeout(PATIENCE_S):
                unanswered = asyncio.create_task(client.request(topic_name, b"a", reply_topic=full, timeout_ms=600_000))
                (first,) = await consumer.poll(1)
                answered = asyncio.create_task(client.request(topic_name, b"b", reply_topic=f"{topic_name}-replies"))
                with pytest.raises(QuotaExceeded):
                    await client.reply(first, b"no room")
                (second,) = await consumer.poll(1)
                await client.reply(second, b"B")
                assert (await answered).body == b"B"
                await client.purge_topic(full)
                await comes_true(lambda: _replied(client, first), "there is room, and the reply can be sent after all")
                assert (await unanswered).body == b"later"


async def _replied(client: Client, message: Message) -> bool:
    try:
        await client.reply(message, b"later")
    except QuotaExceeded:
        return False
    return True


async def test_closing_the_client_ends_what_waits(shared_node: NodeProcess, topic_name: str) -> None:
    client = Client(shared_node.url)
    await client.create_topic(topic_name)
    asked = asyncio.create_task(client.request(topic_name, b"x"))
    async with Consumer(client, topic_name, start="earliest") as consumer:
        (message,) = await consumer.poll(1)
    assert {REPLY_TOPIC, REPLY_QUEUE, CORRELATION} == set(message.properties)
    await client.close()
    with pytest.raises(ClientClosed):
        await asked


def test_the_blocking_face_and_the_command_ask_and_answer(shared_node: NodeProcess, topic_name: str) -> None:
    with sync.Client(shared_node.url) as client, sync.Client(shared_node.url) as other:
        client.create_topic(topic_name)
        asked = PythonProcess(["-m", "lsmq", "request", topic_name, "a pizza", "--url", shared_node.url])
        with sync.Consumer(other, topic_name, start="earliest") as consumer:
            (message,) = consumer.poll(1)
            other.reply(message, b"7 euros", properties={"kind": "price"})
            assert asked.communicate(timeout=PATIENCE_S)[0] == b"7 euros\n" and asked.returncode == 0
        with pytest.raises(TimedOut):
            client.request(topic_name, b"x", timeout_ms=100)
    command = ("-m", "lsmq", "request", topic_name, "x", "--timeout", "100ms", "--url", shared_node.url)
    failed = run_python(*command, text=True)
    assert (
        failed.returncode == 1 and failed.stderr.startswith("error: timed_out: no reply") and "0.1 s" in failed.stderr
    )


def test_the_command_asks_by_a_queue_that_has_a_name(shared_node: NodeProcess, topic_name: str) -> None:
    with sync.Client(shared_node.url) as client:
        client.create_topic(topic_name, queues="named")
        command = ["-m", "lsmq", "request", topic_name, "a pizza", "--queue", "ada", "--url", shared_node.url]
        asked = PythonProcess(command)
        with sync.Consumer(client, topic_name, start="earliest", queues=["ada"]) as consumer:
            (message,) = consumer.poll(1, timeout_ms=20_000)
            client.reply(message, b"7 euros")
            assert asked.communicate(timeout=PATIENCE_S)[0] == b"7 euros\n" and asked.returncode == 0


def test_the_command_asks_with_properties_and_once_for_an_id(shared_node: NodeProcess, topic_name: str) -> None:
    with sync.Client(shared_node.url) as client:
        client.create_topic(topic_name, dedupe_window_ms="forever")
        command = ["-m", "lsmq", "request", topic_name, "a pizza", "--url", shared_node.url]
        given = ["--property", "size=large", "--property", "note=a=b", "--dedupe-id", "order 7"]
        asked = PythonProcess([*command, *given])
        with sync.Consumer(client, topic_name, start="earliest") as consumer:
            (message,) = consumer.poll(1, timeout_ms=20_000)
            assert (message.properties["size"], message.properties["note"]) == ("large", "a=b")
            client.reply(message, b"7 euros")
            assert asked.communicate(timeout=PATIENCE_S)[0] == b"7 euros\n" and asked.returncode == 0
        with sync.Producer(client, topic_name) as producer:
            assert producer.send_and_wait(b"again", dedupe_id="order 7").duplicate
    wrong = run_python(*command, "--property", "size", text=True)
    assert wrong.returncode == 2 and "NAME=VALUE" in wrong.stderr


async def test_a_producer_that_starts_as_the_client_is_closed_is_not_left_behind(
    shared_node: NodeProcess, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(shared_node.url)
    await client.create_topic(topic_name)
    begun, go_on, fresh = asyncio.Event(), asyncio.Event(), client.topic

    async def late(name: str) -> Topic:
        topic = await fresh(name)
        if name == topic_name:
            begun.set()
            await go_on.wait()
        return topic

    monkeypatch.setattr(client, "topic", late)
    asking = asyncio.create_task(client.request(topic_name, "x"))
    await begun.wait()
    await client.close()
    go_on.set()
    with pytest.raises(ClientClosed):
        await asking
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_request_is_not_told_of_what_failed_of_another_topic(
    shared_node: NodeProcess, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the producer of that is closed, since so many others are used."""
    monkeypatch.setattr("lsmq._requests._MOST_PRODUCERS", 1)
    async with Client(shared_node.url, deadline_ms=1_000) as client:
        await client.create_topic(topic_name)
        await client.create_topic(f"{topic_name}-2")
        attempt, asked = client._router.attempt, asyncio.Event()

        async def refused(topic: Topic, *rest: Any, **options: Any) -> Response:
            if topic.name != f"{topic_name}-2":
                return await attempt(topic, *rest, **options)
            asked.set()
            raise Unavailable("not now", sent=False)

        monkeypatch.setattr(client._router, "attempt", refused)
        asking = asyncio.create_task(client.request(f"{topic_name}-2", "x"))
        await asked.wait()
        asking.cancel()  # Nobody is told what comes of it.
        assert client._requests is not None
        given_up = client._requests._producers[f"{topic_name}-2", True]
        await comes_true(lambda: not given_up.buffered_bytes, "it is given up")
        async with responder(shared_node.url, topic_name):
            assert (await client.request(topic_name, "y")).text() == "Y"


async def test_what_is_known_of_topics_for_replies_is_forgotten_in_time(
    shared_node: NodeProcess, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lsmq._requests._LINGER_S", 0.02)
    monkeypatch.setattr("lsmq._requests._MOST_INBOXES", 2)
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        inboxes = client._begin_requests()._inboxes
        async with responder(shared_node.url, topic_name):
            for number in (*range(4), 0):
                await client.create_topic(f"{topic_name}-{number}")
                reply = await client.request(topic_name, b"x", reply_topic=f"{topic_name}-{number}")
                assert reply.body == b"X"
                await comes_true(lambda: all(inbox.is_idle for inbox in inboxes.values()), "nothing is read any more")
        assert list(inboxes) == [f"{topic_name}-3", f"{topic_name}-0"]


async def test_a_reply_survives_a_topic_for_replies_of_ones_own(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        await client.create_topic(f"{topic_name}-replies", queues=1)
        async with Producer(client, f"{topic_name}-replies") as producer:
            await producer.send_and_wait(b"of before")
        async with responder(shared_node.url, topic_name):
            reply = await client.request(topic_name, b"x", reply_topic=f"{topic_name}-replies")
        assert (reply.topic, reply.queue, reply.offset) == (f"{topic_name}-replies", 0, 1)


async def test_topics_that_were_made_anew_while_nobody_waited_are_gone_on_with(
    shared_node: NodeProcess, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As operators do to be rid of what is in them: neither who asks nor who answers has to begin anew."""
    monkeypatch.setattr("lsmq._requests._LINGER_S", 0.02)
    replies, queues = f"{topic_name}-replies", 64
    async with (
        Client(shared_node.url) as client,
        Client(shared_node.url) as other,
        Client(shared_node.url) as operator,
    ):
        inboxes = client._begin_requests()._inboxes

        async def asked(body: bytes) -> bytes:
            asking = asyncio.create_task(client.request(topic_name, body, reply_topic=replies, timeout_ms=10_000))
            async with Consumer(operator, topic_name, start="earliest") as consumer:
                (message,) = await consumer.poll(1, timeout_ms=10_000)
            await other.reply(message, message.body.upper())
            found = await asking
            await comes_true(lambda: all(inbox.is_idle for inbox in inboxes.values()), "nothing is read any more")
            return found.body

        for body in (b"one", b"two", b"three"):
            for topic, count in ((replies, queues), (topic_name, 1)):
                await operator.delete_topic(topic, missing_ok=True)
                await operator.create_topic(topic, queues=count)
            queues //= 8
            assert await asked(body) == body.upper()
