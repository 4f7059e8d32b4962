"""What one address may have of what a node has for all: a share (``address_share_percent``), whoever asks from there.

Each node counts for itself, from its start; what is there longer than a request is counted by who keeps it, since he
began to. A node that passes a request on says for which address; what no address asked for is not counted. A count of
nothing is not kept, so memory is for what there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from lsmq.errors import LsmqError, TooManyTopics
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
    """Which topics an address made by this node, of those that there are still. Bounded by the topics there are."""

    def __init__(self, limits: AddressLimits, most: int) -> None:
        thing = SharedThing(
            TooManyTopics, "topics, made by this node", "max_topics", "delete some, give a topic more queues"
        )
        self._share = limits.share(most, thing)
        self._most = most
        self._made: dict[str, set[int]] = {}
        self._count = 0

    def check(self, address: str | None, known: Sequence[StoredTopic]) -> None:
        """Whether it may make one more beside those that are ``known``. Raises ``TooManyTopics``."""
        if address is not None and len(self._made.get(address, ())) >= self._share.limit:
            self._forget_gone(known)
            if (count := len(self._made.get(address, ()))) >= self._share.limit:
                raise self._share.refusal(count)
        elif self._count > 2 * self._most:
            self._forget_gone(known)

    def made(self, address: str | None, topic: StoredTopic) -> None:
        if address is not None:
            self._made.setdefault(address, set()).add(topic.id)
            self._count += 1

    def _forget_gone(self, known: Sequence[StoredTopic]) -> None:
        there = {topic.id for topic in known}
        left = {address: own & there for address, own in self._made.items()}
        self._made = {address: own for address, own in left.items() if own}
        self._count = sum(map(len, self._made.values()))
