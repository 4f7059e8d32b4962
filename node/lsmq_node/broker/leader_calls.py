"""What the leader of a shard is to do, be it this node or another one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from lsmq.errors import InvalidRequest

from .topology import Topology

Carry = Callable[[int, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Does what it is told for a shard that is led here, and answers; both are what msgpack knows."""


class LeaderCalls:
    """One operation. Loop thread only."""

    def __init__(self, topology: Topology, operation: str, carry_out: Carry, timeout_s: float) -> None:
        self._topology = topology
        self._operation = operation
        self._carry_out = carry_out
        self._timeout_s = timeout_s
        topology.peers.answer(operation, self._answer)

    async def ask(self, shard: int, body: dict[str, Any]) -> dict[str, Any]:
        """What the leader of the shard answers. Raises as ``Peers.ask`` does, or what ``carry_out`` raises."""
        if self._topology.leadership(shard).here:
            return await self._carry_out(shard, body)
        return await self._topology.peers.ask(shard, self._operation, {"shard": shard, **body}, self._timeout_s)

    async def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        return await self._carry_out(asked_shard(self._topology, asked), asked)


def asked_shard(topology: Topology, asked: dict[str, Any]) -> int:
    """The shard that another node asks of. Raises ``InvalidRequest`` for what is none."""
    shard, count = asked["shard"], topology.shard_count
    if type(shard) is not int or not 0 <= shard < count:
        raise InvalidRequest(f"shard is {shard!r}; shards are 0 to {count - 1}")
    return shard
