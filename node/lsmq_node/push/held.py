"""What all held streams have in common: a subscriber, credit, a connection, and how they end."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lsmq import runtime
from lsmq.errors import LsmqError, SlowConsumer
from lsmq_node.broker import Fetched
from lsmq_node.storage import StoredTopic

from .ledger import CreditLedger
from .options import Acknowledge, StreamOptions

FRAME_BYTES = 64 * 1024
FRAME_MESSAGES = 1_000
SEND_TIMEOUT_S = 30.0

Spans = Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Packed:
    """A frame with messages, and queue, offset and bytes of each of them."""

    frame: bytes
    sent: Sequence[tuple[int, int, int]]


class Sink(Protocol):
    """The connection of a stream. ``binary``: bodies are bytes; else text, or base64."""

    @property
    def binary(self) -> bool: ...

    def pack(self, found: Fetched, topic_id: int, spans: Spans, names: Mapping[int, str] | None) -> Packed:
        """The messages of what was read that lie in the ``spans`` (by queue, half-open). Runs in a thread.

        ``names`` are those of the queues, where they have some.
        """

    def note(self, kind: str, value: Any) -> bytes:
        """A frame that says something else."""

    async def send(self, frame: bytes) -> None:
        """Return when the connection has taken it. Raises ``ConnectionError``."""


@dataclass(slots=True)
class StreamCounts:
    """Of all streams of a node, since it started."""

    opened: int = 0
    messages: int = 0
    bytes: int = 0
    acknowledged: int = 0
    stalls: int = 0
    waits: int = 0
    slow: int = 0


class HeldStream(ABC):
    """One held stream. Loop thread only."""

    ledger: CreditLedger

    def __init__(
        self, group: str, topic: StoredTopic, sink: Sink, options: StreamOptions, counts: StreamCounts
    ) -> None:
        self.id = runtime.token_hex(16)
        self.group = group
        self.topic = topic
        self.options = options
        self.sink = sink
        self.ended: LsmqError | None = None
        self.left = False
        self.hears = True  # acknowledgements; no more once its queues are others'
        self.over = asyncio.Event()  # it ended, or the subscriber is gone
        self.progress_at = 0.0
        self.note_progress()
        self._counts = counts
        self._news = asyncio.Event()
        self._queues_changed = False
        self._late: dict[int, int] = {}  # acknowledgements that count no more, to be told: by queue

    # What others say

    def end(self, error: LsmqError) -> None:
        """It stops, and the subscriber is told why. The first reason counts."""
        self.ended = self.ended or error
        self.over.set()
        self._wake()

    def leave(self) -> None:
        """The subscriber is gone."""
        self.left = True
        self.over.set()
        self._wake()

    def acknowledge(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Queues and offsets: the messages up to there are handled.

        What counts no more, since the queue is not sent here any more, the subscriber is told; what this stream was not
        sent is passed over.
        """
        for queue, offset in pairs:
            before = self.ledger.open_count
            if self._acknowledged(queue, offset):
                self._counts.acknowledged += before - self.ledger.open_count
                self.note_progress()
            elif self.ledger.is_late(queue, offset):
                self._late[queue] = offset
        if self._late:
            self._wake()
        self._news.set()

    @abstractmethod
    def _acknowledged(self, queue: int, offset: int) -> bool:
        """Whether that is news."""

    @abstractmethod
    def set_credit(self, credit: int, credit_bytes: int) -> None:
        """The most that may be sent and not acknowledged."""

    def note_progress(self) -> None:
        """Something was acknowledged, or there was nothing to acknowledge."""
        self.progress_at = asyncio.get_running_loop().time()

    def _wake(self) -> None:
        self._news.set()

    # Sending

    async def run(self) -> None:
        """Send until the subscriber is gone. Raises why the stream ends otherwise, and ``ConnectionError``."""
        while not self.left:
            if self.ended is not None:
                raise self.ended
            self._news.clear()
            if self._queues_changed:
                self._queues_changed = False
                await self._tell_queues()
            elif self._late:
                late, self._late = self._late, {}
                await self._tell("late", list(map(list, late.items())))
            else:
                await self._send_on()

    @abstractmethod
    async def _tell_queues(self) -> None:
        """Its queues are others now."""

    @abstractmethod
    async def _send_on(self) -> None:
        """Send what there is; where there is nothing, or no room for it, wait for news."""

    @abstractmethod
    async def close(self) -> None:
        """Returns when what was acknowledged is committed. Raises ``Unavailable`` where that takes too long."""

    def _note_sent(self, sent: Sequence[tuple[int, int, int]]) -> None:
        """Queue, offset and bytes of messages that the connection has taken."""
        self._counts.messages += len(sent)
        self._counts.bytes += sum(size for _, _, size in sent)
        if self.options.acknowledge is Acknowledge.SENT:
            self.acknowledge([(queue, offset) for queue, offset, _ in sent])

    async def _tell(self, kind: str, value: Any) -> None:
        await self._send(self.sink.note(kind, value))

    async def _send(self, frame: bytes) -> None:
        """Raises ``SlowConsumer`` when the connection does not take the frame."""
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await self.sink.send(frame)
        except TimeoutError:
            self._counts.slow += 1
            raise SlowConsumer(
                f"the connection has taken nothing for {SEND_TIMEOUT_S:g} s; read faster, or ask for less credit"
            ) from None
