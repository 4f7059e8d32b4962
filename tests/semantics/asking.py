"""How messages are asked for, but from one end of a queue to the other: what a plain model says is found then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from lsmq import Client, Consumer, Message, UnknownMessage
from lsmq.queue_names import compile_pattern
from lsmq.record_batch import message_id

from .model import Model, Row

_PATTERNS = ("**", "*", "c.*", "bob")
_READ_FROM = ("auto", "follower")
#: So often in a row nothing comes to whoever reads a pattern, before all has come.
_MOST_EMPTY_POLLS = 60

Place = tuple[int, int]
"""A queue and an offset."""
Read = Callable[..., Awaitable[list[Message]]]
"""All messages of a queue."""


class Asking:
    """Each deed asserts that the cluster answered as the model says."""

    def __init__(self, client: Client, model: Model, read: Read) -> None:
        self.client, self.model, self.read = client, model, read

    def log(self) -> dict[Place, Row]:
        return {
            (queue, offset): row for queue in (0, 1) for offset, row in self.model.queues["log", queue].rows.items()
        }

    def _are(self, found: set[Place], wanted: Mapping[Place, Row]) -> None:
        assert found <= wanted.keys(), f"{found - wanted.keys()} are not there, or were not asked for"
        surely = {place for place, row in wanted.items() if not row.may_be_gone}
        assert surely <= found, f"{surely - found} were not found"

    async def by_id(self, where: int, what: int) -> None:
        queue = where % 2
        if not (end := self.model.queues["log", queue].end):
            return
        offset = what % end
        topic, row = await self.client.topic("log"), self.log().get((queue, offset))
        try:
            message = await self.client.message(message_id(topic.id, queue, offset))
        except UnknownMessage:
            assert row is None or row.may_be_gone, f"no message has the id of offset {offset} of {queue}"
            return
        assert row is not None and message.properties["number"] == f"{row.number}", f"offset {offset} was deleted"

    async def by_filter(self, how: int, what: int) -> None:
        """Page by page, through the topic."""
        tag, least = ("x", "y")[what % 2], what
        picks: dict[str, Any] = {"tag": tag} if how % 2 else {"filter": f"number > {least} AND tag IS NOT NULL"}
        wanted = {
            place: row
            for place, row in self.log().items()
            if (row.tag == tag if "tag" in picks else row.number > least and row.tag is not None)
        }
        found = await self._search(how, picks)
        assert found == sorted(found), "queue after queue, and in each the oldest first"
        self._are(set(found), wanted)

    async def by_time(self, how: int, what: int) -> None:
        """From when a message was stored that was read just before, until another one was."""
        times = {}
        for queue in (0, 1):
            times |= {(queue, each.offset): each.stored_ms for each in await self.read("log", queue)}
        if not times:
            return
        stamps = sorted(times.values())
        first, last = sorted((stamps[how % len(stamps)], stamps[what % len(stamps)]))
        found = await self._search(how, {"from_time": first, "to_time": last + 1})
        rows = self.log()
        self._are(set(found), {place: rows[place] for place, time_ms in times.items() if first <= time_ms <= last})

    async def _search(self, how: int, picks: Mapping[str, Any]) -> list[Place]:
        found: list[Place] = []
        after: str | None = None
        while True:
            page = await self.client.find_messages("log", limit=1 + how % 5, after=after, **picks)
            found += [(message.queue, message.offset) for message in page.messages]
            if (after := page.next) is None:
                break
        assert len(found) == len(set(found)), "a message was found twice"
        return found

    async def by_pattern(self, how: int) -> None:
        pattern = _PATTERNS[how % len(_PATTERNS)]
        names = {
            name: numbers for name, numbers in self.model.names.items() if compile_pattern(pattern).fullmatch(name)
        }
        wanted = Counter(number for numbers in names.values() for number in numbers)
        came: Counter[int] = Counter()
        empty = 0
        async with Consumer(self.client, "names", pattern=pattern, start="earliest", wait_ms=200) as consumer:
            while came.total() < wanted.total() and empty < _MOST_EMPTY_POLLS:
                messages = await consumer.poll(timeout_ms=1_000)
                came.update(int(message.text()) for message in messages)
                empty = 0 if messages else empty + 1
            came.update(int(message.text()) for message in await consumer.poll(timeout_ms=500))
        assert came == wanted, f"{wanted - came} did not come by {pattern}, and {came - wanted} should not"

    async def as_changes(self) -> None:
        """What was written to the table, as far as it is kept."""
        came = [(each.offset, int(each.properties["number"])) for each in await self.read("table", 0)]
        self.model.read("table", 0, came, lambda row: True)

    async def of_followers(self, where: int, how: int) -> None:
        """They may not have heard yet of what was deleted."""
        queue = where % 2
        known = self.model.queues["log", queue]
        found = await self.read("log", queue, read_from=_READ_FROM[how % len(_READ_FROM)])
        came = {message.offset: int(message.properties["number"]) for message in found}
        assert list(came) == sorted(came) and len(came) == len(found), (
            "messages come once, in the order of their offsets"
        )
        assert all(offset < known.end for offset in came)
        assert all(came.get(offset, row.number) == row.number for offset, row in known.rows.items())
        surely = {offset for offset, row in known.rows.items() if not row.may_be_gone}
        assert surely <= came.keys(), f"{surely - came.keys()} are missing"
