"""The storage engine: a write-ahead log, an LSM store keyed by (topic, queue, offset), and what goes with them.

:class:`ShardStore` is a shard's engine; :class:`QueueStore` is the same engine as a library of named queues.
"""

from .collector import Collector
from .commit_point import Committed
from .delayed import HAND, DuePlace, Hand
from .due_reads import DueRead
from .file_range import FileRange
from .key_search import END, KeyFound, KeyQuery, Position
from .known_names import NamesBehind
from .line import Appended
from .lock import DirectoryLock
from .moments import Moment
from .name_makers import Accounts
from .options import FlushMode, StoreOptions
from .point_reads import PointRecord
from .queue_store import QueueStore
from .reader import Slice
from .replica_log import ReplicaLog
from .search import SearchFound, SearchQuery
from .shard_store import ShardStore
from .state import StoredTopic, check_topic_name
from .stats import StoreStats
from .topic_flow import Flow, TopicFlow
from .topic_names import AdmitNames, Slots, TopicNames
from .topic_options import TopicOptions

__all__ = [
    "HAND",
    "END",
    "Accounts",
    "AdmitNames",
    "Appended",
    "Collector",
    "Committed",
    "DirectoryLock",
    "DuePlace",
    "DueRead",
    "FileRange",
    "Flow",
    "FlushMode",
    "Hand",
    "KeyFound",
    "KeyQuery",
    "PointRecord",
    "Position",
    "Moment",
    "NamesBehind",
    "QueueStore",
    "ReplicaLog",
    "SearchFound",
    "SearchQuery",
    "ShardStore",
    "Slice",
    "Slots",
    "StoreOptions",
    "StoreStats",
    "StoredTopic",
    "TopicFlow",
    "TopicNames",
    "TopicOptions",
    "check_topic_name",
]
