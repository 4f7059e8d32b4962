"""Writes through elections, restarts and cuts: nothing acknowledged is lost, and all replicas end up equal."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from lsmq.errors import LsmqError
from lsmq_node.broker.topology import Ack
from storage.harness import KIB, bodies, tiny
from support.extent import part_in_number

from .replica_group import NAMES, QUEUES, Group, batch, group, run, until

#: So many are acknowledged after each trouble.
WRITES = 10


class Writer:
    """Writes each content once, to whoever leads. ``stored``: acknowledged; ``refused``: certainly not stored."""

    def __init__(self, nodes: Group, number: int, seed: int) -> None:
        self._nodes = nodes
        self._number = number
        self._random = random.Random(f"{seed}-{number}")
        self.stored: list[bytes] = []
        self.refused: list[bytes] = []

    async def write(self, ends: asyncio.Event) -> None:
        count = 0
        while not ends.is_set():
            count += 1
            content = b"%d-%d " % (self._number, count) + b"." * self._random.choice((1, 50, 3_000))
            sent = False
            try:
                leader = self._nodes[self._nodes.view.leader or "a"]
                leader.check_writable(Ack.QUORUM)
                appended = leader.store.append(1, batch(content, queue=self._number % QUEUES))
                sent = True
                await leader.wait(appended, Ack.QUORUM)
                self.stored.append(content)
            except AssertionError:
                self.refused.append(content)  # that node is down
            except LsmqError as error:
                if not sent or error.details.get("sent") is False or error.code == "disk_full":
                    self.refused.append(content)
            await asyncio.sleep(self._random.choice((0, 0.001, 0.01)))


async def trouble(nodes: Group, chance: random.Random) -> None:
    """One thing that goes wrong, and how it is mended."""
    name = chance.choice(NAMES)
    what = chance.choice(("elect", "elect", "restart", "cut", "pause"))
    if what == "elect":
        listed = sorted(member.node for member in nodes.view.in_sync)
        nodes.elect(chance.choice(listed))
        await asyncio.sleep(chance.choice((0, 0.02, 0.2)))
        return
    leads = nodes.view.leader == name
    if what == "restart":
        await nodes.stop(name)
    elif what == "cut":
        nodes.cut_off = {name}
    else:
        nodes.sites[name].leased = False
    await asyncio.sleep(chance.choice((0.05, 0.3)))
    others = sorted(member.node for member in nodes.view.in_sync if member.node != name)
    if leads and others:
        nodes.elect(chance.choice(others), without=(name,))
        await asyncio.sleep(chance.choice((0.05, 0.3)))
    nodes.cut_off, nodes.sites[name].leased = set(), True
    if what == "restart":
        await nodes.start(name)


def serves(nodes: Group) -> bool:
    return nodes.view.leader is not None and nodes[nodes.view.leader].serving


async def leader_serves(nodes: Group) -> None:
    """As the overseer does it: elect above what was asked for."""
    for _ in range(20):
        try:
            await until(lambda: serves(nodes), "somebody serves", 1.0)
            return
        except AssertionError:
            nodes.elect(sorted(member.node for member in nodes.view.in_sync)[0])
    raise AssertionError(f"nobody serves: {[nodes[name].figures() for name in NAMES]}")


async def writes_go_on(nodes: Group, stored: Callable[[], int]) -> None:
    """Return once some more are acknowledged, whoever leads."""
    enough = stored() + WRITES
    while stored() < enough:
        await leader_serves(nodes)
        with suppress(AssertionError):
            await until(lambda: stored() >= enough or not serves(nodes), "some are acknowledged", 5.0)


@pytest.mark.parametrize("seed", range(part_in_number(12)))
@pytest.mark.part(2)
def test_nothing_acknowledged_is_lost_and_replicas_end_up_equal(tmp_path: Path, seed: int) -> None:
    async def test() -> None:
        chance = random.Random(seed)
        async with group(tmp_path, options=tiny(wal_keep_bytes=256 * KIB)) as nodes:
            leader = await nodes.lead("a")
            await nodes.all_in_sync()
            await nodes.make_topic(leader)
            ends = asyncio.Event()
            writers = [Writer(nodes, number, seed) for number in range(6)]
            tasks = [asyncio.ensure_future(writer.write(ends)) for writer in writers]
            for _ in range(12):
                await trouble(nodes, chance)
                await writes_go_on(nodes, lambda: sum(len(writer.stored) for writer in writers))
            ends.set()
            await asyncio.gather(*tasks)
            await nodes.all_in_sync()
            await nodes.equal()
            found: list[bytes] = []
            for queue in range(QUEUES):
                found.extend(bodies(nodes["a"].store, 1, queue).values())
            assert len(found) == len(set(found)), "something is there twice"
            stored = [content for writer in writers for content in writer.stored]
            refused = [content for writer in writers for content in writer.refused]
            assert set(stored) - set(found) == set(), "acknowledged and lost"
            assert set(refused) & set(found) == set(), "refused and stored"
            assert len(stored) >= 12 * WRITES
            assert all(nodes[name].failure is None for name in NAMES)

    run(test)
