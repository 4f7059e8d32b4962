"""Which runs a read looks at: few, however many there are, and always the right ones."""

from __future__ import annotations

import sys
import tempfile
import threading
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq.errors import CorruptFile
from lsmq.record_batch import BatchBuilder, RecordBatch
from lsmq_lab.world.drive import Drive
from lsmq_node.letters import records_of
from lsmq_node.storage import locate
from lsmq_node.storage.block import Block
from lsmq_node.storage.disk import OsFile
from lsmq_node.storage.point_reads import PLACE_BYTES, PLACE_LIMIT, BlockPlace, Places

from .harness import abandon, body, flush, open_stepped, profile, put, small


@profile(300)
@given(st.lists(st.one_of(st.none(), st.integers(1, 5)), max_size=70), st.integers(0, 120))
def test_the_search_finds_what_asking_each_would_and_asks_each_at_most_once(
    steps: list[int | None], offset: int
) -> None:
    """``steps``: by how much the queue begins earlier in each next older run; None where it has nothing."""
    begins: list[int | None] = []
    first = sum(step or 0 for step in steps)
    for step in steps:
        first -= step or 0
        begins.append(None if step is None else first)
    expected = next((at for at, begin in enumerate(begins) if begin is not None and begin <= offset), len(begins))
    asked: list[int] = []

    def behind(run: int, *_: object) -> bool | None:
        asked.append(run)
        begin = begins[run]
        return None if begin is None else begin > offset

    with mock.patch.object(locate, "_begins_behind", behind):
        found = locate.newest_holding(range(len(begins)), 0, (0, 0), offset)  # type: ignore[arg-type]
    assert found == expected
    assert len(set(asked)) == len(asked)
    present = sum(begin is not None for begin in begins)
    assert sum(begins[run] is not None for run in asked) <= present.bit_length() + 1


TABLES = 40
_HOUR_MS = 3_600_000
QUEUES = 100


def with_many_runs(disk: Drive, path: Path) -> tuple[int, int]:
    """Forty tables of level 0, each with a message of each queue. Returns the topic, and the bytes of a table."""
    store = open_stepped(path, small(level0_merge=50, slow_level0=60), disk)
    topic = store.create_topic("t", QUEUES).id
    for number in range(TABLES):
        put(store, topic, *((queue, body(number, 200)) for queue in range(QUEUES)))
        flush(store)
    size = store._tables.version.level0[0].size_bytes
    store.close()
    return topic, size


@pytest.mark.parametrize("offset", [0, 1, 13, TABLES - 2, TABLES - 1])
def test_of_many_runs_a_cold_message_costs_a_few_looks(tmp_path: Path, offset: int) -> None:
    disk = Drive(tmp_path)
    topic, _ = with_many_runs(disk, tmp_path / "s")
    reads: list[int] = []
    pread = OsFile.pread

    def counted(file: OsFile, length: int, position: int) -> bytes:
        reads.append(position)
        return pread(file, length, position)

    for point in (True, False):
        store = open_stepped(tmp_path / "s", small(level0_merge=50, slow_level0=60), disk)
        reads.clear()
        with mock.patch.object(OsFile, "pread", counted):
            if point:
                assert store.read_bytes(topic, 57, offset, 1) == [body(offset, 200)]
            else:
                assert store.read(topic, 57, offset, max_records=1).record_count == 1
        most = 2 if offset == TABLES - 1 and point else 2 * (TABLES.bit_length() + 2)  # index and block, a look
        assert len(reads) <= most
        abandon(store)


def test_a_damaged_block_that_a_read_only_passes_by_does_it_no_harm(tmp_path: Path) -> None:
    disk = Drive(tmp_path)
    topic, _ = with_many_runs(disk, tmp_path / "s")
    store = open_stepped(tmp_path / "s", small(level0_merge=50, slow_level0=60, cache_bytes=0), disk)
    for damaged in (3, 20, 38):  # of the tables by age, all of their blocks
        table = store._tables.version.level0[TABLES - 1 - damaged].tables[0]
        raw = bytearray(disk.content(table.path))
        for page in table.pages():
            for position in page.positions:
                raw[position + 70] ^= 1
        disk.put(table.path, bytes(raw))
    for offset in range(TABLES):
        for read in (
            lambda at=offset: store.read_bytes(topic, 57, at, 1),
            lambda at=offset: store.read(topic, 57, at, max_records=1).load(),
        ):
            if offset in (3, 20, 38):
                with pytest.raises(CorruptFile, match=r"the block at byte \d+ is damaged"):
                    read()
            else:
                assert read()
    abandon(store)


@profile(10)
@given(st.data())
def test_of_any_runs_any_part_of_a_queue_is_read_whole(data: st.DataObject) -> None:
    """Walked, searched, or both: up to 24 tables, in each of which a queue has some messages or none."""
    tables = data.draw(st.sampled_from((1, 3, 5, 9, 16, 18, 24)))
    draw = st.lists(st.sampled_from((0, 0, 1, 1, 2, 7)), min_size=4, max_size=4)
    with tempfile.TemporaryDirectory() as directory:
        disk = Drive(Path(directory))
        store = open_stepped(Path(directory) / "s", small(level0_merge=50, slow_level0=60), disk)
        topic, written = store.create_topic("t", 4).id, [list[bytes]() for _ in range(4)]
        for number in range(tables):
            for queue, count in enumerate(data.draw(draw)):
                mine = [body(number * 10 + at, 700) for at in range(count)]
                written[queue] += mine
                if mine:
                    put(store, topic, *((queue, content) for content in mine))
            if number != tables - 1 or data.draw(st.booleans()):
                flush(store)
        for queue, contents in enumerate(written):
            for offset in data.draw(st.lists(st.integers(0, len(contents)), max_size=12)):
                count = data.draw(st.sampled_from((1, 2, 5, 1_000)))
                expected = contents[offset : offset + count]
                assert store.read_bytes(topic, queue, offset, count) == expected
                found = store.read(topic, queue, offset, max_records=count, max_bytes=1 << 20)
                messages = [message for batch in found.batches() for message in batch.messages("t")]
                wanted = [message.body for message in messages if message.offset >= offset]
                assert wanted[: len(expected)] == expected
                one = store.read_one(topic, queue, offset)
                assert [] if one is None else [one.record] == expected[:1]
        abandon(store)


def test_one_message_is_what_a_read_of_many_has_there_in_memory_and_in_tables(tmp_path: Path) -> None:
    store = open_stepped(tmp_path / "s", small())
    topic = store.create_topic("t", 2).id
    batches = BatchBuilder(), BatchBuilder()
    for number in range(60):
        key, queue = f"k{number}" if number % 3 else None, number % 2
        batches[queue].add(queue, body(number, 100 + number), key=key, priority=number % 4, expires=queue * _HOUR_MS)
    packed = [RecordBatch(batch.build()) for batch in batches]
    for flushed in (False, True):
        for batch in packed:
            store.wait(store.append(topic, batch))
        if flushed:
            flush(store)
        for queue in range(2):
            for offset in range(store.bounds(topic, queue)[1]):
                (many,) = store.read(topic, queue, offset, max_records=1).batches()
                (record,) = (record for record in records_of(many) if record.offset == offset)
                one = store.read_one(topic, queue, offset)
                assert one is None if record.expires_ms else one is not None
                if one is not None:
                    assert one.record == record.header + record.body and one.header_length == len(record.header)
                    assert (one.priority, one.stored_ms, one.flags) == (record.priority, record.stored_ms, record.flags)
                    assert (one.key_hash, one.expires_ms) == (record.key, 0)
            assert store.read_one(topic, queue, store.bounds(topic, queue)[1]) is None
    abandon(store)


def test_a_message_that_is_not_there_any_more_is_not_read_as_one(tmp_path: Path) -> None:
    """Though its block was read just before, and is remembered."""
    store = open_stepped(tmp_path / "s", small())
    topic = store.create_topic("t", 1).id
    put(store, topic, *((0, body(number, 100)) for number in range(40)))
    flush(store)
    assert all(store.read_one(topic, 0, offset) for offset in range(40))
    store.wait(store.trim(topic, np.array([0], np.uint32), np.array([10])))
    store.wait(store.delete(topic, np.array([0], np.uint32), np.array([20])))
    found = [offset for offset in range(40) if store.read_one(topic, 0, offset)]
    assert found == list(range(21, 40))
    abandon(store)


# -- what readers share ----------------------------------------------------------------------------------


def test_places_are_bounded_and_may_be_noted_by_many_threads_at_once() -> None:
    """Without leaning on the interpreter's lock: switching threads at every step must not show."""
    places, failures = Places(), []
    block = mock.Mock(spec=Block, memory_bytes=1_000)

    def note(first: int) -> None:
        try:
            for key in range(first, first + 30_000):
                places.note(key, BlockPlace(block, 0, key, key + 1))
                found = places.get(key, key)
                assert found is None or found.first == key
        except BaseException as error:
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=note, args=(number * 1_000_003,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert failures == []
    assert len(places) == PLACE_LIMIT


def test_a_place_in_a_large_block_is_not_remembered() -> None:
    places = Places()
    places.note(1, BlockPlace(mock.Mock(spec=Block, memory_bytes=PLACE_BYTES + 1), 0, 0, 9))
    assert len(places) == 0
    assert places.get(1, 0) is None


def test_places_that_nobody_asks_for_are_forgotten(tmp_path: Path) -> None:
    """They are blocks beside the cache: a shard whose reader has gone keeps none."""
    store = open_stepped(tmp_path / "s", small())
    topic = store.create_topic("t", 1).id
    put(store, topic, *((0, body(number, 100)) for number in range(8)))
    flush(store)
    for offset in range(4):
        assert store.read_one(topic, 0, offset)
        store._tables.trim()
        assert len(store._tables.places) == 1
    store._tables.trim()
    assert len(store._tables.places) == 0
    assert store.read_one(topic, 0, 4)
    abandon(store)
