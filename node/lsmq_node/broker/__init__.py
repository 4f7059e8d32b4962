"""The broker: the asyncio face of the shards of one node."""

from .broker import Broker
from .budget import ByteBudget, Hold, client_of
from .elsewhere import Elsewhere, ReadFrom
from .fetched import Fetched
from .led_shards import Background, LedShards, ShardCoordinator, Start
from .peers import Peers
from .placement import QueueRange, queue_ranges, shard_of
from .shard_memory import ShardMemory
from .topology import Ack, Leadership, ShardPort, Topology
from .waiters import WaiterTable

__all__ = [
    "Ack",
    "Background",
    "Broker",
    "ByteBudget",
    "Elsewhere",
    "Fetched",
    "Hold",
    "Leadership",
    "LedShards",
    "Peers",
    "QueueRange",
    "ReadFrom",
    "ShardCoordinator",
    "ShardMemory",
    "ShardPort",
    "Start",
    "Topology",
    "WaiterTable",
    "client_of",
    "queue_ranges",
    "shard_of",
]
