"""What a broker stands on: which topics there are, and which shards are at this node with what right.

A node of its own (:mod:`lsmq_node.cluster.single`) has all shards and may do everything. A member of a cluster
(:mod:`lsmq_node.cluster.member`) has replicas of some shards and leads some of those.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from lsmq.errors import LsmqError
from lsmq_node.disks import NodeDisks
from lsmq_node.storage import Appended, ShardStore, StoredTopic, TopicOptions
from lsmq_node.storage.disk import Clock

from .peers import Peers


class Ack(StrEnum):
    """When a write is acknowledged; see docs/replication.md for what each may lose."""

    QUORUM = "quorum"  # durable on every member of the in-sync set
    LEADER = "leader"  # durable on the leader


@dataclass(frozen=True, slots=True)
class Leadership:
    """Who leads a shard, as far as this node knows. ``url`` is for clients; None: this node, or nobody."""

    url: str | None
    epoch: int
    here: bool = False


class ShardPort(Protocol):
    """A shard whose store is at this node."""

    number: int

    @property
    def waits(self) -> int:
        """Writes that have been waited for."""

    @property
    def failures(self) -> int:
        """Group commits that failed."""

    @property
    def wants_room(self) -> str | None:
        """Why it stands still, where its disk has no room for what it is to do: it goes on once there is some."""

    @property
    def store(self) -> ShardStore:
        """Ask again after each await: a replica may replace it."""

    @property
    def stopped(self) -> LsmqError | None:
        """Why the shard must be repaired or the node restarted; None while all is well."""

    def check_writable(self, ack: Ack) -> None:
        """Raises ``NotLeader``, ``Unavailable`` or ``NotEnoughReplicas`` where nothing may be appended now."""

    def check_readable(self, *, follower: bool = False, found: bool = False) -> None:
        """Raises ``NotLeader`` or ``Unavailable``; ask *after* what was read.

        ``follower``: one will do that heard of its leader lately. Where records were ``found`` one will do that lost
        its leader: what is committed stays so. That there is nothing more it cannot tell.
        """

    async def prepare(self, topic: StoredTopic) -> None:
        """Have the store know the topic, and all its queues, where it does not yet. May raise what a write raises."""

    def wait(self, appended: Appended, ack: Ack) -> asyncio.Future[None]:
        """What to await until the write is acknowledged.

        Call it in the same step of the loop as the append. A caller that is cancelled leaves the write as it is.
        """

    def durable_at(self, appended: Appended) -> float | None:
        """When a write that was just acknowledged was on this node's disk, on the clock of ``runtime.monotonic``.

        None where nobody else is waited for, or where it is not remembered any more.
        """

    def figures(self) -> dict[str, Any]:
        """What the status page shows of the shard beside the store's statistics; plain values."""


CheckOptions = Callable[[StoredTopic, TopicOptions], None]
"""Raises where a topic must not have these options."""

AdmitTopic = Callable[[], TopicOptions]
"""Says with which options another topic may be made beside all there are. Raises where it may not."""

CheckGrowth = Callable[[StoredTopic], None]
"""Raises where a topic must not grow beside all there are."""

CheckSpread = Callable[[StoredTopic, int], None]
"""Raises where a topic must not have so many queues beside all there are."""


class KeysAtSpread(StrEnum):
    """What becomes of keys when a topic is spread that is not of strict order."""

    STAY = "stay"  # in their queues, for ever: the topic is of strict order from then on
    MOVE = "move"  # to queues chosen among all there are, as when a topic grows


class Topics(Protocol):
    """The topics there are, and where their queues lie."""

    def all(self) -> Sequence[StoredTopic]:
        """As they are known here."""

    def changes(self) -> object:
        """Another value once topics have come, gone or changed. Costs nothing."""

    def count(self) -> int:
        """How many are known here. Costs nothing."""

    def queue_count(self) -> int:
        """How many queues those have whose queues have no names. Costs nothing."""

    def find(self, name: str) -> StoredTopic | None:
        """As it is known here; None where there is none."""

    async def newest(self) -> Sequence[StoredTopic]:
        """Asked for where others decide on topics; as they are known here when nobody can be asked."""

    async def by_name(self, name: str) -> StoredTopic:
        """Raises ``UnknownTopic``."""

    async def by_id(self, topic_id: int) -> StoredTopic:
        """Raises ``UnknownTopic``."""

    async def create(
        self, name: str, queues: int, admit: AdmitTopic, *, exact: bool = False
    ) -> tuple[StoredTopic, bool]:
        """The topic, durable, and whether this call made it.

        ``exact``: what ``admit`` saw here was all there was when the topic was made, whoever makes others at the same
        time; without it, what was known here. Raises ``TopicExists``, ``InvalidTopicName``, and what ``admit`` raises.
        """

    async def grow(self, name: str, queues: int, check: CheckGrowth | None = None) -> StoredTopic:
        """The topic with ``queues`` queues, durable. ``check`` is exact, as in :meth:`create`.

        Raises ``UnknownTopic``, ``InvalidRequest`` where it has more, and what ``check`` raises.
        """

    async def spread(self, name: str, keys: KeysAtSpread, check: CheckSpread) -> StoredTopic:
        """The topic with a fair share of queues on each shard, durable: new ones, on shards that have too few.

        What there is stays. ``check`` is exact, as in :meth:`create`. Raises ``UnknownTopic``, ``InvalidRequest`` for a
        named one, and what ``check`` raises.
        """

    async def alter(self, name: str, changes: Mapping[str, Any], check: CheckOptions) -> StoredTopic:
        """The topic with some options changed, durable; None takes one away. ``check`` may refuse what comes out.

        Raises ``UnknownTopic``, ``InvalidRequest``.
        """

    async def delete(self, name: str, meant: int | None = None) -> StoredTopic:
        """``meant``: its id; one that was made anew under the name stays. Raises ``UnknownTopic``."""


class RightsDocuments(Protocol):
    """Who may do what, as documents that all nodes agree on (:mod:`lsmq_node.rights`). Loop thread only."""

    #: Nodes sign with the first what they say of clients to each other, and believe what is signed by any. Empty for a
    #: node of its own, which says nothing to others.
    voucher_keys: Sequence[bytes]

    def known(self) -> tuple[int, Mapping[str, bytes]]:
        """As they are known here, and their version, which grows with each change."""

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back in the loop after each change that becomes known here, and now and then besides."""

    async def newest(self) -> None:
        """Have :meth:`known` tell all that was agreed on before. Raises ``Unavailable`` where nobody can be asked."""

    async def change(self, changes: Mapping[str, bytes | None], version: int) -> bool:
        """Put and delete documents, durably, all or none; False where they are not of this version any more.

        Afterwards :meth:`known` tells of it. Raises ``TooManyRights``, ``Unavailable``, ``TimedOut``.
        """


class Topology(Protocol):
    """Owned by the broker that is given it."""

    #: How the leaders of shards that are not led here are asked.
    peers: Peers
    #: Where the shards at this node lie.
    disks: NodeDisks

    @property
    def clock(self) -> Clock:
        """What is stored at this node is stamped by it."""

    @property
    def home_shards(self) -> int:
        """Shards there were at first: groups are coordinated in these, and topics without ranges lie on them."""

    @property
    def shard_count(self) -> int:
        """Shards there are in all; a new topic's queues are spread over them."""

    @property
    def topics(self) -> Topics: ...

    @property
    def rights(self) -> RightsDocuments: ...

    def ports(self) -> Sequence[ShardPort]:
        """The shards at this node, by number."""

    def port(self, shard: int) -> ShardPort:
        """Raises ``NotLeader`` when the shard is not here, ``ShardStopped`` where it should be and its disk is lost."""

    def lost_shards(self) -> Sequence[int]:
        """Shards that should be here, and lie on a disk that cannot be used."""

    def leadership(self, shard: int) -> Leadership: ...

    def followers(self, shard: int) -> Sequence[str]:
        """How clients reach the replicas in sync beside the leader."""

    def overview(self, own_url: str) -> dict[str, Any]:
        """Nodes and shards, as ``GET /v1/cluster`` shows them; ``own_url`` is how the caller reaches this node.

        Raises ``Unavailable`` where nothing is known of the cluster yet.
        """

    async def plan(self) -> dict[str, Any]:
        """What the cluster is about to move by itself, as ``GET /v1/cluster/plan`` shows it. Raises ``Unavailable``."""

    async def plan_growth(self, shards: int) -> dict[str, Any]:
        """Where new shards would lie if there were ``shards``, as ``GET /v1/cluster/growth`` shows it.

        Raises ``InvalidRequest`` where there cannot be so many, ``Unavailable``.
        """

    async def grow_shards(self, shards: int) -> dict[str, Any]:
        """Have ``shards`` in all, durably; nothing happens where there are. Raises as :meth:`plan_growth` does, and
        what opening a store raises."""

    async def administer(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out a command on the cluster. Raises ``InvalidRequest`` when it is refused, ``Unavailable``."""

    def not_ready(self) -> Sequence[str]:
        """Why requests should not be sent here yet; empty when they may."""

    def gauges(self) -> Mapping[str, float]:
        """Numbers of the node as a member of its cluster, for metrics."""

    async def retire(self) -> None:
        """The node is about to stop: hand over what others can do, in a short time."""

    async def close(self) -> None:
        """Finish the writes in flight and close the stores."""
