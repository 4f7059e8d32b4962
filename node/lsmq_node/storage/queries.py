"""Questions a store answers: bounds of queues, messages by offset, by many queues at once, by time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray

from lsmq.errors import CorruptFile, OffsetOutOfRange, UnknownQueue, UnknownTopic
from lsmq_node.descriptors import SHORTAGE

from .backlog import first_in_memory, record_bytes
from .columns import I64, U32, queue_key, queue_keys
from .delayed import DuePlace
from .due_reads import DueRead, read_due
from .failures import disappeared, no_descriptor
from .key_search import KeyFound, KeyQuery, KeySearch
from .many_reads import ManyRead, ReadCollector
from .point_reads import NotFound, PointRecord, Rows, point_rows, record_at
from .ranges import RangePart, RangeReader
from .reader import MissingRecords, QueueRead, Slice, read_queue
from .sieve import Expired, Picked, Sieve
from .state import ShardState, StoredTopic, TopicState
from .stats import Counters
from .tables import TableSet
from .version import Version

if TYPE_CHECKING:
    from .group_offsets import CommittedOffsets
    from .group_patterns import GroupPatterns

Found = TypeVar("Found")
GroupMark = tuple[int, int | None, str | None]
"""The versions of a topic and of a group's offsets, and the pattern by which it reads; without offsets the second is
None."""

#: So many bytes at a time are read where messages are asked for by number only.
_BODIES_BYTES = 4 << 20
#: What is read so quickly that nobody need wait for a thread: so many of the messages that came last, of so many bytes.
AT_HAND_RECORDS = 512
AT_HAND_BYTES = 128 << 10
#: Queues whose columns take little memory, and the interpreter for a millisecond.
_COUNTED_AT_ONCE = 1 << 17
#: So often at most a key is searched for while messages of the topic are deleted.
_SEARCHES = 3


class ReadLimits(TypedDict, total=False):
    """How much a read brings, and of what.

    Attributes:
        max_records, max_bytes: 1,000, and about a MiB, where nothing is said.
        picked: only what this picks; None for all.
    """

    max_records: int
    max_bytes: int
    picked: Picked | None


class Queries:
    """Reads of a store. Thread-safe; no lock is held while the disk is read."""

    def __init__(self, state: ShardState, tables: TableSet, counters: Counters, expired: Expired) -> None:
        self._state = state
        self._expired = expired
        self._tables = tables
        self._counters = counters
        #: By topic, for these tables. Replaced as a whole by whichever reader finds others.
        self._record_sizes: tuple[tuple[int, ...], dict[int, float]] = ((), {})
        self.patterns: GroupPatterns  # set by who knows the names of queues

    def topic_state(self, topic_id: int) -> TopicState:
        """Raises ``UnknownTopic``."""
        state = self._state.topics.get(topic_id)
        if state is None:
            raise UnknownTopic(f"there is no topic with id {topic_id}", topic_id=topic_id)
        return state

    def bounds(self, topic_id: int, queue: int) -> tuple[int, int]:
        """First offset kept and next offset to be read of a queue. Raises ``UnknownTopic``, ``UnknownQueue``."""
        state = self.topic_state(topic_id)
        if not state.first <= queue < state.end:
            raise UnknownQueue(
                f"{_has_queues(state.topic)}; there is no queue {queue} here",
                topic=state.topic.name,
                queue=queue,
                queues=state.topic.queues,
            )
        return int(state.start[queue - state.first]), int(state.committed[queue - state.first])

    def latest_offsets(self, topic_id: int, queues: U32 | None = None) -> I64:
        """The next offset a reader will see of each queue; of all of them when ``queues`` is None."""
        state = self.topic_state(topic_id)
        return self.values(state, state.committed, queues)

    def earliest_offsets(self, topic_id: int, queues: U32 | None = None) -> I64:
        """The first offset kept of each queue; of all of them when ``queues`` is None."""
        state = self.topic_state(topic_id)
        return self.values(state, state.start, queues)

    def numbers(self, topic_id: int) -> tuple[int, int]:
        """The queues ``[first, end)`` that are here of a topic. Raises ``UnknownTopic``."""
        state = self.topic_state(topic_id)
        return state.first, state.end

    def are_empty(self, topic_id: int, queues: U32) -> tuple[NDArray[np.bool_], I64]:
        """Of which queues nothing can be read, and where each ends."""
        state = self.topic_state(topic_id)
        rows = self.rows(state, queues)
        ends = state.committed[rows]
        empty: NDArray[np.bool_] = state.live_from(rows) >= ends
        return empty, ends

    def values(self, state: TopicState, values: I64, queues: U32 | None) -> I64:
        if queues is None:
            return values[: state.end - state.first].copy()
        return values[self.rows(state, queues)]

    def rows(self, state: TopicState, queues: U32) -> I64:
        """Where the queues stand in the topic's arrays. Raises ``UnknownQueue``."""
        wanted = np.asarray(queues, np.int64)
        if len(wanted) and not (state.first <= wanted.min() and wanted.max() < state.end):
            raise UnknownQueue(
                f"{_has_queues(state.topic)}, not {int(wanted.min())} to {int(wanted.max())}",
                topic=state.topic.name,
                queues=state.topic.queues,
            )
        return wanted - state.first

    def read(
        self,
        topic_id: int,
        queue: int,
        offset: int,
        *,
        max_records: int = 1000,
        max_bytes: int = 1 << 20,
        picked: Picked | None = None,
    ) -> Slice:
        """Records of a queue from ``offset`` on that have not expired, at least one when there is one.

        With ``picked`` those that it picks; then it may end before the first one (see :mod:`.sieve`). Raises
        ``OffsetOutOfRange`` with ``earliest`` and ``latest`` unless ``offset`` is between them, ``CorruptFile`` when a
        table is damaged.
        """
        earliest, latest = self.bounds(topic_id, queue)
        if not earliest <= offset <= latest:
            topic = self.topic_state(topic_id).topic.name
            raise OffsetOutOfRange(
                f"offset {offset} is not in queue {queue} of topic {topic!r}, which "
                f"{f'holds {earliest} to {latest - 1}' if earliest < latest else 'is empty'} (next: {latest})",
                topic=topic,
                queue=queue,
                earliest=earliest,
                latest=latest,
            )
        state = self.topic_state(topic_id)
        sieve = self._sieve(offset < state.holes_end(queue - state.first), picked)
        found = self.read_records(topic_id, queue, offset, latest, max_records, max_bytes, sieve)
        answer = ReadCollector(max_records, max_bytes, sieve)
        answer.add_queue(queue, found)
        return answer.slice()

    def _sieve(self, holes: bool, picked: Picked | None) -> Sieve | None:
        """Where messages expire there are holes, or will be: so where there are none, none has expired."""
        return Sieve(self._expired if holes else None, picked) if holes or picked is not None else None

    def read_many(
        self,
        topic_id: int,
        queues: U32,
        offsets: I64,
        *,
        ends: I64 | None = None,
        max_records: int = 1000,
        max_bytes: int = 1 << 20,
        picked: Picked | None = None,
        expired: Expired | None = None,
    ) -> Slice:
        """Records of many queues that have not expired; cost follows what is returned. Queues are served in the order
        given. ``expired`` says it in another way than the shard's time.

        An offset below the earliest starts at the earliest; one at or beyond the latest finds nothing. Where nothing is
        left of what lies between, the queue is passed over: its next offset is the latest. With ``ends``
        each queue is read up to there at most; with ``picked`` those records that it picks.
        """
        state = self.topic_state(topic_id)
        latest = self.values(state, state.committed, queues)
        if ends is not None:
            latest = np.minimum(latest, ends)
        rows = self.rows(state, queues)
        starts = np.maximum(offsets, state.start[rows])
        if state.deletions is not None:
            starts = np.maximum(starts, state.live_from(rows))
        sieve = self._sieve(state.deletions is not None, picked) if expired is None else Sieve(expired, picked)
        answer = ReadCollector(max_records, max_bytes, sieve)
        over = np.flatnonzero((offsets < latest) & (starts >= latest))
        answer.pass_over(queues[over], latest[over])
        active = np.flatnonzero(starts < latest)
        whole = starts[active] >= state.holes_ends(rows[active])
        many = ManyRead(self, topic_id, queues[active], starts[active], latest[active], answer)
        many.read(whole)
        return answer.slice()

    def are_at_hand(self, topic_id: int, queues: U32, offsets: I64) -> bool:
        """Whether there is little to read of the sorted queues from these offsets on, and all of it came just now: it
        is read from memory, in less time than another thread takes to begin. Raises nothing."""
        state = self._state.topics.get(topic_id)
        if state is None or not (len(queues) and state.first <= queues[0] and queues[-1] < state.end):
            return False
        rows = np.asarray(queues, np.int64) - state.first
        starts = np.maximum(offsets, state.start[rows])
        counts = np.maximum(state.committed[rows] - starts, 0)
        total = int(counts.sum())
        if total > AT_HAND_RECORDS or (starts < state.holes_ends(rows)).any():
            return False
        keys = queue_keys(topic_id, queues)
        size = self._tables.version.memtables[0].recent_bytes(keys, counts) if total else 0
        return size is not None and size <= AT_HAND_BYTES

    def lag(self, topic_id: int, queues: U32, offsets: I64) -> tuple[I64, float]:
        """Records there are of each queue from its offset on, and what one of the topic takes, about, in bytes.

        The records are below 0 for an offset beyond the end. Costs no reading but of a table's index.
        """
        state = self.topic_state(topic_id)
        lags = self.values(state, state.committed, queues) - np.maximum(
            offsets, self.values(state, state.start, queues)
        )
        return lags, self._record_bytes(topic_id)

    def _record_bytes(self, topic_id: int) -> float:
        version = self._tables.version
        tables = tuple(run.tables[0].meta.number for run in version.runs() if run.tables)
        known_of, sizes = self._record_sizes
        if known_of != tables or not tables:
            sizes = {}
            self._record_sizes = (tables, sizes)
        if topic_id not in sizes:
            sizes[topic_id] = record_bytes(version, topic_id)
        return sizes[topic_id]

    def lag_in_tables(self, topic_id: int, queues: U32, offsets: I64) -> I64:
        """Records of each of the sorted, distinct queues from its offset on that no memtable has."""
        state = self.topic_state(topic_id)
        ends = self.values(state, state.committed, queues)
        starts = np.maximum(offsets, self.values(state, state.start, queues))
        counts = np.zeros(len(queues), np.int64)
        active = np.flatnonzero(starts < ends)
        keys = queue_keys(topic_id, queues[active])
        firsts = first_in_memory(self._tables.version, keys, ends[active])
        counts[active] = np.maximum(firsts - starts[active], 0)
        return counts

    def read_records(
        self,
        topic_id: int,
        queue: int,
        offset: int,
        end: int,
        max_records: int,
        max_bytes: int,
        sieve: Sieve | None = None,
    ) -> QueueRead:
        """A queue's records in ``[offset, end)`` as columns and whole blocks, not yet encoded.

        Without ``sieve`` expired ones are among them, as long as they are there. ``offset`` must not be below the
        queue's earliest, nor ``end`` beyond its latest.
        """
        state = self.topic_state(topic_id)
        key, row = queue_key(topic_id, queue), queue - state.first

        def read(version: Version) -> QueueRead:
            # Asked after: what the version lacks was deleted before.
            begin = min(max(offset, state.first_live(row)), end)
            holes = begin < state.holes_end(row)
            return read_queue(version, key, begin, end, max_records, max_bytes, holes=holes, sieve=sieve)

        while True:
            try:
                found = self._of_present_version(read)
            except MissingRecords as missing:
                self.topic_state(topic_id)  # raises UnknownTopic when it was deleted while we were looking
                start = state.first_live(row)
                if start <= missing.offset and state.holes_end(row) <= missing.offset:
                    raise _lost(state, queue, missing.offset) from missing
                # The log start moved on, or something was deleted, while we were looking.
            else:
                self._count_read(found.record_count, found.size_bytes)
                return found

    def read_ranges(self, ranges: RangeReader) -> RangePart | None:
        """What :class:`RangeReader` finds. Raises ``TooMuch`` or ``CorruptFile``."""
        found = self._of_present_version(ranges.read)
        if found:
            self._count_read(len(found[1]), len(found[0].payload))
        return found

    def _count_read(self, records: int, size_bytes: int) -> None:
        self._counters.records_read += records
        self._counters.bytes_read += size_bytes

    def _of_present_version(self, read: Callable[[Version], Found]) -> Found:
        """What is read of the tables as they are: again where some were merged away before they were opened."""
        while True:
            version = self._tables.version
            try:
                return read(version)
            except FileNotFoundError as error:
                if self._tables.version is version:
                    raise disappeared("a table", error) from error
            except OSError as error:
                if error.errno not in SHORTAGE:
                    raise
                raise no_descriptor(self._tables.path) from error

    def read_due(self, after: DuePlace, upto_ms: int, max_records: int, max_bytes: int) -> DueRead:
        """See :func:`.due_reads.read_due`. Raises ``CorruptFile``."""
        return self._of_present_version(lambda version: read_due(version, after, upto_ms, max_records, max_bytes))

    def read_bytes(self, topic_id: int, queue: int, offset: int, max_records: int) -> list[bytes]:
        """The bytes of up to ``max_records`` messages of a queue from ``offset`` on; none where there are none.

        An offset below the earliest starts at the earliest. Raises as :meth:`read` does.
        """
        state = self.topic_state(topic_id)
        row = queue - state.first
        end = state.committed.item(row)
        offset = max(offset, state.first_live(row))
        end = min(end, offset + max_records)
        if offset >= end:
            return []
        found: list[bytes] = []
        rows = self._rows(state, queue, offset, end)
        if rows is None:
            while offset < end:
                part = self.read_records(topic_id, queue, offset, end, end - offset, _BODIES_BYTES)
                found += part.record_bytes(offset)
                offset = part.next_offset
        else:
            for lies, first, stop in rows:
                found += lies.record_bytes(first, stop)
        self._count_read(len(found), sum(map(len, found)))
        return found

    def read_one(self, topic_id: int, queue: int, offset: int) -> PointRecord | None:
        """The message at an offset where nothing else is to be thought of; None where :meth:`read` is to say.

        Raises ``UnknownTopic``, ``CorruptFile``.
        """
        state = self.topic_state(topic_id)
        row = queue - state.first
        if not state.start.item(row) <= offset < state.committed.item(row):
            return None
        rows = self._rows(state, queue, offset, offset + 1)
        if rows is None:
            return None
        (part, at, _), *_ = rows
        found = record_at(part, at)
        self._count_read(1, len(found.record))
        return found

    def _rows(self, state: TopicState, queue: int, offset: int, end: int) -> list[Rows] | None:
        """Where the messages ``[offset, end)`` of a queue lie, which are committed; None where the thorough search has
        to say: some of them may be deleted or have expired, or something is not as it should be."""
        key, version = queue_key(state.topic.id, queue), self._tables.version
        # Asked after: what the version lacks was deleted before.
        if offset < state.holes_end(queue - state.first):
            return None
        place = self._tables.places.get(key, offset)
        if place is not None and end <= place.end:
            return [place.rows(offset, end)]
        try:
            return list(point_rows(version, key, offset, end, self._tables.places))
        except (NotFound, OSError):
            return None

    def offset_for_time(self, topic_id: int, queue: int, time_ms: int) -> int:
        """First offset of the queue stored at or after ``time_ms``; the latest offset when there is none."""
        low, high = self.bounds(topic_id, queue)
        while low < high:
            middle = (low + high) // 2
            first = self.read_records(topic_id, queue, middle, high, 1, 1).first(middle)
            if first is None or first[1] >= time_ms:
                high = middle
            else:
                low = first[0] + 1
        return low

    def find_key(self, query: KeyQuery, make: Callable[[Slice], Found | None]) -> KeyFound:
        """Messages by key, newest first. ``make`` is given each as it is read, and says None where it has another key.

        Where nothing is found and something was deleted meanwhile it is searched again: in a compacted topic, the last
        message may have been superseded since the search began. Raises ``UnknownTopic``, ``CorruptFile``.
        """
        state = self.topic_state(query.topic_id)

        def live(queues: I64, offsets: I64) -> NDArray[np.bool_]:
            rows = queues - state.first
            mask: NDArray[np.bool_] = (offsets >= state.live_from(rows)) & (offsets < state.committed[rows])
            return mask

        def accept(queue: int, offset: int) -> tuple[Found, int] | None:
            sieve = self._sieve(offset < state.holes_end(queue - state.first), query.picked)
            found = self.read_records(query.topic_id, queue, offset, offset + 1, 1, 1, sieve)
            if not found.record_count:
                return None
            answer = ReadCollector(1, 1)
            answer.add_queue(queue, found)
            made = make(answer.slice())
            return None if made is None else (made, found.size_bytes)

        for _ in range(_SEARCHES):
            losses = state.losses
            found = self._of_present_version(lambda version: KeySearch(version, query, live, accept).run())
            if found.matches or state.losses == losses:
                break
        return found

    def committed_offsets(self, group: str, topic_id: int, queues: U32 | None = None) -> I64:
        """A group's committed offsets; -1 where it has none."""
        state = self.topic_state(topic_id)
        values = self._state.offsets.get(group, topic_id)
        if queues is None:
            count = state.end - state.first
            return np.full(count, -1) if values is None else values.first(count) - 1
        rows = self.rows(state, queues)
        return np.full(len(rows), -1) if values is None else values.at(rows) - 1

    def applied_lsn(self) -> int:
        """Entries of the log that end here or before have had their effect: while it stays no offset changes."""
        return self._tables.applied_lsn

    def topic_changes(self) -> int:
        """Another number after each change of which topics there are, or of what is said of one."""
        return self._state.topic_changes

    def topics_changed_since(self, number: int) -> set[int] | None:
        """Ids of the topics of which that is so since :meth:`topic_changes` was ``number``; None where nobody knows."""
        return self._state.topics_changed_since(number)

    def group_marks(self, also: Iterable[tuple[str, int]] = ()) -> list[tuple[str, StoredTopic, GroupMark]]:
        """The groups that have committed offsets of a topic, and ``also`` these (a group, a topic's id), which may not.

        The mark is another once :meth:`group_lag` may be.
        """
        found = []
        for group, topic_id in dict.fromkeys((*self._state.offsets, *also)):
            state, offsets = self._state.topics.get(topic_id), self._state.offsets.get(group, topic_id)
            if state is not None:
                version = None if offsets is None else offsets.version
                found.append((group, state.topic, (state.version, version, self._pattern(group, state))))
        return found

    def _pattern(self, group: str, state: TopicState) -> str | None:
        return self.patterns.of(group, state.topic.id) if state.named else None

    def group_lag(self, group: str, topic_id: int) -> int:
        """Messages that wait for a group here; where it has committed nothing, all that are kept do. Of a group that
        reads by a pattern, those in queues that fit.

        Costs what it costs to look at each queue that it has committed, and once after each change of the topic at all
        queues of that; or at each that fits. Raises ``UnknownTopic``.
        """
        state, offsets = self.topic_state(topic_id), self._state.offsets.get(group, topic_id)
        pattern = self._pattern(group, state)
        numbers = None if pattern is None else self.patterns.numbers(topic_id, pattern)
        if numbers is not None:
            return _waiting_in(state, numbers.astype(np.int64) - state.first, offsets)
        found = _waiting(state)
        if offsets is None:
            return found
        count = state.end - state.first
        for rows, values in offsets.committed():
            rows, values = rows[rows < count], values[rows < count]
            starts, ends = state.start[rows], state.committed[rows]
            found += int((np.maximum(ends - np.maximum(starts, values - 1), 0) - np.maximum(ends - starts, 0)).sum())
        return max(0, found)  # the topic may have changed meanwhile

    def groups(self, after: str | None = None, limit: int = 0) -> list[str]:
        """See :meth:`.GroupOffsets.groups`."""
        return self._state.offsets.groups(after, limit)

    def topics_of(self, group: str) -> list[int]:
        """See :meth:`.GroupOffsets.topics_of`."""
        return self._state.offsets.topics_of(group)


def _waiting(state: TopicState) -> int:
    """Messages that are kept in all queues of a topic."""
    version, counted = state.version, state.waiting
    if counted is not None and counted[1] == version:
        return counted[0]
    count, found = state.end - state.first, 0
    for low in range(0, count, _COUNTED_AT_ONCE):
        rows = slice(low, min(low + _COUNTED_AT_ONCE, count))
        found += int(np.maximum(state.committed[rows] - state.start[rows], 0).sum())
    state.waiting = found, version
    return found


def _waiting_in(state: TopicState, rows: I64, offsets: CommittedOffsets | None) -> int:
    """Messages that wait for a group in these rows."""
    rows = rows[rows < state.end - state.first]
    done = np.zeros(len(rows), np.int64) if offsets is None else offsets.at(rows) - 1
    return int(np.maximum(state.committed[rows] - np.maximum(state.start[rows], done), 0).sum())


def _lost(state: TopicState, queue: int, offset: int) -> CorruptFile:
    return CorruptFile(
        f"offset {offset} of queue {queue} of topic {state.topic.name!r} was written and not deleted, but no table has "
        "it. 'lsmq repair' says what is damaged, and saves what is whole; a member of a cluster is filled again from "
        "the others.",
        topic=state.topic.name,
        queue=queue,
        offset=offset,
    )


def _has_queues(topic: StoredTopic) -> str:
    if topic.named:
        return f"topic {topic.name!r} has queues with names, and their numbers"
    return f"topic {topic.name!r} has queues 0 to {topic.queues - 1}"
