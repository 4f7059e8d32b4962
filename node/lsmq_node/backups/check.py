"""Reading everything of what is to be kept: of a backup, of nodes that run, of the data of a node that does not.

What is found is told as :mod:`lsmq_node.storage.repair` tells it. Nothing is ever written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from lsmq import runtime
from lsmq.client import Client
from lsmq.errors import CorruptFile, InvalidRequest, LsmqError, UnsupportedFormat
from lsmq.shard_snapshots import ShardSnapshots
from lsmq_node.broker.repair import repair_directory
from lsmq_node.disks import NODE_FILE
from lsmq_node.storage.disk import OsDisk
from lsmq_node.storage.repair import Advance, Damage, FindingsBook, Remark, Summary, Tell
from lsmq_node.storage.snapshot_target import FileVerifier

from .manifest import BackupManifest
from .places import BACKUPS, FILES
from .repository import Repository

BeginProgress = Callable[[int], Advance]


def is_repository(path: Path) -> bool:
    """Whether a directory holds backups, and not a node's or a store's data."""
    return (path / "backups").is_dir() and (path / "files").is_dir() and not (path / NODE_FILE).exists()


def verify_directory(
    path: Path,
    *further: Path,
    tell: Tell = lambda finding: None,
    begin: BeginProgress = lambda total: lambda size: None,
) -> Summary:
    """Read all of data that nobody has open; ``further`` as of :func:`repair_directory`.

    Raises ``InvalidRequest`` where there are none, ``DataDirectoryLocked``, ``UnsupportedFormat``.
    """
    return repair_directory(path, None, *further, tell=tell, begin=begin)


def verify_repository(
    repository: Repository,
    *,
    backup: str | None = None,
    tell: Tell = lambda finding: None,
    begin: BeginProgress = lambda total: lambda size: None,
) -> Summary:
    """Read all backups of a place, or one. Raises ``InvalidRequest`` where there are none."""
    summary = Summary()
    book = FindingsBook(Path(), tell, summary)
    ids = [backup] if backup else repository.ids()
    if not ids:
        raise InvalidRequest(f"{repository.place} does not hold any backup")
    backups = _load(repository, ids, book)
    files = {file.sha256: file for found in backups for file in found.files()}
    advance = begin(sum(file.size_bytes for file in files.values()))
    whole: set[str] = set()
    for found in backups:
        for shard in found.shards:
            source = repository.place.path(BACKUPS, found.id)
            try:
                verifier = FileVerifier(shard.decoded(f"{source}: shard {shard.shard}"), OsDisk())
            except CorruptFile as error:
                _unusable(repository, found.id, error, book)
                continue
            for file in shard.files:
                if file.sha256 in whole:
                    continue
                whole.add(file.sha256)
                try:
                    with repository.whole(file) as path:
                        verifier.verify(path, file.name)
                except (CorruptFile, UnsupportedFormat) as error:
                    there = repository.has(file)
                    users = [
                        each.id
                        for each in _left(repository, backups)
                        if any(one.sha256 == file.sha256 for one in each.files())
                    ]
                    if users:
                        book.damage(
                            Path(FILES) / file.sha256,
                            int(error.details.get("position", 0)),
                            file.size_bytes,
                            "damaged" if there else "missing",
                            f"{file.name} of shard {shard.shard}: {error.message}",
                            f"the backups {', '.join(users)} cannot be restored whole",
                        )
                advance(file.size_bytes)
    for found in _left(repository, backups):
        book.add(Remark(_described(found)))
    return summary


def _load(repository: Repository, ids: list[str], book: FindingsBook) -> list[BackupManifest]:
    found = []
    for id in ids:
        try:
            found.append(repository.load(id))
        except CorruptFile as error:
            _unusable(repository, id, error, book)
        except InvalidRequest:  # It is removed just now, where it is not what was asked for.
            if id in repository.ids() or len(ids) == 1:
                raise
    return found


def _left(repository: Repository, backups: list[BackupManifest]) -> list[BackupManifest]:
    """Those that nobody has removed since they were looked at."""
    ids = repository.ids()
    return [each for each in backups if each.id in ids]


def _unusable(repository: Repository, id: str, error: CorruptFile, book: FindingsBook) -> None:
    size = repository.place.size(BACKUPS, id) or 0
    book.damage(Path(BACKUPS) / id, 0, size, "damaged", error.message, "the backup cannot be restored")


def _described(backup: BackupManifest) -> str:
    of = "a node of its own" if backup.cluster is None else f"the cluster {backup.cluster!r}"
    shards, topics = len(backup.shards), len(backup.topics)
    return f"backup {backup.id} of {of}: {shards} shard{'s' * (shards != 1)}, {topics} topic{'s' * (topics != 1)}"


async def verify_nodes(
    client: Client, *, tell: Tell = lambda finding: None, begin: BeginProgress = lambda total: lambda size: None
) -> Summary:
    """Have each shard's leader read all files that it has of it by now. Raises ``Unavailable``, ``SnapshotGone``."""
    snapshots, summary = ShardSnapshots(client, f"verify-{runtime.token_hex(8)}"), Summary()
    info = await snapshots.cluster()
    held = [await snapshots.begin(shard.id) for shard in info.shards]
    advance = begin(sum(size for each in held for _, size in each.files))
    holding = asyncio.create_task(snapshots.keep(held))
    try:
        for each in held:
            for name, size in each.files:
                damage = await snapshots.verify(each, name)
                if damage is not None:
                    summary.damages += 1
                    file = f"{each.url} shard-{each.shard}/{name}"
                    tell(Damage(file, damage[1], size, "damaged", damage[0], "what is in it cannot be read there"))
                advance(size)
    finally:
        holding.cancel()
        for each in held:
            with suppress(LsmqError):  # it is let go in time
                await snapshots.end(each)
    return summary
