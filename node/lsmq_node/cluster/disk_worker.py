"""The disk thread of a replica: operations in the order given, and what became of them, in the order they finished.

Frames that have queued up are written one after another and synced once. A leader's group commit is told of twice:
written, so that it is shipped at once, and durable (see ``ReplicaLog.listen``). Applying is not done here: see
:mod:`.apply_worker`.

A frame that cannot be stored (disk full, no descriptor left, or damaged on its way) does not stop the shard: nothing of
it counts. But what follows it cannot be stored either, so everything is passed over until :class:`Settle`. The same
holds for the beginning of an epoch: who cannot write it does not lead it, and is as good as before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import structlog

from lsmq import runtime
from lsmq.errors import CorruptFile, DiskFull, InvalidRequest, LsmqError, NotLeader, StoreBusy
from lsmq_coordinator.lives import LifeId
from lsmq_node.replication import ReplicaRecord
from lsmq_node.storage import ShardStore
from lsmq_node.storage.disk import Disk
from lsmq_node.storage.failures import WANT, may_pass

from .disk_thread import DiskThread, ThreadFailed
from .record import save_record

_log = structlog.get_logger("lsmq.cluster")

T = TypeVar("T")

_WANT_RETRY_S = 0.5
_ROOM_WAIT_S = 0.25
#: A follower takes frames slowly while it has so much of the log not yet applied.
UNAPPLIED_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Keep:
    """Replace the record."""

    record: ReplicaRecord


@dataclass(frozen=True, slots=True)
class Truncate:
    lsn: int


@dataclass(frozen=True, slots=True)
class Append:
    """A frame's bytes."""

    lsn: int
    end_lsn: int
    content: bytes | memoryview


@dataclass(frozen=True, slots=True)
class Begin:
    """Write the EPOCH entry, to where the loop has promised it to be."""

    epoch: int
    life: LifeId
    end_lsn: int


@dataclass(frozen=True, slots=True)
class Leave:
    """Leadership is over: drop what the core was not told of."""

    lsn: int
    failure: NotLeader


@dataclass(frozen=True, slots=True)
class Settle:
    """After a frame that could not be stored: be the log that is there, synced, and go on."""


@dataclass(frozen=True, slots=True)
class Swap:
    """Close the store, do ``install``, open it again."""

    install: Callable[[], None]


@dataclass(frozen=True, slots=True)
class LookAround:
    """Note how far the log is committed, where it begins now, and what is damaged."""


DiskOperation = Keep | Truncate | Append | Begin | Leave | Settle | Swap | LookAround


@dataclass(frozen=True, slots=True)
class Wrote:
    """A leader's group commit is in the log, not yet synced. ``leaves``: of how many leaderships it knew the end."""

    lsn: int
    end_lsn: int
    content: bytes
    entry_ends: list[int]
    leaves: int


@dataclass(frozen=True, slots=True)
class Durable:
    lsn: int
    leaves: int


@dataclass(frozen=True, slots=True)
class RecordKept:
    record: ReplicaRecord


@dataclass(frozen=True, slots=True)
class WasTruncated:
    lsn: int


@dataclass(frozen=True, slots=True)
class FrameDropped:
    """The frame, or the beginning of an epoch, and all after it are not stored."""

    error: LsmqError


@dataclass(frozen=True, slots=True)
class Settled:
    log_start_lsn: int


@dataclass(frozen=True, slots=True)
class Swapped:
    """``error``: installing failed, and the store is as it was."""

    error: Exception | None
    log_start_lsn: int


@dataclass(frozen=True, slots=True)
class LogBegins:
    lsn: int


@dataclass(frozen=True, slots=True)
class TablesDamaged:
    """Tables that turned out to be damaged, in words."""

    found: tuple[str, ...]


Report = (
    Wrote
    | Durable
    | RecordKept
    | WasTruncated
    | FrameDropped
    | Settled
    | Swapped
    | LogBegins
    | TablesDamaged
    | ThreadFailed
)


class DiskWorker(DiskThread[DiskOperation]):
    """``post`` is called in the thread. ``store`` changes with ``Swap`` only."""

    def __init__(
        self,
        shard: int,
        path: Path,
        disk: Disk,
        store: ShardStore,
        *,
        reopen: Callable[[], ShardStore],
        quiesce: Callable[[], None],
        post: Callable[[Report], None],
    ) -> None:
        """Args:
        reopen: opens the store again, listened to; runs in the thread.
        quiesce: returns when nothing is being applied, and nothing more will be of what was asked; in the thread.
        """
        super().__init__(shard, store, post)
        self._path = path
        self._disk = disk
        self._reopen = reopen
        self._quiesce = quiesce
        self._post = post
        self._leaves = 0
        self._passing_over = False
        self._closing = runtime.Event()
        #: Why nothing goes on, while there is no room for what is to be done; set by its thread.
        self.wants_room: str | None = None

    def close(self) -> None:
        self._closing.set()
        super().close()

    def wrote(self, lsn: int, end_lsn: int, content: bytes, entry_ends: list[int]) -> None:
        """For ``ReplicaLog.listen``."""
        self._post(Wrote(lsn, end_lsn, content, entry_ends, self._leaves))

    def durable(self, lsn: int) -> None:
        """For ``ReplicaLog.listen``."""
        self._post(Durable(lsn, self._leaves))

    # In the thread

    def _do(self, operation: DiskOperation) -> None:
        log = self.store.replica
        match operation:
            case Keep(record):
                self._keep(record)
            case Truncate(lsn):
                if not self._passing_over:
                    self._with_room(lambda: log.truncate(lsn))
                    self._post(WasTruncated(lsn))
                    self._sync()
            case Begin():
                self._begin(operation)
            case Leave(lsn, failure):
                self._with_room(lambda: log.leave(lsn, failure))
                self._leaves += 1
            case Settle():
                self._quiesce()
                log.sync()
                self._passing_over = False
                self._post(Settled(self._with_room(log.first_lsn)))
            case Swap(install):
                self._swap(install)
            case LookAround():
                self._look_around()
            case Append():
                self._append_all(operation)

    def _keep(self, record: ReplicaRecord) -> None:
        """Space, or a descriptor, is waited for: until the record is kept, nothing that depends on it is said.

        The record says how far the log is durable, which must be true also where that was only promised.
        """
        self.store.replica.make_durable()
        self._with_room(lambda: save_record(self._disk, self._path, record))
        self._post(RecordKept(record))

    def _begin(self, operation: Begin) -> None:
        if self._passing_over:
            return
        log = self.store.replica
        appended = log.begin_epoch(operation.epoch, *operation.life)
        if appended.lsn != operation.end_lsn:
            raise AssertionError(f"the EPOCH entry ends at {appended.lsn}, not at {operation.end_lsn}")
        try:
            log.write()
        except (DiskFull, StoreBusy) as error:
            self._drop(error)

    def _append_all(self, frame: Append) -> None:
        """Write this frame and those queued behind it, then sync once."""
        while True:
            if not self._passing_over:
                self._append(frame)
            try:
                following = self._operations.get_nowait()
            except runtime.Empty:
                break
            if not isinstance(following, Append):
                self._put_back.append(following)
                break
            frame = following
        self._sync()

    def _sync(self) -> None:
        self._post(Durable(self.store.replica.sync(), self._leaves))

    def _append(self, frame: Append) -> None:
        store, log = self.store, self.store.replica
        if log.end_lsn - log.committed_lsn > UNAPPLIED_BYTES and store.pressure == "refuse":
            store.wait_for_room(_ROOM_WAIT_S)
        try:
            end_lsn = log.receive(frame.lsn, frame.content)
        except (DiskFull, StoreBusy, CorruptFile, InvalidRequest) as error:
            self._drop(error)
            return
        if end_lsn != frame.end_lsn:
            raise AssertionError(f"a frame to LSN {frame.end_lsn} ends an entry at {end_lsn}")

    def _drop(self, error: LsmqError) -> None:
        self._passing_over = True
        self._post(FrameDropped(error))

    def _swap(self, install: Callable[[], None]) -> None:
        self._quiesce()
        self.store.close()
        failure: Exception | None = None
        try:
            install()
        except Exception as error:
            failure = error
        self.store = self._with_room(self._reopen)
        self._post(Swapped(failure, self._with_room(self.store.replica.first_lsn)))

    def _with_room(self, work: Callable[[], T]) -> T:
        """Do it as soon as there is space, or a descriptor, for it: where there is none it leaves all as it was."""
        while True:
            try:
                done = work()
                self.wants_room = None
                return done
            except (LsmqError, OSError) as error:
                if not may_pass(error):
                    raise
                if self.wants_room is None:
                    self.wants_room = str(error)
                    _log.warning("replica_waits_for_room", shard=self._shard, reason=str(error))
                if self._closing.wait(_WANT_RETRY_S):
                    raise

    def _look_around(self) -> None:
        log = self.store.replica
        damage = self.store.damage()
        if damage:
            self._post(TablesDamaged(tuple(damage)))
        if self.store.disk_full:
            return
        for look in (log.save_high_watermark, lambda: self._post(LogBegins(log.first_lsn()))):
            try:
                look()
            except OSError as error:
                if error.errno not in WANT:
                    raise
