"""The protocol of consumer groups through the client, and ``lsmq group``."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from api.calls import Api
from lsmq import Client, Producer, WorkQueue
from lsmq.cli._reset import ResetTarget, moves, summed
from lsmq.errors import FencedMember, GroupHasMembers, StaleGeneration, UnknownGroup, UnknownMember, UnknownQueue
from lsmq.group_values import portions
from lsmq.groups import Assignment, Group, Heartbeat, Ranges, find_group, list_groups, new_member_id
from lsmq.topics import Offsets
from support.node_process import NodeProcess
from support.python_process import run_python


class Member:
    """A member that takes what it is given and gives up at once what it is told to."""

    def __init__(self, group: Group, *topics: str, **fields: Any) -> None:
        self.group = group
        self.beat = Heartbeat(new_member_id(), topics, **fields)

    async def sync(self, wait_ms: int = 0) -> Assignment:
        answer = await self.group.heartbeat(self.beat, wait_ms=wait_ms)
        self.beat = replace(self.beat, epoch=answer.epoch, version=answer.version, owned=answer.assigned)
        return answer

    @property
    def owned(self) -> Mapping[str, Ranges]:
        return self.beat.owned


async def settle(*members: Member) -> None:
    for _ in range(20):
        answers = [await member.sync() for member in members]
        if len({answer.epoch for answer in answers}) == 1 and not any(answer.waiting_for for answer in answers):
            await asyncio.gather(*(member.sync() for member in members))
            return
    raise AssertionError(answers)


async def test_members_share_queues_and_commit_as_long_as_they_own_them(
    shared_node: NodeProcess, topic_name: str
) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=6)
        async with Producer(client, topic_name) as producer:
            for number in range(12):
                await producer.send(f"{number}", queue=number % 6)
        group = Group(client, topic_name)
        one, two = Member(group, topic_name, client="one"), Member(group, topic_name)
        await settle(one, two)
        assert [one.owned[topic_name], two.owned[topic_name]] == [(range(3),), (range(3, 6),)]
        who: dict[str, Any] = {"member": two.beat.member, "epoch": two.beat.epoch}
        assert await group.fence(topic_name, two.owned[topic_name], **who) == {}
        await group.commit(topic_name, {3: 1, 5: 2}, member=two.beat.member, epoch=two.beat.epoch)
        with pytest.raises(StaleGeneration):
            await group.commit(topic_name, {3: 2}, member="late", epoch=two.beat.epoch - 1)
        with pytest.raises(GroupHasMembers):
            await client.commit_offsets(topic_name, topic_name, {0: 1})
        with pytest.raises(FencedMember):
            await group.commit(topic_name, {0: 1, 3: 2}, **who)
        with pytest.raises(UnknownMember):
            await group.commit(topic_name, {3: 2}, member="zz", epoch=10**9)
        with pytest.raises(UnknownQueue):
            await group.fence(topic_name, (range(5, 7),), **who)
        assert await group.fence(topic_name, two.owned[topic_name], **who) == {3: 1, 5: 2}
        lag = await group.lag(topic_name, [one.owned[topic_name], two.owned[topic_name]])
        assert (lag.lag, lag.behind, lag.uncommitted, lag.by_part) == (9, 5, 4, (6, 3))
        described = await group.describe()
        assert (described.state, described.generation) == ("stable", one.beat.epoch)
        assert {member.id: member.assigned for member in described.members} == {
            member.beat.member: member.owned for member in (one, two)
        }
        [summary] = [found for found in await list_groups(client) if found.group == topic_name]
        assert (summary.members, summary.state) == (2, "stable")
        with pytest.raises(GroupHasMembers):
            await group.delete()
        for member in (one, two, two):
            await group.leave(member.beat)
        await group.delete()
        with pytest.raises(UnknownGroup):
            await group.describe()
        assert await client.committed_offsets(topic_name, topic_name) == {}


async def test_a_stopped_node_answers_its_members_when_it_wakes_and_nobody_has_gone(node: NodeProcess) -> None:
    async with Client(node.url, request_timeout_ms=500) as client:
        await client.create_topic("t", queues=4)
        group = Group(client, "g")
        members = [Member(group, "t", session_ms=1_000) for _ in range(2)]
        await settle(*members)
        before = [(member.beat.epoch, member.owned) for member in members]
        node.signal(signal.SIGSTOP)
        beats = [asyncio.create_task(member.sync()) for member in members]
        await asyncio.sleep(1.5)  # more than a session
        node.signal(signal.SIGCONT)
        await asyncio.gather(*beats)
        assert [(member.beat.epoch, member.owned) for member in members] == before


# -- the command -------------------------------------------------------------------------------------------


def lsmq(url: str, *arguments: str, code: int = 0) -> str:
    ran = run_python("-m", "lsmq", "group", *arguments, "--url", url, text=True)
    assert ran.returncode == code, ran.stdout + ran.stderr
    return ran.stderr if code else ran.stdout


async def test_groups_are_described_reset_and_deleted(shared_node: NodeProcess, topic_name: str) -> None:
    async with Client(shared_node.url) as client:
        await client.create_topic(topic_name, queues=4)
        async with Producer(client, topic_name) as producer:
            for number in range(12):
                await producer.send(f"{number}", queue=number % 3)
        member = Member(Group(client, topic_name), topic_name, static_id="s1", client="a test", session_ms=60_000)
        await member.sync()
        await member.sync()
        await member.group.commit(topic_name, {0: 4, 1: 2}, member=member.beat.member, epoch=member.beat.epoch)

        def run(*arguments: str, code: int = 0) -> Any:
            return asyncio.to_thread(lsmq, shared_node.url, *arguments, code=code)

        [listed] = [row for row in json.loads(await run("list", "--json")) if row["group"] == topic_name]
        assert (listed["members"], listed["mode"]) == (1, "clustered")
        shown = await run("describe", topic_name)
        assert f"{topic_name}: 0-3" in shown and "a test" in shown
        found = json.loads(await run("describe", topic_name, "--json"))
        assert found["members"][0]["assigned"] == {topic_name: [[0, 4]]}
        assert found["lag"][0]["lag"] == 6
        reset = ("reset", topic_name, "--topic", topic_name, "--yes")
        assert "2 live members" not in await run(*reset, "--to-latest", "--dry-run")
        assert "live members" in await run(*reset, "--to-latest", code=1)
        await run(*reset, "--to-offset", "1", "--queues", "0", "--force", "--json")
        assert await client.committed_offsets(topic_name, topic_name) == {0: 1, 1: 2}
        await member.group.leave(member.beat)
        await run(*reset, "--shift=-1")
        assert await client.committed_offsets(topic_name, topic_name) == {0: 0, 1: 1}
        await run(*reset, "--to-earliest")
        assert await client.committed_offsets(topic_name, topic_name) == {0: 0, 1: 0, 2: 0}
        planned = await run(*reset, "--to-latest", "--dry-run", "--json")
        assert [(move["queue"], move["committed"], move["to"]) for move in json.loads(planned)] == [
            (0, 0, 4),
            (1, 0, 4),
            (2, 0, 4),
        ]
        assert await client.committed_offsets(topic_name, topic_name) == {0: 0, 1: 0, 2: 0}, "it was a plan"
        plan = ("group", *reset, "--to-latest", "--dry-run", "--url", shared_node.url)
        said = (await asyncio.to_thread(run_python, "-m", "lsmq", *plan, text=True)).stderr
        assert "3 queues change: 0 messages to be read again, 12 to be skipped" in said
        await run(*reset, "--to-latest")
        assert await client.committed_offsets(topic_name, topic_name) == {0: 4, 1: 4, 2: 4}
        await run(*reset, "--to-time=-1h")
        assert await client.committed_offsets(topic_name, topic_name) == {0: 0, 1: 0, 2: 0}
        assert "say where to" in await run(*reset, "--shift=1", "--to-latest", code=2)
        await run("delete", topic_name, "--yes")
        assert "unknown_group" in await run("describe", topic_name, code=1)


def test_a_reset_stays_within_what_is_kept_and_leaves_alone_what_is_right() -> None:
    bounds = Offsets([0, 1, 2, 3], [5, 0, 0, 0], [9, 4, 0, 7], [6, 4, 0, 2])
    committed = {0: 7, 3: 2}

    def to(target: ResetTarget) -> dict[int, int]:
        return {move.queue: move.to for move in moves(target, bounds, committed)}

    assert to(ResetTarget(offset=2)) == {0: 5, 1: 2}
    assert to(ResetTarget(end="earliest")) == {0: 5, 1: 0, 3: 0}
    assert summed(moves(ResetTarget(end="earliest"), bounds, committed)) == (2 + 2, 0)
    assert summed(moves(ResetTarget(offset=6), bounds, committed)) == (1, 4 + 4)
    assert to(ResetTarget(end="latest")) == {0: 9, 1: 4, 3: 7}
    assert to(ResetTarget(shift=-10)) == {0: 5, 3: 0}
    assert to(ResetTarget(shift=3)) == {0: 9, 3: 5}


def test_a_request_names_no_more_than_it_may() -> None:
    ranges = (range(3), range(5, 12), range(20, 21))
    assert portions(ranges, 4, 9) == [(range(3), range(5, 6)), (range(6, 10),), (range(10, 12), range(20, 21))]
    assert portions(ranges, 99, 2) == [(range(3), range(5, 12)), (range(20, 21),)]
    assert portions((), 4, 2) == []


async def test_a_group_says_which_topics_it_has_to_do_with(node: NodeProcess) -> None:
    """Those that it has committed offsets of, or works on, and no others; also after a restart."""
    async with Client(node.url) as client:
        for topic in ("both", "read", "worked", "other", "gone"):
            await client.create_topic(topic, queues=2)
        for topic in ("both", "read", "gone"):
            await client.commit_offsets("g", topic, {1: 0})
        await client.commit_offsets("g/other", "other", {0: 0})
        for topic in ("both", "worked"):
            async with WorkQueue(client, topic, "w") as work:
                assert not await work.poll(timeout_ms=200)
        await client.delete_topic("gone")
        for _ in range(2):
            assert await Group(client, "g").topics() == ["both", "read"]
            assert await Group(client, "w").topics() == ["both", "worked"]
            assert await Group(client, "none").topics() == []
            node.restart()


async def test_a_group_is_found_among_many_without_a_list_of_all(node: NodeProcess) -> None:
    def pages() -> float:
        """Of lists of groups that the node has answered."""
        begin = 'lsmq_http_requests_total{operation="listGroups",status="200"}'
        lines = Api(node.url).get("/metrics").body.decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(begin))

    async with Client(node.url) as client:
        await client.create_topic("t", queues=1)
        for first in range(0, 1_100, 100):
            await asyncio.gather(
                *(client.commit_offsets(f"g{number:04d}", "t", {0: 0}) for number in range(first, first + 100))
            )
        await client.commit_offsets("g3", "t", {0: 0})
        assert len(await list_groups(client)) == 1_101
        for name in ("g0000", "g0500", "g1099", "g3"):
            before = pages()
            found = await find_group(client, name)
            assert found is not None and found.group == name
            assert pages() == before + 1
        for name in ("g", "g0500x", "h", "f"):
            assert await find_group(client, name) is None
