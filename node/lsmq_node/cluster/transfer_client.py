"""The fetching side of snapshots between nodes. See :mod:`.transfer` for the requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgpack
import structlog
from yarl import URL

from lsmq import runtime
from lsmq.errors import (
    ConnectionFailed,
    CorruptFile,
    DiskFull,
    InvalidRequest,
    LsmqError,
    SnapshotGone,
    Unavailable,
    from_dict,
)
from lsmq_coordinator.auth import ANSWER_HEADER, START_HEADER, ClusterSecret, Signer
from lsmq_coordinator.errors import NotAuthenticated
from lsmq_coordinator.http_status import status_of
from lsmq_coordinator.tls import Certificates
from lsmq_node.broker.snapshot_sessions import MAX_COMPARE_BYTES, MAX_PIECE_BYTES
from lsmq_node.broker.throttle import Throttle
from lsmq_node.storage.snapshot import SnapshotFile, SnapshotManifest, decode_snapshot
from lsmq_node.storage.snapshot_target import SnapshotTarget

from .ports import TransferProgress

_log = structlog.get_logger("lsmq.cluster")

T = TypeVar("T")

BEGIN_TIMEOUT_S = 30.0  # the source flushes first
REQUEST_TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 64 << 20
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
#: A file whose contents were wrong is fetched once more: only then is the source to blame.
_ATTEMPTS_A_FILE = 2
_ATTEMPTS = 2  # the first request may be for an earlier start of the node


class SignedRequests:
    """Signed requests to one node, and proof that the answers are of the cluster."""

    def __init__(
        self, session: aiohttp.ClientSession, secret: ClusterSecret, url: str, tls: Certificates | None = None
    ) -> None:
        self._tls = tls
        self.url = url.rstrip("/")
        self._session = session
        self._signer = Signer(secret)
        self._host = urlsplit(url).netloc

    async def call(self, method: str, path: str, body: bytes = b"", timeout_s: float = REQUEST_TIMEOUT_S) -> bytes:
        """The proven body. Raises the error that is answered, ``ConnectionFailed`` or ``NotAuthenticated``."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._call(method, path, body)
        except (aiohttp.ClientError, OSError) as error:
            raise ConnectionFailed(f"{self.url} gave no answer: {type(error).__name__}: {error}") from error

    async def _call(self, method: str, path: str, body: bytes) -> bytes:
        for _ in range(_ATTEMPTS):
            signed = self._signer.sign(method, path, self._host, body)
            async with self._session.request(
                method,
                URL(self.url + path, encoded=True),
                data=body,
                headers={**signed.headers, "Host": self._host, "Content-Type": "application/msgpack"},
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None),
                ssl=True if self._tls is None else self._tls.client,
            ) as answer:
                if (answer.content_length or 0) > MAX_ANSWER_BYTES:
                    raise ConnectionFailed(f"{self.url} answered {answer.content_length} bytes")
                received = await answer.read()
            if answer.status != status_of(NotAuthenticated):
                self._signer.check_answer(signed, answer.status, answer.headers.get(ANSWER_HEADER), received)
                if answer.status >= 400:
                    raise _error(answer.status, received)
                return received
            if not self._signer.learn(signed, answer.headers.get(START_HEADER)):
                break
        raise NotAuthenticated(f"{self.url} refuses this node: {received[:500].decode(errors='replace')}")


def _error(status: int, received: bytes) -> LsmqError:
    try:
        fields = dict(msgpack.unpackb(received)["error"])
    except (ValueError, TypeError, KeyError):
        return LsmqError(f"answered {status} with something that is no error of ours")
    return from_dict(fields)


class Download:
    """One download into one directory. What is there when it ends, however it ends, is kept for the next."""

    def __init__(
        self,
        requests: SignedRequests,
        shard: int,
        path: Path,
        *,
        holder: str,
        throttle: Throttle,
        threads: runtime.ThreadPoolExecutor,
        min_free_bytes: int,
        progress: TransferProgress,
    ) -> None:
        self._requests = requests
        self._base = f"/internal/snapshots/{shard}"
        self._shard = shard
        self._path = path
        self._holder = holder
        self._throttle = throttle
        self._threads = threads
        self._min_free_bytes = min_free_bytes
        self._progress = progress
        self._id: str | None = None
        self._target: SnapshotTarget | None = None
        self._compared: set[str] = set()
        self._failed: dict[str, int] = {}
        self._moved_at = 0.0
        self._failures = 0

    async def run(self, at_least_lsn: Callable[[], int], patience_s: float) -> SnapshotManifest:
        """Returns when the snapshot lies in the directory, complete and verified. Raises as ``Snapshots.fetch``."""
        self._moved_at = asyncio.get_running_loop().time()
        try:
            while True:
                try:
                    target = self._target if self._id is not None else None
                    return await self._fetch_all(target or await self._begin(at_least_lsn()))
                except SnapshotGone as gone:
                    self._id = None
                    await self._pause(gone, patience_s)
                except DiskFull:
                    raise
                except (Unavailable, ConnectionFailed, NotAuthenticated) as error:
                    await self._pause(error, patience_s)
        finally:
            if self._target is not None:
                await self._in_thread(self._target.close)

    async def _pause(self, error: LsmqError, patience_s: float) -> None:
        """Before the next attempt. Raises the error when nothing has moved for too long."""
        loop = asyncio.get_running_loop()
        if self._failures == 0:
            _log.warning("snapshot_interrupted", shard=self._shard, source=self._requests.url, error=str(error))
        rest = self._moved_at + patience_s - loop.time()
        if rest <= 0:
            raise error
        await asyncio.sleep(min(rest, _LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**self._failures))
        self._failures = min(self._failures + 1, 10)

    def _moved(self, target: SnapshotTarget) -> None:
        self._moved_at = asyncio.get_running_loop().time()
        self._failures = 0
        self._progress(target.held_bytes, target.total_bytes)

    async def _begin(self, at_least_lsn: int) -> SnapshotTarget:
        body: bytes = msgpack.packb({"holder": self._holder, "at_least_lsn": at_least_lsn})
        answer = msgpack.unpackb(await self._requests.call("POST", self._base, body, BEGIN_TIMEOUT_S))
        snapshot = decode_snapshot(answer["snapshot"], self._requests.url)
        if self._target is not None:
            await self._in_thread(self._target.close)
            self._target = None
        self._target = target = await self._in_thread(partial(SnapshotTarget, self._path, snapshot))
        target.check_space(self._min_free_bytes)
        self._id = str(answer["id"])
        self._compared = {file.name for file in snapshot.files if not target.held(file.name)}
        _log.info(
            "snapshot_fetching",
            shard=self._shard,
            source=self._requests.url,
            lsn=snapshot.applied_lsn,
            bytes=target.total_bytes,
            held_bytes=target.held_bytes,
        )
        return target

    async def _fetch_all(self, target: SnapshotTarget) -> SnapshotManifest:
        for file in target.missing():
            await self._fetch(target, file)
        await self._in_thread(target.finish)
        self._moved(target)
        try:
            await self._requests.call("DELETE", f"{self._base}/{self._id}")
        except LsmqError as error:  # it will be let go in time
            _log.info("snapshot_not_ended", shard=self._shard, error=str(error))
        _log.info("snapshot_fetched", shard=self._shard, lsn=target.snapshot.applied_lsn, bytes=target.total_bytes)
        return target.snapshot

    async def _fetch(self, target: SnapshotTarget, file: SnapshotFile) -> None:
        name = file.name
        if name not in self._compared:
            await self._compare(target, name)
            self._compared.add(name)
        while not target.is_complete(name):
            while (at := target.held(name)) < file.size_bytes:
                length = min(MAX_PIECE_BYTES, file.size_bytes - at)
                await self._throttle.take(length)
                piece = await self._get(f"{name}?offset={at}&length={length}")
                if len(piece) != length:
                    raise ConnectionFailed(f"{self._requests.url} gave {len(piece)} of {length} bytes of {name}")
                await self._in_thread(partial(target.write, name, at, piece))
                self._moved(target)
            try:
                await self._in_thread(partial(target.complete, name))
            except CorruptFile as damage:
                self._failed[name] = self._failed.get(name, 0) + 1
                if self._failed[name] >= _ATTEMPTS_A_FILE:
                    raise CorruptFile(
                        f"{name} is damaged at its source, {self._requests.url}, shard {self._shard}: {damage.message}",
                        **damage.details,
                    ) from damage
                _log.warning("snapshot_file_damaged", shard=self._shard, error=damage.message)

    async def _compare(self, target: SnapshotTarget, name: str) -> None:
        """Keep of what is here what the source has as well, from the beginning on."""
        held, at = target.held(name), 0
        while at < held:
            length = min(MAX_COMPARE_BYTES, held - at)
            answer = msgpack.unpackb(await self._get(f"{name}/checksum?offset={at}&length={length}"))
            if answer["crc32c"] != await self._in_thread(partial(target.checksum, name, at, length)):
                target.keep(name, at)
                return
            at += length
            self._moved(target)

    async def _get(self, what: str) -> bytes:
        try:
            return await self._requests.call("GET", f"{self._base}/{self._id}/{what}")
        except InvalidRequest as error:  # it knows the snapshot, but not such a file: they are not the same
            raise SnapshotGone(error.message) from error

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Blocking work, which is over when this ends, even when cancelled: the next one may use the same files."""
        future = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise
