"""Splits: what one task reads. A range of queues of one shard, and of each a range of offsets.

The plan depends on nothing but offsets, routes and options, so that a batch planned again after a restart is cut the
same way: what is written further on knows a task by its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray
from pyspark.sql.datasource import InputPartition

from lsmq.queue_names import SEPARATOR
from lsmq.topics import Topic
from lsmq_pipeline.named import NamedQueues

I64 = NDArray[np.int64]


class Split(InputPartition):
    """Messages of ``queues[i]`` with offsets in ``[starts[i], ends[i])``, all of one shard.

    Queues ascend, and none is empty. Travels compressed: a split may hold a hundred thousand queues. ``names`` are
    theirs, in a named topic where they are asked for.
    ``mean_bytes`` is about how large a message is, 0 when nobody asked.
    """

    def __init__(
        self,
        topic: dict[str, Any],
        shard: int,
        queues: NDArray[Any],
        starts: I64,
        ends: I64,
        mean_bytes: int = 0,
        names: tuple[str, ...] = (),
    ) -> None:
        super().__init__(None)
        self.topic = topic
        self.shard = shard
        self.queues = queues
        self.starts = starts
        self.ends = ends
        self.mean_bytes = mean_bytes
        self.names = names

    @property
    def message_count(self) -> int:
        return int((self.ends - self.starts).sum())

    def __reduce__(self) -> tuple[Any, ...]:
        columns = (self.queues.astype("<u4"), self.starts.astype("<i8"), (self.ends - self.starts).astype("<i8"))
        packed = zstandard.compress(b"".join(column.tobytes() for column in columns), 3)
        names = zstandard.compress(SEPARATOR.join(self.names).encode(), 3) if self.names else b""
        return _unpacked, (self.topic, self.shard, len(self.queues), packed, self.mean_bytes, names)

    def __repr__(self) -> str:
        return (
            f"Split(topic={self.topic['name']!r}, shard={self.shard}, queues={self.queues[0]}..{self.queues[-1]} "
            f"({len(self.queues)}), messages={self.message_count})"
        )


def _unpacked(
    topic: dict[str, Any], shard: int, count: int, packed: bytes, mean_bytes: int, packed_names: bytes
) -> Split:
    raw = zstandard.decompress(packed, max_output_size=20 * count)
    queues = np.frombuffer(raw, "<u4", count)
    starts = np.frombuffer(raw, "<i8", count, 4 * count)
    lengths = np.frombuffer(raw, "<i8", count, 12 * count)
    names = tuple(zstandard.decompress(packed_names).decode().split(SEPARATOR)) if packed_names else ()
    return Split(topic, shard, queues, starts, starts + lengths, mean_bytes, names)


@dataclass(frozen=True, slots=True)
class Portion:
    """What is to be read of a topic: ``[start, end)`` of every queue; ``mean_bytes`` a message, 0 if unknown.

    Of a ``named`` topic only those queues are here that are read, and the routes of ``topic`` are of their places.
    """

    topic: Topic
    start: I64
    end: I64
    mean_bytes: int = 0
    named: NamedQueues | None = None

    @property
    def message_count(self) -> int:
        return int(np.maximum(self.end - self.start, 0).sum())


def plan(
    portions: Sequence[Portion], *, min_splits: int, max_messages: int, max_bytes: int, whole_queues: bool
) -> list[Split]:
    """Cut the portions into splits of about equal size.

    At least ``min_splits`` where there are as many messages, and at least one for each shard that has any; no split
    has more than ``max_messages``, or about ``max_bytes``. With ``whole_queues`` no queue is cut: tasks run side by
    side, and what two of them write of one queue is stored in any order. A queue that is larger is a split alone then.
    """
    total = sum(portion.message_count for portion in portions)
    if total == 0:
        return []
    even = -(-total // min_splits)
    splits: list[Split] = []
    for portion in portions:
        size = min(even, max_messages)
        if portion.mean_bytes:
            size = min(size, max(1, max_bytes // portion.mean_bytes))
        for route in portion.topic.routes:
            splits += _cut(portion, route.shard, route.first, route.end, size, whole_queues)
    return splits


def _cut(portion: Portion, shard: int, first: int, end: int, size: int, whole_queues: bool) -> list[Split]:
    """One shard's queues in runs of about ``size`` messages, cut within a queue where that is needed and allowed."""
    backlog = portion.end[first:end] - portion.start[first:end]
    active = np.flatnonzero(backlog > 0)
    if len(active) == 0:
        return []
    queues = (active + first).astype(np.uint32)
    named = portion.named
    counts = backlog[active]
    bounds = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    total = int(bounds[-1])
    pieces = -(-total // size)
    cuts = _between_queues(bounds, size) if whole_queues else [piece * total // pieces for piece in range(pieces + 1)]
    identity = _identity(portion.topic if named is None else named.topic)
    splits = []
    for low, high in pairwise(cuts):
        begin = int(np.searchsorted(bounds, low, side="right")) - 1
        stop = int(np.searchsorted(bounds, high, side="left"))
        chosen = queues[begin:stop]
        starts = portion.start[chosen].copy()
        ends = portion.end[chosen].copy()
        starts[0] += low - bounds[begin]
        ends[-1] -= bounds[stop] - high
        names: tuple[str, ...] = ()
        if named is not None:
            names = tuple(named.names[place] for place in chosen.tolist()) if named.names else ()
            chosen = named.numbers[chosen]
        splits.append(Split(identity, shard, chosen, starts, ends, portion.mean_bytes, names))
    return splits


def _between_queues(bounds: I64, size: int) -> list[int]:
    """Those of ``bounds``, where queues begin and end, that make runs of at most ``size``, or of one queue."""
    at, cuts = 0, [0]
    while at < len(bounds) - 1:
        at = max(at + 1, int(np.searchsorted(bounds, bounds[at] + size, side="right")) - 1)
        cuts.append(int(bounds[at]))
    return cuts


def _identity(topic: Topic) -> dict[str, Any]:
    """The topic with one route for each shard: tasks find leaders by themselves, and need no more of it."""
    return topic.to_dict()
