"""How far groups are behind, by group and topic, in the shards that this node leads.

Counting looks at all queues of a topic, so it is done now and then, in a thread of the readers, and nothing is counted
again whose topic and offsets are as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from lsmq import runtime
from lsmq.errors import UnknownTopic
from lsmq_node.broker import Broker
from lsmq_node.storage import ShardStore

from .biggest import OTHERS, biggest

Pair = tuple[str, str]
"""A group and a topic that it has committed offsets of."""


class _ShardLags:
    """What was counted of a store, by the marks of that time."""

    __slots__ = ("_known", "store")

    def __init__(self, store: ShardStore) -> None:
        self.store = store
        self._known: dict[Pair, tuple[object, int]] = {}

    def count(self) -> None:
        """In any thread, one at a time."""
        found: dict[Pair, tuple[object, int]] = {}
        for group, topic, mark in self.store.group_marks():
            pair = group, topic.name
            known = self._known.get(pair)
            if known is not None and known[0] == mark:
                found[pair] = known
                continue
            with suppress(UnknownTopic):  # It was deleted just now.
                found[pair] = mark, self.store.group_lag(group, topic.id)
        self._known = found

    def add_to(self, sums: dict[Pair, int]) -> None:
        for pair, (_, lag) in self._known.items():
            sums[pair] = sums.get(pair, 0) + lag


class GroupLags:
    """Loop thread only."""

    def __init__(self, broker: Broker, limit: int) -> None:
        self._broker = broker
        self._limit = limit
        self._shards: dict[int, _ShardLags] = {}
        self._series: dict[Pair, int] = {}
        self._others: int | None = None
        self._summed: frozenset[int] = frozenset()
        self._counted_at: float | None = None

    @property
    def age_s(self) -> float | None:
        """Since the oldest of the counts was taken; None before there are any."""
        return None if self._counted_at is None else runtime.monotonic() - self._counted_at

    def series(self) -> Sequence[tuple[Pair, int]]:
        """By group and topic, of the shards that are led now, and the sum of all that have no series."""
        if not self._led() >= self._summed:  # A shard has gone to another node, which counts it.
            self._sum()
        others = [] if self._others is None else [((OTHERS, OTHERS), self._others)]
        return [*self._series.items(), *others]

    @property
    def is_complete(self) -> bool:
        """Whether all shards were counted that are led now."""
        return self._counted_at is not None and self._led() <= self._shards.keys()

    async def count(self) -> None:
        """Count what may have changed since the last call."""
        began, led = runtime.monotonic(), self._led()
        shards: dict[int, _ShardLags] = {}
        for number in led:
            store, known = self._broker.topology.port(number).store, self._shards.get(number)
            shards[number] = known if known is not None and known.store is store else _ShardLags(store)
        for shard in shards.values():
            await self._broker.in_readers(shard.count)
        self._shards, self._counted_at = shards, began
        self._sum()

    def _led(self) -> frozenset[int]:
        topology = self._broker.topology
        return frozenset(port.number for port in topology.ports() if topology.leadership(port.number).here)

    def _sum(self) -> None:
        self._summed = self._led() & self._shards.keys()
        sums: dict[Pair, int] = {}
        for number in self._summed:
            self._shards[number].add_to(sums)
        chosen = biggest(self._series.keys() & sums.keys(), sums, self._limit)
        self._series = {pair: sums[pair] for pair in sorted(chosen)}
        self._others = sum(sums.values()) - sum(self._series.values()) if len(sums) > len(chosen) else None
