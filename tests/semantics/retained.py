"""What goes by age, number and bytes, by what a topic says and what one of its queues does: altered again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from lsmq.messages import encode_header

from .area import DAY_MS, Area, Life
from .rows import Queue, Row, stored_together

#: Two clocks differ by less, so what is counted as the age of a message is off by less.
_WRONG_MS = 5_000
_AGES_MS = (None, 1_000, 12_000, 60_000)
_COUNTS = (None, 1, 3, 8)
_SIZES = (None, 320, 640)
_BODY_BYTES = 100
#: Who leads all the while has heard by then of what was altered.
_HEARD_S = 3.0
#: Of a topic: what it may hold, and by how much an estimate may be off: points of samples, and what files take beside.
_HEAVY = (None, 4_000, 8_000)
_HEAVY_BODY_BYTES = 900
_BESIDE = 0.15
_POINTS_BYTES = 2_048

Limit = int | Literal["unlimited"] | None


@dataclass(frozen=True)
class Limits:
    """As options are called."""

    retention_ms: Limit = None
    retention_messages: Limit = None
    retention_bytes: Limit = None

    def of_queue(self, own: Limits) -> Limits:
        """What holds for a queue with limits of its own."""
        return Limits(
            *(_own(own.retention_ms, self.retention_ms), _own(own.retention_messages, self.retention_messages)),
            own.retention_bytes,
        )


def _own(own: Limit, of_topic: Limit) -> Limit:
    return of_topic if own is None else None if own == "unlimited" else own


def _now_ms() -> float:
    return 1_000 * asyncio.get_running_loop().time()


class Retained(Area):
    """What one of its queues says goes before what the topic does.

    Attributes:
        in_force: limits of each queue that some leader may still obey, the present ones last.
        lives: likewise times to live.
        sent_ms: of each number.
        asked: so many messages went because somebody said so.
        heavy: of each queue of the topic that holds so many bytes.
        heavy_together: so many of these were stored together with others.
        most_bytes: limits of that one that some leader may still obey.
    """

    topics: ClassVar[Mapping[str, Mapping[str, Any]]] = {"aged": {"queues": 2}, "heavy": {"queues": 2}}
    deeds = ("send", "send", "send", "send", "alter", "alter", "alter_one", "clear", "look", "weigh", "weigh")

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self.queues = (Queue(), Queue())
        self.sent_ms: dict[int, float] = {}
        self.limits, self.own = Limits(), [Limits(), Limits()]
        self.in_force = [[Limits()], [Limits()]]
        self.lives: list[int | None] = [None]
        self.starts = [0, 0]
        self.asked = 0
        self.heavy: tuple[dict[int, Row], ...] = ({}, {})
        self.heavy_together = 0
        self.most_bytes: list[int | None] = [None]

    async def send(self, where: int, how: int, what: int) -> None:
        row, properties = Row(self.life.number()), {"number": f"{self.life.last}"}
        row.size_bytes = len(encode_header(None, None, properties)) + _BODY_BYTES
        self.sent_ms[row.number] = _now_ms()
        row.expires = self.lives == [_AGES_MS[1]]
        row.may_be_gone = _AGES_MS[1] in self.lives
        sent = await self.life.send("aged", "x" * _BODY_BYTES, queue=where % 2, properties=properties)
        assert sent.offset == self.queues[where % 2].append(row), "offsets have no gaps"

    # What is said of it

    async def alter(self, where: int, how: int, what: int) -> None:
        """The topic: its age, number, or how long what comes lives."""
        if where % 3 == 0:
            life_ms = (None, _AGES_MS[1], DAY_MS)[how % 3]
            await self.client.alter_topic("aged", ttl_ms=life_ms)
            self.lives.append(life_ms)
            leaders = self.life.leaders()
            await asyncio.sleep(_HEARD_S)
            if len(leaders) == self.life.cluster.shards and leaders == self.life.leaders():
                del self.lives[:-1]
            return
        changes: dict[str, Any] = (
            {"retention_ms": _AGES_MS[how % 4]} if where % 3 == 1 else {"retention_messages": _COUNTS[how % 4]}
        )
        await self.client.alter_topic("aged", **changes)
        self.limits = replace(self.limits, **changes)
        self._changed()

    async def alter_one(self, where: int, how: int, what: int) -> None:
        queue = where % 2
        changes: dict[str, Any] = {}
        if how % 3 == 0:
            changes["retention_ms"] = (*_AGES_MS, "unlimited")[what % 5]
        elif how % 3 == 1:
            changes["retention_messages"] = (*_COUNTS, "unlimited")[what % 5]
        else:
            changes["retention_bytes"] = _SIZES[what % 3]
        await self.client.alter_queue("aged", queue, **changes)
        self.own[queue] = replace(self.own[queue], **changes)
        self._changed()

    def _changed(self) -> None:
        for queue, in_force in enumerate(self.in_force):
            in_force.append(self.limits.of_queue(self.own[queue]))

    async def clear(self, where: int, how: int, what: int) -> None:
        """All that is there, all of one queue, or what was stored before one that is there."""
        if how % 4 == 0:
            self.asked += await self.client.purge_topic("aged")
            for known in self.queues:
                known.rows.clear()
        elif how % 4 == 1:
            self.asked += await self.client.purge_topic("aged", queues=[where % 2])
            self.queues[where % 2].rows.clear()
        else:
            there = {queue: await self.life.read("aged", queue) for queue in (0, 1)}
            stamps = sorted(message.stored_ms for messages in there.values() for message in messages)
            if not stamps:
                return
            before_ms = stamps[what % len(stamps)]
            self.asked += await self.client._trim("aged", "trim", {"before_ms": before_ms}, None)
            for queue, messages in there.items():
                self.queues[queue].remove(each.offset for each in messages if each.stored_ms < before_ms)
        await self._look()

    # What is there

    def _loosen(self) -> None:
        """What some limit that may be in force lets go may be gone."""
        for known, in_force in zip(self.queues, self.in_force, strict=True):
            for limits in set(in_force):
                for offset in self._beyond(known, limits, -_WRONG_MS, 0):
                    known.rows[offset].may_be_gone = True

    def _beyond(self, known: Queue, limits: Limits, off_ms: int, off_bytes: int) -> list[int]:
        """Offsets of what is beyond limits, if ages are counted so wrongly, and bytes."""
        found, newer_bytes, now_ms = [], 0, _now_ms()
        for offset in sorted(known.rows, reverse=True):
            row = known.rows[offset]
            newer_bytes += row.size_bytes
            if (
                (
                    limits.retention_ms is not None
                    and now_ms - self.sent_ms[row.number] > int(limits.retention_ms) + off_ms
                )
                or (limits.retention_messages is not None and offset < known.end - int(limits.retention_messages))
                or (limits.retention_bytes is not None and newer_bytes > int(limits.retention_bytes) + off_bytes)
            ):
                found.append(offset)
        return found

    async def look(self, where: int, how: int, what: int) -> None:
        await self._look()

    async def _look(self) -> None:
        for queue, known in enumerate(self.queues):
            start = (await self.client.offsets("aged")).earliest[queue]
            assert start >= self.starts[queue], f"the start of queue {queue} went back"
            self.starts[queue] = start
            messages = await self.life.read("aged", queue)
            self._loosen()
            came = [(message.offset, int(message.properties["number"])) for message in messages]
            known.compare(came)
            assert all(offset >= start for offset, _ in came), f"messages of {queue} lie before its start"
            known.remove(known.rows.keys() - dict(came).keys())  # What went does not come back.

    async def settled(self) -> None:
        """All have heard of the present limits long ago."""
        self._loosen()
        for known, in_force in zip(self.queues, self.in_force, strict=True):
            del in_force[:-1]
            known.settle()
            # What lies before it goes as well.
            gone = self._beyond(
                known, in_force[-1], _WRONG_MS, int(in_force[-1].retention_bytes or 0) // 32 + _BODY_BYTES
            )
            known.remove(range(max(gone, default=-1) + 1))
        del self.lives[:-1]
        await self._look()
        usage = await self.client.topic_usage("aged")
        offsets = await self.client.offsets("aged")
        went = usage.dropped.get("expired", 0)
        # Who has messages deleted is told how many there were as he asked; some may go by themselves as he does.
        assert went <= sum(offsets.earliest) <= went + self.asked, (
            f"{went} expired and {self.asked} were trimmed, of {offsets.earliest}"
        )
        assert usage.messages == sum(offsets.latest) - sum(offsets.earliest), f"{usage.messages} of {offsets}"
        await self._look_heavy()
        del self.most_bytes[:-1]
        held, most = self._held() - self.heavy_together * _HEAVY_BODY_BYTES, self.most_bytes[-1]
        assert most is None or held <= most * (1 + _BESIDE) + _POINTS_BYTES, f"a topic of {most} bytes holds {held}"

    # By bytes, over all shards

    async def weigh(self, where: int, how: int, what: int) -> None:
        if how % 4 == 0:
            most = _HEAVY[what % 3]
            await self.client.alter_topic("heavy", retention_bytes=most)
            self.most_bytes.append(most)
        elif how % 8 == 1:
            await self._look_heavy()
        else:
            for _ in range(1 + what % 4):
                row = Row(self.life.number(), size_bytes=_HEAVY_BODY_BYTES)
                sent = await self.life.send("heavy", f"{row.number:0{_HEAVY_BODY_BYTES}}", queue=where % 2)
                self.heavy[where % 2][sent.offset] = row

    def _held(self) -> int:
        return sum(row.size_bytes for known in self.heavy for row in known.values())

    async def _look_heavy(self) -> None:
        """The oldest have gone, and none that need not."""
        before, found = self._held(), [await self.life.read("heavy", queue) for queue in (0, 1)]
        self.heavy_together = stored_together([*found[0], *found[1]])
        for queue, known in enumerate(self.heavy):
            came = {message.offset: int(message.text()) for message in found[queue]}
            assert all(known[offset].number == number for offset, number in came.items()), f"others came of {queue}"
            assert list(came) == sorted(known)[len(known) - len(came) :], f"not the oldest of {queue} have gone"
            for offset in known.keys() - came.keys():
                del known[offset]
        least = min(
            before if most is None else min(before, most * (1 - _BESIDE) - _POINTS_BYTES) for most in self.most_bytes
        )
        assert self._held() >= least, f"{self._held()} bytes of {before} are left, of {self.most_bytes}"

    async def finish(self) -> None:
        await self._look()
