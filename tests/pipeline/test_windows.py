"""How much of a split is held at a time, whatever its messages are like: against a real node."""

from __future__ import annotations

import pytest

from lsmq.record_batch import Column
from lsmq.sync import Client, Producer
from lsmq_pipeline import fetch
from lsmq_pipeline.client import PipelineClient
from lsmq_pipeline.fetch import FetchPlan, SplitReader
from lsmq_pipeline.options import read_options
from lsmq_pipeline.splits import Portion, plan
from support.node_process import NodeProcess

KIB = 1 << 10
QUEUES = 40


@pytest.mark.parametrize("large", [range(QUEUES), range(10, 12), range(10)])
def test_a_split_of_many_queues_is_not_held_as_a_whole_where_messages_are_large(
    shared_node: NodeProcess, client: Client, topic_name: str, monkeypatch: pytest.MonkeyPatch, large: range
) -> None:
    monkeypatch.setattr(fetch, "WINDOW_BYTES", 128 * KIB)
    client.create_topic(topic_name, queues=QUEUES)
    with Producer(client, topic_name) as producer:
        for number in range(20 * QUEUES):
            queue = number % QUEUES
            producer.send(b"x" * (4 * KIB if queue in large else 10), queue=queue)
    connection = read_options({"url": shared_node.url, "topic": topic_name}).connection
    how = FetchPlan(fail_on_data_loss=True, read_from=None, fetch_bytes=64 * KIB, deadline_ms=60_000)
    with PipelineClient(connection) as cluster:
        topic = cluster.topic(topic_name)
        bounds = cluster.bounds(topic)
        splits = plan(
            [Portion(topic, bounds.earliest, bounds.latest)],
            min_splits=1,
            max_messages=1 << 20,
            max_bytes=1 << 30,
            whole_queues=True,
        )
        for split in splits:
            found, largest = [], 0
            for records in SplitReader(cluster, split, how).records():
                largest = max(largest, len(records.payload))
                order = records.order()
                places = list(
                    zip(records.columns[Column.QUEUE].tolist(), records.columns[Column.OFFSET].tolist(), strict=True)
                )
                found += places if order is None else [places[place] for place in order.tolist()]
            assert found == [(queue, offset) for queue in split.queues.tolist() for offset in range(20)]
            assert largest <= (128 + 64) * KIB
