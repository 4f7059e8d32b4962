"""What a read found, in parts that leave for the socket as they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsmq_node.storage import FileRange, Slice

from .read_redirects import ReadRedirect

#: Positions of so many reads that found nothing are kept apart, before they become one.
_MANY_READS = 16


@dataclass(slots=True)
class Fetched:
    """What a read found, in the order of shards. ``queues`` and ``next_offsets`` are those that moved.

    ``elsewhere`` are queues that the reader is to read at other nodes from now on, moved or not. ``session`` is
    the token to go on with. ``spent``: what was read has been looked at and let through little; there may be more.
    """

    parts: list[bytes | FileRange] = field(default_factory=list)
    queues: list[NDArray[Any]] = field(default_factory=list)
    next_offsets: list[NDArray[Any]] = field(default_factory=list)
    record_count: int = 0
    size_bytes: int = 0
    elsewhere: list[ReadRedirect] = field(default_factory=list)
    #: Batches that say the names of queues that have messages here.
    names: list[bytes] = field(default_factory=list)
    session: str | None = None
    spent: bool = False

    def __bool__(self) -> bool:
        return self.moved or bool(self.elsewhere)

    @property
    def moved(self) -> bool:
        """Whether there is anything beyond the offsets asked for."""
        return bool(self.queues) or self.record_count > 0

    @property
    def is_worth_an_answer(self) -> bool:
        """Whether a reader that waits for messages is to be told, and not only that others were passed over."""
        return bool(self.record_count or self.elsewhere or self.spent or len(self.names) > _MANY_READS)

    def followed_by(self, later: Fetched) -> Fetched:
        """``later``, read where this one ended, which found no message: it moves what this one has moved, too."""
        later.queues[:0], later.next_offsets[:0] = self.queues, self.next_offsets
        later.names[:0] = self.names
        if len(later.queues) > _MANY_READS:
            queues, offsets = np.concatenate(later.queues), np.concatenate(later.next_offsets)
            distinct, lasts = np.unique(queues[::-1], return_index=True)
            later.queues, later.next_offsets = [distinct], [offsets[::-1][lasts]]
        return later

    def add(self, piece: Slice) -> None:
        self.parts.extend(piece.parts)
        queues, next_offsets = piece.positions
        if len(queues):
            self.queues.append(queues)
            self.next_offsets.append(next_offsets)
        self.record_count += piece.record_count
        self.spent |= piece.spent
        self.size_bytes += piece.size_bytes

    @property
    def file_bytes(self) -> int:
        return sum(part.length for part in self.parts if isinstance(part, FileRange))

    def take_in(self, sendfile_min_bytes: int | None) -> None:
        """Read what is in files; or verify it there, if that are so many bytes that they are to leave by sendfile.

        Neither the one who sends it nor the one who looks into it waits for the disk then. Blocking. Raises
        ``CorruptFile``.
        """
        if sendfile_min_bytes is None or self.file_bytes < sendfile_min_bytes:
            self.parts = [part if isinstance(part, bytes) else part.load() for part in self.parts]
            return
        for part in self.parts:
            if isinstance(part, FileRange):
                part.verify()

    def load(self) -> bytes:
        """All parts, one after another."""
        return b"".join(part if isinstance(part, bytes) else part.load() for part in self.parts)
