"""How rows are cut into record batches."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from lsmq.sync import Client, Consumer
from lsmq_pipeline.cluster import Cluster
from lsmq_pipeline.options import write_options
from lsmq_pipeline.sending import TopicWriter, WriterName
from support.node_process import NodeProcess

KIB = 1024


def test_no_batch_is_larger_than_the_nodes_take(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node(memtable_bytes=256 * KIB, segment_bytes=256 * KIB, max_message_bytes=64 * KIB).start()
    bodies = [bytes([number]) * 50 * KIB for number in range(10)]
    with Client(node.url) as client:
        assert client.create_topic("small", queues=1).max_batch_bytes == 128 * KIB
        options = write_options({"url": node.url, "topic": "small"})
        assert options.batch_bytes > 128 * KIB
        with Cluster(options.connection) as cluster:
            writer = TopicWriter(cluster, options, WriterName("query", 0, 0))
            writer.write(pa.record_batch({"body": pa.array(bodies, pa.binary())}))
            written = writer.finish()
        assert (written.messages, written.batches) == (10, 5), "two fit into a batch"
        found: list[bytes] = []
        with Consumer(client, "small", start="earliest") as consumer:
            while len(found) < len(bodies):
                found += [message.body for message in consumer.poll(10, 1000)]
    assert found == bodies
