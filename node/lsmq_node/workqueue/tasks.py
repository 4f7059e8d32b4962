"""The parts of a ledger: open messages, the window of a queue, and what is to be stored."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import StrEnum


class State(StrEnum):
    READY = "ready"
    TAKEN = "taken"
    IN_FLIGHT = "in_flight"
    WAITING = "waiting"
    DEAD = "dead"
    SETTLED = "settled"


class Refusal(StrEnum):
    """Why a receipt does not count. The values are error codes."""

    EXPIRED = "receipt_expired"
    UNKNOWN = "unknown_receipt"


class Task:
    """An open message. ``count`` deliveries have begun; ``at_ms`` is when the state ends by itself."""

    __slots__ = ("at_ms", "count", "nacked", "offset", "queue", "reason", "state", "token")

    def __init__(self, queue: int, offset: int) -> None:
        self.queue = queue
        self.offset = offset
        self.count = 0
        self.state = State.TAKEN
        self.at_ms = 0
        self.token = 0
        self.nacked = False  # how the last delivery ended
        self.reason = ""

    @property
    def ended(self) -> int:
        """Deliveries that have failed."""
        return self.count - (self.state is State.IN_FLIGHT)


class Window:
    __slots__ = ("dirty", "logged", "next", "open", "queue", "stored", "unlogged")

    def __init__(self, queue: int, cursor: int) -> None:
        self.queue = queue
        self.next = cursor
        self.open: OrderedDict[int, Task] = OrderedDict()  # offsets ascend
        self.logged = cursor  # the cursor that was put in the log, or was read from there
        self.stored: set[int] = set()  # chunks that have a document
        self.dirty: set[int] = set()  # chunks that have changed
        self.unlogged = 0  # changes under way to the log

    @property
    def cursor(self) -> int:
        return next(iter(self.open)) if self.open else self.next


@dataclass(frozen=True, slots=True)
class Changes:
    """To be stored as one. ``documents`` by queue and number of the chunk; None deletes. ``settled``: by deliveries."""

    queues: list[int] = field(default_factory=list)
    cursors: list[int] = field(default_factory=list)
    documents: dict[tuple[int, int], bytes | None] = field(default_factory=dict)
    windows: list[int] = field(default_factory=list)
    settled: list[Task] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.queues or self.documents)


@dataclass(slots=True)
class Counts:
    """What has happened, over all ledgers that share it."""

    delivered: int = 0
    redelivered: int = 0
    acked: int = 0
    nacked: int = 0
    expired: int = 0
    refused: int = 0
    dead: int = 0
