"""Members of consumer groups against a real node: who reads what, when it changes hands, and who is kept out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from lsmq import (
    Client,
    Consumer,
    GroupModeMismatch,
    InvalidRequest,
    StaleGeneration,
    TopicReplaced,
    UnknownTopic,
)
from lsmq._heartbeats import Heart
from lsmq.errors import TooManyGroups
from lsmq.groups import Group
from support.group_topic import Handler, fill, filled, numbers, queues_of, take
from support.node_process import NodeProcess
from support.waiting import comes_true

# Sharing


async def test_members_share_the_queues_and_hand_them_on(shared_node: NodeProcess, topic_name: str) -> None:
    async with filled(shared_node, topic_name) as client:
        first = Consumer(client, topic_name, group=topic_name)
        async with first:
            assert queues_of(first.assignment) == list(range(8))
            got = await take(first, 80)
            assert numbers(got) == list(range(80))
            await first.commit()
            waiting = asyncio.create_task(first.poll())  # What it was handed is let go.
            async with Consumer(client, topic_name, group=topic_name) as second:
                await comes_true(lambda: len(queues_of(second.assignment)) == 4, "the second has its half")
                assert len(queues_of(first.assignment)) == 4
                assert sorted(queues_of(first.assignment) + queues_of(second.assignment)) == list(range(8))
                assert dict(second.positions) == dict.fromkeys(queues_of(second.assignment), 10)
                await fill(client, topic_name, range(80, 160), 8)
                mine = await waiting
                mine += await take(first, 40 - len(mine))
                others = await take(second, 40)
                assert numbers(mine + others) == list(range(80, 160))
                assert {m.queue for m in others} == set(queues_of(second.assignment))
                await first.commit()
                await second.commit()
            reading = asyncio.create_task(first.poll())
            await comes_true(lambda: len(queues_of(first.assignment)) == 8, "the first has all again")
            assert dict(first.positions) == dict.fromkeys(range(8), 20)
            await fill(client, topic_name, range(160, 161), 8)
            assert numbers(await reading) == [160]
        assert first.member_id is not None
        described = await Group(client, topic_name).describe()
        assert (described.state, described.members) == ("empty", ())


async def test_who_keeps_a_queue_goes_on_reading_it(shared_node: NodeProcess, topic_name: str) -> None:
    """Others come and go; the queue that stays with its member is never fetched from its commit again."""
    async with filled(shared_node, topic_name, queues=4, count=0) as client:
        handler = Handler()
        async with Consumer(client, topic_name, group=topic_name) as keeper:
            running = asyncio.create_task(keeper.run(handler))
            kept = queues_of(keeper.assignment)
            for start in range(0, 120, 40):
                async with Consumer(client, topic_name, group=topic_name) as guest:
                    other = asyncio.create_task(guest.run(handler))
                    await comes_true(lambda guest=guest: len(queues_of(guest.assignment)) == 2, "the guest has two")
                    kept = [queue for queue in kept if queue in queues_of(keeper.assignment)]
                    await fill(client, topic_name, range(start, start + 40), 4)
                    await comes_true(lambda start=start: len(handler.handled) >= start + 40, "all is handled")
                await other
        await running
        assert numbers(handler.handled) == list(range(120))
        assert len(kept) == 2
        for queue in range(4):
            assert [m.offset for m in handler.handled if m.queue == queue] == list(range(30))


async def test_more_members_than_queues_stand_by(shared_node: NodeProcess, topic_name: str) -> None:
    async with filled(shared_node, topic_name, queues=1, count=1) as client:
        first = Consumer(client, topic_name, group=topic_name)
        await first.start()
        async with Consumer(client, topic_name, group=topic_name) as second:
            assert (queues_of(first.assignment), queues_of(second.assignment)) == ([0], [])
            assert await second.poll(timeout_ms=50) == [] and dict(second.positions) == {}
            assert numbers(await take(first, 1)) == [0]
            await first.close()
            assert numbers(await take(second, 1)) == [0]


async def test_members_with_different_topics_are_served_right(shared_node: NodeProcess, topic_name: str) -> None:
    other = f"{topic_name}-2"
    async with filled(shared_node, topic_name, queues=2, count=20) as client, filled(shared_node, other, queues=2):
        async with Consumer(client, [topic_name, other], group=topic_name) as both:
            got = await take(both, 100)
            assert {m.topic for m in got} == {topic_name, other}
            await both.commit()
            await both.commit({0: 3}, topic=other, reset=True)
            with pytest.raises(InvalidRequest, match="say which topic"):
                await both.commit({0: 3})
            assert dict(both.positions_of(topic_name)) == {0: 10, 1: 10}
            reading = asyncio.create_task(both.poll())
            async with Consumer(client, other, group=topic_name) as one:
                await comes_true(lambda: len(queues_of(one.assignment)) == 1, "the second has its share of one topic")
                assert len(both.assignment[other][0]) == 1 and both.assignment[topic_name] == (range(2),)
            reading.cancel()
        assert await client.committed_offsets(topic_name, topic_name) == {0: 10, 1: 10}
        assert await client.committed_offsets(topic_name, other) == {0: 3, 1: 40}


async def test_several_topics_are_read_without_a_group_as_well(shared_node: NodeProcess, topic_name: str) -> None:
    other = f"{topic_name}-2"
    async with (
        filled(shared_node, topic_name, count=16) as client,
        filled(shared_node, other, count=8),
        Consumer(client, [topic_name, other]) as consumer,
    ):
        assert numbers(await take(consumer, 24)) == sorted([*range(16), *range(8)])
        consumer.seek(0, 1, topic=other)
        consumer.seek(1, 1, topic=topic_name)
        (again,) = await take(consumer, 1)
        assert (again.topic, again.queue, again.offset) == (topic_name, 1, 1)


# What is refused


@pytest.mark.parametrize(
    "options",
    [
        {"group": "g", "start": "earliest"},
        {"group": "g", "mode": "shared"},
        {"group": "g", "session_ms": 0},
        {"static_id": "a"},
        {"group": "g", "queues": [0], "on_revoked": print},
        {"topic": []},
        {"topic": ["a", "a"]},
        {"topic": ["a", "b"], "queues": [0]},
        {"topic": ["a", "b"], "start": {0: 1}},
    ],
)
async def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        Consumer(Client(), **{"topic": "t", **options})


async def test_what_keeps_a_member_out_is_raised_at_the_start(shared_node: NodeProcess, topic_name: str) -> None:
    async with filled(shared_node, topic_name) as client:
        with pytest.raises(UnknownTopic):
            await Consumer(client, f"{topic_name}-not", group=topic_name).start()
        async with Consumer(client, topic_name, group=topic_name):
            with pytest.raises(GroupModeMismatch):
                await Consumer(client, topic_name, group=topic_name, mode="broadcast").start()
            with pytest.raises(InvalidRequest, match="session_ms"):
                await Consumer(client, topic_name, group=topic_name, session_ms=1).start()


async def test_a_group_too_many_is_raised_at_the_start(make_node: Callable[..., NodeProcess], topic_name: str) -> None:
    async with filled(make_node(max_groups=1).start(), topic_name) as client, Consumer(client, topic_name, group="one"):
        async with asyncio.timeout(30):
            with pytest.raises(TooManyGroups, match="max_groups"):
                await Consumer(client, topic_name, group="two").start()


async def test_a_member_that_is_refused_at_once_is_told_so(
    shared_node: NodeProcess, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal may come from the thread of the heartbeats before its start is known here."""
    start = Heart.start

    async def start_and_dawdle(heart: Heart) -> None:
        await start(heart)
        await comes_true(
            lambda: not heart._is_known and "lsmq heartbeats" not in {task.get_name() for task in heart._background},
            "the member is refused",
        )

    monkeypatch.setattr(Heart, "start", start_and_dawdle)
    async with filled(shared_node, topic_name) as client:
        with pytest.raises(UnknownTopic):
            await Consumer(client, f"{topic_name}-not", group=topic_name).start()


# Losing the place


async def test_a_member_that_is_not_known_any_more_joins_again(shared_node: NodeProcess, topic_name: str) -> None:
    async with filled(shared_node, topic_name) as client:
        revoked: list[list[int]] = []
        async with Consumer(
            client, topic_name, group=topic_name, on_revoked=lambda queues: revoked.append(queues_of(queues))
        ) as consumer:
            await take(consumer, 80)
            await consumer.commit()
            await Group(client, topic_name).delete(force=True)
            reading = asyncio.create_task(consumer.poll())
            await comes_true(lambda: bool(revoked), "it was told that its queues are gone")
            assert revoked == [list(range(8))]
            await comes_true(lambda: len(queues_of(consumer.assignment)) == 8, "it has them again")
            again = await reading
            again += await take(consumer, 80 - len(again))
            assert numbers(again) == list(range(80)), "the group's offsets were deleted with it"
            await consumer.commit()
        assert await client.committed_offsets(topic_name, topic_name) == dict.fromkeys(range(8), 10)


async def test_a_static_id_is_one_member_at_a_time(shared_node: NodeProcess, topic_name: str) -> None:
    async with filled(shared_node, topic_name) as client:
        async with Consumer(client, topic_name, group=topic_name, static_id="a") as old:
            got = await take(old, 10)
            await old.commit()
            async with Consumer(client, topic_name, group=topic_name, static_id="a") as new:
                with pytest.raises(StaleGeneration, match="another process"):
                    while True:
                        await old.poll(timeout_ms=5_000)
                with pytest.raises(StaleGeneration):
                    await old.poll()
                await old.commit({0: 10})  # Of queues that are not its own any more: nothing.
                assert queues_of(old.assignment) == []
                rest = await take(new, 70)
                assert numbers(got + rest) == list(range(80))
                await new.commit()
        assert await client.committed_offsets(topic_name, topic_name) == dict.fromkeys(range(8), 10)


async def test_a_static_id_comes_back_without_a_rebalance(shared_node: NodeProcess, topic_name: str) -> None:
    async with filled(shared_node, topic_name) as client, Consumer(client, topic_name, group=topic_name) as other:
        await take(other, 80)
        reading = asyncio.create_task(other.poll(timeout_ms=20_000))
        first = Consumer(client, topic_name, group=topic_name, static_id="a")
        await first.start()
        await comes_true(lambda: len(queues_of(first.assignment)) == 4, "it has its half")
        mine = queues_of(first.assignment)
        before = (await Group(client, topic_name).describe()).generation
        await first.close()
        async with Consumer(client, topic_name, group=topic_name, static_id="a") as again:
            assert queues_of(again.assignment) == mine
            assert (await Group(client, topic_name).describe()).generation == before
            await again.close(leave=True)
        await comes_true(lambda: len(queues_of(other.assignment)) == 8, "the other has all")
        reading.cancel()


async def test_a_topic_that_is_made_anew_is_told(shared_node: NodeProcess, topic_name: str) -> None:
    async with filled(shared_node, topic_name, queues=2, count=10) as client:
        async with Consumer(client, topic_name, group=topic_name) as consumer:
            await take(consumer, 10)
            await client.delete_topic(topic_name)
            await client.create_topic(topic_name, queues=2)
            with pytest.raises((TopicReplaced, UnknownTopic)):
                while True:
                    await consumer.poll()
            with suppress(TopicReplaced):
                await consumer.commit()
        assert await client.committed_offsets(topic_name, topic_name) == {}


# Broadcast, and where to begin


async def test_a_broadcast_reaches_every_member(shared_node: NodeProcess, topic_name: str) -> None:
    async with filled(shared_node, topic_name) as client:
        for static_id in ("a", "b"):
            async with Consumer(
                client, topic_name, group=topic_name, mode="broadcast", static_id=static_id
            ) as consumer:
                assert numbers(await take(consumer, 80)) == list(range(80))
                await consumer.commit()
        async with (
            Consumer(client, topic_name, group=topic_name, mode="broadcast", static_id="a") as kept,
            Consumer(client, topic_name, group=topic_name, mode="broadcast", uncommitted="latest") as nameless,
        ):
            await fill(client, topic_name, range(80, 88), 8)
            assert numbers(await take(kept, 8)) == list(range(80, 88))
            assert numbers(await take(nameless, 8)) == list(range(80, 88))
            with pytest.raises(InvalidRequest, match="static_id"):
                await nameless.commit()
        assert await client.committed_offsets(f"{topic_name}/a", topic_name) == dict.fromkeys(range(8), 10)


async def test_a_new_group_that_begins_at_the_latest_misses_nothing_when_queues_move(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with filled(shared_node, topic_name) as client:
        async with Consumer(client, topic_name, group=topic_name, uncommitted="latest") as first:
            assert await first.poll(timeout_ms=50) == []
        await fill(client, topic_name, range(80, 160), 8)
        async with Consumer(client, topic_name, group=topic_name, uncommitted="latest") as second:
            assert numbers(await take(second, 80)) == list(range(80, 160))


def test_a_member_whose_event_loop_is_gone_gives_up_its_place(shared_node: NodeProcess, topic_name: str) -> None:
    """Nobody closed it. Its thread would heartbeat for as long as the process lives."""

    async def forget() -> None:
        client = Client(shared_node.url)
        await client.create_topic(topic_name)
        await Consumer(client, topic_name, group=topic_name, session_ms=1_000).start()
        await client._transport.close()  # Nobody is warned of connections that are left open.

    asyncio.run(forget())

    async def is_gone() -> bool:
        return (await Group(client, topic_name).describe()).members == ()

    async def look() -> None:
        nonlocal client
        async with Client(shared_node.url) as client:
            assert not await is_gone()
            await comes_true(is_gone, "its session has ended")

    client: Client
    asyncio.run(look())
