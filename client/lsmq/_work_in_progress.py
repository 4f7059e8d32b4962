"""What the application has in its hands, as any thread may ask: whether it still works on it, and since when."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

from lsmq import runtime


class WorkInProgress:
    """Work that was begun and not ended yet, each by a token of whoever does it. Thread-safe."""

    def __init__(self) -> None:
        self._lock = runtime.Lock()
        self._since: dict[Hashable, float] = {}

    def take(self, token: Hashable) -> None:
        """Whoever this is begins something, and has ended what it did before."""
        with self._lock:
            self._since.pop(token, None)
            self._since[token] = runtime.monotonic()

    def put_down(self, token: Hashable) -> None:
        with self._lock:
            self._since.pop(token, None)

    def longest_s(self) -> float:
        """For how long the oldest work has gone on; 0 when there is none."""
        with self._lock:
            since = next(iter(self._since.values()), None)
        return 0.0 if since is None else runtime.monotonic() - since


class ReadInProgress:
    """An application that reads: what it was handed is in its hands until it reads on or commits.

    Belongs to the event loop, but for :meth:`put_down`, which any thread may call.
    """

    def __init__(self, in_progress: WorkInProgress) -> None:
        self._in_progress = in_progress
        self._lock = runtime.Lock()  # guards the next two
        self._is_full = False
        self._waiters: list[asyncio.Future[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def take(self) -> None:
        with self._lock:
            self._is_full = True
        self._in_progress.take(self)

    def put_down(self) -> None:
        if not self._is_full:
            return
        with self._lock:
            self._is_full = False
            waiters, self._waiters = self._waiters, []  # Who comes later waits for what is handed out next.
        self._in_progress.put_down(self)
        if waiters and self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake, waiters)

    @staticmethod
    def _wake(waiters: list[asyncio.Future[None]]) -> None:
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def empty(self) -> None:
        """Return when the application has nothing in its hands that it was handed before now."""
        self._loop = asyncio.get_running_loop()
        waiter = self._loop.create_future()
        with self._lock:
            if not self._is_full:
                return
            self._waiters.append(waiter)
        await waiter
