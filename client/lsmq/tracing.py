"""Traces by OpenTelemetry: what is sent, stored, delivered and handled, as spans of the traces it belongs to.

``Client(tracing=True)`` uses the tracer provider of the process, ``Client(tracing=provider)`` that one; it needs
``lsmq[otel]``. Without it nothing here is imported. ``docs/tracing.md`` shows what comes of it.

A message carries its context as W3C says: headers ``traceparent`` and ``tracestate``. Whoever handles messages without
:meth:`lsmq.Consumer.run` finds it by :func:`context_of`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from lsmq.errors import TracingNotInstalled
from lsmq.messages import Message, MessageOptions

try:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as error:
    raise TracingNotInstalled(
        f'tracing needs {error.name}, which is not installed; run: pip install "lsmq[otel]"', missing=error.name
    ) from error

if TYPE_CHECKING:
    from lsmq._receipts import PendingBatch

__all__ = ["MAX_LINKS", "Tracing", "context_of"]

#: A span of a batch has links to so many of its messages: OpenTelemetry drops what is beyond.
MAX_LINKS = 128
PARENT = "traceparent"

_PROPAGATOR = TraceContextTextMapPropagator()
_NAMES = frozenset(_PROPAGATOR.fields)
Item = TypeVar("Item")
Result = TypeVar("Result")


def context_of(message: Message) -> Context:
    """The context that a message carries, for ``tracer.start_span(name, context=...)``; an empty one where it has none.

    It is looked for among the headers, then among the properties.
    """
    carried = {name: value.decode("ascii", "replace") for name, value in message.headers if name in _NAMES}
    if PARENT not in carried:
        carried = {name: value for name, value in message.properties.items() if name in _NAMES}
    return _PROPAGATOR.extract(carried, Context())


class Sending:
    """The span of one call that sends. It ends when the call has, and the batches with its messages have settled."""

    __slots__ = ("_batches", "headers", "over", "span")

    def __init__(self, span: trace.Span) -> None:
        self.span = span
        #: For the messages that are sent.
        self.headers = tuple((name, value.encode()) for name, value in carrying(span).items())
        self._batches: set[PendingBatch] = set()
        #: Whether the call has returned.
        self.over = False

    def lies_in(self, batch: PendingBatch) -> None:
        """A message of it was put there."""
        if batch not in self._batches and not batch.settled:
            self._batches.add(batch)
            if batch.sendings is None:
                batch.sendings = []
            batch.sendings.append(self)

    def returned(self) -> None:
        """The call has, and puts nothing anywhere any more."""
        self.over = True
        self._look()

    def settled(self, batch: PendingBatch) -> None:
        self._batches.discard(batch)
        if batch.error is not None:
            self.failed(batch.error)
        self._look()

    def failed(self, error: BaseException) -> None:
        if self.span.is_recording():
            self.span.record_exception(error)
            self.span.set_status(trace.StatusCode.ERROR, str(error))

    def _look(self) -> None:
        if self.over and not self._batches:
            self.span.end()


_sending: ContextVar[Sending | None] = ContextVar("lsmq_sending", default=None)


def _sending_here() -> Sending | None:
    """Of the call that sends in this task. Tasks that began inside of one, and live on, have its context still."""
    sending = _sending.get()
    return None if sending is None or sending.over else sending


def carrying(span: trace.Span) -> dict[str, str]:
    """The context of a span as names and values, for headers of a request or a message."""
    found: dict[str, str] = {}
    _PROPAGATOR.inject(found, trace.set_span_in_context(span, Context()))
    return found


class Tracing:
    """Of one client. Belongs to its event loop, as it does."""

    def __init__(self, provider: trace.TracerProvider | None) -> None:
        """``None``: that of the process."""
        from lsmq import __version__

        self._tracer = trace.get_tracer("lsmq", __version__, provider)

    # Sending

    @property
    def is_sending(self) -> bool:
        """Whether this is inside of :meth:`send`."""
        return _sending_here() is not None

    @property
    def headers(self) -> tuple[tuple[str, bytes], ...]:
        """What messages of the call carry that sends in this task."""
        sending = _sending_here()
        return () if sending is None else sending.headers

    def placed(self, batch: PendingBatch) -> None:
        """A message of the call that sends in this task was put there."""
        if (sending := _sending_here()) is not None:
            sending.lies_in(batch)

    async def send(
        self, topic: str, options: MessageOptions, send: Callable[[MessageOptions], Awaitable[Result]]
    ) -> Result:
        """What ``send`` returns, in a span; it is given the options with the headers that the messages carry."""
        with self._begun(topic) as sending:
            return await send(self._with_headers(sending, options))

    def send_at_once(self, topic: str, options: MessageOptions, send: Callable[[MessageOptions], Result]) -> Result:
        """The same of what waits for nothing."""
        with self._begun(topic) as sending:
            return send(self._with_headers(sending, options))

    @contextmanager
    def _begun(self, topic: str) -> Iterator[Sending]:
        sending = Sending(self._start(f"send {topic}", topic, trace.SpanKind.PRODUCER))
        _sending.set(sending)
        try:
            yield sending
        except BaseException as error:
            sending.failed(error)
            raise
        finally:
            _sending.set(None)
            sending.returned()

    def _with_headers(self, sending: Sending, options: MessageOptions) -> MessageOptions:
        given = tuple(options.get("headers") or ())
        if any(name == PARENT for name, _ in given):
            return {**options, "headers": given}  # The application has its own.
        return {**options, "headers": (*given, *sending.headers)}

    @contextmanager
    def batch(self, topic: str, batch: PendingBatch) -> Iterator[Mapping[str, str]]:
        """In this block a batch goes to its node; what its requests carry.

        Its span is in the trace of its first message, with links to the others.
        """
        sendings: Sequence[Sending] = batch.sendings or ()
        span = self._start(
            f"send batch {topic}",
            topic,
            trace.SpanKind.CLIENT,
            trace.set_span_in_context(sendings[0].span) if sendings else None,
            [trace.Link(each.span.get_span_context()) for each in sendings[1 : 1 + MAX_LINKS]],
        )
        span.set_attribute("messaging.batch.message_count", batch.count)
        with trace.use_span(span, end_on_exit=True):
            yield carrying(span)
            if batch.error is not None:
                span.set_status(trace.StatusCode.ERROR, str(batch.error))

    # Receiving

    def receiving(self, topic: str) -> trace.Span:
        """Messages are about to be asked for. The span is dropped unless :meth:`received` ends it."""
        return self._tracer.start_span(
            f"receive {topic}", Context(), trace.SpanKind.CLIENT, {"messaging.destination.name": topic, **_SYSTEM}
        )

    def carried(self, span: trace.Span) -> Mapping[str, str]:
        """What a request of it carries."""
        return carrying(span)

    def received(self, span: trace.Span, messages: Iterable[Message]) -> None:
        """These have come, with links to the first ones."""
        if span.is_recording():
            for message in islice(messages, MAX_LINKS):
                carried = trace.get_current_span(context_of(message)).get_span_context()
                if carried.is_valid:
                    span.add_link(carried)
            span.end()

    def handling(
        self, handler: Callable[[Item], object], message_of: Callable[[Item], Message]
    ) -> Callable[[Item], Awaitable[None]]:
        """The handler in a span for each message, in the message's trace."""

        async def handle(item: Item) -> None:
            message = message_of(item)
            attributes = {
                "messaging.destination.name": message.topic,
                "messaging.message.id": message.id,
                "lsmq.queue": message.queue if message.queue_name is None else message.queue_name,
                "lsmq.offset": message.offset,
                **_SYSTEM,
            }
            with self._tracer.start_as_current_span(
                f"handle {message.topic}", context_of(message), trace.SpanKind.CONSUMER, attributes
            ):
                pending = handler(item)
                if inspect.isawaitable(pending):
                    await pending

        return handle

    def _start(
        self,
        name: str,
        topic: str,
        kind: trace.SpanKind,
        inside: Context | None = None,
        links: Sequence[trace.Link] = (),
    ) -> trace.Span:
        return self._tracer.start_span(name, inside, kind, {"messaging.destination.name": topic, **_SYSTEM}, links)


_SYSTEM = {"messaging.system": "lsmq"}
