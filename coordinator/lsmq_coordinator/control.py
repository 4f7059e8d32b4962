"""The control plane as every node sees it: one face for voters and for nodes that do not vote.

A voter takes the state from its own :class:`~.raft_control.RaftControl`; other nodes hold a long poll at one of the
voters. Commands go to the leader, wherever that is. Every node tells the leader each ``heartbeat_s`` that it
runs, which is also what its **lease** comes from.

**The lease.** A node that leads shards must stop acknowledging on its own authority before anybody else can be
elected in its place, even when it was paused or cut off without noticing. ``lease`` is a ``runtime.monotonic()``
such that nothing was decided against this node up to then that it does not know: when a heartbeat was *sent*
that the leader answered, less the time since a majority is known to have followed that leader, and counted only
once this node knows the state of which the answer speaks. The leader holds a node dead no earlier than
``node_timeout_s`` after a heartbeat, so ``holds_lease()``, asked after the work it covers, is right as long as
``lease_s`` is below ``node_timeout_s``. Leadership handed over on purpose does not wait for the lease: quorum
writes are fenced by the epoch, never by time.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote

from lsmq import runtime
from lsmq.errors import InvalidRequest, LsmqError, TimedOut, Unavailable

from .auth import ClusterSecret
from .clocks import ClockOffset
from .coalesced_query import CoalescedQuery
from .control_http import ControlHttp, Unreachable
from .election import ReplicaProgress
from .errors import ControlStopped, NoControlLeader
from .heartbeats import HeartbeatAnswer, NodeHeartbeat, told
from .lease import NodeLease
from .overseer import Overseer
from .overview import overview
from .parts import Parts, kept
from .raft_control import RaftControl, StateCallback, _registered, pack_command
from .state import CHANGES, EMPTY, ClusterState
from .tls import Certificates

#: Called with the ``runtime.monotonic()`` up to which the lease holds, and the state it was given for.
LeaseCallback = Callable[[float, ClusterState], None]

_WAIT_MS = 1_000
_PAUSE_S = 0.02
#: A voter that has heard no leader of the control plane for so long asks others, as nodes that do not vote do.
_UNHEARD_S = 1.0
_LOOK_S = 0.2
_FIRST_TRY_S = 0.5
_SILENCE_S = 1.0
_MAX_STALE_S = 2.0
_QUESTION_S = 2.0
_REPORT_TIMEOUT_S = 1.0
#: Sizes are told so often, and at once to another leader.
_SIZES_S = 10.0


@dataclass(frozen=True, slots=True)
class ControlTiming:
    """Seconds. ``lease_s`` must stay below the ``node_timeout_s`` of the failure detector."""

    heartbeat_s: float = 0.1
    heartbeat_timeout_s: float = 0.4
    lease_s: float = 0.4


class ControlClient:
    """One a node. ``voters`` maps node ids to internal URLs. A voter passes its own ``raft`` and ``overseer``.

    ``progress`` gives for each shard what this node's replica holds; a replica that does not work is left out.
    ``sizes`` gives how many bytes each takes.

    ``async with`` starts and stops it; it does not start or stop the Raft voter.
    """

    def __init__(
        self,
        node: str,
        voters: Mapping[str, str],
        secret: ClusterSecret,
        *,
        raft: RaftControl | None = None,
        overseer: Overseer | None = None,
        timing: ControlTiming = ControlTiming(),
        progress: Callable[[], Mapping[int, ReplicaProgress] | None] = lambda: None,
        problems: Callable[[], Sequence[str]] = lambda: (),
        sizes: Callable[[], Mapping[int, int]] = dict,
        parts: Parts | None = None,
        tls: Certificates | None = None,
    ) -> None:
        if not voters or (raft is None) != (overseer is None):
            raise InvalidRequest("a node needs the voters' addresses, and a voter both its raft and its overseer")
        self.node, self._configured, self._timing = node, dict(voters), timing
        self._raft, self._overseer, self._progress = raft, overseer, progress
        self._problems, self._sizes, self._parts = problems, sizes, parts or Parts()
        #: Whom sizes were told last, and when.
        self._sizes_told: tuple[str | None, float] = (None, float("-inf"))
        self._http = ControlHttp(secret, tls=tls)
        #: New with each start of the process, and registered by it, so that one is never taken for another.
        self.life = runtime.token_hex(16)
        self._state = EMPTY
        self._leader: str | None = None
        self._lease = NodeLease()
        self._began = self._unleased_since = runtime.monotonic()
        self._clock_offset = ClockOffset()
        self._told: HeartbeatAnswer | None = None
        self._told_at = float("-inf")
        self._question = CoalescedQuery(self._ask_version)
        self._on_change: list[StateCallback] = []
        self._on_lease: list[LeaseCallback] = []
        self._changed = asyncio.Event()
        self._behind = asyncio.Event()
        self._rotation = itertools.count()
        self._tasks: list[asyncio.Task[None]] = []
        self._ends: list[Callable[[], None]] = []

    async def __aenter__(self) -> Self:
        await self._http.start()
        self._unleased_since = runtime.monotonic()
        if self._raft is not None:
            self._ends.append(self._raft.on_change(self._take))
            self._take(self._raft.state)
        self._keep("control-state", self._follow)
        self._keep("control-heartbeat", self._beat)
        return self

    def _keep(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(kept(self._parts.part(name), work), name=name))

    async def __aexit__(self, *failure: object) -> None:
        for end in self._ends:
            end()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._question.close()
        await self._http.close()

    # What is known

    @property
    def state(self) -> ClusterState:
        """The latest agreed state known here; its version never goes back."""
        return self._state

    @property
    def registered(self) -> bool:
        """Whether this life is the one of its node that the cluster has agreed on."""
        known = self._state.nodes.get(self.node)
        return known is not None and known.life == self.life

    @property
    def leader(self) -> str | None:
        """Node id of the leader of the control plane, as far as known."""
        raft = self._raft
        return raft.leader if raft is not None and raft.votes and raft.failure is None else self._leader

    @property
    def voters(self) -> Mapping[str, str]:
        """The internal URL of each voter: as configured, until the cluster has agreed on others."""
        raft, agreed = self._raft, self._state.membership
        if raft is not None and raft.membership.number > (0 if agreed is None else agreed.number):
            agreed = raft.membership
        if agreed is None:
            return self._configured
        urls = {id: self._url_of(id) for id in agreed.voters}
        return {id: url for id, url in urls.items() if url is not None} or self._configured

    def _url_of(self, node: str) -> str | None:
        known = self._state.nodes.get(node)
        noted = self._raft.urls.get(node) if self._raft is not None else None
        return self._configured.get(node) or (noted if known is None else known.internal_url)

    @property
    def _whom_to_tell(self) -> str | None:
        """A voter that Raft does not reach may know from its heartbeats who leads."""
        return self.leader or self._leader

    @property
    def lease(self) -> float:
        """See the module's text."""
        return self._lease.moment

    @property
    def alive(self) -> frozenset[str] | None:
        """The nodes that the control leader holds alive; None when it did not say lately."""
        answer = self.told
        return None if answer is None else answer.living

    @property
    def told(self) -> HeartbeatAnswer | None:
        """What the control leader said lately; None when it did not."""
        return self._told if runtime.monotonic() - self._told_at < _MAX_STALE_S else None

    @property
    def unleased_s(self) -> float:
        """For how long this node has held no lease; 0 while it holds one."""
        return 0.0 if self.holds_lease() else runtime.monotonic() - self._unleased_since

    def is_leaderless(self, shard: int) -> bool:
        """Whether nobody has led a shard for a while, nor was just elected, as the control leader said lately: of the
        epoch that is known here, since what was said before an election is not so any more."""
        answer = self.told
        if answer is None:
            return False
        if answer.revivable is None:
            return shard in answer.leaderless
        return answer.revivable.get(shard) == self._state.shards[shard].epoch

    def overview(self) -> dict[str, Any]:
        """The cluster as people see it, see :func:`~.overview.overview`."""
        return overview(self._state, self.told, self.leader, silent=self.unleased_s > _MAX_STALE_S)

    def holds_lease(self) -> bool:
        """Whether this node may still act as leader of its shards on its own authority. Ask after the work."""
        return runtime.monotonic() - self._lease.moment < self._timing.lease_s

    def on_lease(self, callback: LeaseCallback) -> Callable[[], None]:
        """Call back in the loop whenever the lease moved: ``callback(valid_until, state)``; returns what ends it.

        ``state`` is the one known here, at least as new as the one the control leader had when it answered; callbacks
        of :meth:`on_change` have seen it.
        """
        return _registered(self._on_lease, callback)

    def on_change(self, callback: StateCallback) -> Callable[[], None]:
        """Call back in the loop with each new state; returns what ends it."""
        return _registered(self._on_change, callback)

    async def wait_for(self, condition: Callable[[ClusterState], bool], timeout: float) -> ClusterState:
        """The first state known here for which ``condition`` holds. Raises ``TimedOut``."""
        try:
            async with asyncio.timeout(timeout):
                while not condition(self._state):
                    changed = self._changed
                    await changed.wait()
        except TimeoutError:
            raise TimedOut(f"the cluster state was not reached within {timeout} s") from None
        return self._state

    def _take(self, state: ClusterState) -> None:
        if state.version <= self._state.version:
            return
        self._state = state
        if self._raft is not None and state.membership is not None:
            urls = {id: url for id in state.membership.voters if (url := self._url_of(id)) is not None}
            self._raft.learned(state.membership, urls)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        for callback in list(self._on_change):
            callback(state)
        self._claim_lease()

    # Commands

    async def submit(self, command: Mapping[str, Any], timeout: float = 5.0) -> dict[str, Any]:
        """Carry out a command on the leader and return its result, ``{"ok": False, ..}`` when it was refused.

        Tries again while there is no leader or it changes, always with the same ``request_id``. Afterwards the
        state known here has the command's effect, if that comes in time. Raises ``NoControlLeader`` when nothing
        was done, ``TimedOut`` when that is unknown.
        """
        deadline = runtime.monotonic() + timeout
        command = {"request_id": runtime.token_hex(16), **command}
        pack_command(command)
        unknown: LsmqError | None = None
        refusal: LsmqError = NoControlLeader("no leader of the control plane was found")
        target, patience = self.leader, _FIRST_TRY_S
        # Who gave no answer is left alone for a while, whatever others say who have not noticed yet.
        silent: dict[str, float] = {}
        while (left := deadline - runtime.monotonic()) > 0:
            avoid = {voter for voter, since in silent.items() if runtime.monotonic() - since < _SILENCE_S}
            voter = target if target is not None and target not in avoid else self._next_voter(avoid)
            target = None
            try:
                # A voter that is paused must not hold the command for long; another try does no harm.
                result = await self._submit_to(voter, command, min(left, patience))
            except TimedOut as error:
                unknown, patience = error, 2 * patience
                silent[voter] = runtime.monotonic()
            except (Unavailable, Unreachable, ControlStopped) as error:
                refusal = error
                if isinstance(error, Unreachable):
                    silent[voter] = runtime.monotonic()
                    if error.sent:
                        unknown, patience = error, 2 * patience
                target = error.details.get("leader")
            else:
                await self._reach(result.get("version", 0), deadline)
                return result
            if target is None or target in silent:
                await asyncio.sleep(min(_PAUSE_S, max(0.0, deadline - runtime.monotonic())))
                target = self.leader
        if unknown is not None:
            raise TimedOut(
                f"the outcome of the control command is unknown after {timeout} s; repeat it with the same request_id",
                request_id=command["request_id"],
            ) from unknown
        raise NoControlLeader(f"the control command was not carried out within {timeout} s: {refusal}") from refusal

    async def _submit_to(self, voter: str, command: Mapping[str, Any], left: float) -> dict[str, Any]:
        if self._raft is not None and voter == self.node:
            return await self._raft.submit(command, left)
        body = {"command": command, "timeout_ms": int(left * 1000)}
        answer = await self._http.call(self._url(voter), "POST", "/internal/control/command", body, left + 0.2)
        result: dict[str, Any] = answer["result"]
        return result

    def _url(self, voter: str) -> str:
        url = self.voters.get(voter) or self._url_of(voter)
        if url is None:
            raise NoControlLeader(f"{voter!r} is none of the voters {sorted(self.voters)}")
        return url

    def _next_voter(self, besides: Container[str] = ()) -> str:
        """The voters in turn, those not in ``besides`` if there are others."""
        voters = sorted(self.voters)
        for _ in voters:
            voter = voters[next(self._rotation) % len(voters)]
            if voter not in besides:
                return voter
        return voters[next(self._rotation) % len(voters)]

    def _next_to_follow(self, failed: int) -> str:
        """Whom to ask for the state: a voter, and now and then, where none of them answers, any other node. It may vote
        by now, and the voters that are known here may be gone."""
        others = sorted({id for id, node in self._state.nodes.items() if node.state != "removed"} - {self.node})
        if failed > len(self.voters) and failed % 2 and others:
            return others[next(self._rotation) % len(others)]
        return self._next_voter({self.node})

    async def _reach(self, version: int, deadline: float) -> None:
        self._heard_of(version)
        with contextlib.suppress(TimedOut):
            await self.wait_for(lambda state: state.version >= version, max(0.0, deadline - runtime.monotonic()))

    async def catch_up(self, timeout: float = 2.0) -> ClusterState:
        """Returns once this node knows all that was committed before the call, and the state known then.

        Those who ask together share one question. Raises ``NoControlLeader`` or ``TimedOut`` when that cannot be had.
        """
        deadline = runtime.monotonic() + timeout
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + timeout):
                version = await self._question.ask()
        except TimeoutError:
            raise TimedOut(f"the control plane did not say its state within {timeout} s") from None
        self._heard_of(version)
        return await self.wait_for(lambda state: state.version >= version, max(0.0, deadline - runtime.monotonic()))

    async def _ask_version(self) -> int:
        raft = self._raft
        own = None if raft is None else raft.confirmed_version
        return int(await self._ask_leader("version", own, _FIRST_TRY_S))

    async def plan(self) -> dict[str, Any]:
        """What the cluster is about to move by itself, see :meth:`.Balancer.shown`. Raises ``NoControlLeader``."""
        overseer = self._overseer

        async def own(timeout: float) -> dict[str, Any]:
            assert overseer is not None, "asked of a voter only"
            return overseer.plan()

        planned: dict[str, Any] = await self._ask_leader("plan", None if overseer is None else own, _QUESTION_S)
        return planned

    async def growth(self, shards: int) -> dict[str, Any]:
        """Where new shards would lie, see :meth:`.Overseer.growth`. Raises ``InvalidRequest``, ``NoControlLeader``."""
        overseer = self._overseer

        async def own(timeout: float) -> dict[str, Any]:
            assert overseer is not None, "asked of a voter only"
            return overseer.growth(shards)

        query = f"?shards={shards}"
        return dict(await self._ask_leader("growth", None if overseer is None else own, _QUESTION_S, query))

    async def _ask_leader(
        self, what: str, own: Callable[[float], Awaitable[Any]] | None, try_s: float, query: str = ""
    ) -> Any:
        """Ask whoever leads the control plane; ``own`` is how this node answers, where it is a voter."""
        deadline = runtime.monotonic() + _QUESTION_S
        target, refusal = self.leader, LsmqError("no voter was asked")
        while (left := deadline - runtime.monotonic()) > 0:
            voter = target or self._next_voter()
            try:
                if own is not None and voter == self.node:
                    return await own(min(left, try_s))
                path = f"/internal/control/{what}{query}"
                answer = await self._http.call(self._url(voter), "GET", path, None, min(left, try_s))
                return answer[what]
            except InvalidRequest:
                raise
            except LsmqError as error:
                refusal, target = error, error.details.get("leader")
            await asyncio.sleep(_PAUSE_S)
        raise NoControlLeader(f"the control plane did not say its {what}: {refusal}") from refusal

    # Reports

    async def ask_election(self, shard: int, above_epoch: int, *, elsewhere: bool = False) -> None:
        """Ask for an election of the shard: epochs up to ``above_epoch`` cannot be led, by nobody or not by this node.

        ``elsewhere``: this node, which leads that epoch, is not to be elected again; if no other can be, nothing
        happens. Best effort: never raises. Repeat it while the shard's epoch is not above; nothing happens once it is.
        """
        besides = self.node if elsewhere else None
        if self._overseer is not None and self.leader == self.node:
            with contextlib.suppress(LsmqError):
                self._overseer.ask_election(shard, above_epoch, besides)
        else:
            body: dict[str, Any] = {"shard": shard, "above_epoch": above_epoch}
            await self._report("ask_election", body if besides is None else {**body, "besides": besides})

    async def _report(self, what: str, body: dict[str, Any]) -> None:
        leader = self._whom_to_tell
        if leader is not None:
            with contextlib.suppress(LsmqError):
                await self._http.call(self._url(leader), "POST", f"/internal/control/{what}", body, _REPORT_TIMEOUT_S)

    # The state, where this node does not vote, or Raft does not bring it

    def _brought(self) -> bool:
        """Whether the state comes by this node's own voter: it hears a leader, or did a moment ago. What a voter that
        stopped does not know the node does not follow."""
        raft = self._raft
        if raft is None or not raft.votes:
            return False
        heard = raft.leader is not None or runtime.monotonic() - max(raft.lease, self._began) < _UNHEARD_S
        return heard or raft.failure is not None

    async def _follow(self) -> None:
        failed, voter = 0, self._next_voter()
        while True:
            if self._brought():
                await asyncio.sleep(_LOOK_S)
                continue
            self._behind.clear()
            poll = asyncio.create_task(self._poll(voter))
            behind = asyncio.create_task(self._behind.wait())
            try:
                await asyncio.wait({poll, behind}, return_when=asyncio.FIRST_COMPLETED)
                if not poll.done():
                    # That voter holds back what another one told of: it may be paused or cut off.
                    voter = self._leader or self._next_voter()
                elif not poll.result():
                    failed += 1
                    voter = self._next_to_follow(failed)
                    await asyncio.sleep(_PAUSE_S if failed < 2 * len(self.voters) else _LOOK_S)
                else:
                    failed = 0
            finally:
                poll.cancel()
                behind.cancel()
                await asyncio.gather(poll, behind, return_exceptions=True)

    async def _poll(self, voter: str) -> bool:
        """Ask a voter for what is new. Whether it is worth asking again."""
        known = self._state
        leader = quote(self._leader or "", safe="")
        query = (
            f"after={known.version}&topics={known.topics_version}&leader={leader}&changes={CHANGES}&wait_ms={_WAIT_MS}"
        )
        path = f"/internal/control/state?{query}"
        try:
            answer = await self._http.call(self._url(voter), "GET", path, None, _WAIT_MS / 1000 + 0.5)
        except LsmqError:
            return False
        if answer["leader"] is not None:
            self._leader = answer["leader"]
        if answer.get("changes") is not None:
            self._take(known.changed(answer["changes"]))
        elif answer["state"] is not None:
            self._take(ClusterState.decode(answer["state"], known.topics))
        # A voter that hears no leader may know old things only.
        return answer["leader"] is not None and answer["lease_age_ms"] <= _MAX_STALE_S * 1000

    def _heard_of(self, version: int) -> None:
        if version > self._state.version:
            self._behind.set()

    # Heartbeats and the lease

    async def _beat(self) -> None:
        while True:
            began = runtime.monotonic()
            try:
                await self._heartbeat(began)
            except LsmqError as error:
                self._leader = error.details.get("leader")
            await asyncio.sleep(max(0.005, self._timing.heartbeat_s - (runtime.monotonic() - began)))

    async def _heartbeat(self, sent: float) -> None:
        leader = self._whom_to_tell or self._next_voter()
        progress = self._progress()
        if self.holds_lease():
            self._unleased_since = sent
        beat = NodeHeartbeat(
            self.node,
            self.life,
            None if progress is None else {id: ReplicaProgress(*held) for id, held in progress.items()},
            raft=None if self._raft is None else self._raft.address,
            well=self._raft is None or self._raft.failure is None,
            leased=self.holds_lease(),
            clock_ms=0.0 if leader == self.node else self._clock_offset.ms,
            problems=told(tuple(self._problems())),
            sizes=self._sizes() if self._sizes_told[0] != leader or sent - self._sizes_told[1] > _SIZES_S else None,
        )
        if self._overseer is not None and leader == self.node:
            answer = self._overseer.heartbeat(beat)
        else:
            timeout, sent_ms = self._timing.heartbeat_timeout_s, runtime.wall_time() * 1000
            path = "/internal/control/heartbeat"
            answer = HeartbeatAnswer.from_dict(
                await self._http.call(self._url(leader), "POST", path, beat.to_dict(), timeout)
            )
            self._clock_offset.measured(leader, sent_ms, runtime.wall_time() * 1000, answer.now_ms)
        self._leader = leader
        if beat.sizes is not None:
            self._sizes_told = leader, sent
        if answer.lease_age_s < _MAX_STALE_S:
            self._told, self._told_at = answer, sent
        self._heard_of(answer.version)
        if answer.alive:
            self._lease.promise(answer.version, sent - answer.lease_age_s)
            self._claim_lease()

    def _claim_lease(self) -> None:
        if self._lease.claim(self._state.version):
            for callback in list(self._on_lease):
                callback(self._lease.moment + self._timing.lease_s, self._state)
