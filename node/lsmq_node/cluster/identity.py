"""Whose the disks of a member of a cluster are (:mod:`lsmq_node.disks`), and what lies on the first of them.

::

    DIR/node.json      {"format": 1, "cluster": "lsmq", "node": "n1", "shards": 3}
    DIR/LOCK           held while the node runs, on every disk
    DIR/raft/          the control plane's log, on voters
    DIR/voters.json    who votes, once that was changed
    DIR/shard-N/       a replica, on any disk
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lsmq_node.broker.layout import new_shard_bytes
from lsmq_node.cluster_config import ClusterConfig
from lsmq_node.config import NodeConfig
from lsmq_node.disks import NodeDisks, NodeFile, held_disks
from lsmq_node.settings import InvalidConfig


@contextmanager
def member_disks(config: NodeConfig, cluster: ClusterConfig) -> Iterator[NodeDisks]:
    """Lock the disks, make the first if need be, and check that it is this node's.

    Raises what :func:`held_disks` raises, and :class:`InvalidConfig` when it belongs to another node or cluster, or to
    a node of its own.
    """
    wanted = NodeFile(cluster.shards, cluster.name, cluster.node)

    def check(found: NodeFile) -> None:
        if (found.shards, found.cluster, found.node, found.processes) != (
            cluster.shards,
            cluster.name,
            cluster.node,
            None,
        ):
            raise InvalidConfig(
                f"{config.data} belongs to {found}, not to {wanted}; give the right data directory, or an empty one",
                setting="data",
            )

    with held_disks(config.disks, wanted, check, needed_bytes=new_shard_bytes(config)) as disks:
        yield disks
