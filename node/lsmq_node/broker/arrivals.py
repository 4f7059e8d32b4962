"""What has come to the queues of a named topic between two moments: for readers that remember a time and no queue.

A reader asks a shard's leader to note a moment, and then which queues got messages since the one that it knew, and from
which offset to which. Both are exact, and the same at each repeat, whoever leads by then: see
:mod:`lsmq_node.storage.moments`. What it reads, it reads by the numbers of queues, wherever it likes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from lsmq_node.storage import Moment, NamesBehind, ShardStore, StoredTopic, TopicNames
from lsmq_node.storage.columns import I64, U32

from .admission import Admission
from .names import BrokerNames
from .placement import queue_ranges
from .read_redirects import ReadFrom
from .selection import Selection
from .topology import Ack, ShardPort, Topology

#: Queues of one answer; of those that came in question where some are picked.
MAX_QUEUES = 100_000


@dataclass(frozen=True, slots=True)
class ReadPlace:
    """Up to where a shard is read: all that was stored before ``time_ms``.

    With ``until_ms``, a later moment, so it is for the queues behind ``queue`` alone: ``queue`` is read up to
    ``offset``, and those whose numbers are below it up to ``until_ms``.
    """

    time_ms: int
    until_ms: int | None = None
    queue: int = 0
    offset: int = 0


@dataclass(frozen=True, slots=True)
class ArrivedQueues:
    """Queues ``numbers``, ascending, and the offsets ``[starts, ends)`` that came to each.

    Attributes:
        earliest: below these nothing is left.
        names: None where nobody asked; of a queue that was deleted, None.
        messages: how many came, to all queues, picked or not, on all pages.
        exact: whether ``messages`` is true even of what has gone since: else there may be holes where a queue begins.
        following: the number with which the next page begins; None behind the last.
    """

    numbers: U32
    starts: I64
    ends: I64
    earliest: I64
    names: list[str | None] | None
    messages: int
    exact: bool
    following: int | None


class ArrivalReads:
    """Loop thread only."""

    def __init__(self, topology: Topology, names: BrokerNames, admission: Admission) -> None:
        self._topology = topology
        self._names = names
        self._admission = admission

    async def note(self, topic: StoredTopic, shard: int) -> Moment:
        """A moment after all messages that are acknowledged by now, durable. Writes where any came since the last.

        Raises ``NotLeader``, ``Unavailable`` and what a write raises, but not ``NotEnoughReplicas``.
        """
        port = await self._port(topic, shard)
        moments = port.store.named.moments
        known: Moment | None = await self._names.in_threads(lambda: moments.latest(topic.id))
        if known is not None:
            port.check_readable()
            return known
        self._admission.write()
        port.check_writable(Ack.LEADER)
        moments = port.store.named.moments
        noted = moments.note(topic.id)
        await port.wait(noted.appended, Ack.QUORUM)
        moments.landed(noted)
        return noted.moment

    async def between(
        self,
        topic: StoredTopic,
        shard: int,
        since: ReadPlace | None,
        until: ReadPlace | None,
        which: Selection | None = None,
        *,
        after: int = 0,
        limit: int = MAX_QUEUES,
        with_names: bool = False,
    ) -> ArrivedQueues:
        """What came between two places: None for ``since`` is what is kept, for ``until`` what is there now.

        Pages begin with the number ``after``. Raises ``NotLeader``, ``Unavailable``, ``UnknownTopic``, ``CorruptFile``.
        """
        port = await self._port(topic, shard)
        store = port.store
        await self._names.current(port, topic)  # a queue that is read has a name by now, or was deleted
        numbers, starts, ends, messages, exact = await self._names.in_threads(
            lambda: _arrived(store, topic.id, since, until)
        )
        begin = int(numbers.searchsorted(after))
        if which is not None and which.most is not None:
            numbers, starts, ends = await self._picked(port, topic, which.all, numbers, starts, ends)
            begin = int(numbers.searchsorted(after))
        stop = min(begin + limit, len(numbers))
        following = int(numbers[stop]) if stop < len(numbers) else None
        page = slice(begin, stop)
        numbers, starts, ends = numbers[page], starts[page], ends[page]
        if which is not None and which.most is None and len(numbers):
            some = numbers
            numbers, starts, ends = await self._picked(
                port, topic, lambda names: which.among(names, some), numbers, starts, ends
            )
        names = None
        if with_names:
            known = await self._names.current(port, topic)
            names = await self._names.in_threads(lambda: known.names(numbers))
        earliest = store.earliest_offsets(topic.id, numbers)
        port.check_readable()
        return ArrivedQueues(numbers, starts, ends, earliest, names, messages, exact, following)

    async def _picked(
        self,
        port: ShardPort,
        topic: StoredTopic,
        choose: Callable[[TopicNames], U32],
        numbers: U32,
        starts: I64,
        ends: I64,
    ) -> tuple[U32, I64, I64]:
        while True:
            names = await self._names.current(port, topic)
            try:
                chosen: U32 = await self._names.in_threads(partial(choose, names))
            except NamesBehind:
                continue
            kept = np.isin(numbers, chosen)
            return numbers[kept], starts[kept], ends[kept]

    async def _port(self, topic: StoredTopic, shard: int) -> ShardPort:
        assert any(part.shard == shard for part in queue_ranges(topic, self._topology.home_shards)), "seen to before"
        (port,) = await self._names.ports(topic, [shard], ReadFrom.LEADER)
        return port


def _arrived(
    store: ShardStore, topic_id: int, since: ReadPlace | None, until: ReadPlace | None
) -> tuple[U32, I64, I64, int, bool]:
    """Numbers, starts and ends of queues that got messages, how many, and whether that is exact. May read the disk."""
    first, end = store.numbers(topic_id)
    count, kept = end - first, True
    if until is None:
        ends = store.latest_offsets(topic_id)[:count]
    else:
        ends, kept = _column(store, topic_id, until, first, count)
    if since is None:
        starts = np.minimum(store.earliest_offsets(topic_id)[:count], ends)
    else:
        starts, held = _column(store, topic_id, since, first, count)
        kept = kept and held
    rows = np.flatnonzero(ends > starts)
    starts, ends = starts[rows], ends[rows]
    exact = kept or store.named.moments.is_whole(topic_id)
    return (rows + first).astype(np.uint32), starts, ends, int((ends - starts).sum()), exact


def _column(store: ShardStore, topic_id: int, place: ReadPlace, first: int, count: int) -> tuple[I64, bool]:
    """Where each of a topic's rows stands at a place."""
    moments = store.named.moments
    found, kept = moments.ends_at(topic_id, place.time_ms)
    column = np.zeros(count, np.int64)
    known = min(count, len(found))
    column[:known] = found[:known]
    if place.until_ms is not None:
        later, held = moments.ends_at(topic_id, place.until_ms)
        row = min(max(place.queue - first, 0), count)
        known = min(row, len(later))
        column[:known] = later[:known]
        if row < count:
            column[row] = place.offset
        kept = kept and held
    return column, kept
