"""The block cache: parsed blocks and index pages of tables, within a limit of bytes.

What was not used since it was last looked at goes first ("second chance", or clock): nearly as good as least
recent use, and a hit takes no lock and moves nothing, it sets a mark. Parts of the index have several chances: each
read takes one, and one leads to hundreds of blocks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, ClassVar, Protocol, TypeVar

from lsmq import runtime


class Sized(Protocol):
    """What can be cached: it says how much memory it holds, and carries the cache's mark.

    Attributes:
        CHANCES: how often it is passed by, not used meanwhile, before it goes.
        recent: how often it is passed by from now on.
    """

    CHANCES: ClassVar[int]
    recent: int

    @property
    def memory_bytes(self) -> int: ...


Item = TypeVar("Item", bound=Sized)


class BlockCache:
    """Thread-safe. An item larger than an eighth of the limit is handed out but not kept."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._items: OrderedDict[tuple[int, int], Sized] = OrderedDict()
        self._lock = runtime.Lock()  # guards whatever changes: items, their order, the bytes used
        self.used_bytes = 0
        self.hits = 0  # counted without a lock: readers at the same time may lose one
        self.misses = 0

    def get(self, owner: int, part: int, load: Callable[..., Item], *arguments: Any) -> Item:
        """The item of ``owner`` numbered ``part``; ``load(*arguments)`` makes it when it is not here."""
        item = self._items.get((owner, part))
        if item is not None:
            item.recent = item.CHANCES
            self.hits += 1
            return item  # type: ignore[return-value]  # an owner's part has one type
        self.misses += 1
        loaded = load(*arguments)
        self.keep(owner, part, loaded)
        return loaded

    def keep(self, owner: int, part: int, item: Sized) -> None:
        """Add an item, or replace it."""
        size_bytes = item.memory_bytes
        if size_bytes > self.limit_bytes // 8:
            return
        item.recent = item.CHANCES - 1  # It was not used twice.
        key, items = (owner, part), self._items
        with self._lock:
            used_bytes = self.used_bytes + size_bytes
            if key in items:
                used_bytes -= items.pop(key).memory_bytes
            while used_bytes > self.limit_bytes:
                oldest, old = items.popitem(last=False)
                if old.recent:
                    old.recent -= 1
                    items[oldest] = old
                else:
                    used_bytes -= old.memory_bytes
            items[key] = item
            self.used_bytes = used_bytes

    def has(self, owner: int, part: int) -> bool:
        return (owner, part) in self._items

    def drop(self, owner: int) -> None:
        """Forget everything of a table that is gone."""
        with self._lock:
            for key in [key for key in self._items if key[0] == owner]:
                self.used_bytes -= self._items.pop(key).memory_bytes
