"""The log of a named topic's queue names on a shard: how a change of names is written down.

The changes are the messages of the only queue of the topic beside the named one (:func:`.state.names_topic`), so they
are replicated, flushed, recovered and repaired as messages are. One message is one change::

    kind    1   1 the number is given to the name; 2 the name of the number is forgotten; 3 the number was another's
    number  3   of the queue within the shard's range, little-endian
    slot    2   that the name lies in, little-endian; 0 where it is no name's
    name        of kind 1, UTF-8
    offset  8   of kinds 2 and 3, little-endian: from here on it is the next queue's that has the number

Whoever reads them from the first to the last knows which queues there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsmq.queue_names import NUMBER_BITS
from lsmq.record_batch import Column, RecordBatch

from .columns import I64, U8, U32, copy_slices, encode_one, group_starts, windows
from .queue_names import padded

U16 = NDArray[np.uint16]

_FIXED_BYTES = 1 + 3 + 2
_OFFSET_BYTES = 8
_NUMBER_MASK = np.uint32((1 << NUMBER_BITS) - 1)


class NameChange(IntEnum):
    """What happens to a number. On the disk: never renumbered."""

    PUT = 1
    FORGET = 2
    BEGIN = 3


@dataclass(frozen=True, slots=True)
class NameChanges:
    """Changes of one kind that follow one another. ``text`` has names, or offsets, and goes on for ``PADDING_BYTES``
    behind."""

    kind: NameChange
    numbers: U32
    slots: U16
    text: U8
    starts: I64
    lengths: I64


def put_again(numbers: U32, slots: U16, names: U8, lengths: I64) -> NameChanges:
    """That these numbers have the names that lie one after another."""
    text = padded(names)
    return NameChanges(NameChange.PUT, numbers, slots, text, np.cumsum(lengths) - lengths, lengths)


def with_offsets(kind: NameChange, numbers: U32, offsets: I64) -> NameChanges:
    """Changes that are no names."""
    count = len(numbers)
    text = padded(offsets.astype("<i8").view(np.uint8))
    places = np.arange(count, dtype=np.int64) * _OFFSET_BYTES
    return NameChanges(kind, numbers, np.zeros(count, np.uint16), text, places, np.full(count, _OFFSET_BYTES))


def offsets_of(changes: NameChanges) -> I64:
    """What :func:`with_offsets` was given; 0 where a change has none. Raises ``ValueError`` for what is no offset."""
    if not np.isin(changes.lengths, (0, _OFFSET_BYTES)).all():
        raise ValueError("a change of names has no offset")
    offsets = windows(changes.text, changes.starts, _OFFSET_BYTES).view("<i8").ravel()
    return np.where(changes.lengths > 0, offsets, 0).astype(np.int64)


def highest_number(payload: memoryview, lengths: NDArray[Any]) -> int:
    """The highest number that the changes of a batch are about."""
    return int(_fixed(np.frombuffer(payload, np.uint8), _starts(lengths))[1].max())


def decode(payload: memoryview | bytes, lengths: NDArray[Any]) -> Iterator[NameChanges]:
    """The changes of a batch of messages, in runs of one kind. Raises ``ValueError`` for what is none."""
    if not len(lengths):
        return
    text = padded(np.frombuffer(payload, np.uint8))
    starts, sizes = _starts(lengths), lengths.astype(np.int64) - _FIXED_BYTES
    if int(sizes.min()) < 0:
        raise ValueError("a change of names is too short")
    kinds, numbers, slots = _fixed(text, starts)
    cuts = [*group_starts(kinds).tolist(), len(kinds)]
    for first, end in pairwise(cuts):
        some = slice(first, end)
        yield NameChanges(
            NameChange(int(kinds[first])), numbers[some], slots[some], text, starts[some] + _FIXED_BYTES, sizes[some]
        )


def _starts(lengths: NDArray[Any]) -> I64:
    ends = np.cumsum(lengths, dtype=np.int64)
    starts: I64 = ends - lengths
    return starts


def _fixed(text: U8, starts: I64) -> tuple[U8, U32, U16]:
    rows = windows(text, starts, _FIXED_BYTES).reshape(-1, _FIXED_BYTES)
    numbers: U32 = np.ascontiguousarray(rows[:, :4]).view("<u4").ravel() >> np.uint32(8)
    slots: U16 = np.ascontiguousarray(rows[:, 4:]).view("<u2").ravel()
    return rows[:, 0], numbers & _NUMBER_MASK, slots


def encode(changes: NameChanges, max_bytes: int, max_count: int) -> list[RecordBatch]:
    """The changes as messages of queue 0, in batches of so many bytes and changes at most."""
    ends = np.cumsum(changes.lengths + _FIXED_BYTES)
    batches, first, begin = [], 0, 0
    while first < len(ends):
        end = max(first + 1, min(int(ends.searchsorted(begin + max_bytes, "right")), first + max_count))
        batches.append(_encode(changes, slice(first, end)))
        first, begin = min(end, len(ends)), int(ends[min(end, len(ends)) - 1])
    return batches


def _encode(changes: NameChanges, some: slice) -> RecordBatch:
    numbers, lengths = changes.numbers[some], changes.lengths[some]
    count = len(numbers)
    fixed = np.empty((count, _FIXED_BYTES), np.uint8)
    fixed[:, :4] = (numbers.astype("<u4") << np.uint32(8) | np.uint32(changes.kind)).view(np.uint8).reshape(-1, 4)
    fixed[:, 4:] = changes.slots[some].astype("<u2").view(np.uint8).reshape(-1, 2)
    sizes = lengths + _FIXED_BYTES
    places = _starts(sizes)
    payload = np.empty(int(sizes.sum()), np.uint8)
    rows = np.arange(count) * _FIXED_BYTES
    copy_slices(payload, places, fixed.ravel(), rows, np.full(count, _FIXED_BYTES))
    copy_slices(payload, places + _FIXED_BYTES, changes.text, changes.starts[some], lengths)
    columns: dict[int, NDArray[Any]] = {
        Column.QUEUE: np.zeros(count, np.uint32),
        Column.LENGTH: sizes.astype(np.uint32),
    }
    return RecordBatch(encode_one(columns, payload), source="names", verify=False)
