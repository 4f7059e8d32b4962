"""From threads to the event loop: in order, with one wake-up however much has come."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Mailbox(Generic[Item]):
    """Make it in the loop's thread; :meth:`post` from any. ``deliver`` runs in the loop, and must not raise."""

    def __init__(self, deliver: Callable[[Item], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._deliver = deliver
        self._items: deque[Item] = deque()
        self._scheduled = False

    def post(self, item: Item) -> None:
        self._items.append(item)
        if not self._scheduled:
            self._scheduled = True
            try:
                self._loop.call_soon_threadsafe(self.drain)
            except RuntimeError:
                self._items.clear()  # The loop is closed: nobody is left to tell.

    def drain(self) -> None:
        """Deliver what has come by now. In the loop only."""
        self._scheduled = False
        while self._items:
            self._deliver(self._items.popleft())
