"""The blocking push consumer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from lsmq import push as asynchronous
from lsmq._handling import Order
from lsmq.group_values import Ranges
from lsmq.push import Mode
from lsmq.record_batch import Message
from lsmq.sync._client import Client
from lsmq.sync._lifecycle import HandlerThreads, Iterating


class PushConsumer(Iterating[Message]):
    """Blocking :class:`lsmq.PushConsumer`: the same options and guarantees. Heartbeats go on while a handler blocks."""

    _async: asynchronous.PushConsumer

    def __init__(
        self,
        client: Client,
        topic: str,
        *,
        group: str,
        mode: Mode = "clustered",
        subscriber: str | None = None,
        start: Literal["earliest", "latest"] = "earliest",
        credit: int = asynchronous.DEFAULT_CREDIT,
        credit_bytes: int = asynchronous.DEFAULT_CREDIT_BYTES,
        ack_timeout_ms: int = asynchronous.DEFAULT_ACK_TIMEOUT_MS,
        deadline_ms: int | None = None,
    ) -> None:
        self._thread = client._thread
        self._handlers = HandlerThreads()

        async def make() -> asynchronous.PushConsumer:
            made = asynchronous.PushConsumer(
                client._async,
                topic,
                group=group,
                mode=mode,
                subscriber=subscriber,
                start=start,
                credit=credit,
                credit_bytes=credit_bytes,
                ack_timeout_ms=ack_timeout_ms,
                deadline_ms=deadline_ms,
            )
            await made.start()
            return made

        self._async = self._thread.call(make())

    def close(self) -> None:
        """See :meth:`lsmq.PushConsumer.close`."""
        close = self._async._close_from_inside if self._handlers.are_here else self._async.close
        self._thread.call(close())

    @property
    def subscriber(self) -> str | None:
        """Its name, where it has one."""
        return self._async.subscriber

    @property
    def reconnects(self) -> int:
        """See :attr:`lsmq.PushConsumer.reconnects`."""
        return self._async.reconnects

    @property
    def assignment(self) -> Ranges:
        """See :attr:`lsmq.PushConsumer.assignment`."""

        async def now() -> Ranges:
            return self._async.assignment

        return self._thread.call(now())

    def _next(self) -> Message:
        return self.poll(1)[0]

    def poll(self, max_messages: int = 1000, timeout_ms: float | None = None) -> list[Message]:
        """See :meth:`lsmq.PushConsumer.poll`."""
        return self._thread.call(self._async.poll(max_messages, timeout_ms))

    def ack(self, *messages: Message) -> None:
        """See :meth:`lsmq.PushConsumer.ack`."""

        async def acknowledge() -> None:
            self._async.ack(*messages)

        self._thread.call(acknowledge())

    def run(self, handler: Callable[[Message], object], *, concurrency: int = 1, order: Order = "queue") -> None:
        """See :meth:`lsmq.PushConsumer.run`. The handler runs in threads, ``concurrency`` of them."""
        with self._handlers.open(handler, concurrency) as handle:
            self._thread.call(self._async._run(handle, concurrency, order, cancel=False))
