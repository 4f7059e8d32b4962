"""How far groups are behind, by group and topic, in the shards that this node leads.

Counting looks at all queues of a topic, so it is done now and then, a little at a time in a thread of the readers.
Nothing is counted again whose topic and offsets are as they were, and a shard that has applied nothing is not looked
at: groups that sleep cost nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence, Set
from contextlib import suppress
from typing import Final

from lsmq import runtime
from lsmq.errors import UnknownTopic
from lsmq_node.broker import Broker
from lsmq_node.storage import ShardStore, StoredTopic
from lsmq_node.storage.queries import GroupMark

from .biggest import OTHERS, biggest

Pair = tuple[str, str]
"""A group and a topic that it has committed offsets of."""

#: A thread counts for so long before it does other work, and then not for a while: this part of the time.
_AT_ONCE_S: Final = 0.02
_SHARE: Final = 0.05


class ShardLags:
    """What was counted of a store, by the marks of that time."""

    def __init__(self, store: ShardStore) -> None:
        self.store = store
        self.lags: dict[Pair, int] = {}
        self.total = 0  # of these lags
        self.uncommitted: dict[Pair, int] = {}  # those that were asked for though the group has committed nothing here
        self.counted_at: float | None = None  # when the last round began that ended
        self._marks: dict[Pair, tuple[int, object]] = {}  # with the id of the topic
        self._seen: object = None  # what all of that followed from

    def known(self, pair: Pair) -> int | None:
        """What was counted of it."""
        return self.lags.get(pair, self.uncommitted.get(pair))

    def topic_id(self, pair: Pair) -> int:
        """Of the topic that was counted, where any was: another one may have its name by now."""
        return self._marks[pair][0]

    async def count(self, broker: Broker, also: Set[tuple[str, int]]) -> bool:
        """Go round once: count what may have changed, ``also`` of these groups and topics' ids, which may have
        committed nothing. Returns whether anything may have changed."""
        began, seen = runtime.monotonic(), (self.store.applied_lsn(), also)
        if self.counted_at is not None and seen == self._seen:
            self.counted_at = began
            return False
        marks, known = await broker.in_readers(lambda: _marks(self.store, also))
        lags: dict[Pair, int] = {}
        uncommitted: dict[Pair, int] = {}

        def go_on() -> float:
            """The seconds that it took, in any thread."""
            started = runtime.monotonic()
            while marks:
                group, topic, mark = marks.pop()
                pair = group, topic.name
                into, former = uncommitted if mark[1] is None else lags, self.known(pair)
                if self._marks.get(pair) == (topic.id, mark) and former is not None:
                    into[pair] = former
                else:
                    with suppress(UnknownTopic):  # It was deleted just now.
                        into[pair] = self.store.group_lag(group, topic.id)
                if runtime.monotonic() >= started + _AT_ONCE_S:
                    break
            return runtime.monotonic() - started

        while marks:
            took_s = await broker.in_readers(go_on)
            if marks:
                await asyncio.sleep(took_s / _SHARE - took_s)
        total = await broker.in_readers(lambda: sum(lags.values()))
        self.lags, self.total, self.uncommitted, self._marks = lags, total, uncommitted, known
        self.counted_at, self._seen = began, seen
        return True


def _marks(
    store: ShardStore, also: Set[tuple[str, int]]
) -> tuple[list[tuple[str, StoredTopic, GroupMark]], dict[Pair, tuple[int, object]]]:
    """What :meth:`ShardStore.group_marks` says, and the same by pair. In any thread: there may be many."""
    marks = store.group_marks(also)
    return marks, {(group, topic.name): (topic.id, mark) for group, topic, mark in marks}


class GroupLags:
    """Loop thread only. Whatever looks at all groups is done in a thread of the readers."""

    def __init__(self, broker: Broker, limit: int) -> None:
        self._broker = broker
        self._limit = limit
        self._shards: dict[int, ShardLags] = {}
        self._sums: Mapping[Pair, int] = {}
        self._chosen: Sequence[Pair] = ()  # those with a series
        self._has_others = False
        self._summed: frozenset[int] = frozenset()

    @property
    def age_s(self) -> float | None:
        """Since the oldest of the counts was taken; None before there are any."""
        counted = [at for number in self._counted() if (at := self._shards[number].counted_at) is not None]
        return runtime.monotonic() - min(counted) if counted else None

    def series(self) -> Sequence[tuple[Pair, int]]:
        """By group and topic, of the shards that are led now, and the sum of all that have no series. Costs these."""
        shards = self.by_shard().values()  # One that has gone to another node is counted there.
        found: list[tuple[Pair, int]] = []
        for pair in self._chosen:
            lags = [lag for shard in shards if (lag := shard.lags.get(pair)) is not None]
            if lags:
                found.append((pair, sum(lags)))
        if self._has_others:
            rest = sum(shard.total for shard in shards) - sum(lag for _, lag in found)
            found.append(((OTHERS, OTHERS), rest))
        return found

    @property
    def sums(self) -> Mapping[Pair, int]:
        """Of all that were counted, as of the last count; it is replaced, never changed."""
        return self._sums

    def by_shard(self) -> Mapping[int, ShardLags]:
        """What was counted of each shard that is led now, of which there is something to tell."""
        return {number: self._shards[number] for number in self._counted()}

    async def count(self, also: Collection[Pair] = ()) -> None:
        """Count what may have changed since the last call, first where nothing was counted yet; and ``also`` of these,
        where the group has committed nothing."""
        shards: dict[int, ShardLags] = {}
        for number in self._led():
            store, known = self._broker.topology.port(number).store, self._shards.get(number)
            shards[number] = known if known is not None and known.store is store else ShardLags(store)
        self._shards = shards
        topics = {name: self._broker.topology.topics.find(name) for name in {name for _, name in also}}
        wanted = {(group, topic.id) for group, name in also if (topic := topics[name]) is not None}
        changed = self._summed != self._counted()
        for shard in sorted(shards.values(), key=lambda shard: shard.counted_at or 0.0):
            is_new = shard.counted_at is None
            changed = await shard.count(self._broker, wanted) or changed
            if is_new:
                await self._sum()
        if changed:
            await self._sum()

    def _led(self) -> list[int]:
        topology = self._broker.topology
        return [port.number for port in topology.ports() if topology.leadership(port.number).here]

    def _counted(self) -> frozenset[int]:
        """The shards that are led now and of which there is something to tell."""
        known = self._shards
        return frozenset(number for number in self._led() if number in known and known[number].counted_at is not None)

    async def _sum(self) -> None:
        counted, before, limit = self.by_shard(), self._chosen, self._limit

        def summed() -> tuple[Mapping[Pair, int], Sequence[Pair]]:
            sums: dict[Pair, int] = {}
            for shard in counted.values():
                for pair, lag in shard.lags.items():
                    sums[pair] = sums.get(pair, 0) + lag
            return sums, sorted(biggest(sums.keys() & before, sums, limit))

        self._sums, self._chosen = await self._broker.in_readers(summed)
        self._summed, self._has_others = frozenset(counted), len(self._sums) > len(self._chosen)
