"""Queues with names: sending to them, and reading them by name, by pattern and all together, against a real node."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any
from urllib.parse import urlencode

import pytest

from lsmq import (
    Client,
    Consumer,
    Group,
    InvalidQueueName,
    InvalidRequest,
    Message,
    Producer,
    TimedOut,
    UnknownQueue,
    partitioners,
    sync,
)
from lsmq._fetcher import OutOfRange
from lsmq._named_positions import NamedPositions
from lsmq.queue_names import SLOTS, check_queue_name, compile_pattern, queue_slot
from support.fault_proxy import FaultProxy
from support.group_topic import take
from support.named_topic import NAMES, by_name, named, nothing_more
from support.node_process import NodeProcess
from support.waiting import comes_true


async def test_a_queue_is_there_with_its_first_message(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        created = await client.create_topic(topic_name, queues="named")
        assert created.named and (await client.topic(topic_name)).named
        assert [found.named for found in await client.topics() if found.name == topic_name] == [True]
        async with Producer(client, topic_name) as producer:
            first = await producer.send_and_wait("hello", queue="zoë/ü 1")
            again = await (await producer.send_many(["a", ("key", "b")], queue="zoë/ü 1"))
        assert [(sent.queue_name, sent.offset) for sent in (first, *again)] == [("zoë/ü 1", at) for at in range(3)]
        found = await client.message(again[1].id)
        assert (found.body, found.key, found.queue) == (b"b", "key", first.queue)


async def test_names_that_cannot_be_are_refused_before_anything_is_sent(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues="named")
        async with Producer(client, topic_name) as producer:
            for name in ("", "x" * 256, "a\nb", "a\0b", "\ud800", ".", ".."):
                with pytest.raises(InvalidQueueName):
                    await producer.send("x", queue=name)
            with pytest.raises(InvalidQueueName, match="have names"):
                await producer.send("x", queue=3)
            with pytest.raises(InvalidRequest, match="names none"):
                await producer.send("x", key="k")
            assert (await producer.send_and_wait("x", queue="x" * 255)).offset == 0
        with pytest.raises(InvalidRequest, match="no partitioner"):
            await Producer(client, topic_name, partitioner=partitioners.round_robin()).start()
        await client.create_topic(f"{topic_name}-n", queues=2)
        async with Producer(client, f"{topic_name}-n") as numbered:
            with pytest.raises(InvalidRequest, match="whole number"):
                await numbered.send("x", queue="a")


async def test_a_batch_whose_answer_is_lost_is_stored_once(shared_node: NodeProcess, topic_name: str) -> None:
    async with FaultProxy(shared_node.url) as proxy, Client(proxy.url) as client:
        await client.create_topic(topic_name, queues="named")
        proxy.lose_answers("batches", times=2)
        async with Producer(client, topic_name) as producer:
            sent = await (await producer.send_many([f"{n}" for n in range(5)], queue="a"))
            assert [one.offset for one in sent] == list(range(5))
            assert producer.stats.repeats == 1
        async with Consumer(client, topic_name) as consumer:
            assert by_name(await take(consumer, 5)) == {"a": ["0", "1", "2", "3", "4"]}
            assert await nothing_more(consumer)


# Reading


async def test_all_queues_are_read_in_order_and_new_ones_join(shared_node: NodeProcess, topic_name: str) -> None:
    async with named(shared_node, topic_name) as (client, producer), Consumer(client, topic_name) as consumer:
        assert by_name(await take(consumer, 40)) == {name: ["0", "1", "2", "3"] for name in NAMES}
        await producer.send("new", queue="other")
        await producer.send("4", queue=NAMES[0])
        assert by_name(await take(consumer, 2)) == {"other": ["new"], NAMES[0]: ["4"]}
        assert await nothing_more(consumer)


async def test_queues_are_read_by_name_also_before_they_are_there(shared_node: NodeProcess, topic_name: str) -> None:
    async with (
        named(shared_node, topic_name) as (client, producer),
        Consumer(client, topic_name, queues=[NAMES[3], "later", NAMES[3]]) as consumer,
    ):
        assert by_name(await take(consumer, 4)) == {NAMES[3]: ["0", "1", "2", "3"]}
        await producer.send("no", queue=NAMES[4])
        await producer.send("late", queue="later")
        assert by_name(await take(consumer, 1)) == {"later": ["late"]}
        assert await nothing_more(consumer)


async def test_a_pattern_chooses_queues_also_those_that_come(shared_node: NodeProcess, topic_name: str) -> None:
    async with named(shared_node, topic_name, each=1) as (client, producer):
        await producer.send_and_wait("out", queue="agents.0.outbox")
        async with (
            Consumer(client, topic_name, pattern="agents.*.inbox") as inboxes,
            Consumer(client, topic_name, pattern="agents.0.**") as of_one,
        ):
            assert by_name(await take(inboxes, 10)) == {name: ["0"] for name in NAMES}
            assert by_name(await take(of_one, 2)) == {NAMES[0]: ["0"], "agents.0.outbox": ["out"]}
            await producer.send("in", queue="agents.new.inbox")
            await producer.send("in", queue="agents.a.b.inbox")
            assert by_name(await take(inboxes, 1)) == {"agents.new.inbox": ["in"]}
            assert await nothing_more(inboxes) and await nothing_more(of_one)


async def test_answers_that_are_lost_cost_no_message_and_repeat_none(shared_node: NodeProcess, topic_name: str) -> None:
    async with (
        named(shared_node, topic_name) as (_, producer),
        FaultProxy(shared_node.url) as proxy,
        Client(proxy.url) as client,
        Consumer(client, topic_name, max_messages=7, wait_ms=100) as consumer,
    ):
        got = []
        for round_ in range(5):
            proxy.lose_answers("fetch")
            await producer.send_and_wait("more", queue=f"round.{round_}")
            got += await take(consumer, 9)
        assert by_name(got) == {
            **{name: ["0", "1", "2", "3"] for name in NAMES},
            **{f"round.{round_}": ["more"] for round_ in range(5)},
        }
        assert await nothing_more(consumer)


async def test_what_named_topics_do_not_obey_is_refused(shared_node: NodeProcess, topic_name: str) -> None:
    async with named(shared_node, topic_name, each=1) as (client, _):

        async def refused(words: str, **options: object) -> None:
            with pytest.raises(InvalidRequest, match=words):
                await Consumer(client, topic_name, **options).start()  # type: ignore[arg-type]

        await refused("have names", queues=[1])
        await refused("list of names", queues="agents")
        await refused("give one", queues=["a"], pattern="a.*")
        await refused("whole part", pattern="agents*")
        await refused("the pattern is ''; it must be text, such as '\\*\\*'", pattern="")
        await refused("the pattern 'a\\\\nb' has a control character", pattern="a\nb")
        await refused("not among queues; name it", queues=["a"], start={"b": 1})
        await refused("not among queues; say queues=", pattern="**", start={"b": 1})
        await refused("not among queues; say queues=", start={"b": 1})
        await refused("read from leaders", read_from="follower")
        await refused("begins at its first message", queues=["a"], group="g", uncommitted="latest")
        async with Consumer(client, topic_name) as consumer:
            with pytest.raises(InvalidRequest, match="all are paused or none"):
                consumer.pause([1])
            with pytest.raises(InvalidRequest, match="by their numbers"):
                await consumer.seek_to_time(0)
        with pytest.raises(InvalidRequest, match="by their numbers"):
            await client.offsets(topic_name)
        await client.create_topic(f"{topic_name}-n", queues=2)
        for numbered in ({"queues": ["a"]}, {"pattern": "a.*"}):
            with pytest.raises(InvalidRequest, match="not names"):
                await Consumer(client, f"{topic_name}-n", **numbered).start()  # type: ignore[arg-type]


def test_the_blocking_face_refuses_to_seek_in_all_queues_by_name(shared_node: NodeProcess, topic_name: str) -> None:
    with sync.Client(shared_node.url) as client:
        client.create_topic(topic_name, queues="named")
        with sync.Producer(client, topic_name) as producer:
            producer.send_many(["a", "b"], queue="inbox").wait()
        with sync.Consumer(client, topic_name) as consumer:
            (first,) = consumer.poll(1)
            with pytest.raises(InvalidRequest, match="by their numbers"):
                consumer.seek_to_time(0)
            assert next(consumer).text() == "b", "and it is where it was"
            consumer.seek_to_time(0, [first.queue])
            assert next(consumer).text() == "a"


async def test_handlers_of_one_queue_hold_up_no_other(shared_node: NodeProcess, topic_name: str) -> None:
    """More of one queue than the window holds, whose handler does not come back for now."""
    async with named(shared_node, topic_name, each=0) as (client, producer):
        await (await producer.send_many([f"{n}" for n in range(300)], queue="slow"))
        handled: list[Message] = []
        gate = asyncio.Event()

        async def handle(message: Message) -> None:
            if message.queue_name == "slow":
                await gate.wait()
            handled.append(message)

        async with Consumer(client, topic_name, group=topic_name) as consumer:
            running = asyncio.create_task(consumer.run(handle, concurrency=2))
            await comes_true(lambda: len(consumer.positions) > 0, "the slow one is met")
            await (await producer.send_many([f"{n}" for n in range(20)], queue="quick"))
            await comes_true(lambda: len(handled) == 20, "the others are handled")
            gate.set()
            await comes_true(lambda: len(handled) == 320, "all are handled")
        await running
        assert by_name(handled) == {"quick": [f"{n}" for n in range(20)], "slow": [f"{n}" for n in range(300)]}


async def test_a_group_commits_for_queues_by_name_and_keeps_nothing_of_them(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with named(shared_node, topic_name) as (client, producer):
        for consumed in (["0", "1", "2", "3"], ["4"]):
            async with Consumer(client, topic_name, queues=NAMES[:2], group=topic_name) as consumer:
                got = by_name(await take(consumer, 2 * len(consumed)))
                assert got == dict.fromkeys(NAMES[:2], consumed)
                assert len(consumer.positions) == 2
                await consumer.commit()
                assert len(consumer.positions) == 0
            for name in NAMES[:2]:
                await producer.send_and_wait("4", queue=name)


def test_the_blocking_face_sends_and_reads_by_name(shared_node: NodeProcess, topic_name: str) -> None:
    with sync.Client(shared_node.url) as client:
        assert client.create_topic(topic_name, queues="named").named
        with sync.Producer(client, topic_name) as producer:
            producer.send_many([f"{n}" for n in range(5)], queue="a.1").wait()
            assert producer.send_and_wait("x", queue="b").queue_name == "b"
        with sync.Consumer(client, topic_name, pattern="a.*") as consumer:
            got: list[Message] = []
            while len(got) < 5:
                got += consumer.poll()
            consumer.seek(got[0].queue, 3)
            got += consumer.poll(1) + consumer.poll(1)
        assert by_name(got) == {"a.1": ["0", "1", "2", "3", "4", "3", "4"]}


# Names, by themselves


def test_slots_spread_names_and_never_change() -> None:
    assert [queue_slot(name) for name in ("a", "agents.7.inbox", "zoë")] == [3692, 3771, 1538]
    spread = Counter(queue_slot(f"agents.{n}.inbox") for n in range(100 * SLOTS))
    assert len(spread) == SLOTS and max(spread.values()) < 200


@pytest.mark.parametrize(
    ("pattern", "matches", "others"),
    [
        ("agents.*.inbox", ["agents.7.inbox", "agents..inbox"], ["agents.7.8.inbox", "agents.7.outbox", "x"]),
        ("agents.**", ["agents.7", "agents.7.inbox"], ["agents", "agent.7"]),
        ("**", ["a", "a.b", "."], []),
        ("*", ["a", "ab"], ["a.b"]),
        ("a(b", ["a(b"], ["ab"]),
    ],
)
def test_patterns_match_whole_parts(pattern: str, matches: list[str], others: list[str]) -> None:
    compiled = compile_pattern(pattern)
    assert [name for name in [*matches, *others] if compiled.fullmatch(name)] == matches


@pytest.mark.parametrize("pattern", ["a*", "**.b", "a.**.b", "a.***", ""])
def test_patterns_that_mean_something_else_elsewhere_are_refused(pattern: str) -> None:
    with pytest.raises(InvalidQueueName):
        compile_pattern(pattern)


def test_names_have_1_to_255_bytes() -> None:
    assert check_queue_name("ü" * 127) == "ü" * 127
    with pytest.raises(InvalidQueueName, match="256 bytes"):
        check_queue_name("ü" * 128)


def test_positions_of_named_queues_are_forgotten_once_they_are_committed() -> None:
    positions = NamedPositions(range(SLOTS), track_changes=True, forgets=True)
    for queue in range(0, 5000, 7):
        assert positions.meet(queue, queue % SLOTS, 3) == 3
        positions.fetch[positions.slot(queue)] = 5
        positions.hand_out(queue, 5)
    assert list(positions) == list(range(0, 5000, 7)) and positions[7] == 5 and len(positions) == len(positions.changed)
    positions.committed(dict.fromkeys(range(0, 5000, 14), 5))
    positions.committed(dict.fromkeys(range(0, 5000, 7), 4))  # Not so far: kept.
    assert list(positions) == list(range(7, 5000, 14))
    positions.own((range(100),))
    assert list(positions) == [queue for queue in range(7, 5000, 14) if queue % SLOTS < 100]
    positions.committed(dict.fromkeys(positions, 5))
    assert len(positions) == len(positions.fetch) == 0
    positions.move(7, 0)
    assert (dict(positions), positions.changed, positions.rewound) == ({7: 0}, {7: 0}, {7})
    positions.meet(7, 7, 0)
    positions.own((range(7, 8),))
    positions.move(14, 0)
    positions.own((range(7, 8),))
    assert dict(positions) == {7: 0}, "whose the other is does not show"


# Options of the topic, and what goes by itself


async def test_a_named_topic_is_trimmed_and_purged_as_a_whole(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues="named")
        many = [f"many.{number}" for number in range(5_000)]  # More than there are slots.
        async with Producer(client, topic_name) as producer:
            for name in many:
                await producer.send("x", queue=name)
        assert await client.purge_topic(topic_name) == len(many)
        assert {(queue.earliest, queue.latest) for queue in await client.queues(topic_name)} == {(1, 1)}
        with pytest.raises(InvalidRequest, match="trim_queue"):
            await client.purge_topic(topic_name, queues=[1])


@pytest.mark.part(3)
async def test_limits_of_queues_hold_for_names_that_are_new(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues="named", queue_max_messages=2)
        async with Producer(client, topic_name) as producer:
            for name in [f"new.{number}" for number in range(3_000)]:
                await producer.send("x", queue=name)
            await producer.flush()
            assert producer.stats.stored < 60, "each batch has many names"
            await (await producer.send_many(["1", "2"], queue="full"))
            assert (await producer.send_and_wait("later", queue="new.1", delay_ms=60_000)).due_ms is not None
        async with Producer(client, topic_name, deadline_ms=300) as producer:
            with pytest.raises(TimedOut, match="queue_max_messages"):
                await producer.send_and_wait("3", queue="full")


async def test_filters_pick_messages_of_queues_by_name(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues="named")
        async with Producer(client, topic_name) as producer:
            for number in range(40):
                for name in ("a.1", "a.2", "b.1"):
                    await producer.send(
                        f"{number}", queue=name, tag=f"t{number % 4}", properties={"n": str(number % 2)}
                    )
        async with (
            Consumer(client, topic_name, pattern="a.*", tag="t1") as tagged,
            Consumer(client, topic_name, queues=["a.2", "b.1"], filter="n = '1'") as odd,
            Consumer(client, topic_name, group=topic_name, tag=["t0", "t2"]) as member,
        ):
            ones = [f"{number}" for number in range(1, 40, 4)]
            assert by_name(await take(tagged, 20)) == {"a.1": ones, "a.2": ones}
            odds = [f"{number}" for number in range(1, 40, 2)]
            assert by_name(await take(odd, 40)) == {"a.2": odds, "b.1": odds}
            evens = [f"{number}" for number in range(0, 40, 2)]
            assert by_name(await take(member, 60)) == dict.fromkeys(("a.1", "a.2", "b.1"), evens)
            assert await nothing_more(tagged) and await nothing_more(odd) and await nothing_more(member)


async def test_messages_are_found_by_key_and_say_their_queue(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues="named")
        async with Producer(client, topic_name) as producer:
            for number in range(12):
                await producer.send_and_wait(f"{number}", queue=f"a.{number % 3}", key=f"k{number % 2}")
        found = await client.find_messages(topic_name, "k1")
        assert sorted((m.queue_name, m.text()) for m in found.messages) == [
            (f"a.{number % 3}", f"{number}") for number in (3, 9, 1, 7, 11, 5)
        ]
        of_one = await client.find_messages(topic_name, "k1", queue="a.1")
        assert [(m.queue_name, m.text()) for m in of_one.messages] == [("a.1", "7"), ("a.1", "1")]
        picked = await client.find_messages(topic_name, filter="key = 'k1'", queue="a.1")
        assert [(m.queue_name, m.text()) for m in picked.messages] == [("a.1", "1"), ("a.1", "7")]
        everywhere = await client.find_messages(topic_name, filter="key = 'k1'")
        assert {m.id for m in everywhere.messages} == {m.id for m in found.messages}
        path = f"/v1/topics/{topic_name}/messages"
        for asked in ({"key": "k1"}, {"filter": "key = 'k1'"}):
            answer = await client.ask("GET", path + "?" + urlencode({**asked, "queue_name": "a.1"}))
            assert {message["body"] for message in answer["messages"]} == {b"1", b"7"}
        last = await client.latest(topic_name, "k0", queue="a.2")
        assert last is not None and (last.queue_name, last.text()) == ("a.2", "8")
        with pytest.raises(UnknownQueue):
            await client.latest(topic_name, "k0", queue="a.3")


async def test_a_queue_that_is_deleted_and_used_again_is_read_from_its_beginning(
    shared_node: NodeProcess, topic_name: str
) -> None:
    """By consumers that are in the middle of it, whatever number it has then, and whoever has its former one."""
    async with named(shared_node, topic_name) as (client, producer):
        async with (
            Consumer(client, topic_name, queues=[NAMES[0]]) as one,
            Consumer(client, topic_name, pattern="agents.**") as some,
            Consumer(client, topic_name, group=topic_name) as member,
        ):
            await take(one, 4)
            await take(some, 40)
            await take(member, 40)
            for round_ in range(3):
                await client.delete_queue(topic_name, NAMES[0])
                await producer.send_and_wait("other", queue=f"agents.heir.{round_}")
                await producer.send_and_wait("again", queue=NAMES[0])
                both = {f"agents.heir.{round_}": ["other"], NAMES[0]: ["again"]}
                assert by_name(await take(one, 1)) == {NAMES[0]: ["again"]}
                assert by_name(await take(some, 2)) == both
                assert by_name(await take(member, 2)) == both
                await member.commit()
        assert (await Group(client, topic_name).lag(topic_name)).lag == 0


async def test_a_queue_that_was_made_anew_meanwhile_is_not_read_from_where_the_former_one_was(
    shared_node: NodeProcess, topic_name: str
) -> None:
    """By who named offsets to begin at, and asks again for all that he reads."""
    start = {NAMES[0]: 1, NAMES[1]: 3}
    async with (
        named(shared_node, topic_name) as (client, producer),
        Consumer(client, topic_name, queues=NAMES[:2], start=start) as consumer,
    ):
        assert by_name(await take(consumer, 4)) == {NAMES[0]: ["1", "2", "3"], NAMES[1]: ["3"]}
        consumer.pause()
        await client.delete_queue(topic_name, NAMES[0])
        await producer.send_and_wait("other", queue="agents.heir")
        for number in range(6):
            await producer.send_and_wait(f"again {number}", queue=NAMES[0])
        await producer.send_and_wait("4", queue=NAMES[1])
        consumer.resume()
        again = [f"again {number}" for number in range(6)]
        assert by_name(await take(consumer, 7)) == {NAMES[0]: again, NAMES[1]: ["4"]}


@pytest.mark.parametrize("policy", ["latest", "error"])
async def test_what_was_not_read_of_a_deleted_queue_is_no_gap_of_the_next_one_with_its_number(
    shared_node: NodeProcess, topic_name: str, policy: OutOfRange
) -> None:
    async with (
        named(shared_node, topic_name, each=1) as (client, producer),
        Consumer(client, topic_name, pattern="**", on_out_of_range=policy) as consumer,
    ):
        (number,) = {message.queue for message in await take(consumer, 10) if message.queue_name == NAMES[0]}
        consumer.pause()
        await producer.send_and_wait("not read", queue=NAMES[0])
        await client.delete_queue(topic_name, NAMES[0])
        sent = await producer.send_and_wait("heir's", queue="agents.heir")
        assert (sent.queue, sent.offset) == (number, 2)
        consumer.resume()
        assert by_name(await take(consumer, 1)) == {"agents.heir": ["heir's"]}
        await producer.send_and_wait("more", queue="agents.heir")
        assert by_name(await take(consumer, 1)) == {"agents.heir": ["more"]}


@pytest.mark.parametrize("policy", ["latest", "error"])
async def test_what_has_expired_before_a_queue_is_met_is_no_gap(
    shared_node: NodeProcess, topic_name: str, policy: OutOfRange, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is removed while the consumer looks whether it is one."""
    async with named(shared_node, topic_name, each=0) as (client, producer):
        await producer.send_and_wait("expires", queue="a", ttl_ms=1)
        await producer.send_and_wait("stays", queue="a")
        ask = Client._offsets

        async def trimmed_first(self: Client, topic: Any, *args: Any) -> Any:
            monkeypatch.undo()
            await client.trim_queue(topic_name, "a", 1)
            return await ask(self, topic, *args)

        monkeypatch.setattr(Client, "_offsets", trimmed_first)
        async with Consumer(client, topic_name, pattern="**", on_out_of_range=policy) as consumer:
            assert by_name(await take(consumer, 1)) == {"a": ["stays"]}


async def test_a_queue_is_committed_and_forgotten_while_the_consumer_looks_whether_it_has_a_gap(
    shared_node: NodeProcess, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        named(shared_node, topic_name, each=0) as (client, producer),
        Consumer(client, topic_name, group=topic_name, on_out_of_range="latest") as member,
    ):
        await producer.send_and_wait("0", queue="a")
        (first,) = await take(member, 1)
        member.pause()
        await producer.send_and_wait("expires", queue="a", ttl_ms=1)
        await producer.send_and_wait("passed over", queue="a")
        ask, looked = Client._offsets, asyncio.Event()

        async def committed_first(self: Client, topic: Any, *args: Any) -> Any:
            monkeypatch.undo()
            await member.commit()
            assert first.queue not in member.positions
            await client.trim_queue(topic_name, "a", 2)
            looked.set()
            return await ask(self, topic, *args)

        monkeypatch.setattr(Client, "_offsets", committed_first)
        member.resume()
        await looked.wait()

        async def is_at_the_latest() -> bool:
            assert await member.poll(timeout_ms=0) == []
            return member.positions.get(first.queue) == 3

        await comes_true(is_at_the_latest, "it goes on at the latest")
        await producer.send_and_wait("3", queue="a")
        assert by_name(await take(member, 1)) == {"a": ["3"]}


async def test_what_was_sent_before_is_known_again_by_name(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues="named", dedupe_window_ms=3_600_000)
        async with Producer(client, topic_name) as producer:
            sent = [await producer.send_and_wait("x", queue=name, dedupe_id="1") for name in ("a", "b", "a")]
        assert [(one.queue_name, one.offset, one.duplicate) for one in sent] == [
            ("a", 0, False),
            ("b", 0, False),
            ("a", 0, True),
        ]
