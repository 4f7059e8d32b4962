"""How rows are cut into record batches, and what becomes of a repeat that is none."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from lsmq.sync import Client, Consumer
from lsmq_pipeline.client import PipelineClient
from lsmq_pipeline.errors import InputChanged
from lsmq_pipeline.options import write_options
from lsmq_pipeline.sending import TopicWriter, WriterName, Written
from support.node_process import NodeProcess

KIB = 1024


def write(node: NodeProcess, topic: str, bodies: list[bytes], *, batch_messages: int = 100) -> Written:
    """Write rows as a task would, under the same name each time."""
    options = write_options({"url": node.url, "topic": topic, "batchMessages": str(batch_messages)})
    with PipelineClient(options.connection) as cluster:
        writer = TopicWriter(cluster, options, WriterName("query", 0, 0))
        writer.write(pa.record_batch({"body": pa.array(bodies, pa.binary())}))
        return writer.finish()


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
