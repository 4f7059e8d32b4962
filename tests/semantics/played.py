"""A plan is played: a client of a cluster in a world does what its steps say, and things befall the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from lsmq import Client
from lsmq_lab.world.machine import world
from lsmq_lab.world.scheduler import SimulatedProcess
from lsmq_lab.world.simulated_cluster import SimulatedCluster, SimulatedNode

from .area import Area, Life
from .areas import AREAS

#: A step of a plan: what befalls the cluster, or an area and its deed (``log.send``); and three numbers that say how.
Step = tuple[str, int, int, int]
BEFALLS = ("kill", "jump", "blackout", "settle")
_JUMPS_S = (-2.0, -0.5, 1.0, 2.5)
#: All clocks are right by then, stamps have caught up, and background work had its turns.
_SETTLE_S = 8.0
_SETTINGS = {"retention_interval_ms": 300}


class Player:
    """Carries out steps, in the areas that they name."""

    def __init__(self, life: Life, areas: Sequence[str]) -> None:
        self.cluster, self.life = life.cluster, life
        self.areas: dict[str, Area] = {name: AREAS[name](life) for name in areas}

    async def play(self, steps: Sequence[Step]) -> None:
        for area in self.areas.values():
            for topic, options in area.topics.items():
                await self.life.client.create_topic(topic, **options)
            await area.start()
        for step, *numbers in steps:
            area_name, _, deed = step.rpartition(".")
            await getattr(self.areas[area_name] if area_name else self, deed)(*numbers)
        await self.settle(0, 0, 0)
        for area in self.areas.values():
            await area.finish()
        await self.life.close()

    async def kill(self, where: int, how: int, what: int) -> None:
        """The leader dies, or loses its power, and comes back later."""
        node = self.cluster.leader()
        self._do(node.cut_power if how % 2 else node.kill)
        await asyncio.sleep(0.01)
        self._do(node.start, 0.3 + what % 10 / 5)

    async def blackout(self, where: int, how: int, what: int) -> None:
        """All lose their power at once."""
        for node in self.cluster.nodes:
            self._do(node.cut_power)
        await asyncio.sleep(0.01)
        for node in self.cluster.nodes:
            self._do(node.start)

    async def jump(self, where: int, how: int, what: int) -> None:
        """A clock is wrong from then on, until all settles."""
        self._set_clock(self.cluster.nodes[where % 3], _JUMPS_S[what % 4])

    async def settle(self, where: int, how: int, what: int) -> None:
        for node in self.cluster.nodes:
            self._set_clock(node, 0.0)
        for area in self.areas.values():
            await area.rouse()
        await asyncio.sleep(_SETTLE_S)
        for area in self.areas.values():
            await area.settled()

    def _do(self, what: Callable[[], object], after_s: float = 0.0) -> None:
        self.cluster.world.scheduler.call_later(after_s, what)

    @staticmethod
    def _set_clock(node: SimulatedNode, wrong_s: float) -> None:
        node.wrong_s = wrong_s
        if node.process is not None:
            node.process.wrong_s = wrong_s


def play(seed: int, steps: Sequence[Step]) -> None:
    """Play steps in a world of their own. Raises what went wrong."""
    areas = list(dict.fromkeys(step.rpartition(".")[0] for step, *_ in steps))
    with world(seed, preemption=(0.0, 0.05)[seed % 2]) as made:
        cluster = SimulatedCluster(made, shards=1 + seed % 2, settings=_SETTINGS)
        with cluster.installed():
            for node in cluster.nodes:
                node.start()
            process: SimulatedProcess = made.process("client", "10.0.2.1", steady_s=9_000.0)

            async def use() -> None:
                async with Client(cluster.urls) as client:
                    await Player(Life(cluster, client), [area for area in areas if area]).play(steps)

            made.run_async(use, process=process, limit_s=600.0)
        assert cluster.problems == []
