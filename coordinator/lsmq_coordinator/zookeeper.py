"""The node in ZooKeeper: its registration and the routes it publishes. The only module that imports kazoo.

Paths: ``/lsmq/<cluster>/nodes/<id>`` (ephemeral), ``/lsmq/<cluster>/topics/<name>`` and ``/lsmq/<cluster>/cluster``
(JSON, see :mod:`~.routes`). Clients read them; the cluster itself works without ZooKeeper.

All of it happens in one thread: nothing here blocks the event loop or raises into it. The thread wakes for a new
state, for each change of the connection and every ``refresh_s``, and then makes ZooKeeper say what it should,
whatever was lost meanwhile. A failed attempt is repeated after ``retry_s``. What it does about kazoo:

- ephemeral nodes are gone after an expired session: registration is checked at each wake, and each connection
  wakes; a node that is there counts as ours only when ``ephemeralOwner`` is this session;
- LOST is told only after reconnecting: ``status`` goes by the time since the last success;
- ConnectionLoss leaves open what happened: every write is a compare-and-set, and the next wake reads again;
- watches die silently with their parents: the thread looks. The one there is, on the cluster document, makes it look
  sooner.

**Publishing.** The cluster document is replaced first, by version compare-and-set, and never by an older state or
a lower epoch. Topic documents are then written in transactions that check that the cluster document is still the
one this state was compared with, so that a node that fell behind can neither bring a deleted topic back nor
delete a new one. Any node may publish; the one that is ``eager`` does so at once, others only at the refresh.

**Who may write.** With a password everybody may read what is here, and only those who have it may change it (ACLs of
the scheme ``digest``); nodes found without that protection are given it. With two, while a cluster changes its secret,
a session shows both, makes nodes under the first, and changes what is under either; the node that is ``eager`` brings
what is under the second under the first, at each refresh. (Were it everybody, nodes of before and after the exchange of
both would take it from each other.) A cluster document that no state can be, since
it is newer than the newest or differs from it, was not written by the cluster: the node that is ``eager`` replaces it
at once, after it has had the control plane confirm that its own state is the newest. Where that comes again and again,
another cluster has the same name: it is told of, and replaced ``MAX_REPLACED`` times a minute at most.
"""

from __future__ import annotations

import contextlib
import json
import logging
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from typing import Any

from kazoo.client import KazooClient, KazooState, TransactionRequest
from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.security import make_acl, make_digest_acl

from lsmq.kazoo_handler import TLS_SCHEME, KazooHandler

from .parts import UNSEEN, Part
from .pieces import NamedPieces
from .routes import Document, cluster_document, pack, same, supersedes, topic_document, unpack
from .state import EMPTY, ClusterState, TopicRecord
from .tls import reason

_TRANSACTION_SIZE = 50
_READ_AT_ONCE = 500
#: Documents of topics that did not change are compared so many at a refresh: it takes as long with
#: many topics as with few.
_LOOKED_AT = 500
#: So often within so long a time what the cluster did not write is replaced: who writes it may do so as well.
MAX_REPLACED, _REPLACED_S = 10, 60.0
#: Of `/lsmq`: any cluster may begin there.
_SHARED = make_acl("world", "anyone", read=True, create=True)

logging.getLogger("kazoo").setLevel(logging.CRITICAL)


@dataclass(frozen=True, slots=True)
class ZooKeeperConfig:
    """``hosts`` as in ``host:port,host:port/chroot``. Times in seconds.

    ``tls`` makes a context for each connection; ``hosts`` may begin with ``tls://`` then.
    ``passwords``: the first protects what is written, a second one is good for what is there. With none anybody may
    write.
    """

    hosts: str
    cluster: str
    node: str
    url: str
    passwords: tuple[str, ...] = field(default=(), repr=False)
    tls: Callable[[], ssl.SSLContext] | None = field(default=None, repr=False)
    session_timeout_s: float = 6.0
    refresh_s: float = 10.0
    retry_s: float = 0.5
    call_timeout_s: float = 5.0


@dataclass(frozen=True, slots=True)
class ZooKeeperStatus:
    """For metrics. ``last_success`` is a ``time.monotonic()``."""

    connected: bool = False
    registered: bool = False
    published_version: int = 0
    last_success: float = float("-inf")
    registrations: int = 0
    documents_written: int = 0
    refused_as_stale: int = 0
    forgeries_replaced: int = 0
    failures: int = 0
    last_error: str | None = None


class _Stale(Exception):
    """ZooKeeper holds something newer than what was to be published, or it changed meanwhile."""


class _NotOurs(_Stale):
    """It cannot be protected: it is under a password that this node does not have."""


class _Disputed(_Stale):
    """Somebody else writes the cluster's documents, again and again."""


class ZooKeeperRegistry:
    """Keeps this node registered and the routes published. Start it after any fork."""

    def __init__(
        self,
        config: ZooKeeperConfig,
        *,
        eager: Callable[[], bool] = lambda: True,
        newest: Callable[[], int | None] = lambda: None,
        part: Part = UNSEEN,
    ) -> None:
        """Both callables are asked in the registry's thread.

        Args:
            eager: whether this node publishes at once (the Raft leader).
            newest: a version of the state above which nothing was committed when it was called; None where this node
                cannot tell. May block.
            part: what the node tells of this.
        """
        self.config = config
        self._part = part
        self.status = ZooKeeperStatus()
        self._eager = eager
        self._newest = newest
        self._acls = [_acl(config.cluster, password) for password in config.passwords]
        self._cluster_changed = False
        # kazoo has paths below hosts, but makes no more of one than its last part.
        self._hosts, _, below = config.hosts.removeprefix(TLS_SCHEME).partition("/")
        self._shared = "/".join(("", *filter(None, below.split("/")), "lsmq"))
        self._root = f"{self._shared}/{config.cluster}"
        self._started_ms = time.time_ns() // 1_000_000
        self._state = EMPTY
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="zookeeper", daemon=True)
        self._client: Any = None
        self._handler: KazooHandler | None = None
        self._cluster: tuple[Document, int] | None = None
        self._known_session: int | None = None
        #: The topics that ZooKeeper was last seen to have; None: it may have any.
        self._published: NamedPieces[TopicRecord] | None = None
        self._looked_until = ""
        self._replaced_s: deque[float] = deque(maxlen=MAX_REPLACED)
        self._refresh_at = 0.0
        self._began = time.monotonic()

    def start(self) -> None:
        """Returns at once, whether or not ZooKeeper is there."""
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Gives up the registration. Blocks for a moment: call it in a thread, or at the end."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def publish(self, state: ClusterState) -> None:
        """Have this state published. Returns at once; callable from any thread; the latest version wins."""
        if state.version > self._state.version:
            self._state = state
            self._wake.set()

    def refresh(self) -> None:
        """Look at everything again now."""
        self._refresh_at = 0.0
        self._wake.set()

    # The thread

    def _run(self) -> None:
        delay = 0.0
        while not self._stopping:
            self._wake.wait(delay)
            self._wake.clear()
            try:
                if self._client is None:
                    self._client = self._connecting()
                delay = self._look()
            except Exception as error:  # Nothing ends this thread but the node.
                former = self.status.last_error
                self._failed(error)
                if self.status.last_error != former:
                    logging.getLogger(__name__).exception("publishing to ZooKeeper failed")
                delay = self.config.retry_s
        self._close()

    def _connecting(self) -> Any:
        config = self.config
        self._handler = KazooHandler(config.tls)
        client = KazooClient(
            self._hosts,
            handler=self._handler,
            timeout=config.session_timeout_s,
            connection_retry={"max_tries": -1, "delay": 0.05, "max_delay": 0.5},
            command_retry={"max_tries": 0},
            auth_data=[("digest", f"{config.cluster}:{password}") for password in config.passwords],
            default_acl=self._acls[0] if self._acls else None,
            logger=logging.getLogger("kazoo"),
        )
        client.add_listener(self._listen)
        try:
            client.start_async()
        except BaseException:
            self._handler.stop()  # Its threads run already.
            raise
        return client

    def _failed(self, error: Exception) -> None:
        self._cluster = None
        self._refresh_at = 0.0
        why = f"{type(error).__name__}: {error}"
        self._note(last_error=why, failures=self.status.failures + 1)
        self._part.retrying(why)

    def _listen(self, state: str) -> None:
        # Runs in kazoo's thread, which must never be held up.
        self._note(connected=state == KazooState.CONNECTED)
        if state == KazooState.CONNECTED:
            self._refresh_at = 0.0
        else:
            self._note(registered=False)
        self._wake.set()

    def _look(self) -> float:
        """Do what is due; return seconds until the next time."""
        if self._stopping:
            return self.config.retry_s
        if not self._client.connected:
            if time.monotonic() - max(self.status.last_success, self._began) > self.config.session_timeout_s:
                self._part.retrying(f"no connection to {self.config.hosts}{self._why_refused()}")
            return self.config.retry_s
        try:
            now = time.monotonic()
            refresh = now >= self._refresh_at
            if refresh:
                self._cluster = None
                self._protect()
            self._register(refresh)
            behind = self._state.version > self.status.published_version
            changed, self._cluster_changed = self._cluster_changed, False
            if changed:
                self._cluster = None
            if self._state.version and (refresh or ((behind or changed) and self._eager())):
                self._publish(self._state, refresh)
            if refresh:
                self._refresh_at = now + self.config.refresh_s
            self._note(last_success=time.monotonic(), last_error=None)
            self._part.running()
        except _Stale as stale:
            self._cluster = None
            self._note(last_error=str(stale))
            if isinstance(stale, _NotOurs | _Disputed):
                self._part.retrying(str(stale))
            return self.config.retry_s
        except (KazooException, KazooTimeoutError, OSError, RuntimeError) as error:
            self._failed(error)
            return self.config.retry_s
        return max(0.01, self._refresh_at - time.monotonic())

    def _why_refused(self) -> str:
        if self._handler is None:
            return ""
        if self.config.tls is None:
            says = f"; it takes connections: if it speaks TLS alone, write {TLS_SCHEME} before cluster.zookeeper"
            return says if self._handler.reached else ""
        refused = self._handler.refused
        if refused is not None:
            return f": {reason(refused)}"
        return "; it may want to see a certificate that it believes (cluster.zookeeper_tls_cert)"

    def _close(self) -> None:
        with contextlib.suppress(Exception):
            self._client.stop()
        with contextlib.suppress(Exception):
            self._client.close()
        self._note(connected=False, registered=False)

    def _note(self, **changes: Any) -> None:
        self.status = replace(self.status, **changes)

    # Protection

    def _protect(self) -> None:
        """Have only those write here who know the password. What was open before is closed."""
        if not self._acls:
            return
        with contextlib.suppress(NodeExistsError):  # Other clusters, with passwords of their own, lie beside.
            self._ask(self._client.create_async(self._shared, acl=[_SHARED, *self._acls[0]], makepath=True))
        topics, eager = f"{self._root}/topics", self._eager()
        if eager and len(self._acls) > 1:
            self._take_over_shared()
        changed = self._own([self._root, f"{self._root}/nodes", topics, f"{self._root}/cluster"], eager)
        if topics in changed or (eager and len(self._acls) > 1):
            try:
                names = self._ask(self._client.get_children_async(topics))
            except NoNodeError:
                return
            self._own([f"{topics}/{name}" for name in names], eager)

    def _own(self, paths: list[str], eager: bool) -> set[str]:
        """Put these under the first password, where there are such nodes. Which of them were not. Raises ``_NotOurs``.

        What is under another one of this node's is left to who is ``eager``.
        """
        own, *others = [set(acl) for acl in self._acls]
        changed = set()
        for path, answer in [(path, self._client.get_acls_async(path)) for path in paths]:
            try:
                found, stat = self._ask(answer)
                if set(found) == own or (set(found) in others and not eager):
                    continue
                self._ask(self._client.set_acls_async(path, self._acls[0], stat.aversion))
            except NoNodeError:
                continue  # It is made with it, or is gone.
            except NoAuthError as error:
                raise _NotOurs(f"{path} belongs to somebody who has another secret") from error
            changed.add(path)
        return changed

    def _take_over_shared(self) -> None:
        """Of ``lsmq`` as well, which others share, the second password opens nothing any more."""
        own, *others = [acl[-1] for acl in self._acls]
        with contextlib.suppress(NoAuthError):  # Somebody else made it, and keeps to himself who may write there.
            found, stat = self._ask(self._client.get_acls_async(self._shared))
            if any(entry in others for entry in found):
                kept = [own if entry in others else entry for entry in found]
                self._ask(self._client.set_acls_async(self._shared, kept, stat.aversion))

    # Registration

    def _register(self, refresh: bool) -> None:
        session = self._client.client_id[0] if self._client.client_id else None
        if session != self._known_session:
            self._published = None  # It may be another ZooKeeper, or one that lost what it had.
        elif not refresh and self.status.registered:
            return
        path = f"{self._root}/nodes/{self.config.node}"
        entry = {"id": self.config.node, "url": self.config.url, "started_ms": self._started_ms}
        content = json.dumps(entry, sort_keys=True).encode()
        try:
            existing, stat = self._ask(self._client.get_async(path))
            if stat.ephemeralOwner == session:
                if existing != content:
                    self._ask(self._client.set_async(path, content, stat.version))
                self._note(registered=True)
                self._known_session = session
                return
            # Left by an earlier session of this node, which ZooKeeper has not given up yet.
            with contextlib.suppress(NoNodeError):
                self._ask(self._client.delete_async(path, stat.version))
        except NoNodeError:
            pass
        try:
            self._ask(self._client.create_async(path, content, ephemeral=True, makepath=True))
        except NodeExistsError as error:
            raise _Stale(f"another session registered node {self.config.node!r} meanwhile") from error
        self._known_session = session
        self._note(registered=True, registrations=self.status.registrations + 1)

    # Publishing

    def _publish(self, state: ClusterState, refresh: bool) -> None:
        fence = self._publish_cluster(state)
        if state.version == self.status.published_version and not self._eager():
            return
        topics = state.topics
        names = sorted(self._may_differ(topics, refresh))
        for start in range(0, len(names), _READ_AT_ONCE):
            writes: list[Callable[[Any], None]] = []
            for name, old in self._read(names[start : start + _READ_AT_ONCE]):
                topic, path = topics.get(name), f"{self._root}/topics/{name}"
                new = None if topic is None else topic_document(state, topic)
                if new is None:
                    if old is not None:
                        writes.append(lambda t, path=path: t.delete(path))  # type: ignore[misc]
                elif old is None:
                    writes.append(lambda t, path=path, new=new: t.create(path, pack(new)))  # type: ignore[misc]
                elif not same(old, new):
                    writes.append(lambda t, path=path, new=new: t.set_data(path, pack(new)))  # type: ignore[misc]
            for first in range(0, len(writes), _TRANSACTION_SIZE):
                self._write(fence, writes[first : first + _TRANSACTION_SIZE])
        self._published = topics
        self._note(published_version=max(state.version, self.status.published_version))

    def _publish_cluster(self, state: ClusterState) -> int:
        """Replace the cluster document if it is older; the version of the node in ZooKeeper, as a fence."""
        path, new = f"{self._root}/cluster", cluster_document(state)
        if self._cluster is None:
            try:
                content, stat = self._ask(self._client.get_async(path, watch=self._watch))
                self._cluster = (unpack(content) or {"version": -1}, stat.version)
            except NoNodeError:
                with contextlib.suppress(NodeExistsError):
                    self._ask(self._client.create_async(path, b"", makepath=True))
                content, stat = self._ask(self._client.get_async(path, watch=self._watch))
                self._cluster = (unpack(content) or {"version": -1}, stat.version)
        old, version = self._cluster
        if old["version"] == new["version"] and same(old, new):
            return version
        if not supersedes(new, old) and not self._is_forged(state):
            self._note(refused_as_stale=self.status.refused_as_stale + 1)
            raise _Stale(f"ZooKeeper has cluster version {old['version']}, newer than {new['version']} here")
        try:
            stat = self._ask(self._client.set_async(path, pack(new), version))
        except BadVersionError as error:
            raise _Stale("another node published the cluster document meanwhile") from error
        self._cluster = (new, stat.version)
        self._note(documents_written=self.status.documents_written + 1)
        return int(stat.version)

    def _is_forged(self, state: ClusterState) -> bool:
        """Whether what ZooKeeper has, and this state does not supersede, cannot be of the cluster.

        It was read before this asks what is the newest state. Where that is ``state``, nothing newer was ever agreed.
        """
        if not self._eager():
            return False
        now_s = time.monotonic()
        if len(self._replaced_s) == MAX_REPLACED and now_s - self._replaced_s[0] < _REPLACED_S:
            raise _Disputed(
                f"somebody else writes {self._root}, again and again: another cluster has this name, and the same "
                "secret or none. Give one of the two another cluster.name, or a path of its own in ZooKeeper"
            )
        if self._newest() != state.version:
            return False
        self._replaced_s.append(now_s)
        self._published = None  # Topics may be forged as well.
        logging.getLogger(__name__).error("ZooKeeper held cluster routes that this cluster never wrote; replaced")
        self._note(forgeries_replaced=self.status.forgeries_replaced + 1)
        return True

    def _watch(self, event: Any) -> None:
        # Runs in kazoo's thread.
        self._cluster_changed = True
        self._wake.set()

    def _may_differ(self, topics: NamedPieces[TopicRecord], refresh: bool) -> Iterable[str]:
        """Names of topics whose documents may not be as they should: those that changed, and at a refresh those that
        are there and should not be, or are missing, and some of the others, by turns."""
        if self._published is None:
            return topics.keys() | self._there()
        changed = topics.changed_since(self._published).keys() | topics.gone_since(self._published).keys()
        if not refresh:
            return changed
        there = self._there()
        turn = nsmallest(_LOOKED_AT, (name for name in there if name > self._looked_until))
        self._looked_until = turn[-1] if len(turn) == _LOOKED_AT else ""
        return changed | (there ^ topics.keys()) | set(turn)

    def _there(self) -> set[str]:
        """Names of the topics that ZooKeeper has."""
        path = f"{self._root}/topics"
        try:
            return set(self._ask(self._client.get_children_async(path)))
        except NoNodeError:
            with contextlib.suppress(NodeExistsError):
                self._ask(self._client.create_async(path, makepath=True))
            return set()

    def _read(self, names: Iterable[str]) -> Iterator[tuple[str, Document | None]]:
        """What ZooKeeper has of each topic; None: nothing."""
        for name, answer in [(name, self._client.get_async(f"{self._root}/topics/{name}")) for name in names]:
            try:
                yield name, unpack(self._ask(answer)[0]) or {"version": -1}
            except NoNodeError:
                yield name, None

    def _write(self, fence: int, writes: list[Callable[[Any], None]]) -> None:
        """Writes of topic documents, all or none, and none when the cluster document is another one by now."""
        transaction: TransactionRequest = self._client.transaction()
        transaction.check(f"{self._root}/cluster", fence)
        for write in writes:
            write(transaction)
        results = self._ask(transaction.commit_async())
        failures = [result for result in results if isinstance(result, Exception)]
        decisive = [f for f in failures if not isinstance(f, RolledBackError | RuntimeInconsistency)]
        if failures:
            raise _Stale(f"topics were published by another node meanwhile: {(decisive or failures)[0]!r}")
        self._note(documents_written=self.status.documents_written + len(writes))

    def _ask(self, answer: Any) -> Any:
        return answer.get(timeout=self.config.call_timeout_s)


def _acl(cluster: str, password: str) -> list[Any]:
    return [make_acl("world", "anyone", read=True), make_digest_acl(cluster, password, all=True)]
