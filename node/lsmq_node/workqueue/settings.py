"""How a group's work queue on a topic behaves, and what of it is stored: only what was set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from lsmq_node.machines import documents
from lsmq_node.storage.state import MAX_TOPIC_NAME

VERSION = 1
MIN_VISIBILITY_MS = 100
MAX_VISIBILITY_MS = 43_200_000
MAX_DELAY_MS = 604_800_000
MAX_DELIVERIES = 1_000
DEAD_LETTER_SUFFIX = ".dlq"


@dataclass(frozen=True, slots=True)
class Settings:
    """Attributes:
    max_deliveries: a message that was delivered so often and not acknowledged becomes a dead letter.
    visibility_ms: how long a delivery hides its message from others, unless the pop says otherwise.
    retry_first_ms, retry_max_ms: the delay after the first negative acknowledgement, doubled each time up to the most.
    dead_letter: topic of dead letters; None: the topic's name with ``.dlq``.
    delete_on_ack: messages below the first unsettled one of a queue are deleted, for every group.
    """

    max_deliveries: int = 16
    visibility_ms: int = 30_000
    retry_first_ms: int = 1_000
    retry_max_ms: int = 600_000
    dead_letter: str | None = None
    delete_on_ack: bool = False

    def retry_delay_ms(self, deliveries: int) -> int:
        """How long a message rests after its ``deliveries``-th delivery has failed."""
        return min(self.retry_first_ms << min(max(deliveries - 1, 0), 40), self.retry_max_ms)

    def dead_letter_topic(self, topic: str) -> str:
        """The topic of dead letters of ``topic``."""
        return self.dead_letter or topic[: MAX_TOPIC_NAME - len(DEAD_LETTER_SUFFIX)] + DEAD_LETTER_SUFFIX

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Settings:
        """``given`` over the defaults; what a newer release knows is passed over."""
        known = {item.name for item in fields(cls)}
        return cls(**{name: value for name, value in given.items() if name in known})


def encode_settings(given: Mapping[str, Any]) -> bytes:
    """The document that holds what was set."""
    return documents.pack([VERSION, dict(given)])


def decode_settings(body: bytes, key: str) -> dict[str, Any]:
    """What was set. Raises ``UnsupportedFormat``, ``CorruptFile``."""

    def build(fields: Any) -> dict[str, Any]:
        _, given = fields
        return {**given}

    return documents.decode(body, key, "settings of a work queue", VERSION, build)
