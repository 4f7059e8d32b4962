"""The messages of the store benchmark: which queue each goes to, and what it says.

Everything follows from a seed, so that a process that only reads knows what another wrote.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SEED = 7
_HEAD_BYTES = 4 + 4  # queue, number of the message in the run


@dataclass(frozen=True, slots=True)
class Workload:
    """Messages of ``message_bytes`` each, to queues drawn at random, in batches of ``batch``."""

    messages: int
    queues: int
    batch: int
    message_bytes: int

    def batches(self) -> Iterator[tuple[NDArray[np.int64], list[bytes]]]:
        """Queues and bodies, a batch at a time. No body is like another, and none compresses."""
        layout = np.dtype([("queue", "<u4"), ("number", "<u4"), ("fill", f"V{self.message_bytes - _HEAD_BYTES}")])
        pool = np.frombuffer(np.random.default_rng(SEED).bytes(4099 * layout["fill"].itemsize), dtype=layout["fill"])
        rows = np.empty(self.batch, layout)
        size = self.message_bytes
        for first, queues in self._picks():
            count = len(queues)
            numbers = np.arange(first, first + count)
            rows["queue"][:count] = queues
            rows["number"][:count] = numbers
            rows["fill"][:count] = pool[numbers % len(pool)]
            packed = rows[:count].tobytes()
            yield queues, [packed[at : at + size] for at in range(0, count * size, size)]

    def lengths(self) -> NDArray[np.int64]:
        """How many messages each queue has in the end."""
        lengths = np.zeros(self.queues, np.int64)
        for _, queues in self._picks():
            lengths += np.bincount(queues, minlength=self.queues)
        return lengths

    def _picks(self) -> Iterator[tuple[int, NDArray[np.int64]]]:
        random = np.random.default_rng(SEED)
        for first in range(0, self.messages, self.batch):
            yield first, random.integers(0, self.queues, min(self.batch, self.messages - first))


def queue_of(body: bytes) -> int:
    """The queue that a body says it was written to."""
    return int.from_bytes(body[:4], "little")


def number_of(body: bytes) -> int:
    """The number of a body in its run; it grows within a queue."""
    return int.from_bytes(body[4:8], "little")
