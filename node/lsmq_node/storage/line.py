"""The line: writes that have their place in the log and their offsets, and wait to be written.

What is in line shares one fate, called a *round*: when the disk is full all of it is dropped, its offsets are given
back, and the next write begins a new round. Whoever waits for a write holds its round, so what became of it is known
as long as somebody can ask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from lsmq import runtime
from lsmq.errors import LsmqError, NotLeader, ShardStopped, StoreBusy
from lsmq.record_batch import RecordBatch

from .applier import Applier, BatchColumns, PendingEntry, PendingRecords
from .batch_checks import check_batch, check_count
from .columns import I64, wrap64
from .disk import Clock
from .failures import again
from .options import StoreOptions
from .producers import Stored
from .sequences import Sequences, Verdict
from .state import ShardState, TopicState
from .wal import Appender, Entry, EntryKind, encode_entry_header

Pending = PendingRecords | PendingEntry
Written = Pending | Entry
"""On disk and not applied: as it came from a producer here, or raw, as it came from a leader or from the log."""


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
class Appended:
    """A write in line: wait for it with :meth:`LogWriter.wait`.

    Attributes:
        lsn: it is committed when the store's committed LSN reaches this, unless its round failed first.
        fate: the round.
        offsets: one for each record of the batch.
        duplicate: a repeat of a batch that was stored before; the rest is the answer given then.
    """

    lsn: int
    fate: Round
    offsets: I64
    stored_ms: int
    duplicate: bool = False

    @property
    def round(self) -> int:
        """The number of its round."""
        return self.fate.number


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
        self._sequences = Sequences(options, state.producers)
        self.epoch = epoch
        self.closed: LsmqError | None = None  # why nothing may be put in line, where that is so
        self.current = Round(0)
        self.durable_lsn = appender.lsn  # noted in each entry
        self.admit: Callable[[int], None] = lambda size: None
        self.check_open: Callable[[], None] = lambda: None
        self.committed_lsn: Callable[[], int] = lambda: 0

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
        self, items: Sequence[tuple[TopicState, RecordBatch]], *, documents: bytes = b""
    ) -> list[Appended]:
        """Put batches in line, to be committed or dropped together.

        ``documents``, the body of a DOCUMENT entry, comes behind them; what became of it is the last item returned.

        Raises ``UnknownQueue``, ``InvalidBatch``, ``TooManyMessages``, ``MessageTooLarge``, what
        :meth:`Sequences.check` raises, or what ``check_open`` and ``admit`` raise.
        """
        for _, batch in items:
            check_count(batch, self._options)
        columns = [BatchColumns(batch, state.topic.id) for state, batch in items]
        for (state, batch), parsed in zip(items, columns, strict=True):
            check_batch(state, batch, parsed, self._options)
        with self.lock:
            self._check_takes()
            now_ms = self._clock.now_ms()
            verdicts = self._sequences.check([parsed.producer for parsed in columns], now_ms)
            fresh = [batch for (_, batch), each in zip(items, verdicts, strict=True) if each is Verdict.NEXT]
            if fresh or documents:
                self.check_room(sum(len(batch.payload) for batch in fresh) + len(documents))
            appended = [
                self._append_or_repeat(state, batch, parsed, verdict, now_ms)
                for (state, batch), parsed, verdict in zip(items, columns, verdicts, strict=True)
            ]
            if documents:
                appended.append(self.append_entry(EntryKind.DOCUMENT, 0, 0, documents))
            return appended

    def _append_or_repeat(
        self, state: TopicState, batch: RecordBatch, columns: BatchColumns, verdict: Stored | Verdict, now_ms: int
    ) -> Appended:
        if verdict is Verdict.NEXT:
            return self._append_records(state, batch, columns, now_ms)
        assert columns.producer is not None, "only a producer's batch can be a repeat"
        repeat = verdict if isinstance(verdict, Stored) else self._sequences.repeat(columns.producer, now_ms)
        assert repeat is not None, "the other one is in line by now"
        return Appended(repeat.lsn, self.current, repeat.offsets, repeat.stored_ms, duplicate=True)

    def _append_records(self, state: TopicState, batch: RecordBatch, columns: BatchColumns, stored_ms: int) -> Appended:
        self._changing = True
        pending = self._applier.prepare(state, batch, columns, stored_ms)
        check = wrap64(int(pending.offsets.sum()))
        count, topic_id = batch.record_count, state.topic.id
        header = encode_entry_header(EntryKind.RECORDS, self.epoch, self.durable_lsn, stored_ms, topic_id, count, check)
        _, pending.end_lsn = self._appender.append(header, batch.buffer[: batch.total_bytes])
        self._note_in_line(pending)
        self._pending.append(pending)
        self._changing = False
        return Appended(pending.end_lsn, self.current, pending.offsets, stored_ms)

    def append_entry(self, kind: EntryKind, topic_id: int, count: int, body: bytes) -> Appended:
        """Put an entry other than records in line. The caller holds ``lock``. Raises as :meth:`append_records`."""
        self._check_takes()
        now = self._clock.now_ms()
        header = encode_entry_header(kind, self.epoch, self.durable_lsn, now, topic_id, count, 0)
        self._changing = True
        lsn, end_lsn = self._appender.append(header, body)
        entry = Entry(lsn, end_lsn, kind, self.epoch, self.durable_lsn, now, topic_id, count, 0, body)
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

    def take(self) -> tuple[int, bytearray, list[Pending]]:
        """All that is in line: the LSN and the bytes to write there, and what they mean."""
        with self.lock:
            self.check_open()
            self._check_whole()
            pending, self._pending = self._pending, []
            lsn, buffer = self._appender.take()
            return lsn, buffer, pending

    def _check_whole(self) -> None:
        if self._changing:
            raise ShardStopped(
                "a thread was torn out of putting a write in line (by a signal's exception or an error in the engine): "
                "it is not known any more what was given which offset. Nothing more is written; open the store again."
            )

    def restart(self, lsn: int, written: Iterable[PendingRecords], kept_lsn: int, failure: LsmqError) -> int:
        """Drop all that is in line and go on at ``lsn``; returns the round this ends. The caller holds ``lock``.

        Whoever waits for anything above ``kept_lsn`` gets ``failure``. Offsets are given back, except those of
        ``written``: records that are in the log but not applied yet.
        """
        ended, following = self.current, Round(self.current.number + 1)
        ended.end = RoundEnd(kept_lsn, failure, following)
        self._pending = []
        self._sequences.clear()
        for state in self._state.topics.values():
            np.copyto(state.next, state.committed)
        for item in written:
            item.state.next[item.touched] = item.ends
            self._note_in_line(item)
        self._appender.reset(lsn)
        self.current = following
        return ended.number

    # -- producers ---------------------------------------------------------------------------------------

    def _note_in_line(self, item: PendingRecords) -> None:
        if item.producer is not None:
            self._sequences.put(item.producer.producer_id, item.stored())

    def landed(self, item: PendingRecords) -> None:
        """A producer's batch is applied: the state remembers it from here on. The caller holds ``lock``."""
        if item.producer is not None:
            self._sequences.landed(item.producer.producer_id, item.end_lsn)


def end_of(item: Written) -> int:
    """The LSN after an entry."""
    return item.entry.end_lsn if isinstance(item, PendingEntry) else item.end_lsn
