"""How far a group is behind: counted where the queues are, for all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .ranges import RangePairs

OffsetArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Lag:
    """Of a topic's queues in some ranges.

    Attributes:
        queues: how many were looked at.
        lag: messages that wait to be read, in all. Where nothing is committed, all that are kept count.
        behind: queues with any.
        uncommitted: queues that the group has committed nothing for.
        largest: the most of one queue.
        by_range: the lag of each range that was asked for.
        uncommitted_lag: of ``lag``, what lies in queues that the group has committed nothing for.
        uncommitted_behind: of ``behind``, these queues.
        committed_largest: the most of one of the others.
    """

    queues: int
    lag: int
    behind: int
    uncommitted: int
    largest: int
    by_range: tuple[int, ...]
    uncommitted_lag: int
    uncommitted_behind: int
    committed_largest: int


def counted(lags: OffsetArray, committed: OffsetArray, by_range: tuple[int, ...]) -> Lag:
    """Of queues that have one number each in the arrays; ``committed`` is below 0 where nothing is."""
    uncommitted = committed < 0
    others = lags[uncommitted]
    return Lag(
        len(lags),
        sum(by_range),
        int(np.count_nonzero(lags)),
        len(others),
        int(lags.max(initial=0)),
        by_range,
        int(others.sum()),
        int(np.count_nonzero(others)),
        int(lags[~uncommitted].max(initial=0)),
    )


def count_lag(
    first: int, earliest: OffsetArray, latest: OffsetArray, committed: OffsetArray, ranges: RangePairs
) -> Lag:
    """``ranges`` lie within the queues from ``first`` on, of which the arrays hold one number each."""
    lags = np.maximum(latest - np.maximum(committed, earliest), 0)
    pieces = [np.arange(low - first, high - first) for low, high in ranges]
    rows = np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
    return counted(lags[rows], committed[rows], tuple(int(lags[piece].sum()) for piece in pieces))


def join(lags: Sequence[Lag]) -> Lag:
    """Of one range, counted in pieces."""
    whole = add(lags)
    return replace(whole, by_range=(whole.lag,))


def add(lags: Sequence[Lag]) -> Lag:
    """Of several shards; ``by_range`` one after another."""
    return Lag(
        sum(lag.queues for lag in lags),
        sum(lag.lag for lag in lags),
        sum(lag.behind for lag in lags),
        sum(lag.uncommitted for lag in lags),
        max((lag.largest for lag in lags), default=0),
        tuple(number for lag in lags for number in lag.by_range),
        sum(lag.uncommitted_lag for lag in lags),
        sum(lag.uncommitted_behind for lag in lags),
        max((lag.committed_largest for lag in lags), default=0),
    )
