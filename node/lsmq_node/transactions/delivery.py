"""From a coordinator to the shards of a transaction: batches, sent to their leader until it has them.

Between nodes this is ``POST /v1/shards/{shard}/deliveries``; a node asks itself without it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgpack

from lsmq.errors import ConnectionFailed, DeliveriesAhead, LsmqError, TimedOut, Unavailable, from_dict

_TIMEOUT_S = 3.0
_MSGPACK = "application/msgpack"


@dataclass(frozen=True, slots=True)
class Delivery:
    """Attributes:

    coordinator: the shard that coordinates.
    limit: it has sent no batch above this number before.
    batches: number, topic's id, topic, and the packed batch; numbers rise.
    """

    coordinator: int
    limit: int
    batches: list[tuple[int, int, str, bytes]]

    def to_dict(self) -> dict[str, Any]:
        return {
            "coordinator": self.coordinator,
            "limit": self.limit,
            "batches": [
                {"number": number, "topic_id": topic_id, "topic": topic, "batch": batch}
                for number, topic_id, topic, batch in self.batches
            ],
        }


#: Sends a delivery to the leader of a shard; returns how many batches were for topics that are gone.
Send = Callable[[int, Delivery], Awaitable[int]]


def may_be_stored(error: LsmqError) -> bool:
    """Whether a delivery that ended so may have been carried out: yes, unless it is certain that it was not."""
    return bool(error.details.get("sent", not isinstance(error, DeliveriesAhead)))


class Courier:
    """Connections to other nodes. Loop thread only."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def send(self, url: str | None, shard: int, delivery: Delivery) -> int:
        """Raises what the node answers, ``Unavailable``, ``ConnectionFailed`` or ``TimedOut``."""
        if url is None:
            raise Unavailable(f"shard {shard} has no leader now", shard=shard, sent=False)
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S))
        body = msgpack.packb(delivery.to_dict())
        headers = {"Content-Type": _MSGPACK, "Accept": _MSGPACK}
        try:
            async with self._session.post(
                f"{url}/v1/shards/{shard}/deliveries", data=body, headers=headers
            ) as response:
                answer = msgpack.unpackb(await response.read())
                if response.status == 200:
                    return int(answer["dropped"])
                raise from_dict(answer["error"])
        except TimeoutError as error:
            raise TimedOut(f"no answer from {url} within {_TIMEOUT_S:g} s", url=url, sent=True) from error
        except (aiohttp.ClientError, OSError) as error:
            sent = not isinstance(error, aiohttp.ClientConnectorError)
            raise ConnectionFailed(f"{url} cannot be asked: {error}", url=url, sent=sent) from error
        except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
            raise LsmqError(f"{url} gave an answer that is none: {error!r}") from error

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
