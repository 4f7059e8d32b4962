"""Snapshots of shards, read from the nodes that lead them, for those who keep backups.

A snapshot is begun at the leader of its shard and read there, whoever leads meanwhile. What may pass is tried again
until the client's deadline; a snapshot that its node has let go raises ``SnapshotGone``: then it is begun again.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from lsmq._paths import quoted
from lsmq._retries import Backoff, Deadline, give_up
from lsmq._transport import Response
from lsmq.admin import ClusterAdmin, ClusterInfo
from lsmq.client import Client
from lsmq.errors import LsmqError, NotLeader, SnapshotGone, Unavailable

__all__ = ["HeldSnapshot", "ShardSnapshots"]

#: The node writes what is in memory to a table first.
_BEGIN_TIMEOUT_S = 30.0
#: One is let go after a minute without a word.
_HOLD_EVERY_S = 10.0
#: A whole file is read, in its turn.
_VERIFY_TIMEOUT_S = 120.0
#: For so long the node that holds a snapshot is waited for; then another one may give the shard sooner.
_PATIENCE_MS = 3_000


@dataclass(frozen=True, slots=True)
class HeldSnapshot:
    """A snapshot that a node holds.

    ``lsn``: it holds all that the shard had logged before. ``manifest`` says what it is made of
    (``docs/formats/snapshot.md``), ``files`` are names and sizes in bytes.
    """

    url: str
    shard: int
    id: str
    lsn: int
    manifest: bytes
    files: tuple[tuple[str, int], ...]


class ShardSnapshots:
    """Of one client, with its deadline and timeout."""

    def __init__(self, client: Client, holder: str) -> None:
        """``holder`` names the reader: of a shard it has one snapshot at a time."""
        self._client = client
        self._admin = ClusterAdmin(client)
        self._holder = holder

    async def cluster(self) -> ClusterInfo:
        """The nodes and shards there are."""
        return await self._admin.overview()

    async def begin(self, shard: int) -> HeldSnapshot:
        """Hold a snapshot of all that was acknowledged before this call. Raises ``Unavailable`` while nobody leads."""
        path, deadline, backoff = f"/v1/shards/{shard}/snapshots", Deadline(self._client.deadline_ms), Backoff()
        while True:
            try:
                url = await self._leader(shard)
                answer = await self._client._transport.request(
                    "POST", url + path, value={"holder": self._holder}, timeout_s=_BEGIN_TIMEOUT_S
                )
            except LsmqError as error:
                if not (error.retriable or isinstance(error, NotLeader)):
                    raise
                if deadline.passed:
                    raise give_up(error, "POST", path, deadline) from error
                await backoff.pause(deadline)
                continue
            return answer.parsed(partial(_held, url, shard))

    async def _leader(self, shard: int) -> str:
        info = await self._admin.overview()
        leader = next((found.leader for found in info.shards if found.id == shard), None)
        for node in info.nodes:
            if node.id == leader:
                return str(node.url).rstrip("/")
        raise Unavailable(f"shard {shard} has no leader now", shard=shard)

    async def read(self, snapshot: HeldSnapshot, file: str, offset: int, length: int) -> bytes:
        """A piece of a file. Raises ``SnapshotGone``."""
        answer = await self._ask(snapshot, "GET", f"/files/{quoted(file)}", offset=offset, length=length)
        return answer.body

    async def checksum(self, snapshot: HeldSnapshot, file: str, offset: int, length: int) -> int:
        """CRC32C of a range of a file. Raises ``SnapshotGone``."""
        answer = await self._ask(snapshot, "GET", f"/files/{quoted(file)}/checksum", offset=offset, length=length)
        return answer.parsed(lambda fields: int(fields["crc32c"]))

    async def verify(self, snapshot: HeldSnapshot, file: str) -> tuple[str, int] | None:
        """Have the node read a whole file: what is damaged and from which byte on, None where nothing is.

        Raises ``SnapshotGone``.
        """
        answer = await self._ask(snapshot, "POST", f"/files/{quoted(file)}/verify", timeout_s=_VERIFY_TIMEOUT_S)
        return answer.parsed(
            lambda fields: None if fields["whole"] else (str(fields["damage"]), int(fields["position"]))
        )

    async def hold(self, snapshot: HeldSnapshot) -> None:
        """Have it held on. Raises ``SnapshotGone``."""
        await self._ask(snapshot, "GET", "")

    async def keep(self, snapshots: Collection[HeldSnapshot]) -> None:
        """Until cancelled, have all of them held on that are not being read at the moment."""
        while True:
            await asyncio.sleep(_HOLD_EVERY_S)
            for held in list(snapshots):
                with suppress(LsmqError):  # whoever reads it hears of it
                    await self.hold(held)

    async def end(self, snapshot: HeldSnapshot) -> None:
        """Let it go. Raises ``SnapshotGone``."""
        await self._ask(snapshot, "DELETE", "")

    async def _ask(
        self, snapshot: HeldSnapshot, method: str, what: str, *, timeout_s: float | None = None, **query: Any
    ) -> Response:
        """Ask the node that holds it, and nobody else."""
        path = f"/v1/shards/{snapshot.shard}/snapshots/{snapshot.id}{what}"
        deadline, backoff = Deadline(min(self._client.deadline_ms, _PATIENCE_MS)), Backoff()
        params = {name: str(value) for name, value in query.items()}
        while True:
            try:
                return await self._client._transport.request(
                    method,
                    snapshot.url + path,
                    params=params,
                    timeout_s=timeout_s or self._client.request_timeout_ms / 1000,
                )
            except NotLeader as error:  # It was started again, or has let it go, and another node leads by now.
                raise SnapshotGone(f"{snapshot.url} does not hold the snapshot any more; begin again") from error
            except LsmqError as error:
                if not error.retriable:
                    raise
                if deadline.passed:
                    raise give_up(error, method, path, deadline) from error
                await backoff.pause(deadline)


def _held(url: str, shard: int, fields: Mapping[str, Any]) -> HeldSnapshot:
    files = tuple((str(file["name"]), int(file["size_bytes"])) for file in fields["files"])
    manifest = base64.b64decode(fields["snapshot_b64"])
    return HeldSnapshot(url, shard, str(fields["id"]), int(fields["lsn"]), manifest, files)
