"""The blocking push consumer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lsmq import push as asynchronous
from lsmq._handler_lanes import Order
from lsmq.group_values import Ranges
from lsmq.record_batch import Message
from lsmq.sync._client import Client
from lsmq.sync._crossing import blocking_call, with_options_of
from lsmq.sync._lifecycle import BlockingIterable, HandlerThreads


class PushConsumer(BlockingIterable[Message]):
    """Blocking :class:`lsmq.PushConsumer`: the same options and guarantees. Heartbeats go on while a handler blocks."""

    _async: asynchronous.PushConsumer

    @with_options_of(asynchronous.PushConsumer)
    def __init__(self, client: Client, topic: str, **options: Any) -> None:
        self._thread = client._thread
        self._handlers = HandlerThreads()

        async def make() -> asynchronous.PushConsumer:
            made = asynchronous.PushConsumer(client._async, topic, **options)
            made._told = True
            await made.__aenter__()
            return made

        self._async = self._thread.take(make, asynchronous.PushConsumer.close)

    def close(self) -> None:
        """See :meth:`lsmq.PushConsumer.close`."""
        close = self._async._close_from_inside if self._handlers.are_here else self._async.close
        self._thread.call_through(close())

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
        return self._thread.do(lambda: self._async.assignment)

    def _next(self) -> Message:
        return self.poll(1)[0]

    def poll(self, max_messages: int = 1000, timeout_ms: float | None = None) -> list[Message]:
        """See :meth:`lsmq.PushConsumer.poll`."""
        return self._thread.take(lambda: self._async.poll(max_messages, timeout_ms), self._put_back)

    def _put_back(self, messages: list[Message]) -> None:
        """They were handed out, and got nowhere."""
        for message in reversed(messages):
            self._async._buffer.hand_back({message.queue: message.offset})

    ack = blocking_call(asynchronous.PushConsumer.ack)

    def run(self, handler: Callable[[Message], object], *, concurrency: int = 1, order: Order = "queue") -> None:
        """See :meth:`lsmq.PushConsumer.run`. The handler runs in threads, ``concurrency`` of them."""
        with self._handlers.open(handler, concurrency) as handle:
            self._thread.call_to_its_end(self._async._run(handle, concurrency, order, cancel=False))
