"""Where groups had been in queues of a backup, as offsets of the queues that their messages are sent to.

A committed offset is that of the next message to handle. Sent anew, that message has another one, which its receipt
says. Where it is not sent (it is gone, or behind what is wanted), the group goes on at the next one that is, or at the
end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from lsmq import Receipt
from lsmq_node.storage import ShardStore, StoredTopic

#: A group, the message before its place, and the first one at it or behind.
_Found = tuple[str, Receipt | None, Receipt | None]


class GroupPlaces:
    """Of one shard. Queues are entered one by one, each after all messages of the one before were sent."""

    def __init__(self, committed: dict[int, list[tuple[int, str]]], *, named: bool) -> None:
        """``committed``: by queue ``(offset, group)``. A queue that is ``named`` is there once something is sent to it,
        and has another number than it had."""
        self._committed = committed
        self._named = named
        self._waiting: list[tuple[int, str]] = []
        self._number = 0
        self._last: Receipt | None = None
        self._found: dict[int, list[_Found]] = {}

    @classmethod
    def of(cls, store: ShardStore, topic: StoredTopic, numbers: Sequence[int]) -> GroupPlaces:
        """What groups have committed in these queues of a store."""
        committed: dict[int, list[tuple[int, str]]] = defaultdict(list)
        queues = np.array(numbers, np.uint32)
        for group in store.groups() if numbers else ():
            offsets = store.committed_offsets(group, topic.id, queues)
            for place in np.flatnonzero(offsets >= 0).tolist():
                committed[numbers[place]].append((int(offsets[place]), group))
        return cls(committed, named=topic.named)

    def enter(self, number: int) -> None:
        """Messages of this queue are sent from now on."""
        self._pass_all(None)
        self._number, self._last = number, None
        self._waiting = sorted(self._committed.get(number, ()), reverse=True)

    def sent(self, offset: int, receipt: Receipt) -> None:
        """The message that was at ``offset`` in the backup, in their order."""
        if self._waiting and self._waiting[-1][0] <= offset:
            self._pass_all(receipt, offset)
        self._last = receipt

    def _pass_all(self, receipt: Receipt | None, offset: int | None = None) -> None:
        while self._waiting and (offset is None or self._waiting[-1][0] <= offset):
            _, group = self._waiting.pop()
            self._found.setdefault(self._number, []).append((group, self._last, receipt))

    async def offsets(self) -> dict[str, dict[int, int]]:
        """By group and queue there: where to go on. All messages are stored. Raises what became of one that is not."""
        self._pass_all(None)
        places: dict[str, dict[int, int]] = defaultdict(dict)
        for number, found in self._found.items():
            for group, before, at in found:
                queue, offset = number, 0
                if at is not None and (place := await at).offset >= 0:
                    queue, offset = place.queue, place.offset
                elif before is not None and (place := await before).offset >= 0:
                    queue, offset = place.queue, place.offset + 1
                elif self._named:
                    continue
                places[group][queue] = offset
        return places
