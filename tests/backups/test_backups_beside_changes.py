"""Backups of what is damaged, deleted or let go of while they are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from api.calls import Api
from lsmq import Client
from lsmq.errors import CorruptFile
from lsmq.shard_snapshots import HeldSnapshot
from lsmq_node.backups.create import BackupMade, create_backup
from lsmq_node.backups.repository import Repository
from lsmq_node.backups.restore import restore_backup
from lsmq_node.backups.sources import ApiReader
from lsmq_node.storage import StoredTopic
from support.node_process import NodeProcess

from .commands import QUEUES, held, send
from .fixture import flush


@pytest.fixture
def node(make_node: Callable[..., NodeProcess]) -> NodeProcess:
    node = make_node(shards=2).start()
    api = Api(node.url)
    for name in ("t", "gone"):
        api.create(name, QUEUES)
        send(api, name, range(20))
    flush(api)
    return node


async def made(node: NodeProcess, place: Path, reader: type[ApiReader] = ApiReader) -> BackupMade:
    repository = Repository.at(str(place))
    async with Client(node.url) as client:
        with repository.changing():
            return await create_backup(reader(client, "test"), repository)


def restored(make_node: Callable[..., NodeProcess], place: Path, data: Path) -> Api:
    restore_backup(Repository.at(str(place)), [data])
    return Api(make_node(data, shards=2).start().url)


async def test_what_is_damaged_at_its_node_is_named_and_no_backup(node: NodeProcess, tmp_path: Path) -> None:
    table = sorted(node.data.rglob("*.tbl"))[0]
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 1
    table.write_bytes(content)
    with pytest.raises(CorruptFile, match=rf"{table.name} of shard \d is damaged at its node"):
        await made(node, tmp_path / "backups")
    repository = Repository.at(str(tmp_path / "backups"))
    assert repository.ids() == [] and not list((tmp_path / "backups").rglob("PART-*"))


async def test_a_topic_that_is_deleted_while_its_shards_are_read_is_not_there_when_it_is_restored(
    node: NodeProcess, make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    class Deleting(ApiReader):
        async def topics(self) -> Sequence[StoredTopic]:
            await self._client.delete_topic("gone")
            return await super().topics()

    expected = held(Api(node.url), "t")
    await made(node, tmp_path / "backups", Deleting)
    api = restored(make_node, tmp_path / "backups", tmp_path / "new")
    assert [topic["name"] for topic in api.get("/v1/topics").json()["topics"]] == ["t"]
    assert held(api, "t") == expected
    api.create("gone", QUEUES)
    assert not any(held(api, "gone").values())


async def test_a_snapshot_that_was_let_go_of_is_begun_again_and_nothing_fetched_twice(
    node: NodeProcess, make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    files: list[str] = []

    class Forgetting(ApiReader):
        async def read(self, snapshot: HeldSnapshot, file: str, offset: int, length: int) -> bytes:
            if len(files) == 3:
                await self.end(snapshot)
            files.append(f"{snapshot.shard}/{file}")
            return await super().read(snapshot, file, offset, length)

    backup = await made(node, tmp_path / "backups", Forgetting)
    assert backup.fetched_bytes >= backup.backup.size_bytes > 0
    tables = [file for file in files if file.endswith(".tbl")]
    assert {file for file in tables if tables.count(file) > 1} <= {files[3]}
    expected = held(Api(node.url), "t")
    assert held(restored(make_node, tmp_path / "backups", tmp_path / "new"), "t") == expected
