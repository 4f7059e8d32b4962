"""What the nodes of a cluster ask of each other, over their internal port and with proof of the cluster's secret."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

#: Answers a request of another node, which has proved the secret. What it is asked and answers is what msgpack knows.
Answering = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


class Peers(Protocol):
    """The other nodes. Loop thread only."""

    def answer(self, operation: str, handler: Answering) -> None:
        """Have ``handler`` answer an operation from here on; what it raises of our errors is told to who asked."""

    async def ask(self, shard: int, operation: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """What the leader of a shard answers. Raises what it answers, ``Unavailable``, ``ConnectionFailed``.

        An error has ``sent`` false in its details where it is certain that the leader was not reached.
        """


class NoPeers:
    """A node of its own leads all shards, and asks nobody."""

    def answer(self, operation: str, handler: Answering) -> None:
        pass

    async def ask(self, shard: int, operation: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        raise AssertionError(f"{operation}: a node of its own asked for the leader of shard {shard}")
