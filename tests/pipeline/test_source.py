"""The data source in a real Spark, against a real node: batches, writes, and what goes wrong with them."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lsmq.sync import DelayedMessages, Producer
from support.played_node import played_node
from support.spark_topic import SparkTopic, StreamFiles, numbers
from support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark")]


def test_a_batch_reads_every_message_with_all_its_columns(topic: SparkTopic) -> None:
    topic.send(1000)
    rows = topic.read(minPartitions=5, preserveOrder="false").selectExpr("*", "spark_partition_id() as task").collect()
    assert len({row.task for row in rows}) >= 5
    assert sorted(int(row.body) for row in rows) == list(range(1000))
    for row in rows[::97]:
        message = topic.client.message(row.id)
        assert (row.topic, row.queue, row.offset, row.key, row.tag) == (
            topic.name,
            message.queue,
            message.offset,
            message.key,
            message.tag,
        )
        assert row.properties == dict(message.properties) and bytes(row.body) == message.body
        assert round(row.stored_time.timestamp() * 1000) == message.stored_ms


def test_a_task_finds_everything_imported_and_spark_where_it_is_installed(spark: SparkSession) -> None:
    def look(batches: Any) -> Any:
        import sys

        import pyarrow as pa
        import pyspark

        preloaded = "lsmq_pipeline.batch_reader" in sys.modules
        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict({"preloaded": [preloaded], "place": [pyspark.__file__]})

    row = spark.range(1, numPartitions=1).mapInArrow(look, "preloaded boolean, place string").first()
    assert row is not None and row.preloaded and ".zip" not in row.place


def test_options_narrow_a_batch_down(topic: SparkTopic) -> None:
    topic.send(400)
    boundary_ms = max(row.ms for row in topic.read().selectExpr("unix_millis(stored_time) as ms").collect()) + 1
    eventually(lambda: time.time() * 1000 > boundary_ms, "the clock has gone on")
    topic.send(40, first=400)
    assert numbers(topic.read(startingTimestamp=boundary_ms)) == list(range(400, 440))
    assert numbers(topic.read(endingTimestamp=boundary_ms)) == list(range(400))
    everything = topic.read("queue int, offset long, key string, tag string, body binary").collect()

    def of(condition: Callable[[Any], bool]) -> list[int]:
        return sorted(int(row.body) for row in everything if condition(row))

    assert numbers(topic.read(queues="0-1")) == of(lambda row: row.queue in (0, 1))
    assert numbers(topic.read(keys='["key-3", "key-5"]')) == of(lambda row: row.key in ("key-3", "key-5"))
    assert numbers(topic.read("body binary", tags="tag-2")) == of(lambda row: row.tag == "tag-2")
    starting, ending = json.dumps({topic.name: {"0-3": 10}}), json.dumps({topic.name: {"0-3": 20}})
    limited = topic.read(startingOffsets=starting, endingOffsets=ending, failOnDataLoss="false")
    assert numbers(limited) == of(lambda row: 10 <= row.offset < 20)
    assigned = json.dumps({topic.name: [0, "2-3"]})
    assert numbers(topic.read(topic="", assign=assigned)) == of(lambda row: row.queue != 1)
    since = {"startingOffsetsByTimestamp": json.dumps({topic.name: {"0-1": boundary_ms, "2": 0}})}
    until = {"endingOffsetsByTimestamp": json.dumps({topic.name: {"0": boundary_ms, "3": boundary_ms}})}
    assert numbers(topic.read(**since)) == of(lambda row: row.queue > 1 or int(row.body) >= 400)
    assert numbers(topic.read(**until)) == of(lambda row: row.queue in (1, 2) or int(row.body) < 400)
    assert numbers(topic.read(**since, **until, maxRecordsPerPartition=7, preserveOrder="false")) == of(
        lambda row: (row.queue > 1 or int(row.body) >= 400) and (row.queue in (1, 2) or int(row.body) < 400)
    )
    assert "properties" not in topic.read(includeProperties="false").columns
    assert numbers(topic.read(endingTimestamp="2001-01-01T00:00:00Z")) == []
    assert numbers(topic.read(startingTimestamp="2001-01-01T00:00:00Z", queues="2")) == of(lambda row: row.queue == 2)


PREDICATES = [
    "queue = 1",
    "queue < -1",
    "queue in (0, 3)",
    "offset between 5 and 12",
    "offset >= 1000000",
    "key = 'key-3'",
    "key in ('key-1', 'key-6')",
    "tag = 'tag-2'",
    "tag is null",
    "not (tag <=> 'tag-1')",
    "stored_time < timestamp'1960-01-01'",
    "stored_time >= timestamp'2001-01-01'",
    "body like '%7'",
]
SHAPES = [
    "select * from {t} where {a}",
    "select * from {t} where {a} and ({b} or {c})",
    "select * from {t} where {a} union all select * from {t} where {b} union all select * from {t}",
    "select l.* from {t} l join {t} r on l.queue = r.queue and l.offset = r.offset + 1 where l.{a} and r.{b}",
    "with q as (select * from {t} where {a}) select * from q where {b} union all select * from q where {c}",
    "select * from {t} where {a} and offset < (select max(offset) from {t} where {b})",
    "select * from {t} where {a} and id not in (select id from {t} where {b})",
    "select l.* from (select * from {t} where {a}) l left semi join (select * from {t} where {b}) r on l.key = r.key",
]


def test_a_query_has_the_rows_that_it_has_of_a_copy_whatever_it_filters(topic: SparkTopic, tmp_path: Path) -> None:
    """Unions, self-joins, common table expressions and subqueries of one frame, each scan with filters of its own."""
    topic.send(120)
    frame = topic.read(includeProperties="false")
    frame.write.parquet(str(tmp_path / "copy"))
    topic.spark.read.parquet(str(tmp_path / "copy")).createOrReplaceTempView("copied")
    frame.createOrReplaceTempView("scanned")
    setting = "spark.sql.python.filterPushdown.enabled"
    topic.spark.conf.set(setting, "true")

    def rows(query: str, view: str) -> list[Any]:
        return sorted((row.queue, row.offset) for row in topic.spark.sql(query.replace("{t}", view)).collect())

    @settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(SHAPES), *[st.sampled_from(PREDICATES)] * 3)
    def same(shape: str, a: str, b: str, c: str) -> None:
        parts = {"l.{a}": _of("l", a), "r.{b}": _of("r", b), "{a}": a, "{b}": b, "{c}": c}
        query = shape
        for part, text in parts.items():
            query = query.replace(part, f"({text})")
        assert rows(query, "scanned") == rows(query, "copied"), query

    try:
        same()
    finally:
        topic.spark.conf.unset(setting)


def _of(alias: str, predicate: str) -> str:
    return re.sub(r"\b(queue|offset|key|tag|stored_time|body)\b", rf"{alias}.\1", predicate)


def test_a_pattern_reads_all_topics_it_matches(topic: SparkTopic) -> None:
    for part in ("a", "b", "other"):
        replace(topic, name=f"{topic.name}-{part}").send(10)
    frame = topic.read(topic="", topicPattern="{topic}-.")
    assert {row.topic for row in frame.select("topic").collect()} == {f"{topic.name}-a", f"{topic.name}-b"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topic": "not-there"}, "UnknownTopic.*not-there"),
        ({"topic": "", "topicPattern": "not-[a-z]*"}, "no topic matches the pattern 'not-"),
        ({"startingOffset": "latest"}, "there is no option startingoffset"),
        ({"pushFilters": "true"}, "there is no option pushfilters"),
        ({"startingOffsets": '{"{topic}": {"0": 99}}'}, "failOnDataLoss"),
        ({"deadlineMs": "500", "url": "http://127.0.0.1:9"}, "no connection to http://127.0.0.1:9"),
    ],
)
def test_a_read_that_cannot_be_says_why(topic: SparkTopic, options: dict[str, str], text: str) -> None:
    topic.send(10)
    with pytest.raises(Exception, match=text):
        topic.read(**options).count()


@pytest.mark.parametrize("status", [401, 403])
def test_missing_credentials_are_told_to_who_reads_and_to_who_writes(topic: SparkTopic, status: int) -> None:
    with played_node(lambda method, path: (status, b"credentials, please")) as url:
        with pytest.raises(Exception, match=f"answered {status}: credentials, please"):
            topic.read(url=url).count()
        with pytest.raises(Exception, match=f"answered {status}: credentials, please"):
            topic.write(topic.spark.sql("select 'x' body"), url=url)


def test_a_path_is_refused_by_what_to_say_instead(topic: SparkTopic, files: StreamFiles) -> None:
    topic.send(2)
    options = {"url": topic.url, "topic": topic.name}
    reader = topic.spark.read.format("lsmq").options(**options)
    rows = topic.spark.sql("select 'x' body")
    stream = topic.spark.readStream.format("lsmq").options(**options)
    for path in ("orders", ["orders", "others"]):
        with pytest.raises(Exception, match=r"no paths for reading, and .*orders.* say option topic"):
            reader.load(path).count()
    with pytest.raises(Exception, match="no paths for writing, and 'orders' is one: say option topic"):
        rows.write.format("lsmq").options(**options).mode("append").save("orders")
    into = stream.load().select("body").writeStream.format("lsmq").options(**options)
    with pytest.raises(Exception, match="no paths for writing, and 'orders' is one: say option topic"):
        into.option("checkpointLocation", str(files.checkpoint)).start("orders").awaitTermination()
    with pytest.raises(Exception, match="no paths for reading"):
        files.take(stream.load("orders"))
    assert numbers(topic.read()) == [0, 1], "nothing was written"


def test_a_key_with_a_comma_or_a_space_is_one_key(topic: SparkTopic) -> None:
    topic.create()
    keys = ["a,b", "a", "b", " a", '["a"]']
    with Producer(topic.client, topic.name) as producer:
        for key in keys:
            producer.send(key, key=key)

    def found(text: str) -> list[str]:
        return sorted(row.key for row in topic.read(keys=text).select("key").collect())

    assert found('["a,b"]') == ["a,b"]
    assert found(" a") == [" a"]
    assert found(json.dumps(["a", '["a"]'])) == sorted(["a", '["a"]'])
    with pytest.raises(Exception, match="option keys is 'a,b'; it must be one value, or a JSON array"):
        topic.read(keys="a,b").count()


def test_a_table_of_the_catalogue_is_refused_since_it_would_forget_its_options(
    spark: SparkSession, topic: SparkTopic
) -> None:
    topic.send(10)
    given = f"USING lsmq OPTIONS (url '{topic.url}', topic '{topic.name}')"
    table = f"table_{uuid.uuid4().hex}"
    with pytest.raises(Exception, match="CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE {table} {given}")
    spark.sql(f"CREATE TABLE {table} (topic STRING, body STRING) USING lsmq OPTIONS (url '{topic.url}')")
    try:
        with pytest.raises(Exception, match="CREATE TEMPORARY VIEW"):
            spark.sql(f"INSERT INTO {table} VALUES ('{topic.name}', 'x')")
        with pytest.raises(Exception, match="CREATE TEMPORARY VIEW"):
            spark.sql(f"SELECT * FROM {table}").collect()
    finally:
        spark.sql(f"DROP TABLE {table}")
    spark.sql(f"CREATE TEMPORARY VIEW {table} {given}")
    assert numbers(spark.table(table)) == list(range(10))


def test_out_of_range_offsets_are_moved_inside_when_loss_is_allowed(topic: SparkTopic) -> None:
    topic.send(40)
    frame = topic.read(startingOffsets=json.dumps({topic.name: {"0": 9999}}), failOnDataLoss="false")
    assert {row.queue for row in frame.select("queue").collect()} == {1, 2, 3}


# Writing


def test_rows_are_written_with_key_tag_priority_and_properties(spark: SparkSession, topic: SparkTopic) -> None:
    topic.create()
    rows = spark.sql(
        "select cast(id as string) body, concat('k', id % 5) key, if(id % 2 = 0, 'even', null) tag,"
        " cast(id % 4 as int) queue, 7 priority, map('n', cast(id as string)) properties from range(1000)"
    )
    topic.write(rows, batchMessages=64)
    found = {int(row.body): row for row in topic.read().collect()}
    assert sorted(found) == list(range(1000))
    for number in (0, 501, 999):
        row = found[number]
        assert (row.key, row.queue, row.priority) == (f"k{number % 5}", number % 4, 7)
        assert row.tag == ("even" if number % 2 == 0 else None) and row.properties == {"n": str(number)}


def test_keys_of_bytes_headers_empty_bodies_and_deletions_are_written_and_read_back(
    spark: SparkSession, topic: SparkTopic
) -> None:
    topic.create()
    rows = spark.sql(
        "select * from values"
        " (X'FF01', X'01', array(named_struct('key', 'h', 'value', X'00'), named_struct('key', 'h', 'value', X''))),"
        " (X'FF02', X'', null), (X'FF03', null, null) as t(key, body, headers)"
    )
    topic.write(rows)
    found = {bytes(row.key): row for row in topic.read(binaryKeys="true", includeHeaders="true").collect()}
    assert [pair.asDict() for pair in found[b"\xff\x01"].headers] == [
        {"key": "h", "value": b"\x00"},
        {"key": "h", "value": b""},
    ]
    assert found[b"\xff\x02"].body == b"" and found[b"\xff\x02"].headers is None
    assert found[b"\xff\x03"].body is None
    message = topic.client.message(found[b"\xff\x03"].id)
    assert message.delete and message.key == b"\xff\x03"
    assert len(topic.read("body binary", failOnDataLoss="true").collect()) == 3, (
        "keys that are not asked for harm nobody"
    )
    with pytest.raises(Exception, match="binaryKeys"):
        topic.read().collect()
    assert len(topic.read("body binary", keys="k").collect()) == 0


def test_keys_are_text_or_bytes_as_a_column_says(spark: SparkSession, topic: SparkTopic) -> None:
    topic.create()
    rows = "select * from values ('1', cast('k' as binary), true), ('2', cast('k' as binary), false), ('3', null, null)"
    topic.write(spark.sql(f"{rows} as t(body, key, key_is_text)"))
    found = topic.read("body binary, key binary, key_is_text boolean, id string").collect()
    assert sorted((bytes(row.body), row.key and bytes(row.key), row.key_is_text) for row in found) == [
        (b"1", b"k", True),
        (b"2", b"k", False),
        (b"3", None, None),
    ]
    assert {topic.client.message(row.id).key for row in found} == {"k", b"k", None}
    with pytest.raises(Exception, match=r"key_is_text.*no text"):
        topic.write(spark.sql("select X'FF' key, true key_is_text, 'x' body"))


def test_a_write_that_is_repeated_stores_nothing_twice(spark: SparkSession, topic: SparkTopic) -> None:
    topic.create()
    rows = spark.range(3000, numPartitions=3).selectExpr("cast(id as string) body", "concat('k', id % 50) key")

    def write(frame: DataFrame) -> None:
        topic.write(frame, queryId="load-7", batchMessages=100)

    write(rows)
    write(rows)
    assert numbers(topic.read()) == list(range(3000))
    with pytest.raises(Exception, match="same order each time"):
        write(rows.sortWithinPartitions("body"))
    assert numbers(topic.read()) == list(range(3000)), "another order is found out before it does harm"


def test_a_task_that_dies_is_tried_again_and_stores_nothing_twice(
    spark: SparkSession, topic: SparkTopic, tmp_path: Path
) -> None:
    topic.create()
    marker = str(tmp_path / "died")

    def dying(batches: Any) -> Any:
        import os
        import signal

        for batch in batches:
            yield batch
            if batch.column("id")[-1].as_py() > 2500 and not Path(marker).exists():
                Path(marker).touch()
                os.kill(os.getpid(), signal.SIGKILL)

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "200")
    try:
        rows = spark.range(3000, numPartitions=2).mapInArrow(dying, "id long").selectExpr("cast(id as string) body")
        topic.write(rows, batchMessages=150)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert Path(marker).exists()
    assert numbers(topic.read()) == list(range(3000))


@pytest.mark.parametrize(
    ("select", "options", "text"),
    [
        ("select 'x' text", {}, "no column 'text'"),
        ("select 1 body", {}, "column 'body' is int"),
        ("select 'x' body", {"topic": ""}, "option topic, or a column 'topic'"),
        ("select 'x' body", {"topic": "not-there"}, "not-there"),
        ("select cast(null as string) body", {}, "a null body says that its key is gone"),
        ("select 'x' body, 99 queue", {}, "queues 0 to 3, not 99"),
    ],
)
def test_rows_that_do_not_fit_are_refused(topic: SparkTopic, select: str, options: dict[str, str], text: str) -> None:
    topic.create()
    with pytest.raises(Exception, match=text):
        topic.write(topic.spark.sql(select), **options)


def test_rows_come_later_and_are_stored_once(topic: SparkTopic) -> None:
    """A data frame's columns say when messages come, and which are the same."""
    frame = topic.spark.range(20).selectExpr(
        "cast(id as string) as body",
        "if(id % 4 = 0, unix_millis(current_timestamp()) + 86400000, null) as deliver_at_ms",
        "if(id % 4 = 1, 86400000, null) as delay_ms",
        "if(id % 4 > 1, concat('order-', id), null) as dedupe_id",
    )
    topic.client.create_topic(topic.name, queues=4, dedupe_window_ms="forever")
    topic.write(frame)
    topic.write(frame.where("dedupe_id is not null").orderBy("body"))
    assert numbers(topic.read()) == [number for number in range(20) if number % 4 > 1]
    pending = [int(each.message.text()) for each in DelayedMessages(topic.client, topic.name).read()]
    assert sorted(pending) == [number for number in range(20) if number % 4 < 2]
    with pytest.raises(Exception, match=r"column 'deliver_at_ms' has 1700000000; a time in milliseconds since 1970"):
        topic.write(topic.spark.sql("select 'x' body, 1700000000L deliver_at_ms"))


def test_types_times_to_live_and_conditions_go_both_ways(topic: SparkTopic) -> None:
    """Written by Spark, seen by a consumer, picked by the broker, and read back with their columns."""
    spark = topic.spark
    frame = spark.range(60).selectExpr(
        "cast(id as string) as body",
        "if(id % 3 = 0, 'refund', if(id % 3 = 1, 'charge', null)) as type",
        "if(id % 2 = 0, 3600000L, null) as ttl_ms",
        "map('n', cast(id as string)) as properties",
    )
    topic.create()
    topic.write(frame)
    columns = "type string, expires_time timestamp, stored_time timestamp, properties map<string,string>, body binary"
    rows = {int(row.body): row for row in topic.read(columns).collect()}
    assert len(rows) == 60
    for number, row in rows.items():
        assert row.type == ("refund", "charge", None)[number % 3] and row.properties == {"n": str(number)}
        lives_s = None if row.expires_time is None else (row.expires_time - row.stored_time).total_seconds()
        assert lives_s == (3600 if number % 2 == 0 else None)
    assert numbers(topic.read(types="refund")) == list(range(0, 60, 3))
    assert numbers(topic.read("body binary", types='["refund", "charge"]', filter="n >= 30")) == [
        number for number in range(30, 60) if number % 3 != 2
    ]
    assert numbers(topic.read(filter="type IS NULL AND n BETWEEN 0 AND 9")) == [2, 5, 8]
    with pytest.raises(Exception, match="filter, at character 4"):
        topic.read(filter="n >").collect()
