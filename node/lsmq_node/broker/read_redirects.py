"""Who is to read where: the rule by which a leader sends far readers to a follower, and a follower sends them back.

A reader is *far* when what it has yet to read of a shard and no memtable holds is more than ``backlog_redirect_bytes``:
all its queues of the shard that have such records count together, and go together. Queues whose next message is in
memory stay with the leader, however far the others are. A follower keeps a queue until the reader has all there is, and
sends back all of them once what is left is less than a quarter of that: so nobody goes to and fro.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsmq_node.storage import ShardStore

#: A follower sends readers back once this part of the limit is left.
NEAR_PART = 4

Mask = NDArray[np.bool_]


class ReadFrom(StrEnum):
    """Whom a reader wants its answer of."""

    LEADER = "leader"  # the leader, which answers all of it
    FOLLOWER = "follower"  # a follower in sync; a leader that has one sends the reader there
    ANY = "any"  # whoever is asked
    AUTO = "auto"  # whoever is asked, and who may send the reader elsewhere


@dataclass(frozen=True, slots=True)
class ReadRedirect:
    """Queues to read at another node from now on: at ``url``, or at the leader when that is None.

    ``offsets``: from where on, where the reader may not know.
    """

    url: str | None
    queues: NDArray[Any]
    offsets: NDArray[np.int64] | None = None


def far(records_in_tables: NDArray[np.int64], record_bytes: float, limit_bytes: int) -> Mask:
    """Which queues a leader sends away, by the records of each that are in no memtable."""
    if int(records_in_tables.sum()) * record_bytes <= limit_bytes:
        return np.zeros(len(records_in_tables), np.bool_)
    mask: Mask = records_in_tables > 0
    return mask


def caught_up(lags: NDArray[np.int64], record_bytes: float, limit_bytes: int) -> Mask:
    """Which queues a follower sends back, by the records of each that it has yet to give."""
    left = np.maximum(lags, 0)
    if int(left.sum()) * record_bytes <= limit_bytes // NEAR_PART:
        return np.ones(len(lags), np.bool_)
    mask: Mask = left == 0
    return mask


def find_far(
    store: ShardStore, topic_id: int, queues: NDArray[Any], offsets: NDArray[np.int64], limit_bytes: int
) -> Mask:
    """:func:`far` of a reader of this leader's. May read a table's index; the queues are sorted."""
    lags, record_bytes = store.lag(topic_id, queues, offsets)
    if int(np.maximum(lags, 0).sum()) * record_bytes <= limit_bytes:  # Readers at the end cost no more than this.
        return np.zeros(len(queues), np.bool_)
    return far(store.lag_in_tables(topic_id, queues, offsets), record_bytes, limit_bytes)


def find_caught_up(
    store: ShardStore, topic_id: int, queues: NDArray[Any], offsets: NDArray[np.int64], limit_bytes: int
) -> Mask:
    """:func:`caught_up` of a reader of this follower's, which goes on at ``offsets``."""
    lags, record_bytes = store.lag(topic_id, queues, offsets)
    return caught_up(lags, record_bytes, limit_bytes)


class FollowerTurns:
    """Followers take turns."""

    def __init__(self) -> None:
        self._count = 0

    def next(self, urls: Sequence[str]) -> str:
        self._count += 1
        return urls[self._count % len(urls)]
