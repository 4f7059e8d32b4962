"""Topics and groups for Prometheus: ``metrics_series`` of a kind, and one for all others."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .service import Monitoring

_COUNTED = (
    ("written_messages", "Messages that came to the topic, where this node leads its shard."),
    ("written_bytes", "Their bytes."),
    ("read_messages", "Messages of the topic that this node gave to consumers."),
    ("read_bytes", "Their bytes."),
)


class MonitoringCollector(Collector):
    """Read when it is scraped; counted a few seconds before."""

    def __init__(self, monitoring: Monitoring) -> None:
        self._monitoring = monitoring

    def collect(self) -> Iterable[Metric]:
        series = self._monitoring.traffic.series()
        for name, text in _COUNTED:
            counter = CounterMetricFamily(f"lsmq_topic_{name}", text, labels=["topic"])
            for topic, traffic in series:
                counter.add_metric([topic], getattr(traffic, name))
            yield counter
        lags = self._monitoring.lags
        lag = GaugeMetricFamily(
            "lsmq_group_lag_messages",
            "Messages that wait for a group, of the shards that this node leads.",
            labels=["group", "topic"],
        )
        for pair, count in lags.series():
            lag.add_metric(pair, count)
        yield lag
        age = GaugeMetricFamily("lsmq_group_lag_age_seconds", "How long ago these lags were counted.")
        if lags.age_s is not None:
            age.add_metric([], lags.age_s)
        yield age
