"""Sets of queues as ranges: sorted, disjoint, not touching, not empty; each ``(first, end)``, half-open.

All functions are linear in the number of ranges, never in the number of queues.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from lsmq.errors import InvalidRequest

RangePairs = tuple[tuple[int, int], ...]

NONE: RangePairs = ()


def normal(pieces: Iterable[tuple[int, int]]) -> RangePairs:
    """The set of all queues of ``pieces``, which may be in any order and overlap."""
    found: list[tuple[int, int]] = []
    for first, end in sorted(pieces):
        if first >= end:
            continue
        if found and first <= found[-1][1]:
            if end > found[-1][1]:
                found[-1] = (found[-1][0], end)
        else:
            found.append((first, end))
    return tuple(found)


def count(ranges: RangePairs) -> int:
    """How many queues."""
    return sum(end - first for first, end in ranges)


def union(*sets: RangePairs) -> RangePairs:
    """The queues of any of them."""
    filled = [ranges for ranges in sets if ranges]
    return filled[0] if len(filled) == 1 else normal(chain.from_iterable(filled))


def subtract(ranges: RangePairs, other: RangePairs) -> RangePairs:
    """The queues of ``ranges`` that are not in ``other``."""
    if not other or not ranges:
        return ranges
    found: list[tuple[int, int]] = []
    at = 0
    for first, end in ranges:
        while at < len(other) and other[at][1] <= first:
            at += 1
        here = at
        while here < len(other) and other[here][0] < end:
            if other[here][0] > first:
                found.append((first, other[here][0]))
            first = max(first, other[here][1])
            here += 1
        if first < end:
            found.append((first, end))
    return tuple(found)


def intersect(ranges: RangePairs, other: RangePairs) -> RangePairs:
    """The queues of both."""
    found: list[tuple[int, int]] = []
    left, right = 0, 0
    while left < len(ranges) and right < len(other):
        first, end = max(ranges[left][0], other[right][0]), min(ranges[left][1], other[right][1])
        if first < end:
            found.append((first, end))
        if ranges[left][1] < other[right][1]:
            left += 1
        else:
            right += 1
    return tuple(found)


def clip(ranges: RangePairs, end: int) -> RangePairs:
    """The queues below ``end``."""
    return intersect(ranges, ((0, end),)) if ranges and ranges[-1][1] > end else ranges


def overlap(ranges: RangePairs, other: RangePairs) -> bool:
    """Whether a queue is in both."""
    return bool(ranges and other and ranges[0][0] < other[-1][1] and other[0][0] < ranges[-1][1]) and bool(
        intersect(ranges, other)
    )


def flat(ranges: RangePairs) -> list[int]:
    """For a document: first, end, first, end, ..."""
    return list(chain.from_iterable(ranges))


def from_flat(numbers: Sequence[int]) -> RangePairs:
    """The inverse of :func:`flat`."""
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def parse(pieces: Iterable[Sequence[int]], field: str) -> RangePairs:
    """Ranges as a request has them: pairs ``[first, end]``. Raises ``InvalidRequest``."""
    found = []
    for piece in pieces:
        if len(piece) != 2 or not 0 <= piece[0] < piece[1]:
            raise InvalidRequest(
                f"{field} has {list(piece)}; a range is [first, end], the end not included and above the first",
                field=field,
            )
        found.append((piece[0], piece[1]))
    return normal(found)


def pairs(ranges: RangePairs) -> list[list[int]]:
    """Ranges as an answer has them."""
    return [[first, end] for first, end in ranges]


def each(ranges: RangePairs) -> Iterator[int]:
    """Every queue. Costs as many."""
    return chain.from_iterable(range(first, end) for first, end in ranges)
