"""Where the queues of a named topic end at the moment, for a command that prints what is there and no more."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import click

from lsmq import Client, Message, UnknownQueue
from lsmq._queue_ranges import contains
from lsmq.groups import Ranges
from lsmq.queue_names import compile_pattern, pattern_prefix, queue_slot
from lsmq.topics import NamedQueue

_LISTED_AT_ONCE = 10_000


class NamedEnds:
    """The ends that are still to be reached, by number of the queue. Knows nothing until :meth:`find`."""

    def __init__(self, client: Client, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._names: Sequence[str] = ()
        self._missing: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        self._prefix = ""
        self._group: str | None = None
        self._counts = False
        self._left: dict[int, int] = {}
        self._slots: dict[int, int] = {}

    def selects(self, names: Sequence[str], pattern: str | None, group: str | None) -> None:
        """What is read: queues of these names, or those that match, or all; of ``group`` what it has not committed."""
        self._names, self._group = names, group
        if pattern is not None:
            self._pattern, self._prefix = compile_pattern(pattern), pattern_prefix(pattern)

    async def find(self, slots: Ranges | None) -> None:
        """Look where the queues end, or those of them that lie in ``slots``."""
        self._counts = True
        committed = {} if self._group is None else await self._client.committed_offsets(self._group, self._topic)
        after: str | None = None
        while True:
            page = await self._page(after)
            for queue in page:
                slot = queue_slot(queue.name)
                begin = max(queue.earliest, committed.get(queue.number, 0))
                if self._wants(queue.name) and (slots is None or contains(slots, slot)) and begin < queue.latest:
                    self._left[queue.number], self._slots[queue.number] = queue.latest, slot
            if self._names or len(page) < _LISTED_AT_ONCE:
                return
            after = page[-1].name

    async def _page(self, after: str | None) -> Sequence[NamedQueue]:
        if not self._names:
            return await self._client.queues(self._topic, prefix=self._prefix, after=after, limit=_LISTED_AT_ONCE)
        found = []
        for name in self._names:
            try:
                found.append(await self._client.queue(self._topic, name))
            except UnknownQueue:
                self._tell_missing(name)
        return found

    def _tell_missing(self, name: str) -> None:
        """Once: it may come with its first message, or be misspelt."""
        if name not in self._missing:
            self._missing.add(name)
            meant = f"; --pattern {name!r} reads those that match" if "*" in name else ""
            click.echo(f"topic {self._topic} has no queue {name!r} now{meant}", err=True)

    def _wants(self, name: str) -> bool:
        return self._pattern is None or self._pattern.fullmatch(name) is not None

    def lose(self, slots: Ranges) -> None:
        """Queues of these slots are another member's."""
        for number in [number for number, slot in self._slots.items() if contains(slots, slot)]:
            self._left.pop(number, None)
            del self._slots[number]

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

    def reached(self, positions: Mapping[int, int]) -> bool:
        """Whether nothing is left; ``positions`` of queues may be beyond their last message."""
        for number in [number for number, end in self._left.items() if positions.get(number, -1) >= end]:
            del self._left[number]
        return not self._left
