"""What a backup is made of, and where it comes from: nodes that are asked over the API, or the node that makes it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from lsmq.client import Client
from lsmq.shard_snapshots import HeldSnapshot, ShardSnapshots
from lsmq.topics import Topic
from lsmq_coordinator.state import spread_queues
from lsmq_node.storage import StoredTopic, TopicOptions


class SnapshotReader(Protocol):
    """Reads snapshots of shards from whoever leads them; see :class:`lsmq.shard_snapshots.ShardSnapshots`."""

    async def shards(self) -> tuple[str | None, Sequence[int], int]:
        """The cluster's name, None for a node of its own, the shards there are, and how many there were at first."""

    async def topics(self) -> Sequence[StoredTopic]:
        """As of now."""

    async def begin(self, shard: int) -> HeldSnapshot:
        """Of all that was acknowledged before. Raises ``Unavailable`` while nobody leads."""

    async def read(self, snapshot: HeldSnapshot, file: str, offset: int, length: int) -> bytes:
        """A piece of a file. Raises ``SnapshotGone``."""

    async def checksum(self, snapshot: HeldSnapshot, file: str, offset: int, length: int) -> int:
        """CRC32C of a range of a file. Raises ``SnapshotGone``."""

    async def keep(self, snapshots: Collection[HeldSnapshot]) -> None:
        """Until cancelled, have all of them held on."""

    async def end(self, snapshot: HeldSnapshot) -> None:
        """Let it go. Raises ``SnapshotGone``."""


class ApiReader(ShardSnapshots):
    """Over the API, with the rights of a client."""

    def __init__(self, client: Client, holder: str) -> None:
        super().__init__(client, holder)
        self._asking = client

    async def shards(self) -> tuple[str | None, Sequence[int], int]:
        info = await self.cluster()
        return info.name, [shard.id for shard in info.shards], info.home_shards or len(info.shards)

    async def topics(self) -> Sequence[StoredTopic]:
        _, _, home_shards = await self.shards()
        found, after = [], ""
        while True:
            page = await self._asking.ask("GET", f"/v1/topics?after={after}")
            for fields in page["topics"]:
                topic = Topic.from_dict(fields)
                ranges = tuple((route.first, route.end, route.shard) for route in topic.routes)
                options = TopicOptions.from_dict(
                    {**fields["options"], "named": topic.named, "revision": fields["revision"]}
                )
                kept = () if ranges == spread_queues(0, topic.queues, home_shards) else ranges
                found.append(StoredTopic(topic.id, topic.name, topic.queues, options, topic.created_ms, kept))
            if page["next"] is None:
                return found
            after = page["next"]
