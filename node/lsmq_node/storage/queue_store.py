"""A queue engine in the process: any number of named queues, thread-safe.

``put`` appends a message to a queue, ``get`` reads a range of it by index. The main thread has all that changes the
store done by another one and waits (:mod:`.queue_owner`): so nothing that a signal's handler raises, a Ctrl-C or an
alarm, leaves the store between two states.

Not supported: use by a child that was forked while the store was open (its calls raise ``ClientClosed``).
"""

from __future__ import annotations

import difflib
import weakref
from array import array
from collections.abc import Iterable
from dataclasses import fields
from operator import index
from pathlib import Path
from typing import Any

import numpy as np

from lsmq.errors import InvalidRequest

from .collector import DEFAULT_BYTES, DEFAULT_MESSAGES, Collector
from .columns import I64
from .disk import Clock, Disk
from .many_gets import ManyGets
from .options import FlushMode, StoreOptions
from .queue_owner import QueueOwner
from .requests import FlushRequest, Put
from .shard_store import ShardStore

#: More than any queue holds.
_BEYOND = 1 << 62


class QueueStore:
    """Named queues on disk, in this process. Thread-safe. Close it, or use it as a context manager.

    With ``flush_mode="sync"`` (the default) a message is on the disk when ``put`` returns; threads that put at
    the same time share one fdatasync. With ``"async"`` it is with the operating system, and on the disk within
    ``flush_interval_ms``.

    A call that is interrupted (by an exception of a signal's handler) was carried out whole or not at all, and the
    store goes on; where something else throws one into a thread that puts, the store stops. There are up to 16,000,000
    queues (:data:`.catalog.MAX_QUEUES`), with names of up to 1,000 bytes. A store that nobody refers to any more is
    closed.
    """

    def __init__(
        self, path: Path | str, *, disk: Disk | None = None, clock: Clock | None = None, **options: Any
    ) -> None:
        """Open or make the store in a directory. When that fails, nothing is left: no thread, no lock.

        Args:
            options: fields of :class:`StoreOptions`; ``flush_mode`` may be its name.

        Raises ``DataDirectoryLocked``, ``DataDirectoryUnusable``, ``UnsupportedFormat``, ``CorruptFile``, or
        ``InvalidRequest`` for an unknown or impossible option.
        """
        self._settings = _settings(options)
        self._owner = QueueOwner(path, self._settings, disk, clock)
        weakref.finalize(self, self._owner.dismiss).atexit = False
        try:
            self._owner.open()
        except BaseException:
            self._owner.dismiss()
            raise

    def __enter__(self) -> QueueStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """How many queues there are."""
        return self._owner.writer.known

    def put(self, queue: str, message: bytes) -> int:
        """Append a message to a queue, which is made if new. Returns its index, counted from 0.

        Raises ``MessageTooLarge``, ``DiskFull``, ``ShardStopped``, or ``StoreBusy`` when flushing and merging
        have not caught up after a minute: then the message is not stored.
        """
        put = Put(((queue, message),), self._settings.max_waiting_bytes)
        self._owner.hand_over(put)
        return put.offsets[0]

    def put_many(self, pairs: Iterable[tuple[str, bytes]]) -> list[int]:
        """Append many messages, in order; all are durable (as the flush mode says) on return.

        Returns the index of each in its queue. Raises as :meth:`put` does, and ``RequestTooLarge`` for more than
        ``max_waiting_bytes``: whatever it raises, none of the messages is stored. (Where the process or the machine
        dies meanwhile, the first of them may be.) Cost per message falls with the number of them: a thousand or more at
        a time is best.
        """
        pairs = pairs if isinstance(pairs, list | tuple) else list(pairs)
        if not pairs:
            return []
        put = Put(pairs, self._settings.max_waiting_bytes)
        self._owner.hand_over(put)
        return put.offsets

    def collector(self, *, messages: int = DEFAULT_MESSAGES, size_bytes: int = DEFAULT_BYTES) -> Collector:
        """For a thread that puts one message at a time and waits for none: so many messages, or bytes, are stored
        together. Each thread takes one of its own. Raises ``InvalidRequest``."""
        return Collector(self.put_many, messages, size_bytes)

    def get(self, queue: str, offset: int, num: int) -> list[bytes]:
        """Up to ``num`` messages of a queue from index ``offset`` on; fewer when there are fewer, [] when none.

        Raises ``CorruptFile``, and ``InvalidRequest`` for what is no name or number.
        """
        number = self._owner.find(queue)
        if type(offset) is not int or type(num) is not int:
            try:
                offset, num = index(offset), index(num)
            except TypeError as error:
                raise InvalidRequest(f"offset and num are whole numbers: {error}") from error
        if num <= 0 or offset < 0 or number < 0:
            return []
        return self.store.read_bytes(self._owner.writer.messages_id, number, offset, num)

    def get_many(self, wanted: Iterable[tuple[str, int, int]]) -> list[list[bytes]]:
        """What :meth:`get` gives for each ``(queue, offset, num)``: at a tenth of the price where there are thousands.

        All of it is in memory at once. Raises ``CorruptFile``, and ``InvalidRequest`` for what is no name or number.
        """
        wanted = wanted if isinstance(wanted, list | tuple) else list(wanted)
        if not wanted:
            return []
        try:
            numbers = self._owner.find_all([queue for queue, _, _ in wanted])
            offsets, counts = _whole([offset for _, offset, _ in wanted]), _whole([num for _, _, num in wanted])
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"each item is (queue, offset, num), a text and two whole numbers: {error}") from error
        numbers[offsets < 0] = -1
        return ManyGets(self.store, self._owner.writer.messages_id, numbers, offsets, counts).read()

    def length(self, queue: str) -> int:
        """The index the next message of a queue will have; 0 for one that does not exist. Raises ``InvalidRequest``."""
        number = self._owner.find(queue)
        return self.store.bounds(self._owner.writer.messages_id, number)[1] if number >= 0 else 0

    def flush(self) -> None:
        """Write everything stored by now to tables; durable on return in either flush mode. Raises ``DiskFull``."""
        self._owner.hand_over(FlushRequest())

    @property
    def store(self) -> ShardStore:
        """The engine below, for its statistics and settings."""
        return self._owner.store

    def close(self) -> None:
        """Commit and release the directory. Closing twice is fine; so is closing again where it was interrupted."""
        if not self._owner.is_closed:
            self._owner.close()


def _whole(numbers: list[int]) -> I64:
    try:
        return np.array(array("q", numbers))
    except OverflowError:  # further on than any message is
        return np.array(array("q", [min(max(number, -1), _BEYOND) for number in numbers]))


def _settings(options: dict[str, Any]) -> StoreOptions:
    known = {entry.name for entry in fields(StoreOptions)}
    for name in options.keys() - known:
        alike = difflib.get_close_matches(name, known, n=1)
        meant = f"did you mean {alike[0]}?" if alike else f"there are {', '.join(sorted(known))}"
        raise InvalidRequest(f"there is no option {name!r}; {meant}")
    if "flush_mode" in options:
        try:
            options["flush_mode"] = FlushMode(options["flush_mode"])
        except ValueError:
            raise InvalidRequest(f"option flush_mode is {options['flush_mode']!r}; it must be sync or async") from None
    settings = StoreOptions(**options)
    settings.validate()
    return settings
