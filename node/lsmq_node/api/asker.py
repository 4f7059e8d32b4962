"""Who sent a request, and what he may: found out once, checked for each resource that the request names."""

from __future__ import annotations

import asyncio

from lsmq import runtime
from lsmq_node.rights import Action, Holder, Kind, RightsService

from .access import Access


class Asker:
    """Of one request. Where the node asks nobody who he is, everything is allowed."""

    __slots__ = ("_access", "_authorization", "_checked", "_expires_ms", "_rights", "_version", "holder")

    def __init__(self, rights: RightsService, access: Access, authorization: str | None) -> None:
        self._rights = rights
        self._access = access
        self._authorization = authorization
        self._expires_ms: int | None = None
        self._version = 0
        self._checked: set[tuple[Kind, str, Action]] = set()
        #: None: nobody in particular.
        self.holder: Holder | None = None

    @property
    def name(self) -> str | None:
        """Of the principal; None where nobody is asked."""
        return None if self.holder is None else self.holder.name

    @property
    def expires_ms(self) -> int | None:
        """When what he showed ends."""
        return self._expires_ms

    async def identify(self) -> None:
        """Raises ``Unauthenticated``, ``Unavailable``."""
        if self._rights.on and not self._access.open:
            self.holder, self._expires_ms = await self._rights.authenticated(self._authorization)
            self._version = self._rights.version

    def check_named(self, kind: Kind, name: str) -> None:
        """May the operation be done to this resource? Raises ``Forbidden``."""
        if self.holder is not None:
            action = self._access.action(kind)
            assert action is not None, f"an operation that asks for a {kind} does not say in its table what it needs"
            self.check(kind, name, action)

    def check(self, kind: Kind, name: str, action: Action) -> None:
        """Raises ``Forbidden``."""
        if self.holder is not None and (asked := (kind, name, action)) not in self._checked:
            self._rights.check(self.holder, *asked)
            self._checked.add(asked)

    def sees(self, kind: Kind, name: str) -> bool:
        """Whether a list shows him this resource."""
        return self.holder is None or self.holder.may(kind, name, Action.DESCRIBE)

    def check_again(self) -> None:
        """Whether all that was checked would be allowed now. Raises ``Unauthenticated``, ``Forbidden``."""
        if self.holder is None or (self._version == self._rights.version and not self._is_over()):
            return
        self.holder = self._rights.again(self._authorization)
        self._version = self._rights.version
        for asked in self._checked:
            self._rights.check(self.holder, *asked)

    def _is_over(self) -> bool:
        return self._expires_ms is not None and runtime.wall_ms() >= self._expires_ms

    async def barred(self) -> None:
        """Until he may not any more. Then raises ``Unauthenticated`` or ``Forbidden``; never returns."""
        while True:
            left_s = None
            if self._expires_ms is not None:
                left_s = max(0.0, (self._expires_ms - runtime.wall_ms()) / 1000)
            try:
                async with asyncio.timeout(left_s):
                    await self._rights.changed()
            except TimeoutError:
                pass
            self.check_again()

    @property
    def authorization(self) -> str | None:
        """What a request that is made for him elsewhere must say; None where nobody asks."""
        return self._authorization if self.holder is not None else None
