"""Reading a table past its damage: its whole blocks in order, and where there are none.

The index says where the blocks are, and what should be in them; where that is damaged too, each block says how long it
is, and behind a damaged one the next that is whole is looked for byte by byte. What stands between is told with the
last record before it and the first behind it: what was there lies between the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lsmq.errors import CorruptFile
from lsmq.record_batch import COLUMN_BYTES, HEADER, HEADER_BYTES, VERSION, Column

from ..block import Block
from ..columns import I64
from ..compaction import KeyPlace
from ..disk import Disk, File
from ..index import IndexColumn, IndexPage
from ..sorted_records import SortedRecords, select
from ..sstable import FOOTER_BYTES, TableMeta, check_properties, decode_footer
from .findings import FindingsBook

FIRST: KeyPlace = (0, -1)
LAST: KeyPlace = ((1 << 64) - 1, (1 << 63) - 1)
_SEARCH_BYTES = 4 << 20
_NEEDED = (Column.TOPIC, Column.QUEUE, Column.OFFSET, Column.LENGTH)


@dataclass(frozen=True, slots=True)
class Gap:
    """Records may be missing from ``first`` to ``last``, both included, in key order; ``records`` where it is known."""

    first: KeyPlace
    last: KeyPlace
    records: int | None


@dataclass(frozen=True, slots=True)
class TableSource:
    """A table file, and what is known of it.

    Attributes:
        first, last: what of it counts, both included.
        end_lsn: of its records; 0 where that is not known.
    """

    path: Path
    number: int
    first: KeyPlace
    last: KeyPlace
    first_lsn: int
    end_lsn: int
    meta: TableMeta | None
    #: In key order, what other tables have instead; first and last place of each, both included.
    superseded: tuple[tuple[KeyPlace, KeyPlace], ...] = ()


def listed(directory: Path, meta: TableMeta) -> TableSource:
    """A table that the manifest names."""
    first, last = (meta.first_key, meta.first_offset), (meta.last_key, meta.last_offset)
    path = directory / meta.name
    return TableSource(path, meta.number, first, last, meta.first_lsn, meta.end_lsn, meta)


class TableScan:
    """Goes through one table. Its file is open while it does."""

    def __init__(self, disk: Disk, source: TableSource, book: FindingsBook, gaps: Gaps) -> None:
        self._disk = disk
        self._source = source
        self._book = book
        self._gaps = gaps
        self._before: KeyPlace = source.first
        self._bad: tuple[int, int, int | None] | None = None  # neighbouring bytes that are damaged, and their records
        self._bad_last: KeyPlace | None = None

    def records(self, first: KeyPlace, last: KeyPlace) -> Iterator[SortedRecords]:
        """Whole records from ``first`` to ``last``, both included, in key order, a block at a time."""
        source = self._source
        first, last = max(first, source.first), min(last, source.last)
        if first > last:
            return
        try:
            file = self._disk.open(source.path)
        except FileNotFoundError:
            self._book.damage(
                source.path, 0, source.meta.size_bytes if source.meta else 0, "missing", "table", _between(source)
            )
            self._gaps.add(Gap(source.first, source.last, None))
            return
        try:
            self._before = first
            for block in self._blocks(file, first, last):
                records = _within(block, first, last)
                for begin, end in source.superseded:
                    records = _without(records, begin, end)
                if len(records):
                    yield records
            self._told_bad(last if source.meta is not None else LAST)
        finally:
            file.close()

    # -- with the index ----------------------------------------------------------------------------------

    def _blocks(self, file: File, first: KeyPlace, last: KeyPlace) -> Iterator[Block]:
        parts = self._parts(file)
        root = None if parts is None else self._page(file, *parts[1:], root=True)
        if root is None:
            end = file.size() if parts is None else parts[0]
            yield from self._walk(file, 0, end, last)
            return
        assert parts is not None
        for number in range(root.seek(*first), root.count):
            if (root.first_keys[number], root.first_offsets[number]) > last:
                return
            begin, size = root.positions[number], root.sizes[number]
            page = self._page(file, begin, size, root=False)
            if page is None:
                blocks = root.column(IndexColumn.BLOCKS)
                end = int(blocks[number + 1]) if number + 1 < root.count else parts[0]
                yield from self._walk(file, int(blocks[number]), end, last)
                continue
            for row in range(page.seek(*first), page.count):
                if (page.first_keys[row], page.first_offsets[row]) > last:
                    return
                block = self._indexed(file, page, row)
                if block is not None:
                    yield block

    def _parts(self, file: File) -> tuple[int, int, int] | None:
        """Where the blocks end, and where the root is and its size; None where nothing tells."""
        source, size = self._source, file.size()
        meta, path = source.meta, source.path
        if meta is not None and size < meta.size_bytes:
            self._book.damage(path, size, meta.size_bytes, "missing", "end of the file", "")
        footer = None
        try:
            footer = decode_footer(file.pread(FOOTER_BYTES, max(0, size - FOOTER_BYTES)), size, str(path))
            at = footer["root_position"] + footer["root_bytes"]
            check_properties(file.pread(footer["properties_bytes"], at), str(path), at)
        except CorruptFile as damage:
            if meta is None or size >= meta.size_bytes:
                begin = int(damage.details["position"])
                self._book.damage(path, begin, size, "damaged", "footer and properties", "none: it is known without")
        if meta is not None:
            return meta.index_position, meta.root_position, meta.root_bytes
        return None if footer is None else (footer["index_position"], footer["root_position"], footer["root_bytes"])

    def _page(self, file: File, position: int, size: int, *, root: bool) -> IndexPage | None:
        try:
            return IndexPage.parse(file.pread(size, position), str(self._source.path), position, root=root)
        except CorruptFile:
            if file.size() >= position + size:
                part = "root of the index" if root else "index page"
                self._book.damage(
                    self._source.path, position, position + size, "damaged", part, "none: the blocks tell as much"
                )
            return None

    def _indexed(self, file: File, page: IndexPage, row: int) -> Block | None:
        position, size = page.positions[row], page.sizes[row]
        first = page.first_keys[row], page.first_offsets[row]
        last = page.last_keys[row], page.last_offsets[row]
        block = _parsed(file.pread(size, position), str(self._source.path), position)
        if block is None or (_first(block), _last(block), block.count) != (first, last, page.records[row]):
            self._note_bad(position, position + size, page.records[row], first, last)
            return None
        self._told_bad(first)
        self._before = last
        return block

    # -- without it --------------------------------------------------------------------------------------

    def _walk(self, file: File, position: int, end: int, last: KeyPlace) -> Iterator[Block]:
        """Whole blocks in ``[position, end)``, each of which says how long it is, up to what begins behind ``last``.

        What cannot be read at the end may also be an index, where nobody knows any more where that began.
        """
        reached = FIRST
        while position < end:
            block = self._at(file, position, end)
            if block is None or _first(block) < reached:
                found = next(self._search(file, position + 1, end, reached), None)
                self._note_bad(position, end if found is None else found[0], None, None, None)
                if found is None:
                    return
                position, block = found
            if _first(block) > last:
                return
            self._told_bad(_first(block))
            self._before = reached = _last(block)
            yield block
            position += len(block.raw)

    def _at(self, file: File, position: int, end: int) -> Block | None:
        head = file.pread(HEADER_BYTES, position)
        if not _plausible(head, end - position):
            return None
        return _parsed(file.pread(int.from_bytes(head[4:8], "little"), position), str(self._source.path), position)

    def _search(self, file: File, position: int, end: int, reached: KeyPlace) -> Iterator[tuple[int, Block]]:
        """Blocks that begin anywhere in ``[position, end)``, of records from a place on."""
        while position < end:
            raw = file.pread(min(_SEARCH_BYTES, end - position) + HEADER_BYTES, position)
            at = raw.find(VERSION, 8)
            while at >= 0 and at - 8 < _SEARCH_BYTES:
                begin = at - 8
                if _plausible(raw[begin : begin + HEADER_BYTES], end - position - begin):
                    block = self._at(file, position + begin, end)
                    if block is not None and _first(block) >= reached:
                        yield position + begin, block
                at = raw.find(VERSION, at + 1)
            position += _SEARCH_BYTES

    # -- damage ------------------------------------------------------------------------------------------

    def _note_bad(
        self, begin: int, end: int, records: int | None, first: KeyPlace | None, last: KeyPlace | None
    ) -> None:
        """Bytes that are damaged; told together with their neighbours."""
        if self._bad is not None and self._bad[1] == begin:
            known = None if records is None or self._bad[2] is None else self._bad[2] + records
            self._bad = self._bad[0], end, known
        else:
            self._told_bad(first or self._before)
            self._bad = begin, end, records
            if first is not None:
                self._before = first
        self._bad_last = last

    def _told_bad(self, behind: KeyPlace) -> None:
        """``behind``: the first record after the damage."""
        if self._bad is None:
            return
        begin, end, records = self._bad
        gap = Gap(self._before, self._bad_last or behind, records)
        self._gaps.add(gap)
        self._bad, self._bad_last = None, None
        what = "records" if records is None else f"{records} records"
        self._book.damage(self._source.path, begin, end, "damaged", "blocks", f"{what} {_span(gap.first, gap.last)}")


class Gaps:
    """Where tables lack records. Asked for the part of a queue that is concerned."""

    def __init__(self) -> None:
        self._gaps: dict[Gap, None] = {}

    def __bool__(self) -> bool:
        return bool(self._gaps)

    def add(self, gap: Gap) -> None:
        self._gaps[gap] = None

    def concerned(self, key: int, first: int, end: int) -> list[tuple[int, int]]:
        """The parts of ``[first, end)`` of a queue that lie in a gap, sorted and apart from one another."""
        parts: list[tuple[int, int]] = []
        for gap in self._gaps:
            if gap.first[0] <= key <= gap.last[0]:
                low = max(first, gap.first[1]) if gap.first[0] == key else first
                high = min(end, gap.last[1] + 1) if gap.last[0] == key else end
                if low < high:
                    parts.append((low, high))
        return joined(parts)


def joined(parts: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Half-open ranges, sorted; those that touch are one."""
    found: list[tuple[int, int]] = []
    for first, end in sorted(parts):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((first, end))
    return found


def _plausible(head: bytes, room: int) -> bool:
    if len(head) < HEADER_BYTES:
        return False
    _, total, version, codec, columns, count, payload, _, _, _, _ = HEADER.unpack(head)
    least = HEADER_BYTES + columns * COLUMN_BYTES + payload
    return bool(
        version == VERSION and codec <= 1 and len(_NEEDED) <= columns <= 64 and count and least <= total <= room
    )


def _parsed(raw: bytes, source: str, position: int) -> Block | None:
    """A block with sorted records, or None."""
    if len(raw) < HEADER_BYTES:
        return None
    try:
        block = Block(raw, source, position)
    except (CorruptFile, KeyError):
        return None
    if any(column not in block.batch.directory for column in _NEEDED):
        return None
    keys, offsets = block.keys, block.offsets
    same = keys[1:] == keys[:-1]
    ordered = (keys[1:] > keys[:-1]) | (same & (offsets[1:] >= offsets[:-1]))
    whole = int(block.column(Column.LENGTH).sum(dtype=np.int64)) == len(block.payload)
    return block if whole and ordered.all() else None


def _first(block: Block) -> KeyPlace:
    return int(block.keys[0]), int(block.offsets[0])


def _last(block: Block) -> KeyPlace:
    return int(block.keys[-1]), int(block.offsets[-1])


def first_of(records: SortedRecords) -> KeyPlace:
    """Where sorted records begin."""
    return int(records.keys[0]), int(records.columns[Column.OFFSET][0])


def last_of(records: SortedRecords) -> KeyPlace:
    """Where they end."""
    return int(records.keys[-1]), int(records.columns[Column.OFFSET][-1])


def _positions(keys: np.ndarray[tuple[int], np.dtype[np.uint64]], offsets: I64, place: KeyPlace, *, after: bool) -> int:
    """Where a place stands among sorted records: before those at it, or ``after`` them."""
    key = np.uint64(place[0])
    low, high = int(keys.searchsorted(key)), int(keys.searchsorted(key, "right"))
    return low + int(offsets[low:high].searchsorted(place[1], "right" if after else "left"))


def _within(block: Block, first: KeyPlace, last: KeyPlace) -> SortedRecords:
    begin = _positions(block.keys, block.offsets, first, after=False)
    return block.records(begin, max(begin, _positions(block.keys, block.offsets, last, after=True)))


def _without(records: SortedRecords, first: KeyPlace, last: KeyPlace) -> SortedRecords:
    offsets = records.columns[Column.OFFSET]
    begin = _positions(records.keys, offsets, first, after=False)
    end = _positions(records.keys, offsets, last, after=True)
    if begin >= end:
        return records
    kept = np.append(np.arange(begin), np.arange(end, len(records)))
    return select(records, kept)


def _between(source: TableSource) -> str:
    if source.meta is None:
        return "its records"
    return f"{source.meta.record_count} records {_span(source.first, source.last)}"


def _span(first: KeyPlace, last: KeyPlace) -> str:
    return f"from {_place(first)} to {_place(last)}"


def _place(place: KeyPlace) -> str:
    key, offset = place
    grave = " (deletions)" if key >> 63 else ""
    return f"topic {(key >> 32) & 0x7FFFFFFF} queue {key & 0xFFFFFFFF} offset {offset}{grave}"
