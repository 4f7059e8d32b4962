"""Slots on reads: never asked for twice, always back in the end, and back at once when a follower fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq import Client, Consumer, Producer
from lsmq._fetch_loop import FetchLoop
from lsmq._follower_reads import CHOSEN, SENT, STAND_IN, FetchOutcome, FollowerReadMode, FollowerReads
from lsmq._queue_ranges import to_ranges
from lsmq.errors import ConnectionFailed
from support.node_process import NodeProcess
from support.waiting import comes_true


class Followers:
    """Answers of followers, given by the test; ``asked`` tells what came."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[tuple[str, list[int], FollowerReadMode]] = asyncio.Queue()
        self._answers: dict[str, asyncio.Queue[FetchOutcome | Exception]] = {}

    async def fetch(self, url: str, slots: Sequence[range], manner: FollowerReadMode) -> FetchOutcome:
        self.asked.put_nowait((url, numbers(slots), manner))
        answer = await self._answers.setdefault(url, asyncio.Queue()).get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def answer(self, url: str, answer: FetchOutcome | Exception) -> None:
        self._answers.setdefault(url, asyncio.Queue()).put_nowait(answer)


def numbers(ranges: Sequence[range]) -> list[int]:
    return [number for part in ranges for number in part]


async def test_slots_come_back_as_the_follower_says() -> None:
    followers = Followers()
    async with asyncio.TaskGroup() as group:
        reads = FollowerReads([range(6), range(10, 12)], followers.fetch, group.create_task)
        reads.send("a", [2, 3, 10], SENT)
        assert list(reads.near) == [range(2), range(4, 6), range(11, 12)]
        assert await followers.asked.get() == ("a", [2, 3, 10], SENT)
        followers.answer("a", FetchOutcome(True))
        assert await followers.asked.get() == ("a", [2, 3, 10], SENT)
        reads.send("a", [4], SENT)
        followers.answer("a", FetchOutcome(True, [(None, [3])]))
        assert await followers.asked.get() == ("a", [2, 4, 10], SENT)
        assert numbers(reads.near) == [0, 1, 3, 5, 11]
        followers.answer("a", FetchOutcome(True, [("b", [2, 4, 10])]))
    assert numbers(reads.near) == [0, 1, 2, 3, 4, 5, 10, 11]
    assert not reads.held_off


@pytest.mark.parametrize("manner", [SENT, STAND_IN, CHOSEN])
async def test_a_follower_that_fails_gives_all_back_and_is_not_asked_for_a_while(manner: FollowerReadMode) -> None:
    followers = Followers()
    async with asyncio.TaskGroup() as group:
        reads = FollowerReads([range(3)], followers.fetch, group.create_task)
        reads.send("a", range(3), manner)
        returned = group.create_task(reads.some_near())
        await followers.asked.get()
        followers.answer("a", FetchOutcome(True))
        followers.answer("a", ConnectionFailed("gone"))
        assert await returned, "messages came meanwhile"
    assert reads.near == [range(3)]
    assert reads.held_off


async def test_a_follower_with_less_than_the_leader_is_left_for_a_while() -> None:
    followers = Followers()
    async with asyncio.TaskGroup() as group:
        reads = FollowerReads([range(3)], followers.fetch, group.create_task)
        reads.send("a", [0], SENT)
        followers.answer("a", FetchOutcome(False, [(None, [0])]))
        assert not await reads.some_near()
    assert reads.held_off


async def test_only_a_chosen_follower_is_asked_again_when_it_has_nothing() -> None:
    followers = Followers()
    async with asyncio.TaskGroup() as group:
        reads = FollowerReads([range(3)], followers.fetch, group.create_task)
        reads.send("a", [0], CHOSEN)
        reads.send("b", [1], STAND_IN)
        for url in ("a", "b"):
            followers.answer(url, FetchOutcome(True))
            followers.answer(url, FetchOutcome(False))
        asked = [(await followers.asked.get())[0] for _ in range(5)]
        assert (asked.count("a"), asked.count("b")) == (3, 2)
        assert numbers(reads.near) == [1, 2]
        followers.answer("a", ConnectionFailed("gone"))


async def test_a_request_to_the_leader_is_given_up_when_slots_come_back() -> None:
    followers = Followers()
    cancelled = asyncio.Event()

    async def endless() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return "never"

    async def quick() -> str:
        return "answer"

    async with asyncio.TaskGroup() as group:
        reads = FollowerReads([range(3)], followers.fetch, group.create_task)
        assert await reads.unless_one_returns(quick()) == "answer"
        reads.send("a", [0], SENT)
        assert await reads.unless_one_returns(quick()) == "answer"
        polling = group.create_task(reads.unless_one_returns(endless()))
        await followers.asked.get()
        followers.answer("a", FetchOutcome(True, [(None, [0])]))
        assert await polling is None and cancelled.is_set()


@given(st.sets(st.integers(0, 60)), st.sets(st.integers(0, 60)))
def test_near_and_away_are_all_and_share_nothing(slots: set[int], away: set[int]) -> None:
    async def run() -> None:
        followers = Followers()
        tasks = []
        reads = FollowerReads(to_ranges(slots), followers.fetch, lambda work: tasks.append(asyncio.ensure_future(work)))
        gone = slots & away
        if gone:
            reads.send("a", gone, SENT)
        assert numbers(reads.near) == sorted(slots - gone)
        assert all(len(part) for part in reads.near)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())


async def test_a_fetch_loop_begins_anew_though_a_cancelled_request_looks_like_a_failed_one(
    shared_node: NodeProcess, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library may end a request that is cancelled with an error of its own. Then the fetcher tries again."""
    begun: list[None] = []
    whole = FetchLoop._fetch_all

    async def counted(loop: FetchLoop) -> None:
        begun.append(None)
        await whole(loop)

    monkeypatch.setattr(FetchLoop, "_fetch_all", counted)
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        producer = Producer(client, topic_name)
        request = client._transport.request

        async def careless(*arguments: Any, **named: Any) -> Any:
            try:
                return await request(*arguments, **named)
            except asyncio.CancelledError:
                raise ConnectionFailed("closing failed") from None

        monkeypatch.setattr(client._transport, "request", careless)
        async with Consumer(client, topic_name, start="earliest") as consumer:
            await producer.send_and_wait("1")
            assert len(await consumer.poll()) == 1
            consumer._reader.loops[topic_name]._restart.set()
            await comes_true(lambda: len(begun) == 2, "another fetch has begun")
            await producer.send_and_wait("2")
            assert [message.offset for message in await consumer.poll()] == [1]
        await producer.close()
