"""Delayed messages in a store, against a list in memory: flushed, merged, cancelled, delivered and replayed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq.errors import CorruptFile, DocumentsFull, InvalidBatch
from lsmq.messages import LAST_DUE_MS, MAX_DELAY_MS
from lsmq.record_batch import BatchBuilder, Column, RecordBatch, encode_batch
from lsmq_lab.world.drive import Drive
from lsmq_node.storage import ShardStore, StoreOptions
from lsmq_node.storage.delayed import BEGIN, HAND, DuePlace, Hand, due_times
from lsmq_node.storage.garbage import MAX_SHARE
from lsmq_node.storage.repair import repair_store
from support.clock import SimClock

from .harness import KIB, abandon, bodies, flush, merge, open_stepped, profile, small, tiny

DAY_MS = 86_400_000


class Pending(NamedTuple):
    place: DuePlace
    target: tuple[int, int]
    body: bytes


def delayed(*messages: tuple[int, bytes, int], **fields: int) -> RecordBatch:
    """Queue, body, and ``DUE_MS`` of each."""
    builder = BatchBuilder()
    for queue, body, due_ms in messages:
        builder.add(queue, body, due_ms=due_ms)
    return RecordBatch(builder.build(**fields))


def send(store: ShardStore, topic_id: int, *messages: tuple[int, bytes, int]) -> list[Pending]:
    """Commits; those that come later."""
    appended = store.append(topic_id, delayed(*messages))
    store.wait(appended)
    due = due_times(np.array([due for *_, due in messages]), appended.stored_ms).tolist()
    places = zip(due, appended.offsets.tolist(), messages, strict=True)
    return [Pending((at, offset), (topic_id, queue), body) for at, offset, (queue, body, _) in places if at]


def pending(
    store: ShardStore, after: DuePlace = BEGIN, upto_ms: int = LAST_DUE_MS, records: int = 3, size: int = 1 << 20
) -> list[Pending]:
    found: list[Pending] = []
    while True:
        read = store.delayed.read(after, upto_ms, records, size)
        if read.records is not None:
            raw, at = read.records.payload.tobytes(), 0
            rows = zip(
                read.records.keys.tolist(),
                read.records.offsets.tolist(),
                read.records.lengths.tolist(),
                read.records.columns[Column.TARGET].tolist(),
                strict=True,
            )
            for key, offset, length, target in rows:
                place = key & ~(1 << 62), offset
                found.append(Pending(place, (target >> 32, target & 0xFFFFFFFF), raw[at : at + length]))
                at += length
        if not read.more:
            return found
        assert read.reached > after, "a read that did not see all comes further"
        after = read.reached


def deliver_to(store: ShardStore, place: DuePlace, done: int = 0) -> None:
    store.wait(store.put_documents({HAND: Hand(place, place, 0, done).encode()}))


class World:
    """A store, and what should be pending in it."""

    def __init__(self, path: Path, options: StoreOptions) -> None:
        self.path, self.options = path, options
        self.disk, self.clock = Drive(path.parent), SimClock()
        self.open()
        self.topics = [self.store.create_topic(name, 4).id for name in ("a", "b")]
        self.model: list[Pending] = []
        self.hand: DuePlace = BEGIN
        self.immediate = 0

    def open(self) -> None:
        self.store = open_stepped(self.path, self.options, self.disk, self.clock)

    def send(self, random: random.Random) -> None:
        now = self.clock.time_ms
        messages = []
        for _ in range(random.choice((1, 2, 9, 40))):
            due = random.choice((0, 1, random.randrange(1, 50), random.randrange(1, 5 * DAY_MS), now + 7, now - 7))
            messages.append((random.randrange(4), random.randbytes(random.choice((0, 3, 700))), due))
        topic = random.choice(self.topics)
        before = len(self.all_in_queues(topic))
        new = send(self.store, topic, *messages)
        self.model += new
        assert len(self.all_in_queues(topic)) - before == len(messages) - len(new)

    def all_in_queues(self, topic: int) -> list[bytes]:
        return [body for queue in range(4) for body in bodies(self.store, topic, queue).values()]

    def pass_time(self, random: random.Random) -> None:
        self.clock.time_ms += random.choice((0, 1, 20, DAY_MS))

    def deliver(self, random: random.Random) -> None:
        now = self.store.delayed.now_ms()
        due = [each for each in sorted(self.model) if each.place[0] <= now]
        if due and random.random() < 0.5:
            self.hand = random.choice(due).place
        else:
            self.hand = max(self.hand, (now, 1 << 60))
        self.model = [each for each in self.model if each.place > self.hand]
        deliver_to(self.store, self.hand)

    def cancel(self, random: random.Random) -> None:
        if self.model:
            gone = random.sample(self.model, min(len(self.model), random.choice((1, 5))))
            self.store.wait(self.store.delayed.cancel([each.place for each in gone]))
            self.model = [each for each in self.model if each not in gone]

    def flush(self, random: random.Random) -> None:
        flush(self.store)

    def merge(self, random: random.Random) -> None:
        merge(self.store)

    def crash(self, random: random.Random) -> None:
        abandon(self.store)
        self.disk = self.disk.power_cut(random.randrange(1 << 30))
        self.open()

    def check(self, random: random.Random) -> None:
        expected = sorted(self.model)
        assert pending(self.store, self.hand, records=random.choice((1, 3, 1000))) == expected
        if expected:
            middle = random.choice(expected).place
            assert pending(self.store, middle, size=random.choice((1, 800, 1 << 20))) == [
                each for each in expected if each.place > middle
            ]
            upto = [each for each in expected if each.place[0] <= middle[0]]
            assert pending(self.store, self.hand, middle[0]) == upto


@given(seed=st.integers(0, 1 << 32))
@profile(examples=12)
@pytest.mark.part(3)
def test_what_is_pending_is_found_in_the_order_in_which_it_is_due(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    chance = random.Random(seed)
    world = World(tmp_path_factory.mktemp("delayed") / "s", tiny(segment_bytes=64 * KIB, wal_keep_bytes=64 * KIB))
    steps: list[Callable[[random.Random], None]] = [
        *(world.send, world.send, world.send, world.pass_time, world.deliver),
        *(world.cancel, world.flush, world.merge, world.crash),
    ]
    for _ in range(40):
        chance.choice(steps)(chance)
        world.check(chance)
    abandon(world.store)


def test_a_delay_counts_from_when_it_is_stored_and_a_time_that_has_passed_is_now(tmp_path: Path, disk: Drive) -> None:
    clock = SimClock()
    store = open_stepped(tmp_path / "s", small(), disk, clock)
    topic = store.create_topic("t", 2).id
    now = clock.time_ms
    found = send(
        store,
        topic,
        (0, b"past", now),
        (0, b"delay", 5),
        (1, b"time", now + 5),
        (0, b"soon", 0),
        (1, b"far", MAX_DELAY_MS),
    )
    assert [(each.place[0], each.body) for each in found] == [
        (now + 5, b"delay"),
        (now + 5, b"time"),
        (now + MAX_DELAY_MS, b"far"),
    ]
    assert bodies(store, topic, 0) == {0: b"past", 1: b"soon"}
    assert bodies(store, topic, 1) == {}
    assert [each.body for each in pending(store)] == [b"delay", b"time", b"far"]
    assert store.delayed.count == 3
    abandon(store)


def test_a_batch_that_is_repeated_is_answered_as_before_and_stored_once(tmp_path: Path, disk: Drive) -> None:
    store = open_stepped(tmp_path / "s", small(), disk)
    topic = store.create_topic("t", 1).id
    batch = delayed((0, b"now", 0), (0, b"later", 1000), producer_id=7)
    first, again = store.append(topic, batch), store.append(topic, batch)
    store.wait(again)
    assert again.duplicate and again.offsets.tolist() == first.offsets.tolist()
    assert [each.body for each in pending(store)] == [b"later"]
    abandon(store)


def test_what_is_in_line_is_known_by_its_due_time_until_it_is_committed(tmp_path: Path, disk: Drive) -> None:
    store = open_stepped(tmp_path / "s", small(), disk, SimClock())
    topic = store.create_topic("t", 1).id
    told: list[int] = []
    store.delayed.on_new(told.append)
    late = store.append(topic, delayed((0, b"x", 5000), (0, b"y", 3000)))
    store.append(topic, delayed((0, b"z", 4000)))
    assert told == [late.stored_ms + 3000, late.stored_ms + 4000]
    assert store.delayed.first_in_line() == late.stored_ms + 3000
    store.commit()
    assert store.delayed.first_in_line() is None
    abandon(store)


@pytest.mark.parametrize("why", ["delivered", "cancelled", "topic deleted"])
def test_the_space_of_what_is_not_pending_any_more_comes_back(tmp_path: Path, disk: Drive, why: str) -> None:
    clock = SimClock()
    store = open_stepped(tmp_path / "s", small(), disk, clock)
    gone, kept = store.create_topic("gone", 1).id, store.create_topic("kept", 1).id
    mine: list[Pending] = []
    for number in range(40):
        mine += send(store, gone, *[(0, bytes(900), 1000 + 50 * number + each) for each in range(40)])
    stays = [each for part in range(10) for each in send(store, kept, *[(0, bytes(900), DAY_MS + part)] * 40)]
    flush(store)
    merge(store)

    def used() -> int:
        return sum(run.size_bytes for run in store._tables.version.runs())

    full = used()
    match why:
        case "delivered":
            clock.time_ms += DAY_MS // 2
            deliver_to(store, (store.delayed.now_ms(), 0))
        case "cancelled":
            store.wait(store.delayed.cancel([each.place for each in mine]))
        case "topic deleted":
            store.delete_topic("gone")
    send(store, kept, (0, b"more", DAY_MS))
    flush(store)
    merge(store)
    assert used() < full * 0.2 / (1 - MAX_SHARE) + 64 * KIB
    after = store.delayed.hand.at
    assert len(pending(store, after, records=1000)) == len(stays) + 1
    abandon(store)


def test_a_batch_whose_due_times_take_no_bytes_is_refused(tmp_path: Path, disk: Drive) -> None:
    """Their places are made of where the batch lies in the log, so there must be a byte for each."""
    store = open_stepped(tmp_path / "s", small(), disk)
    topic = store.create_topic("t", 1).id
    packed = bytearray(encode_batch(300, {Column.QUEUE: 0, Column.LENGTH: 0, Column.PRIORITY: 5}, b""))
    place = packed.index(bytes((Column.PRIORITY, 0, 5)))
    packed[place] = Column.DUE_MS
    batch = RecordBatch(bytes(packed), verify=False)
    with pytest.raises(InvalidBatch, match="DUE_MS"):
        store.append(topic, batch)
    abandon(store)


def test_many_empty_messages_of_one_moment_have_places_of_their_own(tmp_path: Path, disk: Drive) -> None:
    store = open_stepped(tmp_path / "s", small(), disk, SimClock())
    topic = store.create_topic("t", 1).id
    due = SimClock().time_ms + DAY_MS
    sent = [each for _ in range(3) for each in send(store, topic, *[(0, b"", due)] * 500)]
    assert len({each.place for each in sent}) == 1500
    assert pending(store, records=100) == sorted(sent)
    abandon(store)


@pytest.mark.parametrize("flushed", [True, False])
def test_repair_keeps_what_is_pending_and_nothing_else(tmp_path: Path, flushed: bool) -> None:
    store = ShardStore.open(tmp_path / "s", small())
    topic = store.create_topic("t", 2).id
    sent = [each for part in range(5) for each in send(store, topic, *[(part % 2, b"x%d" % part, DAY_MS + part)] * 20)]
    send(store, topic, (0, b"now", 0), (1, b"later", 2 * DAY_MS), (0, b"now", 0))
    store.wait(store.delayed.cancel([sent[3].place]))
    deliver_to(store, sent[30].place, done=31)
    if flushed:
        store.flush()
    store.close()
    repair_store(tmp_path / "s", tmp_path / "new", tell=lambda finding: None)
    store = ShardStore.open(tmp_path / "new", small())
    assert [topic.name for topic in store.topics()] == ["t"]
    assert bodies(store, topic, 0) == {0: b"now", 1: b"now"}
    hand = store.delayed.hand.at
    found = pending(store, hand)
    assert found[:-1] == sent[31:] and found[-1].body == b"later"
    again = send(store, topic, *[(0, b"y", DAY_MS)] * 3)
    store.compact()
    assert {each.place for each in pending(store, hand)} == {each.place for each in [*found, *again]}
    store.close()


def test_what_is_sent_to_a_topic_that_is_being_deleted_is_pending_nowhere(tmp_path: Path, disk: Drive) -> None:
    clock = SimClock()
    store = open_stepped(tmp_path / "s", tiny(), disk, clock)
    topic, other = store.create_topic("a", 1), store.create_topic("b", 1)
    send(store, other.id, (0, b"stays", DAY_MS))
    store.drop_topic(topic.id)
    store.append(topic.id, delayed((0, b"goes", DAY_MS)))
    store.commit()
    seen = store.delayed.count, [each.body for each in pending(store)]
    abandon(store)
    store = open_stepped(tmp_path / "s", tiny(), disk, clock)
    assert seen == (store.delayed.count, [each.body for each in pending(store)]) == (1, [b"stays"])
    abandon(store)


def test_the_document_of_what_is_delivered_has_these_bytes() -> None:
    """Written by one release, read by the next: docs/formats/documents.md."""
    hand = Hand((1_700_000_000_000, 258), (1_700_000_000_001, 3), 7, 9, (1, 5))
    packed = bytes.fromhex(
        "0068e5cf8b010000 0201000000000000 0168e5cf8b010000 0300000000000000 0700000000000000 0900000000000000"
        "01000000 05000000"
    )
    assert hand.encode() == packed
    assert Hand.decode(packed) == hand
    assert Hand.decode(None) == Hand(BEGIN, BEGIN, 1, 0, ())
    with pytest.raises(CorruptFile, match=HAND):
        Hand.decode(packed[:20])


def test_a_delayed_message_lies_under_its_due_time_in_log_and_tables(tmp_path: Path, disk: Drive) -> None:
    clock = SimClock()
    store = open_stepped(tmp_path / "s", small(), disk, clock)
    topic = store.create_topic("t", 9).id
    (sent,) = send(store, topic, (7, b"x", 5000))
    flush(store)
    (run,) = store._tables.version.runs()
    (block,) = run.tables[0].scan()
    assert block.keys.tolist() == [1 << 62 | clock.time_ms + 5000]
    assert block.column(Column.TARGET).tolist() == [topic << 32 | 7]
    assert block.offset(0) == sent.place[1]
    assert Column.DUE_MS not in block.batch.directory
    abandon(store)


def test_where_documents_are_full_messages_that_are_due_come_all_the_same(tmp_path: Path, disk: Drive) -> None:
    store = open_stepped(tmp_path / "s", small(max_documents_bytes=100), disk)
    store.wait(store.put_documents({"group/g": b"x" * 90}))
    with pytest.raises(DocumentsFull):
        store.put_documents({"group/h": b"x" * 90})
    deliver_to(store, (1, 1))
    assert store.delayed.hand.at == (1, 1)
    abandon(store)


def test_what_was_in_line_is_forgotten_though_nobody_asks(tmp_path: Path, disk: Drive) -> None:
    store = open_stepped(tmp_path / "s", small(), disk)
    topic = store.create_topic("t", 1).id
    for _ in range(3000):
        store.append(topic, delayed((0, b"", 5000)))
        store.commit()
    assert len(store._line._delayed) < 2000
    abandon(store)
