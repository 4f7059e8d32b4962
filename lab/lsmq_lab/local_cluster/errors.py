"""What can go wrong with a local cluster. Messages name the remedy."""

from __future__ import annotations

from lsmq.errors import LsmqError


class ClusterNotFound(LsmqError):
    """The directory holds no cluster."""

    code = "cluster_not_found"


class ClusterNotReady(LsmqError):
    """Some shard has no leader that serves, in the time given; the message says which, and where the logs are."""

    code = "cluster_not_ready"
    retriable = True


class NodeNotRunning(LsmqError):
    """There is no process to send a signal to."""

    code = "node_not_running"


class NodeEnded(LsmqError):
    """A node's process ended by itself; the message has the end of its log."""

    code = "node_ended"
