"""Options, offsets, bounds, splits: pure decisions, without a cluster or Spark."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from lsmq.topics import Route, Topic
from lsmq_pipeline.cluster import Bounds
from lsmq_pipeline.errors import DataLoss, InvalidOption, SchemaMismatch
from lsmq_pipeline.fetch import WINDOW_MESSAGES, windows
from lsmq_pipeline.offsets import TopicOffsets, from_document, pack, to_document, unpack
from lsmq_pipeline.options import read_options, write_options
from lsmq_pipeline.resolve import admit, explicit_offsets, place
from lsmq_pipeline.schema import check_read_schema, check_write_schema
from lsmq_pipeline.splits import Portion, Split, plan

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
    found = [read_options({"topic": "a", "endingTimestamp": moment}).ending_ms for moment in moments]
    assert found == [1372636800001] * 3 + [0, 0]


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
        ({"topic": "a", "readFrom": "moon"}, "readFrom"),
        ({"topic": "a", "failOnDataLoss": "perhaps"}, "failOnDataLoss"),
        ({"topic": "a", "startingTimestamp": "yesterday"}, "startingTimestamp"),
        ({"topic": "a", "startingTimestamp": "2013-07-01T00:00:00"}, "startingTimestamp.*zone"),
        ({"topic": "a", "queues": "5-2"}, "queues"),
        ({"topic": "a", "keys": "a,b"}, "keys"),
        ({"topic": "a", "tags": '["a", 1]'}, "tags"),
        ({"topic": "a", "tags": "[]"}, "tags"),
    ],
)
def test_a_wrong_option_is_refused_by_name(options: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidOption, match=named):
        read_options(options)


def test_names_of_spark_s_kafka_source_mean_the_same() -> None:
    options = read_options({"subscribe": "a,b", "maxOffsetsPerTrigger": "7"}, streaming=True)
    assert options.topics == ("a", "b") and options.max_messages_per_trigger == 7
    assert read_options({"subscribePattern": "a.*"}).topic_pattern == "a.*"
    with pytest.raises(InvalidOption, match="subscribe is given by another name as well"):
        read_options({"topic": "a", "subscribe": "b"})


def test_a_stream_takes_no_end_and_a_write_no_options_of_reading() -> None:
    with pytest.raises(InvalidOption, match="endingOffsets"):
        read_options({"topic": "a", "endingOffsets": "latest"}, streaming=True)
    with pytest.raises(InvalidOption, match="startingoffsets"):
        write_options({"topic": "a", "startingOffsets": "earliest"})


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

BOUNDS = Bounds(offsets_of(*[10] * 8), offsets_of(*[20] * 8), None)


def test_explicit_offsets_name_ranges_of_queues_and_the_ends_by_number() -> None:
    found = explicit_offsets("startingOffsets", '{"orders": {"0-2": 12, "3": -1}}', [TOPIC], -2)
    assert found is not None
    placed = place(TOPIC, BOUNDS, found["orders"], "earliest", fail_on_data_loss=True, may_be_lost=True)
    assert placed.tolist() == [12, 12, 12, 20, 10, 10, 10, 10]


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
    ],
)
def test_explicit_offsets_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="startingOffsets"):
        explicit_offsets("startingOffsets", text, [TOPIC], -2)


@pytest.mark.parametrize("offset", [9, 21])
def test_offsets_out_of_range_fail_or_are_moved_inside(offset: int) -> None:
    explicit = np.full(8, offset, np.int64)
    with pytest.raises(DataLoss, match="failOnDataLoss"):
        place(TOPIC, BOUNDS, explicit, "earliest", fail_on_data_loss=True, may_be_lost=True)
    placed = place(TOPIC, BOUNDS, explicit, "earliest", fail_on_data_loss=False, may_be_lost=True)
    assert placed.tolist() == [10 if offset < 10 else 20] * 8


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=40), st.integers(1, 600))
def test_admission_lets_in_as_much_as_it_may_and_never_more(pairs: list[tuple[int, int]], limit: int) -> None:
    start = np.array([min(pair) for pair in pairs], np.int64)
    end = np.array([max(pair) for pair in pairs], np.int64)
    admitted = admit(start, end, limit)
    assert ((admitted >= start) & (admitted <= end)).all()
    assert int((admitted - start).sum()) == min(limit, int((end - start).sum()))


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
    assert sum(1 for _ in windows(splits[0])) == -(-splits[0].message_count // WINDOW_MESSAGES)


def test_windows_depend_on_the_split_alone_and_leave_nothing_out() -> None:
    queues = np.arange(4, dtype=np.uint32)
    split = Split(TOPIC.to_dict(), 0, queues, offsets_of(0, 0, 0, 5), offsets_of(6_000, 6_000, 50_000, 6))
    found = [(window.queues.tolist(), window.streams) for window in windows(split)]
    assert found == [([0], True), ([1], True), ([2], True), ([3], True)]
    small = Split(TOPIC.to_dict(), 0, queues, offsets_of(0, 0, 0, 5), offsets_of(4_000, 4_000, 50_000, 6))
    assert [window.queues.tolist() for window in windows(small)] == [[0, 1], [2], [3]]
