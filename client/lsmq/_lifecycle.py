"""What is closed at the end of a ``with`` block, and what is iterated over until it is closed."""

from __future__ import annotations

from abc import ABC, abstractmethod
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


class Starting(AsyncCloseable):
    """``async with`` starts it, too."""

    @abstractmethod
    async def start(self) -> None: ...

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:  # Nobody has anything yet that he could close.
            with suppress(LsmqError):
                await self.close()
            raise
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
