"""Making a backup: a snapshot of each shard at about one time, then all files that are not here yet.

Each shard is consistent in itself: it has all that was acknowledged when the backup began. Writing goes on all the
time; the nodes keep files that merging would have removed until they have been read.

An earlier backup's file is taken again when the shard still has the same content under the same name: both sides sum it
up, and nothing is sent. Whatever moves is tried again; a shard whose leader is gone is begun again with the next one.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import Any, ParamSpec, TypeVar

from lsmq import runtime
from lsmq.errors import ConnectionFailed, CorruptFile, DiskFull, LsmqError, SnapshotGone, TimedOut, Unavailable
from lsmq.shard_snapshots import HeldSnapshot
from lsmq_node.broker.snapshot_sessions import MAX_COMPARE_BYTES, MAX_PIECE_BYTES
from lsmq_node.storage.disk import OsDisk
from lsmq_node.storage.snapshot import decode_snapshot
from lsmq_node.storage.snapshot_target import FileVerifier

from .manifest import BackupManifest, ShardBackup, StoredFile
from .repository import Repository
from .sources import SnapshotReader

#: So many shards are read at a time.
_AT_ONCE = 2
#: A shard is begun so often, one after another without any progress.
_ATTEMPTS = 4
_ATTEMPTS_A_FILE = 2

T = TypeVar("T")
Given = ParamSpec("Given")


@dataclass(slots=True)
class BackupMade:
    """What a backup came to: ``fetched_bytes`` of its files were sent, the others were here. ``removed`` and ``unread``
    are of :class:`.Pruned`."""

    backup: BackupManifest
    fetched_bytes: int
    removed: list[str]
    unread: list[str]


async def create_backup(
    snapshots: SnapshotReader,
    repository: Repository,
    *,
    keep: int | None = None,
    full: bool = False,
    begin: Callable[[int], Callable[[int], None]] = lambda total: lambda size: None,
) -> BackupMade:
    """Back up all that the nodes have whose ``snapshots`` are read, inside :meth:`Repository.changing`.

    Args:
        keep: of the backups that are here then, remove all but so many; those of other clusters stay.
        full: fetch every file, also those that are here.
        begin: called with the bytes there are; what it returns is told how many have been seen to.

    Raises ``DiskFull``, ``CorruptFile`` where files of a shard are damaged at its node, ``Unavailable`` and what else a
    request raises. What was fetched is kept for the next attempt.
    """
    return await _Creation(snapshots, repository, full).run(keep, begin)


class _Creation:
    def __init__(self, snapshots: SnapshotReader, repository: Repository, full: bool) -> None:
        self._snapshots = snapshots
        self._repository = repository
        self._known: dict[tuple[int, str, int], list[StoredFile]] = defaultdict(list)
        self._held: dict[int, HeldSnapshot] = {}
        self._advance: Callable[[int], None] = lambda size: None
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._fetched_bytes = 0
        self._full = full

    async def run(self, keep: int | None, begin: Callable[[int], Callable[[int], None]]) -> BackupMade:
        repository, made_ms = self._repository, runtime.wall_ms()
        id = await _in_thread(repository.new_id, made_ms)
        cluster, numbers, home_shards = await self._snapshots.shards()
        if not self._full:
            for known in await _in_thread(repository.known):
                self._known[known.shard, known.file.name, known.file.size_bytes].insert(0, known.file)
        holding: asyncio.Task[None] | None = None
        try:
            # All before any file is read: so they are of about one time.
            for number, held in zip(numbers, await asyncio.gather(*map(self._snapshots.begin, numbers)), strict=True):
                self._held[number] = held
            holding = asyncio.create_task(self._snapshots.keep(self._held.values()))
            self._check_space()
            self._advance = begin(sum(size for held in self._held.values() for _, size in held.files))
            shards = await _all(self._shard(number) for number in numbers)
            topics = await self._snapshots.topics()  # After every shard: one that is not among them is gone.
            if len((await self._snapshots.shards())[1]) > len(numbers):
                raise Unavailable("there are more shards by now than when the backup began; make it again")
        finally:
            if holding is not None:
                holding.cancel()
            for held in self._held.values():
                with suppress(LsmqError):  # it is let go in time
                    await self._snapshots.end(held)
        backup = BackupManifest(
            id,
            cluster,
            _version(),
            made_ms,
            runtime.wall_ms(),
            tuple(shards),
            tuple(topics),
            home_shards if home_shards < len(numbers) else None,
        )
        await _in_thread(repository.add, backup)
        pruned = await _in_thread(repository.prune, keep, backup)
        return BackupMade(backup, self._fetched_bytes, pruned.removed, pruned.unread)

    def _check_space(self) -> None:
        wanted = sum(
            size
            for held in self._held.values()
            for name, size in held.files
            if not self._known.get((held.shard, name, size))
        )
        self._repository.check_space(wanted)

    async def _shard(self, number: int) -> ShardBackup:
        async with self._slots:
            failures, done = 0, 0
            while True:
                held = self._held[number]
                taken_ms = runtime.wall_ms()
                try:
                    return ShardBackup(number, held.lsn, taken_ms, held.manifest, await self._files(held))
                except DiskFull:  # the one here
                    raise
                except (SnapshotGone, ConnectionFailed, TimedOut, Unavailable) as error:
                    failures = 0 if self._fetched_bytes > done else failures + 1
                    done = self._fetched_bytes
                    if failures >= _ATTEMPTS:
                        raise type(error)(
                            f"shard {number} cannot be read: {error.message}. What was fetched is kept", **error.details
                        ) from error
                self._held[number] = await self._snapshots.begin(number)

    async def _files(self, held: HeldSnapshot) -> tuple[StoredFile, ...]:
        verifier = FileVerifier(decode_snapshot(held.manifest, held.url), OsDisk())
        found = []
        for name, size in held.files:
            file = await self._kept(held, name, size)
            if file is None:
                file = await self._fetch(held, name, size, verifier)
                self._known[held.shard, name, size].insert(0, file)
            found.append(file)
        return tuple(found)

    async def _kept(self, held: HeldSnapshot, name: str, size: int) -> StoredFile | None:
        """The file that is here already; None where there is none with what the shard has under the name."""
        for file in self._known.get((held.shard, name, size), ()):
            same = True
            for at in range(0, size, MAX_COMPARE_BYTES):
                length = min(MAX_COMPARE_BYTES, size - at)
                there, here = await asyncio.gather(
                    self._snapshots.checksum(held, name, at, length),
                    asyncio.to_thread(self._repository.checksum, file, at, length),
                )
                if there != here:
                    same = False
                    break
            if same:
                self._advance(size)
                return file
        return None

    async def _fetch(self, held: HeldSnapshot, name: str, size: int, verifier: FileVerifier) -> StoredFile:
        for attempt in range(_ATTEMPTS_A_FILE):
            incoming = await _in_thread(self._repository.receive)
            try:
                for at in range(0, size, MAX_PIECE_BYTES):
                    length = min(MAX_PIECE_BYTES, size - at)
                    piece = await self._snapshots.read(held, name, at, length)
                    if len(piece) != length:
                        raise ConnectionFailed(
                            f"{held.url} gave {len(piece)} of {length} bytes of {name}; make the backup again"
                        )
                    await _in_thread(incoming.write, piece)
                    self._fetched_bytes += length
                    self._advance(length if attempt == 0 else 0)
                await _in_thread(incoming.written)
                await _in_thread(verifier.verify, incoming.path, name)
                return await _in_thread(incoming.keep, held.shard, name)
            except CorruptFile as damage:
                if attempt + 1 == _ATTEMPTS_A_FILE:
                    raise CorruptFile(
                        f"{name} of shard {held.shard} is damaged at its node, {held.url}: {damage.message}. `lsmq "
                        "verify` and `lsmq repair` say what it costs; in a cluster hand the shard to another replica",
                        **damage.details,
                    ) from damage
            finally:
                incoming.discard()
        raise AssertionError("the last attempt returns or raises")


async def _in_thread(work: Callable[Given, T], *given: Given.args, **named: Given.kwargs) -> T:
    """Blocking work at the place, over when this ends, also where it is cancelled: somebody else may change the place
    from then on."""
    future = asyncio.get_running_loop().run_in_executor(None, partial(work, *given, **named))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            with suppress(asyncio.CancelledError):  # It is raised below.
                await asyncio.wait((future,))
        future.exception()  # Nobody else hears of it.
        raise


async def _all(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all, in their order; where one fails the others are ended, and it is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


def _version() -> str:
    try:
        return metadata.version("lsmq")
    except metadata.PackageNotFoundError:
        return "0"
