"""How the groups that this node serves are shared, as their coordinators are told again and again.

A group may be deleted while it is used. Its coordinator then knows nothing of it: others could share it in another way,
and what it has committed would be forgotten with groups that nobody uses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from lsmq.errors import GroupModeMismatch, LsmqError

from .plan import Mode

_log = structlog.get_logger("lsmq.groups")

AGAIN_S = 60.0
_REMEMBERED = 10_000


class DeclaredGroups:
    """Loop thread only."""

    def __init__(self, declare: Callable[[str, Mode], Awaitable[None]]) -> None:
        """``declare`` tells the coordinator of a group. Raises ``GroupModeMismatch``, ``Unavailable``."""
        self._declare = declare
        self._told: dict[tuple[str, Mode], float] = {}

    def is_due(self, group: str, mode: Mode) -> bool:
        """Whether its coordinator was not told within the last minute."""
        return asyncio.get_running_loop().time() - self._told.get((group, mode), float("-inf")) >= AGAIN_S

    async def declare(self, group: str, mode: Mode) -> None:
        """Tell its coordinator. Raises ``GroupModeMismatch``, ``Unavailable``."""
        await self._declare(group, mode)
        self._note(group, mode)

    async def again(self, group: str, mode: Mode) -> None:
        """Tell its coordinator where that is due; one that cannot be asked is told later.

        Raises ``GroupModeMismatch`` where others have made it a group of another kind since.
        """
        if not self.is_due(group, mode):
            return
        self._note(group, mode)  # Others do not wait for the answer.
        try:
            await self._declare(group, mode)
        except GroupModeMismatch:
            self._told.pop((group, mode), None)
            raise
        except LsmqError as error:
            _log.info("group_not_declared", group=group, mode=mode.value, code=error.code)

    def _note(self, group: str, mode: Mode) -> None:
        if len(self._told) >= _REMEMBERED:
            self._told.clear()
        self._told[group, mode] = asyncio.get_running_loop().time()
