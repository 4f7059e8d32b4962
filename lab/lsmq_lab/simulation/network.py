"""The network: messages are late, lost, doubled, overtaken; links break in one direction or both."""

from __future__ import annotations

from collections.abc import Callable

from .world import World

CONTROL = "control"


class Network:
    """Delivers calls between named ends. ``quality`` of the run: how bad it is while faults are on."""

    def __init__(self, world: World) -> None:
        self._world = world
        random = world.random
        self.loss = random.choice((0.0, 0.0, 0.01, 0.05))
        self.duplicates = random.choice((0.0, 0.01, 0.05))
        self.stragglers = random.choice((0.0, 0.005, 0.02))
        self.delay_s = random.choice((0.0005, 0.002, 0.01))
        self.ordered = world.chance(0.7)  # as within one connection
        self._broken: set[tuple[str, str]] = set()
        self._arrivals: dict[tuple[str, str], float] = {}

    def heal(self) -> None:
        self._broken.clear()
        self.ordered = True
        self.loss = self.duplicates = self.stragglers = 0.0

    def break_link(self, sender: str, receiver: str) -> None:
        self._broken.add((sender, receiver))

    def mend_link(self, sender: str, receiver: str) -> None:
        self._broken.discard((sender, receiver))

    def is_broken(self, sender: str, receiver: str) -> bool:
        return (sender, receiver) in self._broken

    def carry(self, sender: str, receiver: str, deliver: Callable[[], None]) -> None:
        """Deliver later, perhaps; what was under way when a link broke still arrives."""
        world = self._world
        if (sender, receiver) in self._broken or (self.loss and world.chance(self.loss)):
            return
        random = world.random.random
        arrival = world.now + self.delay_s * (0.2 + random())
        if self.ordered:
            arrival = self._arrivals[sender, receiver] = max(arrival, self._arrivals.get((sender, receiver), 0.0))
        world.at(arrival, deliver)
        if self.duplicates and random() < self.duplicates:
            world.after(self.delay_s * (0.2 + 10 * random()), deliver)
        if self.stragglers and random() < self.stragglers:
            world.after(3.0 * random(), deliver)
