"""What was pushed and is not acknowledged: handed out in the order it came, and again where it must be."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lsmq._queue_ranges import NONE, contains, union
from lsmq._wire_values import message_from_dict
from lsmq.errors import ClientClosed, LsmqError
from lsmq.group_values import Ranges
from lsmq.push_streams import PushLink
from lsmq.record_batch import Message

_TURN = 64  # messages of a queue before another queue gets its turn


class _Queue:
    """Messages of one queue, in order; ``handed`` of them are handed out. ``link``: who sent them.

    ``anew``: the group's offsets were set before they came, so that what was handed out earlier says nothing of them.
    """

    __slots__ = ("anew", "handed", "link", "messages", "waits")

    def __init__(self, link: PushLink, *, anew: bool) -> None:
        self.link = link
        self.anew = anew
        self.messages: list[Message] = []
        self.handed = 0
        self.waits = False  # in line to be handed out

    @property
    def position(self) -> int:
        """The next offset to hand out, as far as is known."""
        if self.handed < len(self.messages):
            return self.messages[self.handed].offset
        return self.messages[-1].offset + 1 if self.messages else 0


class PushBuffer:
    """Its size is bounded by the credit that nodes were given. Belongs to one event loop.

    It is the ``MessageSource`` of a ``HandlerRun``: of one topic, with itself as buffer and as queues.
    """

    def __init__(self, topic: str, on_lost: Callable[[Ranges, bool], None]) -> None:
        self.broken: LsmqError | None = None
        self.closed = False
        self._topic = topic
        self._on_lost = on_lost
        self._queues: dict[int, _Queue] = {}
        self._line: deque[int] = deque()
        self._paused: set[int] = set()
        self._reset: Ranges = NONE  # what was, at any time
        self._news = asyncio.Event()

    # As its streams tell it

    def messages(self, link: PushLink, fields: Sequence[Mapping[str, Any]]) -> None:
        for one in fields:
            message = message_from_dict({**one, "topic": self._topic})
            held = self._queues.get(message.queue)
            if held is None or held.link is not link:
                held = self._queues[message.queue] = _Queue(link, anew=contains(self._reset, message.queue))
            held.messages.append(message)
            self._line_up(message.queue, held)
        self._news.set()

    def lost(self, ranges: Ranges, *, reset: bool) -> None:
        for queue in [queue for queue in self._queues if contains(ranges, queue)]:
            del self._queues[queue]
        if reset:
            self._reset = union(self._reset, ranges)
        self._on_lost(ranges, reset)

    def gained(self) -> None:
        self._news.set()

    def late(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Nothing is to be done: what is lost was dropped when that was heard."""

    def fail(self, error: LsmqError) -> None:
        """Every read raises this from now on."""
        self.broken = error
        self._news.set()

    def _line_up(self, queue: int, held: _Queue) -> None:
        if not held.waits and held.handed < len(held.messages) and queue not in self._paused:
            held.waits = True
            self._line.append(queue)

    # Handing out

    def take(self, max_messages: int) -> list[Message]:
        """Up to so many, handed out as of now."""
        taken: list[Message] = []
        while self._line and len(taken) < max_messages:
            queue = self._line.popleft()
            held = self._queues.get(queue)
            if held is None or not held.waits:
                continue
            held.waits = False
            if queue in self._paused:
                continue
            end = min(len(held.messages), held.handed + min(_TURN, max_messages - len(taken)))
            taken += held.messages[held.handed : end]
            held.handed = end
            self._line_up(queue, held)
        return taken

    async def ready(self) -> None:
        """Wait until messages may be there. Raises the error that ended the streams."""
        if self._line:
            return
        if self.broken is not None:
            raise self.broken
        if self.closed:
            raise ClientClosed("this consumer is closed; make a new one")
        self._news.clear()
        await self._news.wait()

    def wake(self) -> None:
        self._news.set()

    def acknowledge(self, queue: int, offset: int) -> None:
        """The queue's messages up to this offset are handled. What is not here any more is passed over."""
        held = self._queues.get(queue)
        if held is None:
            return
        count, most = 0, held.handed if held.anew else len(held.messages)
        while count < most and held.messages[count].offset <= offset:
            count += 1
        if count:
            held.link.acknowledge(queue, held.messages[count - 1].offset)
            del held.messages[:count]
            held.handed = max(0, held.handed - count)
            if not held.messages:
                del self._queues[queue]

    def handed_out(self) -> Iterator[tuple[int, int, int]]:
        """Queues with messages that are handed out and not acknowledged: the first such offset, and the last."""
        for queue, held in list(self._queues.items()):
            if held.handed:
                yield queue, held.messages[0].offset, held.messages[held.handed - 1].offset

    # As a source of handlers

    @property
    def loops(self) -> Mapping[str, PushBuffer]:
        return {self._topic: self}

    @property
    def buffer(self) -> PushBuffer:
        return self

    @property
    def positions(self) -> Mapping[int, int]:
        return {queue: held.position for queue, held in self._queues.items()}

    def hand_back(self, offsets: Mapping[int, int]) -> None:
        for queue, offset in offsets.items():
            held = self._queues.get(queue)
            if held is not None:
                while held.handed and held.messages[held.handed - 1].offset >= offset:
                    held.handed -= 1
                self._line_up(queue, held)
        self._news.set()

    def share(self, queue: int) -> int:
        return queue

    def hold(self, queue: int) -> None:
        self._paused.add(queue)

    def release(self, queue: int) -> None:
        self._paused.discard(queue)
        held = self._queues.get(queue)
        if held is not None:
            self._line_up(queue, held)
        self._news.set()
