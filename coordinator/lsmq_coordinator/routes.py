"""What clients are told: pure functions from the agreed state to documents, small for a million queues.

The **topic document** says which queues lie on which shard, in ranges, and changes only when the topic does. The
**cluster document** says who leads each shard at which epoch, and where. An election so changes one document,
whatever the number of topics. :func:`resolve` joins the two into the ``routes`` of the HTTP API.

Both carry the state's ``version``. A document replaces another one only by :func:`supersedes`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .state import ClusterState, NodeState, TopicRecord

Document = dict[str, Any]


def topic_document(state: ClusterState, topic: TopicRecord) -> Document:
    """``ranges`` are ``[first, end, shard]``, half-open, in order, covering all queues; or all slots, where these are
    ``named``."""
    return {
        "name": topic.name,
        "id": topic.id,
        "queues": topic.queues,
        **({"named": True} if topic.named else {}),
        "options": {name: value for name, value in topic.options.items() if name not in ("made_by", "named")},
        "created_ms": topic.created_ms,
        "ranges": [[run.first, run.end, run.shard] for run in topic.ranges],
        "version": state.version,
    }


def cluster_document(state: ClusterState) -> Document:
    """Nodes with their addresses for clients, and for each shard its leader (a node id or null) and epoch."""
    return {
        "cluster": state.settings.cluster,
        "nodes": {
            id: {"url": node.url, "state": node.state.value}
            for id, node in sorted(state.nodes.items())
            if node.state is not NodeState.REMOVED
        },
        "shards": {
            str(id): {"leader": shard.leader, "epoch": shard.epoch, "in_sync": list(shard.in_sync_nodes)}
            for id, shard in sorted(state.shards.items())
        },
        "version": state.version,
    }


def resolve(topic: Mapping[str, Any], cluster: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The topic's routes: queues ``[first, end)``, shard, URL of its leader (null when it has none), epoch, and the
    URLs of the followers in sync."""
    nodes, routes = cluster["nodes"], []
    for first, end, shard in topic["ranges"]:
        entry = cluster["shards"][str(shard)]
        node = nodes.get(entry["leader"])
        url = None if node is None else node["url"]
        others = [nodes[id]["url"] for id in entry["in_sync"] if id != entry["leader"] and id in nodes]
        leads = {"leader": url, "epoch": entry["epoch"], "followers": others}
        routes.append({"first": first, "end": end, "shard": shard, **leads})
    return routes


def routes(state: ClusterState, topic: TopicRecord) -> list[dict[str, Any]]:
    """The same, straight from the state."""
    return resolve(topic_document(state, topic), cluster_document(state))


def pack(document: Document) -> bytes:
    """As it is published: JSON, sorted, the same bytes for equal documents."""
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def unpack(content: bytes) -> Document | None:
    """A published document, or None when it is none: then it may be replaced."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or not isinstance(document.get("version"), int):
        return None
    return document if _has_epochs(document.get("shards", {})) else None


def _has_epochs(shards: Any) -> bool:
    """Whether each shard of a document says in which epoch it is led."""
    entries = shards.values() if isinstance(shards, dict) else (None,)
    return all(isinstance(entry, dict) and isinstance(entry.get("epoch"), int) for entry in entries)


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two documents tell the same, whatever the version of the state they were made from."""
    return {**one, "version": 0} == {**other, "version": 0}


def supersedes(new: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    """Whether ``new`` may replace ``old``: made from a later state, and no shard's epoch goes back."""
    if new["version"] <= old["version"]:
        return False
    return all(
        new["shards"][shard]["epoch"] >= entry["epoch"]
        for shard, entry in old.get("shards", {}).items()
        if shard in new["shards"]
    )
