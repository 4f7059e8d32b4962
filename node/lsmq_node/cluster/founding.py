"""What a cluster's nodes propose as its beginning, by their configuration: the same on all of them."""

from __future__ import annotations

from typing import Any

from lsmq_coordinator.founding import founding_command
from lsmq_node.cluster_config import ClusterConfig


def founding_of(settings: ClusterConfig, segment_bytes: int) -> dict[str, Any]:
    """The ``bootstrap`` command, which a voter proposes while there is no cluster yet. Raises ``ValueError``."""
    nodes = {
        id: {
            **node.to_dict(),
            "url": node.url.rstrip("/"),
            "internal_url": node.internal_url.rstrip("/"),
            "voter": id in settings.voters,
        }
        for id, node in {**settings.voters, **settings.founders}.items()
    }
    return founding_command(
        settings.name,
        settings.shards,
        settings.replicas,
        settings.min_in_sync,
        segment_bytes,
        nodes,
        settings.first_leaders,
    )
