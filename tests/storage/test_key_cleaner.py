"""Compacted topics: of each key the last message stays, in each queue, and nothing else goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq.errors import ShardStopped
from lsmq.record_batch import BatchBuilder, RecordBatch, key_hash
from lsmq_lab.world.drive import Drive
from lsmq_node.storage import KeyQuery, ShardStore, TopicOptions, key_cleaner
from support.clock import SimClock

from .harness import abandon, bodies, flush, merge, open_stepped, profile, small

QUEUES = 3
HOUR_MS = 3_600_000
KEYS = ["a", "b", "c", "d", b"\xff"]
Sent = tuple[int, str | bytes | None, bool]  # queue, key, whether it says that the key is gone


class Topic:
    """A compacted topic in a stepped store, and what it should hold by queue and offset."""

    def __init__(self, path: Path, max_waiting_bytes: int = 1 << 20, **options: Any) -> None:
        self.max_waiting_bytes = max_waiting_bytes
        self.disk, self.clock, self.path = Drive(path), SimClock(), path / "s"
        self.store = self._open()
        wanted = TopicOptions(cleanup="compact", **options)
        self.id = self.store.create_topic("t", QUEUES, wanted).id
        self.sent: list[dict[int, tuple[Any, bool, int]]] = [{} for _ in range(QUEUES)]

    def _open(self) -> ShardStore:
        return open_stepped(
            self.path, small(block_bytes=512, max_waiting_bytes=self.max_waiting_bytes), self.disk, self.clock
        )

    def reopen(self) -> None:
        self.store.close()
        self.store = self._open()

    def put(self, messages: Sequence[Sent]) -> None:
        builder = BatchBuilder()
        for queue, key, gone in messages:
            builder.add(queue, b"" if gone else b"body", key=key, delete=gone)
        appended = self.store.append(self.id, RecordBatch(builder.build()))
        self.store.wait(appended)
        for (queue, key, gone), offset in zip(messages, appended.offsets.tolist(), strict=True):
            self.sent[queue][offset] = key, gone, appended.stored_ms

    def clean(self, pause: Callable[[float], bool] = lambda seconds: False) -> None:
        cleaner: Any = self.store._maintenance.clean_keys.__self__  # type: ignore[attr-defined]
        cleaner._pause = pause
        cleaner.run()

    def expected(self, delete_retention_ms: int = 24 * HOUR_MS) -> list[list[int]]:
        """Offsets that are left of each queue when all is clean."""
        found = []
        for queue in self.sent:
            last = {key: offset for offset, (key, _, _) in queue.items() if key is not None}
            found.append(
                [
                    offset
                    for offset, (key, gone, stored_ms) in queue.items()
                    if key is None
                    or (last[key] == offset and not (gone and stored_ms < self.clock.time_ms - delete_retention_ms))
                ]
            )
        return found

    def left(self) -> list[list[int]]:
        return [list(bodies(self.store, self.id, queue)) for queue in range(QUEUES)]


messages = st.tuples(st.integers(0, QUEUES - 1), st.sampled_from([*KEYS, None]), st.booleans())
sent = st.lists(messages.map(lambda one: (one[0], one[1], one[2] and one[1] is not None)), min_size=1, max_size=30)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), sent),
        st.tuples(st.sampled_from(["clean", "flush", "merge", "reopen"]), st.none()),
        st.tuples(st.just("wait"), st.sampled_from([1, HOUR_MS, 25 * HOUR_MS])),
    ),
    max_size=25,
)


@pytest.mark.part(2)
@profile(100)
@given(steps, st.sampled_from([2, 5, 1000]))
def test_the_last_message_of_each_key_stays_and_no_other(
    tmp_path_factory: pytest.TempPathFactory, done: list[tuple[str, Any]], held_keys: int
) -> None:
    topic = Topic(tmp_path_factory.mktemp("compact"))
    with mock.patch.object(key_cleaner, "MAX_HELD_KEYS", held_keys), mock.patch.object(key_cleaner, "_READ_RECORDS", 7):
        for what, value in done:
            match what:
                case "put":
                    topic.put(value)
                case "wait":
                    topic.clock.time_ms += value
                case "clean":
                    topic.clean()
                case "flush":
                    flush(topic.store)
                case "merge":
                    merge(topic.store)
                case "reopen":
                    topic.reopen()
            for queue, offsets in enumerate(topic.left()):
                assert set(topic.expected()[queue]) <= set(offsets) | _gone(topic, queue), "the last message stays"
        topic.clock.time_ms += 2 * HOUR_MS
        topic.put([(0, "z", False)])
        topic.reopen()  # A process that knows nothing looks at all.
        topic.clean()
        assert topic.left() == topic.expected()
    abandon(topic.store)


def _gone(topic: Topic, queue: int) -> set[int]:
    """Messages that said that a key is gone, which may be over."""
    return {offset for offset, (_, gone, _) in topic.sent[queue].items() if gone}


def test_space_comes_back_and_readers_pass_over_what_is_gone(tmp_path: Path) -> None:
    topic = Topic(tmp_path)
    for number in range(60):
        topic.put([(at % QUEUES, f"key-{at}", False) for at in range(30)])
        flush(topic.store)
        if number % 10 == 9:
            topic.clean()
            merge(topic.store)
    merge(topic.store)
    records = sum(table.meta.record_count for table in topic.store._tables.version.tables())
    assert records < 30 * 12  # of 1,800 messages, and of their tombstones
    assert topic.left() == topic.expected()
    found = topic.store.read(topic.id, 1, 0, max_records=5)
    assert found.record_count == 5
    topic.reopen()
    assert topic.left() == topic.expected()
    abandon(topic.store)


def goes_within_two_hours(topic: Topic) -> None:
    """That the first key is gone, where it is kept for one."""
    topic.clock.time_ms += HOUR_MS // 2
    topic.clean()
    assert topic.left()[0] == [1, 2]
    topic.clock.time_ms += HOUR_MS
    topic.clean()
    assert topic.left()[0] == [1]
    abandon(topic.store)


def test_that_a_key_is_gone_is_kept_for_a_while(tmp_path: Path) -> None:
    topic = Topic(tmp_path, delete_retention_ms=HOUR_MS)
    topic.put([(0, "a", False), (0, "b", False), (0, "a", True)])
    topic.clean()
    assert topic.left()[0] == [1, 2]
    goes_within_two_hours(topic)


def test_it_goes_sooner_where_the_topic_is_told_so_later(tmp_path: Path) -> None:
    topic = Topic(tmp_path)
    topic.put([(0, "a", False), (0, "b", False), (0, "a", True)])
    topic.clean()
    topic.store.alter_topic("t", TopicOptions(cleanup="compact", delete_retention_ms=HOUR_MS, revision=1))
    goes_within_two_hours(topic)


def test_a_topic_to_which_little_came_is_not_looked_through_for_it_at_once(tmp_path: Path) -> None:
    topic = Topic(tmp_path)
    topic.put([(0, f"key-{number}", False) for number in range(100)])
    topic.clean()
    topic.put([(0, "key-1", False)])
    with mock.patch.object(topic.store._queries, "read_many", side_effect=AssertionError):
        topic.clean()
    topic.clock.time_ms += 700_000
    topic.clean()
    assert topic.left() == topic.expected()
    abandon(topic.store)


def test_keys_of_one_hash_are_told_apart(tmp_path: Path) -> None:
    topic = Topic(tmp_path)
    with mock.patch("lsmq.batch_builder.key_hash", lambda key: 7):
        topic.put([(0, "one", False), (0, "two", False), (0, "one", False)])
    topic.clean()
    assert topic.left()[0] == [1, 2]
    abandon(topic.store)


def test_a_queue_of_many_keys_is_looked_through_in_parts_of_like_size(tmp_path: Path) -> None:
    """Though the hashes of all keys in a queue have a factor in common with the number of parts."""
    topic = Topic(tmp_path)
    keys = [key for number in range(2_000) if key_hash(key := f"key-{number}") % 16 == 3]
    topic.put([(0, key, False) for key in keys for _ in range(2)])
    parts: list[int] = []
    with mock.patch.object(key_cleaner, "MAX_HELD_KEYS", len(keys) // 2):
        of_slice = key_cleaner.KeyCleaner._of_slice

        def counted(cleaner: Any, topic_id: int, queues: Any, ends: Any, latest: Any) -> Any:
            parts.append(int(latest._slices))
            return of_slice(cleaner, topic_id, queues, ends, latest)

        with mock.patch.object(key_cleaner.KeyCleaner, "_of_slice", counted):
            topic.clean()
    assert parts == [1, 4, 4, 4, 4]
    assert topic.left() == topic.expected()
    abandon(topic.store)


def test_the_last_message_of_a_key_is_found_though_it_is_superseded_meanwhile(tmp_path: Path) -> None:
    topic = Topic(tmp_path)
    topic.put([(0, "a", False), (0, "b", False)])
    flush(topic.store)
    queries = topic.store._queries
    read_records, superseded = queries.read_records, list[bool]()

    def read_later(*args: Any) -> Any:
        """The search has come to the message, and has not read it yet."""
        if args[1:3] == (0, 0) and not superseded:
            superseded.append(True)
            topic.put([(0, "a", False)])
            topic.clean()
        return read_records(*args)

    query = KeyQuery(topic.id, key_hash("a"), limit=1, max_bytes=1, max_blocks=10)
    with mock.patch.object(queries, "read_records", read_later):
        found = topic.store.find_key(query, lambda found: found)
    assert superseded and [place.offset for place, _ in found.matches] == [2]
    abandon(topic.store)


def test_what_was_found_is_deleted_once_there_is_room_in_line(tmp_path: Path) -> None:
    """Where writers never let up it would be looked for again and again, and be left."""
    topic = Topic(tmp_path, max_waiting_bytes=1 << 16)
    topic.put([(0, "a", False), (0, "a", False)])
    builder = BatchBuilder()
    builder.add(1, b"x" * 65_400)
    appended = topic.store.append(topic.id, RecordBatch(builder.build()))
    pauses: list[float] = []

    def pause(seconds: float) -> bool:
        pauses.append(seconds)
        if len(pauses) > 1:  # The first is that of who has read.
            topic.store.wait(appended)
        return False

    topic.clean(pause)
    assert len(pauses) == 2 and topic.left()[0] == [1]
    abandon(topic.store)


def test_an_ordinary_topic_is_left_alone(tmp_path: Path) -> None:
    topic = Topic(tmp_path)
    other = topic.store.create_topic("other", 1).id
    builder = BatchBuilder()
    for _ in range(3):
        builder.add(0, b"x", key="a")
    topic.store.wait(topic.store.append(other, RecordBatch(builder.build())))
    topic.clean()
    assert list(bodies(topic.store, other, 0)) == [0, 1, 2]
    assert topic.store.earliest_offsets(other, np.array([0], np.uint32)).tolist() == [0]
    abandon(topic.store)


def test_nobody_looks_for_keys_in_a_store_that_has_stopped(tmp_path: Path) -> None:
    with ShardStore.open(tmp_path / "s", small()) as store:
        threads = [thread for thread in store._maintenance._threads if thread.name == "lsmq-keys"]
        assert len(threads) == 1
        store.stop(ShardStopped("no more"))
        threads[0].join(30)
        assert not threads[0].is_alive(), "it would go round and round until the store is closed"
