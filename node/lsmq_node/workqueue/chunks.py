"""What of a queue's window is stored, in chunks of 1,024 offsets: a change costs what its chunk holds, not the window.

Below a queue's committed offset everything is settled. Above it, a chunk's document says which offsets are settled, and
how often unsettled ones were delivered and when they are due again. What no document speaks of was not settled, and
its deliveries, if any, had not ended. See ``docs/formats/documents.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lsmq_node.machines import documents

from .settings import VERSION

CHUNK_OFFSETS = 1_024
KEY_PREFIX = "work/"
SETTINGS = "settings"
BURIAL = "burial"


@dataclass(frozen=True, slots=True)
class FailedMessage:
    """A message whose deliveries have ended without acknowledgement ``count`` times; due again at ``due_ms``."""

    count: int
    due_ms: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SettledChunk:
    """``settled``: half-open ranges of offsets, sorted and disjoint. ``failed``: by offset."""

    settled: tuple[tuple[int, int], ...] = ()
    failed: dict[int, FailedMessage] = field(default_factory=dict)

    def encode(self, number: int) -> bytes:
        """The document of chunk ``number``: ``[1, settled, failed]``, offsets counted from the chunk's first.

        ``settled`` is flat: first, end, first, end; ``failed`` has rows ``[offset, count, due_ms, reason]``.
        """
        base = number * CHUNK_OFFSETS
        flat = [offset - base for pair in self.settled for offset in pair]
        rows = [[offset - base, failed.count, failed.due_ms, failed.reason] for offset, failed in self.failed.items()]
        return documents.pack([VERSION, flat, rows])

    @classmethod
    def decode(cls, body: bytes, number: int, key: str) -> SettledChunk:
        """Raises ``UnsupportedFormat`` for a newer one, ``CorruptFile`` for what is none."""
        base = number * CHUNK_OFFSETS

        def build(fields: Any) -> SettledChunk:
            _, flat, rows = fields
            settled = tuple((base + flat[at], base + flat[at + 1]) for at in range(0, len(flat), 2))
            return cls(
                settled, {base + offset: FailedMessage(count, due, reason) for offset, count, due, reason in rows}
            )

        return documents.decode(body, key, "chunk of a work queue", VERSION, build)


def prefix(group: str, topic_id: int | None = None) -> str:
    """Where all keys of a group begin, or of a group on a topic."""
    return f"{KEY_PREFIX}{group}/" if topic_id is None else f"{KEY_PREFIX}{group}/{topic_id}/"
