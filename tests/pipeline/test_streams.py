"""Streams in a real Spark, from a real node: where they start and go on, and what goes wrong with them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lsmq.sync import Client, Producer
from support.node_process import NodeProcess
from support.spark_rows import numbers, send
from support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow


def run(frame: DataFrame, checkpoint: Path, path: Path) -> list[int]:
    """Run a stream into Parquet files until it has read all there is; the number of rows of each batch."""
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(checkpoint))
        .option("path", str(path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [progress["numInputRows"] for progress in query.recentProgress]


def test_a_stream_goes_on_where_it_was_and_takes_so_much_at_a_time(
    spark: SparkSession, client: Client, shared_node: NodeProcess, topic_name: str, tmp_path: Path
) -> None:
    send(client, topic_name, 250)
    options = {"url": shared_node.url, "topic": topic_name, "startingOffsets": "earliest", "group": f"{topic_name}-g"}
    frame = spark.readStream.format("lsmq").options(maxMessagesPerTrigger="100", **options).load()
    batches = run(frame, tmp_path / "checkpoint", tmp_path / "files")
    assert max(batches) <= 100 and sum(batches) == 250
    send(client, topic_name, 50, first=250)
    run(frame, tmp_path / "checkpoint", tmp_path / "files")
    assert numbers(spark.read.parquet(str(tmp_path / "files"))) == list(range(300))
    logs = sorted((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    last = json.loads(logs[-1].read_text().splitlines()[-1])
    assert sum(client.offsets(topic_name).latest) == 300
    assert last["topics"][topic_name]["queues"] == 4
    assert client.committed_offsets(f"{topic_name}-g", topic_name), "the group tells others how far the stream is"


def test_a_stream_from_topic_to_topic_is_exact_over_a_replay(
    spark: SparkSession,
    client: Client,
    shared_node: NodeProcess,
    read: Callable[..., DataFrame],
    topic_name: str,
    tmp_path: Path,
) -> None:
    send(client, f"{topic_name}-in", 300)
    client.create_topic(topic_name, queues=3)
    source = {"url": shared_node.url, "topic": f"{topic_name}-in", "startingOffsets": "earliest"}

    def copy() -> None:
        frame = spark.readStream.format("lsmq").options(maxMessagesPerTrigger="100", minPartitions="3", **source).load()
        query = (
            frame.select("key", "tag", "body")
            .writeStream.format("lsmq")
            .options(url=shared_node.url, topic=topic_name, batchMessages="20")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    copy()
    assert numbers(read()) == list(range(300))
    # As if the driver had died after the last batch was written and before that was noted.
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for suffix in ("", ".crc"):
        (commits[-1].parent / f"{'.' if suffix else ''}{commits[-1].name}{suffix}").unlink(missing_ok=True)
    copy()
    assert numbers(read()) == list(range(300))


def test_a_stream_whose_topic_was_made_anew_says_so(
    spark: SparkSession, client: Client, shared_node: NodeProcess, topic_name: str, tmp_path: Path
) -> None:
    send(client, topic_name, 20)
    options = {"url": shared_node.url, "topic": topic_name, "startingOffsets": "earliest"}
    run(spark.readStream.format("lsmq").options(**options).load(), tmp_path / "c", tmp_path / "f")
    client.delete_topic(topic_name)
    send(client, topic_name, 5, first=100)
    frame = spark.readStream.format("lsmq").options(**options)
    with pytest.raises(Exception, match="deleted and made anew"):
        run(frame.load(), tmp_path / "c", tmp_path / "f")
    run(frame.option("failOnDataLoss", "false").load(), tmp_path / "c", tmp_path / "f")
    assert numbers(spark.read.parquet(str(tmp_path / "f"))) == [*range(20), *range(100, 105)]


def test_a_stream_starts_at_a_time_and_goes_on_from_its_checkpoint(
    spark: SparkSession, client: Client, shared_node: NodeProcess, topic_name: str, tmp_path: Path
) -> None:
    send(client, topic_name, 100)
    stored = spark.read.format("lsmq").options(url=shared_node.url, topic=topic_name).load()
    boundary_ms = max(row.ms for row in stored.selectExpr("unix_millis(stored_time) as ms").collect()) + 1
    eventually(lambda: time.time() * 1000 > boundary_ms, "the clock has gone on")
    send(client, topic_name, 20, first=100)
    moment = datetime.fromtimestamp(boundary_ms / 1000, UTC).isoformat(timespec="milliseconds")
    options = {"url": shared_node.url, "topic": topic_name, "startingTimestamp": moment}
    frame = spark.readStream.format("lsmq").options(**options).load()
    run(frame, tmp_path / "checkpoint", tmp_path / "files")
    assert numbers(spark.read.parquet(str(tmp_path / "files"))) == list(range(100, 120))
    send(client, topic_name, 10, first=120)
    run(frame, tmp_path / "checkpoint", tmp_path / "files")
    assert numbers(spark.read.parquet(str(tmp_path / "files"))) == list(range(100, 130))


def test_a_stream_of_which_retention_took_messages_says_so_or_goes_on_with_the_others(
    spark: SparkSession, make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    node = make_node(memtable_bytes=64 * 1024, max_message_bytes=32 * 1024, retention_interval_ms=100).start()
    options = {"url": node.url, "topic": "short", "startingOffsets": "earliest"}
    with Client(node.url) as client:
        client.create_topic("short", queues=1, retention_bytes=100_000)
        with Producer(client, "short") as producer:
            producer.send("0")
        run(spark.readStream.format("lsmq").options(**options).load(), tmp_path / "c", tmp_path / "f")
        with Producer(client, "short", batch_bytes=16_000) as producer:
            for number in range(1, 200):
                producer.send(f"{number:<4000}")
        eventually(lambda: client.offsets("short").earliest[0] > 1, "retention has taken messages", 60)
    frame = spark.readStream.format("lsmq").options(**options)
    with pytest.raises(Exception, match=r"queue 0 was to be read at 1, its earliest is \d+.*failOnDataLoss"):
        run(frame.load(), tmp_path / "c", tmp_path / "f")
    run(frame.option("failOnDataLoss", "false").load(), tmp_path / "c", tmp_path / "f")
    found = numbers(spark.read.parquet(str(tmp_path / "f")))
    assert found[0] == 0 and found[1:] == list(range(found[1], 200)) and found[1] > 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topic": "not-there"}, "UnknownTopic.*not-there"),
        ({"startingOffsets": '{{"{topic}": {{"0": 99}}}}'}, "was to be read at 99, its latest is .*failOnDataLoss"),
        ({"endingTimestamp": "1"}, "a stream has no end"),
    ],
)
def test_a_stream_that_cannot_be_says_why(
    spark: SparkSession,
    client: Client,
    shared_node: NodeProcess,
    topic_name: str,
    tmp_path: Path,
    options: dict[str, str],
    text: str,
) -> None:
    send(client, topic_name, 10)
    given = {"url": shared_node.url, "topic": topic_name}
    given |= {name: value.format(topic=topic_name) for name, value in options.items()}
    with pytest.raises(Exception, match=text):
        run(spark.readStream.format("lsmq").options(**given).load(), tmp_path / "c", tmp_path / "f")
