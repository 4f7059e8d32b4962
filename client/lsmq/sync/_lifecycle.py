"""The blocking sides of what is closed and iterated over, and the threads that handlers run in."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, Generic, Self, TypeVar

from lsmq import runtime
from lsmq._lifecycle import AsyncCloseable, Iterated, NamedWhenDropped
from lsmq.errors import ClientClosed
from lsmq.loop_thread import LoopThread

T = TypeVar("T")


class BlockingCloseable(ABC, NamedWhenDropped):
    """``with`` closes it."""

    _remedy = "use 'with', or close() it"
    _thread: LoopThread
    _async: AsyncCloseable

    def _left_open(self) -> str:
        return self._async._left_open() if self._thread.runs_here else ""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


class BlockingIterable(BlockingCloseable, Generic[T]):
    """``for`` takes one after another."""

    _async: Iterated[Any]

    @abstractmethod
    def _next(self) -> T:
        """Raises ``ClientClosed`` when it is closed."""

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        """The next one; waits for it. The iteration ends when this is closed."""
        try:
            return self._next()
        except ClientClosed:
            if self._async._closed:
                raise StopIteration from None
            raise


class HandlerThreads:
    """Where the handlers of one object run."""

    def __init__(self) -> None:
        self._here = runtime.local()

    @property
    def are_here(self) -> bool:
        """Whether the calling thread is one of them."""
        return getattr(self._here, "yes", False)

    @contextmanager
    def open(self, handler: Callable[[T], object], concurrency: int) -> Iterator[Callable[[T], Awaitable[None]]]:
        """``handler`` as something to await, in one of ``concurrency`` threads. At the end all have returned."""

        def inside(item: T) -> None:
            self._here.yes = True
            handler(item)

        async def handle(item: T) -> None:
            context = copy_context()  # Of a span, where it is traced.
            await asyncio.get_running_loop().run_in_executor(pool, context.run, inside, item)

        with runtime.ThreadPoolExecutor(concurrency, thread_name_prefix="lsmq-handler") as pool:
            yield handle
