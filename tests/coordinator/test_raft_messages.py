"""Frames between voters, the AppendEntries rule, the lease."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmq_coordinator.raft_messages import (
    HELLO,
    LENGTH,
    MAX_FRAME_BYTES,
    BadFrame,
    Diverged,
    FrameSession,
    checked,
    judge_append,
    majority_moment,
)

KEY = b"k" * 32


def sessions(client_key: bytes = KEY, server_key: bytes = KEY) -> tuple[FrameSession, FrameSession]:
    """Two sides that have said hello."""
    client, server = FrameSession(client_key, client=True), FrameSession(server_key, client=False)
    assert server.open(client.hello()) is HELLO
    assert client.open(server.hello()) is HELLO
    client.known = server.known = True
    return client, server


def test_messages_arrive_in_both_directions() -> None:
    client, server = sessions()
    for number in range(3):
        assert server.open(client.seal({"n": number})) == {"n": number}
        assert client.open(server.seal([number, b"x"])) == (number, b"x")


def test_another_key_is_refused_before_anything_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(msgpack, "unpackb", lambda *a, **k: pytest.fail("decoded before it was verified"))
    with pytest.raises(BadFrame, match="another cluster secret"):
        sessions(client_key=b"x" * 32)
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
    recorded = FrameSession(KEY, client=True)
    hello, later = recorded.hello(), None
    server = FrameSession(KEY, client=False)
    server.open(hello)
    recorded.open(server.hello())
    later = recorded.seal({"from": "n1"})
    again = FrameSession(KEY, client=False)
    again.open(hello)
    again.hello()
    with pytest.raises(BadFrame):
        again.open(later)


def test_lengths_are_limited_more_strictly_before_the_peer_is_known() -> None:
    server = FrameSession(KEY, client=False)
    assert server.split(LENGTH.pack(32)[:3]) == 0
    assert server.split(LENGTH.pack(64)) == 0
    for length in (0, 31, 100_000, 2**31, 2**32 - 1):
        with pytest.raises(BadFrame):
            server.split(LENGTH.pack(length))
    server.known = True
    assert server.split(LENGTH.pack(100_000)) == 0
    with pytest.raises(BadFrame):
        server.split(LENGTH.pack(MAX_FRAME_BYTES + 1))


VOTE = {"type": "request_vote", "term": 3, "last_log_index": 4, "last_log_term": 2, "whole": True}


@pytest.mark.parametrize(
    "message",
    [
        None,
        b"bytes",
        ["add", "n9"],
        {"type": "apply_command", "command": b""},
        {"type": "timeout_now", "term": 3},
        {**VOTE, "more": 1},
        {**VOTE, "term": -1},
        {**VOTE, "term": True},
        {**VOTE, "term": "3"},
        {key: value for key, value in VOTE.items() if key != "whole"},
        {"type": "append_entries", "term": 1, "commit_index": 1, "serialized": (b"", True, True)},
    ],
)
def test_what_voters_do_not_send_is_not_taken(message: Any) -> None:
    assert checked(VOTE) == VOTE
    assert checked(message) is None


def append(previous: int, log: list[int], count: int, commit: int, term: int = 9) -> dict[str, Any]:
    """An AppendEntries with ``count`` entries after ``previous`` from a log given as terms; entry 1 has term 0."""
    return {
        "type": "append_entries",
        "term": term,
        "commit_index": commit,
        "prevLogIdx": previous,
        "prevLogTerm": log[previous - 1],
        "entries": tuple((b"c%d" % i, i, log[i - 1]) for i in range(previous + 1, previous + 1 + count)),
        "stamp": 1.0,
        "whole": True,
    }


class Terms:
    """A log of which only terms matter."""

    def __init__(self, terms: list[int]) -> None:
        self.terms = terms

    @property
    def last_index(self) -> int:
        return len(self.terms)

    def term_at(self, index: int) -> int | None:
        return self.terms[index - 1] if 1 <= index <= len(self.terms) else None


def pysyncobj_appends(log: list[int], message: dict[str, Any]) -> list[int]:
    """What pysyncobj does with a message whose previous entry fits: it cuts behind it and adds."""
    return log[: message["prevLogIdx"]] + [entry[2] for entry in message["entries"]]


def test_entries_in_gaps_or_of_wrong_shape_are_not_taken() -> None:
    message = append(2, [0, 1, 1, 1, 1], 2, 1)
    assert checked(message) == message
    assert checked({**message, "prevLogIdx": 1}) is None
    assert checked({**message, "entries": ((b"c", 3),)}) is None
    assert checked({**message, "entries": (("text", 3, 1), (b"c", 4, 1))}) is None


def test_a_late_message_cuts_nothing_and_acknowledges_only_itself() -> None:
    log = [0, 1, 1, 1, 1]
    judged = judge_append(append(2, log, 1, 5), Terms(log), commit_index=5)
    assert judged.acknowledge == 4
    assert "prevLogIdx" not in judged.message
    assert judged.message["commit_index"] == 3


def test_a_conflict_cuts_from_there_on_and_not_earlier() -> None:
    mine, leaders = [0, 1, 1, 2, 2], [0, 1, 1, 3]
    judged = judge_append(append(1, leaders, 3, 1), Terms(mine), commit_index=3)
    assert judged.message["prevLogIdx"] == 3
    assert pysyncobj_appends(mine, judged.message) == leaders


def test_committed_entries_are_never_replaced() -> None:
    mine, leaders = [0, 1, 1, 2], [0, 1, 1, 3]
    with pytest.raises(Diverged):
        judge_append(append(1, leaders, 3, 1), Terms(mine), commit_index=4)
    with pytest.raises(Diverged):
        judge_append(append(4, leaders, 0, 1), Terms(mine), commit_index=4)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_any_order_of_messages_of_a_leader_keeps_what_was_acknowledged(data: st.DataObject) -> None:
    """Late, repeated, overlapping messages of one leader, to a follower with entries of an older term."""
    common = data.draw(st.integers(1, 5))
    leaders = [0, *[1] * (common - 1), *[3] * data.draw(st.integers(0, 6))]
    mine = [0, *[1] * (common - 1), *[2] * data.draw(st.integers(0, 6))]
    commit, acknowledged = common, 0
    for _ in range(data.draw(st.integers(1, 12))):
        previous = data.draw(st.integers(1, len(leaders)))
        count = data.draw(st.integers(0, len(leaders) - previous))
        message = append(previous, leaders, count, data.draw(st.integers(1, len(leaders))))
        judged = judge_append(message, Terms(mine), commit)
        if judged.acknowledge is not None:
            proven = judged.acknowledge - 1
        elif Terms(mine).term_at(message["prevLogIdx"]) != message["prevLogTerm"]:
            continue
        else:
            mine = pysyncobj_appends(mine, judged.message)
            proven = len(mine)
        acknowledged = max(acknowledged, proven)
        commit = max(commit, min(judged.message["commit_index"], len(mine)))
        assert mine[:acknowledged] == leaders[:acknowledged], "an acknowledged entry was lost"
        assert mine[:commit] == leaders[:commit], "committed what the leader does not have"


def test_a_majority_moment_is_that_of_the_slowest_needed() -> None:
    assert majority_moment(10.0, [], 1) == 10.0
    assert majority_moment(10.0, [7.0, 9.0], 3) == 9.0
    assert majority_moment(10.0, [1.0, 2.0, 8.0, 9.0], 5) == 8.0
    assert majority_moment(10.0, [], 3) == float("-inf")
    assert majority_moment(10.0, [9.0], 5) == float("-inf")
