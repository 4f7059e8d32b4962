"""The broker: the asyncio face of the shards of one node."""

from lsmq_node.storage.producers import BROKER_PRODUCERS

from .address_limits import SETTING as SHARE_SETTING
from .address_limits import AddressShare, SharedThing, asked_from
from .allowances import NOBODY, Allowances, Limited, Made, Maker, Own, Seat, asking
from .background import Background, KeptService, StartTask
from .broker import Broker
from .budget import ByteBudget, Hold, client_of
from .fetched import Fetched
from .leader_calls import LeaderCalls, asked_shard
from .peers import PassedBack, PassedOn, Peers
from .placement import queue_ranges, shard_of
from .read_redirects import ReadFrom, ReadRedirect
from .requests import DeleteRequest, FetchRequest, ProduceRequest, ReadRequest
from .topology import Ack, Leadership, ShardPort, Topology
from .trims import TrimRequest, Trims
from .waiters import WaiterTable

__all__ = [
    "NOBODY",
    "BROKER_PRODUCERS",
    "Ack",
    "AddressShare",
    "Allowances",
    "Background",
    "KeptService",
    "Broker",
    "ByteBudget",
    "DeleteRequest",
    "ReadRedirect",
    "FetchRequest",
    "Fetched",
    "Hold",
    "LeaderCalls",
    "Leadership",
    "Limited",
    "Made",
    "Maker",
    "Own",
    "PassedBack",
    "PassedOn",
    "Peers",
    "ProduceRequest",
    "ReadRequest",
    "ReadFrom",
    "SHARE_SETTING",
    "Seat",
    "ShardPort",
    "SharedThing",
    "StartTask",
    "Topology",
    "TrimRequest",
    "Trims",
    "WaiterTable",
    "asked_from",
    "asked_shard",
    "asking",
    "client_of",
    "queue_ranges",
    "shard_of",
]
