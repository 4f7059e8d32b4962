"""The fetch loop of a consumer: a fetcher for every node that leads some of its queues, kept up to date.

The loop starts its fetchers anew when a route or a position changes under them. An error that does not pass
is held for the application: the loop rests until it has been raised to it once, and then goes on trying.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

from lsmq._fetcher import (
    FetchedBatches,
    Fetcher,
    FetchOptions,
    OutOfRange,
    Prefetch,
    Restart,
    out_of_range,
    split_slots,
)
from lsmq._outages import Attempts
from lsmq._queue_positions import Pauser, QueuePositions
from lsmq._queue_ranges import NONE, contains, intersect, subtract
from lsmq._retries import Backoff, Deadline
from lsmq.background_tasks import BackgroundTasks
from lsmq.client import Client
from lsmq.errors import OffsetOutOfRange
from lsmq.group_values import Ranges
from lsmq.topics import Topic


class FetchLoop:
    """Fills ``buffer`` with what follows ``positions``. The task that runs :meth:`run` is the consumer's."""

    def __init__(
        self,
        client: Client,
        topic: Topic,
        options: FetchOptions,
        positions: QueuePositions,
        policy: OutOfRange,
        buffer: Prefetch,
        *,
        is_patient_with: Callable[[Exception], bool],
        whole: bool = False,
    ) -> None:
        """``is_patient_with``: whether what failed so is tried again for ever.

        ``whole``: it is all queues of the topic that are read, also those that it grows by.
        """
        self._whole = whole
        self._is_patient_with = is_patient_with
        self.positions = positions
        self.topic = topic
        self.buffer = buffer
        self._client = client
        self._options = options
        self._policy: OutOfRange = policy
        self._unchecked: set[int] = set()
        self._restart = asyncio.Event()
        self._attempts = Attempts(client._router.outages, f"reading topic {topic.name!r}")

    # For the consumer

    def start_at(self, offsets: Mapping[int, int]) -> None:
        """Begin at offsets that somebody wrote down earlier, and that may be out of range by now."""
        self.positions.start_at(list(offsets), list(offsets.values()))
        self._unchecked.update(offsets)

    def own(self, ranges: Ranges) -> None:
        """Fetch these queues from now on; what is buffered of others is dropped, of these nothing."""
        self.drop(subtract(self.positions.ranges, ranges))
        self.positions.own(ranges)
        if self._unchecked:
            self._unchecked.intersection_update(self.positions)
        self._restart.set()

    def seek(self, queue: int, offset: int) -> None:
        """Go on from ``offset``; what is buffered of ``queue`` is dropped."""
        self.positions.move(queue, offset)
        self._drop_where(lambda other: other == queue)
        self._unchecked.add(queue)
        self._restart.set()

    def hand_back(self, offsets: Mapping[int, int]) -> None:
        """Hand out again what follows these offsets, which lie before what was handed out."""
        self._drop_where(lambda queue: queue in offsets)
        for queue, offset in offsets.items():
            self.positions.hand_back(queue, offset)
        self._restart.set()

    def pause(self, ranges: Ranges, who: Pauser = "client") -> None:
        """Fetch nothing of these; what is buffered of them comes again once they are resumed."""
        positions = self.positions
        for queue in self.drop(ranges):
            slot = positions.slot(queue)
            positions.fetch[slot] = positions.handed[slot]
        positions.pause(ranges, who)
        self._restart.set()

    def resume(self, ranges: Ranges, who: Pauser = "client") -> None:
        """Fetch them again, unless somebody else has paused them as well."""
        if intersect(self.positions.paused.get(who, NONE), ranges):
            self.positions.resume(ranges, who)
            self._restart.set()

    def share(self, queue: int) -> int:
        """See :meth:`QueuePositions.share`."""
        return self.positions.share(queue)

    def hold(self, queue: int) -> None:
        """:meth:`pause` this one queue."""
        self.pause((range(queue, queue + 1),))

    def release(self, queue: int) -> None:
        """Fetch it again, which was held."""
        self.resume((range(queue, queue + 1),))

    def drop(self, ranges: Ranges) -> set[int]:
        """Have nothing handed out that is buffered of these queues; the queues that anything was buffered of."""
        share = self.positions.share
        return self._drop_where(lambda queue: contains(ranges, share(queue))) if ranges else set()

    def _drop_where(self, is_one: Callable[[int], bool]) -> set[int]:
        dropped: set[int] = set()
        for chunk in self.buffer.all_chunks():
            if chunk.topic.name == self.topic.name:
                gone = [queue for queue in chunk.spans if is_one(queue)]
                for queue in gone:
                    del chunk.spans[queue]
                dropped.update(gone)
        return dropped

    def fetch_again(self, chunk: FetchedBatches) -> None:
        """A chunk is dropped: what was not handed out of it is fetched again."""
        positions = self.positions
        for queue in chunk.spans:
            slot = positions.slot(queue)
            positions.fetch[slot] = positions.handed[slot]
        positions.generation += 1
        self._restart.set()

    # Fetching

    async def run(self) -> None:
        """Fetch until cancelled."""
        try:
            await self._fetch_for_ever()
        finally:
            self._attempts.end()

    async def _fetch_for_ever(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        backoff = Backoff()
        while not task.cancelling():
            try:
                try:
                    while self._unchecked:
                        await self.check_bounds()
                    await self._fetch_all()
                except OffsetOutOfRange as error:
                    queue = error.details.get("queue")
                    self._unchecked.update([queue] if isinstance(queue, int) else self.positions.queues)
                    if not await self.check_bounds():
                        raise
            except Exception as error:
                if task.cancelling():
                    continue
                if self._is_patient_with(error):
                    await backoff.pause()
                else:
                    await self.buffer.give(error)
        raise asyncio.CancelledError

    async def _fetch_all(self) -> None:
        """One fetcher per node, until one of them raises or a restart is asked for."""
        router = self._client._router
        topic = await router.current(self.topic, Deadline(self._options.deadline_ms))
        if self._whole and topic.queues > self.topic.queues:
            self.topic = topic
            self.own((range(topic.queues),))
        self._restart.clear()
        owners = self.positions.slots_by_leader(topic)
        seen = topic

        def notice() -> None:
            nonlocal seen
            fresh = router.table.topic(topic.name)
            if fresh is None or fresh is seen:
                return
            seen = fresh
            if (
                not fresh.is_same(topic)
                or self.positions.slots_by_leader(fresh) != owners
                or (self._whole and fresh.queues > topic.queues)
            ):
                self._restart.set()

        router.table.listen(notice)
        fetchers = BackgroundTasks()

        async def together(work: Coroutine[Any, Any, None]) -> None:
            """With the end of one it is over for all: also where a library told a cancelled request as a failed one."""
            try:
                await work
            except Exception:
                self.positions.generation += 1
                raise

        try:
            for leader, slots in owners.items():
                for portion in split_slots(slots):
                    fetcher = self._fetcher(
                        topic,
                        leader,
                        portion,
                        lambda work: fetchers.begin(together(work), f"lsmq detour of {topic.name}"),
                    )
                    fetchers.begin(together(fetcher.run()), f"lsmq fetch {topic.name} from {leader}", lasting=True)
            with suppress(Restart):
                await fetchers.until(self._restart.wait())
        finally:
            self.positions.generation += 1
            await fetchers.end()
            router.table.unlisten(notice)

    def _fetcher(
        self,
        topic: Topic,
        leader: str | None,
        slots: Sequence[range],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> Fetcher:
        return Fetcher(
            self._client,
            self._options,
            topic,
            leader,
            slots,
            self.positions,
            self.buffer,
            self._attempts,
            policy=self._policy,
            spawn=spawn,
        )

    async def check_bounds(self) -> bool:
        """Apply the policy to offsets not checked yet that their queues do not have; whether any moved.

        When positions changed meanwhile, it is to be done again. Raises ``OffsetOutOfRange`` if that is the policy.
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
            slot = self.positions.slot(queue)
            if slot < 0:
                continue  # It was committed meanwhile, and nothing is kept of it: it is read from there.
            offset = self.positions.fetch[slot]
            if earliest <= offset <= latest:
                continue
            if self._policy == "error":
                raise out_of_range(self.topic.name, queue, offset, earliest, latest)
            self.positions.skip_to(queue, earliest if self._policy == "earliest" else latest)
            moved = True
        self._unchecked.difference_update(queues)
        return moved
