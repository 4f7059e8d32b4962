"""Requests that are held until a machine has something to say: the one table of a service's. Loop thread only."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable

from lsmq.errors import LsmqError
from lsmq_node.broker.stages import WAIT, stage


class HeldRequests:
    """By key, in the order of waiting. A request waits for any of several keys, and looks again when one is woken."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, OrderedDict[asyncio.Future[None], None]] = {}
        self.count = 0
        self.closed = False

    async def wait(self, keys: Collection[Hashable], deadline: float | None) -> None:
        """Until one of the keys is woken, or ``deadline`` on the loop's clock. Raises what :meth:`fail` is given."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for key in keys:
            self._waiting.setdefault(key, OrderedDict())[future] = None
        self.count += 1
        try:
            with stage(WAIT):
                async with asyncio.timeout_at(deadline):
                    await future
        except TimeoutError:
            pass
        finally:
            self.count -= 1
            for key in keys:
                waiting = self._waiting.get(key, OrderedDict())  # Who was woken is not in it any more.
                waiting.pop(future, None)
                if not waiting:
                    self._waiting.pop(key, None)

    def has(self, key: Hashable) -> bool:
        """Whether a request waits for it."""
        return bool(self._waiting.get(key))

    def wake(self, key: Hashable) -> None:
        """All that wait for it look again."""
        self._answer(key, lambda future: future.set_result(None))

    def wake_one(self, key: Hashable) -> bool:
        """The one that waits longest looks; whether there was one."""
        waiting = self._waiting.get(key)
        while waiting:
            future, _ = waiting.popitem(last=False)
            if not future.done():
                future.set_result(None)
                return True
        return False

    def fail(self, key: Hashable, error: LsmqError) -> None:
        """All that wait for it get the error."""
        self._answer(key, lambda future: future.set_exception(error))

    def _answer(self, key: Hashable, answer: Callable[[asyncio.Future[None]], None]) -> None:
        for future in self._waiting.get(key, ()):
            if not future.done():
                answer(future)

    def close(self) -> None:
        """The node stops: nobody is to be held from here on."""
        self.closed = True
        for key in list(self._waiting):
            self.wake(key)
