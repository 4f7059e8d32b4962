"""One question for many who ask at about the same time, none of whom may get an answer from before it asked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from .errors import ControlStopped

Answer = TypeVar("Answer")


class CoalescedQuery(Generic[Answer]):
    """Whoever asks while a question is under way shares the next one, which is put when that is answered.

    ``put`` ends by itself: it has a deadline of its own.
    """

    def __init__(self, put: Callable[[], Awaitable[Answer]]) -> None:
        self._put = put
        self._under_way: asyncio.Task[Answer] | None = None
        self._next: asyncio.Task[Answer] | None = None

    async def ask(self) -> Answer:
        """The answer to a question put after this call. Raises what ``put`` raises, or ``ControlStopped``."""
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._under_way))
            # Those who ask may have given up by the time it fails.
            self._next.add_done_callback(lambda task: task.cancelled() or task.exception())
        shared, asking = self._next, asyncio.current_task()
        try:
            return await asyncio.shield(shared)
        except asyncio.CancelledError:
            if shared.cancelled() and asking is not None and not asking.cancelling():
                raise ControlStopped("the node stopped before the question was answered") from None
            raise

    async def _after(self, former: asyncio.Task[Answer] | None) -> Answer:
        if former is not None:
            await asyncio.wait({former})
        self._under_way, self._next = self._next, None
        return await self._put()

    async def close(self) -> None:
        for task in (self._next, self._under_way):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task
