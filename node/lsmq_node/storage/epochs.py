"""Where the leader epochs of a log begin, and which life of which replica began each.

Two logs that name the same epoch at the same LSN are the same up to there only if one leader wrote both. So an EPOCH
entry says who it was: the incarnation of a replica, and which of that one's starts. Its body::

    offset width field
     0      8    incarnation
     8      8    start
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from .failures import damaged
from .wal import ENTRY_BYTES, LogEntry

_BODY = struct.Struct("<QQ")
#: Of an EPOCH entry in the log, header and all.
EPOCH_ENTRY_BYTES = ENTRY_BYTES + _BODY.size


class StoredEpochStart(NamedTuple):
    """``epoch`` begins with its entry at ``lsn``, which start ``start`` of ``incarnation`` wrote."""

    epoch: int
    lsn: int
    incarnation: int
    start: int


def encode_life(incarnation: int, start: int) -> bytes:
    """The body of an EPOCH entry."""
    return _BODY.pack(incarnation, start)


def epoch_start(entry: LogEntry, source: str) -> StoredEpochStart:
    """What an EPOCH entry says. Raises ``CorruptFile``."""
    if len(entry.body) != _BODY.size:
        raise damaged(
            source, f"the EPOCH entry at LSN {entry.lsn} has {len(entry.body)} bytes, not {_BODY.size}", entry.lsn
        )
    return StoredEpochStart(entry.epoch, entry.lsn, *_BODY.unpack(entry.body))


def needed(epochs: Iterable[StoredEpochStart], log_start_lsn: int) -> list[StoredEpochStart]:
    """What is left of a history, rising, of a log that begins at ``log_start_lsn``: of the epochs that began before
    that the last, which the log's first bytes may be of. So it grows with the log that is kept, and not for ever."""
    left: list[StoredEpochStart] = []
    for start in epochs:
        if left and start.lsn < log_start_lsn:
            left.clear()
        left.append(start)
    return left
