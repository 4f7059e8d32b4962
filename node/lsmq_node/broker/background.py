"""Tasks of a service, looked after."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from lsmq.errors import LsmqError

StartTask = Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]
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
