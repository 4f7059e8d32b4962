"""Work queues where each process of a node leads a shard, and knows nothing of the other's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from api.calls import Api
from lsmq import Client, Group, GroupModeMismatch, Producer, Task, UnknownGroup, WorkQueue
from support.node_process import NodeProcess
from support.waiting import comes_true

from .two_processes import two_processes as two_processes

LONG_MS = 600_000


@pytest.mark.slow
async def test_a_shard_that_nobody_has_popped_from_counts_as_all_new(node: NodeProcess) -> None:
    async with Client(node.url) as client, WorkQueue(client, "t", "g") as work:
        topic = await client.create_topic("t", queues=4)
        async with Producer(client, "t") as producer:
            for queue in range(4):
                await (await producer.send_many(["x"] * 5, queue=queue))
        apis = {route.shard: Api(str(route.leader)) for route in topic.routes}
        assert len({api.port for api in apis.values()}) == 2
        with pytest.raises(UnknownGroup):
            await work.describe()

        def pop(shard: int) -> list[dict[str, Any]]:
            document = {"topic": "t", "shards": [shard], "max": 3, "visibility_ms": LONG_MS}
            answer = apis[shard].call("POST", "/v1/groups/g/pop", document, status=200)
            found: list[dict[str, Any]] = answer.json()["messages"]
            return found

        last = max(apis)
        for again in range(2):  # The second time, what was said has made nothing where nobody has popped.
            if not again:
                assert len(await asyncio.to_thread(pop, last)) == 3
            state = await work.describe()
            assert (state.new, state.in_flight, state.undelivered) == (17, 3, 17)
            assert [held.shard for held in await work.held()] == [last] * 3
        await work.configure(max_deliveries=5)
        assert (await work.describe()).settings.max_deliveries == 5


@pytest.mark.slow
async def test_what_several_leaders_bring_at_once_to_who_has_room_for_one_goes_to_others(node: NodeProcess) -> None:
    begun, over = list[str](), asyncio.Event()

    async def handle(task: Task) -> None:
        assert task.deliveries == 1, "what was given back does not count"
        begun.append(task.text())
        await over.wait()

    async with Client(node.url) as client, WorkQueue(client, "t", "g") as first, WorkQueue(client, "t", "g") as second:
        await client.create_topic("t", queues=2)
        await first.configure()
        async with Producer(client, "t") as producer:
            for queue in range(2):
                await producer.send_and_wait(f"{queue}", queue=queue)
        running = [asyncio.create_task(first.run(handle))]
        await comes_true(lambda: len(begun) == 1, "one has a handler")
        running.append(asyncio.create_task(second.run(handle)))
        await comes_true(lambda: sorted(begun) == ["0", "1"], "the other one, too")
        over.set()
        await first.close()
        await second.close()
        await asyncio.gather(*running)


@pytest.mark.slow
async def test_a_work_queue_has_no_offsets_to_commit_where_nobody_has_popped_either(node: NodeProcess) -> None:
    async with Client(node.url) as client:
        topic = await client.create_topic("t", queues=4)
        async with Producer(client, "t") as producer:
            for queue in range(4):
                await (await producer.send_many(["x"] * 5, queue=queue))
        first, last = topic.routes[0], topic.routes[-1]
        document = {"topic": "t", "shards": [last.shard], "max": 3}
        await asyncio.to_thread(Api(str(last.leader)).call, "POST", "/v1/groups/g/pop", document, status=200)
        for queue in (first.first, last.first):
            with pytest.raises(GroupModeMismatch):
                await client.commit_offsets("g", "t", {queue: 5})
        with pytest.raises(GroupModeMismatch):
            await Group(client, "g").reset("t", "latest", queues=[first.first])
        await client.commit_offsets("other", "t", {first.first: 5, last.first: 5})
        assert await client.committed_offsets("other", "t") == {first.first: 5, last.first: 5}
