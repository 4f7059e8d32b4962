"""What the nodes of a cluster ask of each other, over their internal port and with proof of the cluster's secret."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

#: Answers a request of another node, which has proved the secret. What it is asked and answers is what msgpack knows.
Answering = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
#: Answers a client's request that another node passed on, given as the server has it and its path in the API.
AnsweringPassed = Callable[[Any, str], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class PassedOn:
    """A client's request as it goes on to the leader of a shard. ``path`` has its query, as it was sent."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class PassedBack:
    """What the leader answered, an error of its included."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Peers(Protocol):
    """The other nodes. Loop thread only."""

    def answer(self, operation: str, handler: Answering) -> None:
        """Have ``handler`` answer an operation from here on; what it raises of our errors is told to who asked."""

    async def ask(self, shard: int, operation: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """What the leader of a shard answers. Raises what it answers, ``Unavailable``, ``ConnectionFailed``.

        An error has ``sent`` false in its details where it is certain that the leader was not reached.
        """

    def answer_passed_on(self, handler: AnsweringPassed) -> None:
        """Have ``handler`` answer what other nodes pass on."""

    async def pass_on(self, shard: int, request: PassedOn, timeout_s: float) -> PassedBack:
        """What the leader of a shard answers to a client's request. Raises ``Unavailable``, ``ConnectionFailed``.

        An error has ``sent`` false in its details where it is certain that the leader was not reached.
        """


class NoPeers:
    """A node of its own leads all shards that it has, and asks nobody."""

    def __init__(self, port: Callable[[int], object]) -> None:
        """``port`` raises what somebody is told who asks for a shard that the node cannot serve."""
        self._port = port

    def answer(self, operation: str, handler: Answering) -> None:
        pass

    async def ask(self, shard: int, operation: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        self._port(shard)
        raise AssertionError(f"{operation}: a node of its own asked for the leader of shard {shard}")

    def answer_passed_on(self, handler: AnsweringPassed) -> None:
        pass

    async def pass_on(self, shard: int, request: PassedOn, timeout_s: float) -> PassedBack:
        self._port(shard)
        raise AssertionError(f"{request.path}: a node of its own asked for the leader of shard {shard}")
