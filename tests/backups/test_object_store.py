"""Backups in an object store: the same as in a directory, held by one command at a time, whoever dies meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from api.calls import Api
from lsmq.errors import DataDirectoryLocked, DataDirectoryUnusable, DiskFull, InvalidRequest
from lsmq_node.backups import objects
from lsmq_node.backups.objects import ObjectPlace
from lsmq_node.backups.places import BACKUPS, FILES, open_place
from lsmq_node.backups.repository import Repository
from support.mounts import tmpfs
from support.node_process import NodeProcess
from support.ports import free_ports
from support.waiting import eventually

from .commands import QUEUES, command, held, lsmq, send

BUCKET = "backups"
SMALL: dict[str, Any] = {"shards": 2, "memtable_bytes": 4 << 20}


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    """A server of the protocol of S3, in a process of its own."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    words = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: answers(f"{url}/moto-api/data.json"), "the object store answers")
        yield url
    finally:
        server.kill()
        server.wait()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


@pytest.fixture
def bucket(service: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Empty, and known to whatever is started from here."""
    for name, value in {
        "AWS_ENDPOINT_URL": service,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "anna",
        "AWS_SECRET_ACCESS_KEY": "secret-of-anna",
    }.items():
        monkeypatch.setenv(name, value)
    urllib.request.urlopen(urllib.request.Request(f"{service}/moto-api/reset", method="POST"), timeout=30).close()
    client = boto3.client("s3", endpoint_url=service, region_name="us-east-1")
    client.create_bucket(Bucket=BUCKET)
    return client


@pytest.fixture
def place(bucket: Any) -> str:
    return f"s3://{BUCKET}/of/lsmq"


def keys(bucket: Any) -> dict[str, int]:
    listed = bucket.list_objects_v2(Bucket=BUCKET).get("Contents", ())
    return {entry["Key"].removeprefix("of/lsmq/"): entry["Size"] for entry in listed}


@pytest.fixture
def node(make_node: Callable[..., NodeProcess]) -> NodeProcess:
    return make_node(**SMALL).start()


@pytest.mark.part(3)
def test_backups_are_made_listed_verified_restored_and_removed(
    node: NodeProcess, make_node: Callable[..., NodeProcess], place: str, bucket: Any, tmp_path: Path
) -> None:
    api = Api(node.url)
    api.create("t", QUEUES)
    send(api, "t", range(1_000))
    first = lsmq(node.url, "backup", "create", "--to", place, "--json")
    assert first["fetched_bytes"] == first["size_bytes"] > 1 << 20
    send(api, "t", range(1_000, 1_010))
    second = lsmq(node.url, "backup", "create", "--to", place, "--json")
    assert 0 < second["fetched_bytes"] < second["size_bytes"] / 10, "what is there is not sent again"
    assert [found["id"] for found in lsmq(node.url, "backup", "list", place, "--json")] == [first["id"], second["id"]]
    assert "nothing is damaged" in lsmq("", "verify", place)
    assert not [key for key in keys(bucket) if key.startswith(("incoming/", "LOCK"))]

    lsmq("", "backup", "restore", place, "--data", tmp_path / "new")
    assert held(Api(make_node(tmp_path / "new", **SMALL).start().url), "t") == held(api, "t")
    assert f"{QUEUES * 1_000} messages" in lsmq(
        node.url, "backup", "extract", place, "--topic", "t", "--as", "then", "--id", first["id"]
    )
    assert {queue: len(found) for queue, found in held(api, "then").items()} == dict.fromkeys(range(QUEUES), 1_000)

    assert "1 backup removed" in lsmq("", "backup", "prune", place, "--keep", "1")
    kept = {file.sha256 for file in Repository.at(place).load().files()}
    assert set(keys(bucket)) == {f"backups/{second['id']}"} | {
        f"{kind}/{name}" for kind in ("files", "sums") for name in kept
    }
    assert "nothing is damaged" in lsmq("", "verify", place)


def test_damage_there_is_found_and_nothing_of_it_restored(
    node: NodeProcess, place: str, bucket: Any, tmp_path: Path
) -> None:
    api = Api(node.url)
    api.create("t", QUEUES)
    send(api, "t", range(100))
    lsmq(node.url, "backup", "create", "--to", place)
    largest = max((key for key in keys(bucket) if key.startswith("files/")), key=lambda key: keys(bucket)[key])
    content = bytearray(bucket.get_object(Bucket=BUCKET, Key=f"of/lsmq/{largest}")["Body"].read())
    content[len(content) // 2] ^= 1
    bucket.put_object(Bucket=BUCKET, Key=f"of/lsmq/{largest}", Body=bytes(content))
    for remedy in ("damaged", "missing"):
        assert "1 place damaged" in lsmq("", "verify", place, code=1)
        said = lsmq("", "backup", "restore", place, "--data", tmp_path / "new", code=1)
        assert f"{place}/{largest}" in said and not (tmp_path / "new").exists()
        if remedy == "damaged":
            bucket.delete_object(Bucket=BUCKET, Key=f"of/lsmq/{largest}")
    # The next one fetches again what is not there.
    lsmq(node.url, "backup", "create", "--to", place)
    assert "nothing is damaged" in lsmq("", "verify", place)


@pytest.mark.part(3)
def test_a_backup_that_is_killed_is_none_and_the_next_one_goes_on_when_its_lock_has_died(
    make_node: Callable[..., NodeProcess],
    place: str,
    bucket: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passing = tmp_path / "passing"
    node = make_node(**SMALL, backup_bytes_per_s=64 << 10).start()
    api = Api(node.url)
    api.create("t", QUEUES)
    for _ in range(3):
        send(api, "t", range(100), 1_000)
        for shard in (0, 1):
            begun = api.call("POST", f"/v1/shards/{shard}/snapshots", {"holder": "flush"}, status=201).json()
            api.call("DELETE", f"/v1/shards/{shard}/snapshots/{begun['id']}", status=204)
    passing.mkdir()
    words, environment = command(node.url, "backup", "create", "--to", place)
    process = subprocess.Popen(words, env={**environment, "TMPDIR": str(passing)}, stderr=subprocess.PIPE)
    try:
        eventually(lambda: any(key.startswith("incoming/") for key in keys(bucket)), "a file is complete")
        with (
            pytest.raises(DataDirectoryLocked, match=f"process {process.pid} of {os.uname().nodename}"),
            Repository.at(place).changing(),
        ):
            pass
    finally:
        process.kill()
        process.communicate()
    assert any(passing.iterdir())
    monkeypatch.setattr(tempfile, "tempdir", str(passing))
    assert "LOCK" in keys(bucket) and "holds no backups" in lsmq("", "backup", "list", place, code=1)
    node.restart(backup_bytes_per_s=1 << 30)
    monkeypatch.setattr(objects, "_RENEW_S", 0.2)
    monkeypatch.setattr(objects, "_DEAD_S", 3.0)
    made = lsmq(node.url, "backup", "create", "--to", place, "--json")
    assert 0 < made["fetched_bytes"] < made["size_bytes"], "what was fetched is found again"
    assert not any(passing.iterdir()), "what it left on this machine is gone"
    assert "nothing is damaged" in lsmq("", "verify", place) and "LOCK" not in keys(bucket)


def test_who_lost_the_lock_changes_nothing_any_more(place: str, bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "_RENEW_S", 0.05)
    repository = Repository.at(place)
    with repository.changing():
        repository.place.write(FILES, "before", b"x")
        body = json.dumps({"who": "somebody else", "pid": 1, "host": "h"}).encode()
        bucket.put_object(Bucket=BUCKET, Key="of/lsmq/LOCK", Body=body)

        def refused() -> bool:
            try:
                repository.place.write(FILES, "after", b"x")
            except OSError as error:
                assert "another process may change it" in str(error)
                return True
            return False

        eventually(refused, "the other's lock was noticed")
        with pytest.raises(OSError, match="another process"):
            repository.place.remove(FILES, ["before"])
    assert "files/before" in keys(bucket) and "LOCK" in keys(bucket), "what is another's stays"


def test_who_was_suspended_adds_and_removes_nothing_before_it_knows(place: str, bucket: Any) -> None:
    """A machine that slept does not know that its lock was taken over meanwhile: the clock that counts stood still."""
    repository = Repository.at(place)
    with repository.changing():
        repository.place.write(BACKUPS, "before", b"x")
        bucket.put_object(Bucket=BUCKET, Key="of/lsmq/LOCK", Body=json.dumps({"who": "somebody else"}).encode())
        with pytest.raises(OSError, match="another process"):
            repository.place.write(BACKUPS, "after", b"x")
        with pytest.raises(OSError, match="another process"):
            repository.place.remove(BACKUPS, ["before"])
    assert {"backups/before", "LOCK"} == set(keys(bucket))


def test_a_directory_for_temporary_files_that_is_full_is_named_and_not_the_store(
    place: str, bucket: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (small := tmp_path / "small").mkdir()
    with tmpfs(small, "size=1m"):
        monkeypatch.setattr(tempfile, "tempdir", str(small))
        repository = Repository.at(place)
        with repository.changing():
            incoming = repository.receive()
            with pytest.raises(DiskFull, match=rf"{small}, .*\(TMPDIR\)") as refused:
                incoming.write(bytes(2 << 20))
            incoming.discard()
    assert "--keep" not in refused.value.message, "fewer backups help nothing"


def test_a_change_that_cannot_begin_holds_nothing(
    place: str, bucket: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """There is no directory for temporary files, or no room in it."""
    monkeypatch.setattr(objects, "_RENEW_S", 0.05)
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
        with pytest.raises(DataDirectoryUnusable, match="gone"), Repository.at(place).changing():
            pass
    assert "LOCK" not in keys(bucket)
    with Repository.at(place).changing():
        pass


def test_of_many_that_begin_together_one_holds_it(place: str, bucket: Any) -> None:
    began, results = threading.Barrier(6), []

    def change() -> None:
        began.wait()
        try:
            with Repository.at(place).changing():
                results.append("held")
                holding.wait(60)
        except DataDirectoryLocked:
            results.append("refused")

    holding = threading.Event()
    threads = [threading.Thread(target=change) for _ in range(6)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objects, "_RENEW_S", 0.2)
        for thread in threads:
            thread.start()
        eventually(lambda: len(results) == 6, "all know")
        holding.set()
        for thread in threads:
            thread.join()
    assert sorted(results) == ["held"] + 5 * ["refused"]


def test_what_is_no_place_or_not_reached_is_said_without_secrets(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("ftp://x/y", "s3://", "s3://anna:secret@bucket/x", "s3://bucket/x?versionId=1"):
        with pytest.raises(InvalidRequest, match="is no place for backups"):
            open_place(wrong)
    with pytest.raises(DataDirectoryUnusable, match="nowhere") as missing, Repository.at("s3://nowhere/x").changing():
        pass
    monkeypatch.setattr(objects, "_RETRY", {**objects._RETRY, "max_retries": 0})
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_ports(1)[0]}")
    with pytest.raises(DataDirectoryUnusable) as unreached:
        Repository.at("s3://backups/x").ids()
    for refused in (missing, unreached):
        assert "secret-of-anna" not in refused.value.message and len(refused.value.message) < 600
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(DataDirectoryUnusable):
        ObjectPlace("s3://backups/x")  # By TLS, unless it is said.
        Repository.at("s3://backups/x").ids()
