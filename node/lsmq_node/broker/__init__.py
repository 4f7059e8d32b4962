"""The broker: the asyncio face of the shards of one node."""

from .broker import Broker
from .budget import ByteBudget, Hold
from .fetched import Fetched
from .placement import QueueRange, queue_ranges, shard_of
from .single import SingleNode
from .topology import Ack, Leadership, ShardPort, Topology
from .waiters import WaiterTable

__all__ = [
    "Ack",
    "Broker",
    "ByteBudget",
    "Fetched",
    "Hold",
    "Leadership",
    "QueueRange",
    "ShardPort",
    "SingleNode",
    "Topology",
    "WaiterTable",
    "queue_ranges",
    "shard_of",
]
