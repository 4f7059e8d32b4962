"""What can be asked of a broker, as values. Whoever listens parses into these, and prints what comes back.

A request says all that was asked. What it may have is decided in one place (:mod:`.admission`), whoever it came from;
what it takes in memory is reserved in the ``Hold`` that goes with it, which knows the client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsmq.record_batch import RecordBatch
from lsmq_node.storage import Topic

from .elsewhere import ReadFrom
from .topology import Ack


@dataclass(frozen=True, slots=True)
class ProduceRequest:
    """Record batches of one topic, one a shard, as :meth:`Broker.unpack` or a builder made them.

    The producer's id, epoch and sequence stand in each batch. ``ack`` None: as the topic says.
    """

    topic: Topic
    batches: Sequence[tuple[int, RecordBatch]]
    ack: Ack | None = None


@dataclass(frozen=True, slots=True)
class DeleteRequest:
    """The message at each offset of its queue; with ``before`` all below it. ``queues`` in any order."""

    topic: Topic
    queues: NDArray[Any]
    offsets: NDArray[np.int64]
    before: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """How much, how long to wait for the first message, and of whom."""

    topic: Topic
    max_records: int
    max_bytes: int
    wait_ms: int = 0
    source: ReadFrom = ReadFrom.LEADER


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest(_Reading):
    """Messages of one queue, from ``offset`` on."""

    queue: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest(_Reading):
    """Messages of many queues, each from its own offset; offsets below what is kept begin at what is kept.

    ``queues`` are sorted, without repeats and not empty. ``session``, in their place, goes on where the answer that
    named it ended; ``keep`` asks for one. Without ``files`` nothing of the answer is left in files.
    """

    queues: NDArray[np.uint32] = field(default_factory=lambda: np.empty(0, np.uint32))
    offsets: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    session: str | None = None
    keep: bool = False
    files: bool = True
