"""Manifests of backups that somebody made up: refused as damaged, and nothing is written where they say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import crc32c
import pytest

from lsmq.errors import CorruptFile
from lsmq_node.backups.manifest import BackupManifest
from lsmq_node.backups.repository import Repository
from lsmq_node.backups.restore import restore_backup

ID = "20261127T120000.000Z"


def _shard(number: Any) -> dict[str, Any]:
    return {"shard": number, "lsn": 0, "taken_ms": 1, "snapshot": "", "files": []}


def _fields(*shards: dict[str, Any]) -> dict[str, Any]:
    times = {"made_ms": 1, "created_ms": 2}
    return {"id": ID, "cluster": None, "product": "0.1.0", **times, "shards": list(shards), "topics": []}


def _framed(document: Any) -> bytes:
    body = json.dumps(document).encode() + b"\n"
    return f"lsmq-backup 1 {crc32c.crc32c(body):08x}\n".encode() + body


def _of_a_path(fields: dict[str, Any]) -> None:
    fields["shards"][1]["shard"] = "0/../../outside"


def _twice(fields: dict[str, Any]) -> None:
    fields["shards"][1]["shard"] = 0


def _with_a_file(sha256: Any) -> Callable[[dict[str, Any]], None]:
    def change(fields: dict[str, Any]) -> None:
        fields["shards"][0]["files"] = [{"name": "x", "size_bytes": 1, "sha256": sha256}]

    return change


@pytest.mark.parametrize(
    "change",
    [
        _of_a_path,
        _twice,
        lambda fields: fields.update(shards=[]),
        lambda fields: fields.update(shards=[_shard(1)]),
        lambda fields: fields.update(shards=[_shard(True)]),
        lambda fields: fields.pop("topics"),
        lambda fields: fields.update(topics=[{}]),
        lambda fields: fields["shards"][0].update(snapshot="no base64!"),
        lambda fields: fields["shards"][0].update(files=[{"nothing": 1}]),
        _with_a_file("../../../etc/passwd"),
        _with_a_file(7),
    ],
)
def test_what_is_no_manifest_is_told_as_damage(tmp_path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    assert len(BackupManifest.decode(_framed(_fields(_shard(0), _shard(1))), "whole").shards) == 2
    fields = _fields(_shard(0), _shard(1))
    change(fields)
    with pytest.raises(CorruptFile, match="the manifest of the backup"):
        BackupManifest.decode(_framed(fields), "made up")
    place = tmp_path / "backups"
    for folder in ("backups", "files", "incoming"):
        (place / folder).mkdir(parents=True)
    (place / "backups" / ID).write_bytes(_framed(fields))
    with pytest.raises(CorruptFile):
        restore_backup(Repository.at(str(place)), [tmp_path / "new"])
    assert [each.name for each in tmp_path.iterdir()] == ["backups"]


def test_what_is_no_map_is_no_manifest() -> None:
    documents: list[Any] = [[], None, "x", 7]
    for document in documents:
        with pytest.raises(CorruptFile, match="the manifest of the backup is none"):
            BackupManifest.decode(_framed(document), "made up")
