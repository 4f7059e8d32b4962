"""A voter with its threads, files and sockets: strangers at the port, failures of the disk, slow disks, snapshots."""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import pickle
import shutil
import socket
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pysyncobj
import pytest

from lsmq.errors import AddressInUse, CorruptFile, InvalidRequest, TimedOut
from lsmq_coordinator.auth import ClusterSecret
from lsmq_coordinator.errors import ControlStopped, NoControlLeader
from lsmq_coordinator.journal import DelayedDisk, Journal
from lsmq_coordinator.raft_control import RaftConfig, RaftControl
from lsmq_coordinator.raft_frames import FrameSession
from lsmq_coordinator.raft_membership import Electorate
from lsmq_coordinator.raft_records import replay
from lsmq_coordinator.raft_terms import ProposalOutcome, RaftTiming
from lsmq_coordinator.raft_transport import RaftTransport
from lsmq_coordinator.voter import RaftStatus, Voter
from support.ports import free_ports
from support.raft_group import until
from support.waiting import eventually

from .test_state import bootstrap

SECRET = ClusterSecret(b"a secret of sufficient length")


class SlowDisk(DelayedDisk):
    """One that may also fail."""

    failure: OSError | None = None

    def sync(self, fd: int) -> None:
        super().sync(fd)
        if self.failure is not None:
            raise self.failure


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
        with pytest.raises(NoControlLeader, match="a majority of the voters"):
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


def test_a_failed_sync_stops_the_voter_and_waiting_commands_are_unknown(tmp_path: Path) -> None:
    async def run() -> None:
        disk = SlowDisk(0.0)
        control = await leading(RaftControl(config(tmp_path, disk=disk)))
        disk.failure = OSError(5, "Input/output error")
        with pytest.raises(TimedOut):
            await control.submit(bootstrap())
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
        content[-60] ^= 1
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


# Several voters


class Voters:
    """Three in this process, each with its disk."""

    def __init__(self, directory: Path, sync_s: float = 0.0) -> None:
        addresses = config(directory, voters=3).voters
        self.configs = {
            node: RaftConfig(node, addresses, directory / node, SECRET, disk=SlowDisk(sync_s)) for node in addresses
        }
        self.running: dict[str, RaftControl] = {}

    async def __aenter__(self) -> Voters:
        for node in self.configs:
            await self.start(node)
        return self

    async def __aexit__(self, *failure: object) -> None:
        for node in list(self.running):
            await self.stop(node)

    async def start(self, node: str) -> None:
        self.running[node] = RaftControl(self.configs[node])
        await self.running[node].start()

    async def stop(self, node: str) -> None:
        await self.running.pop(node).stop()

    async def leader(self, timeout: float = 10.0) -> str:
        def found() -> str | None:
            return next((node for node, voter in self.running.items() if voter.is_leader), None)

        return str(await until(found, timeout))


@pytest.mark.part(2)
def test_with_200_ms_a_sync_a_new_leader_is_there_within_five_seconds(tmp_path: Path) -> None:
    async def run() -> list[float]:
        gaps = []
        async with Voters(tmp_path, sync_s=0.2) as voters:
            leader = await voters.leader()
            await voters.running[leader].submit(bootstrap())
            for _ in range(2):
                began = time.monotonic()
                await voters.stop(leader)
                later = await voters.leader()
                gaps.append(time.monotonic() - began)
                assert (await voters.running[later].submit({"op": "no such command"}))["code"] == "invalid_command"
                await voters.start(leader)
                leader = later
        return gaps

    gaps = asyncio.run(run())
    print(f"200 ms a sync: the leader stops to the next one, s: {[round(gap, 2) for gap in gaps]}")
    assert max(gaps) < 5.0


def test_a_leader_whose_disk_stands_still_keeps_its_followers_and_they_commit_without_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with Voters(tmp_path) as voters:
            leader = await voters.leader()
            control = voters.running[leader]
            await control.submit(bootstrap())
            term = control.status.term
            disk = voters.configs[leader].disk
            assert isinstance(disk, SlowDisk)
            disk.delay_s = 3.0
            began = time.monotonic()
            assert (await control.submit({"op": "no such command"}))["code"] == "invalid_command"
            await until(lambda: control.lease > began + 1.0)
            assert control.is_leader and control.status.term == term
            disk.delay_s = 0.0

    asyncio.run(run())


def test_a_voter_that_was_away_for_long_gets_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lsmq_coordinator.voter.COMPACT_BYTES", 4_000)
    monkeypatch.setattr("lsmq_coordinator.raft_kept.KEPT_ENTRIES", 10)

    async def run() -> None:
        async with Voters(tmp_path) as voters:
            leader = await voters.leader()
            control = voters.running[leader]
            await control.submit(bootstrap())
            behind = next(node for node in voters.running if node != leader)
            await until(lambda: voters.running[behind].state.version == 1)
            await voters.stop(behind)
            for number in range(200):
                topic = {"op": "create_topic", "name": f"t{number}", "queues": 1, "options": {}, "created_ms": 1}
                assert (await control.submit(topic))["ok"]
            await voters.start(behind)
            late = voters.running[behind]
            await until(lambda: late.state.version == control.state.version)
            assert late.state.encode() == control.state.encode()
            # And from there on the log, and its own disk.
            assert (await control.submit({**topic, "name": "later"}))["ok"]
            await until(lambda: late.state.version == control.state.version)
            await voters.stop(behind)
            await voters.start(behind)
            await until(lambda: voters.running[behind].state.encode() == control.state.encode())

    asyncio.run(run())


class Flapping:
    """A state that a hundred thousand commands leave as small as it was."""

    def __init__(self) -> None:
        self.count = 0
        self.status = RaftStatus()
        self.failure: BaseException | None = None

    def apply(self, command: bytes) -> int:
        self.count += 1
        return self.count

    def capture(self) -> Callable[[], bytes]:
        return functools.partial(msgpack.packb, [self.count, "x" * 20_000])

    def restore(self, content: bytes) -> None:
        self.count = msgpack.unpackb(content)[0]

    def status_changed(self, status: RaftStatus) -> None:
        self.status = status

    def failed(self, error: BaseException) -> None:
        self.failure = error


@pytest.mark.part(2)
def test_a_hundred_thousand_commands_leave_a_small_journal_that_is_opened_quickly(tmp_path: Path) -> None:
    (address,) = config(tmp_path).voters.values()

    def voter(listener: Flapping) -> Voter:
        made = Voter(address, Electorate(0, {"n1": address}), Journal(tmp_path), [b"k" * 32], listener, RaftTiming())
        made.start()
        return made

    def wait(condition: Callable[[], bool]) -> None:
        eventually(lambda: flapping.failure is not None or condition(), "the voter is as far")
        assert flapping.failure is None

    flapping = Flapping()
    running = voter(flapping)
    wait(lambda: running.status.ready)
    largest, answers = 0, []
    for number in range(100_000):
        running.propose(b"change of an in-sync set %08d" % number + b"x" * 300, lambda *answer: answers.append(answer))
        if number % 500 == 499:
            wait(lambda count=number + 1: len(answers) == count)
            largest = max(largest, (tmp_path / "JOURNAL").stat().st_size)
    assert {outcome for _, outcome in answers} == {ProposalOutcome.APPLIED}
    assert largest < 4 << 20, "the journal grew with what once was"
    running.stop()
    assert flapping.failure is None
    later = Flapping()
    began = time.monotonic()
    running = voter(later)
    wait(lambda: later.count == 100_000)
    print(f"largest journal {largest:,} bytes; opened and applied in {time.monotonic() - began:.2f} s")
    assert running.status.applied - running.status.log_bytes // 300 > 90_000, "it began with a snapshot"
    running.stop()


def test_a_voter_whose_disk_was_set_back_knows_it_and_helps_nobody_forget(tmp_path: Path) -> None:
    async def run() -> None:
        async with Voters(tmp_path) as voters:
            leader = await voters.leader()
            control = voters.running[leader]
            await control.submit(bootstrap())
            back = next(node for node in voters.running if node != leader)
            await until(lambda: voters.running[back].status.whole)
            await voters.stop(back)
            saved = tmp_path / "saved"
            shutil.copytree(tmp_path / back, saved)
            await voters.start(back)
            topic = {"op": "create_topic", "name": "kept", "queues": 1, "options": {}, "created_ms": 1}
            await control.submit(topic)
            await until(lambda: voters.running[back].state.version == control.state.version)
            await voters.stop(back)
            shutil.rmtree(tmp_path / back)
            shutil.copytree(saved, tmp_path / back)
            await voters.start(back)
            returned = voters.running[back]
            await until(lambda: returned.state.version == control.state.version and returned.status.whole)
            await voters.stop(back)
            loaded, _ = replay((tmp_path / back / "raft" / "JOURNAL").read_bytes())
            assert loaded.state.life[0] == 3, "the second life was begun twice: the third is another one"

    asyncio.run(run())


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
        wrong = FrameSession([b"another key of another cluster.."], client=True)
        with socket.create_connection((host, port)) as connection:
            connection.sendall(wrong.hello())
            assert closed(connection)
        raw = [pickle.dumps(bomb), zlib.compress(pickle.dumps(bomb)), msgpack.packb(["status"])]
        raw += [
            msgpack.packb(message)
            for message in ("readonly", {"from": "n9"}, {"from": {"n": 1}}, {"from": [1], "to": 2}, None)
        ]
        for payload in raw:
            session = FrameSession(SECRET.keys("raft"), client=True)
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


@pytest.mark.part(2)
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


def test_a_voter_without_descriptors_for_its_sockets_says_so_once_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries, poll = [0], RaftTransport.poll

    def starved(self: RaftTransport, timeout: float) -> None:
        tries[0] += 1
        if tries[0] % 2:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        poll(self, timeout)

    monkeypatch.setattr(RaftTransport, "poll", starved)

    async def run() -> None:
        control = await leading(RaftControl(config(tmp_path)))
        assert (await control.submit(bootstrap()))["ok"]
        await until(lambda: tries[0] > 20)
        await control.stop()

    asyncio.run(run())
    assert [record.getMessage() for record in caplog.records if "sockets" in record.getMessage()] == [
        "sockets between voters: [Errno 24] Too many open files"
    ]
