"""Metrics for Prometheus: read from the stores, the broker and the HTTP layer when they are scraped.

Nothing here is by queue, topic or group: a million queues make as many lines as one. See :mod:`.monitoring` for the few
that have lines of their own.
"""

from __future__ import annotations

import dataclasses
import platform
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client import GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CollectorRegistry,
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

import lsmq
from lsmq_coordinator.parts import PartState
from lsmq_node.broker import SHARE_SETTING, Broker
from lsmq_node.broker.scrubber import ScrubCounts
from lsmq_node.connections import Doorkeeper
from lsmq_node.disks import FORMAT

#: Upper bounds in seconds of the request histogram.
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)

#: Fields of ``StoreStats`` that only grow, though their names do not end in ``_total``.
_COUNTED_SECONDS = frozenset({"flush_seconds", "merge_seconds"})


_NODE_GAUGES = {
    "unleased_seconds": "How long the node has held no lease; 0 while it holds one.",
    "clock_ahead_seconds": "How far its wall clock is ahead of the cluster's middle one.",
    "accepted_secrets": "Cluster secrets that the node accepts; 2 while the secret is changed.",
    "moving_shards": "Shards of the cluster that are being moved, as far as the node knows.",
    "moves_paused": "1 while nothing is moved: `lsmq shard resume`.",
    "voters_away": "Voters that are not heard, as far as the node knows.",
    "voter_changes": "Steps in which who votes was changed since the cluster was founded.",
}
_REPLICA_GAUGES = (
    ("serving", "1 where this node leads the shard and takes reads and writes."),
    ("epoch", "Leader epoch of the shard."),
    ("enough_in_sync", "1 while quorum writes can be acknowledged; on the leader."),
    ("end_lsn", "End of the shard's log at this replica."),
    ("durable_lsn", "How far it is on the disk."),
    ("high_watermark", "How far it is committed."),
)


class Series:
    """Count and time of one operation's requests."""

    __slots__ = ("buckets", "by_status", "seconds", "slow")

    def __init__(self) -> None:
        self.by_status: dict[int, int] = {}
        self.buckets = [0] * (len(BUCKETS_S) + 1)
        self.seconds = 0.0
        self.slow = 0  # of them, longer than slow_request_ms

    def observe(self, status: int, seconds: float) -> None:
        self.by_status[status] = self.by_status.get(status, 0) + 1
        self.buckets[bisect_left(BUCKETS_S, seconds)] += 1
        self.seconds += seconds


class HttpMetrics(Collector):
    """Requests by operation. Written on the loop thread, read there too."""

    def __init__(self) -> None:
        self._series: dict[str, Series] = {}

    def series(self, operation: str) -> Series:
        return self._series.setdefault(operation, Series())

    def collect(self) -> Iterable[Metric]:
        requests = CounterMetricFamily(
            "lsmq_http_requests",
            "Requests answered; 499: the caller went away.",
            labels=["operation", "status"],
        )
        seconds = HistogramMetricFamily(
            "lsmq_http_request_seconds",
            "Time to answer, waiting of long polls included.",
            labels=["operation"],
        )
        slow = CounterMetricFamily(
            "lsmq_http_slow_requests",
            "Requests that took longer than slow_request_ms, waiting of long polls left out.",
            labels=["operation"],
        )
        for operation, series in self._series.items():
            if not series.by_status:
                continue
            slow.add_metric([operation], series.slow)
            for status, count in sorted(series.by_status.items()):
                requests.add_metric([operation, str(status)], count)
            total = 0
            buckets = []
            for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), series.buckets, strict=True):
                total += count
                buckets.append((bound, total))
            seconds.add_metric([operation], buckets, series.seconds)
        yield from (requests, seconds, slow)


class DoorMetrics(Collector):
    """The connections of clients, at all doors that they come by; these show the same certificate."""

    def __init__(self, doors: Sequence[Doorkeeper]) -> None:
        self._doors = doors

    def collect(self) -> Iterable[Metric]:
        doors, door = self._doors, self._doors[0]
        yield GaugeMetricFamily("lsmq_connections", "Connections of clients.", sum(door.count for door in doors))
        for name, text, count in (
            ("connections_accepted", "Connections accepted.", sum(door.accepted for door in doors)),
            (
                "connections_refused",
                "Of those, refused (max_connections, address_share_percent).",
                sum(door.refused for door in doors),
            ),
            (
                "accept_failures",
                "Times the system had no room for a connection.",
                sum(door.accept_failures for door in doors),
            ),
            (
                "handshake_failures",
                "Connections that ended in the handshake of TLS.",
                sum(door.handshake_failures for door in doors),
            ),
        ):
            yield CounterMetricFamily(f"lsmq_{name}", text, count)
        expires = GaugeMetricFamily(
            "lsmq_certificate_expiry_timestamp_seconds",
            "When the certificate in use expires, in Unix time.",
            labels=["port"],
        )
        reloads = CounterMetricFamily(
            "lsmq_certificate_reloads", "Times another certificate was read.", labels=["port"]
        )
        if door.tls is not None:
            expires.add_metric(["clients"], door.tls.expires_s)
            reloads.add_metric(["clients"], door.tls.reloads)
        yield from (expires, reloads)


class ScrubMetrics(Collector):
    """What was read to see whether it is whole."""

    def __init__(self, counts: ScrubCounts) -> None:
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        counts = self._counts
        for name, text, count in (
            ("read_bytes", "Bytes read to see whether they are whole.", counts.read_bytes),
            ("files", "Files read to their end, and whole.", counts.files),
            ("damaged_files", "Times a file was found to be damaged.", counts.damaged),
        ):
            yield CounterMetricFamily(f"lsmq_scrub_{name}", text, count)


class SpanMetrics(Collector):
    """What became of spans; none where the node does not trace."""

    def __init__(self, outcomes: Callable[[], Mapping[str, int]] = dict) -> None:
        self._outcomes = outcomes

    def collect(self) -> Iterable[Metric]:
        spans = CounterMetricFamily("lsmq_trace_spans", "Spans handed to the collector, or lost.", labels=["outcome"])
        for outcome, count in {"exported": 0, "failed": 0, **self._outcomes()}.items():
            spans.add_metric([outcome], count)
        yield spans


class _BrokerCollector(Collector):
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def collect(self) -> Iterable[Metric]:
        build = GaugeMetricFamily(
            "lsmq_build_info",
            "1; the labels say what runs, and the format of its data directory.",
            labels=["version", "python", "format"],
        )
        build.add_metric([lsmq.__version__, platform.python_version(), str(FORMAT)], 1)
        yield build
        yield from self._broker_metrics()
        yield from self._commit_metrics()
        yield from self._replica_metrics()
        yield from self._part_metrics()
        yield from self._disk_metrics()
        yield from self._store_metrics()

    def _broker_metrics(self) -> Iterable[Metric]:
        broker = self._broker
        yield GaugeMetricFamily("lsmq_waiters", "Long polls held now.", broker.waiters.count)
        sessions = broker.reads.sessions
        yield GaugeMetricFamily("lsmq_fetch_sessions", "Fetch sessions kept between requests.", len(sessions))
        yield GaugeMetricFamily("lsmq_fetch_session_bytes", "Memory they take.", sessions.size_bytes)
        budget = broker.budget
        yield GaugeMetricFamily("lsmq_inflight_bytes", "Request and answer bytes in memory.", budget.used_bytes)
        yield GaugeMetricFamily("lsmq_inflight_peak_bytes", "Most there ever were.", budget.peak_bytes)
        yield CounterMetricFamily(
            "lsmq_inflight_refused",
            "Requests refused for want of memory (max_inflight_bytes).",
            budget.refused,
        )
        yield from self._limit_metrics()
        yield CounterMetricFamily("lsmq_sendfile_bytes", "Bytes sent straight from files.", broker.sendfile_bytes)
        reads = broker.reads
        yield CounterMetricFamily(
            "lsmq_queues_sent_elsewhere", "Queues whose reader was sent to another node.", reads.queues_sent_elsewhere
        )
        yield CounterMetricFamily("lsmq_follower_reads", "Reads answered as a follower.", reads.as_follower)
        forwarder = broker.forwarder
        yield CounterMetricFamily("lsmq_forwarded", "Requests passed on to their shard's leader.", forwarder.passed)
        yield CounterMetricFamily(
            "lsmq_forwards_refused", "Requests not passed on, as max_forwarded were.", forwarder.refused
        )
        yield GaugeMetricFamily("lsmq_forwards_held", "Requests that other nodes have now.", forwarder.under_way)
        yield CounterMetricFamily("lsmq_writes_delayed", "Writes delayed by pressure.", broker.writes_delayed)

    def _limit_metrics(self) -> Iterable[Metric]:
        """Of limits of one address or principal, by the settings they have their names of."""
        broker = self._broker
        delayed = CounterMetricFamily(
            "lsmq_limit_delayed", "Requests delayed, since who asks may have so much a second.", labels=["limit"]
        )
        refused = CounterMetricFamily(
            "lsmq_limit_refused", "Requests refused for a limit of one address or principal.", labels=["limit"]
        )
        for pace in (broker.request_pace, broker.byte_pace, broker.allowances.requests, broker.allowances.bytes):
            delayed.add_metric([pace.setting], pace.delayed)
            refused.add_metric([pace.setting], pace.refused)
        for what, count in broker.allowances.refused.items():
            refused.add_metric([what.setting], count)
        refused.add_metric([SHARE_SETTING], broker.allowances.addresses.refused)
        yield from (delayed, refused)

    def _commit_metrics(self) -> Iterable[Metric]:
        writes = CounterMetricFamily(
            "lsmq_committed_writes", "Writes that asked for a commit; many share one.", labels=["shard"]
        )
        failures = CounterMetricFamily("lsmq_commit_failures", "Group commits that failed.", labels=["shard"])
        for port in self._broker.topology.ports():
            writes.add_metric([str(port.number)], port.waits)
            failures.add_metric([str(port.number)], port.failures)
        yield from (writes, failures)

    def _replica_metrics(self) -> Iterable[Metric]:
        """Numbers of a port's figures, each a gauge by shard; lags by follower as well."""
        gauges = {
            name: GaugeMetricFamily(f"lsmq_shard_{name}", text, labels=["shard"]) for name, text in _REPLICA_GAUGES
        }
        lag = GaugeMetricFamily(
            "lsmq_shard_lag_bytes", "Log that a follower has not reported durable.", labels=["shard", "follower"]
        )
        for port in self._broker.topology.ports():
            figures = port.figures()
            for name, gauge in gauges.items():
                if figures.get(name) is not None:
                    gauge.add_metric([str(port.number)], float(figures[name]))
            for follower, size_bytes in figures.get("lag_bytes", {}).items():
                lag.add_metric([str(port.number), follower], size_bytes)
        yield from (*gauges.values(), lag)

    def _part_metrics(self) -> Iterable[Metric]:
        running = GaugeMetricFamily("lsmq_part_running", "1 while a part of the node runs.", labels=["part"])
        failures = CounterMetricFamily("lsmq_part_failures", "How often it ceased to run.", labels=["part"])
        for report in self._broker.parts.reports():
            running.add_metric([report.name], float(report.state is PartState.RUNNING))
            failures.add_metric([report.name], report.failures)
        yield from (running, failures)
        known = self._broker.topology.gauges()
        for name, text in _NODE_GAUGES.items():
            yield GaugeMetricFamily(f"lsmq_node_{name}", text, known.get(name))

    def _disk_metrics(self) -> Iterable[Metric]:
        usable, size, free = (
            GaugeMetricFamily(f"lsmq_disk_{name}", text, labels=["disk"])
            for name, text in (
                ("usable", "1 while a disk of the node can be used."),
                ("size_bytes", "Size of its file system."),
                ("free_bytes", "Of that, what the node may still write."),
            )
        )
        for disk in self._broker.topology.disks.all:
            usable.add_metric([str(disk.path)], float(disk.problem is None))
            if disk.problem is None:
                size.add_metric([str(disk.path)], disk.size_bytes)
                free.add_metric([str(disk.path)], disk.free_bytes)
        yield from (usable, size, free)

    def _store_metrics(self) -> Iterable[Metric]:
        """Every number of ``StoreStats``, by its name."""
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for port in self._broker.topology.ports():
            stats = port.store.stats()
            for entry in dataclasses.fields(stats):
                family = families.get(entry.name)
                if family is None:
                    family = families[entry.name] = _store_family(entry.name)
                family.add_metric([str(port.number)], getattr(stats, entry.name))
        yield from families.values()


def _store_family(field: str) -> CounterMetricFamily | GaugeMetricFamily:
    name = field.removesuffix("_total")
    text = f"Of the storage engine: {name.replace('_', ' ')}."
    if field.endswith("_total") or field in _COUNTED_SECONDS:
        return CounterMetricFamily(f"lsmq_store_{name}", text, labels=["shard"])
    return GaugeMetricFamily(f"lsmq_store_{name}", text, labels=["shard"])


class NodeMetrics:
    """What ``/metrics`` shows."""

    def __init__(self, broker: Broker, *more: Collector) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        for collector in (_BrokerCollector(broker), *more):
            self.add(collector)

    def add(self, collector: Collector) -> None:
        self._registry.register(collector)

    def render(self) -> tuple[bytes, str]:
        """The exposition in Prometheus text format, and its media type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST
