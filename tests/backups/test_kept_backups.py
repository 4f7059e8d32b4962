"""Which backups of a place are kept, and which go: whatever clocks said, what is damaged, who else has some there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api.calls import Api
from lsmq.errors import CorruptFile, InvalidRequest
from lsmq_node.backups.check import verify_repository
from lsmq_node.backups.manifest import BackupManifest
from lsmq_node.backups.repository import Repository
from support.node_process import NodeProcess

from .commands import lsmq

AHEAD = "20991231T235959.999Z"


@pytest.fixture
def node(make_node: Callable[..., NodeProcess]) -> NodeProcess:
    node = make_node(shards=1).start()
    Api(node.url).create("t", 1)
    return node


def made(node: NodeProcess, backups: Path, *more: str) -> str:
    found: dict[str, Any] = lsmq(node.url, "backup", "create", "--to", backups, "--json", *more)
    return str(found["id"])


def whole(backups: Path) -> list[BackupManifest]:
    repository, found = Repository.at(str(backups)), []
    for id in repository.ids():
        with suppress(CorruptFile):
            found.append(repository.load(id))
    return found


def rewritten(backups: Path, made: str, **fields: Any) -> None:
    """As if another maker had made it."""
    found = replace(Repository.at(str(backups)).load(made), **fields)
    (backups / "backups" / made).unlink()
    (backups / "backups" / found.id).write_bytes(found.encode())


def test_the_newest_backup_is_the_last_one_though_a_clock_was_ahead(node: NodeProcess, tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    rewritten(backups, made(node, backups), id=AHEAD)
    latest = made(node, backups, "--keep", "1")
    assert latest == "21000101T000000.000Z"
    assert [found["id"] for found in lsmq("", "backup", "list", backups, "--json")] == [latest]
    assert latest in lsmq("", "backup", "restore", backups, "--data", tmp_path / "new")


def test_a_damaged_backup_counts_for_none_and_it_is_said_that_its_files_stay(node: NodeProcess, tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    first, second = made(node, backups), made(node, backups)
    damaged = backups / "backups" / second
    damaged.write_bytes(damaged.read_bytes()[:-5])
    (backups / "files" / ("0" * 64)).touch()

    said = lsmq("", "backup", "prune", backups, "--keep", "1")
    assert "0 backups removed" in said and f"no space is freed: {second} cannot be read" in said
    assert [found.id for found in whole(backups)] == [first]
    assert (backups / "files" / ("0" * 64)).exists()

    third = lsmq(node.url, "backup", "create", "--to", backups, "--keep", "2", "--json")
    assert third["removed"] == [] and third["unread"] == [second]
    # It goes when it is older than those that are kept, and what was its own with it.
    fourth = lsmq(node.url, "backup", "create", "--to", backups, "--keep", "2", "--json")
    assert fourth["removed"] == [first, second] and fourth["unread"] == []
    assert not (backups / "files" / ("0" * 64)).exists()
    assert "nothing is damaged" in lsmq("", "verify", backups)


def test_what_somebody_else_put_there_stays_and_stops_nothing(node: NodeProcess, tmp_path: Path) -> None:
    """A file server's own directories, say."""
    backups = tmp_path / "backups"
    first = made(node, backups)
    foreign = [backups / folder / ".snapshot" for folder in ("files", "incoming", "backups")]
    for each in foreign:
        each.mkdir()
    (backups / "files" / "README").touch()
    left = [backups / "backups" / f"{AHEAD}.tmp", backups / "files" / ("0" * 64), backups / "incoming" / "PART-1-2"]
    for each in left:
        each.touch()
    second = made(node, backups, "--keep", "1")
    assert [found.id for found in whole(backups)] == [second] != [first]
    assert all(each.exists() for each in (*foreign, backups / "files" / "README"))
    assert not any(each.exists() for each in left)


def test_who_reads_a_place_beside_one_that_removes_finds_no_damage(
    node: NodeProcess, make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    backups = tmp_path / "backups"
    Api(node.url).send("t", {"body": "x", "queue": 0})
    first, second = made(node, backups), made(make_node(shards=1).start(), backups)
    found: list[Any] = []

    def begin(total: int) -> Any:
        """What is there is known, and not read yet."""
        lsmq("", "backup", "prune", backups, "--keep", "1")
        return lambda size: None

    summary = verify_repository(Repository.at(str(backups)), tell=found.append, begin=begin)
    assert not summary.damaged, found
    assert [backup.id for backup in whole(backups)] == [second] != [first]
    with pytest.raises(InvalidRequest, match="does not hold"):
        Repository.at(str(backups)).load(first)


def test_backups_of_another_cluster_are_not_counted_nor_removed_by_its_own(node: NodeProcess, tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    other = made(node, backups)
    rewritten(backups, other, cluster="other")
    first = made(node, backups)
    second = made(node, backups, "--keep", "1")
    assert [(found.id, found.cluster) for found in whole(backups)] == [(other, "other"), (second, None)]
    assert first != second and "nothing is damaged" in lsmq("", "verify", backups)
    assert "1 backup removed" in lsmq("", "backup", "prune", backups, "--keep", "1"), "who asks for that counts all"


def test_whose_a_damaged_backup_is_nobody_knows_beside_those_of_another_cluster(
    node: NodeProcess, tmp_path: Path
) -> None:
    backups = tmp_path / "backups"
    rewritten(backups, made(node, backups), cluster="other")
    damaged = made(node, backups)
    (backups / "backups" / damaged).write_bytes(b"damaged")
    latest = [made(node, backups, "--keep", "1") for _ in range(2)][-1]
    assert [found.id for found in whole(backups) if found.cluster is None] == [latest]
    assert damaged in Repository.at(str(backups)).ids()


def test_a_file_that_was_cut_short_is_found_without_reading_it(node: NodeProcess, tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    repository, id = Repository.at(str(backups)), made(node, backups)
    backup = repository.load(id)
    repository.check_there(backup)
    file = max(backup.files(), key=lambda file: file.size_bytes)
    with (backups / "files" / file.sha256).open("r+b") as content:
        content.truncate(file.size_bytes - 1)
    with pytest.raises(CorruptFile, match=f"has {file.size_bytes - 1} of {file.size_bytes} bytes"):
        repository.check_there(backup)
    with pytest.raises(CorruptFile, match=f"it is {file.name} of a shard"):
        list(repository.pieces(file))
