"""Three real voters: what is committed stays, whoever is killed, paused or restarted."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import pytest

from lsmq.errors import LsmqError, TimedOut
from lsmq_coordinator.control import ControlClient
from lsmq_coordinator.errors import NoControlLeader
from lsmq_coordinator.founding import register_command
from lsmq_coordinator.joining import join
from lsmq_coordinator.state import CHANGES, MAX_NODES, ClusterState
from support.raft_group import RaftGroup, all_started, until
from support.waiting import PATIENCE_S


def topic(name: str, queues: int = 8) -> dict[str, Any]:
    return {"op": "create_topic", "name": name, "queues": queues, "options": {}, "created_ms": 1}


async def ready(group: RaftGroup, **settings: int) -> None:
    await group.leader()
    result = await group.client.submit({**group.bootstrap_command(**settings), "request_id": "bootstrap"}, PATIENCE_S)
    assert result["ok"], result
    await group.client.wait_for(all_started, PATIENCE_S)


async def states(group: RaftGroup) -> dict[str, ClusterState]:
    found = {}
    for name in group.nodes:
        status = await group.ask(name)
        if status is not None:
            found[name] = ClusterState.decode(status["state"])
    return found


async def agreed(group: RaftGroup, count: int) -> ClusterState:
    """The state of all nodes, once ``count`` of them answer with equal bytes, as new as what is known here."""

    async def equal() -> ClusterState | None:
        found = list((await states(group)).values())
        if len(found) != count or len({state.encode() for state in found}) != 1:
            return None
        return found[0] if found[0].version >= group.client.state.version else None

    state = await until(equal)
    assert isinstance(state, ClusterState)
    return state


def test_kill_9_of_the_leader_loses_nothing_and_commits_go_on_within_two_seconds(tmp_path: Path) -> None:
    async def run() -> list[float]:
        gaps = []
        async with RaftGroup(tmp_path) as group:
            await ready(group)
            for turn in range(5):
                leader = await group.leader()
                assert (await group.client.submit(topic(f"before-{turn}")))["ok"]
                began = time.monotonic()
                group.nodes[leader].kill9()
                result = await group.client.submit(topic(f"after-{turn}"), 10)
                gaps.append(time.monotonic() - began)
                assert result["ok"]
                group.nodes[leader].start()
            state = await agreed(group, 3)
            assert set(state.topics) == {f"{when}-{turn}" for when in ("before", "after") for turn in range(5)}
        return gaps

    gaps = asyncio.run(run())
    print(f"kill -9 of the Raft leader to the next commit, s: {[round(gap, 3) for gap in sorted(gaps)]}")
    assert min(gaps) < 2.0, "what else the machine does may hold up some of them, and not all"


def test_after_kill_9_of_all_everything_committed_and_the_terms_are_there(tmp_path: Path) -> None:
    async def run() -> None:
        async with RaftGroup(tmp_path) as group:
            await ready(group)
            names = [f"topic-{number}" for number in range(40)]
            sent = [asyncio.create_task(group.client.submit({**topic(name), "request_id": name})) for name in names]
            committed: list[str] = []
            for name, task in zip(names[:20], sent[:20], strict=True):
                assert (await task)["ok"]
                committed.append(name)
            before = {name: status for name in group.nodes if (status := await group.ask(name))}
            for node in group.nodes.values():
                node.kill9()
            for task in sent[20:]:
                task.cancel()
            await asyncio.gather(*sent, return_exceptions=True)
            group.start_all()
            await group.leader()
            # Repeating all of them with the same request ids: each exists once, with the id it was given first.
            results = [await group.client.submit({**topic(name), "request_id": name}, PATIENCE_S) for name in names]
            assert all(result["ok"] for result in results)
            assert len({result["topic_id"] for result in results}) == len(names)
            assert all(result.get("repeated") for result in results[: len(committed)])
            await agreed(group, 3)
            for name, earlier in before.items():
                status = await group.ask(name)
                assert status is not None
                assert status["term"] > earlier["term"]
                assert status["commit_index"] >= earlier["commit_index"]

    asyncio.run(run())


def test_a_paused_leader_that_wakes_up_commits_nothing_and_holds_no_lease(tmp_path: Path) -> None:
    async def run() -> float:
        async with RaftGroup(tmp_path) as group:
            await ready(group)
            leader = await group.leader()
            await until(lambda: _holds_lease(group, leader))
            began = time.monotonic()
            group.nodes[leader].pause()
            assert (await group.client.submit(topic("while-paused"), PATIENCE_S))["ok"]
            gap = time.monotonic() - began
            # A command given straight to the old leader the moment it wakes.
            group.nodes[leader].resume()
            status = await until(lambda: group.ask(leader))
            assert not (status["holds_lease"] and status["version"] < group.client.state.version)
            try:
                answer = await group.http.call(
                    group.urls[leader],
                    "POST",
                    "/internal/control/command",
                    {"command": {**topic("woken"), "request_id": "woken"}, "timeout_ms": 1000},
                    3.0,
                )
            except LsmqError:
                pass
            else:
                # It was elected again meanwhile: then the commit is a real one.
                assert answer["result"]["ok"]
            state = await agreed(group, 3)
            assert "while-paused" in state.topics
            return gap

    gap = asyncio.run(run())
    print(f"SIGSTOP of the Raft leader to the next commit, s: {gap:.3f}")
    assert gap < 3.0


async def _all_whole(group: RaftGroup) -> bool:
    found = [await group.ask(name) for name in group.raft_addresses]
    return all(status is not None and status["whole"] for status in found)


async def _holds_lease(group: RaftGroup, name: str) -> bool:
    status = await group.ask(name)
    return status is not None and bool(status["holds_lease"])


def test_without_a_majority_nothing_commits_and_leases_end(tmp_path: Path) -> None:
    async def run() -> None:
        async with RaftGroup(tmp_path) as group:
            await ready(group)
            leader = await group.leader()
            others = [name for name in group.nodes if name != leader]
            for name in others:
                group.nodes[name].kill9()
            with pytest.raises((TimedOut, NoControlLeader)):
                await group.client.submit({**topic("lonely"), "request_id": "lonely"}, 2)
            status = await group.ask(leader)
            assert status is not None and not status["holds_lease"] and not status["ready"]
            assert "lonely" not in ClusterState.decode(status["state"]).topics
            for name in others:
                group.nodes[name].start()
            # Unknown became one or the other; with the same request id it is there exactly once.
            assert (await group.client.submit({**topic("lonely"), "request_id": "lonely"}, PATIENCE_S))["ok"]
            assert "lonely" in (await agreed(group, 3)).topics

    asyncio.run(run())


def test_a_torn_end_of_the_journal_is_cut_and_fetched_again(tmp_path: Path) -> None:
    async def run() -> None:
        async with RaftGroup(tmp_path) as group:
            await ready(group)
            for number in range(5):
                await group.client.submit(topic(f"topic-{number}"))
            await agreed(group, 3)
            leader = await group.leader()
            torn = next(name for name in group.nodes if name != leader)
            group.nodes[torn].kill9()
            journal = group.nodes[torn].directory / "raft" / "JOURNAL"
            content = journal.read_bytes()
            journal.write_bytes(content + content[8:40])
            await group.client.submit(topic("meanwhile"))
            group.nodes[torn].start()
            assert len((await agreed(group, 3)).topics) == 6

    asyncio.run(run())


def test_a_voter_that_lost_its_disk_helps_nobody_forget(tmp_path: Path) -> None:
    """A falls behind; B, which acknowledged, loses its disk and C is down: A and B must not found a new history."""

    async def run() -> None:
        async with RaftGroup(tmp_path) as group:
            await ready(group)
            await agreed(group, 3)
            await until(lambda: _all_whole(group))
            leader = await group.leader()
            behind, lost = [name for name in group.nodes if name != leader]
            group.nodes[behind].kill9()
            assert (await group.client.submit(topic("kept"), PATIENCE_S))["ok"]
            group.nodes[leader].kill9()
            group.nodes[lost].kill9()
            for file in (group.nodes[lost].directory / "raft").iterdir():
                file.unlink()
            group.nodes[behind].start()
            group.nodes[lost].start()
            with pytest.raises((TimedOut, NoControlLeader)):
                await group.client.submit({**topic("new-history"), "request_id": "x"}, 2.5)
            group.nodes[leader].start()
            state = await agreed(group, 3)
            assert "kept" in state.topics
            # Once it has caught up it is a voter like the others.
            await group.leader()
            group.nodes[leader].kill9()
            assert (await group.client.submit(topic("after"), PATIENCE_S))["ok"]

    asyncio.run(run())


def test_a_voter_with_another_secret_takes_no_part(tmp_path: Path) -> None:
    async def run() -> None:
        async with RaftGroup(tmp_path) as group:
            await ready(group)
            leader = await group.leader()
            stranger = next(name for name in group.nodes if name != leader)
            group.nodes[stranger].kill9()
            other = tmp_path / "other-secret"
            other.write_text("another secret of enough bytes\n")
            other.chmod(0o600)
            for file in (group.nodes[stranger].directory / "raft").iterdir():
                file.unlink()
            group.nodes[stranger].start(secret=str(other))
            for number in range(3):
                assert (await group.client.submit(topic(f"without-{number}"), PATIENCE_S))["ok"]
            status = await group.ask(leader)
            assert status is not None and status["ready"]
            journal = group.nodes[stranger].directory / "raft" / "JOURNAL"
            assert b"without-" not in journal.read_bytes()

    asyncio.run(run())


def test_a_node_that_does_not_vote_follows_the_state_through_every_failover(tmp_path: Path) -> None:
    async def run() -> None:
        async with RaftGroup(tmp_path, others=1) as group:
            await ready(group)
            for turn in range(2):
                leader = await group.leader()
                group.nodes[leader].kill9()
                assert (await group.client.submit(topic(f"topic-{turn}"), PATIENCE_S))["ok"]

                async def seen(version: int = group.client.state.version) -> bool:
                    status = await group.ask("n4")
                    return status is not None and status["version"] >= version and status["holds_lease"]

                await until(seen)
                group.nodes[leader].start()

    asyncio.run(run())


def test_a_node_that_knows_the_state_before_is_told_what_changed_and_others_are_told_all(tmp_path: Path) -> None:
    async def run() -> None:
        async with RaftGroup(tmp_path, voters=1, others=1) as group:
            await ready(group, replicas=1, min_in_sync=1)
            before = group.client.state
            assert (await group.client.submit(topic("one"), PATIENCE_S))["ok"]
            after = group.client.state

            async def told(query: str) -> dict[str, Any]:
                path = f"/internal/control/state?leader=n1&{query}"
                return await group.http.call(group.urls["n1"], "GET", path, None, PATIENCE_S)

            some = await told(f"after={before.version}&topics={before.topics_version}&changes={CHANGES}")
            assert some["state"] is None
            assert before.changed(some["changes"]).encode() == after.encode()
            for query in (f"after={before.version}", f"after=0&changes={CHANGES}", f"after={before.version}&changes=1"):
                whole = await told(query)
                assert whole["changes"] is None
                assert ClusterState.decode(whole["state"]).encode() == after.encode()
            # A node that is forgotten is among the changes.
            names = [f"gone-{number}" for number in range(MAX_NODES - len(after.nodes))]
            register = [register_command(name, "http://u", "http://i", "l") for name in names]
            for commands in (register, [{"op": "remove_node", "node": name} for name in names]):
                assert (await group.client.submit({"op": "batch", "commands": commands}, PATIENCE_S))["ok"]
            full = group.client.state
            assert len(full.nodes) == MAX_NODES
            command = register_command("fresh", "http://u", "http://i", "l")
            assert (await group.client.submit(command, PATIENCE_S))["ok"]
            some = await told(f"after={full.version}&topics={full.topics_version}&changes={CHANGES}")
            assert some["state"] is None
            assert full.changed(some["changes"]).encode() == group.client.state.encode()
            known = group.client.state.nodes
            assert "fresh" in known and len(known) == MAX_NODES
            # The node that does not vote came to the same bytes by what it was told.
            assert (await agreed(group, 2)).topics.keys() == {"one"}

    asyncio.run(run())


def test_a_second_process_of_a_name_is_refused_until_the_first_is_proven_to_have_ended(tmp_path: Path) -> None:
    async def run() -> None:
        async with RaftGroup(tmp_path, voters=1, others=1) as group:
            await ready(group, shards=1, replicas=2, min_in_sync=1)
            told: list[str] = []

            async def first_has_lease() -> bool:
                status = await group.ask("n2")
                return status is not None and bool(status["holds_lease"])

            await until(first_has_lease)
            async with ControlClient("n2", group.voter_urls, group.secret) as second:
                joining = asyncio.create_task(join(second, "http://copy", "http://copy:1", waits=told.append))
                await until(lambda: len(told) > 3)
                assert group.urls["n2"] in told[0], "it says where the other one runs"
                assert not second.registered and not second.holds_lease()
                assert await first_has_lease()
                group.nodes["n2"].kill9()
                await asyncio.wait_for(joining, PATIENCE_S)
                await until(second.holds_lease)
                assert second.state.nodes["n2"].internal_url == "http://copy:1"

    asyncio.run(run())


async def _all_in_sync(client: ControlClient, shard_id: int) -> bool:
    """Say that all replicas of a shard are in sync; False where something else has changed meanwhile."""
    shard = client.state.shards[shard_id]
    back = {
        "op": "set_in_sync",
        "shard": shard_id,
        "epoch": shard.epoch,
        "expected_version": shard.version,
        "in_sync": [[node, 1] for node in shard.replicas],
    }
    answer = await client.submit(back, PATIENCE_S)
    assert answer["ok"] or answer["code"] == "stale", answer
    return bool(answer["ok"])


def test_shards_get_new_leaders_when_their_node_is_killed(tmp_path: Path) -> None:
    """The whole way: heartbeats stop, the overseer notices, the elections commit. Voters and others alike."""

    async def run() -> list[float]:
        gaps = []
        async with RaftGroup(tmp_path, others=1) as group:
            await group.leader()
            command = group.bootstrap_command(shards=8)
            assert (await group.client.submit(command, PATIENCE_S))["ok"]
            for victim in ("n4", await group.leader(), "n4"):
                await until(lambda name=victim: _holds_lease(group, name))
                client = group.client
                ours = [shard.id for shard in client.state.shards.values() if shard.leader == victim]
                epochs = {id: client.state.shards[id].epoch for id in ours}
                began = time.monotonic()
                group.nodes[victim].kill9()

                def led_by_others(state: ClusterState, victim: str = victim) -> bool:
                    return all(shard.leader != victim for shard in state.shards.values())

                state = await client.wait_for(led_by_others, PATIENCE_S)
                gaps.append(time.monotonic() - began)
                for id, epoch in epochs.items():
                    assert state.shards[id].epoch > epoch
                    assert victim not in state.shards[id].in_sync_nodes
                state.check()
                group.nodes[victim].start()
                # Who is held dead leaves the sets at once.
                await until(lambda name=victim: _holds_lease(group, name))
                # It catches up and is taken in again, as the shards' leaders would say.
                for shard in state.shards.values():
                    await until(lambda client=client, id=shard.id: _all_in_sync(client, id))
        return gaps

    gaps = asyncio.run(run())
    print(f"kill -9 of a node to the election of new leaders for its shards, s: {[round(gap, 3) for gap in gaps]}")


def test_a_paused_node_that_wakes_up_has_no_lease_before_it_knows_what_happened(tmp_path: Path) -> None:
    async def run() -> float:
        async with RaftGroup(tmp_path, others=1) as group:
            await group.leader()
            assert (await group.client.submit(group.bootstrap_command(shards=4), PATIENCE_S))["ok"]
            await until(lambda: _holds_lease(group, "n4"))
            client = group.client
            assert any(shard.leader == "n4" for shard in client.state.shards.values())
            began = time.monotonic()
            group.nodes["n4"].pause()
            state = await client.wait_for(
                lambda state: all(shard.leader != "n4" for shard in state.shards.values()), 10
            )
            gap = time.monotonic() - began
            group.nodes["n4"].resume()
            first = await until(lambda: group.ask("n4"))
            assert first["version"] >= state.version or not first["holds_lease"]
            await until(lambda: _holds_lease(group, "n4"))
            status = await group.ask("n4")
            assert status is not None and status["version"] >= state.version
            return gap

    gap = asyncio.run(run())
    print(f"SIGSTOP of a node to the election of new leaders for its shards, s: {gap:.3f}")
    assert gap >= 0.4, "before the node's own lease had ended"


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.part(2)
def test_random_kills_and_pauses_lose_no_acknowledged_command(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    acknowledged: dict[str, int] = {}

    async def write(group: RaftGroup, writer: int, over: asyncio.Event) -> None:
        number = 0
        while not over.is_set():
            number += 1
            name = f"w{writer}-{number}"
            try:
                result = await group.client.submit({**topic(name), "request_id": name}, 3)
            except (TimedOut, NoControlLeader):
                continue
            assert result["ok"], result
            acknowledged[name] = result["topic_id"]

    async def harm(group: RaftGroup) -> None:
        for _ in range(7):
            victims = chance.sample(sorted(group.nodes), chance.choice([1, 1, 2, 3]))
            pause = chance.random() < 0.4
            for name in victims:
                group.nodes[name].pause() if pause else group.nodes[name].kill9()
            await asyncio.sleep(chance.uniform(0.1, 1.0))
            for name in victims:
                group.nodes[name].resume() if pause else group.nodes[name].start()
            enough = len(acknowledged) + 3
            await until(lambda enough=enough: len(acknowledged) >= enough, PATIENCE_S)

    async def run() -> None:
        async with RaftGroup(tmp_path) as group:
            await ready(group)
            over = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                for writer in range(3):
                    tasks.create_task(write(group, writer, over))
                await harm(group)
                over.set()
            state = await agreed(group, 3)
            for name, id in acknowledged.items():
                assert state.topics[name].id == id
            state.check()

    asyncio.run(run())
    assert len(acknowledged) >= 21


def test_leaders_are_spread_again_after_a_node_returns(tmp_path: Path) -> None:
    async def run() -> None:
        async with RaftGroup(tmp_path, settle_s=0.2) as group:
            await ready(group)
            client = group.client
            concentrate = [
                {"op": "elect", "shard": id, "candidate": "n1", "expected_epoch": shard.epoch}
                for id, shard in client.state.shards.items()
            ]
            await client.submit({"op": "batch", "commands": concentrate})

            def spread(state: ClusterState) -> bool:
                return len({shard.leader for shard in state.shards.values()}) == 3

            state = await client.wait_for(spread, PATIENCE_S)
            state.check()

    asyncio.run(run())
