"""A disk in memory that crashes, fills up and fails exactly as it is told.

It keeps two views of everything. What a process sees is the *cache*: each write, create, rename and remove
takes effect at once. What a power cut leaves is the *medium*: file contents as of the last ``sync`` and names
as of the last ``sync_directory``, and of what came after any part:

- of a file's unsynced writes none, all, a prefix of their bytes in order, or any subset of the 4 KiB pages
  they touched, one of which may be torn at any byte;
- of a directory's unsynced changes of names any subset. A rename is one change: both names or neither.

``power_cut`` picks one such outcome from a seed and returns the disk as the next process finds it; ``kill``
returns it with the cache intact and still unsynced, as after a killed process. Either way the old disk is dead:
whatever a leftover thread of the old process still tries fails and changes nothing.

Every operation that changes something is counted in ``operations`` and listed in ``log``; ``at`` makes the
n-th of them (of some kinds) fail, half done where an operation can be half done.

Not supported: failing reads other than by flipping bytes; renames across directories.
"""

from __future__ import annotations

import errno
import io
import os
import random
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from lsmq_node.storage.disk import Buffer

PAGE_BYTES = 4096


class PowerCut(OSError):
    """The power went off. An ``OSError``, so that the engine meets it where a real one would come from."""

    def __init__(self) -> None:
        super().__init__(errno.EIO, "the power is off")


class Inode:
    """A file's contents: as processes see them, as the medium holds them, and the writes between the two."""

    def __init__(self) -> None:
        self.cache = bytearray()
        self.medium = bytearray()
        self.unsynced: list[tuple[int, bytes]] = []  # an empty write at n: the file was extended to n
        self.doubtful: list[tuple[int, bytes]] = []  # writes of a sync that failed: never safe any more

    def write(self, position: int, chunk: bytes) -> None:
        self.unsynced.append((position, chunk))
        _apply(self.cache, position, chunk)

    def sync(self) -> None:
        for position, chunk in self.unsynced:
            _apply(self.medium, position, chunk)
        self.unsynced.clear()

    def lose_sync(self) -> None:
        """A sync that failed: the system forgets that these writes were dirty."""
        self.doubtful += self.unsynced
        self.unsynced.clear()

    def copy(self) -> Inode:
        twin = Inode()
        twin.cache, twin.medium = bytearray(self.cache), bytearray(self.medium)
        twin.unsynced, twin.doubtful = list(self.unsynced), list(self.doubtful)
        return twin

    def after_power_cut(self, chance: random.Random) -> Inode:
        """The file as the medium has it after the power went off now."""
        survivor = bytearray(self.medium)
        writes = self.doubtful + self.unsynced
        if writes:
            match chance.choice(("none", "all", "prefix", "pages", "torn page")):
                case "all":
                    _keep_prefix(survivor, writes, sum(len(chunk) for _, chunk in writes))
                case "prefix":
                    _keep_prefix(survivor, writes, chance.randint(0, sum(len(chunk) for _, chunk in writes)))
                case "pages":
                    _keep_pages(survivor, writes, self.cache, chance, tear=False)
                case "torn page":
                    _keep_pages(survivor, writes, self.cache, chance, tear=True)
        twin = Inode()
        twin.cache, twin.medium = survivor, bytearray(survivor)
        return twin


def _apply(content: bytearray, position: int, chunk: bytes) -> None:
    if position + len(chunk) > len(content):
        content.extend(bytes(position + len(chunk) - len(content)))
    content[position : position + len(chunk)] = chunk


def _keep_prefix(content: bytearray, writes: Sequence[tuple[int, bytes]], length: int) -> None:
    for position, chunk in writes:
        if chunk and length <= 0:
            return
        _apply(content, position, chunk[:length])
        length -= len(chunk)


def _keep_pages(
    content: bytearray,
    writes: Sequence[tuple[int, bytes]],
    cache: bytearray,
    chance: random.Random,
    *,
    tear: bool,
) -> None:
    pages = sorted(
        {
            page
            for position, chunk in writes
            for page in range(position // PAGE_BYTES, (position + len(chunk) - 1) // PAGE_BYTES + 1)
        }
    )
    kept = [page for page in pages if chance.random() < 0.5]
    torn = chance.choice(kept) if tear and kept else -1
    for page in kept:
        chunk = bytes(cache[page * PAGE_BYTES : (page + 1) * PAGE_BYTES])
        if page == torn:
            chunk = chunk[: chance.randint(0, len(chunk))]
        if chunk:
            _apply(content, page * PAGE_BYTES, chunk)


@dataclass(frozen=True)
class Change:
    """One change of a directory's names: one goes, one comes, or both at once."""

    gone: str | None = None
    name: str = ""
    inode: Inode | None = None

    def apply(self, names: dict[str, Inode]) -> None:
        if self.gone is not None:
            names.pop(self.gone, None)
        if self.inode is not None:
            names[self.name] = self.inode


@dataclass
class Names:
    """The names of one directory: as processes see them, on the medium, and the changes between the two."""

    cache: dict[str, Inode] = field(default_factory=dict)
    medium: dict[str, Inode] = field(default_factory=dict)
    unsynced: list[Change] = field(default_factory=list)

    def change(self, change: Change) -> None:
        change.apply(self.cache)
        self.unsynced.append(change)

    def sync(self) -> None:
        self.medium = dict(self.cache)
        self.unsynced.clear()


@dataclass
class Failpoint:
    """Raise ``error`` at the ``countdown``-th operation of ``kinds`` from now; all that follow too if ``lasting``."""

    countdown: int
    error: Callable[[], OSError]
    kinds: Collection[str]
    lasting: bool = False
    hits: int = 0


class SimDisk:
    """Implements ``lsmq_node.storage.disk.Disk``. Thread-safe. Nothing of it is on the real disk."""

    def __init__(self, root: Path, *, seed: int = 0, capacity_bytes: int = 1 << 40) -> None:
        """``root`` and all above it are there, and durable."""
        self.root = root
        self.chance = random.Random(seed)
        self.capacity_bytes = capacity_bytes
        self.operations = 0
        self.log: list[str] = []
        self.dead = False
        self.lock = threading.RLock()
        self._directories: dict[Path, Names] = {root: Names()}
        self._durable_directories: set[Path] = {root}
        self._failpoints: list[Failpoint] = []

    # -- what a test does --------------------------------------------------------------------------------

    def at(
        self,
        nth: int,
        error: int | None = None,
        kinds: Collection[str] = (),
        *,
        lasting: bool = False,
    ) -> Failpoint:
        """Fail the ``nth`` operation from now (1 is the next). Without ``error`` the power goes off there."""

        def make() -> OSError:
            if error is None:
                self.dead = True
                return PowerCut()
            return OSError(error, os.strerror(error))

        point = Failpoint(nth, make, kinds, lasting)
        self._failpoints.append(point)
        return point

    def heal(self) -> None:
        """Forget all failpoints."""
        with self.lock:
            self._failpoints.clear()

    def power_cut(self, seed: int = 0) -> SimDisk:
        """The disk after a power cut now; what of the unsynced survives comes from ``seed``."""
        with self.lock:
            self.dead = True
            chance = random.Random(seed)
            survivor = self._successor(seed)
            copies: dict[int, Inode] = {}
            for path, names in self._directories.items():
                if not self._survives(path):
                    continue
                found = dict(names.medium)
                for change in names.unsynced:
                    if chance.random() < 0.5:
                        change.apply(found)
                twin = Names()
                for name, inode in found.items():
                    twin.cache[name] = copies.setdefault(id(inode), inode.after_power_cut(chance))
                twin.sync()
                survivor._directories[path] = twin
            return survivor

    def kill(self) -> SimDisk:
        """The disk after the process was killed: nothing is lost yet, and nothing is safer than before."""
        with self.lock:
            self.dead = True
            survivor = self._successor(0)
            copies: dict[int, Inode] = {}

            def copied(inode: Inode) -> Inode:
                if id(inode) not in copies:
                    copies[id(inode)] = inode.copy()
                return copies[id(inode)]

            for path, names in self._directories.items():
                survivor._directories[path] = Names(
                    {name: copied(inode) for name, inode in names.cache.items()},
                    {name: copied(inode) for name, inode in names.medium.items()},
                    [
                        Change(change.gone, change.name, None if change.inode is None else copied(change.inode))
                        for change in names.unsynced
                    ],
                )
            return survivor

    def _successor(self, seed: int) -> SimDisk:
        survivor = SimDisk(self.root, seed=seed, capacity_bytes=self.capacity_bytes)
        survivor._durable_directories = set(self._durable_directories)
        return survivor

    def _survives(self, path: Path) -> bool:
        """Whether every directory on the way is durable; those nobody made here were there before."""
        return all(
            parent in self._durable_directories for parent in (path, *path.parents) if parent in self._directories
        )

    def content(self, path: Path) -> bytes:
        with self.lock:
            return bytes(self._inode(path).cache)

    def put(self, path: Path, content: bytes) -> None:
        """Replace a file's contents, durably: damage done behind the engine's back."""
        with self.lock:
            inode = self._inode(path)
            inode.cache, inode.medium = bytearray(content), bytearray(content)
            inode.unsynced.clear()

    def files(self) -> dict[Path, bytes]:
        """All files there are."""
        with self.lock:
            return {
                path / name: bytes(inode.cache)
                for path, names in sorted(self._directories.items())
                for name, inode in sorted(names.cache.items())
            }

    @property
    def used_bytes(self) -> int:
        inodes = {id(inode): inode for names in self._directories.values() for inode in names.cache.values()}
        return sum(len(inode.cache) for inode in inodes.values())

    # -- what the engine does ----------------------------------------------------------------------------

    def step(self, kind: str, path: Path, target: str = "") -> OSError | None:
        """Count an operation. Returns the error it must end in; the caller does its half first."""
        if self.dead:
            raise PowerCut
        self.operations += 1
        self.log.append(f"{kind} {path.name} {target}".rstrip())
        for point in self._failpoints:
            if point.kinds and kind not in point.kinds:
                continue
            point.countdown -= 1
            if point.countdown == 0 or (point.lasting and point.countdown < 0):
                point.hits += 1
                return point.error()
        return None

    def room(self, more: int) -> int:
        return min(more, max(0, self.capacity_bytes - self.used_bytes))

    def _names(self, path: Path) -> Names:
        if self.dead:
            raise PowerCut
        names = self._directories.get(path)
        if names is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return names

    def _inode(self, path: Path) -> Inode:
        names = self._directories.get(path.parent)
        inode = None if names is None else names.cache.get(path.name)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return inode

    def create(self, path: Path) -> SimFile:
        with self.lock:
            error = self.step("create", path)
            names = self._names(path.parent)
            if error is None and self.capacity_bytes <= self.used_bytes:
                error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if error is not None and not isinstance(error, PowerCut):
                raise error
            inode = Inode()
            names.change(Change(name=path.name, inode=inode))
            if error is not None:
                raise error
            return SimFile(self, path, inode)

    def open(self, path: Path, *, write: bool = False, random: bool = False) -> SimFile:
        with self.lock:
            self._names(path.parent)
            return SimFile(self, path, self._inode(path))

    def read_all(self, path: Path) -> bytes:
        with self.lock:
            self._names(path.parent)
            return bytes(self._inode(path).cache)

    def rename(self, source: Path, target: Path) -> None:
        assert source.parent == target.parent
        with self.lock:
            error = self.step("rename", source, target.name)
            names, inode = self._names(source.parent), self._inode(source)
            if error is not None and not isinstance(error, PowerCut):
                raise error
            names.change(Change(source.name, target.name, inode))
            if error is not None:
                raise error

    def link(self, source: Path, target: Path) -> None:
        with self.lock:
            error = self.step("link", source, target.name)
            names, inode = self._names(target.parent), self._inode(source)
            if error is None and target.name in names.cache:
                error = FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
            if error is not None and not isinstance(error, PowerCut):
                raise error
            names.change(Change(name=target.name, inode=inode))
            if error is not None:
                raise error

    def remove(self, path: Path) -> None:
        with self.lock:
            error = self.step("remove", path)
            names = self._names(path.parent)
            if error is not None and not isinstance(error, PowerCut):
                raise error
            names.change(Change(path.name))
            if error is not None:
                raise error

    def list(self, directory: Path) -> list[str]:
        with self.lock:
            if self.dead:
                raise PowerCut
            names = self._directories.get(directory)
            below = {path.name for path in self._directories if path.parent == directory}
            return sorted(below | set(names.cache if names is not None else ()))

    def make_directory(self, path: Path) -> None:
        with self.lock:
            for part in reversed([path, *path.parents]):
                if part != self.root and part not in self.root.parents and part not in self._directories:
                    self._make_one(part)

    def _make_one(self, path: Path) -> None:
        error = self.step("make_directory", path)
        if error is not None:
            raise error
        self._directories[path] = Names()

    def sync_directory(self, path: Path) -> None:
        with self.lock:
            error = self.step("sync_directory", path)
            if error is not None and (not isinstance(error, PowerCut) or self.chance.random() < 0.5):
                raise error
            names = self._directories.get(path)
            if names is not None:
                names.sync()
            self._durable_directories.update(child for child in self._directories if child.parent == path)
            if error is not None:
                raise error

    def free_bytes(self, path: Path) -> int:
        with self.lock:
            return max(0, self.capacity_bytes - self.used_bytes)


class SimFile:
    """An open file of a :class:`SimDisk`. It stays readable when its name is removed."""

    def __init__(self, disk: SimDisk, path: Path, inode: Inode) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode

    def pread(self, length: int, position: int) -> bytes:
        with self._disk.lock:
            if self._disk.dead:
                raise PowerCut
            return bytes(self._inode.cache[position : position + length])

    def pwrite(self, buffer: Buffer, position: int) -> None:
        chunk = bytes(buffer)
        with self._disk.lock:
            error = self._disk.step("write", self._path)
            if error is not None:
                if not isinstance(error, PowerCut):
                    chunk = chunk[: self._disk.chance.randint(0, len(chunk))]
            else:
                beyond = position + len(chunk) - len(self._inode.cache)
                fits = self._disk.room(beyond) if beyond > 0 else 0
                if beyond > fits:
                    chunk = chunk[: len(chunk) - beyond + fits]
                    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if chunk:
                self._inode.write(position, chunk)
            if error is not None:
                raise error

    def pwrite_many(self, buffers: Sequence[Buffer], position: int) -> None:
        self.pwrite(b"".join(buffers), position)

    def sync(self) -> None:
        with self._disk.lock:
            error = self._disk.step("sync", self._path)
            if error is None:
                self._inode.sync()
            elif not isinstance(error, PowerCut):
                self._inode.lose_sync()
                raise error
            elif self._disk.chance.random() < 0.5:
                self._inode.sync()
                raise error
            else:
                raise error

    def preallocate(self, length: int) -> None:
        with self._disk.lock:
            error = self._disk.step("preallocate", self._path)
            beyond = length - len(self._inode.cache)
            if error is None and beyond > 0 and self._disk.room(beyond) < beyond:
                error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if error is not None:
                raise error
            if beyond > 0:
                self._inode.write(length, b"")

    def size(self) -> int:
        return len(self._inode.cache)

    def close(self) -> None:
        """Nothing to give back."""

    def stream(self) -> BinaryIO:
        """A real file with the same bytes, since sendfile needs a descriptor."""
        stream = io.FileIO(os.memfd_create(self._path.name), "r+")
        os.pwrite(stream.fileno(), bytes(self._inode.cache), 0)
        return _Stream(stream)  # type: ignore[return-value]


class _Stream:
    """Closes its descriptor when it is dropped."""

    def __init__(self, stream: io.FileIO) -> None:
        self._stream = stream

    def fileno(self) -> int:
        return self._stream.fileno()

    def __del__(self) -> None:
        self._stream.close()


@dataclass
class SimClock:
    """A clock that a test moves. Implements ``lsmq_node.storage.disk.Clock``."""

    time_ms: int = 1_700_000_000_000
    #: How far the wall clock is from the time that has passed.
    wrong_ms: int = 0

    def now_ms(self) -> int:
        return self.time_ms + self.wrong_ms

    def monotonic(self) -> float:
        return self.time_ms / 1000
