"""The blocking consumer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import repeat
from typing import TYPE_CHECKING, Any

from lsmq import consumer as asynchronous
from lsmq._arguments import check_poll
from lsmq._handler_lanes import Order
from lsmq._member_state import ByTopic
from lsmq._membership import AssignmentCallback
from lsmq._queue_ranges import contains
from lsmq.group_values import Ranges
from lsmq.record_batch import Message
from lsmq.sync._client import Client
from lsmq.sync._crossing import blocking, blocking_call, in_a_thread, with_options_of
from lsmq.sync._lifecycle import BlockingIterable, HandlerThreads

if TYPE_CHECKING:
    from lsmq.message_columns import MessageBatch

_READ_AHEAD_MESSAGES = 1_000


class ReadAhead:
    """What a consumer has read and not handed out, which is told of when queues are given up and offsets committed.

    In the event loop's thread, but for taking. It knows nothing of the blocking consumer, which can be dropped.
    """

    def __init__(self, consumer: asynchronous.Consumer) -> None:
        self.messages: deque[Message] = deque()
        self._reader = consumer._reader
        consumer._withdraw, consumer._kept_back = self.drop, self.offsets

    def forget(self, topic: str, is_one: Callable[[int], bool]) -> dict[int, int]:
        """Nothing of these queues is handed out any more; the first offset of each that was to be."""
        first: dict[int, int] = {}
        kept: list[Message] = []
        with suppress(IndexError):
            while True:
                message = self.messages.pop()  # From its end: whoever takes meanwhile goes on with what comes next.
                if message.topic == topic and is_one(message.queue):
                    first[message.queue] = message.offset
                else:
                    kept.append(message)
        self.messages.extend(reversed(kept))
        return first

    def drop(self, topic: str, ranges: Ranges) -> None:
        """These queues are given up: what was read ahead of them was never handed out."""
        loop = self._reader.loops.get(topic)
        if loop is not None:
            share = loop.share
            first = self.forget(topic, lambda queue: contains(ranges, share(queue)))
            loop.hand_back({queue: offset for queue, offset in first.items() if queue in loop.positions})

    def offsets(self) -> dict[str, dict[int, int]]:
        """By topic, the first offset of each queue that was read ahead and not handed out."""
        first: dict[str, dict[int, int]] = {}
        for message in self.messages.copy():
            first.setdefault(message.topic, {}).setdefault(message.queue, message.offset)
        return first

    def drop_all(self) -> None:
        """Let it be fetched again."""
        for topic, loop in self._reader.loops.items():
            self.drop(topic, loop.positions.ranges)


class Consumer(BlockingIterable[Message]):
    """Blocking :class:`lsmq.Consumer`: the same options and guarantees.

    It reads ahead of the application; what counts as handed out is what left *this* object. Handlers and callbacks
    run in threads, and may use the consumer.
    """

    _async: asynchronous.Consumer

    @with_options_of(asynchronous.Consumer)
    def __init__(
        self,
        client: Client,
        topic: str | Sequence[str],
        *,
        on_assigned: AssignmentCallback | None = None,
        on_revoked: AssignmentCallback | None = None,
        **options: Any,
    ) -> None:
        self._thread = client._thread
        self._handlers = HandlerThreads()
        options |= {"on_assigned": in_a_thread(on_assigned), "on_revoked": in_a_thread(on_revoked)}

        async def make() -> asynchronous.Consumer:
            made = asynchronous.Consumer(client._async, topic, **options)
            made._told = True
            self._async, self._ahead = made, ReadAhead(made)
            await made.__aenter__()
            return made

        self._async = self._thread.take(make, asynchronous.Consumer.close)

    def close(self, *, leave: bool | None = None) -> None:
        """See :meth:`lsmq.Consumer.close`."""
        if self._handlers.are_here:
            self._async._leave = leave
            self._thread.call(self._async._close_from_inside())
            return
        self._ahead.messages.clear()
        try:
            self._thread.call_through(self._async.close(leave=leave))
        finally:
            self._ahead.messages.clear()  # The event loop may just have been looking through it.

    def _next(self) -> Message:
        return self.poll(1)[0]

    def poll(self, max_messages: int = 1000, timeout_ms: float | None = None) -> list[Message]:
        """See :meth:`lsmq.Consumer.poll`."""
        check_poll(max_messages, timeout_ms)
        self._thread.check_process()  # What was read ahead is its parent's to handle.
        self._async._read_in_progress.put_down()
        taken = self._take(max_messages)
        if not taken:
            messages = self._thread.call(self._read_ahead(max(max_messages, _READ_AHEAD_MESSAGES), timeout_ms))
            if messages:
                taken = self._take(max_messages)
                # Empty when they were another member's before they got here.
                return taken or (self.poll(max_messages) if timeout_ms is None else [])
        return taken

    def poll_batch(
        self, max_messages: int = asynchronous.MAX_POLL_BATCH, timeout_ms: float | None = None
    ) -> MessageBatch | None:
        """See :meth:`lsmq.Consumer.poll_batch`. What :meth:`poll` has read ahead is fetched again."""
        if self._ahead.messages:
            self._thread.do(self._ahead.drop_all)
        return self._thread.take(lambda: self._async.poll_batch(max_messages, timeout_ms), self._put_back)

    def _put_back(self, batch: MessageBatch | None) -> None:
        """It was handed out, and got nowhere."""
        loop = None if batch is None else self._async._reader.loops.get(batch.topic)
        if batch is not None and loop is not None:
            first: dict[int, int] = {}
            for queue, offset in zip(batch.queues.tolist(), batch.offsets.tolist(), strict=True):
                first.setdefault(queue, offset)
            loop.hand_back({queue: offset for queue, offset in first.items() if queue in loop.positions})
        self._async._read_on()

    async def _read_ahead(self, max_messages: int, timeout_ms: float | None) -> bool:
        if not self._ahead.messages:  # Else it was just being looked through.
            self._ahead.messages.extend(await self._async.poll(max_messages, timeout_ms))
        return bool(self._ahead.messages)

    def _take(self, max_messages: int) -> list[Message]:
        """No lock is held meanwhile: the handler of a signal may come in between, and wait for the event loop."""
        taken: list[Message] = []
        try:
            if self._ahead.messages:
                self._async._read_in_progress.take()  # Before taking: who gives up queues looks here, and then at this.
                with suppress(IndexError):  # In one call, in which no interrupt can come.
                    taken.extend(map(deque.popleft, repeat(self._ahead.messages, max_messages)))
                if not taken:
                    self._async._read_in_progress.put_down()
            return taken
        except BaseException:
            self._ahead.messages.extendleft(reversed(taken))
            self._async._read_in_progress.put_down()
            raise

    def run(self, handler: Callable[[Message], object], *, concurrency: int = 1, order: Order = "queue") -> None:
        """See :meth:`lsmq.Consumer.run`. The handler runs in threads, ``concurrency`` of them.

        A thread cannot be cancelled: one whose queue is gone runs on, and only then the next message of its queue, or
        its key, is handled here.
        """
        self._thread.do(self._ahead.drop_all)
        with self._handlers.open(handler, concurrency) as handle:
            self._thread.call_to_its_end(self._async._run(handle, concurrency, order, cancel=False))

    @property
    def positions(self) -> Mapping[int, int]:
        """The next offset to hand out of each queue, as of now. Of the consumer's only topic."""
        return self.positions_of(self._async._only_topic(None))

    def positions_of(self, topic: str) -> Mapping[int, int]:
        """:attr:`positions` of one of several topics."""
        return self._thread.do(lambda: {**self._async.positions_of(topic), **self._ahead.offsets().get(topic, {})})

    @property
    def assignment(self) -> ByTopic:
        """See :attr:`lsmq.Consumer.assignment`."""
        return self._thread.do(lambda: self._async.assignment)

    @property
    def member_id(self) -> str | None:
        """See :attr:`lsmq.Consumer.member_id`."""
        return self._async.member_id

    @property
    def waiting_for(self) -> int:
        """See :attr:`lsmq.Consumer.waiting_for`."""
        return self._async.waiting_for

    commit = blocking(asynchronous.Consumer.commit)
    resume = blocking_call(asynchronous.Consumer.resume)

    def seek(self, queue: int, offset: int, *, topic: str | None = None) -> None:
        """See :meth:`lsmq.Consumer.seek`."""

        def seek() -> None:
            self._async.seek(queue, offset, topic=topic)
            self._ahead.forget(self._async._only_topic(topic), lambda other: other == queue)

        self._thread.do(seek)

    def seek_to_time(
        self, moment: datetime | int, queues: Iterable[int] | None = None, *, topic: str | None = None
    ) -> None:
        """See :meth:`lsmq.Consumer.seek_to_time`."""

        async def seek() -> None:
            name = self._async._only_topic(topic)
            chosen = list(self._async.positions_of(name) if queues is None else queues)
            await self._async.seek_to_time(moment, None if queues is None else chosen, topic=topic)
            self._ahead.forget(name, set(chosen).__contains__)

        self._thread.call(seek())

    def pause(self, queues: Iterable[int] | None = None, *, topic: str | None = None) -> None:
        """See :meth:`lsmq.Consumer.pause`."""

        def pause() -> None:
            chosen = self._async._chosen(queues, topic)
            self._async._pause(chosen)
            for name, ranges in chosen.items():
                self._ahead.drop(name, ranges)

        self._thread.do(pause)

    @property
    def paused(self) -> ByTopic:
        """See :attr:`lsmq.Consumer.paused`."""
        return self._thread.do(lambda: self._async.paused)
