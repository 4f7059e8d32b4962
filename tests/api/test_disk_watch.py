"""A disk that takes no writes is named wherever one looks, while clients may still come to read."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from lsmq_node.broker import Broker, disk_watch
from lsmq_node.storage.disk import OsDisk, OsFile
from support.raft_group import until

from .in_process import Session, with_node


class SmallDisk(OsDisk):
    """``full`` is whether it has no space left."""

    full = False

    def free_bytes(self, path: Path) -> int:
        return 0 if self.full else 1 << 40


def test_a_full_disk_is_named_until_it_has_had_room_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_watch, "_CALM_S", float("inf"))
    disk = SmallDisk()

    async def test(session: Session, broker: Broker) -> None:
        async def ready() -> tuple[int, list[str]]:
            answer = await session.get("/readyz")
            return answer.status, (await answer.json()).get("warnings", [])

        assert await ready() == (200, [])
        disk.full = True
        await until(lambda: broker.parts.problems(essential=False))
        (warning,) = broker.parts.problems(essential=False)
        assert str(tmp_path) in warning and "min_free_bytes" in warning
        assert await ready() == (200, [warning]), "what is stored can be read"
        (node,) = (await (await session.get("/v1/cluster")).json())["nodes"]
        assert node["problems"] == [warning]
        assert 'lsmq_part_running{part="disk"} 0.0' in await (await session.get("/metrics")).text()

        disk.full = False
        await until(lambda: not broker.topology.ports()[0].store.disk_full)
        assert await ready() == (200, [warning]), "it may be full again in a moment"
        monkeypatch.setattr(disk_watch, "_CALM_S", 0.0)
        await until(lambda: not broker.parts.problems(essential=False))
        assert await ready() == (200, [])

    with_node(tmp_path, test, disk)


def test_a_replica_that_finds_no_room_is_named_though_the_file_system_shows_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a volume that is thin, and has no more blocks."""
    monkeypatch.setattr(disk_watch, "_CALM_S", 0.0)

    async def test(session: Session, broker: Broker) -> None:
        (port,) = broker.topology.ports()
        monkeypatch.setattr(type(port), "wants_room", "No space left on device")
        await until(lambda: broker.parts.problems(essential=False))
        (warning,) = broker.parts.problems(essential=False)
        assert f"{port.store.path}: No space left on device" in warning and "go on by themselves" in warning
        monkeypatch.setattr(type(port), "wants_room", None)
        await until(lambda: not broker.parts.problems(essential=False))

    with_node(tmp_path, test, SmallDisk())


def test_a_disk_that_hangs_is_named_until_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_watch, "_CALM_S", 0.0)
    monkeypatch.setattr(disk_watch, "_CHECK_S", 0.02)
    monkeypatch.setattr(disk_watch, "_HANGS_S", 0.2)
    goes_on = threading.Event()
    sync = OsFile.sync

    def hang(file: OsFile) -> None:
        goes_on.wait()
        sync(file)

    async def test(session: Session, broker: Broker) -> None:
        monkeypatch.setattr(OsFile, "sync", hang)
        sending = asyncio.create_task(session.post("/v1/topics/t/messages", json={"messages": [{"body": "b"}]}))
        try:
            await until(lambda: broker.parts.problems(essential=False))
            (warning,) = broker.parts.problems(essential=False)
            assert f"{tmp_path}" in warning and "has not finished a write" in warning
            answer = await session.get("/readyz")
            assert (answer.status, (await answer.json())["warnings"]) == (200, [warning])
        finally:
            goes_on.set()
        assert (await sending).status == 200
        await until(lambda: not broker.parts.problems(essential=False))

    with_node(tmp_path, test, SmallDisk())
