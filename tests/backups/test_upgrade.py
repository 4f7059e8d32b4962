"""Data directories and backups that releases have left are opened, read, written to and verified by this one."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from api.calls import Api
from lsmq import batch_builder
from lsmq_coordinator import known_voters, raft_records, state
from lsmq_node.backups import manifest as backup_manifest
from lsmq_node.cluster import record
from lsmq_node.disks import node_file
from lsmq_node.storage import dedupe_file, keyed_file, manifest, snapshot, sstable, wal
from support.node_process import NodeProcess

from .commands import lsmq
from .fixture import FIXTURES, SETTINGS, shown

ARCHIVES = sorted(FIXTURES.glob("data-*.tar.xz"))
PAGE = Path(__file__).parents[2] / "docs" / "formats" / "versions.md"
VERSIONS = {
    "data directory (`node.json`)": node_file.FORMAT,
    "log": wal.VERSION,
    "record batch": batch_builder.VERSION,
    "table": sstable.VERSION,
    "checkpoint": keyed_file.VERSION,
    "deduplication ids": dedupe_file.VERSION,
    "manifest": manifest.VERSION,
    "snapshot": snapshot.VERSION,
    "replica's record": record._VERSION,
    "control plane's state": state._FORMAT,
    "control journal": int(raft_records.MAGIC[-1:]),
    "known voters (`voters.json`)": known_voters._FORMAT,
    "backup": backup_manifest.VERSION,
}


def test_the_page_on_versions_has_those_of_the_code() -> None:
    rows = re.findall(r"^\| ([^|]+?) \| (\d+) \| \[", PAGE.read_text(), re.MULTILINE)
    assert {name: int(version) for name, version in rows} == VERSIONS


@pytest.mark.slow
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.partition(".")[0])
def test_what_a_release_left_is_read_written_to_and_restored(
    archive: Path, make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    assert archive.stat().st_size < 200_000
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    expected = json.loads(archive.with_name(archive.name.replace(".tar.xz", ".json")).read_text())
    data, backups, restored = tmp_path / "data", tmp_path / "backups", tmp_path / "restored"
    lsmq("", "verify", data)
    lsmq("", "verify", backups)
    lsmq("", "backup", "restore", backups, "--data", restored)
    api = Api(make_node(restored, **SETTINGS).start().url)
    assert shown(api) == expected
    _goes_on(api, expected)
    node = make_node(data, **SETTINGS).start()
    api = Api(node.url)
    for last in (False, True):
        assert shown(api) == expected
        assert api.all_bodies("ids", 1) == ["in the log alone"]
        _goes_on(api, expected)
        if not last:
            node.kill9()
            api = Api(node.start().url)


def _goes_on(api: Api, expected: dict[str, Any]) -> None:
    """What producers sent is known, and what is new is taken."""
    repeated = api.send("plain", {"queue": 5, "body": "p1"}, producer={"id": 77, "sequence": 1}).json()
    assert repeated["results"][0]["offset"] < len(expected["plain"]["5"])
    dropped = api.send("ids", {"queue": 0, "body": "again", "dedupe_id": "id-0"}).json()
    assert dropped["results"][0]["duplicate"]
    api.create("new", 2)
    assert api.send("new", {"body": "x", "queue": 1}).status == 200
    api.call("DELETE", "/v1/topics/new", status=204)
