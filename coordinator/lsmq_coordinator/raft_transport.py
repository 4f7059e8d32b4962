"""Connections between voters, on pysyncobj's transport: the only module that imports it.

Written against pysyncobj 0.3.17, which a check at import holds. What of it is used: its poller, its server and
connections, who connects to whom and when again. What it does wrong there, and what is done here:

- It unpickles what comes from the network. Our connections speak authenticated msgpack, and its unpickler is
  switched off altogether. Its admin commands and read-only members are not accepted.
- A new connection of a peer leaves the old one open, so that old messages arrive after new ones. Closed here.
- A connection idle for ``connectionTimeout`` is cut when something is to be sent over it, which is when it is needed.
  Dead peers are found by TCP here.
- A connection on which the other side never says anything stays open for ever. Here an introduction is due in seconds.
- Its clock is another one than the machine's steady one, and the wall clock where it finds no other.
- One failed ``accept`` closes the server for good, a busy port is retried without a pause, a slow peer's buffer
  grows without limit, and names are resolved in the tick thread.

Its algorithm (``SyncObj``) is not used: it writes in the thread in which it ticks, several times a request, has no
pre-vote, and a crash between its dump and the truncation of its log drops committed entries. Ours is
:mod:`~.raft_core`.
"""

from __future__ import annotations

import functools
import logging
import os
import socket
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pysyncobj.pickle
import pysyncobj.tcp_connection
import pysyncobj.tcp_server
import pysyncobj.transport
from pysyncobj.node import TCPNode
from pysyncobj.pipe_notifier import PipeNotifier
from pysyncobj.poller import createPoller
from pysyncobj.tcp_connection import CONNECTION_STATE, TcpConnection
from pysyncobj.transport import TCPTransport
from pysyncobj.version import VERSION

from lsmq import runtime

from .raft_frames import HELLO, BadFrame, FrameSession
from .raft_membership import Electorate
from .raft_messages import RaftMessage, pack, unpack
from .raft_sockets import Lookup, find_dead_peers
from .raft_tls import TlsSocket
from .tls import Certificates

if VERSION != "0.3.17":
    raise ImportError(f"pysyncobj {VERSION} is installed; lsmq is written against the inner parts of 0.3.17")

logging.getLogger("pysyncobj").setLevel(logging.CRITICAL)

_MAX_UNSENT_BYTES = 8 << 20
_READS_PER_EVENT = 64
_MAX_UNKNOWN_CONNECTIONS = 64
_UNKNOWN_CONNECTION_S = 5.0
_NEVER_S = 1e9
_LOG_EVERY_S = 60.0
_MAX_REFUSALS = 1_000
_BUFFER_BYTES = 1 << 16

Life = tuple[int, str]


class RaftListener(Protocol):
    """Who is told what comes. All of it is called in the thread that calls :meth:`RaftTransport.poll`."""

    def life(self) -> Life:
        """The present life of this voter."""

    def membership(self) -> Electorate:
        """Who votes, as far as it knows."""

    def known(self, peer: str) -> Life | None:
        """The latest life of a peer that is known."""

    def connected(self, peer: str, life: Life, told: Life | None) -> bool:
        """A peer introduced itself; False: the connection must end."""

    def received(self, peer: str, message: RaftMessage) -> None: ...

    def lost(self, peer: str) -> None: ...


def _refuse_pickle(*_: object) -> Any:
    raise BadFrame("unpickling is switched off")


def install() -> None:
    """Put our connections and clock in pysyncobj's place, and its unpickler out of use."""
    pysyncobj.tcp_server.TcpConnection = _Connection
    pysyncobj.transport.TcpConnection = _Connection
    for module in (pysyncobj.transport, pysyncobj.tcp_connection):
        module.monotonicTime = runtime.monotonic
    pysyncobj.pickle.loads = pysyncobj.pickle.load = _refuse_pickle


class _Connection(TcpConnection):  # type: ignore[misc]
    """A TCP connection with authenticated msgpack frames, bounded buffers and kernel timeouts."""

    _TcpConnection__readBuffer: bytes
    _TcpConnection__socket: Any

    def __init__(self, *args: Any, socket: socket.socket | None = None, **named: Any) -> None:
        named["keepalive"] = None
        super().__init__(*args, socket=socket, **named)
        self.session: FrameSession | None = None
        self.since = runtime.monotonic()
        #: Makes a socket that encrypts of one that was dialled.
        self.securing: Callable[[Any], TlsSocket] | None = None
        if socket is not None:
            find_dead_peers(socket)

    def connect(self, host: str | None, port: int) -> bool:
        self.session, self.since = None, runtime.monotonic()
        started: bool = super().connect(host, port)
        opened = self._TcpConnection__socket
        if started:
            find_dead_peers(opened)
            if self.securing is not None:
                self.secure(self.securing)
        elif opened is not None:
            opened.close()
        return started

    def secure(self, securing: Callable[[Any], TlsSocket]) -> None:
        """Before anything is sent or received."""
        self._TcpConnection__socket = securing(self._TcpConnection__socket)

    @property
    def known(self) -> bool:
        """Whether the peer introduced itself: only then is anything else said."""
        return self.session is not None and self.session.known

    def send_values(self, content: Any) -> None:
        assert self.session is not None
        self.send_frame(self.session.seal(content))

    def send_frame(self, frame: bytes) -> None:
        if len(self._TcpConnection__writeBuffer) + len(frame) > _MAX_UNSENT_BYTES:
            self.disconnect()
            return
        self._TcpConnection__writeBuffer += frame
        self._TcpConnection__trySendBuffer()

    def _TcpConnection__tryReadBuffer(self) -> None:
        for _ in range(_READS_PER_EVENT):
            if not self._TcpConnection__processRead():
                break
        self._TcpConnection__lastReadTime = runtime.monotonic()

    def _TcpConnection__processParseMessage(self) -> Any:
        buffered: bytes = self._TcpConnection__readBuffer
        try:
            if self.session is None:
                raise BadFrame("no session")
            length = self.session.split(buffered)
            if not length:
                return None
            message = self.session.open(buffered[:length])
        except BadFrame as refused:
            logging.getLogger(__name__).debug("raft connection refused: %s", refused)
            self.disconnect()
            return None
        self._TcpConnection__readBuffer = buffered[length:]
        return message


class _VoterNode(TCPNode):  # type: ignore[misc]
    """A peer whose name is resolved aside. Sets of them, which pysyncobj keeps, have one order in all processes."""

    _lookup: Lookup | None = None

    def __hash__(self) -> int:
        return zlib.crc32(self.address.encode())

    @property
    def ip(self) -> str | None:
        if self._lookup is None:
            self._lookup = Lookup(self.host, self.port)
        return self._lookup.ip


@dataclass(frozen=True, slots=True)
class _Settings:
    """What pysyncobj's transport asks of its configuration, by its names."""

    bindAddress: str
    connectionRetryTime: float
    sendBufferSize: int = _BUFFER_BYTES
    recvBufferSize: int = _BUFFER_BYTES
    connectionTimeout: float = _NEVER_S
    bindRetryTime: float = 1.0
    maxBindRetries: int = 1
    tcp_keepalive: None = None


class _Owner:
    """What pysyncobj's transport asks of the object it belongs to, by its names."""

    encryptor = None

    def __init__(self, conf: _Settings) -> None:
        self.conf = conf
        self._poller = createPoller("auto")

    def addOnTickCallback(self, callback: Any) -> None:
        """The transport's tick is called by :meth:`RaftTransport.poll`."""


class RaftTransport(TCPTransport):  # type: ignore[misc]
    """Who may connect, and what of their messages is handed on. Used from one thread, but for :meth:`wake`."""

    _ready: bool

    def __init__(
        self,
        address: str,
        known: Collection[str],
        bind: str,
        keys: Sequence[bytes],
        reconnect_s: float,
        peers: RaftListener,
        tls: Certificates | None = None,
    ) -> None:
        """Listens at ``bind``. ``known`` are the others at first. Of ``keys`` the first signs, all are accepted.

        Raises ``TransportNotReadyError`` when it cannot listen.
        """
        install()
        self._tls = tls
        self._refusals: dict[str, float] = {}  # why handshakes failed, and when that was logged
        self._keys, self._peers = keys, peers
        #: Of those connected, who runs a release that takes the voters to be those of the configuration, for ever.
        self._old: set[TCPNode] = set()
        owner = _Owner(_Settings(bind, reconnect_s))
        self._poller = owner._poller
        self._notifier = PipeNotifier(self._poller)
        self._woken = False
        super().__init__(owner, TCPNode(address), [_VoterNode(peer) for peer in sorted(known)])
        try:
            self.tryGetReady()
        except BaseException:
            self._close_pipe()
            raise

    def poll(self, timeout: float) -> None:
        """Wait for what comes, or for :meth:`wake`, and hand it on. Raises ``OSError`` for a socket's trouble."""
        self._onTick()
        self._poller.poll(timeout)
        self._woken = False

    def wake(self) -> None:
        """End the wait of :meth:`poll`. From any thread."""
        if not self._woken:
            self._woken = True
            self._notifier.notify()

    def say(self, peer: str, message: RaftMessage) -> None:
        """Send a message; it is dropped while there is no connection."""
        connection = self._connections.get(self._nodeAddrToNode.get(peer))
        if connection is not None and connection.state == CONNECTION_STATE.CONNECTED and connection.known:
            connection.send_values(pack(message))

    def set_peers(self, known: Collection[str]) -> None:
        """Whom to be connected with from now on, by their addresses."""
        for address in sorted(self._nodeAddrToNode.keys() - set(known)):
            self._old.discard(self._nodeAddrToNode[address])
            self.dropNode(self._nodeAddrToNode[address])
        for address in sorted(set(known) - self._nodeAddrToNode.keys()):
            self.addNode(_VoterNode(address))

    def part_from_old(self) -> None:
        """End the connections to releases that would not follow a change of who votes."""
        for node in sorted(self._old, key=lambda node: node.address):
            connection = self._connections.get(node)
            if connection is not None:
                connection.disconnect()

    @property
    def old(self) -> frozenset[str]:
        """The addresses of those connected that run such a release."""
        return frozenset(node.address for node in self._old)

    def close(self) -> None:
        self.destroy()
        self._close_pipe()

    def _close_pipe(self) -> None:
        notifier = self._notifier
        self._poller.unsubscribe(notifier._PipeNotifier__pipeR)
        os.close(notifier._PipeNotifier__pipeR)
        os.close(notifier._PipeNotifier__pipeW)

    # Connections

    def _maybeBind(self) -> None:
        if self._ready and self._server._TcpServer__fileno is None:
            self._ready = False
        try:
            super()._maybeBind()
        finally:
            unbound = self._server._TcpServer__socket
            if not self._ready and unbound is not None:
                unbound.close()

    def _onTick(self) -> None:
        super()._onTick()
        late = runtime.monotonic() - _UNKNOWN_CONNECTION_S
        opened = [conn for conn in self._connections.values() if conn.state != CONNECTION_STATE.DISCONNECTED]
        for conn in [*sorted(self._unknownConnections, key=TcpConnection.fileno), *opened]:
            if not conn.known and conn.since < late:
                conn.disconnect()

    def addNode(self, node: TCPNode) -> None:
        super().addNode(node)
        conn, tls = self._connections.get(node), self._tls
        if conn is not None and tls is not None:
            conn.securing = lambda opened: TlsSocket(opened, tls.client, node.host, self._tell_refused)

    def _tell_refused(self, reason: str) -> None:
        now = runtime.monotonic()
        if now - self._refusals.get(reason, float("-inf")) >= _LOG_EVERY_S and len(self._refusals) < _MAX_REFUSALS:
            self._refusals[reason] = now
            logging.getLogger(__name__).warning("voters cannot talk to each other: %s", reason)

    def _onNewIncomingConnection(self, conn: _Connection) -> None:
        super()._onNewIncomingConnection(conn)
        tls = self._tls
        if tls is not None:
            conn.secure(lambda opened: TlsSocket(opened, tls.server, None, self._tell_refused))
        conn.session = FrameSession(self._keys, client=False)
        if len(self._unknownConnections) > _MAX_UNKNOWN_CONNECTIONS:
            # Who belongs here is known within milliseconds; who is not goes, the oldest first.
            min(self._unknownConnections, key=lambda unknown: unknown.since).disconnect()

    def _onIncomingMessageReceived(self, conn: _Connection, message: Any) -> None:
        assert conn.session is not None
        if message is HELLO:
            conn.send_frame(conn.session.hello())
            return
        sender = message.get("from") if isinstance(message, dict) else None
        node = self._nodeAddrToNode.get(sender) if isinstance(sender, str) else None
        if node is None or self._shouldConnect(node) or not self._introduced(node, message):
            if node is not None:
                # The peer learns what is known of it.
                conn.send_values(self._introduction(node))
            conn.disconnect()
            return
        former = self._connections.get(node)
        if former is not None:
            former.disconnect()
        self._unknownConnections.discard(conn)
        self._connections[node] = conn
        conn.session.known = True
        conn.send_values(self._introduction(node))
        conn.setOnMessageReceivedCallback(functools.partial(self._received, node))

    def _onOutgoingConnected(self, conn: _Connection) -> None:
        conn.session = FrameSession(self._keys, client=True)
        conn.setOnMessageReceivedCallback(functools.partial(self._onOutgoingMessageReceived, conn))
        conn.send_frame(conn.session.hello())

    def _onOutgoingMessageReceived(self, conn: _Connection, message: Any) -> None:
        node = self._connToNode(conn)
        if node is None or conn.session is None:
            conn.disconnect()
        elif message is HELLO:
            conn.send_values(self._introduction(node))
        elif self._introduced(node, message):
            conn.session.known = True
            conn.setOnMessageReceivedCallback(functools.partial(self._received, node))
        else:
            conn.disconnect()

    def _introduction(self, node: TCPNode) -> dict[str, Any]:
        """What this voter says of itself, and what it knows of the peer. Releases before that know of no ``changes``
        are refused where the ``voters`` are not those of their configuration, and refuse that themselves."""
        membership = self._peers.membership()
        return {
            "from": self._selfNode.address,
            "to": node.address,
            "voters": tuple(sorted(membership.voting)),
            "changes": membership.number,
            "life": self._peers.life(),
            "yours": self._peers.known(node.address),
        }

    def _introduced(self, node: TCPNode, message: Any) -> bool:
        if not isinstance(message, dict):
            return False
        if (message.get("from"), message.get("to")) != (node.address, self._selfNode.address):
            return False
        membership, changes = self._peers.membership(), message.get("changes")
        if not (changes is None or type(changes) is int):
            return False
        changed = membership.number > 0 or bool(changes)
        if message.get("voters") != tuple(sorted(membership.voting)) and (changes is None or not changed):
            self._tell_refused(f"{node.address} has other voters in its configuration, or is of a release before")
            return False
        if changes is None and changed:
            self._tell_refused(f"{node.address} runs a release that knows of no changed voters")
            return False
        self._old.discard(node)
        if changes is None:
            self._old.add(node)
        life, yours = message.get("life"), message.get("yours")
        if life is None or not all(_is_life(given) for given in (life, yours) if given is not None):
            return False
        return self._peers.connected(node.address, life, yours)

    def _onDisconnected(self, conn: _Connection) -> None:
        node = self._connToNode(conn)
        if node is not None and conn.known:
            self._old.discard(node)
            self._peers.lost(node.address)
        super()._onDisconnected(conn)

    # pysyncobj's own way to hand on is not used.

    def _onNodeDisconnected(self, node: TCPNode) -> None: ...

    def _received(self, node: TCPNode, content: Any) -> None:
        message = unpack(content)
        if message is None:
            self._connections[node].disconnect()
        else:
            self._peers.received(node.address, message)


def _is_life(content: Any) -> bool:
    return (
        isinstance(content, tuple)
        and [type(value) for value in content] == [int, str]
        and 0 <= content[0] < 1 << 62
        and len(content[1]) <= 64
    )
