"""How a group's work queue on a topic behaves, and what of it is stored: only what was set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import msgpack

from lsmq.errors import CorruptFile, UnsupportedFormat
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
    body: bytes = msgpack.packb([VERSION, dict(given)])
    return body


def decode_settings(body: bytes, key: str) -> dict[str, Any]:
    """What was set. Raises ``UnsupportedFormat``, ``CorruptFile``."""
    version, given = unpack_rows(body, key, 2)
    if not isinstance(given, dict):
        raise CorruptFile(f"document {key!r} holds no settings", file=key, position=0)
    assert version == VERSION
    return given


def unpack_rows(body: bytes, key: str, count: int) -> list[Any]:
    """The fields of a document of a work queue, the version first. Raises ``UnsupportedFormat``, ``CorruptFile``."""
    try:
        values = msgpack.unpackb(body, strict_map_key=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise CorruptFile(f"document {key!r} is not msgpack", file=key, position=0) from error
    if not isinstance(values, list) or not values or not isinstance(values[0], int):
        raise CorruptFile(f"document {key!r} is none of a work queue", file=key, position=0)
    if values[0] > VERSION:
        raise UnsupportedFormat(
            f"document {key!r} has version {values[0]}; this release reads {VERSION}. Start the release that wrote it, "
            "or a newer one."
        )
    if len(values) != count:
        raise CorruptFile(f"document {key!r} has {len(values)} fields, not {count}", file=key, position=0)
    return values
