"""A limit on the bytes in flight, so that many large requests cannot add up to more memory than there is.

Bytes are charged when they arrive, not when they are announced; and nobody may have more than his share of them, so
that one client who takes all he can leaves the others theirs.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from types import TracebackType

from lsmq.errors import Unavailable

_IPV6_NETWORK_BYTES = 8


@lru_cache(4096)
def client_of(address: str | None) -> str:
    """Whose an address is: an IPv4 address alone, an IPv6 address with all of its /64, which is one customer's."""
    if address is None or ":" not in address:
        return address or ""
    parsed = ipaddress.IPv6Address(address.partition("%")[0])
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return parsed.packed[:_IPV6_NETWORK_BYTES].hex()


class Hold:
    """Bytes one request has reserved. A context manager that gives them back at its end."""

    __slots__ = ("_budget", "client", "held_bytes")

    def __init__(self, budget: ByteBudget, client: str | None) -> None:
        self._budget = budget
        self.client = client
        self.held_bytes = 0

    def resize(self, size_bytes: int) -> None:
        """Hold exactly ``size_bytes`` from now on. Raises :class:`Unavailable` when there is no room."""
        self._budget.change(size_bytes - self.held_bytes, self.client)
        self.held_bytes = size_bytes

    def resize_within(self, size_bytes: int) -> None:
        """:meth:`resize` to what may be more than anybody can have: then to all that one can have."""
        self.resize(min(size_bytes, self._budget.share_bytes))

    def resize_made(self, size_bytes: int) -> None:
        """Hold what is made already, whatever the limits: its request is done. Those that come later are refused."""
        self._budget.change(size_bytes - self.held_bytes, self.client, made=True)
        self.held_bytes = size_bytes

    def __enter__(self) -> Hold:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.resize(0)


class ByteBudget:
    """Reservations up to ``limit_bytes`` together, and ``share_bytes`` for each client. Used on the loop thread only.

    A request that alone is larger than the share is never possible: the configuration sees to that.
    """

    __slots__ = ("_by_client", "limit_bytes", "peak_bytes", "refused", "share_bytes", "used_bytes")

    def __init__(self, limit_bytes: int, share_bytes: int | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.share_bytes = limit_bytes if share_bytes is None else min(share_bytes, limit_bytes)
        self.used_bytes = 0
        self.peak_bytes = 0
        self.refused = 0
        self._by_client: dict[str, int] = {}  # of those who hold something

    def hold(self, client: str | None = None) -> Hold:
        """A reservation of no bytes yet, of a client's share or, without one, of nobody's."""
        return Hold(self, client)

    def change(self, delta_bytes: int, client: str | None, *, made: bool = False) -> None:
        """Reserve more or give back. Raises :class:`Unavailable` when a limit would be passed, unless ``made``."""
        used = self.used_bytes + delta_bytes
        own = 0 if client is None else self._by_client.get(client, 0) + delta_bytes
        if delta_bytes > 0 and not made and (used > self.limit_bytes or own > self.share_bytes):
            self.refused += 1
            raise self._refusal(delta_bytes, own if used <= self.limit_bytes else None)
        assert used >= 0 and own >= 0, "more is given back than was held"
        self.used_bytes = used
        if used > self.peak_bytes:
            self.peak_bytes = used
        if client is not None:
            if own:
                self._by_client[client] = own
            else:
                self._by_client.pop(client, None)

    def _refusal(self, delta_bytes: int, own: int | None) -> Unavailable:
        if own is not None:
            return Unavailable(
                f"requests of your address hold {own - delta_bytes} bytes and this one needs {delta_bytes} more, the "
                f"limit is {self.share_bytes} (address_share_percent of max_inflight_bytes); send fewer at a time",
                limit=self.share_bytes,
            )
        return Unavailable(
            f"requests in flight hold {self.used_bytes} of {self.limit_bytes} bytes and this one needs "
            f"{delta_bytes} more; try again shortly, or raise max_inflight_bytes",
            limit=self.limit_bytes,
        )
