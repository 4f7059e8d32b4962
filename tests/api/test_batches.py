"""Record batches over HTTP: sending, fetching many queues, and batches that no one should send."""

from __future__ import annotations

import struct
from collections.abc import Callable

import crc32c
import pytest
import zstandard

from lsmq.record_batch import (
    HEADER_BYTES,
    BatchBuilder,
    Codec,
    Column,
    Flag,
    RecordBatch,
    encode_batch,
    split_batches,
)
from support.node_process import NodeProcess
from support.waiting import eventually

from .calls import Api, pack


def positions_and_bodies(
    body: bytes, asked: dict[int, int]
) -> tuple[dict[int, int], dict[int, list[tuple[int, bytes]]]]:
    """What a fetch's answer says: next offsets by queue, and (offset, body) by queue from what was asked."""
    positions: dict[int, int] = {}
    messages: dict[int, list[tuple[int, bytes]]] = {}
    for batch in split_batches(body):
        flags = batch.column(Column.FLAGS)
        if flags[0] & Flag.POSITION:
            positions.update(zip(batch.column(Column.QUEUE), batch.column(Column.OFFSET), strict=True))
            continue
        for message in batch.messages("t"):
            if message.queue in asked and message.offset >= asked[message.queue]:
                messages.setdefault(message.queue, []).append((message.offset, message.body))
    return positions, messages


def test_a_batch_is_stored_and_its_answer_holds_the_offsets(api: Api, topic_name: str) -> None:
    api.create(topic_name, 4)
    api.send(topic_name, {"queue": 1, "body": "before"})
    answer = api.send_batch(topic_name, pack((1, b"a"), (2, b"b"), (1, b"c")))
    assert answer.headers["Content-Type"] == "application/vnd.lsmq.batch"
    stored = RecordBatch(answer.body)
    assert list(stored.column(Column.OFFSET)) == [1, 0, 2]
    assert set(stored.directory) == {Column.OFFSET, Column.STORED_MS}
    assert api.bodies(topic_name, 1) == ["before", "a", "c"]


@pytest.mark.parametrize("codec", Codec)
def test_keys_tags_and_properties_of_a_batch_are_read_back(api: Api, topic_name: str, codec: Codec) -> None:
    api.create(topic_name, 1)
    builder = BatchBuilder()
    builder.add(0, b"body" * 100, key="k", tag="t", properties={"p": "q"}, priority=3)
    api.send_batch(topic_name, builder.build(codec=codec))
    (message,) = api.read(topic_name, 0).json()["messages"]
    assert (message["key"], message["tag"], message["properties"], message["priority"]) == (
        "k",
        "t",
        {"p": "q"},
        3,
    )
    assert message["body"] == "body" * 100


def test_a_repeated_batch_is_stored_once_and_says_so(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    batch = pack((0, b"once"), producer_id=88_001, sequence=0)
    first, again = api.send_batch(topic_name, batch), api.send_batch(topic_name, batch)
    assert first.body == again.body
    assert again.headers["Lsmq-Duplicate"] == "1"
    assert api.bodies(topic_name, 0) == ["once"]


def test_another_batch_under_the_sequence_of_a_producer_is_refused(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    api.send_batch(topic_name, pack((0, b"once"), producer_id=88_002, sequence=0))
    other = pack((0, b"once"), (0, b"twice"), producer_id=88_002, sequence=0)
    assert api.send_batch(topic_name, other, 409).code == "sequence_reused"
    assert api.bodies(topic_name, 0) == ["once"]


def test_a_repeat_is_recognised_after_a_kill(node: NodeProcess) -> None:
    api = Api(node.url)
    api.create("t", 1)
    batch = pack((0, b"once"), producer_id=5, sequence=0)
    first = api.send_batch("t", batch)
    node.kill9()
    node.restart()
    assert api.send_batch("t", batch).body == first.body
    assert api.bodies("t", 0) == ["once"]


def test_fetching_many_queues_gives_what_arrived_and_where_to_go_on(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1000)
    api.send_batch(topic_name, pack((7, b"a"), (900, b"b"), (7, b"c"), (8, b"d")))
    asked = dict.fromkeys(range(1000), 0) | {8: 1}
    answer = api.fetch(topic_name, asked)
    positions, messages = positions_and_bodies(answer.body, asked)
    assert positions == {7: 2, 900: 1}
    assert messages == {7: [(0, b"a"), (1, b"c")], 900: [(0, b"b")]}


def test_fetching_goes_on_from_the_positions_until_all_is_read(api: Api, topic_name: str) -> None:
    api.create(topic_name, 50)
    expected: dict[int, list[bytes]] = {}
    for number in range(40):
        records = [(queue, b"%d-%d" % (queue, number)) for queue in range(0, 50, 3)]
        api.send_batch(topic_name, pack(*records))
        for queue, body in records:
            expected.setdefault(queue, []).append(body)
    asked = dict.fromkeys(range(50), 0)
    found: dict[int, list[bytes]] = {}
    while True:
        positions, messages = positions_and_bodies(api.fetch(topic_name, asked, max_messages=37).body, asked)
        if not positions:
            break
        for queue, some in messages.items():
            found.setdefault(queue, []).extend(body for offset, body in some if offset < positions[queue])
        asked |= positions
    assert found == expected


def test_a_fetch_takes_json_and_unsorted_queues_too(api: Api, topic_name: str) -> None:
    api.create(topic_name, 10)
    api.send_batch(topic_name, pack((9, b"x"), (1, b"y")))
    document = {"queues": [9, 1, 4], "offsets": [0, 0, 0]}
    answer = api.call("POST", f"/v1/topics/{topic_name}/fetch", document, status=200)
    assert positions_and_bodies(answer.body, {9: 0, 1: 0})[0] == {9: 1, 1: 1}


def test_a_fetch_that_finds_nothing_is_an_empty_200(api: Api, topic_name: str) -> None:
    api.create(topic_name, 2)
    assert api.fetch(topic_name, {0: 0, 1: 0}).body == b""


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"queues": [0]}, "offsets is missing"),
        ({"queues": [], "offsets": []}, "queues has 0 items; it needs at least 1"),
        ({"queues": [0, 1], "offsets": [0]}, "queues has 2 items and offsets 1"),
        ({"queues": [1, 1], "offsets": [0, 0]}, "queues names queue 1 more than once"),
        ({"queues": [0], "offsets": [-1]}, "offsets[0] is -1"),
        ({"queues": ["0"], "offsets": [0]}, "queues[0] is text"),
        ({"queues": "0000", "offsets": [0]}, "queues is text; it must be a list, or bin"),
        ({"queues": [0], "offsets": [0], "wait_ms": 60_001}, "wait_ms is 60001; the limit is 60000"),
        ({"queues": [0], "offsets": [0], "max_messages": 0}, "max_messages is 0; the least it may be is 1"),
        ({"queues": [0], "offsets": [0], "max": 1}, "max is not known"),
    ],
)
def test_a_wrong_fetch_is_refused(api: Api, topic_name: str, document: object, message: str) -> None:
    api.create(topic_name, 4)
    answer = api.call("POST", f"/v1/topics/{topic_name}/fetch", document, status=400)
    assert message in answer.error["message"]


def test_a_fetch_of_an_unknown_queue_names_it(api: Api, topic_name: str) -> None:
    api.create(topic_name, 4)
    answer = api.fetch(topic_name, {1: 0, 4: 0}, 404)
    assert answer.code == "unknown_queue" and "no queue 4" in answer.error["message"]


def test_packed_integers_cut_short_are_refused(api: Api, topic_name: str) -> None:
    api.create(topic_name, 4)
    body = b"\x82\xa6queues\xc4\x03abc\xa7offsets\xc4\x08" + bytes(8)
    headers = {"Content-Type": "application/msgpack", "Accept": "application/json"}
    answer = api.call("POST", f"/v1/topics/{topic_name}/fetch", body=body, headers=headers, status=400)
    assert "queues has 3 bytes" in answer.error["message"]


def reseal(batch: bytearray) -> bytes:
    """The batch with a checksum that fits its bytes again."""
    batch[:4] = crc32c.crc32c(bytes(batch[4:])).to_bytes(4, "little")
    return bytes(batch)


def patched(batch: bytes, position: int, value: int, width: int = 4) -> bytes:
    changed = bytearray(batch)
    changed[position : position + width] = value.to_bytes(width, "little")
    return reseal(changed)


def zstd_bomb() -> bytes:
    """A small batch whose frame says it holds a gibibyte."""
    frame = zstandard.ZstdCompressor(write_content_size=True).compress(bytes(1 << 20))
    header = bytes([0xA0]) + struct.pack("<I", 1 << 30)  # one segment, 4 bytes of content size
    fake = frame[:4] + header + frame[4 + 1 + 4 :]
    batch = bytearray(encode_batch(1, {Column.QUEUE: 0, Column.LENGTH: 1}, fake))
    batch[9] = Codec.ZSTD
    batch[20:24] = (1 << 20).to_bytes(4, "little")
    return reseal(batch)


GOOD = pack((0, b"good"), (1, b"goods"))
BAD_BATCHES: dict[str, tuple[bytes, str, str]] = {
    "nothing": (b"", "invalid_batch", "too few"),
    "noise": (b"x" * 100, "invalid_batch", "batch says"),
    "cut short": (GOOD[:-1], "invalid_batch", "the body has"),
    "two at once": (GOOD + GOOD, "invalid_batch", "send one batch a request"),
    "a flipped bit": (GOOD[:-1] + bytes([GOOD[-1] ^ 1]), "invalid_batch", "checksum"),
    "another version": (patched(GOOD, 8, 2, 1), "invalid_batch", "version 2"),
    "an unknown codec": (patched(GOOD, 9, 9, 1), "invalid_batch", "codec 9"),
    "no records": (patched(GOOD, 12, 0), "invalid_batch", "no records"),
    "four billion records": (patched(GOOD, 12, 2**32 - 1), "too_many_messages", "limit is 10000"),
    "a gibibyte of zstd": (zstd_bomb(), "invalid_request", "after decompression"),
    "a column of width 3": (patched(GOOD, HEADER_BYTES + 1, 3, 1), "invalid_batch", ""),
    "offsets of its own": (
        encode_batch(1, {Column.QUEUE: 0, Column.LENGTH: 1, Column.OFFSET: 5}, b"x"),
        "invalid_batch",
        "column 3",
    ),
    "an unknown column": (
        encode_batch(1, {Column.QUEUE: 0, Column.LENGTH: 1, 99: 5}, b"x"),
        "invalid_batch",
        "99",
    ),
    "a message that is due in a thousand years": (
        encode_batch(2, {Column.QUEUE: 0, Column.LENGTH: [1, 0], Column.DUE_MS: [0, 1 << 43]}, b"x"),
        "invalid_request",
        "ten years",
    ),
    "due times without bytes": (
        encode_batch(2, {Column.QUEUE: 0, Column.LENGTH: [1, 0], Column.DUE_MS: 5}, b"x"),
        "invalid_batch",
        "DUE_MS has no bytes",
    ),
    "flags": (
        encode_batch(1, {Column.QUEUE: 0, Column.LENGTH: 1, Column.FLAGS: 1}, b"x"),
        "invalid_batch",
        "other flags set than delete",
    ),
    "a deletion with a body": (
        encode_batch(2, {Column.QUEUE: 0, Column.LENGTH: [1, 0], Column.FLAGS: 8}, b"x"),
        "invalid_batch",
        "a deletion has none",
    ),
    "lengths beyond its payload": (
        encode_batch(2, {Column.QUEUE: 0, Column.LENGTH: 9}, b"x"),
        "invalid_batch",
        "add up to",
    ),
    "a header beyond its record": (
        encode_batch(1, {Column.QUEUE: 0, Column.LENGTH: 1, Column.HEADER_LENGTH: 2}, b"x"),
        "invalid_batch",
        "header is longer",
    ),
    "a priority beyond two bytes": (
        encode_batch(2, {Column.LENGTH: 1, Column.PRIORITY: [0, 70_000]}, b"xy"),
        "invalid_batch",
        "PRIORITY of the batch has a 70000; the limit is 65535",
    ),
    "a queue that would wrap to another": (
        encode_batch(1, {Column.QUEUE: 2**32 + 1, Column.LENGTH: 1}, b"x"),
        "invalid_batch",
        "QUEUE",
    ),
    "an unknown queue": (pack((0, b"x"), (4, b"y")), "unknown_queue", "0 to 3"),
}


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_a_bad_batch_is_refused_and_nothing_is_stored(api: Api, topic_name: str, name: str) -> None:
    api.create(topic_name, 4)
    batch, code, message = BAD_BATCHES[name]
    answer = api.send_batch(topic_name, batch, status=None)
    assert (400 <= answer.status < 500, answer.code) == (True, code), answer.body
    assert message in answer.error["message"]
    assert sum(api.get(f"/v1/topics/{topic_name}/offsets").json()["latest"]) == 0


def test_a_batch_needs_its_content_type(api: Api, topic_name: str) -> None:
    api.create(topic_name, 4)
    answer = api.call("POST", f"/v1/topics/{topic_name}/batches", body=GOOD, status=400)
    assert "application/vnd.lsmq.batch" in answer.error["message"]


def test_ack_of_a_batch_is_quorum_or_leader(api: Api, topic_name: str) -> None:
    api.create(topic_name, 4)
    api.send_batch(topic_name, GOOD, query="?ack=leader")
    assert "ack is 'none'" in api.send_batch(topic_name, GOOD, 400, "?ack=none").error["message"]


def test_a_header_that_is_not_msgpack_does_not_hide_the_message(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    for header in (
        b"\xc1\xc1\xc1",
        b"\x92\xc0\xc4\x01a",
        b"\x93\xc0\xc0\x91\x01",
        b"\x94\xc0\xc0\xc0\x91\xa1a",
        b"\x01\x01\x01",
    ):
        columns = {Column.LENGTH: len(header) + 4, Column.HEADER_LENGTH: len(header)}
        api.send_batch(topic_name, encode_batch(1, columns, header + b"body"))
    messages = api.read(topic_name, 0).json()["messages"]
    assert [message["body"] for message in messages] == ["body"] * 5
    assert all("header_b64" in message and message["key"] is None for message in messages)


def test_a_backlog_leaves_by_sendfile_as_it_was_sent(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node(memtable_bytes=4 * 1024 * 1024, sendfile_min_bytes=1).start()
    api = Api(node.url)
    api.create("t", 4)
    expected: list[bytes] = []
    while len(expected) < 12_000:
        bodies = [b"%06d" % number * 200 for number in range(len(expected), len(expected) + 600)]
        api.send_batch("t", pack(*((2, body) for body in bodies)))
        expected += bodies
    eventually(lambda: api.metric("lsmq_store_flushes_total") >= 2, "memtables were flushed")
    found: list[bytes] = []
    largest = 0
    while len(found) < len(expected):
        asked = {2: len(found), 3: 0}
        body = api.fetch("t", asked, max_messages=2500, max_bytes=2_000_000).body
        largest = max(largest, len(body))
        positions, messages = positions_and_bodies(body, asked)
        assert positions[2] > asked[2]
        found += [body for offset, body in messages[2] if offset < positions[2]]
    assert found == expected
    assert largest > 1_000_000
    assert api.metric("lsmq_sendfile_bytes_total") > 4_000_000
    assert api.metric("lsmq_inflight_bytes") == 0


def test_busy_queues_do_not_starve_the_others(api: Api, topic_name: str) -> None:
    """Answers that are full begin one queue further each time."""
    api.create(topic_name, 50)
    api.send_batch(topic_name, pack(*((queue, b"x" * 100) for queue in range(50) for _ in range(20))))
    asked = dict.fromkeys(range(50), 0)
    seen: set[int] = set()
    for _ in range(50):
        positions, messages = positions_and_bodies(api.fetch(topic_name, asked, max_messages=20).body, asked)
        assert sum(map(len, messages.values())) == 20
        assert set(positions) == set(messages)
        seen.update(messages)
    assert seen == set(asked)
