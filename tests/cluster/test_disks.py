"""Members of a cluster on several disks: what a lost one had is led by others, and made again."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lsmq_lab.local_cluster import LocalCluster
from support.clusters import running_cluster
from support.waiting import eventually

from .test_http import ask, overview, send, settled

pytestmark = pytest.mark.slow

SHARDS = 4
SETTINGS = {"segment_bytes": 1 << 20, "memtable_bytes": 4 << 20, "cluster.rebuild_after_ms": 3_000}
#: Which of its disks a shard lies on at n1.
SECOND = {1, 3}


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """Of three nodes and four shards; n1 has two disks. A parameter is ``min_in_sync``."""
    more = {"min_in_sync": getattr(request, "param", None)}
    with running_cluster(__name__, tmp_path / "c", up=False, shards=SHARDS, settings=SETTINGS, **more) as cluster:
        file = cluster.configuration("n1")
        first = str(cluster.directory / "n1" / "data")
        text = file.read_text()
        assert f'"{first}"' in text
        file.write_text(text.replace(f'"{first}"', f'["{first}", "{tmp_path / "d2"}"]'))
        cluster.up()
        settled(cluster)
        yield cluster


@pytest.fixture
def second(tmp_path: Path) -> Path:
    return tmp_path / "d2"


def status_of(cluster: LocalCluster, node: str = "n1") -> dict[str, Any]:
    status, found = ask(f"{cluster.plan.node(node).url}/v1/status")
    assert status == 200
    return dict(found)


def shards_by_disk(cluster: LocalCluster) -> list[list[int]]:
    return [disk["shards"] for disk in status_of(cluster)["disks"]]


def problems(cluster: LocalCluster) -> list[str]:
    """Of n1, as another node was told, which may be a moment ago: to be waited for."""
    status, found = ask(f"{cluster.plan.node('n2').url}/v1/cluster")
    assert status == 200
    (node,) = (node for node in found["nodes"] if node["id"] == "n1")
    return list(node["problems"])


def led_by_others(cluster: LocalCluster) -> bool:
    found = overview(cluster)["shards"]
    return all(shard["leader"] not in (None, "n1") for shard in found if shard["id"] in SECOND)


def are_there(shard: dict[str, Any], nodes: list[str]) -> bool:
    """Whether a shard's replicas are at these nodes, and in sync."""
    return sorted(shard["replicas"]) == sorted(shard["in_sync"]) == nodes


def written(cluster: LocalCluster, body: str) -> None:
    for queue in range(SHARDS):
        send(cluster, "t", queue, body)


def read(cluster: LocalCluster, queue: int) -> list[str]:
    """At its leader, which may be about to be another one."""

    def found() -> dict[str, Any] | None:
        _, described = ask(f"{cluster.plan.nodes[1].url}/v1/topics/t")
        leader = next(route["leader"] for route in described["routes"] if route["first"] <= queue < route["end"])
        status, answer = ask(f"{leader}/v1/topics/t/queues/{queue}/messages?offset=0")
        return dict(answer) if status == 200 else None

    return [message["body"] for message in eventually(found, "its leader answers")["messages"]]


def test_what_a_lost_disk_had_is_led_by_others_and_made_again(cluster: LocalCluster, second: Path) -> None:
    assert shards_by_disk(cluster) == [[0, 2], [1, 3]]
    ask(f"{cluster.plan.nodes[0].url}/v1/topics/t", "PUT", {"queues": SHARDS})
    written(cluster, "before")
    cluster.stop("n1")
    away = second.rename(second.with_name("away"))
    cluster.start("n1")
    eventually(lambda: any(str(second) in problem for problem in problems(cluster)), "all are told")
    eventually(lambda: led_by_others(cluster), "others lead its shards")
    url = cluster.plan.node("n1").url
    eventually(lambda: ask(f"{url}/readyz")[0] == 200, "clients may come to it")
    written(cluster, "without")
    eventually(lambda: shards_by_disk(cluster) == [[0, 1, 2, 3]], "the replicas are made again on its other disk")
    settled(cluster)
    eventually(lambda: not any(str(second) in problem for problem in problems(cluster)), "all are told")
    assert not second.exists()
    written(cluster, "after")

    cluster.stop("n1")
    away.rename(second)
    cluster.start("n1")
    settled(cluster)
    eventually(lambda: any("was told to forget" in problem for problem in problems(cluster)), "all are told")
    assert shards_by_disk(cluster)[0] == [0, 1, 2, 3]
    cluster.stop("n1")
    shutil.rmtree(second)
    cluster.start("n1")
    settled(cluster)
    eventually(lambda: problems(cluster) == [], "all are told")
    assert shards_by_disk(cluster) == [[0, 1, 2, 3], []]
    for queue in range(SHARDS):
        assert read(cluster, queue) == ["before", "without", "after"]


def test_a_disk_that_goes_while_the_node_runs_hands_its_shards_to_others(cluster: LocalCluster, second: Path) -> None:
    ask(f"{cluster.plan.nodes[0].url}/v1/topics/t", "PUT", {"queues": SHARDS})
    written(cluster, "before")
    away = second.rename(second.with_name("away"))
    eventually(lambda: led_by_others(cluster), "others lead its shards")
    eventually(lambda: any(str(second) in problem for problem in problems(cluster)), "all are told")
    written(cluster, "without")
    assert not second.exists()
    cluster.kill("n1")
    away.rename(second)
    cluster.start("n1")
    settled(cluster)
    assert shards_by_disk(cluster) == [[0, 2], [1, 3]]
    for queue in range(SHARDS):
        assert read(cluster, queue) == ["before", "without"]


def test_what_a_disk_had_that_fails_while_the_node_runs_is_made_again_without_a_restart(
    cluster: LocalCluster, second: Path
) -> None:
    ask(f"{cluster.plan.nodes[0].url}/v1/topics/t", "PUT", {"queues": SHARDS})
    written(cluster, "before")
    pid = status_of(cluster)["pid"]
    away = second.rename(second.with_name("away"))
    eventually(lambda: led_by_others(cluster), "others lead its shards")
    written(cluster, "without")
    eventually(lambda: shards_by_disk(cluster) == [[0, 1, 2, 3]], "the replicas are made again on its other disk")
    settled(cluster)
    written(cluster, "after")
    eventually(lambda: problems(cluster) == [], "a disk that nothing is missed of is no problem")
    assert status_of(cluster)["pid"] == pid
    assert ask(f"{cluster.plan.node('n1').url}/healthz")[0] == 200
    away.rename(second)
    cluster.kill("n1")
    cluster.start("n1")
    settled(cluster)
    eventually(lambda: any("was told to forget" in problem for problem in problems(cluster)), "all are told")
    for queue in range(SHARDS):
        assert read(cluster, queue) == ["before", "without", "after"]


def test_a_replica_that_cannot_be_opened_on_a_further_disk_keeps_no_client_away(
    cluster: LocalCluster, second: Path
) -> None:
    ask(f"{cluster.plan.nodes[0].url}/v1/topics/t", "PUT", {"queues": SHARDS})
    written(cluster, "before")
    cluster.stop("n1")
    manifest = second / "shard-1" / "MANIFEST"
    kept = manifest.rename(manifest.with_name("kept"))
    manifest.mkdir()  # Reading it fails, as on a disk that breaks.
    cluster.start("n1")
    url = cluster.plan.node("n1").url
    eventually(lambda: any("shard 1:" in problem for problem in problems(cluster)), "all are told")
    eventually(lambda: ask(f"{url}/readyz")[0] == 200, "clients may come to it")
    assert any(str(manifest.parent) in warning for warning in ask(f"{url}/readyz")[1]["warnings"])
    written(cluster, "without")
    manifest.rmdir()
    kept.rename(manifest)
    settled(cluster)
    eventually(lambda: problems(cluster) == [], "all are told")
    for queue in range(SHARDS):
        assert read(cluster, queue) == ["before", "without"]


def test_a_replica_that_was_moved_away_and_back_while_its_disk_was_away_is_told_from_the_older_one(
    cluster: LocalCluster, second: Path
) -> None:
    ask(f"{cluster.plan.nodes[0].url}/v1/topics/t", "PUT", {"queues": SHARDS})
    written(cluster, "before")
    cluster.stop("n1")
    file = cluster.configuration("n1")
    text = re.sub("rebuild_after_ms = .*", "rebuild_after_ms = 0", file.read_text())
    assert "rebuild_after_ms = 0" in text
    file.write_text(text)
    away = second.rename(second.with_name("away"))
    cluster.start("n1")
    url = f"{cluster.plan.nodes[1].url}/v1/cluster/shards/1/replicas"

    def move(*nodes: str) -> None:
        replicas = list(nodes)
        eventually(lambda: ask(url, "PUT", {"replicas": replicas})[0] == 200, "they are to be there")
        eventually(lambda: are_there(overview(cluster)["shards"][1], replicas), "they are")

    move("n2", "n3")
    move("n1", "n2", "n3")
    assert 1 in shards_by_disk(cluster)[0]
    written(cluster, "without")
    cluster.stop("n1")
    away.rename(second)
    cluster.start("n1")
    settled(cluster)
    eventually(lambda: problems(cluster) == [], "all are told")
    assert [1] not in shards_by_disk(cluster)
    for queue in range(SHARDS):
        assert read(cluster, queue) == ["before", "without"]


@pytest.mark.parametrize("cluster", [1], indirect=True)
def test_the_only_replica_is_waited_for(cluster: LocalCluster, second: Path) -> None:
    ask(f"{cluster.plan.nodes[0].url}/v1/topics/t", "PUT", {"queues": SHARDS})
    written(cluster, "before")
    for shard in SECOND:
        url = f"{cluster.plan.nodes[0].url}/v1/cluster/shards/{shard}/replicas"
        eventually(lambda: ask(url, "PUT", {"replicas": ["n1"]})[0] == 200, "it is to be at n1 alone")  # noqa: B023
    eventually(
        lambda: all(shard["replicas"] == ["n1"] for shard in overview(cluster)["shards"] if shard["id"] in SECOND),
        "it is",
    )
    cluster.stop("n1")
    away = second.rename(second.with_name("away"))
    cluster.start("n1")
    eventually(lambda: any(str(second) in problem for problem in problems(cluster)), "all are told")
    leaders = {shard["id"]: shard["leader"] for shard in overview(cluster)["shards"]}
    assert all(leaders[shard] in (None, "n1") for shard in SECOND)
    assert "disks_forgotten" not in cluster.process("n1").log.read_text()
    assert status_of(cluster)["disks"][1]["problem"] is not None
    cluster.stop("n1")
    away.rename(second)
    cluster.start("n1")
    settled(cluster)
    for queue in range(SHARDS):
        assert read(cluster, queue) == ["before"]
