"""What has left its topic for another one."""

from __future__ import annotations

from lsmq import Client, UnknownTopic
from lsmq.dead_letters import DeadLetters


async def letters(client: Client, topic: str) -> set[int]:
    """Numbers of those that are there."""
    try:
        return {int(letter.message.text()) async for letter in DeadLetters(client, topic).read()}
    except UnknownTopic:
        return set()
