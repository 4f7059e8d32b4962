"""The agreed state on a voter, for asyncio: commands go in, immutable states come out.

The log is applied in the voter's thread. Snapshots and results cross into the event loop by
``call_soon_threadsafe``, in order: when :meth:`RaftControl.submit` returns, callbacks have seen its effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgpack

from lsmq import runtime
from lsmq.errors import AddressInUse, InvalidRequest, TimedOut, Unavailable

from .auth import ClusterSecret
from .commands import apply
from .errors import ControlStopped, NoControlLeader, NotControlLeader
from .journal import FULL, OS_DISK, Journal, JournalDisk, JournalFailed
from .known_voters import FILE as KNOWN_VOTERS
from .known_voters import KnownVoters
from .parts import Part
from .raft_following import Diverged
from .raft_membership import MARK, Electorate, marked
from .raft_terms import MAX_COMMAND_BYTES, ProposalOutcome, RaftRole, RaftTiming
from .state import EMPTY, ClusterState
from .tls import Certificates
from .voter import RaftStatus, Voter
from .voter_changes import CANCEL, REPLACE

_log = logging.getLogger(__name__)

StateCallback = Callable[[ClusterState], None]
StatusCallback = Callable[[RaftStatus], None]
MAX_PENDING = 512
_LOOK_S = 0.01
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_STEADY_S = 30.0
#: A voter that stopped for want of room begins again when its directory takes this.
_ROOM_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """How a node votes, once it does. ``voters`` maps node ids to ``host:port`` and must be the same on all of them: it
    says who votes until that is changed (:mod:`~.raft_membership`)."""

    node: str
    voters: Mapping[str, str]
    directory: Path
    secret: ClusterSecret
    #: Where to listen, when not at the node's own address.
    bind: str | None = None
    #: ``host:port`` at which others reach a node that is none of ``voters``, should it take a voter's place.
    address: str | None = None
    timing: RaftTiming = RaftTiming()  # noqa: RUF009
    disk: JournalDisk = OS_DISK
    #: What voters show each other; None where nothing is encrypted.
    tls: Certificates | None = None

    def validate(self) -> None:
        """Raises ``InvalidRequest`` naming what is wrong."""
        if self.node not in self.voters and self.address is None:
            raise InvalidRequest(f"node {self.node!r} is none of the voters {sorted(self.voters)}")
        if len(self.voters) not in (1, 3, 5):
            raise InvalidRequest(f"there are {len(self.voters)} voters; 1, 3 or 5 make sense")
        if len(set(self.voters.values())) != len(self.voters):
            raise InvalidRequest(f"two voters have the same address: {dict(self.voters)}")


class RaftControl:
    """A node's vote: a voter, from when the node has one until another node takes it. Used from one event loop;
    ``state`` and ``status`` may be read from any thread."""

    def __init__(self, config: RaftConfig) -> None:
        config.validate()
        self.config = config
        #: What the leader adds to a command before it goes into the log.
        self.testify: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda command: command
        #: The latest state applied here. A new object with each change.
        self.state: ClusterState = EMPTY
        #: Who votes, as this node knows it: as configured, as ``voters.json`` says, or as it was told since.
        self.membership = Electorate(0, MappingProxyType(dict(config.voters)))
        #: The internal URLs of those, where that was changed.
        self.urls: Mapping[str, str] = {}
        self._voter: Voter | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: BaseException | None = None
        #: It failed, or was given a vote, or lost it.
        self._moved = asyncio.Event()
        self._on_change: list[StateCallback] = []
        self._on_status: list[StatusCallback] = []
        self._announced = EMPTY
        self._announcing = False
        self._pending: set[asyncio.Future[Any]] = set()

    async def start(self) -> None:
        """Opens the log and listens, where this node votes. Raises ``CorruptFile``, ``DataDirectoryLocked``,
        ``AddressInUse``, and ``ControlStopped`` where the disk fails.

        Where the disk has no room the voter begins as one that has stopped: :meth:`keep` opens it.
        """
        self._loop = asyncio.get_running_loop()
        known = KnownVoters.load(self.config.directory)
        if known is not None and known.membership.number > self.membership.number:
            self.membership, self.urls = known.membership, known.urls
        if known is not None and self.membership.voters != self.config.voters:
            _log.warning(
                "cluster.voters of the configuration names %s, and %s vote since that was changed: the "
                "configuration counts no more, and may be changed to say the same",
                sorted(self.config.voters),
                sorted(self.membership.voters),
            )
        if not self.seated:
            return
        try:
            self._voter = await asyncio.to_thread(self._open)
        except Exception as error:
            if isinstance(error, JournalFailed) and not _wants_room(error):
                raise ControlStopped(f"{error}; start the node again when the disk is repaired") from error
            if not _wants_room(error):
                raise
            self._failure = error
        else:
            self._voter.start()

    def _open(self) -> Voter:
        config = self.config
        # A configuration that is known to count no more says nothing: the log will.
        counts = self.membership.number == 0 and config.node in config.voters
        voter = Voter(
            self.address,
            Electorate(0, MappingProxyType(dict(config.voters if counts else {}))),
            Journal(config.directory / "raft", config.disk),
            config.secret.keys("raft"),
            _Crossing(self),
            config.timing,
            bind=config.bind,
            tls=config.tls,
        )
        voter.meet(self.membership.addresses)
        return voter

    async def keep(self, part: Part) -> None:
        """Have the voter run where the node has a vote, until cancelled: where it stopped for what passes, such as a
        full disk, it is opened again, with what is durable of it, once its directory takes writes again. Else it has
        stopped for good.

        While it is stopped the node follows no decision, and its heartbeats say so.
        """
        pause_s = _FIRST_PAUSE_S
        while True:
            self._moved.clear()
            began = runtime.monotonic()
            while (failure := self._failure) is None and self.seated == (self._voter is not None):
                part.running() if self.seated else part.gone()
                await self._moved.wait()
                self._moved.clear()
            if not self.seated:
                await self._leave()
                continue
            if failure is None:
                await self._reopen()
                continue
            if not _passes(failure):
                part.stopped(f"{failure}; the node must be restarted when this is repaired")
                await asyncio.Event().wait()
            if runtime.monotonic() - began > _STEADY_S:
                pause_s = _FIRST_PAUSE_S
            part.retrying(str(failure))
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            await self._reopen()

    async def _leave(self) -> None:
        """Vote no more. The journal stays: should the node vote again, it has promised what it has."""
        voter, self._voter, self._failure = self._voter, None, None
        if voter is not None:
            await asyncio.to_thread(voter.stop)
            _log.info("node %s votes no more: %s do", self.config.node, sorted(self.membership.voters))
        self._announce_status(self.status)

    async def _reopen(self) -> None:
        try:
            voter = await asyncio.to_thread(self._open_where_there_is_room)
        except Exception as error:  # Whatever it is, it stops this part and no other.
            self._failure = error
            return
        self._voter, self._failure = voter, None
        voter.start()
        self._announce_status(self.status)

    def _open_where_there_is_room(self) -> Voter:
        take_room(self.config.directory / "raft")
        return self._open()

    async def stop(self) -> None:
        """Ends the thread; closes files and ports. Commands that wait become unknown (``TimedOut``)."""
        voter, self._voter = self._voter, None
        if voter is not None:
            await asyncio.to_thread(voter.stop)
        for future in list(self._pending):
            if not future.done():
                future.set_exception(_unknown("the node stopped"))

    # Who votes

    @property
    def address(self) -> str:
        """``host:port`` at which others reach this node's voter."""
        config, known = self.config, self.membership
        found = known.voters.get(config.node) or known.learners.get(config.node) or config.voters.get(config.node)
        return found or config.address or ""

    @property
    def seated(self) -> bool:
        """Whether a voter is to run here: the node votes, or learns to."""
        return self.membership.has(self.config.node)

    @property
    def has_voted(self) -> bool:
        """Whether its directory holds what it promised, or who votes instead of whom its configuration names."""
        directory = self.config.directory
        return (directory / "raft" / "JOURNAL").exists() or (directory / KNOWN_VOTERS).exists()

    @property
    def votes(self) -> bool:
        return self.config.node in self.membership.voters

    def learned(self, membership: Electorate, urls: Mapping[str, str]) -> None:
        """The cluster has agreed on who votes, and this is where they are."""
        if membership.number <= self.membership.number:
            return
        self.membership, self.urls = membership, {**urls}
        try:
            KnownVoters(membership, self.urls).store(self.config.directory)
        except OSError as error:
            _log.warning("who votes since now could not be noted: %s", error)
        if self._voter is not None:
            self._voter.meet(membership.addresses)
        self._moved.set()

    # What is known

    @property
    def status(self) -> RaftStatus:
        return self._voter.status if self._voter is not None else RaftStatus()

    @property
    def failure(self) -> BaseException | None:
        """Why the voter stopped by itself; None while it runs."""
        return self._failure

    @property
    def is_leader(self) -> bool:
        """Leads as far as it knows, and has applied all that was committed before."""
        return self._failure is None and self.status.ready

    @property
    def leader(self) -> str | None:
        """Node id of the leader; None when none was heard lately."""
        status = self.status
        named = (status.membership or self.membership, self.membership, Electorate(0, self.config.voters))
        ids = ((id, address) for known in named for id, address in (*known.voters.items(), *known.learners.items()))
        return next((id for id, address in ids if address == status.leader), None)

    @property
    def lease(self) -> float:
        """``runtime.monotonic()`` of the last moment at which, on the leader, a majority is known to have followed it;
        on a follower, when it heard the leader. Being leader never authorises a data write: the epoch does."""
        return self.status.lease if self._failure is None else float("-inf")

    def on_change(self, callback: StateCallback) -> Callable[[], None]:
        """Call back in the loop with each new state; states in quick succession may be skipped. Returns the end."""
        return _registered(self._on_change, callback)

    def on_status(self, callback: StatusCallback) -> Callable[[], None]:
        """Call back in the loop when role, leader, term or readiness changed. Returns the end."""
        return _registered(self._on_status, callback)

    # Commands

    async def submit(self, command: Mapping[str, Any], timeout: float = 5.0) -> dict[str, Any]:
        """The result of a command, once it is committed and applied here. Only the leader takes commands.

        A ``request_id`` is added when there is none. Raises ``NotControlLeader`` or ``NoControlLeader`` when
        nothing was done, ``TimedOut`` when the outcome is unknown: the command may still apply; sending it again
        with the same ``request_id`` is safe.
        """
        earlier = self.state.results.get(command.get("request_id", ""))
        if earlier is not None and command.get("op") in (REPLACE, CANCEL) and self.is_leader:
            return {**earlier, "repeated": True}
        return await self._propose(self.testify(command), timeout)

    async def change_voters(self, membership: Electorate, timeout: float = 5.0) -> dict[str, Any]:
        """Have the cluster agree on who votes from now on. For the overseer: see :meth:`submit`."""
        return await self._propose({"op": "set_voters", "membership": membership.to_dict()}, timeout)

    async def _propose(self, command: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        packed = pack_command(command)
        if command.get("op") == "set_voters":
            packed = marked(packed)
        voter = self._voter
        if self._failure is not None or voter is None or self._loop is None:
            raise ControlStopped(f"the voter {self.config.node!r} has stopped: {self._failure or 'not running'}")
        if len(self._pending) >= MAX_PENDING:
            raise Unavailable(f"{MAX_PENDING} control commands are waiting, the most there may be", limit=MAX_PENDING)
        loop, future = self._loop, self._loop.create_future()
        self._pending.add(future)

        def decided(result: Any, outcome: ProposalOutcome) -> None:
            _post(loop, _resolve, future, result, outcome)

        try:
            voter.propose(packed, decided)
            async with asyncio.timeout(timeout):
                result, outcome = await future
        except TimeoutError:
            raise _unknown(f"not committed within {timeout} s") from None
        finally:
            self._pending.discard(future)
        match outcome:
            case ProposalOutcome.APPLIED:
                assert isinstance(result, dict)
                return result
            case ProposalOutcome.BUSY if packed.startswith(MARK):
                raise Unavailable(
                    "who votes cannot be changed at this moment: the last change is not agreed on yet, or fewer than a "
                    "majority of those who would vote have all of the log; send it again later"
                )
            case ProposalOutcome.BUSY:
                raise Unavailable(
                    "too many control commands are waiting, or their disk is too slow; send it again later"
                )
            case ProposalOutcome.UNKNOWN:
                raise _unknown("this voter got a snapshot instead of the log")
            case _:
                raise self._no_leader()

    async def confirmed_version(self, timeout: float = 2.0) -> int:
        """A version that all which was committed before the call is part of: a majority has followed this leader since.

        Raises ``NotControlLeader`` or ``NoControlLeader`` when this voter does not lead, or not for sure.
        """
        asked, term = runtime.monotonic(), self.status.term
        while self.is_leader and self.status.term == term:
            version = self.state.version
            if self.lease >= asked:
                return version
            if runtime.monotonic() - asked > timeout:
                break
            await asyncio.sleep(_LOOK_S)
        raise self._no_leader()

    def resign(self) -> None:
        """Cease to lead, if this voter does, and leave the next election to the others. Takes a moment."""
        if self._voter is not None:
            self._voter.resign()

    def _no_leader(self) -> Unavailable:
        leader = self.leader
        if leader is None or leader == self.config.node:
            return NoControlLeader(
                "no leader of the control plane is known; an election takes under a second, and a majority "
                "of the voters: lsmq status says who does not answer"
            )
        return NotControlLeader(f"node {leader!r} leads the control plane", leader=leader)

    # Called in the loop

    def _announce(self) -> None:
        self._announcing = False
        state = self.state
        if state is not self._announced:
            self._announced = state
            for callback in list(self._on_change):
                callback(state)

    def _announce_status(self, status: RaftStatus) -> None:
        for callback in list(self._on_status):
            callback(status)

    def _fail(self, error: BaseException) -> None:
        self._moved.set()
        for future in list(self._pending):
            if not future.done():
                future.set_exception(_unknown(str(error)))
        self._announce_status(self.status)


class _Crossing:
    """Lives in the thread of one voter and hands over to the loop. A voter that is opened again applies its log from
    the beginning, which shows nobody an older state."""

    def __init__(self, control: RaftControl) -> None:
        self._control = control
        self._state = EMPTY

    def apply(self, command: bytes) -> dict[str, Any]:
        try:
            decoded = msgpack.unpackb(command, strict_map_key=False)
        except ValueError as error:
            decoded = {"error": str(error)}
        state, result = apply(self._state, decoded if isinstance(decoded, dict) else {})
        self._become(state)
        return result

    def capture(self) -> Callable[[], bytes]:
        return self._state.encode

    def restore(self, content: bytes) -> None:
        state = ClusterState.decode(content)
        if self._state.bootstrapped and self._state.mark != state.mark:
            raise Diverged(f"the leader's state is of mark {state.mark!r}, this voter's of {self._state.mark!r}")
        self._become(state)

    def _become(self, state: ClusterState) -> None:
        control, changed = self._control, state.version != self._state.version
        self._state = state
        if state.version < control.state.version:
            return
        control.state = state
        if changed and not control._announcing:
            control._announcing = True
            _post(control._loop, control._announce)

    def status_changed(self, status: RaftStatus) -> None:
        _post(self._control._loop, self._control._announce_status, status)

    def failed(self, error: BaseException) -> None:
        self._control._failure = error
        _post(self._control._loop, self._control._fail, error)


def pack_command(command: Mapping[str, Any]) -> bytes:
    """The command as the log holds it. Raises ``InvalidRequest``."""
    try:
        packed: bytes = msgpack.packb({"request_id": runtime.token_hex(16), **command})
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(f"a control command must be plain values: {error}") from error
    if len(packed) > MAX_COMMAND_BYTES:
        raise InvalidRequest(f"a control command of {len(packed)} bytes; the limit is {MAX_COMMAND_BYTES}")
    return packed


def _passes(failure: BaseException) -> bool:
    """Whether what stopped the voter may pass by itself, leaving what is on the disk as good as it was.

    An address in use was this voter's a moment ago: without descriptors nothing can listen there either.
    """
    return isinstance(failure, AddressInUse) or _wants_room(failure)


def _wants_room(failure: BaseException | None) -> bool:
    """Whether it comes of a full disk, or of a process that has no descriptor left."""
    while failure is not None:
        if isinstance(failure, OSError) and failure.errno in FULL:
            return True
        failure = failure.__cause__
    return False


def take_room(directory: Path) -> None:
    """Raises ``OSError`` where the directory does not take what a voter needs to go on for a while."""
    directory.mkdir(parents=True, exist_ok=True)
    probe = directory / "PROBE"
    try:
        with open(probe, "wb", buffering=0) as file:
            written = file.write(bytes(_ROOM_BYTES))
            os.fsync(file.fileno())
        if written < _ROOM_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(probe))
    finally:
        probe.unlink(missing_ok=True)


def _unknown(why: str) -> TimedOut:
    return TimedOut(f"the outcome of the control command is unknown ({why}); repeat it with the same request_id")


def _resolve(future: asyncio.Future[Any], result: Any, outcome: ProposalOutcome) -> None:
    if not future.done():
        future.set_result((result, outcome))


def _post(loop: asyncio.AbstractEventLoop | None, callback: Callable[..., None], *arguments: Any) -> None:
    # A loop that is closed has nobody left who waits.
    with contextlib.suppress(RuntimeError):
        if loop is not None:
            loop.call_soon_threadsafe(callback, *arguments)


def _registered(callbacks: list[Any], callback: Any) -> Callable[[], None]:
    callbacks.append(callback)

    def end() -> None:
        with contextlib.suppress(ValueError):
            callbacks.remove(callback)

    return end


__all__ = ["RaftConfig", "RaftControl", "RaftStatus", "RaftTiming", "RaftRole"]
