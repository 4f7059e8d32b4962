"""Named topics in a real Spark: batches and streams of them, some queues by name, and writing by a column."""

from __future__ import annotations

import re
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from lsmq.sync import Client, Producer
from lsmq_pipeline.reading import SAMPLE_MESSAGES
from support.node_process import NodeProcess
from support.spark_topic import SparkTopic, StreamFiles
from support.waiting import clock_passes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark-topics")]

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
    refused("something of single queues", named.read(startingOffsetsByTimestamp='{"{topic}": {"0": 3}}'))
    refused("offsets by number", named.read(endingOffsets='{"{topic}": {"0": 3}}'))
    with pytest.raises(Exception, match="whole part"):
        named.read(queuePattern="a*").collect()
    with pytest.raises(Exception, match="each row needs one"):
        named.write(spark.createDataFrame([("x",)], "body string"))
    other = f"{named.name}-n"
    named.client.create_topic(other)
    refused("take option queues", named.read(topic=other, queueNames='["a"]'))
    with pytest.raises(Exception, match="take column 'queue'"):
        named.write(spark.createDataFrame([("a", "x")], "queue_name string, body string"), topic=other)


def send(topic: SparkTopic, names: list[str], body: str) -> None:
    with Producer(topic.client, topic.name) as producer:
        for name in names:
            producer.send(f"{name} {body}", queue=name)


def test_a_batch_is_between_two_times(named: SparkTopic) -> None:
    last = max(row.ms for row in named.read().selectExpr("unix_millis(stored_time) as ms").collect())
    clock_passes(last)
    send(named, ["late", NAMES[0]], "x")
    assert bodies(named.read(startingTimestamp=last + 1)) == sorted(["late x", f"{NAMES[0]} x"])
    assert len(bodies(named.read(endingTimestamp=last + 1))) == 5 * len(NAMES)
    assert bodies(
        named.read(startingTimestamp=last + 1, queuePrefix="late", endingTimestamp="2100-01-01T00:00:00Z")
    ) == ["late x"]


def test_queues_that_are_not_asked_for_are_not_read(spark: SparkSession, make_node: Callable[..., NodeProcess]) -> None:
    """The same rows as by a filter of Spark's own, and the node reads no others."""
    node = make_node().start()
    with Client(node.url) as client:
        topic = SparkTopic(spark, client, node.url, "agents")
        client.create_topic("agents", queues="named")
        for number in range(10):
            send(topic, [f"agents.{at}.inbox" for at in range(200)], str(number))

        def read_of_node() -> int:
            with urllib.request.urlopen(f"{node.url}/metrics", timeout=30) as answer:
                found = re.findall(r"^lsmq_store_records_read_total\S* (\S+)$", answer.read().decode(), re.MULTILINE)
            return int(sum(map(float, found)))

        def reads(frame: Any) -> tuple[list[str], int]:
            before = read_of_node()
            return bodies(frame), read_of_node() - before

        def reads_alone(frame: Any, options: dict[str, str], where: str, rows: int) -> None:
            same, count = reads(frame(**options))
            assert same == bodies(frame().where(where)) and len(same) == rows, where
            assert count <= 2 * rows, "besides what is read to plan, only what is asked for"

        def named(**options: str) -> Any:
            return topic.read(includeQueueNames="true", **options)

        reads_alone(named, {"queueNames": "agents.7.inbox"}, "queue_name = 'agents.7.inbox'", 10)
        both = {"queueNames": '["agents.7.inbox", "agents.8.inbox", "x"]'}
        reads_alone(named, both, "queue_name in ('agents.7.inbox', 'agents.8.inbox', 'x')", 20)
        reads_alone(named, {"queuePrefix": "agents.19"}, "queue_name like 'agents.19%'", 110)
        reads_alone(named, {"queuePrefix": "agents.4"}, "startswith(queue_name, 'agents.4')", 110)
        numbered = replace(topic, name="orders")
        client.create_topic("orders", queues=4)
        with Producer(client, "orders") as producer:
            for number in range(2000):
                more = {"tag": f"tag-{number % 50}", "properties": {"n": str(number)}}
                producer.send(str(number), key=f"it's {number % 40}", queue=number % 4, **more)
        queries = (
            ({"tags": "tag-7"}, "tag = 'tag-7'", 40),
            ({"keys": '["it\'s 3", "it\'s 4"]'}, 'key in ("it\'s 3", "it\'s 4")', 100),
            (
                {"keys": "it's 3", "filter": "n < 1000 OR n > 1990"},
                "key = \"it's 3\" and int(properties['n']) < 1000",
                25,
            ),
            ({"filter": "n BETWEEN 100 AND 149"}, "int(properties['n']) between 100 and 149", 50),
        )
        for options, where, rows in queries:
            same, count = reads(numbered.read(**options))
            assert same == bodies(numbered.read().where(where)) and len(same) == rows, where
            assert count <= rows + SAMPLE_MESSAGES * len(client.topic("orders").routes)
        everything, count = reads(topic.read())
        assert len(everything) == 2000 and count >= 2000


def test_a_stream_follows_names_that_come_later(named: SparkTopic, files: StreamFiles) -> None:
    expected = [f"{name} {offset}" for name in NAMES for offset in range(5)]
    options = {"startingOffsets": "earliest", "maxMessagesPerTrigger": 64, "includeQueueNames": "true"}
    batches = files.take(named.stream(**options))
    assert max(batches) <= 64 and sum(batches) == len(expected)
    later = [f"later.{number}" for number in range(50)]
    send(named, [*later, NAMES[3]], "x")
    named.client.delete_queue(named.name, NAMES[5])
    send(named, [NAMES[5]], "again")
    files.take(named.stream(**options))
    expected += [*(f"{name} x" for name in (*later, NAMES[3])), f"{NAMES[5]} again"]
    rows = named.spark.read.parquet(str(files.directory / "files")).collect()
    assert sorted(bytes(row.body).decode() for row in rows) == sorted(expected)
    assert all(bytes(row.body).decode().startswith(f"{row.queue_name} ") for row in rows)
    # As if the driver had died after the last batch was written and before that was noted.
    files.forget_batches_from(max(int(path.name) for path in (files.checkpoint / "commits").glob("[0-9]*")))
    files.take(named.stream(**options))
    rows = named.spark.read.parquet(str(files.directory / "files")).collect()
    assert sorted(bytes(row.body).decode() for row in rows) == sorted(expected)
    assert max(len(path.read_text()) for path in (files.checkpoint / "offsets").glob("[0-9]*")) < 5000


def test_a_stream_from_named_to_named_topic_is_exact_over_a_replay(named: SparkTopic, files: StreamFiles) -> None:
    target = replace(named, name=f"{named.name}-copy")
    named.client.create_topic(target.name, queues="named")

    def copy() -> None:
        frame = named.stream(
            startingOffsets="earliest", queuePrefix="agents.1", includeQueueNames="true", minPartitions=2
        )
        writer = frame.select("queue_name", "body").writeStream.format("lsmq").options(url=named.url, topic=target.name)
        query = writer.option("checkpointLocation", str(files.checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()

    copy()
    send(named, [f"agents.1{number}.new" for number in range(30)], "x")
    copy()
    files.forget_batches_from(max(int(path.name) for path in (files.checkpoint / "commits").glob("[0-9]*")))
    copy()
    wanted = bodies(named.read(queuePrefix="agents.1"))
    assert bodies(target.read()) == wanted and len(wanted) == 5 * 22 + 30
    rows = target.read(includeQueueNames="true").collect()
    assert all(bytes(row.body).decode().startswith(f"{row.queue_name} ") for row in rows)
