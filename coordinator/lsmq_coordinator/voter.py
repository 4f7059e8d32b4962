"""A voter: one thread in which Raft ticks, one that writes, and what the rest of the process may see of it.

The ticking thread never waits for the disk, and the writing one writes all that has come together meanwhile with one
sync: so signs of life leave whatever the disk does, and a slow disk makes elections slower, not impossible.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from lsmq import runtime
from lsmq.errors import AddressInUse

from .journal import Journal
from .raft_core import RaftCore
from .raft_frames import BadFrame
from .raft_kept import Restore
from .raft_membership import MARK, Electorate, unmarked, unwrapped
from .raft_messages import RaftMessage
from .raft_terms import MAX_COMMAND_BYTES, ProposalOutcome, RaftEntry, RaftRole, RaftTiming
from .raft_writer import RaftWriter
from .tls import Certificates

if TYPE_CHECKING:
    from .raft_transport import Life

#: Commands handed in and not yet in the log.
MAX_PROPOSALS = 1_024
#: Trouble with sockets, such as no free descriptor, is logged so often, however often it is met.
_LOG_EVERY_S = 60.0
#: The journal is compacted once it takes so much, or twice what its snapshot takes.
COMPACT_BYTES = 1 << 20

CommandCallback = Callable[[Any, ProposalOutcome], None]


@dataclass(frozen=True, slots=True)
class RaftStatus:
    """A voter's view. Roles are beliefs: only ``lease`` says until when they were known to be right."""

    role: RaftRole = RaftRole.FOLLOWER
    #: Address of the leader, None when none was heard lately.
    leader: str | None = None
    term: int = 0
    #: On a leader: ``runtime.monotonic()`` when it sent what a majority has answered. Else: when it heard the leader.
    lease: float = float("-inf")
    #: Leads, and has applied all that was committed before it led.
    ready: bool = False
    applied: int = 0
    commit_index: int = 0
    last_index: int = 0
    #: What the journal takes on disk, snapshot included.
    log_bytes: int = 0
    #: This voter and all others have caught up with a leader once; until then a lost disk is not noticed.
    whole: bool = False
    #: The last term whose leader is known to have resigned; 0 for none.
    resigned_term: int = 0
    #: The longest of the latest writes to this voter's disk, in seconds.
    sync_s: float = 0.0
    #: Who votes, by this voter's log; None before it runs. ``settled``: that is known to be committed.
    membership: Electorate | None = None
    settled: bool = False
    #: On a leader, addresses: who was heard lately; who of them has the log too, and who cannot follow a change of
    #: who votes, being of a release before.
    heard: frozenset[str] = frozenset()
    caught_up: frozenset[str] = frozenset()
    old: frozenset[str] = frozenset()


class Listener(Protocol):
    """Who uses a voter. All of it is called in the voter's thread and must not block."""

    def apply(self, command: bytes) -> Any:
        """A committed command. Deterministic, and never raises."""

    def capture(self) -> Callable[[], bytes]:
        """The state after the last command applied, as bytes. What is returned may be called in another thread."""

    def restore(self, content: bytes) -> None:
        """The state is to become what ``capture`` gave elsewhere."""

    def status_changed(self, status: RaftStatus) -> None:
        """Role, leader, term or readiness changed."""

    def failed(self, error: BaseException) -> None:
        """The voter has stopped for good."""


class Voter:
    """Addresses are ``host:port``. ``configured``, which must be the same on all voters, counts until the journal says
    who votes."""

    def __init__(
        self,
        address: str,
        configured: Electorate,
        journal: Journal,
        keys: Sequence[bytes],
        listener: Listener,
        timing: RaftTiming,
        *,
        bind: str | None = None,
        tls: Certificates | None = None,
    ) -> None:
        """Listens at ``bind``, else at its own address. Owns the journal from here on. Raises ``AddressInUse``,
        ``JournalFailed``."""
        # With it come pysyncobj and cryptography: 8 MB of memory, which a node without a cluster does not need.
        from .raft_transport import RaftTransport

        self._journal, self._listener, self._timing = journal, listener, timing
        self._stopping, self._resigning = runtime.Event(), runtime.Event()
        self._failure: BaseException | None = None
        self.status = RaftStatus()
        loaded = journal.take_loaded()
        self._restored = None if loaded.snapshot is None else unwrapped(loaded.snapshot)[1]
        #: Handed in from any thread, taken by the voter's: :attr:`_lock` guards both.
        self._proposals: deque[tuple[bytes, CommandCallback]] = deque()
        self._closed = False
        self._lock = runtime.Lock()
        self._told_at = float("-inf")
        #: Addresses of voters that the log need not know of. Replaced as a whole, from any thread.
        self._met: frozenset[str] = frozenset()
        #: Who waits for the entry at an index, with its term.
        self._waiting: dict[int, tuple[int, CommandCallback]] = {}
        # Its own randomness: it draws in a thread beside programs that count on the sequence of the module's.
        self._core = RaftCore(address, configured, loaded, timing, runtime.Random(), runtime.monotonic())
        # Its life is durable before anybody is told of it.
        writes, number = self._core.take_writes()
        began = runtime.monotonic()
        try:
            journal.write(writes, self._core.kept.commit)
        except BaseException:
            journal.close()
            raise
        self._core.written(number, runtime.monotonic() - began, runtime.monotonic())
        try:
            known = self._known = frozenset(self._core.peers)
            self._transport = RaftTransport(address, known, bind or address, keys, timing.reconnect_s, self, tls)
        except Exception as error:
            journal.close()
            raise AddressInUse(
                f"cannot listen for Raft at {bind or address}: is another process using the port?",
                address=bind or address,
            ) from error
        self._writer = RaftWriter(journal, self._transport.wake)
        self._thread = runtime.Thread(target=self._run, name="raft", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Blocks until both threads have ended and files and ports are closed."""
        self._stopping.set()
        self._wake()
        self._thread.join()

    def resign(self) -> None:
        """Cease to lead, soon: the voter's thread does it."""
        self._resigning.set()
        self._wake()

    def meet(self, addresses: frozenset[str]) -> None:
        """Let these connect too, and connect to them: they vote, or are to, and the log may not know it yet."""
        self._met = addresses
        self._wake()

    def propose(self, command: bytes, callback: CommandCallback) -> None:
        """Append a command if this voter leads. ``callback`` runs in the voter's thread, or at once; perhaps never."""
        if not 0 < len(command) <= MAX_COMMAND_BYTES:
            raise ValueError(f"a command of {len(command)} bytes; the limit is {MAX_COMMAND_BYTES}")
        with self._lock:
            outcome = None
            if self._closed or self.status.role is not RaftRole.LEADER:
                outcome = ProposalOutcome.NOT_LEADER
            elif len(self._proposals) >= MAX_PROPOSALS:
                outcome = ProposalOutcome.BUSY
            else:
                self._proposals.append((command, callback))
        if outcome is not None:
            callback(None, outcome)
        else:
            self._wake()

    def _wake(self) -> None:
        with self._lock:
            if not self._closed:
                self._transport.wake()

    # The thread

    def _run(self) -> None:
        try:
            self._writer.start()
            if self._restored is not None:
                self._listener.restore(self._restored)
                self._restored = None
            while not self._stopping.is_set():
                self._step()
                self._poll(max(0.0, self._core.wake_at() - runtime.monotonic()))
        except BaseException as error:
            self._failure = error
        for end in (self._writer.stop, self._close):
            try:
                end()
            except BaseException as error:  # What came first says more; it must be told whatever comes after.
                self._failure = self._failure or error
        if self._failure is not None:
            self._listener.failed(self._failure)

    def _close(self) -> None:
        with self._lock:
            self._closed = True
            self._proposals.clear()
            self._transport.close()

    def _poll(self, timeout: float) -> None:
        try:
            self._transport.poll(timeout)
        except (OSError, BadFrame) as error:
            now = runtime.monotonic()
            if now - self._told_at >= _LOG_EVERY_S:
                self._told_at = now
                logging.getLogger(__name__).error("sockets between voters: %s", error, exc_info=error)
            runtime.sleep(self._timing.tick_s)

    def _step(self) -> None:
        core, now = self._core, runtime.monotonic()
        for number, took_s in self._writer.take_done():
            core.written(number, took_s, now)
        if self._resigning.is_set():
            self._resigning.clear()
            core.resign(now)
        self._take_proposals()
        core.tick(now)
        self._apply()
        self._look_round()
        for peer, message in core.take_messages():
            self._transport.say(peer, message)
        self._keep()
        writes, number = core.take_writes()
        if writes:
            self._writer.write(writes, number, min(core.kept.commit, core.kept.durable))
        self._publish(now)

    def _take_proposals(self) -> None:
        with self._lock:
            proposals = list(self._proposals)
            self._proposals.clear()
        for command, callback in proposals:
            if self._core.leading is None:
                callback(None, ProposalOutcome.NOT_LEADER)
                continue
            unable = command.startswith(MARK) and self._transport.old
            placed = None if unable else self._core.propose(command)
            if placed is None:
                callback(None, ProposalOutcome.BUSY)
            else:
                index, term = placed
                self._waiting[index] = term, callback

    def _apply(self) -> None:
        for item in self._core.kept.take_committed():
            match item:
                case Restore(index, content):
                    self._listener.restore(content)
                    for covered in [waiting for waiting in self._waiting if waiting <= index]:
                        self._waiting.pop(covered)[1](None, ProposalOutcome.UNKNOWN)
                case RaftEntry(index, term, command):
                    result = self._listener.apply(unmarked(command)) if command else None
                    expected, callback = self._waiting.pop(index, (0, None))
                    if callback is not None and expected == term:
                        callback(result, ProposalOutcome.APPLIED)
                    elif callback is not None:
                        callback(None, ProposalOutcome.DISCARDED)

    def _look_round(self) -> None:
        """Be connected with whom the log, or somebody, says to vote."""
        core = self._core
        known = (frozenset(core.peers) | self._met) - {core.name}
        if known != self._known:
            self._known = known
            self._transport.set_peers(known)
        if core.membership.number > 0 and self._transport.old:
            self._transport.part_from_old()

    def _keep(self) -> None:
        """Let a snapshot take the place of a journal that has grown, and offer one to a voter that needs it."""
        core, kept = self._core, self._core.kept
        offered = self._writer.take_encoded()
        if offered is not None and core.leading is not None:
            core.leading.offer(*offered)
        wanted = core.leading is not None and core.leading.wants_snapshot()
        limit = max(COMPACT_BYTES, 2 * self._journal.snapshot_bytes)
        grown = self._journal.size_bytes > limit and not self._writer.compacting
        if not grown and not (wanted and not self._writer.encoding):
            return
        snapshot = kept.snapshot(self._listener.capture())
        if wanted and not self._writer.encoding:
            self._writer.encode(snapshot)
        if grown:
            self._writer.compacting = True
            kept.compact(snapshot)

    def _publish(self, now: float) -> None:
        core, kept = self._core, self._core.kept
        leader = core.leader
        if core.leading is None and now - core.leader_heard > max(self._timing.election_max_s, core.pace.shortest_s):
            leader = None
        former = self.status
        self.status = RaftStatus(
            role=core.role,
            leader=leader,
            term=core.term,
            lease=core.lease(now),
            ready=core.ready,
            applied=kept.applied,
            commit_index=kept.commit,
            last_index=core.log.last_index,
            log_bytes=self._journal.size_bytes,
            whole=kept.state.whole,
            resigned_term=core.resigned_term,
            sync_s=core.pace.sync_s,
            membership=core.membership,
            settled=core.settled,
            heard=frozenset() if core.leading is None else core.leading.heard_since(now - core.patience_s),
            caught_up=frozenset() if core.leading is None else core.leading.caught_up(now - core.patience_s),
            old=self._transport.old,
        )
        if _belief(former) != _belief(self.status):
            self._listener.status_changed(self.status)

    # Peers: called by the transport, in the voter's thread

    def life(self) -> Life:
        return self._core.kept.state.life

    def membership(self) -> Electorate:
        return self._core.membership

    def known(self, peer: str) -> Life | None:
        return self._core.kept.state.lives.get(peer)

    def connected(self, peer: str, life: Life, told: Life | None) -> bool:
        return self._core.connected(peer, life, told)

    def received(self, peer: str, message: RaftMessage) -> None:
        self._core.receive(peer, message, runtime.monotonic())

    def lost(self, peer: str) -> None:
        self._core.lost(peer, runtime.monotonic())


def _belief(status: RaftStatus) -> tuple[RaftRole, str | None, int, bool]:
    return status.role, status.leader, status.term, status.ready
