"""A node of the simulation: the shell around a ``ReplicaCore``, with a simulated disk and no other resources."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import assert_never

from lsmq_node.replication import Action, Event, LifeId, Message, Recovered, ReplicaCore, ReplicaRecord, Timings
from lsmq_node.replication.actions import (
    AdvanceHighWatermark,
    AppendFrame,
    AskElection,
    BeginEpoch,
    Distrust,
    FetchSnapshot,
    Halt,
    KeepLog,
    Persist,
    ProposeInSync,
    ProposeLeave,
    RegisterStart,
    Reopen,
    Send,
    Serve,
    Ship,
    StopServing,
    TruncateLog,
)
from lsmq_node.replication.control import ControlView
from lsmq_node.replication.events import (
    ControlViewed,
    EpochBegun,
    LeaseGranted,
    LogDurable,
    LogTrimmed,
    LogWritten,
    Persisted,
    Received,
    Shipped,
    SnapshotFailed,
    SnapshotInstalled,
    StartRefused,
    StreamBroken,
    Tick,
    Truncated,
)
from lsmq_node.replication.messages import Frame, Promise, PromiseRequest, Welcome

from .cluster import Cluster, Write
from .disk import Cut, Keep, LogEntry, Operation, SimDisk, SimLog, Sync
from .network import CONTROL

FRAME_BYTES = 200
TIMINGS = Timings(window_bytes=600)
DELICATE = (
    Persist,
    RegisterStart,
    TruncateLog,
    BeginEpoch,
    FetchSnapshot,
    ProposeInSync,
    Promise,
    Welcome,
    PromiseRequest,
)


class SimReplica:
    """One replica of the shard. ``life`` counts its starts: what belongs to an earlier life is dropped."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name = name
        self.disk = SimDisk()
        self.copies: deque[SimDisk] = deque(maxlen=4)
        self.core: ReplicaCore | None = None
        self.life = 0
        self.paused_until = 0.0
        self.failing_snapshots = False
        self._cluster = cluster
        self._world = cluster.world
        self._operating = False
        self._pending: deque[Write] = deque()
        self._frame: list[LogEntry] = []
        self._keep_lsn = 0
        self._busy_with: deque[Event] = deque()
        self._slow_disk = cluster.world.random.choice((0.001, 0.004, 0.02))
        self._clock_offset_s = 1_000.0 * cluster.world.random.random()
        self._clock_rate = cluster.world.random.choice((1.0, 1.0, 0.92, 1.09))

    # Life and death.

    @property
    def clock(self) -> float:
        """The replica's own: of another moment, and of another speed, than the others': by less than a fifth."""
        return self._clock_offset_s + self._clock_rate * self._world.now

    @property
    def incarnation(self) -> int:
        return self.core.record.incarnation if self.core is not None else 0

    def start(self, distrust: Distrust = Distrust.NOTHING) -> None:
        disk, random = self.disk, self._world.random
        self.life += 1
        fresh = random.getrandbits(32) + 1
        token = random.getrandbits(32)
        recovered = Recovered(
            record=disk.record,
            fresh_incarnation=fresh,
            log_start_lsn=disk.start_lsn,
            applied_lsn=disk.flushed_lsn,
            end_lsn=disk.log.end_lsn,
            history=disk.log.history(),
            damaged=distrust is Distrust.LOG,
            went_back=distrust is Distrust.WENT_BACK,
            token=token,
        )
        self._keep_lsn = disk.start_lsn
        self._world.note(self.name, recovered)
        self.core = self._cluster.make_core(self.name, recovered, TIMINGS)
        self._cluster.monitor.started(self)
        self._do(self.core.start(self.clock))
        self._repeat(self.life, 0.05, self._tick)
        self._repeat(self.life, self._cluster.options.heartbeat_s, self._heartbeat)

    def crash(self, *, power: bool) -> None:
        """The process dies; with the power, unsynced bytes go too."""
        self._world.note(self.name, "CRASH, power lost" if power else "CRASH")
        if self.core is not None and not power:  # A sentinel that loses power too proves nothing.
            self._cluster.command(self.name, partial(self._cluster.control.died, self.name, self.life))
        self.core = None
        self.life += 1
        self._operating = False
        self._give_up_writes()
        self.disk.crash(self._world.random, power=power)
        self._cluster.stream_ends(self.name)

    def lose_disk(self) -> None:
        """The replica's directory is gone."""
        self._world.note(self.name, "LOST ITS DISK")
        self._cluster.monitor.disk_goes(self)
        self.disk = SimDisk()

    def lose_tail(self, lsn: int) -> None:
        """The log is shorter than it was, though it had been synced."""
        self._world.note(self.name, f"LOST ITS LOG FROM {lsn}")
        self._cluster.monitor.disk_goes(self)
        disk = self.disk
        disk.log.cut(lsn)
        disk.durable_lsn = lsn
        if disk.flushed_lsn > lsn or disk.start_lsn > lsn:
            record = disk.record
            self.disk = SimDisk()
            self.disk.record = record

    def set_back(self, copy: SimDisk) -> None:
        """An older copy of the disk is put in its place."""
        self._world.note(self.name, f"WENT BACK to {copy.record} and a log to {copy.durable_lsn}")
        self._cluster.monitor.disk_goes(self)
        present = copy.copy()
        lost = {disk.record.incarnation for disk in (self.disk, copy) if disk.record is not None}
        present.gone = self.disk.gone | lost
        self.disk = present

    def lead_unasked(self, history: SimLog, start: LogEntry, sizes: Sequence[int]) -> None:
        """A process with a copy of this disk has begun an epoch that another began as well: after ``history``, which
        this log is a prefix of, come its own EPOCH entry, where ``start`` lies, and entries of its own."""
        self._world.note(self.name, f"LED EPOCH {start.epoch} AT {start.lsn} AS WELL")
        self._cluster.monitor.led_unasked()
        log, random = self.disk.log, self._world.random
        for entry in history.between(log.end_lsn, start.lsn):
            log.put(entry)
        log.begin(start.epoch, LifeId(random.getrandbits(32) + 1, 1))
        for size in sizes:
            log.append(start.epoch, -random.getrandbits(32) - 1, size)
        self.disk.durable_lsn = self.disk.syncing_to = log.end_lsn

    def pause(self, seconds: float) -> None:
        self._world.note(self.name, f"PAUSED for {seconds:.3f} s")
        self.paused_until = max(self.paused_until, self._world.now + seconds)

    def _repeat(self, life: int, seconds: float, what: Callable[[], None]) -> None:
        def again() -> None:
            if self.life != life:
                return
            what()
            self._world.after(seconds * (0.9 + 0.2 * self._world.random.random()), awake)

        awake = partial(self.when_awake, again)
        self._world.after(seconds * self._world.random.random(), awake)

    def when_awake(self, step: Callable[[], None]) -> None:
        """Do it now, or when the pause is over."""
        if self.paused_until > self._world.now:
            self._world.at(self.paused_until, partial(self.when_awake, step))
        else:
            step()

    def _tick(self) -> None:
        core, disk = self.core, self.disk
        if core is None:
            return
        self.handle(Tick())
        if self.core is core and self._world.chance(0.05) and disk.start_lsn <= core.log.high_watermark:
            disk.flushed_lsn = core.log.high_watermark
            lsn = min(disk.flushed_lsn, self._keep_lsn)
            if lsn > disk.start_lsn and not core.log.busy:
                disk.start_lsn = lsn
                self.handle(LogTrimmed(lsn))

    # Events and actions.

    def handle(self, event: Event) -> None:
        """Feed the core, do what it asks; events that this gives rise to follow at once."""
        self._busy_with.append(event)
        if len(self._busy_with) > 1:
            return
        while self._busy_with:
            event = self._busy_with[0]
            if self.core is not None:
                if type(event) is not Tick:
                    self._world.note(self.name, event)
                self._do(self.core.handle(event, self.clock))
            self._busy_with.popleft()

    def receive(self, sender: str, message: Message, entries: list[LogEntry]) -> None:
        if self.core is not None:
            self._frame = entries
            self.handle(Received(sender, message))

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            self._world.note(self.name, action)
            self._perform(action)
            if type(action) in DELICATE or (type(action) is Send and type(action.message) in DELICATE):
                self._cluster.at_delicate_moment(self)

    def _perform(self, action: Action) -> None:
        disk, cluster = self.disk, self._cluster
        match action:
            case Send(peer, message):
                if type(message) is Promise:
                    cluster.monitor.promised(self, message.epoch)
                cluster.send(self.name, peer, message, [])
            case Ship():
                self._ship(action)
            case AppendFrame(lsn, end_lsn):
                cluster.monitor.accepted(self)
                assert (self._frame[0].lsn, self._frame[-1].end_lsn) == (lsn, end_lsn)
                for entry in self._frame:
                    disk.log.put(entry)
                self._queue(Sync())
            case AdvanceHighWatermark(lsn):
                cluster.monitor.advanced(self, lsn)
                self._answer()
            case Persist(record):
                self._queue(Keep(record))
            case TruncateLog(lsn):
                cluster.monitor.truncating(self, lsn)
                self._queue(Cut(lsn))
            case BeginEpoch(epoch, life):
                entry = disk.log.begin(epoch, life)
                cluster.monitor.epoch_begun(self, epoch)
                self._busy_with.insert(1, EpochBegun(epoch, entry.lsn, entry.end_lsn))
                self._queue(Sync())
            case Serve(epoch):
                cluster.monitor.serves(self, epoch)
            case StopServing():
                self._give_up_writes()
            case FetchSnapshot(peer):
                self._world.after(0.05 + 0.2 * self._world.random.random(), partial(self._fetched, self.life, peer))
            case KeepLog(lsn):
                self._keep_lsn = lsn
            case ProposeInSync(epoch, version, members):
                cluster.command(self.name, partial(cluster.control.set_in_sync, self.name, epoch, version, members))
            case ProposeLeave(member, version):
                cluster.command(self.name, partial(cluster.control.leave_in_sync, member, version))
            case AskElection(epoch, elsewhere=True):
                cluster.command(self.name, partial(cluster.control.asked_elsewhere, self.name, epoch))
            case AskElection(above_epoch):
                cluster.command(self.name, partial(cluster.control.asked, above_epoch))
            case RegisterStart(incarnation, starts, registered, went_back, durable_lsn):
                disk_says = ReplicaRecord(incarnation, starts, registered, went_back=went_back)
                cluster.command(self.name, partial(cluster.register, self, self.life, disk_says, durable_lsn))
            case Reopen(_, distrust):
                self.crash(power=False)
                self._world.after(0.1, partial(self._reopen, self.life, distrust))
            case Halt(reason):
                cluster.monitor.halted(self, reason)
            case _:
                assert_never(action)

    def _ship(self, action: Ship) -> None:
        log = self.disk.log
        if action.lsn < self.disk.start_lsn:
            return
        first = index = log.index_at(action.lsn)
        while index < len(log.ends) and log.ends[index] <= action.limit_lsn:
            index += 1
            if log.ends[index - 1] - action.lsn >= FRAME_BYTES:
                break
        if index == first and action.limit_lsn > action.lsn:
            index += 1
        end_lsn = log.ends[index - 1] if index > first else action.lsn
        frame = Frame(action.session, action.epoch, action.lsn, end_lsn, action.high_watermark)
        self._cluster.send(self.name, action.peer, frame, log.entries[first:index])
        if action.limit_lsn > action.lsn:
            self._busy_with.append(Shipped(action.peer, action.session, end_lsn))

    def _reopen(self, life: int, distrust: Distrust) -> None:
        if self.life == life and self.core is None:
            self.start(distrust)

    # Disk.

    def _queue(self, operation: Operation) -> None:
        queue = self.disk.queue
        if type(operation) is Sync and len(queue) > 1 and type(queue[-1]) is Sync:
            return
        queue.append(operation)
        if not self._operating:
            self._operate()

    def _operate(self) -> None:
        self._operating = True
        self.disk.syncing_to = self.disk.log.end_lsn
        latency = self._slow_disk * (0.5 + self._world.random.random())
        self._world.after(latency, partial(self._when_alive, self.life, self._operated))

    def _when_alive(self, life: int, step: Callable[[], None]) -> None:
        if self.life == life:
            self.when_awake(partial(self._if_alive, life, step))

    def _if_alive(self, life: int, step: Callable[[], None]) -> None:
        if self.life == life:
            step()

    def _operated(self) -> None:
        operation = self.disk.finish()
        self._operating = False
        if self.disk.queue:
            self._operate()
        match operation:
            case Sync():
                self.handle(LogDurable(self.disk.durable_lsn))
                self._answer()
            case Keep(record):
                self.handle(Persisted(record))
            case Cut(lsn):
                self._cluster.monitor.truncated()
                self.handle(Truncated(lsn))
            case _:
                assert_never(operation)

    def _fetched(self, life: int, peer: str) -> None:
        """A snapshot: everything the source had flushed, and nothing of the log here."""
        if self.life != life or self.core is None:
            return
        source = self._cluster.replicas[peer]
        unreachable = source.core is None or self._cluster.network.is_broken(peer, self.name)
        if unreachable or self.failing_snapshots or source.disk.flushed_lsn < self.core.log.high_watermark:
            self.handle(SnapshotFailed())
            return
        lsn = source.disk.flushed_lsn
        log = SimLog(source.disk.log.between(0, lsn))
        disk = self.disk
        disk.log, disk.start_lsn, disk.flushed_lsn = log, lsn, lsn
        disk.durable_lsn = disk.syncing_to = lsn
        self.handle(SnapshotInstalled(lsn, lsn, lsn, log.history()))

    # Control plane.

    def _heartbeat(self) -> None:
        if self.core is not None and self.incarnation:
            sent_at = self.clock
            record = self.core.record
            report = record.incarnation, record.start, self.core.log.high_watermark
            self._cluster.network.carry(
                self.name, CONTROL, partial(self._cluster.heartbeat, self, self.life, report, sent_at)
            )

    def viewed(self, view: ControlView) -> None:
        self.handle(ControlViewed(view))

    def leased(self, life: int, sent_at: float, view: ControlView) -> None:
        if self.life == life:
            valid_until = sent_at + self._cluster.options.lease_s
            self.handle(LeaseGranted(valid_until, view))

    def refused(self, life: int, reason: str) -> None:
        if self.life == life:
            self.handle(StartRefused(reason))

    def stream_broken(self, peer: str) -> None:
        self.handle(StreamBroken(peer))

    # Clients.

    def write(self, write: Write) -> None:
        """A producer's request. It is refused, or in the log and to be answered later."""
        core = self.core
        if core is None or not core.serving:
            write.refused()
            return
        entry = self.disk.log.append(core.epoch, write.payload, write.size)
        write.appended(core.epoch, entry)
        self._pending.append(write)
        self.handle(LogWritten(entry.end_lsn))
        self._queue(Sync())

    def _answer(self) -> None:
        """Acknowledge what has come far enough: the lease is asked now, after the fsync."""
        core = self.core
        if core is None or not self._pending:
            return
        waiting: deque[Write] = deque()
        for write in self._pending:
            reached = self.disk.durable_lsn if write.ack == "leader" else core.log.high_watermark
            if write.end_lsn > reached:
                waiting.append(write)
            elif core.may_answer(self.clock):
                self._cluster.monitor.acknowledged(self, write)
            else:
                write.unknown()
        self._pending = waiting

    def _give_up_writes(self) -> None:
        for write in self._pending:
            write.unknown()
        self._pending.clear()
