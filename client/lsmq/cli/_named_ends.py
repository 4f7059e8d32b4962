"""Where the queues of a named topic end at the moment, for a command that prints what is there and no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from lsmq import Client, Message
from lsmq._named_selection import NamedSelection, named_ends
from lsmq._queue_ranges import union
from lsmq.groups import Ranges


class NamedEnds:
    """The ends that are still to be reached, by number of the queue. Knows nothing until :meth:`find`."""

    def __init__(self, client: Client, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._selection = NamedSelection()
        self._missing: set[str] = set()
        self._group: str | None = None
        self._counts = False
        self._left: dict[int, int] = {}
        self._lost: Ranges = ()  # slots

    def selects(self, names: Sequence[str], pattern: str | None, group: str | None) -> None:
        """What is read: queues of these names, or those that match, or all; of ``group`` what it has not committed."""
        self._selection, self._group = NamedSelection(tuple(names), pattern, in_slots=group is not None), group

    async def find(self, slots: Ranges | None) -> None:
        """Look where the queues end, or those of them that lie in ``slots``; those that were lost count no more."""
        self._counts = True
        lost, self._lost = self._lost, ()
        if lost:
            for number in (await self._ends(lost))[0]:
                self._left.pop(number, None)
        latest, names = await self._ends(self._selection.slots() if slots is None else slots)
        for name in set(self._selection.names) - set(names.values()) - self._missing:
            self._tell_missing(name)
        committed = {} if self._group is None else await self._client.committed_offsets(self._group, self._topic)
        for number, earliest, end in (await self._client.offsets(self._topic, latest)).rows() if latest else ():
            if max(earliest, committed.get(number, 0)) < end:
                self._left[number] = end

    async def _ends(self, slots: Ranges) -> tuple[dict[int, int], dict[int, str]]:
        return await named_ends(self._client, await self._client.topic(self._topic), self._selection, slots)

    def _tell_missing(self, name: str) -> None:
        """Once: it may come with its first message, or be misspelt."""
        self._missing.add(name)
        meant = f"; --pattern {name!r} reads those that match" if "*" in name else ""
        click.echo(f"topic {self._topic} has no queue {name!r} now{meant}", err=True)

    def lose(self, slots: Ranges) -> None:
        """Queues of these slots are another member's. They count until :meth:`find`."""
        self._lost = union(self._lost, slots)

    @property
    def has_lost(self) -> bool:
        return bool(self._lost)

    def before(self, messages: list[Message]) -> list[Message]:
        """Those of ``messages`` that were there; all, while nothing is known."""
        if not self._counts:
            return messages
        wanted = []
        for message in messages:
            end = self._left.get(message.queue, 0)
            if message.offset < end:
                wanted.append(message)
            if message.offset + 1 >= end:
                self._left.pop(message.queue, None)
        return wanted

    @property
    def are_reached(self) -> bool:
        return not self._left

    def pass_over(self, positions: Mapping[int, int]) -> None:
        """Where nothing comes, ``positions`` of queues may be beyond their last message. Looks at all that are left."""
        for number in [number for number, end in self._left.items() if positions.get(number, -1) >= end]:
            del self._left[number]
