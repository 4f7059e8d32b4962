"""pysyncobj made safe: the only module that imports it, and one whose private parts it must know.

Written against pysyncobj 0.3.17, which a check at import holds. What it does wrong, and what is done here:

- It fsyncs nothing, and takes a damaged vote file for an empty one. Our :class:`~.journal.Journal` is used,
  flushed before any message leaves and before an entry counts as committed.
- A late AppendEntries cuts acknowledged entries, and the follower's commit index covers entries not proven equal
  to the leader's. See :func:`~.raft_messages.judge_append`.
- An acknowledgement carries no term: one from an earlier leadership counts for the present one. Ours does, and
  echoes when the leader sent what it answers, which gives a lease.
- It unpickles what comes from the network. Our connections speak authenticated msgpack, and its unpickler is
  switched off altogether. Messages that change membership or versions, read-only members and its admin commands
  are not accepted.
- A voter whose disk was lost votes as if it had never acknowledged anything. Once all voters have caught up with a
  leader they are *whole*, durably; who is not, having lost that mark, does not vote for one who is until it has
  caught up. (In the first moments of a group, before all voters were heard once, nobody is whole.)
- A new connection of a peer leaves the old one open, so that old messages arrive after new ones. Closed here.
- A connection idle for ``connectionTimeout`` is cut when a vote is to be sent over it, which is when it is needed.
  Dead peers are found by TCP here.
- Its clock is another one than ``time.monotonic``, and the wall clock where it finds no other.
- One failed ``accept`` closes the server for good, a busy port is retried without a pause, a slow peer's buffer
  grows without limit, names are resolved in the tick thread, and an exception in a tick is logged and forgotten.
"""

from __future__ import annotations

import functools
import logging
import os
import random
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

import pysyncobj.journal
import pysyncobj.pickle
import pysyncobj.syncobj
import pysyncobj.tcp_connection
import pysyncobj.tcp_server
import pysyncobj.transport
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.config import FAIL_REASON
from pysyncobj.node import TCPNode
from pysyncobj.tcp_connection import TcpConnection
from pysyncobj.transport import TCPTransport
from pysyncobj.version import VERSION

from .journal import Journal
from .raft_messages import HELLO, BadFrame, FrameSession, checked, judge_append
from .raft_sockets import Lookup, find_dead_peers
from .raft_terms import Outcome, RaftTiming, Role

if VERSION != "0.3.17":
    raise ImportError(f"pysyncobj {VERSION} is installed; lsmq is written against the inner parts of 0.3.17")

logging.getLogger("pysyncobj").setLevel(logging.CRITICAL)

_BATCH_BYTES = 1 << 20
_MAX_UNSENT_BYTES = 8 << 20
_READS_PER_EVENT = 64
_MAX_UNKNOWN_CONNECTIONS = 64
_UNKNOWN_CONNECTION_S = 5.0
_NEVER_S = 1e9
#: Its own: it draws in a thread beside programs that count on the sequence of the module's.
_random = random.Random()
_REGULAR = b"\x00"
#: By pysyncobj's numbers.
_ROLES = (Role.FOLLOWER, Role.CANDIDATE, Role.LEADER)


def _journal(given: Any) -> Any:
    return given if isinstance(given, Journal) else pysyncobj.journal.createJournal(given)


def _refuse_pickle(*_: object) -> Any:
    raise BadFrame("unpickling is switched off")


def install() -> None:
    """Put our journal, connections and clock in pysyncobj's place, and its unpickler out of use."""
    pysyncobj.syncobj.createJournal = _journal
    pysyncobj.tcp_server.TcpConnection = _Connection
    pysyncobj.transport.TcpConnection = _Connection
    for module in (pysyncobj.syncobj, pysyncobj.transport, pysyncobj.tcp_connection):
        module.monotonicTime = time.monotonic
    pysyncobj.pickle.loads = pysyncobj.pickle.load = _refuse_pickle


class _Connection(TcpConnection):  # type: ignore[misc]
    """A TCP connection with authenticated msgpack frames, bounded buffers and kernel timeouts."""

    _TcpConnection__readBuffer: bytes

    def __init__(self, *args: Any, socket: socket.socket | None = None, **named: Any) -> None:
        named["keepalive"] = None
        super().__init__(*args, socket=socket, **named)
        self.session: FrameSession | None = None
        self.since = time.monotonic()
        if socket is not None:
            find_dead_peers(socket)

    def connect(self, host: str | None, port: int) -> bool:
        started: bool = super().connect(host, port)
        opened = self._TcpConnection__socket
        if started:
            find_dead_peers(opened)
        elif opened is not None:
            opened.close()
        return started

    def send(self, message: Any) -> None:
        """Send a message; before the peer said hello it is dropped, as if the connection were not there."""
        if self.session is not None and self.session.known:
            self.send_frame(self.session.seal(message))

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
        self._TcpConnection__lastReadTime = time.monotonic()

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
    """A peer whose name is resolved aside."""

    _lookup: Lookup | None = None

    @property
    def ip(self) -> str | None:
        if self._lookup is None:
            self._lookup = Lookup(self.host, self.port)
        return self._lookup.ip


class _Transport(TCPTransport):  # type: ignore[misc]
    """Who may connect, and what of their messages reaches pysyncobj."""

    _ready: bool

    def __init__(self, raft: Raft, own: TCPNode, others: set[TCPNode]) -> None:
        self._raft = raft
        self._journal = raft.journal
        self._voters = sorted([own.address, *(node.address for node in others)])
        self._echo: dict[str, float] = {}
        self._votes: set[tuple[int, str]] = set()
        self._caught_up: set[tuple[int, str]] = set()
        self.acknowledged: dict[str, tuple[int, float]] = {}
        self.leader_heard = float("-inf")
        super().__init__(raft, own, others)

    def _become_whole(self) -> None:
        """All voters have once caught up. So has this one when an entry of the current term is committed here: it
        has all committed entries before it."""
        committed = self._journal.term_at(self._raft.raftCommitIndex)
        if not self._journal.whole and committed == self._raft.raftCurrentTerm > 0:
            self._journal.mark_whole()

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
        if self._raft._isLeader() and len(self._caught_up) >= len(self._voters) - 1:
            term = self._raft.raftCurrentTerm
            self._caught_up = {entry for entry in self._caught_up if entry[0] == term}
            if len(self._caught_up) == len(self._voters) - 1:
                self._become_whole()
        now = time.monotonic()
        for conn in [conn for conn in self._unknownConnections if now - conn.since > _UNKNOWN_CONNECTION_S]:
            conn.disconnect()

    def _onNewIncomingConnection(self, conn: _Connection) -> None:
        super()._onNewIncomingConnection(conn)
        conn.session = FrameSession(self._raft.key, client=False)
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
        expected = None if node is None else self._introduction(node.address, self._selfNode.address)
        if message != expected or self._shouldConnect(node):
            conn.disconnect()
            return
        conn.session.known = True
        former = self._connections.get(node)
        if former is not None:
            former.disconnect()
        self._unknownConnections.discard(conn)
        self._connections[node] = conn
        conn.setOnMessageReceivedCallback(functools.partial(self._onMessageReceived, node))
        self._onNodeConnected(node)

    def _onDisconnected(self, conn: _Connection) -> None:
        node = self._connToNode(conn)
        if node is not None and node == self._raft._getLeader():
            self._raft.leader_lost()
        super()._onDisconnected(conn)

    def _introduction(self, sender: str, receiver: str) -> dict[str, Any]:
        return {"from": sender, "to": receiver, "voters": tuple(self._voters)}

    def _onOutgoingConnected(self, conn: _Connection) -> None:
        conn.session = FrameSession(self._raft.key, client=True)
        conn.setOnMessageReceivedCallback(functools.partial(self._onOutgoingMessageReceived, conn))
        conn.send_frame(conn.session.hello())

    def _onOutgoingMessageReceived(self, conn: _Connection, message: Any) -> None:
        node = self._connToNode(conn)
        if message is not HELLO or node is None or conn.session is None:
            conn.disconnect()
            return
        conn.session.known = True
        conn.send(self._introduction(self._selfNode.address, node.address))
        conn.setOnMessageReceivedCallback(functools.partial(self._onMessageReceived, node))
        self._onNodeConnected(node)

    # Messages

    def send(self, node: TCPNode, message: dict[str, Any]) -> bool:
        """What leaves rests on the log: it is durable first."""
        self._journal.flush()
        match message["type"]:
            case "request_vote":
                message = {**message, "whole": self._journal.whole}
            case "append_entries":
                message = {**message, "whole": self._journal.whole, "stamp": time.monotonic()}
            case "next_node_idx":
                stamp = self._echo.get(node.id, float("-inf"))
                message = {**message, "term": self._raft.raftCurrentTerm, "stamp": stamp}
            case "response_vote":
                pass
            case "apply_command":
                # Leadership was lost before the command was written. Commands are not forwarded here.
                answer = {"request_id": message.get("request_id"), "error": FAIL_REASON.NOT_LEADER}
                super()._onMessageReceived(node, {"type": "apply_command_response", **answer})
                return False
            case _:
                return False
        return bool(super().send(node, message))

    def _onMessageReceived(self, node: TCPNode, received: Any) -> None:
        message = checked(received)
        if message is None:
            self._connections[node].disconnect()
            return
        term = message["term"]
        match message["type"]:
            case "request_vote":
                if message["whole"] and not self._journal.whole:
                    return
            case "response_vote":
                if (term, node.id) in self._votes:
                    return
                self._votes = {vote for vote in self._votes if vote[0] >= self._raft.raftCurrentTerm}
                self._votes.add((term, node.id))
            case "next_node_idx":
                if term != self._raft.raftCurrentTerm or not self._raft._isLeader():
                    return
                self.acknowledged[node.id] = (term, message["stamp"])
                if message["success"] and self._journal.term_at(message["next_node_idx"] - 1) == term:
                    self._caught_up.add((term, node.id))
            case "append_entries":
                self._append(node, message)
                return
        super()._onMessageReceived(node, message)

    def _append(self, node: TCPNode, message: dict[str, Any]) -> None:
        if message["term"] < self._raft.raftCurrentTerm:
            return
        self._echo[node.id] = message["stamp"]
        judged = judge_append(message, self._journal, self._raft.raftCommitIndex)
        super()._onMessageReceived(node, judged.message)
        self.leader_heard = time.monotonic()
        if message["whole"]:
            self._become_whole()
        if judged.acknowledge is not None:
            answer = {"next_node_idx": judged.acknowledge, "reset": False, "success": True}
            self.send(node, {"type": "next_node_idx", **answer})


class Raft(SyncObj):  # type: ignore[misc]
    """pysyncobj's algorithm with our journal, transport and commands."""

    _SyncObj__raftElectionDeadline: float

    def __init__(
        self,
        address: str,
        others: list[str],
        bind: str,
        journal: Journal,
        key: bytes,
        timing: RaftTiming,
        apply: Callable[[bytes], Any],
    ) -> None:
        self.journal, self.key, self._apply = journal, key, apply
        self._election_min_s = timing.election_min_s
        conf = SyncObjConf(
            autoTick=False,
            bindAddress=bind,
            journalFile=journal,
            raftMinTimeout=timing.election_min_s,
            raftMaxTimeout=timing.election_max_s,
            appendEntriesPeriod=timing.heartbeat_s,
            leaderFallbackTimeout=timing.fallback_s,
            connectionRetryTime=timing.reconnect_s,
            connectionTimeout=_NEVER_S,
            appendEntriesUseBatch=False,
            appendEntriesBatchSizeBytes=_BATCH_BYTES,
            commandsWaitLeader=False,
            commandsQueueSize=1024,
            logCompactionMinEntries=1 << 62,
            logCompactionMinTime=_NEVER_S,
            useFork=False,
            maxBindRetries=1,
        )
        install()
        super().__init__(address, others, conf, nodeClass=_VoterNode, transportClass=_Transport)

    @property
    def transport(self) -> _Transport:
        found: _Transport = self._SyncObj__transport
        return found

    @property
    def role(self) -> Role:
        return _ROLES[self._SyncObj__raftState]

    def leader_lost(self) -> None:
        """The leader's connection broke, as it does when its process dies: call an election soon, one after another."""
        voters = sorted(
            {self.selfNode.address, *(node.address for node in self.otherNodes)} - {self._getLeader().address}
        )
        turn = (voters.index(self.selfNode.address) + _random.uniform(0.1, 0.6)) / max(2, len(voters))
        soon = time.monotonic() + turn * self._election_min_s * 0.7
        self._SyncObj__raftElectionDeadline = min(self._SyncObj__raftElectionDeadline, soon)

    def resign(self, aside_s: float) -> None:
        """From a leader become a follower that calls no election for ``aside_s`` seconds."""
        if self.role is Role.LEADER:
            self._SyncObj__setState(_ROLES.index(Role.FOLLOWER))
            self._SyncObj__raftLeader = None
            self._SyncObj__raftElectionDeadline = time.monotonic() + aside_s

    def propose(self, command: bytes, callback: Callable[[Any, int], None]) -> None:
        self._applyCommand(_REGULAR + command, callback)

    def _SyncObj__doApplyCommand(self, command: bytes) -> Any:
        return self._apply(command[1:]) if command[:1] == _REGULAR else None

    @classmethod
    def listening(cls, *arguments: Any) -> Raft:
        """A new one, listening. Leaves nothing open when that fails."""
        raft = cls.__new__(cls)
        try:
            raft.__init__(*arguments)  # type: ignore[misc]
        except BaseException:
            raft.close_pipe()
            raise
        return raft

    def close_pipe(self) -> None:
        notifier = getattr(self, "_SyncObj__pipeNotifier", None)
        if notifier is not None:
            self._poller.unsubscribe(notifier._PipeNotifier__pipeR)
            os.close(notifier._PipeNotifier__pipeR)
            os.close(notifier._PipeNotifier__pipeW)


def outcome_of(reason: int) -> Outcome:
    """pysyncobj's reasons in our words; those left out mean that another leader's entry took the place."""
    return _OUTCOMES.get(reason, Outcome.DISCARDED)


_OUTCOMES: Mapping[int, Outcome] = {
    FAIL_REASON.SUCCESS: Outcome.APPLIED,
    FAIL_REASON.QUEUE_FULL: Outcome.BUSY,
    FAIL_REASON.MISSING_LEADER: Outcome.NOT_LEADER,
    FAIL_REASON.NOT_LEADER: Outcome.NOT_LEADER,
}
