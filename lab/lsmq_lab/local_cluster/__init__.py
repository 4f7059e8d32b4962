"""Real clusters on one machine: node processes and a ZooKeeper, started, watched, ended. ``lsmq cluster`` is its face.

The processes outlive whoever started them. All that is known of a cluster is in its directory::

    DIR/cluster.json     the plan: nodes, ports, what was asked for
    DIR/secret           the cluster's secret
    DIR/n1/              node.toml, node.log, pid, and data/
    DIR/zookeeper/       a ZooKeeper of its own, where one was asked for

Not supported: anything but Linux, whose ``/proc`` tells one process from another.
"""

from .cluster import LocalCluster
from .errors import ClusterNotFound, ClusterNotReady, NodeEnded, NodeNotRunning
from .plan import ClusterPlan, NodePlan, ZooKeeperPlan, choose_ports, found_plan
from .status import ClusterStatus, LocalNodeState, NodeStatus, ShardStatus

__all__ = [
    "ClusterNotFound",
    "ClusterNotReady",
    "ClusterPlan",
    "ClusterStatus",
    "LocalCluster",
    "NodeEnded",
    "NodeNotRunning",
    "NodePlan",
    "LocalNodeState",
    "NodeStatus",
    "ShardStatus",
    "ZooKeeperPlan",
    "choose_ports",
    "found_plan",
]
