"""Which backups of a place are kept, and which go: whatever clocks said, what is damaged, who else has some there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api.calls import Api
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
