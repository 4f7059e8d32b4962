"""What the API asks of delayed messages: any node finds the leader of the shard that keeps one."""

from __future__ import annotations

from functools import partial
from typing import Any

from lsmq.errors import InvalidRequest
from lsmq.record_batch import LAST_DUE_MS
from lsmq_node.broker import Broker, LeaderCalls
from lsmq_node.machines import MachineService
from lsmq_node.storage import DuePlace, StoredTopic

from .counts import DelayedCounts
from .ids import DelayedId
from .shard_delayed import Moved, PendingMessage, ShardDelayed

OPERATION = "delayed"
_TIMEOUT_S = 10.0
_END: DuePlace = (LAST_DUE_MS, (1 << 63) - 1)


class DelayedService(MachineService[ShardDelayed]):
    """One for each node. Loop thread only; ``start`` before anything else, ``stop`` at the end."""

    name = "delayed"

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker, partial(ShardDelayed, self))
        self.counts = DelayedCounts()
        self._leaders = LeaderCalls(broker.topology, OPERATION, self._do, _TIMEOUT_S)

    async def cancel(self, topic: StoredTopic, id: DelayedId) -> None:
        """Durable on return. Raises ``UnknownMessage``, ``AlreadyDelivered``."""
        self.broker.admission.write()
        await self._leaders.ask(id.shard, {"do": "cancel", "topic": topic.id, "place": id.place})

    async def reschedule(self, topic: StoredTopic, id: DelayedId, due_ms: int) -> Moved:
        """Durable on return. Raises as :meth:`cancel` does."""
        body = {"do": "reschedule", "topic": topic.id, "place": id.place, "due_ms": due_ms}
        self.broker.admission.write()
        return Moved(*(await self._leaders.ask(id.shard, body))["moved"])

    async def get(self, topic: StoredTopic, id: DelayedId) -> PendingMessage:
        """Raises ``UnknownMessage``, ``AlreadyDelivered``."""
        found = await self._leaders.ask(id.shard, {"do": "find", "topic": topic.id, "place": id.place})
        return _message(found["message"])

    async def pending(
        self, topic: StoredTopic, after: DelayedId | None, limit: int
    ) -> tuple[list[tuple[int, PendingMessage]], DelayedId | None]:
        """Messages of a topic with their shards, in the order in which they are due, and where to go on.

        That is None when there are no more. There may be fewer than ``limit``, or none, and more behind them.
        """
        shards = sorted({part.shard for part in self.broker.ranges(topic)})
        found: list[tuple[int, PendingMessage]] = []
        reached: list[tuple[int, int, int]] = []  # as far as each shard has been looked at that has more
        for shard in shards:
            place = _place_in(shard, after)
            answer = await self._leaders.ask(shard, {"do": "list", "topic": topic.id, "place": place, "limit": limit})
            found += [(shard, _message(each)) for each in answer["messages"]]
            if answer["reached"] is not None:
                due_ms, offset = answer["reached"]
                reached.append((due_ms, shard, offset))
        order = sorted(((each.place[0], shard, each.place[1]), each) for shard, each in found)
        end = min(reached, default=None)
        kept = [(key[1], each) for key, each in order if end is None or key <= end][:limit]
        if len(kept) < len(order):
            last = (order[len(kept) - 1][0] if len(kept) == limit else end) if kept else end
        else:
            last = end
        return kept, None if last is None else DelayedId(last[1], last[0], last[2])

    # Between nodes

    async def _do(self, number: int, body: dict[str, Any]) -> dict[str, Any]:
        shard = await self.shard(number)
        topic_id, (due_ms, offset) = body["topic"], body["place"]
        place = due_ms, offset
        match body["do"]:
            case "cancel":
                await shard.cancel(place, topic_id)
                return {}
            case "reschedule":
                return {"moved": await shard.reschedule(place, topic_id, body["due_ms"])}
            case "find":
                return {"message": await shard.find(place, topic_id)}
            case "list":
                messages, reached = await shard.pending(place, topic_id, body["limit"])
                return {"messages": messages, "reached": reached}
            case unknown:
                raise InvalidRequest(f"delayed messages know no {unknown!r}; this node may be older than who asks")


def _place_in(shard: int, after: DelayedId | None) -> DuePlace:
    """Where to go on in a shard, whose messages come behind those of lesser shards that are due at the same time."""
    if after is None:
        return 0, -1
    if shard == after.shard:
        return after.place
    return (after.due_ms, -1) if shard > after.shard else (after.due_ms, _END[1])


def _message(fields: Any) -> PendingMessage:
    """As it came over the network, or as it is."""
    place, *rest = fields
    return PendingMessage((place[0], place[1]), *rest)
