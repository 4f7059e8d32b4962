"""Groups in a node of the test's own process: what happens while somebody waits."""

from __future__ import annotations

import asyncio
import errno
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest

from lsmq.errors import LsmqError, Unavailable, UnknownMember
from lsmq_node.broker import Broker
from lsmq_node.groups import Mode, coordinator
from lsmq_node.groups.coordinator import ShardGroups
from lsmq_node.groups.group import Beat
from lsmq_node.machines import HOUR_S, Step
from lsmq_node.storage.segments import SegmentFiles
from push.streams import HeldStream
from support.waiting import PATIENCE_S, comes_true

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


def test_a_group_that_took_over_queues_and_committed_nothing_there_is_forgotten_as_well(tmp_path: Path) -> None:
    """Where it is coordinated another shard knows; here there is nothing of it but what it has taken over."""

    async def test(session: Session, broker: Broker) -> None:
        shard = await groups_of(session)
        await shard.fence("g", 1, 1, None)
        shard.put_aside(Step(shard._idle.hour()))
        await shard._forget_idle(shard._idle.idle())
        assert not shard.fences and not shard.store.documents("fence/")

        await shard.done(Step({"fence/h": b"1"}, appended=partial(shard.fences.__setitem__, "h", 1)))
        for _ in range(2):  # A release before has not written down when: it is used now.
            shard._hour_began -= HOUR_S
            shard.tick()
        await comes_true(lambda: not shard.store.documents("fence/"), "it is forgotten")
        assert not shard.store.documents("group-used/")

    with_node(tmp_path, test, group_retention_hours=1)


def test_of_so_many_groups_members_expire_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an outage all of them may: others on the loop have their turns."""
    monkeypatch.setattr(coordinator, "_MOST_EXPIRED", 4)

    async def test(session: Session, broker: Broker) -> None:
        shard = await groups_of(session)
        for number in range(10):
            await shard.heartbeat(f"g{number}", Beat("m", ("t",), session_ms=1_000), 0)
        shard._clock._awake += 100
        left = []
        for _ in range(3):
            shard.tick()
            left.append(sum(bool(group.members) for group in shard.groups.values()))
        assert left == [6, 2, 0]

    with_node(tmp_path, test)


def test_of_a_group_that_is_deleted_nothing_is_kept(tmp_path: Path) -> None:
    async def test(session: Session, broker: Broker) -> None:
        await session.post("/v1/topics/t/messages", json={"messages": [{"queue": 0, "body": "x"}] * 2})
        shard = await groups_of(session)
        for first in ("offsets", "group"):
            await shard.heartbeat("g", Beat("m", ("t",)), 0)
            await shard.leave("g", Beat("m", ()))
            await commit(session, "g", 1)
            for path in sorted(("/v1/groups/g", "/v1/groups/g/offsets?shard=0"), reverse=first == "offsets"):
                assert (await session.delete(path)).status == 204
            assert not shard.store.documents("group") and not shard.groups

    with_node(tmp_path, test)


def test_groups_whose_topics_were_deleted_do_not_count(tmp_path: Path) -> None:
    async def test(session: Session, broker: Broker) -> None:
        async def commits(number: int) -> bool:
            document = {"topic": f"t{number}", "queues": [0], "offsets": [0]}
            answer = await session.post(f"/v1/groups/g{number}/offsets", json=document)
            assert answer.status == 200 or (await answer.json())["error"]["code"] == "too_many_groups"
            return answer.status == 200

        for number in range(5):
            await session.put(f"/v1/topics/t{number}", json={"queues": 1})
            await comes_true(partial(commits, number), "there is room for its offsets")
            await session.delete(f"/v1/topics/t{number}")

    with patch("lsmq_node.groups.coordinator._LOOK_FOR_GONE_EACH", 1):
        with_node(tmp_path, test, max_groups=2)


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


@pytest.mark.parametrize("mode", [Mode.WORK_QUEUE, Mode.PUSH, Mode.BROADCAST])
def test_a_group_that_is_used_as_it_is_deleted_is_known_as_what_it_is(tmp_path: Path, mode: Mode) -> None:
    """Else others share it in another way, and its offsets are forgotten with those of groups that nobody uses."""

    async def test(session: Session, broker: Broker) -> None:
        async def use() -> None:
            if mode is Mode.WORK_QUEUE:
                assert (await session.post("/v1/groups/g/pop", json={"topic": "t"})).status == 200

        async def is_known() -> bool:
            await use()
            found = await session.get("/v1/groups/g")
            return found.status == 200 and (await found.json())["mode"] == mode.value

        async def is_another() -> bool:
            await session.delete("/v1/groups/g")
            return (await session.put("/v1/groups/g", json={"mode": "clustered"})).status == 200

        async def is_refused() -> bool:
            if mode is Mode.WORK_QUEUE:
                answer = await session.post("/v1/groups/g/pop", json={"topic": "t"})
                return answer.status == 409 and (await answer.json())["error"]["code"] == "group_mode_mismatch"
            return not node_of(session).push.streams

        async with AsyncExitStack() as streams:
            await use()
            if mode is not Mode.WORK_QUEUE:
                params = {"topic": "t", "mode": "broadcast" if mode is Mode.BROADCAST else "clustered"}
                opened = session.ws_connect("/v1/groups/g/push", params=params, protocols=("lsmq.json",))
                await HeldStream(await streams.enter_async_context(opened)).owns([0, 2])
            assert await is_known()
            assert (await session.delete("/v1/groups/g")).status == 204
            with patch("lsmq_node.groups.declared.AGAIN_S", 0.0):
                await comes_true(is_known, "it is declared again")
            await comes_true(is_another, "others have made it another one")
            with patch("lsmq_node.groups.declared.AGAIN_S", 0.0):
                await comes_true(is_refused, "who uses it hears of that")

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
