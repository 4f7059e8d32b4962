"""Which shard holds which queue: contiguous ranges, so that a route is a handful, whatever the number of queues.

Shard ``i`` of ``n`` holds the queues ``[i * queues // n, (i + 1) * queues // n)`` of a topic. When a topic grows, what
is new is cut likewise, and what there was stays: then the ranges stand in the topic. So they do in one that was made
after there were more shards: ``n`` is how many the node was made with, ``shards`` in what follows, for ever.

Of a named topic it is slots that are cut so. Its queues go by numbers, whose upper bits are the place of their range.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsmq.queue_names import NUMBER_BITS
from lsmq_coordinator.state import QueueRange, spread_queues
from lsmq_node.storage import StoredTopic


def shard_cuts(queues: int, shards: int) -> list[int]:
    """Where each shard's range begins, and the number of queues as the last item."""
    return [shard * queues // shards for shard in range(shards + 1)]


def queue_ranges(topic: StoredTopic, shards: int) -> tuple[QueueRange, ...]:
    """The ranges of a topic, in order. A shard that would hold none has no range."""
    if topic.ranges:
        return tuple(QueueRange(*found) for found in topic.ranges)
    return spread_queues(0, topic.queues, shards)


def number_end(topic: StoredTopic, shards: int) -> int:
    """Numbers of queues are below this."""
    return len(queue_ranges(topic, shards)) << NUMBER_BITS if topic.named else topic.queues


def numbered_ranges(topic: StoredTopic, shards: int) -> tuple[QueueRange, ...]:
    """The ranges of a topic by the numbers of queues: of a named one, all that its shards can give."""
    ranges = queue_ranges(topic, shards)
    if not topic.named:
        return ranges
    return tuple(
        QueueRange(place << NUMBER_BITS, (place + 1) << NUMBER_BITS, part.shard) for place, part in enumerate(ranges)
    )


def stored_range(topic: StoredTopic, shard: int, shards: int) -> tuple[int, int]:
    """The queues ``[first, end)`` that a shard's store has of a new topic. Of a named one there are none yet."""
    own = [(place, part) for place, part in enumerate(queue_ranges(topic, shards)) if part.shard == shard]
    if topic.named:
        first = own[0][0] << NUMBER_BITS if own else 0
        return first, first
    if not own:
        return topic.queues, topic.queues
    return own[0][1].first, own[-1][1].end


def slots_of(topic: StoredTopic, shard: int, shards: int) -> tuple[int, int]:
    """The slots ``[first, end)`` of a named topic that lie on a shard."""
    return next((part.first, part.end) for part in queue_ranges(topic, shards) if part.shard == shard)


def shard_of_slot(slot: int, topic: StoredTopic, shards: int) -> int:
    """The shard that holds a slot of a named topic."""
    ranges = queue_ranges(topic, shards)
    return ranges[bisect_right(ranges, slot, key=lambda part: part.first) - 1].shard


def shard_of(queue: int, topic: StoredTopic, shards: int) -> int:
    """The shard that holds ``queue``: the inverse of :func:`queue_ranges`. Of a named topic it is its number."""
    if topic.named:
        return queue_ranges(topic, shards)[queue >> NUMBER_BITS].shard
    if topic.ranges:
        return _range_of(queue, topic)[2]
    return 0 if shards == 1 else ((queue + 1) * shards - 1) // topic.queues


def _range_of(queue: int, topic: StoredTopic) -> tuple[int, int, int]:
    return topic.ranges[bisect_right(topic.ranges, queue, key=lambda found: found[0]) - 1]


def split_by_shard(selected: NDArray[Any], topic: StoredTopic, shards: int) -> list[tuple[int, NDArray[np.int64]]]:
    """Positions in ``selected`` (queue numbers in any order) by the shard that holds them, in shard order."""
    only = _only_shard(selected, topic, shards)
    if only is not None:
        return [(only, np.arange(len(selected)))]
    if topic.named:
        owners = np.array([part.shard for part in queue_ranges(topic, shards)])[selected >> NUMBER_BITS]
    elif topic.ranges:
        ends, holders = (np.array([found[at] for found in topic.ranges], np.int64) for at in (1, 2))
        owners = holders[ends.searchsorted(selected, "right")]
    else:
        owners = ((selected.astype(np.int64) + 1) * shards - 1) // topic.queues
    return [(int(shard), np.flatnonzero(owners == shard)) for shard in np.unique(owners)]


def _only_shard(selected: NDArray[Any], topic: StoredTopic, shards: int) -> int | None:
    """The shard of them all, where the least and the greatest tell: what lies between them is in the same range."""
    if shards == 1 and not topic.ranges:
        return 0
    if not len(selected):
        return None
    first, last = int(selected.min()), int(selected.max())
    if topic.named:
        return shard_of(first, topic, shards) if first >> NUMBER_BITS == last >> NUMBER_BITS else None
    if topic.ranges:
        _, end, shard = _range_of(first, topic)
        return shard if last < end else None
    shard = shard_of(first, topic, shards)
    return shard if shard == shard_of(last, topic, shards) else None
