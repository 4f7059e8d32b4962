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
    """

    queues: int
    lag: int
    behind: int
    uncommitted: int
    largest: int
    by_range: tuple[int, ...]
    uncommitted_lag: int


def count_lag(
    first: int, earliest: OffsetArray, latest: OffsetArray, committed: OffsetArray, ranges: RangePairs
) -> Lag:
    """``ranges`` lie within the queues from ``first`` on, of which the arrays hold one number each."""
    lags = np.maximum(latest - np.maximum(committed, earliest), 0)
    uncommitted = np.where(committed < 0, lags, 0)
    pieces = [lags[low - first : high - first] for low, high in ranges]
    by_range = tuple(int(piece.sum()) for piece in pieces)
    return Lag(
        sum(map(len, pieces)),
        sum(by_range),
        sum(int(np.count_nonzero(piece)) for piece in pieces),
        sum(int(np.count_nonzero(committed[low - first : high - first] < 0)) for low, high in ranges),
        max((int(piece.max()) for piece in pieces), default=0),
        by_range,
        sum(int(uncommitted[low - first : high - first].sum()) for low, high in ranges),
    )


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
    )
