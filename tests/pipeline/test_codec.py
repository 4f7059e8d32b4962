"""Record batches to Arrow and back: the same messages and the same bytes as the client's own codec."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from lsmq.batch_builder import BatchBuilder, Codec, Column, Flag, encode_batch
from lsmq.errors import InvalidBatch, MessageTooLarge
from lsmq.messages import MAX_DELAY_MS, dedupe_hash
from lsmq.record_batch import Message, RecordBatch, parse_message_id
from lsmq.topics import Route, Topic
from lsmq_pipeline.decode import Span, positions, select, to_arrow
from lsmq_pipeline.encode import encode, to_rows
from lsmq_pipeline.errors import SchemaMismatch
from lsmq_pipeline.schema import WRITABLE, arrow_schema, message_schema, whole_schema
from support.extent import part_in_number

PAGE = Path(__file__).parents[2] / "docs" / "pipeline.md"
TOPIC = Topic("orders", 7, 16, {}, 0, (Route(0, 16, 0, None, 1),))
EVERYTHING = Span(np.arange(16), np.zeros(16, np.int64), np.full(16, 1 << 60))
TEXT = st.one_of(st.none(), st.text(max_size=5), st.sampled_from(["x" * 31, "x" * 32, "é" * 130, "y" * 300]))
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
MESSAGES = st.lists(
    st.tuples(
        st.integers(0, 15),
        TEXT,
        TEXT,
        st.one_of(st.none(), st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3)),
        st.integers(0, 255),
        st.one_of(st.none(), st.binary(max_size=40)),
        st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=3)), max_size=3),
    ).filter(lambda message: message[5] is not None or message[1] is not None),
    min_size=1,
    max_size=30,
)


def with_bytes_for_keys(messages: list[Any]) -> list[Any]:
    return [(queue, None if key is None else key.encode() + b"\xff", *rest) for queue, key, *rest in messages]


def fill(builder: BatchBuilder, messages: list[Any]) -> BatchBuilder:
    for queue, key, tag, properties, priority, body, headers in messages:
        more = {"headers": tuple(headers), "delete": body is None}
        builder.add(queue, body or b"", key=key, tag=tag, properties=properties, priority=priority, **more)
    return builder


def table(messages: list[Any]) -> Any:
    queues, keys, tags, properties, priorities, bodies, headers = zip(*messages, strict=True)
    key_type = pa.binary() if any(isinstance(key, bytes) for key in keys) else pa.string()
    pairs = [None if each is None else list(each.items()) for each in properties]
    return pa.record_batch(
        {
            "queue": pa.array(queues, pa.int32()),
            "key": pa.array(keys, key_type),
            "tag": pa.array(tags, pa.string()),
            "properties": pa.array(pairs, pa.map_(pa.string(), pa.string())),
            "priority": pa.array(priorities, pa.int32()),
            "body": pa.array(bodies, pa.binary()),
            "headers": pa.array([[{"key": n, "value": v} for n, v in each] or None for each in headers], HEADERS),
        }
    )


@pytest.mark.part(2)
@settings(max_examples=part_in_number(150, 3))
@given(MESSAGES, st.booleans())
def test_rows_are_packed_to_the_bytes_that_a_producer_packs(messages: list[Any], binary: bool) -> None:
    messages = with_bytes_for_keys(messages) if binary else messages
    builder = fill(BatchBuilder(), messages)
    rows = to_rows(table(messages), max_message_bytes=1 << 20)
    assert encode(rows, producer_id=9, sequence=3, codec=Codec.NONE) == builder.build(producer_id=9, sequence=3)


def test_both_priorities_go_into_one_column_and_come_out_of_it() -> None:
    firsts, seconds = [0, 255, 7, 0], [0, 255, 0, 9]
    given_ = {"priority": pa.array(firsts), "subpriority": pa.array([None if each == 0 else each for each in seconds])}
    rows = to_rows(pa.record_batch({"body": pa.array(["x"] * 4), **given_}), max_message_bytes=1 << 20)
    assert rows.priorities.tolist() == [first | second << 8 for first, second in zip(firsts, seconds, strict=True)]
    builder = BatchBuilder()
    for value in rows.priorities.tolist():
        builder.add(0, b"x", priority=value)
    sent = RecordBatch(builder.build())
    columns = {Column(number): list(sent.column(number)) for number in sent.directory}
    columns |= {Column.OFFSET: [0, 1, 2, 3], Column.STORED_MS: [1_700_000_000_000] * 4}
    found = select([RecordBatch(encode_batch(4, columns, bytes(sent.payload)))], TOPIC, [EVERYTHING])
    assert found is not None
    shown = to_arrow(found, TOPIC, arrow_schema(whole_schema())).to_pylist()
    assert [(row["priority"], row["subpriority"]) for row in shown] == list(zip(firsts, seconds, strict=True))


def test_each_row_has_a_time_to_live_or_a_moment_when_it_expires() -> None:
    moment = 1_700_000_000_000
    given_ = {"ttl_ms": pa.array([None, 5_000, None]), "expires_at_ms": pa.array([moment, None, None])}
    rows = to_rows(
        pa.record_batch({"body": pa.array(["x"] * 3), "queue": pa.array([0] * 3), **given_}), max_message_bytes=100
    )
    batch = RecordBatch(encode(rows, producer_id=9, sequence=3, codec=Codec.NONE))
    assert list(batch.column(Column.EXPIRES_MS)) == [moment, 5_000, 0]


def test_the_page_has_every_column_that_is_written() -> None:
    page = PAGE.read_text().partition("## Writing")[2].partition("### ")[0]
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| `")]
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row[1])}
    assert told >= WRITABLE.keys()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from([0, 1, 5_000, MAX_DELAY_MS, MAX_DELAY_MS + 1, 1_700_000_000_000]), min_size=1))
def test_rows_that_come_later_are_packed_to_the_bytes_that_a_producer_packs(values: list[int]) -> None:
    builder = BatchBuilder()
    for due_ms in values:
        builder.add(3, b"x", due_ms=due_ms)
    delays = [due_ms if 0 < due_ms <= MAX_DELAY_MS else None for due_ms in values]
    times = [due_ms if due_ms > MAX_DELAY_MS else None for due_ms in values]
    given_ = {"delay_ms": pa.array(delays, pa.int64()), "deliver_at_ms": pa.array(times, pa.int64())}
    columns = {"body": pa.array(["x"] * len(values)), "queue": pa.array([3] * len(values)), **given_}
    rows = to_rows(pa.record_batch(columns), max_message_bytes=100)
    assert encode(rows, producer_id=9, sequence=3, codec=Codec.NONE) == builder.build(producer_id=9, sequence=3)


def test_rows_with_ids_are_packed_to_the_bytes_that_a_producer_packs() -> None:
    builder = BatchBuilder()
    for hashed in (dedupe_hash("a"), 0, dedupe_hash("é" * 127)):
        builder.add(3, b"x", dedupe_hash=hashed)
    columns = {"body": pa.array(["x"] * 3), "queue": pa.array([3] * 3), "dedupe_id": pa.array(["a", None, "é" * 127])}
    rows = to_rows(pa.record_batch(columns), max_message_bytes=100)
    assert encode(rows, producer_id=9, sequence=3, codec=Codec.NONE) == builder.build(producer_id=9, sequence=3)


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"delay_ms": [-1]}, "column 'delay_ms' has -1; a delay in milliseconds is 0 to 315619200000, or null for a"),
        ({"delay_ms": [MAX_DELAY_MS + 1]}, "column 'delay_ms' has 315619200001"),
        (
            {"deliver_at_ms": [1_700_000_000]},
            "column 'deliver_at_ms' has 1700000000; a time in milliseconds",
        ),
        ({"deliver_at_ms": [1 << 43]}, "column 'deliver_at_ms' has 8796093022208; a time .* within ten years from now"),
        ({"delay_ms": [5], "deliver_at_ms": [1_700_000_000_000]}, "both 'delay_ms' and 'deliver_at_ms'"),
        ({"delay_ms": [5], "expires_at_ms": [1_700_000_000_000]}, "both 'delay_ms' and 'expires_at_ms'.*give 'ttl_ms'"),
        (
            {"deliver_at_ms": [1_700_000_000_000], "expires_at_ms": [1_700_000_000_000]},
            "column 'expires_at_ms' has 1700000000000 where 'deliver_at_ms' has 1700000000000: .* let it expire later",
        ),
        ({"delay_ms": [5], "dedupe_id": ["a"]}, "'dedupe_id' beside 'delay_ms' or 'deliver_at_ms'"),
        ({"dedupe_id": [""]}, "column 'dedupe_id': .* has 0 bytes; it must have 1 to 255"),
        ({"dedupe_id": ["é" * 128]}, "column 'dedupe_id': .* has 256 bytes"),
        ({"expires_at_ms": [1_700_000_000]}, "column 'expires_at_ms' has 1700000000; a moment in milliseconds"),
        ({"expires_at_ms": [1 << 44]}, "column 'expires_at_ms' has 17592186044416"),
        ({"expires_at_ms": [-1]}, "column 'expires_at_ms' has -1"),
        ({"ttl_ms": [0]}, "column 'ttl_ms' has 0; a time to live in milliseconds is 1 to"),
        ({"ttl_ms": [5], "expires_at_ms": [1_700_000_000_000]}, "a row has both 'ttl_ms' and 'expires_at_ms'"),
    ],
)
def test_what_is_no_time_or_id_is_refused_by_its_column(columns: dict[str, list[Any]], text: str) -> None:
    arrays = {name: pa.array(values) for name, values in columns.items()}
    with pytest.raises(SchemaMismatch, match=text):
        to_rows(pa.record_batch({"body": pa.array(["x"]), **arrays}), max_message_bytes=100)


@pytest.mark.part(2)
@settings(max_examples=part_in_number(150, 3))
@given(MESSAGES, st.booleans(), st.booleans())
def test_a_batch_becomes_the_rows_that_a_consumer_gets(messages: list[Any], compressed: bool, binary: bool) -> None:
    messages = with_bytes_for_keys(messages) if binary else messages
    batch = stored(messages, Codec.ZSTD if compressed else Codec.NONE)
    found = select([batch], TOPIC, [EVERYTHING])
    assert found is not None
    schema = message_schema(include_headers=True, binary_keys=binary)
    rows = to_arrow(found, TOPIC, arrow_schema(schema)).to_pylist()
    expected = sorted(batch.messages("orders", 7), key=lambda message: (message.queue, message.offset))
    assert [as_message(row) for row in rows] == expected


def stored(messages: list[Any], codec: Codec = Codec.NONE) -> RecordBatch:
    """The messages as a node has them: with offsets and times."""
    builder = fill(BatchBuilder(), messages)
    offsets: dict[int, int] = {}
    places = []
    for queue, *_ in messages:
        places.append(offsets.setdefault(queue, 0))
        offsets[queue] += 1
    sent = RecordBatch(builder.build())
    columns = {Column(number): list(sent.column(number)) for number in sent.directory}
    columns |= {Column.OFFSET: places, Column.STORED_MS: [1_700_000_000_123 + place for place in places]}
    return RecordBatch(encode_batch(len(messages), columns, bytes(sent.payload), codec=codec))


def as_message(row: dict[str, Any]) -> Message:
    return Message(
        row["topic"],
        row["queue"],
        row["offset"],
        parse_message_id(row["id"])[0],
        row["body"] or b"",
        row["key"],
        row["tag"],
        row["priority"],
        dict(row["properties"] or ()),
        int(row["stored_time"].timestamp() * 1000 + 0.5),
        tuple((pair["key"], pair["value"]) for pair in row["headers"] or ()),
        row["body"] is None,
    )


def test_records_outside_the_span_of_other_topics_and_deleted_ones_are_passed_over() -> None:
    columns = {
        Column.TOPIC: [7, 7, 8, 7, 7],
        Column.QUEUE: [1, 1, 1, 2, 1],
        Column.OFFSET: [4, 5, 6, 0, 7],
        Column.FLAGS: [0, 0, 0, 0, Flag.TOMBSTONE],
        Column.LENGTH: [1, 2, 1, 1, 1],
    }
    batch = RecordBatch(encode_batch(5, columns, b"abbcde"))
    found = select([batch], TOPIC, [Span(np.array([1]), np.array([5]), np.array([9]))])
    assert found is not None
    rows = to_arrow(found, TOPIC, arrow_schema(message_schema())).to_pylist()
    assert [(row["offset"], row["body"]) for row in rows] == [(5, b"bb")]


def test_headers_of_another_packer_are_read_message_by_message() -> None:
    headers = [msgpack.packb(["k" * 70_000, None, {"a": "b"}]), msgpack.packb([None, "t"])]
    columns = {
        Column.QUEUE: [0, 0],
        Column.OFFSET: [0, 1],
        Column.LENGTH: [len(header) + 1 for header in headers],
        Column.HEADER_LENGTH: [len(header) for header in headers],
    }
    batch = RecordBatch(encode_batch(2, columns, headers[0] + b"x" + headers[1] + b"y"))
    found = select([batch], TOPIC, [EVERYTHING])
    assert found is not None
    rows = to_arrow(found, TOPIC, arrow_schema(message_schema())).to_pylist()
    assert [(row["key"], row["tag"], row["body"]) for row in rows] == [("k" * 70_000, None, b"x"), (None, "t", b"y")]
    assert dict(rows[0]["properties"]) == {"a": "b"}


def test_a_key_that_is_no_text_is_read_as_binary_or_says_how() -> None:
    found = select([stored([(0, b"\xff", None, None, 0, b"x", [])])], TOPIC, [EVERYTHING])
    assert found is not None
    with pytest.raises(InvalidBatch, match=r"orders.*binaryKeys"):
        to_arrow(found, TOPIC, arrow_schema(message_schema()))
    assert to_arrow(found, TOPIC, arrow_schema(message_schema(binary_keys=True))).column("key").to_pylist() == [b"\xff"]


def with_header(header: bytes) -> Any:
    """Three messages, of which the one in the middle has this header."""
    payload = b"\x91\xa1kone" + header + b"tw\xc0" + b"\x91\xa1kthree"
    columns = {
        Column.QUEUE: 3,
        Column.OFFSET: [5, 6, 7],
        Column.LENGTH: [6, len(header) + 3, 8],
        Column.HEADER_LENGTH: [3, len(header), 3],
    }
    return select([RecordBatch(encode_batch(3, columns, payload))], TOPIC, [EVERYTHING])


@pytest.mark.parametrize(
    "header",
    [
        b"\x92\xc0\xa1\xff",  # A tag that is no text,
        b"\x93\xc0\xc0\x81\xa1a\x01",  # a property that is a number,
        b"\x93\xa1\xffa\xc0",
        b"\x94\xc0\xc0\x80\x91\xa1a",  # a name without its value,
        b"\x93\xd9\xff\xc0\xc0",  # a key and a tag that are longer than all there is.
        b"\x93\xc0\xda\xff\xff\xc0",
        b"\xc1",
    ],
)
def test_a_message_that_cannot_be_read_is_named(header: bytes) -> None:
    """Nodes store what a client of another make packs."""
    found = with_header(header)
    with pytest.raises(InvalidBatch, match=r"offset 6 of queue 3 of topic 'orders' cannot be read: .*offset 7, or"):
        to_arrow(found, TOPIC, arrow_schema(message_schema(include_headers=True)))
    assert to_arrow(found, TOPIC, arrow_schema(StructType().add("body", "binary"))).num_rows == 3, "nor need it be"


def test_no_key_is_longer_than_its_header() -> None:
    """It would have bytes of the body, or of other messages."""
    with pytest.raises(InvalidBatch, match="offset 6"):
        to_arrow(with_header(b"\x93\xa6abc\xc0"), TOPIC, arrow_schema(StructType().add("key", "binary")))


def test_positions_are_told_from_messages() -> None:
    columns = {Column.QUEUE: [3, 9], Column.OFFSET: [10, 20], Column.FLAGS: int(Flag.POSITION)}
    moved = positions(RecordBatch(encode_batch(2, columns, b"")))
    assert moved is not None
    assert moved[0].tolist() == [3, 9] and moved[1].tolist() == [10, 20]
    assert positions(stored([(0, None, None, None, 0, b"x", [])])) is None


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ({"body": pa.array([b"x", None], pa.binary())}, SchemaMismatch),
        ({"body": pa.array([b"x", b"y" * 101], pa.binary())}, MessageTooLarge),
        ({"body": pa.array(["x", "y"]), "queue": pa.array([0, -3])}, SchemaMismatch),
        ({"body": pa.array(["x", "y"]), "queue": pa.array([None, -1])}, SchemaMismatch),
        ({"body": pa.array(["x", "y"]), "priority": pa.array([0, 256])}, SchemaMismatch),
        ({"body": pa.array(["x", "y"]), "subpriority": pa.array([0, 256])}, SchemaMismatch),
        (
            {"body": pa.array(["x"]), "headers": pa.array([[{"key": "a", "value": None}]], HEADERS)},
            SchemaMismatch,
        ),
        ({"body": pa.array(["x"]), "headers": pa.array([[None]], HEADERS)}, SchemaMismatch),
        (
            {"body": pa.array(["x"]), "properties": pa.array([[("a", None)]], pa.map_(pa.string(), pa.string()))},
            SchemaMismatch,
        ),
    ],
)
def test_rows_that_no_message_can_hold_are_refused(columns: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        to_rows(pa.record_batch(columns), max_message_bytes=100)


def test_a_row_that_names_its_queue_is_written_whatever_number_it_was_read_with() -> None:
    """Numbers of queues with names go beyond what column ``queue`` holds as they are, and read as negative ones."""
    number = np.uint32(130 << 24 | 7)
    records = select(
        [RecordBatch(encode_batch(1, {Column.QUEUE: int(number), Column.OFFSET: 5, Column.LENGTH: 1}, b"x"))],
        TOPIC,
        [Span(np.array([number]), np.zeros(1, np.int64), np.full(1, 9))],
    )
    assert records is not None
    schema = arrow_schema(message_schema(include_queue_names=True))
    batch = to_arrow(records, TOPIC, schema, pa.array(["agents.7"], pa.string()))
    assert batch.column("queue").to_pylist() == [int(number) - 2**32]
    rows = to_rows(batch, max_message_bytes=1 << 20)
    assert rows.queues.tolist() == [-1] and rows.names.to_pylist() == ["agents.7"]
    unnamed = batch.set_column(batch.schema.get_field_index("queue_name"), "queue_name", pa.nulls(1, pa.string()))
    with pytest.raises(SchemaMismatch, match="a queue is 0 or more"):
        to_rows(unnamed, max_message_bytes=1 << 20)
