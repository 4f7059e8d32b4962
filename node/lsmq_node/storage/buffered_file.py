"""A file that is written once, from its beginning to its end, a large piece at a time."""

from __future__ import annotations

from pathlib import Path

from .disk import Disk

_WRITE_BYTES = 1 << 20


class BufferedFile:
    """``finish`` it or ``abandon`` it."""

    def __init__(self, disk: Disk, path: Path, head: bytes) -> None:
        self._file = disk.create(path)
        self._buffer = bytearray(head)
        self._written = 0  # bytes before the buffer

    @property
    def end(self) -> int:
        """Where the next bytes go."""
        return self._written + len(self._buffer)

    def write(self, content: bytes | memoryview) -> None:
        self._buffer += content
        if len(self._buffer) >= _WRITE_BYTES:
            self._put()

    def _put(self) -> None:
        self._file.pwrite(self._buffer, self._written)
        self._written += len(self._buffer)
        self._buffer = bytearray()

    def finish(self) -> int:
        """Durable on return, but for the file's name. Returns its size in bytes."""
        self._put()
        self._file.sync()
        self._file.close()
        return self._written

    def abandon(self) -> None:
        """Close what is not finished; the caller removes it."""
        self._file.close()
