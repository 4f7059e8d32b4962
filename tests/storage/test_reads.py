"""Reading over many sources: one queue or many, whatever way is taken, the same messages; and never beyond the end."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq.errors import CorruptFile, InvalidRequest
from lsmq.record_batch import BatchBuilder, RecordBatch
from lsmq_node.storage import FileRange, QueueStore, ShardStore, many_gets, many_reads, point_reads
from lsmq_node.storage.queries import Queries
from lsmq_node.storage.ranges import RangeReader
from lsmq_node.storage.state import StoredTopic

from .harness import TINY, body, flush, merge, no_threads, open_stepped, profile, put, small_parts, tiny

QUEUES = 120
Contents = dict[int, list[bytes]]


def fill(store: ShardStore, topic_id: int, chance: random.Random, sizes: tuple[int, ...]) -> Contents:
    """Messages in all kinds of places: memtable, level 0, generations; queues with blocks of their own and without."""
    contents: Contents = {queue: [] for queue in range(QUEUES)}
    for step in range(chance.randint(1, 7)):
        for _ in range(chance.randint(1, 4)):
            chosen = chance.choices(range(QUEUES), k=chance.choice((3, 60, 300)))
            if chance.random() < 0.3:
                chosen += [chance.randrange(QUEUES)] * 200
            puts = [(queue, body(chance.randrange(1_000_000), chance.choice(sizes))) for queue in chosen]
            size = 30_000 // (max(sizes) + 50)
            while puts:
                put(store, topic_id, *puts[:size])
                for queue, content in puts[:size]:
                    contents[queue].append(content)
                puts = puts[size:]
        if chance.random() < 0.7:
            flush(store)
        if step % 3 == 2:
            merge(store)
    return contents


def check_many(store: ShardStore, topic_id: int, contents: Contents, chance: random.Random) -> None:
    """One read of many queues against the contents."""
    queues = chance.sample(range(QUEUES), chance.choice((2, 20, QUEUES)))
    offsets = [chance.randint(0, len(contents[queue]) + 1) if chance.random() < 0.5 else 0 for queue in queues]
    max_records, max_bytes = chance.choice((1, 10, 500, 100_000)), chance.choice((1, 2_000, 1 << 24))
    found = store.read_many(
        topic_id, np.array(queues, np.uint32), np.array(offsets), max_records=max_records, max_bytes=max_bytes
    )
    wanted = dict(zip(queues, offsets, strict=True))
    got: dict[int, list[bytes]] = {}
    for batch in found.batches():
        for message in batch.messages("t"):
            if message.offset >= wanted[message.queue]:
                mine = got.setdefault(message.queue, [])
                assert message.offset == wanted[message.queue] + len(mine)
                mine.append(message.body)
    moved = found.queues.tolist()
    assert moved == [queue for queue in queues if queue in moved], "served in the order given"
    for queue, end in zip(moved, found.next_offsets.tolist(), strict=True):
        assert got.pop(queue) == contents[queue][wanted[queue] : end]
    assert not got, "what is returned moves its queue"
    assert found.record_count <= max_records
    if max_records == 100_000 and max_bytes == 1 << 24:
        left = [queue for queue in queues if wanted[queue] < len(contents[queue])]
        assert moved == left
        assert all(end == len(contents[queue]) for queue, end in zip(moved, found.next_offsets.tolist(), strict=True))


@pytest.mark.part(2)
@profile(12)
@given(seed=st.integers(0, 1 << 32), compression=st.sampled_from(("none", "zstd")), parts=st.booleans())
def test_many_queues_are_read_as_each_by_itself(
    tmp_path_factory: pytest.TempPathFactory, seed: int, compression: str, parts: bool
) -> None:
    chance = random.Random(seed)
    options = tiny(compression=compression, block_bytes=chance.choice((512, 4_096)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(many_reads, "FEW_RECORDS", chance.choice((5, 256)))
        patch.setattr(many_reads, "ROUND_BYTES", chance.choice((3_000, 1 << 20)))
        if parts:
            stack = small_parts()
            stack.__enter__()
        with open_stepped(tmp_path_factory.mktemp("many") / "s", options) as store:
            topic = store.create_topic("t", QUEUES)
            contents = fill(store, topic.id, chance, chance.choice(((0, 30), (58,), (5, 100, 3_000))))
            for _ in range(8):
                check_many(store, topic.id, contents, chance)
        if parts:
            stack.__exit__(None, None, None)


def check_get_many(store: QueueStore, names: list[str], contents: Contents, chance: random.Random) -> None:
    """In any order, some queues more than once, some that are not there, or not any more than that."""
    wanted, expected = [], []
    for _ in range(chance.choice((1, 5, 300))):
        queue = chance.randrange(QUEUES) if chance.random() < 0.8 else chance.choice((3, 4))
        there = [b"first", *contents[queue]]
        at, count = chance.randint(-1, len(there) + 1), chance.choice((-1, 0, 1, 10, 10_000))
        unknown = chance.random() < 0.1
        wanted.append((chance.choice(("", "queue", "\udc80", "queue \0")) if unknown else names[queue], at, count))
        expected.append([] if unknown or at < 0 or count < 0 else there[at : at + count])
    assert store.get_many(wanted) == expected == [store.get(*each) for each in wanted]
    assert store.get_many([(names[0], 0, 1 << 70), (names[0], 1 << 70, 1)]) == [[b"first", *contents[0]], []]


@pytest.mark.parametrize("wrong", [(5, 0, 1), ("q", 0.5, 1), ("q", 0, None), ("q", "0", 1), ("q", 0)])
def test_many_gets_of_what_is_no_name_or_number_are_refused(tmp_path: Path, wrong: Any) -> None:
    with no_threads(), QueueStore(tmp_path / "s", **TINY) as store:
        store.put("q", b"x")
        with pytest.raises(InvalidRequest, match="a text and two whole numbers"):
            store.get_many([("q", 0, 1), wrong])
        assert store.get_many(iter([("q", 0, 1)])) == [[b"x"]]
        assert store.get_many([]) == []
        if len(wrong) == 3:
            with pytest.raises(InvalidRequest, match="must be text" if wrong[0] == 5 else "whole numbers"):
                store.get(*wrong)
        assert store.get("q", np.int64(0), True) == [b"x"]
        with pytest.raises(InvalidRequest, match="a queue name is b'q'; it must be text"):
            store.length(b"q")  # type: ignore[arg-type]


@pytest.mark.part(2)
@profile(12)
@given(seed=st.integers(0, 1 << 32), compression=st.sampled_from(("none", "zstd")))
def test_get_is_a_slice(tmp_path_factory: pytest.TempPathFactory, seed: int, compression: str) -> None:
    chance = random.Random(seed)
    changes: dict[str, Any] = {**TINY, "compression": compression, "block_bytes": chance.choice((512, 4_096))}
    with no_threads(), QueueStore(tmp_path_factory.mktemp("get") / "s", **changes) as store:
        names = [f"queue {number}" for number in range(QUEUES)]
        store.put_many([(name, b"first") for name in names])
        topic = next(topic for topic in store.store.topics() if topic.name == "messages")
        contents = fill(store.store, topic.id, chance, (0, 30, 300))
        for _ in range(60):
            queue = chance.randrange(QUEUES)
            expected = [b"first", *contents[queue]]
            at, count = chance.randint(0, len(expected) + 1), chance.choice((1, 10, 10_000))
            while True:
                assert store.get(names[queue], at, count) == expected[at : at + count]
                if at >= len(expected) or chance.random() < 0.2:
                    break
                at += count
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(many_gets, "_READ_RECORDS", chance.choice((1, 40, 1 << 18)))
            patch.setattr(many_gets, "_READ_BYTES", chance.choice((1, 5_000, 1 << 24)))
            for _ in range(6):
                check_get_many(store, names, contents, chance)
        store.store.trim(topic.id, 7, min(3, 1 + len(contents[7])))
        store.store.commit()
        earliest, _ = store.store.bounds(topic.id, 7)
        assert store.get(names[7], 0, 1) == [b"first", *contents[7]][earliest : earliest + 1], "begins at the earliest"


def test_places_that_are_remembered_are_few(tmp_path: Path) -> None:
    with no_threads(), QueueStore(tmp_path / "s", **TINY) as store:
        names = [f"queue {number}" for number in range(2 * point_reads.PLACE_LIMIT)]
        store.put_many([(name, b"%d" % number) for name in names for number in range(20)])
        flush(store.store)
        for name in names:
            assert store.get(name, 0, 3) == [b"0", b"1", b"2"]
        assert len(store.store._tables.places) == point_reads.PLACE_LIMIT
        for name in names:
            assert store.get(name, 3, 3) == [b"3", b"4", b"5"]


def test_deleted_messages_are_not_found_where_they_were_read_before(tmp_path: Path) -> None:
    with no_threads(), QueueStore(tmp_path / "s", **TINY) as store:
        store.put_many([("q", b"%d" % number) for number in range(20)])
        flush(store.store)
        assert store.get("q", 0, 3) == [b"0", b"1", b"2"]
        topic = next(topic for topic in store.store.topics() if topic.name == "messages")
        store.store.wait(store.store.delete(topic.id, np.array([0], np.uint32), np.array([4])))
        assert store.get("q", 3, 3) == [b"3", b"5"]


def test_large_backlogs_among_many_queues_leave_as_whole_blocks(tmp_path: Path) -> None:
    with small_parts(), open_stepped(tmp_path / "s", tiny()) as store:
        topic = store.create_topic("t", QUEUES)
        put(store, topic.id, *((queue, b"little") for queue in range(QUEUES)))
        for _ in range(20):
            put(store, topic.id, *((50, body(number, 100)) for number in range(100)))
        flush(store)
        found = store.read_many(
            topic.id, np.arange(QUEUES, dtype=np.uint32), np.zeros(QUEUES, np.int64), max_records=10_000
        )
        assert any(isinstance(part, FileRange) for part in found.parts)
        assert found.record_count == QUEUES + 2_000


def test_a_damaged_block_is_named_whatever_way_is_taken(tmp_path: Path) -> None:
    with no_threads(), QueueStore(tmp_path / "s", **{**TINY, "cache_bytes": 0}) as store:
        names = [f"queue {number}" for number in range(QUEUES)]
        store.put_many([(name, b"%d" % number) for name in names for number in range(3)])
        flush(store.store)
        topic = next(topic for topic in store.store.topics() if topic.name == "messages")
        (run,) = store.store._tables.version.runs()
        (page, *_), path = run.tables[0].pages(), run.tables[0].path
        position = page.positions[page.seek(topic.id << 32, 0)]
        raw = bytearray(path.read_bytes())
        raw[position + 60] ^= 1
        path.write_bytes(raw)
        queues, zeros = np.arange(QUEUES, dtype=np.uint32), np.zeros(QUEUES, np.int64)
        with pytest.raises(CorruptFile, match=f"{path.name}.*byte {position} "):
            store.get(names[0], 0, 3)
        with pytest.raises(CorruptFile, match=f"{path.name}.*byte {position} "):
            store.store.read_many(topic.id, queues, zeros)
        assert store.get(names[-1], 0, 3) == [b"0", b"1", b"2"], "other blocks are served"


# -- the end is taken first ------------------------------------------------------------------------------


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[ShardStore]:
    """A leader with two committed messages in each of two queues, and one more in each that is written only."""
    with ShardStore.open(tmp_path / "s", tiny(), replicated=True) as store:
        store.replica.begin_epoch(1, 7, 1)
        store.put_topic(StoredTopic(1, "t", 2), 0, 2)
        store.replica.advance(store.replica.write())
        write(store, b"one")
        store.replica.advance(write(store, b"two"))
        write(store, b"three")
        yield store


def write(store: ShardStore, content: bytes) -> int:
    builder = BatchBuilder()
    for queue in (0, 1):
        builder.add(queue, content)
    store.append(1, RecordBatch(builder.build()))
    return store.replica.write()


def everything(store: ShardStore) -> list[list[bytes]]:
    """Queue 0 as each way of reading gives it."""
    both, zeros = np.array([0, 1], np.uint32), np.zeros(2, np.int64)
    many = [message for batch in store.read_many(1, both, zeros).batches() for message in batch.messages("t")]
    one = [message for batch in store.read(1, 0, 0).batches() for message in batch.messages("t")]
    return [
        [message.body for message in many if message.queue == 0],
        [message.body for message in one],
        store.read_bytes(1, 0, 0, 100),
    ]


def test_what_is_written_but_not_committed_is_seen_by_no_way_of_reading(replica: ShardStore) -> None:
    expected = [b"one", b"two"]
    assert replica.replica.end_lsn > replica.committed_lsn
    assert everything(replica) == [expected] * 3
    assert replica.latest_offsets(1).tolist() == [2, 2]
    assert replica.offsets_for_time(1, np.array([0, 1], np.uint32), 1 << 60).tolist() == [2, 2]
    replica.flush()
    assert everything(replica) == [expected] * 3, "nor after a flush"
    assert (
        sum(
            table.meta.end_lsn > replica.committed_lsn for run in replica._tables.version.runs() for table in run.tables
        )
        == 0
    )
    replica.replica.advance(replica.replica.end_lsn)
    assert everything(replica) == [[*expected, b"three"]] * 3


@pytest.mark.parametrize("flushed", [False, True])
def test_what_is_committed_while_a_read_is_under_way_is_left_to_the_next(
    replica: ShardStore, monkeypatch: pytest.MonkeyPatch, flushed: bool
) -> None:
    """Each read takes the end first and does not look beyond it, whatever arrives in the sources meanwhile."""
    arrivals = iter(range(100))

    def commit_one_more(method: Any) -> Any:
        def wrapped(*arguments: Any, **names: Any) -> Any:
            write(replica, b"late %d" % next(arrivals))
            replica.replica.advance(replica.replica.end_lsn)
            return method(*arguments, **names)

        return wrapped

    if flushed:
        replica.flush()
    for _ in range(3):
        with monkeypatch.context() as patch:
            latest = int(replica.latest_offsets(1)[0])
            for owner, name in ((RangeReader, "read"), (Queries, "read_records"), (Queries, "_rows")):
                patch.setattr(owner, name, commit_one_more(getattr(owner, name)))
            both, zeros = np.array([0, 1], np.uint32), np.zeros(2, np.int64)
            assert replica.read_many(1, both, zeros).next_offsets.tolist() == [latest] * 2
            latest = int(replica.latest_offsets(1)[0])
            assert int(replica.read(1, 0, 0).next_offsets[0]) == latest
            latest = int(replica.latest_offsets(1)[0])
            assert len(replica.read_bytes(1, 0, 0, 100)) == latest
            latest = int(replica.latest_offsets(1)[0])
            assert replica.offsets_for_time(1, both, 1 << 60).tolist() == [latest] * 2
            assert int(replica.latest_offsets(1)[0]) > latest
        if flushed:
            replica.flush()
