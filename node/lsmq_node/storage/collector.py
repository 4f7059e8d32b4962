"""Messages of one thread that puts them one at a time, stored many at a time.

A put into the store is a hand-over to the store's thread and back, whatever it carries. Who needs neither the index of
a message nor its durability before going on collects: a put is then an append to a list that no other thread touches.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final

from lsmq.errors import InvalidRequest, LsmqError

DEFAULT_MESSAGES: Final = 10_000
DEFAULT_BYTES: Final = 4 << 20
#: Beyond what a list takes of its messages.
_MOST_MESSAGES: Final = 1_000_000

Pairs = Sequence[tuple[str, bytes]]


class Collector:
    """For one thread; use it as a context manager, or :meth:`flush` it at the end. Made by ``QueueStore.collector``.

    Of one collector messages are stored in the order in which they were put. What was not flushed is in memory alone:
    a process that dies loses it, and a collector that is dropped says so by ``ResourceWarning``.
    """

    __slots__ = ("_bytes", "_limit_bytes", "_limit_messages", "_pairs", "_put_many")

    def __init__(self, put_many: Callable[[Pairs], Any], messages: int, size_bytes: int) -> None:
        """Stores by ``put_many`` whenever there are so many messages, or bytes of bodies. Raises ``InvalidRequest``."""
        self._pairs: list[tuple[str, bytes]] = []  # first, since a constructor may raise and __del__ looks
        if not 1 <= messages <= _MOST_MESSAGES:
            raise InvalidRequest(f"messages is {messages}; a collector holds 1 to {_MOST_MESSAGES}", field="messages")
        if size_bytes < 1:
            raise InvalidRequest(f"size_bytes is {size_bytes}; it must be at least 1", field="size_bytes")
        self._put_many = put_many
        self._limit_messages, self._limit_bytes = messages, size_bytes
        self._bytes = 0

    def __enter__(self) -> Collector:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stores what is left, also where the block raised: it was put before that."""
        self.flush()

    def __len__(self) -> int:
        """How many messages are not stored yet."""
        return len(self._pairs)

    def put(self, queue: str, message: bytes) -> None:
        """Collect a message; every so often, all that were collected are stored.

        Raises as :meth:`flush` does, and then this message is collected as well.
        """
        pairs = self._pairs
        pairs.append((queue, message))
        self._bytes += len(message)
        if len(pairs) >= self._limit_messages or self._bytes >= self._limit_bytes:
            self.flush()

    def flush(self) -> None:
        """Store what was collected: readable, and durable as the flush mode says, on return.

        Raises as ``QueueStore.put_many`` does: then none of it is stored and all is still collected, so this can be
        tried again (``StoreBusy``, ``DiskFull``), or :meth:`discard` gives up what cannot be stored. Where it is torn
        off (by Ctrl-C, say) all of it is stored or nothing, and it is no longer here: ``length`` tells which.
        """
        pairs, self._pairs, self._bytes = self._pairs, [], 0
        if pairs:
            try:
                self._put_many(pairs)
            except LsmqError:
                self._pairs, self._bytes = pairs, sum(len(message) for _, message in pairs)
                raise

    def discard(self) -> list[tuple[str, bytes]]:
        """What was collected and is not stored; it is not here any more."""
        pairs, self._pairs, self._bytes = self._pairs, [], 0
        return pairs

    def __del__(self) -> None:
        if self._pairs:
            warnings.warn(
                f"a collector was dropped with {len(self._pairs)} messages that were never stored; flush it, or use it "
                "as a context manager",
                ResourceWarning,
                stacklevel=2,
            )
