"""A place of backups, which share what is the same in them: a directory, or a prefix in an object store.

::

    LOCK              held by whoever changes the place
    backups/ID        a backup: its manifest, see manifest.py
    files/SHA256      a file of a shard, under the SHA-256 of its content: one for all backups that have it
    incoming/SHA256   of a backup under way: what of a shard the file of that name is
    incoming/PART-*   and a file that is not complete

A backup is there once its manifest is, which is written last; a file of it is complete before. So a backup that was
cut short leaves files that no backup names, and in ``incoming`` what they are, by which the next one finds them;
whoever ends well removes what is left over.
Content that is whole has the name that it should have, so damage is found without any other copy.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Container, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import crc32c

from lsmq.errors import CorruptFile, DataDirectoryUnusable, DiskFull, InvalidRequest, LsmqError
from lsmq_node.broker.snapshot_sessions import MAX_COMPARE_BYTES
from lsmq_node.storage.failures import FULL, damaged
from lsmq_node.storage.passing_files import passing_directory

from .manifest import BackupManifest, StoredFile
from .places import BACKUPS, FILES, INCOMING, BackupPlace, open_place

_PART = "PART"
_ID = re.compile(r"[0-9]{8}T[0-9]{6}\.[0-9]{3}Z")
_MILLISECOND = timedelta(milliseconds=1)
#: What backups put into ``backups``, ``files`` and ``incoming`` beside manifests: ``.tmp`` is what a crash left, and a
#: ``JOURNAL`` a release before.
_HALF_ID = re.compile(_ID.pattern + r"\.tmp")
_FILE = re.compile("[0-9a-f]{64}")
_INCOMING = re.compile(rf"[0-9a-f]{{64}}(\.tmp)?|{_PART}-.*|JOURNAL")


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A file that is here, and what it is of: content that a shard may still have under that name."""

    shard: int
    file: StoredFile


@dataclass(frozen=True, slots=True)
class Pruned:
    """Ids of backups: those that were ``removed``, and those that stay and cannot be read. Because of these no file was
    removed: nobody knows which are theirs."""

    removed: list[str]
    unread: list[str]


class Repository:
    """Read by anybody at any time; changed by one process at a time, inside :meth:`changing`."""

    def __init__(self, place: BackupPlace) -> None:
        self.place = place

    @classmethod
    def at(cls, name: str) -> Repository:
        """In a directory, or at ``s3://BUCKET/PREFIX``. Raises ``InvalidRequest``."""
        return cls(open_place(name))

    # -- what is here ------------------------------------------------------------------------------------

    def ids(self) -> list[str]:
        """Of all backups, oldest first. Raises ``InvalidRequest`` for a place of something else."""
        with self._telling():
            if not self.place.there():
                raise InvalidRequest(f"{self.place} holds no backups; `lsmq backup create --to {self.place}` makes one")
            return self._ids()

    def _ids(self) -> list[str]:
        return sorted(name for name in self.place.sizes(BACKUPS) if _ID.fullmatch(name))

    def load(self, id: str | None = None) -> BackupManifest:
        """A backup, the latest without an id. Raises ``InvalidRequest``, ``CorruptFile``, ``UnsupportedFormat``."""
        ids = self.ids()
        if not ids or (id is not None and id not in ids):
            wanted = "any backup" if id is None else f"the backup {id!r}"
            there = f"; there are {', '.join(ids[-5:])}" if ids else ""
            raise InvalidRequest(f"{self.place} does not hold {wanted}{there}")
        name = id or ids[-1]
        path = self.place.path(BACKUPS, name)
        try:
            content = self.place.read(BACKUPS, name)
        except FileNotFoundError:
            raise InvalidRequest(f"{self.place} does not hold the backup {name!r} any more") from None
        except OSError as error:
            raise damaged(path, f"cannot be read: {error.strerror}") from error
        found = BackupManifest.decode(content, path)
        if found.id != name:
            raise damaged(path, f"it is the manifest of the backup {found.id}")
        return found

    def path(self, file: StoredFile) -> str:
        """What people call it."""
        return self.place.path(FILES, file.sha256)

    def new_id(self, made_ms: int) -> str:
        """Of a backup that is begun now: the moment, but after all that are here, whose maker's clock may have been
        ahead. So the newest one is the last one that was made."""
        begun = datetime.fromtimestamp(made_ms // 1000, UTC) + made_ms % 1000 * _MILLISECOND
        with self._telling():
            ids = self._ids()
        for id in ids:
            with suppress(ValueError):  # It looks like one, and is no moment.
                begun = max(begun, datetime.strptime(id, "%Y%m%dT%H%M%S.%fZ").replace(tzinfo=UTC) + _MILLISECOND)
        return f"{begun:%Y%m%dT%H%M%S}.{begun.microsecond // 1000:03}Z"

    def has(self, file: StoredFile) -> bool:
        return self.place.size(FILES, file.sha256) is not None

    def check_there(self, backup: BackupManifest) -> None:
        """Raises ``CorruptFile`` where a file of the backup is missing or of another size. Reads none."""
        with self._telling():
            there = self.place.sizes(FILES)
        for file in backup.files():
            if file.sha256 not in there:
                raise self._missing(file)
            if there[file.sha256] != file.size_bytes:
                raise damaged(
                    self.path(file),
                    f"has {there[file.sha256]} of {file.size_bytes} bytes; it is {file.name} of a shard",
                )

    def _missing(self, file: StoredFile) -> CorruptFile:
        return damaged(self.path(file), f"missing; it is {file.name} of a shard")

    def pieces(self, file: StoredFile) -> Iterator[bytes]:
        """All of a file, held against its name at the end. Raises ``CorruptFile``."""
        path, digest, size = self.path(file), hashlib.sha256(), 0
        try:
            for piece in self.place.pieces(file.sha256):
                digest.update(piece)
                size += len(piece)
                if size > file.size_bytes:
                    break
                yield piece
        except FileNotFoundError:
            raise self._missing(file) from None
        except OSError as error:
            raise damaged(path, f"cannot be read ({error.strerror}); it is {file.name} of a shard") from error
        if size != file.size_bytes or digest.hexdigest() != file.sha256:
            raise damaged(path, f"its content ({size} bytes) is not what its name says; it is {file.name} of a shard")

    @contextmanager
    def whole(self, file: StoredFile) -> Iterator[Path]:
        """A file of this machine that was read and held against its name: where there is none, a copy meanwhile.

        Raises ``CorruptFile``, ``DiskFull``.
        """
        path = self.place.on_disk(file.sha256)
        with ExitStack() as held:
            if path is not None:
                for _ in self.pieces(file):
                    pass
            else:
                with self._telling():
                    path = held.enter_context(passing_directory("backup")) / file.sha256
                    with path.open("wb") as copy:
                        for piece in self.pieces(file):
                            copy.write(piece)
            yield path

    def checksum(self, file: StoredFile, at: int, length: int) -> int | None:
        """CRC32C of a piece of a file; None where nobody knows it."""
        with self._telling():
            return self.place.checksum(file.sha256, at, length)

    # -- changing it -------------------------------------------------------------------------------------

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Raises ``DataDirectoryLocked`` while another process does, ``DataDirectoryUnusable``, ``DiskFull``."""
        changing = self.place.changing()
        with self._telling():
            changing.__enter__()
        try:
            yield
        finally:
            changing.__exit__(None, None, None)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """The system's words as ours."""
        try:
            yield
        except OSError as error:
            raise self.failed(error) from error

    def failed(self, error: OSError) -> LsmqError:
        if error.errno in FULL and (spool := self.place.spool()) is not None:
            return DiskFull(
                f"no space is left in {spool}, where files are on their way to or from {self.place}: free some, or "
                "have another directory be it for temporary files (TMPDIR)",
                path=str(spool),
            )
        if error.errno in FULL:
            return DiskFull(
                f"no space is left in {self.place}; what was fetched is kept, and the next backup goes on from there. "
                "Free some, or keep fewer backups (--keep)",
                path=str(self.place),
            )
        return DataDirectoryUnusable(f"{error.filename or self.place}: {error.strerror}", directory=str(self.place))

    def known(self) -> list[KnownFile]:
        """Files that are here, newest last: those of backups, and of one that was cut short."""
        found: list[KnownFile] = []
        with self._telling():
            ids = self._ids()
        for id in ids:
            with suppress(LsmqError):  # verifying tells of it
                found += [KnownFile(shard.shard, file) for shard in self.load(id).shards for file in shard.files]
        with self._telling():
            for name in self.place.sizes(INCOMING):
                with suppress(ValueError, KeyError, TypeError, FileNotFoundError):  # a file that is not complete
                    if _FILE.fullmatch(name):
                        fields = json.loads(self.place.read(INCOMING, name))
                        found.append(KnownFile(fields.pop("shard"), StoredFile(**fields)))
            there = self.place.sizes(FILES)
        return [known for known in found if there.get(known.file.sha256) == known.file.size_bytes]

    def check_space(self, wanted_bytes: int) -> None:
        """Raises ``DiskFull`` where so much does not fit."""
        free = self.place.free_bytes()
        if free is not None and free < wanted_bytes:
            raise DiskFull(
                f"the backup needs {wanted_bytes >> 20} MiB in {self.place}; {free >> 20} MiB are free. Free some, or "
                "keep fewer backups (--keep)",
                path=str(self.place),
                free_bytes=free,
            )

    def receive(self) -> IncomingFile:
        """Take in a file. One at a time for each slot."""
        return IncomingFile(self)

    def add(self, backup: BackupManifest) -> None:
        """The backup is there; durable on return. All its files are."""
        with self._telling():
            there = self.place.sizes(FILES)
            missing = [file for file in backup.files() if there.get(file.sha256) != file.size_bytes]
            assert not missing, "a backup is told of when all its files are there"
            self.place.write(BACKUPS, backup.id, backup.encode())

    def prune(self, keep: int | None, like: BackupManifest | None = None) -> Pruned:
        """Remove all but the newest ``keep`` backups that can be read, and what is older, and files that none has.

        With ``like`` those of other clusters than its own are not counted, and stay.
        """
        with self._telling():
            ids, whole = self.ids(), dict[str, BackupManifest]()
            for id in ids:
                with suppress(LsmqError):
                    whole[id] = self.load(id)
            others = {id for id, each in whole.items() if like is not None and each.cluster != like.cluster}
            own = [id for id in whole if id not in others]
            gone = [id for id in ids if id < own[-keep] and id not in others] if keep and len(own) >= keep else []
            if others:  # Nobody knows whose one is that cannot be read.
                gone = [id for id in gone if id in whole]
            self.place.remove(BACKUPS, gone)
            unread = [id for id in ids if id not in whole and id not in gone]
            if not unread:  # Nobody knows which files one has that cannot be read.
                used = {file.sha256 for id, backup in whole.items() if id not in gone for file in backup.files()}
                self._remove_ours(FILES, _FILE, used)
                self._remove_ours(INCOMING, _INCOMING)
                self._remove_ours(BACKUPS, _HALF_ID)
            return Pruned(gone, unread)

    def _remove_ours(self, folder: str, ours: re.Pattern[str], used: Container[str] = ()) -> None:
        """What backups left there that is not used. Whatever somebody else put there stays."""
        names = [name for name in self.place.sizes(folder) if ours.fullmatch(name) and name not in used]
        self.place.remove(folder, names)


class IncomingFile:
    """A file that is being fetched. Blocking; one thread at a time."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self.path = repository.place.staging() / f"{_PART}-{os.getpid()}-{id(self):x}"
        self._digest = hashlib.sha256()
        self._checksums: list[int] = []
        self._size = 0
        with repository._telling():
            self._stream = self.path.open("wb")

    def write(self, piece: bytes) -> None:
        with self._repository._telling():
            self._stream.write(piece)
        self._digest.update(piece)
        rest = memoryview(piece)
        while len(rest):
            if self._size % MAX_COMPARE_BYTES == 0:
                self._checksums.append(0)
            part = rest[: MAX_COMPARE_BYTES - self._size % MAX_COMPARE_BYTES]
            self._checksums[-1] = crc32c.crc32c(part, self._checksums[-1])
            self._size += len(part)
            rest = rest[len(part) :]

    def written(self) -> None:
        """All of it was written. Now it can be verified where it lies."""
        with self._repository._telling():
            self._stream.close()

    def keep(self, shard: int, name: str) -> StoredFile:
        """It is what it should be: a file of the repository from here on."""
        file = StoredFile(name, self._size, self._digest.hexdigest())
        place = self._repository.place
        with self._repository._telling():
            place.take(file.sha256, self.path, self._checksums)
            place.write(INCOMING, file.sha256, json.dumps({"shard": shard, **asdict(file)}).encode())
        return file

    def discard(self) -> None:
        with suppress(OSError):
            self._stream.close()
        with suppress(OSError):
            self.path.unlink(missing_ok=True)
