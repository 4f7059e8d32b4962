"""The log of a damaged store, applied as far as its entries prove where they belong.

Entries before the first hole are applied as at any start. Behind it, entries that say what they do (a topic made, log
starts and committed offsets set, documents put) are applied as they come; records only where :mod:`.placing` tells
their offsets, and the others are *unplaced*.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgpack
import numpy as np

from lsmq.errors import CorruptFile
from lsmq.record_batch import Codec, Column

from ..applier import Applier, BatchColumns, DelayedPlaces, batch_key, positions
from ..columns import I64, wrap64
from ..delayed import is_due_topic
from ..disk import Disk
from ..memtable import Memtable
from ..producers import Layer
from ..sstable import TableWriter, stored_batch, table_name
from ..state import TopicState
from ..stats import Counters
from ..wal import EntryKind, LogEntry, segment_name
from .findings import FindingsBook, Remark, Unknown, Unplaced
from .known import KnownShard
from .log_scan import Hole, LogScan
from .placing import ends_before
from .table_scan import TableSource, listed

MEMTABLE_BYTES = 32 << 20
_BLOCK_BYTES = 32 * 1024
_POSITIONS = (EntryKind.TRIM, EntryKind.DELETE, EntryKind.OFFSETS)

#: Keeps a record batch that nobody can place, of a topic; returns the file.
KeepEntry = Callable[[int, bytes], str]


class Spool:
    """Tables of what the log holds, in a directory of their own."""

    def __init__(self, disk: Disk, directory: Path, lsn: int) -> None:
        self._disk = disk
        self._directory = directory
        self.tables: list[TableSource] = []
        self.applied_lsn = lsn
        self._memtable = Memtable(lsn, MEMTABLE_BYTES)

    def room_for(self, payload_bytes: int, record_count: int) -> Memtable:
        """The memtable that takes the next records."""
        if not self._memtable.has_room(payload_bytes, record_count):
            self.flush()
            if payload_bytes > MEMTABLE_BYTES:
                self._memtable = Memtable(self.applied_lsn, payload_bytes)
        return self._memtable

    def flush(self) -> None:
        """Make a table of what is in memory."""
        memtable = self._memtable
        self._memtable = Memtable(self.applied_lsn, MEMTABLE_BYTES)
        if memtable.record_count == 0:
            return
        number = len(self.tables) + 1
        path = self._directory / table_name(number)
        writer = TableWriter(self._disk, path, number, block_bytes=_BLOCK_BYTES, codec=Codec.NONE)
        for records in memtable.sorted():
            writer.add(records)
        self.tables.append(listed(self._directory, writer.finish(memtable.first_lsn, self.applied_lsn, 0)))


class RepairReplay:
    """Applies what is left of a log to what is known."""

    def __init__(
        self,
        known: KnownShard,
        spool: Spool,
        directory: Path,
        segment_bytes: int,
        in_tables_lsn: int,
        keep: KeepEntry,
        book: FindingsBook,
    ) -> None:
        """``in_tables_lsn``: records before it are in tables, with their offsets."""
        self._known = known
        self._spool = spool
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._in_tables_lsn = in_tables_lsn
        self._keep = keep
        self._book = book
        self._applier = Applier(known.state, spool, Counters(), str(directory))
        self._holed = False
        #: What the producers in the log came to, the oldest first.
        self.layers: list[Layer] = []

    def run(self, scan: LogScan, lsn: int) -> None:
        """All of the log from ``lsn`` on. Raises ``UnsupportedFormat``."""
        cut_short = False
        for found in scan.found(lsn):
            match found:
                case Hole(acknowledged=True):
                    self._hole(found)
                case Hole():
                    self._tell_end(found)
                    cut_short = True
                case LogEntry() if not cut_short:
                    self._entry(found)
                case LogEntry(kind=EntryKind.RECORDS):
                    self._keep_aside(found)
        self._spool.flush()
        self.layers.append(self._known.state.producers.freeze())

    def _hole(self, hole: Hole) -> None:
        size = self._segment_bytes
        start = hole.bad_lsn - hole.bad_lsn % size
        upto = max(hole.end_lsn, hole.bad_lsn + 1)
        while start < upto:
            begin, end = max(hole.bad_lsn, start) - start, min(upto, start + size) - start
            self._book.damage(
                self._directory / segment_name(start),
                begin,
                end,
                "missing" if "missing" in hole.reason or "end of the last" in hole.reason else "damaged",
                f"log from LSN {hole.lsn} to {hole.end_lsn}: {hole.reason}",
                "what was written then, if it is not in tables: messages, deletions, committed offsets, documents",
            )
            start += size
        if not self._holed:
            self._book.add(
                Unknown(
                    f"entries of the log from LSN {hole.lsn} on: deletions among them are undone, committed offsets, "
                    "documents and producers may be as they were before, and ends of queues lower"
                )
            )
        self._holed = True
        self._known.whole = self._known.catalog_whole = False
        self._known.hole()

    def _tell_end(self, hole: Hole) -> None:
        self._book.add(
            Remark(
                f"the log ends at LSN {hole.lsn}, in a write that was cut short ({hole.reason}). Nobody was told that "
                "what stands behind is stored; it is kept aside"
            )
        )

    def _keep_aside(self, entry: LogEntry) -> None:
        name = self._keep(entry.topic_id, entry.body)
        place = entry.lsn % self._segment_bytes
        self._book.add(Unplaced(name, place, entry.lsn, entry.topic_id, entry.count))

    def _entry(self, entry: LogEntry) -> None:
        try:
            if entry.kind == EntryKind.RECORDS:
                self._records(entry)
            else:
                self._other(entry)
        except (CorruptFile, ValueError, KeyError, msgpack.UnpackException) as error:
            self._book.add(Unknown(f"the log entry at LSN {entry.lsn} cannot be applied: {error}"))

    # -- records -----------------------------------------------------------------------------------------

    def _records(self, entry: LogEntry) -> None:
        known = self._known
        item = known.state.topics.get(entry.topic_id)
        if item is None and not known.catalog_whole:
            item = known.adopt(entry.topic_id)
        batch = stored_batch(entry.body, str(self._directory), entry.lsn, "log entry")
        self._note_producer(entry)
        if item is None:
            self._applier.replay(entry)
            return
        columns = BatchColumns(batch, entry.topic_id)
        known.cover(item, int(columns.queues.max()) + 1)
        if entry.end_lsn <= self._in_tables_lsn:
            return
        repeats = self._applier.repeats_of(entry, batch)
        if repeats is not None:
            kept = np.ones(batch.record_count, np.bool_)
            kept[repeats.rows] = False
            columns = columns.chosen(kept)
        queues, check = columns.queues, entry.check
        if Column.DUE_MS in columns.optional:
            places = DelayedPlaces(entry.topic_id, batch, columns, entry.time_ms, entry.lsn)
            queues = queues[places.here]
            places.offsets[places.here] = 0
            check = wrap64(check - int(places.offsets.sum()))
        rows, counts = np.unique(queues.astype(np.int64) - item.first, return_counts=True)
        sure = known.sure(item)
        ends = ends_before(counts, item.next[rows], sure[rows], check) if len(rows) else item.next[rows]
        if ends is None:
            self._unplaced(entry, item, rows, counts)
            return
        known.raise_ends(item, rows, ends)
        sure[rows] = True
        self._applier.replay(entry)

    def _unplaced(self, entry: LogEntry, item: TopicState, rows: I64, counts: I64) -> None:
        known = self._known
        known.whole = False
        self._keep_aside(entry)
        if not self._holed:
            self._holed = True
            known.hole()
        known.raise_ends(item, rows, item.next[rows] + counts)
        known.sure(item)[rows] = False

    def _note_producer(self, entry: LogEntry) -> None:
        """A producer's batches need not follow one another here: what came before a gap is a layer of its own."""
        batch = stored_batch(entry.body, str(self._directory), entry.lsn, "log entry")
        key = batch_key(batch, entry.topic_id)
        producers = self._known.state.producers
        head = None if key is None else producers.head(key.producer_id)
        if key is not None and head is not None and (head.epoch, head.next_sequence) != (key.epoch, key.sequence):
            self.layers.append(producers.freeze())

    # -- everything else ---------------------------------------------------------------------------------

    def _other(self, entry: LogEntry) -> None:
        known = self._known
        if entry.kind in _POSITIONS:
            self._learn_ends(entry)
        if entry.kind == EntryKind.CATALOG:
            operation, topic_id, *_ = msgpack.unpackb(entry.body)
            self._applier.apply_entry(entry)
            if operation == "put":
                known.learned(topic_id)
            return
        self._applier.apply_entry(entry)

    def _learn_ends(self, entry: LogEntry) -> None:
        """What an entry names was there, so the queues are so long at least."""
        known = self._known
        body = msgpack.unpackb(entry.body)[1] if entry.kind == EntryKind.OFFSETS else entry.body
        if body is None:
            return
        if is_due_topic(entry.topic_id):
            return
        queues, offsets = positions(body)
        item = known.state.topics.get(entry.topic_id)
        if item is None:
            if known.catalog_whole:
                return
            item = known.adopt(entry.topic_id)
        known.cover(item, int(queues.max()) + 1)
        rows = queues.astype(np.int64) - item.first
        known.raise_ends(item, rows, np.maximum(offsets + (entry.kind == EntryKind.DELETE), item.next[rows]))
