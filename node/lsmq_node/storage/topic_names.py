"""The queue names of one named topic on one shard: which there are, and which numbers they have.

What is committed stands in a table in memory, made from the log of names (:mod:`.name_log`) when it is first needed,
and brought up to date by reading on from where it stopped: on a follower, after a failover and after a restart alike. A
leader has in the table besides what it has put in line and is not committed yet, but shows it to nobody; it is shown
as it is committed, without being read, and goes where its round is dropped. So an append finds a name that another
append gave a number a moment ago.

A name gets its number in the same append as its first messages, before them in the log: they are never there without
it. It is there without them where it was declared, or a leader was lost that had sent a part of the append on. What a
deleted queue held is trimmed in the log before its name goes, and its number may be given to another name: offsets go
on where they ended, so nothing that was said of the old queue reaches into the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lsmq.errors import (
    InvalidBatch,
    InvalidRequest,
    LsmqError,
    OffsetOutOfRange,
    QuotaExceeded,
    RequestTooLarge,
    TooManyMessages,
    TooManyQueues,
)
from lsmq.queue_names import NUMBER_BITS, SEPARATOR, check_queue_name, queue_slot
from lsmq.record_batch import Column, RecordBatch

from .columns import DTYPES, I64, U32, decode_column, encode_columns
from .known_names import InLine, KnownNames, NamesBehind, raw_of
from .later_names import with_names
from .line import Appended, Round, RoundOver
from .losses import LossReason
from .name_log import U16, NameChange, NameChanges, encode, put_again, with_offsets
from .name_makers import Accounts
from .name_slots import queue_slots
from .name_table import NO_SLOT
from .options import FlushMode
from .queue_names import NameBatch
from .renumber import with_queues
from .state import TopicState
from .wal import EntryKind

#: Names a shard can have of a topic, and numbers it can give.
MAX_NAMES = (1 << NUMBER_BITS) - 1
#: Of a log of names with less that is dead nothing is written anew.
LEAST_REWRITTEN = 10_000

AdmitNames = Callable[[int], Accounts]
"""Given how many queues are about to be made, says whom they count for. Raises where they must not be made."""


def _anybody(count: int) -> Accounts:
    return ()


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots ``[first, end)`` that a shard holds of a topic."""

    first: int
    end: int


class TopicNames(KnownNames):
    """Thread-safe. :meth:`refresh` reads the disk; all else looks at memory."""

    def append(
        self,
        joined: bytes,
        batch: RecordBatch,
        slots: Slots,
        *,
        flush: FlushMode | None = None,
        admit: AdmitNames = _anybody,
    ) -> tuple[Appended, U32]:
        """Put a batch in line whose QUEUE column says which of the names, and before it the names that are new.

        Args:
            joined: names with NUL between them, which the column counts from 0.
            slots: what the shard holds: a name of another slot is refused.
            flush: as in ``ShardStore.append``; for names that are new as well.
            admit: asked once where names are new, before anything is put in line.

        Returns what became of it, and the number of each record's queue.

        Raises ``NamesBehind``, ``InvalidQueueName``, ``InvalidRequest``, ``TooManyQueues``, ``InvalidBatch``, what
        ``ShardStore.append`` raises, and what ``admit`` does.
        """
        which = decode_column(batch.buffer, batch.directory.get(Column.QUEUE), batch.record_count, DTYPES[Column.QUEUE])
        names = self._names_of(joined)
        if int(which.max()) >= len(names):
            raise InvalidBatch(f"the batch has name {int(which.max())} in QUEUE, and there are {len(names)}")
        if Column.DUE_MS in batch.directory:
            batch = with_names(batch, joined.decode(errors="surrogateescape").split(SEPARATOR))
        while True:
            with self._lock:
                round_ = self._check_may_append()
                state = self._topic()
                numbers, changes, new = self._resolve(names, slots)
                queues = (numbers + state.first).astype(np.uint32)[which]
                items = [(state, with_queues(batch, queues))]
                try:
                    accounts = () if new is None else admit(len(new))
                    appended = self._put_in_line(changes, items, round_, flush, new, accounts)
                except RoundOver:
                    continue
                except (QuotaExceeded, TooManyMessages, RequestTooLarge) as error:
                    at = np.flatnonzero(queues == error.details.get("queue", -1))
                    if not len(at):
                        raise
                    name = joined.decode(errors="replace").split(SEPARATOR)[which[at[0]]]
                    raise _with_name(error, name) from None
                return appended[-1], queues

    def lasting_numbers(self, joined: bytes) -> U32 | None:
        """The numbers of names that all are committed, and of which none is to go; None where that is not so.

        Good for an append in the same step of whoever deletes. Raises ``NamesBehind``.
        """
        with self._lock:
            self._check_may_append()
            numbers = self._table.find(self._names_of(joined))
            if not self._table.has(numbers).all() or self._are_going(numbers).any():
                return None
            return (numbers + self._topic().first).astype(np.uint32)

    def declare(self, names: Sequence[str], slots: Slots, admit: AdmitNames = _anybody) -> Appended | None:
        """Put in line that these names are there; None where all of them are. Raises as :meth:`append`."""
        joined = SEPARATOR.join(names).encode(errors="surrogatepass")
        while True:
            with self._lock:
                round_ = self._check_may_append()
                _, changes, new = self._resolve(self._names_of(joined), slots)
                if new is None:
                    return self._in_line[-1].appended if self._in_line else None
                try:
                    return self._put_in_line(changes, [], round_, new=new, accounts=admit(len(new)))[-1]
                except RoundOver:
                    continue

    def knows_the_line(self) -> bool:
        """Whether all that is in line is known, without which nothing is put there: else it is to be committed first.

        Raises ``UnknownTopic``.
        """
        with self._lock:
            _, _, end = self._settle()
            return self._reach() >= end

    def _reach(self) -> int:
        """Up to here the log of names is known, with what is in line."""
        return self._in_line[-1].end if self._in_line else self._position

    def _check_may_append(self) -> Round:
        round_, _, end = self._settle()
        if self._reach() < end:
            raise NamesBehind
        self._topic().begins = self._table.begins  # For whoever puts something in line now.
        return round_

    def _resolve(self, names: NameBatch, slots: Slots) -> tuple[I64, NameChanges | None, NameBatch | None]:
        """The number of each name; what is to be put in line for those that have none yet, and which these are."""
        numbers = self._table.find(names)
        if self._forgetting or self._aside:
            self._look_aside(numbers, names)
        missing = np.flatnonzero(numbers < 0)
        if not len(missing):
            return numbers, None, None
        new, whose = names.take(missing), np.arange(len(missing))
        if new.may_repeat:
            first, whose = new.distinct()
            new = new.take(first)
        in_slots = self._slots_of(new, slots)
        given = self._give(len(new))
        numbers[missing] = given[whose]
        return numbers, NameChanges(NameChange.PUT, given, in_slots, new.text, new.starts, new.lengths), new

    def _look_aside(self, numbers: I64, names: NameBatch) -> None:
        """Names that are to go have no number any more, and those that stand aside have one."""
        numbers[self._are_going(numbers)] = -1
        missing = np.flatnonzero(numbers < 0)
        if self._aside and len(missing):
            for at, raw in zip(missing.tolist(), names.take(missing).raw(), strict=True):
                number = self._aside.get(raw, -1)
                numbers[at] = -1 if number in self._forgetting else number

    def _slots_of(self, names: NameBatch, slots: Slots) -> U16:
        """Raises what is wrong with one of the names."""
        raw = names.raw()
        found = queue_slots(raw, names.separated)
        if found is None or not ((found >= slots.first) & (found < slots.end)).all():
            found = np.array([self._check_name(name, slots) for name in raw])
        return found.astype(np.uint16)

    def _check_name(self, raw: bytes, slots: Slots) -> int:
        try:
            name = raw.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"the queue name {raw[:60]!r} is not UTF-8: {error.reason}") from error
        slot = queue_slot(check_queue_name(name))
        if not slots.first <= slot < slots.end:
            topic = self._topic().topic.name
            raise InvalidRequest(
                f"queue {name!r} of topic {topic!r} lies in slot {slot}, and this shard has the slots {slots.first} to "
                f"{slots.end - 1}; send one request a shard (see the topic's routes)",
                field="queue",
                topic=topic,
                queue=name,
            )
        return slot

    def _give(self, count: int) -> U32:
        """Numbers that nobody has, to be taken once they are in line."""
        if not self._numbers.is_known:
            self._find_free()
        if count > self._numbers.room(MAX_NAMES):
            raise TooManyQueues(
                f"the shard has {self._table.count} names of topic {self._topic().topic.name!r}, the limit is "
                f"{MAX_NAMES}; delete queues, or have empty ones forgotten (forget_empty_ms)",
                topic=self._topic().topic.name,
                limit=MAX_NAMES,
            )
        return self._numbers.look(count)

    def _find_free(self) -> None:
        state = self._topic()
        in_line = [item.changes.numbers for item in self._in_line if item.changes.kind is NameChange.PUT]
        end = max(self._table.end, state.end - state.first, *(int(some.max()) + 1 for some in in_line), 0)
        free = np.ones(end, np.bool_)
        free[: self._table.end] = self._table.slots == NO_SLOT
        rows = np.arange(min(end, state.end - state.first))
        free[rows] &= state.live_from(rows) >= state.committed[rows]  # of a lost name, messages may be there
        for some in in_line:
            free[some] = False
        self._numbers.fill(np.flatnonzero(free).astype(np.uint32), end)

    def _put_in_line(
        self,
        changes: NameChanges | None,
        items: list[tuple[TopicState, RecordBatch]],
        round_: Round,
        flush: FlushMode | None = None,
        new: NameBatch | None = None,
        accounts: Accounts = (),
    ) -> list[Appended]:
        """Changes of names, then batches; ``new`` is what the changes put for the first time.

        Raises ``RoundOver`` and what the line raises: then nothing has happened.
        """
        if changes is None:
            return self._line.append_records(items, expected=round_, flush=flush)
        log, batches = self._log(), encode(changes, self._options.max_batch_bytes, self._options.max_batch_records)
        appended = self._line.append_records(
            [*((log, batch) for batch in batches), *items], expected=round_, flush=flush
        )
        last = appended[len(batches) - 1]
        begin, end = int(appended[0].offsets[0]), int(last.offsets[-1]) + 1
        # A name that is to go is in the table still, and the table has a name once.
        is_aside = bool(self._forgetting)
        item = InLine(begin, end, last, changes, 0 if new is None else len(new), new if is_aside else None)
        with self._changing():
            self._in_line.append(item)
            self._came(item)
            if new is not None:
                if not is_aside:
                    self._table.hold(changes.numbers, new)
                self._numbers.take(len(new))
                self._made.made(changes.numbers, accounts)
            elif changes.kind is NameChange.FORGET:
                self._made.gone(changes.numbers)
        return appended[len(batches) - 1 :]

    def rewrite_due(self) -> bool:
        """Whether most of the log of names is dead: changes of names that have gone since, or were put again."""
        log = self._log()
        live = self._table.count + self._table.begun
        return log.committed.item(0) - log.start.item(0) > 2 * live + LEAST_REWRITTEN

    def log_end(self) -> int:
        """Where the next change goes in the log of names."""
        return self._log().next.item(0)

    def rewrite(self, cursor: int, limit: int) -> tuple[Appended | None, int | None]:
        """Put in line again that names are there, of up to ``limit`` numbers from a cursor on, beginning with 0.

        What was in line when this began must be committed, and each part before the next; then what lies before the
        log's end of that time may go. A name that is to go is left out: so its going is to be waited for, too. Returns
        what to wait for, and the next cursor; None behind the last. Raises as :meth:`append`.
        """
        while True:
            with self._lock:
                round_ = self._check_may_append()
                table, appended = self._table, None
                numbers = (np.flatnonzero(table.slots[cursor : cursor + limit] != NO_SLOT) + cursor).astype(np.uint32)
                going = self._are_going(numbers)
                if going.any():
                    appended = self._in_line[-1].appended
                numbers = numbers[~going]
                begun = (np.flatnonzero(table.begins[cursor : cursor + limit]) + cursor).astype(np.uint32)
                following = cursor + limit if cursor + limit < max(table.end, len(table.begins)) else None
                try:
                    if len(begun):
                        begins = with_offsets(NameChange.BEGIN, begun, table.begins[begun])
                        appended = self._put_in_line(begins, [], round_)[-1]
                    if len(numbers):
                        names = put_again(numbers, table.slots[numbers], *table.text(numbers))
                        appended = self._put_in_line(names, [], round_)[-1]
                except RoundOver:
                    continue
                return appended, following

    def delete(self, names: Sequence[str]) -> tuple[Appended | None, list[str]]:
        """Put in line that queues and all their messages are gone.

        Returns what to wait for, and the names that were there. Raises as :meth:`append`.
        """
        joined = SEPARATOR.join(names).encode(errors="surrogatepass")
        while True:
            with self._lock:
                round_ = self._check_may_append()
                found = self._table.find(self._names_of(joined))
                if self._forgetting or self._aside:
                    found = np.array([self._number_of(raw_of(name)) for name in names])
                there = np.flatnonzero(found >= 0)
                if not len(there):
                    return None, []
                numbers, which = np.unique(found[there], return_index=True)
                gone = [names[int(there[at])] for at in which]
                try:
                    return self._forget(numbers.astype(np.uint32), round_), gone
                except RoundOver:
                    continue

    def trim(self, name: str, before: int) -> Appended | None:
        """Put in line that what lies below an offset of a queue is gone; None where there is no such queue.

        Raises ``OffsetOutOfRange`` for an offset beyond its end, and as :meth:`append`.
        """
        with self._lock:
            self._check_may_append()
            number = self._number_of(raw_of(name))
            if number < 0:
                return None
            state = self._topic()
            with self._line.lock:
                state.make_room(number + 1)
                end = state.committed.item(number)
                if before > end:
                    raise OffsetOutOfRange(
                        f"offset {before} is beyond the end of queue {name!r} of topic {state.topic.name!r}, which is "
                        f"{end}",
                        topic=state.topic.name,
                        queue=name,
                        earliest=0,
                        latest=end,
                    )
                return self._line.append_entry(
                    EntryKind.TRIM,
                    self._id,
                    1,
                    _positions(state, np.array((number,)), np.array((before,))),
                    LossReason.ASKED,
                )

    def forget(self, numbers: U32) -> Appended | None:
        """Put in line that those of these queues are gone that nothing can be read of, nor is in line for."""
        while True:
            with self._lock:
                round_ = self._check_may_append()
                state = self._topic()
                local = numbers.astype(np.int64) - state.first
                local = local[self._table.has(local) & ~self._are_going(local)]
                if not len(local):
                    return None
                try:
                    return self._forget(local.astype(np.uint32), round_, only_empty=True)
                except RoundOver:
                    continue

    def _forget(self, numbers: U32, round_: Round, *, only_empty: bool = False) -> Appended | None:
        """In line: what the queues held goes, then their names, in one round. Local numbers."""
        state = self._topic()
        with self._line.lock:
            if self._line.current is not round_:
                raise RoundOver
            rows = numbers.astype(np.int64)
            state.make_room(int(rows.max()) + 1)
            ends = state.next[rows].copy()
            if only_empty:
                empty = state.live_from(rows) >= ends
                numbers, rows, ends = numbers[empty], rows[empty], ends[empty]
                if not len(rows):
                    return None
            body = _positions(state, rows, ends)
            self._line.check_waiting(len(body))
            self._line.append_entry(EntryKind.TRIM, self._id, len(rows), body)
        return self._put_in_line(with_offsets(NameChange.FORGET, numbers, ends), [], round_)[-1]


def _with_name(error: LsmqError, name: str) -> LsmqError:
    """Of a queue at its limit, which is named in place of its number, of which nobody knows."""
    message = error.message.replace(f"queue {error.details['queue']} of", f"queue {name!r} of", 1)
    return type(error)(message, **{**error.details, "queue": name})


def _positions(state: TopicState, rows: I64, offsets: I64) -> bytes:
    queues = (rows + state.first).astype(np.uint32)
    return encode_columns(len(rows), {Column.QUEUE: queues, Column.OFFSET: offsets})
