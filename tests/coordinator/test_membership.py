"""Founding, joining, draining and asking on real nodes: what is begun goes on, whoever is killed on the way."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from lsmq_coordinator.control import ControlClient
from lsmq_coordinator.state import ClusterState, Shard
from support.raft_group import RaftGroup, all_started, until
from support.waiting import PATIENCE_S

FOUNDING = {"shards": 4, "replicas": 3, "min_in_sync": 2, "segment_bytes": 1 << 20}


async def founded(group: RaftGroup) -> ClusterState:
    return await group.client.wait_for(
        lambda state: set(state.nodes) == set(group.nodes) and all_started(state), PATIENCE_S
    )


async def catch_up_replicas(client: ControlClient) -> None:
    """What the shards' leaders do: replicas on nodes that run are in sync a little later."""
    while True:
        alive = client.alive or frozenset()
        for shard in client.state.shards.values():
            more = [node for node in shard.replicas if shard.listed(node) is None and node in alive]
            if more and shard.leader is not None:
                fields = {"epoch": shard.epoch, "expected_version": shard.version}
                in_sync = [*map(list, shard.in_sync), *([node, 1] for node in more)]
                await client.submit({"op": "set_in_sync", "shard": shard.id, **fields, "in_sync": in_sync}, PATIENCE_S)
        await asyncio.sleep(0.02)


def test_the_voters_found_the_cluster_once_and_others_join_it(tmp_path: Path) -> None:
    async def run() -> None:
        founding = {**FOUNDING, "first_leaders": ["n2", "n3"]}
        async with RaftGroup(tmp_path, others=1, founding=founding) as group:
            state = await founded(group)
            assert [state.shards[id].leader for id in range(4)] == ["n2", "n3", "n2", "n3"]
            assert [state.nodes[name].voter for name in sorted(state.nodes)] == [True, True, True, False]
            assert state.settings.cluster == "test"
            # Started again under another address, and all others with what they know already.
            for name in ("n4", "n1", "n2", "n3"):
                group.nodes[name].kill9()
            for name in ("n1", "n2", "n3"):
                group.nodes[name].launch()
            group.nodes["n4"].launch(url="http://elsewhere:7600")
            state = await group.client.wait_for(
                lambda state: state.nodes["n4"].url == "http://elsewhere:7600", PATIENCE_S
            )
            state.check()
            assert all(shard.epoch < 20 for shard in state.shards.values())
            for node in group.nodes.values():
                node.wait_ready()

    asyncio.run(run())


def test_a_drain_goes_on_where_it_was_after_the_control_leader_is_killed(tmp_path: Path) -> None:
    async def run() -> None:
        async with RaftGroup(tmp_path, others=2, founding=FOUNDING) as group:
            await founded(group)
            client = group.client
            data_plane = asyncio.create_task(catch_up_replicas(client))

            def moved_to(node: str) -> Any:
                return lambda state: (
                    len(state.replicas_on(node)) == 4 and not any(shard.target for shard in state.shards.values())
                )

            async def aimed(shard: Shard) -> bool:
                """Elections of the beginning may come between."""
                target = ["n4", *[node for node in shard.replicas if node != "n1"][:2]]
                command = {"op": "set_target", "shard": shard.id, "replicas": target}
                result = await client.submit({**command, "expected_version": shard.version}, PATIENCE_S)
                return bool(result["ok"])

            for id in client.state.shards:
                await until(lambda id=id: aimed(client.state.shards[id]))
            await client.wait_for(moved_to("n4"), PATIENCE_S)
            data_plane.cancel()
            assert (await client.submit({"op": "drain_node", "node": "n4"}, PATIENCE_S))["ok"]
            # Nothing catches up yet, so the drain stands in the middle, with one shard being added somewhere.
            state = await client.wait_for(
                lambda state: (
                    all(shard.target for shard in state.shards.values())
                    and any(shard.adding for shard in state.shards.values())
                ),
                15,
            )
            leader = await group.leader()
            group.nodes[leader].kill9()
            refused = await client.submit({"op": "remove_node", "node": "n4"}, PATIENCE_S)
            assert refused["code"] == "holds_replicas"
            assert {id: shard.target for id, shard in client.state.shards.items()} == {
                id: shard.target for id, shard in state.shards.items()
            }
            group.nodes[leader].start()
            data_plane = asyncio.create_task(catch_up_replicas(client))
            state = await client.wait_for(lambda state: not state.replicas_on("n4"), PATIENCE_S)
            assert all(len(shard.replicas) >= 3 and shard.leader != "n4" for shard in state.shards.values())
            # Drained and dead, it can be removed.
            group.nodes["n4"].kill9()
            assert (await client.submit({"op": "remove_node", "node": "n4"}, PATIENCE_S))["ok"]
            await client.wait_for(lambda state: not any(shard.target for shard in state.shards.values()), PATIENCE_S)
            data_plane.cancel()
            client.state.check()

    asyncio.run(run())


def test_who_catches_up_knows_all_that_was_committed_before_it_asked(tmp_path: Path) -> None:
    async def run() -> None:
        async with RaftGroup(tmp_path, others=1, founding=FOUNDING) as group:
            await founded(group)
            for turn in range(12):
                name = f"t{turn}"
                topic = {"op": "create_topic", "name": name, "queues": 1, "options": {}, "created_ms": 1}
                assert (await group.client.submit(topic, PATIENCE_S))["ok"]
                asked = sorted(group.nodes)[turn % 4]
                if turn in (5, 9):
                    victim = await group.leader()
                    group.nodes[victim].kill9()
                    asked = "n4"
                answer = await group.http.call(group.urls[asked], "GET", "/internal/test/catch_up", None, PATIENCE_S)
                assert name in answer["topics"], f"{asked} does not know {name}"
                if turn in (5, 9):
                    group.nodes[victim].start()

    asyncio.run(run())


def test_replicas_that_cannot_lead_an_epoch_get_an_election_above_it_and_only_one(tmp_path: Path) -> None:
    async def run() -> None:
        async with RaftGroup(tmp_path, others=1, founding=FOUNDING) as group:
            await founded(group)
            client = group.client
            former = client.state.shards[2]
            question = "/internal/test/ask_election?shard=2&above_epoch=30"
            for name in group.nodes:
                await group.http.call(group.urls[name], "GET", question, None, PATIENCE_S)
            state = await client.wait_for(lambda state: state.shards[2].epoch > 30, PATIENCE_S)
            assert state.shards[2].epoch == 31
            assert state.shards[2].leader in former.in_sync_nodes
            # Asked once more, for an epoch that is over.
            await group.http.call(group.urls["n4"], "GET", question, None, PATIENCE_S)
            version = (await client.catch_up(5)).version
            assert client.state.shards[2].epoch == 31, version

    asyncio.run(run())


def test_every_node_tells_who_is_alive(tmp_path: Path) -> None:
    async def run() -> None:
        async with RaftGroup(tmp_path, others=1, founding=FOUNDING) as group:
            await founded(group)
            leader = await group.leader()
            victim = next(name for name in ("n1", "n2") if name != leader)
            group.nodes[victim].kill9()

            async def told(name: str) -> bool:
                status = await group.ask(name)
                nodes = {} if status is None else {node["id"]: node["alive"] for node in status["overview"]["nodes"]}
                return nodes == {node: node != victim for node in group.nodes}

            for name in group.nodes:
                if name != victim:
                    await until(lambda name=name: told(name))
            # Without a majority nobody knows.
            for name in ("n1", "n2", "n3"):
                if group.nodes[name].alive:
                    group.nodes[name].kill9()

            async def unknown() -> bool:
                status = await group.ask("n4")
                return status is not None and {node["alive"] for node in status["overview"]["nodes"]} == {None}

            await until(unknown)

    asyncio.run(run())
