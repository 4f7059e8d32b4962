"""The shell around a ``ReplicaCore``: its events come in here, its actions are carried out from here.

The core says what is to be done, this does it (see ``replication.core`` for the bargain). Everything here is on the
loop thread; the disk is in two threads (:mod:`.disk_worker`, :mod:`.apply_worker`), and what they report comes back
through one mailbox, in order.

What the bargain leaves open, and how it is done here:

- *Who writes.* Appends of producers reach the log through the store's line and the disk thread. When leadership ends,
  the line is closed in the same step, and the disk thread then drops whatever the core was not told of (``Leave``),
  before it does anything that was asked for later. Reports that it made before are told apart by counting.
- *The EPOCH entry.* Its place is known before it is written: the log ends where the core says. So ``EpochBegun``
  follows at once, and the disk thread writes it there, after what is queued.
- *Serving.* Readers and writers are let in when the EPOCH entry is applied, which may be a little after the core's
  ``Serve``: what former leaders acknowledged must be visible, and offsets are given from what is applied. Writes are
  acknowledged when applied, for the same reason.
- *Full disk.* A leader's group commit is dropped as a whole. A follower lets frames pass by, and begins anew, from the
  log it has, when there is space; it goes on giving promises.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, assert_never

import structlog

from lsmq import runtime
from lsmq.errors import CorruptFile, LsmqError, NotEnoughReplicas, NotLeader, ShardStopped
from lsmq_coordinator.lives import InSyncMember
from lsmq_node.replication import (
    ControlView,
    ReplicaAction,
    ReplicaCore,
    ReplicaEvent,
    ReplicaRecord,
    ReplicaRole,
    Timings,
)
from lsmq_node.replication import actions as act
from lsmq_node.replication import events as ev
from lsmq_node.replication.messages import Hello, ReplicaMessage
from lsmq_node.storage import Committed, ShardStore
from lsmq_node.storage.epochs import EPOCH_ENTRY_BYTES
from lsmq_node.storage.failures import may_pass
from lsmq_node.storage.wal import Appender

from . import disk_worker as worker
from .disk_thread import ThreadFailed
from .log_tail import Piece
from .opening import Directory, history_of, recovered
from .ports import ReplicaPorts, TransferProgress
from .repair import Repair
from .replica_life import LifeReport, ReplicaLife
from .shipper import Shipper
from .writes import WaitingWrites

_log = structlog.get_logger("lsmq.cluster")

#: So much of the log is kept after it is flushed, within the store's ``wal_keep_bytes``.
KEEP_BYTES = 64 * 1024 * 1024
#: A follower applies so much at once; less waits for the next tick, out of the way of what is to be acknowledged.
_APPLY_BYTES = 256 * 1024
_LOOK_AROUND_S = 1.0
_REOPEN_DELAY_S = 0.1
#: Where space, or a descriptor, is wanting.
_WANT_DELAY_S = 0.5
_SNAPSHOT_RETRY_S = 1.0


class Shell:
    """Loop thread only. ``core`` is None before it is opened, while it is opened again, and after it was closed."""

    def __init__(self, directory: Directory, timings: Timings, ports: ReplicaPorts, ack_timeout_s: float) -> None:
        self.shard = directory.shard
        self.node = directory.node
        self.core: ReplicaCore | None = None
        self.store: ShardStore | None = None
        self.open_lsn: int | None = None  # a leader lets readers and writers in when this is applied
        self.failure: str | None = None
        self.stopped: LsmqError | None = None
        self.fetched: tuple[int, int] | None = None
        self.writes = WaitingWrites(directory.shard, ports.touched, timeout_s=ack_timeout_s, verdict=self._verdict)
        self._directory = directory
        self._timings = timings
        self._ports = ports
        self._ack_timeout_s = ack_timeout_s
        self._shipper = Shipper(
            timings.window_bytes,
            lambda: self.store,
            self._send,
            ports.congested,
            self.handle,
            lambda error: self._storage_failed(error),
        )
        self.repair = Repair(self.shard, self.node, lambda: self._view, self._gather, self._begin_anew)
        self._life: ReplicaLife | None = None
        self._record: ReplicaRecord | None = None
        self._view: ControlView | None = None
        self._events: deque[tuple[ReplicaEvent, bytes | memoryview]] = deque()
        self._handling = False
        self._payload: bytes | memoryview = b""
        self._leads = False  # the line is open, or about to be
        self._log_start_lsn = 0
        self._shown: tuple[object, ...] = ()
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._looked_at = 0.0
        self._deaf_epoch = 0  # the last one of which it was logged
        self._applies_to = 0
        self._fetching: asyncio.Task[None] | None = None
        self._may_hold_snapshot = True  # beside the files, perhaps a part; an earlier process may have left one
        self._reopening: asyncio.Task[None] | None = None

    # Life and death

    async def open(self, distrust: act.Distrust) -> None:
        """Raises what ``ShardStore.open`` raises, except for damage."""
        opening = asyncio.ensure_future(asyncio.to_thread(self._directory.open, distrust))
        try:
            store, found = await asyncio.shield(opening)
        except asyncio.CancelledError:
            store, _ = await opening
            await asyncio.to_thread(store.close)
            raise
        if self._closed:
            await asyncio.to_thread(store.close)
            return
        self._leads = False
        self.repair.found, self.failure, self.stopped = (), None, None
        self._life = ReplicaLife(self._directory, store, self._delivered)
        self.store = store
        self._begin(found)
        self._timer = self._next_tick()

    def _begin(self, found: ev.Recovered) -> None:
        """A core for the log that is there."""
        self._record = found.record
        self._log_start_lsn = found.log_start_lsn
        self._applies_to = 0
        self.core = core = ReplicaCore(self.node, found, self._timings)
        _log.info(
            "replica_opened",
            shard=self.shard,
            log_start_lsn=found.log_start_lsn,
            applied_lsn=found.applied_lsn,
            end_lsn=found.end_lsn,
            damaged=found.damaged,
            went_back=found.went_back,
        )
        for action in core.start(runtime.monotonic()):
            self._perform(core, action)
        if self._view is not None:
            self.handle(ev.ControlViewed(self._view))

    async def close(self, reason: str) -> None:
        self._closed = True
        await self._end(reason)
        if self._reopening is not None:
            await asyncio.wait([self._reopening])

    async def _end(self, reason: str) -> None:
        """The end of a life: no core, no threads, no store."""
        life, self._life = self._life, None
        if self._timer is not None:
            self._timer.cancel()
        if life is not None:
            life.end()
            self._abdicate(life, reason)
        self._drop_core(reason)
        self.store = None
        await self._shipper.close()
        await self.repair.give_way()
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])
        if life is not None:
            await asyncio.to_thread(life.close)

    def _begin_anew(self, reason: str) -> None:
        if self._life is not None and not self._closed and (self._reopening is None or self._reopening.done()):
            self._drop_core(reason)
            self._reopening = self._start(self._reopen(reason, act.Distrust.ALL))

    async def _reopen(self, reason: str, distrust: act.Distrust) -> None:
        _log.error("replica_reopens", shard=self.shard, reason=reason, distrusts=distrust.value)
        await self._end(reason)
        in_place = distrust is not act.Distrust.ALL
        while not self._closed:
            await asyncio.sleep(_REOPEN_DELAY_S if self.failure is None else _WANT_DELAY_S)
            try:
                if not in_place:
                    await asyncio.to_thread(self._directory.set_aside)
                    in_place = True
                return await self.open(distrust)
            except (LsmqError, OSError) as error:
                if self.failure is None:
                    self._give_up(error.message if isinstance(error, LsmqError) else str(error))
                if not may_pass(error):
                    return

    def _drop_core(self, reason: str) -> None:
        self.core = None
        self._events.clear()
        self._shipper.log_changes()
        self._fail_writes(reason)
        self._noticed()

    def _give_up(self, reason: str) -> None:
        """Nothing more is done for this replica until it is opened again."""
        self.failure = reason
        self.stopped = self.stopped or ShardStopped(
            f"the replica of shard {self.shard} at {self.node} has stopped: {reason}", shard=self.shard
        )
        _log.error("replica_halted", shard=self.shard, reason=reason)
        self._fail_writes(reason)
        self._noticed()

    def _next_tick(self) -> asyncio.TimerHandle:
        """All replicas of a node tick in the same turn of the loop, so that their messages to a peer go together."""
        loop = asyncio.get_running_loop()
        period = self._timings.heartbeat_s / 2
        return loop.call_at((loop.time() // period + 1) * period, self._tick)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        assert self._timer is not None
        if loop.time() - self._timer.when() > self._timings.heartbeat_s:
            # The loop stood still. What has come meanwhile is to be read before anybody is taken for silent.
            self._timer = loop.call_later(0.001, self._tick)
            return
        self._timer = self._next_tick()
        now = runtime.monotonic()
        self.handle(ev.Tick())
        self._shipper.resume()
        self.writes.expire(now, self._too_late)
        if self._life is not None and self.core is not None and self.core.log.high_watermark > self._applies_to:
            self._apply(self._life, self.core.log.high_watermark)
        if now - self._looked_at >= _LOOK_AROUND_S and self._life is not None:
            self._looked_at = now
            self._life.disk.put(worker.LookAround())
            if self.store is not None and (self._fetching is None or self._fetching.done()):
                self.repair.look()  # Else what it fetches would lie where a snapshot is on its way into the store.
                if self._may_hold_snapshot and not self.repair.found and self._is_in_sync():
                    self._may_hold_snapshot = False
                    self._start(self._let_snapshot_go())
            if not self._leads and self.core is not None:
                self._keep_log(self.core, self.core.log.high_watermark)

    # Events

    def viewed(self, view: ControlView) -> None:
        if self._view is None or view.order > self._view.order:
            self._view = view
        self.handle(ev.ControlViewed(view))

    def handle(self, event: ReplicaEvent, payload: bytes | memoryview = b"") -> None:
        """Feed the core and do what it asks; what that gives rise to follows at once."""
        self._events.append((event, payload))
        if self._handling:
            return
        self._handling = True
        try:
            while self._events and self.core is not None:
                event, self._payload = self._events.popleft()
                self._step(self.core, event)
        except Exception as error:
            self._broke(error)
        finally:
            self._handling = False
            if self.core is None:
                self._events.clear()
        self._noticed()

    def _broke(self, error: Exception) -> None:
        """The core cannot be trusted any more, nor can what it asked for."""
        _log.error("replica_failed", shard=self.shard, exc_info=error)
        if self._life is not None:
            self._abdicate(self._life, "internal error")
        self._drop_core("internal error")
        self._give_up(f"internal error: {error!r}")

    def _step(self, core: ReplicaCore, event: ReplicaEvent) -> None:
        for action in core.handle(event, runtime.monotonic()):
            self._perform(core, action)
            if self.core is not core:
                return
        begins = bool(self._events) and isinstance(self._events[0][0], ev.EpochBegun)
        if self._leads and core.role is not ReplicaRole.LEADING and not begins and self._life is not None:
            self._abdicate(self._life, "leadership ended")

    # Actions

    def _perform(self, core: ReplicaCore, action: ReplicaAction) -> None:
        life = self._life
        assert life is not None
        match action:
            case act.Send(peer, message):
                if not (isinstance(message, Hello) and not message.borrows and self.disk_full):
                    self._send(peer, message, b"")  # Else nothing can be taken now; it is said again.
            case act.Ship():
                self._shipper.ship(action)
            case act.AppendFrame(lsn, end_lsn):
                life.disk.put(worker.Append(lsn, end_lsn, self._payload))
            case act.AdvanceHighWatermark(lsn):
                if self._leads or lsn - self._applies_to >= _APPLY_BYTES:
                    self._apply(life, lsn)
            case act.Persist(record):
                life.disk.put(worker.Keep(record))
            case act.TruncateLog(lsn):
                self._shipper.log_changes()
                life.disk.put(worker.Truncate(lsn))
            case act.BeginEpoch():
                self._begin_epoch(core, life, action)
            case act.Serve(epoch):
                _log.info("leader_serves", shard=self.shard, epoch=epoch)
                self.open_lsn = core.log.high_watermark
            case act.StopServing(epoch, reason):
                _log.info("leader_stops", shard=self.shard, epoch=epoch, reason=reason)
                self._abdicate(life, reason)
            case act.FetchSnapshot(peer):
                self._shipper.log_changes()
                self._fetching = self._start(self._fetch(core, life, peer))
            case act.KeepLog(lsn):
                self._keep_log(core, lsn)
            case act.ProposeInSync():
                self._ports.propose_in_sync(self.shard, action)
            case act.ProposeLeave():
                self._ports.propose_leave(self.shard, action)
            case act.RegisterStart():
                self._ports.register_start(self.shard, action, lambda reason: self._refused(core, reason))
            case act.AskElection(above_epoch, elsewhere):
                if elsewhere and above_epoch != self._deaf_epoch:
                    self._deaf_epoch = above_epoch
                    _log.warning("leader_hears_too_few", shard=self.shard, epoch=above_epoch)
                self._ports.ask_election(self.shard, above_epoch, elsewhere)
            case act.Reopen(reason, distrust):
                self._drop_core(reason)
                self._reopening = self._start(self._reopen(reason, distrust))
            case act.Halt(reason):
                self._give_up(reason)
            case _:
                assert_never(action)

    def _refused(self, core: ReplicaCore, reason: str) -> None:
        """Who asked may be gone by now."""
        if core is self.core:
            self.handle(ev.StartRefused(reason))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=f"replica of shard {self.shard}")
        task.add_done_callback(self._work_ended)
        return task

    def _work_ended(self, task: asyncio.Task[None]) -> None:
        """Work that fails by a mistake stops the replica, in words: nothing waits for it unseen."""
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("replica_work_failed", shard=self.shard, exc_info=error)
            self._give_up(f"{type(error).__name__}: {error}")

    def _apply(self, life: ReplicaLife, lsn: int) -> None:
        self._applies_to = lsn
        life.applier.advance(lsn, leads=self._leads)

    def _send(self, peer: str, message: ReplicaMessage, payload: bytes | memoryview) -> None:
        self._ports.send(peer, self.shard, message, payload)

    def _keep_log(self, core: ReplicaCore, lsn: int) -> None:
        """Some of the log is kept in any case, for followers that come back and for the next leader."""
        if self.store is not None:
            self.store.replica.keep_from(max(min(lsn, core.log.high_watermark - KEEP_BYTES), 0))

    def _begin_epoch(self, core: ReplicaCore, life: ReplicaLife, action: act.BeginEpoch) -> None:
        lsn = core.log.end_lsn
        _, end_lsn = Appender(lsn, life.disk.store.segment_bytes).append(bytes(EPOCH_ENTRY_BYTES))
        self._shipper.log_changes()
        self._leads = True
        life.disk.put(worker.Begin(action.epoch, action.life, end_lsn))
        self._events.appendleft((ev.EpochBegun(action.epoch, lsn, end_lsn), b""))

    def _abdicate(self, life: ReplicaLife, reason: str) -> None:
        """Close the line at once, and have the disk drop what the core was not told of."""
        self.open_lsn = None
        if self._leads and self.core is not None:
            self._leads = False
            failure = self.not_leader(f"shard {self.shard} lost its leader here: {reason}", sent=True)
            life.disk.store.replica.close_line(failure)
            lsn = self.core.log.end_lsn
            life.leave(lsn)
            life.disk.put(worker.Leave(lsn, failure))
            self._shipper.log_changes()
        self._fail_writes(reason)

    # Reports of the threads

    def _delivered(self, item: LifeReport) -> None:
        try:
            self._heed(item)
        except Exception as error:
            self._broke(error)

    def _heed(self, item: LifeReport) -> None:
        life = self._life
        assert life is not None
        match item:
            case Committed():
                self._committed(life, item)
            case worker.Wrote(lsn, end_lsn, content, entry_ends, leaves):
                if leaves == life.leaves:
                    self._shipper.wrote(Piece(lsn, end_lsn, content, entry_ends))
                    self.handle(ev.LogWritten(end_lsn))
                    self._shipper.resume()
            case worker.Durable(lsn, leaves):
                lsn = life.durable(lsn, leaves)
                self.handle(ev.LogDurable(lsn))
                self._shipper.resume()
                self.writes.durable(lsn)
            case worker.RecordKept(record):
                self._record = record
                self.handle(ev.Persisted(record))
            case worker.WasTruncated(lsn):
                self.handle(ev.Truncated(lsn))
            case worker.FrameDropped(error):
                self._frame_dropped(life, error)
            case worker.Settled(log_start_lsn):
                if self.failure is None:
                    self._begin(recovered(life.disk.store, self._record, log_start_lsn))
            case worker.Swapped(failure, log_start_lsn):
                self._swapped(life.disk.store, failure, log_start_lsn)
            case worker.LogBegins(lsn):
                if lsn > self._log_start_lsn:
                    self._log_start_lsn = lsn
                    self.handle(ev.LogRecycled(lsn))
            case worker.TablesDamaged(found):
                self.repair.note(*found)
                self._noticed()
            case ThreadFailed(error):
                self._storage_failed(error)
            case _:
                assert_never(item)

    def _committed(self, life: ReplicaLife, event: Committed) -> None:
        self.writes.committed(event)
        if event.error is not None and life.disk.store.stopped:
            self._storage_failed(event.error)
        self._noticed()

    def _storage_failed(self, error: LsmqError) -> None:
        if isinstance(error, CorruptFile):
            self.repair.note(error.message)
        self.stopped = self.stopped or error
        self.writes.fail(error)
        if self.core is not None:
            self.handle(ev.StorageFailed(error.message))
        elif self.failure is None:
            self._give_up(error.message)

    def _frame_dropped(self, life: ReplicaLife, error: LsmqError) -> None:
        """The core counts on bytes that are not there: a new one, for the log that is."""
        _log.error("frames_dropped", shard=self.shard, code=error.code, message=error.message)
        if self.core is not None and self.failure is None:
            self._abdicate(life, error.message)
            self._drop_core(error.message)
            life.disk.put(worker.Settle())

    # Snapshots

    async def _fetch(self, core: ReplicaCore, life: ReplicaLife, peer: str) -> None:
        """Fetch with the store open; the disk thread swaps it then."""
        try:
            await self.repair.give_way()
            await asyncio.to_thread(life.applier.drain)  # What was shown must be in the snapshot.
            with self._reporting() as progress:
                install = await self._ports.fetch_snapshot(self.shard, peer, self._directory.path, progress)
        except Exception as error:
            _log.warning("snapshot_not_fetched", shard=self.shard, peer=peer, error=str(error))
            await asyncio.sleep(_SNAPSHOT_RETRY_S)
            if core is self.core:
                self.handle(ev.SnapshotFailed())
            return
        if core is self.core:
            self.store = None  # Whatever it showed is about to be replaced.
            life.disk.put(worker.Swap(install))

    async def _gather(self, peer: str) -> None:
        with self._reporting() as progress:
            await self._ports.gather_snapshot(self.shard, peer, self._directory.path, progress)

    def _is_in_sync(self) -> bool:
        record, view = self._record, self._view
        if record is None or view is None:
            return False
        return InSyncMember(self.node, record.incarnation) in view.in_sync

    async def _let_snapshot_go(self) -> None:
        """It was given up, and the log of somebody else reached back to this one."""
        try:
            await self._ports.let_snapshot_go(self._directory.path)
        except OSError as error:
            _log.warning("snapshot_not_removed", shard=self.shard, error=str(error))

    @contextmanager
    def _reporting(self) -> Iterator[TransferProgress]:
        """Show the progress of a snapshot."""
        self._may_hold_snapshot = True

        def progress(done: int, total: int) -> None:
            self.fetched = done, total

        try:
            yield progress
        finally:
            self.fetched = None

    def _swapped(self, store: ShardStore, error: Exception | None, log_start_lsn: int) -> None:
        self.store = store
        if error is not None:
            _log.error("snapshot_not_installed", shard=self.shard, error=str(error))
            self.handle(ev.SnapshotFailed())
            return
        self.repair.found = ()  # That was in files which are gone.
        self._log_start_lsn = log_start_lsn
        log = store.replica
        self.handle(ev.SnapshotInstalled(log_start_lsn, log.committed_lsn, log.end_lsn, history_of(log)))

    # What it says

    @property
    def disk_full(self) -> bool:
        return self.store is not None and self.store.disk_full

    @property
    def wants_room(self) -> str | None:
        return None if self._life is None else self._life.disk.wants_room

    @property
    def role(self) -> ReplicaRole:
        if self.core is None:
            return ReplicaRole.STARTING if self.failure is None else ReplicaRole.HALTED
        return self.core.role

    @property
    def serving(self) -> bool:
        """Whether readers and writers are let in; whether they get an answer is the lease's to say."""
        core, store, open_lsn = self.core, self.store, self.open_lsn
        return (
            core is not None
            and store is not None
            and open_lsn is not None
            and core.serving
            and store.committed_lsn >= open_lsn
        )

    def not_leader(self, message: str, *, sent: bool) -> NotLeader:
        core = self.core
        leader = core.leader if core is not None and core.leader != self.node else None
        epoch = core.epoch if core is not None else 0
        return NotLeader(message, shard=self.shard, epoch=epoch, leader=self._ports.client_url(leader), sent=sent)

    def _verdict(self) -> LsmqError | None:
        """Whether what has come far enough may be acknowledged: the lease is asked now, after the fsync."""
        if self.core is not None and self.core.may_answer(runtime.monotonic()):
            return None
        return self.not_leader(
            f"shard {self.shard}: this node was away from the control plane for too long to answer", sent=True
        )

    def _too_late(self) -> LsmqError:
        return NotEnoughReplicas(
            f"shard {self.shard}: not acknowledged by its replicas within {self._ack_timeout_s} s; it may be stored",
            shard=self.shard,
            sent=True,
        )

    def _fail_writes(self, reason: str) -> None:
        if len(self.writes):
            self.writes.fail(self.not_leader(f"shard {self.shard}: {reason}; the write may be stored", sent=True))

    def _noticed(self) -> None:
        core = self.core
        led = (core.epoch, core.leader) if core is not None else (0, None)
        shown = (self.role, *led, self.serving, self.failure, self.repair.found)
        if shown != self._shown:
            self._shown = shown
            self._ports.changed(self.shard)

    def kick(self) -> None:
        """Something is in line."""
        if self._life is not None:
            self._life.disk.kick_soon()
