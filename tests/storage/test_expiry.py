"""Messages that expire: not read once their time is over, whatever they lie in, and their space comes back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq.errors import InvalidRequest
from lsmq.messages import LAST_DUE_MS, MAX_TTL_MS
from lsmq.record_batch import BatchBuilder, Column, RecordBatch, encode_batch
from lsmq_lab.world.drive import Drive
from lsmq_node.storage import ShardStore
from lsmq_node.storage.state import TopicOptions
from support.clock import SimClock

from .harness import abandon, flush, merge, open_stepped, profile, read_queue, small, small_parts


class Shard:
    """A stepped store on a clock that the test moves."""

    def __init__(self, root: Path, *, queues: int = 3, **options: int) -> None:
        self.root, self.disk, self.clock = root, Drive(root), SimClock()
        self.store = self.open()
        self.topic = self.store.create_topic("t", queues, TopicOptions(**options)).id  # type: ignore[arg-type]

    def open(self) -> ShardStore:
        return open_stepped(self.root / "shard", small(), self.disk, self.clock)

    def put(self, *messages: tuple[int, bytes, int]) -> None:
        """Queue, body and time to live; 0 for none."""
        builder = BatchBuilder()
        for queue, body, ttl_ms in messages:
            builder.add(queue, body, expires=ttl_ms)
        self.store.wait(self.store.append(self.topic, RecordBatch(builder.build())))

    def after(self, milliseconds: int) -> None:
        self.clock.time_ms += milliseconds

    def reopen(self) -> None:
        abandon(self.store)
        self.disk = self.disk.kill()
        self.store = self.open()

    def bodies(self, queue: int = 0) -> list[bytes]:
        return [message.body for message in read_queue(self.store, self.topic, queue)]

    def bodies_of_all(self) -> set[bytes]:
        """As a reader of all queues gets them."""
        queues = np.arange(3, dtype=np.uint32)
        found: set[bytes] = set()
        offsets = np.zeros(3, np.int64)
        while True:
            part = self.store.read_many(self.topic, queues, offsets, max_records=3)
            for batch in part.batches():
                found |= {message.body for message in batch.messages("t") if message.offset >= offsets[message.queue]}
            if not len(part.queues):
                return found
            offsets[part.queues] = np.maximum(offsets[part.queues], part.next_offsets)


@pytest.fixture
def shard(tmp_path: Path) -> Shard:
    return Shard(tmp_path)


def test_a_message_is_read_until_its_time_is_over_in_memory_and_in_tables(shard: Shard) -> None:
    shard.put((0, b"stays", 0), (0, b"goes", 1_000), (0, b"goes later", 5_000))
    assert [message.expires_ms is None for message in read_queue(shard.store, shard.topic, 0)] == [True, False, False]
    for look in (lambda: None, lambda: flush(shard.store), shard.reopen):
        look()
        assert shard.bodies() == [b"stays", b"goes", b"goes later"]
    shard.after(1_500)
    assert shard.bodies() == [b"stays", b"goes later"]
    assert shard.bodies_of_all() == {b"stays", b"goes later"}
    shard.reopen()
    assert shard.bodies() == [b"stays", b"goes later"]
    shard.after(5_000)
    shard.put((0, b"new", 1_000))
    assert shard.bodies() == [b"stays", b"new"]
    assert shard.store.bounds(shard.topic, 0) == (0, 4)


def test_a_read_that_finds_only_expired_messages_moves_past_them(shard: Shard) -> None:
    shard.put(*((0, b"%d" % number, 1_000) for number in range(3_000)))
    flush(shard.store)
    shard.after(2_000)
    found = shard.store.read(shard.topic, 0, 7)
    assert (found.record_count, found.next_offsets.tolist()) == (0, [3_000])


def test_the_lesser_of_the_topics_and_the_messages_time_to_live_counts(tmp_path: Path) -> None:
    shard = Shard(tmp_path, ttl_ms=2_000)
    shard.put((0, b"the topic's", 0), (0, b"less", 1_000), (0, b"no more", 9_000))
    shard.after(1_500)
    assert shard.bodies() == [b"the topic's", b"no more"]
    shard.after(1_000)
    assert shard.bodies() == []


def test_the_log_holds_what_was_sent_and_tables_hold_the_moment(shard: Shard) -> None:
    shard.put((0, b"a", 700))
    (found,) = read_queue(shard.store, shard.topic, 0)
    assert found.expires_ms == found.stored_ms + 700
    shard.reopen()
    (again,) = read_queue(shard.store, shard.topic, 0)
    assert again == found
    flush(shard.store)
    (table,) = shard.store._tables.version.tables()
    sample = table.sample()
    assert sample.expires_ms is not None and sample.expires_ms.tolist() == [found.expires_ms]


def test_merges_give_back_the_space_of_what_has_expired(shard: Shard) -> None:
    for number in range(40):
        shard.put(*((0, b"%05d" % number * 100, 10_000) for _ in range(40)), (1, b"kept %d" % number, 0))
        if number % 4 == 3:
            flush(shard.store)
    merge(shard.store)
    used = sum(table.meta.size_bytes for table in shard.store._tables.version.tables())
    shard.after(11_000)
    assert merge(shard.store) > 0, "that time has passed is enough"
    left = sum(table.meta.size_bytes for table in shard.store._tables.version.tables())
    assert left < used // 20
    assert shard.bodies(0) == [] and len(shard.bodies(1)) == 40
    shard.reopen()
    assert shard.bodies(0) == [] and len(shard.bodies(1)) == 40
    shard.put((0, b"after the hole", 0))
    flush(shard.store)
    assert shard.bodies(0) == [b"after the hole"]


def test_tables_of_which_nothing_expires_are_not_looked_at_for_it(shard: Shard) -> None:
    shard.put(*((0, b"kept", 0) for _ in range(100)))
    flush(shard.store)
    (table,) = shard.store._tables.version.tables()
    assert table.sample().expires_ms is None
    assert shard.store._state.topics[shard.topic].deletions is None
    merge(shard.store)
    shard.after(100_000_000)
    assert shard.store._merger.garbage.is_fresh(shard.store._tables.version)


@pytest.mark.parametrize("ttl_ms", [-1, LAST_DUE_MS + 1, 1 << 62])
def test_what_is_no_time_to_live_and_no_moment_is_refused_by_field_and_limit(shard: Shard, ttl_ms: int) -> None:
    columns = {Column.LENGTH: [1, 1], Column.EXPIRES_MS: [0, ttl_ms & (1 << 64) - 1]}
    with pytest.raises(InvalidRequest, match="ttl_ms") as refused:
        shard.store.append(shard.topic, RecordBatch(encode_batch(2, columns, b"xy")))
    assert refused.value.details == {"field": "ttl_ms", "limit": MAX_TTL_MS}


def test_a_moment_is_kept_however_late_the_message_is_stored_and_a_topic_may_shorten_it(shard: Shard) -> None:
    now = shard.clock.time_ms
    shard.after(400)
    shard.put((0, b"until then", now + 1_000), (0, b"over", now + 300), (0, b"lives", 1_000))
    assert [message.expires_ms for message in read_queue(shard.store, shard.topic, 0)] == [now + 1_000, now + 1_400]
    for look in (lambda: None, lambda: flush(shard.store), lambda: merge(shard.store), shard.reopen):
        look()
        assert shard.bodies() == [b"until then", b"lives"]
    shard.after(601)
    assert shard.bodies() == [b"lives"]
    shard.store.alter_topic("t", TopicOptions(ttl_ms=50))
    shard.put((1, b"shortened", now + 100_000))
    shard.after(51)
    assert shard.bodies(1) == []


def test_a_clock_that_jumps_ahead_expires_nothing_early(shard: Shard) -> None:
    shard.put((0, b"an hour", 3_600_000))
    shard.clock.wrong_ms = 30 * 86_400_000
    shard.store.time.check()
    assert shard.bodies() == [b"an hour"]
    shard.after(3_601_000)
    assert shard.bodies() == []


lives = st.sampled_from([0, 500, 2_000, 9_000, -500, -3_000])
steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"),
            st.lists(st.tuples(st.integers(0, 2), lives), min_size=1, max_size=12),
        ),
        st.tuples(st.just("wait"), st.sampled_from([100, 700, 3_000])),
        st.tuples(st.just("delete"), st.tuples(st.integers(0, 2), st.integers(0, 30))),
        st.tuples(st.sampled_from(["flush", "merge", "reopen"]), st.none()),
    ),
    max_size=30,
)


@pytest.mark.part(2)
@profile(60)
@given(steps=steps)
def test_a_store_agrees_with_a_list_of_messages_and_moments(tmp_path_factory: pytest.TempPathFactory, steps) -> None:  # type: ignore[no-untyped-def]
    shard = Shard(tmp_path_factory.mktemp("expiry"))
    model: list[list[tuple[bytes, int | None]]] = [[], [], []]
    deleted: set[tuple[int, int]] = set()
    now = number = 0
    with small_parts():
        for what, given_ in steps:
            match what:
                case "put":
                    messages = []
                    for queue, lives_ms in given_:  # below 0: until that moment
                        number += 1
                        body = b"%06d" % number * 20
                        messages.append((queue, body, lives_ms if lives_ms >= 0 else shard.clock.time_ms - lives_ms))
                        model[queue].append((body, now + abs(lives_ms) if lives_ms else None))
                    shard.put(*messages)
                case "wait":
                    shard.after(given_)
                    now += given_
                case "delete":
                    queue, offset = given_
                    if offset < len(model[queue]):
                        shard.store.wait(
                            shard.store.delete(shard.topic, np.array([queue], np.uint32), np.array([offset]))
                        )
                        deleted.add(given_)
                case "flush":
                    flush(shard.store)
                case "merge":
                    merge(shard.store)
                case "reopen":
                    shard.reopen()
            wanted = [
                [
                    body
                    for offset, (body, ends) in enumerate(of_queue)
                    if (ends is None or ends >= now) and (queue, offset) not in deleted
                ]
                for queue, of_queue in enumerate(model)
            ]
            assert [shard.bodies(queue) for queue in range(3)] == wanted
            assert shard.bodies_of_all() == {body for of_queue in wanted for body in of_queue}
    abandon(shard.store)
