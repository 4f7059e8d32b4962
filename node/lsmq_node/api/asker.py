"""Who sent a request, and what he may: found out once, checked for each resource that the request names."""

from __future__ import annotations

import asyncio

from lsmq import runtime
from lsmq.errors import Unauthenticated, Unavailable
from lsmq_node.rights import Action, Proven, ResourceKind, RightsHolder, RightsService, SessionCookie, ShownCredentials

from .access import ADMINISTERING, Access

#: The clock may be set while somebody is held, or the machine may sleep.
_LOOK_AGAIN_S = 60.0


class Asker:
    """Of one request. Where the node asks nobody who he is, everything is allowed."""

    __slots__ = ("_access", "_checked", "_rights", "_shown", "_version", "administers", "holder", "proven")

    def __init__(self, rights: RightsService, access: Access, shown: ShownCredentials) -> None:
        self._rights = rights
        self._access = access
        self._shown = shown
        self._version = 0
        self._checked: set[tuple[ResourceKind, str, Action]] = set()
        #: Whether he was asked for a right of administration.
        self.administers = False
        #: None: nobody in particular.
        self.holder: RightsHolder | None = None
        self.proven: Proven | None = None

    @property
    def name(self) -> str | None:
        """Of the principal; None where nobody is asked."""
        return None if self.holder is None else self.holder.name

    @property
    def expires_ms(self) -> int | None:
        """When what he showed ends."""
        return None if self.proven is None else self.proven.expires_ms

    @property
    def cookie(self) -> SessionCookie | None:
        """Of the browser's session that he is known by; None where he is not."""
        return SessionCookie.parsed(self._shown.secret) if self._shown.by_cookie else None

    async def identify(self) -> None:
        """Raises ``Unauthenticated``, ``Unavailable``; where everybody is answered, nothing."""
        if self._rights.on and self._access.tells:
            try:
                await self._find_out()
            except (Unauthenticated, Unavailable):
                self.forget()
        elif self._rights.on and not self._access.open:
            await self._find_out()

    def forget(self) -> None:
        """He is nobody in particular, whatever he showed."""
        self._shown, self.holder, self.proven = ShownCredentials(), None, None

    async def _find_out(self) -> None:
        proven = await self._rights.authenticated(self._shown)
        self.holder = self._rights.holder(proven)
        self.proven, self._version = proven, self._rights.version

    @property
    def is_told(self) -> bool:
        """Of an operation that is open to everybody: whether he is told what others are not."""
        if not self._rights.on:
            return True
        return self.holder is not None and self.holder.may(ResourceKind.CLUSTER, "", Action.DESCRIBE)

    def check_named(self, kind: ResourceKind, name: str) -> None:
        """May the operation be done to this resource? Raises ``Forbidden``."""
        if self.holder is not None:
            action = self._access.action(kind)
            assert action is not None, f"an operation that asks for a {kind} does not say in its table what it needs"
            self.check(kind, name, action)

    def check(self, kind: ResourceKind, name: str, action: Action) -> None:
        """Raises ``Forbidden``."""
        self.administers |= action in ADMINISTERING
        if self.holder is not None and (asked := (kind, name, action)) not in self._checked:
            self._rights.check(self.holder, *asked)
            self._checked.add(asked)

    def sees(self, kind: ResourceKind, name: str, action: Action = Action.DESCRIBE) -> bool:
        """Whether a list shows him this resource: what takes another right than to know of it names that."""
        return self.holder is None or self.holder.may(kind, name, action)

    def check_again(self) -> None:
        """Whether all that was checked would be allowed now. Raises ``Unauthenticated``, ``Forbidden``."""
        if self.proven is None or (self._version == self._rights.version and not self._is_over()):
            return
        self.holder = self._rights.holder(self.proven)
        self._version = self._rights.version
        for asked in self._checked:
            self._rights.check(self.holder, *asked)

    def _is_over(self) -> bool:
        return self.expires_ms is not None and runtime.wall_ms() >= self.expires_ms

    async def barred(self) -> None:
        """Until he may not any more. Then raises ``Unauthenticated`` or ``Forbidden``; never returns."""
        while True:
            self.check_again()  # It may be so already.
            left_s = None
            if self.expires_ms is not None:
                left_s = min(max(0.0, (self.expires_ms - runtime.wall_ms()) / 1000), _LOOK_AGAIN_S)
            try:
                async with asyncio.timeout(left_s):
                    await self._rights.changed()
            except TimeoutError:
                pass

    def token(self) -> str | None:
        """The bearer token of a request that is made for him elsewhere, now; None where nobody asks."""
        if self.proven is None:
            return None
        return self._shown.secret if self._shown.authorization is not None else self._rights.voucher(self.proven)
