"""Many groups in a shard: what a tick, a scrape and the end of one group look at."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest.mock import patch

from api.in_process import Session, node_of, with_node
from lsmq_node.broker import Broker
from lsmq_node.groups import Beat
from lsmq_node.groups.group import CoordinatedGroup
from lsmq_node.groups.metrics import GroupCollector
from lsmq_node.groups.plan import GenerationPlan
from support.counted_lines import counted_lines

MEMBERS = 200


def test_members_are_looked_at_where_a_session_may_have_ended_and_no_session_ends_late() -> None:
    group = CoordinatedGroup("g", GenerationPlan(), 1, 0.0)
    for number in range(MEMBERS):
        group.hear(Beat(f"m{number}", ("t",)), now=number / MEMBERS)
    group.stage(lambda name: (1, 1_000))
    group.publish()
    assert group.expire(1.0) == []
    with counted_lines() as lines:
        for tick in range(4, 40):
            assert group.expire(tick / 4) == []
    assert lines.count < MEMBERS
    for number in range(1, MEMBERS):
        group.hear(Beat(f"m{number}", ("t",), 1), now=9.0)
    assert group.expire(10.25) == ["m0"]
    assert group.expire(10.5) == []
    version = group.answer("m5", {}).version
    group.hear(Beat("m5", ("t",), 1, version, session_ms=1_000), now=11.0)
    assert group.expire(12.0) == []
    assert group.expire(12.25) == ["m5"], "its session is shorter from then on"
    group.hear(Beat("new", ("t",), session_ms=2_000), now=13.0)
    assert group.expire(15.25) == ["new"], "nor is one that came since passed over"
    assert len(group.expire(30.0)) == MEMBERS - 2
    assert group.expire(40.0) == []


def test_groups_without_members_cost_no_scrape_and_no_look_at_readiness(tmp_path: Path) -> None:
    async def test(client: Session, broker: Broker) -> None:
        groups = node_of(client).groups
        shard = await groups.shard(0)
        for number in range(400):
            name = f"g{number}"
            shard.groups[name] = CoordinatedGroup(name, GenerationPlan(), 1, 0.0)
        beat = Beat("m", ("t",), stalled=True)
        await groups.heartbeat("real", beat, 0)
        with counted_lines() as lines:
            found = {metric.name: metric.samples[0].value for metric in GroupCollector(groups).collect()}
            told = groups.stalled()
        assert lines.count < 400 + 300
        assert (found["lsmq_groups"], found["lsmq_group_members"]) == (401, 1)
        assert found["lsmq_group_members_stalled"] == 1
        assert told == ["group real: 1 of 1 members are stalled: m"]

    with_node(tmp_path, test)


def test_the_end_of_a_group_looks_at_no_commits_of_others(tmp_path: Path) -> None:
    async def test(client: Session, broker: Broker) -> None:
        shard = await node_of(client).groups.shard(0)
        for number in range(3_000):
            shard.note_commit(f"g{number % 1_500}", number // 1_500, float(number))
        unfence = asyncio.create_task(shard.unfence("g7"))
        with counted_lines() as lines:
            await asyncio.sleep(0)
        await unfence
        assert lines.count < 1_500
        assert (shard.last_commit("g7", 0), shard.last_commit("g7", 1)) == (None, None)
        assert (shard.last_commit("g8", 0), shard.last_commit("g8", 1)) == (8.0, 1_508.0)
        with patch("lsmq_node.groups.coordinator._REMEMBERED_COMMITS", 2_998):
            shard.note_commit("g0", 0, 5_000.0)
            shard.note_commit("new", 0, 5_001.0)
        assert (shard.last_commit("g0", 0), shard.last_commit("g1", 0)) == (5_000.0, None)
        assert shard.last_commit("new", 0) == 5_001.0

    with_node(tmp_path, test)
