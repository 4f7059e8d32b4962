"""Retention, truncation and deletion: what is gone is gone for readers at once, and its space comes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lsmq.errors import OffsetOutOfRange, StoreBusy, UnknownTopic
from lsmq_lab.world.drive import Drive
from lsmq_node.storage import ShardStore, TopicOptions
from lsmq_node.storage.time_cuts import TimeCut
from support.clock import SimClock

from .harness import abandon, append, bodies, body, flush, merge, open_stepped, put, retain, table_files, tiny

HOUR_MS = 3_600_000


class Bench:
    """A stepped store on a simulated disk with a clock to move."""

    def __init__(self, root: Path) -> None:
        self.path = root / "shard"
        self.disk = Drive(root)
        self.clock = SimClock()
        self.store = self.open()
        self.serial = 0

    def open(self, **changes: int) -> ShardStore:
        return open_stepped(self.path, tiny(**changes), self.disk, self.clock)

    def reopen(self, **changes: int) -> None:
        abandon(self.store)
        self.disk = self.disk.power_cut(7)
        self.store = self.open(**changes)

    def fill(self, topic_id: int, queues: int, count: int, size: int = 100) -> dict[tuple[int, int], bytes]:
        """``count`` messages to each of ``queues`` queues, flushed to a table of their own."""
        sent = {}
        self.clock.time_ms += 1_000
        for _ in range(count):
            for queue in range(queues):
                self.serial += 1
                content = body(self.serial, size)
                [offset] = put(self.store, topic_id, (queue, content))
                sent[queue, offset] = content
        flush(self.store)
        return sent

    def shown(self, topic_id: int, queues: int) -> dict[tuple[int, int], bytes]:
        return {
            (queue, offset): content
            for queue in range(queues)
            for offset, content in bodies(self.store, topic_id, queue).items()
        }

    def tables(self) -> int:
        return len(table_files(self.disk, self.path))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    abandon(bench.store)


def test_expired_messages_go_as_whole_files(bench: Bench) -> None:
    topic = bench.store.create_topic("t", 3, TopicOptions(retention_ms=HOUR_MS))
    bench.fill(topic.id, 3, 5)
    bench.clock.time_ms += HOUR_MS // 2
    kept = bench.fill(topic.id, 3, 5)
    bench.clock.time_ms += HOUR_MS // 2 + 1
    retain(bench.store)
    assert bench.shown(topic.id, 3) == kept
    assert bench.store.bounds(topic.id, 0) == (5, 10)
    assert (bench.tables(), bench.store.stats().dropped_tables_total) == (1, 1)
    with pytest.raises(OffsetOutOfRange):
        bench.store.read(topic.id, 0, 4)
    bench.reopen()
    assert bench.shown(topic.id, 3) == kept
    bench.clock.time_ms += HOUR_MS
    retain(bench.store)
    assert (bench.shown(topic.id, 3), bench.tables()) == ({}, 0)
    assert bench.store.bounds(topic.id, 0) == (10, 10)
    assert put(bench.store, topic.id, (0, b"next")) == [10], "offsets are never used again"


def test_a_round_that_finds_the_line_full_fails_nothing_and_is_done_again(bench: Bench) -> None:
    bench.reopen(max_waiting_bytes=64 * 1024)
    topic = bench.store.create_topic("t", 1, TopicOptions(retention_ms=HOUR_MS))
    bench.fill(topic.id, 1, 5)
    retain(bench.store)
    bench.clock.time_ms += HOUR_MS + 1
    for size in (5_000, 1):  # not even a log start has room then
        with pytest.raises(StoreBusy, match="max_waiting_bytes"):
            while True:
                append(bench.store, topic.id, (0, bytes(size)))
    assert not bench.store._maintenance._retain(), "it is to be tried again soon"
    assert bench.store.bounds(topic.id, 0)[0] == 0
    bench.store.commit()
    assert bench.store._maintenance._retain()
    assert bench.store.bounds(topic.id, 0)[0] == 5


def test_a_topic_over_its_size_loses_its_oldest_files(bench: Bench) -> None:
    topic = bench.store.create_topic("t", 2, TopicOptions(retention_bytes=4_000))
    parts = [bench.fill(topic.id, 2, 8, 150) for _ in range(5)]
    retain(bench.store)
    assert bench.tables() == 2
    assert bench.shown(topic.id, 2) == {**parts[3], **parts[4]}


def test_what_has_expired_goes_on_time_from_a_file_that_others_keep_and_a_merge_takes_its_space(bench: Bench) -> None:
    short = bench.store.create_topic("short", 1, TopicOptions(retention_ms=HOUR_MS))
    long = bench.store.create_topic("long", 1)
    for _ in range(30):
        put(bench.store, short.id, (0, b"s" * 1_000))
    kept = bench.fill(long.id, 1, 3)
    size = bench.store.stats().table_bytes
    bench.clock.time_ms += HOUR_MS + 1
    retain(bench.store)
    assert bench.store.bounds(short.id, 0) == (30, 30)
    merge(bench.store)
    assert [meta.topics for meta in bench.store._tables.manifest.tables()] == [(long.id,)]
    assert bench.store.stats().table_bytes < size / 10
    assert kept.items() <= bench.shown(long.id, 1).items()


def test_each_topic_pays_for_its_own_bytes(bench: Bench) -> None:
    small = bench.store.create_topic("small", 1, TopicOptions(retention_bytes=100_000))
    large = bench.store.create_topic("large", 2, TopicOptions(retention_bytes=30_000))
    put(bench.store, small.id, (0, b"kept"))
    for _ in range(5):
        bench.fill(large.id, 2, 50, 400)
    merge(bench.store)
    retain(bench.store)
    assert bodies(bench.store, small.id, 0) == {0: b"kept"}
    left = sum(map(len, bench.shown(large.id, 2).values()))
    assert 30_000 * 0.8 < left < 30_000 + 2 * 50 * 400
    starts = bench.store.earliest_offsets(large.id).tolist()
    for _ in range(3):
        merge(bench.store)
        retain(bench.store)
    assert bench.store.earliest_offsets(large.id).tolist() == starts, "what is over is taken once"


def test_what_expires_goes_though_a_merge_is_under_way_and_in_one_entry(bench: Bench) -> None:
    topic = bench.store.create_topic("t", 300, TopicOptions(retention_ms=HOUR_MS))
    bench.fill(topic.id, 300, 2)
    bench.fill(topic.id, 300, 2)
    bench.clock.time_ms += HOUR_MS + 1
    merger, entries = bench.store._merger, bench.store.stats().committed_entries_total
    merger._busy |= {meta.number for meta in bench.store._tables.manifest.tables()}
    retain(bench.store)
    assert bench.store.earliest_offsets(topic.id).tolist() == [4] * 300
    assert bench.store.stats().committed_entries_total == entries + 1
    assert bench.tables() == 4
    merger._busy.clear()
    retain(bench.store)
    assert bench.tables() == 0


def test_expiry_stops_at_the_first_message_that_has_not_expired_and_is_one_round_late_at_most(bench: Bench) -> None:
    topic = bench.store.create_topic("t", 3, TopicOptions(retention_ms=HOUR_MS))
    stored: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for turn in range(90):
        bench.clock.time_ms += 60_000
        for queue in (0, 1, 2)[: 1 + turn % 3]:
            put(bench.store, topic.id, (queue, body(turn, 600)))
            stored[queue].append(bench.clock.time_ms)
        if turn % 20 == 7:
            flush(bench.store)
            merge(bench.store)
        retain(bench.store)
        expected = [sum(at < bench.clock.time_ms - HOUR_MS for at in times) for times in stored.values()]
        assert bench.store.earliest_offsets(topic.id).tolist() == expected
    assert bench.store.earliest_offsets(topic.id).min() > 0


def test_a_topic_in_which_nothing_can_expire_is_not_looked_at(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = bench.store.create_topic("t", 1_000, TopicOptions(retention_ms=HOUR_MS))
    bench.fill(topic.id, 1_000, 1)
    retain(bench.store)
    asked: list[int] = []
    ask = TimeCut._ask
    monkeypatch.setattr(TimeCut, "_ask", lambda *arguments: (asked.append(1), ask(*arguments))[1])
    for _ in range(50):
        bench.clock.time_ms += HOUR_MS // 60
        retain(bench.store)
    assert not asked
    bench.clock.time_ms += HOUR_MS
    retain(bench.store)
    assert asked
    assert bench.shown(topic.id, 1_000) == {}


def test_a_tombstone_that_expires_does_not_bring_its_message_back(bench: Bench) -> None:
    """The message lies in an older file that another topic keeps; the tombstone in one that is dropped."""
    short = bench.store.create_topic("short", 1, TopicOptions(retention_ms=HOUR_MS))
    long = bench.store.create_topic("long", 1)
    put(bench.store, short.id, *[(0, b"s%d" % at) for at in range(4)])
    bench.fill(long.id, 1, 1)
    bench.store.wait(bench.store.delete(short.id, np.array([0], np.uint32), np.array([1])))
    flush(bench.store)
    assert bodies(bench.store, short.id, 0) == {0: b"s0", 2: b"s2", 3: b"s3"}
    bench.clock.time_ms += 2 * HOUR_MS
    retain(bench.store)
    assert bench.tables() == 1
    assert bodies(bench.store, short.id, 0) == {}
    bench.reopen()
    assert b"s1" not in bodies(bench.store, short.id, 0).values()


def test_trimmed_messages_are_gone_at_once_and_leave_with_the_next_merge(bench: Bench) -> None:
    bench.reopen(level0_merge=2)
    topic = bench.store.create_topic("t", 2)
    sent = bench.fill(topic.id, 2, 40, 400)
    bench.store.wait(bench.store.trim(topic.id, np.array([0, 1, 0]), np.array([38, 10, 5])))
    assert bench.store.earliest_offsets(topic.id).tolist() == [38, 10]
    expected = {key: content for key, content in sent.items() if key[1] >= (38, 10)[key[0]]}
    assert bench.shown(topic.id, 2) == expected
    before = bench.store.stats().table_bytes
    expected |= bench.fill(topic.id, 2, 1)
    merge(bench.store)
    assert bench.store.stats().table_bytes < before * 0.7
    assert bench.shown(topic.id, 2) == expected
    bench.store.wait(bench.store.trim(topic.id, 0, 3))
    assert bench.store.bounds(topic.id, 0) == (38, 41)
    bench.reopen()
    assert bench.shown(topic.id, 2) == expected


def test_a_deleted_topic_gives_all_its_space_back(bench: Bench) -> None:
    topic = bench.store.create_topic("t", 2)
    other = bench.store.create_topic("u", 1)
    for _ in range(2):
        bench.fill(topic.id, 2, 20, 400)
    kept = bench.fill(other.id, 1, 3)
    bench.store.delete_topic("t")
    with pytest.raises(UnknownTopic):
        bench.store.read(topic.id, 0, 0)
    retain(bench.store)
    assert bench.tables() == 1, "files of nobody else go without rewriting"
    assert bench.shown(other.id, 1) == kept
    again = bench.store.create_topic("t", 2)
    assert again.id not in (topic.id, other.id)
    assert bench.shown(again.id, 2) == {}
    bench.reopen()
    assert bench.shown(again.id, 2) == {}


def test_deleted_messages_and_their_tombstones_leave_with_merges(bench: Bench) -> None:
    bench.reopen(level0_merge=3)
    topic = bench.store.create_topic("t", 2)
    sent = bench.fill(topic.id, 2, 30, 400)
    gone = [(0, offset) for offset in range(3, 28)] + [(1, 29), (1, 0)]
    queues, offsets = np.array([key[0] for key in gone], np.uint32), np.array([key[1] for key in gone])
    bench.store.wait(bench.store.delete(topic.id, queues, offsets))
    expected = {key: content for key, content in sent.items() if key not in gone}
    assert bench.shown(topic.id, 2) == expected
    flush(bench.store)
    assert bench.shown(topic.id, 2) == expected
    expected |= bench.fill(topic.id, 2, 1)
    assert sum(run.tombstone_count for run in bench.store._tables.version.runs()) == len(gone) - 1
    merge(bench.store)
    assert [run.tombstone_count for run in bench.store._tables.version.runs()] == [0]
    assert bench.shown(topic.id, 2) == expected
    found = bench.store.read(topic.id, 0, 3, max_records=1)
    assert [message.offset for batch in found.batches() for message in batch.messages("t")] == [28]
    bench.reopen()
    assert bench.shown(topic.id, 2) == expected


def test_deleting_a_message_again_changes_nothing(bench: Bench) -> None:
    """More tombstones than offsets: none of them may be overlooked."""
    topic = bench.store.create_topic("t", 1)
    put(bench.store, topic.id, *[(0, b"%d" % at) for at in range(6)])
    for offsets in ([0], [0, 1], [0, 0, 1, 2, 3]):
        bench.store.wait(bench.store.delete(topic.id, np.zeros(len(offsets), np.uint32), np.array(offsets)))
    for work in (lambda: None, bench.reopen, lambda: flush(bench.store), lambda: merge(bench.store)):
        work()
        assert bodies(bench.store, topic.id, 0) == {4: b"4", 5: b"5"}


def test_tombstones_stay_while_something_older_is_left(bench: Bench) -> None:
    """A merge of the newer tables keeps a tombstone for a message of the older generation, and no other."""
    bench.reopen(level0_merge=2, generation_bytes=64 * 1024)
    topic = bench.store.create_topic("t", 1)
    sent = dict(bench.fill(topic.id, 1, 50, 1_500))
    sent |= bench.fill(topic.id, 1, 1, 100)
    merge(bench.store)
    sent |= bench.fill(topic.id, 1, 30, 100)
    bench.store.wait(bench.store.delete(topic.id, np.array([0, 0], np.uint32), np.array([2, 60])))
    sent |= bench.fill(topic.id, 1, 30, 100)
    del sent[0, 2], sent[0, 60]
    runs = len(bench.store._tables.version.runs())
    assert runs == 3
    merge(bench.store)
    assert [run.tombstone_count for run in bench.store._tables.version.runs()] == [1, 0]
    assert bench.shown(topic.id, 1) == sent


def test_a_read_that_finds_only_deleted_messages_ends_even_while_more_arrive(bench: Bench) -> None:
    """The end is taken first; what is behind it are messages that came after."""
    bench.reopen(level0_merge=2)
    topic = bench.store.create_topic("t", 1)
    bench.fill(topic.id, 1, 4)
    bench.store.wait(bench.store.delete(topic.id, np.zeros(4, np.uint32), np.arange(4)))
    flush(bench.store)
    merge(bench.store)
    put(bench.store, topic.id, (0, b"later"))
    found = bench.store._queries.read_records(topic.id, 0, 0, 4, 10, 1_000)
    assert (found.record_count, found.next_offset) == (0, 4)


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_read_of_fewer_messages_than_are_deleted_goes_on_to_those_that_are_not(bench: Bench, in_memory: bool) -> None:
    topic = bench.store.create_topic("t", 1)
    put(bench.store, topic.id, *[(0, b"%d" % at) for at in range(10)])
    bench.store.wait(bench.store.delete(topic.id, np.zeros(6, np.uint32), np.arange(6)))
    if not in_memory:
        flush(bench.store)
    for max_records in (1, 2, 3, 5, 6, 7):
        found = bench.store.read(topic.id, 0, 0, max_records=max_records)
        offsets = [message.offset for batch in found.batches() for message in batch.messages("t")]
        assert 1 <= len(offsets) <= max_records
        assert offsets == list(range(6, 6 + len(offsets)))
        assert found.next_offsets.tolist() == [6 + len(offsets)]


@pytest.mark.parametrize("max_bytes", [100, 1_000, 1_500, 5_000])
def test_a_message_too_large_for_the_rest_of_a_read_is_not_passed_over(bench: Bench, max_bytes: int) -> None:
    """What is smaller, and newer, and in another file, must not come before it."""
    topic = bench.store.create_topic("t", 1)
    sizes = [400, 400, 7_000, 400, 90, 7_000, 20, 20, 3_000, 10]
    sent = {}
    for offset, size in enumerate(sizes):
        sent[offset] = body(offset, size)
        put(bench.store, topic.id, (0, sent[offset]))
        if offset % 3 == 1:
            flush(bench.store)
    offset = 0
    found: dict[int, bytes] = {}
    while offset < len(sizes):
        part = bench.store.read(topic.id, 0, offset, max_bytes=max_bytes)
        found |= {message.offset: message.body for batch in part.batches() for message in batch.messages("t")}
        offset = int(part.next_offsets[0])
        assert sorted(found) == list(range(offset))
    assert found == sent


def test_reading_a_topic_that_is_being_deleted_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.reopen(level0_merge=2)
    topic = bench.store.create_topic("t", 1)
    bench.fill(topic.id, 1, 4)
    bench.fill(topic.id, 1, 4)
    bounds = bench.store._queries.bounds

    def deleted_after(topic_id: int, queue: int) -> tuple[int, int]:
        found = bounds(topic_id, queue)
        state = bench.store._queries.topic_state(topic_id)
        bench.store.delete_topic("t")
        merge(bench.store)
        monkeypatch.setattr(bench.store._queries, "topic_state", once(state, bench.store._queries.topic_state))
        return found

    monkeypatch.setattr(bench.store._queries, "bounds", deleted_after)
    with pytest.raises(UnknownTopic):
        bench.store.read(topic.id, 0, 0)


def once(value: object, then: object) -> object:
    """The old answer to the first question, as a reader that asked just before has it."""
    answers = [value]

    def ask(topic_id: int) -> object:
        return answers.pop() if answers else then(topic_id)  # type: ignore[operator]

    return ask
