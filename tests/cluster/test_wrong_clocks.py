"""Nodes whose machine's clock is far from the others': what they lead is stamped, and expires, by the cluster's."""

from __future__ import annotations

from pathlib import Path

import pytest

from lsmq_node.broker.topology import Ack
from lsmq_node.cluster.clock import FAR_MS, ClusterClock
from lsmq_node.storage import TopicOptions
from lsmq_node.storage.shard_time import SETTLING_SECONDS
from lsmq_node.storage.state import StoredTopic
from storage.harness import bodies, read_queue, retain, tiny
from support.clock import SimClock

from .replica_group import Group, group, run, until

pytestmark = pytest.mark.usefixtures("drives_there")

DAY_MS = 86_400_000
MONTH_MS = 30 * DAY_MS


class Clocks:
    """Of two nodes that are started at the same time; ``b``'s is wrong."""

    def __init__(self, nodes: Group, wrong_ms: int, known_ms: float | None) -> None:
        self.right, self.wrong = SimClock(), SimClock(wrong_ms=wrong_ms)
        nodes.sites["a"].clock = self.right
        nodes.sites["b"].clock = ClusterClock(lambda: known_ms, self.wrong)

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
    machine = SimClock(wrong_ms=FAR_MS)
    known: list[float | None] = [float(FAR_MS)]
    clock = ClusterClock(lambda: known[0], machine)
    assert clock.now_ms() == machine.now_ms()
    known[0] = FAR_MS + 1.0
    assert clock.now_ms() == machine.now_ms() - FAR_MS - 1
    known[0] = None
    assert clock.now_ms() == machine.now_ms() - FAR_MS - 1
    known[0] = 0.0
    assert clock.now_ms() == machine.now_ms() and clock.monotonic() == machine.monotonic()
