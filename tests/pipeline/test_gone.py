"""What is gone between the plan of a read and the read itself, and nothing is left behind it: against a real node."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from lsmq.sync import Client, Producer
from lsmq.topics import Topic
from lsmq_pipeline.batch_reader import LsmqReader
from lsmq_pipeline.client import PipelineClient
from lsmq_pipeline.errors import DataLoss
from lsmq_pipeline.options import read_options
from lsmq_pipeline.schema import message_schema
from lsmq_pipeline.stream_reader import LsmqStreamReader
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


@pytest.mark.parametrize("queues", [1, "named"])
def test_a_topic_that_goes_while_a_pattern_is_looked_up_is_none_of_it(
    shared_node: NodeProcess, client: Client, topic_name: str, monkeypatch: pytest.MonkeyPatch, queues: int | str
) -> None:
    goes, stays, listed = f"{topic_name}-a", f"{topic_name}-b", PipelineClient.topics
    options = {"url": shared_node.url, "topicPattern": f"{topic_name}-."}

    def gone_once_listed(cluster: PipelineClient, *given: Any) -> list[Topic]:
        found = listed(cluster, *given)
        client.delete_topic(goes)
        return found

    monkeypatch.setattr(PipelineClient, "topics", gone_once_listed)
    for streaming in (False, True):
        for topic in (goes, stays):
            client.create_topic(topic, queues=queues)
            with Producer(client, topic) as producer:
                producer.send("x", queue="a" if queues == "named" else 0)
        if streaming:
            reader = LsmqStreamReader(read_options(options, streaming=True), message_schema())
            assert reader.initialOffset()["topics"].keys() == {stays}
            reader.stop()
        else:
            batch = LsmqReader(read_options(options), message_schema())
            assert read(batch, list(batch.partitions()), "topic") == {stays: 1}
