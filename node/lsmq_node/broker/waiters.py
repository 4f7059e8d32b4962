"""Long polls that wait for messages, found at a cost that follows what a commit touched.

A waiter for one queue is found through a dictionary; a waiter for many is matched by its sorted queues
against the sorted queues of the commit. Nothing here costs per queue that is idle.

No wake-up is missed because everything runs on the loop thread: a caller registers, then looks whether
anything has arrived, and only then waits; a commit after the registration sets the waiter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lsmq.errors import Unavailable


class Waiter:
    """One held long poll: set when any of its queues got messages."""

    __slots__ = ("_future", "is_set", "queues")

    def __init__(self, queues: NDArray[Any]) -> None:
        """``queues`` are sorted, without repeats."""
        self.queues = queues
        self.is_set = False
        self._future: asyncio.Future[None] | None = None

    def set(self) -> None:
        self.is_set = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def clear(self) -> None:
        self.is_set = False

    async def wait(self, deadline: float) -> bool:
        """Wait until set (True) or until ``deadline`` on the loop's clock (False)."""
        if self.is_set:
            return True
        self._future = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout_at(deadline):
                await self._future
        except TimeoutError:
            return self.is_set
        finally:
            self._future = None
        return True

    def wants(self, touched: NDArray[Any]) -> bool:
        """Whether any of ``touched`` (sorted, without repeats) is one of the waiter's queues."""
        queues = self.queues
        low, high = np.searchsorted(touched, (queues[0], queues[-1] + 1))
        if low == high:
            return False
        if int(queues[-1]) - int(queues[0]) + 1 == len(queues):
            return True
        few, many = touched[low:high], queues
        if len(few) > len(many):
            few, many = many, few
        places = np.searchsorted(many, few)
        places[places == len(many)] = 0
        return bool((many[places] == few).any())


class Watch(Protocol):
    """Somebody who hears of all commits to a topic, for as long as it wants."""

    def touch(self, touched: NDArray[Any]) -> None:
        """These queues got messages; sorted, without repeats."""

    def set(self) -> None:
        """What may be read here has changed, or the node stops."""


class _TopicWaiters:
    __slots__ = ("many", "single", "watches", "watches_of")

    def __init__(self) -> None:
        self.single: dict[int, set[Waiter]] = {}
        self.many: set[Waiter] = set()
        self.watches: set[Watch] = set()
        self.watches_of: dict[int, set[Watch]] = {}  # by queue: those that wanted to hear of few

    def __bool__(self) -> bool:
        return bool(self.single or self.many or self.watches or self.watches_of)

    def all_watches(self) -> set[Watch]:
        return self.watches.union(*self.watches_of.values())


class WaiterTable:
    """All held long polls of a node, by topic. Used on the loop thread only."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._topics: dict[int, _TopicWaiters] = {}
        self.count = 0
        self.closed = False

    @contextmanager
    def waiting(self, topic_id: int, queues: NDArray[Any]) -> Iterator[Waiter]:
        """A registered waiter, removed at the end of the block however it ends.

        ``queues`` are sorted, without repeats, and not empty. Raises :class:`Unavailable` at the limit.
        """
        with self.held():
            waiter = Waiter(queues)
            self._add(topic_id, waiter)
            try:
                yield waiter
            finally:
                self._remove(topic_id, waiter)

    @contextmanager
    def held(self) -> Iterator[None]:
        """One more long poll is held in this block. Raises :class:`Unavailable` at the limit."""
        if self.count >= self._limit:
            raise Unavailable(
                f"{self.count} long polls are held already, which is the limit; "
                "poll with wait_ms=0, ask for many queues in one request, or raise max_waiters",
                limit=self._limit,
            )
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1

    def _add(self, topic_id: int, waiter: Waiter) -> None:
        topic = self._topics.setdefault(topic_id, _TopicWaiters())
        if len(waiter.queues) == 1:
            topic.single.setdefault(int(waiter.queues[0]), set()).add(waiter)
        else:
            topic.many.add(waiter)
        if self.closed:
            waiter.set()

    def _remove(self, topic_id: int, waiter: Waiter) -> None:
        topic = self._topics[topic_id]
        if len(waiter.queues) == 1:
            queue = int(waiter.queues[0])
            others = topic.single[queue]
            others.discard(waiter)
            if not others:
                del topic.single[queue]
        else:
            topic.many.discard(waiter)
        if not topic:
            del self._topics[topic_id]

    def watch(self, topic_id: int, watch: Watch, queues: Sequence[int] | None = None) -> None:
        """Tell ``watch`` of commits to a topic from now on: to these queues, or to any, which costs something at each.

        ``unwatch`` is given the same queues.
        """
        topic = self._topics.setdefault(topic_id, _TopicWaiters())
        if queues is None:
            topic.watches.add(watch)
            return
        for queue in queues:
            topic.watches_of.setdefault(queue, set()).add(watch)

    def unwatch(self, topic_id: int, watch: Watch, queues: Sequence[int] | None = None) -> None:
        topic = self._topics.get(topic_id)
        if topic is None:
            return
        topic.watches.discard(watch)
        for queue in queues or ():
            others = topic.watches_of.get(queue)
            if others is not None:
                others.discard(watch)
                if not others:
                    del topic.watches_of[queue]
        if not topic:
            del self._topics[topic_id]

    def wake(self, topic_id: int, pieces: Sequence[NDArray[Any]]) -> None:
        """Set every waiter of the topic that waits for a queue of ``pieces``."""
        topic = self._topics.get(topic_id)
        if topic is None:
            return
        touched = np.unique(np.concatenate(pieces))
        if topic.single or topic.watches_of:
            queues = set(touched.tolist())
            for queue in topic.single.keys() & queues:
                for waiter in topic.single[queue]:
                    waiter.set()
            for watch in set().union(*(topic.watches_of[queue] for queue in topic.watches_of.keys() & queues)):
                watch.touch(touched)
        for waiter in topic.many:
            if not waiter.is_set and waiter.wants(touched):
                waiter.set()
        for watch in topic.watches:
            watch.touch(touched)

    def wake_topic(self, topic_id: int) -> None:
        """Set every waiter of the topic: it is gone."""
        topic = self._topics.get(topic_id)
        if topic is not None:
            for waiters in (*topic.single.values(), topic.many):
                for waiter in waiters:
                    waiter.set()
            for watch in topic.all_watches():
                watch.set()

    def wake_all(self) -> None:
        """Set all waiters: what may be read here has changed."""
        for topic_id in self._topics:
            self.wake_topic(topic_id)

    def close(self) -> None:
        """Set all waiters, and all that come later: the node stops."""
        self.closed = True
        self.wake_all()
