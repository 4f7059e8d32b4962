"""What a store's writers and readers may cost, counted and not timed: steps of back pressure, files touched, reads."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from lsmq.errors import StoreBusy
from lsmq_lab.world.drive import Drive
from lsmq_node.storage import ShardStore, StoredTopic, TopicOptions
from lsmq_node.storage.disk import OsFile
from support.counted_lines import counted_lines

from .harness import freeze, keep_house, open_stepped, put, small


def test_memtables_wait_then_writers_are_slowed_then_refused_and_a_flush_lets_them_in_again(tmp_path: Path) -> None:
    store = open_stepped(tmp_path, small(slow_memtables=2, max_memtables=4), Drive(tmp_path))
    topic = store.create_topic("t", 1).id
    seen = []
    for waiting in range(5):
        seen.append((store.stats().frozen_memtables, store.pressure))
        if waiting < 4:
            put(store, topic, (0, b"x"))
            freeze(store)
    assert seen == [(0, "ok"), (1, "ok"), (2, "slow"), (3, "slow"), (4, "refuse")]
    with pytest.raises(StoreBusy):
        put(store, topic, (0, b"y"))
    store._tables.flush_oldest()
    assert store.pressure == "slow"
    put(store, topic, (0, b"y"))
    assert store.bounds(topic, 0) == (0, 5)
    store.close()


def test_a_writer_makes_renames_and_removes_no_file(tmp_path: Path) -> None:
    disk = Drive(tmp_path)
    store = open_stepped(tmp_path, small(), disk)
    topic = store.create_topic("t", 4).id
    made: set[str] = set()
    for round in range(12):  # 12 times 24 KiB, through segments of 64 KiB
        keep_house(store)
        before = len(disk.log)
        put(store, topic, *((queue, bytes([round]) * 6000) for queue in range(4)))
        made |= {line.split()[0] for line in disk.log[before:]}
    assert len(disk.list(tmp_path / "wal")) > 3
    assert made == {"write", "sync"}
    store.close()


def test_a_cold_message_costs_two_reads_of_its_table_and_its_neighbour_none(tmp_path: Path) -> None:
    disk = Drive(tmp_path)
    store = open_stepped(tmp_path, small(memtable_bytes=1 << 20, table_bytes=1 << 20), disk)
    topic = store.create_topic("t", 100).id
    for _ in range(4):
        put(store, topic, *((queue, b"%03d" % queue * 100) for queue in range(100)))
    freeze(store)
    store._tables.flush_oldest()
    assert store.stats().tables == 1
    store.close()
    again = open_stepped(tmp_path, small(), disk)
    reads: list[int] = []
    pread = OsFile.pread

    def counted(file: OsFile, length: int, position: int) -> bytes:
        reads.append(position)
        return pread(file, length, position)

    with mock.patch.object(OsFile, "pread", counted):
        for offset, most in ((2, 2), (3, 0)):
            before = len(reads)
            found = again.read(topic, 57, offset, max_records=1, max_bytes=1 << 20)
            assert b"057" * 100 in found.load()
            assert len(reads) - before <= most
    again.close()


def test_numbers_of_a_store_cost_the_same_however_many_topics_there_are(tmp_path: Path) -> None:
    with ShardStore.open(tmp_path, small()) as store:

        def looked_at() -> int:
            with counted_lines() as lines:
                store.stats()
            return lines.count

        few = looked_at()
        for number in range(1, 401):
            store.put_topic(StoredTopic(number, f"t{number}", 6), 2, 4)
        store.put_topic(StoredTopic(401, "named", 8, TopicOptions(named=True)), 0, 0)
        store.commit()
        assert looked_at() < few + 100
        assert (store.stats().topics, store.stats().queues) == (401, 800)
        store.put_topic(StoredTopic(1, "t1", 9), 2, 7)
        store.drop_topic(2)
        store.commit()
        assert (store.stats().topics, store.stats().queues) == (400, 801)
        put(store, 401, (0, b"x"), (1, b"y"))
        store.drop_topic(3)
        assert (store.stats().topics, store.stats().queues) == (400, 803)
        store.commit()
        assert (store.stats().topics, store.stats().queues) == (399, 801)
        store.flush()
    with ShardStore.open(tmp_path, small()) as store:
        assert (store.stats().topics, store.stats().queues) == (399, 801)
        store.drop_topic(401)
        store.commit()
        assert (store.stats().topics, store.stats().queues) == (398, 799)
