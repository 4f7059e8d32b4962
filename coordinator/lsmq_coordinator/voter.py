"""A voter: the thread in which Raft ticks, and what the rest of the process may see of it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from lsmq.errors import AddressInUse

from .journal import Journal
from .raft import Raft, outcome_of
from .raft_messages import BadFrame, majority_moment
from .raft_terms import Outcome, RaftTiming, Role

MAX_COMMAND_BYTES = 256 << 10

Callback = Callable[[Any, Outcome], None]


@dataclass(frozen=True, slots=True)
class RaftStatus:
    """A voter's view. Roles are beliefs: only ``lease`` says until when they were known to be right."""

    role: Role = Role.FOLLOWER
    #: Address of the leader, None when none was heard lately.
    leader: str | None = None
    term: int = 0
    #: On a leader: ``time.monotonic()`` when it sent what a majority has answered. Else: when it heard the leader.
    lease: float = float("-inf")
    #: Leads, and has applied all that was committed before it led.
    ready: bool = False
    applied: int = 0
    commit_index: int = 0
    last_index: int = 0
    log_bytes: int = 0
    #: This voter and all others have caught up with a leader once; until then a lost disk is not noticed.
    whole: bool = False


class Listener(Protocol):
    """Who uses a voter. All of it is called in the voter's thread and must not block."""

    def apply(self, command: bytes) -> Any:
        """A committed command. Deterministic, and never raises."""

    def status_changed(self, status: RaftStatus) -> None:
        """Role, leader, term or readiness changed."""

    def failed(self, error: BaseException) -> None:
        """The voter has stopped for good."""


class Voter:
    """One voter: a thread that ticks. Addresses are ``host:port``; all voters must be given the same ones."""

    def __init__(
        self,
        address: str,
        voters: list[str],
        journal: Journal,
        key: bytes,
        listener: Listener,
        timing: RaftTiming,
        *,
        bind: str | None = None,
    ) -> None:
        """Listens at ``bind``, else at its own address. Raises ``AddressInUse``. Owns the journal from here on."""
        self._journal, self._listener, self._timing = journal, listener, timing
        self._count = len(voters)
        self._stopping, self._resigning = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._closed = False
        self._failure: BaseException | None = None
        self.status = RaftStatus()
        others = [voter for voter in voters if voter != address]
        try:
            raft = Raft.listening(address, others, bind or address, journal, key, timing, self._apply)
        except Exception as error:
            journal._destroy()
            raise AddressInUse(
                f"cannot listen for Raft at {bind or address}: is another process using the port?",
                address=bind or address,
            ) from error
        self._raft = raft
        self._thread = threading.Thread(target=self._run, name="raft", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Blocks until the thread has ended and files and ports are closed."""
        self._stopping.set()
        self._thread.join()

    def resign(self) -> None:
        """Cease to lead, soon: the voter's thread does it."""
        self._resigning.set()

    def propose(self, command: bytes, callback: Callback) -> None:
        """Append a command if this voter leads. ``callback`` runs in the voter's thread, perhaps never."""
        if len(command) > MAX_COMMAND_BYTES:
            raise ValueError(f"a command of {len(command)} bytes; the limit is {MAX_COMMAND_BYTES}")

        def answered(result: Any, reason: int) -> None:
            callback(result, outcome_of(reason))

        with self._lock:
            if self._closed or self._raft.role is not Role.LEADER:
                callback(None, Outcome.NOT_LEADER)
                return
            self._raft.propose(command, answered)

    def _apply(self, command: bytes) -> Any:
        try:
            return self._listener.apply(command)
        except Exception as error:
            self._failure = error
            raise

    def _run(self) -> None:
        last = time.monotonic()
        try:
            while not self._stopping.is_set() and self._failure is None:
                self._journal.flush()
                if time.monotonic() - last > self._timing.election_min_s / 2:
                    # This process was paused. Hear what the others said meanwhile before calling an election.
                    self._raft._poller.poll(0)
                last = time.monotonic()
                self._tick()
                if self._resigning.is_set():
                    self._resigning.clear()
                    self._raft.resign(self._timing.aside_s)
                self._publish()
        except BaseException as error:
            self._failure = error
        finally:
            with self._lock:
                self._closed = True
                self._raft._doDestroy()
                self._raft.close_pipe()
            if self._failure is not None:
                self._listener.failed(self._failure)

    def _tick(self) -> None:
        try:
            self._raft.doTick(self._timing.tick_s)
        except (OSError, BadFrame):
            # A socket's trouble, such as no free descriptor. The log's own failures are of other kinds.
            logging.getLogger(__name__).exception("raft tick")
            time.sleep(self._timing.tick_s)

    def _publish(self) -> None:
        raft, now = self._raft, time.monotonic()
        role, term, applied = raft.role, raft.raftCurrentTerm, raft.raftLastApplied
        leader = raft._getLeader()
        lease = raft.transport.leader_heard
        if role is Role.LEADER:
            moments = [stamp for at, stamp in raft.transport.acknowledged.values() if at == term]
            lease = majority_moment(now, moments, self._count)
        elif now - lease > self._timing.election_max_s:
            leader = None
        former = self.status
        self.status = RaftStatus(
            role=role,
            leader=None if leader is None else leader.address,
            term=term,
            lease=lease,
            ready=role is Role.LEADER and self._journal.term_at(applied) == term,
            applied=applied,
            commit_index=raft.raftCommitIndex,
            last_index=self._journal.last_index,
            log_bytes=self._journal.size_bytes,
            whole=self._journal.whole,
        )
        if _belief(former) != _belief(self.status):
            self._listener.status_changed(self.status)


def _belief(status: RaftStatus) -> tuple[Role, str | None, int, bool]:
    return status.role, status.leader, status.term, status.ready
