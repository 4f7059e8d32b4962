"""The storage engine: a write-ahead log, an LSM store keyed by (topic, queue, offset), and what goes with them.

:class:`ShardStore` is a shard's engine; :class:`QueueStore` is the same engine as a library of named queues.
"""

from .commit_point import Committed
from .file_range import FileRange
from .line import Appended
from .lock import DirectoryLock
from .options import FlushMode, StoreOptions
from .queue_store import QueueStore
from .reader import Slice
from .replica_log import ReplicaLog
from .shard_store import ShardStore
from .state import Topic, TopicOptions, check_topic_name
from .stats import StoreStats

__all__ = [
    "Appended",
    "Committed",
    "DirectoryLock",
    "FileRange",
    "FlushMode",
    "QueueStore",
    "ReplicaLog",
    "ShardStore",
    "Slice",
    "StoreOptions",
    "StoreStats",
    "Topic",
    "TopicOptions",
    "check_topic_name",
]
