"""Tasks of a service, looked after."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import structlog

from lsmq.errors import LsmqError
from lsmq_coordinator.parts import kept

if TYPE_CHECKING:
    from .broker import Broker

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


class KeptService(ABC):
    """A part of a node, which does without: one task, begun again where it ends, that nobody waits for at the end."""

    def __init__(self, broker: Broker, name: str) -> None:
        self._broker = broker
        self._name = name
        self._background = Background(name)

    def start(self) -> None:
        self._part = self._broker.parts.part(self._name, essential=False)
        self._background.start(kept(self._part, self._run))

    @abstractmethod
    async def _run(self) -> None:
        """For ever."""

    def begin_stop(self) -> None:
        """Nobody waits for it."""
        return

    async def stop(self) -> None:
        await self._background.stop()
