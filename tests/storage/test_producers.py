"""Idempotent producers: what is a repeat, what is refused and how, and what is remembered for how long."""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lsmq.errors import (
    CorruptFile,
    LsmqError,
    OutOfOrderSequence,
    ProducerFenced,
    SequenceReused,
    StaleSequence,
    TooManyProducers,
    UnknownProducer,
)
from lsmq.record_batch import Codec, RecordBatch
from lsmq_lab.world.drive import Drive
from lsmq_node.storage import ShardStore
from lsmq_node.storage.producers import StoredBatch
from support.clock import SimClock

from .harness import (
    Put,
    abandon,
    batch_of,
    bodies,
    flush,
    freeze,
    merge,
    merge_checkpoint,
    open_stepped,
    profile,
    put,
    remembered,
    sent,
    small,
    stored,
    tiny,
)

# -- epochs ----------------------------------------------------------------------------------------------


def test_a_newer_epoch_in_line_fences_the_older_at_once(tmp_path: Path, disk: Drive) -> None:
    store = open_stepped(tmp_path / "s", tiny(), disk)
    topic = store.create_topic("t", 1)
    stored(store, topic.id, sent(b"old 0", 0))
    store.append(topic.id, sent(b"new 0", 0, epoch=1))
    with pytest.raises(LsmqError) as refused:
        store.append(topic.id, sent(b"old 1", 1))
    assert refused.value.code == "producer_fenced"
    assert (refused.value.details["epoch"], refused.value.details["latest"]) == (0, 1)
    store.commit()
    again = stored(store, topic.id, sent(b"new 1", 1, epoch=1))
    assert not again.duplicate
    assert list(bodies(store, topic.id, 0).values()) == [b"old 0", b"new 0", b"new 1"]
    abandon(store)


def test_batches_of_two_epochs_that_come_together_are_fenced_among_themselves(tmp_path: Path, disk: Drive) -> None:
    store = open_stepped(tmp_path / "s", tiny(), disk)
    topic = store.create_topic("t", 1)
    with pytest.raises(LsmqError) as refused:
        store.append_many([(topic.id, sent(b"new", 0, epoch=1)), (topic.id, sent(b"old", 0))])
    assert refused.value.code == "producer_fenced"
    store.commit()
    assert bodies(store, topic.id, 0) == {}, "nothing of what was refused is in line"
    abandon(store)


# -- the very same batch ---------------------------------------------------------------------------------


@pytest.mark.parametrize("in_line", [True, False])
@pytest.mark.parametrize(
    "other",
    [
        batch_of([Put(0, b"one"), Put(0, b"two")], producer_id=5),
        batch_of([Put(0, b"ONE")], producer_id=5),
        batch_of([Put(1, b"one")], producer_id=5),
        batch_of([Put(0, b"one", key="k")], producer_id=5),
    ],
    ids=["another count", "another body", "another queue", "another key"],
)
def test_another_batch_under_a_sequence_is_refused_by_name(
    tmp_path: Path, disk: Drive, other: RecordBatch, in_line: bool
) -> None:
    store = open_stepped(tmp_path / "s", tiny(), disk)
    topic = store.create_topic("t", 2)
    store.append(topic.id, sent(b"one", 0))
    if not in_line:
        store.commit()
    with pytest.raises(LsmqError) as refused:
        store.append(topic.id, other)
    assert refused.value.code == "sequence_reused"
    abandon(store)


def test_a_batch_of_another_topic_is_not_a_repeat(tmp_path: Path, disk: Drive) -> None:
    store = open_stepped(tmp_path / "s", tiny(), disk)
    one, two = store.create_topic("one", 1), store.create_topic("two", 1)
    stored(store, one.id, sent(b"x", 0))
    with pytest.raises(LsmqError) as refused:
        store.append(two.id, sent(b"x", 0))
    assert refused.value.code == "sequence_reused"
    abandon(store)


def test_a_repeat_is_the_same_batch_however_it_is_compressed(tmp_path: Path, disk: Drive) -> None:
    store = open_stepped(tmp_path / "s", tiny(), disk)
    topic = store.create_topic("t", 1)
    stored(store, topic.id, sent(b"x" * 100, 0))
    again = store.append(topic.id, batch_of([Put(0, b"x" * 100)], producer_id=5, sequence=0, codec=Codec.ZSTD))
    assert again.duplicate
    abandon(store)


# -- nobody is forgotten ---------------------------------------------------------------------------------


@pytest.mark.part(2)
def test_the_first_of_many_producers_is_still_known(tmp_path: Path, disk: Drive) -> None:
    store = open_stepped(tmp_path / "s", small(memtable_bytes=4 << 20), disk)
    topic = store.create_topic("t", 1)
    first = stored(store, topic.id, sent(b"first", 0, producer=1))
    for producer in range(2, 10_100):
        store.append(topic.id, sent(b"x", 0, producer=producer))
        if producer % 1000 == 0:
            flush(store)
    store.commit()
    again = store.append(topic.id, sent(b"first", 0, producer=1))
    assert again.duplicate
    np.testing.assert_array_equal(again.offsets, first.offsets)
    flush(store)
    assert store.append(topic.id, sent(b"first", 0, producer=1)).duplicate
    abandon(store)


def test_a_producer_costs_two_bytes_of_memory_once_it_is_flushed(tmp_path: Path, disk: Drive) -> None:
    store = open_stepped(tmp_path / "s", small(memtable_bytes=32 << 20), disk)
    producers = store._state.producers
    count = 30_000
    for number in range(count):
        answer = StoredBatch(0, 0, number, number, 0, np.array([number], np.int64))
        producers.record((number + 1) * 0x9E3779B97F4A7C15 % 2**63, answer)
    change = store._state.take_change(10)
    meta, file = store._tables.checkpoint.write(change)
    producers.replace((change.producers,), file)
    assert file.memory_bytes < 2.5 * count
    assert meta.size_bytes < 60 * count
    for number in range(0, count, 997):
        found = producers.answer((number + 1) * 0x9E3779B97F4A7C15 % 2**63, 0, 0)
        assert found is not None and found.fingerprint == number
    assert producers.head(12_345) is None
    abandon(store)


def test_answers_of_large_batches_do_not_stay_in_memory_nor_in_every_flush(tmp_path: Path, disk: Drive) -> None:
    """Each batch goes to many queues: its answer is as long as it is."""
    store = open_stepped(tmp_path / "s", small(memtable_bytes=4 << 20), disk)
    topic = store.create_topic("t", 1_000)
    for producer in range(1, 31):
        for sequence in range(3):
            puts = [Put(queue * 7 % 1_000, b"x") for queue in range(1_000)]
            stored(store, topic.id, batch_of(puts, producer_id=producer, sequence=sequence))
    flush(store)
    assert store._state.producers.unflushed_bytes == 0
    written = store.stats().checkpoint_written_bytes_total
    put(store, topic.id, (0, b"one message"))
    flush(store)
    assert store.stats().checkpoint_written_bytes_total - written < 2_000 * 8
    puts = [Put(queue * 7 % 1_000, b"x") for queue in range(1_000)]
    again = store.append(topic.id, batch_of(puts, producer_id=30, sequence=0))
    assert again.duplicate and again.offsets.tolist() == [87] * 1_000
    abandon(store)


def test_a_layer_of_producers_has_a_limit(tmp_path: Path, disk: Drive) -> None:
    """Many producers with a small message each fill memory faster than their messages do."""
    store = open_stepped(tmp_path / "s", tiny(), disk)
    topic = store.create_topic("t", 1)
    for producer in range(1, 200):
        stored(store, topic.id, sent(b"x", 0, producer=producer))
    assert len(store._tables.frozen) > 1
    assert store._state.producers.unflushed_bytes <= tiny().memtable_bytes // 2 + 1_000
    abandon(store)


# -- expiry and limits -----------------------------------------------------------------------------------

EXPIRY_MS = 60_000


@pytest.mark.parametrize("flushed", [False, True])
def test_a_producer_that_was_idle_too_long_is_told_so(tmp_path: Path, disk: Drive, flushed: bool) -> None:
    clock = SimClock()
    store = open_stepped(tmp_path / "s", tiny(producer_expiry_ms=EXPIRY_MS), disk, clock)
    topic = store.create_topic("t", 1)
    stored(store, topic.id, sent(b"0", 0))
    clock.time_ms += EXPIRY_MS
    stored(store, topic.id, sent(b"1", 1))
    if flushed:
        flush(store)
    clock.time_ms += EXPIRY_MS + 1
    for sequence in (1, 2):
        with pytest.raises(UnknownProducer, match="producer_expiry_ms"):
            store.append(topic.id, sent(b"%d" % sequence, sequence))
    stored(store, topic.id, sent(b"anew", 0, producer=6))
    assert list(bodies(store, topic.id, 0).values()) == [b"0", b"1", b"anew"]
    abandon(store)


@pytest.mark.parametrize("flushed", [False, True])
def test_a_producer_that_was_forgotten_may_begin_anew_under_its_id(tmp_path: Path, disk: Drive, flushed: bool) -> None:
    clock = SimClock()
    store = open_stepped(tmp_path / "s", tiny(producer_expiry_ms=EXPIRY_MS), disk, clock)
    topic = store.create_topic("t", 1)
    stored(store, topic.id, sent(b"0", 0))
    stored(store, topic.id, sent(b"1", 1))
    if flushed:
        flush(store)
    clock.time_ms += EXPIRY_MS + 1
    begun = stored(store, topic.id, sent(b"anew", 0))
    assert not begun.duplicate
    assert stored(store, topic.id, sent(b"anew", 0)).offsets.tolist() == begun.offsets.tolist()
    stored(store, topic.id, sent(b"and on", 1))
    abandon(store)
    store = open_stepped(tmp_path / "s", tiny(producer_expiry_ms=EXPIRY_MS), disk, clock)
    assert list(bodies(store, topic.id, 0).values()) == [b"0", b"1", b"anew", b"and on"]
    assert store.append(topic.id, sent(b"and on", 1)).duplicate
    abandon(store)


@pytest.mark.parametrize("flushed", [False, True])
def test_who_goes_on_with_a_producer_that_was_forgotten_fences_it(tmp_path: Path, disk: Drive, flushed: bool) -> None:
    clock = SimClock()
    store = open_stepped(tmp_path / "s", tiny(producer_expiry_ms=EXPIRY_MS), disk, clock)
    topic = store.create_topic("t", 1)

    def take() -> tuple[int, int]:
        appended, epoch, position = store.take_producer(5)
        assert appended is not None
        store.wait(appended)
        return epoch, position

    first, _ = take()
    batch = batch_of([Put(0, b"0")], producer_id=5, producer_epoch=first, sequence=0, position=7)
    stored(store, topic.id, batch)
    if flushed:
        flush(store)
    clock.time_ms += EXPIRY_MS + 1
    second, position = take()
    assert position == 7, "it is still known"
    for sequence in (0, 1):
        with pytest.raises(ProducerFenced):
            store.append(topic.id, sent(b"late", sequence, epoch=first))
    stored(store, topic.id, sent(b"1", 0, epoch=second))
    assert list(bodies(store, topic.id, 0).values()) == [b"0", b"1"]
    abandon(store)


@pytest.mark.parametrize("flushed", [False, True])
def test_a_clock_that_jumps_ahead_makes_no_repeat_a_new_batch(tmp_path: Path, disk: Drive, flushed: bool) -> None:
    clock = SimClock()
    store = open_stepped(tmp_path / "s", small(producer_expiry_ms=EXPIRY_MS), disk, clock)
    topic = store.create_topic("t", 1)
    first = stored(store, topic.id, sent(b"0", 0))
    clock.wrong_ms += 365 * 86_400_000
    for other in range(10):
        stored(store, topic.id, sent(b"x", 0, producer=100 + other))
        if flushed:
            flush(store)
            merge_checkpoint(store)
    again = stored(store, topic.id, sent(b"0", 0))
    assert again.duplicate and again.offsets.tolist() == first.offsets.tolist()
    assert not stored(store, topic.id, sent(b"1", 1)).duplicate
    clock.time_ms += EXPIRY_MS + 1
    stored(store, topic.id, sent(b"x", 0, producer=200))
    with pytest.raises(UnknownProducer, match="producer_expiry_ms"):
        store.append(topic.id, sent(b"2", 2))
    abandon(store)


def test_what_is_kept_of_expired_producers_goes_with_merges(tmp_path: Path, disk: Drive) -> None:
    clock = SimClock()
    store = open_stepped(tmp_path / "s", small(producer_expiry_ms=EXPIRY_MS), disk, clock)
    topic = store.create_topic("t", 1)
    for day in range(8):
        for producer in range(20):
            stored(store, topic.id, sent(b"x", 0, producer=1 + 100 * day + producer))
        flush(store)
        merge_checkpoint(store)
        clock.time_ms += EXPIRY_MS // 2
    assert 20 <= store.stats().producers < 8 * 20
    assert len(remembered(store)) == store.stats().producers
    abandon(store)


def test_new_producers_are_refused_at_the_limit_and_known_ones_go_on(tmp_path: Path, disk: Drive) -> None:
    store = open_stepped(tmp_path / "s", tiny(max_producers=3), disk)
    topic = store.create_topic("t", 1)
    for producer in (1, 2, 3):
        stored(store, topic.id, sent(b"x", 0, producer=producer))
    with pytest.raises(TooManyProducers, match="max_producers"):
        store.append(topic.id, sent(b"x", 0, producer=4))
    stored(store, topic.id, sent(b"y", 1, producer=2))
    put(store, topic.id, (0, b"without"))
    abandon(store)


@pytest.mark.parametrize("where", ["in line", "in memory", "in a file", "in files that were merged"])
def test_a_position_is_that_of_the_last_batch_that_said_one(tmp_path: Path, disk: Drive, where: str) -> None:
    store = open_stepped(tmp_path / "s", tiny(), disk)
    topic = store.create_topic("t", 1)
    store.append(topic.id, batch_of([Put(0, b"0")], producer_id=5, sequence=0, position=7))
    if where != "in line":
        store.commit()
    if where.startswith("in file"):
        flush(store)
    store.append(topic.id, batch_of([Put(0, b"1")], producer_id=5, sequence=1))
    if where == "in files that were merged":
        store.commit()
        flush(store)
        merge_checkpoint(store)
    _, _, position = store.take_producer(5)
    assert position == 7
    abandon(store)


# -- a model ---------------------------------------------------------------------------------------------


class ProducerMachine(RuleBasedStateMachine):
    """A few producers against what each is owed: over flushes, merges, kills, power cuts and dropped lines."""

    def __init__(self) -> None:
        super().__init__()
        self._scratch = tempfile.TemporaryDirectory()
        self._path = Path(self._scratch.name) / "s"
        self._disk = Drive(Path(self._scratch.name))
        self._clock = SimClock()
        self._blocks = mock.patch("lsmq_node.storage.keyed_file.BLOCK_BYTES", 200)
        self._blocks.start()
        self._store = self._open()
        self._topic = self._store.create_topic("t", 3).id
        self._known: dict[int, tuple[int, int]] = {}  # epoch and next sequence
        self._answers: dict[tuple[int, int, int], list[int]] = {}
        self._bodies: list[bytes] = []

    def _open(self) -> ShardStore:
        return open_stepped(self._path, tiny(), self._disk, self._clock)

    def teardown(self) -> None:
        abandon(self._store)
        self._blocks.stop()
        self._scratch.cleanup()

    def _batch(self, producer: int, epoch: int, sequence: int) -> RecordBatch:
        """The batch that this producer sends under this sequence, whenever it does."""
        puts = [
            Put((sequence + at * at) % 3, b"%d.%d.%d.%d" % (producer, epoch, sequence, at))
            for at in range(1 + sequence % 5)
        ]
        return batch_of(puts, producer_id=producer, producer_epoch=epoch, sequence=sequence)

    @rule(producer=st.integers(1, 3), anew=st.integers(0, 7), together=st.integers(1, 4))
    def send(self, producer: int, anew: int, together: int) -> None:
        epoch, sequence = self._known.get(producer, (0, 0))
        if anew == 0:
            epoch, sequence = epoch + 1, 0
        batches = [self._batch(producer, epoch, sequence + at) for at in range(together)]
        appended = self._store.append_many([(self._topic, batch) for batch in batches])
        self._store.commit()
        for batch, each in zip(batches, appended, strict=True):
            assert not each.duplicate
            self._answers[producer, epoch, batch.sequence] = each.offsets.tolist()
            self._bodies += [message.body for message in batch.messages("t")]
        self._known[producer] = epoch, sequence + together

    @rule(producer=st.integers(1, 3), back=st.integers(1, 10), lag=st.integers(0, 1))
    def repeat(self, producer: int, back: int, lag: int) -> None:
        epoch, following = self._known.get(producer, (0, 0))
        sequence = following - back
        if sequence < 0:
            return
        batch = self._batch(producer, epoch, sequence)
        if back > 8:
            with pytest.raises(StaleSequence):
                self._store.append(self._topic, batch)
            return
        again = self._store.append(self._topic, batch)
        assert again.duplicate and again.offsets.tolist() == self._answers[producer, epoch, sequence]
        with pytest.raises(SequenceReused):
            self._store.append(self._topic, self._other(producer, epoch, sequence))
        if epoch and lag:
            with pytest.raises(ProducerFenced):
                self._store.append(self._topic, self._batch(producer, epoch - 1, following))

    def _other(self, producer: int, epoch: int, sequence: int) -> RecordBatch:
        return batch_of([Put(0, b"other")], producer_id=producer, producer_epoch=epoch, sequence=sequence)

    @rule(producer=st.integers(1, 3))
    def skip(self, producer: int) -> None:
        epoch, following = self._known.get(producer, (0, 0))
        with pytest.raises(OutOfOrderSequence if producer in self._known else UnknownProducer):
            self._store.append(self._topic, self._batch(producer, epoch, following + 1))

    @rule()
    def flush(self) -> None:
        flush(self._store)

    @rule()
    def merge(self) -> None:
        merge(self._store)

    @rule(power=st.booleans(), seed=st.integers(0, 99))
    def die(self, power: bool, seed: int) -> None:
        if self._known:
            self._store.append(self._topic, self._batch(1, *self._known.get(1, (0, 0))))  # never committed
        before = remembered(self._store)
        abandon(self._store)
        self._disk = self._disk.power_cut(seed) if power else self._disk.kill()
        self._store = self._open()
        assert remembered(self._store) == before

    @invariant()
    def each_message_is_stored_once(self) -> None:
        found = [each for queue in range(3) for each in bodies(self._store, self._topic, queue).values()]
        assert sorted(found) == sorted(self._bodies)


TestProducers = ProducerMachine.TestCase
TestProducers.settings = profile(60, steps=30)


# -- damage ----------------------------------------------------------------------------------------------


def test_a_damaged_file_of_producers_is_named_and_the_store_goes_on(tmp_path: Path, disk: Drive) -> None:
    store = open_stepped(tmp_path / "s", tiny(cache_bytes=0), disk)
    topic = store.create_topic("t", 1)
    for producer in range(1, 6):
        stored(store, topic.id, sent(b"x", 0, producer=producer))
        flush(store)
        if producer == 2:
            damaged = store._tables.checkpoint.files[-1].path
            raw = bytearray(disk.content(damaged))
            raw[40] ^= 1
            disk.put(damaged, bytes(raw))
    merge(store)
    assert [damaged.name in message for message in store.damage()] == [True]
    assert damaged in disk.files()
    with pytest.raises(CorruptFile, match=damaged.name):
        store.append(topic.id, sent(b"x", 0, producer=2))
    assert store.append(topic.id, sent(b"x", 0, producer=5)).duplicate
    for producer in range(6, 16):
        stored(store, topic.id, sent(b"x", 0, producer=producer))
        flush(store)
        merge(store)
    assert len(store._tables.checkpoint.files) < 8, "what came behind it is merged"
    abandon(store)
    with pytest.raises(CorruptFile, match=damaged.name):
        open_stepped(tmp_path / "s", tiny(), disk.kill())


# -- threads ---------------------------------------------------------------------------------------------


@pytest.mark.part(2)
def test_producers_are_known_while_flushes_and_merges_move_them(tmp_path: Path) -> None:
    """One thread sends and repeats, the store's own flush and merge; no answer is ever missed."""
    options = small(memtable_bytes=256 << 10, cache_bytes=0)
    with ShardStore.open(tmp_path / "s", options) as store:
        topic = store.create_topic("t", 1)
        answers: dict[int, list[int]] = {}
        for number in range(1, 1_501):
            answers[number] = stored(store, topic.id, sent(b"x" * 300, 0, producer=number)).offsets.tolist()
            back = 1 + number * 7 % number
            again = store.append(topic.id, sent(b"x" * 300, 0, producer=back))
            assert again.duplicate and again.offsets.tolist() == answers[back]
            if number % 100 == 0:
                freeze(store)
        store.compact()
        assert store.stats().checkpoint_files < 15
        assert len(remembered(store)) == 1_500
    with ShardStore.open(tmp_path / "s", options) as store:
        again = store.append(topic.id, sent(b"x" * 300, 0, producer=1))
        assert again.duplicate and again.offsets.tolist() == answers[1]


@pytest.mark.part(3)
def test_twenty_thousand_producers_are_all_remembered_after_a_restart(tmp_path: Path, disk: Drive) -> None:
    """None makes room for another: the first one's retry is answered as then, and so is the last one's."""
    count = 20_000
    options = small(memtable_bytes=1 << 20)
    store = open_stepped(tmp_path / "s", options, disk)
    topic = store.create_topic("t", 1)
    for first in range(0, count, 1_000):
        batches = [sent(b"%d" % number, 0, producer=number + 1) for number in range(first, first + 1_000)]
        store.append_many([(topic.id, batch) for batch in batches])
        flush(store)
        merge_checkpoint(store)
    abandon(store)
    store = open_stepped(tmp_path / "s", options, disk.kill())
    assert store.stats().producers == count
    for number in range(0, count, 37):
        again = store.append(topic.id, sent(b"%d" % number, 0, producer=number + 1))
        assert again.duplicate and again.offsets.tolist() == [number]
    assert not store.append(topic.id, sent(b"more", 1, producer=1)).duplicate
    abandon(store)
