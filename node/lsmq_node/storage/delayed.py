"""Delayed messages: records whose key is the time when they are due.

A message that is to come later is a record like any other, in the memtable and in tables, under a key of its own kind:
``1 << 62 | due_ms``, where others have ``topic_id << 32 | queue``. Its offset is the LSN where its log entry begins and
its place in the batch, so records that are due at the same millisecond lie in the order in which they came; the column
``TARGET`` says the queue that it is for. What is due next is where a search in the keys says, and memory does not grow
with what is pending. Nothing is moved before it is due.

Whether a record of a batch with the column ``DUE_MS`` comes later follows from its log entry alone: it does when it is
due after the time that the entry is stamped with. Those of a batch that are not get offsets of their queues as ever.

A shard delivers in the order of (due_ms, offset). How far it has come is a document (:data:`HAND`), and since stamps
never go back, nothing can arrive behind it: what is stamped later is due later. Records behind the hand are garbage, as
are those of deleted topics, and those that were cancelled have a tombstone.

The document ``delayed``; all integers are little-endian::

    width field
     8    due_ms   ) delivered up to here: the hand
     8    offset   )
     8    due_ms   ) being delivered up to here; the same as the hand where nothing is
     8    offset   )
     8    number   of the first batch that is being delivered, or of the next: an epoch of a broker's producer
     8    done     messages that were delivered, or were for a topic that was gone
     4*n  topics   ids of the topics to which is being delivered, a batch each, in their order
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from lsmq.errors import CorruptFile
from lsmq.record_batch import LAST_DUE_MS, MAX_DELAY_MS

from .columns import I64, U64
from .documents import SPARED, Documents
from .sorted_records import SHADOW, TOMBSTONE_TOPIC

#: Topic ids from here on are no topics: the upper half of a due time, or of its tombstones.
DUE_TOPIC = 1 << 30
DUE = np.uint64(DUE_TOPIC << 32)

HAND = SPARED
#: Of how many messages a shard knew that were delayed when they came, less those that were cancelled; decimal digits.
STORED = "delayed-stored"
_HAND = struct.Struct("<qqqqqq")
_LOW = (1 << 32) - 1

#: due_ms, and offset there.
DuePlace = tuple[int, int]
BEGIN: DuePlace = (0, -1)


class Hand(NamedTuple):
    """How far a shard has delivered; see above."""

    at: DuePlace = BEGIN
    to: DuePlace = BEGIN
    number: int = 1
    done: int = 0
    topics: tuple[int, ...] = ()

    def encode(self) -> bytes:
        topics = struct.pack(f"<{len(self.topics)}I", *self.topics)
        return _HAND.pack(*self.at, *self.to, self.number, self.done) + topics

    @classmethod
    def decode(cls, body: bytes | None) -> Self:
        """None: nothing was ever delivered. Raises ``CorruptFile``."""
        if body is None:
            return cls()
        try:
            due, offset, to_due, to_offset, number, done = _HAND.unpack_from(body)
            topics = struct.unpack(f"<{(len(body) - _HAND.size) // 4}I", body[_HAND.size :])
        except struct.error as error:
            raise CorruptFile(f"document {HAND!r} is no hand of delayed messages", file=HAND, position=0) from error
        return cls((due, offset), (to_due, to_offset), number, done, topics)


def delayed_count(documents: Documents) -> int:
    """Pending ones, about: those of a topic that was deleted may count until nothing is pending."""
    return max(0, int(documents.get(STORED) or 0) - Hand.decode(documents.get(HAND)).done)


def is_due_topic(topic_id: int) -> bool:
    """Whether it is the upper half of the key of delayed messages, or of their tombstones."""
    return topic_id & ~TOMBSTONE_TOPIC >= DUE_TOPIC


def is_delayed(keys: U64) -> NDArray[np.bool_]:
    """Which keys are of delayed messages."""
    delayed: NDArray[np.bool_] = (keys >= DUE) & (keys < SHADOW)
    return delayed


def due_key(due_ms: int) -> int:
    """The key of what is due then."""
    return DUE_TOPIC << 32 | due_ms


def due_keys(due_ms: NDArray[Any]) -> U64:
    """:func:`due_key` of many."""
    keys: U64 = due_ms.astype(np.uint64) | DUE
    return keys


def split_due(due_ms: int) -> tuple[int, int]:
    """Topic id and queue that stand for a due time in entries and columns."""
    return DUE_TOPIC | due_ms >> 32, due_ms & _LOW


def due_times(values: I64, stored_ms: int) -> I64:
    """When the records of a batch stamped with ``stored_ms`` are due, by their ``DUE_MS``: 0 for at once.

    What is not above ``MAX_DELAY_MS`` is a delay, the rest milliseconds since 1970.
    """
    times = np.where(values <= MAX_DELAY_MS, values + stored_ms, values)
    return np.where((values > 0) & (times > stored_ms), np.minimum(times, LAST_DUE_MS), 0)


def live_from(keys: U64, hand: Hand) -> I64:
    """Of keys of delayed messages, below which offset nothing is pending: all is where they are behind the hand."""
    due = (keys & ~DUE).astype(np.int64)
    most = np.iinfo(np.int64).max
    return np.where(due < hand.at[0], most, np.where(due == hand.at[0], hand.at[1] + 1, 0)).astype(np.int64)
