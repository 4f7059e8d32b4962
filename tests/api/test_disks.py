"""A node of its own on several disks: one that goes takes its shards and no others, and nothing is taken for it."""

from __future__ import annotations

import json
import re
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backups.commands import lsmq
from lsmq import sync
from lsmq.errors import LsmqError
from support.mounts import tmpfs
from support.node_process import NodeProcess, StartFailed
from support.waiting import eventually

from .calls import Api
from .test_start import failure

NodeMaker = Callable[..., NodeProcess]

MIB = 1 << 20
SHARDS = 4
#: Each lies on the shard of its number.
QUEUES = 4


class Disks:
    """A node of four shards on two disks: 0 and 2 on the first, 1 and 3 on the second."""

    def __init__(self, make_node: NodeMaker, directory: Path, **settings: Any) -> None:
        self.first, self.second = directory / "d1", directory / "d2"
        self.node = make_node(Path(f"{self.first},{self.second}"), shards=SHARDS, **settings)
        self.sent = dict.fromkeys(range(QUEUES), 0)

    def start(self) -> Api:
        self.api = Api(self.node.start().url)
        return self.api

    def made(self) -> Api:
        api = self.start()
        api.create("t", QUEUES)
        for queue in range(QUEUES):
            self.send(queue)
        return api

    def send(self, queue: int) -> None:
        self.api.send("t", {"queue": queue, "body": f"{queue}-{self.sent[queue]}"})
        self.sent[queue] += 1

    def takes(self, queue: int) -> bool:
        """Send one; whether it was taken, or refused for want of space."""
        answer = self.api.send("t", {"queue": queue, "body": f"{queue}-{self.sent[queue]}"}, status=None)
        assert answer.status == 200 or (answer.status, answer.code) == (507, "disk_full")
        self.sent[queue] += answer.status == 200
        return answer.status == 200

    def all_there(self, *queues: int) -> bool:
        return all(
            self.api.all_bodies("t", queue) == [f"{queue}-{number}" for number in range(self.sent[queue])]
            for queue in queues or range(QUEUES)
        )

    def refused(self, queue: int) -> dict[str, Any]:
        error = self.api.send("t", {"queue": queue, "body": "x"}, status=503).error
        assert self.api.read("t", queue, status=503, offset=0).code == error["code"] == "shard_stopped"
        return error

    def shown(self) -> dict[str, list[int]]:
        return {Path(disk["path"]).name: disk["shards"] for disk in self.api.status()["disks"]}

    def warnings(self) -> list[str]:
        answer = self.api.get("/readyz").json()
        found: list[str] = answer.get("warnings", [])
        return found


@pytest.fixture
def disks(make_node: NodeMaker, tmp_path: Path) -> Disks:
    return Disks(make_node, tmp_path)


def test_shards_are_spread_and_all_is_there_after_a_kill(disks: Disks) -> None:
    api = disks.made()
    assert disks.shown() == {"d1": [0, 2], "d2": [1, 3]}
    by_shard = {shard["shard"]: Path(shard["disk"]).name for shard in api.status()["shards"]}
    assert by_shard == {0: "d1", 1: "d2", 2: "d1", 3: "d2"}
    assert api.metric("lsmq_disk_usable") == 2 and api.metric("lsmq_disk_free_bytes") > 0
    assert disks.warnings() == []
    disks.node.kill9()
    disks.start()
    assert disks.all_there() and disks.shown() == {"d1": [0, 2], "d2": [1, 3]}
    assert "(data " + str(disks.first) + "," + str(disks.second) + ")" in disks.node.log()


def test_a_disk_that_is_away_at_the_start_takes_its_shards_and_no_others(disks: Disks) -> None:
    api = disks.made()
    api.create("gone", QUEUES)
    api.call("POST", "/v1/groups/g/offsets", {"topic": "t", "queues": [0, 1], "offsets": [1, 1]}, status=200)
    disks.node.stop()
    away = disks.second.rename(disks.second.with_name("away"))
    api = disks.start()
    assert not disks.second.exists()

    assert disks.all_there(0, 2)
    disks.send(0)
    for queue in (1, 3):
        assert str(disks.second) in disks.refused(queue)["message"]
    (warning,) = disks.warnings()
    assert str(disks.second) in warning and "without it are the shards 1, 3" in warning
    assert api.get("/healthz").json()["status"] == "ok", "a restart would not help"
    overview = api.get("/v1/cluster").json()
    assert overview["nodes"][0]["problems"] == [warning] and overview["nodes"][0]["shards_led"] == 2
    assert [shard["leader"] for shard in overview["shards"]] == ["local", None, "local", None]
    assert str(disks.second) in overview["shards"][1]["problem"] and overview["shards"][0]["problem"] is None
    assert api.metric("lsmq_disk_usable") == 1
    assert [disk["problem"] is None for disk in api.status()["disks"]] == [True, False]
    assert str(disks.second) in lsmq(disks.node.url, "status", code=1)
    for path in ("/v1/topics", "/v1/topics/t", "/metrics", "/v1/status", "/v1/groups", "/console"):
        api.get(path)
    with sync.Client(disks.node.url, deadline_ms=2_000) as client, sync.Producer(client, "t") as producer:
        producer.send_and_wait("0-2", queue=0)
        disks.sent[0] += 1
        with pytest.raises(LsmqError):
            producer.send_and_wait("lost", queue=1)

    api.call("DELETE", "/v1/topics/gone", status=204)
    api.create("new", QUEUES)
    api.call("PATCH", "/v1/topics/t", {"retention_ms": 10**12}, status=200)
    disks.node.stop()
    away.rename(disks.second)
    api = disks.start()
    assert disks.all_there() and disks.warnings() == []
    for queue in range(QUEUES):
        disks.send(queue)
        api.send("new", {"queue": queue, "body": "x"})
    assert api.get("/v1/topics/gone", status=404).code == "unknown_topic"
    committed = api.get("/v1/groups/g/offsets?topic=t").json()
    assert dict(zip(committed["queues"], committed["offsets"], strict=True)) == {0: 1, 1: 1}


def test_a_disk_that_was_emptied_or_exchanged_is_not_used(disks: Disks, make_node: NodeMaker, tmp_path: Path) -> None:
    disks.made()
    disks.node.stop()
    kept = disks.second.rename(disks.second.with_name("kept"))
    disks.second.mkdir()
    disks.start()
    assert "emptied" in disks.refused(1)["message"]
    disks.node.stop()
    assert list(disks.second.iterdir()) == []

    other = Disks(make_node, tmp_path / "other")
    other.made()
    other.node.stop()
    disks.second.rmdir()
    shutil.copytree(other.second, disks.second)
    disks.start()
    assert "is a disk of another node" in disks.refused(1)["message"]
    disks.node.stop()

    shutil.rmtree(disks.second)
    kept.rename(disks.second)
    disks.start()
    assert disks.all_there()


def test_a_disk_that_goes_while_the_node_runs_stops_its_shards_alone(disks: Disks) -> None:
    api = disks.made()
    away = disks.second.rename(disks.second.with_name("away"))

    def named() -> bool:
        failing = api.get("/healthz", status=None).json()["reasons"]
        return len(failing) == 2 and all(f"shard {shard} stopped" in " ".join(failing) for shard in (1, 3))

    eventually(named, "its shards stop")
    eventually(lambda: api.metric("lsmq_disk_usable") == 1, "the disk is said to be gone")
    for queue in (0, 2):
        disks.send(queue)
    assert api.send("t", {"queue": 1, "body": "x"}, status=503).code == "shard_stopped"
    assert not disks.second.exists(), "nothing is made in its place"
    disks.node.kill9()
    disks.start()
    assert disks.all_there(0, 2) and str(disks.second) in disks.warnings()[0]
    disks.node.stop()
    away.rename(disks.second)
    disks.start()
    assert disks.all_there()


def test_disks_are_looked_at_again_once_there_are_descriptors(make_node: NodeMaker, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("d1", "d2", "d3")]
    node = make_node(Path(",".join(map(str, paths))), shards=3).start()
    node.stop()
    paths[2].rename(tmp_path / "away")
    api = Api(node.start().url)

    def warnings() -> list[str]:
        found: list[str] = api.get("/readyz").json()["warnings"]
        return found

    (lost,) = warnings()
    assert str(paths[2]) in lost
    files = resource.prlimit(node.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (3, files[1]))
    said = rf"part_fails.*disk {paths[1]}.*Too many open files"
    eventually(lambda: re.search(said, node.log()), "it cannot be looked at")
    resource.prlimit(node.pid, resource.RLIMIT_NOFILE, files)
    eventually(lambda: warnings() == [lost], "it can be used")


def test_a_full_disk_refuses_writes_of_its_shards_alone(make_node: NodeMaker, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "d1", "size=64m"), tmpfs(tmp_path / "d2", "size=64m"):
        disks = Disks(
            make_node,
            tmp_path,
            segment_bytes=MIB,
            memtable_bytes=2 * MIB,
            max_message_bytes=MIB // 4,
            min_free_bytes=16 * MIB,
        )
        api = disks.made()
        filler = disks.second / "filler"
        filler.write_bytes(bytes(shutil.disk_usage(disks.second).free - 12 * MIB))
        eventually(lambda: any("min_free_bytes" in warning for warning in disks.warnings()), "it is said to be full")
        (warning,) = disks.warnings()
        assert str(disks.second) in warning and str(disks.first) not in warning
        eventually(lambda: not disks.takes(1), "each of its shards has seen it")
        disks.send(0)
        api.call("PUT", "/v1/cluster/shards", {"shards": 6}, status=200)
        assert disks.shown() == {"d1": [0, 2, 4, 5], "d2": [1, 3]}, "what is new goes where there is room"
        filler.unlink()
        eventually(lambda: disks.takes(1), "there is room")
        assert disks.all_there()
        disks.node.stop()


def test_a_disk_that_is_added_is_used_for_what_comes(make_node: NodeMaker, tmp_path: Path) -> None:
    node = make_node(tmp_path / "d1", shards=2)
    api = Api(node.start().url)
    api.create("old", 2)
    api.send("old", {"queue": 1, "body": "before"})
    node.stop()
    node.data = Path(f"{tmp_path / 'd1'},{tmp_path / 'd2'}")
    api = Api(node.start().url)
    assert api.bodies("old", 1) == ["before"]
    api.call("PUT", "/v1/cluster/shards", {"shards": 4}, status=200)
    assert [disk["shards"] for disk in api.status()["disks"]] == [[0, 1], [2, 3]]
    assert json.loads((tmp_path / "d1" / "node.json").read_text())["format"] == 4
    node.kill9()
    node.data = tmp_path / "d1"
    api = Api(node.start().url)
    assert api.bodies("old", 1) == ["before"]
    assert "no directory of data" in api.get("/readyz").json()["warnings"][0]


def test_a_shard_is_moved_and_a_disk_is_left_by_commands(disks: Disks) -> None:
    disks.made()
    both = f"{disks.first},{disks.second}"
    assert "in use by process" in lsmq("", "disk", "move", "3", "--to", disks.first, "--data", both, code=1)
    disks.node.stop()
    for shard in ("1", "3"):
        assert "lies in" in lsmq("", "disk", "move", shard, "--to", disks.first, "--data", both)
    disks.start()
    assert disks.all_there() and disks.shown() == {"d1": [0, 1, 2, 3], "d2": []}
    disks.send(3)
    disks.node.stop()
    assert "4 shards" in lsmq("", "disk", "forget", disks.second, "--data", both)
    disks.node.data = disks.first
    disks.start()
    assert disks.all_there() and disks.warnings() == []
    assert json.loads((disks.first / "node.json").read_text())["format"] == 1


def test_what_cannot_be_is_refused_in_one_line(disks: Disks, make_node: NodeMaker) -> None:
    disks.made()
    disks.node.stop()
    shutil.copytree(disks.second / "shard-1", disks.first / "shard-1")
    assert "shard 1 lies on two disks" in failure(disks.node)
    shutil.rmtree(disks.first / "shard-1")
    for data, what in (
        (f"{disks.second},{disks.first}", "name the node's own first directory first"),
        (f"{disks.first},{disks.first}/inside", "or one lies in the other"),
        (f"{disks.first},{disks.second},{disks.first}", "or one lies in the other"),
    ):
        other = make_node(Path(data), shards=SHARDS)
        with pytest.raises(StartFailed, match=what):
            other.start()
    disks.start()
    assert disks.all_there()


def test_all_disks_are_verified_and_saved(disks: Disks, tmp_path: Path, make_node: NodeMaker) -> None:
    disks.made()
    disks.node.stop()
    assert "4 messages are whole; nothing is damaged" in lsmq("", "verify", disks.first)
    both = f"{disks.first},{disks.second}"
    assert "4 messages are whole" in lsmq("", "repair", both, "--out", tmp_path / "saved")
    saved = Api(make_node(tmp_path / "saved", shards=SHARDS).start().url)
    assert [saved.bodies("t", queue) for queue in range(QUEUES)] == [[f"{queue}-0"] for queue in range(QUEUES)]
    disks.second.rename(disks.second.with_name("away"))
    said = lsmq("", "verify", disks.first, code=1)
    assert f"the disk {disks.second} is not there" in said and "shard-1" in said and "shard-3" in said
    assert "4 messages are whole" in lsmq("", "verify", f"{disks.first},{disks.second.with_name('away')}")


def test_a_backup_is_restored_to_several_disks_and_none_is_made_without_one(disks: Disks, tmp_path: Path) -> None:
    disks.made()
    backups = tmp_path / "backups"
    lsmq(disks.node.url, "backup", "create", "--to", backups)
    disks.node.stop()
    disks.second.rename(disks.second.with_name("away"))
    disks.start()
    assert "shard 1" in lsmq(disks.node.url, "backup", "create", "--to", backups, code=1)
    disks.node.stop()
    new = [tmp_path / name for name in ("n1", "n2", "n3")]
    lsmq("", "backup", "restore", backups, "--data", ",".join(map(str, new)))
    disks.node.data = Path(",".join(map(str, new)))
    disks.start()
    assert disks.all_there() and disks.shown() == {"n1": [0, 3], "n2": [1], "n3": [2]}
    disks.node.stop()
    assert "is not empty" in lsmq("", "backup", "restore", backups, "--data", f"{tmp_path / 'n9'},{new[1]}", code=1)
    assert not (tmp_path / "n9").exists()
