"""What several leaders send, merged into one stream with one credit. Pure.

Each leader is given all of the subscriber's credit, so that it can fill it when the others have nothing; what comes
beyond what the subscriber has room for is *held* here. So the subscriber never has more than its credit, whoever sends,
and waits for none of the leaders. Leaders that have something take turns, and share the room there is.

How much may be held of a leader is bounded: it is granted bytes for what the subscriber has of it, and ``AHEAD_BYTES``
more. A leader stops by its own count when it has used up half of its credit (:class:`.ledger.CreditLedger`), though the
subscriber has room again by then: so it is granted anew when nothing of it is held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from .ledger import CreditLedger
from .options import MAX_CREDIT_BYTES

#: Bytes that each leader may have on its way here beyond what the subscriber has of it.
AHEAD_BYTES = 256 * 1024

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message that a leader has sent. ``fields`` are passed on as they are."""

    queue: int
    offset: int
    size: int
    fields: Any


class Source:
    """One leader's part: what is held of it, and what the subscriber has of it."""

    __slots__ = ("granted", "held", "held_bytes", "moved", "open_bytes", "open_count")

    def __init__(self, granted: tuple[int, int]) -> None:
        self.held: deque[Arrival] = deque()
        self.held_bytes = 0
        self.open_count = 0
        self.open_bytes = 0
        self.granted = granted  # messages and bytes, as it was told last
        self.moved = False  # whether anything came or went since, or the credit is another one


class StreamMerge(Generic[S]):
    """``S`` names leaders. ``first_grant``: messages and bytes that a leader is told when it begins."""

    def __init__(self, credit: int, credit_bytes: int) -> None:
        self.ledger = CreditLedger(credit, credit_bytes)
        self.first_grant = (credit, min(credit_bytes, AHEAD_BYTES))
        self._sources: dict[S, Source] = {}
        self._turns: deque[S] = deque()  # leaders that something is held of
        self._sender: dict[int, S] = {}  # by queue, of what is held or open

    @property
    def held_bytes(self) -> int:
        return sum(source.held_bytes for source in self._sources.values())

    @property
    def held_count(self) -> int:
        return sum(len(source.held) for source in self._sources.values())

    def begin(self, name: S) -> None:
        """A leader sends from now on."""
        if name not in self._sources:
            self._sources[name] = Source(self.first_grant)

    def end(self, name: S) -> None:
        """It sends no more; what it sent and nobody has acknowledged comes again, of another one."""
        if name in self._sources:
            for queue in [queue for queue, sender in self._sender.items() if sender == name]:
                self.forget(queue, queue + 1)
            del self._sources[name]

    def arrived(self, name: S, messages: Iterable[Arrival]) -> None:
        """A leader has sent these; those of a queue in order. What another one sent before of a queue is forgotten."""
        source = self._sources[name]
        for message in messages:
            source.moved = True
            sender = self._sender.setdefault(message.queue, name)
            if sender != name:
                self.forget(message.queue, message.queue + 1)
                self._sender[message.queue] = name
            if not source.held:
                self._turns.append(name)
            source.held.append(message)
            source.held_bytes += message.size

    def take(self, max_messages: int, max_bytes: int) -> list[Arrival]:
        """What the subscriber is to be sent now, of one leader; it counts as sent. Nothing where it has no room."""
        count, size = self.ledger.room()
        if not count or not self._turns:
            return []
        share = -(-count // len(self._turns))
        name = self._turns.popleft()
        source = self._sources[name]
        taken: list[Arrival] = []
        room = min(size, max_bytes)
        while source.held and len(taken) < min(share, max_messages):
            if taken and source.held[0].size > room:
                break
            message = source.held.popleft()
            taken.append(message)
            room -= message.size
        if source.held:
            self._turns.append(name)
        sent_bytes = sum(message.size for message in taken)
        source.held_bytes -= sent_bytes
        source.moved = True
        source.open_count += len(taken)
        source.open_bytes += sent_bytes
        self.ledger.sent((message.queue, message.offset, message.size) for message in taken)
        return taken

    def acknowledge(self, queue: int, offset: int) -> tuple[S, int] | None:
        """The queue's messages up to this offset are handled: whom to tell, and up to where; None: it is no news."""
        count, size = self.ledger.open_count, self.ledger.open_bytes
        next_offset = self.ledger.acknowledge(queue, offset)
        if next_offset is None:
            return None
        name = self._sender[queue]
        source = self._sources[name]
        source.moved = True
        source.open_count -= count - self.ledger.open_count
        source.open_bytes -= size - self.ledger.open_bytes
        if not source.held and not self.ledger.holds(queue):
            del self._sender[queue]
        return name, next_offset - 1

    def forget(self, first: int, end: int) -> None:
        """Nothing of the queues ``[first, end)`` is passed on or acknowledged any more: it comes again."""
        gone = [queue for queue in self._sender if first <= queue < end]
        for name in dict.fromkeys(self._sender.pop(queue) for queue in gone):
            source = self._sources[name]
            source.held = deque(message for message in source.held if not first <= message.queue < end)
            source.held_bytes = sum(message.size for message in source.held)
            source.moved = True
            if not source.held and name in self._turns:
                self._turns.remove(name)
            own = ((queue, sender) for queue, sender in self._sender.items() if sender == name)
            source.open_count, source.open_bytes = self.ledger.open_of(queue for queue, _ in own)
        self.ledger.forget(first, end)

    def set_credit(self, credit: int, credit_bytes: int) -> None:
        self.ledger.set_credit(credit, credit_bytes)
        for source in self._sources.values():
            source.moved = True

    def grant(self, name: S) -> tuple[int, int] | None:
        """Messages and bytes that a leader is to be told it may have sent and not acknowledged; None: no news."""
        source, credit = self._sources[name], self.ledger.credit
        size = min(MAX_CREDIT_BYTES, self.ledger.credit_bytes, source.open_bytes + AHEAD_BYTES)
        told, told_size = source.granted
        is_slack = told_size > size + AHEAD_BYTES
        may_wait = not source.held and (2 * source.open_count > told or 3 * source.open_bytes > told_size)
        if told == credit and not is_slack and not (may_wait and source.moved):
            return None
        source.granted, source.moved = (credit, size), False
        return credit, size

    @property
    def sources(self) -> Sequence[S]:
        return list(self._sources)
