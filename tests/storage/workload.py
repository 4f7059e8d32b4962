"""A fixed workload that goes through everything a store does to its disk, beside a model of what it should hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from lsmq.errors import DiskFull
from lsmq_lab.world.drive import Drive
from lsmq_node.storage import Appended, ShardStore, StoreOptions, TopicOptions
from support.clock import SimClock

from .harness import Put, background, batch_of, body, flush, house_round, merge, open_stepped, tiny
from .model import Model

RETENTION_MS = 10_000


class Workload:
    """Runs the steps one by one. ``model`` holds what is acknowledged, ``attempt`` also what is under way."""

    def __init__(self, disk: Drive, path: Path, clock: SimClock, options: StoreOptions | None = None) -> None:
        self.disk = disk
        self.path = path
        self.clock = clock
        self.options = options or tiny(level0_merge=2)
        self.model = Model()
        self.attempt = self.model
        self._serial = 0
        self._store: ShardStore | None = None

    @property
    def store(self) -> ShardStore:
        if self._store is None:
            self._store = open_stepped(self.path, self.options, self.disk, self.clock)
        return self._store

    @property
    def opened(self) -> ShardStore | None:
        return self._store

    def run(self) -> None:
        for step in self.steps():
            step()

    def steps(self) -> Iterator[Callable[[], None]]:
        """Each may be called again when it failed for want of space."""
        yield lambda: self._create("t", 4)
        yield lambda: self._create("r", 2, TopicOptions(retention_ms=RETENTION_MS))
        for size in (200, 3_000, 40):
            yield lambda size=size: self._append("t", 5, size)  # type: ignore[misc]
        yield lambda: self._commit_offsets("g", "t", 1, 2)
        yield lambda: self._work(flush)
        for _ in range(3):
            yield lambda: self._append("r", 4, 900)
        yield lambda: self._work(flush)
        yield lambda: self._trim("t", 0, 1)
        yield lambda: self._delete("t", 2, [0, 1])
        yield lambda: self._append("t", 4, 7_000)
        yield self._house
        yield lambda: self._work(flush)
        yield self._age
        yield self._retain
        yield lambda: self._work(merge)
        yield lambda: self._append("t", 4, 7_500)
        yield lambda: self._work(flush)
        yield lambda: self._append("t", 4, 7_600)
        yield self._house
        yield lambda: self._grow("t", 7)
        yield lambda: self._append("t", 7, 100)
        yield lambda: self._commit_offsets("g", "t", 1, 3)
        yield lambda: self._drop("r")
        yield lambda: self._work(flush)
        yield lambda: self._work(merge)
        yield lambda: self._append("t", 4, 7_700)
        yield lambda: self._append("t", 4, 7_800)
        yield self._house
        for size in (7_100, 7_200, 7_300, 7_400):  # more than a memtable: two of them wait for their flush
            yield lambda size=size: self._append("t", 4, size)  # type: ignore[misc]
        yield lambda: self._work(flush)
        yield lambda: self._append("t", 4, 60)

    # Each step tells the model first what it attempts, then what was acknowledged.

    def _create(self, name: str, queues: int, options: TopicOptions | None = None) -> None:
        store = self.store
        after = self._attempt()
        after.create(name, len(self.model.topics) + 1, queues)
        topic = store.create_topic(name, queues, options)
        after.topics[name].id = topic.id
        self.model = after

    def _grow(self, name: str, queues: int) -> None:
        after = self._attempt()
        after.grow(name, queues)
        self.store.grow_topic(name, queues)
        self.model = after

    def _drop(self, name: str) -> None:
        after = self._attempt()
        after.drop(name)
        self.store.delete_topic(name)
        self.model = after

    def _append(self, name: str, count: int, size: int) -> None:
        topic = self.model.topics[name]
        puts = [
            Put(at % topic.queues, body(self._serial * 100 + at, size + at), key=f"k{at}", priority=at % 3)
            for at in range(count)
        ]
        self._serial += 1
        after = self._attempt()
        offsets = after.append(name, puts)
        appended = self.store.append(topic.id, batch_of(puts))
        assert appended.offsets.tolist() == offsets
        self._acknowledge(after, appended)

    def _trim(self, name: str, queue: int, offset: int) -> None:
        after = self._attempt()
        after.trim(name, queue, offset)
        self._acknowledge(after, self.store.trim(self.model.topics[name].id, queue, offset))

    def _delete(self, name: str, queue: int, offsets: list[int]) -> None:
        after = self._attempt()
        after.delete(name, queue, offsets)
        queues = np.full(len(offsets), queue, np.uint32)
        self._acknowledge(after, self.store.delete(self.model.topics[name].id, queues, np.array(offsets)))

    def _commit_offsets(self, group: str, name: str, queue: int, offset: int) -> None:
        after = self._attempt()
        after.commit_offsets(group, name, queue, offset)
        topic_id = self.model.topics[name].id
        appended = self.store.commit_offsets(group, topic_id, np.array([queue], np.uint32), np.array([offset]))
        self._acknowledge(after, appended)

    def _age(self) -> None:
        self.clock.time_ms += 2 * RETENTION_MS

    def _retain(self) -> None:
        after = self._attempt()
        for number, queue in after.topics["r"].touched.items():
            after.trim("r", number, len(queue.rows))
        self._house(attempt=False)
        starts = self.store.earliest_offsets(self.model.topics["r"].id)
        for number, start in enumerate(starts.tolist()):
            self.model.trim("r", number, start)

    def _work(self, work: Callable[[ShardStore], object]) -> None:
        self._attempt()
        store = self.store
        background(store, lambda: work(store))
        self._check()

    def _check(self) -> None:
        store = self.store
        store._writer.check_open()  # raises what stopped it
        if store._maintenance.disk_full:
            raise DiskFull("there was no space for background work")

    def _house(self, *, attempt: bool = True) -> None:
        if attempt:
            self._attempt()
        house_round(self.store)
        self._check()

    def _attempt(self) -> Model:
        self.attempt = self.model.copy()
        return self.attempt

    def _acknowledge(self, after: Model, appended: Appended) -> None:
        self.store.wait(appended)
        self.model = after
