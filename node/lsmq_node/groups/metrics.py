"""Groups for Prometheus: sums over the groups this node coordinates, never a line for each."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .service import GroupService


class GroupCollector(Collector):
    """Read when it is scraped."""

    def __init__(self, service: GroupService) -> None:
        self._service = service

    def collect(self) -> Iterable[Metric]:
        shards = self._service.shards()
        groups = [group for shard in shards for group in shard.active_groups()]
        members = [member for group in groups for member in group.members.values()]
        yield GaugeMetricFamily(
            "lsmq_groups", "Groups that this node coordinates.", sum(len(shard.groups) for shard in shards)
        )
        yield GaugeMetricFamily("lsmq_group_members", "Their live members.", len(members))
        stalled = sum(member.stalled for member in members)
        yield GaugeMetricFamily("lsmq_group_members_stalled", "Of those, with a handler that does not end.", stalled)
        unsettled = sum(group.state in ("recovering", "rebalancing") for group in groups)
        yield GaugeMetricFamily("lsmq_groups_unsettled", "Groups whose queues change hands.", unsettled)
        held = self._service.held.count
        yield GaugeMetricFamily("lsmq_group_heartbeats_held", "Heartbeats held until something is new.", held)
        counts = self._service.counts
        yield CounterMetricFamily("lsmq_group_heartbeats", "Heartbeats heard.", counts.heartbeats)
        yield CounterMetricFamily("lsmq_group_rebalances", "Generations begun.", counts.rebalances)
        yield CounterMetricFamily("lsmq_group_sessions_ended", "Members that fell silent.", counts.expired)
        yield CounterMetricFamily(
            "lsmq_group_commits_refused", "Commits and fences of a generation that counts no more.", counts.refused
        )
