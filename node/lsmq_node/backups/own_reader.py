"""Snapshots as a node reads them that makes a backup itself: its own where it leads, others from their leaders.

Nodes ask each other over their internal port, with proof of the cluster's secret: whoever had the backup made was asked
what he may when it began, and it goes on when he has gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

from lsmq import runtime
from lsmq.errors import InvalidRequest, LsmqError, NotLeader, SnapshotGone
from lsmq.shard_snapshots import HeldSnapshot
from lsmq_node.broker import Broker
from lsmq_node.broker.backup_source import BackupSource
from lsmq_node.broker.leader_calls import LeaderCalls
from lsmq_node.broker.snapshot_sessions import MAX_COMPARE_BYTES, MAX_PIECE_BYTES
from lsmq_node.storage import StoredTopic
from lsmq_node.storage.snapshot import encode_snapshot

#: What one question of another node may take: it writes what is in memory to a table first.
_ASK_S = 60.0
#: So long a leader of a shard is waited for.
_PATIENCE_S = 30.0
_AGAIN_S = 0.2
#: One is let go after a minute without a word.
_HOLD_EVERY_S = 10.0


class SnapshotCalls:
    """What leaders of shards are asked by a node that makes a backup, and this one's answers. One for each node."""

    def __init__(self, broker: Broker, source: BackupSource) -> None:
        self.broker = broker
        self._source = source
        self._calls = LeaderCalls(broker.topology, "backup", self._carry_out, _ASK_S)

    async def ask(self, shard: int, do: str, **fields: Any) -> dict[str, Any]:
        """Raises what the leader answers, ``Unavailable``, ``ConnectionFailed``."""
        return await self._calls.ask(shard, {"do": do, **fields})

    async def _carry_out(self, shard: int, asked: dict[str, Any]) -> dict[str, Any]:
        do, source = asked["do"], self._source
        if do == "begin":
            begun = await source.begin(shard, str(asked["holder"]))
            snapshot = begun.source.snapshot
            return {
                "url": self.broker.config.public_url,
                "id": begun.id,
                "lsn": snapshot.applied_lsn,
                "manifest": encode_snapshot(snapshot),
                "files": [[file.name, file.size_bytes] for file in snapshot.files],
            }
        session = source.get(shard, str(asked["id"]))
        if do == "hold":
            return {}
        if do == "end":
            source.sessions.end(session)
            return {}
        file, offset, length = str(asked["file"]), int(asked["offset"]), int(asked["length"])
        if not 0 < length <= (MAX_PIECE_BYTES if do == "read" else MAX_COMPARE_BYTES):
            raise InvalidRequest(f"length is {length}; a piece to {do} has {MAX_COMPARE_BYTES} bytes at most")
        await source.throttle.take(length)
        if do == "read":
            return {"piece": await source.sessions.read(session, file, offset, length)}
        return {"crc32c": await source.sessions.checksum(session, file, offset, length)}


class OwnReader:
    """Of one backup."""

    def __init__(self, calls: SnapshotCalls) -> None:
        self._calls = calls
        self._holder = f"backup-{runtime.token_hex(8)}"

    async def shards(self) -> tuple[str | None, Sequence[int], int]:
        topology = self._calls.broker.topology
        name: str | None = topology.overview("")["cluster"]
        return name, range(topology.shard_count), topology.home_shards

    async def topics(self) -> Sequence[StoredTopic]:
        return await self._calls.broker.topology.topics.newest()

    async def begin(self, shard: int) -> HeldSnapshot:
        until = runtime.monotonic() + _PATIENCE_S
        while True:
            try:
                found = await self._calls.ask(shard, "begin", holder=self._holder)
            except LsmqError as error:
                if not (error.retriable or isinstance(error, NotLeader)) or runtime.monotonic() > until:
                    raise
                await asyncio.sleep(_AGAIN_S)
                continue
            files = tuple((name, size) for name, size in found["files"])
            return HeldSnapshot(found["url"], shard, found["id"], found["lsn"], found["manifest"], files)

    async def read(self, snapshot: HeldSnapshot, file: str, offset: int, length: int) -> bytes:
        piece: bytes = (await self._ask(snapshot, "read", file=file, offset=offset, length=length))["piece"]
        return piece

    async def checksum(self, snapshot: HeldSnapshot, file: str, offset: int, length: int) -> int:
        return int((await self._ask(snapshot, "checksum", file=file, offset=offset, length=length))["crc32c"])

    async def keep(self, snapshots: Collection[HeldSnapshot]) -> None:
        while True:
            await asyncio.sleep(_HOLD_EVERY_S)
            for held in list(snapshots):
                with suppress(LsmqError):  # whoever reads it hears of it
                    await self._ask(held, "hold")

    async def end(self, snapshot: HeldSnapshot) -> None:
        await self._ask(snapshot, "end")

    async def _ask(self, snapshot: HeldSnapshot, do: str, **fields: Any) -> dict[str, Any]:
        """Of the shard's leader: where that is another one by now, the snapshot is begun again there."""
        try:
            return await self._calls.ask(snapshot.shard, do, id=snapshot.id, **fields)
        except NotLeader as error:
            raise SnapshotGone(f"shard {snapshot.shard} has another leader by now; begin again") from error
