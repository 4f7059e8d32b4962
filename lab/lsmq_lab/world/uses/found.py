"""Messages that are looked for while others are written, deleted and trimmed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from lsmq import Client, Message, Producer
from lsmq.errors import LsmqError, UnknownMessage

from .use import DEADLINE_MS, Use, UsedTopics, UseRole, text_of

_TOPIC, _QUEUES = "archive", 3
_KEYS = ("ann", "bob", "eve")
_TAGS = ("red", "blue")
_SIZES = 10
#: Tables are written, and merged, while somebody looks.
_PADDINGS = (0, 0, 1_000, 8_000)


@dataclass(frozen=True, slots=True)
class _Row:
    """What was sent."""

    key: str
    tag: str
    size: int


@dataclass(slots=True)
class _Stored:
    """What was acknowledged, when, and where and by which id it is."""

    row: _Row
    since: float
    queue: int
    offset: int
    id: str
    stored_ms: int | None = None  # once somebody has seen it


@dataclass(slots=True)
class _Removal:
    """Of the message at a place, or of all before it: since when it is tried, and since when it is known to be done."""

    queue: int
    offset: int
    before: bool
    began: float
    done: float | None = None

    def hits(self, stored: _Stored) -> bool:
        if stored.queue != self.queue:
            return False
        return stored.offset < self.offset if self.before else stored.offset == self.offset


class FoundOnce(Use):
    """What was there before a search began, and is when it has ended, is found once; what was deleted before is not."""

    name = "found"
    topics: ClassVar[UsedTopics] = {_TOPIC: {"queues": _QUEUES}}

    def roles(self) -> Sequence[UseRole]:
        self._sent: dict[int, _Row] = {}
        self._stored: dict[int, _Stored] = {}
        self._removals: list[_Removal] = []
        return [
            ("author1", self._write),
            ("author2", self._write),
            ("eraser", self._erase),
            ("finder1", self._look),
            ("finder2", self._look),
        ]

    @property
    def _now(self) -> float:
        return self.load.cluster.world.now

    async def _write(self, client: Client) -> None:
        async with Producer(client, _TOPIC, deadline_ms=DEADLINE_MS) as producer:
            while not self.load.stopping:
                numbers = [self.load.number() for _ in range(self.random.randint(1, 3))]
                receipts = []
                with suppress(LsmqError):
                    for number in numbers:
                        row = self._sent[number] = _Row(
                            self.random.choice(_KEYS), self.random.choice(_TAGS), self.random.randrange(_SIZES)
                        )
                        receipts.append(
                            await producer.send(
                                f"{number} {'x' * self.random.choice(_PADDINGS)}",
                                key=row.key,
                                tag=row.tag,
                                properties={"size": str(row.size)},
                                queue=self.random.randrange(_QUEUES),
                            )
                        )
                for number, receipt in zip(numbers, receipts, strict=False):
                    with suppress(LsmqError):
                        sent = await receipt
                        self._stored[number] = _Stored(self._sent[number], self._now, sent.queue, sent.offset, sent.id)
                await self.load.pause(0.02, 0.15)

    async def _erase(self, client: Client) -> None:
        while not self.load.stopping:
            if self._stored:
                old = self._stored[self.random.choice(list(self._stored))]
                removal = _Removal(old.queue, old.offset, self.random.random() < 0.2, self._now)
                self._removals.append(removal)
                with suppress(LsmqError):
                    if removal.before:
                        await client.trim_topic(_TOPIC, {old.queue: old.offset})
                    else:
                        await client.delete_messages(_TOPIC, [(old.queue, old.offset)])
                    removal.done = self._now
            await self.load.pause(0.05, 0.3)

    async def _look(self, client: Client) -> None:
        ways = (self._by_key, self._by_filter, self._by_time, self._by_id)
        while not self.load.stopping:
            with suppress(LsmqError):
                await self.random.choice(ways)(client)
            await self.load.pause(0.02, 0.2)

    async def _by_key(self, client: Client) -> None:
        key, tag = self.random.choice(_KEYS), self.random.choice((None, None, *_TAGS))
        queue = self.random.choice((None, None, *range(_QUEUES)))

        def picks(stored: _Stored) -> bool:
            return stored.row.key == key and stored.row.tag == (tag or stored.row.tag)

        found = await self._search(client, picks, key=key, tag=tag, queue=queue)
        order = [(message.stored_ms, message.queue, message.offset) for message in found]
        if order != sorted(order, reverse=True):
            self.wrong(f"messages of {key} come in the order {order}, not newest first")

    async def _by_filter(self, client: Client) -> None:
        least, tag = self.random.randrange(_SIZES), self.random.choice(_TAGS)
        queue = self.random.choice((None, None, *range(_QUEUES)))

        def picks(stored: _Stored) -> bool:
            return stored.row.size >= least and stored.row.tag == tag

        self._ordered(await self._search(client, picks, filter=f"size >= {least}", tag=tag, queue=queue))

    async def _by_time(self, client: Client) -> None:
        times = [stored.stored_ms for stored in self._stored.values() if stored.stored_ms is not None]
        if not times:
            return
        first, last = sorted((self.random.choice(times), self.random.choice(times)))
        key = self.random.choice((None, *_KEYS))

        def picks(stored: _Stored) -> bool:
            is_then = stored.stored_ms is not None and first <= stored.stored_ms <= last
            return is_then and stored.row.key == (key or stored.row.key)

        found = await self._search(client, picks, key=key, from_time=first, to_time=last + 1)
        if wrong := [message.stored_ms for message in found if not first <= message.stored_ms <= last]:
            self.wrong(f"messages of {wrong} are found from {first} to {last}")
        if key is None:
            self._ordered(found)

    def _ordered(self, found: Sequence[Message]) -> None:
        places = [(message.queue, message.offset) for message in found]
        if places != sorted(places):
            self.wrong(f"messages come in the order {places}")

    async def _by_id(self, client: Client) -> None:
        if not self._stored:
            return
        number = self.random.choice(list(self._stored))
        began = self._now
        found = list[Message]()
        with suppress(UnknownMessage):
            found.append(await client.message(self._stored[number].id))
        self._compare(found, {number}, f"message {number} by its id", began)

    async def _search(self, client: Client, picks: Callable[[_Stored], bool], **how: Any) -> list[Message]:
        """All pages. ``picks`` says which are to be found."""
        how = {name: value for name, value in how.items() if value is not None}
        began = self._now
        # The time of what is stored meanwhile may be learned from what is found.
        known = {
            number
            for number, stored in self._stored.items()
            if picks(stored) and stored.queue == how.get("queue", stored.queue)
        }
        found: list[Message] = []
        after: str | None = None
        while True:
            page = await client.find_messages(_TOPIC, limit=self.random.randint(1, 8), after=after, **how)
            found += page.messages
            if (after := page.next) is None:
                break
            await self.load.pause(0.0, 0.02)
        self._compare(found, known, str(how), began, how)
        return found

    def _compare(
        self, found: Sequence[Message], known: set[int], what: str, began: float, how: Mapping[str, Any] | None = None
    ) -> None:
        numbers = [int(message.text().split()[0]) for message in found]
        if len(set(numbers)) < len(numbers):
            self.wrong(f"{what} finds some twice: {sorted(numbers)}")
        for number, message in zip(numbers, found, strict=True):
            self._look_at(number, message, how or {})
        lost = []
        for number in known:
            removals = [removal for removal in self._removals if removal.hits(self._stored[number])]
            if number not in numbers and not removals:
                lost.append(number)
            if number in numbers and any(removal.done is not None and removal.done <= began for removal in removals):
                self.wrong(f"{what} finds {number}, which was deleted before")
        if lost:
            self.wrong(f"{what} does not find {sorted(lost)}, but {sorted(numbers)}")

    def _look_at(self, number: int, message: Message, how: Mapping[str, Any]) -> None:
        row = self._sent.get(number)
        came = _Row(text_of(message.key) or "", message.tag or "", int(message.properties.get("size", "-1")))
        if came != row:
            self.wrong(f"{came} is found as message {number}, and {row} was sent")
        size = int(how.get("filter", "size >= 0").split()[-1])
        if (
            (came.key, came.tag, message.queue)
            != (how.get("key", came.key), how.get("tag", came.tag), how.get("queue", message.queue))
        ) or came.size < size:
            self.wrong(f"{came} in queue {message.queue} is found by {how}")
        stored = self._stored.get(number)
        if stored is None:
            return
        if (message.queue, message.offset) != (stored.queue, stored.offset):
            self.wrong(f"message {number} is found at {message.queue, message.offset}, and is at {stored}")
        if stored.stored_ms not in (None, message.stored_ms):
            self.wrong(f"message {number} was stored at {stored.stored_ms}, and then at {message.stored_ms}")
        stored.stored_ms = message.stored_ms

    async def read_back(self, client: Client) -> None:
        for key in _KEYS:
            await self._search(client, lambda stored, key=key: stored.row.key == key, key=key)  # type: ignore[misc]
        for way in (self._by_key, self._by_filter, self._by_time, self._by_time):
            await way(client)
        for number in list(self._stored)[:20]:
            found = list[Message]()
            with suppress(UnknownMessage):
                found.append(await client.message(self._stored[number].id))
            self._compare(found, {number}, f"message {number} by its id", self._now)
        self.counted = len(self._stored)
