"""``os`` for a world: whatever a program does to files below a machine's directory is done, and written down.

Each operation is a place where a thread may lose its turn, and syncs take time. :mod:`.disk` says what is kept.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from .disk import REAL, DirectoryNode, Disk, FileNode, Node, os_error
from .scheduler import Process, Scheduler

_FREE_BYTES = 64 << 30
_flock = fcntl.flock


class Files:
    """``os`` for a world: in place while :meth:`installed`. Paths outside of all disks are left alone."""

    def __init__(self, scheduler: Scheduler, root: Path) -> None:
        self.scheduler, self.root = scheduler, root
        self.random = scheduler.random.__class__(scheduler.random.getrandbits(64))
        self.disks: dict[str, Disk] = {}
        self._prefix = f"{root}/"
        self._open: dict[int, tuple[Disk, Node, int]] = {}
        self._locks: dict[int, Process] = {}

    def disk(self, host: str) -> Disk:
        """The disk of a machine, made where there is none yet."""
        if host not in self.disks:
            self.disks[host] = Disk(host, self.root / host)
        return self.disks[host]

    def killed(self, process: Process) -> None:
        """Locks of files end with who had them. Descriptors stay open: who had them is there still, and never runs."""
        for fd, owner in list(self._locks.items()):
            if owner is process:
                del self._locks[fd]
                _flock(fd, fcntl.LOCK_UN)

    def _disk_of(self, path: Any) -> tuple[Disk, str] | None:
        text = os.fspath(path) if not isinstance(path, int) else ""
        if not isinstance(text, str) or not text.startswith(self._prefix):
            return None
        host = text[len(self._prefix) :].split("/", 1)[0]
        disk = self.disks.get(host)
        return None if disk is None else (disk, text)

    def _opened(self, fd: int) -> tuple[Disk, Node] | None:
        found = self._open.get(fd)
        if found is None:
            return None
        disk, node, inode = found
        try:
            now = REAL["fstat"](fd)
        except OSError:
            now = None
        if now is None or now.st_ino != inode:  # Closed behind our back, and the number used again.
            del self._open[fd]
            return None
        return disk, node

    @contextmanager
    def installed(self) -> Iterator[None]:
        names: dict[str, Any] = {
            "open": self.open,
            "close": self.close,
            "pread": self.pread,
            "pwrite": self.pwrite,
            "pwritev": self.pwritev,
            "ftruncate": self.ftruncate,
            "posix_fallocate": self.posix_fallocate,
            "fsync": self.sync,
            "fdatasync": self.sync,
            "rename": self.rename,
            "replace": self.rename,
            "unlink": self.unlink,
            "remove": self.unlink,
            "link": self.link,
            "mkdir": self.mkdir,
            "rmdir": self.rmdir,
            "statvfs": self.statvfs,
        }
        with (
            patch.multiple(os, **names),
            patch.object(fcntl, "flock", self.flock),
            patch.object(shutil, "_use_fd_functions", False),
            patch.object(shutil.rmtree, "avoids_symlink_attacks", False),
        ):
            yield

    # Operations

    def open(self, path: Any, flags: int, mode: int = 0o777, **named: Any) -> int:
        place = self._disk_of(path)
        if place is None or named:
            return int(REAL["open"](path, flags, mode, **named))
        self.scheduler.preempt()
        disk, text = place
        there = os.path.lexists(text)
        if disk.full and not there and flags & os.O_CREAT:
            raise os_error(errno.ENOSPC, text)
        fd: int = REAL["open"](text, flags, mode)
        if there:
            node = disk.node(text)
            if flags & os.O_TRUNC and isinstance(node, FileNode):
                node.unsynced.append((0, None))
        else:
            directory = disk.directory(text)
            assert directory is not None
            node = FileNode()
            disk.change((*directory, node))
        if node is not None:
            self._open[fd] = disk, node, REAL["fstat"](fd).st_ino
        return fd

    def close(self, fd: int) -> None:
        if fd < 0:
            return
        self._open.pop(fd, None)
        self._locks.pop(fd, None)
        REAL["close"](fd)

    def pread(self, fd: int, length: int, position: int) -> bytes:
        if fd in self._open:
            self.scheduler.preempt()
        content: bytes = REAL["pread"](fd, length, position)
        return content

    def _grows(self, disk: Disk, fd: int, end: int) -> bool:
        return disk.full and end > REAL["fstat"](fd).st_size

    def pwrite(self, fd: int, content: Any, position: int) -> int:
        opened = self._opened(fd)
        if opened is None:
            return int(REAL["pwrite"](fd, content, position))
        self.scheduler.preempt()
        disk, node = opened
        chunk = bytes(content)
        if self._grows(disk, fd, position + len(chunk)):
            chunk = chunk[: max(0, REAL["fstat"](fd).st_size - position)]
            if not chunk:
                raise os_error(errno.ENOSPC)
        assert isinstance(node, FileNode)
        node.unsynced.append((position, chunk))
        return int(REAL["pwrite"](fd, chunk, position))

    def pwritev(self, fd: int, buffers: Sequence[Any], position: int, *_: int) -> int:
        if self._opened(fd) is None:
            return int(REAL["pwritev"](fd, buffers, position))
        return self.pwrite(fd, b"".join(bytes(buffer) for buffer in buffers), position)

    def ftruncate(self, fd: int, length: int) -> None:
        opened = self._opened(fd)
        if opened is not None:
            self.scheduler.preempt()
            assert isinstance(opened[1], FileNode)
            if self._grows(opened[0], fd, length):
                raise os_error(errno.ENOSPC)
            opened[1].unsynced.append((length, None))
        REAL["ftruncate"](fd, length)

    def posix_fallocate(self, fd: int, offset: int, length: int) -> None:
        opened = self._opened(fd)
        if opened is None:
            REAL["posix_fallocate"](fd, offset, length)
            return
        self.scheduler.preempt()
        disk, node = opened
        end = offset + length
        if self._grows(disk, fd, end):
            raise os_error(errno.ENOSPC)
        if end > REAL["fstat"](fd).st_size:
            assert isinstance(node, FileNode)
            node.unsynced.append((end, None))
            REAL["ftruncate"](fd, end)

    def sync(self, fd: Any) -> None:
        fd = fd if isinstance(fd, int) else fd.fileno()
        opened = self._opened(fd)
        if opened is None:
            place = self._disk_of(Path(f"/proc/self/fd/{fd}").readlink())
            if place is None:
                REAL["fsync"](fd)
                return
            disk, node = place[0], place[0].node(place[1])
            if isinstance(node, FileNode):
                node.unsynced = [(0, None), (0, Path(place[1]).read_bytes())]
        else:
            disk, node = opened
        if self.scheduler.current is not None:
            self.scheduler.sleep(self.random.uniform(*disk.sync_s))
        if isinstance(node, DirectoryNode):
            disk.sync_names(node)
        elif node is not None:
            if disk.failing:
                disk.failing -= 1
                node.doubtful += node.unsynced
                node.unsynced.clear()
                raise os_error(errno.EIO)
            node.sync()

    def rename(self, source: Any, target: Any, **named: Any) -> None:
        place, to = self._disk_of(source), self._disk_of(target)
        if place is None or to is None or named:
            REAL["rename"](source, target, **named)
            return
        self.scheduler.preempt()
        disk = place[0]
        node = disk.node(place[1])
        REAL["rename"](place[1], to[1])
        there, here = disk.directory(place[1]), disk.directory(to[1])
        assert node is not None and there is not None and here is not None
        if there[0] is here[0] and there[1] == here[1]:
            return
        disk.change((*there, None), (*here, node))

    def link(self, source: Any, target: Any, **named: Any) -> None:
        place, to = self._disk_of(source), self._disk_of(target)
        REAL["link"](source, target, **named)
        if place is not None and to is not None:
            node, here = place[0].node(place[1]), place[0].directory(to[1])
            assert node is not None and here is not None
            place[0].change((*here, node))

    def unlink(self, path: Any, **named: Any) -> None:
        place = self._disk_of(path)
        if place is not None:
            self.scheduler.preempt()
        REAL["unlink"](path, **named)
        self._gone(place)

    def rmdir(self, path: Any, **named: Any) -> None:
        place = self._disk_of(path)
        REAL["rmdir"](path, **named)
        self._gone(place)

    def _gone(self, place: tuple[Disk, str] | None) -> None:
        if place is not None:
            here = place[0].directory(place[1])
            assert here is not None
            place[0].change((*here, None))

    def mkdir(self, path: Any, mode: int = 0o777, **named: Any) -> None:
        place = self._disk_of(path)
        if place is not None and place[0].full and not os.path.lexists(place[1]):
            raise os_error(errno.ENOSPC, path)
        REAL["mkdir"](path, mode, **named)
        if place is not None and place[1] != str(place[0].root):
            here = place[0].directory(place[1])
            assert here is not None
            place[0].change((*here, DirectoryNode()))

    def statvfs(self, path: Any) -> Any:
        found = REAL["statvfs"](path)
        opened = self._disk_of(path)
        if opened is None:
            return found
        free = 0 if opened[0].full else _FREE_BYTES // found.f_frsize
        fields = list(found)
        fields[3] = fields[4] = free  # f_bfree, f_bavail
        return os.statvfs_result((*fields, found.f_fsid))

    def flock(self, fd: Any, operation: int) -> None:
        fd = fd if isinstance(fd, int) else fd.fileno()
        _flock(fd, operation)
        if operation & fcntl.LOCK_EX and fd in self._open:
            self._locks[fd] = self.scheduler.process
