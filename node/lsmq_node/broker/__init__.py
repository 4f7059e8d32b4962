"""The broker: the asyncio face of the shards of one node."""

from .admission import BROKER_PRODUCERS
from .background import Background, Start
from .broker import Broker
from .budget import ByteBudget, Hold, client_of
from .elsewhere import Elsewhere, ReadFrom
from .fetched import Fetched
from .peers import Peers
from .placement import QueueRange, queue_ranges, shard_of
from .requests import DeleteRequest, FetchRequest, ProduceRequest, ReadRequest
from .topology import Ack, Leadership, ShardPort, Topology
from .waiters import WaiterTable

__all__ = [
    "BROKER_PRODUCERS",
    "Ack",
    "Background",
    "Broker",
    "ByteBudget",
    "DeleteRequest",
    "Elsewhere",
    "FetchRequest",
    "Fetched",
    "Hold",
    "Leadership",
    "Peers",
    "ProduceRequest",
    "QueueRange",
    "ReadRequest",
    "ReadFrom",
    "ShardPort",
    "Start",
    "Topology",
    "WaiterTable",
    "client_of",
    "queue_ranges",
    "shard_of",
]
