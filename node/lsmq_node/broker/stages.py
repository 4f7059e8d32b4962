"""Where the time of a request goes: stages that the code which serves it passes through, by name.

Whoever answers a request sets :data:`under_way`, and reads there afterwards; the code in between says ``with
stage("read"):``. Stages are of requests, never of messages. Names are bounded, since code says them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType

from lsmq import runtime

#: Held until there is something to answer: nobody's fault.
WAIT = "wait"
#: Delayed by what an address or a principal may have a second.
LIMITS = "limits"


@dataclass(slots=True)
class Stage:
    """On the clock of ``runtime.monotonic``: first begin, last end, and how long it took in between, all in all: what
    parts of a request pass through at the same time counts once."""

    began: float
    ended: float
    seconds: float


@dataclass(slots=True)
class Stages:
    """Of one request. ``messages``: how many it stored, or was answered with."""

    by_name: dict[str, Stage] = field(default_factory=dict)
    messages: int = 0

    def add(self, name: str, began: float, ended: float) -> None:
        found = self.by_name.get(name)
        if found is None:
            self.by_name[name] = Stage(began, ended, ended - began)
        else:
            found.began = min(found.began, began)
            found.seconds += max(0.0, ended - max(began, found.ended))
            found.ended = max(found.ended, ended)

    def divide(self, name: str, at: float, rest: str) -> None:
        """What of a stage came after ``at`` was the stage ``rest``."""
        found = self.by_name.get(name)
        if found is not None and found.began <= at < found.ended:
            self.add(rest, at, found.ended)
            found.seconds -= found.ended - at
            found.ended = at

    @property
    def waited_s(self) -> float:
        """Held until there was something to answer."""
        found = self.by_name.get(WAIT)
        return 0.0 if found is None else found.seconds


#: Of the request that is served; None where nobody wants to know.
under_way: ContextVar[Stages | None] = ContextVar("under_way", default=None)


class _Passing:
    __slots__ = ("_began", "_name", "_stages")

    def __init__(self, stages: Stages, name: str) -> None:
        self._stages = stages
        self._name = name

    def __enter__(self) -> None:
        self._began = runtime.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stages.add(self._name, self._began, runtime.monotonic())


_NOTHING: AbstractContextManager[None] = nullcontext()


def stage(name: str) -> AbstractContextManager[None]:
    """The block is this stage of the request that is served."""
    stages = under_way.get()
    return _NOTHING if stages is None else _Passing(stages, name)


def count_messages(count: int) -> None:
    """So many messages were stored, or are answered."""
    if (stages := under_way.get()) is not None:
        stages.messages += count
