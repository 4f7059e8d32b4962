"""Names of nodes to addresses, so that a name server that hangs or forgets a node holds up nothing else.

The resolvers of asyncio and aiohttp share the few threads of the loop's executor: lookups of one name that hang for
20 s, and are given up and begun again meanwhile, leave no thread for the others. Here a name has one lookup at a time,
in a thread of its own, and while that is under way or has failed its last good address is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from dataclasses import dataclass, field

from aiohttp.abc import AbstractResolver, ResolveResult

from lsmq import runtime

#: An address is looked up anew after so long; a node that moved is found by then.
FRESH_S = 5.0
#: So many are kept, those asked for last: more than a cluster has nodes.
MAX_NAMES = 1_024
#: So long a lookup is waited for when there is an address of before.
_PATIENCE_S = 0.1


@dataclass(slots=True)
class _Name:
    addresses: list[tuple[int, str]] = field(default_factory=list)  # family, address
    looked_up_at: float = float("-inf")
    lookup: asyncio.Future[list[tuple[int, str]]] | None = None


class Names(AbstractResolver):
    """For aiohttp's connectors, and by :meth:`address` for others. Belongs to one event loop; keeps no threads."""

    def __init__(self) -> None:
        self._names: dict[str, _Name] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Raises ``OSError`` when the name has no address and never had one."""
        return [
            ResolveResult(hostname=host, host=address, port=port, family=kind, proto=0, flags=socket.AI_NUMERICHOST)
            for kind, address in await self._addresses(host)
            if family in (socket.AF_UNSPEC, kind)
        ]

    async def address(self, host: str) -> str:
        """The first address. Raises ``OSError``."""
        return (await self._addresses(host))[0][1]

    async def close(self) -> None:
        """Nothing is kept; lookups under way end by themselves."""

    async def _addresses(self, host: str) -> list[tuple[int, str]]:
        try:
            literal = ipaddress.ip_address(host)
        except ValueError:
            pass
        else:
            return [(socket.AF_INET if literal.version == 4 else socket.AF_INET6, host)]
        name = self._names.pop(host, None) or _Name()
        self._names[host] = name
        if len(self._names) > MAX_NAMES:
            del self._names[next(iter(self._names))]
        if runtime.monotonic() - name.looked_up_at < FRESH_S:
            return name.addresses
        if name.lookup is None:
            name.lookup = self._look_up(host, name)
        if not name.addresses:
            return await asyncio.shield(name.lookup)
        await asyncio.wait([name.lookup], timeout=_PATIENCE_S)
        return name.addresses

    def _look_up(self, host: str, name: _Name) -> asyncio.Future[list[tuple[int, str]]]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[tuple[int, str]]] = loop.create_future()

        def done(found: list[tuple[int, str]] | OSError) -> None:
            name.lookup = None
            if isinstance(found, OSError):
                future.set_exception(found)
                future.exception()  # Nobody may be waiting any more.
                return
            name.addresses, name.looked_up_at = found, runtime.monotonic()
            future.set_result(found)

        def look_up() -> None:
            found: list[tuple[int, str]] | OSError
            try:
                answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
                found = list(dict.fromkeys((int(kind), str(where[0])) for kind, _, _, _, where in answers))
            except OSError as error:
                found = error
            with contextlib.suppress(RuntimeError):  # The loop may be closed by now.
                loop.call_soon_threadsafe(done, found)

        runtime.Thread(target=look_up, name=f"lsmq-name-{host}", daemon=True).start()
        return future
