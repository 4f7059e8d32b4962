"""What cannot be sent is refused by the call that is given it, and harms no other message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_type_hints

import pytest

import lsmq
from lsmq import Client, Codec, Consumer, InvalidRequest, Message, Producer, TransactionalProducer
from lsmq import sync as blocking
from lsmq.record_batch import BatchBuilder
from support.node_process import NodeProcess

NO_BODIES: list[Any] = [{"a": 1}, ["a"], 5, object(), None, "\ud800"]
NO_OPTIONS: list[dict[str, Any]] = [
    {"key": 5},
    {"key": bytearray(b"k")},
    {"key": "\ud800", "queue": 0},
    {"tag": 5},
    {"tag": b"t"},
    {"tag": "\ud800"},
    {"queue": "1"},
    {"queue": 1.0},
    {"priority": "high"},
    {"properties": {"a": 1}},
    {"headers": [("a", "text")]},
]


@contextmanager
def refused(names: str) -> Iterator[None]:
    with pytest.raises(InvalidRequest, match=names):
        yield


async def test_a_bad_message_is_refused_and_its_companions_are_stored(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        async with Producer(client, topic_name, linger_ms=10_000) as producer:
            good = []
            for body in NO_BODIES:
                good.append(await producer.send("good"))
                with refused("body is "):
                    await producer.send(body)
            for options in NO_OPTIONS:
                with refused(next(iter(options)).removesuffix("ies").removesuffix("s")):
                    await producer.send("bad", **options)
                good.append(await producer.send("good"))
            await producer.flush()
            assert [(await receipt).offset for receipt in good] == list(range(len(good)))
            for first in NO_OPTIONS:  # As the first message of a batch: none is left open that has no message.
                with pytest.raises(InvalidRequest):
                    await producer.send("bad", **first)
                await producer.flush()


@pytest.mark.parametrize("messages", ["abc", b"abc", bytearray(b"abc"), {"a": "b"}, 5, None])
async def test_one_message_is_not_many(shared_node: NodeProcess, topic_name: str, messages: Any) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        async with Producer(client, topic_name) as producer, TransactionalProducer(client, topic_name) as transactional:
            with refused("messages is .* give a list of bodies"):
                await producer.send_many(messages)
            async with transactional.transaction() as transaction:
                with refused("messages is .* give a list of bodies"):
                    await transaction.send_many(topic_name, messages)
        assert list((await client.offsets(topic_name)).latest) == [0]


async def test_a_message_of_many_is_a_body_or_a_pair(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        async with Producer(client, topic_name) as producer:
            bad: list[Any] = [("key", "body", "more")]
            with refused("a tuple of 3; it must be a body, or a pair"):
                await producer.send_many(bad)


async def test_transactions_check_as_producers_do(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        async with TransactionalProducer(client, topic_name) as producer, producer.transaction() as transaction:
            for body in NO_BODIES:
                with refused("body is "):
                    await transaction.send(topic_name, body)
            for options in NO_OPTIONS:
                with pytest.raises(InvalidRequest):
                    await transaction.send(topic_name, "bad", **options)
            await transaction.send(topic_name, "good")
        assert list((await client.offsets(topic_name)).latest) == [1]


async def test_what_is_like_bytes_is_a_body(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        async with Producer(client, topic_name) as producer:
            changing = bytearray(b"as it was")
            receipt = await producer.send(changing)
            changing[:2] = b"no"
            viewed = await producer.send_and_wait(memoryview(b"a view"))
            bodies = [(await client.message(sent.id)).body for sent in (await receipt, viewed)]
            assert bodies == [b"as it was", b"a view"]


@pytest.mark.parametrize("wrong", [{"codec": "zstd"}, {"partitioner": 5}, {"topic": 5}])
async def test_options_of_the_wrong_type_are_refused(wrong: dict[str, Any]) -> None:
    async with Client() as client:
        with refused(f"{next(iter(wrong))} is "):
            Producer(client, **{"topic": "t", "codec": Codec.NONE, **wrong})


def test_a_partitioner_that_returns_no_number_is_named(shared_node: NodeProcess, topic_name: str) -> None:
    with blocking.Client(shared_node.url) as client:
        client.create_topic(topic_name)
        partitioner: Any = lambda key, body, queues: "0"  # noqa: E731
        with (
            blocking.Producer(client, topic_name, partitioner=partitioner) as producer,
            refused("what the partitioner returned is '0' of type str"),
        ):
            producer.send("text")


def test_a_record_that_is_refused_leaves_a_batch_as_it_was() -> None:
    builder = BatchBuilder()
    builder.add(0, b"good")
    tag: Any = 5
    with pytest.raises(AttributeError):
        builder.add(0, b"bad", tag=tag)
    builder.add(0, b"good")
    packed = builder.build()
    assert len(builder) == 2 and packed.endswith(b"goodgood")


def test_what_applications_need_is_imported_from_lsmq() -> None:
    for name in ("ClusterAdmin", "DeadLetter", "DeadLetters", "Group", "Outage", "list_groups", "partitioners"):
        assert name in lsmq.__all__ and hasattr(lsmq, name)


def test_every_error_is_imported_from_lsmq() -> None:
    kinds = {name for name, found in vars(lsmq.errors).items() if isinstance(found, type) and name[0] != "_"}
    assert {name for name in kinds if issubclass(getattr(lsmq.errors, name), lsmq.LsmqError)} <= set(lsmq.__all__)


@pytest.mark.parametrize("producer", [Producer, blocking.Producer])
def test_the_names_of_acknowledgements_are_typed(producer: type) -> None:
    assert get_type_hints(producer.__init__)["ack"] == Literal["quorum", "leader"] | None  # type: ignore[misc]


async def test_handlers_may_return_something(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        async with Producer(client, topic_name) as producer:
            await producer.send_and_wait("one")
        seen: list[str] = []

        async def handle(message: Message) -> int:
            seen.append(message.text())
            await consumer.close()
            return len(seen)

        async with Consumer(client, topic_name) as consumer:
            await consumer.run(handle)
        assert seen == ["one"]


def test_a_blocking_task_says_how_long_it_is_hidden(shared_node: NodeProcess, topic_name: str) -> None:
    with blocking.Client(shared_node.url) as client:
        client.create_topic(topic_name)
        with blocking.Producer(client, topic_name) as producer:
            producer.send("one")
        with blocking.WorkQueue(client, topic_name, topic_name, visibility_ms=60_000) as work:
            (task,) = work.poll(1)
            assert 0 < task.remaining_ms <= 60_000
            task.ack()
