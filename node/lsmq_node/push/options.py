"""What a subscriber may choose."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lsmq.filters import MessageFilter
from lsmq_node.groups import Mode

MAX_CREDIT = 10_000
MAX_CREDIT_BYTES = 8 * 1024 * 1024


class PushStart(StrEnum):
    """Where a group begins in a queue that it has no committed offset of."""

    EARLIEST = "earliest"
    LATEST = "latest"


class Acknowledge(StrEnum):
    """When a message counts as handled."""

    EXPLICIT = "explicit"  # when the consumer says so
    SENT = "sent"  # when the connection has taken it


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """``subscriber`` None: one without a name. It takes part in a shared group, and keeps nothing in a broadcast one.

    ``credit`` and ``credit_bytes`` are the most that is sent and not acknowledged. ``whole``: the stream is to have
    all queues of the topic, and ends when this node does not lead all of them any more. ``filter``: which messages; the
    others count as handled.
    """

    mode: Mode = Mode.PUSH
    subscriber: str | None = None
    start: PushStart = PushStart.EARLIEST
    credit: int = 1_000
    credit_bytes: int = 1024 * 1024
    acknowledge: Acknowledge = Acknowledge.EXPLICIT
    ack_timeout_ms: int = 300_000
    whole: bool = True
    filter: MessageFilter | None = None
