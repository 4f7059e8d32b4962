"""Tables by key over several queues: what the last message of each key is, and what is kept of all that was written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from .area import Area, Life
from .rows import Queue, Row

_QUEUES = 3
_KEYS = tuple(f"k{number}" for number in range(7))
_SHORT_MS, _DELETES_STAY_MS = 300, 2_000


class Tables(Area):
    """A key is always in one queue. ``compacts``: whether the topic does now, or some leader may think so."""

    topics: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "states": {"queues": _QUEUES, "cleanup": "compact", "delete_retention_ms": _DELETES_STAY_MS}
    }
    deeds = ("write", "write", "write", "write", "find", "find", "scan", "erase", "alter")

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self.queues = tuple(Queue() for _ in range(_QUEUES))
        self.compacts = [True]

    async def write(self, where: int, how: int, what: int) -> None:
        """Values, keys that go, what lives for moments, and messages without a key."""
        for at in range(1 + what % 3):
            key = None if how % 8 == 7 else _KEYS[(where + at) % len(_KEYS)]
            row = Row(self.life.number(), key, deletes_key=key is not None and how % 4 == 0)
            row.expires = row.may_be_gone = how % 8 == 5
            fields: dict[str, Any] = {"delete": True} if row.deletes_key else {}
            if row.expires:
                fields["ttl_ms"] = _SHORT_MS
            queue = (where + at) % len(_KEYS) % _QUEUES
            body = "" if row.deletes_key else "value"
            properties = {"number": f"{row.number}"}
            sent = await self.life.send("states", body, key=key, queue=queue, properties=properties, **fields)
            known = self.queues[queue]
            assert sent.offset == known.append(row), "offsets have no gaps"
            self._supersede(known)

    def _supersede(self, known: Queue) -> None:
        """What a later message of its key, or what it says that goes, lets go in the background."""
        if True not in self.compacts:
            return
        latest = {row.key: offset for offset, row in known.rows.items() if row.key is not None}
        for offset, row in known.rows.items():
            row.may_be_gone |= row.key is not None and (offset < latest[row.key] or row.deletes_key)

    async def alter(self, where: int, how: int, what: int) -> None:
        compacts = where % 2 == 0
        if compacts:
            await self.client.alter_topic("states", cleanup="compact", delete_retention_ms=_DELETES_STAY_MS)
        else:
            await self.client.alter_topic("states", cleanup=None, delete_retention_ms=None)
        self.compacts.append(compacts)
        for known in self.queues:
            self._supersede(known)

    async def erase(self, where: int, how: int, what: int) -> None:
        """One that was deleted, expired or trimmed does not say that its key is gone: what was before is the last
        again, where that is still there."""
        at = where % _QUEUES
        known = self.queues[at]
        if not known.end:
            return
        if how % 2:
            await self.client.delete_messages("states", [(at, what % known.end)])
            known.remove([what % known.end])
        else:
            before = what % (known.end + 1)
            await self.client.trim_topic("states", {at: before})
            known.remove(range(before))

    async def find(self, where: int, how: int, what: int) -> None:
        await self._find(_KEYS[where % len(_KEYS)])

    async def _find(self, key: str) -> None:
        rows = [row for row in self.queues[_KEYS.index(key) % _QUEUES].rows.values() if row.key == key]
        possible: set[int | None] = set()
        for row in reversed(rows):
            possible.add(None if row.deletes_key else row.number)
            if not row.may_be_gone or (row is rows[-1] and row.deletes_key):
                break
        else:
            possible.add(None)
        found = await self.client.latest("states", key)
        number = None if found is None else int(found.properties["number"])
        assert number in possible, f"{key} is {number}, not one of {possible}"

    async def scan(self, where: int, how: int, what: int) -> None:
        await self._scan(where % _QUEUES)

    async def _scan(self, queue: int) -> None:
        known = self.queues[queue]
        messages = await self.life.read("states", queue)
        known.compare([(message.offset, int(message.properties["number"])) for message in messages])
        known.remove(known.rows.keys() - {message.offset for message in messages})  # What went does not come back.

    async def settled(self) -> None:
        del self.compacts[:-1]
        for known in self.queues:
            known.settle()

    async def finish(self) -> None:
        for key in _KEYS:
            await self._find(key)
        for queue in range(_QUEUES):
            await self._scan(queue)
