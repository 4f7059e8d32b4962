"""A stream to a subscriber who is to have all queues of a topic, some of which other nodes lead.

The node holds streams to all leaders, as a client would, and passes on what comes. Leaders keep the offsets; here is
nothing but what is on its way.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from lsmq.background_tasks import BackgroundTasks, as_lsmq_error
from lsmq.client import Client
from lsmq.errors import LsmqError, TopicReplaced, Unavailable
from lsmq.group_values import Ranges
from lsmq.messages import encode_header
from lsmq.push_streams import PushLink, PushStreams
from lsmq_node.broker import ByteBudget
from lsmq_node.groups import Mode
from lsmq_node.storage import StoredTopic

from .held import FRAME_BYTES, FRAME_MESSAGES, HeldStream, Sink, StreamCounts
from .merge import Arrival, StreamMerge
from .options import StreamOptions

_MESSAGE_OVERHEAD_BYTES = 300  # in memory, besides what is stored


class Relay(HeldStream):
    """Loop thread only."""

    def __init__(
        self,
        client: Client,
        budget: ByteBudget,
        group: str,
        topic: StoredTopic,
        sink: Sink,
        options: StreamOptions,
        counts: StreamCounts,
        owns_client: bool = False,
    ) -> None:
        super().__init__(group, topic, sink, options, counts)
        self._client = client
        self._owns_client = owns_client
        self._hold = budget.hold()
        self._merge: StreamMerge[PushLink] = StreamMerge(options.credit, options.credit_bytes)
        self.ledger = self._merge.ledger
        self._streams: PushStreams | None = None
        self._background = BackgroundTasks(self._broke)

    # What the subscriber says

    def acknowledge(self, pairs: Sequence[tuple[int, int]]) -> None:
        super().acknowledge(pairs)
        self._grant()

    def _acknowledged(self, queue: int, offset: int) -> bool:
        found = self._merge.acknowledge(queue, offset)
        if found is not None:
            link, reached = found
            link.acknowledge(queue, reached)
        return found is not None

    def set_credit(self, credit: int, credit_bytes: int) -> None:
        self._merge.set_credit(credit, credit_bytes)
        self._grant()
        self._news.set()

    def _grant(self) -> None:
        """Tell leaders how much they may have sent, where that is another than they know."""
        for link in self._merge.sources:
            granted = self._merge.grant(link)
            if granted is not None:
                link.set_credit(*granted)

    # What other nodes say

    def messages(self, link: PushLink, fields: Sequence[Mapping[str, Any]]) -> None:
        self._merge.begin(link)
        self._merge.arrived(
            link,
            (
                Arrival(
                    message.get("number", message["queue"]),
                    message["offset"],
                    _stored_bytes(message),
                    message,
                )
                for message in fields
            ),
        )
        try:
            self._count_held()
        except LsmqError as error:
            self.end(error)
        self._news.set()

    def _count_held(self) -> None:
        """Raises ``Unavailable`` where streams hold too much."""
        self._hold.resize(self._merge.held_bytes + _MESSAGE_OVERHEAD_BYTES * self._merge.held_count)

    def lost(self, ranges: Ranges, *, reset: bool) -> None:
        for part in ranges:
            self._merge.forget(part.start, part.stop)
        if reset:
            self.end(Unavailable("offsets of the group were set by somebody; come again", reset=True))
        elif self.options.mode is Mode.BROADCAST and self.options.subscriber is None:
            self.end(Unavailable("the leader of some queues has changed, and no offsets are kept; come again"))
        self.gained()

    def gained(self) -> None:
        assert self._streams is not None
        links = dict.fromkeys(self._streams.links.values())
        for link in self._merge.sources:
            if link not in links:
                self._merge.end(link)
        for link in links:
            self._merge.begin(link)
        self._count_held()  # Less than before: it is granted.
        self._grant()
        self._queues_changed = True
        self._news.set()

    def late(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._late.update(pairs)
        self._news.set()

    # Passing on

    async def run(self) -> None:
        """Pass on until the subscriber is gone. Raises why the stream ends otherwise."""
        known = await self._client.topic(self.topic.name)
        if known.id < self.topic.id:
            raise Unavailable(f"the node that was asked does not know topic {known.name!r} yet as it is; come again")
        if known.id > self.topic.id:
            raise TopicReplaced(
                f"topic {known.name!r} was deleted and made anew",
                topic=known.name,
                expected_id=self.topic.id,
                id=known.id,
            )
        options = self.options
        credit, credit_bytes = self._merge.first_grant
        params = {
            "mode": "broadcast" if options.mode is Mode.BROADCAST else "clustered",
            "start": options.start.value,
            "credit": str(credit),
            "credit_bytes": str(credit_bytes),
            "ack_timeout_ms": "0",  # Here time is kept for all of them together.
            **({} if options.filter is None else options.filter.to_query()),
        }
        subscriber = options.subscriber or (self.id if options.mode is Mode.PUSH else None)
        if subscriber is not None:
            params["subscriber"] = subscriber
        self._streams = PushStreams(self._client, known, self.group, params, self, self._client.deadline_ms)
        self._background.begin(self._streams.run(), f"push relay {self.id}", lasting=True)
        await super().run()

    async def _tell_queues(self) -> None:
        assert self._streams is not None
        await self._tell("queues", [[part.start, part.stop] for part in self._streams.queues])

    async def _send_on(self) -> None:
        if not await self._pass_on():
            self._counts.stalls += self._merge.held_bytes > 0 and self.ledger.credit > 0
            await self._news.wait()

    def _broke(self, error: Exception) -> None:
        self.end(as_lsmq_error(error, f"the relay of topic {self.topic.name!r}"))

    async def _pass_on(self) -> bool:
        """Send one frame of what is held; whether there was something, and room for it."""
        was_idle = not self.ledger.open_count
        taken = self._merge.take(FRAME_MESSAGES, FRAME_BYTES)
        if not taken:
            return False
        if was_idle:
            self.note_progress()
        await self._tell("messages", [_shown(message.fields, binary=self.sink.binary) for message in taken])
        self._count_held()
        self._note_sent([(message.queue, message.offset, message.size) for message in taken])
        self._grant()
        return True

    async def close(self) -> None:
        self.hears = False
        try:
            if self._streams is not None and not await self._streams.close():
                raise Unavailable("what was acknowledged last is not known to be committed: it may come again")
        finally:
            self._hold.resize(0)
            await self._background.end()
            if self._owns_client:
                await self._client.close()


def _stored_bytes(message: Mapping[str, Any]) -> int:
    """Of header and body: credit is counted so, here as where its queue is led."""
    if "header_b64" in message:
        return len(base64.b64decode(message["header_b64"])) + len(message["body"])
    headers = tuple((each["name"], each["value"]) for each in message.get("headers", ()))
    header = encode_header(message["key"], message["tag"], message["properties"], headers, message.get("type"))
    return len(header) + len(message["body"])


def _shown(message: Mapping[str, Any], *, binary: bool) -> Mapping[str, Any]:
    if binary:
        return message
    fields = {name: value for name, value in message.items() if name != "body"}
    try:
        return {**fields, "body": message["body"].decode()}
    except UnicodeDecodeError:
        return {**fields, "body_b64": base64.b64encode(message["body"]).decode()}
