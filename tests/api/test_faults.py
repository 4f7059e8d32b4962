"""Faults below the API, as its callers see them: a failed fsync, an engine that falls behind, a bug."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from lsmq.errors import StoreBusy
from lsmq_node.broker import Broker
from lsmq_node.storage import ShardStore
from lsmq_node.storage.disk import File, OsDisk

from .in_process import Session, with_node


class FailingFile:
    """A file whose sync fails while its disk says so."""

    def __init__(self, file: File, disk: FailingDisk) -> None:
        self._file = file
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def sync(self) -> None:
        if self._disk.failing:
            raise OSError(errno.EIO, "Input/output error")
        self._file.sync()


class FailingDisk(OsDisk):
    failing = False

    def create(self, path: Path) -> File:
        return FailingFile(super().create(path), self)  # type: ignore[return-value]

    def open(self, path: Path, *, write: bool = False, random: bool = False) -> File:
        return FailingFile(super().open(path, write=write, random=random), self)  # type: ignore[return-value]


async def send(client: Session, body: str = "x") -> tuple[int, dict[str, Any], Any]:
    answer = await client.post("/v1/topics/t/messages", json={"messages": [{"queue": 0, "body": body}]})
    return answer.status, await answer.json(), answer.headers


def test_a_failed_fsync_stops_writes_for_good_and_reads_go_on(tmp_path: Path) -> None:
    disk = FailingDisk()

    async def test(client: Session, broker: Broker) -> None:
        assert (await send(client, "kept"))[0] == 200
        disk.failing = True
        answers = await asyncio.gather(*(send(client) for _ in range(5)))
        assert {(status, body["error"]["code"]) for status, body, _ in answers} == {(503, "shard_stopped")}
        disk.failing = False
        status, body, _ = await send(client)
        assert (status, body["error"]["code"], body["error"]["retriable"]) == (503, "shard_stopped", False)
        page = await (await client.get("/v1/topics/t/queues/0/messages")).json()
        assert [message["body"] for message in page["messages"]] == ["kept"]
        for path in ("/healthz", "/readyz"):
            health = await client.get(path)
            assert health.status == 503
            assert "shard 0 stopped" in (await health.json())["reasons"][0]
        assert 'lsmq_store_stopped{shard="0"} 1.0' in await (await client.get("/metrics")).text()

    with_node(tmp_path, test, disk)


def test_writes_are_delayed_while_the_engine_falls_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(client: Session, broker: Broker) -> None:
        monkeypatch.setattr(ShardStore, "pressure", property(lambda store: "slow"))
        for _ in range(3):
            assert (await send(client))[0] == 200
        assert broker.writes_delayed == 3

    with_node(tmp_path, test)


def test_writes_refused_by_the_engine_say_when_to_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(client: Session, broker: Broker) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise StoreBusy("memtables wait for their flush; try again in a moment")

        monkeypatch.setattr(ShardStore, "append", refuse)
        status, body, headers = await send(client)
        assert (status, body["error"]["code"], body["error"]["retriable"]) == (503, "store_busy", True)
        assert headers["Retry-After"] == "1"

    with_node(tmp_path, test)


def test_a_bug_is_a_500_that_says_no_more_than_it_should(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    async def test(client: Session, broker: Broker) -> None:
        def fail(*_: object, **__: object) -> None:
            raise RuntimeError("secret")

        monkeypatch.setattr(ShardStore, "append", fail)
        status, body, _ = await send(client)
        assert (status, body["error"]["code"]) == (500, "internal")
        assert "RuntimeError" in body["error"]["message"] and "secret" not in body["error"]["message"]
        assert 'status="500"' in await (await client.get("/metrics")).text()

    with_node(tmp_path, test)
    assert "secret" in "".join(capfd.readouterr())
