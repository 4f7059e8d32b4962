"""Looking through a topic's messages for those that a filter picks: queue after queue, in each the oldest first.

Nothing says where they are but what the index knows of tags and types (:mod:`.word_filters`), so a search looks at
columns as a read does, and no request at more than one may: then it ends where it has come to, and goes on from there.
A place (queue, offset) is one for good, whatever is flushed, merged, sent or deleted meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .columns import U32
from .queries import Queries
from .reader import Slice
from .sieve import SIEVED_RECORDS, Picked

#: So many queues are read at once.
_QUEUES_AT_ONCE = 4_096
#: A queue with more messages than this is begun where those of the time begin, which is looked up at about their cost.
_WORTH_A_JUMP = 4_096

#: Queue and offset.
Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """Messages of a topic that ``picked`` picks, from a place on: at most ``limit``, about ``max_bytes``.

    ``queue``: in this one alone. ``from_ms``: what was stored before is not picked anyway.
    """

    topic_id: int
    picked: Picked
    limit: int
    max_bytes: int
    begin: Place = (0, 0)
    queue: int | None = None
    from_ms: int = 0


@dataclass(slots=True)
class SearchFound:
    """What was found. All before ``reached`` is given; None: there is nothing behind.

    ``spans``: by queue, from which offset to which it was looked through. ``looked``: how many messages that were.
    """

    slices: list[Slice] = field(default_factory=list)
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)
    reached: Place | None = None
    looked: int = 0


def search(queries: Queries, query: SearchQuery) -> SearchFound:
    """In a thread that may read from the disk. Raises ``UnknownTopic``, ``CorruptFile``."""
    found, topic_id = SearchFound(), query.topic_id
    first, end = queries.numbers(topic_id)
    if query.queue is not None:
        first, end = max(first, query.queue), min(end, query.queue + 1)
    queues: U32 = np.arange(max(first, query.begin[0]), max(end, first), dtype=np.uint32)
    if not len(queues):
        return found
    starts, ends = queries.earliest_offsets(topic_id, queues), queries.latest_offsets(topic_id, queues)
    if int(queues[0]) == query.begin[0]:
        starts[0] = max(int(starts[0]), query.begin[1])
    active = np.flatnonzero(starts < ends)
    left, left_bytes = query.limit, query.max_bytes
    at = 0
    while at < len(active):
        if left <= 0 or left_bytes <= 0 or found.looked >= SIEVED_RECORDS:
            found.reached = int(queues[active[at]]), int(starts[active[at]])
            return found
        rows = active[at : at + _QUEUES_AT_ONCE]
        if query.from_ms:
            large = np.flatnonzero(ends[rows] - starts[rows] > _WORTH_A_JUMP)[: SIEVED_RECORDS // _WORTH_A_JUMP + 1]
            if len(large) > SIEVED_RECORDS // _WORTH_A_JUMP:
                rows, large = rows[: large[-1]], large[:-1]
            for row in rows[large].tolist():
                first_of_time = queries.offset_for_time(topic_id, int(queues[row]), query.from_ms)
                starts[row] = min(max(first_of_time, int(starts[row])), int(ends[row]))
            found.looked += len(large) * _WORTH_A_JUMP
        at += len(rows)
        rows = rows[starts[rows] < ends[rows]]
        if not len(rows):
            continue
        own, begins, stops = queues[rows], starts[rows], ends[rows]
        part = queries.read_many(
            topic_id, own, begins, ends=stops, max_records=left, max_bytes=left_bytes, picked=query.picked
        )
        moved, (touched, positions) = begins.copy(), part.positions
        np.maximum.at(moved, own.searchsorted(touched), positions)
        behind = np.flatnonzero(moved < stops)
        stop = int(behind[0]) if len(behind) else len(own)
        found.slices.append(part)
        spans: Any = zip(own.tolist(), zip(begins.tolist(), moved.tolist(), strict=True), strict=True)
        found.spans.update(list(spans)[: stop + 1])
        found.looked += int((moved - begins)[: stop + 1].sum())
        if stop < len(own):
            found.reached = int(own[stop]), int(moved[stop])
            return found
        left, left_bytes = left - part.record_count, left_bytes - part.size_bytes
    return found
