"""The blocking work queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lsmq import work_queue as asynchronous
from lsmq.loop_thread import LoopThread
from lsmq.record_batch import Message
from lsmq.sync._client import Client
from lsmq.sync._crossing import blocking, blocking_through, with_options_of
from lsmq.sync._lifecycle import BlockingIterable, HandlerThreads


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
        return self._thread.do(lambda: self._async.remaining_ms)

    def __repr__(self) -> str:
        return repr(self._async)

    def text(self) -> str:
        """The body decoded as UTF-8."""
        return self._async.text()

    ack = blocking(asynchronous.Task.ack)
    nack = blocking(asynchronous.Task.nack)
    extend = blocking(asynchronous.Task.extend)


class WorkQueue(BlockingIterable[Task]):
    """Blocking :class:`lsmq.WorkQueue`: the same options and guarantees. May be used from any thread."""

    _async: asynchronous.WorkQueue

    @with_options_of(asynchronous.WorkQueue)
    def __init__(self, client: Client, topic: str, group: str, **options: Any) -> None:
        self.topic = topic
        self.group = group
        self._thread = client._thread
        self._async = self._thread.do(lambda: asynchronous.WorkQueue(client._async, topic, group, **options))
        self._async._told = True

    close = blocking_through(asynchronous.WorkQueue.close)
    describe = blocking(asynchronous.WorkQueue.describe)
    configure = blocking(asynchronous.WorkQueue.configure)
    held = blocking(asynchronous.WorkQueue.held)
    end_held = blocking(asynchronous.WorkQueue.end_held)

    def _next(self) -> Task:
        task = self._thread.take(self._async._next, lambda task: self._async._take_back([task]))
        return Task(task, self._thread)

    def poll(
        self, max_messages: int = asynchronous.DEFAULT_MAX_MESSAGES, timeout_ms: float | None = None
    ) -> list[Task]:
        """See :meth:`lsmq.WorkQueue.poll`."""
        tasks = self._thread.take(lambda: self._async.poll(max_messages, timeout_ms), self._async._take_back)
        return [Task(task, self._thread) for task in tasks]

    def run(self, handler: Callable[[Task], object], *, concurrency: int = 1) -> None:
        """See :meth:`lsmq.WorkQueue.run`. The handler runs in threads, ``concurrency`` of them.

        A thread cannot be cancelled: at an interrupt, such as Ctrl-C, handlers that run are waited for, and settled.
        """

        def wrapped(task: asynchronous.Task) -> None:
            handler(Task(task, self._thread))

        with HandlerThreads().open(wrapped, concurrency) as handle:
            self._thread.call_to_its_end(self._async._run(handle, concurrency, cancel=False))
