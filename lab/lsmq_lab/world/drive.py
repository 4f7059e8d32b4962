"""A disk of a world to hand to the storage engine, which runs outside of one: with real threads, in real time.

Everything goes through the engine's own :class:`OsDisk` to files in memory, and :mod:`.files` writes down what is
durable of them. Tests say at which operation it fails, fills up or loses its power.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random

from lsmq_node.storage.disk import File, OsDisk

from .disk import UNLIMITED_BYTES, Failpoint, PowerCut, SimulatedDisk
from .files import Files
from .medium import FileNode

_files: list[Files] = []
_numbers = count()


@contextmanager
def drives() -> Iterator[None]:
    """There can be drives while this lasts; it stands in the place of ``os``."""
    memory = Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(prefix="lsmq-drives-", dir=memory if memory.is_dir() else None))
    files = Files(None, directory)
    with files.installed():
        _files.append(files)
        try:
            yield
        finally:
            _files.remove(files)
            shutil.rmtree(directory, ignore_errors=True)


class Drive(OsDisk):
    """Implements ``lsmq_node.storage.disk.SimulatedDisk``. Thread-safe.

    After :meth:`power_cut` or :meth:`kill` it is dead: whatever a leftover thread still tries fails and changes
    nothing. What is on it can be asked for again and again, with other seeds.
    """

    def __init__(self, root: Path, *, seed: int = 0, capacity_bytes: int = UNLIMITED_BYTES) -> None:
        """``root`` and all above it are there, and durable: what the engine calls so lies elsewhere."""
        super().__init__()
        if not _files:
            raise RuntimeError("a drive is used within drives()")
        files, number = _files[-1], str(next(_numbers))
        self.root = root
        self._files = files
        self.disk = SimulatedDisk(number, files.root / number, Random(seed))
        self.disk.capacity_bytes = capacity_bytes
        self.disk.log = []
        files.disks[number] = self.disk
        self._dropped = weakref.finalize(self, _drop, files, self.disk)

    # What a test does

    def at(
        self, nth: int, error: int | None = None, kinds: Collection[str] = (), *, lasting: bool = False
    ) -> Failpoint:
        """Fail the ``nth`` operation from now (1 is the next). Without ``error`` the power goes off there."""
        return self.disk.at(nth, error, kinds, lasting=lasting)

    def heal(self) -> None:
        """Forget all that was to fail."""
        self.disk.heal()

    def power_cut(self, seed: int = 0) -> Drive:
        """The drive after a power cut now; what of the unsynced survives comes from ``seed``."""
        with self._files.lock:
            self.disk.dead = True
            survivor = self._successor(seed)
            survivor.disk.become(self.disk.outcome(Random(seed)))
            return survivor

    def kill(self) -> Drive:
        """The drive after the process was killed: nothing is lost yet, and nothing is safer than before."""
        with self._files.lock:
            self.disk.dead = True
            return self.copy()

    def copy(self) -> Drive:
        """Another drive that holds the same, and as much of it safely."""
        with self._files.lock:
            copy = self._successor(0)
            self.disk.copy_to(copy.disk)
            return copy

    def _successor(self, seed: int) -> Drive:
        return Drive(self.root, seed=seed, capacity_bytes=self.disk.capacity_bytes)

    def content(self, path: Path) -> bytes:
        return self._at(path).read_bytes()

    def put(self, path: Path, content: bytes) -> None:
        """Replace a file's contents, durably: damage done behind the engine's back."""
        with self._files.lock:
            there = self._at(path)
            node = self.disk.node(str(there))
            if not isinstance(node, FileNode):
                raise FileNotFoundError(f"there is no {path} whose contents could be replaced")
            node.durable[:] = content
            node.unsynced.clear()
            there.write_bytes(content)

    def files(self) -> dict[Path, bytes]:
        """All files there are."""
        top = self.disk.root
        with self._files.lock:
            found = sorted(path for path in top.rglob("*") if path.is_file())
            return {self.root / path.relative_to(top): path.read_bytes() for path in found}

    @property
    def capacity_bytes(self) -> int:
        """What all files may be long together."""
        return self.disk.capacity_bytes

    @capacity_bytes.setter
    def capacity_bytes(self, bytes: int) -> None:
        self.disk.capacity_bytes = bytes

    @property
    def used_bytes(self) -> int:
        with self._files.lock:
            return self.disk.used_bytes

    @property
    def operations(self) -> int:
        """How many have changed something."""
        return self.disk.operations

    @property
    def log(self) -> list[str]:
        """What they were: ``kind name [other name]``."""
        return self.disk.log or []

    @property
    def chance(self) -> Random:
        """How much is done of an operation that fails."""
        return self.disk.chance

    # What the engine does

    def _at(self, path: Path) -> Path:
        return Path(f"{self.disk.root}{str(path).removeprefix(str(self.root))}")

    def create(self, path: Path) -> File:
        return super().create(self._at(path))

    def open(self, path: Path, *, write: bool = False, random: bool = False) -> File:
        return super().open(self._at(path), write=write, random=random)

    def read_all(self, path: Path) -> bytes:
        return super().read_all(self._at(path))

    def rename(self, source: Path, target: Path) -> None:
        super().rename(self._at(source), self._at(target))

    def link(self, source: Path, target: Path) -> None:
        super().link(self._at(source), self._at(target))

    def remove(self, path: Path) -> None:
        super().remove(self._at(path))

    def list(self, directory: Path) -> list[str]:
        if self.disk.dead:
            raise PowerCut
        return super().list(self._at(directory))

    def make_directory(self, path: Path) -> None:
        super().make_directory(self._at(path))

    def sync_directory(self, path: Path) -> None:
        if path in self.root.parents:
            error = self.disk.step("sync_directory", str(path))
            if error is not None:
                raise error
        else:
            super().sync_directory(self._at(path))

    def free_bytes(self, path: Path) -> int:
        return super().free_bytes(self._at(path))


def _drop(files: Files, disk: SimulatedDisk) -> None:
    files.disks.pop(disk.host, None)
    shutil.rmtree(disk.root, ignore_errors=True)
