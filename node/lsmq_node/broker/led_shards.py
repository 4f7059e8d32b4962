"""The shards that a node leads, and what it coordinates in each: built when leadership begins, looked at each tick."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

import structlog

from lsmq.errors import LsmqError, ShuttingDown
from lsmq_coordinator.parts import kept

from .broker import Broker
from .shard_memory import ShardMemory
from .topology import ShardPort

TICK_S = 0.25

Start = Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]
"""Runs a coroutine as a task that somebody looks after."""


class Background:
    """Tasks of a service, looked after: one that fails is told of, and all end with the service. Loop thread only."""

    def __init__(self, name: str) -> None:
        self._log = structlog.get_logger(f"lsmq.{name}")
        self._name = name
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, LsmqError):
            self._log.error(f"{self._name}_failed", exc_info=error)

    async def stop(self) -> None:
        """Cancel all, and return when they are over."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class AwakeClock:
    """Seconds during which the loop ran and the shard was served. Ask ``now``; call ``advance`` each tick.

    A stopped process or a lost lease ends nobody's session.
    """

    def __init__(self, time: float) -> None:
        self._seen = time
        self._awake = 0.0

    def advance(self, time: float, *, serving: bool) -> None:
        if serving:
            self._awake += min(time - self._seen, 2 * TICK_S)
        self._seen = time

    def now(self, time: float) -> float:
        return self._awake + min(time - self._seen, 2 * TICK_S)


class ShardCoordinator(ShardMemory):
    """What a shard coordinates for clients that hold sessions and have requests held. Loop thread only."""

    def __init__(self, port: ShardPort, start: Start) -> None:
        super().__init__(port)
        self.held = 0  # requests that wait
        self._start = start
        self._clock = AwakeClock(self._loop.time())
        self._closing = False

    @abstractmethod
    async def load(self) -> None:
        """Build what the documents say, when all that was in line before is committed."""

    @abstractmethod
    def built(self) -> None:
        """It is what counts from here on."""

    @abstractmethod
    def look(self) -> None:
        """Called each ``TICK_S`` while the shard is served here: what is due by now."""

    @property
    def now(self) -> float:
        """Seconds, for sessions."""
        return self._clock.now(self._loop.time())

    def tick(self) -> None:
        """To be called each ``TICK_S``."""
        time = self._loop.time()
        try:
            self.check()
        except LsmqError:
            self._clock.advance(time, serving=False)
            self.wake_all()
            return
        self._clock.advance(time, serving=True)
        self.look()

    async def _hold(self, future: asyncio.Future[None], deadline: float | None) -> None:
        """Until the future is set, or ``deadline`` on the loop's clock."""
        self.held += 1
        try:
            async with asyncio.timeout_at(deadline):
                await future
        except TimeoutError:
            pass
        finally:
            self.held -= 1

    def close(self) -> None:
        """The node stops: nobody is held any more."""
        self._closing = True
        self.wake_all()


State = TypeVar("State", bound=ShardCoordinator)


class LedShards(Generic[State]):
    """By shard, what ``make`` makes of it. Loop thread only; ``start`` before anything else, ``stop`` at the end."""

    def __init__(self, name: str, broker: Broker, make: Callable[[ShardPort, Start], State]) -> None:
        self._broker = broker
        self._make = make
        self._background = Background(name)
        self._log = structlog.get_logger(f"lsmq.{name}")
        self._name = name
        self._known: dict[int, State] = {}
        self._loading: dict[int, asyncio.Task[State]] = {}
        self._closing = False

    def start(self) -> None:
        self._background.start(kept(self._broker.parts.part(f"{self._name}-timer"), self._tick))

    def close(self) -> None:
        """Answer held requests at once, now and from here on."""
        self._closing = True
        for known in self._known.values():
            known.close()

    async def stop(self) -> None:
        """No request may be in progress."""
        self.close()
        await self._background.stop()

    def current(self) -> Sequence[State]:
        """Those of the shards led here, by number."""
        return [known for _, known in sorted(self._known.items()) if known.is_current]

    def find(self, number: int) -> State | None:
        """What is known of a shard, current or not."""
        return self._known.get(number)

    async def get(self, number: int) -> State:
        """Of a shard that this node leads. Raises ``NotLeader``, and what reading it may raise."""
        port = self._broker.topology.port(number)
        port.check_readable()
        known = self._good(port)
        if known is not None:
            return known
        return await asyncio.shield(self._loading.get(number) or self._begin(port))

    def hold_s(self, wait_ms: int) -> float:
        """How long a request may be held that asks for ``wait_ms``."""
        held = sum(known.held for known in self._known.values())
        return 0.0 if self._closing or held >= self._broker.config.max_waiters else wait_ms / 1000

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(TICK_S)
            self._look()
            for known in list(self._known.values()):
                began = loop.time()
                known.tick()
                if (took := loop.time() - began) > TICK_S:
                    self._log.warning(f"{self._name}_tick_slow", shard=known.port.number, seconds=round(took, 3))

    def _look(self) -> None:
        """Begin with shards that are led here by now."""
        topology = self._broker.topology
        for port in topology.ports():
            here = topology.leadership(port.number).here
            if here and self._good(port) is None and port.number not in self._loading:
                self._begin(port)

    def _good(self, port: ShardPort) -> State | None:
        known = self._known.get(port.number)
        return known if known is not None and known.port is port and known.is_current else None

    def _begin(self, port: ShardPort) -> asyncio.Task[State]:
        task = self._loading[port.number] = self._background.start(self._build(port))
        return task

    async def _build(self, port: ShardPort) -> State:
        try:
            found = self._make(port, self._background.start)
            await found.load()
            found.check()
            former = self._known.get(port.number)
            self._known[port.number] = found
            if former is not None:
                former.break_off(ShuttingDown(f"what was known of {former.subject} is read again", sent=False))
            if self._closing:
                found.close()
            found.built()
            return found
        finally:
            self._loading.pop(port.number, None)
