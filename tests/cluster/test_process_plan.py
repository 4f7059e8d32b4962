"""Who the processes of a machine are, and what of a configuration and of a directory is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq.errors import LsmqError
from lsmq_node.config import InvalidConfig, NodeConfig
from lsmq_node.disks import NodeFile
from lsmq_node.disks.mark import DiskMark
from lsmq_node.processes.directory import fitting, held
from lsmq_node.processes.plan import CONTROL, Founded, PlannedProcess, cores, planned, shifted


def own(**settings: Any) -> NodeConfig:
    return NodeConfig(data=Path("/d"), **settings)


def member(node: str, processes: int, **settings: Any) -> NodeConfig:
    number = 1 if node not in ("n1", "n2", "n3") else int(node[1])
    voters = {
        f"n{at}": {
            "url": f"http://h{at}:7600",
            "internal_url": f"http://h{at}:7601",
            "raft": f"h{at}:7602",
            "rack": f"r{at}",
        }
        for at in (1, 2, 3)
    }
    cluster = {"node": node, "secret_file": "/s", "voters": voters, "internal_host": f"h{number}"}
    return NodeConfig.load(
        data=Path("/d"), processes=processes, cluster={**cluster, **settings.pop("cluster", {})}, **settings
    )


@pytest.mark.part(2)
@given(st.integers(2, 64), st.integers(0, 64))
def test_each_process_has_ports_a_directory_and_a_name_of_its_own(founded: int, more: int) -> None:
    count = min(founded + more, 64)
    processes = planned(own(), count, Founded(founded, founded))
    holding = [process for process in processes if not process.last]
    assert [process.name for process in holding] == [f"p{number}" for number in range(count)]
    assert (holding[0].config.port, holding[0].config.public_url) == (7600, "http://127.0.0.1:7600")
    ports = [port for process in processes for port in ports_of(process)]
    assert len(set(ports)) == len(ports)
    assert len({process.config.data for process in processes}) == len(processes)
    clusters = [process.config.cluster for process in processes]
    assert all(cluster is not None for cluster in clusters)
    assert len({(frozenset(c.voters), frozenset(c.founders)) for c in clusters if c is not None}) == 1
    assert len(clusters[0].voters if clusters[0] else ()) == 3
    assert [process.name for process in processes if process.last] == ([CONTROL] if founded == 2 else [])


def ports_of(process: PlannedProcess) -> list[int]:
    cluster = process.config.cluster
    assert cluster is not None
    return [process.config.port, cluster.internal_port, *([cluster.raft_port] if cluster.is_voter else [])]


def test_a_node_that_grew_finds_its_first_processes_where_they_were() -> None:
    before = {process.name: process.config.public_url for process in planned(own(), 2, Founded(2, 4))}
    after = {process.name: process.config.public_url for process in planned(own(), 5, Founded(2, 4))}
    assert before.items() <= after.items()


@pytest.mark.parametrize("processes", [2, 4])
def test_all_members_found_the_same_cluster_with_the_processes_of_all_machines(processes: int) -> None:
    plans = {node: planned(member(node, processes), processes, None) for node in ("n1", "n2", "n3")}
    expected = {f"n{number}.{place}" for number in (1, 2, 3) for place in range(1, processes)}
    for node, plan in plans.items():
        assert [process.name for process in plan] == [node, *(f"{node}.{place}" for place in range(1, processes))]
        for place, process in enumerate(plan):
            cluster = process.config.cluster
            assert cluster is not None
            assert set(cluster.founders) == expected
            assert {id: founder.to_dict() for id, founder in cluster.founders.items()} == {
                id: founder.to_dict()
                for id, founder in plans["n1"][0].config.cluster.founders.items()  # type: ignore[union-attr]
            }
            assert (cluster.labels["host"] or cluster.node, cluster.labels["rack"]) == (node, f"r{node[1]}")
            assert process.config.public_url == f"http://h{node[1]}:{7600 + 10 * place}"
            assert cluster.advertised_internal_url == f"http://h{node[1]}:{7601 + 10 * place}"
            assert cluster.is_voter == (place == 0)
            assert process.config.data == (Path("/d") if place == 0 else Path("/d") / process.name)


def test_a_node_that_joins_later_has_processes_with_its_label_too() -> None:
    joined = {"internal_url": "http://h9:7601", "rack": "r9"}
    plan = planned(member("n9", 2, advertised_url="http://h9:7600", cluster=joined), 2, None)
    first, second = (process.config for process in plan)
    assert first.cluster is not None
    assert second.cluster is not None
    assert (first.public_url, second.public_url) == ("http://h9:7600", "http://h9:7610")
    assert second.cluster.advertised_internal_url == "http://h9:7611"
    assert first.cluster.labels == second.cluster.labels == {"host": "n9", "rack": "r9"}


@pytest.mark.parametrize("config", [own(admin_port=7609), member("n1", 3, admin_port=7609)])
def test_each_process_has_a_port_for_administration_where_there_is_to_be_one(config: NodeConfig) -> None:
    founded = None if config.cluster is not None else Founded(3, 3)
    assert [process.config.admin_port for process in planned(config, 3, founded)] == [7609, 7619, 7629]


def test_ports_for_administration_are_any_free_ones_where_no_number_is_said() -> None:
    assert {process.config.admin_port for process in planned(own(admin_port=0), 2, Founded(2, 2))} == {0}
    assert {process.config.admin_port for process in planned(own(), 2, Founded(2, 2))} == {None}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (own(admin_port=7610), "7610 is a port of one of them already: choose another one, such as 7609"),
        (member("n1", 2, admin_port=7601), "7601 is a port of one of them already"),
        (own(host="0.0.0.0", insecure=True), "set advertised_url to how they reach port 7600"),
        (own(advertised_url="http://mq.example"), "told apart by their ports: let it name the port"),
        (member("n1", 2, port=0), "must be named where a member has several processes"),
    ],
)
def test_what_processes_could_not_be_found_by_is_refused(config: NodeConfig, message: str) -> None:
    founded = None if config.cluster is not None else Founded(2, 2)
    with pytest.raises(InvalidConfig, match=message):
        planned(config, 2, founded)


def test_urls_keep_all_but_the_port() -> None:
    assert shifted("https://[::1]:7600/", 10, "x") == "https://[::1]:7610"


def test_a_directory_remembers_what_it_was_founded_with(tmp_path: Path) -> None:
    config = NodeConfig(data=tmp_path / "d", shards=4)
    assert held(config, 2) == Founded(2, 4)
    assert held(NodeConfig(data=tmp_path / "d"), 3) == Founded(2, 4)
    assert NodeFile.load(tmp_path / "d") == NodeFile(4, processes=2)
    with pytest.raises(InvalidConfig, match=r"shards is 5, and .* was made with 4, for good"):
        held(NodeConfig(data=tmp_path / "d", shards=5), 2)
    assert (tmp_path / "d" / "secret").stat().st_mode & 0o077 == 0


def test_disks_without_their_first_one_are_no_new_node(tmp_path: Path) -> None:
    config = NodeConfig(data=tmp_path / "d1", further_data=(tmp_path / "d2",))
    mark = tmp_path / "d2" / "p1"
    mark.mkdir(parents=True)
    DiskMark("node", "disk").store(mark)
    with pytest.raises(InvalidConfig, match=f"{mark} is of a node .*bring the node's own first directory back"):
        held(config, 2)
    assert not (tmp_path / "d1").exists()
    (mark / "disk.json").unlink()
    (mark / "shard-0").mkdir()
    with pytest.raises(InvalidConfig, match=f"{mark} is of a node"):
        held(config, 2)
    (mark / "shard-0").rmdir()
    assert held(config, 2) == Founded(2, 2)


@pytest.mark.parametrize(
    ("settings", "count", "message"),
    [
        ({"shards": 2}, 3, "set shards to 3 or more"),
        ({}, 2, "which one process serves"),
    ],
)
def test_a_directory_that_does_not_fit_is_refused_with_the_remedy(
    tmp_path: Path, settings: dict[str, Any], count: int, message: str
) -> None:
    if not settings:
        NodeFile(1).store(tmp_path)
    with pytest.raises(InvalidConfig, match=message):
        held(NodeConfig(data=tmp_path, **settings), count)


def test_voters_cannot_be_left_out(tmp_path: Path) -> None:
    config = NodeConfig(data=tmp_path / "d")
    held(config, 4)
    with pytest.raises(InvalidConfig, match="3 vote, which have to run; start with 3 or more"):
        held(config, 2)
    assert held(config, 3) == Founded(4, 4)


def test_auto_takes_the_cores_and_who_holds_shards_and_leaves_data_of_one_process_to_one(tmp_path: Path) -> None:
    one, fresh, several = tmp_path / "one", tmp_path / "fresh", tmp_path / "several"
    one.mkdir()
    NodeFile(1).store(one)
    held(NodeConfig(data=several), 3)
    assert fitting(NodeConfig(data=one), 8) == 1
    assert fitting(NodeConfig(data=fresh), 8) == 8
    assert fitting(NodeConfig(data=fresh), 1) == 1
    assert fitting(NodeConfig(data=several), 1) == 3
    (several / "p4" / "shard-0").mkdir(parents=True)
    assert fitting(NodeConfig(data=several), 1) == 5


def test_cores_are_those_of_the_process_and_of_its_container(tmp_path: Path) -> None:
    quota, all_cores = tmp_path / "cpu.max", len(os.sched_getaffinity(0))
    for text, expected in (("100000 100000\n", 1), ("max 100000\n", all_cores), ("10000 100000\n", 1)):
        quota.write_text(text)
        assert cores(quota) == expected
    assert cores(tmp_path / "none") == all_cores


def test_a_member_is_not_started_without_a_process_that_holds_shards(tmp_path: Path) -> None:
    config = member("n1", 2)
    object.__setattr__(config, "data", tmp_path)
    (tmp_path / "n1.2" / "shard-7").mkdir(parents=True)
    with pytest.raises(LsmqError, match=r"n1\.2 holds shards: start with 3, .* 'lsmq node drain n1\.2'"):
        held(config, 2)
    assert held(config, 3) is None
