"""The cluster as people see it: one document from the agreed state and from who is alive. Pure."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from .election import leader_counts
from .state import ClusterState, Node


def overview(state: ClusterState, alive: Set[str] | None = None, control_leader: str | None = None) -> dict[str, Any]:
    """``alive`` is None where it is not known, and then so is each node's; ``control_leader`` is a node id or None.

    A node is drained when it is ``draining`` and has no ``replicas``. A shard moves while it has a ``target``; of
    that, ``adding`` are still to catch up.
    """
    held = dict.fromkeys(state.nodes, 0)
    for shard in state.shards.values():
        for replica in shard.replicas:
            held[replica] += 1
    led = leader_counts(state, set(state.nodes))

    def node_entry(node: Node) -> dict[str, Any]:
        return {
            "id": node.id,
            "url": node.url,
            "internal_url": node.internal_url,
            "voter": node.voter,
            "state": node.state.value,
            "alive": None if alive is None else node.id in alive,
            "shards_led": led[node.id],
            "replicas": held[node.id],
        }

    return {
        "cluster": state.settings.cluster,
        "version": state.version,
        "control_leader": control_leader,
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
            }
            for shard in (state.shards[id] for id in sorted(state.shards))
        ],
    }
