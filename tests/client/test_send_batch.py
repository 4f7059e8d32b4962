"""Messages as columns on their way in: what ``send_batch`` stores is what ``send`` would, by the same rules."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lsmq import (
    Client,
    ClientClosed,
    Codec,
    Consumer,
    InvalidQueueName,
    InvalidRequest,
    Message,
    MessageTooLarge,
    Producer,
    SentBatch,
    UnknownQueue,
    message_columns,
    sync,
)
from lsmq._column_builder import ColumnBuilder, encode_array
from lsmq.batch_builder import encode_batch, join_batch
from lsmq.record_batch import Column, RecordBatch, key_hash
from lsmq_lab.local_cluster import LocalCluster
from support.node_process import NodeProcess
from support.waiting import PATIENCE_S, comes_true

ROWS = 400


async def read(client: Client, topic: str, count: int) -> dict[tuple[int, int], Message]:
    """Everything in the topic, by place, once it is ``count`` messages."""
    found: dict[tuple[int, int], Message] = {}
    async with asyncio.timeout(PATIENCE_S), Consumer(client, topic) as consumer:
        while len(found) < count:
            found |= {(message.queue, message.offset): message for message in await consumer.poll(timeout_ms=1_000)}
    assert sum((await client.offsets(topic)).latest) == count
    return found


def key_of(row: int) -> str | bytes:
    return b"\xff%d" % (row % 30) if row % 3 else f"k{row % 40}"


def columns() -> dict[str, list[Any]]:
    return {
        "keys": [None if row % 11 == 0 else key_of(row) for row in range(ROWS)],
        "tags": ["even" if row % 2 == 0 else None for row in range(ROWS)],
        "types": [f"kind {row % 3}" if row % 5 else None for row in range(ROWS)],
        "properties": [{"row": str(row)} if row % 4 == 0 else None for row in range(ROWS)],
        "priorities": [row % 256 for row in range(ROWS)],
        "subpriorities": [row % 13 for row in range(ROWS)],
        "ttl_ms": [10**9 if row % 7 == 0 else 0 for row in range(ROWS)],
    }


def parts(message: Message) -> tuple[Any, ...]:
    expires = message.expires_ms and message.expires_ms - message.stored_ms
    ranks = message.priority, message.subpriority
    return message.body, message.key, message.tag, message.type, dict(message.properties), ranks, expires


def in_bytes(message: Message) -> tuple[Any, ...]:
    key = message.key.encode() if isinstance(message.key, str) else message.key
    return message.body, key or b"", message.tag, message.priority


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
async def test_rows_have_what_messages_have_that_are_sent_one_by_one(
    shared_node: NodeProcess, topic_name: str, codec: Codec
) -> None:
    bodies, given = [b"%d" % row * (row % 5) for row in range(ROWS)], columns()
    async with Client(shared_node.url) as client:
        for topic in (topic_name, topic_name + "-one"):
            await client.create_topic(topic, queues=7)
        async with Producer(client, topic_name + "-one") as producer:
            for row in range(ROWS):
                options = {name: values[row] for name, values in given.items()}
                await producer.send(
                    bodies[row],
                    key=options["keys"],
                    tag=options["tags"],
                    type=options["types"],
                    properties=options["properties"],
                    priority=options["priorities"],
                    ttl_ms=options["ttl_ms"] or None,
                    subpriority=options["subpriorities"],
                )
        async with Producer(client, topic_name, codec=codec) as producer:
            receipt = await producer.send_batch(bodies, **given)
            sent = await receipt
        assert len(receipt) == len(sent) == ROWS and receipt.done() and receipt.failed_rows().tolist() == []
        found = await read(client, topic_name, ROWS)
        other = await read(client, topic_name + "-one", ROWS)
        in_order = [found[place] for place in zip(sent.queues.tolist(), sent.offsets.tolist(), strict=True)]
        assert [message.body for message in in_order] == bodies
        assert sent.id(17) == in_order[17].id and (await client.message(sent.id(17))).body == bodies[17]
        assert sorted(map(repr, map(parts, in_order))) == sorted(map(repr, map(parts, other.values())))
        # Keys decide queues as they do for send, and messages of a queue are in the order of the rows.
        queues = {message.key: message.queue for message in other.values() if message.key is not None}
        assert all(queues[message.key] == message.queue for message in in_order if message.key is not None)
        assert len(set(queues.values())) > 3
        by_queue = defaultdict(list)
        for message in in_order:
            by_queue[message.queue].append(message.offset)
        assert all(offsets == sorted(offsets) for offsets in by_queue.values())
        assert (await client.find_messages(topic_name, key="k7")).messages[0].key == "k7"
        assert len((await client.find_messages(topic_name, tag="even", limit=1000)).messages) == ROWS // 2


def as_buffer(bodies: list[bytes]) -> dict[str, Any]:
    return {"bodies": bytearray(b"".join(bodies)), "lengths": np.array(list(map(len, bodies)), np.uint16)}


def as_slice_of_chunks(bodies: list[bytes]) -> dict[str, Any]:
    whole = pa.chunked_array([[b"no"], bodies[:10], bodies[10:], [b"neither"]], pa.binary())
    return {"bodies": whole.slice(1, len(bodies))}


WAYS = {
    "list": lambda bodies: {"bodies": bodies},
    "text": lambda bodies: {"bodies": [body.decode() for body in bodies]},
    "iterator": lambda bodies: {"bodies": iter(bodies)},
    "objects": lambda bodies: {"bodies": np.array(bodies, object)},
    "buffer": as_buffer,
    "memoryview": lambda bodies: as_buffer(bodies) | {"bodies": memoryview(b"".join(bodies))},
    "bytes": lambda bodies: as_buffer(bodies) | {"bodies": np.frombuffer(b"".join(bodies), np.uint8)},
    "binary": lambda bodies: {"bodies": pa.array(bodies)},
    "large": lambda bodies: {"bodies": pa.array(bodies, pa.large_binary())},
    "string": lambda bodies: {"bodies": pa.array([body.decode() for body in bodies]).slice(0)},
    "view": lambda bodies: {"bodies": pa.array(bodies, pa.binary_view())},
    "chunks": as_slice_of_chunks,
    "table": lambda bodies: {"bodies": pa.table({"body": bodies, "tag": ["t"] * len(bodies)})},
}


@pytest.mark.parametrize("keyed", [False, True], ids=["plain", "keyed"])
@pytest.mark.parametrize("way", WAYS)
async def test_bodies_may_be_given_in_many_ways(
    shared_node: NodeProcess, topic_name: str, way: str, keyed: bool
) -> None:
    bodies = [f"body {row} ".encode() * (row % 4) for row in range(100)]
    more: dict[str, Any] = {"keys": pa.array([f"k{row}" for row in range(100)])} if keyed else {}
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=3)
        async with Producer(client, topic_name, batch_bytes=900) as producer:
            sent = await (await producer.send_batch(**WAYS[way](bodies), **more))
        found = await read(client, topic_name, 100)
        assert [found[place].body for place in zip(sent.queues.tolist(), sent.offsets.tolist(), strict=True)] == bodies
        assert producer.stats.stored >= 6  # They were cut where a batch was full.


async def test_numbers_of_one_width_need_one_length(shared_node: NodeProcess, topic_name: str) -> None:
    values = np.arange(50_000, dtype="<i8")
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=2)
        async with Producer(client, topic_name) as producer:
            receipt = await producer.send_batch(values, lengths=8, queues=np.arange(50_000) % 2)
            values[:] = 0  # What was given is not kept.
            sent = await receipt
        assert sent.queues.tolist() == [0, 1] * 25_000 and sent.offsets.tolist() == [row // 2 for row in range(50_000)]
        seen: list[int] = []
        async with asyncio.timeout(PATIENCE_S), Consumer(client, topic_name, queues=[1]) as consumer:
            while len(seen) < 25_000:
                batch = await consumer.poll_batch()
                assert batch is not None
                seen += np.frombuffer(b"".join(batch.bodies()), "<i8").tolist()
        assert seen == list(range(1, 50_000, 2))


async def test_what_was_read_goes_on_as_a_table(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        for topic in (topic_name, topic_name + "-copy"):
            await client.create_topic(topic, queues=4)
        async with Producer(client, topic_name) as producer:
            bodies = [b"%d" % row for row in range(ROWS)]
            await producer.send_batch(bodies, keys=columns()["keys"], tags="t", priorities=9)
        copied = 0
        async with (
            asyncio.timeout(PATIENCE_S),
            Consumer(client, topic_name) as consumer,
            Producer(client, topic_name + "-copy") as producer,
        ):
            while copied < ROWS:
                batch = await consumer.poll_batch()
                assert batch is not None
                copied += len(batch)
                table = batch.to_arrow()
                with pytest.raises(InvalidRequest, match=r"offset, stored_ms.*table\.select"):
                    await producer.send_batch(table)
                await producer.send_batch(table.select(["body", "queue", "key", "tag", "type", "priority"]))
        one, other = await read(client, topic_name, ROWS), await read(client, topic_name + "-copy", ROWS)
        assert sorted((queue, in_bytes(message)) for (queue, _), message in other.items()) == sorted(
            (queue, in_bytes(message)) for (queue, _), message in one.items()
        )


async def test_the_ways_of_sending_keep_their_order(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=2)
        expected: list[bytes] = []
        async with Producer(client, topic_name) as producer:
            for number in range(60):
                rows = [b"%d.%d" % (number, row) for row in range(number % 4)]
                await producer.send_batch(rows, queues=1)
                await producer.send(b"%d" % number, queue=1)
                await producer.send_many([b"a", b"b"], queue=1)
                expected += [*rows, b"%d" % number, b"a", b"b"]
            await producer.flush()
        found = await read(client, topic_name, len(expected))
        assert [found[1, offset].body for offset in range(len(expected))] == expected


async def test_small_batches_travel_together(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        async with Producer(client, topic_name, linger_ms=60_000) as producer:
            tags = [None, "t"] * 4 + [None]
            receipts = [await producer.send_batch([b"%d" % row], tags=tag) for row, tag in enumerate(tags)]
            await producer.flush()
            assert producer.stats.stored == 1
        assert [(await receipt).offsets.tolist() for receipt in receipts] == [[number] for number in range(9)]
        found = await read(client, topic_name, 9)
        assert [found[0, offset].tag for offset in range(9)] == tags


async def test_queues_by_name(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues="named")
        async with Producer(client, topic_name) as producer:
            names = [f"q{row % 7}" for row in range(100)]
            sent = await (await producer.send_batch([b"%d" % row for row in range(100)], queues=names))
            again = await (await producer.send_batch([b"x", b"y"], queues="q3"))
            with pytest.raises(InvalidRequest, match="say queues="):
                await producer.send_batch([b"x"])
            with pytest.raises(InvalidQueueName, match=r"row 1: .*control"):
                await producer.send_batch([b"x", b"y"], queues=["a", "\n"])
        numbers = {queue.name: queue.number for queue in [await client.queue(topic_name, f"q{at}") for at in range(7)]}
        assert sent.queues.tolist() == [numbers[name] for name in names]
        assert sent.offsets.tolist() == [row // 7 for row in range(100)]
        assert again.queues.tolist() == [numbers["q3"]] * 2 and again.offsets.tolist() == [14, 15]
        assert (await client.message(sent.id(45))).body == b"45"


async def test_long_names_count_for_what_a_batch_may_hold(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues="named")
        async with Producer(client, topic_name, batch_bytes=10_000) as producer:
            names = [f"{row:0>200}" for row in range(300)]
            sent = await (await producer.send_batch(["x"] * 300, queues=names))
            assert producer.stats.stored >= 300 * 249 // 10_000
        assert set(sent.offsets.tolist()) == {0} and len(set(sent.queues.tolist())) == 300


async def test_partitioners_are_asked(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=5)
        choose = lambda key, body, queues: (len(key or "") + len(body)) % queues  # noqa: E731
        async with Producer(client, topic_name, partitioner=choose) as producer:
            bodies, keys = [b"x" * row for row in range(20)], ["abc" if row % 2 else None for row in range(20)]
            sent = await (await producer.send_batch(bodies, keys=keys))
            assert sent.queues.tolist() == [(row + 3 * (row % 2)) % 5 for row in range(20)]
            sent = await (await producer.send_batch(bodies, queues=4))
            assert set(sent.queues.tolist()) == {4}


async def test_rows_without_a_queue_take_turns_by_batch(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=4)
        async with Producer(client, topic_name, batch_bytes=50 * 100) as producer:
            sent = await (await producer.send_batch(b"ab" * 1_000, lengths=2))
        changes = np.flatnonzero(np.diff(sent.queues)) + 1
        assert changes.tolist() == list(range(100, 1_000, 100))
        assert (np.diff(sent.queues[::100]) % 4 == 1).all()


async def test_a_full_buffer_makes_it_wait(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=2)
        async with Producer(client, topic_name, batch_bytes=1_000, max_buffer_bytes=2_000) as producer:
            most = 0

            async def watch() -> None:
                nonlocal most
                while True:
                    most = max(most, producer.buffered_bytes)
                    await asyncio.sleep(0)

            watching = asyncio.create_task(watch())
            keys = [f"{row}" for row in range(2_000)]
            receipts = await asyncio.gather(producer.send_batch(keys, keys=keys), producer.send_batch(keys, queues=0))
            sent: list[SentBatch] = [await receipt for receipt in receipts]
            watching.cancel()
            assert 1_000 < most <= 2_000 and producer.buffered_bytes == 0
        found = await read(client, topic_name, 4_000)
        for each in sent:
            places = zip(each.queues.tolist(), each.offsets.tolist(), strict=True)
            assert [found[place].text() for place in places] == keys


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "body twice": (
        {"bodies": pa.Table.from_arrays([pa.array([b"a"]), pa.array([b"b"])], names=["body", "body"])},
        InvalidRequest,
        "more than one column body",
    ),
    "no order": ({"bodies": {b"a", b"b"}}, InvalidRequest, "type set"),
    "true lengths": ({"bodies": b"abc", "lengths": [True] * 3}, InvalidRequest, "row 0: lengths is True"),
    "true queue": ({"bodies": [b"a"], "queues": True}, InvalidRequest, "queues is of type bool"),
    "no lengths": ({"bodies": b"abc"}, InvalidRequest, "one buffer of 3 bytes without lengths"),
    "no multiple": ({"bodies": b"abc", "lengths": 2}, InvalidRequest, "3 bytes of bodies are no multiple"),
    "sum": ({"bodies": b"abc", "lengths": [1, 1]}, InvalidRequest, "lengths add up to 2; the bodies have 3"),
    "negative": ({"bodies": b"abc", "lengths": [4, -1]}, InvalidRequest, "row 0: lengths is 4; it must be 0 to 3"),
    "not a buffer": ({"bodies": ["a"], "lengths": [1]}, InvalidRequest, "they are for bodies in one buffer"),
    "one body": ({"bodies": "abc"}, InvalidRequest, "bodies is of type str; give a list"),
    "body": ({"bodies": [b"a", 7]}, InvalidRequest, "row 1: body is 7 of type int"),
    "null": ({"bodies": pa.array([b"a", None])}, InvalidRequest, "row 1: the body is null"),
    "ints": ({"bodies": pa.array([1, 2])}, InvalidRequest, "int64 of Arrow"),
    "chunks of ints": ({"bodies": pa.chunked_array([[1], [2]])}, InvalidRequest, "int64 of Arrow"),
    "large": ({"bodies": [b"a", b"x" * 3_000]}, MessageTooLarge, "row 1: the message needs 3000 bytes"),
    "queue": ({"bodies": [b"a", b"b"], "queues": [0, 4]}, UnknownQueue, "row 1: .*queues 0 to 3, not 4"),
    "one queue": ({"bodies": [b"a"], "queues": -1}, UnknownQueue, "queues 0 to 3, not -1"),
    "huge queue": ({"bodies": [b"a"], "queues": [1 << 70]}, InvalidRequest, "row 0: queues is"),
    "float": ({"bodies": [b"a"], "queues": [0.5]}, InvalidRequest, "row 0: queues is 0.5 of type float"),
    "floats": ({"bodies": [b"a"], "queues": np.array([0.5])}, InvalidRequest, "queues is an array of float64"),
    "name": ({"bodies": [b"a"], "queues": "q"}, InvalidRequest, "have numbers"),
    "count": ({"bodies": [b"a"], "keys": ["a", "b"]}, InvalidRequest, "keys has 2 rows, and bodies 1"),
    "key": ({"bodies": [b"a", b"b"], "keys": ["a", 3]}, InvalidRequest, "row 1: key is 3 of type int"),
    "utf8": ({"bodies": [b"a", b"b"], "keys": ["a", "\ud800"]}, InvalidRequest, "row 1: key is text that UTF-8"),
    "tag": ({"bodies": [b"a"], "tags": [b"t"]}, InvalidRequest, "row 0: tag is b't' of type bytes"),
    "type": ({"bodies": [b"a"], "types": [["t"]]}, InvalidRequest, "row 0: type is"),
    "property": ({"bodies": [b"a"], "properties": [{"a": 1}]}, InvalidRequest, "row 0: the property 'a' is 1"),
    "properties": ({"bodies": [b"a"], "properties": ["x"]}, InvalidRequest, "row 0: properties is of type str"),
    "priority": ({"bodies": [b"a"], "priorities": [256]}, InvalidRequest, "row 0: priorities is 256; .* 0 to 255"),
    "priorities": ({"bodies": [b"a"], "priorities": -1}, InvalidRequest, "priorities is -1; it must be 0 to 255"),
    "ttl": ({"bodies": [b"a", b"b"], "ttl_ms": [0, -1]}, InvalidRequest, "row 1: ttl_ms is -1"),
    "no body": ({"bodies": pa.table({"key": ["a"]})}, InvalidRequest, "it must have body"),
    "twice": ({"bodies": pa.table({"body": ["a"], "key": ["a"]}), "keys": "k"}, InvalidRequest, "keys is given beside"),
    "many": ({"bodies": b"x" * 1_000_001, "lengths": 1}, InvalidRequest, "1000001 rows; it takes 1000000"),
}


@pytest.mark.parametrize("case", BAD)
async def test_what_is_wrong_is_named_with_its_row_and_nothing_is_sent(
    shared_node: NodeProcess, topic_name: str, case: str
) -> None:
    given, kind, words = BAD[case]
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=4, max_message_bytes=2_000)
        async with Producer(client, topic_name) as producer:
            with pytest.raises(kind, match=words):
                await producer.send_batch(**given)
            assert producer.buffered_bytes == 0
            for nothing in (
                {"bodies": []},
                {"bodies": b"", "lengths": 8},
                {"bodies": np.zeros(0, "<i8"), "lengths": 8},
                {"bodies": pa.array([], pa.binary())},
                {"bodies": pa.chunked_array([], pa.string())},
                {"bodies": pa.table({"body": pa.array([], pa.string()), "key": pa.array([], pa.string())})},
            ):
                assert len(await (await producer.send_batch(**nothing))) == 0
        with pytest.raises(ClientClosed):
            await producer.send_batch([b"a"])
        assert sum((await client.offsets(topic_name)).latest) == 0


async def test_without_numpy_it_says_what_to_install(
    shared_node: NodeProcess, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_columns, "np", None)
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        async with Producer(client, topic_name) as producer:
            with pytest.raises(InvalidRequest, match=r"send_batch needs numpy.*lsmq\[columns\]"):
                await producer.send_batch([b"a"])


async def test_what_is_dropped_or_fails_is_told_by_row(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=2, queue_max_messages=3, overflow="drop_newest")
        async with Producer(client, topic_name) as producer:
            sent = await (await producer.send_batch([b"%d" % row for row in range(10)], queues=[0, 1] * 5))
            assert sent.dropped.tolist() == [False] * 6 + [True] * 4
            assert sent.offsets.tolist() == [0, 0, 1, 1, 2, 2, -1, -1, -1, -1]
            assert sent.id(9) == "" and sent.id(5)
            producer._max_message_bytes = 1 << 30  # The node is to refuse what the client would have.
            limit = (await client.topic(topic_name)).max_message_bytes
            receipt = await producer.send_batch([b"x" * (limit + 1)], queues=1)
            with pytest.raises(MessageTooLarge):
                await receipt
            assert receipt.failed_rows().tolist() == [0]


@pytest.mark.part(2)
async def test_rows_survive_a_killed_node_once(node: NodeProcess, topic_name: str) -> None:
    count = 60_000
    async with Client(node.url) as client:
        await client.create_topic(topic_name, queues=4)
        async with Producer(client, topic_name, batch_bytes=50_000, max_buffer_bytes=100_000) as producer:
            keys = [f"{row % 500}" for row in range(count)]
            sending = asyncio.create_task(producer.send_batch([b"%d" % row for row in range(count)], keys=keys))
            for _ in range(3):
                enough = producer.stats.stored + 5
                await comes_true(lambda enough=enough: producer.stats.stored >= enough, "batches are stored")
                assert not sending.done()
                node.kill9()
                await asyncio.to_thread(node.start)
            sent = await (await sending)
        assert producer.stats.attempts > producer.stats.stored
        found = await read(client, topic_name, count)
        places = zip(sent.queues.tolist(), sent.offsets.tolist(), strict=True)
        assert [int(found[place].body) for place in places] == list(range(count))
        for queue in range(4):
            rows = [int(found[place].body) for place in sorted(found) if place[0] == queue]
            assert rows == sorted(rows)


@pytest.mark.slow
async def test_rows_of_all_shards_survive_a_killed_leader_once(cluster: LocalCluster) -> None:
    count = 30_000
    async with Client([node.url for node in cluster.plan.nodes]) as client:
        await client.create_topic("rows", queues=12)
        async with Producer(client, "rows", batch_bytes=50_000, max_buffer_bytes=150_000) as producer:
            assert len(producer._range_firsts) > 1
            keys = [f"{row % 500}" for row in range(count)]
            sending = asyncio.create_task(producer.send_batch([b"%d" % row for row in range(count)], keys=keys))
            await comes_true(lambda: producer.stats.stored >= 5, "batches are stored")
            assert not sending.done()
            cluster.kill(next(shard.leader for shard in cluster.status().shards if shard.id == 0))
            sent = await (await sending)
        found = await read(client, "rows", count)
        places = list(zip(sent.queues.tolist(), sent.offsets.tolist(), strict=True))
        assert [int(found[place].body) for place in places] == list(range(count))
        assert {queue for queue, _ in places} == set(range(12))
        assert all(queue == key_hash(key) % 12 for (queue, _), key in zip(places, keys, strict=True))


def test_the_blocking_face(shared_node: NodeProcess, topic_name: str) -> None:
    with sync.Client(shared_node.url) as client:
        client.create_topic(topic_name)
        with sync.Producer(client, topic_name) as producer:
            receipt = producer.send_batch([b"a", b"b"], keys=["k", None], priorities=3)
            assert len(receipt) == 2
            receipt.wait()
            assert receipt.done() and receipt.result().offsets.tolist() == [0, 1]
            assert receipt.failed_rows().tolist() == []


@pytest.mark.parametrize(
    "values",
    [[0, 5], [3, 3, 3], [0, 1 << 33], [1 << 63, 1], [7, 300], [70_000, 3]],
    ids=lambda values: str(max(values)),
)
def test_arrays_are_packed_as_lists_are(values: list[int]) -> None:
    array = np.array(values, np.uint64)
    count = len(values)
    encoded = [(column, encode_array(column, array)) for column in (Column.QUEUE, Column.KEY_HASH)]
    expected = encode_batch(count, {Column.QUEUE: values, Column.KEY_HASH: values, Column.LENGTH: 1}, b"x" * count)
    ordered = sorted([*encoded, (Column.LENGTH, encode_array(Column.LENGTH, 1))])
    assert join_batch(count, [each for _, each in ordered], b"x" * count) == expected


def test_pieces_that_lack_a_column_have_nothing_in_it() -> None:
    builder = ColumnBuilder()
    hashes = np.array([1 << 63], np.uint64)
    builder.add({Column.QUEUE: 3, Column.LENGTH: np.array([1, 2])}, 2, b"abb")
    builder.add({Column.QUEUE: 3, Column.LENGTH: np.array([1]), Column.KEY_HASH: hashes}, 1, b"c")
    builder.add({Column.QUEUE: np.array([4]), Column.LENGTH: np.array([0]), Column.TAG_HASH: 9}, 1, b"")
    packed = builder.build(producer_id=5, producer_epoch=6, sequence=7, position=None, codec=Codec.ZSTD)
    batch = RecordBatch(packed)
    assert (batch.producer_id, batch.producer_epoch, batch.sequence, batch.record_count) == (5, 6, 7, 4)
    assert list(batch.column(Column.QUEUE)) == [3, 3, 3, 4] and list(batch.column(Column.LENGTH)) == [1, 2, 1, 0]
    assert list(batch.column(Column.KEY_HASH)) == [0, 0, 1 << 63, 0]
    assert list(batch.column(Column.TAG_HASH)) == [0, 0, 0, 9]
    assert batch.payload.tobytes() == b"abbc"
