"""How many messages of each queue a batch has, where the topic lets a queue have so many."""

from __future__ import annotations

from collections.abc import Iterable


class QueueCounts:
    """Of one batch. ``most``: a batch with more of one queue would be refused whole, however empty the queue is."""

    __slots__ = ("_held", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[int, int] = {}

    def has_room(self, queue: int) -> bool:
        return self._held.get(queue, 0) < self._most

    def take(self, queues: Iterable[int]) -> int:
        """Count messages in order, up to the first that finds no room; how many that were."""
        taken, held, most = 0, self._held, self._most
        for queue in queues:
            count = held.get(queue, 0)
            if count == most:
                break
            held[queue] = count + 1
            taken += 1
        return taken

    def take_of(self, queue: int, count: int) -> int:
        """:meth:`take` of so many of one queue."""
        held = self._held.get(queue, 0)
        taken = min(count, self._most - held)
        self._held[queue] = held + taken
        return taken
