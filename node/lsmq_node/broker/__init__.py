"""The broker: the asyncio face of the shards of one node."""

from .broker import Broker, Fetched
from .budget import ByteBudget, Hold
from .placement import QueueRange, queue_ranges, shard_of

__all__ = ["Broker", "ByteBudget", "Fetched", "Hold", "QueueRange", "queue_ranges", "shard_of"]
