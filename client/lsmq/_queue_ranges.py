"""Sets of queues as ranges in order, disjoint, none of them empty: cost follows the ranges, not the queues."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from lsmq.group_values import Ranges

NONE: Ranges = ()


def to_ranges(queues: Iterable[int]) -> Ranges:
    """Any queues as ranges."""
    if isinstance(queues, range) and queues.step == 1:
        return (queues,) if queues else NONE
    found: list[range] = []
    first = end = 0
    for queue in sorted(queues):
        if end == first or queue > end:
            if end > first:
                found.append(range(first, end))
            first = queue
        end = queue + 1
    if end > first:
        found.append(range(first, end))
    return tuple(found)


def union(*sets: Iterable[range]) -> Ranges:
    found: list[range] = []
    for part in sorted((part for parts in sets for part in parts if part), key=lambda part: part.start):
        if found and part.start <= found[-1].stop:
            found[-1] = range(found[-1].start, max(found[-1].stop, part.stop))
        else:
            found.append(part)
    return tuple(found)


def intersect(one: Sequence[range], other: Sequence[range]) -> Ranges:
    found: list[range] = []
    at = 0
    for part in one:
        while at < len(other) and other[at].stop <= part.start:
            at += 1
        reached = at
        while reached < len(other) and other[reached].start < part.stop:
            found.append(range(max(part.start, other[reached].start), min(part.stop, other[reached].stop)))
            reached += 1
    return tuple(found)


def subtract(one: Sequence[range], other: Sequence[range]) -> Ranges:
    found: list[range] = []
    at = 0
    for part in one:
        start = part.start
        while at < len(other) and other[at].stop <= start:
            at += 1
        reached = at
        while reached < len(other) and other[reached].start < part.stop:
            if start < other[reached].start:
                found.append(range(start, other[reached].start))
            start = max(start, other[reached].stop)
            reached += 1
        if start < part.stop:
            found.append(range(start, part.stop))
    return tuple(found)


def contains(ranges: Ranges, queue: int) -> bool:
    at = bisect_right(ranges, queue, key=lambda part: part.start) - 1
    return at >= 0 and queue < ranges[at].stop


def count(ranges: Ranges) -> int:
    return sum(map(len, ranges))
