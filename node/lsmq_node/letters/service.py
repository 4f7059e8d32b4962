"""The movers of the shards that a node leads."""

from __future__ import annotations

from functools import partial

from lsmq_node.broker import Broker
from lsmq_node.machines import MachineService

from .mover import Mover


class LetterService(MachineService[Mover]):
    """One for each node. Loop thread only; ``start`` before anything else, ``stop`` at the end."""

    name = "letters"

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker, partial(Mover, self))
        #: Messages that were moved since the node began, by what their letters say.
        self.moved: dict[str, int] = {}

    @property
    def waiting_topics(self) -> int:
        """How many topics have messages that could not be moved when that was tried last, over shards."""
        return sum(len(mover.waiting) for mover in self.shards())
