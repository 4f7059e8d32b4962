"""What messages mean, in lists and dictionaries: a plain second writing of all that a topic may be told to do.

One client does one thing after another, so each answer is known. Where the cluster does something in the background, or
by its clock, a message *may be gone* until everything had time to settle, and is gone then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: Topics by name, and their options.
TOPICS: Mapping[str, Mapping[str, Any]] = {
    "log": {"queues": 2},
    "ring": {"queues": 2, "queue_max_messages": 3, "overflow": "drop_oldest"},
    "full": {"queues": 1, "queue_max_messages": 3, "overflow": "drop_newest"},
    "once": {"queues": 1, "dedupe_window_ms": "forever"},
    "table": {"queues": 1, "cleanup": "compact"},
    "later": {"queues": 1},
    "jobs": {"queues": 1},
    "shared": {"queues": 1},
    "names": {"queues": "named"},
    "ring_bytes": {"queues": 2, "queue_max_bytes": 1_000, "overflow": "drop_oldest"},
    "full_bytes": {"queues": 1, "queue_max_bytes": 1_000, "overflow": "drop_newest"},
    "tight": {"queues": 1, "queue_max_bytes": 1_000},
}
#: What queues of these may hold, in bytes; and by how much one may seem fuller, when what it began with is gone.
MOST_BYTES = 1_000
PIECE_BYTES = MOST_BYTES // 32
BYTE_TOPICS = tuple(topic for topic, options in TOPICS.items() if "queue_max_bytes" in options)
BYTE_QUEUES = tuple((topic, queue) for topic in BYTE_TOPICS for queue in range(TOPICS[topic]["queues"]))
#: Of the tenants of the work queue of ``shared``, by key, where that is not 1.
WEIGHTS: Mapping[str, int] = {"b": 2}


@dataclass
class Row:
    """A message. ``may_be_gone``: nobody can say by now. ``expires``: it has some moments to live."""

    number: int
    key: str | None = None
    tag: str | None = None
    priority: tuple[int, int] = (0, 0)  # and subpriority
    deletes_key: bool = False
    may_be_gone: bool = False
    expires: bool = False
    size_bytes: int = 0  # header and body, where that counts


@dataclass
class Queue:
    """Messages by offset, as far as they are there. ``keeps``: so many of the newest stay; None for all."""

    rows: dict[int, Row] = field(default_factory=dict)
    end: int = 0
    keeps: int | None = None

    def append(self, row: Row) -> int:
        offset, self.end = self.end, self.end + 1
        self.rows[offset] = row
        self.loosen()
        return offset

    def loosen(self) -> None:
        """What lies before the newest goes in the background."""
        for offset, row in self.rows.items():
            if self.keeps is not None and offset < self.end - self.keeps:
                row.may_be_gone = True

    def remove(self, offsets: Iterable[int]) -> None:
        for offset in list(offsets):
            self.rows.pop(offset, None)

    def size_bytes(self) -> int:
        return sum(row.size_bytes for row in self.rows.values())

    def settle(self) -> None:
        """What was beyond a limit that has been raised since may have gone before, or stays."""
        kept_from = 0 if self.keeps is None else self.end - self.keeps
        self.remove([offset for offset, row in self.rows.items() if row.expires or offset < kept_from])


@dataclass
class Later:
    """A message that is to come: soon, or on another day. ``id`` is what the cluster calls it."""

    number: int
    id: str
    soon: bool
    due_ms: int


class Turns:
    """Work of tenants, who take turns. Who leads next begins anew with them.

    Attributes:
        open: whose each message is, by offset.
        again: of these, given back before.
        passed: of each tenant who waits, how often each other one was served since it was, or began to wait.
    """

    def __init__(self) -> None:
        self.open: dict[int, str | None] = {}
        self.again: set[int] = set()
        self.passed: dict[str | None, Counter[str | None]] = {}
        self.leader = 0

    def came(self, offset: int, tenant: str | None) -> None:
        self.open[offset] = tenant
        self.passed.setdefault(tenant, Counter())

    def popped(self, offset: int, leader: int, *, done: bool) -> None:
        """The only worker was given a message by this leader; he settled it, or gave it back."""
        assert offset in self.open, f"{offset} was settled before"
        tenant = self.open[offset]
        fresh = [each for each, whose in self.open.items() if whose == tenant and each not in self.again]
        assert offset in self.again or offset == min(fresh), "those of a tenant come in their order"
        if leader != self.leader:
            self.leader, self.passed = leader, {each: Counter() for each in self.passed}
        for other, passed in self.passed.items():
            passed[tenant] += other != tenant
            most = 1 if tenant is None else WEIGHTS.get(tenant, 1)
            assert passed[tenant] <= most, f"tenant {tenant} was served {passed[tenant]} times while {other} waited"
        if done:
            del self.open[offset]
            self.again.discard(offset)
        else:
            self.again.add(offset)
        del self.passed[tenant]
        if tenant in self.open.values():
            self.passed[tenant] = Counter()


class Model:
    """Each method is told what the cluster answered, and says what is wrong with it, if anything."""

    def __init__(self) -> None:
        self.queues: dict[tuple[str, int], Queue] = {
            (topic, number): Queue()
            for topic, options in TOPICS.items()
            if options["queues"] != "named"
            for number in range(options["queues"])
        }
        self.names: dict[str, list[int]] = {}
        self.ids: dict[str, int] = {}
        self.later: list[Later] = []
        self.come: dict[int, int] = {}  # numbers that were to come, and when they are due
        self.cancelled: set[int] = set()
        self.open: dict[tuple[int, int], Row] = {}  # jobs by queue and offset
        self.again: set[tuple[int, int]] = set()  # of these, given back before
        self.turns = Turns()
        self.committed: dict[int, int] = {}

    # Sending

    def sent(self, topic: str, queue: int, row: Row, offset: int | None, *, dedupe_id: str | None, again: bool) -> None:
        """It was acknowledged: as stored at an offset, as dropped (None), or as a message that was there before."""
        known = self.queues[topic, queue]
        if topic == "once" and dedupe_id in self.ids:
            assert (offset, again) == (self.ids[dedupe_id], True), "a repeat is answered with the place of the first"
            return
        assert not again, "it was taken for a repeat"
        if topic == "full" and len(known.rows) >= TOPICS["full"]["queue_max_messages"]:
            assert offset is None, "a full queue takes what is new and drops it"
            return
        assert offset == known.append(row), "offsets have no gaps"
        if topic == "once" and dedupe_id is not None:
            self.ids[dedupe_id] = offset
        if topic == "ring":
            known.remove([each for each in known.rows if each < known.end - TOPICS["ring"]["queue_max_messages"]])
        if topic == "jobs":
            self.open[queue, offset] = row
        if topic == "shared":
            self.turns.came(offset, row.key)
        if topic == "table" and row.key is not None:
            for each in known.rows.values():
                each.may_be_gone |= each.key == row.key and each is not row

    def room(self, topic: str, queue: int, size_bytes: int) -> bool | None:
        """Whether so much more surely fits, or surely does not where the leader has counted all; None: who knows."""
        size_bytes += self.queues[topic, queue].size_bytes()
        return True if size_bytes + PIECE_BYTES <= MOST_BYTES else False if size_bytes > MOST_BYTES else None

    def filled(self, topic: str, queue: int, row: Row, offset: int | None, *, counted: bool) -> None:
        """It was sent to a queue that is to hold so many bytes: stored at an offset, or dropped or refused (None).

        ``counted``: the leader had counted what was in the queue before.
        """
        known, room = self.queues[topic, queue], self.room(topic, queue, row.size_bytes)
        if topic == "ring_bytes":
            assert offset is not None, "new messages are always taken where the oldest make room"
        elif offset is None:
            assert room is not True, f"{topic} had room"
        else:
            assert room is not False or not counted, f"{topic} had no room"
        if offset is None:
            return
        assert offset == known.append(row), "offsets have no gaps"
        if topic == "ring_bytes":
            self._make_room(known, counted=counted)

    def _make_room(self, known: Queue, *, counted: bool) -> None:
        size = 0
        for offset in sorted(known.rows, reverse=True):
            size += known.rows[offset].size_bytes
            if offset == known.end - 1:
                continue  # the newest stays, however large it is
            known.rows[offset].may_be_gone |= size + PIECE_BYTES > MOST_BYTES
            if counted and size > MOST_BYTES:
                known.remove([offset])

    # Reading

    def read(self, topic: str, queue: int, found: Iterable[tuple[int, int]], picks: Callable[[Row], bool]) -> None:
        """``found``: offsets and numbers, as they came."""
        came, rows = list(found), self.queues[topic, queue].rows
        assert came == sorted(came), "messages come in the order of their offsets"
        wanted = {offset: row for offset, row in rows.items() if picks(row)}
        for offset, number in came:
            assert offset in wanted, f"offset {offset} of {topic}/{queue} is not there, or was not asked for"
            assert wanted[offset].number == number, f"offset {offset} of {topic}/{queue} is another message"
        surely = {offset for offset, row in wanted.items() if not row.may_be_gone}
        assert surely <= {offset for offset, _ in came}, f"messages of {topic}/{queue} are missing"
        if topic == "ring_bytes":  # What went there does not come back.
            self.queues[topic, queue].remove(wanted.keys() - {offset for offset, _ in came})

    def within_bytes(self, topic: str, queue: int, offsets: Iterable[int]) -> None:
        """The leader has counted the queue, which has these."""
        sizes = [self.queues[topic, queue].rows[offset].size_bytes for offset in offsets]
        assert sum(sizes) <= MOST_BYTES or len(sizes) == 1, f"{topic}/{queue} has messages of {sizes} bytes"

    def found(self, key: str, found: Iterable[tuple[int, int]]) -> None:
        """What was found of a key in the log: queues and offsets."""
        came = list(found)
        assert len(set(came)) == len(came), "a message was found twice"
        have = {
            (queue, offset): row
            for queue in (0, 1)
            for offset, row in self.queues["log", queue].rows.items()
            if row.key == key
        }
        assert set(came) <= have.keys(), "something was found that is not there, or of another key"
        assert {place for place, row in have.items() if not row.may_be_gone} <= set(came), "not all of a key was found"
        for queue in (0, 1):
            offsets = [offset for each, offset in came if each == queue]
            assert offsets == sorted(offsets, reverse=True), "the newest of a queue is found first"

    def latest(self, key: str, number: int | None) -> None:
        """What the table has of a key."""
        rows = [row for row in self.queues["table", 0].rows.values() if row.key == key]
        expected = None if not rows or rows[-1].deletes_key else rows[-1].number
        assert number == expected, f"the table has {number} for {key}, not {expected}"

    # Names

    def named(self, found: Mapping[str, list[int]]) -> None:
        """All queues with names, and the numbers in each."""
        assert found == self.names

    # What comes later

    def is_cancelled(self, place: int, *, delivered: bool) -> None:
        """Somebody cancelled it, and was told that it was ``delivered`` already."""
        message = self.later[place]
        assert message.soon or not delivered, "what is due on another day was delivered"
        if not delivered:
            self.later.pop(place)
            self.cancelled.add(message.number)

    def came_later(self, found: Iterable[tuple[int, int]], pending: Iterable[int], *, settled: bool) -> None:
        """Numbers that came, with when they were stored; and those that wait."""
        came, waiting = dict(found), sorted(pending)
        known = {message.number: message for message in self.later}
        assert not self.cancelled & came.keys(), "a cancelled message came"
        for number, stored_ms in came.items():
            assert known[number].soon and stored_ms >= known[number].due_ms, "a message came before it was due"
        assert sorted(waiting) == sorted(known.keys() - came.keys()), "what has not come waits, once"
        if settled:
            assert not any(known[number].soon for number in waiting), "what is due has come"

    # Jobs

    def popped(self, place: tuple[int, int] | None, number: int | None, *, done: bool) -> None:
        """The only worker was given a message, or none; he settled it, or gave it back."""
        if place is None:
            assert not self.open, f"nobody was given the jobs {self.open}"
            return
        assert place in self.open, f"{place} was settled before"
        row = self.open[place]
        assert row.number == number
        highest = max(each.priority for each in self.open.values())
        assert row.priority == highest, f"priority {row.priority} came before {highest}"
        fresh = [each for each in self.open if each not in self.again and self.open[each].priority == highest]
        assert place in self.again or place == min(fresh), "of one priority they come in their order"
        if done:
            del self.open[place]
            self.again.discard(place)
        else:
            self.again.add(place)

    # Time

    def settle(self) -> None:
        """So much time has passed that what goes in the background is gone, and what is due has come."""
        for (topic, _), queue in self.queues.items():
            if topic not in ("table", "ring_bytes"):  # cleaned when enough has come; and may have more than it must
                queue.settle()
