"""Held streams for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .service import PushService


class PushCollector(Collector):
    """Read when it is scraped."""

    def __init__(self, service: PushService) -> None:
        self._service = service

    def collect(self) -> Iterable[Metric]:
        streams, counts, budget = list(self._service.streams.values()), self._service.counts, self._service.budget
        stalled = sum(stream.ledger.room() == (0, 0) for stream in streams)
        waiting = sum(stream.ledger.open_count for stream in streams)
        yield GaugeMetricFamily("lsmq_push_streams", "Streams held now.", len(streams))
        yield GaugeMetricFamily("lsmq_push_streams_stalled", "Of those, without credit.", stalled)
        yield GaugeMetricFamily("lsmq_push_unacknowledged", "Messages sent and not acknowledged.", waiting)
        yield GaugeMetricFamily("lsmq_push_bytes_in_memory", "Messages on their way to connections.", budget.used_bytes)
        yield CounterMetricFamily("lsmq_push_streams_opened", "Streams opened.", counts.opened)
        yield CounterMetricFamily("lsmq_push_messages", "Messages pushed.", counts.messages)
        yield CounterMetricFamily("lsmq_push_sent_bytes", "Their bytes.", counts.bytes)
        yield CounterMetricFamily("lsmq_push_acknowledged", "Messages acknowledged.", counts.acknowledged)
        yield CounterMetricFamily("lsmq_push_credit_stalls", "Times a stream had used up its credit.", counts.stalls)
        yield CounterMetricFamily(
            "lsmq_push_waits", "Times a stream waited for memory, or for a shard to be readable.", counts.waits
        )
        yield CounterMetricFamily(
            "lsmq_push_streams_cut", "Streams cut for taking or acknowledging nothing.", counts.slow
        )
