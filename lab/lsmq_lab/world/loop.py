"""asyncio's own event loop, over simulated sockets and on virtual time.

Transports, servers, timers and tasks are asyncio's. Tasks and futures hash by number, so that sets of them, which
asyncio and libraries keep, have the same order in every run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

from lsmq import runtime

from .network import Network
from .scheduler import Scheduler
from .sockets import Selector


class _Task(asyncio.Task):  # type: ignore[type-arg]
    _number = 0

    def __hash__(self) -> int:
        return self._number


class _Future(asyncio.Future):  # type: ignore[type-arg]
    _number = 0

    def __hash__(self) -> int:
        return self._number


class WorldLoop(asyncio.SelectorEventLoop):
    """Made in a thread of a world, for a loop of that thread's process."""

    def __init__(self, scheduler: Scheduler, network: Network) -> None:
        self._scheduler = scheduler
        self._process = scheduler.process
        self._numbers = 0
        self._ends: dict[int, Callable[[], object]] = {}
        self._poke: Callable[[], object] = lambda: None
        super().__init__(Selector(network))
        self._poke = self._selector.watch.poke  # type: ignore[attr-defined]
        self._clock_resolution = 1e-6
        self.set_task_factory(_make_task)  # type: ignore[arg-type]

    # Of asyncio's

    def _make_self_pipe(self) -> None: ...

    def _close_self_pipe(self) -> None: ...

    def _write_to_self(self) -> None:
        self._poke()
        self._scheduler.preempt()

    def time(self) -> float:
        return self._process.monotonic()

    def create_future(self) -> asyncio.Future[Any]:
        future = _Future(loop=self)
        self._numbers += 1
        future._number = self._numbers
        return future

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        if executor is None:
            executor = self._default_executor  # type: ignore[has-type]
            if executor is None:
                executor = self._default_executor = runtime.ThreadPoolExecutor(8, "asyncio")
        return super().run_in_executor(executor, func, *args)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        executor = self._default_executor
        if executor is not None:
            await asyncio.to_thread(executor.shutdown, False)

    async def sendfile(self, *_: Any, **__: Any) -> int:
        raise NotImplementedError("there is no sendfile to simulated sockets")

    def add_signal_handler(self, sig: int, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        self._ends[sig] = lambda: callback(*args)

    def remove_signal_handler(self, sig: int) -> bool:
        return self._ends.pop(sig, None) is not None

    def signal(self, sig: int) -> None:
        """Send the process a signal, from anywhere."""
        handler = self._ends.get(sig)
        if handler is not None:
            self.call_soon_threadsafe(handler)


def _make_task(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], context: Context | None = None) -> Any:
    assert isinstance(loop, WorldLoop)
    task = _Task(work, loop=loop, context=context)
    loop._numbers += 1
    task._number = loop._numbers
    return task


class WorldPolicy(asyncio.DefaultEventLoopPolicy):
    """``asyncio.new_event_loop()`` in a world."""

    def __init__(self, scheduler: Scheduler, network: Network) -> None:
        super().__init__()
        self._world = scheduler, network

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return WorldLoop(*self._world)
