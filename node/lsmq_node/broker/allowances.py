"""How much of a node one principal may take: rates, and numbers of what is his at a time.

A limit is the setting ``principal_NAME``, or what was set for the principal himself; 0 is none. What is counted is
counted by this node alone, from its start; a count of nothing is not kept, so memory is for what there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from lsmq.errors import LsmqError, TooManyConnections, TooManyRequests
from lsmq_node.config import NodeConfig

from .pacing import Pace

#: When to come again where nothing says how long others will take.
_RETRY_AFTER_MS: Final = 1_000


class Limited(StrEnum):
    """What is limited. Names reach disk and wire, and are those of settings: never renamed."""

    REQUESTS_PER_S = "requests_per_s"
    BYTES_PER_S = "bytes_per_s"
    OPEN_REQUESTS = "open_requests"  # not answered yet: long polls and streams among them
    CONNECTIONS = "connections"

    @property
    def setting(self) -> str:
        """For whom nothing else was set."""
        return f"principal_{self}"


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
        #: By principal, what was set for him.
        self.own: Own = MappingProxyType({})
        self.requests = Pace("requests", Limited.REQUESTS_PER_S.setting)
        self.bytes = Pace("bytes", Limited.BYTES_PER_S.setting)
        self.refused = dict.fromkeys(_WORDS, 0)
        self._counts: dict[tuple[Limited, str], int] = {}

    def limit(self, what: Limited, principal: str) -> int:
        own = self.own.get(principal)
        return self.defaults[what] if own is None else own.get(what, self.defaults[what])

    def count(self, what: Limited, principal: str) -> int:
        """How many there are now."""
        return self._counts.get((what, principal), 0)

    def add(self, what: Limited, principal: str) -> None:
        """There is one more. Raises what :meth:`refusal` returns where there are as many as may be."""
        count, limit = self.count(what, principal), self.limit(what, principal)
        if limit and count >= limit:
            raise self._refusal(what, principal, count, limit)
        self._counts[what, principal] = count + 1

    def remove(self, what: Limited, principal: str) -> None:
        """There is one less."""
        left = self._counts.pop((what, principal)) - 1
        if left:
            self._counts[what, principal] = left

    @contextmanager
    def open_request(self, principal: str) -> Iterator[None]:
        """A request is open in this block. Raises ``TooManyRequests``."""
        self.add(Limited.OPEN_REQUESTS, principal)
        try:
            yield
        finally:
            self.remove(Limited.OPEN_REQUESTS, principal)

    async def pace(self, principal: str) -> None:
        """Take a request; return when the principal may go on. Raises ``TooManyRequests``."""
        requests, size = (self.limit(each, principal) for each in (Limited.REQUESTS_PER_S, Limited.BYTES_PER_S))
        await self.requests.wait(principal, requests, 1, principal)
        await self.bytes.wait(principal, size, 0, principal)

    def took_bytes(self, principal: str, count: int) -> None:
        """He has had so many, whatever the limit."""
        self.bytes.took(principal, self.limit(Limited.BYTES_PER_S, principal), count)

    def _refusal(self, what: Limited, principal: str, count: int, limit: int) -> LsmqError:
        self.refused[what] += 1
        said = f"{principal} has {count} {_WORDS[what]} at this node, the limit ({what.setting}); "
        details = {"setting": what.setting, "limit": limit, "sent": False}
        if what is Limited.CONNECTIONS:
            return TooManyConnections(f"{said}use fewer, for many requests each", **details)
        return TooManyRequests(
            f"{said}wait for answers, or ask for more at a time", retry_after_ms=_RETRY_AFTER_MS, **details
        )


_WORDS: Final[Mapping[Limited, str]] = MappingProxyType(
    {
        Limited.OPEN_REQUESTS: "requests that are not answered yet",
        Limited.CONNECTIONS: "connections",
    }
)
