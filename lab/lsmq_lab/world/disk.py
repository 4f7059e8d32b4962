"""A machine's disk: what of its files a power cut leaves.

Files are real ones, below a directory that had best be in memory, so the product opens, maps, locks and lists them as
ever. What changes them goes through :mod:`.files` and is written down here on its way: for each file what it held when
it was last synced and what was written since, for each directory which names were durable and what became of them
since. A power cut rebuilds the directory from that:

- of a file's unsynced writes none, all, a prefix of their bytes in order, or any subset of the 4 KiB pages they
  touched, one of which may be torn at any byte;
- of unsynced changes of names any subset. A rename is one change: both names or neither. A directory that did not last
  takes with it all that was in it.

Disks can be slow or full, and fail; lose everything, or be set back to what they held before; change a bit at rest.

Not supported: writes other than by ``os``, but for files that are synced before they are renamed; hard links between
machines.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PAGE_BYTES = 4096
REAL = {
    name: getattr(os, name)
    for name in (
        "open", "close", "pwrite", "pwritev", "write", "ftruncate", "posix_fallocate", "fsync", "fdatasync", "rename",
        "replace", "unlink", "link", "mkdir", "rmdir", "statvfs", "pread", "fstat", "read",
    )
}  # fmt: skip


def os_error(number: int, path: object = None) -> OSError:
    return OSError(number, os.strerror(number), None if path is None else str(path))


@dataclass(eq=False)
class FileNode:
    """A file: what is durable of it, and what came after. A write without bytes sets its length."""

    durable: bytearray = field(default_factory=bytearray)
    unsynced: list[tuple[int, bytes | None]] = field(default_factory=list)
    doubtful: list[tuple[int, bytes | None]] = field(default_factory=list)  # of syncs that failed

    def sync(self) -> None:
        for write in self.unsynced:
            _apply(self.durable, *write)
        self.unsynced.clear()


@dataclass(eq=False)
class DirectoryNode:
    """A directory: its names as processes see them, and as they are on the disk."""

    live: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)


Node = FileNode | DirectoryNode


@dataclass(eq=False)
class Change:
    """Names that come and go together: ``(directory, name, what it names or None)``."""

    names: list[tuple[DirectoryNode, str, Node | None]]


class Disk:
    """One machine's. ``root`` is where its files are.

    Attributes:
        sync_s: how long a sync takes, from and to.
        full: nothing grows any more.
        failing: the next syncs fail, so many.
    """

    def __init__(self, host: str, root: Path) -> None:
        self.host, self.root = host, root
        self.top = DirectoryNode()
        self.changes: list[Change] = []
        self.sync_s = (0.0001, 0.002)
        self.full = False
        self.failing = 0
        root.mkdir(parents=True, exist_ok=True)

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

    def node(self, path: str) -> Node | None:
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

    def change(self, *names: tuple[DirectoryNode, str, Node | None]) -> None:
        for directory, name, node in names:
            if node is None:
                directory.live.pop(name, None)
            else:
                directory.live[name] = node
        self.changes.append(Change(list(names)))

    def sync_names(self, directory: DirectoryNode) -> None:
        kept = []
        for change in self.changes:
            if any(each is directory for each, _, _ in change.names):
                _settle(change)
            else:
                kept.append(change)
        self.changes = kept

    # What befalls it; nobody has its files open any more

    def power_cut(self, chance: Any) -> None:
        for change in self.changes:
            if chance.random() < 0.5:
                _settle(change)
        self.changes.clear()
        self._become(self.top, chance)

    def _become(self, top: DirectoryNode, chance: Any) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        self.changes.clear()
        REAL["mkdir"](self.root)
        survivors: dict[int, bytes] = {}
        self.top = self._build(top, str(self.root), chance, survivors, {})

    def _build(
        self, directory: DirectoryNode, path: str, chance: Any, survivors: dict[int, bytes], copies: dict[int, FileNode]
    ) -> DirectoryNode:
        twin = DirectoryNode()
        for name, node in sorted(directory.durable.items()):
            below = f"{path}/{name}"
            if isinstance(node, DirectoryNode):
                REAL["mkdir"](below)
                twin.live[name] = self._build(node, below, chance, survivors, copies)
            else:
                if id(node) not in copies:
                    copies[id(node)] = FileNode(bytearray(_survivor(node, chance)))
                copy = copies[id(node)]
                fd = REAL["open"](below, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                if copy.durable:
                    REAL["write"](fd, copy.durable)
                REAL["close"](fd)
                twin.live[name] = copy
        twin.durable = dict(twin.live)
        return twin

    def copy(self) -> DirectoryNode:
        """All that is durable, to be set back to some time."""

        def twin(node: Node) -> Node:
            if isinstance(node, FileNode):
                return FileNode(bytearray(node.durable))
            return DirectoryNode(durable={name: twin(each) for name, each in sorted(node.durable.items())})

        copied = twin(self.top)
        assert isinstance(copied, DirectoryNode)
        return copied

    def set_back(self, copied: DirectoryNode, chance: Any) -> None:
        self.changes.clear()
        self._become(copied, chance)

    def flip_bit(self, chance: Any, wanted: Callable[[str], bool]) -> str | None:
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


def _settle(change: Change) -> None:
    for directory, name, node in change.names:
        if node is None:
            directory.durable.pop(name, None)
        else:
            directory.durable[name] = node


def _apply(content: bytearray, position: int, chunk: bytes | None) -> None:
    if chunk is None:
        if position < len(content):
            del content[position:]
        else:
            content.extend(bytes(position - len(content)))
        return
    if position + len(chunk) > len(content):
        content.extend(bytes(position + len(chunk) - len(content)))
    content[position : position + len(chunk)] = chunk


def _survivor(node: FileNode, chance: Any) -> bytearray:
    """A file's contents after the power went off."""
    survivor, writes = bytearray(node.durable), node.doubtful + node.unsynced
    if not writes:
        return survivor
    match chance.choice(("none", "all", "prefix", "pages", "torn page")):
        case "all":
            for write in writes:
                _apply(survivor, *write)
        case "prefix":
            left = chance.randint(0, sum(len(chunk or b"") for _, chunk in writes))
            for position, chunk in writes:
                if chunk and left <= 0:
                    break
                _apply(survivor, position, chunk if chunk is None else chunk[:left])
                left -= len(chunk or b"")
        case "pages":
            _keep_pages(survivor, writes, chance, tear=False)
        case "torn page":
            _keep_pages(survivor, writes, chance, tear=True)
    return survivor


def _keep_pages(survivor: bytearray, writes: Sequence[tuple[int, bytes | None]], chance: Any, *, tear: bool) -> None:
    seen = bytearray(survivor)
    for write in writes:
        _apply(seen, *write)
    touched = {
        page
        for position, chunk in writes
        if chunk
        for page in range(position // PAGE_BYTES, (position + len(chunk) - 1) // PAGE_BYTES + 1)
    }
    kept = [page for page in sorted(touched) if chance.random() < 0.5]
    torn = chance.choice(kept) if tear and kept else -1
    for page in kept:
        chunk = bytes(seen[page * PAGE_BYTES : (page + 1) * PAGE_BYTES])
        if page == torn:
            chunk = chunk[: chance.randint(0, len(chunk))]
        if chunk:
            _apply(survivor, page * PAGE_BYTES, chunk)
