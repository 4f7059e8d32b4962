"""What of a file and of a directory is durable, what is not yet, and what of that a power cut may leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

PAGE_BYTES = 4096


@dataclass(eq=False)
class FileNode:
    """A file: what is durable of it, and what came after. A write without bytes sets its length."""

    durable: bytearray = field(default_factory=bytearray)
    unsynced: list[tuple[int, bytes | None]] = field(default_factory=list)
    doubtful: list[tuple[int, bytes | None]] = field(default_factory=list)  # of syncs that failed

    def sync(self) -> None:
        for write in self.unsynced:
            apply(self.durable, *write)
            self.doubtful = [left for each in self.doubtful for left in _beside(each, write)]
        self.unsynced.clear()


def _beside(former: tuple[int, bytes | None], later: tuple[int, bytes | None]) -> Sequence[tuple[int, bytes | None]]:
    """What of a write is not where a later one is durable. Both may set a length: that is left as it is."""
    (at, chunk), (place, new) = former, later
    if chunk is None or new is None:
        return (former,)
    before, after = chunk[: max(0, place - at)], chunk[max(0, place + len(new) - at) :]
    if len(before) == len(chunk):
        return (former,)
    kept = ((at, before), (at + len(chunk) - len(after), after))
    return [(begin, piece) for begin, piece in kept if piece]


@dataclass(eq=False)
class DirectoryNode:
    """A directory: its names as processes see them, and as they are on the disk."""

    live: dict[str, MediumNode] = field(default_factory=dict)
    durable: dict[str, MediumNode] = field(default_factory=dict)


MediumNode = FileNode | DirectoryNode


@dataclass(eq=False)
class DirectoryChange:
    """Names that come and go together: ``(directory, name, what it names or None)``."""

    names: list[tuple[DirectoryNode, str, MediumNode | None]]


def apply(content: bytearray, position: int, chunk: bytes | None) -> None:
    if chunk is None:
        if position < len(content):
            del content[position:]
        else:
            content.extend(bytes(position - len(content)))
        return
    if position + len(chunk) > len(content):
        content.extend(bytes(position + len(chunk) - len(content)))
    content[position : position + len(chunk)] = chunk


def survivor(node: FileNode, chance: Random) -> bytearray:
    """A file's contents after the power went off."""
    content, writes = bytearray(node.durable), node.doubtful + node.unsynced
    if not writes:
        return content
    match chance.choice(("none", "all", "prefix", "pages", "torn page")):
        case "all":
            for write in writes:
                apply(content, *write)
        case "prefix":
            left = chance.randint(0, sum(len(chunk or b"") for _, chunk in writes))
            for position, chunk in writes:
                if chunk and left <= 0:
                    break
                apply(content, position, chunk if chunk is None else chunk[:left])
                left -= len(chunk or b"")
        case "pages":
            _keep_pages(content, writes, chance, tear=False)
        case "torn page":
            _keep_pages(content, writes, chance, tear=True)
    return content


def _keep_pages(survivor: bytearray, writes: Sequence[tuple[int, bytes | None]], chance: Random, *, tear: bool) -> None:
    seen = bytearray(survivor)
    for write in writes:
        apply(seen, *write)
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
            apply(survivor, page * PAGE_BYTES, chunk)
