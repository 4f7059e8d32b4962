"""What was moved, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .service import LetterService


class LetterCollector(Collector):
    """Read when it is scraped."""

    def __init__(self, service: LetterService) -> None:
        self._service = service

    def collect(self) -> Iterable[Metric]:
        yield CounterMetricFamily(
            "lsmq_expired_moved",
            "Expired messages that were moved to another topic (expired_to).",
            self._service.moved,
        )
        yield GaugeMetricFamily(
            "lsmq_expired_waiting_topics",
            "Topics, by shard, whose expired messages cannot be moved by now: they wait and take space.",
            self._service.waiting_topics,
        )
