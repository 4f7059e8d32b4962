"""The store that a repair writes: tables in key order, a checkpoint of one file, a manifest, the mark of no log."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from lsmq.record_batch import Codec

from ..checkpoint import items_of, properties_of, write_keyed
from ..dedupe_chain import write_ids
from ..dedupe_file import IdFileMeta
from ..dedupe_layer import IdRows
from ..disk import Disk
from ..keyed_file import KeyedItem, KeyedWriter
from ..log_mark import LogMark, store_log_mark
from ..manifest import TABLE_DIRECTORY, WAL_DIRECTORY, Manifest, store_manifest
from ..options import StoreOptions
from ..producers import KIND as PRODUCER
from ..producers import WINDOW, Layer, decode_answers, decode_head, merge_values, producer_key
from ..sorted_records import SortedRecords
from ..sstable import TableMeta, TableWriter, table_name
from ..state import StateChange

UNPLACED_DIRECTORY = "unplaced"
_OPTIONS = StoreOptions()


class Output:
    """A new store in a directory. Nothing opens it before :meth:`finish`, which writes the manifest at last."""

    def __init__(self, disk: Disk, path: Path, codec: Codec) -> None:
        self._disk = disk
        self._path = path
        self._codec = codec
        self._tables = path / TABLE_DIRECTORY
        self._number = 0
        self._writer: TableWriter | None = None
        self._metas: list[TableMeta] = []
        self._ids: tuple[IdFileMeta, ...] = ()
        for directory in (self._tables, path / WAL_DIRECTORY):
            disk.make_directory(directory)

    @property
    def size_bytes(self) -> int:
        """Of the tables that are written."""
        return sum(meta.size_bytes for meta in self._metas)

    def add(self, records: SortedRecords, end_lsn: int) -> None:
        """Records that sort after those added before; the log of what they came from ended at ``end_lsn``."""
        if self._writer is None:
            self._number += 1
            path = self._tables / table_name(self._number)
            self._writer = TableWriter(
                self._disk, path, self._number, block_bytes=_OPTIONS.block_bytes, codec=self._codec
            )
        self._writer.add(records)
        if self._writer.size_bytes >= _OPTIONS.table_bytes:
            self._end_table(end_lsn)

    def _end_table(self, end_lsn: int) -> None:
        if self._writer is not None:
            self._metas.append(self._writer.finish(0, end_lsn, end_lsn))
            self._writer = None

    def add_ids(self, pieces: Iterator[IdRows], expected: int, end_lsn: int) -> None:
        """Deduplication ids, in order, about ``expected`` of them."""
        self._end_table(end_lsn)
        self._number += 1
        meta = write_ids(self._disk, self._tables, self._number, pieces, expected, end_lsn)
        self._ids = (meta,)

    def finish(self, change: StateChange, producers: Iterator[tuple[int, bytes]], segment_bytes: int) -> None:
        """``change`` is all there is of the state. Durable on return."""
        end_lsn = change.end_lsn
        self._end_table(end_lsn)
        number = self._number + 1

        def fill(writer: KeyedWriter) -> dict[str, Any]:
            for key, value in items_of(change):
                writer.add(key, value)
            count = 0
            for producer_id, value in producers:
                writer.add(producer_key(producer_id), value, producer_id)
                count += 1
            return {**properties_of(change), "producers": count}

        increment = write_keyed(self._disk, self._tables, number, fill)
        for directory in (self._tables, self._path / WAL_DIRECTORY):
            self._disk.sync_directory(directory)
        store_log_mark(self._disk, self._path, LogMark(end_lsn, 0, closed=True))
        manifest = Manifest(
            segment_bytes,
            next_number=number + 1,
            flushed_lsn=end_lsn,
            checkpoint=(increment,),
            generations=(tuple(self._metas),) if self._metas else (),
            ids=self._ids,
        )
        store_manifest(self._disk, self._path, manifest)
        self._disk.sync_directory(self._path.parent)

    def abandon(self) -> None:
        """Close what is not finished."""
        if self._writer is not None:
            self._writer.abandon()


def joined_producers(layers: Sequence[Layer], files: Sequence[Iterator[KeyedItem]]) -> Iterator[tuple[int, bytes]]:
    """Ids, ascending, and values of all producers; of each what follows on from its latest batch.

    ``layers`` and ``files`` are the oldest first; layers are newer than files.
    """
    scans: list[Iterator[tuple[bytes, int, bytes]]] = []
    for age, items in enumerate((*map(_layer_items, reversed(layers)), *reversed(files))):
        scans.append(_aged(items, age))
    for key, found in groupby(heapq.merge(*scans, key=itemgetter(0, 1)), itemgetter(0)):
        values = [value for _, _, value in found]
        yield int.from_bytes(key[len(PRODUCER) :], "big"), merge_values(_following(values))


def _layer_items(layer: Layer) -> Iterator[KeyedItem]:
    return ((producer_key(number), value) for number, value in layer.items())


def _aged(items: Iterator[KeyedItem], age: int) -> Iterator[tuple[bytes, int, bytes]]:
    return ((key, age, value) for key, value in items if value is not None)


def _following(values: list[bytes]) -> list[bytes]:
    """Those, the newest first, whose batches follow on to the newest without a gap."""
    head = decode_head(values[0])
    left = head.next_sequence - len(decode_answers(values[0]))
    for at, value in enumerate(values[1:], 1):
        before = decode_head(value)
        enough = head.next_sequence - left >= WINDOW
        if enough or before.epoch != head.epoch or before.next_sequence != left:
            return values[:at]
        left -= len(decode_answers(value))
    return values
