"""Opening a replica's directory, whatever state it is in, and what the core is to be told of it.

A log that is damaged, or shorter than it was known to be, is opened as far as it is intact; what lies behind the damage
stays as it is until the core says that nothing counts on it any more. Where tables, checkpoint or manifest are
damaged nothing can be kept: the directory is set aside as ``shard-N.damaged-<time>``, the latest one is kept for an
operator, and the replica begins with nothing.
"""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import structlog

from lsmq import runtime
from lsmq.errors import CorruptFile
from lsmq_coordinator.lives import LifeId
from lsmq_node.replication import EpochHistory, EpochStart, ReplicaRecord
from lsmq_node.replication.actions import Distrust
from lsmq_node.replication.events import Recovered
from lsmq_node.storage import ShardStore, StoreOptions
from lsmq_node.storage.disk import Clock, Disk
from lsmq_node.storage.recovery import unusable
from lsmq_node.storage.replica_log import ReplicaLog
from lsmq_node.storage.snapshot import INCOMING_DIRECTORY
from lsmq_node.storage.wal_reader import LogFloor

from .record import load_record, save_record

_log = structlog.get_logger("lsmq.cluster")


@dataclass(frozen=True, slots=True)
class Directory:
    """Where a replica of ``shard`` is, at ``node``."""

    shard: int
    node: str
    path: Path
    options: StoreOptions
    disk: Disk
    clock: Clock

    def open_store(self, record: ReplicaRecord | None) -> ShardStore:
        """Raises what ``ShardStore.open`` raises."""
        floor = LogFloor()
        if record is not None:
            floor = LogFloor(record.floor_lsn, record.epoch if record.leader == self.node else None)
        return ShardStore.open(self.path, self.options, disk=self.disk, clock=self.clock, replicated=True, floor=floor)

    def set_aside(self) -> None:
        """Put whatever is there aside, but for what was promised and fetched. Blocking. Raises ``OSError``."""
        record = self._record()
        _log.error("replica_set_aside", shard=self.shard, path=str(self.path))
        self._set_aside(record)

    def _record(self) -> ReplicaRecord | None:
        aside = self._being_replaced()
        if aside.exists() and not self.path.exists():
            aside.rename(self.path)
        return load_record(self.disk, self.path)

    def open(self, distrust: Distrust) -> tuple[ShardStore, Recovered]:
        """After :meth:`set_aside` where all is distrusted. Blocking.

        Raises what ``ShardStore.open`` raises, except ``CorruptFile``.
        """
        with ExitStack() as opened:
            try:
                found = self._open(distrust, opened)
            except OSError as error:
                raise unusable(self.path, error) from error
            opened.pop_all()
            return found

    def _open(self, distrust: Distrust, opened: ExitStack) -> tuple[ShardStore, Recovered]:
        damaged = distrust in (Distrust.LOG, Distrust.ALL)
        record = self._record()
        try:
            store = self.open_store(record)
        except CorruptFile as error:
            _log.error("replica_set_aside", shard=self.shard, code=error.code, message=error.message)
            self._set_aside(record)
            store, damaged = self.open_store(record), True
        opened.callback(store.close)
        damage = store.replica.damage
        if damage is not None:
            _log.error("log_damaged", shard=self.shard, message=damage.message)
        damaged = damaged or damage is not None
        went_back = distrust is Distrust.WENT_BACK
        return store, recovered(store, record, store.replica.first_lsn(), damaged=damaged, went_back=went_back)

    def _being_replaced(self) -> Path:
        return self.path.with_name(f"{self.path.name}.new")

    def _set_aside(self, record: ReplicaRecord | None) -> None:
        """Put a directory in place with the record alone, for what was promised holds, and with what was fetched."""
        fresh, parent = self._being_replaced(), self.path.parent
        former = list(parent.glob(f"{self.path.name}.damaged-*"))
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        if record is not None:
            save_record(self.disk, fresh, record)
        if (self.path / INCOMING_DIRECTORY).exists():
            (self.path / INCOMING_DIRECTORY).rename(fresh / INCOMING_DIRECTORY)
        self.path.rename(parent / f"{self.path.name}.damaged-{runtime.wall_ms()}")
        fresh.rename(self.path)
        handle = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        for path in former:
            shutil.rmtree(path, ignore_errors=True)


def history_of(log: ReplicaLog) -> EpochHistory:
    """The epochs of a store's log as the protocol knows them."""
    return EpochHistory.of(
        EpochStart(each.epoch, each.lsn, LifeId(each.incarnation, each.start)) for each in log.history
    )


def recovered(
    store: ShardStore,
    record: ReplicaRecord | None,
    log_start_lsn: int,
    *,
    damaged: bool = False,
    went_back: bool = False,
) -> Recovered:
    """What a core is made from. Everything in the log must be durable."""
    log = store.replica
    return Recovered(
        record=record,
        fresh_incarnation=runtime.random_bits(52) + 1,
        log_start_lsn=min(log_start_lsn, log.end_lsn),
        applied_lsn=log.committed_lsn,
        end_lsn=log.end_lsn,
        history=history_of(log),
        damaged=damaged,
        went_back=went_back,
        token=runtime.random_bits(52),
    )
