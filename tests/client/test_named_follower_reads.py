"""Answers about queues with names: who is sent to a follower, and what a deleted queue leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from lsmq._fetcher import FetchOptions
from lsmq._follower_reads import SENT, FetchOutcome, FollowerReadMode
from lsmq._named_fetch import NamedFetcher, NamedSelection
from lsmq._named_follower_reads import NamedFollowerReads
from lsmq._named_positions import NamedPositions
from lsmq.queue_names import SLOTS, queue_slot
from lsmq.record_batch import Column, Flag, encode_batch
from lsmq.topics import Topic

LEADER, FOLLOWER = "http://leader", "http://follower"


def fetcher(pattern: str | None = None) -> NamedFetcher:
    """One that nothing was asked by, which stands at 3 in queue 5."""
    found = NamedFetcher.__new__(NamedFetcher)
    found._named = NamedPositions(range(SLOTS), track_changes=False, forgets=True)
    found._named.meet(5, 0, 3)
    found._leader, found._selection, found._numbers = LEADER, NamedSelection(pattern=pattern), {}
    found._options = FetchOptions(100, 1 << 20, 0, 1 << 20, 1_000, 1_000.0)
    found._topic = Topic.from_dict({"name": "t", "id": 1, "queues": "named", "created_ms": 1, "routes": []})
    return found


def answer(names: dict[int, str], *queues: int) -> bytes:
    """What moves these queues by two messages, from 3 on, and says these names."""
    count = len(queues)
    parts = [
        encode_batch(count, {Column.QUEUE: list(queues), Column.OFFSET: [5] * count, Column.FLAGS: Flag.POSITION}, b"")
    ]
    if names:
        texts = [name.encode() for name in names.values()]
        columns = {
            Column.QUEUE: list(names),
            Column.OFFSET: [3] * len(names),
            Column.LENGTH: [len(text) for text in texts],
            Column.FLAGS: Flag.NAMES,
        }
        parts.append(encode_batch(len(names), columns, b"".join(texts)))
    rows = [(queue, offset) for queue in queues for offset in (3, 4)]
    columns = {
        Column.QUEUE: [queue for queue, _ in rows],
        Column.OFFSET: [offset for _, offset in rows],
        Column.LENGTH: [1] * len(rows),
    }
    return b"".join((*parts, encode_batch(len(rows), columns, b"x" * len(rows))))


def test_messages_of_a_queue_that_was_deleted_meanwhile_are_passed_over() -> None:
    chunk, _ = fetcher()._take_in(answer({6: "there"}, 5, 6), LEADER)
    assert [(message.queue_name, message.offset) for message in chunk.messages()] == [("there", 3), ("there", 4)]


def test_a_follower_gives_nothing_of_a_number_that_went_to_a_queue_nobody_asked_for() -> None:
    body = answer({5: "a.x", 6: "b"}, 5, 6)
    assert set(fetcher("a.*")._take_in(body, FOLLOWER)[0].spans) == {5}
    assert set(fetcher("a.*")._take_in(body, LEADER)[0].spans) == {5, 6}, "which chose them itself"
    mine = fetcher()
    slot = queue_slot("b")
    mine._named.own((range(slot, slot + 1),))
    assert set(mine._take_in(body, FOLLOWER)[0].spans) == {6}
    member = fetcher("a.*")
    member._named.own((range(slot, slot + 1),))
    assert set(member._take_in(body, FOLLOWER)[0].spans) == set(), "it reads what fits in its slots"


def test_who_is_sent_away_is_told_where_to_begin() -> None:
    found = fetcher()
    columns = {
        Column.QUEUE: [5, 9],
        Column.OFFSET: [1, 7],
        Column.LENGTH: [len(FOLLOWER), 0],
        Column.FLAGS: Flag.ELSEWHERE,
    }
    chunk, elsewhere = found._take_in(encode_batch(2, columns, FOLLOWER.encode()), LEADER)
    assert (chunk.spans, elsewhere) == ({}, [(FOLLOWER, [5, 9])])
    numbers, offsets = found._named.where([5, 9, 11])
    assert numbers == b"".join(each.to_bytes(4, "little") for each in (5, 9))
    assert offsets == b"".join(each.to_bytes(8, "little") for each in (3, 7))


@pytest.mark.parametrize("failed", [False, True])
async def test_a_queue_that_comes_back_is_asked_for_in_a_new_session(*, failed: bool) -> None:
    asked: asyncio.Queue[tuple[str, list[int]]] = asyncio.Queue()
    answers: asyncio.Queue[FetchOutcome] = asyncio.Queue()
    away: set[int] = set()

    async def fetch(url: str, slots: Sequence[range], manner: FollowerReadMode) -> FetchOutcome:
        asked.put_nowait((url, [queue for part in slots for queue in part]))
        return await answers.get()

    async with asyncio.TaskGroup() as group:
        reads = NamedFollowerReads([range(SLOTS)], fetch, group.create_task, away)
        begun = reads.near
        reads.send("a", [5, 9], SENT)
        reads.send("b", [5], SENT)
        assert reads.near is begun and away == {5, 9}, "the leader's session goes on without them"
        assert await asked.get() == ("a", [5, 9])
        assert asked.empty(), "it is under way"
        answers.put_nowait(FetchOutcome(True, [(None, [5])]))
        assert await asked.get() == ("a", [9])
        assert list(reads.near) == list(begun) and reads.near is not begun and away == {9}
        answers.put_nowait(FetchOutcome(True, [] if failed else [(None, [9])]))
        if failed:
            await asked.get()
            answers.put_nowait(FetchOutcome(False))
    assert away == set() and not reads.held_off
