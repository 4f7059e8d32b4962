"""The messages of the store benchmark: which queue each goes to, and what it says.

They are made before the clock runs, as those of a contest are: a *cycle* of messages, put again and again until
there are enough. A cycle visits every queue as often as any other, in random order. Everything follows from a
seed, so that a process that only reads knows what another wrote.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SEED = 7
#: A cycle has so many messages, and more where there are more queues: about 230 bytes of memory each.
CYCLE = 1_000_000
_HEAD_BYTES = 4 + 4  # queue, number of the message in the cycle


@dataclass(frozen=True, slots=True)
class PutWorkload:
    """``messages`` of ``message_bytes`` each, in puts of ``batch``."""

    messages: int
    queues: int
    batch: int
    message_bytes: int

    @property
    def cycle_batches(self) -> int:
        """Batches of a cycle."""
        return -(-min(self.messages, max(CYCLE, self.queues)) // self.batch)

    def picks(self) -> NDArray[np.int64]:
        """The queue of each message of a cycle."""
        size = self.cycle_batches * self.batch
        rounds = np.tile(np.arange(self.queues), (-(-size // self.queues), 1))
        return np.random.default_rng(SEED).permuted(rounds, axis=1).reshape(-1)[:size]

    def cycle(self) -> Iterator[tuple[NDArray[np.int64], list[bytes]]]:
        """Queues and bodies of a cycle, a batch at a time. No body is like another, and none compresses."""
        layout = np.dtype([("queue", "<u4"), ("number", "<u4"), ("fill", f"V{self.message_bytes - _HEAD_BYTES}")])
        pool = np.frombuffer(np.random.default_rng(SEED).bytes(4099 * layout["fill"].itemsize), dtype=layout["fill"])
        rows = np.empty(self.batch, layout)
        size = self.message_bytes
        for first, queues in enumerate(self.picks().reshape(-1, self.batch)):
            numbers = np.arange(first * self.batch, (first + 1) * self.batch)
            rows["queue"] = queues
            rows["number"] = numbers
            rows["fill"] = pool[numbers % len(pool)]
            packed = rows.tobytes()
            yield queues, [packed[at : at + size] for at in range(0, len(packed), size)]

    def puts(self) -> Iterator[tuple[int, int]]:
        """Which batch of the cycle each put takes, and how much of it: all, but for the last."""
        for first in range(0, self.messages, self.batch):
            yield first // self.batch % self.cycle_batches, min(self.batch, self.messages - first)


class Contents:
    """What a store holds after a workload."""

    def __init__(self, workload: PutWorkload) -> None:
        picks = workload.picks()
        cycles, rest = divmod(workload.messages, len(picks))
        in_cycle = np.bincount(picks, minlength=workload.queues)
        #: Messages of each queue.
        self.lengths: NDArray[np.int64] = in_cycle * cycles + np.bincount(picks[:rest], minlength=workload.queues)
        self._numbers = np.argsort(picks, kind="stable")
        self._ends = np.cumsum(in_cycle)

    def numbers(self, queue: int, offset: int, count: int) -> list[int]:
        """The numbers of a queue's messages from ``offset`` on, ``count`` at most."""
        first = int(self._ends[queue - 1]) if queue else 0
        mine = self._numbers[first : int(self._ends[queue])]
        end = min(offset + count, int(self.lengths[queue]))
        numbers: list[int] = mine.take(range(offset, end), mode="wrap").tolist()
        return numbers


def queue_of(body: bytes) -> int:
    """The queue that a body says it was written to."""
    return int.from_bytes(body[:4], "little")


def number_of(body: bytes) -> int:
    """The number of a body in its cycle."""
    return int.from_bytes(body[4:8], "little")
