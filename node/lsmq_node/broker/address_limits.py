"""What one address may have of what a node has for all: a share (``address_share_percent``), whoever asks from there.

Each node counts for itself, from its start; what is there longer than a request is counted by who keeps it, since he
began to. A node that passes a request on says for which address; what no address asked for is not counted. A count of
nothing is not kept, so memory is for what there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from lsmq.errors import LsmqError, TooManyQueues, TooManyTopics
from lsmq_node.config import NodeConfig
from lsmq_node.storage import StoredTopic

SETTING = "address_share_percent"

#: The address (of IPv6, its /64) that the request which is served came from; None: from none.
asked_from: ContextVar[str | None] = ContextVar("asked_from", default=None)


@dataclass(frozen=True, slots=True)
class SharedThing:
    """Things of one kind: ``words`` for many of them, which setting or number ``limits`` all, what helps."""

    error: type[LsmqError]
    words: str
    limits: str
    remedy: str


class AddressLimits:
    """Of one node. Loop thread only."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self.refused = 0

    def share(self, most: int, thing: SharedThing) -> AddressShare:
        """What each address may have of ``most`` things."""
        return AddressShare(self, self._config.share_of(most), thing)


class AddressShare:
    """How many things of one kind each address has. Loop thread only."""

    def __init__(self, limits: AddressLimits, limit: int, thing: SharedThing) -> None:
        self.limit = limit
        self._limits = limits
        self._thing = thing
        self._counts: dict[str, int] = {}

    def check(self, address: str | None) -> None:
        """Whether it may have one more. Raises :meth:`refusal`."""
        if address is not None and (count := self._counts.get(address, 0)) >= self.limit:
            raise self.refusal(count)

    def add(self, address: str | None) -> None:
        """It has one more."""
        if address is not None:
            self._counts[address] = self._counts.get(address, 0) + 1

    def remove(self, address: str | None) -> None:
        """It has one less."""
        if address is not None:
            left = self._counts.pop(address) - 1
            if left:
                self._counts[address] = left

    @contextmanager
    def held(self) -> Iterator[None]:
        """Whoever asks has one more in this block. Raises :meth:`refusal`."""
        address = asked_from.get()
        self.check(address)
        self.add(address)
        try:
            yield
        finally:
            self.remove(address)

    def refusal(self, count: int) -> LsmqError:
        """An address has so many, and may not have more. It is counted."""
        self._limits.refused += 1
        thing = self._thing
        return thing.error(
            f"your address has {count} {thing.words}, and its share is {self.limit} ({SETTING} of {thing.limits}); "
            f"{thing.remedy}",
            setting=SETTING,
            limit=self.limit,
            sent=False,
        )


class TopicShares:
    """Which topics an address made by this node, of those that there are still, and how many numbered queues it gave to
    any. Bounded by the topics there may be: of addresses beyond that nothing is remembered. Loop thread only."""

    def __init__(self, limits: AddressLimits, most: int, most_queues: int) -> None:
        """There may be so many topics, and so many queues of all topics together."""
        remedy = "delete some, give a topic more queues"
        topics = SharedThing(TooManyTopics, "topics, made by this node", "max_topics", remedy)
        remedy = "delete topics, make them with fewer queues"
        queues = SharedThing(TooManyQueues, "queues of topics, made by this node", "max_queues", remedy)
        self._topic_share, self._queue_share = limits.share(most, topics), limits.share(most_queues, queues)
        self._most = most
        self._made: dict[str, set[int]] = {}  # topics, by address
        self._queues: dict[str, dict[int, int]] = {}  # by address: by topic
        self._count = 0  # of what both have

    def check(self, address: str | None, queues: int, known: Callable[[], Sequence[StoredTopic]]) -> None:
        """Whether it may make one more, of so many queues with numbers, beside those that are ``known``.

        Raises ``TooManyTopics``, ``TooManyQueues``.
        """
        if address is not None and len(self._made.get(address, ())) >= self._topic_share.limit:
            self._forget_gone(known())
            if (count := len(self._made.get(address, ()))) >= self._topic_share.limit:
                raise self._topic_share.refusal(count)
        self.check_growth(address, queues, known)

    def check_growth(self, address: str | None, queues: int, known: Callable[[], Sequence[StoredTopic]]) -> None:
        """Whether it may give a topic so many more. Raises ``TooManyQueues``."""
        if self._count > 2 * self._most:
            self._forget_gone(known())
        if address is not None and self._has(address) + queues > self._queue_share.limit:
            self._forget_gone(known())
            if (count := self._has(address)) + queues > self._queue_share.limit:
                raise self._queue_share.refusal(count)

    def made(self, address: str | None, topic: StoredTopic) -> None:
        """It made the topic."""
        if address is not None and self._count <= 2 * self._most:
            self._made.setdefault(address, set()).add(topic.id)
            self._count += 1
        self._gave(address, topic.id, 0 if topic.named else topic.queues)

    def grew(self, address: str | None, before: StoredTopic, after: StoredTopic) -> None:
        """It gave a topic more queues with numbers."""
        if before.id == after.id:
            self._gave(address, after.id, after.queues - before.queues)

    def _gave(self, address: str | None, topic_id: int, queues: int) -> None:
        if address is None or not queues or self._count > 2 * self._most:
            return
        own = self._queues.setdefault(address, {})
        self._count += topic_id not in own
        own[topic_id] = own.get(topic_id, 0) + queues

    def _has(self, address: str) -> int:
        return sum(self._queues.get(address, {}).values())

    def _forget_gone(self, known: Sequence[StoredTopic]) -> None:
        there = {topic.id for topic in known}
        made = {address: own & there for address, own in self._made.items()}
        self._made = {address: own for address, own in made.items() if own}
        gave = {address: {id: own[id] for id in own.keys() & there} for address, own in self._queues.items()}
        self._queues = {address: own for address, own in gave.items() if own}
        self._count = sum(map(len, self._made.values())) + sum(map(len, self._queues.values()))
