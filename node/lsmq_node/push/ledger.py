"""What a stream was sent and has not acknowledged, and how much more it may be sent. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from .options import MAX_CREDIT


class CreditLedger:
    """Credit is counted in messages and bytes.

    Sending stops when either is used up, and begins again when half of both is free: acknowledgements one by one do
    not cause reads of one message each. A message larger than all the credit there is goes out alone.
    """

    __slots__ = ("_gone", "_open", "_stalled", "credit", "credit_bytes", "open_bytes", "open_count")

    def __init__(self, credit: int, credit_bytes: int) -> None:
        self.credit = credit
        self.credit_bytes = credit_bytes
        self.open_count = 0
        self.open_bytes = 0
        self._stalled = False
        self._open: dict[int, deque[tuple[int, int]]] = {}  # by queue: offset and bytes, ascending
        self._gone: dict[int, int] = {}  # by queue: the first offset that was forgotten, until it is sent again

    def room(self) -> tuple[int, int]:
        """How many messages and bytes may be sent now; (0, 0) when none."""
        count, size = self.credit - self.open_count, self.credit_bytes - self.open_bytes
        if self._stalled:
            self._stalled = 2 * self.open_count > self.credit or 2 * self.open_bytes > self.credit_bytes
        if count <= 0 or size <= 0:
            self._stalled = self.open_count > 0
        return (0, 0) if self._stalled or self.credit <= 0 else (count, max(1, size))

    def set_credit(self, credit: int, credit_bytes: int) -> None:
        self.credit, self.credit_bytes, self._stalled = credit, credit_bytes, False

    def sent(self, messages: Iterable[tuple[int, int, int]]) -> None:
        """Queue, offset and bytes of each; those of a queue in order."""
        for queue, offset, size in messages:
            if self._gone:
                self._gone.pop(queue, None)
            self._open.setdefault(queue, deque()).append((offset, size))
            self.open_count += 1
            self.open_bytes += size

    def acknowledge(self, queue: int, offset: int) -> int | None:
        """The queue's messages up to this offset are handled; the offset to go on at, or None when that is no news."""
        waiting = self._open.get(queue)
        if waiting is None or offset < waiting[0][0]:
            return None
        last = -1
        while waiting and waiting[0][0] <= offset:
            last, size = waiting.popleft()
            self.open_count -= 1
            self.open_bytes -= size
        if not waiting:
            del self._open[queue]
        return last + 1

    def is_late(self, queue: int, offset: int) -> bool:
        """Whether this is the first acknowledgement of messages that were forgotten, and are not sent again yet."""
        first = self._gone.get(queue)
        if first is None or offset < first:
            return False
        del self._gone[queue]
        return True

    def open_of(self, queues: Iterable[int]) -> tuple[int, int]:
        """How many messages and bytes of these queues are not acknowledged."""
        found = [size for queue in queues for _, size in self._open.get(queue, ())]
        return len(found), sum(found)

    def holds(self, queue: int) -> bool:
        """Whether anything of the queue is not acknowledged."""
        return queue in self._open

    def firsts(self) -> Iterator[tuple[int, int]]:
        """Queues with anything that is not acknowledged, and the first such offset."""
        return ((queue, waiting[0][0]) for queue, waiting in self._open.items())

    def forget(self, first: int, end: int) -> None:
        """Nothing of the queues ``[first, end)`` will be acknowledged any more: it comes again, here or elsewhere."""
        for queue in [queue for queue in self._open if first <= queue < end]:
            waiting = self._open.pop(queue)
            self._gone[queue] = waiting[0][0]
            self.open_count -= len(waiting)
            self.open_bytes -= sum(size for _, size in waiting)
        while len(self._gone) > MAX_CREDIT:
            del self._gone[next(iter(self._gone))]
