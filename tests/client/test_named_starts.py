"""Where reading of queues with names begins."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest

from lsmq import (
    Client,
    Consumer,
    OffsetOutOfRange,
    _named_fetch,
)
from lsmq._fetcher import OutOfRange
from lsmq._named_selection import named_ends
from support.fault_proxy import FaultProxy
from support.group_topic import take
from support.named_topic import NAMES, by_name, named, nothing_more
from support.node_process import NodeProcess
from support.waiting import comes_true


async def test_from_the_latest_nothing_old_comes_and_all_of_new_queues(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with (
        named(shared_node, topic_name) as (_, producer),
        FaultProxy(shared_node.url) as proxy,
        Client(proxy.url) as client,
        Consumer(client, topic_name, start="latest", wait_ms=100) as consumer,
    ):
        proxy.lose_answers("fetch", times=2)  # What the node remembers is gone with them.
        await producer.send_and_wait("4", queue=NAMES[0])
        await producer.send_and_wait("first", queue="new")
        assert by_name(await take(consumer, 2)) == {NAMES[0]: ["4"], "new": ["first"]}
        proxy.cut("fetch", times=2)
        await producer.send_and_wait("5", queue=NAMES[0])
        await producer.send_and_wait("4", queue=NAMES[1])
        assert by_name(await take(consumer, 2)) == {NAMES[0]: ["5"], NAMES[1]: ["4"]}
        assert await nothing_more(consumer)


async def test_reading_begins_at_offsets_and_goes_where_it_is_sought(shared_node: NodeProcess, topic_name: str) -> None:
    async with (
        named(shared_node, topic_name) as (client, _),
        Consumer(client, topic_name, queues=NAMES[:2], start={NAMES[0]: 2}) as consumer,
    ):
        got = await take(consumer, 6)
        assert by_name(got) == {NAMES[0]: ["2", "3"], NAMES[1]: ["0", "1", "2", "3"]}
        number = next(message.queue for message in got if message.queue_name == NAMES[0])
        assert consumer.positions[number] == 4
        consumer.seek(number, 1)
        assert by_name(await take(consumer, 3)) == {NAMES[0]: ["1", "2", "3"]}
        consumer.pause()
        consumer.seek(number, 3)
        assert await nothing_more(consumer)
        consumer.resume()
        assert by_name(await take(consumer, 1)) == {NAMES[0]: ["3"]}


async def test_reading_begins_at_a_time(shared_node: NodeProcess, topic_name: str) -> None:
    """Also where what the node remembers of it is lost; of queues that come later nothing is missing."""
    async with (
        named(shared_node, topic_name) as (_, producer),
        FaultProxy(shared_node.url) as proxy,
        Client(proxy.url) as client,
    ):
        old = await client.message((await producer.send_and_wait("old", queue="idle")).id)

        async def is_over() -> bool:
            return time.time() * 1000 > old.stored_ms + 1

        await comes_true(is_over, "that moment is over")
        since = [await producer.send_and_wait("since", queue=name) for name in (NAMES[0], NAMES[1], "new")]
        moment = min([(await client.message(one.id)).stored_ms for one in since])
        expected = {NAMES[0]: ["since"], NAMES[1]: ["since"], "new": ["since"]}
        async with Consumer(client, topic_name, pattern="**", start=moment, wait_ms=100) as consumer:
            proxy.lose_answers("fetch", times=2)
            assert by_name(await take(consumer, 3)) == expected
            await producer.send_and_wait("more", queue="idle")
            await producer.send_and_wait("first", queue="newer")
            assert by_name(await take(consumer, 2)) == {"idle": ["more"], "newer": ["first"]}
            assert await nothing_more(consumer)
            number = next(queue for queue in consumer.positions if queue == since[0].queue)
            consumer.seek(number, 3)
            assert by_name(await take(consumer, 2)) == {NAMES[0]: ["3", "since"]}
        at = datetime.fromtimestamp(moment / 1000, UTC)
        async with Consumer(client, topic_name, queues=[NAMES[0], "idle", "none"], start=at) as consumer:
            assert by_name(await take(consumer, 2)) == {NAMES[0]: ["since"], "idle": ["more"]}
            assert await nothing_more(consumer)


@pytest.mark.parametrize("policy", ["earliest", "latest", "error"])
async def test_an_offset_that_a_queue_by_name_does_not_have_is_for_the_policy_as_ever(
    shared_node: NodeProcess, topic_name: str, policy: OutOfRange
) -> None:
    """Below what is there, above it, and of a queue that is not there."""
    async with named(shared_node, topic_name) as (client, producer):
        await client.trim_queue(topic_name, NAMES[0], 2)
        for name, offset in ((NAMES[0], 1), (NAMES[1], 5), ("later", 3)):
            consumer = Consumer(
                client, topic_name, queues=[name, NAMES[2]], start={name: offset, NAMES[2]: 4}, on_out_of_range=policy
            )
            if policy == "error":
                with pytest.raises(OffsetOutOfRange, match=f"queue '{name}' of topic .* not {offset};"):
                    await consumer.start()
                await consumer.close()
                continue
            async with consumer:
                there = {NAMES[0]: ["2", "3"], NAMES[1]: ["0", "1", "2", "3"], "later": []}[name]
                expected = there if policy == "earliest" else []
                assert [message.text() for message in await take(consumer, len(expected))] == expected
                assert await nothing_more(consumer)
                if name == "later":
                    await producer.send_and_wait("first", queue="later")
                    assert by_name(await take(consumer, 1)) == {"later": ["first"]}


async def test_a_node_that_does_not_say_which_queue_is_which_is_not_taken_for_one_without_them(
    shared_node: NodeProcess, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes of a release before tell where queues by name end, and not their names."""

    async def before(*args: Any) -> tuple[dict[int, int], dict[int, str]]:
        return (await named_ends(*args))[0], {}

    monkeypatch.setattr(_named_fetch, "named_ends", before)
    async with (
        named(shared_node, topic_name) as (client, _),
        Consumer(client, topic_name, queues=[NAMES[0]], start={NAMES[0]: 3}, on_out_of_range="error") as consumer,
    ):
        assert by_name(await take(consumer, 1)) == {NAMES[0]: ["3"]}
