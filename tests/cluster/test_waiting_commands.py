"""Commands that wait for a cluster say what they wait for where that does not come by itself."""

from __future__ import annotations

import asyncio

import pytest
from click.testing import CliRunner

from lsmq import Client
from lsmq.admin import ClusterAdmin
from lsmq.cli import root
from lsmq.errors import TimedOut
from support.node_process import NodeProcess
from support.waiting import comes_true

from .two_processes import two_processes

__all__ = ["two_processes"]


async def _waits(node: NodeProcess, *command: str) -> str:
    """What a command says that waits in vain, in six seconds."""
    arguments = [*command, "--wait-timeout", "6s", "--url", node.url]
    found = await asyncio.to_thread(CliRunner().invoke, root, arguments)
    assert isinstance(found.exception, TimedOut), found.output
    return found.output + found.exception.message


@pytest.mark.part(2)
async def test_draining_the_last_node_says_that_nobody_can_take_what_it_has(
    node: NodeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Client(node.url) as client:
        admin = ClusterAdmin(client)
        await admin.drain("p0")

        async def is_drained() -> bool:
            return not (await admin.overview()).replicas_on("p0")

        await comes_true(is_drained, "p1 takes what p0 had")
    told = await _waits(node, "node", "drain", "p1")
    assert "draining p1: 2 replicas cannot go: there is no other node that may take them" in told
    assert "lsmq node undrain p1" in told
    monkeypatch.setattr("lsmq.cli._progress._GIVEN_UP_S", 4.0)
    gave_up = await asyncio.to_thread(CliRunner().invoke, root, ["node", "drain", "p1", "--url", node.url])
    assert isinstance(gave_up.exception, TimedOut), gave_up.output
    assert "nothing moved for a minute: 2 replicas cannot go" in gave_up.exception.message


@pytest.mark.part(3)
async def test_a_move_says_that_moves_are_paused_or_that_somebody_else_moved_it_elsewhere(node: NodeProcess) -> None:
    async with Client(node.url) as client:
        admin = ClusterAdmin(client)
        await admin.pause_moves()
        (shard,) = (await admin.overview()).replicas_on("p1")
        assert "moves are paused; `lsmq shard resume`" in await _waits(node, "shard", "move", str(shard.id), "p0")
        await admin.cancel_move(shard.id)
        waiting = asyncio.create_task(_waits(node, "shard", "move", str(shard.id), "p0"))

        async def is_told() -> bool:
            return (await admin.overview()).shards[shard.id].target == ("p0",)

        await comes_true(is_told, "it is to be moved")
        await admin.cancel_move(shard.id)
        said = await waiting
    assert f"moving shard {shard.id}: the move was given up; it is on p1" in said
