"""A machine's disk: what of its files a power cut leaves.

Files are real ones, below a directory that had best be in memory, so the product opens, maps, locks and lists them as
ever. What changes them goes through :mod:`.files` and is written down here on its way: for each file what it held when
it was last synced and what was written since, for each directory which names were durable and what became of them
since. A power cut rebuilds the directory from that:

- of a file's unsynced writes none, all, a prefix of their bytes in order, or any subset of the 4 KiB pages they
  touched, one of which may be torn at any byte;
- of unsynced changes of names any subset. A rename is one change: both names or neither. A directory that did not last
  takes with it all that was in it.

Disks can be slow or full; lose everything, or be set back to what they held before; change a bit at rest. Every
operation that changes something is counted, and :meth:`SimulatedDisk.at` makes the n-th of them (of some kinds) fail,
half done where an operation can be half done, or the power go off there.

Not supported: reads that fail; writes other than by ``os``, but for files that are synced before they are renamed; hard
links between machines.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from random import Random

from .medium import DirectoryChange, DirectoryNode, FileNode, MediumNode, survivor

#: What a disk holds that is never full.
UNLIMITED_BYTES = 1 << 40
REAL = {
    name: getattr(os, name)
    for name in (
        "open", "close", "pwrite", "pwritev", "write", "ftruncate", "posix_fallocate", "fsync", "fdatasync", "rename",
        "replace", "unlink", "link", "mkdir", "rmdir", "statvfs", "pread", "fstat", "read",
    )
}  # fmt: skip


def os_error(number: int, path: object = None) -> OSError:
    return OSError(number, os.strerror(number), None if path is None else str(path))


class PowerCut(OSError):
    """The power went off. An ``OSError``, so that programs meet it where a real one would come from."""

    def __init__(self) -> None:
        super().__init__(errno.EIO, "the power is off")


@dataclass(eq=False)
class Failpoint:
    """Raise ``error`` at the ``countdown``-th operation of ``kinds`` from now; if ``lasting`` at all that follow."""

    countdown: int
    error: Callable[[], OSError | None]
    kinds: Collection[str]
    lasting: bool = False
    hits: int = 0


class SimulatedDisk:
    """One machine's. ``root`` is where its files are.

    Attributes:
        sync_s: how long a sync takes, from and to.
        slow: files whose path has this in it take so long instead.
        capacity_bytes: what all its files may be long together.
        operations: how many have changed something.
        log: what they were, ``kind name [other name]``, where somebody wants to know: a list.
        dead: the power is off: whatever is tried fails and changes nothing.
    """

    def __init__(self, host: str, root: Path, chance: Random) -> None:
        self.host, self.root, self.chance = host, root, chance
        self.top = DirectoryNode()
        self.changes: list[DirectoryChange] = []
        self.sync_s = (0.0001, 0.002)
        self.slow: tuple[str, float] | None = None
        self.capacity_bytes = UNLIMITED_BYTES
        self.operations = 0
        self.log: list[str] | None = None
        self.dead = False
        self._failpoints: list[Failpoint] = []
        root.mkdir(parents=True, exist_ok=True)

    # What fails

    def at(
        self,
        nth: int,
        error: int | None = None,
        kinds: Collection[str] = (),
        *,
        lasting: bool = False,
        instead: Callable[[], OSError | None] | None = None,
    ) -> Failpoint:
        """Fail the ``nth`` operation from now (1 is the next) with an ``errno``.

        Without one the power goes off there, unless ``instead`` does something else: what it returns.
        """

        def make() -> OSError:
            if error is None:
                self.dead = True
                return PowerCut()
            return os_error(error)

        point = Failpoint(nth, instead or make, kinds, lasting)
        self._failpoints.append(point)
        return point

    def heal(self) -> None:
        """Forget all that was to fail."""
        self._failpoints.clear()

    def step(self, kind: str, path: str, target: str = "") -> OSError | None:
        """Count an operation. Returns the error it must end in; the caller does its half first."""
        if self.dead:
            raise PowerCut
        self.operations += 1
        if self.log is not None:
            name = "/" if path == str(self.root) else path.rpartition("/")[2]
            self.log.append(f"{kind} {name} {target.rpartition('/')[2]}".rstrip())
        for point in self._failpoints:
            if point.kinds and kind not in point.kinds:
                continue
            point.countdown -= 1
            if point.countdown == 0 or (point.lasting and point.countdown < 0):
                point.hits += 1
                return point.error()
        return None

    @property
    def used_bytes(self) -> int:
        """The lengths of all files that have a name. Under the lock of what changes them."""
        found = {}
        for directory, _, names in os.walk(self.root):
            for name in names:
                status = Path(directory, name).stat()
                found[status.st_ino] = status.st_size
        return sum(found.values())

    def room(self, more: int) -> int:
        """How many of ``more`` bytes there is space for."""
        if self.capacity_bytes >= UNLIMITED_BYTES:
            return more
        return min(more, self.free_bytes())

    def free_bytes(self) -> int:
        if self.capacity_bytes in (0, UNLIMITED_BYTES):
            return self.capacity_bytes
        return max(0, self.capacity_bytes - self.used_bytes)

    # What is where

    def directory(self, path: str) -> tuple[DirectoryNode, str] | None:
        """The directory that a path's last name is in. What was made behind our back counts as durable."""
        parts = path[len(str(self.root)) + 1 :].split("/")
        node: DirectoryNode = self.top
        below = str(self.root)
        for part in parts[:-1]:
            below = f"{below}/{part}"
            found = node.live.get(part)
            if found is None:
                if not Path(below).is_dir():
                    return None
                found = node.live[part] = node.durable[part] = DirectoryNode()
            if not isinstance(found, DirectoryNode):
                return None
            node = found
        return node, parts[-1]

    def node(self, path: str) -> MediumNode | None:
        """What a path names."""
        if path == str(self.root):
            return self.top
        place = self.directory(path)
        if place is None:
            return None
        directory, name = place
        found = directory.live.get(name)
        if found is None and os.path.lexists(path):
            found = directory.live[name] = DirectoryNode() if Path(path).is_dir() else FileNode()
        return found

    def change(self, *names: tuple[DirectoryNode, str, MediumNode | None]) -> None:
        for directory, name, node in names:
            if node is None:
                directory.live.pop(name, None)
            else:
                directory.live[name] = node
        self.changes.append(DirectoryChange(list(names)))

    def sync_names(self, directory: DirectoryNode) -> None:
        kept = []
        for change in self.changes:
            if any(each is directory for each, _, _ in change.names):
                _settle(change)
            else:
                kept.append(change)
        self.changes = kept

    # What befalls it; nobody has its files open any more

    def power_cut(self, chance: Random) -> None:
        """It holds what the medium has now; what of the unsynced survives is drawn."""
        self.become(self.outcome(chance))

    def outcome(self, chance: Random) -> DirectoryNode:
        """What a power cut now would leave, all of it durable."""
        settled: dict[int, dict[str, MediumNode]] = {}
        for change in self.changes:
            if chance.random() < 0.5:
                for directory, name, node in change.names:
                    names = settled.setdefault(id(directory), dict(directory.durable))
                    if node is None:
                        names.pop(name, None)
                    else:
                        names[name] = node
        copies: dict[int, FileNode] = {}

        def after(node: MediumNode) -> MediumNode:
            if isinstance(node, DirectoryNode):
                names = settled.get(id(node), node.durable)
                return DirectoryNode(durable={name: after(each) for name, each in sorted(names.items())})
            if id(node) not in copies:
                copies[id(node)] = FileNode(survivor(node, chance))
            return copies[id(node)]

        top = after(self.top)
        assert isinstance(top, DirectoryNode)
        return top

    def become(self, top: DirectoryNode, *, only: str | None = None) -> None:
        """It holds this and nothing else, durably; or what is below ``only``, such as ``data/raft``, becomes this."""
        if only is not None:
            wanted, top = top, self.copy()
            there, name = _below(top, only)
            there.durable[name] = _below(wanted, only)[0].durable[name]
        shutil.rmtree(self.root, ignore_errors=True)
        self.changes.clear()
        REAL["mkdir"](self.root)
        self.top = _build(top, str(self.root), {})

    def copy_to(self, twin: SimulatedDisk) -> None:
        """Another, empty one is to hold the same, and as much of it safely."""
        copies: dict[int, MediumNode] = {}

        def copied(node: MediumNode) -> MediumNode:
            found = copies.get(id(node))
            if found is None and isinstance(node, FileNode):
                found = FileNode(bytearray(node.durable), list(node.unsynced), list(node.doubtful))
                copies[id(node)] = found
            elif found is None:
                assert isinstance(node, DirectoryNode)
                copies[id(node)] = found = DirectoryNode()
                found.live = {name: copied(each) for name, each in node.live.items()}
                found.durable = {name: copied(each) for name, each in node.durable.items()}
            return found

        def directory(node: DirectoryNode) -> DirectoryNode:
            found = copied(node)
            assert isinstance(found, DirectoryNode)
            return found

        twin.top = directory(self.top)
        for change in self.changes:
            names = [(directory(at), name, None if each is None else copied(each)) for at, name, each in change.names]
            twin.changes.append(DirectoryChange(names))
        _copy_files(self.root, twin.root)

    def copy(self) -> DirectoryNode:
        """All that is durable, to be set back to some time."""

        def twin(node: MediumNode) -> MediumNode:
            if isinstance(node, FileNode):
                return FileNode(bytearray(node.durable))
            return DirectoryNode(durable={name: twin(each) for name, each in sorted(node.durable.items())})

        copied = twin(self.top)
        assert isinstance(copied, DirectoryNode)
        return copied

    def erase(self, path: str, begin: int) -> None:
        """What a file holds from ``begin`` on is zeros, as if it had never been written."""
        node = self.node(path)
        if isinstance(node, FileNode) and begin < len(node.durable):
            node.durable[begin:] = bytes(len(node.durable) - begin)
            Path(path).write_bytes(node.durable)

    def flip_bit(self, chance: Random, wanted: Callable[[str], bool]) -> str | None:
        """Change one bit of a file at rest; its path."""
        found = sorted(str(path) for path in self.root.rglob("*") if path.is_file() and wanted(str(path)))
        found = [path for path in found if Path(path).stat().st_size]
        if not found:
            return None
        path = found[chance.randrange(len(found))]
        node, at = self.node(path), chance.randrange(Path(path).stat().st_size)
        content = bytearray(Path(path).read_bytes())
        content[at] ^= 1 << chance.randrange(8)
        Path(path).write_bytes(content)
        if isinstance(node, FileNode) and at < len(node.durable):
            node.durable[at] = content[at]
        return f"{path[len(str(self.root)) + 1 :]}:{at}"


def _build(directory: DirectoryNode, path: str, copies: dict[int, tuple[str, FileNode]]) -> DirectoryNode:
    """Files as they are durable of a directory, and what is known of them then."""
    twin = DirectoryNode()
    for name, node in sorted(directory.durable.items()):
        below = f"{path}/{name}"
        if isinstance(node, DirectoryNode):
            REAL["mkdir"](below)
            twin.live[name] = _build(node, below, copies)
        else:
            if id(node) in copies:
                first, twin.live[name] = copies[id(node)]
                REAL["link"](first, below)
                continue
            copy = twin.live[name] = FileNode(bytearray(node.durable))
            copies[id(node)] = below, copy
            fd = REAL["open"](below, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            if copy.durable:
                REAL["write"](fd, copy.durable)
            REAL["close"](fd)
    twin.durable = dict(twin.live)
    return twin


def _copy_files(source: Path, target: Path) -> None:
    """As processes see them; names of one file stay names of one file."""
    copies: dict[int, str] = {}
    for directory, below, names in os.walk(source):
        there = f"{target}{directory[len(str(source)) :]}"
        for name in below:
            REAL["mkdir"](f"{there}/{name}")
        for name in names:
            inode = Path(directory, name).stat().st_ino
            if inode in copies:
                REAL["link"](copies[inode], f"{there}/{name}")
            else:
                copies[inode] = f"{there}/{name}"
                shutil.copyfile(f"{directory}/{name}", copies[inode])


def _below(top: DirectoryNode, path: str) -> tuple[DirectoryNode, str]:
    """The durable directory that a path's last name is in."""
    *parts, name = path.split("/")
    for part in parts:
        node = top.durable[part]
        assert isinstance(node, DirectoryNode)
        top = node
    return top, name


def _settle(change: DirectoryChange) -> None:
    for directory, name, node in change.names:
        if node is None:
            directory.durable.pop(name, None)
        else:
            directory.durable[name] = node
