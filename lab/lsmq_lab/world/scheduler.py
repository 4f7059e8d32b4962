"""Who runs next, and what time it is.

What are threads in the product are greenlets here, all in one operating-system thread. One runs until it waits for
something, or until it is preempted at a place where that may happen (:meth:`Scheduler.preempt`: locks, queues, files),
or before it tells what it has found (:meth:`Scheduler.linger`: pools). Then the seed decides who of those that can run
is next. Virtual time passes a few microseconds a step, and when nobody can run it jumps to the next moment at which
somebody wants to.

Threads belong to a :class:`SimulatedProcess`, which has clocks and randomness of its own, and which can be paused, or
killed: its threads never run again, not even to clean up.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import sys
from collections.abc import Callable
from random import Random
from typing import Any

from greenlet import getcurrent, greenlet

#: 2023-11-14, in seconds since 1970: when every world begins, two and a half seconds before a minute's end.
EPOCH_S = 1_700_000_037.5
_STEP_S = 2e-6
#: Of threads that lose their turn, so many stay away for a while, up to so long: others have the machine.
_AWAY, _AWAY_S = 0.1, 0.003
#: What somebody looked at in a pool is told up to so long after, so many times as often as a turn is lost.
_LATE, _LATE_S = 2.5, 0.01


class Deadlock(Exception):
    """Nobody can run, and nobody waits for a moment."""


class Overtime(Exception):
    """What was to end goes on and on."""


class SimulatedProcess:
    """One life of a program on a machine. ``host`` names the machine: its address, and its directory."""

    def __init__(self, scheduler: Scheduler, name: str, host: str, *, steady_s: float = 0.0) -> None:
        self.scheduler, self.name, self.host = scheduler, name, host
        self.alive = True
        self.paused = False
        #: What its clocks show beside the world's.
        self.steady_s = steady_s
        self.wrong_s = 0.0
        self.random = Random(scheduler.random.getrandbits(64))
        self.threads: list[Fiber] = []
        self._held: list[Fiber] = []

    def pause(self) -> None:
        """As SIGSTOP: it stands still, and the world goes on."""
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        self.scheduler.runnable += self._held
        self._held.clear()

    def kill(self) -> None:
        """As SIGKILL."""
        self.alive = False
        self._held.clear()

    def monotonic(self) -> float:
        return self.scheduler.now + self.steady_s

    def wall_time(self) -> float:
        return EPOCH_S + self.scheduler.now + self.wrong_s


class Fiber:
    """A thread of a process, as the scheduler sees it."""

    __slots__ = ("done", "greenlet", "hooks", "locals", "loop", "name", "parked", "process", "turn", "waiters", "woken")

    def __init__(self, process: SimulatedProcess, target: Callable[[], object], name: str) -> None:
        self.process, self.name = process, name
        self.greenlet = greenlet(target, process.scheduler._hub)  # where it goes when it ends
        self.parked = self.woken = self.done = False
        self.turn = 0  # which of its waits a timer belongs to
        self.waiters: list[Fiber] = []  # who joins it
        self.loop: asyncio.AbstractEventLoop | None = None  # that runs in it
        self.hooks: tuple[Any, Any] = (None, None)  # for asynchronous generators
        self.locals: dict[int, dict[str, Any]] = {}

    def __repr__(self) -> str:
        return f"{self.process.name}/{self.name}"


class Scheduler:
    """One world's. Everything in it follows from ``seed``.

    Attributes:
        preemption: how likely a thread loses its turn where it may.
        trace: what happened, one line each: the same for the same seed.
        crashes: threads that ended in an exception.
    """

    def __init__(self, seed: int, *, preemption: float = 0.05) -> None:
        self.random = Random(seed)
        self._choice = Random(self.random.getrandbits(64))
        self.preemption = preemption
        self.now = 0.0
        self.steps = 0
        self.runnable: list[Fiber] = []
        self.current: Fiber | None = None
        self.trace: list[str] = []
        self.crashes: list[tuple[str, BaseException]] = []
        #: Left out of what is written down: it differs from run to run.
        self.private = "\0"
        self._digest = hashlib.blake2b(digest_size=16)
        self._timers: list[tuple[float, int, Fiber | Callable[[], object], int]] = []
        self._numbers = 0
        self._hub = getcurrent()
        self.world = SimulatedProcess(self, "world", "world")
        self._graveyard: list[Fiber] = []

    # What happened

    def note(self, text: str) -> None:
        """Write down what happened."""
        fiber, text = self.current, text.replace(self.private, "")
        line = f"{self.now:.6f} {fiber!r} {text}" if fiber is not None else f"{self.now:.6f} {text}"
        self._digest.update(line.encode(errors="replace"))
        self.trace.append(line)

    @property
    def fingerprint(self) -> str:
        """Of all that was noted, and of every choice that was made."""
        digest = self._digest.copy()
        digest.update(f"{self.steps} {self.now!r} {self._choice.random()!r}".encode())
        return digest.hexdigest()

    # Threads

    def spawn(self, target: Callable[[], object], name: str, process: SimulatedProcess | None = None) -> Fiber:
        """A new thread, of the caller's process unless another is given."""
        process = process or self.process

        def body() -> None:
            try:
                target()
            except BaseException as error:
                self.crashes.append((repr(fiber), error))
                self.note(f"crashed: {type(error).__name__}: {error}")
            finally:
                fiber.done = True
                for waiter in fiber.waiters:
                    self.wake(waiter)
                fiber.waiters.clear()

        fiber = Fiber(process, body, name)
        process.threads.append(fiber)
        self.runnable.append(fiber)
        return fiber

    @property
    def process(self) -> SimulatedProcess:
        """Whose thread runs."""
        return self.world if self.current is None else self.current.process

    def park(self, timeout_s: float | None = None) -> bool:
        """Wait for :meth:`wake`; False when the time is over first."""
        fiber = self.current
        assert fiber is not None, "only a thread of the world can wait"
        fiber.turn += 1
        fiber.parked, fiber.woken = True, False
        if timeout_s is not None:
            self._at(self.now + max(0.0, timeout_s), fiber, fiber.turn)
        self._leave(fiber)
        return fiber.woken

    def wake(self, fiber: Fiber) -> None:
        """Let a thread go on that waits; nothing if it does not."""
        if fiber.parked:
            fiber.parked, fiber.woken = False, True
            self.runnable.append(fiber)

    def sleep(self, seconds: float) -> None:
        self.park(seconds)

    def step_aside(self) -> None:
        """Let whoever can run go first, perhaps."""
        fiber = self.current
        if fiber is None:
            return
        if not self.runnable and not (self._timers and self._timers[0][0] <= self.now):
            self._step()  # Nobody can.
            return
        self.runnable.append(fiber)
        self._leave(fiber)

    def preempt(self) -> None:
        """A thread may lose its turn here."""
        if self.current is not None and self._choice.random() < self.preemption:
            if self._choice.random() < _AWAY:
                self.sleep(_AWAY_S * self._choice.random())
            else:
                self.step_aside()

    def linger(self) -> None:
        """What a thread has found may be told late."""
        if self._choice.random() < _LATE * self.preemption:
            self.sleep(_LATE_S * self._choice.random())

    def choose(self, count: int) -> int:
        """One of so many, as the seed says."""
        return int(self._choice.random() * count) if count > 1 else 0

    def call_at(self, moment_s: float, do: Callable[[], object]) -> None:
        """Have ``do`` called then, between threads; it must not wait."""
        self._at(moment_s, do, 0)

    def call_later(self, delay_s: float, do: Callable[[], object]) -> None:
        self._at(self.now + delay_s, do, 0)

    def _at(self, moment_s: float, what: Fiber | Callable[[], object], turn: int) -> None:
        self._numbers += 1
        heapq.heappush(self._timers, (moment_s, self._numbers, what, turn))

    def _leave(self, fiber: Fiber) -> None:
        loop = asyncio._get_running_loop()
        if loop is not None:
            fiber.loop, fiber.hooks = loop, sys.get_asyncgen_hooks()
            asyncio._set_running_loop(None)
        else:
            fiber.loop = None
        self._hub.switch()
        if fiber.loop is not None:
            asyncio._set_running_loop(fiber.loop)
            sys.set_asyncgen_hooks(*fiber.hooks)

    # The world's turn

    def run(self, until: Callable[[], bool], *, limit_s: float = float("inf")) -> None:
        """Let everybody go on until ``until()``. Raises ``Deadlock``, ``Overtime`` after ``limit_s`` of the world."""
        assert self.current is None and getcurrent() is self._hub, "a world turns once at a time"
        end = self.now + limit_s
        while not until():
            runnable = self.runnable
            if self._timers and (not runnable or self._timers[0][0] <= self.now):
                self._next_timer()
                continue
            if not runnable:
                raise Deadlock("nobody can run: " + ", ".join(map(repr, self._waiting())))
            place = self.choose(len(runnable))
            fiber = runnable[place]
            runnable[place] = runnable[-1]
            runnable.pop()
            process = fiber.process
            if not process.alive:
                self._graveyard.append(fiber)
                continue
            if process.paused:
                process._held.append(fiber)
                continue
            self._step()
            if self.now > end:
                raise Overtime(f"not done after {limit_s:.0f} s")
            self.current = fiber
            fiber.greenlet.switch()
            self.current = None
            asyncio._set_running_loop(None)

    def _step(self) -> None:
        self.now += _STEP_S
        self.steps += 1

    def _next_timer(self) -> None:
        moment, _, what, turn = heapq.heappop(self._timers)
        self.now = max(self.now, moment)
        if isinstance(what, Fiber):
            if what.parked and what.turn == turn:
                what.parked = False
                self.runnable.append(what)
        else:
            what()

    def _waiting(self) -> list[Fiber]:
        return [each for each in self.world.threads if not each.done]

    def finish(
        self, target: Callable[[], Any], *, limit_s: float = 3_600.0, process: SimulatedProcess | None = None
    ) -> Any:
        """What ``target`` returns, called in a thread of the world. Raises what it raises."""
        outcome: list[Any] = []

        def body() -> None:
            try:
                outcome.append((target(), None))
            except BaseException as error:
                outcome.append((None, error))

        self.spawn(body, "main", process or self.world)
        self.run(lambda: bool(outcome), limit_s=limit_s)
        value, error = outcome[0]
        if error is not None:
            raise error
        return value
