"""Producers of a group: a successor fences the one before, and goes on where it stopped, each message once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from api.calls import Api
from lsmq import Client, Consumer, GroupProducer, InvalidRequest, ProducerFenced, sync
from lsmq_lab.local_cluster import LocalCluster
from support.node_process import NodeProcess
from support.waiting import comes_true


async def all_bodies(client: Client, topic: str, count: int) -> list[bytes]:
    """What is stored, by queue and offset; nothing more than ``count``."""
    found = []
    async with Consumer(client, topic, start="earliest") as consumer:
        while len(found) < count:
            found += await consumer.poll(1000)
    assert len(found) == count == sum((await client.offsets(topic)).latest)
    return [message.body for message in sorted(found, key=lambda each: (each.queue, each.offset))]


async def test_a_successor_that_sends_all_again_stores_each_message_once(
    shared_node: NodeProcess, topic_name: str
) -> None:
    outbox = [(number, f"k{number % 5}", b"%d" % number) for number in range(500)]
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=4)
        first = GroupProducer(client, topic_name, "billing")
        for position, key, body in outbox[:200]:
            receipt = await first.send(body, position=position, key=key)
        await receipt
        assert first.last_acknowledged() == 199
        for position, key, body in outbox[200:300]:
            await first.send(body, position=position, key=key)  # Nobody knows what becomes of these.
        async with GroupProducer(client, topic_name, "billing") as second:
            assert second.epoch == first.epoch + 1
            begin = second.last_acknowledged()
            assert begin is not None and begin >= 199
            receipts = [await second.send(body, position=position, key=key) for position, key, body in outbox]
            sent = [await each for each in receipts]
            assert [each.duplicate for each in sent] == [position <= begin for position, _, _ in outbox]
        with pytest.raises(ProducerFenced, match="take over again"):
            await (await first.send(b"late", position=1_000))
        with pytest.raises(ProducerFenced):
            await (await first.send(b"later", position=1_001))
        await first.abort()
        assert sorted(await all_bodies(client, topic_name, 500), key=int) == [body for _, _, body in outbox]


async def test_groups_and_topics_do_not_fence_one_another(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        for name in (topic_name, f"{topic_name}-2"):
            await client.create_topic(name)
        async with (
            GroupProducer(client, topic_name, "a") as one,
            GroupProducer(client, topic_name, "b") as two,
            GroupProducer(client, f"{topic_name}-2", "a") as three,
        ):
            for producer in (one, two, three):
                assert producer.last_acknowledged() is None
                assert not (await (await producer.send(b"x", position=7))).duplicate
                assert producer.last_acknowledged(queue=0) == 7


async def test_positions_must_grow(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        async with GroupProducer(client, topic_name, "a") as producer:
            await producer.send(b"x", position=5)
            for wrong in (5, 4):
                with pytest.raises(InvalidRequest, match="position"):
                    await producer.send(b"x", position=wrong)
            with pytest.raises(InvalidRequest, match="position"):
                await producer.send(b"x", position=-1)


async def test_what_one_before_has_stored_where_the_topic_grew_since_is_not_stored_again(
    make_node: Callable[..., NodeProcess],
) -> None:
    topic = "grown"
    async with Client(make_node(shards=4).start().url) as client:
        await client.create_topic(topic, queues=1)
        async with GroupProducer(client, topic, "billing") as first, GroupProducer(client, topic, "billing") as second:
            await client.grow_topic(topic, 5)
            await comes_true(lambda: first._producer._queues == second._producer._queues == 5, "they know of it")
            for queue in range(1, 4):  # It is fenced where the other one has taken over, and nowhere else yet.
                await (await first.send(b"%d" % queue, position=queue, queue=queue))
            receipts = [await second.send(b"%d" % queue, position=queue, queue=queue) for queue in range(1, 4)]
            assert [(await each).duplicate for each in receipts] == [True] * 3
            assert [second.last_acknowledged(queue=queue) for queue in range(1, 4)] == [1, 2, 3]
            assert not (await (await second.send(b"4", position=4, queue=3))).duplicate
        assert sorted(await all_bodies(client, topic, 4)) == [b"1", b"2", b"3", b"4"]


async def test_many_that_wait_for_room_go_in_the_order_of_their_positions(
    shared_node: NodeProcess, topic_name: str
) -> None:
    """Also past a large one that waits: a small one that fitted would have it refused."""
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        async with GroupProducer(client, topic_name, "g", max_buffer_bytes=3_000, batch_bytes=3_000) as producer:
            sizes = [50, 800] * 20
            receipts = await asyncio.gather(
                *(producer.send(b"x" * size, position=position) for position, size in enumerate(sizes))
            )
            assert [(await receipt).offset for receipt in receipts] == list(range(40))


async def test_wrong_arguments_are_refused_by_name(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=4)
        with pytest.raises(InvalidRequest, match="group is text that"):
            GroupProducer(client, topic_name, "\ud800")
        producer = GroupProducer(client, topic_name, "a")
        with pytest.raises(InvalidRequest, match="start"):
            producer.last_acknowledged()
        async with producer:
            with pytest.raises(InvalidRequest, match="key"):
                producer.last_acknowledged(key=7)  # type: ignore[arg-type]
            with pytest.raises(InvalidRequest, match="queue"):
                producer.last_acknowledged(queue="0")  # type: ignore[arg-type]


async def test_of_several_that_take_over_at_a_time_one_goes_on(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=4)
        producers = [GroupProducer(client, topic_name, "a") for _ in range(8)]
        await asyncio.gather(*(producer.start() for producer in producers))
        latest = max(producers, key=lambda each: each.epoch)
        assert len({producer.epoch for producer in producers}) == 8
        for producer in producers:
            receipt = await producer.send(b"x", position=1)
            if producer is latest:
                await receipt
            else:
                with pytest.raises(ProducerFenced):
                    await receipt
            await producer.abort()
        assert await all_bodies(client, topic_name, 1) == [b"x"]


def test_taking_over_by_http_is_answered_alike_when_it_is_repeated(shared_node: NodeProcess, topic_name: str) -> None:
    api = Api(shared_node.url)
    api.create(topic_name, 1)
    path = f"/v1/topics/{topic_name}/producers/{random.getrandbits(62)}/take"
    assert api.call("POST", path, {"shard": 0}, status=200).json() == {"epoch": 1, "position": None}
    for _ in range(2):
        assert api.call("POST", path, {"shard": 0, "epoch": 5}, status=200).json() == {"epoch": 5, "position": None}
    assert api.call("POST", path, {"shard": 0, "epoch": 4}, status=409).json()["error"]["latest"] == 5
    for status in (200, 409):
        answer = api.call("POST", path, {"shard": 0, "epoch": 9, "new": True}, status=status)
    assert answer.error["latest"] == 9
    assert api.call("POST", path, {"shard": 99}, status=400).json()["error"]["field"] == "shard"


async def test_a_request_to_take_over_that_comes_once_more_and_late_fences_nobody(
    shared_node: NodeProcess, topic_name: str
) -> None:
    api = Api(shared_node.url)
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name)
        async with GroupProducer(client, topic_name, "a"), GroupProducer(client, topic_name, "a") as producer:
            path = f"/v1/topics/{topic_name}/producers/{producer._id}/take"
            api.call("POST", path, {"shard": 0, "epoch": producer.epoch, "new": True}, status=409)
            assert (await (await producer.send(b"x", position=1))).offset == 0


def test_the_blocking_face_takes_over_too(shared_node: NodeProcess, topic_name: str) -> None:
    with sync.Client(shared_node.url) as client:
        client.create_topic(topic_name)
        with sync.GroupProducer(client, topic_name, "a") as producer:
            assert producer.send(b"x", position=1).result().offset == 0
        with sync.GroupProducer(client, topic_name, "a") as producer:
            assert producer.last_acknowledged() == 1
            assert producer.send(b"x", position=1).result().duplicate
            assert producer.send(b"y", position=2).result().offset == 1


@pytest.mark.slow
async def test_a_group_goes_on_over_killed_leaders(cluster: LocalCluster) -> None:
    urls = [node.url for node in cluster.plan.nodes]
    outbox = [b"%d" % number for number in range(600)]
    async with Client(urls) as client:
        await client.create_topic("outbox", queues=6)
        first = GroupProducer(client, "outbox", "billing")
        for position, body in enumerate(outbox[:300]):
            await first.send(body, position=position)
            if position == 150:
                await first.flush()
                victim = next(shard.leader for shard in cluster.status().shards if shard.id == 0)
                cluster.kill(victim)
        async with GroupProducer(client, "outbox", "billing") as second:
            await first.abort()
            for position, body in enumerate(outbox):
                await second.send(body, position=position)
        cluster.start(victim)
        assert sorted(await all_bodies(client, "outbox", 600), key=int) == outbox
