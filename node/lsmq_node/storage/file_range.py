"""Whole blocks of one queue that leave the store as they lie in a table file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import BinaryIO

from lsmq.errors import CorruptFile
from lsmq.record_batch import verify_batches

from .disk import LOST
from .failures import damaged
from .table import Table

#: Fewer bytes are not worth a system call of their own.
MIN_FILE_RANGE_BYTES = 64 * 1024
#: What is far behind is read from the disk in pieces, between which the log's fsyncs have their turn.
_PIECE_BYTES = 128 << 10


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class FileRange:
    """Whole blocks of one queue in a table file, to be sent as they are. Each is a record batch.

    ``table`` remembers damage that is found in them.
    """

    file: BinaryIO
    position: int
    length: int
    path: str
    table: Table

    def load(self) -> bytes:
        """Read them. Raises ``CorruptFile`` when a checksum does not match."""
        raw = bytearray(self.length)
        view = memoryview(raw)
        for at in range(0, self.length, _PIECE_BYTES):
            self._read(view[at : at + _PIECE_BYTES], self.position + at)
        if self._verified(view, self.position) != self.length:
            raise self._damaged(f"cut off at byte {self.position}", self.position)
        return bytes(raw)

    def verify(self) -> None:
        """Verify their checksums, which has the operating system read what is not in its memory.

        Takes the memory of a piece, or of the largest block. Raises ``CorruptFile``.
        """
        position, end = self.position, self.position + self.length
        piece = memoryview(bytearray(min(_PIECE_BYTES, self.length)))
        while position < end:
            view = piece[: end - position]
            self._read(view, position)
            verified = self._verified(view, position)
            position += verified
            if verified == 0:  # A block that is larger than a piece.
                if len(view) == end - position:
                    raise self._damaged(f"cut off at byte {position}", position)
                piece = memoryview(bytearray(min(2 * len(piece), end - position)))

    def _read(self, into: memoryview, position: int) -> None:
        try:
            got = os.preadv(self.file.fileno(), [into], position)
        except OSError as error:
            if error.errno not in LOST:
                raise
            raise self._damaged(f"what is at byte {position} cannot be read: {error.strerror}", position) from error
        if got != len(into):
            raise self._damaged(f"cut off at byte {position}", position)

    def _verified(self, view: memoryview, position: int) -> int:
        """Bytes of the whole blocks that ``view``, which stands at ``position``, begins with."""
        try:
            return verify_batches(view, source=self.path)
        except CorruptFile as damage:
            position += int(damage.details["position"])
            raise self._damaged(f"the block at byte {position} is damaged", position) from damage

    def _damaged(self, what: str, position: int) -> CorruptFile:
        self.table.damage = damage = damaged(self.path, f"{what}", position)
        return damage
