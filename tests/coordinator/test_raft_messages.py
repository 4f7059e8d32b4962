"""What voters say to each other, and the AppendEntries rule."""

from __future__ import annotations

from typing import Any

import crc32c
import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmq_coordinator.raft_following import Assembly, Diverged, judge_append
from lsmq_coordinator.raft_log import RaftLog
from lsmq_coordinator.raft_messages import (
    AppendAnswer,
    AppendEntries,
    PreVote,
    PreVoteAnswer,
    RaftMessage,
    Resigned,
    SnapshotAnswer,
    SnapshotPart,
    Vote,
    VoteAnswer,
    pack,
    unpack,
)
from lsmq_coordinator.raft_terms import MAX_SNAPSHOT_BYTES, RaftEntry
from support.extent import part_in_number


def append(previous: int, terms: list[int], count: int, commit: int, term: int = 9) -> AppendEntries:
    """An AppendEntries with ``count`` entries after ``previous`` from a log given as terms; entry 1 has the first."""
    entries = tuple(RaftEntry(i, terms[i - 1], b"c%d" % i) for i in range(previous + 1, previous + 1 + count))
    previous_term = terms[previous - 1] if previous else 0
    return AppendEntries(term, previous, previous_term, entries, commit, 1.0, True)


def log_of(terms: list[int]) -> RaftLog:
    return RaftLog(0, 0, [RaftEntry(index, term, b"c%d" % index) for index, term in enumerate(terms, 1)])


def terms_of(log: RaftLog) -> list[int]:
    return [entry.term for entry in log.after(log.base_index, 1 << 40, 1 << 40)]


EACH: list[RaftMessage] = [
    PreVote(3, 4, 9, 2, True),
    PreVoteAnswer(3, 4, True, 0.25),
    Vote(4, 9, 2, False),
    VoteAnswer(4, True),
    append(2, [1, 1, 2, 3], 2, 2),
    AppendAnswer(4, True, 7, 0, 1.5),
    SnapshotPart(4, 9, 3, 10, 77, 4, b"abc", 1.5, True),
    SnapshotAnswer(4, 9, 4, 1.5),
    Resigned(4),
]


def over_the_wire(values: Any) -> RaftMessage | None:
    return unpack(msgpack.unpackb(msgpack.packb(values), use_list=False))


@pytest.mark.parametrize("message", EACH, ids=lambda message: type(message).__name__)
def test_each_message_arrives_as_it_was_sent_and_no_other_shape_of_it_is_taken(message: RaftMessage) -> None:
    values = pack(message)
    assert over_the_wire(values) == message
    assert over_the_wire([*values, 1]) is None
    assert over_the_wire(values[:-1]) is None
    for place in range(1, len(values)):
        for wrong in (None, "text", -1, {"a": 1}):
            assert over_the_wire([*values[:place], wrong, *values[place + 1 :]]) is None


@pytest.mark.parametrize("content", [None, b"bytes", ["add", "n9"], [0, 1], [10, 1], [True, 3], [], {"type": "vote"}])
def test_what_voters_do_not_send_is_not_taken(content: Any) -> None:
    assert over_the_wire(content) is None


def test_entries_in_gaps_of_falling_terms_or_of_wrong_shape_are_not_taken() -> None:
    values = pack(append(2, [1, 1, 1, 1, 1], 2, 1))
    assert over_the_wire(values) is not None
    place = 4
    for entries in (
        ((3, 1, b"c"), (5, 1, b"c")),
        ((4, 1, b"c"),),
        ((3, 1, "text"),),
        ((3, 1),),
        ((3, 2, b"c"), (4, 1, b"c")),
        ((3, 10, b"c"),),
        ((3, 1, b"x" * (300 << 10)),),
    ):
        assert over_the_wire([*values[:place], entries, *values[place + 1 :]]) is None, entries


def test_a_part_beyond_its_snapshot_or_of_too_large_a_one_is_not_taken() -> None:
    assert over_the_wire(pack(SnapshotPart(4, 9, 3, 5, 77, 4, b"abc", 1.5, True))) is None
    assert over_the_wire(pack(SnapshotPart(4, 9, 3, MAX_SNAPSHOT_BYTES + 1, 77, 4, b"abc", 1.5, True))) is None


def test_a_late_message_cuts_nothing_and_proves_only_itself() -> None:
    verdict = judge_append(append(2, [1] * 5, 1, 5), log_of([1] * 5), commit=5)
    assert (verdict.proven, verdict.cut, verdict.entries) == (3, None, ())


def test_a_conflict_cuts_from_there_on_and_not_earlier() -> None:
    verdict = judge_append(append(1, [1, 1, 1, 3], 3, 1), log_of([1, 1, 1, 2, 2]), commit=3)
    assert (verdict.proven, verdict.cut, [entry.index for entry in verdict.entries]) == (4, 4, [4])


def test_a_leader_is_told_to_go_back_before_the_whole_term_that_conflicts_or_to_the_end() -> None:
    mine = log_of([1, 1, 2, 2, 2])
    assert judge_append(append(5, [1, 1, 3, 3, 3], 0, 1), mine, commit=1).hint == 2
    assert judge_append(append(7, [1, 1, 3, 3, 3, 3, 3], 0, 1), mine, commit=1).hint == 5


def test_committed_entries_are_never_replaced() -> None:
    for message in (append(1, [1, 1, 3, 3], 3, 1), append(4, [1, 1, 3, 3], 0, 1)):
        with pytest.raises(Diverged, match="committed"):
            judge_append(message, log_of([1, 1, 1, 2]), commit=4)


def test_a_snapshot_is_of_the_leader_s_log_or_found_out() -> None:
    """A voter that was restored, and a leader of a cluster that was founded without it."""
    log = RaftLog(1, 1 << 31)
    for message in (append(0, [1, 1, 2], 2, 1), append(1, [1, 1, 2], 2, 1)):
        with pytest.raises(Diverged, match="different clusters"):
            judge_append(message, log, commit=1)
    assert judge_append(append(0, [1 << 31, 1 << 31], 2, 1), log, commit=1).proven == 2


def test_what_a_snapshot_stands_for_is_equal_and_the_rest_is_taken() -> None:
    log = log_of([1, 1, 1, 1])
    log.compact(3)
    verdict = judge_append(append(1, [1] * 6, 5, 3), log, commit=3)
    assert (verdict.proven, verdict.cut, [entry.index for entry in verdict.entries]) == (6, None, [5, 6])
    assert judge_append(append(0, [1] * 6, 2, 3), log, commit=3).proven == 2


@settings(max_examples=part_in_number(400, 3))
@given(st.data())
def test_any_order_of_messages_of_a_leader_keeps_what_was_acknowledged(data: st.DataObject) -> None:
    """Late, repeated, overlapping messages of one leader, to a follower with entries of an older term."""
    common = data.draw(st.integers(1, 5))
    leaders = [*[1] * common, *[3] * data.draw(st.integers(0, 6))]
    log = log_of([*[1] * common, *[2] * data.draw(st.integers(0, 6))])
    commit, acknowledged = common, 0
    for _ in range(data.draw(st.integers(1, 12))):
        previous = data.draw(st.integers(0, len(leaders)))
        count = data.draw(st.integers(0, len(leaders) - previous))
        message = append(previous, leaders, count, data.draw(st.integers(1, len(leaders))))
        verdict = judge_append(message, log, commit)
        if verdict.proven is None:
            assert commit <= verdict.hint < previous or verdict.hint == log.last_index
            continue
        if verdict.cut is not None:
            log.cut(verdict.cut)
        for entry in verdict.entries:
            log.append(entry)
        acknowledged = max(acknowledged, verdict.proven)
        commit = max(commit, min(message.commit, verdict.proven))
        if commit > 1 and data.draw(st.booleans()):
            log.compact(data.draw(st.integers(log.base_index, commit)))
        mine = [*leaders[: log.base_index], *terms_of(log)]
        assert mine[:acknowledged] == leaders[:acknowledged], "an acknowledged entry was lost"
        assert mine[:commit] == leaders[:commit], "committed what the leader does not have"


def test_a_snapshot_comes_together_from_parts_whatever_is_repeated_or_left_out() -> None:
    content = bytes(range(10))

    def part(offset: int, length: int, checksum: int = crc32c.crc32c(content), index: int = 9) -> SnapshotPart:
        return SnapshotPart(4, index, 3, 10, checksum, offset, content[offset : offset + length], 1.0, True)

    assembly = Assembly()
    assert assembly.add(part(0, 4)) == (4, None)
    assert assembly.add(part(8, 2)) == (4, None)
    assert assembly.add(part(0, 4)) == (4, None)
    assert assembly.add(part(4, 0)) == (4, None)
    assert assembly.add(part(4, 6)) == (10, content)
    assert assembly.add(part(0, 4)) == (4, None)
    assert assembly.add(part(0, 5, index=10)) == (5, None), "another snapshot begins anew"
    assert assembly.add(part(0, 10, checksum=1)) == (0, None), "damaged on its way: once more"
