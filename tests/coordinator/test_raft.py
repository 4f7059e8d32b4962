"""What is built around pysyncobj: strangers at the port, late messages, votes, failures of the disk."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pysyncobj
import pytest
from pysyncobj.transport import TCPTransport

from lsmq.errors import AddressInUse, CorruptFile, InvalidRequest, TimedOut
from lsmq_coordinator.auth import ClusterSecret
from lsmq_coordinator.errors import ControlStopped, NoControlLeader
from lsmq_coordinator.journal import Journal
from lsmq_coordinator.raft import Raft
from lsmq_coordinator.raft_control import RaftConfig, RaftControl
from lsmq_coordinator.raft_messages import FrameSession
from lsmq_coordinator.raft_terms import RaftTiming
from lsmq_coordinator.zookeeper_server import free_ports
from support.raft_group import until

from .test_raft_messages import append
from .test_state import bootstrap

SECRET = ClusterSecret(b"a secret of sufficient length")
TIMING = RaftTiming()


def config(directory: Path, voters: int = 1, **more: Any) -> RaftConfig:
    addresses = {f"n{n}": f"127.0.0.1:{port}" for n, port in enumerate(free_ports(voters))}
    return RaftConfig("n0", addresses, directory, SECRET, **more)


async def leading(control: RaftControl) -> RaftControl:
    await control.start()
    await until(lambda: control.is_leader)
    return control


# A voter alone


def test_a_single_voter_keeps_its_state_over_restarts(tmp_path: Path) -> None:
    async def run() -> None:
        settings = config(tmp_path)
        control = await leading(RaftControl(settings))
        seen: list[int] = []
        control.on_change(lambda state: seen.append(state.version))
        result = await control.submit(bootstrap())
        assert result["ok"] and control.state.version == 1 and seen == [1]
        assert control.leader == "n0" and time.monotonic() - control.lease < 0.5
        term = control.status.term
        await control.stop()
        control = await leading(RaftControl(settings))
        await until(lambda: control.state.version == 1)
        assert control.status.term > term
        assert (await control.submit(bootstrap()))["repeated"]
        await control.stop()

    asyncio.run(run())


def test_a_leader_that_resigns_is_followed_by_another_and_goes_on_as_a_follower(tmp_path: Path) -> None:
    async def run() -> None:
        addresses = config(tmp_path, voters=3).voters
        voters = {node: RaftControl(RaftConfig(node, addresses, tmp_path / node, SECRET)) for node in addresses}

        def leader() -> str | None:
            return next((node for node, voter in voters.items() if voter.is_leader), None)

        for voter in voters.values():
            await voter.start()
        former = str(await until(leader))
        await voters[former].submit(bootstrap())
        voters[former].resign()
        await until(lambda: leader() not in (former, None))
        later = leader()
        voters[former].resign()
        await voters[str(later)].submit({"op": "no such command"})
        await until(lambda: voters[former].leader == later and voters[former].state.version == 1)
        assert leader() == later
        for voter in voters.values():
            await voter.stop()

    asyncio.run(run())


def test_commands_that_cannot_be_are_refused_before_they_reach_the_log(tmp_path: Path) -> None:
    async def run() -> None:
        control = await leading(RaftControl(config(tmp_path)))
        with pytest.raises(InvalidRequest, match="limit"):
            await control.submit({"op": "x", "padding": "x" * (300 << 10)})
        with pytest.raises(InvalidRequest, match="plain values"):
            await control.submit({"op": "x", "value": object()})
        assert (await control.submit({"op": "no such command"}))["code"] == "invalid_command"
        await control.stop()
        with pytest.raises(ControlStopped):
            await control.submit({"op": "x"})

    asyncio.run(run())


def test_a_voter_without_its_peers_says_that_there_is_no_leader(tmp_path: Path) -> None:
    async def run() -> None:
        control = RaftControl(config(tmp_path, voters=3))
        await control.start()
        with pytest.raises(NoControlLeader):
            await control.submit({"op": "x"})
        assert control.leader is None and control.lease == float("-inf")
        await control.stop()

    asyncio.run(run())


def test_a_busy_port_is_said_at_once(tmp_path: Path) -> None:
    async def run() -> None:
        settings = config(tmp_path)
        host, port = settings.voters["n0"].split(":")
        with socket.create_server((host, int(port))), pytest.raises(AddressInUse):
            await RaftControl(settings).start()
        # Nothing was left behind: the directory can be used again.
        control = await leading(RaftControl(settings))
        await control.stop()

    asyncio.run(run())


def test_a_failed_sync_stops_the_voter_and_waiting_commands_are_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        control = await leading(RaftControl(config(tmp_path)))

        def fail(fd: int) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(os, "fdatasync", fail)
        with pytest.raises(TimedOut):
            await control.submit(bootstrap())
        monkeypatch.undo()
        await until(lambda: control.failure)
        assert "Input/output error" in str(control.failure)
        assert not control.is_leader and control.lease == float("-inf")
        with pytest.raises(ControlStopped, match="Input/output error"):
            await control.submit(bootstrap())
        await control.stop()

    asyncio.run(run())


def test_damage_in_the_log_is_refused_at_start(tmp_path: Path) -> None:
    async def run() -> None:
        settings = config(tmp_path)
        control = await leading(RaftControl(settings))
        await control.submit(bootstrap())
        await control.stop()
        journal = tmp_path / "raft" / "JOURNAL"
        content = bytearray(journal.read_bytes())
        content[20] ^= 1
        journal.write_bytes(content)
        with pytest.raises(CorruptFile):
            await RaftControl(settings).start()

    asyncio.run(run())


@pytest.mark.parametrize(
    "voters", [{"n1": "127.0.0.1:1"}, {"n0": "h:1", "n1": "h:2"}, {"n0": "h:1", "n1": "h:1", "n2": "h:2"}]
)
def test_a_configuration_that_cannot_work_is_refused(tmp_path: Path, voters: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        RaftControl(RaftConfig("n0", voters, tmp_path, SECRET))


# Strangers at the port


class Bomb:
    """Unpickling it makes a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def closed(connection: socket.socket) -> bool:
    """Whether the other side ends the connection; what it says before that is dropped."""
    connection.settimeout(5)
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


def plain(message: Any) -> bytes:
    """A message as pysyncobj sends it without a password."""
    packed = zlib.compress(pickle.dumps(message, 2))
    return struct.pack("i", len(packed)) + packed


def sealed(session: FrameSession, payload: bytes) -> bytes:
    """A frame with the right key around any bytes."""
    return session._frame(payload)


def test_nobody_can_have_anything_unpickled_with_or_without_the_secret(tmp_path: Path) -> None:
    async def run() -> None:
        settings = config(tmp_path / "voter", voters=3)
        control = RaftControl(settings)
        await control.start()
        host, port = settings.voters["n0"].split(":")
        await asyncio.to_thread(attack, host, int(port))
        await control.stop()
        assert control.failure is None

    def attack(host: str, port: int) -> None:
        bomb = Bomb(tmp_path / "executed")
        payloads = [
            plain(bomb),
            plain(["status"]),
            plain("readonly"),
            os.urandom(200),
            b"\xff" * 64,
            b"GET / HTTP/1.1\r\n",
        ]
        for payload in payloads:
            with socket.create_connection((host, port)) as connection:
                connection.sendall(payload)
                assert closed(connection)
        wrong = FrameSession(b"another key of another cluster..", client=True)
        with socket.create_connection((host, port)) as connection:
            connection.sendall(wrong.hello())
            assert closed(connection)
        raw = [pickle.dumps(bomb), zlib.compress(pickle.dumps(bomb)), msgpack.packb(["status"])]
        raw += [
            msgpack.packb(message)
            for message in ("readonly", {"from": "n9"}, {"from": {"n": 1}}, {"from": [1], "to": 2}, None)
        ]
        for payload in raw:
            session = FrameSession(SECRET.key("raft"), client=True)
            with socket.create_connection((host, port)) as connection:
                connection.sendall(session.hello())
                session.open(receive(connection))
                connection.sendall(sealed(session, payload))
                assert closed(connection)
        assert not bomb.path.exists()

    asyncio.run(run())
    with pytest.raises(Exception, match="switched off"):
        pysyncobj.pickle.loads(pickle.dumps(1))


def receive(connection: socket.socket) -> bytes:
    connection.settimeout(5)
    header = connection.recv(4, socket.MSG_WAITALL)
    return header + connection.recv(struct.unpack("<I", header)[0], socket.MSG_WAITALL)


def test_connections_that_say_nothing_do_not_pile_up_or_keep_others_out(tmp_path: Path) -> None:
    async def run() -> None:
        settings = config(tmp_path)
        control = await leading(RaftControl(settings))
        host, port = settings.voters["n0"].split(":")
        idle = []
        for _ in range(100):
            idle.append(await asyncio.to_thread(socket.create_connection, (host, int(port))))
        ended = [connection for connection in idle if await asyncio.to_thread(ends_soon, connection)]
        assert len(ended) >= 100 - 64
        assert (await control.submit(bootstrap()))["ok"]
        for connection in idle:
            connection.close()
        await control.stop()

    def ends_soon(connection: socket.socket) -> bool:
        connection.settimeout(0.02)
        try:
            return connection.recv(1) == b""
        except TimeoutError:
            return False
        except ConnectionResetError:
            return True

    asyncio.run(run())


# Messages, one at a time, to a voter that is never ticked


class Peer:
    """A voter n0 of three, whose peers are this test."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
        self.journal = Journal(directory)
        self.raft = Raft.listening(
            addresses[0], addresses[1:], addresses[0], self.journal, b"k" * 32, TIMING, lambda command: None
        )
        self.one, self.two = sorted(self.raft.otherNodes, key=lambda node: addresses.index(node.address))
        self.sent: list[tuple[Any, dict[str, Any]]] = []
        monkeypatch.setattr(TCPTransport, "send", lambda _, node, message: self.sent.append((node, message)) or True)

    def receive(self, message: dict[str, Any], node: Any = None) -> list[dict[str, Any]]:
        """Deliver a message; what was sent in turn."""
        before = len(self.sent)
        self.raft.transport._onMessageReceived(node or self.one, message)
        return [answer for _, answer in self.sent[before:]]

    def terms(self) -> list[int]:
        return [entry[2] for entry in self.journal[:]]


@pytest.fixture
def peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Peer]:
    made = Peer(tmp_path / "peer", monkeypatch)
    yield made
    made.raft._doDestroy()
    made.raft.close_pipe()


LOG = [0, 1, 1, 1, 1, 1]


def test_a_late_append_entries_cuts_no_acknowledged_entry(peer: Peer) -> None:
    acknowledged = peer.receive(append(1, LOG, 5, 4, term=1))
    assert (acknowledged[0]["next_node_idx"], acknowledged[0]["success"]) == (7, True)
    late = peer.receive(append(2, LOG, 1, 1, term=1))
    assert (late[0]["next_node_idx"], late[0]["success"]) == (4, True)
    assert peer.terms() == LOG
    heartbeat = peer.receive(append(3, LOG, 0, 6, term=1))
    assert heartbeat[0]["next_node_idx"] == 4
    assert peer.terms() == LOG
    assert peer.raft.raftCommitIndex == 4, "committed more than the message proves"


def test_pysyncobj_alone_cuts_them(tmp_path: Path) -> None:
    """Why the rule is there; when this fails, pysyncobj was mended."""

    class Silent(TCPTransport):  # type: ignore[misc]
        def send(self, node: Any, message: Any) -> bool:
            return True

    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    alone = pysyncobj.SyncObj(addresses[0], addresses[1:], pysyncobj.SyncObjConf(autoTick=False), transportClass=Silent)
    (node,) = alone.otherNodes
    alone._SyncObj__transport._onMessageReceived(node, append(1, LOG, 5, 4, term=1))
    assert alone._getRaftLogSize() == 6
    alone._SyncObj__transport._onMessageReceived(node, append(2, LOG, 1, 1, term=1))
    assert alone._getRaftLogSize() == 3
    alone._doDestroy()


def test_a_newer_leader_replaces_what_was_not_committed_and_nothing_else(peer: Peer) -> None:
    peer.receive(append(1, LOG, 5, 3, term=1))
    newer = [0, 1, 1, 2, 2]
    answer = peer.receive(append(2, newer, 3, 3, term=2), peer.two)
    assert (answer[0]["next_node_idx"], answer[0]["term"]) == (6, 2)
    assert peer.terms() == newer
    with pytest.raises(Exception, match="committed"):
        peer.receive(append(1, [0, 3, 3], 2, 1, term=3))
    assert peer.terms() == newer


def test_what_leaves_rests_on_what_is_on_the_disk(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    sync, fsync = os.fdatasync, os.fsync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (sync(fd), order.append("sync")))
    monkeypatch.setattr(os, "fsync", lambda fd: (fsync(fd), order.append("vote")))
    monkeypatch.setattr(TCPTransport, "send", lambda _, node, message: order.append(message["type"]) or True)
    peer.receive(append(1, LOG, 5, 1, term=1))
    assert order[-2:] == ["sync", "next_node_idx"]
    order.clear()
    request = {"type": "request_vote", "term": 5, "last_log_index": 6, "last_log_term": 1, "whole": False}
    peer.receive(request, peer.two)
    assert order[-1] == "response_vote" and order.count("vote") >= 2


def test_a_vote_is_given_once_a_term_over_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = {"type": "request_vote", "term": 5, "last_log_index": 1, "last_log_term": 0, "whole": False}
    first = Peer(tmp_path, monkeypatch)
    assert [answer["type"] for answer in first.receive(request)] == ["response_vote"]
    assert first.receive(request, first.two) == []
    first.raft._doDestroy()
    first.raft.close_pipe()
    second = Peer(tmp_path, monkeypatch)
    assert second.raft.raftCurrentTerm == 5
    assert second.receive(request, second.two) == []
    second.raft._doDestroy()
    second.raft.close_pipe()


def test_a_voter_that_lost_its_disk_votes_for_nobody_who_has_not(peer: Peer) -> None:
    request = {"type": "request_vote", "term": 5, "last_log_index": 9, "last_log_term": 4, "whole": True}
    assert peer.receive(request) == []
    log = [0, 1, 6]
    peer.receive(append(1, log, 2, 2, term=6))
    assert not peer.journal.whole, "the entry of the leader's own term was not committed yet"
    peer.receive(append(3, log, 0, 3, term=6))
    assert peer.journal.whole
    answers = peer.receive({**request, "term": 7}, peer.two)
    assert answers == [], "its log is not behind the candidate's in term"
    answers = peer.receive({**request, "term": 8, "last_log_term": 6}, peer.two)
    assert [answer["type"] for answer in answers] == ["response_vote"]


def test_acknowledgements_of_another_term_and_of_followers_do_not_count(peer: Peer) -> None:
    answer = {"type": "next_node_idx", "next_node_idx": 9, "reset": False, "success": True, "term": 0, "stamp": 1.0}
    peer.receive(answer)
    assert peer.raft.transport.acknowledged == {}
    monkey = peer.raft
    monkey._SyncObj__raftState = 2
    monkey._SyncObj__setCurrentTerm(3, None)
    monkey._SyncObj__raftMatchIndex = {peer.one: 0, peer.two: 0}
    peer.receive({**answer, "term": 2})
    assert peer.raft.transport.acknowledged == {}
    assert monkey._SyncObj__raftMatchIndex[peer.one] == 0
    peer.receive({**answer, "term": 3})
    assert peer.raft.transport.acknowledged == {peer.one.id: (3, 1.0)}
    assert monkey._SyncObj__raftMatchIndex[peer.one] == 8


def test_a_vote_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer(tmp_path, monkeypatch)
    peer.raft._SyncObj__otherNodes |= {type(peer.one)(f"127.0.0.1:{port}") for port in (1, 2)}
    peer.raft._SyncObj__raftState = 1
    peer.raft._SyncObj__setCurrentTerm(4, None)
    peer.raft._SyncObj__votesCount = 1
    for _ in range(4):
        peer.receive({"type": "response_vote", "term": 4})
    assert peer.raft._SyncObj__votesCount == 2
    peer.raft._doDestroy()
    peer.raft.close_pipe()
