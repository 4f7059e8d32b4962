"""A leader that reaches all others and that none of them reaches: one of them leads, and no epoch is burnt."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lsmq_lab.simulation import Simulation

SEEDS = range(8)


class Scene:
    """Three replicas, two of which must be in sync, load on them, and no faults but those of the test."""

    def __init__(self, seed: int) -> None:
        while True:
            self.simulation = Simulation(seed)
            self.cluster = self.simulation.cluster
            self.control = self.cluster.control
            if len(self.control.view.replicas) == 3 and self.cluster.min_in_sync == 2:
                break
            seed += len(SEEDS)
        self.cluster.network.heal()
        self.cluster.at_delicate_moment = lambda replica: None
        self.cluster.publishing_loss = self.cluster.stale_views = 0.0
        for replica in self.cluster.replicas.values():
            replica.start()
        self.simulation._look()
        self.simulation.clients.start()
        self.until(lambda: len(self.control.view.in_sync) == 3 and self.acknowledged > 20, 20.0)
        self.leader = str(self.control.view.leader)
        self.others = sorted(self.control.view.replicas - {self.leader})
        self.epoch = self.control.view.epoch

    @property
    def acknowledged(self) -> int:
        """Writes so far that were acknowledged at quorum."""
        return self.simulation.monitor.counts.get("acknowledged at quorum", 0)

    def run(self, seconds: float) -> None:
        world = self.simulation.world
        end = world.now + seconds
        while world.now < end:
            world.run_one()

    def until(self, condition: Callable[[], object], seconds: float) -> float:
        """Returns how many seconds it took."""
        world = self.simulation.world
        began = world.now
        while not condition():
            assert world.now - began < seconds, f"not within {seconds} s: {self.control.view}"
            world.run_one()
        return world.now - began

    def deafen(self, node: str) -> None:
        for other in self.cluster.names:
            if other != node:
                self.cluster.network.break_link(other, node)

    def settle(self) -> None:
        """All links are mended, and everything is whole again."""
        self.cluster.network.heal()
        self.run(1.0)
        self.simulation.clients.stopped = True
        self.until(lambda: self.simulation.monitor.unsettled() is None, 20.0)
        self.simulation.monitor.finished(self.simulation.clients.writes)


@pytest.mark.parametrize("seed", SEEDS)
def test_another_leads_soon_and_acknowledges_and_once_is_enough(seed: int) -> None:
    scene = Scene(seed)
    scene.deafen(scene.leader)
    scene.run(0.1)
    former = scene.acknowledged
    scene.until(lambda: scene.acknowledged > former + 20, 10.0)
    assert scene.control.view.leader in scene.others
    scene.run(20.0)
    assert scene.control.view.epoch == scene.epoch + 1
    assert {member.node for member in scene.control.view.in_sync} == set(scene.others)
    scene.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_one_that_is_elected_while_it_is_deaf_gives_way(seed: int) -> None:
    """It never began its epoch: no promise reaches it."""
    scene = Scene(seed)
    deaf = scene.others[0]
    scene.deafen(deaf)
    scene.cluster.replicas[scene.leader].crash(power=False)
    scene.until(lambda: scene.control.view.epoch > scene.epoch, 1.0)
    scene.cluster.replicas[scene.leader].start()
    scene.run(5.0)
    former = scene.acknowledged
    scene.run(1.0)
    assert scene.acknowledged > former
    assert scene.control.view.leader != deaf
    scene.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_whose_followers_are_dead_is_left_alone(seed: int) -> None:
    scene = Scene(seed)
    for node in scene.others:
        scene.cluster.replicas[node].crash(power=False)
    scene.run(20.0)
    assert (scene.control.view.leader, scene.control.view.epoch) == (scene.leader, scene.epoch)
    for node in scene.others:
        scene.cluster.replicas[node].start()
    scene.settle()
    assert scene.control.view.epoch == scene.epoch


@pytest.mark.parametrize("seed", SEEDS)
def test_a_deaf_leader_without_enough_others_is_left_alone(seed: int) -> None:
    scene = Scene(seed)
    scene.deafen(scene.leader)
    scene.cluster.replicas[scene.others[0]].crash(power=False)
    scene.run(20.0)
    assert (scene.control.view.leader, scene.control.view.epoch) == (scene.leader, scene.epoch)
    scene.cluster.replicas[scene.others[0]].start()
    scene.settle()
