"""Where backups lie: a directory, or a prefix in an object store. What differs between them is here and in objects.py.

Names are in three folders, see repository.py. All of a place raises ``OSError`` where it does not answer or takes
nothing, ``FileNotFoundError`` for what is not there; nobody else's errors.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Protocol

import crc32c

from lsmq.errors import InvalidRequest
from lsmq_node.disks import NODE_FILE
from lsmq_node.disks.mark import MARK_FILE
from lsmq_node.storage.disk import OsDisk, replace_file
from lsmq_node.storage.lock import DirectoryLock

BACKUPS, FILES, INCOMING = "backups", "files", "incoming"
READ_BYTES = 1 << 20


class BackupPlace(Protocol):
    """``str()`` of it is what people call it."""

    def there(self) -> bool:
        """Whether somebody made backups here."""

    def changing(self) -> AbstractContextManager[None]:
        """Of one process at a time. Raises ``DataDirectoryLocked``, ``InvalidRequest`` where something else lies."""

    def path(self, folder: str, name: str) -> str:
        """What people call it."""

    def sizes(self, folder: str) -> dict[str, int]:
        """Of all that lies in a folder, in bytes."""

    def size(self, folder: str, name: str) -> int | None:
        """None where it is not there."""

    def read(self, folder: str, name: str) -> bytes:
        """All of something small."""

    def pieces(self, name: str) -> Iterator[bytes]:
        """What a file has, from its beginning to its end."""

    def on_disk(self, name: str) -> Path | None:
        """Where a file lies on this machine, if it does."""

    def checksum(self, name: str, at: int, length: int) -> int | None:
        """CRC32C of a piece of a file, which begins at a multiple of ``MAX_COMPARE_BYTES``; None where nobody knows."""

    def staging(self) -> Path:
        """A directory for files that come to be, before they are taken."""

    def spool(self) -> Path | None:
        """The directory of this machine that files pass through; None where they lie on it themselves."""

    def free_bytes(self) -> int | None:
        """None where nobody knows."""

    def take(self, name: str, path: Path, checksums: Sequence[int]) -> None:
        """A complete file of ``staging`` becomes one of the folder ``files``; ``checksums`` are of its pieces."""

    def write(self, folder: str, name: str, content: bytes) -> None:
        """As a whole or not at all. When it is there, so is all that was taken before, for ever."""

    def remove(self, folder: str, names: Sequence[str]) -> None:
        """Gone before anything that is done later."""


class DirectoryPlace:
    """A directory of this machine."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._disk = OsDisk()

    def __str__(self) -> str:
        return str(self._directory)

    def there(self) -> bool:
        return (self._directory / BACKUPS).is_dir()

    @contextmanager
    def changing(self) -> Iterator[None]:
        directory = self._directory
        if directory.exists() and not self.there() and any(directory.iterdir()):
            raise InvalidRequest(f"{directory} is not empty, and holds no backups; choose a new directory")
        if not self.there():
            _check_apart(directory)
        lock = DirectoryLock(directory)
        try:
            for folder in (BACKUPS, FILES, INCOMING):
                self._disk.make_directory(directory / folder)
            self._disk.sync_directory(directory)
            yield
        finally:
            lock.release()

    def path(self, folder: str, name: str) -> str:
        return str(self._directory / folder / name)

    def sizes(self, folder: str) -> dict[str, int]:
        found = {}
        for child in (self._directory / folder).iterdir():
            with suppress(FileNotFoundError):  # Somebody removes it just now.
                found[child.name] = child.stat().st_size
        return found

    def size(self, folder: str, name: str) -> int | None:
        try:
            return (self._directory / folder / name).stat().st_size
        except FileNotFoundError:
            return None

    def read(self, folder: str, name: str) -> bytes:
        return (self._directory / folder / name).read_bytes()

    def pieces(self, name: str) -> Iterator[bytes]:
        with (self._directory / FILES / name).open("rb") as stream:
            while piece := stream.read(READ_BYTES):
                yield piece

    def on_disk(self, name: str) -> Path | None:
        return self._directory / FILES / name

    def checksum(self, name: str, at: int, length: int) -> int | None:
        with (self._directory / FILES / name).open("rb") as stream:
            stream.seek(at)
            return int(crc32c.crc32c(stream.read(length)))

    def staging(self) -> Path:
        return self._directory / INCOMING

    def spool(self) -> Path | None:
        return None

    def free_bytes(self) -> int | None:
        return self._disk.free_bytes(self._directory)

    def take(self, name: str, path: Path, checksums: Sequence[int]) -> None:
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
        path.replace(self._directory / FILES / name)

    def write(self, folder: str, name: str, content: bytes) -> None:
        self._disk.sync_directory(self._directory / FILES)
        replace_file(self._disk, self._directory / folder / name, content)

    def remove(self, folder: str, names: Sequence[str]) -> None:
        for name in names:
            self._disk.remove(self._directory / folder / name)
        self._disk.sync_directory(self._directory / folder)


def _check_apart(directory: Path) -> None:
    """Raises ``InvalidRequest`` for a directory in that of a node: it would be lost with what it is a backup of."""
    for above in (whole := directory.resolve(), *whole.parents):
        if (above / NODE_FILE).exists() or (above / MARK_FILE).exists():
            raise InvalidRequest(
                f"{directory} lies in {above}, where a node has its data, and would be lost with it; choose a "
                "directory elsewhere, best on another disk"
            )


def open_place(name: str) -> BackupPlace:
    """``s3://BUCKET/PREFIX``, or a directory. Raises ``InvalidRequest``."""
    scheme, separator, _ = name.partition("://")
    if not separator:
        return DirectoryPlace(Path(name))
    if scheme != "s3":
        raise InvalidRequest(f"{name} is no place for backups; give a directory, or s3://BUCKET/PREFIX")
    from .objects import ObjectPlace  # Its library is an extra of its own.

    return ObjectPlace(name)
