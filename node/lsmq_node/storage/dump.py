"""Looking into a shard's files: log segments, tables and the manifest, as dicts. Opens for reading only.

Checksums are verified on the way. Damage ends the walk with ``CorruptFile``, which names file and position, after
all that lies before it was yielded.

Not supported: following an entry into the next segment file; one that goes on there is named in the end's reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lsmq.errors import LsmqError
from lsmq.record_batch import Column, decode_header

from .applier import epoch_of
from .block import Block
from .checkpoint import describe_key, describe_value
from .disk import File, OsDisk
from .epochs import epoch_start
from .failures import damaged
from .index import IndexPage
from .keyed_file import KeyedFile
from .log_mark import decode_log_mark
from .manifest import NAME as MANIFEST
from .manifest import Manifest, decode_manifest
from .sample import Sample
from .snapshot import decode_snapshot
from .sorted_records import TOMBSTONE_TOPIC
from .sstable import TableMeta, check_properties, read_footer, stored_batch
from .wal import FRAGMENT_BYTES, MAGIC, SEGMENT_HEADER, EntryKind, LogEntry
from .wal_reader import LogReader


def dump_wal(path: Path) -> Iterator[dict[str, Any]]:
    """A dict for each entry that begins in a log segment file, and one for the end: where and why.

    Works on recycled (``.spare``) and renamed files too: the segment's header says which LSN it begins at.
    """
    file = OsDisk().open(path)
    start, segment_bytes = _segment(file, path)

    def read(lsn: int, length: int) -> bytes:
        return file.pread(length, lsn - start)

    reader = LogReader(read, [start], segment_bytes, str(path.parent))
    begun = _log_start(path)
    first = begun if start < begun < start + segment_bytes else reader.first_entry(start)
    for entry in reader.entries(first):
        yield _entry(entry, str(path))
    yield {"end_lsn": reader.end.lsn, "end": reader.end.reason}


def _log_start(path: Path) -> int:
    """Where the log began that the segment is part of: in its middle, on a replica made from a snapshot."""
    manifest = path.resolve().parent.parent / MANIFEST
    try:
        return decode_manifest(OsDisk().read_all(manifest), str(manifest)).log_start_lsn
    except (OSError, LsmqError):
        return 0


def _segment(file: File, path: Path) -> tuple[int, int]:
    """First LSN and size of a segment: what its header says, or else its name."""
    header = file.pread(SEGMENT_HEADER.size, FRAGMENT_BYTES)
    if len(header) == SEGMENT_HEADER.size:
        magic, _, segment_bytes, lsn = SEGMENT_HEADER.unpack(header)
        if magic == MAGIC and segment_bytes:
            return lsn, segment_bytes
    if re.fullmatch("[0-9a-f]{16}", path.stem):
        return int(path.stem, 16), file.size()
    raise damaged(path, "neither its header nor its name says which part of a log it is")


def _entry(entry: LogEntry, source: str) -> dict[str, Any]:
    known = entry.kind in set(EntryKind)
    fields: dict[str, Any] = {
        "lsn": entry.lsn,
        "end_lsn": entry.end_lsn,
        "kind": EntryKind(entry.kind).name.lower() if known else str(entry.kind),
        "epoch": entry.epoch,
        "durable_lsn": entry.durable_lsn,
        "time_ms": entry.time_ms,
        "topic_id": entry.topic_id,
        "count": entry.count,
        "bytes": len(entry.body),
    }
    if entry.kind == EntryKind.RECORDS:
        batch = stored_batch(entry.body, source, entry.lsn, "log entry")
        fields["producer_id"] = batch.producer_id
        fields["producer_epoch"] = batch.producer_epoch
        fields["sequence"] = batch.sequence
    if entry.kind == EntryKind.PRODUCER:
        fields["producer_id"], begun_epoch = epoch_of(entry)
        fields["producer_epoch"], fields["position"] = begun_epoch.epoch, begun_epoch.position
    if entry.kind == EntryKind.EPOCH:
        begun = epoch_start(entry, source)
        fields["incarnation"], fields["start"] = begun.incarnation, begun.start
    return fields


def dump_sstable(path: Path, records: bool = False) -> Iterator[dict[str, Any]]:
    """A dict of what the table says of itself, then one for each block, or for each record."""
    source = str(path)
    with closing(OsDisk().open(path)) as file:
        parts = read_footer(file, source)
        root_at = parts["root_position"]
        root = IndexPage.parse(file.pread(parts["root_bytes"], root_at), source, root_at, root=True)
        pages = [
            IndexPage.parse(file.pread(size, position), source, position)
            for position, size in zip(root.positions, root.sizes, strict=True)
        ]
        at = root_at + parts["root_bytes"]
        properties = check_properties(file.pread(parts["properties_bytes"], at), source, at)
        sample = Sample.decode(stored_batch(properties.pop("sample"), source, at, "sample"))
        yield {
            **properties,
            "sample_records": len(sample),
            **parts,
            "blocks": sum(page.count for page in pages),
            "keys_bytes": root.positions[0] - parts["index_position"],
            "filter_bits": 64 * sum(len(page.words) for page in pages),
            "filter_probes": pages[0].probes,
        }
        number = 0
        for page_number, page in enumerate(pages):
            for row, (begin, size) in enumerate(zip(page.positions, page.sizes, strict=True)):
                block = Block(file.pread(size, begin), source, begin)
                if records:
                    yield from _records(block)
                else:
                    yield {"block": number, "page": page_number, **_block(page, row, block)}
                number += 1


def _block(page: IndexPage, row: int, block: Block) -> dict[str, Any]:
    fields: dict[str, Any] = {"position": page.positions[row], "size_bytes": page.sizes[row]}
    fields["records"] = page.records[row]
    for end, key, offset in (
        ("first", page.first_keys[row], page.first_offsets[row]),
        ("last", page.last_keys[row], page.last_offsets[row]),
    ):
        fields[f"{end}_topic_id"], fields[f"{end}_queue"] = (key >> 32) & ~TOMBSTONE_TOPIC, key & 0xFFFFFFFF
        fields[f"{end}_offset"] = offset
    stored = block.column(Column.STORED_MS)
    fields["min_ms"], fields["max_ms"] = int(stored.min()), int(stored.max())
    fields["tombstones"] = bool(page.last_keys[row] >> 32 & TOMBSTONE_TOPIC)
    fields["codec"] = block.batch.codec.name.lower()
    fields["columns"] = [Column(column).name.lower() for column in block.batch.directory if column in set(Column)]
    fields["payload_bytes"] = len(block.batch.payload)
    return fields


def _records(block: Block) -> Iterator[dict[str, Any]]:
    batch = block.batch
    names = [column for column in Column if column in batch.directory]
    columns = [batch.column(column) for column in names]
    position = 0
    for values in zip(*columns, strict=True):
        fields: dict[str, Any] = {column.name.lower(): value for column, value in zip(names, values, strict=True)}
        topic = fields.pop("topic")
        fields = {"topic_id": topic & ~TOMBSTONE_TOPIC, **fields, "tombstone": bool(topic & TOMBSTONE_TOPIC)}
        header_end = position + fields.get("header_length", 0)
        if header_end > position:
            fields.update(decode_header(batch.payload[position:header_end])._asdict())
        yield fields
        position += fields.get("length", 0)


def dump_manifest(path: Path) -> Iterator[dict[str, Any]]:
    """A dict of the log's place, one for each file of the checkpoint, then one for each table, oldest first."""
    yield from _manifest(decode_manifest(OsDisk().read_all(path), str(path)))


def dump_checkpoint(path: Path) -> Iterator[dict[str, Any]]:
    """A dict of where an increment of a checkpoint begins and ends, then one for each thing that changed there."""
    file = KeyedFile(OsDisk(), path, 0)
    properties = dict(file.properties)
    erased = properties.pop("erased")
    yield {**properties, "changes": file.count, "size_bytes": file.size_bytes}
    for prefix in erased:
        yield {"erased": describe_key(prefix)}
    for key, value in file.scan():
        yield {"change": describe_key(key), **describe_value(key, value)}


def dump_snapshot(path: Path) -> Iterator[dict[str, Any]]:
    """A dict of where a snapshot was taken, then what :func:`dump_manifest` gives of its source's manifest."""
    snapshot = decode_snapshot(OsDisk().read_all(path), str(path))
    yield {
        "applied_lsn": snapshot.applied_lsn,
        "total_bytes": snapshot.total_bytes,
        "epochs": [list(epoch) for epoch in snapshot.epochs],
    }
    yield from _manifest(snapshot.manifest)


def dump_log_mark(path: Path) -> Iterator[dict[str, Any]]:
    """One dict: how far the log was on the disk, where its segments ended, whether it was closed."""
    yield asdict(decode_log_mark(OsDisk().read_all(path), str(path)))


def _manifest(manifest: Manifest) -> Iterator[dict[str, Any]]:
    yield {
        "segment_bytes": manifest.segment_bytes,
        "next_number": manifest.next_number,
        "flushed_lsn": manifest.flushed_lsn,
        "extra": manifest.extra,
    }
    for increment in manifest.checkpoint:
        yield {"file": increment.name, **asdict(increment)}
    for number, run in enumerate(manifest.generations):
        for meta in run:
            yield {"level": 1, "generation": number, **_table(meta)}
    for meta in manifest.level0:
        yield {"level": 0, **_table(meta)}


def _table(meta: TableMeta) -> dict[str, Any]:
    return {"file": meta.name, **asdict(meta), "topics": list(meta.topics)}
