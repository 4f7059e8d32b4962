"""``os`` for a world: whatever a program does to files below a machine's directory is done, and written down.

Each operation is a place where a thread may lose its turn, and syncs take time. :mod:`.disk` says what is kept. Without
a scheduler threads are the system's own, and a sync takes no time.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from .disk import REAL, PowerCut, SimulatedDisk, os_error
from .medium import DirectoryNode, FileNode, MediumNode
from .scheduler import Scheduler, SimulatedProcess

_flock = fcntl.flock


class Files:
    """``os`` for a world: in place while :meth:`installed`. Paths outside of all disks are left alone."""

    def __init__(self, scheduler: Scheduler | None, root: Path) -> None:
        self.scheduler, self.root = scheduler, root
        self.random = Random(0 if scheduler is None else scheduler.random.getrandbits(64))
        self.disks: dict[str, SimulatedDisk] = {}
        self.lock = threading.RLock()
        self._prefix = f"{root}/"
        self._open: dict[int, tuple[SimulatedDisk, MediumNode, str, tuple[int, int]]] = {}
        self._locks: dict[int, SimulatedProcess] = {}

    def disk(self, host: str) -> SimulatedDisk:
        """The disk of a machine, made where there is none yet."""
        if host not in self.disks:
            self.disks[host] = SimulatedDisk(host, self.root / host, Random(f"disk {host}"))
        return self.disks[host]

    def _preempt(self) -> None:
        if self.scheduler is not None:
            self.scheduler.preempt()

    def killed(self, process: SimulatedProcess) -> None:
        """Locks of files end with who had them. Descriptors stay open: who had them is there still, and never runs."""
        for fd, owner in list(self._locks.items()):
            if owner is process:
                del self._locks[fd]
                _flock(fd, fcntl.LOCK_UN)

    def _disk_of(self, path: Any) -> tuple[SimulatedDisk, str] | None:
        text = os.fspath(path) if not isinstance(path, int) else ""
        if not isinstance(text, str) or not text.startswith(self._prefix):
            return None
        host = text[len(self._prefix) :].split("/", 1)[0]
        disk = self.disks.get(host)
        return None if disk is None else (disk, text)

    def _opened(self, fd: int) -> tuple[SimulatedDisk, MediumNode, str] | None:
        found = self._open.get(fd)
        if found is None:
            return None
        disk, node, path, inode = found
        try:
            now = REAL["fstat"](fd)
        except OSError:
            now = None
        if now is None or (now.st_dev, now.st_ino) != inode:  # Closed behind our back, and the number used again.
            self._open.pop(fd, None)
            return None
        return disk, node, path

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
        self._preempt()
        disk, text = place
        with self.lock:
            there, error = os.path.lexists(text), None
            if flags & os.O_CREAT and (not there or flags & os.O_TRUNC):
                error = disk.step("create", text)
                if error is None and not there and not disk.room(1):
                    error = os_error(errno.ENOSPC, text)
                _refused(error)
            elif disk.dead:
                raise PowerCut
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
            if error is not None:
                REAL["close"](fd)
                raise error
            if node is not None:
                status = REAL["fstat"](fd)
                self._open[fd] = disk, node, text, (status.st_dev, status.st_ino)
            return fd

    def close(self, fd: int) -> None:
        if fd < 0:
            return
        self._open.pop(fd, None)
        self._locks.pop(fd, None)
        REAL["close"](fd)

    def pread(self, fd: int, length: int, position: int) -> bytes:
        found = self._open.get(fd)
        if found is not None:
            self._preempt()
            if found[0].dead and self._opened(fd) is not None:
                raise PowerCut
        content: bytes = REAL["pread"](fd, length, position)
        return content

    def pwrite(self, fd: int, content: Any, position: int) -> int:
        if self._opened(fd) is None:
            return int(REAL["pwrite"](fd, content, position))
        self._preempt()
        with self.lock:
            disk, node, path = self._still_open(fd)
            chunk, error = bytes(content), disk.step("write", path)
            if error is None:
                size = REAL["fstat"](fd).st_size
                beyond = position + len(chunk) - size
                fits = disk.room(beyond) if beyond > 0 else beyond
                if fits < beyond:
                    chunk = chunk[: max(0, len(chunk) - beyond + fits)]
                    error = None if chunk else os_error(errno.ENOSPC)
            elif not isinstance(error, PowerCut):
                chunk = chunk[: disk.chance.randint(0, len(chunk))]
            assert isinstance(node, FileNode)
            if chunk:
                node.unsynced.append((position, chunk))
                REAL["pwrite"](fd, chunk, position)
            if error is not None:
                raise error
            return len(chunk)

    def pwritev(self, fd: int, buffers: Sequence[Any], position: int, *_: int) -> int:
        if self._opened(fd) is None:
            return int(REAL["pwritev"](fd, buffers, position))
        return self.pwrite(fd, b"".join(bytes(buffer) for buffer in buffers), position)

    def ftruncate(self, fd: int, length: int) -> None:
        if self._opened(fd) is None:
            REAL["ftruncate"](fd, length)
        else:
            self._set_length(fd, length, "truncate", shorter=True)

    def posix_fallocate(self, fd: int, offset: int, length: int) -> None:
        if self._opened(fd) is None:
            REAL["posix_fallocate"](fd, offset, length)
        else:
            self._set_length(fd, offset + length, "preallocate", shorter=False)

    def _set_length(self, fd: int, length: int, kind: str, *, shorter: bool) -> None:
        self._preempt()
        with self.lock:
            disk, node, path = self._still_open(fd)
            error = disk.step(kind, path)
            beyond = length - REAL["fstat"](fd).st_size
            if error is None and beyond > 0 and disk.room(beyond) < beyond:
                error = os_error(errno.ENOSPC)
            if error is not None:
                raise error
            if beyond > 0 or shorter:
                assert isinstance(node, FileNode)
                node.unsynced.append((length, None))
                REAL["ftruncate"](fd, length)

    def _still_open(self, fd: int) -> tuple[SimulatedDisk, MediumNode, str]:
        opened = self._opened(fd)
        assert opened is not None, "a file is closed while it is used"
        return opened

    def sync(self, fd: Any) -> None:
        fd = fd if isinstance(fd, int) else fd.fileno()
        opened = self._opened(fd)
        if opened is None:
            place = self._disk_of(Path(f"/proc/self/fd/{fd}").readlink())
            if place is None:
                REAL["fsync"](fd)
                return
            disk, path = place
            node = disk.node(path)
            if isinstance(node, FileNode):
                node.unsynced = [(0, None), (0, Path(path).read_bytes())]
        else:
            disk, node, path = opened
        if self.scheduler is not None and self.scheduler.current is not None:
            slow = disk.slow
            if slow is not None and slow[0] in str(Path(f"/proc/self/fd/{fd}").readlink()):
                self.scheduler.sleep(slow[1])
            else:
                self.scheduler.sleep(self.random.uniform(*disk.sync_s))
        with self.lock:
            error = disk.step("sync" if isinstance(node, FileNode) else "sync_directory", path)
            done = error is None or (isinstance(error, PowerCut) and disk.chance.random() < 0.5)
            if isinstance(node, DirectoryNode):
                if done:
                    disk.sync_names(node)
            elif node is not None and done:
                node.sync()
            elif node is not None and not isinstance(error, PowerCut):
                # The system forgets that these writes were dirty.
                node.doubtful += node.unsynced
                node.unsynced.clear()
            if error is not None:
                raise error

    def rename(self, source: Any, target: Any, **named: Any) -> None:
        place, to = self._disk_of(source), self._disk_of(target)
        if place is None or to is None or named:
            REAL["rename"](source, target, **named)
            return
        self._preempt()
        disk = place[0]
        with self.lock, self._changing(disk, "rename", place[1], to[1]):
            node = disk.node(place[1])
            REAL["rename"](place[1], to[1])
            there, here = disk.directory(place[1]), disk.directory(to[1])
            assert node is not None and there is not None and here is not None
            if there[0] is not here[0] or there[1] != here[1]:
                disk.change((*there, None), (*here, node))

    def link(self, source: Any, target: Any, **named: Any) -> None:
        place, to = self._disk_of(source), self._disk_of(target)
        if place is None or to is None:
            REAL["link"](source, target, **named)
            return
        with self.lock, self._changing(place[0], "link", place[1], to[1]):
            REAL["link"](source, target, **named)
            node, here = place[0].node(place[1]), place[0].directory(to[1])
            assert node is not None and here is not None
            place[0].change((*here, node))

    def unlink(self, path: Any, **named: Any) -> None:
        if self._disk_of(path) is not None:
            self._preempt()
        self._remove("unlink", path, named)

    def rmdir(self, path: Any, **named: Any) -> None:
        self._remove("rmdir", path, named)

    def _remove(self, how: str, path: Any, named: Mapping[str, Any]) -> None:
        place = self._disk_of(path)
        if place is None:
            REAL[how](path, **named)
            return
        disk, text = place
        with self.lock, self._changing(disk, "remove", text):
            REAL[how](path, **named)
            here = disk.directory(text)
            assert here is not None
            disk.change((*here, None))

    def mkdir(self, path: Any, mode: int = 0o777, **named: Any) -> None:
        place = self._disk_of(path)
        if place is None or place[1] == str(place[0].root) or not _can_make(place[1]):
            REAL["mkdir"](path, mode, **named)
            return
        disk, text = place
        with self.lock:
            error = disk.step("make_directory", text)
            if error is None and not disk.room(1):
                error = os_error(errno.ENOSPC, text)
            if error is not None:
                raise error
            REAL["mkdir"](path, mode, **named)
            here = disk.directory(text)
            assert here is not None
            disk.change((*here, DirectoryNode()))

    @contextmanager
    def _changing(self, disk: SimulatedDisk, kind: str, path: str, other: str = "") -> Iterator[None]:
        """Names change: not where that fails, and before the power goes off there."""
        error = disk.step(kind, path, other)
        _refused(error)
        yield
        if error is not None:
            raise error

    def statvfs(self, path: Any) -> Any:
        found = REAL["statvfs"](path)
        opened = self._disk_of(path)
        if opened is None:
            return found
        fields = list(found)
        with self.lock:
            fields[3] = fields[4] = opened[0].free_bytes() // found.f_frsize  # f_bfree, f_bavail
        return os.statvfs_result((*fields, found.f_fsid))

    def flock(self, fd: Any, operation: int) -> None:
        fd = fd if isinstance(fd, int) else fd.fileno()
        _flock(fd, operation)
        if operation & fcntl.LOCK_EX and fd in self._open and self.scheduler is not None:
            self._locks[fd] = self.scheduler.process


def _refused(error: OSError | None) -> None:
    if error is not None and not isinstance(error, PowerCut):
        raise error


def _can_make(path: str) -> bool:
    return not os.path.lexists(path) and Path(path).parent.is_dir()
