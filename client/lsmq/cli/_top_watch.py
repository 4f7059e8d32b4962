"""What ``lsmq top`` shows: the newest figures of each node, its busy topics and groups, and what is not well.

All of it is asked anew at each look.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lsmq import Client, runtime
from lsmq._health import Problem, Readiness, ask_node, members, out_of_sync, problems, readiness
from lsmq.admin import ClusterInfo
from lsmq.errors import LsmqError


@dataclass(frozen=True, slots=True)
class NodeLook:
    """A node at a moment.

    Attributes:
        state: ``ok``, ``not ready``, ``silent``: it did not answer, or ``new``: it has no figures yet.
        silent_since_ms: since when it has not answered, in milliseconds since 1970; None while it does, and where it
            did not at the first look.
        figures: its newest sample as ``GET /v1/history`` has it, of ``sample_ms``; empty where there is none.
        leads: shards that it leads.
        replicas_out_of_sync: of those at this node.
    """

    node: str
    url: str
    state: str
    silent_since_ms: int | None
    leads: int
    replicas_out_of_sync: int
    figures: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        fields = asdict(self)
        figures = fields.pop("figures")
        return {**fields, **figures}


@dataclass(frozen=True, slots=True)
class TopicLook:
    """Messages and bytes of a topic a second, of all nodes that answered."""

    topic: str
    in_per_s: float
    out_per_s: float
    in_bytes_per_s: float
    out_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class GroupLook:
    """Messages of a topic that wait for a group, of all nodes that answered."""

    group: str
    topic: str
    lag: int


@dataclass(frozen=True, slots=True)
class Look:
    """A cluster at a moment, in milliseconds since 1970. ``cluster`` is None for a node of its own.

    ``topics`` begin with the one that most messages come to, ``groups`` with the one that is furthest behind.
    """

    time_ms: int
    cluster: str | None
    shards: int
    problems: Sequence[Problem]
    nodes: Sequence[NodeLook]
    topics: Sequence[TopicLook]
    groups: Sequence[GroupLook]

    def to_dict(self) -> dict[str, Any]:
        return {
            "time_ms": self.time_ms,
            "cluster": self.cluster,
            "well": not self.problems,
            "problems": [problem.to_dict() for problem in self.problems],
            "nodes": [node.to_dict() for node in self.nodes],
            "topics": [asdict(topic) for topic in self.topics],
            "groups": [asdict(group) for group in self.groups],
        }


class ClusterWatch:
    """Looks at all nodes, again and again: three requests a node each time, and one more."""

    def __init__(self, client: Client, timeout_s: float) -> None:
        """A node that has not answered within ``timeout_s`` counts as silent."""
        self._client = client
        self._timeout_s = timeout_s
        self._cluster: ClusterInfo | None = None
        self._nodes: dict[str, str] = {}  # urls by id; they are kept while nobody can be asked
        self._silent: dict[str, int | None] = {}  # since when, where that was seen
        self._looked = False

    async def look(self) -> Look:
        """Raises ``LsmqError`` at the first time only, when no node answers by the client's deadline."""
        cluster = await self._overview()
        nodes = self._nodes
        said, samples, busy = await asyncio.gather(
            asyncio.gather(*(readiness(self._client, url, self._timeout_s) for url in nodes.values())),
            asyncio.gather(*(self._sample(url) for url in nodes.values())),
            asyncio.gather(*(self._busiest(url) for url in nodes.values())),
        )
        now_ms = runtime.wall_ms()
        ready = dict(zip(nodes, said, strict=True))
        silent = (node for node, each in ready.items() if each.silent is not None)
        self._silent = {node: self._silent.get(node, now_ms if self._looked else None) for node in silent}
        self._looked = True
        looks = list(self._looks(cluster, ready, samples))
        wrong = problems(cluster, ready)
        return Look(now_ms, cluster.name, len(cluster.shards), wrong, looks, _topics(busy), _groups(busy))

    async def _overview(self) -> ClusterInfo:
        """The cluster, from the first node that answers; as it was where none does."""
        if self._cluster is None:
            self._learn(await self._client.ask("GET", "/v1/cluster"))
        else:
            # Those that answered the last time are asked first: who is silent costs the whole time for an answer.
            for node in sorted(self._nodes, key=lambda node: node in self._silent):
                try:
                    self._learn(await ask_node(self._client, self._nodes[node], "/v1/cluster", self._timeout_s, {}))
                    break
                except LsmqError:
                    if node in self._silent:
                        break
        assert self._cluster is not None
        return self._cluster

    def _learn(self, fields: Mapping[str, Any]) -> None:
        self._cluster = ClusterInfo.from_dict(fields)
        if self._cluster.name is not None or not self._nodes:
            self._nodes = members(self._client, self._cluster)

    async def _sample(self, url: str) -> dict[str, float]:
        """The newest sample; empty where there is none yet, or no answer."""
        try:
            found = await ask_node(self._client, url, "/v1/history", self._timeout_s, {"last": "1"})
        except LsmqError:
            return {}
        if not found["time_ms"]:
            return {}
        newest = {name: values[-1] for name, values in found.items() if isinstance(values, list)}
        return {"sample_ms": newest.pop("time_ms"), **newest}

    async def _busiest(self, url: str) -> dict[str, Any]:
        """Its busy topics, and groups that are behind; none where there is no answer."""
        try:
            found: dict[str, Any] = await ask_node(self._client, url, "/v1/busiest", self._timeout_s, {})
            return found
        except LsmqError:
            return {"topics": [], "groups": []}

    def _looks(
        self, cluster: ClusterInfo, ready: Mapping[str, Readiness], samples: Sequence[dict[str, float]]
    ) -> Iterator[NodeLook]:
        led = [shard.leader for shard in cluster.shards]
        missing = [node for shard in cluster.shards for node in out_of_sync(shard)]
        for (node, said), figures in zip(ready.items(), samples, strict=True):
            silent = said.silent is not None
            state = "silent" if silent else "not ready" if said.reasons else "ok" if figures else "new"
            since = self._silent.get(node)
            yield NodeLook(node, self._nodes[node], state, since, led.count(node), missing.count(node), figures)


def _topics(busy: Sequence[Mapping[str, Any]]) -> list[TopicLook]:
    """What nodes say of a topic, added up: the busiest of all are among the busiest of a node."""
    sums: dict[str, list[float]] = {}
    for found in busy:
        for fields in found["topics"]:
            numbers = [fields[name] for name in TopicLook.__dataclass_fields__ if name != "topic"]
            known = sums.get(fields["topic"], [0.0] * len(numbers))
            sums[fields["topic"]] = [one + other for one, other in zip(known, numbers, strict=True)]
    looks = (TopicLook(topic, *numbers) for topic, numbers in sums.items())
    return sorted(looks, key=lambda look: (-look.in_per_s, -look.out_per_s, look.topic))


def _groups(busy: Sequence[Mapping[str, Any]]) -> list[GroupLook]:
    sums: dict[tuple[str, str], int] = {}
    for found in busy:
        for fields in found["groups"]:
            pair = fields["group"], fields["topic"]
            sums[pair] = sums.get(pair, 0) + fields["lag"]
    looks = (GroupLook(*pair, lag) for pair, lag in sums.items())
    return sorted(looks, key=lambda look: (-look.lag, look.group, look.topic))


async def looks(watch: ClusterWatch, interval_s: float) -> AsyncIterator[Look]:
    """A look at the end of each interval; intervals that a look took longer than are left out."""
    due = runtime.monotonic()
    while True:
        due = max(due + interval_s, runtime.monotonic())
        await asyncio.sleep(due - runtime.monotonic())
        yield await watch.look()
