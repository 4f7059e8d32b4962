"""Trimming: log starts of many queues of a topic move up, on all its shards, in pieces.

Each piece is a few ten thousand queues of one shard, found and logged by its leader, wherever that is: this node, or
another one that is asked. A request does as many pieces as it has time for, and says where the next one goes on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lsmq import runtime
from lsmq.queue_names import NUMBER_BITS
from lsmq_coordinator.state import QueueRange
from lsmq_node.storage import StoredTopic
from lsmq_node.storage.losses import LossReason

from .broker import Broker
from .leader_calls import LeaderCalls
from .topology import Ack

#: Of the requests of nodes to each other.
OPERATION = "trim"
_TIMEOUT_S = 10.0
#: Queues of a piece: one entry of the log, below a mebibyte.
PIECE_QUEUES = 65_536
_ALL_NUMBERS = 1 << NUMBER_BITS
#: A request begins no piece after so long.
_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class TrimRequest:
    """What is to go: below ``offset``, or what was stored before ``before_ms``, or where both are None all there is.

    Attributes:
        runs: of queues ``[first, end)``, sorted and apart; empty for all queues of the topic.
        after: where an earlier request has come to: a shard and a row of it, from its first queue on.
    """

    topic: StoredTopic
    offset: int | None = None
    before_ms: int | None = None
    runs: tuple[tuple[int, int], ...] = ()
    after: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Trimmed:
    """How many messages went, and where the rest of the work begins, if any."""

    messages: int
    following: tuple[int, int] | None


class Trims:
    """One for each node. Loop thread only."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._leaders = LeaderCalls(broker.topology, OPERATION, self._piece_here, _TIMEOUT_S)

    async def trim(self, request: TrimRequest) -> Trimmed:
        """Durable on return, as far as it came.

        Raises ``NotLeader``, ``Unavailable``, ``ConnectionFailed`` and what a write raises, each of which may pass:
        what was trimmed by then is. ``OffsetOutOfRange`` for an offset beyond the end of a queue.
        """
        self._broker.admission.write()
        began, pieces, messages = runtime.monotonic(), 0, 0
        at_shard, at_row = request.after
        for shard, span in sorted(self._broker.spans(request.topic).items()):
            if shard < at_shard:
                continue
            parts = [part for part in self._broker.ranges(request.topic) if part.shard == shard]
            # Of a named topic only its shard knows how many rows there are.
            rows = [(0, _ALL_NUMBERS)] if request.topic.named else _rows(request.runs, parts, span.first)
            for first, end in rows:
                row = max(first, at_row) if shard == at_shard else first
                while row < end:
                    if pieces and runtime.monotonic() - began > _SECONDS:
                        return Trimmed(messages, (shard, row))
                    stop = min(end, row + PIECE_QUEUES)
                    found, more = await self._piece(shard, request, row, stop)
                    row, pieces, messages = stop if more else end, pieces + 1, messages + found
        return Trimmed(messages, None)

    async def _piece(self, shard: int, request: TrimRequest, row: int, stop: int) -> tuple[int, bool]:
        """How many messages went, and whether the shard has rows behind these."""
        answer = await self._leaders.ask(
            shard,
            {
                "topic": request.topic.id,
                "row": row,
                "stop": stop,
                "offset": request.offset,
                "before_ms": request.before_ms,
            },
        )
        return int(answer["messages"]), bool(answer["more"])

    async def _piece_here(self, shard: int, asked: dict[str, Any]) -> dict[str, Any]:
        topic = await self._broker.topic_by_id(asked["topic"])
        row, stop = int(asked["row"]), int(asked["stop"])
        (port,) = await self._broker.writable(topic, [shard], Ack.QUORUM)
        store = port.store
        first, _ = store.numbers(topic.id)
        # The store may have had the topic when it lay elsewhere: its rows begin before the queues that are here.
        before = 0 if topic.named else self._broker.spans(topic)[shard].first - first
        rows = range(row + before, stop + before)
        queues, offsets, messages = await self._broker.in_readers(
            lambda: store.starts_after(topic.id, rows, offset=asked["offset"], before_ms=asked["before_ms"])
        )
        if len(queues):
            self._broker.admission.write()
            port.check_writable(Ack.QUORUM)
            await port.wait(port.store.trim(topic.id, queues, offsets, LossReason.ASKED), Ack.QUORUM)
        first, end = store.numbers(topic.id)
        return {"messages": messages, "more": rows.stop < end - first}


def _rows(runs: tuple[tuple[int, int], ...], parts: Sequence[QueueRange], first: int) -> list[tuple[int, int]]:
    """The rows of a shard, whose first queue is ``first``, of the queues that ``runs`` name; of all where none do."""
    named = runs or ((0, parts[-1].end),)
    cut = [
        (max(low, part.first) - first, min(high, part.end) - first)
        for part in parts
        for low, high in named[max(0, bisect_right(named, (part.first,)) - 1) :]
        if low < part.end
    ]
    return [(low, high) for low, high in cut if low < high]
