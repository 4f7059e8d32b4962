"""Groups that read a named topic: its members share slots, and offsets are committed for the numbers of queues."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsmq_node.broker import Broker, ShardPort
from lsmq_node.broker.placement import split_by_shard
from lsmq_node.storage import NamesBehind, StoredTopic

from .lag import Lag, OffsetArray, counted
from .ranges import RangePairs

NumberArray = NDArray[Any]

#: The slot of a number that has no name.
NO_SLOT = 0xFFFF


async def _slots_and_begins(broker: Broker, topic: StoredTopic, queues: NumberArray) -> tuple[NumberArray, OffsetArray]:
    """The slot that each queue's name lies in, ``NO_SLOT`` where there is no such queue; and from which offset on its
    number is its own. Raises as reading does."""
    found, begins = np.full(len(queues), NO_SLOT, np.uint32), np.zeros(len(queues), np.int64)
    parts = split_by_shard(queues, topic, broker.topology.home_shards)
    ports = await broker.reads.ports(topic, [shard for shard, _ in parts])
    for port, (_, places) in zip(ports, parts, strict=True):
        names = await broker.names.current(port, topic)
        numbers = queues[places].astype(np.uint32)
        found[places], begins[places] = names.slots_of(numbers), names.begins_of(numbers)
        port.check_readable()
    return found, begins


async def worth_committing(
    broker: Broker, topic: StoredTopic, queues: NumberArray, offsets: OffsetArray, *, reset: bool
) -> tuple[NumberArray, NumberArray]:
    """Which of these a commit says something for, and the slots of those.

    A queue that was deleted has no offset to commit, and one at or below what is kept says nothing: its number may be
    another queue's by now, which goes on behind it. A ``reset`` may go back to what is kept first, where that cannot be
    the end of another.
    """
    slots, begins = await _slots_and_begins(broker, topic, queues)
    there = np.flatnonzero(slots != NO_SLOT)
    if len(there):
        earliest, _ = await broker.offsets(topic, queues[there])
        least = earliest + 1
        if reset:
            least[(begins[there] == 0) | (begins[there] < earliest)] -= 1
        there = there[offsets[there] >= least]
    return there, slots[there]


async def numbers_in(
    broker: Broker, port: ShardPort, topic: StoredTopic, slots: RangePairs, group: str | None = None
) -> NumberArray:
    """The numbers of a shard's queues whose names lie in these slots, ascending; those that ``group`` reads, where it
    reads by a pattern."""
    while True:
        names = await broker.names.current(port, topic)
        try:
            numbers = names.all_numbers(slots)
        except NamesBehind:
            continue
        break
    patterns = port.store.named.patterns
    pattern = None if group is None else patterns.of(group, topic.id)
    if pattern is None:
        return numbers
    fitting = await broker.in_readers(lambda: patterns.numbers(topic.id, pattern))
    return numbers if fitting is None else np.intersect1d(numbers, fitting, assume_unique=True)


def count_named_lag(
    slots: NumberArray, earliest: OffsetArray, latest: OffsetArray, committed: OffsetArray, ranges: RangePairs
) -> Lag:
    """Of queues that all lie in ``ranges`` of slots, which are disjoint. The arrays hold one number for each queue."""
    lags = np.maximum(latest - np.maximum(committed, earliest), 0)
    in_slot = np.zeros((ranges[-1][1] if ranges else 0) + 1, np.int64)
    np.add.at(in_slot, slots + 1, lags)
    below = np.cumsum(in_slot)
    return counted(lags, committed, tuple(int(below[end] - below[first]) for first, end in ranges))
