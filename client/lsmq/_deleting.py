"""Deleting messages, at the leaders of their queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lsmq._keeper import topic_path
from lsmq._values import little_endian

if TYPE_CHECKING:
    from lsmq.client import Client
    from lsmq.topics import Topic

_PLACES_A_REQUEST = 500

Place = tuple[int, int]
"""A queue and an offset."""


async def delete_at(client: Client, topic: Topic, shard: int, places: Sequence[Place], *, before: bool) -> None:
    """Delete what lies at these places of one shard, or ``before`` each. Durable on return."""
    for start in range(0, len(places), _PLACES_A_REQUEST):
        part = places[start : start + _PLACES_A_REQUEST]
        await client._router.ask_leader(
            topic,
            shard,
            "POST",
            f"{topic_path(topic.name)}/delete",
            value={
                "queues": little_endian("I", [queue for queue, _ in part]),
                "offsets": little_endian("q", [offset for _, offset in part]),
                "before": before,
            },
            deadline=client._deadline(),
        )
