"""Requests for shards that are led elsewhere: passed on to the leader, which answers in this node's stead.

One hop: the leader is asked by a node, and refuses what it does not lead as it refuses a client that knows the routes.
While a shard changes leaders, or two nodes disagree about it, the node that the client asked looks and asks again for a
while; so who knows nothing of leaders need know nothing of elections. It asks again only where nothing can have been
done: a refusal, or a leader that was not reached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from lsmq import runtime
from lsmq.errors import ConnectionFailed, LsmqError, NotLeader, Unavailable
from lsmq_node.config import NodeConfig

from .address_limits import AddressLimits, AddressShare, SharedThing
from .admission import Admission
from .peers import PassedBack, PassedOn
from .topology import Leadership, Topology

#: So long a request waits for a leader that takes it.
PATIENCE_S = 5.0
_AGAIN_S = 0.1

Result = TypeVar("Result")


def shard_to_ask(refusal: LsmqError) -> int | None:
    """The shard whose leader is to be asked instead, or again once it has taken over; None where something may have
    been done, or nobody knows."""
    shard = refusal.details.get("shard")
    passable = type(refusal) in (NotLeader, Unavailable) and refusal.details.get("sent") is False
    return shard if passable and isinstance(shard, int) else None


class Forwarder:
    """Loop thread only."""

    def __init__(self, config: NodeConfig, topology: Topology, admission: Admission, addresses: AddressLimits) -> None:
        self.passed = 0
        self.refused = 0
        self._limit = config.max_forwarded
        self._timeout_s = (config.max_wait_ms + config.answer_timeout_ms) / 1000
        self._own_url = config.public_url
        self._topology = topology
        self._admission = admission
        self._addresses = addresses
        # By the leader's URL, of those with some: how many, and of whom.
        self._under_way: dict[str, int] = {}
        self._shares: dict[str, AddressShare] = {}

    @property
    def under_way(self) -> int:
        """Requests that other nodes have now."""
        return sum(self._under_way.values())

    async def at_leader(
        self,
        shard: int,
        here: Callable[[], Awaitable[Result]],
        request: PassedOn,
        refusal_of: Callable[[PassedBack], LsmqError | None],
        *,
        repeatable: bool = False,
    ) -> Result | PassedBack:
        """What ``here`` returns where this node leads the shard, else what its leader answers to ``request``.

        ``refusal_of`` an answer is the error in it, if it is one by which the leader says that it is none, or not yet.
        ``repeatable``: it changes nothing, and may be asked again though an answer was lost.
        Raises what ``here`` raises; ``NotLeader`` where no leader was found in time; ``Unavailable``,
        ``ConnectionFailed``.
        """
        deadline = runtime.monotonic() + PATIENCE_S
        while True:
            led = self._topology.leadership(shard)
            refusal = _no_leader(shard, led)
            if led.here:
                try:
                    return await here()
                except (NotLeader, Unavailable) as error:
                    if shard_to_ask(error) is None:
                        raise
                    refusal = error
            elif led.url is not None and led.url != self._own_url:
                try:
                    answer = await self._ask(led.url, shard, request)
                except (ConnectionFailed, Unavailable) as error:
                    refusal = error
                    # What is lost may have been done; and where too much is under way, waiting makes it more.
                    lost = error.details.get("sent") is not False
                    if "limit" in error.details or (lost and not repeatable):
                        raise
                else:
                    refused = refusal_of(answer)
                    if refused is None:
                        return answer
                    refusal = refused
            if self._admission.stopping or runtime.monotonic() >= deadline:
                raise refusal
            other = shard_to_ask(refusal)
            shard = shard if other is None else other
            await asyncio.sleep(_AGAIN_S)

    async def _ask(self, url: str, shard: int, request: PassedOn) -> PassedBack:
        held = self._under_way.get(url, 0)
        if held >= self._limit:
            self.refused += 1
            raise Unavailable(
                f"{held} requests are being passed on to {url}, the limit is {self._limit} (max_forwarded); send this "
                "there, or again in a moment",
                shard=shard,
                leader=url,
                limit=self._limit,
            )
        share = self._shares.get(url) or self._addresses.share(self._limit, _shared_forwards(url))
        with share.held():
            self._under_way[url], self._shares[url] = held + 1, share
            try:
                self.passed += 1
                return await self._topology.peers.pass_on(shard, request, self._timeout_s)
            finally:
                left = self._under_way[url] - 1
                if left:
                    self._under_way[url] = left
                else:
                    del self._under_way[url], self._shares[url]


def _shared_forwards(url: str) -> SharedThing:
    return SharedThing(
        Unavailable, f"requests that are being passed on to {url}", "max_forwarded", "send this there, or later"
    )


def _no_leader(shard: int, led: Leadership) -> LsmqError:
    return NotLeader(
        f"shard {shard} is led by {led.url or 'nobody at the moment'} (epoch {led.epoch}); send this there",
        shard=shard,
        leader=led.url,
        epoch=led.epoch,
        sent=False,
    )
