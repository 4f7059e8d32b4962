"""Transactions for Prometheus: sums over those this node coordinates, never a line for each."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .service import TransactionService


class TransactionCollector(Collector):
    """Read when it is scraped."""

    def __init__(self, service: TransactionService) -> None:
        self._service = service

    def collect(self) -> Iterable[Metric]:
        shards = self._service.shards()
        transactions = [each for shard in shards for each in shard.book.transactions.values()]
        opened = sum(each.is_open for each in transactions)
        waiting = sum(len(each.waiting) for each in transactions)
        yield GaugeMetricFamily(
            "lsmq_producer_group_members",
            "Live members of producer groups that this node coordinates.",
            sum(len(shard.book.members) for shard in shards),
        )
        held = self._service.held.count
        yield GaugeMetricFamily(
            "lsmq_transactions_requests_held", "Heartbeats of producers, and commits that wait for shards.", held
        )
        yield GaugeMetricFamily("lsmq_transactions_open", "Transactions that nobody has decided yet.", opened)
        yield GaugeMetricFamily(
            "lsmq_transactions_undelivered", "Shards that have not got their part of a committed transaction.", waiting
        )
        counts = self._service.counts
        for name, text, count in (
            ("begun", "Transactions begun.", counts.begun),
            ("committed", "Transactions committed.", counts.committed),
            ("rolled_back", "Transactions rolled back.", counts.rolled_back),
            ("given_up", "Of those, rolled back by the broker since nobody decided.", counts.given_up),
            ("checks", "Times a member was asked about a transaction.", counts.checks),
            ("sessions_ended", "Members that fell silent.", counts.expired),
            ("delivered_batches", "Batches delivered to their shards.", counts.delivered_batches),
            ("delivery_failures", "Deliveries that failed and are tried again.", counts.delivery_failures),
            ("dropped_batches", "Batches whose topic was deleted before they came.", counts.dropped_batches),
        ):
            yield CounterMetricFamily(f"lsmq_transactions_{name}", text, count)
