"""The fetch loop of a consumer: a fetcher for every node that leads some of its queues, kept up to date.

The loop starts its fetchers anew when a route or a position changes under them. An error that does not pass
is held for the application: the loop rests until it has been raised to it once, and then goes on trying.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from lsmq._fetch import Chunk, Fetcher, FetchOptions, OutOfRange, Prefetch, Restart, out_of_range, split_slots
from lsmq._positions import QueuePositions
from lsmq._retry import Deadline
from lsmq.client import Client
from lsmq.errors import OffsetOutOfRange
from lsmq.topics import Topic


class FetchLoop:
    """Fills ``buffer`` with what follows ``positions``. The task that runs :meth:`run` is the consumer's."""

    def __init__(
        self, client: Client, topic: Topic, options: FetchOptions, positions: QueuePositions, policy: OutOfRange
    ) -> None:
        self.positions = positions
        self.topic = topic
        self.buffer = Prefetch(options.prefetch_bytes)
        self._client = client
        self._options = options
        self._policy: OutOfRange = policy
        self._unchecked: set[int] = set()
        self._restart = asyncio.Event()
        self._error: Exception | None = None
        self._error_taken = asyncio.Event()

    # For the consumer

    def start_at(self, offsets: Mapping[int, int]) -> None:
        """Begin at offsets that somebody wrote down earlier, and that may be out of range by now."""
        self.positions.start_at(list(offsets), list(offsets.values()))
        self._unchecked.update(offsets)

    def seek(self, queue: int, offset: int) -> None:
        """Go on from ``offset``; what is buffered of ``queue`` is dropped."""
        self.positions.move(queue, offset)
        for chunk in self.buffer.chunks:
            chunk.spans.pop(queue, None)
        self._unchecked.add(queue)
        self._restart.set()

    def rewind(self, current: Chunk | None) -> None:
        """Drop ``current`` and everything buffered, and fetch again from what was handed out."""
        positions = self.positions
        for chunk in (*((current,) if current is not None else ()), *self.buffer.chunks):
            for queue in chunk.spans:
                slot = positions.slot(queue)
                positions.fetch[slot] = positions.handed[slot]
            self.buffer.release(chunk)
        self.buffer.chunks.clear()
        positions.generation += 1
        self._restart.set()

    async def ready(self) -> None:
        """Wait until something is buffered. Raises the error that stopped fetching."""
        if self.buffer.chunks:
            return
        if self._error is not None:
            error, self._error = self._error, None
            self._error_taken.set()
            raise error
        self.buffer.ready.clear()
        await self.buffer.ready.wait()

    # Fetching

    async def run(self) -> None:
        """Fetch until cancelled."""
        while True:
            try:
                try:
                    await self.check_bounds()
                    await self._fetch_all()
                except OffsetOutOfRange as error:
                    queue = error.details.get("queue")
                    self._unchecked.update(self.positions.queues if queue is None else [queue])
                    if not await self.check_bounds():
                        raise
            except Exception as error:
                self._error = error
                self._error_taken.clear()
                self.buffer.ready.set()
                await self._error_taken.wait()

    async def _fetch_all(self) -> None:
        """One fetcher per node, until one of them raises or a restart is asked for."""
        self._restart.clear()
        router = self._client._router
        topic = await router.current(self.topic, Deadline(self._options.deadline_ms))
        owners = self.positions.slots_by_leader(topic)

        def notice() -> None:
            fresh = router.table.topic(topic.name)
            if fresh is not None and (not fresh.is_same(topic) or self.positions.slots_by_leader(fresh) != owners):
                self._restart.set()

        router.table.listen(notice)
        try:
            async with asyncio.TaskGroup() as group:
                for leader, slots in owners.items():
                    for portion in split_slots(slots):
                        fetcher = Fetcher(
                            self._client,
                            self._options,
                            topic,
                            leader,
                            portion,
                            self.positions,
                            self.buffer,
                            policy=self._policy,
                        )
                        group.create_task(fetcher.run())
                await self._restart.wait()
                raise Restart
        except BaseExceptionGroup as errors:
            for error in errors.exceptions:
                if not isinstance(error, Restart):
                    raise error from None
        finally:
            router.table.unlisten(notice)

    async def check_bounds(self) -> bool:
        """Apply the policy to offsets not checked yet that their queues do not have; whether any moved.

        Raises ``OffsetOutOfRange`` if that is the policy.
        """
        queues = sorted(self._unchecked)
        if not queues:
            return False
        generation = self.positions.generation
        bounds = await self._client._offsets(self.topic, queues, None)
        if self.positions.generation != generation:
            return True  # Positions moved meanwhile: all of it is checked again.
        moved = False
        for queue, earliest, latest in bounds.rows():
            offset = self.positions.fetch[self.positions.slot(queue)]
            if earliest <= offset <= latest:
                continue
            if self._policy == "error":
                raise out_of_range(self.topic.name, queue, offset, earliest, latest)
            self.positions.skip_to(queue, earliest if self._policy == "earliest" else latest)
            moved = True
        self._unchecked.difference_update(queues)
        return moved
