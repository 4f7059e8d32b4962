"""``lsmq cluster``: real clusters of processes, by their command."""

from __future__ import annotations

import io
import json
import os
import re
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lsmq import Unavailable
from lsmq.cli import main
from lsmq.sync import Client, Consumer, Producer
from lsmq_lab.local_cluster import LocalCluster, choose_ports
from lsmq_lab.local_cluster.status import answers, ask
from support.waiting import eventually
from support.zookeeper_server import asked


def command(*arguments: str | Path) -> str:
    """Run ``lsmq cluster`` with these in a process of its own; what it printed on standard output."""
    words = [sys.executable, "-m", "lsmq", "cluster", *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def run(*arguments: str | Path, code: int = 0) -> str:
    """The same in this process, which is quicker; what it printed, on standard error if it failed."""
    output, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(errors), pytest.raises(SystemExit) as ended:
        main(["cluster", *map(str, arguments)])
    assert ended.value.code == code, errors.getvalue() + output.getvalue()
    return errors.getvalue() if code else output.getvalue()


def status(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("status", "--dir", directory, "--json"))
    return found


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cluster of three nodes and three shards, without ZooKeeper, for all tests that leave it well."""
    directory = tmp_path_factory.mktemp("local") / "cluster"
    small = ("--set", "segment_bytes=1048576", "--set", "memtable_bytes=4194304")
    printed = command("up", "--dir", directory, "--zookeeper", "none", *small)
    assert "LSMQ_URL=http://127.0.0.1:" in printed
    yield directory
    run("down", "--dir", directory, "--delete")
    assert not directory.exists()


@pytest.fixture
def cluster(directory: Path) -> LocalCluster:
    cluster = LocalCluster(directory)
    cluster.up()
    return cluster


def test_status_is_what_scripts_rely_on(directory: Path, cluster: LocalCluster) -> None:
    def leaders() -> set[str]:
        return {shard["leader"] for shard in status(directory)["shards"]}

    eventually(
        lambda: leaders() == {"n1", "n2", "n3"}, "leaders are spread, also where a node was late at the founding"
    )
    found = status(directory)
    assert [node["id"] for node in found["nodes"]] == ["n1", "n2", "n3"]
    for node in found["nodes"]:
        os.kill(node["pid"], 0)
        assert node["url"].startswith("http://127.0.0.1:")
        assert node["state"] == "running"
    assert [shard["id"] for shard in found["shards"]] == [0, 1, 2]
    for shard in found["shards"]:
        assert shard["leader"] in ("n1", "n2", "n3")
        assert shard["epoch"] >= 1
        assert shard["leader"] in shard["in_sync"]


def test_files_of_a_cluster_are_for_its_own_user_alone(directory: Path, cluster: LocalCluster) -> None:
    found = [directory, *directory.rglob("*")]
    assert {"node.toml", "node.log", "secret", "cluster.json"} <= {path.name for path in found}
    assert [str(path) for path in found if path.is_file() and path.stat().st_mode & 0o077] == []


def test_the_processes_are_no_children_of_this_terminal(directory: Path, cluster: LocalCluster) -> None:
    for node in status(directory)["nodes"]:
        assert os.getsid(node["pid"]) == node["pid"]


def test_a_kill_moves_the_leader_and_a_start_brings_the_node_back(directory: Path, cluster: LocalCluster) -> None:
    before = cluster.status()
    victim = before.shards[0].leader
    assert victim is not None
    urls = [node.url for node in before.nodes]
    with Client(urls) as client:
        client.create_topic("kept", queues=6)
        with Producer(client, "kept", ack="quorum") as producer:
            for number in range(60):
                producer.send(f"{number}", queue=number % 6)
        assert f"{victim} killed (pid {before.node(victim).pid})" in run("kill", victim, "--dir", directory)
        state = next(node for node in status(directory)["nodes"] if node["id"] == victim)
        assert (state["state"], state["pid"]) == ("stopped", None)
        with Producer(client, "kept", ack="quorum") as producer:
            for number in range(60, 120):
                producer.send(f"{number}", queue=number % 6)
        after = cluster.status()
        assert after.shards[0].leader not in (victim, None)
        assert after.shards[0].epoch > before.shards[0].epoch
        run("start", victim, "--dir", directory)
        cluster.wait_ready()
        with Consumer(client, "kept", start="earliest") as consumer:
            got = {int(message.body) for message in _take(consumer, 120)}
        assert got == set(range(120))
    eventually(lambda: all(len(shard.in_sync) == 3 for shard in cluster.status().shards), "all are in sync again")


def _take(consumer: Consumer, count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        found += consumer.poll(count, timeout_ms=20_000)
    return found


def test_pausing_is_shown_and_resuming_heals(directory: Path, cluster: LocalCluster) -> None:
    run("pause", "n2", "--dir", directory)
    try:
        assert next(node for node in status(directory)["nodes"] if node["id"] == "n2")["state"] == "paused"
    finally:
        run("resume", "n2", "--dir", directory)
    cluster.wait_ready()
    pid = cluster.pause("n2")
    assert f"n2 started (pid {pid})" in run("start", "n2", "--dir", directory)
    cluster.wait_ready()


def test_up_starts_what_is_down_on_the_same_ports(directory: Path, cluster: LocalCluster) -> None:
    before = status(directory)
    run("stop", "n1", "--dir", directory)
    run("kill", "n3", "--dir", directory)
    assert "n3 is not running" in run("kill", "n3", "--dir", directory, code=1)
    after = json.loads(run("up", "--dir", directory, "--json"))
    assert [node["url"] for node in after["nodes"]] == [node["url"] for node in before["nodes"]]
    assert [node["pid"] for node in after["nodes"]][1] == before["nodes"][1]["pid"]
    assert [node["state"] for node in after["nodes"]] == ["running"] * 3


def test_what_was_founded_otherwise_is_refused(directory: Path, cluster: LocalCluster) -> None:
    assert "it has shards 3, not 5" in run("up", "--dir", directory, "--shards", "5", code=2)
    assert "there is no node 'n9'" in run("kill", "n9", "--dir", directory, code=1)


def test_each_node_has_a_file_that_explains_itself(directory: Path, cluster: LocalCluster) -> None:
    text = (directory / "n2" / "node.toml").read_text()
    assert tomllib.loads(text)["cluster"]["node"] == "n2"
    assert "# Hazard: " in text


def test_what_no_cluster_can_be_is_wrong_usage(tmp_path: Path) -> None:
    assert "nodes is 0; it must be 1 to 32" in run("up", "--dir", tmp_path / "c", "--nodes", "0", code=2)
    assert "no setting 'nosuch'" in run("up", "--dir", tmp_path / "c", "--set", "nosuch=1", code=2)
    assert not (tmp_path / "c").exists()


def test_what_no_zookeeper_means_is_said_and_why_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PATH", "ZOOKEEPER_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    cannot_start = ("up", "--dir", tmp_path / "c", "--nodes", "0")
    assert "no ZooKeeper is started: " in run(*cannot_start, code=2)
    wanted = run(*cannot_start, "--zookeeper", "none", code=2)
    assert "without ZooKeeper: clients get routes from the nodes alone" in wanted
    assert "no ZooKeeper is started" not in wanted


def test_a_directory_without_a_cluster_says_what_to_do(tmp_path: Path) -> None:
    assert "lsmq cluster up --dir" in run("status", "--dir", tmp_path, code=1)


def test_a_node_that_cannot_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    from lsmq_lab.local_cluster import NodeEnded, found_plan

    cluster = LocalCluster.found(tmp_path / "c", found_plan(nodes=1, replicas=1, shards=1))
    (tmp_path / "c" / "secret").write_text("short\n")
    try:
        with pytest.raises(NodeEnded) as raised:
            cluster.up()
        assert "error: secret_unusable" in raised.value.message
    finally:
        cluster.down(delete=True)


@pytest.mark.part(3)
def test_a_cluster_in_tls_with_its_own_zookeeper_that_grows(tmp_path: Path) -> None:
    directory = tmp_path / "c"
    one = ("--nodes", "1", "--replicas", "1", "--shards", "2", "--zookeeper", "local")
    told = dict(re.findall(r"(LSMQ_\w+)=(\S+)", command("up", "--dir", directory, "--tls", *one)))
    files = {"ca": told["LSMQ_CA"], "cert": told["LSMQ_CERT"], "cert_key": told["LSMQ_CERT_KEY"]}
    try:
        hosts = status(directory)["zookeeper"]
        assert hosts.startswith("tls://127.0.0.1:")
        with Client(zookeeper=hosts, cache_dir=tmp_path / "routes", **files) as client:
            client.create_topic("t", queues=2)
            with Producer(client, "t") as producer:
                assert producer.send_and_wait("x").offset == 0
        shows_none = Client(zookeeper=hosts, cache_dir="", deadline_ms=3_000, ca=files["ca"])
        with shows_none, pytest.raises(Unavailable, match="may want to see a certificate"):
            shows_none.topics()
        assert "n2 started" in run("add", "--dir", directory)
        server = LocalCluster(directory).zookeeper
        assert server is not None
        with asked(server) as client_of_zookeeper:
            registered = partial(client_of_zookeeper.get_children, "/lsmq/lsmq/nodes")
            eventually(lambda: sorted(registered()) == ["n1", "n2"], "the new node has come to ZooKeeper, too")
        assert [(node["id"], node["state"]) for node in status(directory)["nodes"]] == [
            ("n1", "running"),
            ("n2", "running"),
        ]
    finally:
        run("down", "--dir", directory, "--delete")
    assert not directory.exists()


@pytest.mark.part(3)
def test_a_node_that_was_removed_is_said_to_be_and_can_be_forgotten(tmp_path: Path) -> None:
    directory = tmp_path / "c"
    one = ("--nodes", "1", "--replicas", "1", "--shards", "1", "--zookeeper", "none")
    command("up", "--dir", directory, *one)
    try:
        port, *_ = choose_ports(10)
        assert f"at http://127.0.0.1:{port}\n" in run("add", "--dir", directory, "--base-port", str(port))
        assert "lsmq node remove n2" in run("forget", "n2", "--dir", directory, code=1)
        assert "there is no node 'n7'" in run("forget", "n7", "--dir", directory, code=1)
        with Client(status(directory)["nodes"][0]["url"]) as client:
            client.ask("POST", "/v1/cluster/nodes/n2/drain")
            client.ask("DELETE", "/v1/cluster/nodes/n2")
        assert [node["state"] for node in status(directory)["nodes"]] == ["running", "removed"]
        log = directory / "n2" / "node.log"
        eventually(lambda: "was removed from the cluster" in log.read_text(), "it says itself why it holds no lease")
        address = LocalCluster(directory).plan.node("n2").url
        assert address not in run("up", "--dir", directory).split("export LSMQ_URL=")[1]
        assert "n2 is forgotten" in run("forget", "n2", "--dir", directory)
        assert [node["id"] for node in status(directory)["nodes"]] == ["n1"]
        assert not (directory / "n2").exists()
    finally:
        run("down", "--dir", directory, "--delete")


def shard(url: str, *arguments: str) -> str:
    """``lsmq shard`` at a node; what it printed."""
    output, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(errors), pytest.raises(SystemExit) as ended:
        main(["shard", *arguments, "--url", url])
    assert ended.value.code == 0, errors.getvalue() + output.getvalue()
    return output.getvalue()


@pytest.mark.part(3)
def test_a_node_that_is_added_gets_its_share_by_itself_once_moves_are_not_paused(tmp_path: Path) -> None:
    directory = tmp_path / "c"
    command("up", "--dir", directory, "--nodes", "1", "--replicas", "1", "--shards", "4", "--zookeeper", "none")
    try:
        url = status(directory)["nodes"][0]["url"]
        assert "nothing is to be moved" in shard(url, "plan")
        shard(url, "pause")
        run("add", "--dir", directory)

        def planned() -> dict[str, Any]:
            found: dict[str, Any] = json.loads(shard(url, "plan", "--json"))
            return found

        eventually(lambda: len(planned()["moves"]) == 2, "two of four replicas are to go to the new node")
        moves = planned()["moves"]
        assert [(move["former"], move["replicas"], move["why"]) for move in moves] == [(["n1"], ["n2"], "replicas")] * 2
        assert planned()["paused"]
        assert "moves are paused" in shard(url, "plan")
        with Client(url) as client, Producer(client, client.create_topic("t", queues=8).name) as producer:
            for number in range(80):
                producer.send(str(number), queue=number % 8)
            producer.flush()
            shard(url, "resume")
            eventually(
                lambda: (
                    sorted(found["replicas"] for found in status(directory)["shards"])
                    == [["n1"], ["n1"], ["n2"], ["n2"]]
                ),
                "the new node has its share, and the other one no more than that",
            )
            assert all([found["leader"]] == found["replicas"] for found in status(directory)["shards"])
            producer.send_and_wait("after", queue=0)
            read = [client.ask("GET", f"/v1/topics/t/queues/{queue}/messages?offset=0&max=100") for queue in range(8)]
        found = [(at, len(answer["messages"])) for at, answer in enumerate(read)]
        assert found == [(0, 11), *((queue, 10) for queue in range(1, 8))], "nothing is lost or doubled on the way"
        (placed, *_) = (found["id"] for found in status(directory)["shards"] if found["leader"] == "n2")
        shard(url, "move", str(placed), "n1")
        eventually(
            lambda: [found["leader"] for found in status(directory)["shards"] if found["id"] == placed] == ["n1"],
            "the shard is where it was moved to",
        )
        pinned = {found["shard"]: found["pinned"] for found in json.loads(shard(url, "list", "--json"))}
        assert [number for number, pin in pinned.items() if pin] == [placed]
        shard(url, "unpin", str(placed))
        assert not any(found["pinned"] for found in json.loads(shard(url, "list", "--json")))
    finally:
        run("down", "--dir", directory, "--delete")


def test_a_port_that_gives_back_what_it_is_sent_is_no_node() -> None:
    """A connection to a port of this machine that nobody listens on is sometimes one with itself."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1/cluster"

        def echo() -> None:
            for _ in range(2):
                with listening.accept()[0] as connection:
                    connection.sendall(connection.recv(4096))

        thread = threading.Thread(target=echo)
        thread.start()
        assert ask(url, 60) is None
        assert not answers(url, 60)
        thread.join()
