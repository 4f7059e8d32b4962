"""A backup of a real cluster, while leaders are killed: each shard from whoever leads it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from api.calls import Api
from lsmq_lab.local_cluster import LocalCluster
from support.node_process import NodeProcess
from support.waiting import eventually

from .commands import QUEUES, command, held, lsmq, send

pytestmark = pytest.mark.slow


@pytest.mark.part(1)
def test_a_cluster_s_backup_survives_a_leader_and_becomes_a_node_or_a_topic_of_another_one(
    cluster: LocalCluster, make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    urls = ",".join(node.url for node in cluster.plan.nodes)
    status = cluster.status()
    victim = next(shard.leader for shard in status.shards if shard.leader is not None)
    rest = Api(next(node.url for node in status.nodes if node.id != victim))
    backups = tmp_path / "backups"
    rest.create("t", QUEUES)
    rest.create("unused", QUEUES)
    send(rest, "t", range(200), 3_000)
    expected = held(rest, "t")
    words, environment = command(urls, "backup", "create", "--to", backups, "--json")
    process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE)
    eventually(lambda: bool(list(backups.glob("incoming/PART-*"))), "a file is fetched")
    cluster.kill(victim)
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    made = json.loads(printed)
    assert made["cluster"] == cluster.plan.name and sorted(made["topics"]) == ["t", "unused"]
    lsmq(urls, "verify", backups)

    data, shards = tmp_path / "new", len(made["shards"])
    lsmq(urls, "backup", "restore", backups, "--data", data)
    node = Api(make_node(data, shards=shards).start().url)
    assert held(node, "t") == expected
    send(node, "unused", range(3))

    lsmq(urls, "backup", "extract", backups, "--topic", "t", "--as", "t2")
    bodies = {queue: [message[5] for message in messages] for queue, messages in held(rest, "t2").items()}
    assert bodies == {queue: [message[5] for message in messages] for queue, messages in expected.items()}
