"""Backups of running nodes: all that was acknowledged is in them, whatever happens meanwhile; damage is found."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from api.calls import Api
from support.mounts import tmpfs
from support.node_process import NodeProcess
from support.waiting import eventually

from .commands import QUEUES, command, held, load, lsmq, send

KIB, MIB = 1024, 1024 * 1024
SMALL: dict[str, Any] = {"shards": 2, "memtable_bytes": 4 * MIB}


@pytest.fixture
def node(make_node: Callable[..., NodeProcess]) -> NodeProcess:
    return make_node(**SMALL).start()


@contextmanager
def restored(
    node: NodeProcess, make_node: Callable[..., NodeProcess], backups: Path, data: Path, *more: str
) -> Iterator[Api]:
    lsmq(node.url, "backup", "restore", backups, "--data", data, *more)
    yield Api(make_node(data, **SMALL).start().url)


def test_a_backup_under_load_has_all_that_was_acknowledged_before_it(
    node: NodeProcess, make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    api, backups = Api(node.url), tmp_path / "backups"
    api.create("orders", QUEUES)
    api.create("gone", QUEUES)
    send(api, "orders", range(300))
    api.call("POST", "/v1/groups/g/offsets", {"topic": "orders", "queues": [1, 4], "offsets": [7, 8]}, status=200)
    producer = {"id": 77, "sequence": 0}
    first = api.call(
        "POST", "/v1/topics/orders/messages", {"messages": [{"body": "p", "queue": 0}], "producer": producer}
    )
    api.call("DELETE", "/v1/topics/gone", status=204)
    before = held(api, "orders")

    with load(api) as rounds:
        eventually(lambda: rounds() > 2, "messages are sent")
        made = lsmq(node.url, "backup", "create", "--to", backups, "--json")
        seen = rounds()
        eventually(lambda: rounds() > seen, "messages are sent on")
    after = held(api, "orders")
    assert made["topics"] == ["orders"] and [shard["shard"] for shard in made["shards"]] == [0, 1]

    with restored(node, make_node, backups, tmp_path / "new") as other:
        found = held(other, "orders")
        for queue in range(QUEUES):
            assert found[queue][: len(before[queue])] == before[queue]
            assert found[queue] == after[queue][: len(found[queue])]
        committed = other.get("/v1/groups/g/offsets?topic=orders").json()
        assert dict(zip(committed["queues"], committed["offsets"], strict=True)) == {1: 7, 4: 8}
        again = other.call(
            "POST", "/v1/topics/orders/messages", {"messages": [{"body": "p", "queue": 0}], "producer": producer}
        )
        assert again.json() == first.json()
        ahead = {"messages": [{"body": "q", "queue": 0}], "producer": {"id": 77, "sequence": 5}}
        assert other.call("POST", "/v1/topics/orders/messages", ahead, status=409).code == "out_of_order_sequence"
        send(other, "orders", range(3))
        assert other.get("/v1/topics/gone", 404).code == "unknown_topic"


@pytest.mark.parametrize("shards", [1, 2])
def test_a_topic_that_is_made_anew_after_a_restore_is_another_one(
    make_node: Callable[..., NodeProcess], tmp_path: Path, shards: int
) -> None:
    """Who remembers the one that came after the backup, by its id, does not take the new one for it."""
    settings = {**SMALL, "shards": shards}
    node, backups = make_node(**settings).start(), tmp_path / "backups"
    api = Api(node.url)
    api.create("orders", 2)
    lsmq(node.url, "backup", "create", "--to", backups)
    api.create("later", 2)
    lsmq(node.url, "backup", "restore", backups, "--data", tmp_path / "new")
    other = Api(make_node(tmp_path / "new", **settings).start().url)
    other.create("later", 2)
    ids = [each.get(f"/v1/topics/{name}").json()["id"] for name in ("orders", "later") for each in (api, other)]
    assert ids[0] == ids[1] and ids[2] < ids[3]


def test_the_next_backup_fetches_what_is_new_and_old_ones_go(
    node: NodeProcess, make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    api, backups = Api(node.url), tmp_path / "backups"
    api.create("t", QUEUES)
    send(api, "t", range(1000))
    first = lsmq(node.url, "backup", "create", "--to", backups, "--json")
    assert first["fetched_bytes"] == first["size_bytes"] > MIB
    expected = held(api, "t")
    send(api, "t", range(10))
    second = lsmq(node.url, "backup", "create", "--to", backups, "--json")
    assert 0 < second["fetched_bytes"] < second["size_bytes"] / 10
    whole = lsmq(node.url, "backup", "create", "--to", backups, "--full", "--json")
    assert whole["fetched_bytes"] == whole["size_bytes"] == second["size_bytes"]
    assert [found["id"] for found in lsmq(node.url, "backup", "list", backups, "--json")] == [
        first["id"],
        second["id"],
        whole["id"],
    ]
    with restored(node, make_node, backups, tmp_path / "old", "--id", first["id"]) as other:
        assert held(other, "t") == expected

    third = lsmq(node.url, "backup", "create", "--to", backups, "--keep", "1", "--json")
    assert third["removed"] == [first["id"], second["id"], whole["id"]]
    listed = list((backups / "files").iterdir())
    assert sum(path.stat().st_size for path in listed) == third["size_bytes"]
    assert not list((backups / "incoming").iterdir())
    assert "nothing is damaged" in lsmq(node.url, "verify", backups)
    assert first["id"] in lsmq(
        node.url, "backup", "restore", backups, "--data", tmp_path / "no", "--id", first["id"], code=1
    )


def test_damage_in_a_backup_is_named_refused_and_mended_by_the_next_one(node: NodeProcess, tmp_path: Path) -> None:
    api, backups, data = Api(node.url), tmp_path / "backups", tmp_path / "new"
    api.create("t", QUEUES)
    send(api, "t", range(100))
    lsmq(node.url, "backup", "create", "--to", backups)
    table = max((backups / "files").iterdir(), key=lambda path: path.stat().st_size)
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 1
    table.write_bytes(content)
    assert table.name in lsmq(node.url, "verify", backups, code=1)
    assert table.name in lsmq(node.url, "backup", "restore", backups, "--data", data, code=1)
    assert not data.exists()
    lsmq(node.url, "backup", "create", "--to", backups)
    lsmq(node.url, "verify", backups)
    table.unlink()
    assert "missing" in lsmq(node.url, "verify", backups, code=1)
    assert "missing" in lsmq(node.url, "backup", "restore", backups, "--data", data, code=1)
    [first, _] = sorted((backups / "backups").iterdir())
    first.write_bytes(first.read_bytes()[:-5])
    assert "manifest of the backup is damaged" in lsmq(node.url, "verify", backups, code=1)
    data.mkdir()
    (data / "file").touch()
    assert "not empty" in lsmq(node.url, "backup", "restore", backups, "--data", data, code=1)
    assert "not empty" in lsmq(node.url, "backup", "create", "--to", data, code=1)


@pytest.mark.part(3)
def test_backups_are_removed_from_no_place_that_has_none(tmp_path: Path) -> None:
    assert "holds no backups" in lsmq("", "backup", "prune", tmp_path / "mistyped", "--keep", "1", code=1)
    assert not list(tmp_path.iterdir())


def test_a_killed_backup_is_gone_on_with_also_after_a_restart_of_the_node(
    make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    node = make_node(**SMALL, backup_bytes_per_s=512 * KIB).start()
    api, backups = Api(node.url), tmp_path / "backups"
    api.create("t", QUEUES)
    for round in range(4):  # a table each
        send(api, "t", range(200 * round, 200 * round + 200), 500)
        flush(api)
    words, environment = command(node.url, "backup", "create", "--to", backups)
    process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    eventually(lambda: is_complete(backups), "a file is complete")
    process.kill()
    process.wait()
    assert not list((backups / "backups").iterdir())
    assert "does not hold" in lsmq(node.url, "backup", "restore", backups, "--data", tmp_path / "no", code=1)
    assert "does not hold any backup" in lsmq(node.url, "verify", backups, code=1)

    words, environment = command(node.url, "backup", "create", "--to", backups, "--json")
    process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE)
    eventually(lambda: bool(list((backups / "incoming").glob("PART-*"))), "another file is fetched")
    node.kill9()
    node.settings["backup_bytes_per_s"] = 1024 * MIB
    node.start()
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    made = json.loads(printed)
    assert 0 < made["fetched_bytes"] < made["size_bytes"]
    lsmq(node.url, "verify", backups)


def is_complete(backups: Path) -> bool:
    """Whether a backup that is under way has a file."""
    incoming = backups / "incoming"
    return incoming.exists() and any(not child.name.startswith("PART") for child in incoming.iterdir())


def flush(api: Api) -> None:
    """Whoever holds a snapshot has what is in memory written to tables."""
    for shard in (0, 1):
        held = api.call("POST", f"/v1/shards/{shard}/snapshots", {"holder": "flush"}, status=201).json()
        api.call("DELETE", f"/v1/shards/{shard}/snapshots/{held['id']}", status=204)


@pytest.mark.part(2)
def test_a_full_disk_is_said_and_what_was_fetched_is_kept(
    make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    node = make_node(**SMALL, backup_bytes_per_s=512 * KIB).start()
    api, small = Api(node.url), tmp_path / "small"
    api.create("t", QUEUES)
    for _ in range(3):
        send(api, "t", range(100), 1000)
        flush(api)
    with tmpfs(small, "size=8m"):
        backups, filler = small / "backups", small / "filler"
        filler.write_bytes(bytes(7 * MIB))
        assert "MiB are free" in lsmq(node.url, "backup", "create", "--to", backups, code=1)
        filler.unlink()
        words, environment = command(node.url, "backup", "create", "--to", backups)
        process = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)
        try:
            eventually(lambda: is_complete(backups), "a file is complete")
            with filler.open("wb") as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(64 * KIB))
                    file.flush()
            said = process.communicate(timeout=60)[1]
        finally:
            process.kill()
            process.wait()
        assert "no space is left" in said and process.returncode == 1
        filler.unlink()
        made = lsmq(node.url, "backup", "create", "--to", backups, "--json")
        assert 0 < made["fetched_bytes"] < made["size_bytes"]
        assert "MiB are free" in lsmq(node.url, "backup", "restore", backups, "--data", small / "new", code=1)
        assert not (small / "new").exists()


def test_what_a_topic_had_up_to_a_moment_is_sent_to_another_one(node: NodeProcess, tmp_path: Path) -> None:
    api, backups = Api(node.url), tmp_path / "backups"
    api.create("t", QUEUES, retention_ms=1_000_000)
    api.create("names", "named")
    send(api, "t", range(50))
    binary = {"queue": 2, "body_b64": "/wA=", "key_b64": "/w==", "tag": "red", "type": "order", "priority": 9}
    binary["subpriority"] = 3
    api.send("t", {**binary, "headers": [{"name": "h", "value": "1"}, {"name": "h", "value": "2"}]})
    api.send("names", *({"queue": f"user/{number % 7}", "body": str(number)} for number in range(70)))
    expected = held(api, "t")
    moment = max(message[4] for messages in expected.values() for message in messages) + 1
    eventually(lambda: time.time() * 1000 > moment, "what is sent now is stored later")
    send(api, "t", range(100, 110))
    lsmq(node.url, "backup", "create", "--to", backups)
    api.call("DELETE", "/v1/topics/t", status=204)

    until = datetime.fromtimestamp(moment / 1000, UTC).isoformat()
    arguments = ("backup", "extract", backups, "--topic", "t", "--until", until, "--as")
    assert "301 messages" in lsmq(node.url, *arguments, "again")
    found = held(api, "again")
    for queue in range(QUEUES):
        kept = [
            (key, {**properties, "restored.stored_ms": str(ms)}, body)
            for _, _, key, properties, ms, body in expected[queue]
        ]
        assert [(key, properties, body) for _, _, key, properties, _, body in found[queue]] == kept
    [full] = [message for message in api.all_messages("again", 2) if message.get("type") == "order"]
    sent = {name: full.get(name) for name in (*binary, "headers")}
    assert sent == {**binary, "headers": [{"name": "h", "value": "1"}, {"name": "h", "value": "2"}]}
    assert api.get("/v1/topics/again").json()["options"]["retention_ms"] == 1_000_000
    assert "choose another name" in lsmq(node.url, *arguments, "again", code=1)
    assert "has no topic" in lsmq(node.url, "backup", "extract", backups, "--topic", "x", "--as", "y", code=1)

    named = ("backup", "extract", backups, "--topic", "names", "--queue", "user/3", "--as")
    lsmq(node.url, *named, "three")
    listed = api.get("/v1/topics/three/queues").json()["queues"]
    assert [queue["name"] for queue in listed] == ["user/3"]
    bodies = [message["body"] for message in api.get("/v1/topics/three/queues/user%2F3/messages").json()["messages"]]
    assert bodies == [str(number) for number in range(3, 70, 7)]
    said = lsmq(node.url, *named, "four", "--queue", "user/8", code=1)
    assert "10 messages sent to four" in said and "no queue 'user/8' of names" in said

    for queue in (str(QUEUES), "-1", "01", "user/3"):
        said = lsmq(node.url, *arguments, "fifth", "--queue", queue, code=1)
        assert f"has no queue '{queue}'" in said and f"from 0 to {QUEUES - 1}" in said
    assert "ends before it begins" in lsmq(node.url, *arguments, "fifth", "--from", until, code=1)
    api.get("/v1/topics/fifth", 404)
    assert "messages sent to sixth" in lsmq(node.url, *arguments, "sixth", "--queue", "2")
    assert [len(messages) for messages in held(api, "sixth").values()] == [0, 0, len(expected[2]), 0, 0, 0]


def test_snapshots_are_asked_for_by_whoever_has_them(node: NodeProcess) -> None:
    api = Api(node.url)
    begun = api.call("POST", "/v1/shards/1/snapshots", {"holder": "a"}, status=201).json()
    path = f"/v1/shards/1/snapshots/{begun['id']}"
    assert api.get(path).json()["lsn"] == begun["lsn"]
    assert api.get(path.replace("/1/", "/0/"), 410).code == "snapshot_gone"
    assert api.get(f"{path}/files/MANIFEST?length=10", 400).code == "invalid_request"
    assert api.get(f"{path}/files/..%2FMANIFEST?length=10", 400).code == "invalid_request"
    assert api.call("POST", "/v1/shards/2/snapshots", {"holder": "a"}, status=400).code == "invalid_request"
    api.call("POST", "/v1/shards/1/snapshots", {"holder": "a"}, status=201)  # in place of the first one
    assert api.get(path, 410).code == "snapshot_gone"


def test_what_is_no_file_or_no_place_for_data_is_said_and_the_rest_goes_on(node: NodeProcess, tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    Api(node.url).create("t", 1)
    first, second = (lsmq(node.url, "backup", "create", "--to", backups, "--json")["id"] for _ in range(2))
    # A link, or the directory that one stands in: what it leads to is replaced.
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    with contextlib.chdir(tmp_path / "empty"):
        lsmq(node.url, "backup", "restore", backups, "--data", ".")
    shutil.rmtree(tmp_path / "empty")
    lsmq(node.url, "backup", "restore", backups, "--data", tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "empty" / "node.json").exists()
    # A manifest that cannot be read hides no other.
    (backups / "backups" / second).unlink()
    (backups / "backups" / second).mkdir()
    listed = lsmq(node.url, "backup", "list", backups, code=1)
    assert first in listed and f"error: corrupt_file: {backups}/backups/{second}: " in listed
    assert second in lsmq(node.url, "verify", backups, code=1)
    assert "cannot be read" in lsmq(node.url, "backup", "restore", backups, "--data", tmp_path / "no", code=1)
    lsmq(node.url, "backup", "restore", backups, "--data", tmp_path / "yes", "--id", first)
    file = next((backups / "files").iterdir())
    file.unlink()
    file.mkdir()
    assert "1 place damaged" in lsmq(node.url, "verify", backups, "--id", first, code=1)


def test_data_are_restored_onto_a_mount_point_and_below_it(
    node: NodeProcess, make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    backups, volume = tmp_path / "backups", tmp_path / "volume"
    Api(node.url).create("t", 1)
    Api(node.url).send("t", {"body": "x"})
    lsmq(node.url, "backup", "create", "--to", backups)
    with tmpfs(volume, "size=512m"):
        (volume / "lost+found").mkdir()
        lsmq(node.url, "backup", "restore", backups, "--data", volume)
        assert "is not empty" in lsmq(node.url, "backup", "restore", backups, "--data", volume, code=1)
        other = make_node(volume, **SMALL).start()
        assert Api(other.url).all_bodies("t", 0) == ["x"]
        other.kill9()
        lsmq(node.url, "backup", "restore", backups, "--data", volume / "data")
        assert (volume / "data" / "node.json").exists()
