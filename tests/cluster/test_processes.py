"""Processes that outlive their starter, and that no signal misses for another. A shell stands in for the node."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lsmq.errors import AddressInUse, InvalidRequest
from lsmq_lab.local_cluster import ClusterNotFound, ClusterPlan, LocalCluster, choose_ports, found_plan
from lsmq_lab.local_cluster.process import OwnProcess, ProcessState
from lsmq_node.config import InvalidConfig, NodeConfig
from support.waiting import eventually

SLEEPER = ["/bin/sh", "-c", "echo up; exec sleep 600"]


@pytest.fixture
def own(tmp_path: Path) -> Iterator[OwnProcess]:
    process = OwnProcess(tmp_path / "n1")
    yield process
    process.send(signal.SIGKILL)
    process.wait_end(10)


def test_a_process_is_found_again_by_its_directory(own: OwnProcess) -> None:
    pid = own.start(SLEEPER, {})
    again = OwnProcess(own.directory)
    assert again.pid == pid
    assert again.state is ProcessState.RUNNING
    assert os.getsid(pid) == pid, "it would get the signals of this terminal"
    eventually(lambda: again.log_tail() == "up", "its output is in the log")


def test_pausing_and_resuming_are_seen(own: OwnProcess) -> None:
    pid = own.start(SLEEPER, {})
    assert own.send(signal.SIGSTOP) == pid
    eventually(lambda: own.state is ProcessState.PAUSED, "the process is paused")
    assert own.pid == pid
    own.send(signal.SIGCONT)
    eventually(lambda: own.state is ProcessState.RUNNING, "the process runs")


def test_an_ended_process_is_gone_and_may_be_started_again(own: OwnProcess) -> None:
    first = own.start(SLEEPER, {})
    assert not own.wait_end(0.0)
    own.send(signal.SIGKILL)
    assert own.wait_end(10)
    assert (own.pid, own.state, own.send(signal.SIGTERM)) == (None, ProcessState.STOPPED, None)
    assert own.start(SLEEPER, {}) != first


@pytest.mark.parametrize(
    "wrong", [{"started_ticks": 1}, {"boot": "another"}, {"more": 1}], ids=["reused pid", "before a reboot", "not ours"]
)
def test_a_pid_that_means_another_process_gets_no_signal(own: OwnProcess, wrong: dict[str, object]) -> None:
    pid = own.start(SLEEPER, {})
    file = own.directory / "pid"
    known = file.read_text()
    file.write_text(json.dumps(json.loads(known) | wrong))
    try:
        assert own.pid is None
        assert own.send(signal.SIGKILL) is None
        assert own.wait_end(0.0)
        os.kill(pid, 0)
    finally:
        file.write_text(known)
    assert own.pid == pid


def test_it_outlives_its_starter(own: OwnProcess) -> None:
    program = (
        "import sys; from pathlib import Path; from lsmq_lab.local_cluster.process import OwnProcess; "
        f"OwnProcess(Path(sys.argv[1])).start({SLEEPER!r}, {{}})"
    )
    subprocess.run([sys.executable, "-c", program, str(own.directory)], check=True)
    assert own.state is ProcessState.RUNNING
    own.send(signal.SIGTERM)
    assert own.wait_end(10)


def test_ports_are_free_and_below_those_of_outgoing_connections() -> None:
    ports = choose_ports(20)
    assert len(ports) == 20 and ports == list(range(ports[0], ports[0] + 20))
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert ports[-1] < max(lowest, 10_041)


def test_a_base_port_in_use_is_named() -> None:
    (port,) = choose_ports(1)
    with socket.create_server(("127.0.0.1", port)), pytest.raises(AddressInUse) as raised:
        choose_ports(10, port - 3)
    assert f"port {port} " in raised.value.message and "--base-port" in raised.value.message


def test_the_ports_of_a_cluster_that_does_not_run_are_given_to_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(first: int) -> ClusterPlan:
        """Chance wants these ports, and then those far behind them."""
        wants = iter([first, first + 500])
        monkeypatch.setattr("lsmq_lab.local_cluster.plan.random.randrange", lambda *_: next(wants))
        return found_plan(nodes=1, replicas=1, proxied=True)

    first, *_ = choose_ports(600)
    cluster = LocalCluster.found(tmp_path / "c", plan(first))
    assert cluster.plan.ports == set(range(first, first + 5))
    assert min(plan(first).ports) == first + 500
    assert min(plan(first + 5).ports) == first + 5, "a cluster has what it listens on and no more"
    cluster.down(delete=True)
    assert min(plan(first).ports) == first


def test_a_node_that_is_added_begins_at_the_port_it_is_given(tmp_path: Path) -> None:
    cluster = LocalCluster.found(tmp_path / "c", found_plan(nodes=1, replicas=1))
    (first,) = cluster.plan.nodes
    base, *_ = choose_ports(20)
    node = cluster.add_node(base)
    assert (node.port, node.internal_port, node.raft_port) == (base, base + 1, base + 2)
    assert ClusterPlan.read(tmp_path / "c").nodes == (first, node)
    with socket.create_server(("127.0.0.1", base + 10)), pytest.raises(AddressInUse, match=f"port {base + 10} "):
        cluster.add_node(base + 10)
    assert ClusterPlan.read(tmp_path / "c").nodes == (first, node)


def test_a_node_that_is_added_gets_the_ports_behind_all_others(tmp_path: Path) -> None:
    base, *_ = choose_ports(40)
    cluster = LocalCluster.found(tmp_path / "c", found_plan(nodes=1, replicas=1, zookeeper="local", base_port=base))
    assert max(cluster.plan.ports) == base + 12, "its ZooKeeper has those behind the node's"
    with socket.create_server(("127.0.0.1", base + 10)):
        added = cluster.add_node()
    assert added.port == base + 20, "ten behind the last node are not all free"
    assert cluster.add_node().port == base + 30


def test_a_plan_reads_back_and_configures_each_node(tmp_path: Path) -> None:
    settings = {"flush_mode": "async", "cluster.heartbeat_ms": "50"}
    plan = found_plan(nodes=4, shards=5, replicas=3, zookeeper="z:1", settings=settings, proxied=True)
    cluster = LocalCluster.found(tmp_path / "c", plan)
    assert ClusterPlan.read(tmp_path / "c") == cluster.plan == plan
    assert [node.voter for node in plan.nodes] == [True, True, True, False]
    configs = {node.id: plan.node_config(node, tmp_path) for node in plan.nodes}
    for node in plan.nodes:
        config = configs[node.id]
        assert config.cluster is not None
        assert config.public_url == node.url
        assert config.cluster.advertised_internal_url == node.internal_url
        assert config.cluster.internal_port == node.internal_port != node.internal_proxy_port
        assert (config.cluster.shards, config.cluster.heartbeat_ms, config.cluster.zookeeper) == (5, 50, "z:1")
        assert config.cluster.voters.keys() == {"n1", "n2", "n3"}
    ports = {port for node in plan.nodes for port in (node.port, node.internal_port, node.raft_port)}
    assert len(ports) == 12
    assert (tmp_path / "c" / "secret").stat().st_mode & 0o077 == 0


def test_a_plan_that_makes_no_cluster_is_refused_before_files_are_written(tmp_path: Path) -> None:
    for wrong, message in (
        ({"nodes": 0}, "nodes is 0"),
        ({"nodes": 2, "replicas": 3}, "there are 2 nodes"),
        ({"nodes": 2, "replicas": 2}, "founded on 1"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            found_plan(**wrong)
    with pytest.raises(InvalidConfig, match="no setting 'flush'"):
        LocalCluster.found(tmp_path / "c", found_plan(settings={"flush": "async"}))
    assert not (tmp_path / "c").exists()


def test_a_directory_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("x")
    with pytest.raises(InvalidRequest, match="not empty"):
        LocalCluster.found(tmp_path, found_plan())
    with pytest.raises(ClusterNotFound, match="lsmq cluster up"):
        LocalCluster(tmp_path)


def test_a_node_that_left_does_not_lend_its_id_to_another(tmp_path: Path) -> None:
    cluster = LocalCluster.found(tmp_path / "c", found_plan())
    first = cluster.add_node()
    assert (first.id, first.voter) == ("n4", False)
    cluster.forget_node("n4")
    assert [node.id for node in LocalCluster(tmp_path / "c").plan.nodes] == ["n1", "n2", "n3"]
    assert LocalCluster(tmp_path / "c").add_node().id == "n5"
    with pytest.raises(InvalidRequest, match="n1 is one of the voters that the cluster was founded with"):
        cluster.forget_node("n1")


def test_deleting_removes_the_cluster_and_nothing_else(tmp_path: Path) -> None:
    cluster = LocalCluster.found(tmp_path / "c", found_plan())
    (tmp_path / "c" / "thesis.txt").write_text("x")
    cluster.down(delete=True)
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["thesis.txt"]


def test_the_file_of_a_node_is_what_the_plan_says(tmp_path: Path) -> None:
    from lsmq_node.config_file import write

    plan = found_plan(nodes=1, replicas=1)
    config = plan.node_config(plan.nodes[0], tmp_path)
    write(tmp_path / "node.toml", config)
    assert NodeConfig.load(tmp_path / "node.toml", {}) == config


def test_a_cluster_in_tls_that_an_earlier_release_founded_keeps_its_zookeeper_as_it_is(tmp_path: Path) -> None:
    plan = found_plan(nodes=1, replicas=1, zookeeper="local", tls=True)
    now = LocalCluster.found(tmp_path / "now", plan)
    assert now.zookeeper is not None and now.zookeeper.tls is not None and now.client_certificate is not None
    assert now.zookeeper.hosts == plan.zookeeper.hosts
    earlier = replace(plan.zookeeper, hosts=plan.zookeeper.hosts.removeprefix("tls://"))
    before = LocalCluster.found(tmp_path / "before", replace(plan, zookeeper=earlier))
    assert before.zookeeper is not None and before.zookeeper.tls is None and before.client_certificate is None
    assert before.zookeeper.hosts == earlier.hosts
    config = before.plan.node_config(before.plan.nodes[0], before.directory)
    assert config.cluster is not None and config.cluster.tls_ca is not None and not config.cluster.zookeeper_by_tls
