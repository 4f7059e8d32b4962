"""Members of a group that subscribe to a named topic by a pattern share the queues that match it, now and later."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

import lsmq.sync
from lsmq import Client, Consumer, GroupPatternMismatch, InvalidRequest, Message, Producer
from lsmq.groups import Group
from lsmq.queue_names import SLOTS, queue_slot
from support.group_member import MemberProcess
from support.group_topic import queues_of, take
from support.node_process import NodeProcess
from support.waiting import comes_true

PATTERN = "agents.*.inbox"


def inbox(number: int) -> str:
    return f"agents.{number}.inbox"


def log(number: int) -> str:
    return f"agents.{number}.log"


async def send(client: Client, topic: str, names: Iterable[str], body: str) -> None:
    async with Producer(client, topic) as producer:
        for name in names:
            await producer.send(body, queue=name)


async def fill(client: Client, topic: str, numbers: range, body: str) -> None:
    """A message to the inbox of each, and one to its log, which nobody wants."""
    await send(client, topic, [named(number) for number in numbers for named in (inbox, log)], body)


async def named_topic(client: Client, topic: str, **options: Any) -> None:
    await client.create_topic(topic, queues="named", **options)


def places(messages: Iterable[Message]) -> Counter[tuple[str | None, str]]:
    return Counter((message.queue_name, message.text()) for message in messages)


def inboxes(numbers: Iterable[int], body: str) -> Counter[tuple[str | None, str]]:
    return Counter((inbox(number), body) for number in numbers)


class Reading:
    """Members, each of which polls for ever and commits what it has."""

    def __init__(self) -> None:
        self.got: dict[Consumer, list[Message]] = {}
        self._tasks: dict[Consumer, asyncio.Task[None]] = {}

    async def join(self, consumer: Consumer) -> Consumer:
        await consumer.start()
        self.got[consumer] = []
        self._tasks[consumer] = asyncio.create_task(self._read(consumer))
        return consumer

    async def _read(self, consumer: Consumer) -> None:
        await consumer.run(self.got[consumer].append)

    async def leave(self, consumer: Consumer) -> None:
        await consumer.close()
        await self._tasks.pop(consumer)

    async def end(self) -> None:
        for consumer in list(self._tasks):
            await self.leave(consumer)

    def all(self) -> Counter[tuple[str | None, str]]:
        return places(message for messages in self.got.values() for message in messages)


async def test_three_members_share_what_matches_and_what_comes_later(shared_node: NodeProcess, topic_name: str) -> None:
    reading = Reading()
    async with Client(shared_node.url) as client:
        await named_topic(client, topic_name)
        await fill(client, topic_name, range(60), "first")
        members = [
            await reading.join(Consumer(client, topic_name, group=topic_name, pattern=PATTERN)) for _ in range(3)
        ]
        await comes_true(
            lambda: all(len(queues_of(member.assignment)) >= SLOTS // 3 for member in members), "each has its share"
        )
        await comes_true(lambda: reading.all() == inboxes(range(60), "first"), "all that matches comes once")
        await fill(client, topic_name, range(120), "second")
        wanted = inboxes(range(60), "first") + inboxes(range(120), "second")
        await comes_true(lambda: reading.all() == wanted, "so does what comes later, also to new queues")
        for member in members:
            own = set(queues_of(member.assignment))
            later = [message for message in reading.got[member] if message.text() == "second"]
            assert later and all(queue_slot(message.queue_name or "") in own for message in later)
        await reading.leave(members[0])
        await comes_true(
            lambda: sum(len(queues_of(member.assignment)) for member in members[1:]) == SLOTS, "two share all"
        )
        await fill(client, topic_name, range(150), "third")
        wanted += inboxes(range(150), "third")
        await comes_true(lambda: reading.all() == wanted, "they read all that matches")
        await reading.join(Consumer(client, topic_name, group=topic_name, pattern=PATTERN))
        await fill(client, topic_name, range(150), "fourth")
        wanted += inboxes(range(150), "fourth")
        await comes_true(lambda: reading.all() == wanted, "with another one too")
        await reading.end()
        lag = await Group(client, topic_name).lag(topic_name)
        assert (lag.queues, lag.lag, lag.uncommitted) == (150, 0, 0)


async def test_who_subscribes_otherwise_is_refused_while_others_are_members(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with Client(shared_node.url) as client:
        await named_topic(client, topic_name)
        group = Group(client, topic_name)
        async with Consumer(client, topic_name, group=topic_name, pattern=PATTERN):
            for other in ("agents.*.log", None):
                with pytest.raises(GroupPatternMismatch, match="end these first, or use another group") as refused:
                    await Consumer(client, topic_name, group=topic_name, pattern=other).start()
                details = refused.value.details
                assert (details["group"], details["topic"], details["pattern"]) == (topic_name, topic_name, PATTERN)
            assert (await group.describe()).patterns == {topic_name: PATTERN}
            async with Consumer(client, topic_name, group=topic_name, pattern=PATTERN) as alike:
                assert alike.member_id is not None
        assert (await group.describe()).patterns == {topic_name: PATTERN}, "it is kept"
        async with Consumer(client, topic_name, group=topic_name):
            assert (await group.describe()).patterns == {}
            with pytest.raises(GroupPatternMismatch, match=f"subscribe to all queues of topic '{topic_name}'"):
                await Consumer(client, topic_name, group=topic_name, pattern=PATTERN).start()
        async with Consumer(client, topic_name, group=topic_name, pattern="**"):
            assert (await group.describe()).patterns == {topic_name: "**"}


async def test_a_process_that_comes_back_with_another_pattern_has_the_place_if_it_is_alone(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with Client(shared_node.url) as client:
        await named_topic(client, topic_name)
        await fill(client, topic_name, range(5), "x")

        def member(pattern: str, **options: Any) -> Consumer:
            return Consumer(client, topic_name, group=topic_name, pattern=pattern, **options)

        async with member(PATTERN, static_id="one", session_ms=60_000) as before:
            assert places(await take(before, 5)) == inboxes(range(5), "x")
            await before.commit()
        async with member("agents.*.log", static_id="one", session_ms=60_000) as after:
            assert {message.queue_name for message in await take(after, 5)} == {log(number) for number in range(5)}
            await after.commit()
            assert (await Group(client, topic_name).lag(topic_name)).queues == 5
            with pytest.raises(GroupPatternMismatch):
                await member(PATTERN, static_id="two").start()


async def test_members_by_pattern_are_members(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(f"{topic_name}-n", queues=4)
        await named_topic(client, topic_name)
        for wrong in ({"start": "earliest"}, {"queues": ["a"]}):
            with pytest.raises(InvalidRequest):
                Consumer(client, topic_name, group="g", pattern=PATTERN, **wrong)
        with pytest.raises(InvalidRequest, match="only one with queues"):
            Consumer(client, [topic_name, "b"], group="g", pattern=PATTERN)
        with pytest.raises(InvalidRequest, match="have numbers, not names"):
            await Consumer(client, f"{topic_name}-n", group=topic_name, pattern=PATTERN).start()
    assigned: list[int] = []
    with (
        lsmq.sync.Client(shared_node.url) as blocking,
        lsmq.sync.Producer(blocking, topic_name) as producer,
        lsmq.sync.Consumer(
            blocking,
            topic_name,
            group=topic_name,
            pattern=PATTERN,
            on_assigned=lambda given: assigned.append(len(given)),
        ) as consumer,
    ):
        assert assigned == [1]
        for number in range(3):
            producer.send("x", queue=log(number)).result()
            producer.send("y", queue=inbox(number)).result()
        got: list[Message] = []
        while len(got) < 3:
            got += consumer.poll()
        assert places(got) == inboxes(range(3), "y")
        consumer.commit()


async def test_a_broadcast_group_gives_every_member_all_that_matches(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await named_topic(client, topic_name)
        await fill(client, topic_name, range(20), "x")
        options: dict[str, Any] = {"group": topic_name, "mode": "broadcast", "pattern": PATTERN}
        for left in (inboxes(range(20), "x"), Counter[tuple[str | None, str]]()):
            async with (
                Consumer(client, topic_name, static_id="one", **options) as one,
                Consumer(client, topic_name, **options) as other,
            ):
                assert places(await take(one, left.total())) == left
                assert places(await take(other, 20)) == inboxes(range(20), "x")
                assert await one.poll(timeout_ms=100) == []
                await one.commit()
        set_back = await Group(client, f"{topic_name}/one").reset(topic_name, "earliest", force=True)
        assert len(set_back) == 40, "the offsets of a member are of all queues"


async def test_lag_and_reset_are_of_what_matches(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await named_topic(client, topic_name)
        await fill(client, topic_name, range(10), "x")
        group = Group(client, topic_name)
        assert (await group.lag(topic_name)).lag == 20
        async with Consumer(client, topic_name, group=topic_name, pattern=PATTERN) as member:
            lag = await group.lag(topic_name)
            assert (lag.queues, lag.lag, lag.behind, lag.uncommitted) == (10, 10, 10, 10)
            await take(member, 10)
            await member.commit()
        await fill(client, topic_name, range(20), "y")
        halves = [(range(SLOTS // 2),), (range(SLOTS // 2, SLOTS),)]
        lag = await group.lag(topic_name, halves)
        low = sum(queue_slot(inbox(number)) < SLOTS // 2 for number in range(20))
        assert (lag.queues, lag.lag, lag.uncommitted, lag.by_part) == (20, 20, 10, (low, 20 - low))
        numbers = {queue.number for queue in await client.queues(topic_name) if queue.name.endswith("inbox")}
        assert (await group.reset(topic_name, "latest")).keys() == numbers
        assert (await group.lag(topic_name)).lag == 0
        await group.reset(topic_name, "earliest", [log(1)])
        assert (await group.lag(topic_name)).lag == 0, "that is read by nobody"
        await group.delete()
        assert (await group.lag(topic_name)).lag == 60, "what is not there reads all"


async def test_a_member_is_killed_and_its_share_of_the_pattern_is_the_others(
    shared_node: NodeProcess, topic_name: str
) -> None:
    def places_of(members: Iterable[MemberProcess], what: str) -> Counter[tuple[int, int]]:
        return Counter((event["queue"], event["offset"]) for member in members for event in member.of(what))

    async with Client(shared_node.url) as client:
        await named_topic(client, topic_name)
        members = [
            MemberProcess(shared_node.url, topic_name, topic_name, session_ms=2_000, pattern=PATTERN) for _ in range(3)
        ]
        try:
            for member in members:
                await member.until(lambda member=member: len(member.owned) >= SLOTS // 3, "it has its share")  # type: ignore[misc]
            await fill(client, topic_name, range(100), "x")
            await comes_true(lambda: len(places_of(members, "end")) >= 20, "some are handled")
            members[0].kill9()
            await fill(client, topic_name, range(200), "y")
            await comes_true(lambda: len(places_of(members, "end")) == 300, "all is handled")
            committed = await client.committed_offsets(topic_name, topic_name)
            for place, times in places_of(members, "end").items():
                assert times == 1 or (times == 2 and place in places_of(members[:1], "end")), place
            numbers = {queue.number for queue in await client.queues(topic_name) if queue.name.endswith("inbox")}
            assert {queue for queue, _ in places_of(members, "end")} == numbers >= committed.keys()
            assert [member.stop() for member in members[1:]] == [0, 0]
            assert (await Group(client, topic_name).lag(topic_name)).lag == 0
        finally:
            for member in members:
                if member.alive:
                    member.kill9()


async def test_a_group_reads_what_it_read_after_a_restart(make_node: Any, topic_name: str) -> None:
    node = make_node(shards=3).start()
    async with Client(node.url) as client:
        await named_topic(client, topic_name)
        await fill(client, topic_name, range(10), "x")
        group = Group(client, topic_name)
        member = Consumer(client, topic_name, group=topic_name, pattern=PATTERN, static_id="one", session_ms=60_000)
        async with member:
            await take(member, 10)
            await member.commit()
        await fill(client, topic_name, range(20), "y")
        await asyncio.to_thread(node.kill9)
        await asyncio.to_thread(node.start)
        assert (await group.describe()).patterns == {topic_name: PATTERN}
        lag = await group.lag(topic_name)
        assert (lag.queues, lag.lag, lag.uncommitted) == (20, 20, 10)
        with pytest.raises(GroupPatternMismatch):  # The other one is a member for a minute.
            await Consumer(client, topic_name, group=topic_name).start()
        async with Consumer(client, topic_name, group=topic_name, pattern=PATTERN, static_id="one") as again:
            assert places(await take(again, 20)) == inboxes(range(20), "y")


async def test_what_is_consumed_goes_as_far_as_those_have_it_that_read_it(make_node: Any, topic_name: str) -> None:
    """In several shards: where nothing fits, or nothing was committed, it is no other than elsewhere."""
    node = make_node(shards=3, retention_interval_ms=100).start()
    async with Client(node.url) as client:
        await named_topic(client, topic_name, delete_consumed=True)
        await send(client, topic_name, [inbox(1), inbox(2), log(1), "other"], "x")

        async def counts() -> dict[str, int]:
            return {queue.name: queue.count for queue in await client.queues(topic_name)}

        async with Consumer(client, topic_name, group=f"{topic_name}-in", pattern=PATTERN) as inboxed:
            await take(inboxed, 2)
            await inboxed.commit()
            await comes_true(lambda: _is(counts, {inbox(1): 0, inbox(2): 0, log(1): 1, "other": 1}), "the inboxes go")
            async with Consumer(client, topic_name, group=f"{topic_name}-all", pattern="agents.**") as everything:
                await send(client, topic_name, [inbox(1), inbox(3), "other"], "y")
                there = {m.queue: m.offset + (m.queue_name == log(1)) for m in await take(everything, 3)}
                await everything._client.commit_offsets(f"{topic_name}-all", topic_name, there, reset=True)
                await take(inboxed, 2)
                await inboxed.commit()
                await comes_true(
                    lambda: _is(counts, {inbox(1): 1, inbox(2): 0, inbox(3): 1, log(1): 0, "other": 2}),
                    "the log goes; inboxes wait for the second group, and what nobody reads stays",
                )
                await everything.commit()
                await comes_true(
                    lambda: _is(counts, {inbox(1): 0, inbox(2): 0, inbox(3): 0, log(1): 0, "other": 2}), "they go"
                )
        await send(client, topic_name, [inbox(3)], "z")
        async with Consumer(client, topic_name, group=f"{topic_name}-in") as alone:
            assert {message.queue_name for message in await take(alone, 3)} >= {"other", inbox(3)}
            await alone.commit()
            await comes_true(lambda: _is(counts, {inbox(3): 1, "other": 0}, some=True), "whoever reads all has it")


async def _is(counts: Any, wanted: dict[str, int], *, some: bool = False) -> bool:
    found = await counts()
    return {name: found.get(name) for name in wanted} == wanted and (some or found.keys() == wanted.keys())
