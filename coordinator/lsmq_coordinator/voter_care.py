"""The part of the overseer that has other nodes vote: when it is told to, and in the place of a voter that is gone.

Who votes is decided by :mod:`~.voter_changes` and :mod:`~.voter_plan`; here it is brought into Raft's log, and said.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from lsmq import runtime
from lsmq.errors import InvalidRequest, LsmqError, Unavailable

from .errors import NoControlLeader
from .liveness import FailureDetector
from .raft_control import RaftControl
from .raft_membership import Electorate
from .voter import RaftStatus
from .voter_changes import asked, next_step
from .voter_plan import VoterReplacement, VoterSituation, planned_voters

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class VoterTiming:
    """Seconds."""

    #: A voter that is away for so long is gone: another node takes its vote. 0: never without being told.
    replace_after_s: float = 600.0
    #: What could not begin is not tried again sooner.
    repeat_s: float = 1.0
    command_timeout_s: float = 2.0


class VoterCare:
    """One an overseer. What it keeps is for one leadership, bounded by the nodes."""

    def __init__(self, raft: RaftControl, timing: VoterTiming = VoterTiming()) -> None:
        self._raft, self._timing = raft, timing
        self.begin()

    def begin(self) -> None:
        """A leadership begins."""
        #: Where each node would be reached if it voted.
        self.addresses: dict[str, str] = {}
        #: Why voters that are gone are not replaced, as it was said last.
        self._said: Mapping[str, str] = {}
        self._tried_at = float("-inf")

    def hear(self, node: str, address: str | None) -> None:
        """A node says where it would be reached; None: it is of a release that takes no voter's place."""
        if address is not None:
            self.addresses[node] = address

    def testified(self, command: Mapping[str, Any], detector: FailureDetector) -> Mapping[str, Any]:
        """What begins a change of who votes, or calls it off. Raises ``InvalidRequest``, ``Unavailable``."""
        raft, status = self._raft, self._raft.status
        if status.membership is None or not status.settled:
            raise Unavailable("who votes is being changed at this moment; ask again")
        if status.old:
            raise InvalidRequest(
                f"voters at {', '.join(sorted(status.old))} run a release that would not follow a change of who votes; "
                "upgrade all voters first",
                reason="old_release",
            )
        if command.get("by") in detector.alive - detector.heard:
            raise NoControlLeader(f"the control plane has a new leader, which has not heard node {command['by']!r} yet")
        changed = asked(
            command,
            status.membership,
            raft.state,
            alive=detector.heard,
            at_hand=self._at_hand(status, status.membership),
            addresses=self.addresses,
        )
        if changed == status.membership:  # It is under way: nothing is to be agreed on.
            return {"op": "batch", "request_id": command["request_id"], "commands": []}
        _log.warning("node %s takes the vote of node %s: %s", changed.new, changed.old, changed.to_dict())
        return {"op": "set_voters", "request_id": command["request_id"], "membership": changed.to_dict()}

    async def step(self) -> None:
        """Take the next step of a change of who votes, where one is due."""
        raft, status = self._raft, self._raft.status
        if status.membership is None or status.membership.old is None or not status.settled:
            return
        caught_up = set(_named(status.membership, status.caught_up))
        step = next_step(status.membership, self._at_hand(status, status.membership), caught_up)
        if step is None:
            return
        try:
            await raft.change_voters(step, self._timing.command_timeout_s)
        except LsmqError as error:
            _log.info("who votes could not be changed yet: %s", error)
        else:
            _log.warning("%s vote now; %s learn to", sorted(step.voters), sorted(step.learners))

    async def replace(self, detector: FailureDetector, closed: Set[str], now: float) -> None:
        """Begin to replace a voter that is gone, where one is and may be."""
        status = self._raft.status
        if status.membership is None or not status.settled or now - self._tried_at < self._timing.repeat_s:
            return
        planned = self._planned(status, status.membership, detector, closed, now)
        self._say([each for each in planned if each.in_s == 0])
        for each in planned:
            if each.is_due:
                self._tried_at = now
                away_s = detector.away(now)[each.old]
                _log.warning("voter %s is gone, not heard for %.1f s: %s is to vote", each.old, away_s, each.new)
                command = {**each.command, "request_id": runtime.token_hex(16)}
                try:
                    await self._raft.submit(command, self._timing.command_timeout_s)
                except LsmqError as error:
                    _log.warning("node %s does not take the vote of node %s yet: %s", each.new, each.old, error)
                return  # One at a time.

    def _say(self, gone: list[VoterReplacement]) -> None:
        said = {each.old: each.waits_for for each in gone if each.waits_for is not None}
        for old, why in said.items():
            if self._said.get(old) != why:
                _log.warning("voter %s is gone, and nobody takes its place: %s", old, why)
        self._said = said

    def shown(self, detector: FailureDetector, closed: Set[str], now: float) -> list[dict[str, Any]]:
        """The plan for people: see :meth:`.VoterReplacement.to_dict`."""
        status = self._raft.status
        if status.membership is None:
            return []
        return [each.to_dict() for each in self._planned(status, status.membership, detector, closed, now)]

    def _planned(
        self, status: RaftStatus, now_voting: Electorate, detector: FailureDetector, closed: Set[str], now: float
    ) -> list[VoterReplacement]:
        away = detector.away(now)
        if not away.keys() & {*now_voting.voters, *now_voting.learners}:
            return []
        situation = VoterSituation(
            membership=now_voting,
            caught_up={self._raft.config.node, *_named(now_voting, status.caught_up)},
            old_releases=status.old,
            heard=detector.heard,
            away=away,
            closed=closed | detector.restless(now),
            addresses=self.addresses,
            after_s=self._timing.replace_after_s,
        )
        return planned_voters(self._raft.state, situation)

    def _at_hand(self, status: RaftStatus, voting: Electorate) -> set[str]:
        """Who follows by Raft, this leader among them."""
        return {self._raft.config.node, *_named(voting, status.heard)}


def _named(membership: Electorate, addresses: Set[str]) -> list[str]:
    """The ids of those who are reached at these addresses."""
    known = {**membership.voters, **membership.learners}
    return sorted(id for id, address in known.items() if address in addresses)
