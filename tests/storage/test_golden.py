"""Golden bytes: what is written today is what was written when the format was fixed, and newer is refused."""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import crc32c
import msgpack
import numpy as np
import pytest
import zstandard

from lsmq.errors import CorruptFile, UnsupportedFormat
from lsmq.record_batch import Column, RecordBatch
from lsmq_node.storage.bloom import bloom_probe
from lsmq_node.storage.cache import BlockCache
from lsmq_node.storage.checkpoint import load_state
from lsmq_node.storage.disk import OsDisk
from lsmq_node.storage.dump import dump_checkpoint, dump_manifest, dump_sstable, dump_wal
from lsmq_node.storage.keyed_file import BLOCK, FOOTER, HEAD, KeyedFile
from lsmq_node.storage.manifest import decode_manifest
from lsmq_node.storage.open_tables import OpenTables
from lsmq_node.storage.producers import Head
from lsmq_node.storage.sstable import stored_batch
from lsmq_node.storage.table import Table
from lsmq_node.storage.wal import (
    BLOCK_BYTES,
    ENTRY_BYTES,
    FRAGMENT_BYTES,
    SEGMENT_HEADER,
    SEGMENT_HEADER_BYTES,
    Appender,
    segment_seed,
)
from lsmq_node.storage.wal_reader import LogReader

from .golden_files import FILES, GOLDEN, INCREMENTS, SEGMENT_BYTES, TIME_MS, checkpoint_state, table_meta, wal_entries
from .harness import known_deleted

TABLE = "000000000004.tbl"
WAL = "0000000000000000.wal"
CHECKPOINT = "000000000007.ckp"
ADVICE = "this release reads 1. Start the release that wrote it, or a newer one."


def golden(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


@pytest.mark.parametrize("name", [name for name in FILES if name != CHECKPOINT])
def test_bytes_are_the_golden_ones(name: str) -> None:
    assert FILES[name]() == golden(name)


def test_a_checkpoint_is_the_golden_one_but_for_how_zstd_packs() -> None:
    """Releases of zstd pack differently, so what is packed is compared unpacked."""

    def unpacked(raw: bytes) -> Any:
        tail_at, length, *_ = FOOTER.unpack(raw[-FOOTER.size :])
        tail = msgpack.unpackb(zstandard.decompress(raw[tail_at : tail_at + length]))
        [block_at] = [position for _, position in tail["index"]]
        return raw[: HEAD.size], tail, zstandard.decompress(raw[block_at + BLOCK.size : tail_at])

    assert unpacked(FILES[CHECKPOINT]()) == unpacked(golden(CHECKPOINT))


# -- what the golden bytes say ---------------------------------------------------------------------------


def test_a_golden_record_batch_is_read() -> None:
    batch = RecordBatch(golden("records.batch"))
    assert (batch.producer_id, batch.producer_epoch, batch.sequence) == (0x0102030405060708, 2, 3)
    messages = [(item.queue, item.body, item.key, item.tag) for item in batch.messages("t")]
    assert messages == [(7, b"one", None, None), (7, b"two", "k", "t"), (9, b"three", None, None)]


def test_a_golden_log_is_read() -> None:
    raw = golden(WAL)
    reader = LogReader(lambda lsn, length: raw[lsn : lsn + length], [0], SEGMENT_BYTES, "wal")
    entries = list(reader.entries(0))
    assert [entry.body for entry in entries] == [entry[ENTRY_BYTES:] for entry in wal_entries()]
    assert [entry.kind for entry in entries] == [2, 1, 1, 3, 4, 5, 6, 8]
    assert {entry.epoch for entry in entries} == {5}
    assert entries[2].lsn < BLOCK_BYTES < entries[2].end_lsn
    assert reader.end.lsn == len(raw)


def open_table(tmp_path: Path, raw: bytes) -> Table:
    (tmp_path / TABLE).write_bytes(raw)
    return Table(OsDisk(), tmp_path, table_meta(), BlockCache(0), OpenTables(8))


def test_a_golden_table_is_read(tmp_path: Path) -> None:
    opened = open_table(tmp_path, golden(TABLE))
    offsets: dict[tuple[int, int], list[int]] = {}
    for block in opened.scan():
        for key, offset in zip(block.keys.tolist(), block.offsets.tolist(), strict=True):
            offsets.setdefault((key >> 32, key & 0xFFFFFFFF), []).append(offset)
    shadow = 1 | 1 << 31
    assert offsets == {
        (1, 1): [0, 1, 2, 3, 4, 5],
        (1, 2): [10, 11, 12, 13],
        (1, 500): [0, 1],
        (shadow, 1): [3],
        (shadow, 2): [11],
    }
    for topic, queue in offsets:
        key = topic << 32 | queue
        pages = [page for page in opened.pages() if page.first_keys[0] <= key <= page.last_keys[-1]]
        assert pages
        assert all(page.may_contain(key, bloom_probe(key)) for page in pages)


def test_a_golden_manifest_is_read() -> None:
    found = decode_manifest(golden("MANIFEST"), "MANIFEST")
    assert (found.segment_bytes, found.next_number, found.flushed_lsn) == (SEGMENT_BYTES, 6, 4096)
    assert found.checkpoint == INCREMENTS
    assert found.level0 == found.generations[0] == (table_meta(),)


def test_a_golden_checkpoint_is_read() -> None:
    file = KeyedFile(OsDisk(), GOLDEN / CHECKPOINT, 7)
    state, expected = load_state([file]), checkpoint_state()
    state.producers.open([file])
    assert (file.properties["first_lsn"], file.properties["end_lsn"]) == (0, 4_096)
    assert (state.time_ms, state.next_topic_id, state.epochs) == (TIME_MS, 2, [(1, 0, 21, 2), (4, 2_048, 22, 5)])
    assert state.topics[1].topic == expected.topics[1].topic
    np.testing.assert_array_equal(state.topics[1].committed, expected.topics[1].committed)
    np.testing.assert_array_equal(state.topics[1].start, expected.topics[1].start)
    found, wanted = (each.offsets.get("group", 1) for each in (state, expected))
    assert found is not None and wanted is not None
    np.testing.assert_array_equal(found.first(16), wanted.first(16))
    deleted = state.topics[1].deletions
    assert deleted is not None
    assert deleted.end[[1, 2, 7]].tolist() == [5, 0, 2]
    assert deleted.floor[1] == 1
    assert known_deleted(state.topics[1]) == known_deleted(expected.topics[1])
    assert state.documents.items() == [("group/kitchen", b"state")]
    assert state.producers.head(9) == Head(1, 1, TIME_MS)
    stored = state.producers.answer(9, 1, 0)
    assert stored is not None
    assert (stored.lsn, stored.fingerprint, stored.offsets.tolist()) == (500, 0x01020304, [0, 1])


# -- newer versions --------------------------------------------------------------------------------------


def newer_batch(raw: bytes, sealed: bool = True) -> bytes:
    changed = bytearray(raw)
    changed[8] = 2
    if sealed:
        changed[:4] = crc32c.crc32c(changed[4:]).to_bytes(4, "little")
    return bytes(changed)


def test_a_newer_record_batch_in_a_file_is_refused() -> None:
    with pytest.raises(UnsupportedFormat, match=ADVICE):
        stored_batch(newer_batch(golden("records.batch")), "file", 0, "block")
    with pytest.raises(CorruptFile):
        stored_batch(newer_batch(golden("records.batch"), sealed=False), "file", 0, "block")


def read_log(raw: bytes) -> None:
    list(LogReader(lambda lsn, length: raw[lsn : lsn + length], [0], SEGMENT_BYTES, "wal").entries(0))


def refragmented(payload: bytes, kind: int) -> bytes:
    crc = crc32c.crc32c(payload, crc32c.crc32c(bytes((kind,)), segment_seed(0)))
    return struct.pack("<IHB", crc, len(payload), kind) + payload


def test_a_newer_log_is_refused() -> None:
    raw = golden(WAL)
    fields = list(SEGMENT_HEADER.unpack_from(raw, FRAGMENT_BYTES))
    fields[1] = 2
    with pytest.raises(UnsupportedFormat, match=f"log version 2; {ADVICE}"):
        read_log(refragmented(SEGMENT_HEADER.pack(*fields), 5) + raw[SEGMENT_HEADER_BYTES:])


def test_a_newer_log_entry_is_refused() -> None:
    appender = Appender(0, SEGMENT_BYTES)
    entry = bytearray(wal_entries()[0])
    entry[0] = 3
    appender.append(bytes(entry))
    with pytest.raises(UnsupportedFormat, match=f"entry at LSN 0 has version 3; {ADVICE.replace('1', '2')}"):
        read_log(b"".join(appender.take()[1]))


def test_a_newer_table_is_refused(tmp_path: Path) -> None:
    raw = bytearray(golden(TABLE))
    raw[-28:-24] = (3).to_bytes(4, "little")
    raw[-12:-8] = crc32c.crc32c(raw[-48:-12]).to_bytes(4, "little")
    with pytest.raises(UnsupportedFormat, match=f"table version 3; {ADVICE.replace('1', '2')}"):
        open_table(tmp_path, bytes(raw)).root()
    with pytest.raises(UnsupportedFormat, match="table version 3"):
        list(dump_sstable(tmp_path / TABLE))


def test_a_table_with_a_newer_block_is_refused(tmp_path: Path) -> None:
    raw = golden(TABLE)
    size = int.from_bytes(raw[4:8], "little")
    changed = newer_batch(raw[:size]) + raw[size:]
    with pytest.raises(UnsupportedFormat, match=f"the block at byte 0 has version 2; {ADVICE}"):
        open_table(tmp_path, changed).block(0, size)


def test_a_newer_manifest_is_refused() -> None:
    raw = bytearray(golden("MANIFEST"))
    raw[8:12] = (3).to_bytes(4, "little")
    with pytest.raises(CorruptFile, match="damaged"):
        decode_manifest(bytes(raw), "MANIFEST")
    raw[16:20] = crc32c.crc32c(raw[8:16] + raw[20:]).to_bytes(4, "little")
    with pytest.raises(UnsupportedFormat, match=f"manifest version 3; {ADVICE.replace('1', '2')}"):
        decode_manifest(bytes(raw), "MANIFEST")


def test_a_newer_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / CHECKPOINT
    raw = bytearray(golden(CHECKPOINT))
    raw[-8:-4] = (6).to_bytes(4, "little")
    path.write_bytes(raw)
    with pytest.raises(CorruptFile, match="damaged"):
        KeyedFile(OsDisk(), path, 7)
    raw[-4:] = crc32c.crc32c(raw[-24:-4]).to_bytes(4, "little")
    path.write_bytes(raw)
    with pytest.raises(UnsupportedFormat, match=f"checkpoint version 6; {ADVICE.replace('1', '5')}"):
        KeyedFile(OsDisk(), path, 7)


# -- dumps -----------------------------------------------------------------------------------------------


def test_a_dumped_log_shows_every_entry_and_why_it_ends() -> None:
    *entries, end = dump_wal(GOLDEN / WAL)
    kinds = ["catalog", "records", "records", "offsets", "trim", "delete", "epoch", "document"]
    assert [entry["kind"] for entry in entries] == kinds
    assert entries[0]["lsn"] == 0
    assert all(one["end_lsn"] == two["lsn"] for one, two in pairwise(entries))
    batch = entries[1]
    assert (batch["producer_id"], batch["producer_epoch"], batch["sequence"]) == (0x0102030405060708, 2, 3)
    assert (batch["topic_id"], batch["count"], batch["epoch"], batch["durable_lsn"]) == (1, 3, 5, 100)
    assert batch["bytes"] == len(golden("records.batch"))
    assert (batch["time_ms"], entries[2]["bytes"] > 33_000) == (TIME_MS + 1, True)
    assert end == {"end_lsn": len(golden(WAL)), "end": "segment file is short"}


def test_a_file_that_is_no_log_is_refused_whatever_its_name(tmp_path: Path) -> None:
    for name in ("notes.txt", "f1", "cafe.wal"):
        (tmp_path / name).write_bytes(b"no log")
        with pytest.raises(CorruptFile, match="neither its header nor its name"):
            list(dump_wal(tmp_path / name))


def test_a_dump_names_damage_after_what_lies_before_it(tmp_path: Path) -> None:
    path = tmp_path / WAL
    entries = wal_entries()
    appender = Appender(0, SEGMENT_BYTES)
    lsns = [appender.append(entry) for entry in entries]
    late = bytearray(entries[-1])
    late[8:16] = lsns[-2][1].to_bytes(8, "little")
    appender.append(bytes(late))
    raw = bytearray(b"".join(appender.take()[1]))
    raw[lsns[2][0] + 100] ^= 1
    path.write_bytes(raw)
    before = path.read_bytes()
    found = []
    with pytest.raises(CorruptFile, match=WAL):
        for item in dump_wal(path):
            found.append(item["kind"])
    assert found == ["catalog", "records"]
    assert path.read_bytes() == before


def test_a_dump_of_a_segment_skips_the_rest_of_an_entry_of_the_one_before(tmp_path: Path) -> None:
    appender = Appender(0, SEGMENT_BYTES)
    header = wal_entries()[7][:ENTRY_BYTES]
    appender.append(header + bytes(SEGMENT_BYTES))
    second = appender.append(header + b"second")
    stream = b"".join(appender.take()[1])
    path = tmp_path / "renamed.spare"
    path.write_bytes(stream[SEGMENT_BYTES:])
    [entry, end] = dump_wal(path)
    assert (entry["lsn"], entry["end_lsn"], entry["bytes"]) == (*second, 6)
    assert end["end_lsn"] == second[1]
    (tmp_path / "nonsense").write_bytes(b"no log at all")
    with pytest.raises(CorruptFile, match="nonsense"):
        list(dump_wal(tmp_path / "nonsense"))


def test_a_dumped_table_shows_blocks_or_records() -> None:
    head, *blocks = dump_sstable(GOLDEN / TABLE)
    assert (head["number"], head["record_count"], head["tombstone_count"], head["first_lsn"]) == (4, 14, 2, 31)
    assert head["blocks"] == len(blocks) > 2
    assert sum(block["records"] for block in blocks) == 14
    assert blocks[0]["first_queue"] == 1
    assert blocks[-1]["tombstones"]
    _, *records = dump_sstable(GOLDEN / TABLE, records=True)
    assert [(item["queue"], item["offset"]) for item in records][:7] == [(1, at) for at in range(6)] + [(2, 10)]
    assert [item["tombstone"] for item in records] == [False] * 12 + [True] * 2
    assert {item["topic_id"] for item in records} == {1}


def test_a_dumped_table_shows_keys_and_tags(tmp_path: Path) -> None:
    from lsmq_node.storage import ShardStore

    from .harness import Put, batch_of, small

    with ShardStore.open(tmp_path / "s", small()) as store:
        topic = store.create_topic("t", 2)
        store.append(topic.id, batch_of([Put(0, b"a", key="k", tag="g"), Put(1, b"b")]))
        store.flush()
    [path] = (tmp_path / "s" / "tables").glob("*.tbl")
    _, first, second = dump_sstable(path, records=True)
    assert (first["key"], first["tag"], first["offset"]) == ("k", "g", 0)
    assert "key" not in second
    *_, table = dump_manifest(tmp_path / "s" / "MANIFEST")
    assert table["file"] == path.name


def test_a_dumped_manifest_shows_its_tables() -> None:
    head, *rest = dump_manifest(GOLDEN / "MANIFEST")
    assert (head["flushed_lsn"], head["segment_bytes"]) == (4096, SEGMENT_BYTES)
    increments, tables = rest[:2], rest[2:]
    assert [(item["file"], item["first_lsn"], item["end_lsn"]) for item in increments] == [
        ("000000000003.ckp", 0, 2_048),
        ("000000000005.ckp", 2_048, 4_096),
    ]
    assert [(item["level"], item["file"], item["record_count"]) for item in tables] == [(1, TABLE, 14), (0, TABLE, 14)]


def test_a_dumped_checkpoint_shows_what_changed() -> None:
    head, erased, *changes = dump_checkpoint(GOLDEN / CHECKPOINT)
    assert (head["first_lsn"], head["end_lsn"], head["changes"]) == (0, 4_096, 6)
    assert head["epochs"] == [[1, 0, 21, 2], [4, 2_048, 22, 5]]
    assert erased == {"erased": "group gone"}
    assert [item["change"] for item in changes] == [
        "topic 1",
        "topic 1 queues from 0",
        "document group/kitchen",
        "document txn/1",
        "group group topic 1 queues from 0",
        "producer 9",
    ]
    assert (changes[0]["name"], changes[0]["queues"]) == ("orders", 16)
    assert changes[3] == {"change": "document txn/1", "deleted": True}
    assert changes[5] == {
        "change": "producer 9",
        "epoch": 1,
        "next_sequence": 1,
        "last_ms": TIME_MS,
        "answers": 1,
        "lsns": [500],
    }


def test_a_golden_table_holds_the_columns_it_was_given() -> None:
    _, *blocks = dump_sstable(GOLDEN / TABLE)
    assert set(blocks[0]["columns"]) >= {"topic", "queue", "offset", "length", "stored_ms"}
    assert all(Column[name.upper()] for block in blocks for name in block["columns"])
