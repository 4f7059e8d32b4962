"""Messages as columns: what ``poll_batch`` gives is what ``poll`` gives, in the same order and by the same rules."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import pyarrow as pa
import pytest

from lsmq import Client, Codec, Consumer, InvalidBatch, InvalidRequest, Message, Producer, message_columns, sync
from lsmq.message_columns import MessageBatch, batch_of
from lsmq.messages import NamedMessage
from lsmq.record_batch import BatchBuilder, Column, RecordBatch, encode_batch, split_batches
from lsmq.topics import Topic
from support.node_process import NodeProcess


async def batches_of(consumer: Consumer, count: int, most: int = 1_000_000) -> list[MessageBatch]:
    found: list[MessageBatch] = []
    while sum(map(len, found)) < count:
        batch = await consumer.poll_batch(most)
        assert batch is not None and 0 < len(batch) <= most
        found.append(batch)
    return found


def by_queue(messages: list[Message]) -> list[Message]:
    """Messages of a queue in the order given."""
    return sorted(messages, key=lambda message: message.queue)


async def write_all_kinds(client: Client, topic: str, count: int = 300) -> None:
    async with Producer(client, topic) as producer:
        for number in range(count):
            match number % 6:
                case 0:
                    await producer.send(f"{number}", queue=number % 7, tag="even", key=f"k{number}")
                case 1:
                    await producer.send(b"", key=b"\xff", priority=7, subpriority=number % 256, ttl_ms=10**9)
                case 2:
                    await producer.send("x" * number, properties={"a": "b"}, headers=[("h", b"1")], type="kind")
                case 3:
                    await producer.send(b"", key="gone", delete=True)
                case _:
                    await producer.send(f"body {number}", queue=number % 7)


@pytest.mark.parametrize("most", [1_000_000, 7, 1])
async def test_a_batch_has_what_messages_have(shared_node: NodeProcess, topic_name: str, most: int) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=7)
        await write_all_kinds(client, topic_name)
        async with Consumer(client, topic_name) as one, Consumer(client, topic_name) as other:
            expected: list[Message] = []
            while len(expected) < 300:
                expected += await one.poll()
            found = await batches_of(other, 300, most)
            assert by_queue([message for batch in found for message in batch.messages()]) == by_queue(expected)
            assert dict(one.positions) == dict(other.positions)
            for batch in found:
                messages = batch.messages()
                assert batch.queues.tolist() == [message.queue for message in messages]
                assert batch.offsets.tolist() == [message.offset for message in messages]
                assert batch.lengths.tolist() == [len(message.body) for message in messages]
                assert batch.keys == [message.key for message in messages]
                assert batch.tags == [message.tag for message in messages]
                assert batch.types == [message.type for message in messages]
                assert batch.deletes.tolist() == [message.delete for message in messages]
                assert [batch.body(row).tobytes() for row in range(len(batch))] == [
                    message.body for message in messages
                ]
                for copied in (batch.copy(), pickle.loads(pickle.dumps(batch))):
                    assert copied.messages() == messages
                    assert len(copied.payload) == int((batch.ends - batch.heads).sum())
                with pytest.raises(ValueError, match="read-only"):
                    batch.offsets[0] = 1


async def test_the_ways_of_reading_take_turns(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=3)
        async with Producer(client, topic_name) as producer:
            await (await producer.send_many([f"{number}" for number in range(900)], queue=1))
        async with Consumer(client, topic_name, group=topic_name, queues=[1]) as consumer:
            offsets: list[int] = []
            while len(offsets) < 600:
                offsets += [message.offset for message in await consumer.poll(10)]
                batch = await consumer.poll_batch(7)
                assert batch is not None
                offsets += batch.offsets.tolist()
            assert offsets == list(range(len(offsets))) and consumer.positions[1] == len(offsets)
            await consumer.commit()
            consumer.seek(1, 3)
            batch = await consumer.poll_batch(5)
            assert batch is not None and batch.offsets.tolist() == [3, 4, 5, 6, 7]
            consumer.pause([1])
            assert await consumer.poll_batch(timeout_ms=50) is None
            consumer.resume([1])
            batch = await consumer.poll_batch(5)
            assert batch is not None and batch.offsets.tolist() == [8, 9, 10, 11, 12]
        async with Consumer(client, topic_name, group=topic_name, queues=[1]) as consumer:
            batch = await consumer.poll_batch()
            assert batch is not None and int(batch.offsets[0]) == len(offsets)


async def test_filters_are_obeyed(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=7)
        await write_all_kinds(client, topic_name)
        async with Consumer(client, topic_name, tag="even") as consumer:
            found = await batches_of(consumer, 50)
            assert [tag for batch in found for tag in batch.tags] == ["even"] * 50
        async with Consumer(client, topic_name, filter="priority > 3") as consumer:
            found = await batches_of(consumer, 50)
            assert {value for batch in found for value in batch.priorities.tolist()} == {7}


async def test_compressed_batches_and_deleted_messages(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        async with Producer(client, topic_name, codec=Codec.ZSTD) as producer:
            await (await producer.send_many([f"{number:050}" for number in range(100)]))
        await client.delete_messages(topic_name, [(0, 5), (0, 50)])
        async with Consumer(client, topic_name) as consumer:
            found = await batches_of(consumer, 98)
            offsets = [offset for batch in found for offset in batch.offsets.tolist()]
            assert offsets == [offset for offset in range(100) if offset not in (5, 50)]
            assert [int(body) for batch in found for body in batch.bodies()] == offsets


async def test_named_queues(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues="named")
        async with Producer(client, topic_name) as producer:
            for number in range(60):
                await producer.send(f"{number}", queue=f"q{number % 5}")
        async with Consumer(client, topic_name, queues=["q1", "q3"]) as consumer:
            found = await batches_of(consumer, 24)
            messages = [message for batch in found for message in pickle.loads(pickle.dumps(batch)).messages()]
            assert all(isinstance(message, NamedMessage) for message in messages)
            assert sorted((message.queue_name, message.text()) for message in messages) == sorted(
                (f"q{number % 5}", f"{number}") for number in range(60) if number % 5 in (1, 3)
            )


def test_the_blocking_face(shared_node: NodeProcess, topic_name: str) -> None:
    with sync.Client(shared_node.url) as client:
        client.create_topic(topic_name)
        with sync.Producer(client, topic_name) as producer:
            producer.send_many([f"{number}" for number in range(500)]).wait()
        with sync.Consumer(client, topic_name) as consumer:
            assert [message.offset for message in consumer.poll(3)] == [0, 1, 2]
            offsets: list[int] = []
            while len(offsets) < 497:
                batch = consumer.poll_batch(100)
                assert batch is not None
                offsets += batch.offsets.tolist()
            assert offsets == list(range(3, 500))
            assert consumer.poll_batch(timeout_ms=0) is None and consumer.positions[0] == 500


async def test_arrow(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=2)
        async with Producer(client, topic_name) as producer:
            for number in range(40):
                await producer.send(f"{number}", key=f"k{number}" if number % 20 == 3 else None)
        async with Consumer(client, topic_name) as consumer:
            tables = [batch.to_arrow() for batch in await batches_of(consumer, 40)]
        table = pa.concat_tables(tables)
        table.validate(full=True)
        assert sorted(int(body) for body in table["body"].to_pylist()) == list(range(40))
        assert sorted(key for key in table["key"].to_pylist() if key) == [b"k23", b"k3"]
        assert table["topic"].to_pylist() == [topic_name] * 40
        assert "queue_name" not in table.column_names


async def test_rows_of_a_named_topic_say_the_names_of_their_queues(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues="named")
        async with Producer(client, topic_name) as producer:
            for number in range(30):
                await producer.send(f"{number}", queue=f"agent.{number % 7}")
        async with Consumer(client, topic_name, pattern="agent.*") as consumer:
            for batch in await batches_of(consumer, 30):
                table = batch.to_arrow()
                assert table["queue_name"].to_pylist() == batch.queue_names
                assert batch.queue_names == [f"agent.{int(body) % 7}" for body in batch.bodies()]


async def test_limits_are_named(shared_node: NodeProcess, topic_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        async with Consumer(client, topic_name) as consumer:
            with pytest.raises(InvalidRequest, match="max_messages"):
                await consumer.poll_batch(0)
            monkeypatch.setattr(message_columns, "np", None)
            with pytest.raises(InvalidRequest, match=r"numpy.*lsmq\[columns\]"):
                await consumer.poll_batch()


TOPIC = Topic(name="t", id=9, queues=4, options={}, created_ms=0, routes=())


def columns_of(packed: bytes, spans: dict[int, tuple[int, int]]) -> MessageBatch:
    return batch_of(list(split_batches(packed)), TOPIC, spans)


def test_rows_of_other_topics_and_outside_the_spans_are_passed_over() -> None:
    body = b"abcdefgh"
    packed = encode_batch(
        8,
        {
            Column.TOPIC: [9, 9, 9, 9, 9, 8, 8, 9],
            Column.QUEUE: [1, 1, 1, 2, 3, 1, 2, 3],
            Column.OFFSET: [4, 5, 6, 1 << 40, 7, 5, 1, 8],
            Column.LENGTH: 1,
            Column.FLAGS: [0, 0, 0, 0, 1, 0, 0, 8],
        },
        body,
    )
    spans = {3: (0, 100), 1: (5, 6), 2: (0, 1 << 41)}
    found = columns_of(packed + packed, spans)
    assert found.bodies() == [b"b", b"d", b"h"] * 2
    assert found.queues.tolist() == [1, 2, 3] * 2 and found.offsets.tolist() == [5, 1 << 40, 8] * 2
    assert found.messages() == [
        message for each in split_batches(packed + packed) for message in each.messages("t", 9, spans)
    ]
    assert found[1:3].bodies() == [b"d", b"h"] and found[found.queues == 3].bodies() == [b"h"] * 2
    assert sorted(found[:3].next_offsets()) == [(1, 6), (2, (1 << 40) + 1), (3, 9)]
    assert found.payload.obj is not None and len(found.payload) == 2 * len(packed)
    assert len(columns_of(packed, {})) == 0 and columns_of(packed, {}).messages() == []


def test_a_header_that_cannot_be_read_is_told_when_it_is_looked_at() -> None:
    columns: dict[int, Any] = {Column.QUEUE: 0, Column.OFFSET: [3, 4], Column.LENGTH: 2, Column.HEADER_LENGTH: [0, 1]}
    found = columns_of(encode_batch(2, columns, b"ab\xc1d"), {0: (0, 9)})
    assert found.bodies() == [b"ab", b"d"]
    with pytest.raises(InvalidBatch, match="offset 4 of queue 0 of topic 't' cannot be read"):
        _ = found.keys
    with pytest.raises(InvalidBatch, match="add up"):
        columns_of(encode_batch(2, columns, b"abc"), {0: (0, 9)})
    with pytest.raises(InvalidBatch, match="longer than the record"):
        columns_of(encode_batch(2, columns | {Column.HEADER_LENGTH: [0, 3]}, b"abcd"), {0: (0, 9)})


def test_a_message_is_what_it_was() -> None:
    builder = BatchBuilder()
    builder.add(1, b"body", key="k", tag="t", properties={"a": "b"}, priority=3)
    [message] = RecordBatch(builder.build()).messages("topic", 9)
    expected = Message("topic", 1, 0, 9, b"body", "k", "t", 3, {"a": "b"}, 0)
    assert message == expected and repr(message) == repr(expected) and type(message) is Message
    assert pickle.loads(pickle.dumps(message)) == expected
    with pytest.raises(AttributeError):
        message.offset = 4  # type: ignore[misc]
    assert not hasattr(message, "__dict__") and sys.getsizeof(message) == sys.getsizeof(expected)


def test_what_is_shown_of_many_messages_is_one_line(shared_node: NodeProcess, topic_name: str) -> None:
    with sync.Client(shared_node.url) as client:
        client.create_topic(topic_name)
        with sync.Producer(client, topic_name) as producer:
            sent = producer.send_batch(["two"] * 300).result()
        assert repr(sent) == "<SentBatch: 300 messages, of which 0 were dropped>"
        with sync.Consumer(client, topic_name) as consumer:
            batch = consumer.poll_batch()
        assert repr(batch) == f"<MessageBatch of topic {topic_name!r}: 300 messages, 900 bytes of bodies>"
        with sync.WorkQueue(client, topic_name, topic_name) as work:
            task = work.poll(1)[0]
            assert repr(task) == repr(task._async) and f"topic={topic_name!r}" in repr(task)
