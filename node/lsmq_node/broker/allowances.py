"""How much of a node one principal may take: rates, and numbers of what is his at a time.

A limit is the setting ``principal_NAME``, or what was set for the principal himself; 0 is none. What is counted is
counted by this node alone, from its start, but for topics and queues, whose makers are options of theirs; a count of
nothing is not kept, so memory is for what there is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from lsmq.errors import (
    LsmqError,
    TooManyConnections,
    TooManyGroups,
    TooManyProducers,
    TooManyQueues,
    TooManyRequests,
    TooManySchedules,
    TooManyTopics,
    TooManyTransactions,
)
from lsmq_node.config import NodeConfig
from lsmq_node.storage import StoredTopic

from .address_limits import AddressLimits, AddressShare, SharedThing, asked_from
from .pacing import Debts, LimitPace

#: When to come again where nothing says how long others will take.
_RETRY_AFTER_MS: Final = 1_000
_ROUNDING_S: Final = 0.001


class Limited(StrEnum):
    """What is limited. Names reach disk and wire, and are those of settings: never renamed."""

    REQUESTS_PER_S = "requests_per_s"
    BYTES_PER_S = "bytes_per_s"
    OPEN_REQUESTS = "open_requests"  # not answered yet: long polls and streams among them
    CONNECTIONS = "connections"
    TOPICS = "topics"
    QUEUES = "queues"  # of topics with numbered queues; and with names, in a shard
    GROUPS = "groups"  # of consumers
    TRANSACTIONS = "transactions"  # open, or not delivered
    PRODUCERS = "producers"  # idempotent ones that begin
    SCHEDULES = "schedules"

    __hash__ = str.__hash__  # That of Enum is written in Python, and asked for at each request.

    @property
    def setting(self) -> str:
        """For whom nothing else was set."""
        return f"principal_{self}"


_SHARED_PRODUCERS: Final = SharedThing(
    TooManyProducers,
    "idempotent producers at this node that are not forgotten (producer_expiry_ms)",
    "max_producers",
    "use one for many batches",
)

#: The principal whose request is served, where the node asks for that.
asking: ContextVar[str | None] = ContextVar("asking", default=None)

Own = Mapping[str, Mapping[Limited, int]]


class Seat:
    """A connection's place among those of a principal: of who asked by it last. ``leave`` it when it is closed."""

    __slots__ = ("_allowances", "principal")

    def __init__(self, allowances: Allowances) -> None:
        self._allowances = allowances
        self.principal: str | None = None

    def take(self, principal: str) -> None:
        """It is this one's from here on. Raises ``TooManyConnections``."""
        if principal != self.principal:
            self.leave()
            self._allowances.add(Limited.CONNECTIONS, principal)
            self.principal = principal

    def leave(self) -> None:
        if self.principal is not None:
            self._allowances.remove(Limited.CONNECTIONS, self.principal)
            self.principal = None


class Allowances:
    """Of one node. Loop thread only."""

    def __init__(self, config: NodeConfig) -> None:
        self.defaults: Mapping[Limited, int] = {each: getattr(config, each.setting) for each in Limited}
        self._is_anybody_limited = any(self.defaults.values())
        #: By principal, what was set for him.
        self.own: Own = MappingProxyType({})
        self.requests = LimitPace("requests", Limited.REQUESTS_PER_S.setting)
        self.bytes = LimitPace("bytes", Limited.BYTES_PER_S.setting)
        self.refused = dict.fromkeys(_REFUSALS, 0)
        self._counts: dict[tuple[Limited, str], int] = {}
        self._producers = Debts()
        self._producer_expiry_s = config.producer_expiry_ms / 1000
        self.addresses = AddressLimits(config)
        self._address_producers = Debts()
        self._producer_share = self.addresses.share(config.max_producers, _SHARED_PRODUCERS)

    def is_limited(self, principal: str) -> bool:
        """Whether he has any limits: of others nothing need be counted."""
        return self._is_anybody_limited or principal in self.own

    def limit(self, what: Limited, principal: str) -> int:
        own = self.own.get(principal)
        return self.defaults[what] if own is None else own.get(what, self.defaults[what])

    def count(self, what: Limited, principal: str) -> int:
        """How many there are now."""
        return self._counts.get((what, principal), 0)

    def add(self, what: Limited, principal: str) -> None:
        """There is one more. Raises :meth:`refusal` where there are as many as may be."""
        count, limit = self.count(what, principal), self.limit(what, principal)
        if limit and count >= limit:
            raise self.refusal(what, principal, count, limit)
        self._counts[what, principal] = count + 1

    def remove(self, what: Limited, principal: str) -> None:
        """There is one less."""
        left = self._counts.pop((what, principal)) - 1
        if left:
            self._counts[what, principal] = left

    async def pace(self, principal: str) -> None:
        """Take a request; return when the principal may go on. Raises ``TooManyRequests``."""
        requests, size = (self.limit(each, principal) for each in (Limited.REQUESTS_PER_S, Limited.BYTES_PER_S))
        await self.requests.wait(principal, requests, 1, principal)
        await self.bytes.wait(principal, size, 0, principal)

    def took_bytes(self, principal: str, count: int) -> None:
        """He has had so many, whatever the limit."""
        self.bytes.took(principal, self.limit(Limited.BYTES_PER_S, principal), count)

    def limits_topics(self, principal: str) -> bool:
        """Whether it is to be known which topics he makes."""
        return any(self.limit(each, principal) for each in (Limited.TOPICS, Limited.QUEUES))

    def make_topic(self, principal: str | None, queues: int, known: Callable[[], Sequence[StoredTopic]]) -> str | None:
        """He makes a topic with so many numbered queues: who is to be known as its maker.

        ``known``: all topics there are. Raises ``TooManyTopics``, ``TooManyQueues``.
        """
        if principal is None or not self.limits_topics(principal):
            return None
        own = [topic for topic in known() if topic.options.made_by == principal]
        count, limit = len(own), self.limit(Limited.TOPICS, principal)
        if limit and count >= limit:
            raise self.refusal(Limited.TOPICS, principal, count, limit)
        self.grow_topic(principal, queues, own)
        return principal

    def grow_topic(self, principal: str, queues: int, others: Sequence[StoredTopic]) -> None:
        """A topic that he made is to have so many queues beside those of ``others``. Raises ``TooManyQueues``."""
        limit = self.limit(Limited.QUEUES, principal)
        own = (topic for topic in others if topic.options.made_by == principal and not topic.named)
        count = sum(topic.queues for topic in own)
        if limit and count + queues > limit:
            raise self.refusal(Limited.QUEUES, principal, count, limit)

    def counts_producers(self) -> bool:
        """Whether whoever asks may begin only so many idempotent producers."""
        principal = asking.get()
        limited = principal is not None and self.limit(Limited.PRODUCERS, principal) > 0
        return limited or asked_from.get() is not None

    def admit_producers(self, count: int) -> None:
        """So many idempotent producers are to begin that somebody asks for. Raises ``TooManyProducers``.

        As many as may be within the time after which they are forgotten: at once, and then as time allows.
        """
        for debts, who, limit in self._producers_of() if count else ():
            per_s, now = limit / self._producer_expiry_s, asyncio.get_running_loop().time()
            owed_s = debts.due(who, now, per_s) - now
            if owed_s + count / per_s > self._producer_expiry_s + _ROUNDING_S:
                had = round(owed_s * per_s)
                if debts is self._address_producers:
                    raise self._producer_share.refusal(had)
                raise self.refusal(Limited.PRODUCERS, who, had, limit)

    def began_producers(self, count: int) -> None:
        """So many that :meth:`admit_producers` let through are stored."""
        for debts, who, limit in self._producers_of() if count else ():
            per_s, now = limit / self._producer_expiry_s, asyncio.get_running_loop().time()
            debts.owe(who, debts.due(who, now, per_s) + count / per_s, per_s)

    def _producers_of(self) -> list[tuple[Debts, str, int]]:
        """As whom whoever asks is counted, and how many he may begin."""
        principal, address, found = asking.get(), asked_from.get(), []
        if principal is not None and (limit := self.limit(Limited.PRODUCERS, principal)):
            found.append((self._producers, principal, limit))
        if address is not None:
            found.append((self._address_producers, address, self._producer_share.limit))
        return found

    def refusal(self, what: Limited, principal: str, count: int, limit: int) -> LsmqError:
        """The principal has ``count``, and may not have more. It is counted."""
        self.refused[what] += 1
        kind, words, remedy = _REFUSALS[what]
        later = {"retry_after_ms": _RETRY_AFTER_MS} if kind is TooManyRequests else {}
        return kind(
            f"{principal} has {count} {words}, and the limit is {limit} ({what.setting}); {remedy}, or have an "
            f"administrator raise it (lsmq limit set {principal})",
            setting=what.setting,
            limit=limit,
            sent=False,
            **later,
        )


@dataclass(frozen=True, slots=True)
class Maker:
    """Who makes something: a principal, where the node asks for that, and an address. None: nobody that is known."""

    principal: str | None = None
    address: str | None = None

    @classmethod
    def asking(cls) -> Maker:
        """Whoever asks for what is done now."""
        return cls(asking.get(), asked_from.get())


#: Of what nobody asks for.
NOBODY: Final = Maker()


class Made:
    """Things of one kind, and who made those that were made since this object was: principals with a limit, and
    addresses where these have a ``share``."""

    def __init__(self, allowances: Allowances, what: Limited, share: AddressShare | None = None) -> None:
        self._allowances = allowances
        self._what = what
        self._share = share
        self._maker: dict[Hashable, Maker] = {}
        self._counts: dict[str, int] = {}

    def make(self, key: Hashable, maker: Maker | None = None) -> None:
        """Somebody makes it: ``maker``, or whoever asks. Raises :meth:`Allowances.refusal` or
        :meth:`AddressShare.refusal` where he has made as many as he may."""
        counted = self.check(key, maker)
        if counted == NOBODY:
            return
        self._maker[key] = counted
        if counted.principal is not None:
            self._counts[counted.principal] = self._counts.get(counted.principal, 0) + 1
        if self._share is not None:
            self._share.add(counted.address)

    def check(self, key: Hashable, maker: Maker | None = None) -> Maker:
        """Who is counted when it is made, if anybody. Raises as :meth:`make`."""
        if key in self._maker:
            return NOBODY
        maker = maker or Maker.asking()
        principal, address = maker.principal, None if self._share is None else maker.address
        limit = 0 if principal is None else self._allowances.limit(self._what, principal)
        if principal is not None and limit and (count := self._counts.get(principal, 0)) >= limit:
            raise self._allowances.refusal(self._what, principal, count, limit)
        if self._share is not None:
            self._share.check(address)
        return Maker(principal if limit else None, address)

    def gone(self, key: Hashable) -> None:
        """There is nothing left of it."""
        maker = self._maker.pop(key, None)
        if maker is None:
            return
        if maker.principal is not None:
            self._counts[maker.principal] -= 1
            if not self._counts[maker.principal]:
                del self._counts[maker.principal]
        if self._share is not None:
            self._share.remove(maker.address)


#: What is raised, what is counted, and what to do.
_REFUSALS: Final[Mapping[Limited, tuple[type[LsmqError], str, str]]] = MappingProxyType(
    {
        Limited.OPEN_REQUESTS: (
            TooManyRequests,
            "requests at this node that are not answered yet",
            "wait for answers, ask for more at a time",
        ),
        Limited.CONNECTIONS: (TooManyConnections, "connections to this node", "use fewer, for many requests each"),
        Limited.TOPICS: (TooManyTopics, "topics", "delete some, give a topic more queues"),
        Limited.QUEUES: (TooManyQueues, "queues", "delete some"),
        Limited.GROUPS: (TooManyGroups, "groups in this shard", "delete groups that nobody uses"),
        Limited.TRANSACTIONS: (
            TooManyTransactions,
            "transactions in this shard that are open or not delivered",
            "finish some",
        ),
        Limited.PRODUCERS: (
            TooManyProducers,
            "idempotent producers at this node that are not forgotten (producer_expiry_ms)",
            "use one for many batches",
        ),
        Limited.SCHEDULES: (TooManySchedules, "schedules in this shard", "delete some"),
    }
)
