"""Whom the cluster has vote in the place of a voter that is gone, without being told. Pure; times are seconds.

The plan is made anew at each look, from who votes by now, from the agreed state and from who is heard. A change exists
in Raft's log from when it begins, and no sooner (:mod:`~.voter_changes`): a voter that comes back in time goes on
voting, and one that comes back later is a node like others. Nothing is begun

- while another change is under way, but for one whose newcomer is gone as well;
- where others than the one that is gone are no majority of the voters, with all of the log;
- where half of the nodes or more are away: so many do not break at once, something between them did;
- while moves are paused.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from .placement import choose, places_of
from .raft_membership import Electorate
from .state import ClusterState, NodeState
from .voter_changes import CANCEL, REPLACE


@dataclass(frozen=True, slots=True)
class VoterSituation:
    """What the leader of the control plane knows.

    Attributes:
        membership: Who votes.
        caught_up: Ids of those who follow by Raft and have its log, the leader among them.
        old_releases: Addresses of voters whose release would not follow a change.
        heard: Nodes that are alive, and were heard by this leader.
        away: For how many seconds each node that is not alive was not heard.
        closed: Nodes that are to be given nothing for now.
        addresses: Where nodes would be reached if they voted.
        after_s: A voter that is away for so long is gone. 0: none is replaced without being told.
    """

    membership: Electorate
    caught_up: Set[str]
    old_releases: Set[str]
    heard: Set[str]
    away: Mapping[str, float]
    closed: Set[str]
    addresses: Mapping[str, str]
    after_s: float


@dataclass(frozen=True, slots=True)
class VoterReplacement:
    """``old``, which is away, gives its vote to ``new`` in so many seconds; ``in_s`` is None where that is never.
    ``waits_for`` says what holds it back, None where nothing does. Where ``old`` was itself about to take the vote of
    ``new``, which is back, that is called off."""

    old: str
    new: str | None
    in_s: float | None
    waits_for: str | None
    op: str = REPLACE

    @property
    def is_due(self) -> bool:
        return self.in_s == 0 and self.waits_for is None

    @property
    def command(self) -> dict[str, Any]:
        """What begins it. For one that is due."""
        assert self.new is not None
        if self.op == CANCEL:
            return {"op": CANCEL, "node": self.new}
        return {"op": REPLACE, "node": self.old, "by": self.new}

    def to_dict(self) -> dict[str, Any]:
        in_s = None if self.in_s is None else round(self.in_s, 1)
        return {"old": self.old, "new": self.new, "in_s": in_s, "waits_for": self.waits_for}


def planned_voters(state: ClusterState, known: VoterSituation) -> list[VoterReplacement]:
    """One for each voter that is away, the longest first, and for a newcomer that is away and does not vote yet."""
    now = known.membership
    concerned = now.voters.keys() | now.learners.keys()
    if now.old is not None:  # It goes in any case.
        concerned -= {now.old}
    away = sorted((node for node in concerned if node in known.away), key=lambda node: (-known.away[node], node))
    return [_planned(state, known, old) for old in away]


def _planned(state: ClusterState, known: VoterSituation, old: str) -> VoterReplacement:
    now, in_s = known.membership, max(0.0, known.after_s - known.away[old]) if known.after_s else None
    back = old in now.learners and now.old in now.voters and now.old in known.heard
    new, op = (now.old, CANCEL) if back else (_successor(state, known, old), REPLACE)
    return VoterReplacement(old, new, in_s, _obstacle(state, known, old, new), op)


def _obstacle(state: ClusterState, known: VoterSituation, old: str, new: str | None) -> str | None:
    now = known.membership
    nodes = {node.id for node in state.nodes.values() if node.state is not NodeState.REMOVED}
    others = now.voters.keys() - {old, now.old}
    if not known.after_s:
        return "cluster.replace_voter_after_ms is 0; lsmq voter replace has another node take its vote"
    if state.moves_paused:
        return "moves are paused; lsmq shard resume lets them go on"
    if now.old is not None and old != now.new:
        return f"node {now.new} is taking the vote of node {now.old}; one change at a time"
    if old == now.new and old in now.voters:
        return f"node {now.old} is about to vote no more; one change at a time"
    if known.old_releases:
        return f"voters at {', '.join(sorted(known.old_releases))} run a release that would not follow; upgrade them"
    if 2 * len(nodes & known.away.keys()) >= len(nodes):
        return "half of the nodes or more are away, and so many do not break at once; start those that can be"
    if 2 * len(others & known.caught_up) <= len(now.voters):
        return "of the other voters no majority has all of the control plane's log at this moment"
    if new is None:
        return "no node that does not vote is there for it, alive and on a host without a voter; start one"
    return None


def _successor(state: ClusterState, known: VoterSituation, old: str) -> str | None:
    """The node in the rack with fewest of those who go on voting, then the one that holds least."""
    now = known.membership
    staying = sorted((now.voters.keys() | now.learners.keys()) - {old, now.old})
    free = [
        node
        for node in state.active_nodes()
        if node in known.heard
        and node not in known.closed
        and not now.has(node)
        and known.addresses.get(node, "") not in ("", *now.addresses)
    ]
    held = {node: sum(node in shard.wanted for shard in state.shards.values()) for node in free}
    return choose(places_of(state.nodes.values()), free, staying, lambda node: (held[node], node))
