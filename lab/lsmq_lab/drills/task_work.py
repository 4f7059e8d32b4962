"""A work queue in a drill: consumers that compete, are killed and replaced, and what to hold them to.

- Everything that was acknowledged to producers is handled, or is a dead letter: poison, and only that, once each.
- What a consumer has acknowledged never begins again, whoever leads.
- A delivery begins while no other is under way: after the visibility of the one before, or after that was given back;
  and not before its delay is over. When leaders change, messages in flight may come to somebody else at once.
- Messages of a queue pass one that fails; what holds in order by key stands in :mod:`.keyed_work`.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, Literal

from lsmq import WorkQueue
from lsmq.dead_letters import DeadLetter, DeadLetters
from lsmq.errors import TimedOut, UnknownTopic
from lsmq.topics import dead_letter_topic
from lsmq_lab.history import History

from .columns import DrillColumns
from .side_work import DRAIN_TIMEOUT_S, POLL_S, Judgement, SideWork
from .workers import MAX_DELIVERIES, RETRY_FIRST_MS, VISIBILITY_MS, WorkerEvent, is_poison, main, read_events

EXAMPLES = 10
#: A message is delivered by the node before its consumer looks at the clock; a busy machine may take so long for it.
TRANSIT_S = 1.0
#: Nodes learn of a change of leaders a moment after it.
_STALE_S = 2.0
#: So many messages behind one that fails must have been passed on, some of them before its last delivery.
_BEHIND = 50

Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Conduct:
    """How a work queue did. ``doubled`` and ``wrong`` must be 0; ``again`` counts deliveries after the first."""

    handled: int
    again: int
    dead: int
    doubled: int
    wrong: int
    findings: tuple[str, ...]


class TaskWork(SideWork):
    """One work queue on the topic of a workload."""

    suffix = "work"
    noun = "consumer"
    #: In which order the work queue hands out.
    order: ClassVar[Literal["none", "key"]] = "none"

    def __init__(self, urls: Sequence[str], topic: str, queues: int) -> None:
        super().__init__(urls, topic, queues)
        self._changes: list[tuple[float, float]] = []
        self._letters: list[DeadLetter] = []
        self._events: list[WorkerEvent] = []

    async def start(self) -> None:
        """One more consumer."""
        if not self._tasks:
            self._tasks.append(asyncio.create_task(self._watch(), name="watch leaders"))
            work = WorkQueue(self._client, self._topic, self.name)
            await work.configure(
                max_deliveries=MAX_DELIVERIES,
                visibility_ms=VISIBILITY_MS,
                retry_first_ms=RETRY_FIRST_MS,
                order=self.order,
            )
        number = next(self._numbers)
        await self._spawn(number, main, topic=self._topic, record=str(self._record(number)))

    async def _watch(self) -> None:
        """Note when leaders change, whoever makes them: busy machines do."""
        known: dict[int, int] = {}
        seen_at = time.monotonic()
        while True:
            routes = (await self._client.topic(self._topic)).routes
            now, epochs = time.monotonic(), {route.shard: route.epoch for route in routes}
            if known and epochs != known:
                self._changes.append((seen_at - _STALE_S, now + _STALE_S))
            known, seen_at = epochs, now
            await asyncio.sleep(POLL_S)

    async def until_acknowledged(self, count: int) -> None:
        """Return when each living consumer has had so many acknowledgements more."""
        await self._until_each(b"\nA ", count, f"acknowledged {count} messages")

    # The end

    async def finish(self, latest: Mapping[int, int]) -> None:
        """Besides, the dead letters are read."""
        if behind := await self._until_committed(latest):
            raise TimedOut(f"in {DRAIN_TIMEOUT_S:.0f} s the work queue did not come to its end: {behind} of {latest}")
        await self._end_all()
        with suppress(UnknownTopic):
            self._letters = [
                letter async for letter in DeadLetters(self._client, dead_letter_topic(self._topic)).read()
            ]
        events = [event for path in self._directory.iterdir() for event in read_events(path.name, path)]
        self._events = sorted(events, key=lambda event: event.at)

    def judge(self, sent: History) -> Judgement:
        done = DrillColumns()
        begun: dict[tuple[str, Place], WorkerEvent] = {}
        for event in self._events:
            delivery = (event.worker, (event.queue, event.offset))
            if event.kind == "B":
                begun[delivery] = event
            elif event.kind == "H":
                first = begun[delivery]
                done.add_fields(event.queue, event.offset, first.key, first.sequence, first.digest)
        for letter in self._letters:
            done.add(letter.queue, letter.offset, letter.message.body)
        done.hand_to(sent.reading("work queue").received)
        conduct = conduct_of(self._events, self._letters, self._changes, by_key=self.order == "key")
        return Judgement(
            verdicts=[sent.check(redelivery=True)],
            notes=(
                f"the work queue handled {conduct.handled:,} messages, {conduct.dead:,} became dead letters, "
                f"{conduct.again:,} deliveries were not the first; {self.killed} consumers were killed",
            ),
            duplicates=conduct.doubled,
            other_anomalies=conduct.wrong,
            findings=conduct.findings,
        )


def conduct_of(
    events: Sequence[WorkerEvent],
    letters: Iterable[DeadLetter],
    changes: Sequence[tuple[float, float]],
    *,
    by_key: bool = False,
) -> Conduct:
    """How a work queue did by its ``events``, sorted by time; ``changes``: from when to when leaders changed.

    ``by_key``: messages may wait for others of their queue, so whom a dead letter held up is not looked at.
    """
    by_place: dict[Place, list[WorkerEvent]] = defaultdict(list)
    for event in events:
        by_place[event.queue, event.offset].append(event)
    doubled: list[str] = []
    for place, story in by_place.items():
        doubled += _again(place, story, changes)
    dead = Counter((letter.queue, letter.offset) for letter in letters)
    doubled += [f"{name_of(place)} is a dead letter {count} times" for place, count in dead.items() if count > 1]
    wrong = [
        f"{name_of(place)} is a dead letter, and no poison"
        for place in dead
        if place in by_place and not is_poison(_sequence(by_place[place]))
    ]
    wrong += [] if by_key else _held_up(by_place, dead)
    deliveries = sum(event.kind == "B" for event in events)
    return Conduct(
        handled=len({(event.queue, event.offset) for event in events if event.kind == "H"}),
        again=deliveries - len(by_place),
        dead=len(dead),
        doubled=len(doubled),
        wrong=len(wrong),
        findings=tuple(f"work queue: {finding}" for finding in (*doubled, *wrong)[:EXAMPLES]),
    )


def name_of(place: Place) -> str:
    return f"queue {place[0]} offset {place[1]}"


def _sequence(story: Sequence[WorkerEvent]) -> int:
    return next(event.sequence for event in story if event.kind == "B")


def _again(place: Place, story: Sequence[WorkerEvent], changes: Sequence[tuple[float, float]]) -> list[str]:
    """Deliveries of one message that should not have been."""
    found: list[str] = []
    before: WorkerEvent | None = None
    given_back = False
    acknowledged_at = float("inf")
    rests = [(event.since, event.until) for event in story if event.kind == "N"]
    for event in story:
        match event.kind:
            case "A":
                acknowledged_at = min(acknowledged_at, event.at)
            case "F":
                given_back = given_back or (before is not None and event.worker == before.worker)
            case "B":
                # Given to both when leaders changed, it may be acknowledged by one before the other has begun.
                changed = any(began < event.at and ended > _since(before) for began, ended in changes)
                delivered_after = event.until - VISIBILITY_MS / 1000
                if acknowledged_at < (delivered_after if changed else event.at):
                    found.append(f"{name_of(place)} began again after it was acknowledged")
                elif any(since < event.at < until for since, until in rests):
                    found.append(f"{name_of(place)} began before its delay was over")
                elif before is not None and not (given_back or changed) and event.at < before.until - TRANSIT_S:
                    found.append(f"{name_of(place)} began again {before.until - event.at:.1f} s too early")
                before, given_back = event, False
    return found


def _since(before: WorkerEvent | None) -> float:
    return float("inf") if before is None else before.at


def _held_up(by_place: Mapping[Place, Sequence[WorkerEvent]], dead: Iterable[Place]) -> list[str]:
    """Dead letters that nothing in their queue has passed while they failed."""
    first_of: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for (queue, offset), story in by_place.items():
        begins = [event for event in story if event.kind == "B"]
        if begins:
            first_of[queue].append((offset, begins[0].at))
    for rows in first_of.values():
        rows.sort()
    found: list[str] = []
    for place in dead:
        begins = [event for event in by_place.get(place, ()) if event.kind == "B"]
        if len(begins) < 2:
            continue
        rows = first_of[place[0]]
        behind = [at for _, at in rows[bisect_right(rows, (place[1], float("inf"))) :]]
        if len(behind) >= _BEHIND and not any(at < begins[-1].at for at in behind):
            found.append(f"{name_of(place)} failed, and held up {len(behind)} messages behind it")
    return found
