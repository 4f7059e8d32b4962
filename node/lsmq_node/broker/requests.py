"""What can be asked of a broker, as values. Whoever listens parses into these, and prints what comes back.

A request says all that was asked. What it may have is decided in one place (:mod:`.admission`), whoever it came from;
what it takes in memory is reserved in the ``Hold`` that goes with it, which knows the client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsmq.filters import MessageFilter
from lsmq.record_batch import RecordBatch
from lsmq_node.storage import FlushMode, StoredTopic

from .read_redirects import ReadFrom
from .selection import Selection
from .topology import Ack


@dataclass(frozen=True, slots=True)
class ProduceRequest:
    """Record batches of one topic, one a shard, as :meth:`Broker.unpack` or a builder made them.

    The producer's id, epoch and sequence stand in each batch. ``ack`` and ``flush`` None: as the topic says. For a
    named topic there are ``names`` of each batch, joined by NUL, and its QUEUE column says which of them.
    """

    topic: StoredTopic
    batches: Sequence[tuple[int, RecordBatch]]
    ack: Ack | None = None
    flush: FlushMode | None = None
    names: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class DeleteRequest:
    """The message at each offset of its queue; with ``before`` all below it. ``queues`` in any order."""

    topic: StoredTopic
    queues: NDArray[Any]
    offsets: NDArray[np.int64]
    before: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """How much, how long to wait for the first message, of whom, and which: with ``filter`` None all there are."""

    topic: StoredTopic
    max_records: int
    max_bytes: int
    wait_ms: int = 0
    source: ReadFrom = ReadFrom.LEADER
    filter: MessageFilter | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest(_Reading):
    """Messages of one queue, from ``offset`` on. None comes through that is not picked by its words."""

    queue: int
    offset: int


class ReadStart(StrEnum):
    """Where reading of a queue begins."""

    EARLIEST = "earliest"
    LATEST = "latest"
    COMMITTED = "committed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """Queues of a named topic, and where reading of each begins.

    Those that come after the session began are read from their earliest message. ``reset`` is for queues in which
    ``group`` has committed no offset. ``numbers`` and ``offsets``, or ``by_name``, say it for some queues otherwise.
    ``shards``: of these, those with such queues must be led here. ``tells_names``: who begins at the latest is told all
    queues by number and name; else those that ever had a message, by number.
    """

    which: Selection
    start: ReadStart = ReadStart.EARLIEST
    group: str | None = None
    reset: ReadStart = ReadStart.EARLIEST
    numbers: NDArray[np.uint32] = field(default_factory=lambda: np.empty(0, np.uint32))
    offsets: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    by_name: Mapping[str, int] = field(default_factory=dict)
    shards: frozenset[int] = frozenset()
    tells_names: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest(_Reading):
    """Messages of many queues, each from its own offset; offsets below what is kept begin at what is kept.

    ``queues`` are sorted, without repeats and not empty. ``session``, in their place, goes on where the answer that
    named it ended; ``keep`` asks for one. Without ``files`` nothing of the answer is left in files. With a filter by
    tag or type others with the same hash may come through, unless ``exact``.

    ``selected``, in their place too, are queues of a named topic, also those that come later.
    """

    queues: NDArray[np.uint32] = field(default_factory=lambda: np.empty(0, np.uint32))
    offsets: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    session: str | None = None
    keep: bool = False
    files: bool = True
    exact: bool = False
    selected: Selected | None = None
