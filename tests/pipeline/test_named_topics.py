"""Named topics in a real Spark: read in batches, chosen by name or pattern, and written by a column."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from lsmq.sync import Producer
from support.spark_topic import SparkTopic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark")]

NAMES = [f"agents.{number}.{box}" for number in range(20) for box in ("inbox", "outbox")]


@pytest.fixture
def named(topic: SparkTopic) -> SparkTopic:
    """Each of ``NAMES`` holds its name and its offset, five times."""
    topic.client.create_topic(topic.name, queues="named")
    with Producer(topic.client, topic.name) as producer:
        for offset in range(5):
            for name in NAMES:
                producer.send(f"{name} {offset}", queue=name)
    return topic


def bodies(frame: Any) -> list[str]:
    return sorted(bytes(row.body).decode() for row in frame.select("body").collect())


def test_a_batch_reads_queues_with_their_names(named: SparkTopic) -> None:
    rows = named.read(includeQueueNames="true", minPartitions=3).collect()
    assert Counter(row.queue_name for row in rows) == dict.fromkeys(NAMES, 5)
    for row in rows:
        assert bytes(row.body).decode() == f"{row.queue_name} {row.offset}"
    assert "queue_name" not in named.read().columns
    one = named.read("queue_name string, body binary", queueNames='["agents.7.inbox", "no.such"]')
    assert bodies(one) == [f"agents.7.inbox {offset}" for offset in range(5)]
    some = named.read(queuePattern="agents.*.inbox", minPartitions=2)
    assert bodies(some) == sorted(f"{name} {offset}" for name in NAMES if name.endswith("inbox") for offset in range(5))
    named.client.trim_queue(named.name, NAMES[0], 2)
    assert bodies(named.read(queueNames=f'["{NAMES[0]}"]')) == [f"{NAMES[0]} {offset}" for offset in range(2, 5)]


def test_rows_are_written_to_queues_by_name_once(named: SparkTopic, spark: SparkSession) -> None:
    rows = [(f"new.{number % 7}", str(number), f"key-{number}") for number in range(300)]
    frame = spark.createDataFrame(rows, "queue_name string, body string, key string").coalesce(2)
    for _ in range(2):
        named.write(frame, queryId="once", batchMessages=20)
    found = named.read(queuePattern="new.*", includeQueueNames="true").collect()
    assert sorted((row.queue_name, bytes(row.body).decode(), row.key) for row in found) == sorted(rows)
    copied = named.read("queue_name string, body binary", queueNames='["new.3"]')
    named.write(copied.selectExpr("concat('copy.', queue_name) as queue_name", "body"))
    assert bodies(named.read(queueNames='["copy.new.3"]')) == bodies(copied)


def test_what_cannot_be_obeyed_is_refused(named: SparkTopic, spark: SparkSession) -> None:
    def refused(words: str, frame: Any) -> None:
        with pytest.raises(Exception, match=words):
            frame.collect()

    refused("take queueNames", named.read(queues="0-1"))
    refused("from the earliest to the latest", named.read(startingTimestamp=1))
    with pytest.raises(Exception, match="whole part"):
        named.read(queuePattern="a*").collect()
    with pytest.raises(Exception, match="each row needs one"):
        named.write(spark.createDataFrame([("x",)], "body string"))
    with pytest.raises(Exception, match="not by streams"):
        named.stream().writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()
    other = f"{named.name}-n"
    named.client.create_topic(other)
    refused("take option queues", named.read(topic=other, queueNames='["a"]'))
    with pytest.raises(Exception, match="take column 'queue'"):
        named.write(spark.createDataFrame([("a", "x")], "queue_name string, body string"), topic=other)
