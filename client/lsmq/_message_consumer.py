"""What consumers that ask for messages and those that are sent them have in common: reading, and running a handler."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Sized
from typing import TYPE_CHECKING, Any, TypeVar

from lsmq._arguments import check_poll
from lsmq._handler_lanes import HandlerRun, MessageHandler, MessageSource, Order
from lsmq._lifecycle import Iterated, Starting
from lsmq._retries import Deadline
from lsmq._work_in_progress import WorkInProgress
from lsmq.background_tasks import unless
from lsmq.errors import ClientClosed, InvalidRequest
from lsmq.record_batch import Message

if TYPE_CHECKING:
    from lsmq.client import Client

Taken = TypeVar("Taken", bound=Sized)


class MessageConsumer(Starting, Iterated[Message]):
    """Reads from ``source``. ``look`` is called before messages are handed out or handled."""

    _client: Client

    def __init__(self, source: MessageSource, in_progress: WorkInProgress, look: Callable[[], None]) -> None:
        self._source = source
        self._in_progress = in_progress
        self._look = look
        self._started = self._closed = False
        self._shut = asyncio.Event()  # when it is closed
        self._handling: HandlerRun | None = None
        self._run_ended = asyncio.Event()
        self._run_ended.set()
        self._finishing = asyncio.Lock()  # who closes it a second time waits for the first

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("this consumer is closed; make a new one")

    async def _unless_closed(self, starting: Coroutine[Any, Any, None]) -> None:
        """Start so. Where it is closed meanwhile that is off, nothing of it is left, and ``ClientClosed`` is raised."""
        await unless(self._shut, starting)
        if self._closed:
            await self._finish()  # What whoever closes it found nothing of.
            self._check_open()

    @abstractmethod
    def _name(self) -> str:
        """Of what it is, for people."""

    def _left_open(self) -> str:
        return self._name() if self._started and not self._closed and self._client._transport.is_open else ""

    # Reading

    async def _next(self) -> Message:
        return (await self.poll(1))[0]

    async def poll(self, max_messages: int = 1000, timeout_ms: float | None = None) -> list[Message]:
        """Up to ``max_messages`` that are there; waits for the first one.

        Returns an empty list after ``timeout_ms`` (0: at once; ``None``: never).
        """
        return await self._first(self._take, max_messages, timeout_ms) or []

    async def _first(
        self, take: Callable[[int], Taken | None], max_messages: int, timeout_ms: float | None
    ) -> Taken | None:
        """What ``take`` gives once that is something; None after ``timeout_ms``."""
        check_poll(max_messages, timeout_ms)
        self._read_on()
        if not self._started:
            await self.start()
        deadline = None if timeout_ms is None else Deadline(timeout_ms)
        while True:
            self._check_open()
            self._look()  # Whoever never waits, as with messages that are here, would not hear what he has lost.
            taken = take(max_messages)
            if taken:
                return taken
            try:
                async with asyncio.timeout(None if deadline is None else deadline.remaining_s()):
                    await self._source.ready()
            except TimeoutError:
                return None

    def _read_on(self) -> None:
        """The application has done with what it was handed."""

    def _take(self, max_messages: int) -> list[Message]:
        return self._source.take(max_messages)

    # Handling

    async def run(self, handler: MessageHandler, *, concurrency: int = 1, order: Order = "queue") -> None:
        """Call ``handler(message)`` for every message, until the consumer is closed or the handler raises.

        ``concurrency`` messages are handled at a time. ``order`` says what is never handled at a time, and always in
        order: the messages of a ``"queue"``; those with a ``"key"`` (those without one: of a queue); or ``"none"``. A
        handler that takes long holds up these and no others.

        What was handled a :class:`lsmq.PushConsumer` acknowledges at once; by a :class:`lsmq.Consumer` with a group
        it is committed within moments, when a queue is given up and in the end; of a queue never anything behind a
        message that is not handled. When the handler raises, messages that were not handled are handed out again by a
        later read.
        """
        await self._run(handler, concurrency, order, cancel=True)

    async def _run(self, handler: MessageHandler, concurrency: int, order: Order, *, cancel: bool) -> None:
        """``cancel``: whether handlers can be."""
        if self._handling is not None:
            raise InvalidRequest("this consumer runs a handler already; make another consumer")
        if self._closed:
            return
        if (tracing := self._client._tracing) is not None:
            handler = tracing.handling(handler, lambda message: message)
        handling = HandlerRun(
            self._source,
            self._in_progress,
            handler,
            concurrency=concurrency,
            order=order,
            look=self._look,
            cancel=cancel,
        )
        self._read_on()
        try:
            await self.start()
        except ClientClosed:
            if self._closed:
                return
            raise
        self._handling = handling
        self._run_ended.clear()
        try:
            await self._run_through(handling)
        finally:
            self._handling = None
            self._run_ended.set()
            if handling.closed_inside:
                await self._finish()

    @abstractmethod
    async def _run_through(self, handling: HandlerRun) -> None:
        """Until it is stopped, or fails; meanwhile and in the end it is said what was handled."""

    # Closing

    async def _close_from_inside(self) -> None:
        """A handler closes the consumer: the rest is done when the handlers have returned."""
        assert self._handling is not None
        self._closed = self._handling.closed_inside = True
        self._shut.set()
        self._handling.stop()

    @abstractmethod
    async def _finish(self) -> None: ...
