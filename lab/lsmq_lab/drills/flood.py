"""A consumer that takes nothing, and what that costs the nodes: messages wait on their disks, not in their memory."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from lsmq import Client, Consumer, Producer

MIB = 1 << 20

_QUEUES = 6
_BODY_BYTES = 8_000
_WARM_UP_BYTES = 48 * MIB  # Until allocators have what they keep for buffers.
_FLOOD_BYTES = 64 * MIB
_ALLOWED = 0.75
_IN_FLIGHT = 1_000


@dataclass(frozen=True, slots=True)
class Grown:
    """What was written while nobody took it, and by how much the largest node grew in memory."""

    written_bytes: int
    grown_bytes: int

    @property
    def is_bounded(self) -> bool:
        return self.grown_bytes < _ALLOWED * self.written_bytes

    def __str__(self) -> str:
        return (
            f"{self.written_bytes / MIB:.0f} MiB for a member that took none of it: a node's memory grew by "
            f"{self.grown_bytes / MIB:.1f} MiB at most"
        )


async def nobody_takes(urls: Sequence[str], round: int) -> Grown:
    """Write to a topic whose only member polls once and then never again."""
    topic = f"flood-{round}-{uuid.uuid4().hex[:8]}"
    async with Client(list(urls), deadline_ms=120_000) as client:
        await client.create_topic(topic, queues=_QUEUES)
        async with Consumer(client, topic, group=topic) as consumer:
            await _write(client, topic, _WARM_UP_BYTES)
            await consumer.poll(1)
            before = await asyncio.gather(*(_resident_bytes(url) for url in urls))
            await _write(client, topic, _FLOOD_BYTES)
            after = await asyncio.gather(*(_resident_bytes(url) for url in urls))
        await client.delete_topic(topic)
    return Grown(_FLOOD_BYTES, max(later - earlier for earlier, later in zip(before, after, strict=True)))


async def _write(client: Client, topic: str, size_bytes: int) -> None:
    body = os.urandom(_BODY_BYTES)
    async with Producer(client, topic) as producer:
        for number in range(size_bytes // _BODY_BYTES):
            receipt = await producer.send(body, queue=number % _QUEUES)
            if number % _IN_FLIGHT == 0:
                await receipt
        await producer.flush()


async def _resident_bytes(url: str) -> int:
    """The memory of a node's process, as its metrics say."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return int(float(next(line for line in lines if line.startswith("process_resident_memory_bytes")).split()[1]))
