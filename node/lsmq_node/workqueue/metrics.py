"""Work queues for Prometheus: sums over what this node leads, never a line for each group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .service import WorkService

_COUNTED = (
    ("delivered", "lsmq_work_deliveries", "Deliveries, the first and later ones."),
    ("redelivered", "lsmq_work_redeliveries", "Deliveries of messages that were delivered before."),
    ("acked", "lsmq_work_acks", "Messages acknowledged."),
    ("nacked", "lsmq_work_nacks", "Deliveries given back as failed."),
    ("expired", "lsmq_work_expired", "Deliveries whose visibility ended."),
    ("refused", "lsmq_work_receipts_refused", "Receipts that did not count any more, or never did."),
    ("dead", "lsmq_work_dead_letters", "Messages put away as dead letters."),
)
_STATES = (
    ("in_flight", "lsmq_work_in_flight", "Messages delivered and not settled."),
    ("waiting", "lsmq_work_waiting", "Messages that wait for their next delivery to be due."),
    ("ready", "lsmq_work_ready", "Messages to be delivered again."),
    ("blocked", "lsmq_work_blocked", "Messages that wait for another of their key."),
    ("dead", "lsmq_work_dying", "Messages on their way to the dead letters."),
)


class WorkCollector(Collector):
    """Read when it is scraped."""

    def __init__(self, service: WorkService) -> None:
        self._service = service

    def collect(self) -> Iterable[Metric]:
        works = self._service.shards()
        figures: Counter[str] = Counter()
        for work in works:
            figures.update(work.figures())
        yield GaugeMetricFamily("lsmq_work_queues", "Groups with work, by topic and shard led here.", len(works))
        yield GaugeMetricFamily("lsmq_work_pops_held", "Pops held until there is a message.", self._service.held.count)
        for state, name, text in _STATES:
            yield GaugeMetricFamily(name, text, figures[state])
        for count, name, text in _COUNTED:
            yield CounterMetricFamily(name, text, getattr(self._service.counts, count))
