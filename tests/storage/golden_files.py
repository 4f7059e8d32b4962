"""Builds the golden files: one of each format, the same bytes every time.

``python -m storage.golden_files`` (from ``tests``) writes them. Only do that for a new version of a format, next
to the old one: these bytes are on users' disks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import msgpack
import numpy as np

from lsmq.record_batch import Codec, Column, encode_batch, encode_header, key_hash, tag_hash
from lsmq_node.storage.checkpoint import IncrementMeta, write_increment
from lsmq_node.storage.columns import queue_keys
from lsmq_node.storage.dedupe_chain import write_ids
from lsmq_node.storage.dedupe_file import newest_of
from lsmq_node.storage.dedupe_layer import ROW
from lsmq_node.storage.disk import OsDisk
from lsmq_node.storage.epochs import StoredEpochStart, encode_life
from lsmq_node.storage.manifest import Manifest, encode_manifest
from lsmq_node.storage.producers import StoredBatch
from lsmq_node.storage.snapshot import SnapshotManifest, encode_snapshot
from lsmq_node.storage.sorted_records import TOMBSTONE_TOPIC, SortedRecords
from lsmq_node.storage.sstable import TableMeta, TableWriter
from lsmq_node.storage.state import ShardState, StoredTopic, TopicOptions
from lsmq_node.storage.wal import BLOCK_BYTES, Appender, EntryKind, encode_entry_header

GOLDEN = Path(__file__).parent / "golden"
TIME_MS = 1_700_000_000_000
SEGMENT_BYTES = 2 * BLOCK_BYTES
EPOCHS = (StoredEpochStart(1, 0, 21, 2), StoredEpochStart(4, 2_048, 22, 5))
INCREMENTS = (IncrementMeta(3, 300, 0, 2_048), IncrementMeta(5, 200, 2_048, 4_096))


def record_batch() -> bytes:
    """Three records of two queues; the second has a key and a tag."""
    header = encode_header("k", "t", None)
    bodies = [b"one", header + b"two", b"three"]
    return encode_batch(
        3,
        {
            Column.QUEUE: [7, 7, 9],
            Column.LENGTH: [len(item) for item in bodies],
            Column.HEADER_LENGTH: [0, len(header), 0],
            Column.KEY_HASH: [0, key_hash("k"), 0],
            Column.TAG_HASH: [0, tag_hash("t"), 0],
        },
        b"".join(bodies),
        producer_id=0x0102030405060708,
        producer_epoch=2,
        sequence=3,
    )


def wal_entries() -> list[bytes]:
    """A topic, a batch, one that runs over a block's border, an offset, a trim, a tombstone, an epoch, documents."""
    put = msgpack.packb(["put", 1, "orders", 16, TopicOptions().to_dict(), TIME_MS, 0, 16])
    small = record_batch()
    large = encode_batch(1, {Column.QUEUE: [3], Column.LENGTH: [33_000]}, b"0123456789" * 3_300)
    position = encode_batch(1, {Column.QUEUE: [7], Column.OFFSET: [1]}, b"")
    group = msgpack.packb(["group", position, False])
    entries = [
        (EntryKind.CATALOG, 1, 0, 0, put),
        (EntryKind.RECORDS, 1, 3, 1, small),
        (EntryKind.RECORDS, 1, 1, 0, large),
        (EntryKind.OFFSETS, 1, 1, 0, group),
        (EntryKind.TRIM, 1, 1, 0, position),
        (EntryKind.DELETE, 1, 1, 0, position),
        (EntryKind.EPOCH, 0, 0, 0, encode_life(21, 2)),
        (EntryKind.DOCUMENT, 0, 0, 0, msgpack.packb([["group/kitchen", b"state"], ["txn/1", None]])),
    ]
    return [
        encode_entry_header(kind, 5, 100 * number, TIME_MS + number, topic_id, count, check) + body
        for number, (kind, topic_id, count, check, body) in enumerate(entries)
    ]


def wal_segment() -> bytes:
    """The first segment of a log; the rest of the file would be zeros."""
    appender = Appender(0, SEGMENT_BYTES)
    for entry in wal_entries():
        appender.append(entry)
    return b"".join(appender.take()[1])


def table_records() -> SortedRecords:
    """Twelve messages of three queues, and two tombstones."""
    queues = np.array([1] * 6 + [2] * 4 + [500] * 2, np.uint32)
    keys = np.concatenate([queue_keys(1, queues), queue_keys(1 | TOMBSTONE_TOPIC, np.array([1, 2], np.uint32))])
    bodies = [b"message %02d " % at * (at % 3 + 1) for at in range(12)] + [b"", b""]
    return SortedRecords(
        keys,
        {
            Column.OFFSET: np.array([*range(6), *range(10, 14), 0, 1, 3, 11], np.int64),
            Column.LENGTH: np.array([len(item) for item in bodies], np.uint32),
            Column.STORED_MS: TIME_MS + np.arange(14, dtype=np.int64) * 10,
            Column.PRIORITY: np.array([at % 4 for at in range(12)] + [0, 0], np.uint8),
            Column.FLAGS: np.array([0] * 12 + [1, 1], np.uint8),
        },
        np.frombuffer(b"".join(bodies), np.uint8),
    )


def table() -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "000000000004.tbl"
        writer = TableWriter(OsDisk(), path, 4, block_bytes=120, codec=Codec.NONE)
        writer.add(table_records())
        writer.finish(31, 4_096, 31)
        return path.read_bytes()


def table_meta() -> TableMeta:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "000000000004.tbl"
        writer = TableWriter(OsDisk(), path, 4, block_bytes=120, codec=Codec.NONE)
        writer.add(table_records())
        return writer.finish(31, 4_096, 31)


def manifest() -> bytes:
    meta = table_meta()
    return encode_manifest(Manifest(SEGMENT_BYTES, 6, 4_096, INCREMENTS, (meta,), ((meta,),)))


def checkpoint_state() -> ShardState:
    state = ShardState()
    state.put_topic(StoredTopic(1, "orders", 16, TopicOptions(retention_ms=3_600_000), TIME_MS), 0, 16)
    topic = state.topics[1]
    state.land(topic, np.array([1, 2, 7]), np.array([6, 14, 2]))
    state.trim(1, np.array([2], np.uint32), np.array([10]))
    state.delete(1, np.array([1, 1, 7], np.uint32), np.array([0, 4, 1]))
    state.commit_offsets("group", 1, np.array([7], np.uint32), np.array([1], np.int64), reset=False)
    state.epochs = list(EPOCHS)
    state.documents.put("group/kitchen", b"state")
    state.documents.put("txn/1", None)
    state.commit_offsets("gone", 1, np.array([7], np.uint32), np.array([1], np.int64), reset=False)
    state.drop_group("gone")
    state.producers.record(9, StoredBatch(1, 0, 0x01020304, 500, TIME_MS, np.array([0, 1], np.int64)))
    state.time_ms = TIME_MS
    return state


def checkpoint() -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        meta = write_increment(OsDisk(), Path(directory), 7, checkpoint_state().take_change(4_096))
        return (Path(directory) / meta.name).read_bytes()


def snapshot() -> bytes:
    meta = table_meta()
    described = Manifest(SEGMENT_BYTES, 6, 4_096, INCREMENTS, (meta,), ((meta,),))
    return encode_snapshot(SnapshotManifest(described, EPOCHS))


def dedupe_ids() -> bytes:
    """Two ids of topic 1."""
    rows = np.array([(7 << 60, 5, 40, TIME_MS, 1), (3 << 60, 0x0102030405060708, 41, TIME_MS + 1, 1)], ROW)
    with tempfile.TemporaryDirectory() as directory:
        write_ids(OsDisk(), Path(directory), 8, iter((newest_of(rows),)), len(rows), 4_096)
        return (Path(directory) / "000000000008.ids").read_bytes()


FILES: dict[str, Callable[[], bytes]] = {
    "records.batch": record_batch,
    "0000000000000000.wal": wal_segment,
    "000000000004.tbl": table,
    "MANIFEST": manifest,
    "000000000007.ckp": checkpoint,
    "SNAPSHOT": snapshot,
    "000000000008.ids": dedupe_ids,
}


if __name__ == "__main__":
    for name, build in FILES.items():
        (GOLDEN / name).write_bytes(build())
