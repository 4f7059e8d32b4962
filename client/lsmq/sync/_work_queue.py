"""The blocking work queue."""

from __future__ import annotations

from collections.abc import Callable

from lsmq import work_queue as asynchronous
from lsmq._loop_thread import LoopThread
from lsmq.record_batch import Message
from lsmq.sync._client import Client
from lsmq.sync._lifecycle import HandlerThreads, Iterating
from lsmq.work_queue_values import WorkQueueState


class Task:
    """Blocking :class:`lsmq.Task`. May be used from any thread."""

    __slots__ = ("_async", "_thread")

    def __init__(self, task: asynchronous.Task, thread: LoopThread) -> None:
        self._async = task
        self._thread = thread

    @property
    def message(self) -> Message:
        """What was sent."""
        return self._async.message

    @property
    def deliveries(self) -> int:
        """See :class:`lsmq.Task`."""
        return self._async.deliveries

    @property
    def receipt(self) -> str:
        """Names this delivery."""
        return self._async.receipt

    @property
    def visibility_ms(self) -> int:
        """See :class:`lsmq.Task`."""
        return self._async.visibility_ms

    @property
    def settled(self) -> bool:
        """Whether it was acknowledged or given back here."""
        return self._async.settled

    @property
    def remaining_ms(self) -> float:
        """See :attr:`lsmq.Task.remaining_ms`."""

        async def now() -> float:
            return self._async.remaining_ms

        return self._thread.call(now())

    def text(self) -> str:
        """The body decoded as UTF-8."""
        return self._async.text()

    def ack(self) -> None:
        """See :meth:`lsmq.Task.ack`."""
        self._thread.call(self._async.ack())

    def nack(self, *, delay_ms: int | None = None, reason: str = "", dead_letter: bool = False) -> None:
        """See :meth:`lsmq.Task.nack`."""
        self._thread.call(self._async.nack(delay_ms=delay_ms, reason=reason, dead_letter=dead_letter))

    def extend(self, visibility_ms: int | None = None) -> None:
        """See :meth:`lsmq.Task.extend`."""
        self._thread.call(self._async.extend(visibility_ms))


class WorkQueue(Iterating[Task]):
    """Blocking :class:`lsmq.WorkQueue`: the same options and guarantees. May be used from any thread."""

    _async: asynchronous.WorkQueue

    def __init__(
        self,
        client: Client,
        topic: str,
        group: str,
        *,
        visibility_ms: int | None = None,
        max_messages: int = asynchronous.DEFAULT_MAX_MESSAGES,
        wait_ms: int = asynchronous.DEFAULT_WAIT_MS,
        max_handler_ms: int | None = asynchronous.DEFAULT_MAX_HANDLER_MS,
        deadline_ms: int | None = None,
    ) -> None:
        self.topic = topic
        self.group = group
        self._thread = client._thread

        async def make() -> asynchronous.WorkQueue:
            return asynchronous.WorkQueue(
                client._async,
                topic,
                group,
                visibility_ms=visibility_ms,
                max_messages=max_messages,
                wait_ms=wait_ms,
                max_handler_ms=max_handler_ms,
                deadline_ms=deadline_ms,
            )

        self._async = self._thread.call(make())

    def close(self) -> None:
        """See :meth:`lsmq.WorkQueue.close`."""
        self._thread.call(self._async.close())

    def _next(self) -> Task:
        return Task(self._thread.call(self._async._next()), self._thread)

    def poll(
        self, max_messages: int = asynchronous.DEFAULT_MAX_MESSAGES, timeout_ms: float | None = None
    ) -> list[Task]:
        """See :meth:`lsmq.WorkQueue.poll`."""
        tasks = self._thread.call(self._async.poll(max_messages, timeout_ms))
        return [Task(task, self._thread) for task in tasks]

    def run(self, handler: Callable[[Task], object], *, concurrency: int = 1) -> None:
        """See :meth:`lsmq.WorkQueue.run`. The handler runs in threads, ``concurrency`` of them."""

        def wrapped(task: asynchronous.Task) -> None:
            handler(Task(task, self._thread))

        with HandlerThreads().open(wrapped, concurrency) as handle:
            self._thread.call(self._async.run(handle, concurrency=concurrency))

    def describe(self) -> WorkQueueState:
        """See :meth:`lsmq.WorkQueue.describe`."""
        return self._thread.call(self._async.describe())

    def configure(
        self,
        *,
        max_deliveries: int | None = None,
        visibility_ms: int | None = None,
        retry_first_ms: int | None = None,
        retry_max_ms: int | None = None,
        dead_letter: str | None = None,
        delete_on_ack: bool | None = None,
    ) -> None:
        """See :meth:`lsmq.WorkQueue.configure`."""
        self._thread.call(
            self._async.configure(
                max_deliveries=max_deliveries,
                visibility_ms=visibility_ms,
                retry_first_ms=retry_first_ms,
                retry_max_ms=retry_max_ms,
                dead_letter=dead_letter,
                delete_on_ack=delete_on_ack,
            )
        )
