"""What is done to the disks of a node while it does not run: a shard goes to another one, a lost one is given up."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from lsmq.errors import DataDirectoryUnusable, DiskFull, InvalidRequest
from lsmq_node.storage.failures import FULL
from lsmq_node.storage.lock import unused_directory

from .held import NodeDisk, NodeDisks, forget, held_disks
from .looking import MOVED, MOVING, DiskListing, finish_moves, shard_directory, sync_directory
from .mark import MARK_FILE, is_marked
from .node_file import NODE_FILE, NodeFile

#: Told how many more bytes are copied.
Advance = Callable[[int], None]
_PIECE_BYTES = 1 << 20
_BRING_BACK = "bring the disk back (or all that was on it, with its disk.json, on another one, which data names then)"


@contextmanager
def _stopped_node(paths: Sequence[Path], shard: int | None = None) -> Iterator[tuple[NodeFile, NodeDisks]]:
    """Directories of ``paths`` that are new become disks of it, unless ``shard`` lies on none of all.

    Raises ``InvalidRequest`` for none, ``DataDirectoryLocked`` for one that runs, and what starting raises.
    """
    found = NodeFile.load(paths[0])
    if found is None:
        raise InvalidRequest(f"{paths[0]} is not the first directory of a node: it has no {NODE_FILE}")
    if found.processes is not None:
        each = ",".join(str(path / "p0") for path in paths)
        raise InvalidRequest(f"{paths[0]} is of {found}, each with its own: name those, as --data {each}")
    if shard is not None and not _is_somewhere(paths, shard):
        raise _nowhere(paths, shard)
    with held_disks(paths, found, lambda file: None) as disks:
        yield found, disks


def move_shard(
    paths: Sequence[Path],
    shard: int,
    to: Path,
    *,
    begin: Callable[[int], Advance] = lambda total: lambda size: None,
) -> Path:
    """Bring a shard of a node that does not run to another of its disks; where it lies now, durably.

    ``paths`` are all directories of the node, the first one first. Cut short anywhere the shard is on one of the two
    disks as a whole, and the next start, or another call, puts the rest in order.

    Raises ``InvalidRequest``, ``DataDirectoryLocked``, ``DataDirectoryUnusable``, ``DiskFull``: nothing has moved then.
    """
    with _stopped_node(paths, shard) as (node, disks):
        target = _usable(disks, to)
        source = disks.find(shard)
        if source is None or not source.is_dir():
            raise _nowhere([disk.path for disk in disks.all], shard)
        if source.parent == target.path:
            return source
        if shard == 0 and node.cluster is None:
            raise InvalidRequest(
                f"shard 0 of a node of its own has what is the whole node's, and stays in its first: {paths[0]}"
            )
        with unused_directory(source):
            _copy(source, target, begin)
        try:
            source.rename(source.with_name(source.name + MOVED))
            sync_directory(source.parent)
            finish_moves(disk.path for disk in disks.all if disk.problem is None)
        except OSError as error:
            raise _failed(error) from error
        return shard_directory(target.path, shard)


def _is_somewhere(paths: Sequence[Path], shard: int) -> bool:
    """Or may be: where a disk cannot be read nobody knows."""
    places = [shard_directory(path, shard) for path in paths]
    try:
        return any(place.with_name(place.name + ending).is_dir() for place in places for ending in ("", MOVING, MOVED))
    except OSError:
        return True


def _nowhere(paths: Sequence[Path], shard: int) -> InvalidRequest:
    names = ", ".join(map(str, paths))
    return InvalidRequest(f"shard {shard} is on none of the disks {names} that can be used")


def _usable(disks: NodeDisks, path: Path) -> NodeDisk:
    found = next((disk for disk in disks.all if disk.path == path.absolute()), None)
    if found is None:
        raise InvalidRequest(f"{path} is none of the node's directories: name it in data as well, behind the others")
    if found.problem is not None:
        raise DataDirectoryUnusable(found.problem, directory=str(path))
    return found


def _failed(error: OSError) -> DataDirectoryUnusable:
    return DataDirectoryUnusable(f"{error.filename}: {error.strerror}", file=str(error.filename))


def _copy(source: Path, target: NodeDisk, begin: Callable[[int], Advance]) -> None:
    """A whole copy beside the other shards of a disk, durable; nothing of it when this raises."""
    copy = target.path / (source.name + MOVING)
    try:
        shutil.rmtree(copy, ignore_errors=True)  # of a move that was cut short
        files = [path for path in sorted(source.rglob("*")) if path.is_file() and path.name != "LOCK"]
        size_bytes = sum(path.stat().st_size for path in files)
        target.measure()
        if target.free_bytes < size_bytes:
            raise DiskFull(
                f"{source} takes {size_bytes >> 20} MiB, and {target.path} has {target.free_bytes >> 20} MiB left",
                path=str(target.path),
                free_bytes=target.free_bytes,
            )
        advance = begin(size_bytes)
        directories = [source, *(path for path in sorted(source.rglob("*")) if path.is_dir())]
        for directory in directories:
            (copy / directory.relative_to(source)).mkdir()
        for file in files:
            _copy_file(file, copy / file.relative_to(source), advance)
        for directory in reversed(directories):
            sync_directory(copy / directory.relative_to(source))
        sync_directory(target.path)
    except BaseException as error:
        shutil.rmtree(copy, ignore_errors=True)
        if isinstance(error, OSError):
            if error.errno in FULL:
                raise DiskFull(f"no space is left for {copy}; nothing has moved", path=str(copy)) from error
            raise _failed(error) from error
        raise


def _copy_file(source: Path, target: Path, advance: Advance) -> None:
    with source.open("rb") as reading, target.open("xb") as writing:
        while piece := reading.read(_PIECE_BYTES):
            writing.write(piece)
            advance(len(piece))
        writing.flush()
        os.fsync(writing.fileno())


def forget_disk(paths: Sequence[Path], which: Path, *, accept_loss: bool = False) -> list[int]:
    """Let a node that does not run do without one of its further disks, for good; the shards it has without it.

    ``paths`` are its directories, the first one first. What a lost disk had is given up: a member of a cluster makes
    its replicas again, from the others. A node of its own has nowhere to take them from, and gives up nothing; where it
    has several processes, one of them does with ``accept_loss``.

    Raises ``InvalidRequest``, ``DataDirectoryLocked``, ``DataDirectoryUnusable``.
    """
    with _stopped_node(paths) as (node, disks):
        disk = next((disk for disk in disks.all if disk.path == which.absolute() and disk.id is not None), None)
        if disk is None or disk.id is None:
            names = ", ".join(str(disk.path) for disk in disks.all[1:]) or "none"
            raise InvalidRequest(f"{which} is no further disk of the node; it has {names}")
        is_there = is_marked(disk.path, node.token, disk.id)
        given_up = disk.problem is not None and disk.path in [path.absolute() for path in paths]
        others = [other.path for other in disks.all if other is not disk and other.problem is None]
        try:
            held = DiskListing([disk.path]).shards() if is_there and not given_up else []
            left = DiskListing(others).shards()
        except OSError as error:
            raise _failed(error) from error
        if held:
            raise InvalidRequest(
                f"{which} can be used, and has the shards {', '.join(map(str, held))}: bring them to another disk by "
                "'lsmq disk move', all directories named in data"
            )
        missing = sorted(set(range(node.count)) - set(left)) if node.cluster is None else []
        if missing:
            raise InvalidRequest(
                f"the shards {', '.join(map(str, missing))} are on no other disk, and a node of its own has no other "
                f"replica of them: {_BRING_BACK}, restore a backup, or have 'lsmq repair' make a new node of what is "
                "left"
            )
        own = _own_node(paths[0])
        if own is not None and not accept_loss and (given_up or not is_there):
            raise InvalidRequest(
                f"{paths[0]} is of a process of {own}, which have nothing twice, and what {which} had is nowhere else: "
                f"{_BRING_BACK}, or give it up with --accept-loss"
            )
        forget(disks.first, {disk.id})
        if is_there and not given_up:
            with suppress(OSError):  # Without shards and unknown to the node it is as good as empty.
                (disk.path / MARK_FILE).unlink()
    return left


def _own_node(first: Path) -> NodeFile | None:
    """The node of its own whose process has this directory; None for any other."""
    found = NodeFile.load(first.absolute().parent)
    return found if found is not None and found.processes is not None else None
