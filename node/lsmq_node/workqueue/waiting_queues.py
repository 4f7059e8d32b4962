"""Queues that have messages nobody has looked at, in turn. Pure.

Round robin: who had its turn goes to the end, behind all others; what was found when everything was compared stands
before those that got messages since. Those that were found take eight bytes each. Of those that came one by one a
bounded number is remembered; when they are more it is only known that there are some, and all are compared once more
before any of them has its turn. That is done beside everything else: what comes meanwhile may have been seen, or not,
and stays remembered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

#: Queues that are remembered one by one.
MAX_KNOWN = 65_536


class WaitingQueues:
    """The queues whose turn comes; :meth:`next` takes them."""

    def __init__(self, *, unknown: bool = False) -> None:
        """``unknown``: there may be queues with messages, which :meth:`found` is to say."""
        self._found: NDArray[np.int64] = np.empty(0, np.int64)
        self._visited = 0
        self._first: deque[int] = deque()
        self._ring: deque[int] = deque()
        self._known: set[int] = set()  # in the two above
        self._credits: dict[int, int] = {}  # of the one at the front, when its turn was cut short
        self._overflown = unknown  # there are queues that are not here
        self._comparing = False  # or has been, and nothing was found out

    def __bool__(self) -> bool:
        return bool(self._first or self._ring or self._unknown) or self._visited < len(self._found)

    @property
    def _unknown(self) -> bool:
        return self._overflown or self._comparing

    @property
    def needs_look(self) -> bool:
        """Whether all that were known had their turn, and there are others: all are to be compared."""
        return self._unknown and not self._first and self._visited >= len(self._found)

    def compare(self) -> None:
        """All are compared from here on: what has come until now is seen then."""
        self._ring.clear()
        self._known = set(self._first)
        self._overflown = False
        self._comparing = True

    def found(self, queues: NDArray[np.int64]) -> None:
        """All that had messages when they were compared, after :meth:`compare`."""
        self._found, self._visited = queues, 0
        self._comparing = False

    def add(self, queue: int) -> None:
        """It has messages: its turn comes after the others'."""
        if queue in self._known:
            return
        if len(self._known) >= MAX_KNOWN:
            self._overflown = True
            return
        self._known.add(queue)
        self._ring.append(queue)

    def put_back(self, queues: Sequence[int], credits: int = 0) -> None:
        """Their turn has not come yet; the first of them has ``credits`` left of one that was cut short."""
        for queue in reversed(queues):
            if queue not in self._known:
                self._known.add(queue)
                self._first.appendleft(queue)
        if queues and credits:
            self._credits = {queues[0]: credits}

    def next(self) -> int | None:
        """Whose turn it is; None where there is none, or none that is known."""
        if self._first:
            queue = self._first.popleft()
        elif self._visited < len(self._found):
            queue = int(self._found[self._visited])
            self._visited += 1
            return queue
        elif self._ring and not self._unknown:
            queue = self._ring.popleft()
        else:
            self._found, self._visited = np.empty(0, np.int64), 0
            return None
        self._known.discard(queue)
        return queue

    def credits_of(self, queue: int, weight: int) -> int:
        """How many messages it may have in its turn."""
        return self._credits.pop(queue, 0) or weight


def quotas(
    backlogs: Sequence[int], turns: Sequence[int], weights: Sequence[int], room: int
) -> tuple[list[int], int, int]:
    """How many of ``room`` messages each gets, turn by turn; whose turn it is then, and what that one is still owed.

    ``backlogs``: what each has, at most what it may take. ``turns``: what each has in its first turn, ``weights`` in
    later ones. All are in the order of their turns.
    """
    given = [0] * len(backlogs)
    due = turns
    while True:
        before = room
        for at, backlog in enumerate(backlogs):
            wanted = min(due[at], backlog - given[at])
            given[at] += min(wanted, room)
            if wanted > room:
                return given, at, wanted - room
            room -= wanted
        if room in (0, before):
            return given, 0, 0
        due = weights
