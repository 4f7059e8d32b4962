"""Manifests of backups that somebody made up: refused as damaged, and nothing is written where they say."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import crc32c
import msgpack
import pytest

from lsmq.errors import CorruptFile
from lsmq_node.backups.check import verify_repository
from lsmq_node.backups.manifest import BackupManifest
from lsmq_node.backups.repository import Repository
from lsmq_node.backups.restore import restore_backup
from lsmq_node.storage import manifest
from lsmq_node.storage.framed import encode_framed
from lsmq_node.storage.manifest import Manifest, encode_manifest
from lsmq_node.storage.repair import Damage
from lsmq_node.storage.snapshot import MAGIC, VERSION

ID = "20261127T120000.000Z"
TOPIC = {"id": 1, "name": "t", "queues": 1, "options": {}, "created_ms": 1, "ranges": []}


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
        lambda fields: fields.update(topics=[{**TOPIC, "id": "1"}]),
        lambda fields: fields.update(topics=[{**TOPIC, "name": 7}]),
        lambda fields: fields.update(topics=[{**TOPIC, "ranges": [[0, 1, -1]]}]),
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
        restore_backup(Repository.at(str(place)), tmp_path / "new")
    assert [each.name for each in tmp_path.iterdir()] == ["backups"]


SNAPSHOT = {"epochs": [], "manifest": encode_manifest(Manifest(segment_bytes=1 << 20))}


def _snapshot(values: dict[str, Any]) -> str:
    return base64.b64encode(encode_framed(MAGIC, VERSION, values)).decode()


def _manifest(**changes: Any) -> bytes:
    """With rows of files that nobody wrote."""
    head = len(MAGIC) + 12
    values = msgpack.unpackb(encode_manifest(Manifest(segment_bytes=1 << 20))[head:])
    return encode_framed(manifest.MAGIC, manifest.VERSION, {**values, **changes})


@pytest.mark.parametrize(
    "snapshot",
    [
        "",
        _snapshot({}),
        _snapshot({**SNAPSHOT, "manifest": b""}),
        _snapshot({**SNAPSHOT, "epochs": [[1]]}),
        _snapshot({**SNAPSHOT, "manifest": _manifest(checkpoint=[[1, 2, 3, 4, 5]])}),
        _snapshot({**SNAPSHOT, "manifest": _manifest(checkpoint=[["../../outside", 1, 0, 1]])}),
        _snapshot({**SNAPSHOT, "manifest": _manifest(checkpoint=[[1, 1, 0, 1]])}),  # which the backup does not have
    ],
)
def test_a_shard_of_which_nothing_can_be_known_is_told_beside_what_is_whole(tmp_path: Path, snapshot: str) -> None:
    place, later = tmp_path / "backups", ID.replace("T12", "T13")
    for folder in ("backups", "files", "incoming"):
        (place / folder).mkdir(parents=True)
    whole, made_up = ({**_shard(0), "snapshot": each} for each in (_snapshot(SNAPSHOT), snapshot))
    (place / "backups" / ID).write_bytes(_framed(_fields(made_up)))
    (place / "backups" / later).write_bytes(_framed({**_fields(whole), "id": later}))
    told: list[Any] = []
    summary = verify_repository(Repository.at(str(place)), tell=told.append)
    assert summary.damages == 1
    damages = [each for each in told if isinstance(each, Damage)]
    assert [(each.file, each.consequence) for each in damages] == [(f"backups/{ID}", "the backup cannot be restored")]
    assert "shard 0: " in damages[0].part
    with pytest.raises(CorruptFile, match="shard 0: "):
        restore_backup(Repository.at(str(place)), tmp_path / "new", ID)
    assert [each.name for each in tmp_path.iterdir()] == ["backups"]


def test_what_is_no_map_is_no_manifest() -> None:
    documents: list[Any] = [[], None, "x", 7]
    for document in documents:
        with pytest.raises(CorruptFile, match="the manifest of the backup is none"):
            BackupManifest.decode(_framed(document), "made up")
