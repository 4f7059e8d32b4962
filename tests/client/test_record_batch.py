"""The record batch format: what goes in comes out, its bytes stay what they are, and damage is seen."""

from __future__ import annotations

import contextlib
import copy
import json
import pickle
import struct
from pathlib import Path
from typing import Any

import crc32c
import msgpack
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmq import Sent
from lsmq.errors import CorruptFile, InvalidBatch
from lsmq.messages import key_headers
from lsmq.record_batch import (
    COLUMN,
    HEADER_BYTES,
    BatchBuilder,
    Codec,
    Column,
    Flag,
    RecordBatch,
    decode_header,
    delayed_id,
    encode_batch,
    encode_header,
    key_hash,
    message_id,
    parse_message_id,
    split_batches,
    tag_hash,
)
from support.extent import part_in_number

GOLDEN = Path(__file__).parent / "golden"

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
names = st.none() | st.text(max_size=20)
properties = st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3)
records = st.lists(
    st.tuples(u32, st.binary(min_size=1, max_size=40), names, names, properties, st.integers(0, 255)),
    min_size=1,
    max_size=30,
)


def built(entries: list[tuple[int, bytes, str | None, str | None, dict[str, str], int]]) -> BatchBuilder:
    builder = BatchBuilder()
    for queue, body, key, tag, props, priority in entries:
        builder.add(queue, body, key=key, tag=tag, properties=props, priority=priority)
    return builder


@given(records, st.sampled_from(Codec), u64, u32, u32)
def test_messages_come_out_as_they_went_in(
    entries: list[tuple[int, bytes, str | None, str | None, dict[str, str], int]],
    codec: Codec,
    producer_id: int,
    epoch: int,
    sequence: int,
) -> None:
    packed = built(entries).build(producer_id=producer_id, producer_epoch=epoch, sequence=sequence, codec=codec)
    batch = RecordBatch(packed)
    assert (batch.producer_id, batch.producer_epoch, batch.sequence) == (producer_id, epoch, sequence)
    found = [(m.queue, m.body, m.key, m.tag, dict(m.properties), m.priority) for m in batch.messages("t")]
    assert found == entries
    assert list(batch.column(Column.KEY_HASH)) == [
        0 if key is None else key_hash(key) for _, _, key, _, _, _ in entries
    ]
    assert list(batch.column(Column.TAG_HASH)) == [
        0 if tag is None else tag_hash(tag) for _, _, _, tag, _, _ in entries
    ]


@given(records)
def test_a_builder_packs_the_same_bytes_again(
    entries: list[tuple[int, bytes, str | None, str | None, dict[str, str], int]],
) -> None:
    builder = built(entries)
    assert builder.build(producer_id=7, sequence=3) == builder.build(producer_id=7, sequence=3)


@given(st.integers(1, 50), st.data())
def test_columns_hold_any_unsigned_values(count: int, data: st.DataObject) -> None:
    columns: dict[int, list[int]] = {
        column: data.draw(st.lists(u64, min_size=count, max_size=count), label=column.name)
        for column in data.draw(st.sets(st.sampled_from(Column)))
    }
    batch = RecordBatch(encode_batch(count, columns, b""))
    assert set(batch.directory) == set(columns)
    for column in Column:
        assert list(batch.column(column)) == columns.get(column, [0] * count)


@given(records, st.sampled_from(Codec), st.data())
def test_a_flipped_bit_anywhere_is_seen(
    entries: list[tuple[int, bytes, str | None, str | None, dict[str, str], int]],
    codec: Codec,
    data: st.DataObject,
) -> None:
    damaged = bytearray(built(entries).build(producer_id=1, codec=codec))
    bit = data.draw(st.integers(0, len(damaged) * 8 - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(InvalidBatch):
        RecordBatch(bytes(damaged))


def test_every_truncation_is_seen() -> None:
    packed = built([(1, b"one", "k", None, {}, 0), (2, b"two", None, "t", {}, 1)]).build()
    for length in range(len(packed)):
        with pytest.raises(InvalidBatch):
            RecordBatch(packed[:length])


def recrc(packed: bytearray) -> bytes:
    """The same bytes with a checksum that fits, as a broken or hostile sender might make them."""
    packed[:4] = crc32c.crc32c(bytes(packed[4:])).to_bytes(4, "little")
    return bytes(packed)


@pytest.mark.part(2)
@settings(max_examples=part_in_number(300, 3))
@given(records, st.sampled_from(Codec), st.data())
def test_wrong_fields_under_a_right_checksum_never_break_the_reader(
    entries: list[tuple[int, bytes, str | None, str | None, dict[str, str], int]],
    codec: Codec,
    data: st.DataObject,
) -> None:
    packed = bytearray(built(entries).build(codec=codec))
    directory_end = HEADER_BYTES + COLUMN.size * struct.unpack_from("<H", packed, 10)[0]
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(8, directory_end - 1))] = data.draw(st.integers(0, 255))
    try:
        batch = RecordBatch(recrc(packed))
        for column in Column:
            assert len(batch.column(column)) == batch.record_count
        if batch.record_count < 10_000:
            list(batch.messages("t"))
    except InvalidBatch:
        pass


def test_a_payload_that_claims_more_than_the_header_says_is_refused_before_it_is_unpacked() -> None:
    bomb = bytearray(encode_batch(1, {Column.LENGTH: 10}, b"x" * (64 << 20), codec=Codec.ZSTD))
    struct.pack_into("<I", bomb, 20, 10)
    with pytest.raises(InvalidBatch, match="payload"):
        RecordBatch(recrc(bomb))


def test_a_newer_version_is_refused_with_what_to_do() -> None:
    packed = bytearray(built([(0, b"x", None, None, {}, 0)]).build())
    packed[8] = 2
    with pytest.raises(InvalidBatch, match=r"version 2 is not supported.*upgrade"):
        RecordBatch(recrc(packed))


def test_tombstones_and_positions_are_passed_over_as_messages() -> None:
    flags = [0, int(Flag.TOMBSTONE), 0, int(Flag.POSITION)]
    columns: dict[int, list[int]] = {Column.LENGTH: [1, 2, 1, 0], Column.OFFSET: [5, 6, 7, 9], Column.FLAGS: flags}
    batch = RecordBatch(encode_batch(4, columns, b"abbc"))
    assert [(m.offset, m.body) for m in batch.messages("t")] == [(5, b"a"), (7, b"c")]


def test_batches_that_follow_one_another_are_split_and_damage_is_placed() -> None:
    first = built([(1, b"one", None, None, {}, 0)]).build()
    second = built([(2, b"two", None, None, {}, 0)]).build()
    assert [batch.column(Column.QUEUE)[0] for batch in split_batches(first + second)] == [1, 2]
    damaged = bytearray(first + second)
    damaged[-1] ^= 1
    with pytest.raises(CorruptFile, match=f"table 7.*byte {len(first)}") as caught:
        list(split_batches(bytes(damaged), source="table 7"))
    assert caught.value.details == {"file": "table 7", "position": len(first)}


@given(names | st.binary(), names, properties, st.lists(st.tuples(st.text(), st.binary())).map(tuple))
def test_headers_come_out_as_they_went_in(
    key: str | bytes | None, tag: str | None, props: dict[str, str], pairs: tuple[tuple[str, bytes], ...]
) -> None:
    packed = encode_header(key, tag, props, pairs)
    assert decode_header(packed) == (key, tag, props, pairs, None)
    assert decode_header(encode_header(key, tag, props, pairs, "kind")) == (key, tag, props, pairs, "kind")
    if key is not None:
        assert key_headers([key, key], tag) == [encode_header(key, tag, None)] * 2
        assert key_headers([key], None) == [encode_header(key, None, None)]


@pytest.mark.parametrize(
    "header",
    [
        ["k", "t", {}, {}],
        ["k", "t", {}, ["a"]],
        ["k", "t", {}, ["a", "b"]],
        ["k", "t", {}, [b"a", b"b"]],
        [1],
        ["k", "t", {}, [], 5],
    ],
)
def test_a_header_with_fields_of_other_kinds_is_refused(header: list[object]) -> None:
    with pytest.raises(InvalidBatch, match="a record's header"):
        decode_header(msgpack.packb(header))


def test_a_key_of_bytes_is_the_key_of_its_text() -> None:
    assert key_hash("Straße") == key_hash("Straße".encode())
    assert key_hash(b"\xff\x00") == key_hash(b"\xff\x00") != key_hash("")


@given(st.binary(min_size=1, max_size=20))
def test_a_header_of_any_bytes_is_decoded_or_refused(header: bytes) -> None:
    with contextlib.suppress(InvalidBatch):
        decode_header(header)


@given(u32, u32, u64)
def test_message_ids_are_32_digits_and_can_be_taken_apart(topic_id: int, queue: int, offset: int) -> None:
    text = message_id(topic_id, queue, offset)
    assert len(text) == 32
    assert parse_message_id(text) == (topic_id, queue, offset)


def test_hashes_are_what_they_always_were() -> None:
    assert (key_hash(""), key_hash("N12345")) == (0x2D06800538D394C2, 0x0C2128435B02B1C0)
    assert tag_hash("UA") == 0xD1785EE8


GOLDEN_BATCHES = {
    "plain.batch": lambda: built([(7, b"hello", None, None, {}, 0), (7, b"world!", None, None, {}, 0)]).build(),
    "full.batch": lambda: built(
        [
            (1, b"one", "key 1", "red", {"a": "1"}, 0),
            (70_000, b"two", None, "blue", {}, 3),
            (1, b"three", "key 1", None, {}, 255),
        ]
    ).build(producer_id=0x0123456789ABCDEF, producer_epoch=2, sequence=9),
    "stored.batch": lambda: encode_batch(
        2,
        {
            Column.TOPIC: 4,
            Column.QUEUE: [1, 2],
            Column.OFFSET: [1 << 40, 3],
            Column.LENGTH: [1, 2],
            Column.STORED_MS: [1_700_000_000_000, 1_700_000_000_005],
        },
        b"abb",
    ),
    "positions.batch": lambda: encode_batch(
        2, {Column.QUEUE: [1, 2], Column.OFFSET: [10, 20], Column.FLAGS: int(Flag.POSITION)}, b""
    ),
}


@pytest.mark.parametrize("name", GOLDEN_BATCHES)
def test_the_bytes_of_a_batch_are_what_they_always_were(name: str) -> None:
    assert GOLDEN_BATCHES[name]() == (GOLDEN / name).read_bytes()


def test_compressed_batches_of_earlier_releases_can_be_read() -> None:
    batch = RecordBatch((GOLDEN / "zstd.batch").read_bytes())
    assert batch.codec is Codec.ZSTD
    assert [(m.queue, m.body) for m in batch.messages("t")] == [(5, b"again and " * 20)] * 3


def test_an_unknown_codec_is_refused() -> None:
    packed = bytearray(built([(0, zstandard.compress(b"x"), None, None, {}, 0)]).build())
    packed[9] = 9
    with pytest.raises(InvalidBatch, match="codec 9"):
        RecordBatch(recrc(packed))


def test_messages_without_properties_share_some_that_nobody_changes() -> None:
    builder = BatchBuilder()
    for key in (None, None, "k", b"k"):
        builder.add(0, b"x", key=key)
    messages = list(RecordBatch(builder.build()).messages("t"))
    assert [message.properties for message in messages] == [{}] * 4
    assert len({id(message.properties) for message in messages}) == 1
    properties: Any = messages[0].properties
    for change in (
        lambda: properties.__setitem__("a", "b"),
        lambda: properties.update(a="b"),
        lambda: properties.setdefault("a", "b"),
        lambda: properties.__ior__({"a": "b"}),
        properties.clear,
    ):
        with pytest.raises(TypeError, match="cannot be changed; dict"):
            change()
    assert json.dumps(properties) == "{}"
    for own in (dict(properties), copy.deepcopy(properties), pickle.loads(pickle.dumps(properties)), properties.copy()):
        own["a"] = "b"
        assert own == {"a": "b"} and messages[0].properties == {}


def test_where_a_message_was_sent_to_has_its_id_and_shows_it() -> None:
    stored = Sent(3, 17, 5, "n")
    assert stored.id == message_id(5, 3, 17) and stored.due_ms is None
    assert repr(stored) == f"Sent(queue=3, offset=17, id='{message_id(5, 3, 17)}', queue_name='n')"
    later = Sent(3, -1, 0, later_id=delayed_id(2, 1_000, 7))
    assert later.id == delayed_id(2, 1_000, 7) and later.due_ms == 1_000
    assert repr(later) == f"Sent(queue=3, offset=-1, id='{later.id}', due_ms=1000)"
    assert Sent(3, -1, 5, dropped=True).id == "" and pickle.loads(pickle.dumps(stored)) == stored
