"""The directories of a node that come to be as a whole, or not at all: one on each of its disks.

What is made lies in a directory of its own in each, and is moved from there as the last step. While that is there no
node takes the data, and whoever begins anew may clear it away.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from lsmq import runtime
from lsmq.errors import DataDirectoryLocked, DataDirectoryUnusable, DiskFull, InvalidRequest, LsmqError
from lsmq_node.disks import NODE_FILE, RESTORING, NodeFile, shard_directory
from lsmq_node.disks.choice import DiskRoom, choose
from lsmq_node.disks.looking import sync_directory
from lsmq_node.disks.mark import DiskMark
from lsmq_node.storage.failures import FULL

from .manifest import ShardBackup

#: Left free on each disk beside what is restored: a node needs as much to open it.
_SPARE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class BuildingSite:
    """What is being made: ``disks`` are the directories that it is for, ``building`` where it comes to be meanwhile."""

    disks: Sequence[Path]
    building: Sequence[Path]

    def place(self, shards: Sequence[ShardBackup], *, first_on_first: bool) -> Mapping[int, Path]:
        """Where each shard comes to be. Raises ``DiskFull`` where they do not fit.

        ``first_on_first``: shard 0 goes to the first disk, as it must in a node of its own.
        """
        room = []
        for directory in self.building:
            usage = os.statvfs(directory)
            free = usage.f_bavail * usage.f_frsize - _SPARE_BYTES
            room.append(DiskRoom(0, usage.f_blocks * usage.f_frsize, free))
        places = {}
        for shard in shards:
            size_bytes = sum(file.size_bytes for file in shard.files)
            at = 0 if shard.shard == 0 and first_on_first else choose(room, size_bytes)
            left = room[at].free_bytes - size_bytes
            if left < 0:
                self._full(shards)
            room[at] = DiskRoom(room[at].shards + 1, room[at].size_bytes, left)
            places[shard.shard] = shard_directory(self.building[at], shard.shard)
        return places

    def _full(self, shards: Sequence[ShardBackup]) -> None:
        wanted = sum(file.size_bytes for shard in shards for file in shard.files) + _SPARE_BYTES * len(self.disks)
        usages = [os.statvfs(directory) for directory in self.building]
        free = sum(usage.f_bavail * usage.f_frsize for usage in usages)
        names = ", ".join(map(str, self.disks))
        raise DiskFull(
            f"the backup needs {wanted >> 20} MiB in {names}; {free >> 20} MiB are free",
            path=str(self.disks[0]),
            free_bytes=free,
        )

    def finish(self, file: NodeFile) -> None:
        """Whose these directories are. Raises ``DataDirectoryUnusable``."""
        if len(self.disks) > 1:
            token = runtime.token_hex(8)
            ids = {runtime.token_hex(8): disk for disk in self.disks[1:]}
            for directory, id in zip(self.building[1:], ids, strict=True):
                DiskMark(token, id).store(directory)
            named = MappingProxyType({id: str(disk) for id, disk in ids.items()})
            file = replace(file, token=token, disks=named)
        file.store(self.building[0])


@contextmanager
def new_directories(disks: Sequence[Path]) -> Iterator[BuildingSite]:
    """Directories whose content becomes that of ``disks``, new or empty, when the block ends well, durably.

    Raises ``InvalidRequest`` where there is something, ``DataDirectoryUnusable``, ``DataDirectoryLocked``,
    ``DiskFull``, also for what the block meets: nothing is left then.
    """
    disks = [disk.resolve() for disk in disks]
    new = [disk for disk in disks if not disk.exists()]
    site = BuildingSite(disks, [disk / RESTORING for disk in disks])
    with ExitStack() as held:
        try:
            for disk, building in zip(disks, site.building, strict=True):
                disk.mkdir(parents=True, exist_ok=True)
                held.enter_context(_only_one(disk))
                if not building.exists() and any(_entries(disk)):
                    raise InvalidRequest(
                        f"{disk} is not empty; a backup is restored to a new directory, never over what is there"
                    )
        except (OSError, LsmqError) as error:
            for made in new:
                with suppress(OSError):
                    made.rmdir()
            if isinstance(error, OSError):
                raise _failed(disk, error) from error
            raise
        try:
            for disk, building in zip(disks, site.building, strict=True):
                _clear(disk)  # of one that was cut short
                building.mkdir()
                sync_directory(disk)  # Whoever finds anything else there finds this.
            yield site
            for disk, building in reversed(list(zip(disks, site.building, strict=True))):
                _move(building, disk)
            for disk, building in zip(disks, site.building, strict=True):
                building.rmdir()
                sync_directory(disk)
                sync_directory(disk.parent)
        except BaseException as error:
            for disk in disks:
                _clear(disk, and_itself=disk in new)
            if isinstance(error, OSError):
                raise _failed(disks[0], error) from error
            raise


def _failed(disk: Path, error: OSError) -> LsmqError:
    if error.errno in FULL:
        return DiskFull(f"no space is left for {disk}; nothing of it was kept", path=str(disk))
    return DataDirectoryUnusable(f"{error.filename or disk}: {error.strerror}", directory=str(disk))


@contextmanager
def _only_one(disk: Path) -> Iterator[None]:
    """One restore at a time goes there. Raises ``DataDirectoryLocked``."""
    handle = os.open(disk, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise DataDirectoryLocked(
            f"another process restores a backup to {disk}; wait until it is done", directory=str(disk)
        ) from None
    finally:
        os.close(handle)


def _entries(disk: Path) -> Iterator[Path]:
    """What somebody put there, and not the file system."""
    return (entry for entry in disk.iterdir() if entry.name != "lost+found") if disk.exists() else iter(())


def _clear(disk: Path, *, and_itself: bool = False) -> None:
    """Remove what a restore has left; what says so last."""
    for entry in sorted(_entries(disk), key=lambda entry: entry.name == RESTORING):
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            with suppress(OSError):
                entry.unlink()
    if and_itself:
        with suppress(OSError):
            disk.rmdir()


def _move(building: Path, disk: Path) -> None:
    """All that was made to its place. Until ``building`` is gone the data are refused (:class:`.NodeFile`)."""
    sync_directory(building)
    for entry in sorted(building.iterdir(), key=lambda entry: entry.name == NODE_FILE):
        entry.rename(disk / entry.name)
        sync_directory(disk)
