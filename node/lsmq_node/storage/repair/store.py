"""The door: one store's directory, examined or repaired."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from lsmq.errors import DataDirectoryUnusable, InvalidRequest
from lsmq.record_batch import Codec

from ..disk import Disk, OsDisk
from ..lock import unused_directory
from ..passing_files import passing_directory
from .findings import FindingsBook, Summary, Tell
from .known import KnownShard, TopicHint
from .output import Output
from .shard import Advance, ShardRepair


def repair_store(
    path: Path | str,
    out: Path | str | None = None,
    *,
    tell: Tell = lambda finding: None,
    begin: Callable[[int], Advance] = lambda total: lambda size: None,
    disk: Disk | None = None,
) -> Summary:
    """Examine the store of a :class:`QueueStore` or of one shard; with ``out``, write what is whole of it there.

    ``path`` is only read, and not at all while a process has it open. ``out`` is new or empty; on return it holds a
    store that opens like any other, durably, and nothing when this raises. Memory does not grow with the tables: what
    the log holds beyond them lies in a temporary directory (``TMPDIR``, or ``out``) meanwhile.

    Args:
        tell: called with each finding, when it is found.
        begin: called with the bytes there are to go through; what it returns is told how many have gone by.

    Raises ``DataDirectoryLocked``, ``DataDirectoryUnusable``, ``UnsupportedFormat`` for files of a newer release,
    ``InvalidRequest`` where there is no store, or ``out`` has something in it.
    """
    source, target = Path(path), None if out is None else Path(out)
    summary = Summary()
    with unused_directory(source), empty_directory(source, target), spool(target) as spool_directory:
        try:
            book, queue_store = FindingsBook(source, tell, summary), not is_shard(source)
            shard = ShardRepair(disk or OsDisk(), source, target, spool_directory, book, queue_store=queue_store)
            shard.read({})
            shard.save(begin(shard.table_bytes))
        except OSError as error:
            raise unusable(source, target, error) from error
    return summary


def is_shard(path: Path) -> bool:
    """Whether a store is one of a node's shards, by its name."""
    name = path.resolve().name
    return name.startswith("shard-") and name[6:].isdigit()


def write_empty(disk: Disk, path: Path, topics: Iterable[TopicHint], segment_bytes: int) -> None:
    """A store without messages, in place of one that is gone; with these topics. Durable on return."""
    known = KnownShard({hint.topic.id: hint for hint in topics})
    for hint in topics:
        known.adopt(hint.topic.id)
    Output(disk, path, Codec.NONE).finish(known.state.take_whole(segment_bytes), iter(()), segment_bytes)


def unusable(source: Path, target: Path | None, error: OSError) -> DataDirectoryUnusable:
    where = source if target is None else f"{source} or {target}"
    return DataDirectoryUnusable(
        f"repairing failed: {error.filename or where}: {error.strerror}. The new store needs as much space as the old "
        "one has messages; nothing of it was kept, and the old one is as it was.",
        directory=str(source),
    )


@contextmanager
def empty_directory(source: Path, target: Path | None) -> Iterator[None]:
    """``target`` is there and empty; and empty again when the body raises. Raises ``InvalidRequest``."""
    if target is None:
        yield
        return
    if source.resolve() in (target.resolve(), *target.resolve().parents):
        raise InvalidRequest(f"{target} lies in {source}, which is not to be written to; choose a directory elsewhere")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InvalidRequest(f"{target} is not empty; choose a new directory for what is saved")
    made = not target.exists()
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unusable(source, target, error) from error
    try:
        yield
    except BaseException:
        for child in target.iterdir():
            shutil.rmtree(child) if child.is_dir() else child.unlink()
        if made:
            target.rmdir()
        raise


def spool(target: Path | None) -> AbstractContextManager[Path]:
    """A directory that is gone afterwards: in ``target``, where there will be space, or in that of the system."""
    return passing_directory("repair", target)
