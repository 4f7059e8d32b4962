"""Names of a queue store's queues: each number needs one, and the lost ones get one that says so.

The names are the messages of one queue, whose offsets are the queues' numbers; so a name that is gone leaves a number
without one, and with it whatever messages that queue still has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from lsmq.record_batch import Column

from .. import queue_names
from ..columns import Columns, gather
from ..compaction import KeyPlace
from ..queue_writer import MAX_NAME_BYTES, MESSAGES, NAMES
from ..sorted_records import SortedRecords
from ..state import TopicState
from .findings import FindingsBook, Renamed
from .known import KnownShard
from .table_scan import LAST

PREFIX = "lost+found/"
_AT_A_TIME = 10_000


class RepairedNames:
    """Which numbers have a name. One queue store."""

    def __init__(self, names: TopicState, messages: TopicState) -> None:
        self.item = names
        self.messages = messages
        self._has = np.zeros(0, np.bool_)
        self._taken: set[bytes] = set()
        self._all: queue_names.QueueNames | None = None

    @classmethod
    def of(cls, known: KnownShard) -> RepairedNames | None:
        """The names of a queue store; None where the store is none. Topics of which the name is lost are recognised."""
        names, messages = known.state.by_name.get(NAMES), known.state.by_name.get(MESSAGES)
        nameless = sorted(known.nameless)
        if names is None and messages is None and nameless == [1, 2][: len(nameless)] and nameless:
            names, messages = known.state.topics[1], known.state.topics.get(2)
        elif names is None and nameless == [1]:
            names = known.state.topics[1]
        elif messages is None and nameless == [2]:
            messages = known.state.topics[2]
        if names is None or names.end - names.first > 1 or len(known.state.topics) > 2:
            return None
        if messages is None:
            messages = known.adopt(names.topic.id + 1)
        for item, name in ((names, NAMES), (messages, MESSAGES)):
            if item.topic.id in known.nameless:
                known.name(item.topic.id, name)
        return cls(names, messages)

    @property
    def key(self) -> int:
        """Of the queue that the names are in."""
        return self.item.topic.id << 32

    @property
    def first(self) -> KeyPlace:
        """Where the names begin among all records."""
        return self.key, 0

    @property
    def last(self) -> KeyPlace:
        """Where they end."""
        return self.key, LAST[1]

    def among(self, records: SortedRecords) -> int:
        """How many of the records are names."""
        return int(np.count_nonzero(records.keys == np.uint64(self.key)))

    def note(self, records: SortedRecords) -> None:
        """Names that are there, in any order."""
        numbers = records.columns[Column.OFFSET]
        end = int(numbers.max()) + 1
        if end > len(self._has):
            self._has = np.append(self._has, np.zeros(2 * end - len(self._has), np.bool_))
        self._has[numbers] = True
        lengths = records.columns[Column.LENGTH].astype(np.int64)
        starts = np.cumsum(lengths) - lengths
        prefix = np.frombuffer(PREFIX.encode(), np.uint8)
        long = np.flatnonzero(lengths > len(prefix))
        heads = gather(records.payload, starts[long], np.full(len(long), len(prefix))).reshape(-1, len(prefix))
        for at in long[(heads == prefix).all(axis=1)].tolist():
            self._taken.add(records.payload[starts[at] : starts[at] + lengths[at]].tobytes())

    def settle(self, known: KnownShard) -> None:
        """As many names as queues, all of them there."""
        used = np.flatnonzero(self.messages.next[: self.messages.end])
        noted = np.flatnonzero(self._has)
        count = max(
            int(self.item.next[0]), int(used[-1]) + 1 if len(used) else 0, int(noted[-1]) + 1 if len(noted) else 0
        )
        known.raise_ends(self.item, np.zeros(1, np.int64), np.array([count]))
        self.item.start[0] = 0
        self.item.deletions = None
        known.cover(self.messages, count)
        self._has = np.append(self._has, np.zeros(max(0, count - len(self._has)), np.bool_))[:count]

    def name(self, number: int, records: Callable[[], Iterable[SortedRecords]]) -> str:
        """Of a queue by its number. ``records`` are all names, in order: read when the first one is asked for."""
        if self._all is None:
            self._all = queue_names.QueueNames()
            for part in records():
                self._all.load(part.payload, part.columns[Column.LENGTH].astype(np.int64))
        return self._all.name(number)

    def missing(self, book: FindingsBook | None) -> Iterator[SortedRecords]:
        """Records of names for the numbers that have none; ``book`` is told of each."""
        numbers = np.flatnonzero(~self._has)
        for first in range(0, len(numbers), _AT_A_TIME):
            part = numbers[first : first + _AT_A_TIME]
            names = [self._free(number) for number in part.tolist()]
            if book is not None:
                for number, name in zip(part.tolist(), names, strict=True):
                    book.add(Renamed(self.messages.topic.id, number, name.decode()))
            columns: Columns = {
                Column.OFFSET: part.astype(np.int64),
                Column.LENGTH: np.fromiter(map(len, names), np.uint32, len(names)),
                Column.STORED_MS: np.full(len(part), self.item.topic.created_ms, np.int64),
            }
            keys = np.full(len(part), self.key, np.uint64)
            yield SortedRecords(keys, columns, np.frombuffer(b"".join(names), np.uint8))

    def _free(self, number: int) -> bytes:
        name = f"{PREFIX}{number}".encode()
        while name in self._taken:
            name += b"-"
        assert len(name) <= MAX_NAME_BYTES
        return name
