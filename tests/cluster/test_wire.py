"""Messages between nodes as bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq_coordinator.lives import LifeId
from lsmq_node.cluster.seals import SEAL_BYTES, Seal
from lsmq_node.cluster.wire import HEAD, HEAD_BYTES, VERSION, BadMessage, Decoder, FromWire, MessageKind, encode
from lsmq_node.config import NodeConfig
from lsmq_node.replication import EpochHistory, EpochStart, LogPosition, ReplicaMessage, ReplicaSession
from lsmq_node.replication.messages import (
    Frame,
    Hello,
    Progress,
    Promise,
    PromiseRefusal,
    PromiseRequest,
    Rejoin,
    Stale,
    TakeNewIncarnation,
    TakeSnapshot,
    Welcome,
)
from lsmq_node.settings import known_fields
from lsmq_node.storage.dedupe import encode_repeats
from lsmq_node.storage.wal import BLOCK_BYTES, ENTRY_BYTES, FRAGMENT_BYTES, SEGMENT_HEADER_BYTES
from storage.harness import profile

numbers = st.integers(0, (1 << 63) - 1)
names = st.text(min_size=1, max_size=20)
sessions = st.builds(ReplicaSession, numbers, numbers)
lives = st.builds(LifeId, numbers, numbers)
positions = st.builds(LogPosition, numbers, numbers)
histories = st.lists(st.tuples(numbers, numbers, lives), max_size=5).map(
    lambda rows: EpochHistory.of(
        EpochStart(epoch, lsn, life)
        for epoch, lsn, (_, _, life) in zip(
            sorted({epoch + 1 for epoch, _, _ in rows}), sorted(lsn for _, lsn, _ in rows), rows, strict=False
        )
    )
)
frames = st.builds(
    lambda session, epoch, lsn, size, high: Frame(session, epoch, lsn, lsn + size, high),
    sessions,
    numbers,
    st.integers(0, 1 << 50),
    st.integers(0, 300),
    numbers,
)
messages: st.SearchStrategy[ReplicaMessage] = st.one_of(
    frames,
    st.builds(Hello, sessions, numbers, numbers, histories, numbers, st.booleans()),
    st.builds(Welcome, sessions, numbers, numbers, histories, numbers),
    st.builds(TakeSnapshot, sessions, numbers, numbers),
    st.builds(TakeNewIncarnation, sessions, numbers, numbers),
    st.builds(Rejoin, sessions, numbers),
    st.builds(Stale, numbers, names, lives),
    st.builds(Progress, sessions, numbers, numbers, numbers),
    st.builds(PromiseRequest, numbers, lives),
    st.builds(Promise, numbers, lives, positions),
    st.builds(PromiseRefusal, numbers, numbers, st.none() | names),
)


def seal(mac: str = "of the request") -> Seal:
    return Seal(b"the key of links", mac)


def sent(shard: int, message: ReplicaMessage, by: Seal) -> tuple[bytes, bytes]:
    payload = bytes(range(256)) * 2 if type(message) is Frame else b""
    payload = payload[: message.end_lsn - message.lsn] if type(message) is Frame else b""
    head = encode(shard, message, len(payload))
    return head + by.next(head, payload) + payload, payload


def received(pieces: list[bytes]) -> list[FromWire]:
    decoder = Decoder(seal())
    return [item for piece in pieces for item in decoder.feed(piece)]


@profile(150)
@given(
    st.lists(st.tuples(st.integers(0, 255), messages), min_size=1, max_size=6),
    st.lists(st.integers(1, 400), min_size=1, max_size=30),
)
def test_what_is_sent_is_received_however_it_is_cut(
    sent_messages: list[tuple[int, ReplicaMessage]], cuts: list[int]
) -> None:
    by = seal()
    parts = [sent(shard, message, by) for shard, message in sent_messages]
    stream = b"".join(whole for whole, _ in parts)
    pieces, at, turn = [], 0, 0
    while at < len(stream):
        pieces.append(stream[at : at + cuts[turn % len(cuts)]])
        at, turn = at + cuts[turn % len(cuts)], turn + 1
    found = [(shard, message, bytes(payload)) for shard, message, payload in received(pieces)]
    expected = [(*item, payload) for item, (_, payload) in zip(sent_messages, parts, strict=True)]
    assert found == expected


@profile(200)
@given(messages, st.data())
def test_a_flipped_bit_is_an_error_and_nothing_is_taken(message: ReplicaMessage, data: st.DataObject) -> None:
    whole = bytearray(sent(1, message, seal())[0])
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        assert received([bytes(whole)]) == [], "it says that more is to come, at most"
    except BadMessage as error:
        assert error.code == "bad_message"


def test_messages_that_are_left_out_repeated_turned_round_or_of_another_link_are_refused() -> None:
    by, asker = seal(), LifeId(1, 2)
    first, second = (sent(1, PromiseRequest(number, asker), by)[0] for number in (1, 2))
    assert len(received([first, second])) == 2
    for pieces in ([second], [first, first], [second, first], [first, second, second]):
        with pytest.raises(BadMessage, match="wrong code"):
            received(pieces)
    with pytest.raises(BadMessage, match="wrong code"):
        received([sent(1, PromiseRequest(1, asker), seal("of another request"))[0]])


def raw(kind: int, body: bytes, *, version: int = VERSION, payload: int = 0) -> bytes:
    return HEAD.pack(version, kind, 0, len(body), payload) + body + bytes(SEAL_BYTES)


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (raw(99, b"\x90"), "no message has kind 99"),
        (raw(MessageKind.PROGRESS, b"\x90", version=VERSION + 1), "version 4"),
        (raw(MessageKind.PROGRESS, b"\x90"), "0 fields"),
        (raw(MessageKind.PROGRESS, b"\xc1"), "PROGRESS cannot be read"),
        (raw(MessageKind.PROMISE_REQUEST, b"\x92\xff\x92\x01\x02"), "no number"),
        (raw(MessageKind.PROMISE_REQUEST, b"\x92\x07\x92\x01\x02", payload=3) + b"abc", "3 bytes came with"),
        (HEAD.pack(VERSION, MessageKind.FRAME, 0, 5, 1 << 31), "at most"),
    ],
)
def test_what_is_no_message_is_refused_with_the_reason(stream: bytes, reason: str) -> None:
    with pytest.raises(BadMessage, match=reason):
        received([stream])


def test_a_frame_has_room_for_the_log_entry_of_the_largest_request_there_can_be() -> None:
    """A log entry goes whole. One that has no room would end each link on which it is sent."""
    settings = known_fields(NodeConfig)
    largest, messages = (
        settings[name].metadata["range"][1] for name in ("max_request_bytes", "max_messages_per_request")
    )
    entry_bytes = ENTRY_BYTES + largest + len(encode_repeats(np.zeros(messages, int), np.zeros(messages, int)))
    blocks = entry_bytes // (BLOCK_BYTES - FRAGMENT_BYTES - SEGMENT_HEADER_BYTES) + 2
    frame = HEAD.pack(VERSION, MessageKind.FRAME, 0, 5, entry_bytes + blocks * (FRAGMENT_BYTES + SEGMENT_HEADER_BYTES))
    assert received([frame]) == [], "the rest is to come"


GOLDEN: list[tuple[Any, str]] = [
    (Progress(ReplicaSession(2, 3), 4, 5, 6), "030807000000070000000000000094920203040506"),
    (PromiseRefusal(9, 10, None), "030b07000000040000000000000093090ac0"),
    (Stale(8, "n2", LifeId(4, 5)), "03060700000008000000000000009308a26e32920405"),
    (
        Hello(ReplicaSession(2, 3), 4, 5, EpochHistory.of([EpochStart(7, 90, LifeId(4, 5))]), 120, borrows=False),
        "03010700000015000000000000009692020304059293000092000093075a92040578c2",
    ),
    (PromiseRequest(8, LifeId(4, 5)), "03090700000005000000000000009208920405"),
]


@pytest.mark.parametrize(("message", "expected"), GOLDEN)
def test_the_bytes_of_a_message_stay_what_they_are(message: ReplicaMessage, expected: str) -> None:
    assert encode(7, message).hex() == expected
    assert HEAD_BYTES == 14
