"""Methods of the blocking face, made of the asynchronous ones, which say all parameters, defaults and words.

A blocking object has the asynchronous one as ``_async``, and as ``_thread`` the thread in whose event loop that lives.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from lsmq import client as asynchronous
from lsmq.errors import ClientClosed
from lsmq.loop_thread import LoopThread

if TYPE_CHECKING:
    from lsmq.sync._client import Client

_PORTION = 500

P = ParamSpec("P")
T = TypeVar("T")


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """The method that does the same in the object's event loop, and waits for it."""
    return _waiting(method, LoopThread.call)


def blocking_through(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """The same of what closes something: an interrupt ends the waiting for it, and nothing else."""
    return _waiting(method, LoopThread.call_through)


def _waiting(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
    wait: Callable[[LoopThread, Coroutine[Any, Any, T]], T],
) -> Callable[Concatenate[Any, P], T]:
    name = method.__name__  # Of the object's own class, which may be derived from the one that is named.

    def call(self: Any, /, *values: P.args, **options: P.kwargs) -> T:
        return wait(self._thread, getattr(self._async, name)(*values, **options))

    update_wrapper(call, method)
    return call


def blocking_call(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """The same of a method that waits for nothing, and yet is to be called in the event loop."""

    name = method.__name__

    def call(self: Any, /, *values: P.args, **options: P.kwargs) -> T:
        result: T = self._thread.do(partial(getattr(self._async, name), *values, **options))
        return result

    update_wrapper(call, method)
    return call


def blocking_iterator(
    method: Callable[Concatenate[Any, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[Any, P], Generator[T, None, None]]:
    """The same of a method that yields: the threads meet once a portion, and it ends where the caller's loop does."""

    name = method.__name__

    def call(self: Any, /, *values: P.args, **options: P.kwargs) -> Generator[T, None, None]:
        found: AsyncGenerator[T, None] = getattr(self._async, name)(*values, **options)

        async def some() -> list[T]:
            portion: list[T] = []
            async for each in found:
                portion.append(each)
                if len(portion) == _PORTION:
                    break
            return portion

        try:
            while portion := self._thread.call_to_its_end(some()):
                yield from portion
        finally:  # Not waited for: it may be garbage that is collected in the loop's own thread, or after that ended.
            with suppress(ClientClosed):
                self._thread.submit(found.aclose())

    update_wrapper(call, method)
    return call


def with_options_of(
    kind: Callable[Concatenate[asynchronous.Client, P], object],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, Client, P], None]]:
    """Of an ``__init__``: what it takes besides a blocking client is what ``kind`` does, which it makes."""

    def wrap(init: Callable[..., None]) -> Callable[Concatenate[Any, Client, P], None]:
        update_wrapper(init, kind.__init__, assigned=("__annotations__",))
        return init

    return wrap


def with_all_options_of(
    kind: Callable[P, object],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """The same for what is made without a client."""

    def wrap(init: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        update_wrapper(init, kind.__init__, assigned=("__annotations__",))
        return init

    return wrap


def in_a_thread(callback: Callable[[Any], T | Awaitable[T]] | None) -> Callable[[Any], Awaitable[T]] | None:
    """An application's callback as something to await: the event loop goes on while it runs."""
    if callback is None:
        return None

    async def call(value: Any) -> T:
        found = await asyncio.to_thread(callback, value)
        return await found if inspect.isawaitable(found) else found

    return call
