"""What a shard knows of the queue names of a named topic: a table in memory, kept up to date with the log of names."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lsmq import runtime
from lsmq.errors import LsmqError, UnknownTopic
from lsmq.queue_names import SEPARATOR
from lsmq.record_batch import Column

from .columns import DTYPES, I64, U8, U32, decode_column
from .line import Appended, Line, Round
from .name_log import U16, NameChange, NameChanges, decode, offsets_of
from .name_makers import NameMakers, TopicMakers
from .name_table import NO_SLOT, NameTable
from .number_source import NumberSource
from .options import StoreOptions
from .queries import Queries
from .queue_names import NameBatch
from .recent_names import RecentNames
from .state import NAMES_TOPIC, ShardState, TopicState

_READ_RECORDS = 1 << 16
_READ_BYTES = 4 << 20
#: Up to so many names are looked up one by one: arrays cost more.
_FEW = 4


class NamesBehind(Exception):
    """There are committed names that are not in memory yet: refresh, in a thread, and come again."""


@dataclass(slots=True)
class InLine:
    """Changes that are in line or written, at offsets ``[first, end)`` of the log of names.

    ``new``: how many names get a number. They are held in the table, or stand ``aside`` until it is their turn.
    """

    first: int
    end: int
    appended: Appended
    changes: NameChanges
    new: int
    aside: NameBatch | None


class KnownNames:
    """Thread-safe. :meth:`refresh` reads the disk; all else looks at memory."""

    def __init__(
        self,
        topic_id: int,
        state: ShardState,
        line: Line,
        queries: Queries,
        options: StoreOptions,
        makers: NameMakers,
    ) -> None:
        self._id = topic_id
        self._state = state
        self._line = line
        self._queries = queries
        self._options = options
        self._loading = runtime.Lock()  # one reads; taken before the other
        self._lock = runtime.Lock()  # guards what follows; taken before the line's
        self._table = NameTable()
        self._position = 0  # up to here of the log of names the table has it
        self._in_line: deque[InLine] = deque()
        self._is_whole = True  # else a thread was torn out of changing the table or the line
        self._coming = 0  # new names in line
        self._aside: dict[bytes, int] = {}  # those of them that the table does not hold, and their numbers
        self._forgetting: set[int] = set()  # numbers whose names are to go
        self._numbers = NumberSource()
        self._recent = RecentNames()
        self._made = TopicMakers(makers)

    # -- being up to date --------------------------------------------------------------------------------

    def _topic(self) -> TopicState:
        return self._queries.topic_state(self._id)

    def _log(self) -> TopicState:
        state = self._state.topics.get(self._id | NAMES_TOPIC)
        if state is None:
            raise UnknownTopic(f"there is no topic with id {self._id}", topic_id=self._id)
        return state

    def is_current(self) -> bool:
        """Whether all committed names are in memory. Raises ``UnknownTopic``."""
        with self._lock:
            committed = self._settle()[1]
            return self._position >= committed

    def settle(self) -> None:
        """Let go of what is in line no more, where something was. Cheap. Raises ``UnknownTopic``."""
        if self._in_line:
            with self._lock:
                self._settle()

    @property
    def version(self) -> int:
        """Rises with each change that is taken in."""
        return self._position

    @property
    def count(self) -> int:
        """Names there are."""
        return self._table.count

    @property
    def count_to_come(self) -> int:
        """Names there are, and those in line."""
        return self._table.count + self._coming

    def forget_makers(self) -> None:
        """The topic is gone: its queues count for nobody."""
        with self._lock:
            self._made.all_gone()

    @property
    def size_bytes(self) -> int:
        """What is allocated for names; pages that nothing has touched take no memory."""
        return self._table.size_bytes

    def refresh(self) -> None:
        """Read what was committed since the last time. Blocking. Raises ``UnknownTopic``, ``CorruptFile``."""
        with self._loading:
            while True:
                log = self._log()
                with self._lock:
                    _, committed, _ = self._settle()
                    position, begin = self._position, log.start.item(0)
                    table = self._table
                if position >= committed:
                    return
                if position < begin or position == 0:
                    self._load(max(position, begin))
                else:
                    self._read_on(position, committed, table)

    def _load(self, begin: int) -> None:
        """Make the table from what there is of the log."""
        table, position = NameTable(), begin
        end = self._log().committed.item(0)
        for first, changes, behind in self._read(begin, end):
            if self._is_trimmed(position, first):
                return
            if changes is not None:
                _take_in(table, changes)
            position = behind
        with self._lock:
            self._start_anew(table, position)

    def _read_on(self, position: int, end: int, table: NameTable) -> None:
        for first, changes, behind in self._read(position, end):
            with self._lock:
                if not self._is_whole or self._table is not table or self._position != position:
                    return
                if self._is_trimmed(position, first):
                    return
                self._drop(0)  # it is not at the position any more
                with self._changing():
                    if changes is not None:
                        self._take_in(changes)
                    self._position = position = behind
                    self._numbers.forget()

    def _is_trimmed(self, position: int, first: int) -> bool:
        """Whether changes from a position of the log to the ``first`` that was read have gone, as it was written anew:
        who knows those of before would not hear what was forgotten."""
        return position < first and position < self._log().start.item(0)

    def _read(self, position: int, end: int) -> Iterator[tuple[int, NameChanges | None, int]]:
        """Changes from a position of the log on, with that of the first of them and the one behind them."""
        while position < end:
            found = self._queries.read_many(
                self._id | NAMES_TOPIC,
                np.zeros(1, np.uint32),
                np.array((position,), np.int64),
                max_records=_READ_RECORDS,
                max_bytes=_READ_BYTES,
            )
            for batch in found.batches():
                count = batch.record_count
                offsets = decode_column(batch.buffer, batch.directory.get(Column.OFFSET), count, DTYPES[Column.OFFSET])
                lengths = decode_column(batch.buffer, batch.directory.get(Column.LENGTH), count, DTYPES[Column.LENGTH])
                fresh = int(offsets.searchsorted(position))
                skipped = int(lengths[:fresh].sum(dtype=np.int64))
                for changes in decode(batch.payload[skipped:], lengths[fresh:]):
                    begin, fresh = fresh, fresh + len(changes.numbers)
                    yield int(offsets[begin]), changes, int(offsets[fresh - 1]) + 1
                position = int(offsets[-1]) + 1
            if not len(found.positions[0]):
                break
            position = max(position, int(found.positions[1][0]))
        yield position, None, position

    def _settle(self) -> tuple[Round, int, int]:
        """Take in what of the line is committed, and drop what is not there any more. The caller holds the lock.

        Returns the round, how far the log of names is committed, and its end in line. What is in line is committed
        when all of it is: before, nothing of it is read.
        """
        if not self._is_whole:
            self._start_anew(NameTable(), 0)
        log = self._log()
        with self._line.lock:
            round_, committed, end = self._line.current, log.committed.item(0), log.next.item(0)
        waiting = self._in_line
        if waiting:
            with self._changing():
                self._take_committed(committed)
        lost = len(waiting)
        if waiting and not _holds(waiting[-1]):  # What is dropped is dropped up to the last of the line.
            lost = next(at for at, item in enumerate(waiting) if not _holds(item))
        if waiting and waiting[0].first != self._position:
            lost = 0  # others have written there since
        self._drop(lost)
        return round_, self._position if waiting else committed, end

    def _take_committed(self, committed: int) -> None:
        """What of the line is committed is in line no more."""
        waiting, are_others = self._in_line, False
        while waiting:
            oldest = waiting[0]
            if oldest.first != self._position or oldest.end > committed or not _holds(oldest):
                break
            are_others |= self._landed(waiting.popleft())
        if are_others:
            self._look_at_the_line()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Who is torn out of it leaves what is not whole, and all is read again."""
        self._is_whole = False
        yield
        self._is_whole = True

    def _start_anew(self, table: NameTable, position: int) -> None:
        """Know what the table has up to a position of the log, and nothing else: what follows is read."""
        with self._changing():
            self._in_line.clear()
            self._table, self._position = table, position
            self._look_at_the_line()
            self._numbers.forget()
            self._recent.restart(position)
            self._made.all_gone()

    def _drop(self, lost: int) -> None:
        """But for the first items, what is in line does not count."""
        if len(self._in_line) <= lost:
            return
        with self._changing():
            while len(self._in_line) > lost:
                item = self._in_line.pop()
                if item.new:
                    self._made.gone(item.changes.numbers)
                    if item.aside is None:
                        self._table.drop(item.changes.numbers)
            self._look_at_the_line()
            self._numbers.forget()

    def _landed(self, item: InLine) -> bool:
        """What was the first item in line is committed; whether other names stand aside or are to go since."""
        changes = item.changes
        if not item.new:
            self._take_in(changes)
        elif item.aside is None:
            self._table.show(changes.numbers, changes.slots)
        else:
            self._table.put(changes.numbers, item.aside, changes.slots)
        if item.new:
            self._recent.note(self._position, changes.numbers)
        self._position = item.end
        self._coming -= item.new
        if changes.kind is NameChange.FORGET:
            self._numbers.give_back(changes.numbers)
        return changes.kind is NameChange.FORGET or item.aside is not None

    def _take_in(self, changes: NameChanges) -> None:
        self._recent.note(self._position, _take_in(self._table, changes))
        if changes.kind is NameChange.FORGET:
            self._made.gone(np.unique(changes.numbers))

    def _look_at_the_line(self) -> None:
        """What is in line counts, and nothing else."""
        self._aside.clear()
        self._forgetting.clear()
        self._coming = 0
        for item in self._in_line:
            self._came(item)

    def _came(self, item: InLine) -> None:
        """An item is in line."""
        self._coming += item.new
        if item.changes.kind is NameChange.FORGET:
            self._forgetting.update(item.changes.numbers.tolist())
        elif item.aside is not None:
            self._aside.update(zip(item.aside.raw(), item.changes.numbers.tolist(), strict=True))

    # -- questions ---------------------------------------------------------------------------------------

    def find(self, names: Sequence[str]) -> I64:
        """The numbers of committed names; -1 for those that are not there. Raises ``NamesBehind``."""
        with self._lock:
            self._check_current()
            first = self._topic().first
            if len(names) <= _FEW:
                found = np.array([self._table.find_one(raw_of(name)) for name in names], np.int64)
            else:
                found = self._table.find(self._names_of(SEPARATOR.join(names).encode(errors="surrogatepass")))
            if self._coming:
                found[~self._table.has(found)] = -1
            return np.where(found < 0, found, found + first)

    def will_have(self, name: str) -> bool:
        """Whether a name is there once all that is in line is committed. Raises ``NamesBehind``."""
        with self._lock:
            self._check_current()
            return self._number_of(raw_of(name)) >= 0

    def names(self, numbers: U32) -> list[str | None]:
        """The names of numbers, as they are committed; None where there is none."""
        with self._lock:
            self._settle()
            local = numbers.astype(np.int64) - self._topic().first
            known = self._table.has(local)
            found = iter(self._table.names(local[known]))
            return [next(found) if has else None for has in known.tolist()]

    def text(self, numbers: U32) -> tuple[U32, U8, I64]:
        """Those of the numbers that have names, the names one after another, and the length of each."""
        with self._lock:
            self._settle()
            local = numbers.astype(np.int64) - self._topic().first
            known = self._table.has(local)
            return (numbers[known], *self._table.text(local[known]))

    def all_numbers(self, ranges: Sequence[tuple[int, int]] | None = None) -> U32:
        """The numbers of all names, or of those that lie in ``ranges`` of slots; ascending. Raises ``NamesBehind``."""
        with self._lock:
            self._check_current()
            slots = self._table.slots
            if ranges is None:
                wanted = slots != NO_SLOT
            else:
                wanted = np.zeros(len(slots), np.bool_)
                for first, end in ranges:
                    wanted |= (slots >= first) & (slots < end)
            return (np.flatnonzero(wanted) + self._topic().first).astype(np.uint32)

    def slots_of(self, numbers: U32) -> U16:
        """The slots that names with these numbers lie in; ``NO_SLOT`` where a number has no name."""
        with self._lock:
            self._settle()
            local = numbers.astype(np.int64) - self._topic().first
            found = np.full(len(local), NO_SLOT, np.uint16)
            known = np.flatnonzero((local >= 0) & (local < self._table.end))
            found[known] = self._table.slots[local[known]]
            return found

    def begins_of(self, numbers: U32) -> I64:
        """From which offset on each number is its queue's, where another had it before; else 0."""
        with self._lock:
            self._settle()
            local = numbers.astype(np.int64) - self._topic().first
            found = np.zeros(len(local), np.int64)
            known = np.flatnonzero((local >= 0) & (local < len(self._table.begins)))
            found[known] = self._table.begins[local[known]]
            return found

    def changed_since(self, version: int) -> tuple[U32 | None, int]:
        """Numbers that have got names since a version, and the version now; None for the numbers: any may have."""
        with self._lock:
            self._settle()
            now, first = self._position, self._topic().first
            if version > now:  # a thread was torn out since: all is read again
                return None, now
            if version == now:
                return np.empty(0, np.uint32), now
            found = self._recent.since(version)
            return (None if found is None else (found + np.uint32(first)).astype(np.uint32)), now

    def _check_current(self) -> None:
        _, committed, _ = self._settle()
        if self._position < committed:
            raise NamesBehind

    def _number_of(self, raw: bytes) -> int:
        """Of a name that is there or in line, and is not to go; else -1."""
        number = self._aside.get(raw, self._table.find_one(raw))
        return -1 if number in self._forgetting else number

    def _are_going(self, numbers: U32 | I64) -> NDArray[np.bool_]:
        """Which of the numbers have names that are to go."""
        if len(numbers) <= _FEW:
            return np.array([number in self._forgetting for number in numbers.tolist()], np.bool_)
        return np.isin(numbers, list(self._forgetting))

    def _names_of(self, joined: bytes) -> NameBatch:
        """Names with separators between them."""
        return self._table.batch_joined(joined)


def raw_of(name: str) -> bytes:
    return name.encode(errors="surrogatepass")


def _holds(item: InLine) -> bool:
    """Whether an item is still in line, written or committed, as far as is known."""
    try:
        item.appended.fate.check(item.appended.lsn)
    except LsmqError:
        return False
    return True


def _take_in(table: NameTable, changes: NameChanges) -> U32:
    """Obey changes; returns the numbers that have got a name."""
    if changes.kind is not NameChange.PUT:
        table.begin(changes.numbers, offsets_of(changes))
        if changes.kind is NameChange.FORGET:
            numbers = np.unique(changes.numbers)
            table.forget(numbers[table.has(numbers)])
        return np.empty(0, np.uint32)
    names = table.batch(changes.text, changes.starts, changes.lengths)
    fresh = np.flatnonzero(table.find(names) < 0)  # the others were written down anew
    if len(fresh) and (new := names.take(fresh)).may_repeat:
        fresh = fresh[new.distinct()[0]]  # so were these, and both are among the changes
    table.put(changes.numbers[fresh], names.take(fresh), changes.slots[fresh])
    return changes.numbers[fresh]
