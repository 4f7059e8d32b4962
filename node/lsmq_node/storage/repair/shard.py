"""Repairing one shard's store: what is left is read, put together, and written as a new one.

First the state is pieced together, from the checkpoint and the log (:meth:`ShardRepair.read`). Then all tables, and
what the log has beyond them, go by once in key order: what the state says should be there is held against what is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lsmq.errors import CorruptFile, InvalidRequest
from lsmq.record_batch import HEADER_BYTES, Codec, Column

from ..columns import group_starts
from ..compaction import KeyPlace
from ..delayed import is_due_topic
from ..disk import Disk, File
from ..log_mark import NAME as LOG_MARK
from ..log_mark import LogMark, load_log_mark
from ..manifest import HIGH_WATERMARK, TABLE_DIRECTORY, WAL_DIRECTORY, Manifest, load_manifest
from ..manifest import NAME as MANIFEST
from ..options import StoreOptions
from ..producers import KIND as PRODUCER
from ..segments import SegmentFiles
from ..snapshot import INCOMING_DIRECTORY
from ..sorted_records import SortedRecords
from ..state import TopicState
from ..wal import BLOCK_BYTES, FRAGMENT_BYTES, MAGIC, SEGMENT_HEADER, segment_name
from ..wal_reader import LogFloor, LogReader
from .chain import Chain
from .dedupe_ids import LeftIds
from .findings import FindingsBook, Remark, Renamed, Unknown
from .known import KnownShard, TopicHint
from .ledger import LossLedger
from .log_scan import LogScan
from .merged import GRAVES, LAST_MESSAGE, HeldRecords, merged
from .names import RepairedNames
from .output import UNPLACED_DIRECTORY, Output, joined_producers
from .replay import RepairReplay, Spool
from .sources import found_tables
from .table_scan import FIRST, LAST, Gap, Gaps, TableScan, TableSource, last_of, listed

#: Told how many bytes of tables have gone by.
Advance = Callable[[int], None]
_RECORD = "REPLICA"  # of a member of a cluster
_LOOKED_AT = 16


@dataclass(frozen=True, slots=True)
class ReplayStart:
    """Where the log is applied from.

    Attributes:
        files: so many of the oldest files of the checkpoint go before it.
        in_tables_lsn: records before it are taken from tables, not from the log.
        exact: nothing is missing between the files and the log.
    """

    lsn: int
    files: int
    in_tables_lsn: int
    exact: bool


class ShardRepair:
    """One shard. :meth:`read` it, and :meth:`save` it once."""

    def __init__(
        self, disk: Disk, path: Path, out: Path | None, spool_directory: Path, book: FindingsBook, *, queue_store: bool
    ) -> None:
        """Args:
        out: where what is whole is saved; None only examines.
        spool_directory: empty; takes what the log holds beyond the tables, up to the size of the log.
        queue_store: whether it may be a :class:`QueueStore`'s.
        """
        self.path = path
        self._disk = disk
        self._spool_directory = spool_directory
        self._book = book
        self._may_be_queue_store = queue_store
        self._gaps = Gaps()
        self._tables = path / TABLE_DIRECTORY
        self._log = path / WAL_DIRECTORY
        self._out = out
        self._unplaced: dict[int, tuple[File, int]] = {}  # by topic; open, and how long
        self._manifest = self._load_manifest()
        self._mark = self._load_mark()
        self._segments = self._find_segments()
        self.segment_bytes = self._find_segment_bytes()
        self.known: KnownShard
        self._chain: Chain
        self._start: ReplayStart
        self._replay: RepairReplay
        self._sources: list[TableSource] = []
        self._spooled: list[TableSource] = []
        self._end_lsn = 0

    # -- files -------------------------------------------------------------------------------------------

    def _load_manifest(self) -> Manifest | None:
        path = self.path / MANIFEST
        what = "which tables there are: taken from the tables themselves"
        try:
            manifest = load_manifest(self._disk, self.path)
        except CorruptFile:
            self._book.damage(path, 0, len(self._disk.read_all(path)), "damaged", "manifest", what)
            return None
        if manifest is None:
            names = [*self._disk.list(self._tables), *self._disk.list(self._log), *self._disk.list(self.path)]
            if not any(name.endswith((".tbl", ".ckp", ".ids", ".wal")) or name == LOG_MARK for name in names):
                raise InvalidRequest(f"{self.path}: there is no store in this directory, nor anything of one")
            self._book.damage(path, 0, 0, "missing", "manifest", what)
        return manifest

    def _load_mark(self) -> LogMark | None:
        path = self.path / LOG_MARK
        what = "whether the log lost its end"
        try:
            mark = load_log_mark(self._disk, self.path)
        except CorruptFile:
            self._book.damage(path, 0, len(self._disk.read_all(path)), "damaged", "mark of the log's end", what)
            self._book.add(Unknown(what))
            return None
        flushed = self._manifest is None or self._manifest.flushed_lsn > self._manifest.log_start_lsn
        if mark is None and flushed and not self._is_installing:
            self._book.damage(path, 0, 0, "missing", "mark of the log's end", what)
            self._book.add(Unknown(what))
        return mark

    @property
    def _is_installing(self) -> bool:
        """Whether a snapshot was being put in place: then the log is that of another life."""
        return self._manifest is not None and bool(self._manifest.extra.get("installing"))

    def _find_segments(self) -> list[int]:
        if self._is_installing:
            return []
        return [
            int(name[:-4], 16)
            for name in self._disk.list(self._log)
            if len(name) == 20 and name.endswith(".wal") and not set(name[:-4]) - set("0123456789abcdef")
        ]

    def _find_segment_bytes(self) -> int:
        if self._manifest is not None:
            return self._manifest.segment_bytes
        sizes = []
        for start in self._segments:
            with closing(self._disk.open(self._log / segment_name(start))) as file:
                raw = file.pread(SEGMENT_HEADER.size, FRAGMENT_BYTES)
                if len(raw) == SEGMENT_HEADER.size and raw[:8] == MAGIC:
                    return int(SEGMENT_HEADER.unpack(raw)[2])
                sizes.append(file.size())
        whole = [size for size in sizes if size and size % BLOCK_BYTES == 0]
        return max(whole, default=StoreOptions().segment_bytes)

    # -- reading -----------------------------------------------------------------------------------------

    def read(self, hints: Mapping[int, TopicHint]) -> None:
        """Piece the state together. ``hints`` say what others know of topics, by id. Raises ``UnsupportedFormat``."""
        manifest = self._manifest
        metas = None if manifest is None else manifest.checkpoint
        self._chain = Chain(self._disk, self._tables, metas, self._book)
        if manifest is None:
            self._sources = found_tables(self._disk, self._tables)
            self._gaps.add(Gap(FIRST, LAST, None))  # nobody knows whether a table is missing
        else:
            self._sources = [listed(self._tables, meta) for meta in manifest.tables()]
            self._tell_others(manifest)
        self.known = known = KnownShard(hints)
        self._start = start = self._find_start()
        self._chain.load(known, start.files)
        self._chain.tell(start.files)
        if not start.exact:
            known.whole = known.catalog_whole = False
        if not known.whole:
            for source in self._sources:
                self._learn_ends(source)
            known.raise_to_commits()
        if start.lsn < start.in_tables_lsn and not start.exact:
            self._book.add(
                Unknown(
                    f"what happened between LSN {start.lsn} and {start.in_tables_lsn} beside the messages in tables"
                )
            )
            known.hole()
        spool = Spool(self._disk, self._spool_directory, start.lsn)
        self._replay = RepairReplay(
            known,
            spool,
            self._log,
            self.segment_bytes,
            0 if start.exact else start.in_tables_lsn,
            self._keep,
            self._book,
        )
        scan = LogScan(self._reader(), self._segments, self.segment_bytes, str(self._log))
        self._replay.run(scan, start.lsn)
        self._end_lsn = max(scan.end_lsn, start.in_tables_lsn, start.lsn)
        if not known.whole:
            known.raise_to_commits()
        self._spooled = spool.tables
        if HIGH_WATERMARK in self._disk.list(self.path):
            self._book.add(Remark("all of the log counts as committed; a member of a cluster may have more than was"))

    def _reader(self) -> LogReader:
        floor = LogFloor() if _RECORD in self._disk.list(self.path) else None
        return LogReader(
            SegmentFiles(self._disk, self._log, self.segment_bytes).read,
            self._segments,
            self.segment_bytes,
            str(self._log),
            floor,
            self._mark,
        )

    def _find_start(self) -> ReplayStart:
        chain = self._chain
        in_tables = max([chain.end_lsn, *(source.end_lsn for source in self._sources)])
        if self._manifest is not None:
            in_tables = self._manifest.flushed_lsn
        whole, count = chain.whole_until(), len(chain.increments)
        lsn = chain.increments[whole - 1].end_lsn if whole else 0
        if lsn == in_tables:
            return ReplayStart(lsn, whole, in_tables, True)
        if self._reaches(lsn, in_tables):
            return ReplayStart(lsn, whole, in_tables, True)
        return ReplayStart(in_tables if self._manifest is not None else chain.end_lsn, count, in_tables, False)

    def _reaches(self, lsn: int, end_lsn: int) -> bool:
        """Whether the log is whole from an LSN to another."""
        try:
            return any(entry.end_lsn >= end_lsn for entry in self._reader().entries(lsn))
        except CorruptFile:
            return False

    def _learn_ends(self, source: TableSource) -> None:
        known = self.known
        for records in self._scan(source, FIRST, LAST_MESSAGE):
            firsts = group_starts(records.keys)
            lasts = np.append(firsts[1:], len(records)) - 1
            keys, ends = records.keys[firsts], records.columns[Column.OFFSET][lasts] + 1
            topics = keys >> np.uint64(32)
            for topic_id in np.unique(topics).tolist():
                item = known.state.topics.get(topic_id)
                if is_due_topic(topic_id) or (item is None and known.catalog_whole):
                    continue
                item = known.adopt(topic_id)
                mine = topics == np.uint64(topic_id)
                queues = (keys[mine] & np.uint64(0xFFFFFFFF)).astype(np.int64)
                known.cover(item, int(queues.max()) + 1)
                known.raise_ends(item, queues - item.first, ends[mine])

    def _scan(self, source: TableSource, first: KeyPlace, last: KeyPlace) -> Iterator[SortedRecords]:
        return TableScan(self._disk, source, self._book, self._gaps).records(first, last)

    def _tell_others(self, manifest: Manifest) -> None:
        names = {meta.name for meta in manifest.files()}
        others = [name for name in self._disk.list(self._tables) if name not in names]
        if others:
            self._book.add(Remark(f"{len(others)} files in {TABLE_DIRECTORY} are part of nothing: {', '.join(others)}"))
        if self._disk.list(self.path / INCOMING_DIRECTORY):
            self._book.add(Remark(f"{INCOMING_DIRECTORY} holds a snapshot that was not put in place; it is left out"))

    def _keep(self, topic_id: int, batch: bytes) -> str:
        name = f"topic-{topic_id}.records"
        if self._out is not None:
            directory = self._out / UNPLACED_DIRECTORY
            self._disk.make_directory(directory)
            file, size = self._unplaced.get(topic_id) or (self._disk.create(directory / name), 0)
            file.pwrite(batch, size)
            self._unplaced[topic_id] = file, size + len(batch)
        return f"{UNPLACED_DIRECTORY}/{name}"

    # -- saving ------------------------------------------------------------------------------------------

    @property
    def table_bytes(self) -> int:
        """What :meth:`save` goes through, about."""
        return sum(source.meta.size_bytes for source in (*self._sources, *self._spooled) if source.meta is not None)

    def save(self, advance: Advance) -> None:
        """Go through all messages, and write those that are whole, if there is where to."""
        known, book = self.known, self._book
        names = RepairedNames.of(known) if self._may_be_queue_store else None
        for topic_id in sorted(known.nameless):
            book.add(Renamed(topic_id, None, known.state.topics[topic_id].topic.name))
        sources = [*self._sources, *self._spooled]
        lsn = (self._end_lsn // self.segment_bytes + 1) * self.segment_bytes
        output = None if self._out is None else Output(self._disk, self._out, self._codec())
        try:

            def all_names() -> Iterator[SortedRecords]:
                assert names is not None
                return merged(sources, self._scan, names.first, names.last, names.missing(None))

            def name_of(item: TopicState, row: int) -> str | None:
                return names.name(row, all_names) if names is not None and item is names.messages else None

            ledger = LossLedger(known, self._gaps, book, name_of)
            others: Iterator[SortedRecords] = iter(())
            if names is not None:
                for records in merged(sources, self._scan, names.first, names.last):
                    names.note(records)
                names.settle(known)
                others = names.missing(book)
            for kept in self._readable(ledger, sources, others, advance):
                book.summary.messages += len(kept) - (0 if names is None else names.among(kept))
                if output is not None:
                    output.add(kept, lsn)
            ledger.finish()
            if output is not None:
                self._finish(output, lsn)
        except BaseException:
            if output is not None:
                output.abandon()
            raise

    def _readable(
        self, ledger: LossLedger, sources: list[TableSource], others: Iterator[SortedRecords], advance: Advance
    ) -> Iterator[SortedRecords]:
        graves = HeldRecords((0, records) for records in merged(sources, self._scan, GRAVES, LAST))
        for records in merged(sources, self._scan, FIRST, LAST_MESSAGE, others):
            key, offset = last_of(records)
            kept = ledger.take(records, graves.take_all((key | GRAVES[0], offset)))
            advance(len(records.payload) + 12 * len(records))
            if kept is not None:
                yield kept
        while graves.fill():
            ledger.take(None, graves.take_all(graves.last))

    def _finish(self, output: Output, lsn: int) -> None:
        chain = self._chain
        # Of a file that the log is applied in place of, producers are in the log as well.
        files = [chain.items(increment, PRODUCER, None) for increment in chain.increments[: self._start.files]]
        producers = joined_producers(self._replay.layers, files)
        change = self.known.state.take_whole(lsn)
        metas = None if self._manifest is None else self._manifest.ids
        left = LeftIds(self._disk, self._tables, metas, self._book)
        if expected := left.count(change.ids):
            output.add_ids(left.rows(change.ids), expected, lsn)
        output.finish(change, producers, self.segment_bytes)
        self._book.summary.size_bytes += output.size_bytes
        for file, _ in self._unplaced.values():
            file.sync()
            file.close()

    def _codec(self) -> Codec:
        """What tables of the store are compressed with."""
        for source in self._sources[:_LOOKED_AT]:
            try:
                file = self._disk.open(source.path)
            except FileNotFoundError:
                continue
            try:
                head = file.pread(HEADER_BYTES, 0)
            finally:
                file.close()
            if len(head) == HEADER_BYTES and head[9] == Codec.ZSTD:
                return Codec.ZSTD
        return Codec.NONE
