"""Routes from ZooKeeper: reads the documents that the cluster publishes. With :mod:`.kazoo_handler` the only module
here that imports kazoo.

All of it happens in one thread, which crosses into the event loop by ``call_soon_threadsafe`` and is never waited
for but at the end. It reads at each connection, every ``refresh_s`` and when told to; kazoo's own threads are never
held up, and no watches are set, since they die silently. While ZooKeeper is away nothing happens but that: what is
known stays, and nodes tell more. When it does not answer at the start, for ``PATIENCE_S``, the copy on disk takes
its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from lsmq._route_documents import ClusterDocument, DiskCopy, RouteDocuments, TopicDocument
from lsmq._tls import refusal
from lsmq.errors import InvalidRequest
from lsmq.kazoo_handler import TLS_SCHEME, KazooHandler

PATIENCE_S = 1.0
_SESSION_TIMEOUT_S = 10.0
_CALL_TIMEOUT_S = 5.0
_RETRY_S = 0.5
_SHORTEST_INTERVAL_S = 0.1  # between two readings that somebody asked for
_GOODBYE_S = 0.5  # how long a server may take to end the session; one that is gone would hold up the end for long
_STOP_TIMEOUT_S = 3.0
_log = logging.getLogger("lsmq")

_kazoo_log = logging.getLogger("lsmq.kazoo")  # It reports each failed attempt to connect; `trouble` says what matters.
_kazoo_log.setLevel(logging.CRITICAL)


class ZooKeeperRoutes:
    """A :class:`~lsmq._route_table.RouteSource`. ``hosts`` as in ``host:port,host:port/chroot``, with ``tls://`` before
    it where ZooKeeper is to be reached by TLS, by a context of ``tls``."""

    def __init__(
        self, hosts: str, cluster: str, *, refresh_s: float, copy: DiskCopy | None, tls: Callable[[], ssl.SSLContext]
    ) -> None:
        self._hosts = hosts
        self._root = f"/lsmq/{cluster}"
        self._refresh_s = refresh_s
        self._copy = copy
        self._followed: set[str] = set()  # Changed by the event loop alone; the thread takes copies.
        self._wake = threading.Event()
        self._asked = False
        self._stopping = False
        self._told = False
        self._last_error = ""
        self._copy_failed = False
        self._handler = KazooHandler(tls if hosts.startswith(TLS_SCHEME) else None)
        try:
            # Reads its hosts, and connects to nothing yet.
            self._client: Any = KazooClient(
                hosts.removeprefix(TLS_SCHEME),
                timeout=_SESSION_TIMEOUT_S,
                handler=self._handler,
                connection_retry={"max_tries": -1, "delay": 0.05, "max_delay": 0.5},
                command_retry={"max_tries": 0},
                logger=_kazoo_log,
            )
        except (ValueError, TypeError) as error:
            raise InvalidRequest(
                f"{hosts!r} does not say where ZooKeeper is; it looks like host:2181,host:2181 ({error})"
            ) from error
        self._thread = threading.Thread(target=self._run, name="lsmq zookeeper", daemon=True)

    # In the event loop

    def start(self, heard: Callable[[RouteDocuments], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._heard = heard
        self._ended = asyncio.Event()
        self._thread.start()

    def follow(self, name: str) -> None:
        self._followed.add(name)
        self.look()  # Last: the thread that wakes by it asks for what is followed then.

    def unfollow(self, name: str) -> None:
        self._followed.discard(name)

    def look(self) -> None:
        self._asked = True
        self._wake.set()

    def trouble(self) -> str:
        kept = f", and there is no copy of its routes at {self._copy.path}" if self._copy is not None else ""
        if self._last_error:
            return f"ZooKeeper at {self._hosts} was read without success ({self._last_error}){kept}"
        hint = ""
        if self._hosts.startswith(TLS_SCHEME):
            hint = "; it may want to see a certificate that it believes (cert)"
        elif self._handler.reached:
            hint = f"; it takes connections: if it speaks TLS alone, write {TLS_SCHEME} before its hosts"
        return f"ZooKeeper at {self._hosts} has not answered{hint}{kept}"

    async def stop(self) -> None:
        self._stopping = True
        self._wake.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await self._ended.wait()
                self._thread.join()

    # In the thread

    def _run(self) -> None:
        try:
            self._client.add_listener(self._listen)
            self._client.start_async()
            started_s = time.monotonic()
            delay_s = PATIENCE_S
            while not self._stopping:
                self._wake.wait(delay_s)
                self._wake.clear()
                if self._stopping:
                    break
                try:
                    delay_s = self._read_if_connected()
                except Exception:
                    _log.exception("reading routes from ZooKeeper broke, trying again: hosts=%s", self._hosts)
                    delay_s = PATIENCE_S
                if not self._told and time.monotonic() - started_s >= PATIENCE_S:
                    self._tell_copy()
        finally:
            impatience = threading.Timer(_GOODBYE_S, self._handler.cut)
            impatience.start()
            with contextlib.suppress(Exception):
                self._client.stop()
            with contextlib.suppress(Exception):
                self._client.close()
            impatience.cancel()
            impatience.join()
            self._cross(self._ended.set)

    def _listen(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._wake.set()

    def _read_if_connected(self) -> float:
        """Read what there is; return seconds until the next time, unless something wakes the thread."""
        if not self._client.connected:
            if (refused := self._handler.refused) is not None:
                self._last_error = refusal(refused) or str(refused)
            return _RETRY_S if self._told else _RETRY_S / 5
        asked, self._asked = self._asked, False
        try:
            self._read(fresh=asked)
        except NoNodeError:
            self._last_error = f"there is no {self._root}/cluster; is the name of the cluster right?"
        except (KazooException, KazooTimeoutError, OSError, RuntimeError, ValueError) as error:
            self._last_error = f"{type(error).__name__}: {error}"
        else:
            self._last_error = ""
            time.sleep(_SHORTEST_INTERVAL_S)
            return self._refresh_s
        _log.debug("no routes from ZooKeeper: hosts=%s error=%s", self._hosts, self._last_error)
        return _RETRY_S

    def _read(self, *, fresh: bool) -> None:
        path = f"{self._root}/cluster"
        if fresh:
            # The server that answers may lag behind those that were written to.
            self._client.sync_async(path).get(timeout=_CALL_TIMEOUT_S)
        cluster = json.loads(self._client.get_async(path).get(timeout=_CALL_TIMEOUT_S)[0])
        pending = {name: self._client.get_async(f"{self._root}/topics/{name}") for name in self._followed.copy()}
        topics: dict[str, dict[str, Any]] = {}
        parsed = []
        for name, answer in pending.items():
            with contextlib.suppress(NoNodeError, ValueError, RecursionError):  # One that is none is not there.
                document = json.loads(answer.get(timeout=_CALL_TIMEOUT_S)[0])
                parsed.append(TopicDocument.from_dict(document))
                topics[name] = document
        self._tell(RouteDocuments(ClusterDocument.from_dict(cluster), tuple(parsed)))
        if self._copy is None:
            return
        try:
            self._copy.save(cluster, topics)
        except OSError as error:
            if not self._copy_failed:
                _log.warning("routes cannot be kept on disk: file=%s error=%s", self._copy.path, error)
            self._copy_failed = True

    def _tell_copy(self) -> None:
        if self._copy is not None and (kept := self._copy.load()) is not None:
            _log.warning("no routes from ZooKeeper, going by the copy of earlier ones: file=%s", self._copy.path)
            self._tell(kept)

    def _tell(self, documents: RouteDocuments) -> None:
        self._told = True
        self._cross(lambda: self._heard(documents))

    def _cross(self, call: Callable[[], None]) -> None:
        # The loop may be closed already, when the client was not.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)
