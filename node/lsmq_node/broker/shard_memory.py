"""What a node keeps in memory of a shard that it leads: good for one round of the shard's store.

Consumer groups, work queues and transactions are state machines whose state lies in a shard; the shard's leader runs
them, on what it has in memory. That was built from what is stored in one round (:attr:`ShardStore.round`). When a round
ends, what was in line may be dropped: because the disk is full, or because leadership is over. So memory of a round
that has ended is not used again; whoever waits is told to come again, and the next one builds it anew.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from lsmq.errors import LsmqError, Unavailable
from lsmq_node.storage import ShardStore

from .topology import Ack, ShardPort


class ShardMemory(ABC):
    """Loop thread only."""

    #: What it is memory of, for errors, and details that these carry.
    subject: ClassVar[str]
    details: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, port: ShardPort) -> None:
        self.port = port
        self.store: ShardStore = port.store
        self.round = self.store.round
        self._loop = asyncio.get_running_loop()
        self._broken: LsmqError | None = None

    @property
    def is_current(self) -> bool:
        """Whether memory still is what is stored."""
        try:
            return self._broken is None and self.port.store is self.store and self.store.round == self.round
        except LsmqError:  # The replica is being opened again.
            return False

    def check(self) -> None:
        """Raises ``NotLeader`` where this node does not serve the shard, ``Unavailable`` for a moment after changes."""
        self.port.check_readable()
        if not self.is_current:
            raise Unavailable(
                f"what shard {self.port.number} knows of {self.subject} is being read again; try again",
                shard=self.port.number,
                **self.details,
            ) from self._broken

    @abstractmethod
    def wake_all(self) -> None:
        """Whoever waits looks again."""

    def break_off(self, error: LsmqError) -> None:
        """What is in memory is not used again: it could not be stored, or another one has taken its place."""
        self._broken = self._broken or error
        self.wake_all()

    # Storing

    def put(self, documents: Mapping[str, bytes | None]) -> asyncio.Future[None] | None:
        """Put documents in line, to be awaited with :meth:`durable`. Raises what a write raises."""
        self.port.check_writable(Ack.QUORUM)
        return self.port.wait(self.store.put_documents(documents), Ack.QUORUM)

    async def durable(self, future: asyncio.Future[None] | None) -> None:
        """Await a write. Whatever its failure: what is in memory cannot be trusted then."""
        try:
            if future is not None:
                await asyncio.shield(future)
        except LsmqError as error:
            self.break_off(error)
            raise

    async def barrier(self) -> None:
        """Return when all that is in line is committed."""
        barrier = self.store.barrier()
        if barrier is not None:
            await self.durable(self.port.wait(barrier, Ack.QUORUM))
