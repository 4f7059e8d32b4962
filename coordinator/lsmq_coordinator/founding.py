"""How a cluster begins and how a node makes itself known: the commands. Pure; :mod:`~.joining` submits them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .election import place_replicas


def founding_command(
    name: str,
    shards: int,
    replicas: int,
    min_in_sync: int,
    segment_bytes: int,
    nodes: Mapping[str, Mapping[str, str]],
    first_leaders: Sequence[str] = (),
) -> dict[str, Any]:
    """The ``bootstrap`` command of a cluster whose voters are ``nodes``: id to ``url`` and ``internal_url``.

    The first leader of shard ``i`` is item ``i mod n`` of ``first_leaders``, else the nodes take turns. The same on
    every node with the same configuration; carried out once. Raises ``ValueError`` for replicas that do not fit on
    the nodes, or a first leader that is none of them.
    """
    placed = place_replicas(sorted(nodes), shards, replicas, first_leaders)
    return {
        "op": "bootstrap",
        "settings": {
            "cluster": name,
            "shards": shards,
            "replicas": replicas,
            "min_in_sync": min_in_sync,
            "segment_bytes": segment_bytes,
        },
        "nodes": {
            id: {"url": node["url"], "internal_url": node["internal_url"], "voter": True} for id, node in nodes.items()
        },
        "shards": {id: {"replicas": list(chosen), "leader": chosen[0]} for id, chosen in placed.items()},
    }


def register_command(node: str, url: str, internal_url: str, life: str) -> dict[str, Any]:
    """The command by which each start of a node makes itself and its addresses known."""
    return {"op": "register_node", "node": node, "url": url, "internal_url": internal_url, "life": life}
