"""Traces of requests, by OpenTelemetry: made where ``trace_endpoint`` is set, and only there imported.

A request whose header ``traceparent`` says that it is sampled becomes a span, and each of its stages
(:mod:`.broker.stages`) a span in it. Spans wait in a queue of :data:`MAX_WAITING_SPANS`, and what does not fit is
dropped: no request waits for a collector.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any

import lsmq
from lsmq import runtime
from lsmq.errors import TracingNotInstalled
from lsmq_coordinator.parts import Part
from lsmq_node.broker.stages import LIMITS, Stages
from lsmq_node.config import NodeConfig

try:
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as error:
    raise TracingNotInstalled(
        f'trace_endpoint needs {error.name}, which is not installed; run: pip install "lsmq[node,otel]"',
        missing=error.name,
    ) from error

MAX_WAITING_SPANS = 2_048
_EXPORT_TIMEOUT_S = 5
_NOT_DELAYED_S = 0.001  # by a limit: most requests never are
#: Operations that store, and that deliver: spans have their names of these. Others are named as the operation is.
_STORES = frozenset({"sendBatch", "sendBatches", "sendMessages"})
_DELIVERS = frozenset({"fetchBatches", "readMessages", "popMessages"})
_PROPAGATOR = TraceContextTextMapPropagator()


class Traced:
    """One request that is traced."""

    __slots__ = ("_began", "_began_ns", "_delivers", "_span", "_tracer", "trace_id")

    def __init__(self, tracer: trace.Tracer, span: trace.Span, delivers: bool, began: float, began_ns: int) -> None:
        self._tracer = tracer
        self._span = span
        self._delivers = delivers
        self._began = began
        self._began_ns = began_ns
        self.trace_id = trace.format_trace_id(span.get_span_context().trace_id)

    def end(self, status: int, stages: Stages) -> None:
        """The request is answered. Nothing is told of one that was held for messages, and got none."""
        if self._delivers and not stages.messages and status < 400:
            return
        span = self._span
        span.set_attribute("http.response.status_code", status)
        if stages.messages:
            span.set_attribute("messaging.batch.message_count", stages.messages)
        if status >= 500:
            span.set_status(trace.StatusCode.ERROR)
        inside = trace.set_span_in_context(span)
        for name, stage in stages.by_name.items():
            if name == LIMITS and stage.seconds < _NOT_DELAYED_S:
                continue
            part = self._tracer.start_span(name, inside, start_time=self._ns(stage.began))
            part.set_attribute("lsmq.seconds", stage.seconds)
            part.end(self._ns(stage.ended))
        span.end()

    def _ns(self, moment: float) -> int:
        return self._began_ns + int((moment - self._began) * 1e9)


class NodeTracing:
    """Of a node. A service of it, and a part that is tried again where the collector does not answer."""

    def __init__(self, config: NodeConfig, node: str, part: Part) -> None:
        named = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": "lsmq"}
        own = {"service.instance.id": node, "service.version": lsmq.__version__}
        self._percent = config.trace_percent
        self._exporter = _Watched(OTLPSpanExporter(config.trace_endpoint, timeout=_EXPORT_TIMEOUT_S), part)
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(config.trace_percent / 100)),
            resource=Resource.create({**named, **own}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter, max_queue_size=MAX_WAITING_SPANS))
        self._tracer = self._provider.get_tracer("lsmq.node", lsmq.__version__)

    def begin(self, operation: str, topic: str | None, headers: Mapping[str, str]) -> Traced | None:
        """None where the request is not traced."""
        if not self._percent and "traceparent" not in headers:
            return None
        verb = "store" if operation in _STORES else "deliver" if operation in _DELIVERS else operation
        attributes = {"messaging.system": "lsmq", "lsmq.operation": operation}
        if topic is not None:
            attributes["messaging.destination.name"] = topic
        began, began_ns = runtime.monotonic(), runtime.wall_ms() * 1_000_000
        span = self._tracer.start_span(
            verb if topic is None else f"{verb} {topic}",
            _PROPAGATOR.extract({name.lower(): value for name, value in headers.items()}),
            kind=trace.SpanKind.SERVER,
            attributes=attributes,
            start_time=began_ns,
        )
        if not span.is_recording():
            return None
        return Traced(self._tracer, span, verb == "deliver", began, began_ns)

    def outcomes(self) -> Mapping[str, int]:
        """How many spans the collector took, and did not."""
        return {"exported": self._exporter.exported, "failed": self._exporter.failed}

    def start(self) -> None:
        """It runs."""

    def begin_stop(self) -> None:
        """Requests are answered still."""

    async def stop(self) -> None:
        """Hand over what waits, as far as the collector takes it within seconds."""
        await asyncio.to_thread(self._provider.shutdown)


class _Watched(SpanExporter):
    """Says how the collector does, and counts. In the thread that exports."""

    def __init__(self, exporter: SpanExporter, part: Part) -> None:
        self._exporter = exporter
        self._part = part
        self.exported = self.failed = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._exporter.export(spans)
        except Exception as error:
            self._lost(spans, f"{type(error).__name__}: {error}")
            raise
        if result is SpanExportResult.SUCCESS:
            self.exported += len(spans)
            self._part.running()
        else:
            self._lost(spans, "the collector at trace_endpoint takes no spans")
        return result

    def _lost(self, spans: Sequence[Any], why: str) -> None:
        self.failed += len(spans)
        self._part.retrying(why)

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)
