"""Streams in a real Spark, from a real node: where they start and go on, and what goes wrong with them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from lsmq.sync import Client, Producer
from lsmq_pipeline.offsets import from_document
from support.node_process import NodeProcess
from support.spark_topic import SparkTopic, StreamFiles, numbers
from support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark-topics")]


def test_a_stream_goes_on_where_it_was_and_takes_so_much_at_a_time(topic: SparkTopic, files: StreamFiles) -> None:
    topic.send(250)
    group = f"{topic.name}-g"
    frame = topic.stream(maxMessagesPerTrigger=100, startingOffsets="earliest", group=group)
    batches = files.take(frame)
    assert max(batches) <= 100 and sum(batches) == 250
    topic.send(50, first=250)
    files.take(frame)
    assert files.numbers() == list(range(300))
    logs = sorted((files.checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    last = json.loads(logs[-1].read_text().splitlines()[-1])
    assert sum(topic.client.offsets(topic.name).latest) == 300
    assert last["topics"][topic.name]["queues"] == 4
    committed = topic.client.committed_offsets(group, topic.name)
    assert sum(committed.values()) == 300, "the group tells others how far the stream is, its last batch too"


def test_a_stream_of_assigned_queues_takes_small_batches_when_too_few_have_waited_for_long(
    topic: SparkTopic, files: StreamFiles
) -> None:
    topic.send(80)
    assigned = json.dumps({topic.name: [1, 3]})
    options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": 5, "maxTriggerDelay": "0ms"}
    frame = topic.stream(topic="", assign=assigned, **options)
    writer = frame.writeStream.format("parquet").option("path", str(files.directory / "files"))
    query = writer.option("checkpointLocation", str(files.checkpoint)).start()
    try:
        query.processAllAvailable()
        topic.send(8, first=80)
        query.processAllAvailable()
        source = query.lastProgress["sources"][0]
    finally:
        query.stop()
    expected = topic.read(topic="", assign=assigned)
    assert files.numbers() == numbers(expected)
    told = (json.loads(source[name]) for name in ("endOffset", "latestOffset"))
    end, latest = (from_document(document)[topic.name].offsets for document in told)
    assert (end[[1, 3]] == latest[[1, 3]]).all() and (end[[0, 2]] == 0).all(), "progress tells how far it is"
    # What the pages say that Spark has no place for: with a Spark that has, they are to change.
    assert "PythonMicroBatchStream" in source["description"] and source["metrics"] == {}


def test_only_appending_is_taken_and_foreach_batch_writes_what_an_update_changed(
    topic: SparkTopic, files: StreamFiles
) -> None:
    source = replace(topic, name=f"{topic.name}-in")
    source.send(40)
    topic.create()
    totals = source.stream(startingOffsets="earliest").groupBy("key").count()
    rows = totals.selectExpr("key", "cast(count as string) body")
    for mode, told in (("complete", "replace all before it"), ("update", "(?i)update")):
        writer = rows.writeStream.outputMode(mode).option("checkpointLocation", str(files.directory / mode))
        into = writer.format("lsmq").options(url=topic.url, topic=topic.name)
        with pytest.raises(Exception, match=told):
            into.trigger(availableNow=True).start().awaitTermination()

    def write(batch: DataFrame, number: int) -> None:
        for _ in range(2):
            topic.write(batch.sortWithinPartitions("key"), queryId=f"{topic.name}-{number}")

    writer = rows.writeStream.outputMode("update").option("checkpointLocation", str(files.checkpoint))
    writer.foreachBatch(write).trigger(availableNow=True).start().awaitTermination()
    assert sorted((row.key, int(row.body)) for row in topic.read().collect()) == [(f"key-{key}", 5) for key in range(8)]


@pytest.mark.part(1)
def test_a_stream_from_topic_to_topic_is_exact_over_a_replay(topic: SparkTopic, files: StreamFiles) -> None:
    source = replace(topic, name=f"{topic.name}-in")
    source.send(300)
    topic.create(queues=3)

    def copy() -> None:
        frame = source.stream(maxMessagesPerTrigger=100, minPartitions=3, startingOffsets="earliest")
        query = (
            frame.select("key", "tag", "body")
            .writeStream.format("lsmq")
            .options(url=topic.url, topic=topic.name, batchMessages="20")
            .option("checkpointLocation", str(files.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    copy()
    assert numbers(topic.read()) == list(range(300))
    # As if the driver had died after the last batch was written and before that was noted.
    files.forget_batches_from(max(int(path.name) for path in (files.checkpoint / "commits").glob("[0-9]*")))
    copy()
    assert numbers(topic.read()) == list(range(300))


def test_the_order_of_each_key_outlives_more_tasks_than_queues(topic: SparkTopic, files: StreamFiles) -> None:
    source = replace(topic, name=f"{topic.name}-in")
    source.create(queues=2)
    with Producer(source.client, source.name) as producer:
        for number in range(6000):
            producer.send(str(number), key=f"key-{number % 8}")
    topic.create(queues=3)
    frame = source.stream(minPartitions=6, startingOffsets="earliest").select("key", "body")
    writer = frame.writeStream.format("lsmq").options(url=topic.url, topic=topic.name, batchMessages="50")
    query = writer.option("checkpointLocation", str(files.checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    rows = topic.read().select("key", "queue", "offset", "body").collect()
    for key in {row.key for row in rows}:
        found = sorted((row.queue, row.offset, int(row.body)) for row in rows if row.key == key)
        assert [number for _, _, number in found] == list(range(int(key[4:]), 6000, 8))


def test_the_start_of_a_stream_adds_nothing_to_what_all_streams_share(
    spark: SparkSession, topic: SparkTopic, files: StreamFiles
) -> None:
    """Spark adds to it without a lock, and two streams that start at once would spoil it."""
    sources = spark._jsparkSession.sessionState().dataSourceManager()
    shared = sources.lookupDataSource("lsmq").dataSourceCls().envVars()
    topic.send(20)
    before = {str(name): str(value) for name, value in shared.items()}
    files.take(topic.stream(startingOffsets="earliest"))
    after = {str(name): str(value) for name, value in shared.items()}
    assert after.keys() == before.keys()
    assert after["SPARK_PYTHON_RUNTIME"], "a stream has set it"
    assert "SPARK_PYTHON_RUNTIME" not in spark.sparkContext.environment


def test_a_stream_whose_topic_was_made_anew_says_so(topic: SparkTopic, files: StreamFiles) -> None:
    topic.send(20)
    files.take(topic.stream(startingOffsets="earliest"))
    topic.client.delete_topic(topic.name)
    topic.send(5, first=100)
    with pytest.raises(Exception, match="deleted and made anew"):
        files.take(topic.stream(startingOffsets="earliest"))
    files.take(topic.stream(startingOffsets="earliest", failOnDataLoss="false"))
    assert files.numbers() == [*range(20), *range(100, 105)]


def test_a_first_batch_that_is_repeated_begins_where_it_began_or_says_what_is_gone(
    topic: SparkTopic, files: StreamFiles
) -> None:
    topic.send(80)
    frame = topic.stream(startingOffsets="earliest", maxMessagesPerTrigger=40)
    files.take(frame)
    files.forget_batches_from(0)
    topic.trim(before=3)
    with pytest.raises(Exception, match=r"was to be read at 0, its earliest is 3.*failOnDataLoss"):
        files.take(frame)
    files.take(topic.stream(startingOffsets="earliest", failOnDataLoss="false"))
    assert files.numbers()[-1] == 79


def test_a_first_batch_from_the_latest_on_is_repeated_as_it_was(topic: SparkTopic, files: StreamFiles) -> None:
    topic.send(40)
    frame = topic.stream()
    files.take(frame)
    files.forget_batches_from(0)
    topic.send(40, first=40)
    files.take(frame)
    assert files.numbers() == list(range(40, 80)), "where the query began is not asked anew"


def test_a_topic_that_came_later_is_repeated_from_where_it_began(topic: SparkTopic, files: StreamFiles) -> None:
    first, second = (replace(topic, name=f"{topic.name}-{part}") for part in "ab")
    pattern = {"topic": "", "topicPattern": "{topic}-.", "startingOffsets": "earliest"}
    first.send(20)
    files.take(topic.stream(**pattern))
    second.send(40, first=20)
    files.take(topic.stream(**pattern))
    last = max(int(path.name) for path in (files.checkpoint / "offsets").glob("[0-9]*"))
    files.forget_batches_from(last)
    second.trim(before=2)
    with pytest.raises(Exception, match=r"was to be read at 0, its earliest is 2.*failOnDataLoss"):
        files.take(topic.stream(**pattern))
    second.client.delete_topic(second.name)
    with pytest.raises(Exception, match=r"deleted before all of it was read.*failOnDataLoss"):
        files.take(topic.stream(**pattern))


def test_a_checkpoint_is_refused_to_a_query_of_another_topic(topic: SparkTopic, files: StreamFiles) -> None:
    other = replace(topic, name=f"{topic.name}-other")
    topic.send(10)
    other.send(10)
    files.take(topic.stream(startingOffsets="earliest"))
    with pytest.raises(Exception, match=f"reads topic '{topic.name}'; this one reads {other.name}.*checkpoint of its"):
        files.take(other.stream(startingOffsets="earliest", failOnDataLoss="false"))


def test_a_stream_whose_topic_was_deleted_says_so_or_goes_on_without(topic: SparkTopic, files: StreamFiles) -> None:
    kept = replace(topic, name=f"{topic.name}-kept")
    topic.send(10)
    kept.send(10, first=10)
    both = {"topic": f"{topic.name},{kept.name}", "startingOffsets": "earliest"}
    files.take(topic.stream(**both))
    topic.client.delete_topic(topic.name)
    kept.send(10, first=20)
    with pytest.raises(Exception, match=f"topic '{topic.name}' was deleted.*failOnDataLoss"):
        files.take(topic.stream(**both))
    files.take(topic.stream(**both, failOnDataLoss="false"))
    assert files.numbers() == list(range(30))
    kept.client.delete_topic(kept.name)
    files.take(topic.stream(**both, failOnDataLoss="false"))


def test_a_stream_starts_at_a_time_and_goes_on_from_its_checkpoint(topic: SparkTopic, files: StreamFiles) -> None:
    topic.send(100)
    boundary_ms = max(row.ms for row in topic.read().selectExpr("unix_millis(stored_time) as ms").collect()) + 1
    eventually(lambda: time.time() * 1000 > boundary_ms, "the clock has gone on")
    topic.send(20, first=100)
    moment = datetime.fromtimestamp(boundary_ms / 1000, UTC).isoformat(timespec="milliseconds")
    # What there is is taken by this trigger, however few they are.
    frame = topic.stream(startingTimestamp=moment, minMessagesPerTrigger=1000)
    files.take(frame)
    assert files.numbers() == list(range(100, 120))
    topic.send(10, first=120)
    files.take(frame)
    assert files.numbers() == list(range(100, 130))


def test_a_stream_of_which_retention_took_messages_says_so_or_goes_on_with_the_others(
    spark: SparkSession, make_node: Callable[..., NodeProcess], files: StreamFiles
) -> None:
    node = make_node(memtable_bytes=64 * 1024, max_message_bytes=32 * 1024, retention_interval_ms=100).start()
    with Client(node.url) as client:
        topic = SparkTopic(spark, client, node.url, "short")
        client.create_topic("short", queues=1, retention_bytes=100_000)
        with Producer(client, "short") as producer:
            producer.send("0")
        files.take(topic.stream(startingOffsets="earliest"))
        with Producer(client, "short", batch_bytes=16_000) as producer:
            for number in range(1, 200):
                producer.send(f"{number:<4000}")
        eventually(lambda: client.offsets("short").earliest[0] > 1, "retention has taken messages")
    with pytest.raises(Exception, match=r"queue 0 was to be read at 1, its earliest is \d+.*failOnDataLoss"):
        files.take(topic.stream(startingOffsets="earliest"))
    files.take(topic.stream(startingOffsets="earliest", failOnDataLoss="false"))
    found = files.numbers()
    assert found[0] == 0 and found[1:] == list(range(found[1], 200)) and found[1] > 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topic": "not-there"}, "UnknownTopic.*not-there"),
        ({"startingOffsets": '{"{topic}": {"0": 99}}'}, "was to be read at 99, its latest is .*failOnDataLoss"),
        ({"endingTimestamp": "1"}, "a stream has no end"),
    ],
)
def test_a_stream_that_cannot_be_says_why(
    topic: SparkTopic, files: StreamFiles, options: dict[str, str], text: str
) -> None:
    topic.send(10)
    with pytest.raises(Exception, match=text):
        files.take(topic.stream(**options))
