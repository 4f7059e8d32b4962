"""Long polls that wait for messages, found at a cost that follows what a commit touched.

A waiter for one queue is found through a dictionary; a waiter for many is matched by its sorted queues
against the sorted queues of the commit. Nothing here costs per queue that is idle.

No wake-up is missed because everything runs on the loop thread: a caller registers, then looks whether
anything has arrived, and only then waits; a commit after the registration sets the waiter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lsmq.errors import Unavailable

from .address_limits import AddressShare, SharedThing

SHARED_WAITERS = SharedThing(
    Unavailable,
    "long polls held at this node",
    "max_waiters",
    "poll with wait_ms=0, or ask for many queues in one request",
)


class TopicWatch(Protocol):
    """Somebody who hears of commits to a topic, for as long as it wants."""

    def touch(self, touched: NDArray[Any]) -> None:
        """These queues got messages; sorted, without repeats."""

    def set(self) -> None:
        """What may be read here has changed, or the node stops."""


class Waiter:
    """One held long poll, a :class:`TopicWatch`: set when any of its queues got messages."""

    __slots__ = ("_future", "is_set", "queues")

    def __init__(self, queues: NDArray[Any]) -> None:
        """``queues`` are sorted, without repeats."""
        self.queues = queues
        self.is_set = False
        self._future: asyncio.Future[None] | None = None

    def touch(self, touched: NDArray[Any]) -> None:
        if not self.is_set and self.wants(touched):
            self.set()

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


class _TopicWatches:
    """Those of one topic: by queue where they wanted to hear of few, which costs nothing where nothing comes."""

    __slots__ = ("by_queue", "of_many")

    def __init__(self) -> None:
        # In the order in which they came, and are told.
        self.by_queue: dict[int, dict[TopicWatch, None]] = {}
        self.of_many: dict[TopicWatch, None] = {}

    def __bool__(self) -> bool:
        return bool(self.by_queue or self.of_many)

    def all(self) -> Iterable[TopicWatch]:
        return _each([self.of_many, *self.by_queue.values()])


def _each(watches: Iterable[dict[TopicWatch, None]]) -> Iterable[TopicWatch]:
    """All of them, once."""
    return dict.fromkeys(chain.from_iterable(watches))


class WaiterTable:
    """All held long polls of a node, and whoever else hears of commits, by topic. Used on the loop thread only."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._topics: dict[int, _TopicWatches] = {}
        #: What one address may have; None: all.
        self.share: AddressShare | None = None
        self.count = 0
        self.closed = False

    @contextmanager
    def waiting(self, topic_id: int, queues: NDArray[Any]) -> Iterator[Waiter]:
        """A registered waiter, removed at the end of the block however it ends.

        ``queues`` are sorted, without repeats, and not empty. Raises :class:`Unavailable` at the limit.
        """
        few = (int(queues[0]),) if len(queues) == 1 else None
        with self.held():
            waiter = Waiter(queues)
            self.watch(topic_id, waiter, few)
            if self.closed:
                waiter.set()
            try:
                yield waiter
            finally:
                self.unwatch(topic_id, waiter, few)

    @contextmanager
    def held(self) -> Iterator[None]:
        """One more long poll is held in this block. Raises :class:`Unavailable` at the limit."""
        if self.count >= self._limit:
            raise Unavailable(
                f"{self.count} long polls are held already, which is the limit; "
                "poll with wait_ms=0, ask for many queues in one request, or raise max_waiters",
                limit=self._limit,
            )
        with nullcontext() if self.share is None else self.share.held():
            self.count += 1
            try:
                yield
            finally:
                self.count -= 1

    def watch(self, topic_id: int, watch: TopicWatch, queues: Sequence[int] | None = None) -> None:
        """Tell ``watch`` of commits to a topic from now on: to these queues, or to any, which costs something at each.

        ``unwatch`` is given the same queues.
        """
        topic = self._topics.setdefault(topic_id, _TopicWatches())
        if queues is None:
            topic.of_many[watch] = None
            return
        for queue in queues:
            topic.by_queue.setdefault(queue, {})[watch] = None

    def unwatch(self, topic_id: int, watch: TopicWatch, queues: Sequence[int] | None = None) -> None:
        topic = self._topics.get(topic_id)
        if topic is None:
            return
        topic.of_many.pop(watch, None)
        for queue in queues or ():
            others = topic.by_queue.get(queue)
            if others is not None:
                others.pop(watch, None)
                if not others:
                    del topic.by_queue[queue]
        if not topic:
            del self._topics[topic_id]

    def wake(self, topic_id: int, pieces: Sequence[NDArray[Any]]) -> None:
        """Tell everybody who watches a queue of ``pieces``, queues of the topic that got messages."""
        topic = self._topics.get(topic_id)
        if topic is None:
            return
        touched = np.unique(np.concatenate(pieces))
        if topic.by_queue:
            found = topic.by_queue.keys() & set(touched.tolist())
            for watch in _each(topic.by_queue[queue] for queue in found):
                watch.touch(touched)
        for watch in topic.of_many:
            watch.touch(touched)

    def wake_topic(self, topic_id: int) -> None:
        """Tell everybody who watches the topic that it is gone, or that another may be read here."""
        topic = self._topics.get(topic_id)
        if topic is not None:
            for watch in topic.all():
                watch.set()

    def wake_all(self) -> None:
        """Set all waiters: what may be read here has changed."""
        for topic_id in self._topics:
            self.wake_topic(topic_id)

    def close(self) -> None:
        """Set all waiters, and all that come later: the node stops."""
        self.closed = True
        self.wake_all()
