"""A voter whose disk is full for a while: it says so, waits, and goes on by itself with what it had."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lsmq.errors import LsmqError, StorageError
from lsmq_coordinator import journal, raft_control
from lsmq_coordinator.auth import ClusterSecret
from lsmq_coordinator.errors import ControlStopped
from lsmq_coordinator.journal import OS_DISK
from lsmq_coordinator.parts import Parts
from lsmq_coordinator.raft_control import RaftConfig, RaftControl
from support.ports import free_ports
from support.raft_group import until

from .test_state import bootstrap

SECRET = ClusterSecret(b"a secret of sufficient length")


class FailingDisk:
    """What journals write to; ``error`` is the number that writes fail with."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.error: int | None = None
        self.fails_syncs = False
        self.spared_syncs = 0
        self.tries = 0
        write, room = journal._write, raft_control.take_room

        def checked(honest: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any) -> Any:
                self.tries += 1
                if self.error is not None:
                    raise OSError(self.error, os.strerror(self.error))
                return honest(*arguments)

            return call

        patch.setattr(journal, "_write", checked(write))
        patch.setattr(raft_control, "take_room", checked(room))

    def sync(self, fd: int) -> None:
        self.spared_syncs -= 1
        if self.fails_syncs and self.spared_syncs < 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        OS_DISK.sync(fd)


@asynccontextmanager
async def kept_voter(directory: Path, disk: FailingDisk) -> AsyncIterator[tuple[RaftControl, Parts]]:
    voters = {"n1": f"127.0.0.1:{free_ports(1)[0]}"}
    raft = RaftControl(RaftConfig("n1", voters, directory, SECRET, disk=disk))
    parts = Parts()
    await raft.start()
    keeping = asyncio.create_task(raft.keep(parts.part("voter")))
    try:
        yield raft, parts
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await raft.stop()


async def found(raft: RaftControl) -> None:
    await until(lambda: raft.is_leader)
    result = await raft.submit(bootstrap(nodes=["n1"], shards=1, replicas=1, min_in_sync=1))
    assert result["ok"], result


def running(directory: Path, disk: FailingDisk, test: Callable[[RaftControl, Parts], Awaitable[None]]) -> None:
    async def main() -> None:
        async with kept_voter(directory, disk) as (raft, parts):
            await found(raft)
            await test(raft, parts)

    asyncio.run(main())


def topic(name: str) -> dict[str, Any]:
    return {"op": "create_topic", "name": name, "queues": 1, "created_ms": 1}


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE], ids=errno.errorcode.get)
def test_a_voter_goes_on_by_itself_when_there_is_room_again(
    error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FailingDisk(monkeypatch)

    async def run(raft: RaftControl, parts: Parts) -> None:
        assert (await raft.submit(topic("before")))["ok"]
        version, seen = raft.state.version, []
        raft.on_change(lambda state: seen.append(state.version))
        disk.error = error
        with pytest.raises(LsmqError):
            await raft.submit(topic("refused"), timeout=1.0)
        await until(lambda: parts.problems(essential=True))
        assert raft.failure is not None and not raft.is_leader and raft.lease == float("-inf")
        assert parts.problems(essential=True)[0].startswith("voter: ")
        tries = disk.tries
        await until(lambda: disk.tries > tries + 2)
        assert raft.failure is not None, "it does not come and go while there is no room"
        disk.error = None
        await until(lambda: raft.is_leader)
        assert parts.problems(essential=True) == []
        assert raft.state.version >= version and "before" in raft.state.topics
        assert (await raft.submit(topic("after")))["ok"]
        assert seen == sorted(seen), "nobody is shown an older state"

    running(tmp_path, disk, run)


@pytest.mark.parametrize("known", [True, False], ids=["with-a-journal", "without"])
def test_a_voter_that_is_started_on_a_full_disk_waits_for_room(
    known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that died of it, or with it, is started again by whatever supervises it, long before anybody made room."""
    disk = FailingDisk(monkeypatch)

    async def main() -> None:
        if known:
            async with kept_voter(tmp_path, disk) as (raft, _):
                await found(raft)
                assert (await raft.submit(topic("before")))["ok"]
        disk.error = errno.ENOSPC
        async with kept_voter(tmp_path, disk) as (raft, parts):
            await until(lambda: parts.problems(essential=True))
            assert parts.problems(essential=True)[0].startswith("voter: ")
            assert raft.failure is not None and not raft.is_leader
            with pytest.raises(LsmqError):
                await raft.submit(topic("refused"), timeout=1.0)
            disk.error = None
            await until(lambda: raft.is_leader)
            assert parts.problems(essential=True) == []
            assert ("before" in raft.state.topics) == known

    asyncio.run(main())


def test_a_voter_that_is_started_on_a_disk_that_fails_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FailingDisk(monkeypatch)

    async def main() -> None:
        async with kept_voter(tmp_path, disk) as (raft, _):
            await found(raft)
        told: list[str] = []
        disk.fails_syncs = True
        while disk.fails_syncs:
            disk.spared_syncs = len(told)
            try:
                async with kept_voter(tmp_path, disk):
                    disk.fails_syncs = False  # None is left that would fail.
            except StorageError as error:
                assert "JOURNAL" in error.message and "Input/output error" in error.message
                told.append(error.code)
        assert ControlStopped.code in told

    asyncio.run(main())


def test_a_voter_whose_sync_failed_has_stopped_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the disk holds is not known, and reading it again would not tell."""
    disk = FailingDisk(monkeypatch)

    async def run(raft: RaftControl, parts: Parts) -> None:
        disk.fails_syncs = True
        with pytest.raises(LsmqError):
            await raft.submit(topic("refused"), timeout=1.0)
        await until(lambda: any("has stopped" in problem for problem in parts.problems(essential=True)))
        assert raft.failure is not None and not raft.is_leader

    running(tmp_path, disk, run)


def test_a_voter_whose_journal_cannot_even_be_closed_is_said_to_have_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, close = FailingDisk(monkeypatch), journal.Journal.close

    def failing(closed: journal.Journal) -> None:
        close(closed)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async def run(raft: RaftControl, parts: Parts) -> None:
        monkeypatch.setattr(journal.Journal, "close", failing)
        disk.fails_syncs = True
        with pytest.raises(LsmqError):
            await raft.submit(topic("refused"), timeout=1.0)
        await until(lambda: raft.failure is not None)
        assert not raft.is_leader
        await until(lambda: parts.problems(essential=True))
        assert "voter has stopped" in parts.problems(essential=True)[0]

    running(tmp_path, disk, run)
