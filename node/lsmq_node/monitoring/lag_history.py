"""How far groups were behind in the last hour, for people: a row of samples by shard, group and topic, in memory.

A node keeps rows of the shards that it leads, and asks the leaders of the others when somebody looks. Samples are told
by their age on each node's own clock, so that no two clocks have to agree.

What it takes: :data:`MOST_ROWS` rows of :data:`SAMPLES` times four bytes, 6 MB, and their keys, whatever there is; and
what is counted for the metrics anyway. Rows are of groups that somebody looked at in the last hour, up to
:data:`MOST_LOOKED_AT`, and then of those that are furthest behind.

Not supported: what was before this node led the shard, or chose the group.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Set
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lsmq import runtime
from lsmq.errors import LsmqError, UnknownTopic
from lsmq_node.broker import Broker, LeaderCalls
from lsmq_node.storage import StoredTopic

from .biggest import biggest
from .lags import GroupLags, Pair

EVERY_S: Final = 10.0
SAMPLES: Final = 360
MOST_ROWS: Final = 4_096
MOST_LOOKED_AT: Final = 64
_LOOKED_AT_S: Final = EVERY_S * SAMPLES
_TIMEOUT_S: Final = 5.0
_CHOSEN_EVERY: Final = 6  # samples

#: Oldest first; NaN where nobody knows. Above 2**24 a count is rounded.
LagRow = NDArray[np.float32]


class LagHistory:
    """One for each node. Loop thread only."""

    def __init__(self, broker: Broker, lags: GroupLags, clock: Callable[[], float] | None = None) -> None:
        self._broker = broker
        self._lags = lags
        self._clock = clock or runtime.monotonic
        self._rows: dict[tuple[int, Pair, int], LagRow] = {}  # by shard, group and topic, and the topic's id
        self._last = 0  # samples are numbered by the clock, and lie in their rows at the number modulo SAMPLES
        self._furthest: list[Pair] = []
        self._looked: OrderedDict[Pair, float] = OrderedDict()  # when, the longest ago first
        self._calls = LeaderCalls(broker.topology, "lag-history", self._row_here, _TIMEOUT_S)

    @property
    def row_count(self) -> int:
        return len(self._rows)

    def wanted(self) -> Collection[Pair]:
        """What is to be counted in each shard, though the group has committed nothing there."""
        return self.looked_at() | {pair for _, pair, _ in self._rows}

    def looked_at(self) -> Set[Pair]:
        """What somebody looked at in the last hour, the longest ago first."""
        while self._looked and next(iter(self._looked.values())) < self._clock() - _LOOKED_AT_S:
            self._looked.popitem(last=False)
        return self._looked.keys()

    async def sample_on(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S - self._clock() % EVERY_S)
            await self.sample()

    async def sample(self) -> None:
        """Take a sample of what was counted last. Costs what rows there are; in a thread, now and then, what groups."""
        number = int(self._clock() // EVERY_S)
        chosen = await self._chosen(number)
        passed = np.arange(max(self._last + 1, number - SAMPLES + 1), number + 1) % SAMPLES
        self._last, place = number, number % SAMPLES
        former, self._rows = self._rows, {}
        for shard, counted in self._lags.by_shard().items():
            for pair in chosen:
                if (lag := counted.known(pair)) is None:
                    continue
                key = shard, pair, counted.topic_id(pair)
                row = former.get(key)
                if row is None:
                    nothing = pair in counted.uncommitted and not lag  # then there was nothing before
                    row = np.full(SAMPLES, 0 if nothing else np.nan, np.float32)
                elif len(passed) > 1:
                    row[passed] = np.nan
                row[place] = lag
                self._rows[key] = row

    async def _chosen(self, number: int) -> list[Pair]:
        """Those to have rows: who was looked at, and then who is furthest behind, which is found out once a minute."""
        sums, limit = self._lags.sums, MOST_ROWS // max(1, len(self._lags.by_shard()))
        looked = list(self.looked_at())[-limit:] if limit else []
        if len(sums) <= limit:
            self._furthest = list(sums)
        elif not self._furthest or number % _CHOSEN_EVERY == 0:
            before = {pair for _, pair, _ in self._rows} & sums.keys()
            found = await self._broker.in_readers(lambda: biggest(before, sums, limit))
            self._furthest = sorted(found, key=lambda pair: sums[pair], reverse=True)
        return list(dict.fromkeys((*looked, *self._furthest)))[:limit]

    async def of(self, group: str, topic: StoredTopic) -> list[int | None]:
        """Messages that waited in all shards of the topic, whichever nodes lead them.

        A sample every :data:`EVERY_S` seconds, from the first that is known on, the last one a moment ago; None where a
        part is not known. A leader that cannot say makes all of it unknown.
        """
        body = {"group": group, "topic": topic.name, "id": topic.id}
        shards = {part.shard for part in self._broker.ranges(topic)}
        rows = await asyncio.gather(*(self._row_of(shard, body) for shard in shards))
        found = sum(rows, np.zeros(SAMPLES))
        known = np.flatnonzero(~np.isnan(found))
        first = int(known[0]) if len(known) else SAMPLES
        return [None if np.isnan(lag) else round(lag) for lag in found[first:].tolist()]

    async def _row_of(self, shard: int, body: dict[str, Any]) -> NDArray[np.float64]:
        try:
            packed = (await self._calls.ask(shard, body))["row"]
        except LsmqError:  # Nobody leads it now, or a node that does not keep this: an older one.
            packed = b""
        row = np.frombuffer(packed, "<f4").astype(np.float64)
        return row if len(row) == SAMPLES else np.full(SAMPLES, np.nan)

    async def _row_here(self, shard: int, asked: dict[str, Any]) -> dict[str, Any]:
        pair, topic_id = (str(asked["group"]), str(asked["topic"])), int(asked["id"])
        self._looked[pair] = self._clock()
        self._looked.move_to_end(pair)
        if len(self._looked) > MOST_LOOKED_AT:
            self._looked.popitem(last=False)
        row = self._rows.get((shard, pair, topic_id))
        if row is not None:
            return {"row": np.roll(row, SAMPLES - 1 - self._last % SAMPLES).astype("<f4").tobytes()}
        if not self._broker.topology.leadership(shard).here:
            return {"row": b""}
        store = self._broker.topology.port(shard).store

        def is_nothing() -> bool:
            """Whether there is nothing here that could wait, nor has the group been here."""
            try:
                committed = store.committed_offsets(pair[0], topic_id)
            except UnknownTopic:  # It has had no message here.
                return True
            return bool((committed < 0).all()) and not store.group_lag(pair[0], topic_id)

        nothing = await self._broker.in_readers(is_nothing)
        return {"row": np.zeros(SAMPLES, "<f4").tobytes() if nothing else b""}
