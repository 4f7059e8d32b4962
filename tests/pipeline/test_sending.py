"""How rows are cut into record batches, and what becomes of a repeat that is none."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from lsmq.errors import InvalidRequest, QuotaExceeded, Unavailable
from lsmq.sync import Client, Consumer, DelayedMessages, Producer
from lsmq.topics import Topic
from lsmq_pipeline import sending
from lsmq_pipeline.client import PipelineClient
from lsmq_pipeline.errors import InputChanged, SchemaMismatch
from lsmq_pipeline.options import write_options
from lsmq_pipeline.sending import TopicWriter, WriterName, Written
from support.node_process import NodeProcess

KIB = 1024


def write(node: NodeProcess, topic: str, bodies: list[bytes], *, batch_messages: int = 100) -> Written:
    """Write rows as a task would, under the same name each time."""
    return write_rows(node, topic, {"body": pa.array(bodies, pa.binary())}, batch_messages=batch_messages)


def write_rows(
    node: NodeProcess,
    topic: str,
    columns: dict[str, Any],
    *,
    batch_messages: int = 100,
    query: str = "query",
    deadline_ms: int = 60_000,
) -> Written:
    given = {"url": node.url, "topic": topic, "batchMessages": f"{batch_messages}", "deadlineMs": f"{deadline_ms}"}
    options = write_options(given)
    with PipelineClient(options.connection) as cluster:
        writer = TopicWriter(cluster, options, WriterName(query, 0, 0))
        writer.write(pa.record_batch(columns))
        return writer.finish()


def read(client: Client, topic: str, count: int, **where: Any) -> list[str]:
    found: list[str] = []
    with Consumer(client, topic, start="earliest", **where) as consumer:
        while len(found) < count:
            found += [message.text() for message in consumer.poll(10, 1000)]
    return found


@pytest.mark.parametrize("again", [[b"1", b"2"], [b"1", b"2", b"3", b"4"], [b"1", b"3", b"2"], [b"1", b"2", b"4"]])
def test_a_repeat_with_other_rows_is_told_as_changed_input_and_stores_nothing(
    shared_node: NodeProcess, client: Client, topic_name: str, again: list[bytes]
) -> None:
    client.create_topic(topic_name, queues=1)
    write(shared_node, topic_name, [b"1", b"2", b"3"])
    assert write(shared_node, topic_name, [b"1", b"2", b"3"]).repeats == 1
    for _ in range(2):
        with pytest.raises(InputChanged, match=r"what its first attempt stored.*Nothing was stored twice"):
            write(shared_node, topic_name, again)
    assert list(client.offsets(topic_name).latest) == [3]


def test_a_repeat_cut_into_other_batches_is_told_as_changed_input(
    shared_node: NodeProcess, client: Client, topic_name: str
) -> None:
    client.create_topic(topic_name, queues=1)
    rows = [bytes([number]) for number in range(40)]
    write(shared_node, topic_name, rows, batch_messages=10)
    with pytest.raises(InputChanged):
        write(shared_node, topic_name, rows, batch_messages=20)
    assert list(client.offsets(topic_name).latest) == [40]


@pytest.mark.parametrize("name", ["topic", "key", "tag", "type", "queue_name", "dedupe_id", "properties", "headers"])
def test_text_that_is_none_is_refused_by_its_column(
    shared_node: NodeProcess, client: Client, topic_name: str, name: str
) -> None:
    """Spark's strings may hold any bytes: ``cast(X'FF' as string)``."""
    client.create_topic(topic_name, queues=1)
    offsets, values = pa.array([0, 1, 2], pa.int32()), pa.py_buffer(b"a\xff")
    text = pa.StringArray.from_buffers(2, offsets.buffers()[1], values)
    column = {
        "properties": pa.MapArray.from_arrays(offsets, pa.array(["n", "n"]), text),
        "headers": pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays([text, text], ["key", "value"])),
    }.get(name, text)
    with pytest.raises(SchemaMismatch, match=f"column '{name}' has bytes that are no text .* index 1"):
        write_rows(shared_node, "" if name == "topic" else topic_name, {"body": text, name: column})
    assert sum(client.offsets(topic_name).latest) == 0


@pytest.mark.parametrize("key", ["keyed", None])
def test_a_repeat_goes_where_the_first_attempt_went_though_the_topic_has_grown_since(
    make_node: Callable[..., NodeProcess], key: str | None
) -> None:
    node, queues = make_node(shards=4).start(), [2, 9, 64]
    columns = {
        "body": pa.array([f"{number}" for number in range(100)]),
        "key": pa.array([key and f"{key}{number}" for number in range(100)], pa.string()),
    }
    with Client(node.url) as client:
        client.create_topic("grows", queues=queues[0])
        for more in queues[1:]:
            write_rows(node, "grows", columns, batch_messages=10, query="first")
            client.grow_topic("grows", more)
        assert write_rows(node, "grows", columns, batch_messages=10, query="first").repeats >= 10
        assert sum(client.offsets("grows").latest) == 100
        before = client.offsets("grows").latest
        write_rows(node, "grows", columns, batch_messages=10, query="another")
        after = client.offsets("grows").latest
        assert sum(after) == 200 and sum(high > low for low, high in zip(before, after, strict=True)) > 2


def test_a_repeat_that_has_not_heard_that_the_topic_grew_stores_nothing(
    shared_node: NodeProcess, client: Client, topic_name: str
) -> None:
    client.create_topic(topic_name, queues=2)
    columns = {"body": pa.array([f"{number}" for number in range(100)])}
    with PipelineClient(write_options({"url": shared_node.url}).connection) as cluster:
        before = cluster.topic(topic_name)
    client.grow_topic(topic_name, 64)
    write_rows(shared_node, topic_name, columns, batch_messages=10)

    class Behind(PipelineClient):
        """Asks a node that knows the topic as it was."""

        def topic(self, name: str) -> Topic:
            return before

    options = write_options({"url": shared_node.url, "topic": topic_name, "batchMessages": "10"})
    with Behind(options.connection) as cluster:
        writer = TopicWriter(cluster, options, WriterName("query", 0, 0))
        with pytest.raises(Unavailable, match=r"has 2 queues, .* were spread over 64"):
            writer.write(pa.record_batch(columns))
    assert write_rows(shared_node, topic_name, columns, batch_messages=10).repeats >= 10
    assert sum(client.offsets(topic_name).latest) == 100


def test_record_batches_are_the_same_however_the_rows_arrive(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node(shards=2).start()
    columns = {
        "body": pa.array([b"0123456789"[: (number + 1) % 2 * 10] for number in range(1_200)], pa.binary()),
        "queue": pa.array([number // 2 % 6 for number in range(1_200)], pa.int32()),
    }
    with Client(node.url) as client:
        client.create_topic("grows", queues=2)
        for more in (4, 6):
            client.grow_topic("grows", more)
        assert len(client.topic("grows").routes) > 2, "several stretches of queues lie on a shard"
        options = write_options({"url": node.url, "topic": "grows", "batchMessages": "100", "batchBytes": "50"})
        for step in (1_200, 400, 7):
            with PipelineClient(options.connection) as cluster:
                writer = TopicWriter(cluster, options, WriterName("query", 0, 0))
                rows = pa.record_batch(columns)
                for first in range(0, len(rows), step):
                    writer.write(rows.slice(first, step))
                written = writer.finish()
            assert written.repeats == (0 if step == 1_200 else written.batches)
        assert sum(client.offsets("grows").latest) == 1_200


def test_what_a_task_keeps_is_bounded_over_all_topics_and_shards_and_repeats_are_cut_alike(
    make_node: Callable[..., NodeProcess],
) -> None:
    node, limit, topics = make_node(shards=3).start(), 2_000, 5
    columns = {
        "topic": pa.array([f"t{number * number % 23 % topics}" for number in range(1_000)]),
        "body": pa.array([b"x" * (number % 97) for number in range(1_000)], pa.binary()),
        "queue": pa.array([number % 6 for number in range(1_000)], pa.int32()),
    }
    with Client(node.url) as client, patch.object(sending, "MAX_WAITING_BYTES", limit):
        for number in range(topics):
            client.create_topic(f"t{number}", queues=6)
        options = write_options({"url": node.url, "batchBytes": "500"})
        for step in (1_000, 400, 7, 1):
            with PipelineClient(options.connection) as cluster:
                writer, rows = TopicWriter(cluster, options, WriterName("query", 0, 0)), pa.record_batch(columns)
                for first in range(0, len(rows), step):
                    writer.write(rows.slice(first, step))
                    assert sum(lane.waiting_bytes for lane in writer._lanes.values()) <= limit
                written = writer.finish()
            assert written.messages == 1_000 and written.repeats == (0 if step == 1_000 else written.batches)
        assert sum(sum(client.offsets(f"t{number}").latest) for number in range(topics)) == 1_000


def test_no_batch_is_larger_than_the_nodes_take(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node(memtable_bytes=256 * KIB, segment_bytes=256 * KIB, max_message_bytes=64 * KIB).start()
    bodies = [bytes([number]) * 50 * KIB for number in range(10)]
    with Client(node.url) as client:
        assert client.create_topic("small", queues=1).max_batch_bytes == 128 * KIB
        options = write_options({"url": node.url, "topic": "small"})
        assert options.batch_bytes > 128 * KIB
        with PipelineClient(options.connection) as cluster:
            writer = TopicWriter(cluster, options, WriterName("query", 0, 0))
            writer.write(pa.record_batch({"body": pa.array(bodies, pa.binary())}))
            written = writer.finish()
        assert (written.messages, written.batches) == (10, 5), "two fit into a batch"
        found: list[bytes] = []
        with Consumer(client, "small", start="earliest") as consumer:
            while len(found) < len(bodies):
                found += [message.body for message in consumer.poll(10, 1000)]
    assert found == bodies


@pytest.mark.parametrize("limit", [{"max_messages": 4}, {"queue_max_messages": 4}, {"queue_max_bytes": 400}])
def test_no_batch_is_larger_than_a_topic_or_queue_can_ever_hold(
    shared_node: NodeProcess, client: Client, topic_name: str, limit: dict[str, int]
) -> None:
    client.create_topic(topic_name, queues=1, **limit)
    columns = {"body": pa.array([f"{number}".ljust(100) for number in range(6)])}
    with pytest.raises(QuotaExceeded, match="with these it would be over its limit"):
        write_rows(shared_node, topic_name, columns, deadline_ms=1_000)
    assert list(client.offsets(topic_name).latest) == [4]
    client.trim_topic(topic_name, {0: 4})
    assert write_rows(shared_node, topic_name, columns).repeats == 1, "and it goes on once there is room"
    assert list(client.offsets(topic_name).latest) == [6]


@pytest.mark.parametrize("queues", [2, "named"])
def test_rows_that_come_later_are_pending_once_and_come_when_they_are_due(
    shared_node: NodeProcess, client: Client, topic_name: str, queues: Any
) -> None:
    client.create_topic(topic_name, queues=queues)
    tomorrow = round(time.time() * 1000) + 86_400_000
    columns = {
        "body": pa.array(["at once", "was due", "soon", "in a day", "tomorrow"]),
        "delay_ms": pa.array([0, None, 300, 86_400_000, None], pa.int64()),
        "deliver_at_ms": pa.array([None, 1_700_000_000_000, None, None, tomorrow], pa.int64()),
        "ttl_ms": pa.array([None, None, None, 3_600_000, None], pa.int64()),
        "queue_name" if queues == "named" else "queue": pa.array(["ann"] * 5 if queues == "named" else [1] * 5),
    }
    assert write_rows(shared_node, topic_name, columns).messages == 5
    assert read(client, topic_name, 3) == ["at once", "was due", "soon"]
    assert write_rows(shared_node, topic_name, columns).repeats == 1, "as after a task that died is tried again"
    pending = list(DelayedMessages(client, topic_name).read())
    due = {each.message.text(): each.due_ms for each in pending}
    assert due.keys() == {"in a day", "tomorrow"} and due["tomorrow"] == tomorrow <= due["in a day"]
    assert {each.message.queue_name for each in pending} == ({"ann"} if queues == "named" else {None})


@pytest.mark.parametrize("queues", [64, "named"])
def test_a_row_with_an_id_is_stored_once_whoever_sends_it(
    shared_node: NodeProcess, client: Client, topic_name: str, queues: Any
) -> None:
    client.create_topic(topic_name, queues=queues, dedupe_window_ms="forever")
    ids = [f"order-{number}" for number in range(20)]
    named = {"queue_name": pa.array(["ann", "bob"] * 10)} if queues == "named" else {}
    for number, query in enumerate(("first", "second")):
        columns = {"body": pa.array([f"{number}"] * 20), "dedupe_id": pa.array(ids), **named}
        assert write_rows(shared_node, topic_name, columns, query=query).messages == 20
    with Producer(client, topic_name) as producer:
        for at, dedupe_id in enumerate(ids):
            where = {"queue": ("ann", "bob")[at % 2]} if queues == "named" else {}
            assert producer.send_and_wait("2", dedupe_id=dedupe_id, **where).duplicate
    assert read(client, topic_name, 20) == ["0"] * 20
    if queues == 64:
        assert sum(client.offsets(topic_name).latest) == 20


def test_an_id_that_no_topic_would_remember_is_refused(
    shared_node: NodeProcess, client: Client, topic_name: str
) -> None:
    client.create_topic(topic_name)
    with pytest.raises(InvalidRequest, match=r"has no dedupe_window_ms.*make it with one"):
        write_rows(shared_node, topic_name, {"body": pa.array(["x"]), "dedupe_id": pa.array(["a"])})
