"""The queues of a topic that somebody looks for among a million: those with the most messages, the busiest, the oldest.

Each shard's leader ranks its own queues and answers with the first of them. By depth and by rate that is arithmetic
over two columns of the topic, which are in memory; by age the oldest message of each queue with any is read, of the
:data:`MAX_READ` deepest where there are more.

A ranking takes some thirty bytes a queue while it is made, and a thread of the readers. So those under way at a node
are of :data:`AT_ONCE` queues together, and a few wait for theirs (:class:`RankingTurns`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lsmq import runtime
from lsmq.errors import ConnectionFailed, NotLeader, Unavailable
from lsmq_node.storage import ShardStore, StoredTopic

from .leader_calls import LeaderCalls
from .names import BrokerNames
from .placement import queue_ranges
from .read_redirects import ReadFrom
from .topology import ShardPort, Topology

OPERATION = "top-queues"
#: Queues whose oldest messages are read to rank a shard's queues by age.
MAX_READ: Final = 10_000
_ASK_TIMEOUT_S: Final = 20.0
#: Queues read at once in a thread of the readers; others have it between two such turns.
_A_TURN: Final = 1_000
#: Between the two looks that tell a rate.
_WATCHED_S: Final = 1.0
#: Queues of all rankings under way at a node together; one of more is made alone.
AT_ONCE: Final = 1 << 20
#: Queues of rankings that wait for their turn.
MOST_WAITING: Final = 64 << 20


class RankedBy(StrEnum):
    """What queues are ranked by."""

    DEPTH = "depth"
    RATE = "rate"
    AGE = "age"


@dataclass(frozen=True, slots=True)
class RankedQueue:
    """A queue of the list. ``in_per_s`` is known where queues are ranked by rate.

    Attributes:
        queue: its name, or its number where it has none.
        oldest_ms: when its first message was stored; None where it is empty.
    """

    queue: str | int
    number: int
    earliest: int
    latest: int
    in_per_s: float | None
    oldest_ms: int | None


@dataclass(frozen=True, slots=True)
class Ranking:
    """``count``: the queues that have messages. ``partial``: not all of them could be ranked."""

    queues: Sequence[RankedQueue]
    count: int
    partial: bool


class RankingTurns:
    """Whose turn it is to make a ranking, in the order in which they come. Loop thread only."""

    def __init__(self) -> None:
        self._under_way = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def of(self, queues: int) -> AsyncIterator[None]:
        """In the block a ranking of so many queues is made. Raises ``Unavailable`` where too many wait."""
        if self._waiting or not self._fits(queues):
            waiting = sum(count for count, _ in self._waiting)
            if self._waiting and waiting + queues > MOST_WAITING:
                raise Unavailable(
                    f"lists of top queues are asked for that look at {waiting} queues, and this one at {queues}; the "
                    f"limit of those that wait is {MOST_WAITING}: ask again in a moment",
                    limit=MOST_WAITING,
                )
            turn = queues, asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn[1]
            except BaseException:
                if turn[1].cancelled():
                    with suppress(ValueError):
                        self._waiting.remove(turn)
                else:  # It had its turn just then.
                    self._under_way -= queues
                self._next()
                raise
        else:
            self._under_way += queues
        try:
            yield
        finally:
            self._under_way -= queues
            self._next()

    def _fits(self, queues: int) -> bool:
        return not self._under_way or self._under_way + queues <= AT_ONCE

    def _next(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            queues, turn = self._waiting.popleft()
            if not turn.done():
                self._under_way += queues
                turn.set_result(None)


class QueueRanks:
    """Loop thread only."""

    def __init__(self, topology: Topology, names: BrokerNames) -> None:
        self._topology = topology
        self._names = names
        self._leaders = LeaderCalls(topology, OPERATION, self._own, _ASK_TIMEOUT_S)
        self._turns = RankingTurns()

    async def rank(self, topic: StoredTopic, by: RankedBy, limit: int) -> Ranking:
        """The first ``limit`` of all shards. Raises ``Unavailable`` where the leader of one cannot be asked."""
        shards = sorted({part.shard for part in queue_ranges(topic, self._topology.home_shards)})
        parts = await asyncio.gather(*(self._of(shard, topic, by, limit) for shard in shards))
        queues = [RankedQueue(*row) for part in parts for row in part["queues"]]
        queues.sort(key=lambda queue: _rank(queue, by))
        return Ranking(queues[:limit], sum(part["count"] for part in parts), any(part["partial"] for part in parts))

    async def _of(self, shard: int, topic: StoredTopic, by: RankedBy, limit: int) -> dict[str, Any]:
        try:
            return await self._leaders.ask(shard, {"topic": topic.id, "by": by.value, "limit": limit})
        except (NotLeader, ConnectionFailed) as error:
            raise Unavailable(f"the leader of shard {shard} cannot be asked: {error.message}", shard=shard) from error

    async def _own(self, shard: int, asked: dict[str, Any]) -> dict[str, Any]:
        topic, by, limit = await self._topology.topics.by_id(asked["topic"]), RankedBy(asked["by"]), int(asked["limit"])
        (port,) = await self._names.ports(topic, [shard], ReadFrom.LEADER)
        begin, end = port.store.numbers(topic.id)
        async with self._turns.of(end - begin):
            return await self._ranked(port, topic, by, limit)

    async def _ranked(self, port: ShardPort, topic: StoredTopic, by: RankedBy, limit: int) -> dict[str, Any]:
        store, in_threads = port.store, self._names.in_threads
        rates: NDArray[np.float64] | None = None
        if by is RankedBy.RATE:
            began, former = runtime.monotonic(), await in_threads(lambda: store.latest_offsets(topic.id).copy())
            await asyncio.sleep(_WATCHED_S)
            rates = await in_threads(lambda: _rates(store, topic.id, former, began))
        chosen, depths = await in_threads(
            lambda: _deepest(store, topic.id, MAX_READ if by is RankedBy.AGE else limit, rates)
        )
        oldest = await self._oldest(store, topic.id, chosen)
        if by is RankedBy.AGE:
            order = np.argsort(np.where(oldest < 0, np.iinfo(np.int64).max, oldest), kind="stable")[:limit]
            chosen, oldest = chosen[order], oldest[order]
        called: dict[int, Any] = await self._names.names_of(topic, chosen.tolist()) if topic.named else {}
        port.check_readable()
        first = store.numbers(topic.id)[0]
        rows = []
        bounds = store.earliest_offsets(topic.id, chosen).tolist(), store.latest_offsets(topic.id, chosen).tolist()
        for number, low, high, at_ms in zip(chosen.tolist(), *bounds, oldest.tolist(), strict=True):
            if topic.named and number not in called:
                continue  # It was deleted meanwhile.
            rate = None if rates is None else round(float(rates[number - first]), 3)
            name = called[number].name if topic.named else number
            rows.append((name, number, low, high, rate, at_ms if at_ms >= 0 else None))
        return {"queues": rows, "count": depths, "partial": by is RankedBy.AGE and depths > MAX_READ}

    async def _oldest(self, store: ShardStore, topic_id: int, queues: NDArray[np.uint32]) -> NDArray[np.int64]:
        """When the first message of each queue was stored; -1 where there is none."""
        found = np.empty(len(queues), np.int64)
        for begin in range(0, len(queues), _A_TURN):
            some = queues[begin : begin + _A_TURN]
            found[begin : begin + len(some)] = await self._names.in_threads(
                partial(store.first_stored_ms, topic_id, some)
            )
        return found


def _rank(queue: RankedQueue, by: RankedBy) -> tuple[float, int]:
    """Smaller is further up; of equals the lower number."""
    if by is RankedBy.DEPTH:
        return queue.earliest - queue.latest, queue.number
    if by is RankedBy.RATE:
        return -(queue.in_per_s or 0.0), queue.number
    return (float("inf") if queue.oldest_ms is None else queue.oldest_ms), queue.number


def _rates(store: ShardStore, topic_id: int, former: NDArray[np.int64], began: float) -> NDArray[np.float64]:
    """Messages a second of each queue since its end was ``former``. Of a queue that came since, all of them."""
    passed_s, now = max(runtime.monotonic() - began, 1e-3), store.latest_offsets(topic_id)
    rates = np.zeros(len(now))
    rates[: len(former)] = former[: len(now)]
    return np.maximum(now - rates, 0) / passed_s


def _deepest(
    store: ShardStore, topic_id: int, limit: int, rates: NDArray[np.float64] | None
) -> tuple[NDArray[np.uint32], int]:
    """Numbers of the queues with the most messages, or with the highest rates; and how many have any messages."""
    depths = np.maximum(store.latest_offsets(topic_id) - store.earliest_offsets(topic_id), 0)
    ranked = depths if rates is None else rates[: len(depths)]
    chosen = np.flatnonzero(ranked)
    if len(chosen) > limit:
        chosen = np.sort(chosen[np.argpartition(-ranked[chosen], limit - 1)[:limit]])
    chosen = chosen[np.argsort(-ranked[chosen], kind="stable")]
    return (chosen + store.numbers(topic_id)[0]).astype(np.uint32), int(np.count_nonzero(depths))
