"""One replica of one shard as a pure state machine: events in, actions out. No I/O, no clock, no randomness.

``handle(event, now)`` takes one event and the monotonic time in
seconds, and returns the actions in the order in which they are to be done. The shell is bound to this:

- events come one at a time; actions that touch the disk (``Persist``, ``TruncateLog``, ``AppendFrame``, ``BeginEpoch``)
  take effect in the order given, and their events come in the order in which the disk finished them;
- every LSN is the end of an entry (or 0): frames are cut between entries, and recovery drops half an entry;
- after ``Halt`` or ``Reopen`` nothing more is done for this replica until it is opened again.

=====================  ====================================  =================================================
event                  when                                  what comes of it
=====================  ====================================  =================================================
(``start``)            opened, with ``Recovered``            ``Persist``
``ControlViewed``      the shard's control state came        ``RegisterStart``, ``Persist``, ``StopServing``,
                                                             ``ProposeLeave``, ``AskElection``,
                                                             ``AdvanceHighWatermark``
``LeaseGranted``       the control plane answered            ``may_answer`` holds longer; ``Serve``, ``AskElection``
``StartRefused``       ``RegisterStart`` was refused         ``Reopen``
``MessageReceived``    a message came                        ``Send``, ``AppendFrame``, ``TruncateLog``,
                                                             ``FetchSnapshot``, ``AdvanceHighWatermark``,
                                                             ``Serve``, ``BeginEpoch``, ``Reopen``, ``Halt``
``StreamBroken``       a connection ended                    a new hello, sooner than by silence
``LogWritten``         the leader appended                   ``Ship``
``LogDurable``         an fsync was done                     ``Send(Progress)``, ``AdvanceHighWatermark``,
                                                             ``Serve``
``LogRecycled``        old segments were recycled            ``Send(Rejoin)``
``Persisted``          ``Persist`` is done                   ``Send``: promise, hello, promise requests
``Truncated``          ``TruncateLog`` is done               ``Send(Hello)``
``EpochBegun``         ``BeginEpoch`` is done                ``Send(Welcome)``, ``Ship``
``SnapshotInstalled``  ``FetchSnapshot`` is done             ``AdvanceHighWatermark``, ``Send(Hello)``
``SnapshotFailed``     ``FetchSnapshot`` was given up        ``Send(Hello)``
``Shipped``            ``Ship`` is done                      ``Ship`` what came since
``StorageFailed``      the disk failed                       ``StopServing``, ``Halt``
``Tick``               every half ``heartbeat_s``            heartbeats, whatever is repeated,
                                                             ``ProposeInSync``, ``KeepLog``, ``AskElection``
=====================  ====================================  =================================================

The roles are values of ``role``; each is a small state machine in a module of its own::

    STARTING -> WAITING -> FOLLOWING <-> TAKING_OVER -> LEADING
                   ^-----------'--------------'------------'      (a higher epoch, or no longer chosen)
    any -> HALTED   (never left: the replica is opened again)

An epoch is led by one life of one process: a leader that restarts asks for a new epoch, because its followers may
hold bytes that it shipped and lost before its own fsync. Until its start is registered (see ``identity``) a replica
is WAITING: it promises nothing, follows nobody, leads nothing and answers nobody.

Not supported: more than one candidate at work in an epoch; the control plane chooses one.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import assert_never

from lsmq_coordinator.lives import UNCLAIMED

from .actions import AdvanceHighWatermark, AskElection, Distrust, Halt, Reopen, ReplicaAction, StopServing
from .candidate import Candidate
from .control import ControlView, ReplicaRecord, Timings
from .events import (
    ControlViewed,
    EpochBegun,
    LeaseGranted,
    LogDurable,
    LogRecycled,
    LogWritten,
    MessageReceived,
    Persisted,
    Recovered,
    ReplicaEvent,
    Shipped,
    SnapshotFailed,
    SnapshotInstalled,
    StartRefused,
    StorageFailed,
    StreamBroken,
    Tick,
    Truncated,
)
from .follower import Follower
from .identity import Registration, with_new_start
from .leader import Leader
from .lease import EpochLease
from .messages import (
    Frame,
    Hello,
    Progress,
    Promise,
    PromiseRefusal,
    PromiseRequest,
    Rejoin,
    ReplicaMessage,
    ReplicaSession,
    Stale,
    TakeNewIncarnation,
    TakeSnapshot,
    Welcome,
)
from .promises import PromiseDesk
from .pulling import FromSource
from .state import LogState, ReplicaState


class ReplicaRole(Enum):
    """What a replica is at the moment."""

    STARTING = "starting"  # its record is not yet persisted
    WAITING = "waiting"  # knows no leader, or must not follow it
    FOLLOWING = "following"
    TAKING_OVER = "taking_over"
    LEADING = "leading"
    HALTED = "halted"


class ReplicaCore:
    """The protocol of one replica. See the module's docstring for events, actions and the shell's duties."""

    def __init__(self, node: str, recovered: Recovered, timings: Timings | None = None) -> None:
        record, fresh = recovered.record, recovered.fresh_incarnation
        self._damaged = recovered.damaged or (record is not None and recovered.end_lsn < record.floor_lsn)
        if record is None:
            record = ReplicaRecord(fresh)
        elif self._damaged or recovered.went_back:
            record = replace(record, incarnation=fresh, starts=(), registered=0, went_back=recovered.went_back)
        log = LogState(recovered.log_start_lsn, recovered.applied_lsn, recovered.end_lsn, recovered.history)
        record = with_new_start(record, recovered.token)
        self._state = ReplicaState(node, (timings or Timings()).validate(), log, record)
        self._registration = Registration()
        self._desk = PromiseDesk()
        self._part: Follower | Candidate | Leader | None = None
        self._halted = False
        self._outdone_by = 0
        self._early_hellos: dict[str, Hello] = {}  # of followers that knew sooner who leads
        self._lease = EpochLease()

    def start(self, now: float) -> list[ReplicaAction]:
        """The first actions. Until the record is persisted the replica answers nobody."""
        state = self._state
        state.now = now
        state.persist(replace(state.record, floor_lsn=state.log.durable_lsn))
        return self._take_outbox()

    # What the shell may ask at any time.

    @property
    def node(self) -> str:
        return self._state.node

    @property
    def role(self) -> ReplicaRole:
        if self._halted:
            return ReplicaRole.HALTED
        match self._part:
            case None:
                return ReplicaRole.STARTING if self._state.persisted is None else ReplicaRole.WAITING
            case Follower():
                return ReplicaRole.FOLLOWING
            case Candidate():
                return ReplicaRole.TAKING_OVER
            case Leader():
                return ReplicaRole.LEADING
            case _:
                assert_never(self._part)

    @property
    def record(self) -> ReplicaRecord:
        return self._state.record

    @property
    def registered(self) -> bool:
        """Whether this start is the one that may act."""
        return self._registration.complete

    @property
    def epoch(self) -> int:
        """The highest epoch accepted."""
        return self._state.record.epoch

    @property
    def leader(self) -> str | None:
        """The leader of ``epoch``; it may not serve yet."""
        return self._state.record.leader

    @property
    def view(self) -> ControlView | None:
        return self._state.view

    @property
    def log(self) -> LogState:
        """To look at, not to touch."""
        return self._state.log

    @property
    def serving(self) -> bool:
        """Whether writes may be appended."""
        return isinstance(self._part, Leader) and self._part.serving

    @property
    def enough_in_sync(self) -> bool:
        """Whether quorum writes can be acknowledged; else they wait, and then get ``not_enough_replicas``."""
        return isinstance(self._part, Leader) and self._part.enough_in_sync(self._state)

    def followers(self) -> dict[str, int]:
        """On a leader: the other replicas and up to where each has reported its log durable."""
        return self._part.durable_lsns() if isinstance(self._part, Leader) else {}

    def may_answer(self, now: float) -> bool:
        """Whether the leader may acknowledge a write or answer a read, asked *after* the fsync or the read.

        The lease is of the same epoch, and runs out before anybody else can serve. A leader that was stopped and
        wakes up finds it run out.
        """
        part = self._part
        return isinstance(part, Leader) and part.serving and self._lease.holds(part.epoch, now)

    def may_read(self, now: float) -> bool:
        """Whether readers may be shown what lies below the high watermark: a leader that may answer, or a follower
        that heard of its leader lately."""
        part = self._part
        if isinstance(part, Follower):
            return part.puller.fresh(now, self._state.timings.replica_timeout_s)
        return self.may_answer(now)

    def may_show(self, now: float, *, found: bool) -> bool:
        """Whether a reader that is content with a follower may be shown what was read below the high watermark.

        Records that were ``found`` there are committed, and stay so whoever leads: a replica that lost its leader
        goes on showing them. That there are no more only :meth:`may_read` lets it say. An old leader is silent.
        """
        return self.may_read(now) or (found and isinstance(self._part, Follower | Candidate))

    # Events.

    def handle(self, event: ReplicaEvent, now: float) -> list[ReplicaAction]:
        """Take one event; returns what is to be done, in order."""
        if self._halted:
            return []
        state = self._state
        state.now = max(state.now, now)
        match event:
            case MessageReceived(sender, message):
                self._receive(sender, message)
            case LogDurable(lsn):
                if state.log.synced(lsn):
                    self._durable()
            case LogWritten(end_lsn):
                if isinstance(self._part, Leader):
                    state.log.append(end_lsn, state.log.history)
                    self._part.written(state)
            case Shipped(peer, session, end_lsn):
                self._shipped(peer, session, end_lsn)
            case ControlViewed(view):
                self._see(view)
            case LeaseGranted(_, view):
                self._see(view)
                if state.persisted is not None:
                    self._registration.settle(state, view)
                self._lease.granted(state, event)
                if isinstance(self._part, Leader):
                    self._part.advance(state)
            case StartRefused(reason):
                if not self._registration.complete or self._registration.forgotten:
                    state.emit(Reopen(reason, Distrust.WENT_BACK))
            case Persisted(record):
                state.persisted = record
                self._settle()
            case Truncated() | SnapshotFailed():
                state.log.busy = False
                self._settle(resume=True)
            case EpochBegun(epoch, lsn, end_lsn):
                self._begun(epoch, lsn, end_lsn)
            case SnapshotInstalled():
                self._installed(event)
            case LogRecycled(log_start_lsn):
                self._recycled(log_start_lsn)
            case StreamBroken(peer):
                self._broken(peer)
            case StorageFailed(reason):
                state.emit(Halt(reason))
            case Tick():
                self._tick()
            case _:
                assert_never(event)
        return self._take_outbox()

    def _take_outbox(self) -> list[ReplicaAction]:
        state = self._state
        actions, state.outbox = state.outbox, []
        for position, action in enumerate(actions):
            if isinstance(action, Halt | Reopen):
                actions = actions[: position + 1]
                if isinstance(self._part, Leader) and self._part.serving:
                    actions.insert(position, StopServing(self._part.epoch, action.reason))
                self._part, self._halted = None, True
                break
        return actions

    def _receive(self, sender: str, message: ReplicaMessage) -> None:
        state, part = self._state, self._part
        if state.persisted is None or not self._registration.complete:
            return
        match message:
            case Frame() | Welcome() | TakeSnapshot() | TakeNewIncarnation() | Rejoin():
                self._from_source(sender, message)
            case Progress():
                if isinstance(part, Leader) and message.epoch == part.epoch:
                    part.progress(state, sender, message)
                elif isinstance(part, Follower) and (message.epoch, sender) == (part.epoch, part.leader):
                    part.lent_to(state, message)
            case Hello():
                self._greeted(sender, message)
            case PromiseRequest():
                self._desk.receive(state, sender, message)
                self._settle()
            case Promise():
                if isinstance(part, Candidate) and message.epoch == part.epoch:
                    part.promised(state, sender, message)
            case PromiseRefusal():
                if isinstance(part, Candidate) and message.epoch == part.epoch:
                    part.refused(state, message)
            case Stale(epoch, leader, life):
                if epoch > state.record.epoch and leader != state.node:
                    state.bind(epoch, leader, life)
                    self._settle()
            case _:
                assert_never(message)

    def _from_source(self, sender: str, message: FromSource) -> None:
        part = self._part
        if isinstance(part, Follower) and sender == part.leader:
            part.from_leader(self._state, message)
        elif isinstance(part, Candidate):
            part.from_source(self._state, sender, message)

    def _greeted(self, sender: str, hello: Hello) -> None:
        state, part = self._state, self._part
        if hello.epoch > state.record.epoch:
            # Whoever says this was told of a newer epoch: whatever this replica leads is over.
            self._outdone_by = max(self._outdone_by, hello.epoch)
            if not hello.borrows:
                self._early_hellos[sender] = hello
            self._settle()
        elif hello.borrows:
            if isinstance(part, Follower) and (hello.epoch, sender) == (part.epoch, part.leader):
                part.lend(state, hello)
        elif isinstance(part, Leader):
            part.hello(state, sender, hello)
        elif isinstance(part, Candidate):
            if hello.epoch == part.epoch:
                part.hellos[sender] = hello
        elif part is None:
            self._early_hellos[sender] = hello

    def _durable(self) -> None:
        part = self._part
        if isinstance(part, Leader):
            part.advance(self._state)
        elif part is not None:
            part.durable(self._state)

    def _shipped(self, peer: str, session: ReplicaSession, end_lsn: int) -> None:
        if isinstance(self._part, Leader):
            self._part.shipped(self._state, peer, session, end_lsn)
        elif isinstance(self._part, Follower):
            self._part.shipped(self._state, session, end_lsn)

    def _recycled(self, log_start_lsn: int) -> None:
        self._state.log.trim(log_start_lsn)
        if isinstance(self._part, Leader):
            self._part.trimmed(self._state)

    def _broken(self, peer: str) -> None:
        if isinstance(self._part, Leader | Candidate):
            self._part.broken(self._state, peer)
        elif isinstance(self._part, Follower) and peer == self._part.leader:
            self._part.broken(self._state)

    def _begun(self, epoch: int, lsn: int, end_lsn: int) -> None:
        """The EPOCH entry is in the log, even if the epoch is over meanwhile."""
        state, part = self._state, self._part
        state.log.append(end_lsn, state.log.history.begin(epoch, lsn, state.record.life))
        if isinstance(part, Candidate) and part.epoch == epoch:
            self._part = leader = Leader(state, epoch, end_lsn, self._lease)
            for sender, hello in sorted(part.hellos.items()):
                leader.hello(state, sender, hello)

    def _installed(self, snapshot: SnapshotInstalled) -> None:
        """The snapshot has everything this log had, and more: its source's log begins beyond the end of this one."""
        state = self._state
        if snapshot.applied_lsn < state.log.high_watermark:
            state.emit(Halt(f"the snapshot ends at LSN {snapshot.applied_lsn}, before {state.log.high_watermark}"))
            return
        state.log = LogState(snapshot.log_start_lsn, snapshot.applied_lsn, snapshot.end_lsn, snapshot.history)
        state.emit(AdvanceHighWatermark(snapshot.applied_lsn))
        self._settle(resume=True)

    def _see(self, view: ControlView) -> None:
        state = self._state
        if state.view is not None and view.order <= state.view.order:
            return
        state.view = view
        self._settle()
        if isinstance(self._part, Leader):
            self._part.viewed(self._state)
        elif isinstance(self._part, Candidate):
            self._part.proceed(self._state)

    def _tick(self) -> None:
        self._settle()
        if self._part is not None:
            self._part.tick(self._state)

    # Roles.

    def _settle(self, *, resume: bool = False) -> None:
        """Be what record and view say. ``resume``: the log was cut or replaced, go on with it."""
        state = self._state
        if state.persisted is None:
            return
        self._registration.settle(state, state.view)
        if not self._registration.complete:
            self._become(None, "another start of this replica was registered")
            return
        if not self._is_itself():
            self._become(None, "this replica must leave the in-sync set first")
            return
        view = state.view
        if (
            view is not None
            and view.epoch > state.record.epoch
            and view.leader is not None
            and view.leading is not None
        ):
            state.bind(view.epoch, view.leader, view.leading)
        if not state.bound:
            self._become(None, f"epoch {state.record.epoch} of {state.record.leader} has come")
            return
        self._desk.answer(state)
        role = self._chosen_role()
        if role is None or type(self._part) not in role or self._part is None or self._part.epoch != state.record.epoch:
            self._become(role, "no longer the leader")
        elif resume and not isinstance(self._part, Leader):
            self._part.resume(state)

    def _chosen_role(self) -> tuple[type, ...] | None:
        state, view = self._state, self._state.view
        record = state.record
        if view is None or record.leader is None or self._outdone_by > record.epoch:
            return None
        same_epoch = view.epoch == record.epoch
        if record.leader != state.node:
            if same_epoch and view.leader == state.node and state.due("ask"):
                state.emit(AskElection(record.epoch))
            return (Follower,) if state.node in view.replicas or view.epoch < record.epoch else None
        if not same_epoch or view.leader != state.node:
            return None
        if view.listed(state.node) not in (UNCLAIMED, record.incarnation):
            return None
        elected = record.leading == view.leading == record.life
        if state.bound_here != record.epoch or not elected:
            if state.due("ask"):
                state.emit(AskElection(record.epoch))
            return None
        return (Candidate, Leader)

    def _is_itself(self) -> bool:
        """Whether the log is what the in-sync set takes it for; else ask to be taken out.

        An emptied disk may be filled again meanwhile. A damaged log is cut only when nothing counts on it any more:
        until then an operator may still save what lies behind the damage.
        """
        state, view = self._state, self._state.view
        if view is not None and view.lists_another(state.member):
            state.propose_leave()
            return not self._damaged
        if not self._damaged:
            return True
        if view is None:
            return False
        self._damaged = False
        state.truncate(state.log.end_lsn)
        return True

    def _become(self, role: tuple[type, ...] | None, reason: str) -> None:
        state = self._state
        if isinstance(self._part, Leader) and self._part.serving:
            state.emit(StopServing(self._part.epoch, reason))
        if isinstance(self._part, Leader | Candidate):
            state.bound_here = 0  # The EPOCH entry may be in the log: this epoch is not begun again.
        self._part = None
        if role is None or state.record.leader is None:
            return
        if Follower in role:
            self._part = Follower(state, state.record.epoch, state.record.leader)
        elif not state.log.busy:
            epoch = state.record.epoch
            hellos = {sender: hello for sender, hello in self._early_hellos.items() if hello.epoch == epoch}
            self._early_hellos.clear()
            self._part = Candidate(state, epoch, hellos)
