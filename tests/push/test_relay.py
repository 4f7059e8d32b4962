"""What a node passes on of other nodes, as one that asks another node for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lsmq import Client, Producer, TopicReplaced, Unavailable
from lsmq_node.broker import ByteBudget
from lsmq_node.push.held import StreamCounts
from lsmq_node.push.options import StreamOptions
from lsmq_node.push.relay import Relay
from lsmq_node.storage import StoredTopic
from support.node_process import NodeProcess


class _Nowhere:
    """The connection of a subscriber to whom nothing may be sent."""

    binary = True

    def note(self, kind: str, value: Any) -> bytes:
        raise AssertionError(f"{kind} {value} is sent on")

    def pack(self, *_: Any) -> Any:
        raise AssertionError("messages are sent on")

    async def send(self, frame: bytes) -> None:
        raise AssertionError("it is sent on")


async def test_of_a_topic_that_was_made_anew_meanwhile_nothing_is_passed_on(
    make_node: Callable[..., NodeProcess],
) -> None:
    async with Client(make_node().start().url) as client:
        known = await client.create_topic("t", queues=2)
        former = StoredTopic(known.id, "t", 2)
        await client.delete_topic("t")
        made = await client.create_topic("t", queues=2)
        async with Producer(client, "t") as producer:
            await producer.send_and_wait("of another topic")

        async def passes_on(topic: StoredTopic) -> None:
            relay = Relay(client, ByteBudget(1 << 20), "g", topic, _Nowhere(), StreamOptions(), StreamCounts())
            try:
                await relay.run()
            finally:
                await relay.close()

        with pytest.raises(TopicReplaced) as caught:
            await passes_on(former)
        assert caught.value.details == {"topic": "t", "expected_id": former.id, "id": made.id}
        with pytest.raises(Unavailable, match="come again"):  # The node that was asked has not heard of it.
            await passes_on(replace(former, id=made.id + 1))
