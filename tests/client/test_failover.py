"""Leaders die, stop answering and change; clients follow, lose nothing and store nothing twice.

Requests may take longer here than a test, so whoever waits for a node that does not answer fails.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from lsmq import (
    Client,
    Consumer,
    Message,
    NotEnoughReplicas,
    Producer,
    PushConsumer,
    TimedOut,
    TopicReplaced,
    UnknownTopic,
    WorkQueue,
)
from lsmq.groups import Group
from support.node_process import NodeProcess
from support.played_cluster import PlayedCluster
from support.waiting import comes_true

ENDLESS_MS = 600_000


@pytest.fixture(autouse=True)
def endless_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that are asked for routes and never answer are not what anything may wait for."""
    monkeypatch.setattr("lsmq._route_refresher._ROUTE_TIMEOUT_S", 600)


def client_of(cluster: PlayedCluster, **options: Any) -> Client:
    return Client(cluster.urls, request_timeout_ms=ENDLESS_MS, deadline_ms=ENDLESS_MS, **options)


async def take(consumer: Consumer, count: int) -> list[Message]:
    messages: list[Message] = []
    while len(messages) < count:
        messages += await consumer.poll(count - len(messages))
    return messages


def in_order(messages: list[Message]) -> dict[int, list[int]]:
    """Offsets of each queue, in the order they came."""
    offsets: dict[int, list[int]] = {}
    for message in messages:
        offsets.setdefault(message.queue, []).append(message.offset)
    return offsets


@pytest.mark.parametrize("paused", [0, 1, 2])
async def test_one_of_three_nodes_that_never_answers_holds_up_nothing(
    shared_node: NodeProcess, topic_name: str, paused: int
) -> None:
    async with PlayedCluster(shared_node.url) as cluster, client_of(cluster) as client:
        await client.create_topic(topic_name, queues=4)
        cluster.elect(0, (paused + 1) % 3)
        cluster.doors[paused].pause()
        async with client_of(cluster) as fresh:
            assert topic_name in [topic.name for topic in await fresh.topics()]
            async with Producer(fresh, topic_name) as producer:
                await producer.send_and_wait("x", queue=1)
            async with Consumer(fresh, topic_name, queues=range(4), group="g") as consumer:
                assert [message.body for message in await take(consumer, 1)] == [b"x"]
                await consumer.commit()
            assert await fresh.committed_offsets("g", topic_name) == {1: 1}
            assert "g" in await fresh.groups()


async def test_a_real_node_that_is_stopped_by_a_signal_holds_up_nothing(
    shared_node: NodeProcess, node: NodeProcess
) -> None:
    """Its kernel takes connections and requests, and nothing comes back."""
    node.signal(signal.SIGSTOP)
    try:
        urls = [node.url, shared_node.url]
        async with Client(urls, request_timeout_ms=ENDLESS_MS, connect_timeout_ms=ENDLESS_MS) as client:
            assert (await client.status())["uptime_s"] > 0
    finally:
        node.signal(signal.SIGCONT)


async def test_not_leader_with_the_leaders_address_costs_no_other_request(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with PlayedCluster(shared_node.url) as cluster, client_of(cluster, refresh_s=600) as client:
        await client.create_topic(topic_name)
        async with Producer(client, topic_name) as producer:
            await producer.send_and_wait("one")
            asked = sum(door.requests[topic_name] for door in cluster.doors)
            cluster.elect(0, 2)
            assert (await producer.send_and_wait("two")).offset == 1
            assert producer.stats.attempts == 3
        assert [door.requests["batches"] for door in cluster.doors] == [2, 0, 1]
        assert sum(door.requests[topic_name] for door in cluster.doors) == asked


async def test_not_leader_that_names_nobody_sends_the_client_to_look_for_one(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with PlayedCluster(shared_node.url) as cluster, client_of(cluster) as client:
        await client.create_topic(topic_name)
        async with Producer(client, topic_name) as producer:
            await producer.send_and_wait("one")
            cluster.elect(0, None)
            asked = sum(door.requests[topic_name] for door in cluster.doors)
            second = await producer.send("two")
            await comes_true(
                lambda: sum(door.requests[topic_name] for door in cluster.doors) >= asked + 2, "the client looks"
            )
            assert not second.done()
            cluster.elect(0, 1, tell=[2])
            assert (await second).offset == 1


async def test_routes_from_before_never_win(shared_node: NodeProcess, topic_name: str) -> None:
    """Nodes that lag tell of the old leader, who refuses: the client stays with the new one."""
    async with PlayedCluster(shared_node.url) as cluster, client_of(cluster) as client:
        await client.create_topic(topic_name)
        cluster.elect(0, 1, tell=[0])
        async with Producer(client, topic_name) as producer:
            await producer.send_and_wait("one")
            for _ in range(3):
                described = await client.topic(topic_name)
                assert (described.routes[0].leader, described.routes[0].epoch) == (cluster.urls[1], 2)
                cluster.doors[0].refuse()
                await producer.send_and_wait("more")
        assert cluster.doors[1].requests["batches"] == 4


async def test_a_producer_leaves_a_leader_that_stopped_answering_and_stores_once(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with PlayedCluster(shared_node.url) as cluster, client_of(cluster) as client:
        await client.create_topic(topic_name)
        async with Producer(client, topic_name) as producer:
            await producer.send_and_wait("one")
            cluster.doors[0].pause()
            second = await producer.send("two")
            await comes_true(lambda: producer.stats.attempts >= 2, "it is on its way")
            cluster.elect(0, 1, tell=[1, 2])
            assert (await second).offset == 1
            cluster.doors[0].resume()
            assert (await producer.send_and_wait("three")).offset == 2


async def test_batches_that_share_a_request_leave_a_silent_leader_though_a_topic_among_theirs_is_gone(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with PlayedCluster(shared_node.url) as cluster, client_of(cluster, refresh_s=600) as client:
        names = [topic_name, f"{topic_name}-2"]
        for name in names:
            await client.create_topic(name, queues=1)
        async with AsyncExitStack() as scope:
            gone, there = [await scope.enter_async_context(Producer(client, name, linger_ms=0)) for name in names]
            await gone.send_and_wait("one")
            await there.send_and_wait("one")
            async with Client(shared_node.url) as other:
                await other.delete_topic(names[0])
            cluster.doors[0].pause()
            lost, second = await asyncio.gather(gone.send("two"), there.send("two"))
            await comes_true(lambda: there.stats.attempts >= 2, "it is on its way")
            cluster.elect(0, 1, tell=[1, 2])
            await comes_true(lambda: there.stats.stored == 2, "the new leader has it")
            assert (await second).offset == 1
            with pytest.raises(UnknownTopic):
                await lost


async def test_a_write_that_the_old_leader_had_stored_is_answered_by_the_new_one(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with PlayedCluster(shared_node.url) as cluster, client_of(cluster) as client:
        await client.create_topic(topic_name)
        async with Producer(client, topic_name) as producer:
            await producer.send_and_wait("one")
            cluster.doors[0].pause_after("batches")
            second = await producer.send("two")
            await cluster.doors[0].paused.wait()
            cluster.elect(0, 1, tell=[1, 2])
            assert (await second).offset == 1
            assert producer.stats.repeats == 1
            cluster.doors[0].resume()
        bounds = await client.offsets(topic_name)
        assert list(bounds.latest) == [2]


async def test_a_consumer_leaves_a_leader_that_stopped_answering_without_gap_or_repeat(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with PlayedCluster(shared_node.url) as cluster, client_of(cluster) as client, client_of(cluster) as other:
        await client.create_topic(topic_name, queues=3)
        async with Consumer(client, topic_name, wait_ms=60_000) as consumer, Producer(other, topic_name) as producer:
            for number in range(5):
                await producer.send(f"{number}", queue=number % 3)
            await producer.flush()
            messages = await take(consumer, 5)
            for turn, (old, new) in enumerate(((0, 1), (1, 2), (2, 0))):
                await cluster.doors[old].asked("fetch", 1)
                cluster.doors[old].pause()
                cluster.elect(0, new, tell=[(old + 1) % 3, (old + 2) % 3])
                for number in range(5):
                    await producer.send(f"{turn} {number}", queue=number % 3)
                await producer.flush()
                messages += await take(consumer, 5)
                cluster.doors[old].resume()
                cluster.doors[old].known = dict(cluster.leaders)
            assert await consumer.poll(timeout_ms=200) == []
    assert in_order(messages) == {0: list(range(8)), 1: list(range(8)), 2: list(range(4))}


async def test_what_is_committed_goes_to_the_leader_of_each_shard_and_survives_their_change(
    make_node: Callable[..., NodeProcess],
) -> None:
    node = make_node(shards=3).start()
    async with PlayedCluster(node.url, shards=3) as cluster, client_of(cluster) as client:
        topic = await client.create_topic("wide", queues=30)
        async with Producer(client, "wide") as producer:
            await (await producer.send_many((f"{number}", f"{number}") for number in range(300)))
        async with Consumer(client, "wide", queues=range(30), group="readers") as consumer:
            messages = await take(consumer, 150)
            for shard in range(3):
                cluster.elect(shard, (shard + 1) % 3, tell=[shard])
            await consumer.commit()
            cluster.doors[0].pause()
            cluster.elect(2, 1)
            expected = {queue: offset for queue, offset in consumer.positions.items() if offset}
            assert await client.committed_offsets("readers", "wide") == expected
            await client.commit_offsets("readers", "wide", {0: 0, 29: 0}, reset=True)
            assert (await client.committed_offsets("readers", "wide"))[29] == 0
            assert sum((await client.offsets("wide")).latest) == 300
            assert await client.groups() == ["readers"]
            found = await client.message(messages[0].id)
            assert found.body == messages[0].body
            messages += await take(consumer, 150)
        assert {route.shard for route in topic.routes} == {0, 1, 2}
    assert all(offsets == list(range(len(offsets))) for offsets in in_order(messages).values())
    assert len({message.id for message in messages}) == 300


async def test_too_few_replicas_are_waited_for(shared_node: NodeProcess, topic_name: str) -> None:
    refusal = {"code": "not_enough_replicas", "message": "1 of 2 replicas in sync", "retriable": True}
    async with PlayedCluster(shared_node.url) as cluster, client_of(cluster) as client:
        await client.create_topic(topic_name)
        cluster.doors[0].refuse(refusal, {**refusal, "sent": True}, refusal)
        async with Producer(client, topic_name) as producer:
            assert (await producer.send_and_wait("x")).offset == 0
            cluster.doors[0].refuse(*[refusal] * 1000)
        async with Producer(client, topic_name, deadline_ms=200) as producer:
            with pytest.raises(TimedOut, match="1 of 2 replicas") as caught:
                await producer.send_and_wait("y")
        assert caught.value.details == {"maybe_stored": False, "last_code": NotEnoughReplicas.code}


async def remade(client: Client, name: str, **options: Any) -> None:
    await client.delete_topic(name)
    await client.create_topic(name, **options)


async def test_a_producer_of_a_topic_made_anew_is_told_and_writes_nothing_there(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with PlayedCluster(shared_node.url) as cluster, client_of(cluster) as client, client_of(cluster) as other:
        await client.create_topic(topic_name, queues=4)
        async with Producer(client, topic_name) as producer:
            await producer.send_and_wait("old")
            await remade(other, topic_name, queues=2)
            with pytest.raises(TopicReplaced, match="another topic"):
                await producer.send_and_wait("new")
            with pytest.raises(TopicReplaced):
                await producer.send("newer")
        assert list((await client.offsets(topic_name)).latest) == [0, 0]
        async with Producer(client, topic_name) as producer:
            assert (await producer.send_and_wait("new", queue=1)).offset == 0


async def test_a_deletion_whose_answer_was_lost_spares_the_topic_that_somebody_made_anew_meanwhile(
    shared_node: NodeProcess, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lsmq._router.HEDGE_WRITE_S", 0.05)
    async with PlayedCluster(shared_node.url) as cluster, client_of(cluster) as client:
        await client.create_topic(topic_name)
        first, *others = cluster.doors
        for door in others:
            door.pause()
        first.pause_after("DELETE")
        deleting = asyncio.create_task(client.delete_topic(topic_name))
        await first.paused.wait()
        async with Client(shared_node.url) as other:
            made = await other.create_topic(topic_name, queues=2)
            for door in others:
                door.resume()
            await deleting
            assert (await other.topic(topic_name)).is_same(made)
            await other.delete_topic(topic_name)
            with pytest.raises(UnknownTopic):
                await other.delete_topic(topic_name)
            await other.delete_topic(topic_name, missing_ok=True)


@pytest.mark.parametrize("what", ["delete", "trim", "commit"])
async def test_offsets_of_a_topic_mean_nothing_in_the_one_made_anew(
    shared_node: NodeProcess, topic_name: str, what: str
) -> None:
    """The client has heard of the topic before it was deleted, and has not looked since."""
    async with Client(shared_node.url) as client, Client(shared_node.url) as other:
        await client.create_topic(topic_name)
        await remade(other, topic_name)
        async with Producer(other, topic_name) as producer:
            for _ in range(3):
                await producer.send("new")

        async def ask() -> None:
            if what == "delete":
                await client.delete_messages(topic_name, [(0, 0)])
            elif what == "trim":
                await client.trim_topic(topic_name, {0: 2})
            else:
                await client.commit_offsets("g", topic_name, {0: 2})

        with pytest.raises(TopicReplaced):
            await ask()
        assert list((await other.offsets(topic_name)).earliest) == [0]
        assert (await other.topic_usage(topic_name)).messages == 3
        assert await other.committed_offsets("g", topic_name) == {}
        await ask()  # Whoever was told may mean this one.


@pytest.mark.parametrize("kind", ["work", "push"])
async def test_who_takes_from_a_topic_made_anew_gets_its_messages_whatever_was_known(
    shared_node: NodeProcess, topic_name: str, kind: str
) -> None:
    """The client has heard of the topic before it was deleted, and has not looked since."""
    async with Client(shared_node.url) as client, Client(shared_node.url) as other:
        await client.create_topic(topic_name)
        await remade(other, topic_name)
        async with Producer(other, topic_name) as producer:
            await producer.send_and_wait("new")
        if kind == "push":
            async with PushConsumer(client, topic_name, group=topic_name) as consumer:
                assert [message.text() for message in await consumer.poll(1)] == ["new"]
        else:
            async with WorkQueue(client, topic_name, topic_name) as work:
                assert [task.text() for task in await work.poll(1)] == ["new"]


async def test_lag_is_that_of_the_topic_made_anew_whatever_was_known(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client, Client(shared_node.url) as other:
        await client.create_topic(topic_name)
        await remade(other, topic_name)
        async with Producer(other, topic_name) as producer:
            await producer.send_and_wait("new")
        assert (await Group(client, topic_name).lag(topic_name)).lag == 1


@pytest.mark.parametrize("idle", [False, True])
async def test_a_consumer_of_a_topic_made_anew_is_told(shared_node: NodeProcess, topic_name: str, idle: bool) -> None:
    """Whether or not the new topic has offsets where the consumer stands."""
    async with PlayedCluster(shared_node.url) as cluster, client_of(cluster) as client, client_of(cluster) as other:
        await client.create_topic(topic_name)
        async with Producer(client, topic_name) as producer:
            for number in range(3):
                await producer.send(f"old {number}")
        async with Consumer(client, topic_name, queues=[0], group="g") as consumer:
            await take(consumer, 3)
            await remade(other, topic_name)
            if not idle:
                async with Producer(other, topic_name) as producer:
                    for number in range(10):
                        await producer.send(f"new {number}")
            for _ in range(2):
                with pytest.raises((TopicReplaced, UnknownTopic)):
                    await consumer.poll()
            with pytest.raises(TopicReplaced):
                await consumer.commit()
        assert await client.committed_offsets("g", topic_name) == {}


async def test_a_topic_made_anew_is_noticed_by_its_messages_where_the_node_does_not_check(
    shared_node: NodeProcess, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lsmq.topics.Topic.identity", {})
    async with Client(shared_node.url) as client, Client(shared_node.url) as other:
        await client.create_topic(topic_name)
        async with Producer(client, topic_name) as producer:
            await producer.send_and_wait("old")
        async with Consumer(client, topic_name, wait_ms=0) as consumer:
            await take(consumer, 1)
            await remade(other, topic_name)
            async with Producer(other, topic_name) as producer:
                await (await producer.send_many(["new"] * 5))
            with pytest.raises((TopicReplaced, UnknownTopic)):
                while True:
                    assert await consumer.poll() == []
            with pytest.raises(TopicReplaced):
                await consumer.poll()
