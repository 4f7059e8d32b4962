"""Messages for queues by name, put into a shard's store: what the thread that owns a queue store writes.

Names become queue numbers of one topic; the names themselves are the messages of a second topic with a single queue,
so they are stored, flushed and recovered like everything else. A name that comes with its first message is in line
before it and shares its fate: readers are shown a name once that is committed, and from then on it never goes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from lsmq.errors import InvalidBatch, InvalidRequest, StoreBusy
from lsmq.record_batch import Column, RecordBatch

from .applier import BatchColumns
from .catalog import MAX_QUEUES
from .columns import I64, Columns, encode_one
from .line import Appended
from .queue_names import NameBatch, QueueNames, join_joined
from .requests import Put
from .shard_store import ShardStore

MESSAGES = "messages"
NAMES = "names"
MAX_NAME_BYTES = 1_000
_FIRST_QUEUES = 65_536
_GROW_QUEUES = 1 << 20
_MAX_BATCH_BYTES = 8 << 20
#: Up to so many names are looked up one by one: arrays cost more.
_FEW_NAMES = 4


class QueueWriter:
    """One thread writes; :meth:`find` is for any."""

    def __init__(self, store: ShardStore) -> None:
        """Makes the topics where they are missing, and reads the names. Raises what the store raises."""
        self._store = store
        self.max_batch_bytes = min(_MAX_BATCH_BYTES, store.options.max_batch_bytes)
        self.max_batch_records = store.options.max_batch_records
        self._names = QueueNames()
        self._names_id = store.create_topic(NAMES, 1).id
        topics = {topic.name: topic for topic in store.topics()}
        messages = topics.get(MESSAGES) or store.create_topic(MESSAGES, _FIRST_QUEUES)
        self.messages_id, self._queues = messages.id, messages.queues
        self._load_names()
        #: How many names are committed: the numbers below it are for readers.
        self.known = len(self._names)

    def find(self, name: str) -> int:
        """The number of a committed queue, -1 for any other."""
        return self._names.find_one(name, self.known)  # what is known now is never forgotten

    def find_all(self, names: Sequence[str]) -> I64:
        """The numbers of one name or more: as :meth:`find` has them."""
        try:
            batch = self._names.batch(names)
        except UnicodeEncodeError:  # what cannot be encoded is no name of any queue
            return np.array([self.find(name) for name in names])
        return self._names.find(batch, self.known)

    def _load_names(self) -> None:
        _, latest = self._store.bounds(self._names_id, 0)
        offset = 0
        while offset < latest:
            found = self._store.read(self._names_id, 0, offset, max_records=1 << 20, max_bytes=8 << 20)
            for batch in found.batches():
                assert batch.column(Column.OFFSET)[0] == len(self._names), "a queue's number is the offset of its name"
                lengths = BatchColumns(batch, self._names_id).lengths.astype(np.int64)
                self._names.load(np.frombuffer(batch.payload, np.uint8), lengths)
            offset = int(found.next_offsets[0])

    def write(self, group: Sequence[Put]) -> I64:
        """Put a group in line and commit it; returns the offset of each message. All of it is stored, or nothing."""
        payload = b"".join([put.payload for put in group])
        lengths = np.frombuffer(b"".join([put.lengths for put in group]), np.uint32)
        try:
            appended = self._append_group(group, lengths, payload)
        except InvalidBatch as error:
            if int(lengths.sum(dtype=np.int64)) == len(payload):
                raise
            raise InvalidRequest("a message is a memoryview of items that are not bytes; cast it to 'B'") from error
        try:
            self._store.wait(appended[-1])
        except BaseException:
            self._names.truncate(self._store.next_offset(self._names_id, 0))
            raise
        self.known = len(self._names)
        return appended[0].offsets if len(appended) == 1 else np.concatenate([part.offsets for part in appended])

    def _append_group(self, group: Sequence[Put], lengths: NDArray[np.uint32], payload: bytes) -> list[Appended]:
        numbers = self._known_numbers(group)
        if numbers is not None:
            return self._append([], list(self._batches(numbers, lengths, payload)))
        if all(put.is_joined for put in group):
            names = self._names.batch_joined(join_joined([put.joined for put in group]))
        else:
            names = self._names.batch([name for put in group for name in put.every_name()])
        return self._append_named(names, lengths, payload)

    def _known_numbers(self, group: Sequence[Put]) -> I64 | None:
        """The numbers of a few names; None where they are many, or one of them is new."""
        if sum([len(put.names) or len(put) for put in group]) > _FEW_NAMES:
            return None
        numbers = [self._names.find_one(name) for put in group for name in put.names]
        if -1 in numbers:
            return None
        return np.repeat(numbers, [len(put) if put.is_for_one_queue else 1 for put in group for _ in put.names])

    def _append_named(self, names: NameBatch, lengths: NDArray[np.uint32], payload: bytes) -> list[Appended]:
        """Put messages in line, and before them the names that are new."""
        numbers = self._names.find(names)
        missing = np.flatnonzero(numbers < 0)
        if len(missing) == 0:
            return self._append([], list(self._batches(numbers, lengths, payload)))
        unknown = names.take(missing)
        first, which = unknown.distinct()
        fresh = unknown.take(first)
        self._make_room(fresh)
        known = len(self._names)
        assert known == self._store.next_offset(self._names_id, 0), "a queue's number is the offset of its name"
        numbers[missing] = known + which
        self._names.add(fresh)
        try:
            zeros = np.zeros(len(fresh), np.int64)
            return self._append(
                list(self._batches(zeros, fresh.lengths.astype(np.uint32), fresh.joined().tobytes())),
                list(self._batches(numbers, lengths, payload)),
            )
        except BaseException:
            self._names.truncate(known)
            raise

    def _append(self, names: list[RecordBatch], messages: list[RecordBatch]) -> list[Appended]:
        """Put batches in line, to be committed or dropped together; what became of the messages."""
        batches = [*((self._names_id, batch) for batch in names), *((self.messages_id, batch) for batch in messages)]
        try:
            appended = self._store.append_many(batches)
        except StoreBusy:
            self._store.commit()  # what others have put in line may be all there is no room for
            appended = self._store.append_many(batches)
        return appended[len(names) :]

    def _batches(self, queues: I64, lengths: NDArray[np.uint32], payload: bytes) -> Iterator[RecordBatch]:
        """Records, cut to what a batch takes. Raises ``InvalidBatch``, here or the store, where they are not all of the
        payload."""
        limit_bytes, limit_count = self.max_batch_bytes, self.max_batch_records
        if len(payload) <= limit_bytes and len(queues) <= limit_count:
            yield _batch(queues, lengths, payload)
            return
        ends = np.cumsum(lengths, dtype=np.int64)
        if ends[-1] != len(payload):
            raise InvalidBatch(f"the messages' lengths add up to {ends[-1]} bytes, they have {len(payload)}")
        first = begin = 0
        while first < len(queues):
            fitting = int(ends.searchsorted(begin + limit_bytes, "right"))
            end = min(max(fitting, first + 1), first + limit_count, len(queues))
            stop = int(ends[end - 1])
            yield _batch(queues[first:end], lengths[first:end], payload[begin:stop])
            first, begin = end, stop

    def _make_room(self, fresh: NameBatch) -> None:
        wrong = np.flatnonzero((fresh.lengths < 1) | (fresh.lengths > MAX_NAME_BYTES)).tolist()
        if wrong:
            raise InvalidRequest(
                f"a queue name has 1 to {MAX_NAME_BYTES} bytes in UTF-8; {fresh.name(wrong[0])[:40]!r} has "
                f"{fresh.lengths[wrong[0]]}",
                limit=MAX_NAME_BYTES,
            )
        needed = len(self._names) + len(fresh)
        if needed > MAX_QUEUES:
            raise InvalidRequest(
                f"a queue store has up to {MAX_QUEUES} queues; this one has {len(self._names)}, and {len(fresh)} more "
                "were wanted. Use fewer names, or a second store.",
                limit=MAX_QUEUES,
            )
        if needed > self._queues:
            grown = max(needed, min(self._queues * 2, self._queues + _GROW_QUEUES, MAX_QUEUES))
            self._queues = self._store.grow_topic(MESSAGES, grown).queues


def _batch(queues: I64, lengths: NDArray[np.uint32], payload: bytes) -> RecordBatch:
    columns: Columns = {Column.QUEUE: queues.astype(np.uint32), Column.LENGTH: lengths}
    return RecordBatch(encode_one(columns, np.frombuffer(payload, np.uint8)), source="put", verify=False)
