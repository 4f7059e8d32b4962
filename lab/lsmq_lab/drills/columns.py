"""Messages as the columns that a history takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import xxhash


def fields_of(body: bytes) -> tuple[str, int, int]:
    """The key and the sequence that a drill's message says it has, and its digest."""
    sequence, key = body.split(b" ", 2)[:2]
    return key.decode(), int(sequence), xxhash.xxh64_intdigest(body)


@dataclass(slots=True)
class DrillColumns:
    """What was sent, or what one reader was handed, in order."""

    queues: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    digests: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.queues)

    def add(self, queue: int, offset: int, body: bytes) -> None:
        """One more message. The offset is -1 where it is not known."""
        self.add_fields(queue, offset, *fields_of(body))

    def add_fields(self, queue: int, offset: int, key: str, sequence: int, digest: int) -> None:
        self.queues.append(queue)
        self.offsets.append(offset)
        self.keys.append(key)
        self.sequences.append(sequence)
        self.digests.append(digest)

    def hand_to(self, take: Callable[..., None], **more: int) -> None:
        """Call ``acknowledged`` of a history, or ``received`` of a reading."""
        take(self.queues, self.offsets, self.keys, self.sequences, digests=self.digests, **more)
