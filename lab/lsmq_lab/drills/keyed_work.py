"""A work queue in order by key in a drill, and what to hold it to beside what :mod:`.task_work` says.

- A message begins when those of its key before it have been handled, or are dead letters.
- A key that fails delays no other: while one of its messages fails again and again, something of another key of its
  queue begins, if there is something that may: that was stored, and whose key was free, before the first of these
  failures. That is asked of failures alone during which no consumer was killed and no leader changed: what these had in
  hand waits for its visibility, and holds its key.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from lsmq.dead_letters import DeadLetter
from lsmq.errors import TimedOut, UnknownTopic
from lsmq.topics import dead_letter_topic
from lsmq_lab.history import History

from .side_work import POLL_S, SETTLE_TIMEOUT_S, Judgement
from .task_work import EXAMPLES, TRANSIT_S, Place, TaskWork, name_of
from .workers import VISIBILITY_MS, WorkerEvent

#: For so long after it somebody may have in hand what he does not write down.
_AFTERMATH_S = VISIBILITY_MS / 1000 + TRANSIT_S

Stretch = tuple[float, float]
"""From when to when, by the clock of the records."""

Ends = tuple[float, Mapping[int, int]]
"""Where queues ended at a moment, or before it."""


class KeyedTaskWork(TaskWork):
    """One work queue in order by key on the topic of a workload."""

    suffix = "keyed"
    order: ClassVar[Literal["none", "key"]] = "key"

    def __init__(self, urls: Sequence[str], topic: str, queues: int) -> None:
        super().__init__(urls, topic, queues)
        self._ends: list[Ends] = []
        self._kills: list[Stretch] = []

    async def start(self) -> None:
        """One more consumer."""
        await super().start()
        if len(self._tasks) == 1:
            self._tasks.append(asyncio.create_task(self._watch_ends(), name="watch ends"))

    async def _watch_ends(self) -> None:
        while True:
            offsets = await self._client.offsets(self._topic)
            self._ends.append((time.monotonic(), dict(zip(offsets.queues, offsets.latest, strict=True))))
            await asyncio.sleep(POLL_S)

    async def kill(self, number: int) -> None:
        since = time.monotonic()
        await super().kill(number)
        self._kills.append((since, time.monotonic() + _AFTERMATH_S))

    async def until_dead_letters(self) -> None:
        """Return when there is a dead letter."""
        began = time.monotonic()
        while True:
            try:
                if any((await self._client.offsets(dead_letter_topic(self._topic))).latest):
                    return
            except UnknownTopic:
                pass
            if time.monotonic() - began > SETTLE_TIMEOUT_S:
                raise TimedOut(f"in {SETTLE_TIMEOUT_S:.0f} s there was no dead letter")
            await asyncio.sleep(POLL_S)

    def judge(self, sent: History) -> Judgement:
        judged = super().judge(sent)
        early = reordered(self._events, self._letters)
        disturbed = [*self._kills, *((since, until + _AFTERMATH_S) for since, until in self._changes)]
        delays = delays_of(self._events, self._letters, self._ends, disturbed)
        told = [*early[:EXAMPLES], *delays.findings[:EXAMPLES]]
        return replace(
            judged,
            notes=(
                *judged.notes,
                f"beside {delays.asked:,} messages that failed others could go on, and nobody was killed meanwhile",
            ),
            order_violations=len(early),
            other_anomalies=judged.other_anomalies + len(delays.findings),
            findings=(*judged.findings, *(f"work queue: {finding}" for finding in told)),
        )


def reordered(events: Iterable[WorkerEvent], letters: Iterable[DeadLetter]) -> list[str]:
    """Deliveries that began before all messages of their key before them were handled. ``events``: sorted by time."""
    dead = {(letter.queue, letter.offset) for letter in letters}
    handled: set[Place] = set()
    begun: dict[tuple[int, str], set[int]] = defaultdict(set)  # by queue and key: offsets that are not handled yet
    found: list[str] = []
    for event in events:
        place = event.queue, event.offset
        if event.kind == "H":
            handled.add(place)
        elif event.kind == "B":
            open_ = begun[event.queue, event.key]
            open_ -= {offset for offset in open_ if (event.queue, offset) in handled}
            if earlier := [offset for offset in open_ if offset < event.offset and (event.queue, offset) not in dead]:
                found.append(f"{name_of(place)} began before offset {min(earlier)} of its key was handled")
            open_.add(event.offset)
    return found


@dataclass(frozen=True, slots=True)
class KeyDelays:
    """``asked``: dead letters beside whose failures others could go on. ``findings``: those beside which none did."""

    asked: int
    findings: tuple[str, ...]


@dataclass(slots=True)
class _Story:
    key: str
    begun: list[float]
    done_at: float = float("inf")


def delays_of(
    events: Iterable[WorkerEvent], letters: Iterable[DeadLetter], ends: Sequence[Ends], disturbed: Sequence[Stretch]
) -> KeyDelays:
    """See the module. ``events`` and ``ends``: sorted by time."""
    queues: dict[int, dict[int, _Story]] = defaultdict(dict)
    for event in events:
        if event.kind == "B":
            queues[event.queue].setdefault(event.offset, _Story(event.key, [])).begun.append(event.at)
        elif event.kind == "A" and (story := queues[event.queue].get(event.offset)) is not None:
            story.done_at = min(story.done_at, event.at)
    asked, findings = 0, list[str]()
    for queue, offset in sorted({(letter.queue, letter.offset) for letter in letters}):
        stories = queues[queue]
        if (failing := stories.get(offset)) is None:
            continue
        since, until = failing.begun[0], failing.begun[-1]
        if any(began < until and ended > since for began, ended in disturbed):
            continue
        waiting = _may_begin(stories, offset, since, _end_at(ends, queue, since))
        if not waiting or until - since < 2 * TRANSIT_S:
            continue
        asked += 1
        others = (story for at, story in stories.items() if at > offset and story.key != failing.key)
        if not any(since < story.begun[0] < until + TRANSIT_S for story in others):
            findings.append(f"{name_of((queue, offset))} failed, and held up offset {min(waiting)}, of another key")
    return KeyDelays(asked, tuple(findings))


def _end_at(ends: Sequence[Ends], queue: int, at: float) -> int:
    """Where the queue ended then, at least."""
    place = bisect_right(ends, at, key=lambda known: known[0])
    return ends[place - 1][1].get(queue, 0) if place else 0


def _may_begin(stories: Mapping[int, _Story], failing: int, since: float, end: int) -> list[int]:
    """Offsets behind ``failing``, of other keys, that were stored and whose turn it was then, and had not begun."""
    free: dict[str, bool] = {}
    found: list[int] = []
    for offset in sorted(stories):
        story = stories[offset]
        may_begin = story.key != stories[failing].key and free.get(story.key, True) and story.begun[0] > since
        if may_begin and failing < offset < end:
            found.append(offset)
        free[story.key] = free.get(story.key, True) and story.done_at < since
    return found
