"""The parts of a node that work by themselves, and what each says of itself.

A part (a thread, a task) runs, or is being tried again, or has stopped; nothing of it stops without a word. Who
watches a node reads it here: readiness, the cluster's page, metrics and the log all show the same. Any thread may
speak for its part.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from lsmq import runtime
from lsmq.errors import LsmqError

MAX_PARTS = 8_192
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 30.0
_STEADY_S = 60.0
_log = logging.getLogger(__name__)


class PartState(StrEnum):
    RUNNING = "running"
    RETRYING = "retrying"  # Failed, and goes on by itself when it can.
    STOPPED = "stopped"  # Does not begin again before the node does.


class Part(Protocol):
    """What a part says of itself. Saying the same again is free and changes nothing."""

    def running(self) -> None: ...

    def retrying(self, why: str) -> None: ...

    def recovered(self, why: str) -> None:
        """It runs, where it has said nothing else since it was retried for this."""

    def stopped(self, why: str) -> None: ...

    def gone(self) -> None:
        """There is no such part any more: it ended because it was told to."""


class _Unseen:
    def running(self) -> None: ...

    def retrying(self, why: str) -> None: ...

    def recovered(self, why: str) -> None: ...

    def stopped(self, why: str) -> None: ...

    def gone(self) -> None: ...


#: For parts that nobody watches, as in tests of theirs.
UNSEEN: Part = _Unseen()


@dataclass(frozen=True, slots=True)
class PartReport:
    """``failures`` counts how often it ceased to run; ``why`` is empty while it runs. ``since`` is monotonic.

    ``essential``: without it the node does not do its work, and is not ready.
    """

    name: str
    essential: bool
    state: PartState
    why: str
    since: float
    failures: int

    @property
    def problem(self) -> str | None:
        """For people; None while it runs."""
        if self.state is PartState.RUNNING:
            return None
        return f"{self.name}{' has stopped' if self.state is PartState.STOPPED else ''}: {self.why}"


OnChange = Callable[[PartReport], None]


class Parts:
    """All parts of a node. One a process; safe from any thread."""

    def __init__(self, on_change: OnChange = lambda report: None, clock: Callable[[], float] | None = None) -> None:
        """``on_change`` is told of each change, in the thread of the part; it must not block."""
        self._on_change, self._clock = on_change, clock or runtime.monotonic
        self._lock = runtime.Lock()
        self._reports: dict[str, PartReport] = {}  # guarded by _lock

    def part(self, name: str, *, essential: bool = True) -> Part:
        """The part of that name, which runs from now on."""
        registered = _Registered(self, name, essential)
        registered.running()
        return registered

    def reports(self) -> list[PartReport]:
        """By name."""
        with self._lock:
            return [self._reports[name] for name in sorted(self._reports)]

    def problems(self, *, essential: bool) -> list[str]:
        """Of the parts that do not run and are, or are not, essential: in words."""
        found = [report.problem for report in self.reports() if report.essential == essential]
        return [problem for problem in found if problem is not None]

    def _say(self, name: str, essential: bool, state: PartState, why: str, after: str | None = None) -> None:
        """``after``: only where the last that was said is that it is retried for this."""
        with self._lock:
            former = self._reports.get(name)
            if former is not None and (former.state, former.why) == (state, why):
                return
            if after is not None and (former is None or (former.state, former.why) != (PartState.RETRYING, after)):
                return
            assert former is not None or len(self._reports) < MAX_PARTS, f"a node has at most {MAX_PARTS} parts"
            failures = former.failures if former is not None else 0
            ceased = state is not PartState.RUNNING and (former is None or former.state is PartState.RUNNING)
            same = former is not None and former.state is state
            since = former.since if former is not None and same else self._clock()
            report = PartReport(name, essential, state, why, since, failures + ceased)
            self._reports[name] = report
        if former is not None or state is not PartState.RUNNING:
            self._on_change(report)

    def _forget(self, name: str) -> None:
        with self._lock:
            self._reports.pop(name, None)


class _Registered:
    def __init__(self, parts: Parts, name: str, essential: bool) -> None:
        self._parts, self._name, self._essential = parts, name, essential

    def running(self) -> None:
        self._say(PartState.RUNNING, "")

    def retrying(self, why: str) -> None:
        self._say(PartState.RETRYING, why)

    def recovered(self, why: str) -> None:
        self._say(PartState.RUNNING, "", after=why)

    def stopped(self, why: str) -> None:
        self._say(PartState.STOPPED, why)

    def _say(self, state: PartState, why: str, after: str | None = None) -> None:
        self._parts._say(self._name, self._essential, state, why, after)

    def gone(self) -> None:
        self._parts._forget(self._name)


async def kept(part: Part, work: Callable[[], Awaitable[None]]) -> None:
    """Run ``work`` as a part, for ever: when it fails, or ends, it is begun again after a pause, and the part says so.
    What ``work`` says of the part itself stands.

    Only cancelling ends it. What is begun again must not rest on what the failed run left half done.
    """
    loop, pause_s, why = asyncio.get_running_loop(), _FIRST_PAUSE_S, ""
    while True:
        began = loop.time()
        steady = loop.call_later(_FIRST_PAUSE_S, part.recovered, why)
        try:
            await work()
            why = "it ended"
        except LsmqError as error:
            why = error.message
        except Exception as error:  # A part must not take the others with it, whatever it is.
            _log.exception("a part failed")
            why = f"{type(error).__name__}: {error}"
        finally:
            steady.cancel()
        if loop.time() - began > _STEADY_S:
            pause_s = _FIRST_PAUSE_S
        part.retrying(why)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
