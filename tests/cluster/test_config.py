"""A node's place in a cluster: read from file and environment, checked, and written with every key explained."""

from __future__ import annotations

import tomllib
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import pytest

from lsmq_coordinator.liveness import LivenessTiming
from lsmq_coordinator.raft_terms import RaftTiming
from lsmq_node.cluster_config import ClusterConfig, VoterAddresses
from lsmq_node.config import InvalidConfig, NodeConfig
from lsmq_node.config_file import render, write
from lsmq_node.replication.control import Timings
from lsmq_node.settings import chosen

VOTERS = {
    f"n{number}": {
        "url": f"http://10.0.0.{number}:7600",
        "internal_url": f"http://10.1.0.{number}:7601",
        "raft": f"10.1.0.{number}:7602",
    }
    for number in (1, 2, 3)
}
CLUSTER: dict[str, Any] = {"node": "n1", "secret_file": "secret", "voters": VOTERS}
TABLES = "".join(
    f"\n[cluster.voters.{id}]\n" + "\n".join(f'{name} = "{text}"' for name, text in voter.items())
    for id, voter in VOTERS.items()
)


def load(tmp_path: Path, toml: str, environment: dict[str, str] | None = None) -> NodeConfig:
    file = tmp_path / "node.toml"
    file.write_text(f'data = "d"\n[cluster]\n{toml}\n{TABLES}')
    return NodeConfig.load(file, environment or {})


def cluster_of(config: NodeConfig) -> ClusterConfig:
    assert config.cluster is not None
    return config.cluster


def test_a_file_without_the_table_is_a_node_of_its_own(tmp_path: Path) -> None:
    assert NodeConfig.load(data=tmp_path).cluster is None


def test_what_was_chosen_or_follows_from_it_is_told_and_nothing_else(tmp_path: Path) -> None:
    assert chosen(NodeConfig.load(data=tmp_path, port=7700, flush_mode="async")) == {
        "data": str(tmp_path),
        "port": 7700,
        "flush_mode": "async",
    }
    assert chosen(load(tmp_path, 'node = "n2"\nsecret_file = "s"\nshards = 5'))["cluster"] == {
        "node": "n2",
        "secret_file": "s",
        "shards": 5,
        "min_in_sync": 2,  # of three replicas: left out, it goes by their number
        "voters": {id: VoterAddresses(**voter).to_dict() for id, voter in VOTERS.items()},
    }


def test_sizes_and_times_may_have_their_unit(tmp_path: Path) -> None:
    config = NodeConfig.load(None, {"LSMQ_MAX_MESSAGE_BYTES": "64KiB"}, data=tmp_path, flush_interval_ms="2s")
    assert (config.max_message_bytes, config.flush_interval_ms) == (64 << 10, 2_000)
    for name, text, said in (
        ("max_message_bytes", "many", "'many' is not a size; write a number of bytes, or 64KiB"),
        ("flush_interval_ms", "soon", "'soon' is not a length of time; write 250ms"),
        ("flush_interval_ms", "0.5ms", "'0.5ms' is no whole number of milliseconds"),
        ("flush_interval_ms", "0s", "flush_interval_ms is 0; it must be 1 to 60000"),
        ("max_wait_ms", f"{'9' * 18}w", "it must be 0 to 3600000"),
        ("port", "64KiB", "port is '64KiB'; it must be an integer"),
    ):
        with pytest.raises(InvalidConfig, match=said):
            NodeConfig.load(data=tmp_path, **{name: text})


def test_never_may_have_its_unit(tmp_path: Path) -> None:
    assert NodeConfig.load(data=tmp_path, scrub_cycle_ms="0s").scrub_cycle_ms == 0
    config = load(tmp_path, 'node = "n2"\nsecret_file = "s"\nrebuild_after_ms = "0s"\nreplace_voter_after_ms = "0ms"')
    assert (cluster_of(config).rebuild_after_ms, cluster_of(config).replace_voter_after_ms) == (0, 0)


def test_the_table_is_read(tmp_path: Path) -> None:
    config = load(tmp_path, 'node = "n2"\nsecret_file = "s"\nshards = 5\nfirst_leaders = ["n2", "n3"]')
    cluster = cluster_of(config)
    assert (cluster.node, cluster.shards, cluster.first_leaders) == ("n2", 5, ("n2", "n3"))
    assert cluster.secret_file == Path("s")
    assert cluster.voters["n3"] == VoterAddresses(**VOTERS["n3"])
    assert cluster.is_voter
    assert cluster.raft_voters["n1"] == "10.1.0.1:7602"
    assert cluster.control_urls["n1"] == "http://10.1.0.1:7601"
    assert config.public_url == "http://10.0.0.2:7600"
    assert cluster.advertised_internal_url == "http://10.1.0.2:7601"
    assert cluster.raft_bind == "127.0.0.1:7602"


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    environment = {
        "LSMQ_CLUSTER_NODE": "n3",
        "LSMQ_CLUSTER_HEARTBEAT_MS": "50",
        "LSMQ_CLUSTER_FIRST_LEADERS": "n1, n2",
        "LSMQ_CLUSTER": "for clients",
    }
    cluster = cluster_of(load(tmp_path, 'node = "n1"\nsecret_file = "s"', environment))
    assert (cluster.node, cluster.heartbeat_ms, cluster.first_leaders) == ("n3", 50, ("n1", "n2"))


def test_the_environment_alone_is_enough() -> None:
    environment = {
        "LSMQ_DATA": "d",
        "LSMQ_CLUSTER_NODE": "n1",
        "LSMQ_CLUSTER_SECRET_FILE": "s",
        "LSMQ_CLUSTER_REPLICAS": "1",
        "LSMQ_CLUSTER_VOTERS": '{n1 = {url = "http://a:1", internal_url = "http://a:2", raft = "a:3"}}',
    }
    cluster = cluster_of(NodeConfig.load(None, environment))
    assert list(cluster.voters) == ["n1"] and cluster.voters["n1"].raft == "a:3"


@pytest.mark.parametrize(("replicas", "majority"), [(1, 1), (2, 2), (3, 2), (5, 3)])
def test_min_in_sync_is_a_majority_unless_given(replicas: int, majority: int) -> None:
    voters = {f"n{n}": {"url": f"http://h:{n}", "internal_url": f"http://i:{n}", "raft": f"r:{n}"} for n in range(1, 6)}
    table = {**CLUSTER, "voters": voters, "replicas": replicas}
    assert ClusterConfig.load({"file": table}).min_in_sync == majority
    assert ClusterConfig.load({"file": {**table, "min_in_sync": 1}}).min_in_sync == 1


def test_a_node_that_does_not_vote_says_where_it_is(tmp_path: Path) -> None:
    cluster = ClusterConfig.load({"file": {**CLUSTER, "node": "n9", "internal_url": "http://10.1.0.9:7601/"}})
    assert not cluster.is_voter
    assert cluster.advertised_internal_url == "http://10.1.0.9:7601"
    config = NodeConfig(data=tmp_path, advertised_url="http://10.0.0.9:7600/", cluster=cluster)
    config.validate()
    assert config.public_url == "http://10.0.0.9:7600"
    with pytest.raises(InvalidConfig, match="set advertised_url"):
        replace(config, advertised_url=None).validate()


def test_the_times_of_raft_follow_from_two_settings_and_are_its_own_by_default() -> None:
    assert ClusterConfig.load({"file": CLUSTER}).raft_timing() == RaftTiming()
    slow = ClusterConfig.load({"file": {**CLUSTER, "raft_heartbeat_ms": 200, "raft_election_ms": 1200}}).raft_timing()
    assert (slow.heartbeat_s, slow.election_min_s, slow.election_max_s) == (0.2, 1.2, 2.4)
    assert slow.fallback_s == pytest.approx(2.0) and slow.patience_s > slow.election_max_s


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"raft_heartbeat_ms": 200},
            "cluster.raft_election_ms (300) is below three times cluster.raft_heartbeat_ms (200)",
        ),
        ({"nodes": 3}, "file: there is no setting 'cluster.nodes'"),
        ({"shards": "many"}, "cluster.shards is 'many'; it must be an integer"),
        ({"shards": 0}, "cluster.shards is 0; it must be 1 to 256"),
        ({"node": "a b"}, "'a b' is no name"),
        ({"name": ""}, "'' is no name"),
        ({"min_in_sync": 4}, "a write cannot be on more disks than there are replicas"),
        ({"replicas": 5}, "name more voters, or ask for fewer replicas"),
        ({"voters": 1}, "it must be a table of nodes"),
        ({"voters": "{"}, "no inline table"),
        ({"voters": {"n1": VOTERS["n1"], "n2": VOTERS["n2"]}}, "1, 3 or 5 make sense"),
        ({"voters": {**VOTERS, "n3": {"url": "http://x:1"}}}, "voters.n3 must have internal_url, raft, url"),
        ({"voters": {**VOTERS, "n3": {**VOTERS["n3"], "url": "x:1"}}}, "voters.n3.url is 'x:1'; it must begin with"),
        ({"voters": {**VOTERS, "n3": {**VOTERS["n3"], "raft": "x"}}}, "voters.n3.raft is 'x'; it must be host:port"),
        ({"voters": {**VOTERS, "n3": {**VOTERS["n3"], "raft": "10.1.0.1:7602"}}}, "have the same raft"),
        ({"first_leaders": ["n7"]}, "'n7' is none of the voters"),
        ({"first_leaders": [7]}, "must be a list of node ids"),
        ({"zookeeper": "nome"}, "'nome' in it is no host:port"),
        ({"zookeeper": "zk1:2181,zk2/lsmq"}, "'zk2' in it is no host:port"),
        ({"zookeeper": "tls://zk1:2281,zk2/lsmq"}, "'zk2' in it is no host:port"),
        ({"zookeeper": "zk1:2181", "zookeeper_tls_ca": "/ca"}, "is 'zk1:2181': let it begin with tls://"),
        ({"zookeeper": "tls://zk1:2281", "zookeeper_tls_cert": "/c"}, "set cluster.zookeeper_tls_key too"),
        ({"internal_url": "here"}, "cluster.internal_url is 'here'; it must begin with"),
        ({"lease_ms": 450}, "Set lease_ms to 416 or less"),
        ({"heartbeat_ms": 300}, "below twice cluster.heartbeat_ms"),
        ({"replica_timeout_ms": 300}, "its leader knows that it is cut off itself"),
        ({"replica_lag_ms": 400}, "has not caught up either"),
        ({"ack_timeout_ms": 900}, "before a slow follower leaves the in-sync set"),
    ],
)
def test_wrong_settings_are_refused_with_the_remedy(table: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        ClusterConfig.load({"file": {**CLUSTER, **table}})
    assert message in raised.value.message


@pytest.mark.parametrize(
    ("missing", "remedy"),
    [("node", 'node = "n1"'), ("secret_file", "no address is bound without"), ("voters", "[clust")],
)
def test_what_is_missing_is_named_with_the_remedy(missing: str, remedy: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        ClusterConfig.load({"file": {name: value for name, value in CLUSTER.items() if name != missing}})
    assert remedy in raised.value.message
    assert raised.value.details["setting"] == f"cluster.{missing}"


def test_shards_of_a_cluster_are_not_set_for_one_node(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"set cluster\.shards instead"):
        NodeConfig(data=tmp_path, shards=3, cluster=ClusterConfig.load({"file": CLUSTER})).validate()


def test_the_defaults_are_those_of_the_protocol() -> None:
    cluster = ClusterConfig.load({"file": CLUSTER})
    assert cluster.replication_timings() == Timings()
    assert cluster.liveness_timing() == LivenessTiming()


def test_a_written_file_reads_back_and_explains_every_key(tmp_path: Path) -> None:
    cluster = ClusterConfig.load({"file": {**CLUSTER, "first_leaders": ["n2"], "zookeeper": 'z:1/"odd\\'}})
    config = NodeConfig(data=tmp_path, port=7700, cluster=cluster)
    file = tmp_path / "n1.toml"
    write(file, config)
    assert NodeConfig.load(file) == config
    text = file.read_text()
    for kind in (NodeConfig, ClusterConfig):
        for entry in fields(kind):
            if entry.name == "further_data":
                continue  # It stands in ``data``.
            if entry.name not in ("cluster", "voters", "founders"):
                assert f"\n{entry.name} =" in text or f"\n#{entry.name} =" in text
            assert entry.metadata["description"]
            if entry.name.endswith(("_ms", "_bytes", "_bytes_per_s", "_s")):
                assert entry.metadata["range"], entry.name
    assert "# Unit: milliseconds. Default: 500. Range: 100 to 600_000." in text


def test_defaults_shown_behind_a_hash_are_valid_settings(tmp_path: Path) -> None:
    config = NodeConfig(data=tmp_path, cluster=ClusterConfig.load({"file": CLUSTER}))
    lines = [line.removeprefix("#") for line in render(config).splitlines() if not line.startswith("# ")]
    shown = tomllib.loads("\n".join(line for line in lines if not line.endswith(" =")))
    defaults = {entry.name for entry in fields(ClusterConfig) if entry.default not in (MISSING, None)}
    assert defaults <= set(shown["cluster"])
    file = tmp_path / "shown.toml"
    file.write_text("\n".join(line for line in lines if not line.endswith(" =")))
    assert NodeConfig.load(file) == config
