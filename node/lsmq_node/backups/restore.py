"""The data directory of a node, made of a backup. Offline; all or nothing.

Every file is copied and verified, byte by byte, so the directory shares nothing with the backup.

What the shards of a backup know of topics is as old as each of them; the backup's list of topics, which was taken after
the last one, decides: what it lacks was deleted, and what only some shards have heard of is told to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import msgpack

from lsmq_node.broker.catalog import RANGES, NodeCatalog
from lsmq_node.broker.placement import stored_range
from lsmq_node.cluster.rights import RIGHTS
from lsmq_node.disks import NodeFile
from lsmq_node.storage import ShardStore, StoredTopic, StoreOptions, TopicOptions
from lsmq_node.storage.disk import OsDisk
from lsmq_node.storage.failures import damaged
from lsmq_node.storage.keyed_file import KeyedFile
from lsmq_node.storage.repair import Advance
from lsmq_node.storage.snapshot_install import install
from lsmq_node.storage.snapshot_target import SnapshotTarget

from .manifest import BackupManifest, ShardBackup
from .new_directories import new_directories
from .repository import Repository

#: Of a topic that is there for a moment. No topic of a user has such a name.
_LAST_NAME = "."
#: More topics than anybody makes between a backup and its loss; there are ids for 8,000 restores, one of another.
_IDS_LEFT_OUT = 1 << 16
#: Nothing goes by its age while topics are settled.
_QUIET_MS = 86_400_000


def restore_backup(
    repository: Repository,
    disks: Sequence[Path],
    id: str | None = None,
    *,
    begin: Callable[[int], Advance] = lambda total: lambda size: None,
) -> BackupManifest:
    """Make ``disks``, new or empty, what a node of its own starts with; durable on return, nothing when it raises.

    Raises ``InvalidRequest`` where there is something, or no such backup; ``CorruptFile`` where the backup is damaged,
    ``DiskFull``, ``DataDirectoryUnusable``.
    """
    backup = repository.load(id)
    with new_directories(disks) as building:
        places = building.place(backup.shards, first_on_first=True)
        advance = begin(backup.size_bytes)
        for shard in backup.shards:
            place_shard(repository, shard, places[shard.shard], advance)
        settle_topics(backup, places, next_topic_id(repository, backup))
        grown = None if backup.grown_from is None else len(backup.shards)
        building.finish(NodeFile(backup.home_shards, grown=grown))
    return backup


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


def open_restored(path: Path, shard: ShardBackup, *, replicated: bool = False) -> ShardStore:
    """The store of a shard that was placed there. One that is ``replicated`` drops nothing by itself."""
    segment_bytes = shard.decoded(str(path)).manifest.segment_bytes
    options = StoreOptions(segment_bytes=segment_bytes, wal_keep_bytes=segment_bytes, retention_interval_ms=_QUIET_MS)
    return ShardStore.open(path, options, replicated=replicated)


def next_topic_id(repository: Repository, backup: BackupManifest) -> int:
    """Above the ids of all topics that a shard has heard of, those that are gone included: none is given twice.

    And so far above that those are left out which were given after the backup was made: whoever remembers such a topic,
    a program that runs on or a checkpoint of Spark, takes no other one for it.

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
    return found + _IDS_LEFT_OUT


def settle_topics(backup: BackupManifest, places: Mapping[int, Path], next_id: int) -> None:
    """Have all shards know the topics of the backup, and no others, and the first give the next one ``next_id``.

    ``places``: where each was placed.
    """
    shards = len(backup.shards)
    with ExitStack() as opened:
        stores = [opened.enter_context(open_restored(places[shard.shard], shard)) for shard in backup.shards]
        first = stores[0]
        wanted = {topic.id: topic for topic in backup.topics}
        for store in stores:
            for topic in store.topics():
                if topic.id not in wanted:
                    store.wait(store.drop_topic(topic.id))
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
        # The first shard gives the ids: it has heard of the last one by this.
        last = StoredTopic(next_id - 1, _LAST_NAME, 1, TopicOptions(), 0)
        first.wait(first.put_topic(last, 0, 0))
        first.wait(first.drop_topic(last.id))
        NodeCatalog(dict(enumerate(stores)), shards, backup.home_shards).complete()
        for store in stores:
            store.flush()
