"""The disks of a node that runs: taken at its start, told apart by their marks, and looked at meanwhile.

What is asked of a disk at the start:

- the first has ``node.json``, or is a new directory, and then no other disk is anybody's: one of a node whose first
  directory was emptied, exchanged or named in another place keeps the node from starting;
- a further one bears this node's mark, or is new: it was never seen in its place, and holds no shards;
- what was a disk of this node in its place and bears no mark any more, or another node's, cannot be used, nor can one
  that is not there, cannot be read or written, or is an older copy (starts.py). The node starts without it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from lsmq import runtime
from lsmq.errors import CorruptFile, DataDirectoryUnusable, LsmqError, ShardStopped, UnsupportedFormat
from lsmq_node.settings import InvalidConfig
from lsmq_node.storage import DirectoryLock

from .choice import DiskRoom, choose
from .looking import DiskListing, finish_moves, shard_directory, sync_directory, sync_name
from .mark import MARK_FILE, DiskMark
from .node_file import NODE_FILE, RESTORING, NodeFile
from .starts import count_start

_ID_BYTES = 8


@dataclass(slots=True)
class NodeDisk:
    """One directory. ``id`` is None for the first.

    ``lost``: why it cannot be used, as it was found at the start; it is not looked at again. ``failing``: why it cannot
    be used now. None where it can. Sizes are those of its file system, as they were seen last.
    """

    path: Path
    id: str | None = None
    lost: str | None = None
    failing: str | None = None
    size_bytes: int = 0
    free_bytes: int = 0

    @property
    def problem(self) -> str | None:
        return self.lost or self.failing

    def measure(self) -> None:
        """Raises ``OSError``."""
        usage = os.statvfs(self.path)
        self.size_bytes = usage.f_blocks * usage.f_frsize
        self.free_bytes = usage.f_bavail * usage.f_frsize


#: What stopped does not begin by itself.
START_AGAIN = "Once it can be used, start the node again"


class NodeDisks:
    """Made by :func:`held_disks`, which holds them. Shards are found and placed by the loop thread, or before it runs;
    :meth:`check` may run in another one."""

    def __init__(self, disks: Sequence[NodeDisk], token: str | None, needed_bytes: int) -> None:
        self.all = list(disks)
        self._token = token
        self._needed_bytes = needed_bytes
        self._writing = runtime.Lock()  # while node.json is replaced
        #: The one that :meth:`check` looks at; it may wait for it.
        self.looked_at: Path | None = None
        self.check()

    @property
    def first(self) -> Path:
        """Where everything lies that is the node's and not a shard's."""
        return self.all[0].path

    def lost(self) -> list[NodeDisk]:
        """Those that cannot be used until the node starts again."""
        return [disk for disk in self.all if disk.lost is not None]

    def unusable(self) -> list[NodeDisk]:
        """Those that cannot be used now: what is not found may lie there."""
        return [disk for disk in self.all if disk.problem is not None]

    def on_one_file_system(self) -> list[list[str]]:
        """Directories that are not on a disk of their own: they share its fate, or one of them is just not mounted."""
        there: dict[int, list[str]] = {}
        for disk in self.all:
            with suppress(OSError):
                there.setdefault(disk.path.stat().st_dev, []).append(str(disk.path))
        return [paths for paths in there.values() if len(paths) > 1]

    # Shards

    def _look(self) -> DiskListing:
        """Raises ``DataDirectoryUnusable``."""
        try:
            return DiskListing(disk.path for disk in self.all if disk.problem is None)
        except OSError:
            self.check()  # One that cannot be listed fails.
        try:
            return DiskListing(disk.path for disk in self.all if disk.problem is None)
        except OSError as error:
            raise DataDirectoryUnusable(f"{error.filename} cannot be read: {error.strerror}") from error

    def find(self, shard: int) -> Path | None:
        """The directory of a shard; None where it is on no disk that can be used.

        Raises ``DataDirectoryUnusable`` where it is on two.
        """
        return self._look().directory(shard)

    def directories(self, shard: int) -> list[Path]:
        """All that there is of a shard that is not to be here any more."""
        return [shard_directory(path, shard) for path in self._look().disks_of(shard)]

    def shards(self) -> list[int]:
        """Shards that are on disks that can be used."""
        return self._look().shards()

    def shards_by_disk(self) -> list[list[int]]:
        """The shards on each disk; none where it cannot be seen."""
        look = self._look()
        return [[shard for shard in look.shards() if disk.path in look.disks_of(shard)] for disk in self.all]

    def place(self, shard: int, *, on_first: bool = False) -> Path:
        """The directory of a shard that is on no disk: an empty one that :meth:`find` finds from now on.

        Raises ``DataDirectoryUnusable``.
        """
        disk = self.all[0] if on_first else self._choose()
        directory = shard_directory(disk.path, shard)
        try:
            directory.mkdir()
        except OSError as error:
            raise DataDirectoryUnusable(
                f"{directory} cannot be made: {error.strerror}", directory=str(directory)
            ) from error
        return directory

    def _choose(self) -> NodeDisk:
        held = zip(self.all, self.shards_by_disk(), strict=True)
        usable = [(disk, shards) for disk, shards in held if disk.problem is None]
        if len(usable) == 1:
            return usable[0][0]
        for disk, _ in usable:
            with suppress(OSError):  # What was measured last says it as well.
                disk.measure()
        room = [DiskRoom(len(shards), disk.size_bytes, disk.free_bytes) for disk, shards in usable]
        return usable[choose(room, self._needed_bytes)][0]

    def on_lost_disk(self, shard: int) -> ShardStopped:
        """What requests for a shard are told that is on none of the disks that can be used."""
        problems = [problem.rstrip(".") for disk in self.all if (problem := disk.problem) is not None]  # asked once
        why = "; ".join(problems) or "it was away a moment ago, and is back by now"
        return ShardStopped(
            f"shard {shard} lies on a disk of this node that cannot be used: {why}. {START_AGAIN}",
            shard=shard,
        )

    # Being there

    def check(self) -> None:
        """See whether each disk is still the one that it was, and how full it is. Blocking."""
        for disk in self.all:
            if disk.lost is None:
                self.looked_at = disk.path
                disk.failing = self._failure(disk)
                self.looked_at = None

    def _failure(self, disk: NodeDisk) -> str | None:
        try:
            disk.measure()
            if disk.id is None:
                is_there = (disk.path / NODE_FILE).is_file()
            else:
                mark = DiskMark.load(disk.path)
                is_there = mark is not None and mark.is_of(self._token, disk.id)
            if is_there:  # What a file system that met errors calls itself is not to be relied on.
                os.utime(disk.path / (NODE_FILE if disk.id is None else MARK_FILE))
        except OSError as error:
            return f"{disk.path} cannot be used: {error.strerror}"
        except LsmqError as error:
            return error.message
        return None if is_there else f"{disk.path} is not the disk any more that was there when the node started"

    def forget(self, disks: Sequence[NodeDisk]) -> None:
        """What lies on these disks, which cannot be used, is given up: the node is not to wait for them.

        Durable on return. One that comes back holds what nobody wants, and is refused until it is emptied. Blocking.
        Raises ``DataDirectoryUnusable``, ``DiskFull``.
        """
        with self._writing:
            forget(self.first, {disk.id for disk in disks if disk.id is not None})
        self.all = [disk for disk in self.all if disk not in disks]

    def note_growth(self, shards: int) -> None:
        """Releases that know nothing of shards that came later are not to start with these disks. Durable on return.

        Raises ``DataDirectoryUnusable``.
        """
        with self._writing:
            file = NodeFile.load(self.first)
            assert file is not None, "the disks are held"
            replace(file, grown=shards).store(self.first)


def forget(first: Path, ids: set[str]) -> NodeFile:
    """Strike disks out of ``node.json``, durably. Raises ``DataDirectoryUnusable``."""
    file = NodeFile.load(first)
    assert file is not None, "a node that has further disks has a first one"
    left = {id: path for id, path in file.disks.items() if id not in ids}
    return replace(file, disks=MappingProxyType(left)).store(first)


# Taking them


@contextmanager
def held_disks(
    paths: Sequence[Path], wanted: NodeFile, check: Callable[[NodeFile], None], *, needed_bytes: int = 0
) -> Iterator[NodeDisks]:
    """The disks of a node, of which nobody else has one meanwhile. ``paths`` are those of its configuration.

    ``wanted`` is whose a new directory becomes; ``check`` raises where it is somebody else's. ``needed_bytes``: a disk
    gets no new shard with less of them free. What moves that were cut short have left is put in order.

    Raises ``DataDirectoryLocked``, ``DataDirectoryUnusable``, ``CorruptFile``, ``UnsupportedFormat``,
    :class:`InvalidConfig`, and what ``check`` raises.
    """
    first = paths[0].absolute()
    if first.exists() and not first.is_dir():
        raise DataDirectoryUnusable(
            f"{first} is no directory; a node keeps its files in one of its own (data, --data): name another",
            directory=str(first),
        )
    with ExitStack() as held:
        known = NodeFile.load(first)
        if known is not None:
            check(known)  # Before anything is made in it.
        else:
            _check_new(first, paths[1:])
        held.callback(DirectoryLock(first).release)
        file = NodeFile.load(first) or wanted.store(first)
        sync_name(first)  # Before anything is promised in it.
        check(file)
        file, further = _further(first, [path.absolute() for path in paths[1:]], file, held)
        disks = [NodeDisk(first), *further]
        try:
            finish_moves(disk.path for disk in disks if disk.lost is None)
        except OSError as error:
            raise DataDirectoryUnusable(f"{error.filename}: {error.strerror}") from error
        yield NodeDisks(disks, file.token, needed_bytes)


def _check_new(first: Path, further: Sequence[Path]) -> None:
    """A node that begins takes no disk of another one."""
    for path in (first, *further):
        with suppress(DataDirectoryUnusable):
            if (path / MARK_FILE).exists() and DiskMark.load(path) is not None:
                raise InvalidConfig(
                    f"{path} is a further disk of a node (it has {MARK_FILE}), and {first}, the first directory of "
                    f"data, has no {NODE_FILE}: name the node's own first directory first, and bring it back where it "
                    "was emptied or exchanged; or empty the others to begin anew",
                    setting="data",
                )


def _further(first: Path, paths: Sequence[Path], file: NodeFile, held: ExitStack) -> tuple[NodeFile, list[NodeDisk]]:
    """The disks beside the first, locked; and what ``node.json`` says, which names them on return."""
    if paths and file.token is None:
        file = replace(file, token=runtime.token_hex(_ID_BYTES)).store(first)
    token, known = file.token or "", dict(file.disks)
    marks = {path: _mark(path) for path in paths}
    ids = [mark.disk for mark in marks.values() if isinstance(mark, DiskMark) and mark.node == token]
    found: list[NodeDisk] = []
    for path, mark in marks.items():
        id = next((id for id, place in known.items() if place == str(path) and id not in ids), None)
        if isinstance(mark, DiskMark) and mark.node == token:
            if ids.count(mark.disk) > 1:
                raise InvalidConfig(
                    f"{path} and another directory of data are copies of one disk (the id in their {MARK_FILE} is the "
                    "same); leave out the one that is the older copy",
                    setting="data",
                )
            found.append(_known_disk(path, mark.disk, mark.disk in known))
        elif mark is None and id is None:
            found.append(NodeDisk(path, _adopted(path, token)))
        else:
            found.append(NodeDisk(path, id, lost=_why_lost(path, mark, file, _forgetting(str(path), first, known))))
            if id is None:
                raise InvalidConfig(f"{found[-1].lost}; it never was a disk of this node", setting="data")
    _lock(found, held)
    there = {disk.id for disk in found}
    for id, place in known.items():
        if id not in there:
            why = f"{place} is a disk of this node, and no directory of data: name it, or "
            why += _forgetting(place, first, known)
            found.append(NodeDisk(Path(place), id, lost=why))
    named = known | {disk.id: str(disk.path) for disk in found if disk.id is not None and disk.lost is None}
    if named != known:
        file = replace(file, disks=MappingProxyType(named)).store(first)
    if file.cluster is None:
        file = _counted(first, file, found)
    return file, found


def _counted(first: Path, file: NodeFile, disks: Sequence[NodeDisk]) -> NodeFile:
    usable = {disk.id: disk for disk in disks if disk.id is not None and disk.lost is None}

    def lose(id: str, why: str) -> None:
        usable[id].lost = why

    return count_start(first, file, {id: disk.path for id, disk in usable.items()}, lose)


def _mark(path: Path) -> DiskMark | str | None:
    """A directory's mark, or why it cannot be read; None where it has none."""
    try:
        return DiskMark.load(path)
    except (DataDirectoryUnusable, CorruptFile, UnsupportedFormat) as error:
        return error.message


def _forgetting(place: str, first: Path, known: Mapping[str, str]) -> str:
    """The command, whole, that has the node do without a disk."""
    data = ",".join([str(first), *known.values()])
    return f"stop the node and 'lsmq disk forget {place} --data {data}'"


def _why_lost(path: Path, mark: DiskMark | str | None, node: NodeFile, forgetting: str) -> str:
    if isinstance(mark, str):
        return mark
    if mark is not None:
        return f"{path} is a disk of another node"
    why = f"{path} has no {MARK_FILE}: it is not mounted, or was emptied or exchanged; bring the disk back"
    return why if node.cluster is None else f"{why}; or, to give up what was on it, {forgetting}"


def _known_disk(path: Path, id: str, is_known: bool) -> NodeDisk:
    """A disk that bears the node's mark: one that the node knows; or was about to take, and so holds nothing."""
    if is_known or not _shards(path):
        return NodeDisk(path, id)
    return NodeDisk(path, None, lost=f"{path} is a disk that this node was told to forget; empty it to use it again")


def _shards(path: Path) -> list[int]:
    try:
        return DiskListing([path]).shards()
    except OSError as error:
        raise DataDirectoryUnusable(f"{path} cannot be read: {error.strerror}", directory=str(path)) from error


def _adopted(path: Path, token: str) -> str:
    """Make a directory a disk of the node, durably; its id."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        strange = [name for name in (NODE_FILE, RESTORING) if (path / name).exists()]
        strange += [shard_directory(path, shard).name for shard in _shards(path)]
        if strange:
            raise InvalidConfig(
                f"{path} holds {strange[0]} and no {MARK_FILE}: a further disk of a node is empty at first; name "
                "another directory, or move away what is there",
                setting="data",
            )
        id = runtime.token_hex(_ID_BYTES)
        DiskMark(token, id).store(path)
        sync_directory(path.parent)
    except OSError as error:
        raise DataDirectoryUnusable(
            f"{path} cannot be made a disk of the node: {error.strerror}", directory=str(path)
        ) from error
    return id


def _lock(disks: Sequence[NodeDisk], held: ExitStack) -> None:
    """One that cannot be listed or written is lost. Raises ``DataDirectoryLocked``."""
    for disk in disks:
        if disk.lost is None:
            try:
                _shards(disk.path)
                held.callback(DirectoryLock(disk.path).release)
            except DataDirectoryUnusable as error:
                disk.lost = error.message
