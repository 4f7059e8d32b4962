"""Requests to single shards and nodes, for those who pack and unpack record batches themselves.

:class:`lsmq.Producer` and :class:`lsmq.Consumer` do that, and keep order and positions; here is what lies below. A
shard's leader is found, failovers are waited for, and what may pass is tried again until a deadline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from lsmq._paths import topic_path
from lsmq._retries import Deadline
from lsmq._transport import BATCH, BATCHES, NAMED_BATCH
from lsmq.client import Client
from lsmq.errors import UnexpectedAnswer
from lsmq.topics import Offsets, Topic

__all__ = ["ShardRequests"]


class ShardRequests:
    """Of one client, with its deadline and timeout. Each raises ``TopicReplaced`` when the topic was made anew."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._router = client._router
        self._timeout_s = client.request_timeout_ms / 1000

    async def offsets(
        self, topic: Topic, queues: Sequence[int] | None = None, at_time: datetime | int | None = None
    ) -> Offsets:
        """As :meth:`lsmq.Client.offsets`, of ``queues`` in ascending order."""
        return await self._client._offsets(topic, queues, at_time)

    async def fetch(self, topic: Topic, shard: int, value: Mapping[str, Any], read_from: str | None = None) -> bytes:
        """Record batches, one after another, from the shard's leader: ``docs/http.md`` says what ``value`` has.

        Raises ``ReadElsewhere`` where ``read_from`` lets the leader name a follower.
        """
        answer = await self._router.ask_leader(
            topic,
            shard,
            "POST",
            f"{topic_path(topic.name)}/fetch",
            params=_from(read_from),
            value=value,
            accept=BATCHES,
            deadline=Deadline(self._client.deadline_ms),
        )
        return answer.body

    async def fetch_at(self, url: str, topic: Topic, value: Mapping[str, Any], read_from: str | None = None) -> bytes:
        """The same, asked once of this node, whatever it is to the shard."""
        answer = await self._client._transport.request(
            "POST",
            f"{url}{topic_path(topic.name)}/fetch",
            params=_from(read_from),
            value=value,
            accept=BATCHES,
            topic=topic,
            timeout_s=self._timeout_s,
        )
        return answer.body

    async def note_moment(self, topic: Topic, shard: int) -> dict[str, int]:
        """``time_ms`` and ``messages`` of a moment of a shard, of a topic whose queues have names: ``docs/http.md``."""
        return await self._ask(topic, shard, "moments", {"shard": shard})

    async def arrivals(self, topic: Topic, shard: int, value: Mapping[str, Any]) -> dict[str, Any]:
        """What came to its queues between two places: ``docs/http.md`` says what ``value`` and the answer have."""
        return await self._ask(topic, shard, "arrivals", {**value, "shard": shard})

    async def _ask(self, topic: Topic, shard: int, what: str, value: Mapping[str, Any]) -> dict[str, Any]:
        answer = await self._router.ask_leader(
            topic,
            shard,
            "POST",
            f"{topic_path(topic.name)}/{what}",
            value=value,
            deadline=Deadline(self._client.deadline_ms),
        )
        return answer.parsed(dict)

    async def store(
        self, topic: Topic, shard: int, batch: bytes, ack: str | None = None, flush: str | None = None
    ) -> bool:
        """Send a packed record batch, the same bytes until they are stored; whether they had been stored before.

        To a topic whose queues have names the batch has them before it: see ``docs/formats/record-batch.md``.
        """
        answer = await self._router.ask_leader(
            topic,
            shard,
            "POST",
            f"{topic_path(topic.name)}/batches",
            params={name: value for name, value in (("ack", ack), ("flush", flush)) if value},
            body=batch,
            content_type=NAMED_BATCH if topic.named else BATCH,
            accept=BATCH,
            deadline=Deadline(self._client.deadline_ms),
        )
        if answer.content_type != BATCH:
            raise UnexpectedAnswer(f"{answer.url} answered a batch with {answer.content_type}: {answer.body[:80]!r}")
        return "Lsmq-Duplicate" in answer.headers

    async def take_producer(self, topic: Topic, shard: int, producer_id: int, epoch: int) -> None:
        """Begin an epoch of an idempotent producer at a shard, durably; nothing happens where it has begun.

        Raises ``ProducerFenced`` where a later one has, which its ``latest`` is.
        """
        await self._ask(topic, shard, f"producers/{producer_id}/take", {"shard": shard, "epoch": epoch})

    async def ask_node(self, url: str, path: str) -> Any:
        """``GET`` of this node, asked once; the answer's value."""
        return (await self._client._transport.request("GET", url + path, timeout_s=self._timeout_s)).value()


def _from(read_from: str | None) -> dict[str, str] | None:
    return None if read_from is None else {"from": read_from}
