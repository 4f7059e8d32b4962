"""A queue engine in the process: any number of named queues, thread-safe.

The interface of a contest for a million queues in one process (seed Q of the requirements): ``put`` appends a
message to a queue, ``get`` reads a range of it by index. Names become queue numbers of one topic; the names
themselves are the messages of a second topic with a single queue, so they are stored, flushed and recovered
like everything else.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsmq.errors import ClientClosed, InvalidRequest, StoreBusy
from lsmq.record_batch import Column, RecordBatch

from .applier import BatchColumns
from .columns import I64, U8, Columns, encode_one
from .disk import Clock, Disk
from .line import Appended, RoundOver
from .options import FlushMode, StoreOptions
from .queue_names import NameBatch, QueueNames
from .shard_store import ShardStore

MESSAGES = "messages"
NAMES = "names"
MAX_NAME_BYTES = 1_000
_FIRST_QUEUES = 65_536
_GROW_QUEUES = 1 << 20
_MAX_BATCH_BYTES = 8 << 20
_WAIT_SECONDS = 60.0


class _TooManyNames(Exception):
    """The new names of a batch are too long together for one log entry."""


class QueueStore:
    """Named queues on disk, in this process. Thread-safe. Close it, or use it as a context manager.

    With ``flush_mode="sync"`` (the default) a message is on the disk when ``put`` returns; threads that put at
    the same time share one fdatasync. With ``"async"`` it is with the operating system, and on the disk within
    ``flush_interval_ms``.
    """

    def __init__(
        self, path: Path | str, *, disk: Disk | None = None, clock: Clock | None = None, **options: Any
    ) -> None:
        """Open or make the store in a directory.

        Args:
            options: fields of :class:`StoreOptions`; ``flush_mode`` may be its name.

        Raises ``DataDirectoryLocked``, ``DataDirectoryUnusable``, ``UnsupportedFormat``, ``CorruptFile``, or
        ``InvalidRequest`` for an unknown or impossible option.
        """
        if "flush_mode" in options:
            try:
                options["flush_mode"] = FlushMode(options["flush_mode"])
            except ValueError:
                raise InvalidRequest(
                    f"option flush_mode is {options['flush_mode']!r}; it must be sync or async"
                ) from None
        try:
            settings = StoreOptions(**options)
        except TypeError as error:
            raise InvalidRequest(f"unknown option: {error}; options are the fields of StoreOptions") from error
        self._store = ShardStore.open(path, settings, disk=disk, clock=clock)
        self._max_batch_bytes = min(_MAX_BATCH_BYTES, settings.max_batch_bytes)
        self._lock = threading.Lock()
        self._names = QueueNames()
        self._closed = False
        self._round = self._store.round
        names = self._store.create_topic(NAMES, 1)
        self._names_id = names.id
        topics = {topic.name: topic for topic in self._store.topics()}
        messages = topics.get(MESSAGES) or self._store.create_topic(MESSAGES, _FIRST_QUEUES)
        self._messages_id = messages.id
        self._queues = messages.queues
        self._load_names()

    def __enter__(self) -> QueueStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _load_names(self) -> None:
        _, latest = self._store.bounds(self._names_id, 0)
        offset = 0
        while offset < latest:
            found = self._store.read(self._names_id, 0, offset, max_records=1 << 20, max_bytes=8 << 20)
            for batch in found.batches():
                columns = BatchColumns(batch)
                lengths = columns.lengths.astype(np.int64)
                seen = len(self._names) - batch.column(Column.OFFSET)[0]  # whole blocks begin below the offset asked
                begin = int(lengths[:seen].sum())
                self._names.load(np.frombuffer(batch.payload, np.uint8)[begin:], lengths[seen:])
            offset = int(found.next_offsets[0])

    def __len__(self) -> int:
        """How many queues there are."""
        return len(self._names)

    def put(self, queue: str, message: bytes) -> int:
        """Append a message to a queue, which is made if new. Returns its index, counted from 0.

        Raises ``MessageTooLarge``, ``DiskFull``, ``ShardStopped``, or ``StoreBusy`` when flushing and merging
        have not caught up after a minute.
        """
        return self.put_many(((queue, message),))[0]

    def put_many(self, pairs: Iterable[tuple[str, bytes]]) -> list[int]:
        """Append many messages, in order; all are durable (as the flush mode says) on return.

        Returns the index of each in its queue. Cost per message falls with the number of them: a thousand or
        more at a time is best.
        """
        pairs = pairs if isinstance(pairs, (list, tuple)) else list(pairs)
        if not pairs:
            return []
        bodies = [body for _, body in pairs]
        lengths = np.frombuffer(array("I", list(map(len, bodies))), np.uint32)  # half of what fromiter takes
        payload = b"".join(bodies)
        half = len(pairs) // 2
        if half and (len(payload) > self._max_batch_bytes or len(pairs) > self._store.options.max_batch_records):
            return self.put_many(pairs[:half]) + self.put_many(pairs[half:])
        try:
            names = self._names.batch([name for name, _ in pairs])
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"a queue name cannot be encoded in UTF-8: {error}") from error
        try:
            appended = self._append_with_room(names, lengths, payload)
        except _TooManyNames:
            return self.put_many(pairs[:half]) + self.put_many(pairs[half:])
        self._store.wait(appended)
        offsets: list[int] = appended.offsets.tolist()
        return offsets

    def _append_with_room(self, names: NameBatch, lengths: NDArray[np.uint32], payload: bytes) -> Appended:
        """:meth:`_append_once` as soon as flushing and merging have caught up; others may be quicker, for a while."""
        deadline = time.monotonic() + _WAIT_SECONDS
        while True:
            self._store.wait_for_room(max(0.0, deadline - time.monotonic()))
            try:
                with self._lock:
                    return self._append_once(names, lengths, payload)
            except StoreBusy:
                if time.monotonic() >= deadline:
                    raise

    def _append_once(self, names: NameBatch, lengths: NDArray[np.uint32], payload: bytes) -> Appended:
        """:meth:`_append` in a round in which the names it builds on are not dropped. The lock is held."""
        while True:
            self._check_open()
            if self._store.round != self._round:
                self._forget_dropped_names()
            try:
                return self._append(names, lengths, payload)
            except RoundOver:
                continue

    def _append(self, names: NameBatch, lengths: NDArray[np.uint32], payload: bytes) -> Appended:
        """Put a batch in line, and before it the names that are new. The lock is held."""
        numbers = self._names.find(names)
        missing = np.flatnonzero(numbers < 0)
        if len(missing) == 0:
            only = ((self._messages_id, _batch(numbers, lengths, payload)),)
            return self._store.append_many(only, round_=self._round)[0]
        unknown = names.take(missing)
        first, which = unknown.distinct()
        fresh = unknown.take(first)
        self._make_room(fresh)
        joined = fresh.joined()
        if len(joined) > self._max_batch_bytes and len(names) > 1:
            raise _TooManyNames
        known = len(self._names)
        numbers[missing] = known + which
        self._names.add(fresh)
        try:
            appended = self._store.append_many(
                (
                    (self._names_id, _batch(np.zeros(len(fresh), np.int64), fresh.lengths, joined)),
                    (self._messages_id, _batch(numbers, lengths, payload)),
                ),
                round_=self._round,
            )
        except BaseException:
            self._names.truncate(known)
            raise
        return appended[1]

    def _make_room(self, fresh: NameBatch) -> None:
        wrong = np.flatnonzero((fresh.lengths < 1) | (fresh.lengths > MAX_NAME_BYTES)).tolist()
        if wrong:
            raise InvalidRequest(
                f"a queue name has 1 to {MAX_NAME_BYTES} bytes in UTF-8; {fresh.name(wrong[0])[:40]!r} has "
                f"{fresh.lengths[wrong[0]]}",
                limit=MAX_NAME_BYTES,
            )
        needed = len(self._names) + len(fresh)
        if needed > self._queues:
            grown = max(needed, min(self._queues * 2, self._queues + _GROW_QUEUES))
            self._queues = self._store.grow_topic(MESSAGES, grown).queues

    def _forget_dropped_names(self) -> None:
        """Writes in line were dropped (the disk was full): names among them were never stored."""
        self._round = self._store.round
        self._names.truncate(self._store.next_offset(self._names_id, 0))

    def get(self, queue: str, offset: int, num: int) -> list[bytes]:
        """Up to ``num`` messages of a queue from index ``offset`` on; fewer when there are fewer, [] when none."""
        if num <= 0 or offset < 0:
            return []
        with self._lock:
            self._check_open()
            number = self._names.find_one(queue)
        if number < 0:
            return []
        return self._store.read_bytes(self._messages_id, number, offset, num)

    def length(self, queue: str) -> int:
        """The index the next message of a queue will have; 0 for one that does not exist."""
        with self._lock:
            number = self._names.find_one(queue)
        return self._store.bounds(self._messages_id, number)[1] if number >= 0 else 0

    def flush(self) -> None:
        """Write everything in memory to tables; durable on return in either flush mode. Raises ``DiskFull``."""
        self._store.flush()

    @property
    def store(self) -> ShardStore:
        """The engine below, for its statistics and settings."""
        return self._store

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed(f"the queue store {self._store.path} is closed")

    def close(self) -> None:
        """Commit and release the directory. Closing twice is fine."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._store.close()


def _batch(queues: I64, lengths: NDArray[Any], payload: bytes | U8) -> RecordBatch:
    columns: Columns = {Column.QUEUE: queues.astype(np.uint32), Column.LENGTH: lengths.astype(np.uint32)}
    return RecordBatch(encode_one(columns, np.frombuffer(payload, np.uint8)), source="put", verify=False)
