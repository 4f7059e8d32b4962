"""Membership of consumer groups over HTTP: joining, sharing out, giving up, fencing, sessions."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from lsmq.errors import DiskFull
from lsmq_node.broker import Broker
from lsmq_node.machines import TICK_S, AwakeClock
from lsmq_node.storage.line import Round
from support.node_process import NodeProcess

from .calls import Api
from .in_process import Session, node_of, with_node


class Member:
    """A member by hand: it owns what it is told of, and gives up what it is told to when it is asked to."""

    numbers = itertools.count()

    def __init__(self, api: Api, group: str, *topics: str, **fields: Any) -> None:
        self.api, self.group = api, group
        self.id = f"m{next(self.numbers)}"
        self.fields = {"topics": list(topics), **fields}
        self.epoch = self.version = 0
        self.owned: dict[str, list[list[int]]] = {}
        self.answer: dict[str, Any] = {}

    def beat(self, status: int = 200, **more: Any) -> Any:
        document = {
            "member": self.id,
            "epoch": self.epoch,
            "version": self.version,
            "owned": self.owned,
            **self.fields,
            **more,
        }
        found = self.api.call("POST", f"/v1/groups/{self.group}/heartbeat", document, status=status)
        if status != 200:
            return found.error
        self.answer = found.json()
        self.epoch, self.version = self.answer["epoch"], self.answer["version"]
        return self.answer

    def sync(self, **more: Any) -> dict[str, list[list[int]]]:
        """Heartbeat, own what is assigned, and give up the rest."""
        self.owned = self.beat(**more)["assigned"]
        return self.owned


def settle(*members: Member) -> list[Any]:
    """Heartbeat in turns until nobody waits for anything."""
    for _ in range(10):
        for member in members:
            member.sync()
        if len({member.epoch for member in members}) == 1 and not any(m.answer["waiting_for"] for m in members):
            return [member.owned for member in members]
    raise AssertionError([member.answer for member in members])


@pytest.fixture
def topic(api: Api, topic_name: str) -> Iterator[str]:
    api.create(topic_name, 10)
    yield topic_name


def test_members_share_queues_and_only_what_must_move_moves(api: Api, topic: str) -> None:
    first, second, third = (Member(api, topic, topic) for _ in range(3))
    assert first.sync() == {topic: [[0, 10]]}
    assert second.sync() == {}
    assert second.answer["waiting_for"] == 5
    assert first.beat()["assigned"] == {topic: [[0, 5]]}
    assert second.sync() == {}, "the first one has not given them up"
    first.owned = {topic: [[0, 5]]}
    first.beat()
    assert second.sync() == {topic: [[5, 10]]}
    generation = second.epoch
    assert first.sync() == {topic: [[0, 5]]} and first.epoch == generation
    shares = settle(first, second, third)
    assert sorted(sum(end - begin for begin, end in owned[topic]) for owned in shares) == [3, 3, 4]


def test_a_join_that_is_repeated_makes_no_second_member(api: Api, topic: str) -> None:
    member = Member(api, topic, topic)
    member.beat()
    member.epoch = member.version = 0
    again = member.beat()
    assert again["epoch"] == member.epoch
    assert [found["id"] for found in api.get(f"/v1/groups/{topic}").json()["members"]] == [member.id]


def test_more_members_than_queues_stand_by(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    first, second = Member(api, topic_name, topic_name), Member(api, topic_name, topic_name)
    settle(first, second)
    assert (first.answer["standby"], second.answer["standby"]) == (False, True)
    first.beat(leave=True)
    assert second.sync() == {topic_name: [[0, 1]]}
    assert not second.answer["standby"]


def test_a_static_id_gets_its_place_back_and_the_old_process_is_told(api: Api, topic: str) -> None:
    old, other = Member(api, topic, topic, static_id="s"), Member(api, topic, topic)
    owned, _ = settle(old, other)
    generation = old.epoch
    new = Member(api, topic, topic, static_id="s")
    assert new.sync() == owned
    assert new.epoch == generation
    assert old.beat(409)["code"] == "stale_generation"
    new.beat(wait_ms=3_000)
    settle(new, other)
    assert new.owned == owned
    assert new.epoch == generation + 1, "two processes with one id: what the old one commits must not count"


def test_who_is_not_known_is_told_so(api: Api, topic: str) -> None:
    ghost = Member(api, topic, topic)
    ghost.epoch = 3
    assert ghost.beat(404)["code"] == "unknown_member"
    assert api.get(f"/v1/groups/{topic}", 404).error["code"] == "unknown_group"
    Member(api, topic, topic).beat()
    assert ghost.beat(404)["code"] == "unknown_member"
    assert ghost.beat(404, leave=True)["code"] == "unknown_member"
    assert Member(api, topic, "nowhere").beat(404)["code"] == "unknown_topic"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"session_ms": 10}, "the least it may be is 1000"),
        ({"session_ms": 10**9}, "the limit is 300000"),
        ({"owned": {"t": [[3, 3]]}}, "a range is [first, end]"),
        ({"owned": {"t": [[3]]}}, "it needs at least 2"),
        ({"owned": {"t": [[number, number + 1] for number in range(0, 20_002, 2)]}}, "the limit is 10000"),
        ({"topics": []}, "topics has 0 items"),
        ({"topics": [f"t{number}" for number in range(101)]}, "the limit is 100"),
        ({"mode": "work_queue"}, "must be one of"),
        ({"member": "a b"}, "an id has 1 to 100 letters"),
        ({"epoch": -1}, "the least it may be is 0"),
    ],
)
def test_a_wrong_heartbeat_is_refused(api: Api, topic: str, fields: dict[str, Any], message: str) -> None:
    member = Member(api, topic, topic)
    assert message in member.beat(400, **fields)["message"]


def test_a_pattern_is_of_topics_whose_queues_have_names_and_of_all_members(api: Api, topic: str) -> None:
    named = f"{topic}-named"
    api.call("PUT", f"/v1/topics/{named}", {"queues": "named"}, status=201)
    assert "the queues of topic" in Member(api, topic, topic, named, pattern="a.*").beat(400)["message"]
    assert Member(api, topic, named, pattern="a*").beat(400)["code"] == "invalid_queue_name"
    first = Member(api, topic, named, pattern="a.*")
    first.beat()
    refused = Member(api, topic, named, pattern="b.*").beat(409)
    assert refused["code"] == "group_pattern_mismatch"
    assert (refused["group"], refused["topic"], refused["pattern"]) == (topic, named, "a.*")
    assert Member(api, topic, named).beat(409)["code"] == "group_pattern_mismatch"
    path = f"/v1/groups/{topic}"
    assert api.get(path).json()["patterns"] == {named: "a.*"}
    first.beat(leave=True)
    assert api.get(path).json()["patterns"] == {named: "a.*"} and api.get(path).json()["members"] == []
    Member(api, topic, named).beat()
    assert api.get(path).json()["patterns"] == {}


def test_members_with_other_topics_share_each_topic_among_them(api: Api, topic: str) -> None:
    api.create(f"{topic}-2", 4)
    one, both = Member(api, topic, topic), Member(api, topic, topic, f"{topic}-2")
    settle(one, both)
    assert sum(end - first for first, end in both.owned[f"{topic}-2"]) == 4
    assert sorted(map(tuple, one.owned[topic] + both.owned[topic])) == [(0, 5), (5, 10)]


def test_every_member_of_a_broadcast_group_has_everything(api: Api, topic: str) -> None:
    members = [Member(api, topic, topic, mode="broadcast", static_id=f"s{number}") for number in range(3)]
    assert settle(*members) == [{topic: [[0, 10]]}] * 3
    assert Member(api, topic, topic).beat(409)["code"] == "group_mode_mismatch"
    document = {"topic": topic, "queues": [0], "offsets": [0], "member": members[0].id, "epoch": members[0].epoch}
    api.call("POST", f"/v1/groups/{topic}%2Fs0/offsets", document, status=200)
    assert f"{topic}/s0" in api.get("/v1/groups").json()["groups"]


def test_a_declared_mode_keeps_consumers_out(api: Api, topic: str) -> None:
    path = f"/v1/groups/{topic}"
    for _ in range(2):
        assert api.call("PUT", path, {"mode": "work_queue"}, status=200).json()["mode"] == "work_queue"
    assert api.call("PUT", path, {"mode": "push"}, status=409).error["mode"] == "work_queue"
    assert Member(api, topic, topic).beat(409)["code"] == "group_mode_mismatch"


def commit(api: Api, group: str, topic: str, offset: int, status: int = 200, **fields: Any) -> Any:
    document = {"topic": topic, "queues": [7], "offsets": [offset], **fields}
    return api.call("POST", f"/v1/groups/{group}/offsets", document, status=status)


def fence(member: Member, status: int = 200, /, **fields: Any) -> Any:
    """Take over what lies from 5 to 10, unless ``fields`` say otherwise."""
    document = {"topic": member.fields["topics"][0], "queues": [[5, 10]], "member": member.id, "epoch": member.epoch}
    return member.api.call("POST", f"/v1/groups/{member.group}/fence", {**document, **fields}, status=status)


def test_commits_of_a_generation_before_the_fence_do_not_count(api: Api, topic: str) -> None:
    api.send(topic, *({"queue": 7, "body": "x"} for _ in range(5)))
    first, second = Member(api, topic, topic), Member(api, topic, topic)
    first.sync()
    former = first.epoch
    assert fence(first).json() == {"queues": [], "offsets": []}
    commit(api, topic, topic, 2, member=first.id, epoch=former)
    settle(first, second)
    assert fence(second).json() == {"queues": [7], "offsets": [2]}
    refused = commit(api, topic, topic, 3, 409, member=first.id, epoch=former)
    assert (refused.error["code"], refused.error["fence"]) == ("stale_generation", second.epoch)
    commit(api, topic, topic, 4, member=second.id, epoch=second.epoch)
    assert fence(second).json() == {"queues": [7], "offsets": [4]}
    assert fence(first, 409, epoch=former).error["fence"] == second.epoch
    assert commit(api, topic, topic, 4, 400, epoch=4).error["field"] == "epoch"


def test_only_the_member_that_owns_a_queue_commits_for_it(api: Api, topic: str) -> None:
    api.send(topic, *({"queue": 7, "body": "x"} for _ in range(5)))
    first, second = Member(api, topic, topic), Member(api, topic, topic)
    settle(first, second)
    fence(second)
    commit(api, topic, topic, 2, member=second.id, epoch=second.epoch)
    for epoch in (second.epoch, 10**9):
        refused = commit(api, topic, topic, 3, 404, member="zz", epoch=epoch).error
        assert refused["code"] == "unknown_member" and "join again" in refused["message"]
    refused = commit(api, topic, topic, 3, 409, member=first.id, epoch=first.epoch).error
    assert (refused["code"], refused["queue"]) == ("fenced_member", 7)
    refused = commit(api, topic, topic, 3, 409, member=second.id, epoch=10**9).error
    assert (refused["code"], refused["generation"]) == ("fenced_member", second.epoch)
    assert fence(first, 409).error["code"] == "fenced_member"
    assert fence(first, 404, member="zz").error["code"] == "unknown_member"
    assert fence(second, 409, epoch=10**9).error["code"] == "fenced_member", "it would keep everybody from committing"
    assert api.get(f"/v1/groups/{topic}/offsets?topic={topic}").json() == {"queues": [7], "offsets": [2]}
    commit(api, topic, topic, 3, member=second.id, epoch=second.epoch)


def test_what_a_member_gave_up_it_commits_for_until_somebody_has_it(api: Api, topic: str) -> None:
    api.send(topic, *({"queue": 7, "body": "x"} for _ in range(5)))
    first, second = Member(api, topic, topic), Member(api, topic, topic)
    first.sync()
    fence(first)
    second.beat()
    assert first.beat()["assigned"] == {topic: [[0, 5]]}, "the others are to be given up"
    commit(api, topic, topic, 2, member=first.id, epoch=first.epoch)
    first.owned = {topic: [[0, 5]]}
    settle(first, second)
    fence(second)
    refused = commit(api, topic, topic, 3, 409, member=first.id, epoch=first.epoch)
    assert refused.error["code"] == "fenced_member"


def test_a_process_whose_static_id_another_one_has_commits_nothing(api: Api, topic: str) -> None:
    api.send(topic, *({"queue": 7, "body": "x"} for _ in range(5)))
    old = Member(api, topic, topic, static_id="s")
    old.sync()
    fence(old)
    commit(api, topic, topic, 1, member=old.id, epoch=old.epoch)
    new = Member(api, topic, topic, static_id="s")
    new.sync()
    assert new.epoch == old.epoch, "the generation does not tell them apart"
    fence(new)
    assert commit(api, topic, topic, 2, 404, member=old.id, epoch=old.epoch).error["code"] == "unknown_member"
    commit(api, topic, topic, 3, member=new.id, epoch=new.epoch)


def test_a_reset_holds_although_a_member_that_was_gone_wakes_up(api: Api, topic: str) -> None:
    api.send(topic, *({"queue": 7, "body": "x"} for _ in range(5)))
    member = Member(api, topic, topic)
    member.sync()
    fence(member)
    commit(api, topic, topic, 4, member=member.id, epoch=member.epoch)
    member.beat(leave=True)
    commit(api, topic, topic, 1, reset=True)
    assert commit(api, topic, topic, 4, 404, member=member.id, epoch=member.epoch).error["code"] == "unknown_member"


def test_a_plain_commit_waits_until_no_member_lives(api: Api, topic: str) -> None:
    api.send(topic, *({"queue": 7, "body": "x"} for _ in range(5)))
    member = Member(api, topic, topic)
    member.sync()
    fence(member)
    assert commit(api, topic, topic, 1, 409).error["code"] == "group_has_members"
    commit(api, topic, topic, 1, reset=True)
    member.beat(leave=True)
    commit(api, topic, topic, 2)
    later = Member(api, topic, topic)
    later.sync()
    fence(later)
    assert commit(api, topic, topic, 3, 409).error["code"] == "group_has_members", "it was believed to have none"


def test_the_offsets_of_a_broadcast_member_are_its_own(api: Api, topic: str) -> None:
    one, other = (Member(api, topic, topic, mode="broadcast", static_id=f"s{number}") for number in range(2))
    settle(one, other)
    commit(api, f"{topic}%2Fs0", topic, 0, member=one.id, epoch=one.epoch)
    refused = commit(api, f"{topic}%2Fs0", topic, 0, 409, member=other.id, epoch=other.epoch)
    assert refused.error["code"] == "fenced_member"
    assert commit(api, f"{topic}%2Fs0", topic, 0, 409).error["code"] == "group_has_members"
    one.beat(leave=True)
    commit(api, f"{topic}%2Fs0", topic, 0)


def test_with_a_broadcast_group_the_offsets_of_its_members_go(api: Api, topic: str) -> None:
    groups = topic, f"{topic}%2Fs0", f"{topic}%2Fs1", f"{topic}.s0%2Fs0"
    api.send(topic, {"queue": 0, "body": "x"})
    for group in groups:
        commit(api, group, topic, 0)
    api.call("DELETE", f"/v1/groups/{topic}/offsets?shard=0", status=204)
    left = [bool(api.get(f"/v1/groups/{group}/offsets?topic={topic}").json()["queues"]) for group in groups]
    assert left == [False, False, False, True]
    assert api.get(f"/v1/groups/{topic}/lag?topic={topic}").json()["last_commit_age_ms"] is None
    api.call("DELETE", f"/v1/groups/{topic}.s0%2Fs0/offsets?shard=0", status=204)


def test_a_fence_above_the_generation_raises_it(api: Api, topic: str) -> None:
    member = Member(api, topic, topic)
    member.sync()
    member.sync(epoch=50)
    assert member.epoch == 51
    fence(member)
    api.call("DELETE", f"/v1/groups/{topic}?force=true", status=204)  # as if its document had been lost
    again = Member(api, topic, topic)
    again.sync()
    assert again.epoch == 1
    assert fence(again, 409).error["fence"] == 51
    again.sync(epoch=51)
    assert again.epoch == 52
    fence(again)


def test_lag_counts_what_is_left_by_range(api: Api, topic: str) -> None:
    api.send(topic, *({"queue": queue, "body": "x"} for queue in (1, 7, 7, 7, 9)))
    commit(api, topic, topic, 1)
    found = api.get(f"/v1/groups/{topic}/lag?topic={topic}&ranges=0-4,5-9").json()
    assert found.pop("last_commit_age_ms") >= 0
    assert (found.pop("uncommitted_lag"), found.pop("uncommitted_behind"), found.pop("committed_largest")) == (2, 2, 2)
    assert found == {"queues": 10, "lag": 4, "behind": 3, "uncommitted": 9, "largest": 2, "by_range": [1, 3]}
    assert api.get(f"/v1/groups/other/lag?topic={topic}").json()["last_commit_age_ms"] is None
    assert "disjoint" in api.get(f"/v1/groups/{topic}/lag?topic={topic}&ranges=0-4,4", 400).error["message"]
    assert api.get(f"/v1/groups/{topic}/lag?topic={topic}&ranges=0-10", 404).error["code"] == "unknown_queue"


def test_packed_columns_answer_a_fence_in_msgpack(api: Api, topic: str) -> None:
    api.send(topic, {"queue": 7, "body": "x"})
    commit(api, topic, topic, 1)
    member = Member(api, topic, topic)
    member.sync()
    body = msgpack.packb({"topic": topic, "queues": [[7, 8]], "member": member.id, "epoch": member.epoch})
    headers = {"Content-Type": "application/msgpack"}
    found = api.call("POST", f"/v1/groups/{topic}/fence", body=body, headers=headers, status=200)
    assert msgpack.unpackb(found.body) == {"queues": b"\7\0\0\0", "offsets": b"\1" + bytes(7)}


def test_a_deleted_group_is_forgotten_with_its_offsets(api: Api, topic: str) -> None:
    api.send(topic, {"queue": 7, "body": "x"})
    member = Member(api, topic, topic)
    member.sync()
    fence(member)
    commit(api, topic, topic, 1, member=member.id, epoch=member.epoch)
    assert api.call("DELETE", f"/v1/groups/{topic}", status=409).error["members"] == 1
    api.call("DELETE", f"/v1/groups/{topic}/offsets?shard=0", status=204)
    api.call("DELETE", f"/v1/groups/{topic}?force=true", status=204)
    assert topic not in api.get("/v1/groups").json()["groups"]
    assert member.beat(404)["code"] == "unknown_member"
    commit(api, topic, topic, 1)


def test_groups_and_fences_survive_a_kill_and_no_generation_is_used_twice(node: NodeProcess) -> None:
    api = Api(node.url)
    api.create("t", 10)
    members = [Member(api, "g", "t") for _ in range(3)]
    shares = settle(*members)
    fence(members[2], queues=members[2].owned["t"])
    node.kill9()
    node.restart()
    api = Api(node.url)
    for member in members:
        member.api = api
        assert member.sync() == shares[members.index(member)], "nobody loses what he has"
    assert len({member.epoch for member in members}) == 1
    assert commit(api, "g", "t", 0, 409, member="x", epoch=members[0].epoch - 1).error["code"] == "stale_generation"
    late = Member(api, "g", "t")
    late.beat()
    assert late.epoch == members[0].epoch + 1


# -- what takes time, with the coordinator's insides in reach --------------------------------------------


async def beat(client: Session, member: str, **fields: Any) -> dict[str, Any]:
    document = {"member": member, "topics": ["t"], **fields}
    answer = await client.post("/v1/groups/g/heartbeat", json=document)
    found: dict[str, Any] = await answer.json()
    return found


def test_a_held_heartbeat_is_answered_when_something_is_new(tmp_path: Path) -> None:
    async def check(client: Session, broker: Broker) -> None:
        first = await beat(client, "a")
        assert first["assigned"] == {"t": [[0, 2]]}
        seen = {"epoch": first["epoch"], "version": first["version"]}
        held = asyncio.create_task(
            beat(client, "a", **seen, owned=first["assigned"], wait_ms=100_000, session_ms=300_000)
        )
        second = await beat(client, "b", session_ms=300_000)
        assert second["waiting_for"] == 1
        told = await held
        assert told["assigned"] == {"t": [[0, 1]]}
        seen = {"epoch": second["epoch"], "version": second["version"]}
        held = asyncio.create_task(beat(client, "b", **seen, wait_ms=100_000, session_ms=300_000))
        seen = {"epoch": told["epoch"], "version": told["version"]}
        await beat(client, "a", **seen, owned=told["assigned"], session_ms=300_000)
        assert (await held)["assigned"] == {"t": [[1, 2]]}

    with_node(tmp_path, check)


def test_time_that_a_coordinator_slept_or_did_not_lead_does_not_count() -> None:
    clock = AwakeClock(100.0)
    assert clock.now(100.2) == pytest.approx(0.2)
    assert clock.now(3_700.0) <= 2 * TICK_S, "it was stopped"
    clock.advance(3_700.0, serving=True)
    clock.advance(3_700.2, serving=True)
    assert clock.now(3_700.2) == pytest.approx(2 * TICK_S + 0.2)
    clock.advance(3_701.0, serving=False)
    clock.advance(3_702.0, serving=False)
    assert clock.now(3_702.0) == pytest.approx(2 * TICK_S + 0.2)


def test_a_member_whose_session_is_over_is_one_no_more(tmp_path: Path) -> None:
    async def check(client: Session, broker: Broker) -> None:
        first = await beat(client, "a", session_ms=1_000)
        [shard] = node_of(client).groups.shards()
        shard._clock._awake += 1.5
        shard.tick()
        assert "a" not in shard.groups["g"].members
        gone = await beat(client, "a", epoch=first["epoch"], version=first["version"], owned=first["assigned"])
        assert gone["error"]["code"] == "unknown_member"

    with_node(tmp_path, check)


def test_idle_heartbeats_write_nothing(tmp_path: Path) -> None:
    async def check(client: Session, broker: Broker) -> None:
        found = await beat(client, "a")
        store = broker.topology.port(0).store
        end = store.committed_lsn
        for _ in range(5):
            seen = {"epoch": found["epoch"], "version": found["version"]}
            found = await beat(client, "a", **seen, owned=found["assigned"])
        assert store.committed_lsn == end

    with_node(tmp_path, check)


def test_a_topic_made_anew_or_deleted_is_shared_out_anew(tmp_path: Path) -> None:
    async def check(client: Session, broker: Broker) -> None:
        first = await beat(client, "a")
        await client.delete("/v1/topics/t")
        seen = {"epoch": first["epoch"], "version": first["version"], "owned": first["assigned"]}
        second = await beat(client, "a", **seen, wait_ms=3_000)
        assert (second["assigned"], second["topics"]) == ({}, {})
        await client.put("/v1/topics/t", json={"queues": 5})
        seen = {"epoch": second["epoch"], "version": second["version"]}
        third = await beat(client, "a", **seen, wait_ms=3_000)
        assert third["assigned"] == {"t": [[0, 5]]}
        assert third["topics"]["t"]["id"] != first["topics"]["t"]["id"]

    with_node(tmp_path, check)


def test_what_cannot_be_written_is_told_and_costs_nobody_a_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(client: Session, broker: Broker) -> None:
        first = await beat(client, "a")
        seen = {"epoch": first["epoch"], "version": first["version"], "owned": first["assigned"]}
        store = broker.topology.port(0).store

        def full(changes: Any) -> Any:
            raise DiskFull("no space")

        with monkeypatch.context() as patch:
            patch.setattr(store, "put_documents", full)
            assert (await beat(client, "b"))["error"]["code"] == "disk_full"
            assert (await beat(client, "a", **seen))["assigned"] == first["assigned"]
        assert (await beat(client, "b"))["waiting_for"] == 1

    with_node(tmp_path, check)


def test_what_was_dropped_with_its_round_is_read_again_from_what_is_stored(tmp_path: Path) -> None:
    async def check(client: Session, broker: Broker) -> None:
        first, second = await beat(client, "a"), await beat(client, "b")
        [before] = node_of(client).groups.shards()
        line = broker.topology.port(0).store._line
        line.current = Round(line.round + 1)
        seen = {"epoch": first["epoch"], "version": first["version"], "owned": first["assigned"]}
        told = await beat(client, "a", **seen)
        assert (told["epoch"], told["assigned"]) == (second["epoch"], {"t": [[0, 1]]})
        [after] = node_of(client).groups.shards()
        assert after is not before
        waits = await beat(client, "b", epoch=second["epoch"], version=second["version"])
        assert (waits["assigned"], waits["waiting_for"]) == ({}, 1), "the one before has not been heard of"

    with_node(tmp_path, check)
