"""Which tables make up a damaged store, where its manifest is lost: what each says of itself decides.

Every table lies in the order of the log: the LSNs of two that were not made of one another do not overlap. So a table
whose LSNs contain those of an older file was merged from it, and what it spans of the older file's records is in it, or
was dropped on purpose. Tables that one merge wrote span what lies between them as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from lsmq.errors import CorruptFile

from ..compaction import KeyPlace
from ..disk import Disk
from ..manifest import LISTS, TABLE_FIELDS
from ..sstable import TableMeta, check_properties, read_footer
from .findings import FindingsBook, Summary
from .table_scan import FIRST, LAST, Gaps, TableScan, TableSource, first_of, last_of


def found_tables(disk: Disk, directory: Path) -> list[TableSource]:
    """All table files in a directory, and what of each counts."""
    names = [name for name in disk.list(directory) if name.endswith(".tbl")]
    return _superseded([_found(disk, directory / name) for name in names])


def _found(disk: Disk, path: Path) -> TableSource:
    number = int(path.stem) if path.stem.isdigit() else 0
    meta = _meta(disk, path)
    if meta is not None:
        first, last = (meta.first_key, meta.first_offset), (meta.last_key, meta.last_offset)
        return TableSource(path, number, first, last, meta.first_lsn, meta.end_lsn, meta)
    unknown = TableSource(path, number, FIRST, LAST, 0, 0, None)
    bounds: tuple[KeyPlace, KeyPlace] | None = None
    for records in TableScan(
        disk, unknown, FindingsBook(directory_of(path), lambda _: None, Summary()), Gaps()
    ).records(FIRST, LAST):
        bounds = first_of(records) if bounds is None else bounds[0], last_of(records)
    return unknown if bounds is None else replace(unknown, last=bounds[1])


def directory_of(path: Path) -> Path:
    """The shard's directory that a table lies in."""
    return path.parent.parent


def _meta(disk: Disk, path: Path) -> TableMeta | None:
    """What a table says of itself; None where that is damaged."""
    file = disk.open(path)
    try:
        parts = read_footer(file, str(path))
        at = parts["root_position"] + parts["root_bytes"]
        fields = check_properties(file.pread(parts["properties_bytes"], at), str(path), at)
        values = {name: fields[name] for name in TABLE_FIELDS if name != "size_bytes"}
        values |= {name: tuple(values[name]) for name in LISTS}
        return TableMeta(**values, size_bytes=parts["size_bytes"])
    except CorruptFile:
        return None
    finally:
        file.close()


def _superseded(sources: Sequence[TableSource]) -> list[TableSource]:
    known = [source for source in sources if source.meta is not None]
    merges: dict[tuple[int, int, int], list[TableSource]] = {}
    for source in known:
        assert source.meta is not None
        merges.setdefault((source.first_lsn, source.end_lsn, source.meta.clean_lsn), []).append(source)
    spans: list[tuple[TableSource, KeyPlace, KeyPlace]] = []  # of tables, each with what lies between it and the next
    for group in merges.values():
        group.sort(key=lambda source: source.first)
        for one, two in pairwise(group):
            follows = one.last < two.first and one.number < two.number
            spans.append((one, one.first, two.first if follows else one.last))
        spans.append((group[-1], group[-1].first, group[-1].last))

    def of(source: TableSource) -> tuple[tuple[KeyPlace, KeyPlace], ...]:
        return tuple(
            (first, last)
            for by, first, last in spans
            if by.number > source.number
            and by.first_lsn <= source.first_lsn
            and source.end_lsn <= by.end_lsn
            and first <= source.last
            and last >= source.first
        )

    return [source if source.meta is None else replace(source, superseded=of(source)) for source in sources]
