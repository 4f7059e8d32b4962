"""Which shard holds which queue: contiguous ranges, computed and never stored.

Shard ``i`` of ``n`` holds the queues ``[i * queues // n, (i + 1) * queues // n)`` of every topic. A route is
therefore a handful of ranges, whatever the number of queues.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The queues ``[first, end)`` of a topic and the shard that holds them."""

    first: int
    end: int
    shard: int


def shard_cuts(queues: int, shards: int) -> list[int]:
    """Where each shard's range begins, and the number of queues as the last item."""
    return [shard * queues // shards for shard in range(shards + 1)]


def queue_ranges(queues: int, shards: int) -> tuple[QueueRange, ...]:
    """The ranges of a topic of ``queues`` queues, in order. A shard that would hold none has no range."""
    cuts = shard_cuts(queues, shards)
    return tuple(QueueRange(first, end, shard) for shard, (first, end) in enumerate(pairwise(cuts)) if first < end)


def shard_of(queue: int, queues: int, shards: int) -> int:
    """The shard that holds ``queue``: the inverse of :func:`queue_ranges`."""
    return 0 if shards == 1 else ((queue + 1) * shards - 1) // queues


def split_by_shard(selected: NDArray[Any], queues: int, shards: int) -> list[tuple[int, NDArray[np.int64]]]:
    """Positions in ``selected`` (queue numbers in any order) by the shard that holds them, in shard order."""
    if shards == 1:
        return [(0, np.arange(len(selected)))]
    owners = ((selected.astype(np.int64) + 1) * shards - 1) // queues
    return [(int(shard), np.flatnonzero(owners == shard)) for shard in np.unique(owners)]
