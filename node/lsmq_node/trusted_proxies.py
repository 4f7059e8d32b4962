"""Proxies that this node believes when they say for which address they ask (``X-Forwarded-For``).

Each proxy on the way writes the address that it was asked from behind those that it was told. So they are read from the
right, and the first that is none of the proxies' own is the client's: whatever a client writes into the header stands
left of it. Of who is no such proxy nothing is read.

Not supported: ``Forwarded`` (RFC 7239), the PROXY protocol, proxies without an address (Unix sockets).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from functools import lru_cache

from .settings import InvalidConfig

_SETTING = "trusted_proxies"

IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class TrustedProxies:
    def __init__(self, networks: str) -> None:
        """``networks``: addresses and networks, separated by commas. Raises ``InvalidConfig``."""
        self._networks = tuple(_network(each.strip()) for each in networks.split(",") if each.strip())
        self.has = lru_cache(4096)(self._has)

    def __bool__(self) -> bool:
        return bool(self._networks)

    def _has(self, address: str) -> bool:
        """Whether this is the address of one of them."""
        found = _address(address)
        return found is not None and self._are(found)

    def _are(self, address: IpAddress) -> bool:
        return any(address in network for network in self._networks)

    def client(self, peer: str, said: Sequence[str]) -> str:
        """Where a request came from: ``peer``, or as proxies among them ``said`` in headers, the first to last.

        What is no address ends what can be believed: then it is the last that was.
        """
        client = peer
        for text in reversed([part for value in said for part in value.split(",")]):
            if not self.has(client):
                break
            found = _address(text.strip())
            if found is None:
                break
            client = str(found)
        return client


NO_PROXIES = TrustedProxies("")


def _network(text: str) -> IpNetwork:
    try:
        found = ipaddress.ip_network(text)
    except ValueError as error:
        raise InvalidConfig(
            f"{_SETTING} has {text!r}, which is no address and no network ({error}); write 10.0.9.7 or 10.0.9.0/24",
            setting=_SETTING,
        ) from error
    if not found.prefixlen:
        raise InvalidConfig(
            f"{_SETTING} has {text!r}, which is everybody: then anybody is from where he says; name the proxies",
            setting=_SETTING,
        )
    return found


def _address(text: str) -> IpAddress | None:
    """An address as proxies write it, with a port or without."""
    host = text
    if text.startswith("["):
        host = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        host = text.partition(":")[0]
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return found if mapped is None else mapped
