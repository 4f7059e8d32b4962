"""A shard's queues of a topic, as a group is sent them: how far each is, and whose it is. Pure.

Numbers name streams; ``NOBODY`` is none of them. A queue is its *owner's*; its *target* is who is to have it. Where
the two differ the owner is sent nothing more of it, and gives it up with its last acknowledgement.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsmq_node.groups.ranges import RangePairs

NOBODY = -1


class PushedPart:
    """Queues ``[first, end)``, which this node leads in ``epoch``. ``cursor``: the next offset to send of each.

    ``pending``: by queue, the offset to commit. ``commits``: how often some of it was.
    """

    def __init__(self, shard: int, first: int, end: int, epoch: int, cursor: NDArray[np.int64]) -> None:
        self.shard = shard
        self.first = first
        self.end = end
        self.epoch = epoch
        self.cursor = self._cursor = cursor
        self.owner = self._owner = np.full(end - first, NOBODY, np.int32)
        self.target = self._target = np.full(end - first, NOBODY, np.int32)
        self.shares: dict[str, RangePairs] = {}
        self.pending: dict[int, int] = {}
        self.commits = 0

    def grow(self, end: int, cursor: NDArray[np.int64]) -> None:
        """Queues have come at the end, which are nobody's yet. Arrays double, so that one by one stays cheap."""
        count, room = end - self.first, len(self._owner)
        if count > room:
            longer = max(count, 2 * room)
            for name, fill in (("_cursor", 0), ("_owner", NOBODY), ("_target", NOBODY)):
                old = getattr(self, name)
                new = np.full(longer, fill, old.dtype)
                new[: len(old)] = old
                setattr(self, name, new)
        before = self.end - self.first
        self.end = end
        self.cursor, self.owner, self.target = self._cursor[:count], self._owner[:count], self._target[:count]
        self.cursor[before:] = cursor

    def has(self, queue: int) -> bool:
        return self.first <= queue < self.end

    def aim(self, shares: dict[str, RangePairs], numbers: Mapping[str, int]) -> None:
        """Who is to have which queue from now on."""
        self.shares = shares
        self.target[:] = NOBODY
        for name, ranges in shares.items():
            for first, end in ranges:
                self.target[first - self.first : end - self.first] = numbers[name]

    def hand_over(self, held: NDArray[np.int64]) -> None:
        """Give queues to whom they are meant for, but for those ``held``: something of them is not acknowledged."""
        moving = self.owner != self.target
        moving[held - self.first] = False
        self.owner[moving] = self.target[moving]

    def hand_over_one(self, queue: int) -> bool:
        """The same for one queue that nobody holds; whether it changed its owner."""
        at = queue - self.first
        moves = bool(self.owner[at] != self.target[at])
        self.owner[at] = self.target[at]
        return moves

    def state(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Owners, and those who may be sent something, to compare with later."""
        return self.owner.copy(), np.where(self.owner == self.target, self.owner, NOBODY)

    def affected(self, before: tuple[NDArray[np.int32], NDArray[np.int32]]) -> set[int]:
        """Streams that own, or may be sent of, other queues than then."""
        found: set[int] = set()
        for then, now in zip(before, self.state(), strict=True):
            other = then != now
            found.update(np.unique(then[other]).tolist(), np.unique(now[other]).tolist())
        return found - {NOBODY}

    def free(self, number: int) -> None:
        """A stream is gone."""
        self.owner[self.owner == number] = NOBODY

    def queues_of(self, number: int) -> NDArray[Any]:
        """What the stream may be sent of, ascending."""
        mine = np.flatnonzero((self.owner == number) & (self.target == number))
        return (mine + self.first).astype(np.uint32)

    def owned_by(self, number: int) -> NDArray[Any]:
        """What is the stream's, those it is to give up included."""
        return (np.flatnonzero(self.owner == number) + self.first).astype(np.uint32)

    def rewind(self, queue: int, offset: int) -> None:
        """Send again from ``offset``."""
        self.cursor[queue - self.first] = offset

    def advance(self, queues: NDArray[Any], offsets: NDArray[np.int64]) -> None:
        self.cursor[queues.astype(np.int64) - self.first] = offsets

    def committed(self, offsets: Mapping[int, int]) -> None:
        """These are, by queue; what was acknowledged since is pending still."""
        self.commits += 1
        for queue, offset in offsets.items():
            if self.pending.get(queue) == offset:
                del self.pending[queue]
