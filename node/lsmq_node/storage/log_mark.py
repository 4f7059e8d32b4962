"""What is noted of a log beside it: how far it was on the disk, and which segments it had.

The log alone cannot tell that its end is missing: bytes that are gone leave no trace. So ``LOG_MARK`` in the shard's
directory notes, durably, how far the log reached when it was last opened, flushed, given a new segment or closed::

    offset width field
     0      8    magic ``LSMQLGM1``
     8      8    durable_lsn        the log was on the disk up to here, and is not cut off before it
    16      8    segments_end_lsn   after the last segment file that was allocated; 0: there was none
    24      1    closed             1: the store was closed, and its log ends at durable_lsn
    25      4    crc                CRC32C of bytes [0, 25)

A store whose log ends before the mark, or goes on in a segment that was there and is not, has lost what it had
acknowledged.

Not supported: to tell that bytes are missing which were written behind the mark, in a segment that is there.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import crc32c

from .disk import Disk, replace_file
from .failures import damaged

NAME = "LOG_MARK"
_MAGIC = b"LSMQLGM1"
_BODY = struct.Struct("<8sQQB")
_FILE_BYTES = _BODY.size + 4  # 8 + 8 + 8 + 1 + 4 = 29


@dataclass(frozen=True, slots=True)
class LogMark:
    """See the module."""

    durable_lsn: int
    segments_end_lsn: int
    closed: bool = False

    def is_true_of(self, now: LogMark, segment_bytes: int) -> bool:
        """Whether a log of which all of ``now`` is true is whole by this, too.

        A segment that was there ahead of the log, and is not, is missed where the log ends right before it.
        """
        between = now.durable_lsn % segment_bytes != 0
        return self.durable_lsn <= now.durable_lsn and (between or self.segments_end_lsn <= now.segments_end_lsn)


def store_log_mark(disk: Disk, directory: Path, mark: LogMark) -> None:
    """Replace the mark of the shard in ``directory``. Durable on return. Raises ``OSError``."""
    body = _BODY.pack(_MAGIC, mark.durable_lsn, mark.segments_end_lsn, mark.closed)
    replace_file(disk, directory / NAME, body + crc32c.crc32c(body).to_bytes(4, "little"))


def load_log_mark(disk: Disk, directory: Path) -> LogMark | None:
    """The mark, or None where nothing was ever written. Raises ``CorruptFile`` for a damaged one."""
    if NAME not in disk.list(directory):
        return None
    path = directory / NAME
    return decode_log_mark(disk.read_all(path), str(path))


def decode_log_mark(raw: bytes, source: str) -> LogMark:
    """Raises ``CorruptFile`` naming ``source``."""
    body = raw[: _BODY.size]
    if len(raw) != _FILE_BYTES or crc32c.crc32c(body).to_bytes(4, "little") != raw[_BODY.size :] or raw[:8] != _MAGIC:
        raise damaged(source, "the mark of the log's end is damaged, so that nobody knows whether the log is whole")
    _, durable_lsn, segments_end_lsn, closed = _BODY.unpack(body)
    return LogMark(durable_lsn, segments_end_lsn, bool(closed))
