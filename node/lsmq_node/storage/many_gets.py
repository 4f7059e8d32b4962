"""Messages of many queues of a :class:`.queue_store.QueueStore` at once, as plain bytes.

A single get looks for the queue's tables, reads a block and takes a message out of it: some 30 us in Python. Asked for
many at a time, a table's index is searched for all of them, and a block is read once for all that lie in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, pairwise

import numpy as np

from lsmq.record_batch import Column

from .columns import I64
from .shard_store import ShardStore

#: So many times a queue is found among those that are read together; what is asked of it more often is read by itself.
_MOST_PASSES = 4
#: What is read at a time.
_READ_RECORDS = 1 << 18
_READ_BYTES = 16 << 20


class ManyGets:
    """Up to ``counts[i]`` messages of queue ``numbers[i]`` (-1: one that is not there) of a topic from ``offsets[i]``
    on, which is 0 or more.

    The topic must not have lost any message.
    """

    def __init__(self, store: ShardStore, topic_id: int, numbers: I64, offsets: I64, counts: I64) -> None:
        self._store = store
        self._topic_id = topic_id
        self._numbers = numbers
        self._offsets = offsets
        self._counts = np.zeros(len(numbers), np.int64)
        known = np.flatnonzero(numbers >= 0)
        left = store.latest_offsets(topic_id, numbers[known].astype(np.uint32)) - offsets[known]
        self._counts[known] = np.minimum(counts[known], left)

    def read(self) -> list[list[bytes]]:
        """The messages of each. Raises ``CorruptFile``."""
        answers: list[list[bytes] | None] = [None] * len(self._numbers)
        wanted = np.flatnonzero(self._counts > 0)
        wanted = wanted[np.argsort(self._numbers[wanted], kind="stable")]  # neighbours lie in the same blocks
        times = _times(self._numbers[wanted])
        for each in range(min(_MOST_PASSES, int(times.max(initial=-1)) + 1)):
            these = wanted[times == each]
            bodies = self._bodies(these)
            for at, count in zip(these.tolist(), self._counts[these].tolist(), strict=True):
                answers[at] = list(islice(bodies, count))
        for at in wanted[times >= _MOST_PASSES].tolist():
            number, offset, count = (int(part[at]) for part in (self._numbers, self._offsets, self._counts))
            answers[at] = self._store.read_bytes(self._topic_id, number, offset, count)
        return [[] if each is None else each for each in answers]

    def _bodies(self, these: I64) -> Iterator[bytes]:
        """All that is wanted of these, which are of different queues, one after another."""
        queues, starts = self._numbers[these].astype(np.uint32), self._offsets[these].copy()
        ends = starts + self._counts[these]
        at = 0
        while at < len(queues):
            found = self._store.read_many(
                self._topic_id,
                queues[at:],
                starts[at:],
                ends=ends[at:],
                max_records=_READ_RECORDS,
                max_bytes=_READ_BYTES,
            )
            assert found.record_count, "what a queue holds is found, or it is said why not"
            for batch in found.batches():
                whole = batch.payload.tobytes()
                cuts = np.cumsum(batch.column(Column.LENGTH), dtype=np.int64).tolist()
                yield from [whole[first:end] for first, end in pairwise((0, *cuts))]
            reached = np.cumsum(ends[at:] - starts[at:])
            whole_queues = int(reached.searchsorted(found.record_count, "right"))
            rest = found.record_count - (int(reached[whole_queues - 1]) if whole_queues else 0)
            at += whole_queues
            if rest:
                starts[at] += rest


def _times(ordered: I64) -> I64:
    """How often each value has come before, of a sorted array."""
    places = np.arange(len(ordered))
    fresh = np.concatenate((np.ones(min(1, len(ordered)), np.bool_), ordered[1:] != ordered[:-1]))
    times: I64 = places - np.maximum.accumulate(np.where(fresh, places, 0))
    return times
