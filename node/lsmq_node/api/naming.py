"""Messages of queues with names, as clients know them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lsmq_node.storage import StoredTopic

from .routing import Call


async def by_name(call: Call, topic: StoredTopic, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages with the names of their queues, without those of queues that were deleted meanwhile."""
    names = await call.broker.names.names_of(topic, [message["queue"] for message in messages])
    return [
        {**message, "queue": named.name}
        for message in messages
        if (named := names.get(message["queue"])) is not None and message["offset"] >= named.earliest
    ]
