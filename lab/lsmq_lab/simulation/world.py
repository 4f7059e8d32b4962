"""Virtual time, the schedule, the one source of randomness, and the trace of what happened."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from random import Random

Step = Callable[[], None]
TRACE_LINES = 80


@dataclass(frozen=True, slots=True)
class Options:
    """``steps``: scheduled steps with faults; then everything is healed and must settle within ``settle_s``.

    ``heartbeat_s``, ``lease_s`` and ``node_timeout_s`` are those of the control plane; the lease is the shorter.
    """

    steps: int = 8000
    settle_s: float = 20.0
    heartbeat_s: float = 0.1
    lease_s: float = 0.4
    node_timeout_s: float = 0.5


class World:
    """The schedule of one run. Steps at the same time run in the order in which they were scheduled."""

    def __init__(self, seed: int, *, tell: Callable[[str], None] | None = None) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.steps = 0
        self._tell = tell
        self._heap: list[tuple[float, int, Step]] = []
        self._count = 0
        self._trace: deque[tuple[float, str, object]] = deque(maxlen=TRACE_LINES)

    def after(self, seconds: float, step: Step) -> None:
        self.at(self.now + seconds, step)

    def at(self, time: float, step: Step) -> None:
        self._count += 1
        heapq.heappush(self._heap, (time, self._count, step))

    def run_one(self) -> None:
        time, _, step = heapq.heappop(self._heap)
        self.now = max(self.now, time)
        self.steps += 1
        step()

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def note(self, who: str, what: object) -> None:
        """Put something on the trace; it is put into words only when somebody reads it."""
        if self._tell is not None:
            self._tell(_line(self.now, who, what))
        self._trace.append((self.now, who, what))

    def last_lines(self) -> list[str]:
        return [_line(*noted) for noted in self._trace]


def _line(time: float, who: str, what: object) -> str:
    return f"{time:10.4f} {who:8} {describe(what)}"


def describe(what: object) -> str:
    """An event, action or message on one line."""
    if isinstance(what, str):
        return what
    if isinstance(what, frozenset):
        return "{" + " ".join(sorted(describe(item) for item in what)) + "}"
    if hasattr(what, "starts") and hasattr(what, "stretches"):
        return "[" + " ".join(describe(start) for start in what.starts) + "]"
    if isinstance(what, tuple):
        return ".".join(describe(item) for item in what)
    if is_dataclass(what):
        words = [f"{field.name}={describe(getattr(what, field.name))}" for field in fields(what)]
        return f"{type(what).__name__}({' '.join(words)})"
    return f"{what:.4f}" if isinstance(what, float) else str(what)
