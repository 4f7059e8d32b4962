"""The background tasks of one object: begun, watched and ended in one place, so that none dies unseen.

A task that raises, that somebody else cancels, or that returns although it was to last, is told of: to ``failed``, or
to whoever waits in :meth:`BackgroundTasks.until`. Only one that its owner ends is over without a word.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from lsmq.errors import LsmqError

T = TypeVar("T")


class CancelledByOthers(LsmqError):
    """Somebody else has cancelled a task, as the end of an event loop does with all of them."""


class BackgroundTasks:
    """Belongs to one event loop. ``failed`` is called in it, once for each task that broke."""

    __slots__ = ("_failed", "_failure", "_news", "_owned")

    def __init__(self, failed: Callable[[Exception], None] | None = None) -> None:
        self._failed = failed
        self._failure: Exception | None = None
        self._news: asyncio.Event | None = None
        self._owned: dict[asyncio.Task[None], bool] = {}  # and whether it is to last

    def __len__(self) -> int:
        return len(self._owned)

    def __iter__(self) -> Iterator[asyncio.Task[None]]:
        return iter(list(self._owned))

    def begin(self, work: Coroutine[Any, Any, None], name: str, *, lasting: bool = False) -> asyncio.Task[None]:
        """``lasting``: it is not to return before it is ended."""
        task = asyncio.create_task(work, name=name)
        self._owned[task] = lasting
        task.add_done_callback(self._over)
        return task

    def drop(self, task: asyncio.Task[None]) -> None:
        """Cancel it, and do not wait for it; what it raises then is nobody's business."""
        if self._owned.pop(task, None) is not None:
            task.cancel()

    async def end(self) -> None:
        """Cancel all, and return when they are over. The caller must not be one of them."""
        tasks = list(self._owned)
        for task in tasks:
            self.drop(task)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def until(self, work: Coroutine[Any, Any, object]) -> None:
        """Do ``work``; raises what one of the tasks raised as soon as one breaks, also before. Then ``work`` is off."""
        if self._failure is not None:
            work.close()
            raise self._failure
        self._news = asyncio.Event()
        doing, news = asyncio.ensure_future(work), asyncio.ensure_future(self._news.wait())
        try:
            await asyncio.wait((doing, news), return_when=asyncio.FIRST_COMPLETED)
            if self._failure is not None:
                raise self._failure
            doing.result()
        finally:
            doing.cancel()
            news.cancel()
            await asyncio.gather(doing, news, return_exceptions=True)

    def _over(self, task: asyncio.Task[None]) -> None:
        if task not in self._owned:
            if not task.cancelled():
                task.exception()  # Looked at: its owner has ended it.
            return
        lasting = self._owned.pop(task)
        if task.cancelled():
            name = task.get_name()
            self._fail(CancelledByOthers(f"the task {name!r} was cancelled by something that does not own it"))
            return
        error = task.exception()
        if isinstance(error, Exception):
            self._fail(error)
        elif error is None and lasting:
            self._fail(LsmqError(f"the task {task.get_name()!r} returned although there was more to do"))

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        if self._news is not None:
            self._news.set()
        if self._failed is not None:
            self._failed(error)


async def unless(news: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of ``work``; None when there was ``news`` first: then ``work`` is off."""
    doing, told = asyncio.ensure_future(work), asyncio.ensure_future(news.wait())
    try:
        await asyncio.wait((doing, told), return_when=asyncio.FIRST_COMPLETED)
        return doing.result() if doing.done() else None
    finally:
        doing.cancel()
        told.cancel()
        await asyncio.gather(doing, told, return_exceptions=True)


def as_lsmq_error(error: Exception, what: str) -> LsmqError:
    """An error to raise to the application: ``error`` if it is one of LSMQ's, else one that names ``what`` broke."""
    if isinstance(error, LsmqError):
        return error
    told = LsmqError(f"{what} broke, which is a defect of LSMQ: {type(error).__name__}: {error}")
    told.__cause__ = error
    return told
