"""Frames between voters: who holds the key, and nobody else, is understood."""

from __future__ import annotations

from collections.abc import Sequence

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq_coordinator.raft_frames import HELLO, LENGTH, MAX_FRAME_BYTES, BadFrame, FrameSession

KEY = b"k" * 32


OLD, NEW = b"o" * 32, b"n" * 32


def sessions(
    client_keys: Sequence[bytes] = (KEY,), server_keys: Sequence[bytes] = (KEY,)
) -> tuple[FrameSession, FrameSession]:
    """Two sides that have said hello."""
    client, server = FrameSession(client_keys, client=True), FrameSession(server_keys, client=False)
    assert server.open(client.hello()) is HELLO
    assert client.open(server.hello()) is HELLO
    client.known = server.known = True
    return client, server


#: What two nodes have that are in adjacent steps of a change of the cluster's secret, or in the same.
STEPS = [(OLD,), (OLD, NEW), (NEW, OLD), (NEW,)]
ADJACENT = [(a, b) for at, a in enumerate(STEPS) for b in STEPS[max(0, at - 1) : at + 2]]


@pytest.mark.parametrize(("client_keys", "server_keys"), ADJACENT)
def test_voters_understand_each_other_while_the_secret_changes(
    client_keys: Sequence[bytes], server_keys: Sequence[bytes]
) -> None:
    client, server = sessions(client_keys, server_keys)
    assert server.open(client.seal("asked")) == "asked"
    assert client.open(server.seal("answered")) == "answered"


def test_a_connection_has_one_key_from_its_first_frame_on() -> None:
    client, server = sessions((OLD, NEW), (NEW, OLD))
    stranger = FrameSession((NEW,), client=True)
    stranger.hello()
    stranger._peer_nonce = client._peer_nonce
    with pytest.raises(BadFrame):
        server.open(stranger.seal("under the other key"))
    assert server.open(client.seal("under its own")) == "under its own"


@pytest.mark.parametrize(("client_keys", "server_keys"), [((OLD,), (NEW,)), ((NEW,), (OLD,)), ((OLD, NEW), (NEW,))])
def test_a_key_that_the_server_does_not_have_any_more_is_refused(
    client_keys: Sequence[bytes], server_keys: Sequence[bytes]
) -> None:
    with pytest.raises(BadFrame, match="another cluster secret"):
        sessions(client_keys, server_keys)


def test_messages_arrive_in_both_directions() -> None:
    client, server = sessions()
    for number in range(3):
        assert server.open(client.seal({"n": number})) == {"n": number}
        assert client.open(server.seal([number, b"x"])) == (number, b"x")


def test_another_key_is_refused_before_anything_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(msgpack, "unpackb", lambda *a, **k: pytest.fail("decoded before it was verified"))
    with pytest.raises(BadFrame, match="another cluster secret"):
        sessions(client_keys=[b"x" * 32])
    client, server = sessions()
    frame = bytearray(client.seal({"a": 1}))
    frame[-1] ^= 1
    with pytest.raises(BadFrame):
        server.open(bytes(frame))


@given(st.data())
def test_a_changed_byte_anywhere_is_refused(data: st.DataObject) -> None:
    client, server = sessions()
    frame = bytearray(client.seal({"type": "x", "value": list(range(20))}))
    position = data.draw(st.integers(LENGTH.size, len(frame) - 1))
    frame[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BadFrame):
        server.open(bytes(frame))


def test_a_frame_cannot_be_repeated_left_out_or_sent_back() -> None:
    client, server = sessions()
    first, second = client.seal(1), client.seal(2)
    with pytest.raises(BadFrame):
        server.open(second)
    assert server.open(first) == 1
    with pytest.raises(BadFrame):
        server.open(first)
    with pytest.raises(BadFrame):
        client.open(first)


def test_a_frame_of_another_connection_is_refused() -> None:
    client, server = sessions()
    other_client, _ = sessions()
    with pytest.raises(BadFrame):
        server.open(other_client.seal("vote"))
    assert server.open(client.seal("vote")) == "vote"


def test_a_recorded_hello_leads_nowhere() -> None:
    recorded = FrameSession([KEY], client=True)
    hello, later = recorded.hello(), None
    server = FrameSession([KEY], client=False)
    server.open(hello)
    recorded.open(server.hello())
    later = recorded.seal({"from": "n1"})
    again = FrameSession([KEY], client=False)
    again.open(hello)
    again.hello()
    with pytest.raises(BadFrame):
        again.open(later)


def test_lengths_are_limited_more_strictly_before_the_peer_is_known() -> None:
    server = FrameSession([KEY], client=False)
    assert server.split(LENGTH.pack(32)[:3]) == 0
    assert server.split(LENGTH.pack(64)) == 0
    for length in (0, 31, 100_000, 2**31, 2**32 - 1):
        with pytest.raises(BadFrame):
            server.split(LENGTH.pack(length))
    server.known = True
    assert server.split(LENGTH.pack(100_000)) == 0
    with pytest.raises(BadFrame):
        server.split(LENGTH.pack(MAX_FRAME_BYTES + 1))
