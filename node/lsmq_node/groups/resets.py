"""Where a group goes on after a reset: worked out for some queues of a shard at a time, and shown before it is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lsmq_node.broker import Broker, ShardPort
from lsmq_node.broker.requests import ReadStart
from lsmq_node.storage import StoredTopic

from .named import numbers_in
from .ranges import RangePairs, intersect

#: Of one step: each may have to be looked up by time.
QUEUES_A_STEP: Final = 20_000
_NO_QUEUES: Final = np.empty(0, np.uint32)
#: No queue has this number or a higher one.
_BEYOND: Final = 2**32

Cursor = tuple[int, int]
"""A shard, and the first queue of it that is still to come."""


@dataclass(frozen=True, slots=True)
class ResetTo:
    """Where to; exactly one of them. An offset is limited by what is kept and what there is; a time means the first
    message stored then or later."""

    end: ReadStart | None = None
    offset: int | None = None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Moves:
    """Queues whose committed offset changes. ``committed`` is -1 where there is none."""

    queues: NDArray[np.uint32]
    earliest: NDArray[np.int64]
    latest: NDArray[np.int64]
    committed: NDArray[np.int64]
    to: NDArray[np.int64]

    @property
    def read_again(self) -> int:
        """Offsets that the group has passed, and passes once more; those of deleted messages count."""
        return int(np.maximum(self._stands - self.to, 0).sum())

    @property
    def skipped(self) -> int:
        """Offsets that the group has not read, and does not."""
        return int(np.maximum(self.to - self._stands, 0).sum())

    @property
    def _stands(self) -> NDArray[np.int64]:
        """Where the group would go on without."""
        return np.maximum(self.committed, self.earliest)


_NO_MOVES: Final = Moves(_NO_QUEUES, *(np.empty(0, np.int64),) * 4)


def moves_to(
    wanted: NDArray[np.int64],
    queues: NDArray[np.uint32],
    earliest: NDArray[np.int64],
    latest: NDArray[np.int64],
    committed: NDArray[np.int64],
) -> Moves:
    """Pure. A queue that nothing was ever sent to, and that has no committed offset, is left alone."""
    to = np.minimum(np.maximum(wanted, earliest), latest)
    changed = (to != committed) & ((latest > 0) | (committed >= 0))
    return Moves(queues[changed], earliest[changed], latest[changed], committed[changed], to[changed])


async def next_moves(
    broker: Broker, group: str, topic: StoredTopic, to: ResetTo, only: RangePairs | None, after: Cursor
) -> tuple[Moves, Cursor | None]:
    """Of some queues from ``after`` on, all of one shard, and where the next ones begin; None behind the last.

    ``only`` are of queues by number. Raises ``NotLeader`` unless this node leads that shard.
    """
    shards: dict[int, RangePairs] = {}
    for part in broker.ranges(topic):
        whole: RangePairs = ((part.first, part.end),)
        if own := whole if only is None else intersect(only, whole):
            shards[part.shard] = (*shards.get(part.shard, ()), *own)
    ahead = sorted(number for number in shards if number >= after[0])
    if not ahead:
        return _NO_MOVES, None
    first = after[1] if ahead[0] == after[0] else 0
    (port,) = await broker.reads.ports(topic, ahead[:1])
    queues = await _queues(broker, port, group, topic, shards[ahead[0]], first)
    some = queues[:QUEUES_A_STEP]
    following = (ahead[0], int(queues[QUEUES_A_STEP])) if len(queues) > QUEUES_A_STEP else None
    if following is None and len(ahead) > 1:
        following = ahead[1], 0
    return await _moves(broker, port, group, topic, to, some), following


async def _queues(
    broker: Broker, port: ShardPort, group: str, topic: StoredTopic, own: RangePairs, first: int
) -> NDArray[np.uint32]:
    """Those of the shard that the group reads, from the ``first`` on; of queues by number one more than a step takes,
    if there is one."""
    if topic.named:
        numbers = await numbers_in(broker, port, topic, own, group)
        return numbers[numbers >= first].astype(np.uint32)
    found, left = [_NO_QUEUES], QUEUES_A_STEP + 1
    for low, end in intersect(own, ((first, _BEYOND),)):
        found.append(np.arange(low, min(end, low + left), dtype=np.uint32))
        left -= len(found[-1])
        if not left:
            break
    return np.concatenate(found)


async def _moves(
    broker: Broker, port: ShardPort, group: str, topic: StoredTopic, to: ResetTo, queues: NDArray[Any]
) -> Moves:
    if not len(queues):
        return _NO_MOVES
    earliest, latest = await broker.offsets(topic, queues)
    if to.time_ms is not None:
        wanted = await broker.offsets_for_time(topic, queues, to.time_ms)
    elif to.offset is not None:
        wanted = np.full(len(queues), to.offset, np.int64)
    else:
        wanted = earliest if to.end is ReadStart.EARLIEST else latest
    committed = port.store.committed_offsets(group, topic.id, queues)
    port.check_readable()
    return moves_to(wanted, queues, earliest, latest, committed)
