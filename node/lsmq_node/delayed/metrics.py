"""Delayed messages for Prometheus: sums over what this node leads."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from .counts import LATENESS_MS
from .service import DelayedService


class DelayedCollector(Collector):
    """Read when it is scraped."""

    def __init__(self, service: DelayedService) -> None:
        self._service = service

    def collect(self) -> Iterable[Metric]:
        shards, counts = self._service.shards(), self._service.counts
        yield GaugeMetricFamily(
            "lsmq_delayed_pending",
            "Delayed messages that are not due yet, of shards led here, about.",
            sum(shard.count for shard in shards),
        )
        yield GaugeMetricFamily(
            "lsmq_delayed_overdue_seconds",
            "How long the delayed message has been due that should have been delivered first.",
            max((shard.late_ms for shard in shards), default=0) / 1000,
        )
        for name, text, count in (
            ("delivered", "Delayed messages put in their queues.", counts.delivered),
            ("dropped", "Delayed messages whose topic was deleted before they were due.", counts.dropped),
            ("cancelled", "Delayed messages cancelled.", counts.cancelled),
            ("rescheduled", "Delayed messages put at another time.", counts.rescheduled),
        ):
            yield CounterMetricFamily(f"lsmq_delayed_{name}", text, count)
        bounds = [*(str(bound / 1000) for bound in LATENESS_MS), "+Inf"]
        yield HistogramMetricFamily(
            "lsmq_delayed_lateness_seconds",
            "From when a delayed message was due until it could be read in its queue.",
            buckets=list(zip(bounds, accumulate(counts.late), strict=True)),
            sum_value=counts.late_sum_ms / 1000,
        )
