"""What was moved, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .mover import REASONS
from .service import LetterService


class LetterCollector(Collector):
    """Read when it is scraped."""

    def __init__(self, service: LetterService) -> None:
        self._service = service

    def collect(self) -> Iterable[Metric]:
        moved = CounterMetricFamily(
            "lsmq_messages_moved", "Messages that were moved to another topic, by why.", labels=["reason"]
        )
        for reason in REASONS:
            moved.add_metric([reason], self._service.moved.get(reason, 0))
        yield moved
        yield GaugeMetricFamily(
            "lsmq_moving_waits",
            "Topics, by shard, of which messages cannot be moved by now: they wait and take space.",
            self._service.waiting_topics,
        )
