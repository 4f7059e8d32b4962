"""What is gone between the plan of a read and the read itself, and nothing is left behind it: against a real node."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from lsmq.sync import Client, Producer
from lsmq_pipeline.batch_reader import LsmqReader
from lsmq_pipeline.errors import DataLoss
from lsmq_pipeline.options import read_options
from lsmq_pipeline.schema import message_schema
from support.node_process import NodeProcess


def planned(node: NodeProcess, topic: str, fail_on_data_loss: str) -> tuple[LsmqReader, list[Any]]:
    options = {"url": node.url, "topic": topic, "failOnDataLoss": fail_on_data_loss, "deadlineMs": "20000"}
    reader = LsmqReader(read_options(options), message_schema(include_queue_names=True))
    return reader, list(reader.partitions())


def read(reader: LsmqReader, parts: list[Any], column: str) -> Counter[Any]:
    return Counter(value for part in parts for batch in reader.read(part) for value in batch.column(column).to_pylist())


@pytest.mark.parametrize("queues", [1, 3])
def test_a_queue_of_which_nothing_is_left_is_a_loss_or_passed_over(
    shared_node: NodeProcess, client: Client, topic_name: str, queues: int
) -> None:
    client.create_topic(topic_name, queues=queues)
    with Producer(client, topic_name) as producer:
        for number in range(10 * queues):
            producer.send(str(number), queue=number % queues)
    strict, lax = planned(shared_node, topic_name, "true"), planned(shared_node, topic_name, "false")
    client.purge_topic(topic_name, queues=[0])
    with pytest.raises(DataLoss, match="queue 0 was to be read at 0, its earliest is 10"):
        read(*strict, "queue")
    assert read(*lax, "queue") == dict.fromkeys(range(1, queues), 10)


@pytest.mark.parametrize("deleted", [True, False])
def test_a_named_queue_of_which_nothing_is_left_is_a_loss_or_passed_over(
    shared_node: NodeProcess, client: Client, topic_name: str, deleted: bool
) -> None:
    client.create_topic(topic_name, queues="named")
    with Producer(client, topic_name) as producer:
        for number in range(30):
            producer.send(str(number), queue="abc"[number % 3])
    strict, lax = planned(shared_node, topic_name, "true"), planned(shared_node, topic_name, "false")
    if deleted:
        client.delete_queue(topic_name, "b")
    else:
        client.trim_queue(topic_name, "b", 10)
    with pytest.raises(DataLoss, match="was to be read at 0, its earliest is 10"):
        read(*strict, "queue_name")
    assert read(*lax, "queue_name") == {"a": 10, "c": 10}
