"""A shard whose last members in sync are lost: named, refused to whoever guesses, revived by who says that loss is
accepted; and the disk that had more, when it comes back after all."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lsmq_lab.local_cluster import LocalCluster
from support.clusters import running_cluster
from support.python_process import run_python
from support.waiting import eventually

from .test_http import ask

WAIT_S = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    settings = {"segment_bytes": 1 << 20, "memtable_bytes": 4 << 20, "cluster.ack_timeout_ms": 1000}
    with running_cluster(__name__, tmp_path / "cluster", shards=1, settings=settings) as cluster:
        yield cluster


def shard(cluster: LocalCluster, node: str) -> dict[str, Any]:
    status, document = ask(f"{cluster.plan.node(node).url}/v1/cluster")
    return document["shards"][0] if status == 200 else {"in_sync": [], "problem": None, "leader": None}


def lsmq(cluster: LocalCluster, node: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_python("-m", "lsmq", *arguments, "--url", cluster.plan.node(node).url, text=True)


def send(cluster: LocalCluster, node: str, text: str) -> None:
    body = {"messages": [{"queue": 0, "body": text}]}

    def sent() -> bool:
        leader = shard(cluster, node)["leader"]
        if leader is None:
            return False
        return ask(f"{cluster.plan.node(leader).url}/v1/topics/t/messages", "POST", body)[0] == 200

    eventually(sent, f"{text} is acknowledged", timeout_s=WAIT_S)


def messages(cluster: LocalCluster, node: str) -> list[str]:
    leader = shard(cluster, node)["leader"]
    found = ask(f"{cluster.plan.node(leader).url}/v1/topics/t/queues/0/messages")[1]
    return [message["body"] for message in found["messages"]]


@pytest.mark.slow
def test_a_shard_that_lost_its_members_is_named_and_revived_by_who_accepts_the_loss(cluster: LocalCluster) -> None:
    ask(f"{cluster.plan.nodes[0].url}/v1/topics/t", "PUT", {"queues": 1})
    eventually(lambda: len(shard(cluster, "n1")["in_sync"]) == 3, "all are in sync", timeout_s=WAIT_S)
    send(cluster, "n1", "everywhere")
    led = lsmq(cluster, "n1", "shard", "revive", "0", "--from", "n3", "--accept-loss")
    assert led.returncode == 1
    assert "nothing is revived that lives" in led.stderr
    cluster.kill("n3")
    eventually(lambda: "n3" not in shard(cluster, "n1")["in_sync"], "n3 has left", timeout_s=WAIT_S)
    send(cluster, "n1", "on n1 and n2")
    cluster.kill("n1")
    cluster.kill("n2")
    shutil.rmtree(cluster.directory / "n2" / "data" / "shard-0")
    cluster.start("n2")
    cluster.start("n3")
    eventually(lambda: shard(cluster, "n3")["problem"], "the problem is named", timeout_s=WAIT_S)
    problem = shard(cluster, "n3")["problem"]
    assert "n1 is away" in problem or "n2 came back without what it had" in problem
    listed = lsmq(cluster, "n3", "shard", "list", "--json")
    assert json.loads(listed.stdout)[0]["problem"]
    unsaid = lsmq(cluster, "n3", "shard", "revive", "0", "--from", "n3")
    assert unsaid.returncode == 2
    assert "--accept-loss" in unsaid.stderr
    url = f"{cluster.plan.node('n3').url}/v1/cluster/shards/0/revive"
    assert ask(url, "POST", {"node": "n3"})[0] == 400
    revived = lsmq(cluster, "n3", "shard", "revive", "0", "--from", "n3", "--accept-loss")
    assert revived.returncode == 0, revived.stderr
    again = ask(url, "POST", {"node": "n3", "accept_loss": True})
    assert again[0] == 200, again
    send(cluster, "n3", "afterwards")
    assert ask(url, "POST", {"node": "n2", "accept_loss": True})[0] == 400
    assert messages(cluster, "n3") == ["everywhere", "afterwards"]
    assert [entry["node"] for entry in shard(cluster, "n3")["revived"]] == ["n3"]
    # n1 has what was given up. It is set aside, and filled.
    cluster.start("n1")
    eventually(lambda: len(shard(cluster, "n3")["in_sync"]) == 3, "n1 is in sync again", timeout_s=WAIT_S)
    eventually(lambda: shard(cluster, "n3")["problem"] is None, "all is well", timeout_s=WAIT_S)
    send(cluster, "n3", "in the end")
    assert messages(cluster, "n3") == ["everywhere", "afterwards", "in the end"]
