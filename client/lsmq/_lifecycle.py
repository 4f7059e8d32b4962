"""What is closed at the end of a ``with`` block, what is iterated over until then, and what nobody closes."""

from __future__ import annotations

import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import ClassVar, Generic, Self, TypeVar

from lsmq.errors import ClientClosed, LsmqError

T = TypeVar("T")


class NamedWhenDropped:
    """A ``ResourceWarning`` names what is dropped while it is open. It is not closed by that: what it does goes on.

    When the interpreter ends all is over, and nothing is said.
    """

    _remedy: ClassVar[str]
    _told = False  # or whoever has made it tells

    def _left_open(self) -> str:
        """What it is, while it has something that only :meth:`close` ends; else nothing. From any thread."""
        return ""

    def __del__(self) -> None:
        if self._told or sys.is_finalizing():
            return
        what = ""
        with suppress(AttributeError):  # It was refused, as it was made.
            what = self._left_open()
        if what:
            self._told = True
            text = f"{what} was dropped, and nobody has closed it; {self._remedy}"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)


class AsyncCloseable(ABC, NamedWhenDropped):
    """``async with`` closes it."""

    _remedy = "use 'async with', or await close()"

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
