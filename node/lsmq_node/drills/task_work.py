"""A work queue in a drill: consumers that compete, are killed and replaced, and what to hold them to.

- Everything that was acknowledged to producers is handled, or is a dead letter: poison, and only that, once each.
- What a consumer has acknowledged never begins again, whoever leads.
- A delivery begins while no other is under way: after the visibility of the one before, or after that was given back;
  and not before its delay is over. When leaders change, messages in flight may come to somebody else at once.
- Messages of a queue pass one that fails.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from lsmq import Client, WorkQueue
from lsmq.dead_letters import SUFFIX, DeadLetter, DeadLetters
from lsmq.errors import TimedOut, UnknownTopic
from lsmq_node.history import Reading

from .workers import MAX_DELIVERIES, RETRY_FIRST_MS, VISIBILITY_MS, Event, is_poison, main, read_events

_POLL_S = 0.1
_SETTLE_TIMEOUT_S = 60.0
_DRAIN_TIMEOUT_S = 120.0
_END_TIMEOUT_S = 30.0
_EXAMPLES = 10
#: A message is delivered by the node before its consumer looks at the clock; a busy machine may take so long for it.
_TRANSIT_S = 1.0
#: Nodes learn of a change of leaders a moment after it.
_STALE_S = 2.0
#: So many messages behind one that fails must have been passed on, some of them before its last delivery.
_BEHIND = 50

Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class WorkConduct:
    """How a work queue did. ``doubled`` and ``wrong`` must be 0; ``again`` counts deliveries after the first."""

    handled: int
    again: int
    dead: int
    doubled: int
    wrong: int
    findings: tuple[str, ...]


class TaskWork:
    """One work queue on the topic of a workload. ``workers`` are those that live, by name."""

    def __init__(self, urls: Sequence[str], topic: str) -> None:
        self.name = f"{topic}-work"
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self.killed = 0
        self._urls = list(urls)
        self._topic = topic
        self._numbers = itertools.count()
        self._directory = Path(tempfile.mkdtemp(prefix="lsmq-workers-"))
        self._client = Client(self._urls, deadline_ms=120_000)
        self._watching: asyncio.Task[None] | None = None
        self._changes: list[tuple[float, float]] = []
        self._letters: list[DeadLetter] = []
        self._events: list[Event] = []

    async def start(self) -> str:
        """One more consumer; its name."""
        number = next(self._numbers)
        if number == 0:
            self._watching = asyncio.create_task(self._watch(), name="watch leaders")
            work = WorkQueue(self._client, self._topic, self.name)
            await work.configure(
                max_deliveries=MAX_DELIVERIES, visibility_ms=VISIBILITY_MS, retry_first_ms=RETRY_FIRST_MS
            )
        name = f"w{number}"
        record = str(self._directory / name)
        options = {"urls": self._urls, "topic": self._topic, "group": self.name, "record": record}
        command = [sys.executable, "-c", f"from {main.__module__} import main; main()", json.dumps(options)]
        self.workers[name] = await asyncio.to_thread(subprocess.Popen[bytes], command, stdin=subprocess.DEVNULL)
        return name

    async def kill(self, name: str) -> None:
        """SIGKILL, with whatever it has in its hands."""
        process = self.workers.pop(name)
        process.kill()
        await asyncio.to_thread(process.wait)
        self.killed += 1

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
            await asyncio.sleep(_POLL_S)

    async def until_acknowledged(self, count: int) -> None:
        """Return when each living consumer has had so many acknowledgements more."""
        before = {name: self._acknowledged(name) for name in self.workers}
        began = time.monotonic()
        while any(self._acknowledged(name) < done + count for name, done in before.items()):
            for name in before:
                assert self.workers[name].poll() is None, f"consumer {name} has ended"
            if time.monotonic() - began > _SETTLE_TIMEOUT_S:
                raise TimedOut(f"in {_SETTLE_TIMEOUT_S:.0f} s not every consumer acknowledged {count} messages")
            await asyncio.sleep(_POLL_S)

    def _acknowledged(self, name: str) -> int:
        record = self._directory / name
        return record.read_bytes().count(b"\nA ") if record.exists() else 0

    async def finish(self, latest: Mapping[int, int]) -> None:
        """Return when all is settled, everybody has left, and the dead letters are read."""
        began = time.monotonic()
        while True:
            settled = await self._client.committed_offsets(self.name, self._topic)
            if all(settled.get(queue, 0) >= offset for queue, offset in latest.items()):
                break
            if time.monotonic() - began > _DRAIN_TIMEOUT_S:
                raise TimedOut(
                    f"in {_DRAIN_TIMEOUT_S:.0f} s the work queue did not come to its end: {settled} of {latest}"
                )
            await asyncio.sleep(_POLL_S)
        for name, process in list(self.workers.items()):
            process.terminate()
            code = await asyncio.to_thread(process.wait, _END_TIMEOUT_S)
            assert code == 0, f"consumer {name} ended with {code}"
            del self.workers[name]
        try:
            self._letters = [letter async for letter in DeadLetters(self._client, self._topic + SUFFIX).read()]
        except UnknownTopic:
            self._letters = []
        events = [event for path in self._directory.iterdir() for event in read_events(path.name, path)]
        self._events = sorted(events, key=lambda event: event.at)

    async def close(self) -> None:
        for process in self.workers.values():
            process.kill()
            process.wait()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._client.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    # The verdict, after the end

    def tell(self, reading: Reading) -> None:
        """What was handled, or is a dead letter, for a check that allows redelivery."""
        begun: dict[tuple[str, Place], Event] = {}
        handled: list[Event] = []
        for event in self._events:
            place = (event.queue, event.offset)
            if event.kind == "B":
                begun[event.worker, place] = event
            elif event.kind == "H":
                handled.append(begun[event.worker, place])
        reading.received(
            [event.queue for event in handled],
            [event.offset for event in handled],
            [event.key for event in handled],
            [event.sequence for event in handled],
            digests=[event.digest for event in handled],
        )
        bodies = [letter.message.body for letter in self._letters]
        reading.received(
            [letter.queue for letter in self._letters],
            [letter.offset for letter in self._letters],
            [body.split(b" ", 2)[1].decode() for body in bodies],
            [int(body.split(b" ", 1)[0]) for body in bodies],
            digests=[xxhash.xxh64_intdigest(body) for body in bodies],
        )

    def conduct(self) -> WorkConduct:
        """Whether the work queue kept to the rules."""
        return judge(self._events, self._letters, self._changes)


def judge(
    events: Sequence[Event], letters: Iterable[DeadLetter], changes: Sequence[tuple[float, float]]
) -> WorkConduct:
    """The verdict on ``events``, by time; ``changes``: from when to when leaders changed."""
    by_place: dict[Place, list[Event]] = defaultdict(list)
    for event in events:
        by_place[event.queue, event.offset].append(event)
    doubled: list[str] = []
    for place, story in by_place.items():
        doubled += _again(place, story, changes)
    dead = Counter((letter.queue, letter.offset) for letter in letters)
    doubled += [f"{_name(place)} is a dead letter {count} times" for place, count in dead.items() if count > 1]
    wrong = [
        f"{_name(place)} is a dead letter, and no poison"
        for place in dead
        if place in by_place and not is_poison(_sequence(by_place[place]))
    ]
    wrong += _held_up(by_place, dead)
    deliveries = sum(event.kind == "B" for event in events)
    return WorkConduct(
        handled=len({(event.queue, event.offset) for event in events if event.kind == "H"}),
        again=deliveries - len(by_place),
        dead=len(dead),
        doubled=len(doubled),
        wrong=len(wrong),
        findings=tuple(f"work queue: {finding}" for finding in (*doubled, *wrong)[:_EXAMPLES]),
    )


def _name(place: Place) -> str:
    return f"queue {place[0]} offset {place[1]}"


def _sequence(story: Sequence[Event]) -> int:
    return next(event.sequence for event in story if event.kind == "B")


def _again(place: Place, story: Sequence[Event], changes: Sequence[tuple[float, float]]) -> list[str]:
    """Deliveries of one message that should not have been."""
    found: list[str] = []
    before: Event | None = None
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
                    found.append(f"{_name(place)} began again after it was acknowledged")
                elif any(since < event.at < until for since, until in rests):
                    found.append(f"{_name(place)} began before its delay was over")
                elif before is not None and not (given_back or changed) and event.at < before.until - _TRANSIT_S:
                    found.append(f"{_name(place)} began again {before.until - event.at:.1f} s too early")
                before, given_back = event, False
    return found


def _since(before: Event | None) -> float:
    return float("inf") if before is None else before.at


def _held_up(by_place: Mapping[Place, Sequence[Event]], dead: Iterable[Place]) -> list[str]:
    """Dead letters that nothing in their queue has passed while they failed."""
    first_of: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for (queue, offset), story in by_place.items():
        begun = [event.at for event in story if event.kind == "B"]
        if begun:
            first_of[queue].append((offset, begun[0]))
    for rows in first_of.values():
        rows.sort()
    found: list[str] = []
    for place in dead:
        begun = [event.at for event in by_place.get(place, ()) if event.kind == "B"]
        rows = first_of[place[0]]
        behind = [at for _, at in rows[bisect_right(rows, (place[1], float("inf"))) :]]
        if len(begun) > 1 and len(behind) >= _BEHIND and not any(at < begun[-1] for at in behind):
            found.append(f"{_name(place)} failed, and held up {len(behind)} messages behind it")
    return found
