"""What is closed at the end of a ``with`` block, and what is iterated over until it is closed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, Self, TypeVar

from lsmq.errors import ClientClosed, LsmqError

T = TypeVar("T")


class AsyncCloseable(ABC):
    """``async with`` closes it."""

    @abstractmethod
    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()


async def begun(start: Awaitable[None], close: Callable[[], Awaitable[None]]) -> None:
    """Start what is closed where that fails, or is cancelled: nobody has anything yet that he could close."""
    try:
        await start
    except BaseException:
        with suppress(LsmqError):
            await close()
        raise


class Starting(AsyncCloseable):
    """``async with`` starts it, too."""

    @abstractmethod
    async def start(self) -> None: ...

    async def __aenter__(self) -> Self:
        await begun(self.start(), self.close)
        return self


class Iterated(AsyncCloseable, Generic[T]):
    """``async for`` takes one after another."""

    _closed: bool

    @abstractmethod
    async def _next(self) -> T:
        """Raises ``ClientClosed`` when it is closed."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        """The next one; waits for it. The iteration ends when this is closed."""
        try:
            return await self._next()
        except ClientClosed:
            if self._closed:
                raise StopAsyncIteration from None
            raise
