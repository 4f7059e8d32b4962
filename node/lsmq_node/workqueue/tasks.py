"""The parts of a ledger: open messages, and what is to be stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from .receipts import DeliveryReceipt


class DeliveryState(StrEnum):
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


class OpenMessage:
    """An open message. ``count`` deliveries have begun; ``at_ms`` is when the state ends by itself."""

    __slots__ = (
        "at_ms",
        "count",
        "key",
        "level",
        "nacked",
        "offset",
        "queue",
        "reason",
        "state",
        "stored_ms",
        "tenant",
        "token",
    )

    def __init__(self, queue: int, offset: int, tenant: int, *, level: int = 0, key: int = 0) -> None:
        self.queue = queue
        self.offset = offset
        self.tenant = tenant  # who takes turns with others, at its level
        self.level = level
        self.stored_ms = 0  # where it counts for turns
        self.key = key  # its hash, where messages of a key wait for each other; 0: for nobody
        self.count = 0
        self.state = DeliveryState.TAKEN
        self.at_ms = 0
        self.token = 0
        self.nacked = False  # how the last delivery ended
        self.reason = ""

    @property
    def is_new(self) -> bool:
        """Whether nobody has got it, as far as is known."""
        return not (self.count or self.token)

    @property
    def ended(self) -> int:
        """Deliveries that have failed."""
        return self.count - (self.state is DeliveryState.IN_FLIGHT)

    @property
    def receipt(self) -> DeliveryReceipt:
        """Of the delivery that was made last."""
        return DeliveryReceipt(self.queue, self.offset, self.count, self.at_ms, self.token)


class LeftDelivery(NamedTuple):
    """What a ledger leaves to the next one of a delivery: whose it is, when its turn was, and the key that it holds."""

    receipt: DeliveryReceipt
    tenant: int
    level: int
    stored_ms: int
    key: int


@dataclass(frozen=True, slots=True)
class WorkChanges:
    """To be stored as one. ``documents`` by queue and number of the chunk; None deletes. ``settled``: by deliveries.

    ``freed``: the next messages of their keys may come when this is stored.
    """

    queues: list[int] = field(default_factory=list)
    cursors: list[int] = field(default_factory=list)
    documents: dict[tuple[int, int], bytes | None] = field(default_factory=dict)
    windows: list[int] = field(default_factory=list)
    settled: list[OpenMessage] = field(default_factory=list)
    freed: list[OpenMessage] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.queues or self.documents)


@dataclass(slots=True)
class WorkCounts:
    """What has happened, over all ledgers that share it."""

    delivered: int = 0
    redelivered: int = 0
    acked: int = 0
    nacked: int = 0
    expired: int = 0
    refused: int = 0
    dead: int = 0
