"""The block cache: parsed blocks and indexes of tables, by least recent use, within a limit of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol, TypeVar


class Sized(Protocol):
    """What can be cached: it says how much memory it holds."""

    @property
    def memory_bytes(self) -> int: ...


Item = TypeVar("Item", bound=Sized)


class BlockCache:
    """Thread-safe. An item larger than an eighth of the limit is handed out but not kept."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._items: OrderedDict[tuple[int, int], Sized] = OrderedDict()
        self._lock = threading.Lock()
        self.used_bytes = 0
        self.hits = 0
        self.misses = 0

    def get(self, owner: int, part: int, load: Callable[[], Item]) -> Item:
        """The item of ``owner`` numbered ``part``; loaded outside the lock when it is not here."""
        key = (owner, part)
        with self._lock:
            item = self._items.get(key)
            if item is not None:
                self._items.move_to_end(key)
                self.hits += 1
                return item  # type: ignore[return-value]  # an owner's part has one type
            self.misses += 1
        loaded = load()
        size = loaded.memory_bytes
        if size <= self.limit_bytes // 8:
            with self._lock:
                replaced = self._items.pop(key, None)
                if replaced is not None:
                    self.used_bytes -= replaced.memory_bytes
                self._items[key] = loaded
                self.used_bytes += size
                while self.used_bytes > self.limit_bytes:
                    _, old = self._items.popitem(last=False)
                    self.used_bytes -= old.memory_bytes
        return loaded

    def has(self, owner: int, part: int) -> bool:
        return (owner, part) in self._items

    def drop(self, owner: int) -> None:
        """Forget everything of a table that is gone."""
        with self._lock:
            for key in [key for key in self._items if key[0] == owner]:
                self.used_bytes -= self._items.pop(key).memory_bytes
