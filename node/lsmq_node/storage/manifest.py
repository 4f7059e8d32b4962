"""The manifest: which tables make up a shard, and up to which LSN they hold it.

One small file, replaced as a whole (write, sync, rename, sync directory), so that a change of tables happens
entirely or not at all. All integers are little-endian::

    offset width field
     0      8    magic ``LSMQMAN1``
     8      4    version (2)
    12      4    length of the body
    16      4    crc       CRC32C of version, length and body
    20      n    body      a msgpack map: see :class:`Manifest`

Not supported: a history of changes. ``lsmq dump manifest`` shows the present.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, field, fields, replace
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

from .checkpoint import IncrementMeta
from .dedupe_file import IdFileMeta
from .disk import Disk, replace_file
from .framed import decode_framed, encode_framed
from .sstable import TableMeta

NAME = "MANIFEST"
WAL_DIRECTORY = "wal"
TABLE_DIRECTORY = "tables"
HIGH_WATERMARK = "HIGH_WATERMARK"  # see replica_log
MAGIC = b"LSMQMAN1"
VERSION = 2
#: What it keeps of a table, in the order of a row; and which of these are lists.
TABLE_FIELDS = tuple(item.name for item in fields(TableMeta))
LISTS = ("topics", "topic_records", "topic_bytes")
_table_row = attrgetter(*TABLE_FIELDS)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The state of a shard's files.

    Attributes:
        segment_bytes: size of a log segment; fixed when the shard is made.
        next_number: for the next table or increment of the checkpoint.
        flushed_lsn: everything before it is in the tables and the checkpoint.
        checkpoint: the increments that make it up, oldest first; the last ends at ``flushed_lsn``.
        level0: tables straight from memory, oldest first; their key ranges overlap.
        generations: level 1, oldest first; each a run of tables in key order that do not overlap.
        ids: files of deduplication ids, oldest first.
        extra: what only some shards have. ``log_start_lsn``: the log begins here, in the middle of a segment,
            since what was before came as a snapshot. ``installing``: see :mod:`.snapshot_install`.
    """

    segment_bytes: int
    next_number: int = 1
    flushed_lsn: int = 0
    checkpoint: tuple[IncrementMeta, ...] = ()
    level0: tuple[TableMeta, ...] = ()
    generations: tuple[tuple[TableMeta, ...], ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)
    ids: tuple[IdFileMeta, ...] = ()

    @property
    def log_start_lsn(self) -> int:
        """No log before it was ever here."""
        return int(self.extra.get("log_start_lsn", 0))

    def tables(self) -> list[TableMeta]:
        """All tables, oldest first."""
        return [*(meta for run in self.generations for meta in run), *self.level0]

    def files(self) -> list[TableMeta | IncrementMeta | IdFileMeta]:
        """Those of the checkpoint, of the ids, then the tables, oldest first."""
        return [*self.checkpoint, *self.ids, *self.tables()]

    def numbers(self) -> set[int]:
        """Numbers of all files that are part of the shard."""
        return {meta.number for meta in self.files()}

    def with_changes(self, **changes: Any) -> Manifest:
        return replace(self, **changes)


def encode_manifest(manifest: Manifest) -> bytes:
    return encode_framed(
        MAGIC,
        VERSION,
        {
            "segment_bytes": manifest.segment_bytes,
            "next_number": manifest.next_number,
            "flushed_lsn": manifest.flushed_lsn,
            "checkpoint": [astuple(meta) for meta in manifest.checkpoint],
            "table_fields": list(TABLE_FIELDS),
            "level0": [_table_row(meta) for meta in manifest.level0],
            "generations": [[_table_row(meta) for meta in run] for run in manifest.generations],
            "extra": manifest.extra,
            **({"ids": [astuple(meta) for meta in manifest.ids]} if manifest.ids else {}),
        },
    )


def decode_manifest(raw: bytes, source: str) -> Manifest:
    """Raises ``CorruptFile`` or ``UnsupportedFormat``."""
    fields_of = decode_framed(raw, MAGIC, VERSION, source, "manifest")
    names = fields_of["table_fields"]

    def table(row: list[Any]) -> TableMeta:
        values = dict(zip(names, row, strict=True))
        return TableMeta(**{**values, **{name: tuple(values[name]) for name in LISTS}})

    return Manifest(
        segment_bytes=fields_of["segment_bytes"],
        next_number=fields_of["next_number"],
        flushed_lsn=fields_of["flushed_lsn"],
        checkpoint=tuple(IncrementMeta(*row) for row in fields_of["checkpoint"]),
        level0=tuple(table(row) for row in fields_of["level0"]),
        generations=tuple(tuple(table(row) for row in run) for run in fields_of["generations"]),
        extra=fields_of["extra"],
        ids=tuple(IdFileMeta(*row) for row in fields_of.get("ids", ())),
    )


def load_manifest(disk: Disk, directory: Path) -> Manifest | None:
    """The shard's manifest, or None for a new shard."""
    if NAME not in disk.list(directory):
        return None
    path = directory / NAME
    return decode_manifest(disk.read_all(path), str(path))


def store_manifest(disk: Disk, directory: Path, manifest: Manifest) -> None:
    """Replace the manifest. Durable on return; a crash leaves the old one or the new one."""
    _check_order(manifest)
    replace_file(disk, directory / NAME, encode_manifest(manifest))


def _check_order(manifest: Manifest) -> None:
    """What reads and recovery rely on."""
    assert manifest.next_number > max(manifest.numbers(), default=0), "a file's number is used once"
    for run in manifest.generations:
        for one, two in pairwise(run):
            assert (one.last_key, one.last_offset) < (two.first_key, two.first_offset), "tables of a run do not overlap"
    for one, two in pairwise(manifest.level0):
        assert one.end_lsn <= two.first_lsn, "tables of level 0 follow one another in the log"
    lsns = [(meta.first_lsn, meta.end_lsn) for meta in manifest.checkpoint]
    for (_, end_lsn), (first_lsn, _) in pairwise([(0, 0), *lsns]):
        assert end_lsn == first_lsn, "the files of the checkpoint follow one another in the log"
    assert all(one.end_lsn < two.end_lsn for one, two in pairwise(manifest.ids)), "files of ids are in their order"
    assert not lsns or lsns[-1][1] == manifest.flushed_lsn, "the checkpoint is of what is flushed"
