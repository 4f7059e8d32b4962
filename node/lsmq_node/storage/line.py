"""The line: writes that have their place in the log and their offsets, and wait to be written.

What is in line shares one fate, called a *round*: when the disk is full all of it is dropped, its offsets are given
back, and the next write begins a new round. Whoever waits for a write holds its round, so what became of it is known
as long as somebody can ask.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgpack
import numpy as np
from numpy.typing import NDArray

from lsmq import runtime
from lsmq.errors import (
    LsmqError,
    NotLeader,
    QuotaExceeded,
    RequestTooLarge,
    ShardStopped,
    StoreBusy,
    TooManyDelayed,
    TooManyMessages,
)
from lsmq.record_batch import Column, RecordBatch

from .applier import Applier, BatchColumns, PendingEntry, PendingRecords, epoch_of
from .batch_checks import check_batch, check_count
from .columns import I64, encode_columns, wrap64
from .dedupe import DedupePlan, Repeats, encode_repeats, unmarked
from .delayed import delayed_count
from .disk import Clock
from .failures import again
from .losses import LossReason
from .options import FlushMode, StoreOptions
from .producers import BROKER_PRODUCERS, StoredBatch
from .quotas import Quota
from .sequences import Sequences, SequenceVerdict
from .state import ShardState, TopicState
from .wal import Appender, EntryFlag, EntryKind, LogEntry, encode_entry_header

Pending = PendingRecords | PendingEntry
WrittenEntry = Pending | LogEntry
"""On disk and not applied: as it came from a producer here, or raw, as it came from a leader or from the log."""

#: How durable an entry is to be, in its flags; None: as the store says.
_FLUSH_FLAGS = {None: EntryFlag(0), FlushMode.SYNC.value: EntryFlag.SYNC, FlushMode.ASYNC.value: EntryFlag.ASYNC}


class Round:
    """What was in line together, until all of it is written, or the rest of it dropped."""

    __slots__ = ("end", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        #: Set once, in one step, before any LSN that was given in this round is given again.
        self.end: RoundEnd | None = None

    def check(self, lsn: int) -> None:
        """Raises what made a write of this round fail that ends at ``lsn``."""
        following: Round | None = self
        while following is not None and (end := following.end) is not None:
            if lsn > end.kept_lsn:
                raise again(end.failure)
            following = end.following


@dataclass(frozen=True, slots=True)
class RoundEnd:
    """What lies below ``kept_lsn`` is in the log and belongs to the ``following`` round; the rest has failed."""

    kept_lsn: int
    failure: LsmqError
    following: Round


@dataclass(frozen=True, slots=True)
class Behind:
    """An entry that follows batches in the log, as :meth:`Line.append_entry` takes it."""

    kind: EntryKind
    topic_id: int
    count: int
    body: bytes
    check: int = 0


class RoundOver(Exception):
    """What a write was made of may have been dropped: make it again."""


@dataclass(frozen=True, slots=True)
class Appended:
    """A write in line: wait for it with :meth:`LogWriter.wait`.

    Attributes:
        lsn: it is committed when the store's committed LSN reaches this, unless its round failed first.
        fate: the round.
        offsets: one for each record of the batch; -1 for one that was dropped, as there was no room for it.
        repeats: which messages are not stored, since their deduplication ids were; their offsets are those of then.
            None where none are.
        duplicate: a repeat of a batch that was stored before; the rest is the answer given then.
    """

    lsn: int
    fate: Round
    offsets: I64
    stored_ms: int
    duplicate: bool = False
    repeats: NDArray[np.bool_] | None = None

    @property
    def round(self) -> int:
        """The number of its round."""
        return self.fate.number


Taken = tuple[Appended | None, int, int]
"""Somebody goes on with a producer's id: what to wait for, the epoch that begins, and the position it had come to."""


class Line:
    """Thread-safe. ``admit`` is asked before a write of so many bytes is taken, and raises to refuse it.

    A thread that is torn out of putting a write in line (a signal's exception, say) leaves offsets that were given and
    bytes that were not: whoever comes next is told, and nothing more is taken.
    """

    def __init__(
        self, options: StoreOptions, clock: Clock, state: ShardState, applier: Applier, appender: Appender, epoch: int
    ) -> None:
        self._options = options
        self._clock = clock
        self._state = state
        self._applier = applier
        self._appender = appender
        self.lock = runtime.Lock()  # guards the line, and the state that appends look at
        self._changing = False  # guarded by lock: whoever takes it and finds it set comes after one that was torn out
        self._pending: list[Pending] = []
        self._sequences = Sequences(options, state.producers, lambda age_ms: self.expired_before(age_ms))
        self.epoch = epoch
        self.closed: LsmqError | None = None  # why nothing may be put in line, where that is so
        self.quota_refusals = 0
        self.current = Round(0)
        self.durable_lsn = appender.lsn  # noted in each entry
        self._delayed = deque[tuple[int, int]]()  # guarded by lock: end and first due time of entries in line
        #: Told when the first is due of delayed messages that are put in line. It must be quick and not raise.
        self.on_delayed: Callable[[int], None] = lambda due_ms: None
        self.admit: Callable[[int], None] = lambda size: None
        self.check_open: Callable[[], None] = lambda: None
        self.committed_lsn: Callable[[], int] = lambda: 0
        #: What is stamped before the result is older than so many milliseconds.
        self.expired_before: Callable[[int], int] = lambda age_ms: clock.now_ms() - age_ms

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def round(self) -> int:
        """The number of the round that is in line."""
        return self.current.number

    @property
    def end_lsn(self) -> int:
        """Where the next entry goes."""
        return self._appender.lsn

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the log that are held in memory: in line, being written, or written and not committed."""
        return max(0, self._appender.lsn - self.committed_lsn())

    def append_records(
        self,
        items: Sequence[tuple[TopicState, RecordBatch]],
        *,
        behind: Behind | None = None,
        expected: Round | None = None,
        flush: FlushMode | None = None,
    ) -> list[Appended]:
        """Put batches in line, to be committed or dropped together.

        What became of the entry ``behind`` them is the last item returned.
        With ``expected``, the round that the batches were made in, :class:`RoundOver` is raised where it is another.
        ``flush``: how durable each is before it may be committed; None: as its topic says, or else the store.

        Raises ``UnknownQueue``, ``InvalidBatch``, ``TooManyMessages``, ``MessageTooLarge``, what
        :meth:`Sequences.check` raises, or what ``check_open`` and ``admit`` raise.
        """
        for _, batch in items:
            check_count(batch, self._options)
        columns = [BatchColumns(batch, state.topic.id) for state, batch in items]
        for (state, batch), parsed in zip(items, columns, strict=True):
            check_batch(state, batch, parsed, self._options)
        more_delayed = sum(  # What a transaction has decided is taken, and so is what is put at another time.
            int(np.count_nonzero(parsed.optional[Column.DUE_MS]))
            for (_, batch), parsed in zip(items, columns, strict=True)
            if Column.DUE_MS in batch.directory
            and Column.OFFSET not in batch.directory
            and batch.producer_id < BROKER_PRODUCERS
        )
        with self.lock:
            self._check_takes()
            if expected is not None and expected is not self.current:
                raise RoundOver
            for (state, _), parsed in zip(items, columns, strict=True):
                if state.named:
                    state.make_room(int(parsed.queues.max()) - state.first + 1)
            if more_delayed:
                self._check_delayed(more_delayed)
            now_ms = self._clock.now_ms()
            verdicts = self._sequences.check([parsed.producer for parsed in columns], now_ms)
            fresh = [batch for (_, batch), each in zip(items, verdicts, strict=True) if each is SequenceVerdict.NEXT]
            if fresh or behind is not None:
                size = 0 if behind is None else len(behind.body)
                self.check_room(sum(len(batch.payload) for batch in fresh) + size)
            self._check_quotas(items, columns, verdicts)
            plan = self._plan(items, columns, verdicts)
            appended = [
                self._append_or_repeat(state, batch, parsed, verdict, now_ms, plan, flush)
                for (state, batch), parsed, verdict in zip(items, columns, verdicts, strict=True)
            ]
            if behind is not None:
                appended.append(
                    self.append_entry(behind.kind, behind.topic_id, behind.count, behind.body, behind.check)
                )
            return appended

    def _check_quotas(
        self,
        items: Sequence[tuple[TopicState, RecordBatch]],
        columns: Sequence[BatchColumns],
        verdicts: Sequence[StoredBatch | SequenceVerdict],
    ) -> None:
        """Raises as :meth:`.Quota.check`. Batches of one topic count together."""
        limited = [state for state, _ in items if state.quota is not None]
        for state in {id(state): state for state in limited}.values() if limited else ():
            fresh = [
                (batch, parsed)
                for (owner, batch), parsed, verdict in zip(items, columns, verdicts, strict=True)
                if owner is state and verdict is SequenceVerdict.NEXT
            ]
            assert state.quota is not None, "it has just been asked for"
            try:
                state.quota.check(state, fresh, self.round)
            except (QuotaExceeded, TooManyMessages, RequestTooLarge):
                self.quota_refusals += 1
                raise

    def _plan(
        self,
        items: Sequence[tuple[TopicState, RecordBatch]],
        columns: Sequence[BatchColumns],
        verdicts: Sequence[StoredBatch | SequenceVerdict],
    ) -> dict[BatchColumns, PlannedIds]:
        """What becomes of those with deduplication ids. May read the disk, before anything is put in line."""
        chosen = []
        for (state, _), parsed, verdict in zip(items, columns, verdicts, strict=True):
            window = state.topic.options.dedupe_window_ms
            if parsed.ids is not None and window is not None and verdict is SequenceVerdict.NEXT:
                since_ms = 0 if isinstance(window, str) else self.expired_before(window)
                found = self._state.ids.find(parsed.ids, since_ms)
                if len(state.begins):
                    found[found < state.begins_of(parsed.queues)] = -1
                chosen.append((parsed, parsed.ids, found))
        if not chosen:
            return {}
        plan = DedupePlan([ids for _, ids, _ in chosen], [offsets for _, _, offsets in chosen])
        return {parsed: PlannedIds(plan, number) for number, (parsed, _, _) in enumerate(chosen)}

    def _append_or_repeat(
        self,
        state: TopicState,
        batch: RecordBatch,
        columns: BatchColumns,
        verdict: StoredBatch | SequenceVerdict,
        now_ms: int,
        plan: dict[BatchColumns, PlannedIds],
        flush: FlushMode | None,
    ) -> Appended:
        if verdict is SequenceVerdict.NEXT:
            return self._append_records(state, batch, columns, now_ms, plan.get(columns), flush)
        assert columns.producer is not None, "only a producer's batch can be a repeat"
        repeat = verdict if isinstance(verdict, StoredBatch) else self._sequences.repeat(columns.producer, now_ms)
        assert repeat is not None, "the other one is in line by now"
        offsets, repeats = unmarked(repeat.offsets)
        return Appended(repeat.lsn, self.current, offsets, repeat.stored_ms, duplicate=True, repeats=repeats)

    def _append_records(
        self,
        state: TopicState,
        batch: RecordBatch,
        columns: BatchColumns,
        stored_ms: int,
        planned: PlannedIds | None,
        flush: FlushMode | None,
    ) -> Appended:
        repeats = None if planned is None else planned.repeats()
        if state.quota is not None:
            repeats = self._without_dropped(state, state.quota, batch, columns, repeats)
        self._changing = True
        pending = self._applier.prepare(
            state, batch, columns, stored_ms, self._appender.lsn, repeats, note_ids=planned is not None
        )
        check = wrap64(int(pending.offsets.sum()))
        count, topic_id = batch.record_count, state.topic.id
        flags = _FLUSH_FLAGS[flush.value if flush else state.topic.options.flush]
        body, repeated = batch.buffer[: batch.total_bytes], None
        if planned is not None:
            planned.stored(pending.answers)
            flags |= EntryFlag.IDS
        if repeats is not None:
            flags |= EntryFlag.REPEATS
            body = memoryview(b"".join((body, encode_repeats(repeats.rows, pending.answers[repeats.rows]))))
            repeated = np.zeros(count, np.bool_)
            repeated[repeats.rows] = pending.answers[repeats.rows] >= 0
        header = encode_entry_header(
            EntryKind.RECORDS, self.epoch, self.durable_lsn, stored_ms, topic_id, count, check, flags
        )
        pending.flags = flags
        _, pending.end_lsn = self._appender.append(header, body)
        self._note_in_line(pending)
        self._pending.append(pending)
        self._changing = False
        if state.quota is not None:
            self._make_room(state, state.quota, pending)
        if pending.is_delayed:
            self._note_delayed(pending)
        return Appended(pending.end_lsn, self.current, pending.answers, stored_ms, repeats=repeated)

    def _without_dropped(
        self, state: TopicState, quota: Quota, batch: RecordBatch, columns: BatchColumns, repeats: Repeats | None
    ) -> Repeats | None:
        """Besides those that are repeats, those that find no room and are dropped."""
        rows = np.arange(batch.record_count)
        if repeats is not None:
            rows = np.delete(rows, repeats.rows)
        dropped = quota.dropped_of(state, batch, columns.queues, columns.lengths, rows, self.round)
        return repeats if dropped is None else Repeats.dropped(dropped, repeats)

    def take_producer(self, producer_id: int, epoch: int | None, new: bool) -> Taken:
        """Put in line that somebody goes on with a producer's id: what to wait for, the epoch, and the position that
        the producer had come to, -1 for none. None where that has happened, with nothing in the epoch.

        Raises what :meth:`.Sequences.take` does, and as :meth:`append_records`.
        """
        with self.lock:
            self._check_takes()
            taken = self._sequences.take(producer_id, epoch, new, self._clock.now_ms())
            if taken is None:
                assert epoch is not None
                return None, epoch, self._sequences.position(producer_id)
            body = msgpack.packb([producer_id, taken.epoch, taken.position])
            self.check_room(len(body))
            appended = self.append_entry(EntryKind.PRODUCER, 0, 0, body)
            self._note_producer(self._pending[-1])
            return appended, taken.epoch, taken.position

    def _make_room(self, state: TopicState, quota: Quota, pending: PendingRecords) -> None:
        over = quota.add(state, pending, self.round)
        if over is not None:
            queues, offsets = over
            body = encode_columns(len(queues), {Column.QUEUE: queues, Column.OFFSET: offsets})
            flags = pending.flags & (EntryFlag.SYNC | EntryFlag.ASYNC)
            self.append_entry(EntryKind.TRIM, state.topic.id, len(queues), body, LossReason.OVERFLOW, flags)

    # -- delayed messages --------------------------------------------------------------------------------

    def _note_delayed(self, pending: PendingRecords) -> None:
        self._delayed.append((pending.end_lsn, pending.first_due_ms))
        self._forget_committed()
        self.on_delayed(pending.first_due_ms)

    def _check_delayed(self, more: int) -> None:
        pending, limit = delayed_count(self._state.documents), self._options.max_delayed
        if pending + more > limit:
            raise TooManyDelayed(
                f"{pending} delayed messages are pending in this shard, and {more} more may be over the limit of "
                f"{limit} (max_delayed). Send them later, cancel some, or raise the limit",
                pending=pending,
                limit=limit,
            )

    def first_due_in_line(self) -> int | None:
        """When the first is due of the delayed messages that are not committed yet; None where all are."""
        with self.lock:
            self._forget_committed()
            return min((due_ms for _, due_ms in self._delayed), default=None)

    def _forget_committed(self) -> None:
        reached = self.committed_lsn()
        while self._delayed and self._delayed[0][0] <= reached:
            self._delayed.popleft()

    def append_entry(
        self, kind: EntryKind, topic_id: int, count: int, body: bytes, check: int = 0, flags: int = 0
    ) -> Appended:
        """Put an entry other than records in line. The caller holds ``lock``. Raises as :meth:`append_records`."""
        self._check_takes()
        now = self._clock.now_ms()
        header = encode_entry_header(kind, self.epoch, self.durable_lsn, now, topic_id, count, check, flags)
        self._changing = True
        lsn, end_lsn = self._appender.append(header, body)
        entry = LogEntry(lsn, end_lsn, kind, self.epoch, self.durable_lsn, now, topic_id, count, check, body, flags)
        self._pending.append(PendingEntry(entry))
        self._changing = False
        return Appended(end_lsn, self.current, np.empty(0, np.int64), now)

    def check_room(self, size: int) -> None:
        """Raises ``StoreBusy`` when ``size`` more bytes must not wait in line, or what ``admit`` raises."""
        self.admit(size)
        self.check_waiting(size)

    def check_waiting(self, size: int) -> None:
        """The line's own limit; a write larger than it is taken when nothing waits."""
        waiting, limit = self.waiting_bytes, self._options.max_waiting_bytes
        if waiting and waiting + size > limit:
            raise StoreBusy(
                f"{waiting} bytes wait to be written and committed, and {size} more are over the limit of {limit} "
                "(max_waiting_bytes): the disk, or the other replicas, do not keep up. Try again in a moment, or write "
                "more slowly",
                waiting_bytes=waiting,
                limit=limit,
            )

    def close(self) -> None:
        """Take nothing: this is a follower's log."""
        if self.closed is None:
            self.closed = NotLeader("this replica does not lead its shard; its log is the leader's")

    def _check_takes(self) -> None:
        self.check_open()
        self._check_whole()
        if self.closed is not None:
            raise again(self.closed)

    def take(self) -> tuple[int, bytes, list[Pending]]:
        """All that is in line: the LSN and the bytes to write there, and what they mean."""
        with self.lock:
            self.check_open()
            self._check_whole()
            pending, self._pending = self._pending, []
            lsn, parts = self._appender.take()
        return lsn, b"".join(parts), pending

    def _check_whole(self) -> None:
        if self._changing:
            raise ShardStopped(
                "a thread was torn out of putting a write in line (by a signal's exception or an error in the engine): "
                "it is not known any more what was given which offset. Nothing more is written; open the store again."
            )

    def restart(self, lsn: int, written: Iterable[Pending], kept_lsn: int, failure: LsmqError) -> int:
        """Drop all that is in line and go on at ``lsn``; returns the round this ends. The caller holds ``lock``.

        Whoever waits for anything above ``kept_lsn`` gets ``failure``. Offsets are given back, except those of
        ``written``: records, and takings of producers, that are in the log but not applied yet.
        """
        ended, following = self.current, Round(self.current.number + 1)
        ended.end = RoundEnd(kept_lsn, failure, following)
        self._pending = []
        self._delayed = deque(item for item in self._delayed if item[0] <= kept_lsn)
        self._sequences.clear()
        for state in self._state.topics.values():
            np.copyto(state.next, state.committed)
        self._state.ids.drop_line()
        for item in written:
            if isinstance(item, PendingEntry):
                self._note_producer(item)
                continue
            item.state.next[item.touched] = item.ends
            self._note_in_line(item)
            if item.ids is not None:
                self._state.ids.note(item.ids)
        self._appender.reset(lsn)
        self.current = following
        return ended.number

    # -- producers ---------------------------------------------------------------------------------------

    def _note_in_line(self, item: PendingRecords) -> None:
        if item.producer is not None:
            self._sequences.put(item.producer.producer_id, item.stored())

    def _note_producer(self, item: Pending) -> None:
        if isinstance(item, PendingEntry) and item.entry.kind == EntryKind.PRODUCER:
            self._sequences.put(*epoch_of(item.entry))

    def landed(self, item: Pending) -> None:
        """A producer's batch is applied: the state remembers it from here on. The caller holds ``lock``."""
        if isinstance(item, PendingEntry):
            if item.entry.kind == EntryKind.PRODUCER:
                self._sequences.landed(epoch_of(item.entry)[0], item.entry.end_lsn)
        elif item.producer is not None:
            self._sequences.landed(item.producer.producer_id, item.end_lsn)


@dataclass(frozen=True, slots=True)
class PlannedIds:
    """What becomes of one batch with deduplication ids."""

    plan: DedupePlan
    number: int

    def repeats(self) -> Repeats | None:
        return self.plan.repeats(self.number)

    def stored(self, offsets: I64) -> None:
        self.plan.stored(self.number, offsets)


def end_of(item: WrittenEntry) -> int:
    """The LSN after an entry."""
    return item.entry.end_lsn if isinstance(item, PendingEntry) else item.end_lsn


def flags_of(item: Pending) -> int:
    """The flags of the log entry that it is, or will be."""
    return item.entry.flags if isinstance(item, PendingEntry) else item.flags
