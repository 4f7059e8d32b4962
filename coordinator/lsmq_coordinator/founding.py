"""How a cluster begins and how a node makes itself known: the commands. Pure; :mod:`~.joining` submits them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .election import place_replicas
from .placement import places_of
from .state import NodeRecord


def founding_command(
    name: str,
    shards: int,
    replicas: int,
    min_in_sync: int,
    segment_bytes: int,
    nodes: Mapping[str, Mapping[str, Any]],
    first_leaders: Sequence[str] = (),
) -> dict[str, Any]:
    """The ``bootstrap`` command of a cluster whose voters are ``nodes``: id to ``url`` and ``internal_url``, and
    optionally ``host``, ``rack``, ``only_votes`` of one that is given no replicas, and ``voter``, false of one that is
    founded with them and does not vote.

    The first leader of shard ``i`` is item ``i mod n`` of ``first_leaders``, else the nodes take turns. The same on
    every node with the same configuration; carried out once. Raises ``ValueError`` for replicas that do not fit on
    the nodes and their hosts, or a first leader that is none of them.
    """
    holding = sorted(id for id, node in nodes.items() if not node.get("only_votes"))
    labelled = [
        NodeRecord(id, "", "", True, host=nodes[id].get("host", ""), rack=nodes[id].get("rack", "")) for id in holding
    ]
    placed = place_replicas(holding, shards, replicas, first_leaders, places_of(labelled))
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
            id: {
                "url": node["url"],
                "internal_url": node["internal_url"],
                "voter": bool(node.get("voter", True)),
                **_labels(node.get("host", ""), node.get("rack", "")),
                **({"state": "draining"} if node.get("only_votes") else {}),
            }
            for id, node in nodes.items()
        },
        "shards": {id: {"replicas": list(chosen), "leader": chosen[0]} for id, chosen in placed.items()},
    }


def register_command(
    node: str, url: str, internal_url: str, life: str, host: str = "", rack: str = ""
) -> dict[str, Any]:
    """The command by which each start of a node makes itself, its addresses and its labels known."""
    addresses = {"url": url, "internal_url": internal_url}
    return {"op": "register_node", "node": node, **addresses, "life": life, **_labels(host, rack)}


def _labels(host: str, rack: str) -> dict[str, str]:
    return {name: label for name, label in (("host", host), ("rack", rack)) if label}
