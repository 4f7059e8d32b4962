"""Whose data a directory holds: the file ``node.json`` of a member of a cluster, and the lock on the directory.

::

    DIR/node.json      {"format": 1, "cluster": "lsmq", "node": "n1", "shards": 3}; format 3 once there are more shards
    DIR/LOCK           held while the node runs
    DIR/raft/          the control plane's log, on voters
    DIR/voters.json    who votes, once that was changed
    DIR/shard-N/       a replica
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from lsmq_node.broker.layout import NodeFile
from lsmq_node.cluster_config import ClusterConfig
from lsmq_node.settings import InvalidConfig
from lsmq_node.storage import DirectoryLock


@contextmanager
def held_directory(data: Path, config: ClusterConfig) -> Iterator[None]:
    """Lock the data directory, make it if need be, and check that it is this node's.

    Raises ``DataDirectoryLocked``, ``DataDirectoryUnusable``, ``CorruptFile``, or :class:`InvalidConfig` when it
    belongs to another node or cluster, or to a node of its own.
    """
    lock = DirectoryLock(data)
    try:
        wanted = NodeFile(config.shards, config.name, config.node)
        found = NodeFile.load(data) or wanted.store(data)
        if replace(found, grown=None) != wanted:
            raise InvalidConfig(
                f"{data} belongs to {found}, not to {wanted}; give the right data directory, or an empty one",
                setting="data",
            )
        yield
    finally:
        lock.release()
