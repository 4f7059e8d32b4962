"""Filling a replica again whose files turned out to be damaged while it ran.

The log of such a replica is as good as ever, so it goes on following and acknowledging, until all that its leader has
lies beside its own files: a snapshot, fetched with the store open. Then it is set aside as a whole, as a directory that
cannot be opened is, and begins with nothing but its record: it is a new incarnation, leaves the in-sync set under the
old one, takes what was fetched and the log from there on, and joins. What was set aside is kept for an operator.

This is done only while ``min_in_sync`` other replicas are in sync, so that writes go on all the time. A leader is not
filled again: it hands its leadership over first (``ClusterMember.tidy``), and stays as it is when there is nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from lsmq_node.replication import ControlView

_log = structlog.get_logger("lsmq.cluster")

RETRY_S = 5.0


def can_be_spared(view: ControlView | None, node: str) -> bool:
    """Whether another replica leads, and enough others are in sync for writes to go on without this one."""
    if view is None or view.leader in (None, node):
        return False
    return len({member.node for member in view.in_sync} - {node}) >= view.min_in_sync


class Repair:
    """Loop thread only. ``found`` is what is known to be damaged, in words; empty while nothing is."""

    def __init__(
        self,
        shard: int,
        node: str,
        view: Callable[[], ControlView | None],
        fetch: Callable[[str], Awaitable[object]],
        begin_anew: Callable[[str], None],
    ) -> None:
        """Args:
        fetch: from a peer, all it has, into a place beside the files of the replica.
        begin_anew: ``(reason)``: set the replica aside and open an empty one with what was fetched.
        """
        self.found: tuple[str, ...] = ()
        self._shard = shard
        self._node = node
        self._view = view
        self._fetch = fetch
        self._begin_anew = begin_anew
        self._task: asyncio.Task[None] | None = None

    def note(self, *damage: str) -> None:
        self.found = tuple(dict.fromkeys((*self.found, *damage)))

    def look(self) -> None:
        """Begin when there is reason to and nothing against it. To be called now and then."""
        if self.found and self._task is None and can_be_spared(self._view(), self._node):
            self._task = asyncio.get_running_loop().create_task(self._repair(), name=f"repair of shard {self._shard}")

    async def give_way(self) -> None:
        """Stop for now: somebody else is to use the same place. Returns when that is so."""
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            await asyncio.wait([task])

    async def _repair(self) -> None:
        view = self._view()
        if view is None or view.leader is None:
            self._task = None
            return
        _log.error("replica_damaged", shard=self._shard, damage=self.found[0], refilling_from=view.leader)
        try:
            await self._fetch(view.leader)
        except Exception as error:
            _log.warning("replica_not_refilled", shard=self._shard, source=view.leader, error=str(error))
            await asyncio.sleep(RETRY_S)
            self._task = None
            return
        self._task = None
        if can_be_spared(self._view(), self._node):
            self._begin_anew(self.found[0])
