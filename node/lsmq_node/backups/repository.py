"""A directory of backups, which share what is the same in them.

::

    DIR/LOCK              held by whoever changes the directory
    DIR/backups/ID        a backup: its manifest, see manifest.py
    DIR/files/SHA256      a file of a shard, under the SHA-256 of its content: one for all backups that have it
    DIR/incoming/         what a backup under way has fetched: a file that is not complete, and JOURNAL

A backup is there once its manifest is, which is written last; a file of it is complete before. So a backup that was
cut short leaves files that no backup names, and a journal by which the next one finds them; whoever ends well removes
what is left over. Content that is whole has the name that it should have, so damage is found without any other copy.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from lsmq.errors import DataDirectoryUnusable, DiskFull, InvalidRequest, LsmqError
from lsmq_node.storage.disk import OsDisk, replace_file
from lsmq_node.storage.failures import FULL, damaged
from lsmq_node.storage.lock import DirectoryLock

from .manifest import BackupManifest, StoredFile

_BACKUPS, _FILES, _INCOMING = "backups", "files", "incoming"
_JOURNAL, _PART = "JOURNAL", "PART"
_ID = re.compile(r"[0-9]{8}T[0-9]{6}\.[0-9]{3}Z")
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Known:
    """A file that is here, and what it is of: content that a shard may still have under that name."""

    shard: int
    file: StoredFile


class Repository:
    """Read by anybody at any time; changed by one process at a time, inside :meth:`changing`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._disk = OsDisk()

    # -- what is here ------------------------------------------------------------------------------------

    def ids(self) -> list[str]:
        """Of all backups, oldest first. Raises ``InvalidRequest`` for a directory of something else."""
        directory = self.path / _BACKUPS
        if not directory.is_dir():
            raise InvalidRequest(f"{self.path} holds no backups; `lsmq backup create --to DIR` makes one")
        return sorted(child.name for child in directory.iterdir() if _ID.fullmatch(child.name))

    def load(self, id: str | None = None) -> BackupManifest:
        """A backup, the latest without an id. Raises ``InvalidRequest``, ``CorruptFile``, ``UnsupportedFormat``."""
        ids = self.ids()
        if not ids or (id is not None and id not in ids):
            wanted = "any backup" if id is None else f"the backup {id!r}"
            there = f"; there are {', '.join(ids[-5:])}" if ids else ""
            raise InvalidRequest(f"{self.path} does not hold {wanted}{there}")
        path = self.path / _BACKUPS / (id or ids[-1])
        try:
            content = path.read_bytes()
        except OSError as error:
            raise damaged(path, f"cannot be read: {error.strerror}") from error
        found = BackupManifest.decode(content, str(path))
        if found.id != path.name:
            raise damaged(path, f"it is the manifest of the backup {found.id}")
        return found

    def file(self, file: StoredFile) -> Path:
        return self.path / _FILES / file.sha256

    def check(self, file: StoredFile) -> None:
        """Read a file, and hold it against its name. Raises ``CorruptFile``."""
        path, digest = self.file(file), hashlib.sha256()
        try:
            with path.open("rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                while piece := stream.read(_READ_BYTES):
                    digest.update(piece)
        except FileNotFoundError:
            raise damaged(path, f"missing; it is {file.name} of a shard") from None
        except OSError as error:
            raise damaged(path, f"cannot be read ({error.strerror}); it is {file.name} of a shard") from error
        if size != file.size_bytes or digest.hexdigest() != file.sha256:
            raise damaged(path, f"its content ({size} bytes) is not what its name says; it is {file.name} of a shard")

    # -- changing it -------------------------------------------------------------------------------------

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Raises ``DataDirectoryLocked`` while another process does, ``DataDirectoryUnusable``, ``DiskFull``."""
        if self.path.exists() and not (self.path / _BACKUPS).is_dir() and any(self.path.iterdir()):
            raise InvalidRequest(f"{self.path} is not empty, and holds no backups; choose a new directory")
        lock = DirectoryLock(self.path)
        try:
            with self._telling():
                for name in (_BACKUPS, _FILES, _INCOMING):
                    self._disk.make_directory(self.path / name)
                self._disk.sync_directory(self.path)
            yield
        finally:
            lock.release()

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """The system's words as ours."""
        try:
            yield
        except OSError as error:
            raise self.failed(error) from error

    def failed(self, error: OSError) -> LsmqError:
        if error.errno in FULL:
            return DiskFull(
                f"no space is left in {self.path}; what was fetched is kept, and the next backup goes on from there. "
                "Free some, or keep fewer backups (--keep)",
                path=str(self.path),
            )
        return DataDirectoryUnusable(f"{error.filename or self.path}: {error.strerror}", directory=str(self.path))

    def known(self) -> list[Known]:
        """Files that are here, newest last: those of backups, and of one that was cut short."""
        found: list[Known] = []
        for id in self.ids():
            with suppress(LsmqError):  # verifying tells of it
                found += [Known(shard.shard, file) for shard in self.load(id).shards for file in shard.files]
        with suppress(FileNotFoundError):
            for line in (self.path / _INCOMING / _JOURNAL).read_text().splitlines():
                with suppress(ValueError, KeyError, TypeError):  # cut short
                    fields = json.loads(line)
                    found.append(Known(fields.pop("shard"), StoredFile(**fields)))
        return [known for known in found if self._is_there(known.file)]

    def _is_there(self, file: StoredFile) -> bool:
        try:
            return self.file(file).stat().st_size == file.size_bytes
        except FileNotFoundError:
            return False

    def check_space(self, wanted_bytes: int) -> None:
        """Raises ``DiskFull`` where so much does not fit."""
        free = self._disk.free_bytes(self.path)
        if free < wanted_bytes:
            raise DiskFull(
                f"the backup needs {wanted_bytes >> 20} MiB in {self.path}; {free >> 20} MiB are free. Free some, or "
                "keep fewer backups (--keep)",
                path=str(self.path),
                free_bytes=free,
            )

    def receive(self) -> Incoming:
        """Take in a file. One at a time for each slot."""
        return Incoming(self)

    def add(self, backup: BackupManifest) -> None:
        """The backup is there; durable on return. All its files are."""
        with self._telling():
            missing = [file for file in backup.files() if not self._is_there(file)]
            assert not missing, "a backup is told of when all its files are there"
            self._disk.sync_directory(self.path / _FILES)
            replace_file(self._disk, self.path / _BACKUPS / backup.id, backup.encode())

    def prune(self, keep: int | None) -> list[str]:
        """Remove all but the newest ``keep`` backups, and files that none has; the ids of those that went."""
        with self._telling():
            ids = self.ids()
            gone = ids[:-keep] if keep else []
            for id in gone:
                self._disk.remove(self.path / _BACKUPS / id)
            self._disk.sync_directory(self.path / _BACKUPS)
            used: set[str] = set()
            try:
                for id in ids[len(gone) :]:
                    used.update(file.sha256 for file in self.load(id).files())
            except LsmqError:  # Nobody knows which files a damaged backup has.
                return gone
            for directory in (_FILES, _INCOMING):
                for name in self._disk.list(self.path / directory):
                    if name not in used:
                        self._disk.remove(self.path / directory / name)
            return gone


class Incoming:
    """A file that is being fetched. Blocking; one thread at a time."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._directory = repository.path / _INCOMING
        self.path = self._directory / f"{_PART}-{os.getpid()}-{id(self):x}"
        self._digest = hashlib.sha256()
        self._size = 0
        with repository._telling():
            self._stream = self.path.open("wb")

    def write(self, piece: bytes) -> None:
        with self._repository._telling():
            self._stream.write(piece)
        self._digest.update(piece)
        self._size += len(piece)

    def written(self) -> None:
        """All of it was written; durable on return. Now it can be verified where it lies."""
        with self._repository._telling():
            self._stream.flush()
            os.fsync(self._stream.fileno())
            self._stream.close()

    def keep(self, shard: int, name: str) -> StoredFile:
        """It is what it should be: a file of the repository from here on."""
        file = StoredFile(name, self._size, self._digest.hexdigest())
        with self._repository._telling():
            self.path.replace(self._repository.file(file))
            with (self._directory / _JOURNAL).open("a") as journal:
                journal.write(json.dumps({"shard": shard, **asdict(file)}) + "\n")
        return file

    def discard(self) -> None:
        with suppress(OSError):
            self._stream.close()
        with suppress(OSError):
            self.path.unlink(missing_ok=True)
