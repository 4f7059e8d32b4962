"""Committing after going back, and after a commit that failed."""

from __future__ import annotations

from typing import Any

import pytest

from lsmq import Client, Consumer, Producer, Unavailable
from support.group_topic import take
from support.node_process import NodeProcess


async def test_a_commit_that_failed_after_a_seek_back_goes_back_when_it_is_tried_again(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=2)
        async with Producer(client, topic_name) as producer:
            for number in range(20):
                await producer.send(f"{number}", queue=number % 2)
        commit, resets, fails = client._commit_offsets, list[tuple[int, bool]](), False

        async def committing(group: str, topic: Any, offsets: Any, *, reset: bool, **more: Any) -> None:
            if fails:
                raise Unavailable("not now")
            resets.extend((queue, reset) for queue in sorted(offsets))
            await commit(group, topic, offsets, reset=reset, **more)

        client._commit_offsets = committing  # type: ignore[method-assign]
        async with Consumer(client, topic_name, group=topic_name) as consumer:
            await take(consumer, 20)
            await consumer.commit()
            assert resets == [(0, False), (1, False)]
            consumer.seek(0, 5)
            fails = True
            with pytest.raises(Unavailable):
                await consumer.commit()
            fails = False
            await consumer.commit()
            assert resets[2:] == [(0, True)]
            assert await client.committed_offsets(topic_name, topic_name) == {0: 5, 1: 10}
            await take(consumer, 5)
            await consumer.commit()
            assert resets[3:] == [(0, False)], "it goes forward, as everybody may"
            assert await client.committed_offsets(topic_name, topic_name) == {0: 10, 1: 10}
            await consumer.commit()
            assert len(resets) == 4, "nothing has moved"
