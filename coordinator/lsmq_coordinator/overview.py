"""The cluster as people see it: one document from the agreed state and from who is alive. Pure."""

from __future__ import annotations

from typing import Any

from .election import leader_counts
from .heartbeats import HeartbeatAnswer
from .placement import places_of, problem
from .raft_membership import Electorate
from .state import ClusterState, NodeRecord

_SILENCE = (
    "the node that was asked has heard of no leader of the control plane for a while, and without one nobody may lead: "
    "a majority of its voters ({voters}) must run and reach each other, and this node one of them. A voter whose disk "
    "was lost or set back does not count before the others have brought it up to date"
)


def overview(
    state: ClusterState, told: HeartbeatAnswer | None = None, control_leader: str | None = None, *, silent: bool = False
) -> dict[str, Any]:
    """``told`` is what the leader of the control plane said lately of who lives and how; None where it did not, and
    then that is not known of any node. ``control_leader`` is a node id or None. ``silent``: this node has heard of
    none for so long that leases are over.

    A node is drained when it is ``draining`` and has no ``replicas``. A shard moves while it has a ``target``; of
    that, ``adding`` are still to catch up. ``problem`` says why nobody leads it and what helps, ``misplaced`` what is
    wrong with where its replicas are, or are to be; None while all is well. ``voter_change`` is under way while one
    node takes another's vote: ``step`` says how far it is.
    """
    places = places_of(state.nodes.values())
    held = dict.fromkeys(state.nodes, 0)
    for shard in state.shards.values():
        for replica in shard.replicas:
            held[replica] += 1
    led = leader_counts(state, set(state.nodes))
    voters = ", ".join(sorted(node.id for node in state.nodes.values() if node.voter))
    silence = _SILENCE.format(voters=voters) if silent and told is None else None

    def node_entry(node: NodeRecord) -> dict[str, Any]:
        return {
            "id": node.id,
            "url": node.url,
            "internal_url": node.internal_url,
            "voter": node.voter,
            "state": node.state.value,
            "alive": None if told is None else node.id in told.living,
            "problems": [] if told is None else list(told.problems.get(node.id, ())),
            "clock_ms": None if told is None or (ms := told.clocks_ms.get(node.id)) is None else round(ms, 1),
            "shards_led": led[node.id],
            "replicas": held[node.id],
            "host": node.host or None,
            "rack": node.rack or None,
        }

    return {
        "cluster": state.settings.cluster,
        "version": state.version,
        "control_leader": control_leader,
        "home_shards": state.settings.shards,
        "moves_paused": state.moves_paused,
        "voter_change": _change(state.membership),
        "nodes": [node_entry(state.nodes[id]) for id in sorted(state.nodes)],
        "shards": [
            {
                "id": shard.id,
                "leader": shard.leader,
                "epoch": shard.epoch,
                "in_sync": list(shard.in_sync_nodes),
                "replicas": list(shard.replicas),
                "adding": list(shard.adding),
                "target": list(shard.target),
                "pinned": shard.pinned,
                "problem": silence if told is None else told.leaderless.get(shard.id),
                "misplaced": problem(places, shard.wanted),
                "revived": [revival._asdict() for revival in shard.revivals],
            }
            for shard in (state.shards[id] for id in sorted(state.shards))
        ],
    }


def _change(membership: Electorate | None) -> dict[str, Any] | None:
    if membership is None or membership.old is None:
        return None
    learns, gone = membership.new in membership.learners, membership.old not in membership.voters
    step = ("filling" if not gone else "joining") if learns else "leaving"
    return {"old": membership.old, "new": membership.new, "step": step}
