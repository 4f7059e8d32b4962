"""A stream to a subscriber who is to have all queues of a topic, some of which other nodes lead.

The node holds streams to all leaders, as a client would, and passes on what comes. Leaders keep the offsets; here is
nothing but what is on its way.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from lsmq._background import Background, as_lsmq_error
from lsmq._push_link import PushLink
from lsmq._push_streams import PushStreams
from lsmq.client import Client
from lsmq.errors import LsmqError
from lsmq.group_values import Ranges
from lsmq_node.broker import ByteBudget
from lsmq_node.groups import Mode
from lsmq_node.storage import Topic

from .ledger import Ledger
from .options import Acknowledge, StreamOptions
from .stream import Counts, Sink, send_in_time

#: Bytes that each leader may have on its way here, however much the subscriber takes.
MAX_CREDIT_BYTES = 256 * 1024
_MESSAGE_OVERHEAD_BYTES = 300  # of what is no body, in memory


class Relay:
    """Loop thread only. What the API asks of it is what it asks of a :class:`.stream.Stream`."""

    def __init__(
        self,
        client: Client,
        budget: ByteBudget,
        group: str,
        topic: Topic,
        nodes: int,
        sink: Sink,
        options: StreamOptions,
        counts: Counts,
    ) -> None:
        """``nodes`` lead queues of the topic; each is given its part of the credit."""
        self.id = secrets.token_hex(16)
        self.group = group
        self.topic = topic
        self.options = options
        self.sink = sink
        self.ledger = Ledger(options.credit, options.credit_bytes)
        self.ended: LsmqError | None = None
        self.over = asyncio.Event()
        self._client = client
        self._nodes = nodes
        self._counts = counts
        self._hold = budget.hold()
        self._frames: deque[tuple[Sequence[Mapping[str, Any]], int]] = deque()
        self._senders: dict[int, PushLink] = {}  # by queue
        self._news = asyncio.Event()
        self._queues_changed = False
        self._left = False
        self._streams: PushStreams | None = None
        self._background = Background(self._broke)

    # What the subscriber and the service say

    def end(self, error: LsmqError) -> None:
        self.ended = self.ended or error
        self.over.set()
        self._news.set()

    def leave(self) -> None:
        self._left = True
        self.over.set()
        self._news.set()

    def acknowledge(self, pairs: Sequence[tuple[int, int]]) -> None:
        for queue, offset in pairs:
            before = self.ledger.open_count
            link, next_offset = self._senders.get(queue), self.ledger.acknowledge(queue, offset)
            if link is not None and next_offset is not None:
                link.acknowledge(queue, next_offset - 1)
                self._counts.acknowledged += before - self.ledger.open_count

    def set_credit(self, credit: int, credit_bytes: int) -> None:
        self.ledger.set_credit(credit, credit_bytes)
        count, size = self._share()
        if self._streams is not None:
            for link in self._streams.links.values():
                link.set_credit(count, size)

    def _share(self) -> tuple[int, int]:
        ledger, nodes = self.ledger, max(1, self._nodes)
        least = min(1, ledger.credit)
        return max(least, ledger.credit // nodes), max(1, min(ledger.credit_bytes // nodes, MAX_CREDIT_BYTES))

    # What other nodes say

    def messages(self, link: PushLink, fields: Sequence[Mapping[str, Any]]) -> None:
        sizes = [len(message["body"]) + _MESSAGE_OVERHEAD_BYTES for message in fields]
        try:
            self._hold.resize(self._hold.held_bytes + sum(sizes))
        except LsmqError as error:
            self.end(error)
            return
        for message in fields:
            self._senders[message["queue"]] = link
        self.ledger.sent(
            (message["queue"], message["offset"], size) for message, size in zip(fields, sizes, strict=True)
        )
        self._frames.append((fields, sum(sizes)))
        self._news.set()

    def lost(self, ranges: Ranges, *, reset: bool) -> None:
        for part in ranges:
            self.ledger.forget(part.start, part.stop)
        for queue in [queue for queue in self._senders if any(queue in part for part in ranges)]:
            del self._senders[queue]
        self.gained()

    def gained(self) -> None:
        self._queues_changed = True
        self._news.set()

    # Passing on

    async def run(self) -> None:
        """Pass on until the subscriber is gone. Raises why the stream ends otherwise."""
        known = await self._client._router.topic(self.topic.name, self._client._deadline())
        count, size = self._share()
        options = self.options
        params = {
            "mode": "broadcast" if options.mode is Mode.BROADCAST else "clustered",
            "start": options.start.value,
            "credit": str(max(1, count)),
            "credit_bytes": str(size),
            "ack_timeout_ms": str(options.ack_timeout_ms),
        }
        subscriber = options.subscriber or (self.id if options.mode is Mode.PUSH else None)
        if subscriber is not None:
            params["subscriber"] = subscriber
        self._streams = PushStreams(self._client, known, self.group, params, self, self._client.deadline_ms)
        self._background.begin(self._streams.run(), f"push relay {self.id}", lasting=True)
        while not self._left:
            if self.ended is not None:
                raise self.ended
            self._news.clear()
            if self._queues_changed:
                self._queues_changed = False
                queues = [[part.start, part.stop] for part in self._streams.queues]
                await send_in_time(self.sink, self.sink.note("queues", queues), self._counts)
            elif self._frames:
                await self._pass_on(*self._frames.popleft())
            else:
                await self._news.wait()

    def _broke(self, error: Exception) -> None:
        self.end(as_lsmq_error(error, f"the relay of topic {self.topic.name!r}"))

    async def _pass_on(self, messages: Sequence[Mapping[str, Any]], size: int) -> None:
        frame = self.sink.note("messages", [_shown(message, binary=self.sink.binary) for message in messages])
        await send_in_time(self.sink, frame, self._counts)
        self._hold.resize(self._hold.held_bytes - size)
        self._counts.messages += len(messages)
        self._counts.bytes += size
        if self.options.acknowledge is Acknowledge.SENT:
            self.acknowledge([(message["queue"], message["offset"]) for message in messages])

    async def close(self) -> None:
        """Returns when leaders have committed what was acknowledged, or that takes too long."""
        try:
            if self._streams is not None:
                await self._streams.close()
        finally:
            self._frames.clear()
            self._hold.resize(0)
            await self._background.end()


def _shown(message: Mapping[str, Any], *, binary: bool) -> Mapping[str, Any]:
    if binary:
        return message
    fields = {name: value for name, value in message.items() if name != "body"}
    try:
        return {**fields, "body": message["body"].decode()}
    except UnicodeDecodeError:
        return {**fields, "body_b64": base64.b64encode(message["body"]).decode()}
