"""Where shards lie, by looking, and what a move of one that was cut short has left.

A move copies ``shard-N`` to ``shard-N.moving`` on the other disk and makes that durable. Then ``shard-N`` becomes
``shard-N.moved``: from here on the copy is the shard. Then that gets its name, and ``shard-N.moved`` goes. So a shard
whose name is on no disk, and whose ``shard-N.moved`` is, is ``shard-N.moving``; and a ``shard-N.moving`` beside a
``shard-N`` is a copy that was cut short.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from lsmq.errors import DataDirectoryUnusable

MOVING, MOVED = ".moving", ".moved"
#: A replica that is being replaced lies under this ending for a moment (``lsmq_node.cluster.opening``).
_REPLACED = ".new"
_NO_SYNC = frozenset({errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOTSUP, errno.EROFS})
_NAME = re.compile(r"shard-(\d+)(\.new|\.moving|\.moved)?")


def shard_directory(data: Path, shard: int) -> Path:
    return data / f"shard-{shard}"


def sync_directory(path: Path) -> None:
    """Have names that were made, renamed or removed there survive a crash. Raises ``OSError``."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_name(path: Path) -> None:
    """Have the name of a directory survive a crash. Raises ``DataDirectoryUnusable``.

    Where something is mounted on it, it has its name from elsewhere; and what cannot be read, or synced, has to be
    taken as it is.
    """
    if path.is_mount():
        return
    try:
        sync_directory(path.parent)
    except OSError as error:
        if error.errno in _NO_SYNC:
            return
        raise DataDirectoryUnusable(
            f"the name of {path} cannot be made durable: {error.strerror}", directory=str(path)
        ) from error


class DiskListing:
    """What lies on some disks at one moment. Raises ``OSError`` where one cannot be read."""

    def __init__(self, disks: Iterable[Path]) -> None:
        self._found: dict[str, dict[int, list[Path]]] = {ending: {} for ending in ("", MOVING, MOVED)}
        for disk in disks:
            there: dict[str, set[int]] = {ending: set() for ending in self._found}
            for entry in disk.iterdir():
                match = _NAME.fullmatch(entry.name)
                if match is not None:
                    there["" if match[2] in (None, _REPLACED) else match[2]].add(int(match[1]))
            for ending, shards in there.items():
                for shard in shards:
                    self._found[ending].setdefault(shard, []).append(disk)

    def shards(self) -> list[int]:
        """Shards that are there, in order; those whose move has come to where the copy is the shard among them."""
        return sorted(self._found[""].keys() | (self._found[MOVED].keys() & self._found[MOVING].keys()))

    def disks_of(self, shard: int) -> list[Path]:
        """The disks that have it: one, or somebody has copied it."""
        return self._found[""].get(shard, [])

    def directory(self, shard: int) -> Path | None:
        """Where it lies; None where it is on none of the disks. Raises ``DataDirectoryUnusable`` where it is on two."""
        there = self.disks_of(shard)
        if len(there) > 1:
            places = " and ".join(str(shard_directory(disk, shard)) for disk in there)
            raise DataDirectoryUnusable(
                f"shard {shard} lies on two disks, {places}, and one of them is an older copy: move that one away "
                "('lsmq dump manifest' shows which has the lower flushed_lsn) and start again",
                shard=shard,
            )
        if there:
            return shard_directory(there[0], shard)
        if shard in self._found[MOVED] and shard in self._found[MOVING]:
            return self.arriving(shard)
        return None

    def arriving(self, shard: int) -> Path:
        """The copy of a shard that was being moved."""
        directory = shard_directory(self._found[MOVING][shard][0], shard)
        return directory.with_name(directory.name + MOVING)

    def unfinished(self) -> dict[int, list[Path]]:
        """Shards whose move was cut short, with the directories that it has left."""
        left: dict[int, list[Path]] = {}
        for ending in (MOVED, MOVING):
            for shard, disks in self._found[ending].items():
                left.setdefault(shard, []).extend(disk / f"shard-{shard}{ending}" for disk in disks)
        return left


def finish_moves(disks: Iterable[Path]) -> None:
    """End what moves that were cut short have left on disks that nobody else uses. Again does nothing.

    What lies on a disk that is not among them is left until it is. Raises ``OSError``.
    """
    look = DiskListing(disks)
    for shard, left in look.unfinished().items():
        there = look.directory(shard)
        if there is None:
            continue
        if there.name.endswith(MOVING):
            there.rename(shard_directory(there.parent, shard))
            sync_directory(there.parent)
        for directory in left:
            if directory != there:
                shutil.rmtree(directory)
                sync_directory(directory.parent)
