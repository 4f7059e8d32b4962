"""Nodes whose machine's clock is far from the others': what they lead is stamped, and expires, by the cluster's."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import pytest

from lsmq.admin import NodeInfo
from lsmq.errors import LsmqError
from lsmq.sync import Client, ClusterAdmin, Consumer, Producer
from lsmq_coordinator.clocks import SAME_MS
from lsmq_node.broker.topology import Ack
from lsmq_node.cluster.clock import ClusterClock
from lsmq_node.storage import TopicOptions
from lsmq_node.storage.shard_time import SETTLING_SECONDS
from lsmq_node.storage.state import StoredTopic
from storage.harness import bodies, read_queue, retain, tiny
from support.clock import SimClock
from support.clusters import running_cluster
from support.waiting import eventually

from .replica_group import Group, group, run, until

pytestmark = pytest.mark.usefixtures("drives_there")

DAY_MS = 86_400_000
MONTH_MS = 30 * DAY_MS


class Clocks:
    """Of two nodes that are started at the same time; ``b``'s is wrong."""

    def __init__(self, nodes: Group, wrong_ms: int, known_ms: float | None) -> None:
        self.right, self.wrong = SimClock(), SimClock(wrong_ms=wrong_ms)
        nodes.sites["a"].clock = self.right
        clock = nodes.sites["b"].clock = ClusterClock(self.wrong)
        clock.correct(known_ms)

    def pass_by(self, milliseconds: int) -> None:
        self.right.time_ms += milliseconds
        self.wrong.time_ms += milliseconds


async def wrong_one_leads(nodes: Group, clocks: Clocks) -> None:
    """``a`` stores a message in a topic that keeps a week. Two hours later ``b`` leads, stores one, looks at what is
    due, and stores one more: whatever it trims has happened then."""
    leader = await nodes.lead("a")
    await nodes.all_in_sync()
    leader.check_writable(Ack.QUORUM)
    topic = StoredTopic(1, "t", 1, TopicOptions(retention_ms=7 * DAY_MS), 1)
    await leader.wait(leader.store.put_topic(topic, 0, 1), Ack.QUORUM)
    await nodes.put(leader, b"of a")
    clocks.pass_by(int(2_000 * SETTLING_SECONDS))
    leader = await nodes.lead("b")
    await nodes.all_in_sync()
    await nodes.put(leader, b"of b")
    retain(leader.store)
    await nodes.put(leader, b"then")


@pytest.mark.parametrize("wrong_ms", [MONTH_MS, -MONTH_MS])
def test_who_comes_to_lead_a_month_off_deletes_nothing_early_and_stamps_like_the_others(
    tmp_path: Path, wrong_ms: int
) -> None:
    async def test() -> None:
        async with group(tmp_path, names=("a", "b"), options=tiny(), start=False) as nodes:
            clocks = Clocks(nodes, wrong_ms, float(wrong_ms))
            for name in ("a", "b"):
                await nodes.start(name)
            await wrong_one_leads(nodes, clocks)
            assert list(bodies(nodes["b"].store, 1, 0).values()) == [b"of a", b"of b", b"then"]
            first, second, _ = read_queue(nodes["b"].store, 1, 0)
            assert second.stored_ms - first.stored_ms == 2_000 * SETTLING_SECONDS
            clocks.pass_by(8 * DAY_MS)
            retain(nodes["b"].store)
            await until(lambda: not bodies(nodes["b"].store, 1, 0), "what is due goes")

    run(test)


def test_a_month_that_nobody_knows_of_counts(tmp_path: Path) -> None:
    """Which the others show to be of use."""

    async def test() -> None:
        async with group(tmp_path, names=("a", "b"), options=tiny(), start=False) as nodes:
            clocks = Clocks(nodes, MONTH_MS, None)
            for name in ("a", "b"):
                await nodes.start(name)
            await wrong_one_leads(nodes, clocks)
            assert list(bodies(nodes["b"].store, 1, 0).values()) == [b"of b", b"then"]

    run(test)


def test_small_differences_are_taken_as_they_are_and_what_was_known_last_counts() -> None:
    machine = SimClock()
    clock = ClusterClock(machine)
    for ahead_ms, off_ms in (
        (SAME_MS, 0.0),
        (SAME_MS + 1, SAME_MS + 1),
        (None, SAME_MS + 1),
        (SAME_MS - 1, SAME_MS - 1),  # who goes by the others does not turn back at each little difference
        (SAME_MS / 2, 0.0),
        (SAME_MS, 0.0),
        (-MONTH_MS, -MONTH_MS),
    ):
        clock.correct(ahead_ms)
        assert machine.now_ms() - clock.now_ms() == off_ms
        assert clock.monotonic() == machine.monotonic()


@pytest.mark.slow
def test_a_node_of_a_cluster_that_is_a_month_ahead_stamps_like_the_others(tmp_path: Path) -> None:
    with (
        running_cluster(__name__, tmp_path / "c", replicas=3) as cluster,
        Client([node.url for node in cluster.status().nodes]) as client,
    ):
        client.create_topic("t", queues=3)
        admin = ClusterAdmin(client)
        cluster.stop("n3")
        cluster.start("n3", program=("-m", "lsmq_lab.drills.skewed_clock", str(MONTH_MS // 1000)))
        eventually(lambda: any("wall clock" in each for each in _node(admin, "n3").problems), "it is named")

        def leads() -> bool:
            shards = cluster.status().shards
            for shard in shards:
                if shard.leader != "n3" and "n3" in shard.in_sync:
                    with suppress(LsmqError):
                        admin.transfer(shard.id, "n3")
            return all(shard.leader == "n3" and shard.serving for shard in shards)

        eventually(leads, "n3 leads all shards")
        with Producer(client, "t") as producer:
            for queue in range(3):
                producer.send_and_wait(b"now", queue=queue)
        with Consumer(client, "t") as consumer:
            found = [message.stored_ms for _ in range(3) for message in consumer.poll(1, timeout_ms=10_000)]
        assert len(found) == 3 and all(abs(stored_ms - time.time() * 1000) < 3_600_000 for stored_ms in found)


def _node(admin: ClusterAdmin, name: str) -> NodeInfo:
    return next(node for node in admin.overview().nodes if node.id == name)
