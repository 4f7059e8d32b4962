"""Messages that are sent, read and deleted; rings, tables by key, and ids that are stored once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any, ClassVar

from lsmq import UnknownMessage, runtime
from lsmq.record_batch import message_id

from .area import KEYS, TAGS, Area, Life
from .rows import Queue, Row

_LONG_MS, _SHORT_MS = 3_600_000, 300
_READ_FROM = ("auto", "follower")

Place = tuple[int, int]
"""A queue and an offset."""


class Log(Area):
    """``ids``: offsets of what was sent with each id. ``committed``: of the only group, by queue."""

    topics: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "log": {"queues": 2},
        "ring": {"queues": 2, "queue_max_messages": 3, "overflow": "drop_oldest"},
        "full": {"queues": 1, "queue_max_messages": 3, "overflow": "drop_newest"},
        "once": {"queues": 1, "dedupe_window_ms": "forever"},
        "table": {"queues": 1, "cleanup": "compact"},
    }
    deeds = ("send", "send", "send", "send", "read", "read", "find", "delete", "keep", "ask", "commit")

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self.queues = {
            (topic, queue): Queue() for topic in self.topics for queue in range(self.topics[topic]["queues"])
        }
        self.ids: dict[str, int] = {}
        self.committed: dict[int, int] = {}

    # Sending

    async def send(self, where: int, how: int, what: int) -> None:
        topic = ("log", "log", "ring", "full", "once", "table")[where % 6]
        queue = how % self.topics[topic]["queues"]
        row = Row(self.life.number(), KEYS[what % 4], TAGS[what % 3], (what % 4 // 2, what % 2))
        fields: dict[str, Any] = {"key": row.key, "tag": row.tag, "queue": queue}
        fields["priority"], fields["subpriority"] = row.priority
        dedupe_id = f"{how % 3}" if topic == "once" else None
        if topic == "log":
            lives_ms = (None, None, _LONG_MS, _SHORT_MS)[how // 2 % 4]
            row.expires = row.may_be_gone = lives_ms == _SHORT_MS
            if lives_ms is not None and where % 6:
                fields["ttl_ms"] = lives_ms
            elif lives_ms is not None:
                fields["expires_at_ms"] = runtime.wall_ms() + lives_ms
        if dedupe_id is not None:
            fields["dedupe_id"] = dedupe_id
        body = f"{row.number}"
        if topic == "table" and row.key is not None and how % 3 == 0:
            row.deletes_key, fields["delete"], body = True, True, ""
        fields["properties"] = {"number": f"{row.number}"}
        sent = await self.life.send(topic, body, **fields)
        self._sent(topic, queue, row, None if sent.dropped else sent.offset, dedupe_id, again=sent.duplicate)

    def _sent(
        self, topic: str, queue: int, row: Row, offset: int | None, dedupe_id: str | None, *, again: bool
    ) -> None:
        """It was acknowledged: as stored at an offset, as dropped (None), or as a message that was there before."""
        known = self.queues[topic, queue]
        if dedupe_id in self.ids:
            assert (offset, again) == (self.ids[dedupe_id], True), "a repeat is answered with the place of the first"
            return
        assert not again, "it was taken for a repeat"
        if topic == "full" and len(known.rows) >= self.topics["full"]["queue_max_messages"]:
            assert offset is None, "a full queue takes what is new and drops it"
            return
        assert offset == known.append(row), "offsets have no gaps"
        if dedupe_id is not None:
            self.ids[dedupe_id] = offset
        if topic == "ring":
            known.remove([each for each in known.rows if each < known.end - self.topics["ring"]["queue_max_messages"]])
        if topic == "table" and row.key is not None:
            for each in known.rows.values():
                each.may_be_gone |= each.key == row.key and each is not row

    # What leaves

    async def delete(self, where: int, how: int, what: int) -> None:
        queue = where % 2
        known = self.queues["log", queue]
        if not known.end:
            return
        if how % 3 == 0:
            await self.client.trim_topic("log", {queue: what % (known.end + 1)})
            known.remove(range(what % (known.end + 1)))
        elif how % 9 == 1:
            await self.client.purge_topic("log", queues=[queue])
            known.remove(range(known.end))
        else:
            await self.client.delete_messages("log", [(queue, what % known.end)])
            known.remove([what % known.end])

    async def keep(self, where: int, how: int, what: int) -> None:
        """A queue of the log keeps so many from then on."""
        known = self.queues["log", where % 2]
        known.keeps = None if how % 3 == 0 else 1 + what % 4
        await self.client.alter_queue("log", where % 2, retention_messages=known.keeps)
        known.loosen()

    async def settled(self) -> None:
        for (topic, _), queue in self.queues.items():
            if topic != "table":  # cleaned when enough has come
                queue.settle()

    # Reading

    async def read(self, where: int, how: int, what: int) -> None:
        topic = ("log", "ring", "full", "once")[where % 4]
        tag, least = TAGS[what % 3], self.life.last // 2
        picks: dict[str, Any] = {}
        if how % 3 == 1 and tag is not None:
            picks = {"tag": tag}
        elif how % 3 == 2:
            picks = {"filter": f"number > {least} AND (priority < 1 OR subpriority < 1)"}

        def wanted(row: Row) -> bool:
            if "tag" in picks:
                return row.tag == tag
            return "filter" not in picks or (row.number > least and 0 in row.priority)

        for queue in range(self.topics[topic]["queues"]):
            await self._compare(topic, queue, picks, wanted)

    async def _compare(
        self,
        topic: str,
        queue: int,
        picks: Mapping[str, Any] | None = None,
        wanted: Callable[[Row], bool] = lambda row: True,
    ) -> None:
        messages = await self.life.read(topic, queue, **(picks or {}))
        came = [(message.offset, int(message.properties["number"])) for message in messages]
        self.queues[topic, queue].compare(came, wanted)

    async def find(self, where: int, how: int, what: int) -> None:
        """All of a key in the log, page by page; and the latest of it in the table."""
        key = KEYS[1 + where % 3]
        assert key is not None
        found = await self._search(how, {"key": key})
        self._are(set(found), {place: row for place, row in self._log().items() if row.key == key})
        for queue in (0, 1):
            offsets = [offset for each, offset in found if each == queue]
            assert offsets == sorted(offsets, reverse=True), "the newest of a queue is found first"
        latest = await self.client.latest("table", key)
        rows = [row for row in self.queues["table", 0].rows.values() if row.key == key]
        expected = None if not rows or rows[-1].deletes_key else rows[-1].number
        number = None if latest is None else int(latest.properties["number"])
        assert number == expected, f"the table has {number} for {key}, not {expected}"

    async def commit(self, where: int, how: int, what: int) -> None:
        queue = where % 2
        offset = what % (self.queues["log", queue].end + 1)
        await self.client.commit_offsets("readers", "log", {queue: offset}, reset=how % 2 == 0)
        before = self.committed.get(queue, 0)
        self.committed[queue] = offset if how % 2 == 0 else max(before, offset)
        assert await self.client.committed_offsets("readers", "log") == self.committed

    # Asking in another way than from one end of a queue to the other

    async def ask(self, where: int, how: int, what: int) -> None:
        ways = (
            lambda: self._by_id(how, what),
            lambda: self._by_filter(how, what),
            lambda: self._by_time(how, what),
            lambda: self._compare("table", 0),  # what was written to it, as far as it is kept
            lambda: self._of_followers(how, what),
        )
        await ways[where % len(ways)]()

    def _log(self) -> dict[Place, Row]:
        return {(queue, offset): row for queue in (0, 1) for offset, row in self.queues["log", queue].rows.items()}

    def _are(self, found: set[Place], wanted: Mapping[Place, Row]) -> None:
        assert found <= wanted.keys(), f"{found - wanted.keys()} are not there, or were not asked for"
        surely = {place for place, row in wanted.items() if not row.may_be_gone}
        assert surely <= found, f"{surely - found} were not found"

    async def _by_id(self, where: int, what: int) -> None:
        queue = where % 2
        if not (end := self.queues["log", queue].end):
            return
        offset = what % end
        topic, row = await self.client.topic("log"), self._log().get((queue, offset))
        try:
            message = await self.client.message(message_id(topic.id, queue, offset))
        except UnknownMessage:
            assert row is None or row.may_be_gone, f"no message has the id of offset {offset} of {queue}"
            return
        assert row is not None and message.properties["number"] == f"{row.number}", f"offset {offset} was deleted"

    async def _by_filter(self, how: int, what: int) -> None:
        """Page by page, through the topic."""
        tag, least = ("x", "y")[what % 2], what
        picks: dict[str, Any] = {"tag": tag} if how % 2 else {"filter": f"number > {least} AND tag IS NOT NULL"}
        wanted = {
            place: row
            for place, row in self._log().items()
            if (row.tag == tag if "tag" in picks else row.number > least and row.tag is not None)
        }
        found = await self._search(how, picks)
        assert found == sorted(found), "queue after queue, and in each the oldest first"
        self._are(set(found), wanted)

    async def _by_time(self, how: int, what: int) -> None:
        """From when a message was stored that was read just before, until another one was."""
        times = {}
        for queue in (0, 1):
            times |= {(queue, each.offset): each.stored_ms for each in await self.life.read("log", queue)}
        if not times:
            return
        stamps = sorted(times.values())
        first, last = sorted((stamps[how % len(stamps)], stamps[what % len(stamps)]))
        found = await self._search(how, {"from_time": first, "to_time": last + 1})
        rows = self._log()
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

    async def _of_followers(self, where: int, how: int) -> None:
        """They may not have heard yet of what was deleted."""
        queue = where % 2
        known = self.queues["log", queue]
        found = await self.life.read("log", queue, read_from=_READ_FROM[how % len(_READ_FROM)])
        came = {message.offset: int(message.properties["number"]) for message in found}
        assert list(came) == sorted(came) and len(came) == len(found), (
            "messages come once, in the order of their offsets"
        )
        assert all(offset < known.end for offset in came)
        assert all(came.get(offset, row.number) == row.number for offset, row in known.rows.items())
        surely = {offset for offset, row in known.rows.items() if not row.may_be_gone}
        assert surely <= came.keys(), f"{surely - came.keys()} are missing"

    async def finish(self) -> None:
        for where in range(4):
            await self.read(where, 0, 0)
        for where in range(3):
            await self.find(where, 4, 0)
        for where, how in product(range(5), (0, 5)):
            await self.ask(where, how, 0)
