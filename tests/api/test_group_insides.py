"""Groups in a node of the test's own process: what happens while somebody waits."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from unittest.mock import patch

import pytest

from lsmq.errors import LsmqError, Unavailable, UnknownMember
from lsmq_node.broker import Broker
from lsmq_node.groups.coordinator import ShardGroups
from lsmq_node.groups.group import Beat
from lsmq_node.machines import Step
from lsmq_node.storage.segments import SegmentFiles
from support.waiting import PATIENCE_S

from .in_process import Session, node_of, with_node


async def commit(session: Session, group: str, offset: int) -> None:
    document = {"topic": "t", "queues": [0], "offsets": [offset]}
    answer = await session.post(f"/v1/groups/{group}/offsets", json=document)
    assert answer.status == 200, await answer.text()


async def committed(session: Session, group: str) -> list[int]:
    offsets: list[int] = (await (await session.get(f"/v1/groups/{group}/offsets?topic=t")).json())["offsets"]
    return offsets


async def groups_of(session: Session) -> ShardGroups:
    return await node_of(session).groups.shard(0)


def test_who_comes_while_idle_groups_are_forgotten_keeps_what_it_commits(tmp_path: Path) -> None:
    async def test(session: Session, broker: Broker) -> None:
        await session.post("/v1/topics/t/messages", json={"messages": [{"queue": 0, "body": "x"}] * 2})
        shard, asked = await groups_of(session), list[str]()
        for name in ("a", "b"):
            await commit(session, name, 1)
        shard.put_aside(Step(shard._idle.hour()))
        assert shard._idle.idle() == ["a", "b"]

        async def is_in_use(name: str) -> bool:
            asked.append(name)
            if name == "a":
                await commit(session, "b", 2)  # It is known to be idle, and not looked at yet.
            return False

        with patch.object(shard, "_is_in_use", is_in_use):
            await shard._forget_idle(["a", "b"])
        assert asked == ["a", "b"]
        assert (await committed(session, "a"), await committed(session, "b")) == ([], [2])

    with_node(tmp_path, test, group_retention_hours=1)


def test_whoever_waits_for_a_plan_of_a_group_hears_that_it_was_deleted(tmp_path: Path) -> None:
    async def test(session: Session, broker: Broker) -> None:
        shard = await groups_of(session)
        first, second = (asyncio.create_task(shard.heartbeat("g", Beat(name, ("t",)), 0)) for name in ("1", "2"))
        await asyncio.sleep(0)  # The first one's plan is in line; the second one's is to come behind it.
        leaving = asyncio.create_task(shard.leave("g", Beat("1", ())))
        await asyncio.sleep(0)
        assert shard.groups["g"].staged and shard.groups["g"].dirty
        await shard.forget("g")
        async with asyncio.timeout(PATIENCE_S):
            await leaving
            for beat in (first, second):
                with pytest.raises(UnknownMember):
                    await beat

    with_node(tmp_path, test)


def test_offsets_that_could_not_be_dropped_are_not_said_to_be_although_the_fence_is(tmp_path: Path) -> None:
    no_descriptor = OSError(errno.EMFILE, "too many open files")

    async def test(session: Session, broker: Broker) -> None:
        await session.post("/v1/topics/t/messages", json={"messages": [{"queue": 0, "body": "x"}] * 2})
        await commit(session, "g", 1)
        shard = await groups_of(session)

        def also() -> None:  # Meanwhile the disk's thread drops all that is in line.
            with patch.object(SegmentFiles, "prepare", side_effect=no_descriptor), pytest.raises(LsmqError):
                shard.store.commit()

        with pytest.raises(Unavailable):
            await shard.unfence("g", also)
        assert await committed(session, "g") == [1]
        assert (await session.delete("/v1/groups/g/offsets?shard=0")).status == 204
        assert await committed(session, "g") == []

    with_node(tmp_path, test)
