"""Groups that share a named topic: members get slots, and with them every queue whose name lies there, now or later."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lsmq import Client, Consumer, FencedMember, Message, OffsetOutOfRange, Producer
from lsmq._fetcher import OutOfRange
from lsmq.groups import Group
from lsmq.queue_names import SLOTS, queue_slot
from support.group_member import MemberProcess
from support.group_topic import queues_of, take
from support.node_process import NodeProcess
from support.waiting import PATIENCE_S, comes_true


def name_of(number: int) -> str:
    return f"agents.{number}.inbox"


async def fill(client: Client, topic: str, names: range, numbers: range) -> None:
    """Messages ``numbers`` to each of the queues."""
    async with Producer(client, topic) as producer:
        for number in numbers:
            for name in names:
                await producer.send(f"{number}", queue=name_of(name))


@asynccontextmanager
async def filled(node: NodeProcess, topic: str, *, names: int = 60, each: int = 2) -> AsyncIterator[Client]:
    async with Client(node.url) as client:
        await client.create_topic(topic, queues="named")
        await fill(client, topic, range(names), range(each))
        yield client


def handed_out(messages: list[Message]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for message in messages:
        assert message.queue_name is not None
        found[message.queue_name].append(message.offset)
    return found


async def test_members_share_names_by_their_slots_and_hand_them_on(shared_node: NodeProcess, topic_name: str) -> None:
    names = {name_of(number) for number in range(60)}
    async with filled(shared_node, topic_name) as client, Consumer(client, topic_name, group=topic_name) as first:
        assert queues_of(first.assignment) == list(range(SLOTS))
        assert handed_out(await take(first, 120)) == {name: [0, 1] for name in names}
        await first.commit()
        waiting = asyncio.create_task(first.poll())  # What it was handed is let go.
        async with Consumer(client, topic_name, group=topic_name) as second:
            await comes_true(lambda: len(queues_of(second.assignment)) == SLOTS // 2, "the second has its half")
            assert sorted(queues_of(first.assignment) + queues_of(second.assignment)) == list(range(SLOTS))
            mine = set(queues_of(second.assignment))
            await fill(client, topic_name, range(80), range(2, 3))
            of_second = {name_of(number) for number in range(80) if queue_slot(name_of(number)) in mine}
            got = handed_out(await take(second, len(of_second)))
            assert got == {name: [2 if name in names else 0] for name in of_second}
            await second.commit()
            others = await waiting
            others += await take(first, 80 - len(of_second) - len(others))
            assert {m.queue_name for m in others}.isdisjoint(of_second)
            await first.commit()
            assert (await Group(client, topic_name).lag(topic_name)).lag == 0
        reading = asyncio.create_task(first.poll())
        await comes_true(lambda: len(queues_of(first.assignment)) == SLOTS, "the first has all again")
        async with Producer(client, topic_name) as producer:
            await producer.send("last", queue=next(iter(of_second)))
        assert [message.text() for message in await reading] == ["last"]


async def test_a_member_commits_for_names_of_its_own_alone(shared_node: NodeProcess, topic_name: str) -> None:
    async with filled(shared_node, topic_name) as client, Consumer(client, topic_name, group=topic_name) as member:
        await take(member, 120)
        group, numbers = Group(client, topic_name), {q.name: q.number for q in await client.queues(topic_name)}
        epoch = (await group.describe()).generation
        assert member.member_id is not None
        me: dict[str, Any] = {"member": member.member_id, "epoch": epoch}
        await group.commit(topic_name, {numbers[name_of(1)]: 1}, **me)
        with pytest.raises(FencedMember):
            stranger = Group(client, topic_name)
            await stranger.commit(topic_name, {numbers[name_of(1)]: 2}, member=me["member"], epoch=epoch + 1)
        lag = await group.lag(topic_name)
        assert (lag.queues, lag.lag, lag.behind, lag.uncommitted) == (60, 119, 60, 59)
        half = await group.lag(topic_name, [(range(SLOTS // 2),), (range(SLOTS // 2, SLOTS),)])
        low = sum(2 for number in range(60) if queue_slot(name_of(number)) < SLOTS // 2)
        low -= queue_slot(name_of(1)) < SLOTS // 2
        assert half.by_part == (low, 119 - low)
        await client.delete_queue(topic_name, name_of(2))
        await group.commit(topic_name, {numbers[name_of(2)]: 1, numbers[name_of(3)]: 2}, **me)  # One is gone.
        committed = await client.committed_offsets(topic_name, topic_name)
        assert {name: committed[numbers[name_of(name)]] for name in (1, 3)} == {1: 1, 3: 2}


async def test_a_group_is_set_back_by_name_by_time_and_as_a_whole(shared_node: NodeProcess, topic_name: str) -> None:
    async with filled(shared_node, topic_name, names=5) as client:
        group = Group(client, topic_name)
        numbers = {queue.name: queue.number for queue in await client.queues(topic_name)}
        assert await group.reset(topic_name, "latest") == dict.fromkeys(numbers.values(), 2)
        assert await group.reset(topic_name, "earliest", [name_of(1)]) == {numbers[name_of(1)]: 0}
        assert await group.reset(topic_name, {name_of(2): 1}) == {numbers[name_of(2)]: 1}
        with pytest.raises(OffsetOutOfRange, match=f"offset 3 is beyond the end of queue '{name_of(3)}'") as beyond:
            await group.reset(topic_name, {name_of(2): 0, name_of(3): 3})
        assert beyond.value.details["queue"] == name_of(3) and beyond.value.details["latest"] == 2
        async with Consumer(client, topic_name, group=topic_name) as member:
            assert handed_out(await take(member, 3)) == {name_of(1): [0, 1], name_of(2): [1]}
        assert await group.reset(topic_name, 0) == dict.fromkeys(numbers.values(), 0)


async def test_a_broadcast_group_gives_every_member_everything(shared_node: NodeProcess, topic_name: str) -> None:
    everything = {name_of(number): [0, 1] for number in range(20)}
    async with filled(shared_node, topic_name, names=20) as client:
        for left in (everything, {}):
            async with (
                Consumer(client, topic_name, group=topic_name, mode="broadcast", static_id="one") as one,
                Consumer(client, topic_name, group=topic_name, mode="broadcast") as other,
            ):
                assert handed_out(await take(one, 2 * len(left))) == left
                assert handed_out(await take(other, 40)) == everything
                assert await one.poll(timeout_ms=100) == []
                await one.commit()


class Members:
    """Three members in processes of their own, and what they handled."""

    def __init__(self, url: str, topic: str) -> None:
        self.all = [MemberProcess(url, topic, topic, session_ms=2_000, concurrency=4) for _ in range(3)]

    def ended(self) -> Counter[tuple[int, int]]:
        """How often each message was handled, by number of its queue and offset."""
        return Counter((event["queue"], event["offset"]) for member in self.all for event in member.of("end"))

    def check_order(self) -> None:
        """Each member went through each queue without a gap, but where that was another's meanwhile."""
        for member in self.all:
            last: dict[int, int] = {}
            for event in member.of("end"):
                assert event["offset"] > last.get(event["queue"], -1)
                last[event["queue"]] = event["offset"]


@pytest.mark.parametrize("names", [600, pytest.param(20_000, marks=pytest.mark.slow)])
async def test_a_member_is_killed_and_every_message_is_handled_once_or_was_not_committed(
    make_node: Any, topic_name: str, names: int
) -> None:
    node, patience_s = make_node().start(), 30 + names / 400
    async with Client(node.url, deadline_ms=60_000) as client:
        await client.create_topic(topic_name, queues="named")
        members = Members(node.url, topic_name)
        try:
            for member in members.all:
                await member.until(lambda member=member: len(member.owned) >= SLOTS // 3, "it has its share", 60)  # type: ignore[misc]
            await fill(client, topic_name, range(names // 2), range(2))
            half = names // 4
            await comes_true(lambda: len(members.ended()) >= half, "some are handled", patience_s)
            victim = members.all[0]
            victim.kill9()
            committed = await client.committed_offsets(topic_name, topic_name)
            await fill(client, topic_name, range(names // 2, names), range(1))
            total = 2 * (names // 2) + names - names // 2
            await comes_true(lambda: len(members.ended()) == total, "all is handled", patience_s)
            assert sum(len(member.owned) for member in members.all[1:]) == SLOTS
            killed = Counter((event["queue"], event["offset"]) for event in victim.of("end"))
            for place, times in members.ended().items():
                if times > 1:
                    assert times == 2 and place in killed and place[1] >= committed.get(place[0], 0)
            members.check_order()
            assert [member.stop() for member in members.all[1:]] == [0, 0]
            assert (await Group(client, topic_name).lag(topic_name)).lag == 0
        finally:
            for member in members.all:
                if member.alive:
                    member.kill9()


@pytest.mark.parametrize("committed", ["before it is looked up", "while it is looked up"])
async def test_a_queue_that_is_committed_where_it_was_sought_to_is_read_from_there(
    shared_node: NodeProcess, topic_name: str, committed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a group has committed is not kept here, also while it is looked up whether the queue has that offset."""
    async with (
        filled(shared_node, topic_name, names=2, each=8) as client,
        Consumer(client, topic_name, group=topic_name) as consumer,
    ):
        queue = (await take(consumer, 16))[0].queue
        looked, go_on, offsets = asyncio.Event(), asyncio.Event(), client._offsets

        async def late(*of: Any) -> Any:
            looked.set()
            await go_on.wait()
            return await offsets(*of)

        monkeypatch.setattr(client, "_offsets", late)
        if committed == "before it is looked up":
            consumer.seek(queue, 0)
            await looked.wait()  # This is looked up in vain, and then the next.
        consumer.seek(queue, 5)
        await looked.wait()
        await consumer.commit()
        go_on.set()
        again = await take(consumer, 3)
        assert [(message.queue, message.offset) for message in again] == [(queue, 5), (queue, 6), (queue, 7)]


@pytest.mark.parametrize("trimmed", [0, 2])
async def test_a_queue_that_is_sought_to_its_beginning_and_committed_is_read_from_there(
    shared_node: NodeProcess, topic_name: str, trimmed: int
) -> None:
    async with (
        filled(shared_node, topic_name, names=1, each=8) as client,
        Consumer(client, topic_name, group=topic_name) as consumer,
    ):
        (queue,) = {message.queue for message in await take(consumer, 4)}
        await consumer.commit()
        (row,) = await client.queues(topic_name)
        await client.trim_queue(topic_name, row.name, trimmed)
        consumer.seek(queue, trimmed)
        await consumer.commit()
        assert [message.offset for message in await take(consumer, 8 - trimmed)] == list(range(trimmed, 8))


async def test_a_member_seeks_in_a_queue_of_which_all_is_committed(shared_node: NodeProcess, topic_name: str) -> None:
    """Nothing is kept of it then."""
    async with (
        filled(shared_node, topic_name, names=2, each=8) as client,
        Consumer(client, topic_name, group=topic_name) as consumer,
    ):
        queue = (await take(consumer, 16))[0].queue
        await consumer.commit()
        consumer.seek(queue, 5)
        assert [(each.queue, each.offset) for each in await take(consumer, 3)] == [(queue, 5), (queue, 6), (queue, 7)]
        await consumer.commit()
        consumer.seek(queue, 2)
        await consumer.commit()
        assert (await client.committed_offsets(topic_name, topic_name))[queue] == 2
        assert [each.offset for each in await take(consumer, 6)] == [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("policy", ["earliest", "latest", "error"])
async def test_an_offset_of_a_queue_that_was_deleted_meanwhile_is_for_the_policy(
    shared_node: NodeProcess, topic_name: str, policy: OutOfRange, *, committed: bool
) -> None:
    async with (
        filled(shared_node, topic_name, names=1, each=8) as client,
        Consumer(client, topic_name, group=topic_name, on_out_of_range=policy) as consumer,
    ):
        (queue,) = {message.queue for message in await take(consumer, 8)}
        if committed:
            await consumer.commit()
        await client.delete_queue(topic_name, name_of(0))
        consumer.seek(queue, 3)
        if policy == "error":
            with pytest.raises(OffsetOutOfRange, match="has offsets 8 to 8, not 3"):
                await consumer.poll(timeout_ms=PATIENCE_S * 1_000)
            consumer.seek(queue, 8)
        await comes_true(lambda: gone_on(consumer, queue), "it goes on where the queue ends")
        await fill(client, topic_name, range(1), range(2))
        assert [each.offset for each in await take(consumer, 2)] == [8, 9]
        await consumer.commit()


async def gone_on(consumer: Consumer, queue: int) -> bool:
    return not await consumer.poll(timeout_ms=10) and consumer.positions[queue] == 8


async def test_a_member_that_seeks_in_a_queue_of_another_is_told_when_it_commits(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with (
        filled(shared_node, topic_name) as client,
        Client(shared_node.url, deadline_ms=500) as impatient,
        Consumer(client, topic_name, group=topic_name),
        Consumer(impatient, topic_name, group=topic_name) as other,
    ):
        await comes_true(lambda: len(queues_of(other.assignment)) == SLOTS // 2, "it has its half")
        slots = set(queues_of(other.assignment))
        foreign = next(row.number for row in await client.queues(topic_name) if queue_slot(row.name) not in slots)
        other.seek(foreign, 1)
        with pytest.raises(FencedMember):
            await other.commit()
