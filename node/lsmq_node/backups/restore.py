"""The data directory of a node, made of a backup. Offline; all or nothing.

Every file is copied and verified, byte by byte, so the directory shares nothing with the backup. It comes to be in a
directory of its own inside, and is moved from there as the last step; while that is there no node takes the data.

What the shards of a backup know of topics is as old as each of them; the backup's list of topics, which was taken after
the last one, decides: what it lacks was deleted, and what only some shards have heard of is told to the others.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import msgpack

from lsmq.errors import DataDirectoryLocked, DataDirectoryUnusable, DiskFull, InvalidRequest, LsmqError
from lsmq_node.broker.catalog import RANGES, NodeCatalog
from lsmq_node.broker.layout import NODE_FILE, RESTORING, NodeFile, shard_directory
from lsmq_node.broker.placement import stored_range
from lsmq_node.cluster.rights import RIGHTS
from lsmq_node.storage import ShardStore, StoredTopic, StoreOptions, TopicOptions
from lsmq_node.storage.disk import OsDisk
from lsmq_node.storage.failures import FULL, damaged
from lsmq_node.storage.keyed_file import KeyedFile
from lsmq_node.storage.repair import Advance
from lsmq_node.storage.snapshot_install import install
from lsmq_node.storage.snapshot_target import SnapshotTarget

from .manifest import BackupManifest, ShardBackup
from .repository import Repository

#: Left free beside what is restored: a node needs as much to open it.
_SPARE_BYTES = 64 << 20
#: Of a topic that is there for a moment. No topic of a user has such a name.
_LAST_NAME = "."
#: Nothing goes by its age while topics are settled.
_QUIET_MS = 86_400_000


def restore_backup(
    repository: Repository,
    data: Path,
    id: str | None = None,
    *,
    begin: Callable[[int], Advance] = lambda total: lambda size: None,
) -> BackupManifest:
    """Make ``data``, new or empty, what a node of its own starts with; durable on return, nothing when it raises.

    Raises ``InvalidRequest`` where there is something, or no such backup; ``CorruptFile`` where the backup is damaged,
    ``DiskFull``, ``DataDirectoryUnusable``.
    """
    backup = repository.load(id)
    with new_directory(data, backup.size_bytes) as building:
        advance = begin(backup.size_bytes)
        for shard in backup.shards:
            place_shard(repository, shard, shard_directory(building, shard.shard), advance)
        settle_topics(backup, building, next_topic_id(repository, backup))
        grown = None if backup.grown_from is None else len(backup.shards)
        NodeFile(backup.home_shards, grown=grown).store(building)
    return backup


@contextmanager
def new_directory(data: Path, size_bytes: int) -> Iterator[Path]:
    """A directory whose content becomes that of ``data``, which is new or empty, when the block ends well, durably.

    ``size_bytes`` are to come. Raises ``InvalidRequest`` where there is something, ``DiskFull``,
    ``DataDirectoryUnusable``, also for what the block meets: nothing is left then.
    """
    data = data.resolve()
    building, is_new = data / RESTORING, not data.exists()
    with ExitStack() as held:
        try:
            data.mkdir(parents=True, exist_ok=True)
            held.enter_context(_only_one(data))
        except OSError as error:
            raise _failed(data, error) from error
        if not building.exists() and any(_entries(data)):
            raise InvalidRequest(
                f"{data} is not empty; a backup is restored to a new directory, never over what is there"
            )
        try:
            _clear(data)  # of one that was cut short
            building.mkdir()
            _sync(data)  # Whoever finds anything else there finds this.
            _check_space(data, size_bytes)
            yield building
            _move(building, data)
        except BaseException as error:
            _clear(data, and_itself=is_new)
            if isinstance(error, OSError):
                raise _failed(data, error) from error
            raise


def _failed(data: Path, error: OSError) -> LsmqError:
    if error.errno in FULL:
        return DiskFull(f"no space is left for {data}; nothing of it was kept", path=str(data))
    return DataDirectoryUnusable(f"{error.filename or data}: {error.strerror}", directory=str(data))


@contextmanager
def _only_one(data: Path) -> Iterator[None]:
    """One restore at a time goes there. Raises ``DataDirectoryLocked``."""
    handle = os.open(data, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise DataDirectoryLocked(
            f"another process restores a backup to {data}; wait until it is done", directory=str(data)
        ) from None
    finally:
        os.close(handle)


def _entries(data: Path) -> Iterator[Path]:
    """What somebody put there, and not the file system."""
    return (entry for entry in data.iterdir() if entry.name != "lost+found") if data.exists() else iter(())


def _clear(data: Path, *, and_itself: bool = False) -> None:
    """Remove what a restore has left; what says so last."""
    for entry in sorted(_entries(data), key=lambda entry: entry.name == RESTORING):
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            with suppress(OSError):
                entry.unlink()
    if and_itself:
        with suppress(OSError):
            data.rmdir()


def _move(building: Path, data: Path) -> None:
    """All that was made to its place. Until the last of it is there the data are refused (:class:`.NodeFile`)."""
    _sync(building)
    for entry in sorted(building.iterdir(), key=lambda entry: entry.name == NODE_FILE):
        entry.rename(data / entry.name)
        _sync(data)
    building.rmdir()
    _sync(data)
    _sync(data.parent)


def _check_space(directory: Path, size_bytes: int) -> None:
    free, wanted = OsDisk().free_bytes(directory), size_bytes + _SPARE_BYTES
    if free < wanted:
        raise DiskFull(
            f"the backup needs {wanted >> 20} MiB in {directory}; {free >> 20} MiB are free",
            path=str(directory),
            free_bytes=free,
        )


def place_shard(repository: Repository, shard: ShardBackup, path: Path, advance: Advance) -> None:
    """A shard's store, in a directory of its own. Raises ``CorruptFile``, ``OSError``."""
    path.mkdir()
    snapshot = shard.decoded(f"{repository.place}: shard {shard.shard}")
    files = {file.name: file for file in shard.files}
    with closing(SnapshotTarget(path, snapshot)) as target:
        for wanted in target.missing():
            file = files.get(wanted.name)
            if file is None or file.size_bytes != wanted.size_bytes:
                raise damaged(repository.place, f"the backup does not say where {wanted.name} of its shard is")
            at = 0
            for piece in repository.pieces(file):
                target.write(wanted.name, at, piece)
                at += len(piece)
                advance(len(piece))
            target.complete(wanted.name)
        target.finish()
    install(path)


def open_restored(data: Path, shard: ShardBackup, *, replicated: bool = False) -> ShardStore:
    """The store of a shard that was placed. One that is ``replicated`` drops nothing by itself."""
    segment_bytes = shard.decoded(str(data)).manifest.segment_bytes
    options = StoreOptions(segment_bytes=segment_bytes, wal_keep_bytes=segment_bytes, retention_interval_ms=_QUIET_MS)
    return ShardStore.open(shard_directory(data, shard.shard), options, replicated=replicated)


def next_topic_id(repository: Repository, backup: BackupManifest) -> int:
    """Above the ids of all topics that a shard has heard of, those that are gone included: none is given twice.

    Raises ``CorruptFile``, ``OSError``.
    """
    found = max((topic.id + 1 for topic in backup.topics), default=1)
    for shard in backup.shards:
        checkpoint = shard.decoded(f"{repository.place}: shard {shard.shard}").manifest.checkpoint
        if checkpoint:
            latest = checkpoint[-1]
            file = next(file for file in shard.files if file.name == latest.name)
            with repository.whole(file) as path:
                found = max(found, int(KeyedFile(OsDisk(), path, latest.number).properties["next_topic_id"]))
    return found


def settle_topics(backup: BackupManifest, data: Path, next_id: int) -> None:
    """Have all shards know the topics of the backup, and no others, and the first give the next one ``next_id``."""
    shards = len(backup.shards)
    with ExitStack() as opened:
        stores = [opened.enter_context(open_restored(data, shard)) for shard in backup.shards]
        first = stores[0]
        wanted = {topic.id: topic for topic in backup.topics}
        for store in stores:
            for topic in store.topics():
                if topic.id not in wanted:
                    store.delete_topic(topic.name)
        for topic in backup.topics:
            if not first.knows(topic):
                first.wait(first.put_topic(topic, *stored_range(topic, 0, backup.home_shards)))
        grown = {f"{RANGES}{topic.id}": msgpack.packb(topic.ranges) for topic in backup.topics if topic.ranges}
        gone = {key: None for key, _ in first.documents(RANGES) if key not in grown}
        if backup.cluster is not None:
            # A cluster has its rights elsewhere: these are of a node that it was restored from once.
            gone |= {key: None for key, _ in first.documents(RIGHTS)}
        if gone or (shards > 1 and grown):
            first.wait(first.put_documents({**grown, **gone}))
        if shards > 1:
            # The first shard gives the ids, and need not have heard of all: it has of the last one by this.
            last = StoredTopic(next_id - 1, _LAST_NAME, 1, TopicOptions(), 0)
            if last.id not in wanted and last.id > 0:
                first.wait(first.put_topic(last, 0, 0))
                first.wait(first.drop_topic(last.id))
        NodeCatalog(stores, backup.home_shards).complete()
        for store in stores:
            store.flush()


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
