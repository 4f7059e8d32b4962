"""What the application has in its hands, as any thread may ask: whether it still works on it, and since when.

No locks: the handler of a signal runs in the middle of whatever a thread does here, and may wait for the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

from lsmq import runtime


class WorkInProgress:
    """Work that was begun and not ended yet, each by a token of whoever does it. Thread-safe."""

    def __init__(self) -> None:
        self._since: dict[Hashable, float] = {}

    def take(self, token: Hashable) -> None:
        """Whoever this is begins something, and has ended what it did before."""
        self._since[token] = runtime.monotonic()

    def put_down(self, token: Hashable) -> None:
        self._since.pop(token, None)

    def longest_s(self) -> float:
        """For how long the oldest work has gone on; 0 when there is none."""
        since = list(self._since.values())
        return runtime.monotonic() - min(since) if since else 0.0


class ReadInProgress:
    """An application that reads: what it was handed is in its hands until it reads on or commits.

    Belongs to the event loop, but for :meth:`take` and :meth:`put_down`, which any thread may call.
    """

    def __init__(self, in_progress: WorkInProgress) -> None:
        self._in_progress = in_progress
        #: How often something was handed out, and up to which time it was put down.
        self._taken = self._down = 0
        #: In the event loop alone: who waits until what was handed out by then is put down.
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def take(self) -> None:
        self._taken += 1
        self._in_progress.take(self)

    def put_down(self) -> None:
        taken = self._taken
        if self._down == taken:
            return
        self._down = taken
        self._in_progress.put_down(self)
        if self._waiters and self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        waiting, self._waiters = self._waiters, []
        for taken, waiter in waiting:
            if taken > self._down:
                self._waiters.append((taken, waiter))
            elif not waiter.done():
                waiter.set_result(None)

    async def empty(self) -> None:
        """Return when the application has nothing in its hands that it was handed before now."""
        self._loop = asyncio.get_running_loop()
        waiter = self._loop.create_future()
        self._waiters.append((self._taken, waiter))
        self._wake()  # Whoever puts something down from here on sees who waits.
        await waiter
