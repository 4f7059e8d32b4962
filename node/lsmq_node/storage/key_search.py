"""Finding messages by key in a shard: newest first, by time, without looking into more than has to be.

Every memtable and table is a source that says how late its next message of the key can have been stored. The source
with the latest is asked next, and what it has is held until no source can have anything later. So a search reads blocks
in the order of time whatever lies where, and stops when it has enough. A position (time, queue, offset) says where it
has come to: everything behind that is given by a search that begins ``before`` it, whatever is flushed and merged
meanwhile.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from lsmq.record_batch import Column

from .block import Block
from .columns import I64, U64
from .key_index import NoKeys, entry_hashes
from .memtable import Memtable
from .sieve import Picked
from .sstable import TableMeta
from .table import Table
from .version import Version

_LAST: Final = (1 << 63) - 1


class Position(NamedTuple):
    """A place in the order of all messages: by time, then queue, then offset."""

    stored_ms: int
    queue: int
    offset: int


#: Behind everything.
END: Final = Position(_LAST, _LAST, _LAST)


@dataclass(frozen=True, slots=True)
class KeyQuery:
    """Messages of a topic whose key has a hash, stored in ``[from_ms, to_ms)``, before a position.

    ``queue``: in this one alone. ``picked``: those that it picks. At most ``limit`` messages, about ``max_bytes``;
    about ``max_blocks`` are looked into.
    """

    topic_id: int
    key_hash: int
    limit: int
    max_bytes: int
    max_blocks: int
    from_ms: int = 0
    to_ms: int = _LAST
    before: Position = END
    queue: int | None = None
    picked: Picked | None = None


@dataclass(slots=True)
class KeyWork:
    """What a search looked at."""

    memtables: int = 0
    tables: int = 0
    tables_passed_over: int = 0  # by their topics and times
    tables_without_keys: int = 0  # looked through: nothing says where keys are
    blocks: int = 0
    messages: int = 0  # that had the hash, were read, and given unless deleted or of another key


@dataclass(slots=True)
class KeyFound:
    """What was found, newest first. All before ``reached`` is given; None: there is nothing behind it."""

    matches: list[tuple[Position, Any]] = field(default_factory=list)
    reached: Position | None = None
    work: KeyWork = field(default_factory=KeyWork)


#: What a search makes of a message: its value and bytes, or None where it is deleted or has another key.
Accept = Callable[[int, int], tuple[Any, int] | None]
#: Which of some queues' offsets are not below the queue's first.
Live = Callable[[I64, I64], Any]


class KeySearch:
    """One search of a version. In a thread that may read from the disk."""

    def __init__(self, version: Version, query: KeyQuery, live: Live, accept: Accept) -> None:
        self._version = version
        self._query = query
        self._live = live
        self._accept = accept
        self._to_ms = min(query.to_ms - 1, query.before.stored_ms)
        self._digest = int(
            entry_hashes(np.array([query.topic_id], np.uint32), np.array([query.key_hash], np.uint64))[0]
        )
        self._held: list[tuple[int, int, int]] = []  # positions, negated
        self._work = KeyWork()

    def run(self) -> KeyFound:
        """Raises ``CorruptFile``, and ``FileNotFoundError`` for a table that is gone."""
        query, found = self._query, KeyFound(work=self._work)
        sources: list[tuple[int, int, Iterator[int]]] = []
        for number, source in enumerate(self._sources()):
            heapq.heappush(sources, (-next(source), number, source))
        began_ms, left_bytes = -sources[0][0] if sources else 0, query.max_bytes
        while sources or self._held:
            latest_ms = -sources[0][0] if sources else -1
            while self._held and -self._held[0][0] > latest_ms:
                place = Position(*(-part for part in heapq.heappop(self._held)))
                self._work.messages += 1
                accepted = self._accept(place.queue, place.offset)
                if accepted is not None:
                    found.matches.append((place, accepted[0]))
                    left_bytes -= accepted[1]
                if len(found.matches) >= query.limit or left_bytes <= 0 or self._is_over():
                    found.reached = place if self._held or sources else None
                    return found
            if not sources:
                break
            if self._is_over() and (found.matches or latest_ms < began_ms):
                found.reached = Position(latest_ms, _LAST, _LAST)
                return found
            _, number, source = heapq.heappop(sources)
            upper = next(source, None)
            if upper is not None:
                heapq.heappush(sources, (-upper, number, source))
        return found

    def _is_over(self) -> bool:
        """What was looked at in vain counts as much as a block."""
        return self._work.blocks + self._work.messages >= self._query.max_blocks + self._query.limit

    def _sources(self) -> Iterator[Iterator[int]]:
        """Of each the latest time of what it may still have, again and again; what has that is held before the next."""
        query, key = self._query, None
        if self._to_ms < query.from_ms:
            return
        if query.queue is not None:
            key = query.topic_id << 32 | query.queue
        for memtable in self._version.memtables:
            yield self._memtable(memtable)
        for table in self._version.tables():
            meta = table.meta
            if (
                query.topic_id not in meta.topics
                or not (meta.min_ms <= self._to_ms and query.from_ms <= meta.max_ms)
                or (key is not None and not meta.first_key <= key <= meta.last_key)
            ):
                self._work.tables_passed_over += 1
            else:
                yield self._table(table)

    def _memtable(self, memtable: Memtable) -> Iterator[int]:
        yield self._to_ms
        self._work.memtables += 1
        keys, offsets, stored_ms = memtable.with_key(self._query.topic_id, self._query.key_hash)
        stored_ms, queues, offsets = self._chosen(keys, offsets, stored_ms, None)
        for row in np.lexsort((offsets, queues, stored_ms))[::-1]:
            yield stored_ms.item(row)
            self._hold(stored_ms.item(row), queues.item(row), offsets.item(row))

    def _table(self, table: Table) -> Iterator[int]:
        yield min(table.meta.max_ms, self._to_ms)
        self._work.tables += 1
        entries = table.key_entries(self._digest, self._query.from_ms, self._to_ms)
        seen: set[int] = set()
        while True:
            try:
                latest_ms, position = next(entries, (0, -1))
            except NoKeys:
                break
            if position < 0:
                return
            if position not in seen:
                yield min(latest_ms, self._to_ms)
                seen.add(position)
                self._look(table.block_at(position), table.meta)
        self._work.tables_without_keys += 1
        for position, block in table.blocks_of_topic(self._query.topic_id):
            if position not in seen:
                self._look(block, table.meta)

    def _look(self, block: Block, meta: TableMeta) -> None:
        self._work.blocks += 1
        rows = np.flatnonzero(block.column(Column.KEY_HASH) == np.uint64(self._query.key_hash))
        if len(rows):
            offsets, stored_ms = (block.column_at(column, rows) for column in (Column.OFFSET, Column.STORED_MS))
            columns = self._chosen(block.keys[rows], offsets, stored_ms, meta)
            for place in zip(*(column.tolist() for column in columns), strict=True):
                self._hold(*place)

    def _chosen(self, keys: U64, offsets: I64, stored_ms: I64, meta: TableMeta | None) -> tuple[I64, I64, I64]:
        """Time, queue and offset of those that are asked for, and may be read.

        Of a table, what the shard has no longer is not.
        """
        query, before = self._query, self._query.before
        queues = (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)
        mine = keys >> np.uint64(32) == np.uint64(query.topic_id)
        mine &= (stored_ms >= query.from_ms) & (stored_ms <= self._to_ms)
        at_last = (queues < before.queue) | ((queues == before.queue) & (offsets < before.offset))
        mine &= (stored_ms < before.stored_ms) | at_last
        if query.queue is not None:
            mine &= queues == query.queue
        if meta is not None:
            mine &= (keys > meta.first_key) | ((keys == meta.first_key) & (offsets >= meta.first_offset))
        rows = np.flatnonzero(mine)
        rows = rows[self._live(queues[rows], offsets[rows])]
        return stored_ms[rows], queues[rows], offsets[rows]

    def _hold(self, stored_ms: int, queue: int, offset: int) -> None:
        heapq.heappush(self._held, (-stored_ms, -queue, -offset))
