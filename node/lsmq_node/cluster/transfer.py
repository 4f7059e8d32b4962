"""Snapshots between nodes: one replica's table files to a node whose replica the log alone does not reach.

All requests belong to the internal HTTP server, behind ``auth_middleware``:

- ``POST /internal/snapshots/{shard}`` with msgpack ``{"holder", "at_least_lsn"}``: begin. Answers ``{"id",
  "snapshot"}``, the latter as docs/formats/snapshot.md has it. A holder has one snapshot of a shard: a new one ends
  the old.
- ``GET /internal/snapshots/{shard}/{id}/{file}?offset=N&length=N``: a piece of a file.
- ``GET /internal/snapshots/{shard}/{id}/{file}/checksum?offset=N&length=N``: ``{"crc32c"}`` of a range.
- ``DELETE /internal/snapshots/{shard}/{id}``: the files have been read.

A piece is an ordinary answer, not a stream: so it carries the proof of the cluster secret over its bytes like every
other answer, nothing is written that was not proven, and a lost connection costs one piece.

Any step may fail or be repeated. The downloader goes on where it stopped, with the same snapshot where the source
still has it, else with a new one, of which it keeps whatever files are the same; it gives up when nothing has
moved for ``PATIENCE_S``. What it has is kept for the next attempt, also across restarts, until the replica is in sync
without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import web

from lsmq import runtime
from lsmq.errors import Unavailable
from lsmq_coordinator.auth import ClusterSecret
from lsmq_coordinator.names import Names
from lsmq_coordinator.tls import Certificates
from lsmq_node.broker.throttle import Throttle
from lsmq_node.storage import ShardStore
from lsmq_node.storage.snapshot import SnapshotManifest
from lsmq_node.storage.snapshot_install import install
from lsmq_node.storage.snapshot_target import let_go

from .ports import TransferProgress
from .transfer_client import Download, SignedRequests
from .transfer_server import SnapshotServer

PATIENCE_S = 20.0
#: Left free on the disk of a downloading node.
MIN_FREE_BYTES = 64 << 20
_THREADS = 4


class Snapshots:
    """A node's part in both directions. Loop thread only; an async context manager.

    Args:
        store: the open store of a shard here, None where there is none.
        address: the internal URL of a node, None while it is not known.
        bytes_per_s: for all that is fetched, and again for all that is given.
    """

    def __init__(
        self,
        secret: ClusterSecret,
        store: Callable[[int], ShardStore | None],
        address: Callable[[str], str | None],
        bytes_per_s: int,
        *,
        patience_s: float = PATIENCE_S,
        min_free_bytes: int = MIN_FREE_BYTES,
        tls: Certificates | None = None,
    ) -> None:
        self._tls = tls
        self._secret = secret
        self._store = store
        self._address = address
        self._patience_s = patience_s
        self._min_free_bytes = min_free_bytes
        self._threads = runtime.ThreadPoolExecutor(
            _THREADS, "lsmq-snapshot"
        )  # their own: a flush may be waited for in them
        self._server = SnapshotServer(store, Throttle(bytes_per_s), self._threads)
        self._throttle = Throttle(bytes_per_s)
        self._holder = runtime.token_hex(8)
        self._session: aiohttp.ClientSession | None = None
        self._locks: dict[Path, asyncio.Lock] = {}

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(keepalive_timeout=30, limit=64, resolver=Names(), use_dns_cache=False)
        self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.close()
        if self._session is not None:
            await self._session.close()
        self._threads.shutdown(wait=False)

    def routes(self) -> list[web.RouteDef]:
        """For the internal HTTP server. They check no proof themselves."""
        return self._server.routes()

    async def fetch(self, shard: int, peer: str, path: Path, progress: TransferProgress) -> Callable[[], None]:
        """Download a snapshot of a shard from ``peer`` into the directory ``path`` of its replica, which may be open.

        Returns what puts the snapshot in the store's place: a blocking function, to be called in a thread when the
        store is closed (see ``storage.snapshot_install``). Raises as :meth:`gather`, and ``Unavailable`` when the
        snapshot lacks what was applied here.
        """
        snapshot = await self.gather(shard, peer, path, progress)
        applied_lsn = self._applied_lsn(shard)
        if snapshot.applied_lsn < applied_lsn:
            raise Unavailable(
                f"the snapshot of {peer!r} is of LSN {snapshot.applied_lsn}; {applied_lsn} is applied here"
            )

        def put_in_place() -> None:
            install(path)

        return put_in_place

    async def gather(self, shard: int, peer: str, path: Path, progress: TransferProgress) -> SnapshotManifest:
        """The download alone. What has come is kept: the next download, from whomever, fetches what differs.

        ``progress(done, total)``, in bytes, is called in the loop. May be cancelled.

        Raises ``Unavailable`` or ``ConnectionFailed`` when nothing has moved for too long; ``CorruptFile`` when files
        of the source are damaged; ``DiskFull``, ``StorageError``, ``OSError`` for the disk here.
        """
        assert self._session is not None, "not entered"
        url = self._address(peer)
        if url is None:
            raise Unavailable(f"the address of node {peer!r} is not known")
        async with self._locks.setdefault(path, asyncio.Lock()):
            requests = SignedRequests(self._session, self._secret, url, self._tls)
            download = Download(
                requests,
                shard,
                path,
                holder=self._holder,
                throttle=self._throttle,
                threads=self._threads,
                min_free_bytes=self._min_free_bytes,
                progress=progress,
            )
            return await download.run(lambda: self._applied_lsn(shard), self._patience_s)

    async def let_go(self, path: Path) -> None:
        """Remove what has come: the replica in the directory ``path`` has all without it. Raises ``OSError``."""
        async with self._locks.setdefault(path, asyncio.Lock()):
            await asyncio.get_running_loop().run_in_executor(self._threads, let_go, path)

    def _applied_lsn(self, shard: int) -> int:
        store = self._store(shard)
        return 0 if store is None else store.committed_lsn
