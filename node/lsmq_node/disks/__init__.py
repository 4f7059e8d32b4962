"""The disks of a node: directories that shards lie in, each on a disk of its own.

::

    DIR1/node.json             whose the directory is, and which further disks there are (node_file.py)
    DIR1/shard-0/  ...         shards; beside them whatever is the node's and not a shard's
    DIR2/disk.json             which node the disk is of, and which of its disks it is (mark.py)
    DIR2/shard-1/  ...         shards

Where a shard lies is found by looking (looking.py): nothing says so that could be wrong. :mod:`~.held` takes the disks
of a node that starts, :mod:`~.choice` says where what is new goes, :mod:`~.moving` brings a shard to another disk and
lets a lost disk be forgotten, while the node does not run.

A disk that cannot be used stops the shards that lie on it. It is known by its mark: an emptied one has none, another
one's says so, and neither is taken for a disk that has lost its shards; nor is an older copy taken for the disk
(:mod:`~.starts`).

Not supported: a disk that hangs (its shards wait as long as it does), and moving shards while the node runs.
"""

from .held import START_AGAIN, NodeDisk, NodeDisks, held_disks
from .looking import shard_directory
from .node_file import FORMAT, NODE_FILE, RESTORING, NodeFile

__all__ = [
    "FORMAT",
    "NODE_FILE",
    "RESTORING",
    "START_AGAIN",
    "NodeDisk",
    "NodeDisks",
    "NodeFile",
    "held_disks",
    "shard_directory",
]
