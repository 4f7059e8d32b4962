"""Messages by key: all of them, newest first, whatever lies where, and from few blocks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq.record_batch import BatchBuilder, RecordBatch, key_hash
from lsmq_lab.world.drive import Drive
from lsmq_node.storage import KeyQuery, Position, ShardStore, Slice, key_index
from lsmq_node.storage.disk import OsFile
from lsmq_node.storage.key_index import KeyDirectory, KeyIndexWriter, KeyPage, entry_hashes
from lsmq_node.storage.key_search import END
from lsmq_node.storage.snapshot_target import verify_table
from support.clock import SimClock

from .harness import abandon, flush, merge, open_stepped, profile, small

QUEUES = 5
KEYS = [f"key-{number}" for number in range(6)]


class Shard:
    """A stepped store with a clock of its own, and what was put into it."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.disk, self.clock = Drive(path), SimClock()
        self.path = path / "s"
        self.options = options
        self.store = self._open()
        self.topic = self.store.create_topic("t", QUEUES).id
        self.other = self.store.create_topic("other", QUEUES).id
        self.rows: dict[tuple[int, int], tuple[int, str | None]] = {}  # by queue and offset: time and key

    def _open(self) -> ShardStore:
        return open_stepped(self.path, small(**{"block_bytes": 512, **self.options}), self.disk, self.clock)

    def put(self, topic: int, messages: Sequence[tuple[int, str | None]], size: int = 20) -> None:
        builder = BatchBuilder()
        for queue, key in messages:
            builder.add(queue, b"x" * size, key=key)
        appended = self.store.append(topic, RecordBatch(builder.build()))
        self.store.wait(appended)
        if topic == self.topic:
            for (queue, key), offset in zip(messages, appended.offsets.tolist(), strict=True):
                self.rows[queue, offset] = (appended.stored_ms, key)

    def reopen(self) -> None:
        self.store.close()
        self.store = self._open()

    def expected(self, key: str, from_ms: int, to_ms: int, queue: int | None = None) -> list[Position]:
        return sorted(
            (
                Position(stored_ms, number, offset)
                for (number, offset), (stored_ms, other) in self.rows.items()
                if other == key and from_ms <= stored_ms < to_ms and queue in (None, number)
            ),
            reverse=True,
        )

    def query(self, key: str, **asked: Any) -> KeyQuery:
        limits = {"limit": 1_000, "max_bytes": 1 << 20, "max_blocks": 1_000}
        return KeyQuery(self.topic, key_hash(key), **{**limits, **asked})

    def all(self, key: str, **asked: Any) -> list[Position]:
        """Page by page."""
        found: list[Position] = []
        before = END
        while True:
            part = self.store.find_key(self.query(key, before=before, **asked), _key_is(key))
            found += [place for place, _ in part.matches]
            if part.reached is None:
                return found
            assert part.reached < before, "a page goes on"
            before = part.reached


def _key_is(key: str) -> Any:
    def made(found: Slice) -> str | None:
        (batch,) = found.batches()
        (message,) = batch.messages("t")
        return message.key if message.key == key else None

    return made


puts = st.tuples(
    st.just("put"),
    st.lists(st.tuples(st.integers(0, QUEUES - 1), st.sampled_from([*KEYS, None])), min_size=1, max_size=40),
)
steps = st.lists(
    st.one_of(
        puts,
        st.tuples(st.just("other"), st.sampled_from(KEYS)),
        st.tuples(st.just("wait"), st.sampled_from([0, 1, 1_000, 10**9])),
        st.tuples(st.just("flush"), st.none()),
        st.tuples(st.just("merge"), st.none()),
        st.tuples(st.just("reopen"), st.none()),
        st.tuples(st.just("trim"), st.tuples(st.integers(0, QUEUES - 1), st.integers(0, 30))),
        st.tuples(st.just("delete"), st.tuples(st.integers(0, QUEUES - 1), st.integers(0, 30))),
    ),
    max_size=30,
)


@profile(120)
@given(
    steps,
    st.sampled_from(KEYS),
    st.integers(1, 7),
    st.sampled_from([1, 3, 1_000]),
    st.sampled_from([None, 2]),
    st.data(),
)
@pytest.mark.part(3)
def test_a_search_finds_what_looking_at_everything_would_newest_first(
    tmp_path_factory: pytest.TempPathFactory,
    done: list[tuple[str, Any]],
    key: str,
    limit: int,
    max_blocks: int,
    queue: int | None,
    data: st.DataObject,
) -> None:
    shard = Shard(tmp_path_factory.mktemp("keys"))
    store_topic = shard.topic
    for what, value in done:
        ends = shard.store.latest_offsets(store_topic)
        match what:
            case "put":
                shard.put(shard.topic, value)
            case "other":
                shard.put(shard.other, [(0, value)])
            case "wait":
                shard.clock.time_ms += value
            case "flush":
                flush(shard.store)
            case "merge":
                merge(shard.store)
            case "reopen":
                shard.reopen()
            case "trim" | "delete":
                number, offset = value[0], min(value[1], int(ends[value[0]]) - (what == "delete"))
                if offset >= 0:
                    change = shard.store.trim if what == "trim" else shard.store.delete
                    shard.store.wait(change(shard.topic, np.array([number], np.uint32), np.array([offset])))
                    below = offset if what == "trim" else 0
                    shard.rows = {
                        at: row
                        for at, row in shard.rows.items()
                        if at[0] != number or not (at[1] < below or (what == "delete" and at[1] == offset))
                    }
    times = sorted({stored_ms for stored_ms, _ in shard.rows.values()}) or [0]
    from_ms, to_ms = data.draw(st.sampled_from([0, *times])), data.draw(st.sampled_from([*times, times[-1] + 1]))
    found = shard.all(key, limit=limit, max_blocks=max_blocks, from_ms=from_ms, to_ms=to_ms, queue=queue)
    assert found == shard.expected(key, from_ms, to_ms, queue)
    abandon(shard.store)


def test_messages_of_one_millisecond_are_in_order_wherever_they_lie(tmp_path: Path) -> None:
    shard = Shard(tmp_path)
    for queue in (4, 2, 3, 0, 1):
        shard.put(shard.topic, [(queue, "key")])
        if queue != 1:
            flush(shard.store)
    expected = shard.expected("key", 0, 1 << 62)
    assert len({place.stored_ms for place in expected}) == 1
    for limit in (1, 2, 5):
        assert shard.all("key", limit=limit) == expected
    abandon(shard.store)


def filled(shard: Shard, tables: int, messages: int) -> None:
    """Tables of many keys each; the key ``rare`` is once in each second one."""
    for number in range(tables):
        shard.clock.time_ms += 60_000
        many: list[tuple[int, str | None]] = [(at % QUEUES, f"of-many-{number}-{at}") for at in range(messages)]
        if number % 2:
            many[messages // 2] = (number % QUEUES, "rare")
        shard.put(shard.topic, many, size=100)
        flush(shard.store)


def test_only_blocks_that_may_hold_the_key_are_read(tmp_path: Path) -> None:
    shard = Shard(tmp_path, level0_merge=50, slow_level0=60)
    filled(shard, 20, 200)
    blocks = sum(page.count for table in shard.store._tables.version.tables() for page in table.pages())
    shard.reopen()
    reads: list[int] = []
    pread = OsFile.pread

    def counted(file: OsFile, length: int, position: int) -> bytes:
        reads.append(length)
        return pread(file, length, position)

    with mock.patch.object(OsFile, "pread", counted):
        found = shard.store.find_key(shard.query("rare", limit=5), _key_is("rare"))
    assert [place for place, _ in found.matches] == shard.expected("rare", 0, 1 << 62)[:5]
    assert found.work.blocks == 5 and blocks > 500
    assert found.work.tables <= 10  # the older ones are not asked: five newer messages were found
    assert len(reads) <= 10 * 4 + 5 * 2
    at_ms = shard.expected("rare", 0, 1 << 62)[7].stored_ms
    with mock.patch.object(OsFile, "pread", counted):
        found = shard.store.find_key(shard.query("rare", from_ms=at_ms, to_ms=at_ms + 1), _key_is("rare"))
    assert [place.stored_ms for place, _ in found.matches] == [at_ms]
    assert (found.work.tables, found.work.blocks, found.work.tables_passed_over) == (1, 1, 19)
    abandon(shard.store)


def test_merged_tables_know_their_keys(tmp_path: Path) -> None:
    shard = Shard(tmp_path)
    filled(shard, 9, 200)
    merge(shard.store)
    assert shard.store._tables.version.generations
    found = shard.store.find_key(shard.query("rare"), _key_is("rare"))
    assert [place for place, _ in found.matches] == shard.expected("rare", 0, 1 << 62)
    assert found.work.tables_without_keys == 0 and found.work.blocks <= 8
    abandon(shard.store)


def test_tables_without_keys_are_looked_through(tmp_path: Path) -> None:
    """As earlier releases wrote them."""
    shard = Shard(tmp_path)
    with mock.patch.object(KeyIndexWriter, "finish", lambda self: b""):
        filled(shard, 3, 50)
    filled(shard, 2, 50)
    found = shard.store.find_key(shard.query("rare"), _key_is("rare"))
    assert [place for place, _ in found.matches] == shard.expected("rare", 0, 1 << 62)
    assert found.work.tables_without_keys == 3
    assert shard.all("rare", max_blocks=1, limit=1) == shard.expected("rare", 0, 1 << 62)
    abandon(shard.store)


def test_another_key_with_the_same_hash_is_not_given(tmp_path: Path) -> None:
    shard = Shard(tmp_path)
    with mock.patch("lsmq.batch_builder.key_hash", lambda key: 7):
        shard.put(shard.topic, [(0, "one"), (1, "two"), (0, "two")])
    flush(shard.store)
    query = KeyQuery(shard.topic, 7, 10, 1 << 20, 10)
    found = shard.store.find_key(query, _key_is("two"))
    assert [place[1:] for place, _ in found.matches] == [(1, 0), (0, 1)]
    assert found.work.messages == 3
    abandon(shard.store)


@pytest.mark.part(2)
def test_every_damaged_byte_of_the_keys_is_found_and_the_messages_with_it(tmp_path: Path) -> None:
    shard = Shard(tmp_path, cache_bytes=0)
    filled(shard, 2, 400)
    expected = shard.expected("rare", 0, 1 << 62)
    table = shard.store._tables.version.tables()[0]
    intact = bytes(shard.disk.content(table.path))
    begin, end = table.meta.index_position, table.root().positions[0]
    assert end - begin > key_index.PAGE_BYTES
    verify_table(shard.disk, table.path, table.meta)
    for at in range(begin, end, 7):
        raw = bytearray(intact)
        raw[at] ^= 0x10
        shard.disk.put(table.path, bytes(raw))
        with pytest.raises(Exception, match=r"damaged|says"):
            verify_table(shard.disk, table.path, table.meta)
        found = shard.store.find_key(shard.query("rare"), _key_is("rare"))
        assert [place for place, _ in found.matches] == expected
    abandon(shard.store)


@profile(100)
@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(0, 1 << 45), st.integers(0, 50)),
        min_size=1,
        max_size=900,
    )
)
def test_entries_of_a_key_are_given_from_the_newest_on_whatever_the_times(
    rows: list[tuple[int, int, int, int]],
) -> None:
    """Rows of topic, key hash, time and block; times may lie so far apart that they are rounded."""
    writer = KeyIndexWriter()
    rows.sort(key=lambda row: row[3])
    topics, hashes, times, blocks = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    cuts = np.array([*blocks.searchsorted(np.arange(51)), len(rows)], np.int64)
    writer.add(topics.astype(np.uint32), hashes.astype(np.uint64), times, cuts, np.arange(51) * 1000)
    raw = writer.finish()
    directory = KeyDirectory(raw[: int.from_bytes(raw[4:8], "little")])
    for topic, digest, middle in ((1, 1, 0), (2, 3, 1 << 30), (3, 4, int(times.max()))):
        value = int(entry_hashes(np.array([topic], np.uint32), np.array([digest], np.uint64))[0])
        begin, end = directory.bounds(value, middle, 1 << 62)
        found: list[tuple[int, int]] = []
        number, at = 0, directory.size_bytes
        for number in range(directory.page_count):
            page = KeyPage(raw[at : at + directory.page_bytes(number)])
            at += directory.page_bytes(number)
            if number >= directory.first_page(begin) and directory.begins_before(number, end):
                found += [(directory.latest_ms(entry), position) for entry, position in page.within(begin, end)]
            else:
                assert not list(page.within(begin, end))
        assert at == len(raw)
        latest = [time for time, _ in found]
        assert latest == sorted(latest, reverse=True)
        wanted = [(row[2], 1000 * row[3]) for row in rows if row[:2] == (topic, digest) and row[2] >= middle]
        for time, position in wanted:
            assert any(position == block and time <= upper <= time + (1 << 12) for upper, block in found)
