"""Options, offsets, bounds, splits: pure decisions, without a cluster or Spark."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

from lsmq.topics import Route, Topic
from lsmq_pipeline.client import Bounds
from lsmq_pipeline.errors import DataLoss, InvalidOption, SchemaMismatch
from lsmq_pipeline.fetch import WINDOW_MESSAGES, Windows
from lsmq_pipeline.offsets import TopicOffsets, from_document, pack, to_document, unpack
from lsmq_pipeline.options import Edge, read_options, write_options
from lsmq_pipeline.resolve import EARLIEST, admit, chosen_queues, explicit_offsets, place, times_of
from lsmq_pipeline.schema import check_read_schema, check_write_schema
from lsmq_pipeline.source import LsmqDataSource
from lsmq_pipeline.splits import Portion, Split, plan
from lsmq_pipeline.triggers import TriggerGate

TOPIC = Topic("orders", 7, 8, {}, 0, (Route(0, 4, 0, None, 1), Route(4, 8, 1, None, 1)))


def offsets_of(*values: int) -> Any:
    return np.array(values, np.int64)


# Options


def test_options_are_read_whatever_their_case() -> None:
    options = read_options(
        {"TOPIC": "a, b", "startingoffsets": "earliest", "failOnDataLoss": "False", "queues": "0-2,5"}
    )
    assert options.topics == ("a", "b") and not options.fail_on_data_loss
    assert options.queues == (range(3), range(5, 6))
    assert options.read_from == "follower"
    later, moment = "2013-07-01T09:00:00.0015+09:00", "2013-07-01T00:00:00.001Z"
    moments = (later, moment, "1372636800001", "-5", "1960-01-01T00:00:00Z")
    found = [read_options({"topic": "a", "endingTimestamp": moment}).end.times for moment in moments]
    assert [times and times.everywhere for times in found] == [1372636800001] * 3 + [0, 0]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "topic"),
        ({"topic": "a", "topicPattern": "b"}, "topicPattern"),
        ({"topicPattern": "("}, "topicPattern"),
        ({"topic": "a", "startingOfsets": "latest"}, "startingofsets"),
        ({"topic": "a", "startingOffsets": "latest"}, "startingOffsets"),
        ({"topic": "a", "endingOffsets": "earliest"}, "endingOffsets"),
        ({"topic": "a", "minPartitions": "0"}, "minPartitions"),
        ({"topic": "a", "minPartitions": "many"}, "minPartitions"),
        ({"topic": "a", "fetchBytes": str(2**63)}, "fetchBytes is .*; it must be at most 9223372036854775807"),
        ({"topic": "a", "readFrom": "moon"}, "readFrom"),
        ({"topic": "a", "failOnDataLoss": "perhaps"}, "failOnDataLoss"),
        ({"topic": "a", "startingTimestamp": "yesterday"}, "startingTimestamp"),
        ({"topic": "a", "startingTimestamp": "2013-07-01T00:00:00"}, "startingTimestamp.*zone"),
        ({"topic": "a", "queues": "5-2"}, "queues"),
        ({"topic": "a", "keys": "a,b"}, "keys"),
        ({"topic": "a", "tags": '["a", 1]'}, "tags"),
        ({"topic": "a", "tags": "[]"}, "tags"),
        ({"topic": "a", "endingTimestamp": "99999999999999999999"}, "endingTimestamp"),
        ({"assign": "a"}, "assign.*object of topics"),
        ({"assign": "{}"}, "assign.*object of topics"),
        ({"assign": '{"a": []}'}, "assign.*object of topics"),
        ({"assign": '{"a": [1.5]}'}, "assign.*object of topics"),
        ({"assign": '{"a": ["5-2"]}'}, "assign.*object of topics"),
        ({"assign": '{"a": [0]}', "topic": "a"}, "one of the options topic .* topicPattern and assign"),
        ({"assign": '{"a": [0]}', "queues": "0"}, "queues goes with topic or topicPattern"),
        ({"topic": "a", "startingOffsetsByTimestamp": '{"a": 5}'}, "startingOffsetsByTimestamp.*object of topics"),
        ({"topic": "a", "startingOffsetsByTimestamp": '{"a": {"0": 1.5}}'}, "startingOffsetsByTimestamp"),
        ({"topic": "a", "startingOffsetsByTimestamp": '{"a": {"0": "2013-07-01"}}'}, "startingOffsetsByTimestamp"),
        (
            {"topic": "a", "startingTimestamp": "5", "startingOffsets": "earliest"},
            "startingTimestamp and startingOffsets say the same thing twice",
        ),
        (
            {"topic": "a", "endingTimestamp": "5", "endingOffsetsByTimestamp": "{}"},
            "endingTimestamp and endingOffsetsByTimestamp say the same thing twice",
        ),
        ({"topic": "a", "startingOffsetsByTimestampStrategy": "error"}, "neither is given"),
        (
            {"topic": "a", "startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "earliest"},
            "Strategy is 'earliest'; it must be one of latest, error",
        ),
        ({"topic": "a", "maxMessagesPerTrigger": "5"}, "maxMessagesPerTrigger is for a stream"),
        ({"topic": "a", "group": "g"}, "group is for a stream"),
    ],
)
def test_a_wrong_option_is_refused_by_name(options: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidOption, match=named):
        read_options(options)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets is for a batch"),
        ({"endingTimestamp": "5"}, "endingTimestamp is for a batch"),
        ({"endingOffsetsByTimestamp": '{"a": {"0": 5}}'}, "endingOffsetsByTimestamp is for a batch"),
        ({"maxBytesPerPartition": "5"}, "maxBytesPerPartition is for a batch"),
        ({"minMessagesPerTrigger": "0"}, "minMessagesPerTrigger"),
        ({"minMessagesPerTrigger": "9", "maxMessagesPerTrigger": "8"}, "no batch could be both"),
        ({"maxTriggerDelay": "5m"}, "maxTriggerDelay bounds the delay by minMessagesPerTrigger"),
        ({"minMessagesPerTrigger": "9", "maxTriggerDelay": "5 moons"}, "maxTriggerDelay is '5 moons'.*500ms, 30s, 15m"),
    ],
)
def test_what_a_stream_cannot_obey_is_refused_by_name(options: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidOption, match=named):
        read_options({"topic": "a", **options}, streaming=True)


def test_a_topic_that_is_named_twice_is_read_once() -> None:
    assert read_options({"topic": "orders, returns,orders"}).topics == ("orders", "returns")


def test_where_the_driver_s_environment_finds_the_cluster_tasks_find_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LSMQ_URL", "http://driver:7600")
    found = read_options({"topic": "orders"}), write_options({"topic": "orders"})
    assert [each.connection.url for each in found] == ["http://driver:7600"] * 2
    assert write_options({"topic": "orders", "zookeeper": "zoo:2181"}).connection.url == ""
    monkeypatch.setenv("LSMQ_ZOOKEEPER", "zoo:2181")
    monkeypatch.setenv("LSMQ_CLUSTER", "east")
    connection = read_options({"topic": "orders"}).connection
    assert (connection.url, connection.zookeeper, connection.cluster) == ("http://driver:7600", "zoo:2181", "east")
    assert read_options({"topic": "orders", "url": "http://here:7600"}).connection.zookeeper == ""


def test_a_write_takes_no_options_of_reading() -> None:
    with pytest.raises(InvalidOption, match="startingoffsets"):
        write_options({"topic": "a", "startingOffsets": "earliest"})


@pytest.mark.parametrize(
    ("text", "found"),
    [("250", 250), ("250ms", 250), ("30 s", 30_000), ("15m", 900_000), ("2H", 7_200_000), ("1d", 86_400_000)],
)
def test_a_delay_has_spark_s_units(text: str, found: int) -> None:
    options = read_options({"topic": "a", "minMessagesPerTrigger": "1", "maxTriggerDelay": text}, streaming=True)
    assert options.max_trigger_delay_ms == found


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"text": "string"}, "text"),
        ({"queue": "integer"}, "body"),
        ({"body": "integer"}, "body"),
        ({"body": "binary", "key": "integer"}, "key"),
        ({"body": "binary", "headers": "string"}, "headers"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused_by_column(columns: dict[str, str], named: str) -> None:
    with pytest.raises(SchemaMismatch, match=named):
        check_write_schema(schema_of(**columns), topic="orders")


def test_a_column_that_is_there_twice_is_refused() -> None:
    twice = StructType().add("body", "binary").add("key", "string").add("body", "binary")
    with pytest.raises(SchemaMismatch, match="'body' is there twice"):
        check_write_schema(twice, topic="orders")
    with pytest.raises(SchemaMismatch, match="'body' is there twice"):
        check_read_schema(twice)


def test_a_write_says_where_to_and_a_read_takes_columns_as_they_are() -> None:
    with pytest.raises(SchemaMismatch, match="topic"):
        check_write_schema(schema_of(body="binary"), topic=None)
    with pytest.raises(SchemaMismatch, match="cast"):
        check_read_schema(schema_of(queue="string"))
    with pytest.raises(SchemaMismatch, match="colour"):
        check_read_schema(schema_of(colour="string"))


def schema_of(**columns: str) -> StructType:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns.items()]
    return StructType.fromJson({"type": "struct", "fields": fields})


@pytest.mark.parametrize(("option", "value"), [("includeHeaders", "true"), ("binarykeys", "false")])
def test_an_option_on_columns_is_refused_beside_a_schema_that_says_otherwise(option: str, value: str) -> None:
    given = CaseInsensitiveDict({"topic": "a", option: value})
    for own in (LsmqDataSource(given), LsmqDataSource(CaseInsensitiveDict({"topic": "a"}))):
        own.reader(own.schema())
        own.streamReader(own.schema())
    with pytest.raises(InvalidOption, match=f"(?i)option {option} is for reading without a schema"):
        LsmqDataSource(given).reader(schema_of(body="binary"))
    with pytest.raises(InvalidOption, match="without a schema"):
        LsmqDataSource(given).streamReader(schema_of(body="binary"))
    LsmqDataSource(CaseInsensitiveDict({"topic": "a"})).reader(schema_of(body="binary"))


# Offsets


@settings(deadline=None)
@given(st.lists(st.integers(0, 1 << 40) | st.integers(0, 3), max_size=600))
def test_offsets_come_back_as_they_were(values: list[int]) -> None:
    offsets = np.array(values, np.int64)
    assert unpack(pack(offsets), len(values)).tolist() == values


def test_a_million_queues_take_little_room() -> None:
    count = 1_000_000
    assert pack(np.zeros(count, np.int64)) == "0-999999:0"
    random = np.random.default_rng(1).integers(0, 1000, count)
    assert len(pack(random)) < 1_800_000
    assert np.array_equal(unpack(pack(random), count), random)


def test_documents_of_offsets_are_the_same_text_for_the_same_offsets() -> None:
    topics = {name: TopicOffsets(name, 3, offsets_of(1, 1, 2)) for name in ("b", "a")}
    document = json.loads(json.dumps(to_document(topics)))
    assert document["topics"]["a"] == {"id": 3, "queues": 3, "offsets": "0-1:1,2:2"}
    assert json.dumps(to_document(from_document(document))) == json.dumps(to_document(topics))
    begun = {"a": TopicOffsets("a", 3, offsets_of(1, 1, 2), offsets_of(0, 0, 2))}
    assert to_document(begun)["topics"]["a"]["start"] == "0-1:0,2:2"
    assert to_document(from_document(to_document(begun))) == to_document(begun)


@pytest.mark.parametrize("text", ["0:1", "0-1:1,2", "x:1", "0-2:-1", "znonsense"])
def test_damaged_offsets_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        unpack(text, 3)


# Where reading starts and ends

BOUNDS = Bounds(offsets_of(*[10] * 8), offsets_of(*[20] * 8))


START = Edge("startingOffsets", "earliest", None, is_start=True)


def placed(start: Edge, *, at_time: Any = None, chosen: Any = None, fail: bool = True) -> list[int]:
    """Where the queues of ``TOPIC`` start."""
    given = explicit_offsets(start, [TOPIC])
    explicit = None if given is None else given[TOPIC.name]
    offsets: list[int] = place(start, TOPIC, BOUNDS, explicit, at_time, chosen, fail_on_data_loss=fail).tolist()
    return offsets


def test_explicit_offsets_name_ranges_of_queues_and_the_ends_by_number() -> None:
    start = replace(START, offsets='{"orders": {"0-2": 12, "3": -1}}')
    assert placed(start) == [12, 12, 12, 20, 10, 10, 10, 10]
    assert placed(replace(start, is_start=False)) == [12, 12, 12, 20, 20, 20, 20, 20]
    called_version = explicit_offsets(replace(START, offsets='{"version": {"7": 3}}'), [replace(TOPIC, name="version")])
    assert called_version is not None and called_version["version"].tolist() == [EARLIEST] * 7 + [3]


@pytest.mark.parametrize(
    "text",
    [
        "first",
        "[]",
        '{"others": {"0": 1}}',
        '{"orders": {"0-8": 1}}',
        '{"orders": {"x": 1}}',
        '{"orders": {"0": -3}}',
        '{"orders": {"0": 1.5}}',
        '{"orders": {"0": 99999999999999999999}}',
    ],
)
def test_explicit_offsets_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="startingOffsets"):
        explicit_offsets(replace(START, offsets=text), [TOPIC])


@pytest.mark.parametrize("offset", [9, 21])
def test_offsets_out_of_range_fail_or_are_moved_inside(offset: int) -> None:
    start = replace(START, offsets=f'{{"orders": {{"0-7": {offset}}}}}')
    with pytest.raises(DataLoss, match="failOnDataLoss"):
        placed(start)
    assert placed(start, fail=False) == [10 if offset < 10 else 20] * 8
    assert placed(start, chosen=np.zeros(8, np.bool_)), "of queues that are not asked for nothing is lost"


def times_in(options: dict[str, str]) -> Any:
    """The time of each queue of ``TOPIC``."""
    read = read_options({"topic": "orders", **options})
    return times_of(read.start, TOPIC, chosen_queues(TOPIC, read))


def test_times_are_of_all_queues_or_of_those_that_are_named() -> None:
    assert times_in({}) is None
    assert times_in({"startingTimestamp": "5"}).tolist() == [5] * 8
    assert times_in({"startingTimestamp": "5", "queues": "2"}).tolist() == [-1, -1, 5, -1, -1, -1, -1, -1]
    by_queue = json.dumps({"orders": {"0-3": 7, "2": "1970-01-01T00:00:00.009Z", "5": -4}})
    assert times_in({"startingOffsetsByTimestamp": by_queue}).tolist() == [7, 7, 9, 7, -1, 0, -1, -1]
    with pytest.raises(InvalidOption, match="startingOffsetsByTimestamp: topic 'orders' has queues 0 to 7, not 8"):
        times_in({"startingOffsetsByTimestamp": '{"orders": {"3-8": 7}}'})


def test_more_times_than_can_be_asked_for_are_refused() -> None:
    many = Topic("many", 1, 2_000, {}, 0, (Route(0, 2_000, 0, None, 1),))
    text = json.dumps({"many": {str(queue): queue for queue in range(2_000)}})
    read = read_options({"topic": "many", "startingOffsetsByTimestamp": text})
    with pytest.raises(InvalidOption, match="2000 different times for topic 'many', the limit is 1000; give offsets"):
        times_of(read.start, many, None)


def test_a_time_decides_where_it_is_given_and_others_begin_at_the_earliest() -> None:
    read = read_options({"topic": "orders", "startingOffsetsByTimestamp": '{"orders": {"0-2": 7}}'}, streaming=True)
    assert placed(read.start, at_time=offsets_of(15, 20, 3, -1, -1, -1, -1, -1)) == [15, 20, 10, *[10] * 5]


def test_a_queue_without_a_message_since_its_time_is_an_error_where_that_is_asked_for() -> None:
    given = {"topic": "orders", "startingTimestamp": "7", "startingOffsetsByTimestampStrategy": "error"}
    at_time = offsets_of(15, 16, 20, 20, -1, -1, -1, -1)
    with pytest.raises(InvalidOption, match=r"startingTimestamp: 2 queues .* first of them 2, .*Strategy to latest"):
        placed(read_options(given).start, at_time=at_time)
    at_time[2:4] = 19
    assert placed(read_options(given).start, at_time=at_time)[:4] == [15, 16, 19, 19]


def test_assigned_queues_are_read_and_no_others() -> None:
    read = read_options({"assign": '{"orders": [0, "2-3", "6"], "others": [1]}'})
    assert read.topics == ("orders", "others") and read.asks_for("others")
    assert np.flatnonzero(chosen_queues(TOPIC, read)).tolist() == [0, 2, 3, 6]
    with pytest.raises(InvalidOption, match="assign: topic 'orders' has queues 0 to 7, not 8"):
        chosen_queues(TOPIC, read_options({"assign": '{"orders": ["7-8"]}'}))
    assert np.flatnonzero(chosen_queues(TOPIC, read_options({"topic": "orders", "queues": "7-8"}))).tolist() == [7]


# When a stream takes a batch


def test_a_batch_waits_for_enough_messages_or_until_some_wait_too_long() -> None:
    now = [100.0]
    gate = TriggerGate(10, 5_000, lambda: now[0])
    assert gate.lets(1), "the first one does not wait"
    gate.taken()
    assert not gate.lets(9) and gate.lets(10)
    now[0] += 4.999
    assert not gate.lets(9)
    now[0] += 0.001
    assert gate.lets(1)
    gate.taken()
    assert not gate.lets(9)
    assert TriggerGate(None, 5_000, lambda: now[0]).lets(1)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=40), st.integers(1, 600))
def test_admission_lets_in_as_much_as_it_may_and_never_more(pairs: list[tuple[int, int]], limit: int) -> None:
    start = np.array([min(pair) for pair in pairs], np.int64)
    end = np.array([max(pair) for pair in pairs], np.int64)
    admitted = admit(start, end, limit)
    assert ((admitted >= start) & (admitted <= end)).all()
    assert int((admitted - start).sum()) == min(limit, int((end - start).sum()))


@pytest.mark.parametrize("small", [1, 5, 40])
def test_no_queue_waits_for_good_beside_one_whose_backlog_never_ends(small: int) -> None:
    start = np.zeros(1 + small, np.int64)
    end = np.full(1 + small, 1, np.int64)
    for _ in range(1_000):
        end[0] = start[0] + 100_000
        start = admit(start, end, 4)
    assert (start[1:] == 1).all() and start[0] == 4 * 1_000 - small


# Splits


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 40), min_size=8, max_size=8),
    st.integers(1, 20),
    st.integers(1, 100),
    st.booleans(),
)
def test_splits_cover_every_message_once_and_stay_within_a_shard(
    counts: list[int], least: int, most: int, whole: bool
) -> None:
    start = np.arange(8, dtype=np.int64)
    portion = Portion(TOPIC, start, start + counts)
    splits = plan([portion], min_splits=least, max_messages=most, max_bytes=1 << 30, whole_queues=whole)
    seen = set()
    for split in pickle.loads(pickle.dumps(splits)):
        assert isinstance(split, Split) and split.message_count > 0
        assert split.message_count <= most or (whole and len(split.queues) == 1)
        assert {int(queue) // 4 for queue in split.queues} == {split.shard}
        for queue, first, end in zip(split.queues.tolist(), split.starts.tolist(), split.ends.tolist(), strict=True):
            places = {(queue, offset) for offset in range(first, end)}
            assert places and not places & seen
            seen |= places
    assert seen == {(queue, queue + number) for queue, count in enumerate(counts) for number in range(count)}
    read = [int(queue) for split in splits for queue in split.queues]
    assert len(set(read)) == len(read) or not whole, "no queue is in two splits"
    assert len(splits) >= 1 or not sum(counts)


def test_a_million_queues_make_a_sensible_number_of_tasks() -> None:
    queues = 1_000_000
    topic = Topic("many", 1, queues, {}, 0, (Route(0, queues, 0, None, 1),))
    end = np.full(queues, 5, np.int64)
    portion = Portion(topic, np.zeros(queues, np.int64), end, mean_bytes=100)
    splits = plan([portion], min_splits=1, max_messages=1_000_000, max_bytes=64 << 20, whole_queues=True)
    assert len(splits) == 8
    assert max(len(pickle.dumps(split)) for split in splits) < 500_000
    assert sum(1 for _ in Windows(splits[0])) == -(-splits[0].message_count // WINDOW_MESSAGES)


def test_windows_depend_on_the_split_alone_and_leave_nothing_out() -> None:
    queues = np.arange(4, dtype=np.uint32)
    split = Split(TOPIC.to_dict(), 0, queues, offsets_of(0, 0, 0, 5), offsets_of(6_000, 6_000, 50_000, 6))
    found = [(window.queues.tolist(), window.streams) for window in Windows(split)]
    assert found == [([0], True), ([1], True), ([2], True), ([3], True)]
    small = Split(TOPIC.to_dict(), 0, queues, offsets_of(0, 0, 0, 5), offsets_of(4_000, 4_000, 50_000, 6))
    assert [window.queues.tolist() for window in Windows(small)] == [[0, 1], [2], [3]]
