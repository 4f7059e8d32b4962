"""Groups that go on in an extracted topic where they had been: at the same message, whatever its offset is now."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from api.calls import Api
from lsmq import sync
from lsmq_lab.local_cluster import LocalCluster
from support.node_process import NodeProcess
from support.waiting import clock_passes

from .commands import QUEUES, lsmq, send

SMALL: dict[str, Any] = {"shards": 2, "memtable_bytes": 4 << 20}


def left_of(client: sync.Client, api: Api, group: str, topic: str) -> dict[int, list[str]]:
    """By queue that the group has an offset in: the messages that it has still to handle."""
    return {
        queue: [message["body"].strip() for message in api.all_messages(topic, queue) if message["offset"] >= offset]
        for queue, offset in client.committed_offsets(group, topic).items()
    }


def test_a_group_goes_on_at_the_message_where_it_had_been(node: NodeProcess, tmp_path: Path) -> None:
    check(node.url, tmp_path)


@pytest.fixture
def node(make_node: Callable[..., NodeProcess]) -> NodeProcess:
    return make_node(**SMALL).start()


@pytest.mark.slow
def test_so_it_does_in_a_cluster(cluster: LocalCluster, tmp_path: Path) -> None:
    check(cluster.plan.nodes[1].url, tmp_path)


def check(url: str, tmp_path: Path) -> None:
    api, backups = Api(url), tmp_path / "backups"
    api.create("t", QUEUES)
    api.create("names", "named")
    send(api, "t", range(40), 20)
    first = max(api.all_messages("t", queue)[-1]["stored_ms"] for queue in range(QUEUES))
    clock_passes(first)
    send(api, "t", range(40, 60), 20)
    with sync.Client(url) as client:
        # Some are gone, so what follows has another offset when it is sent anew.
        client.delete_messages("t", [(queue, offset) for queue in range(3) for offset in range(5, 15)])
        client.commit_offsets("g", "t", {0: 10, 1: 30, 2: 60, 3: 0, 4: 45})
        client.commit_offsets("h", "t", {0: 59, 5: 1})
        with sync.Producer(client, "names") as producer:
            sent = [producer.send_and_wait(str(number), queue=f"user/{number % 3}") for number in range(30)]
        client.commit_offsets("g", "names", {sent[1].queue: 4})
        expected = {group: left_of(client, api, group, "t") for group in ("g", "h")}
        lsmq(url, "backup", "create", "--to", backups)
        client.delete_messages("t", [(queue, offset) for queue in range(QUEUES) for offset in range(20)])
        client.commit_offsets("g", "t", dict.fromkeys(range(QUEUES), 60))

        words = ("backup", "extract", backups, "--topic", "t")
        said = lsmq(url, *words, "--as", "again", "--groups")
        assert "group g goes on where it was in 5 queues" in said
        assert "group h goes on where it was in 2 queues" in said
        assert {group: left_of(client, api, group, "again") for group in ("g", "h")} == expected
        assert client.committed_offsets("g", "again") == {0: 5, 1: 20, 2: 50, 3: 0, 4: 45}

        # Up to a moment: who was beyond is at the end. From one on: who was before is at the beginning.
        moment = datetime.fromtimestamp((first + 1) / 1000, UTC).isoformat()
        lsmq(url, *words, "--as", "early", "--until", moment, "--groups")
        assert client.committed_offsets("g", "early") == {0: 5, 1: 20, 2: 30, 3: 0, 4: 40}
        lsmq(url, *words, "--as", "late", "--from", moment, "--groups")
        assert client.committed_offsets("g", "late") == {0: 0, 1: 0, 2: 20, 3: 0, 4: 5}
        assert client.committed_offsets("h", "late") == {0: 19, 5: 0}

        lsmq(url, "backup", "extract", backups, "--topic", "names", "--as", "names2", "--groups")
        with sync.Producer(client, "names2") as producer:
            number = producer.send_and_wait("x", queue="user/1").queue
        assert client.committed_offsets("g", "names2") == {number: 4}
        lsmq(url, *words, "--as", "plain")
        assert client.committed_offsets("g", "plain") == {}

        # A group that lives there is not moved under its members: it is named, and the others' are set.
        with sync.Consumer(client, "again", group="h") as consumer:
            consumer.poll(timeout_ms=0)
            said = lsmq(url, *words, "--as", "other", "--groups", code=1)
        assert "error: the offsets of group h were not set" in said
        assert set(client.committed_offsets("g", "other")) == {0, 1, 2, 3, 4}
