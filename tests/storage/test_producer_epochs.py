"""Idempotent producers: who goes on for another, and where epochs and their batches end."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from lsmq.errors import DiskFull, InvalidRequest, OutOfOrderSequence, ProducerFenced
from lsmq.record_batch import BatchBuilder, RecordBatch
from lsmq_lab.world.drive import Drive
from lsmq_node.storage.producers import LAST_EPOCH, LAST_SEQUENCE, StoredBatch

from .harness import abandon, bodies, flush, keep_house, merge_checkpoint, open_stepped, sent, stored, tiny


def at(position: int, content: bytes, sequence: int, *, epoch: int, producer: int = 5) -> RecordBatch:
    builder = BatchBuilder()
    builder.add(0, content)
    return RecordBatch(builder.build(producer_id=producer, producer_epoch=epoch, sequence=sequence, position=position))


def test_who_takes_over_fences_the_one_before_and_learns_its_position(tmp_path: Path, disk: Drive) -> None:
    store = open_stepped(tmp_path / "s", tiny(), disk)
    topic = store.create_topic("t", 1)
    for round_ in range(4):
        appended, epoch, position = store.take_producer(5)
        assert appended is not None and (epoch, position) == (round_ + 1, 10 * round_ or -1)
        with pytest.raises(ProducerFenced):  # already in line
            store.append(topic.id, at(99, b"old", 0, epoch=epoch - 1))
        stored(store, topic.id, at(10 * round_ + 5, b"a", 0, epoch=epoch))
        stored(store, topic.id, at(10 * round_ + 10, b"b", 1, epoch=epoch))
        assert stored(store, topic.id, at(10 * round_ + 10, b"b", 1, epoch=epoch)).duplicate
        flush(store)
        merge_checkpoint(store)
        abandon(store)
        disk = disk.kill()
        store = open_stepped(tmp_path / "s", tiny(), disk)
    assert len(bodies(store, topic.id, 0)) == 8
    abandon(store)


def test_taking_over_holds_over_a_restart_and_an_epoch_that_has_begun_is_no_news(tmp_path: Path, disk: Drive) -> None:
    store = open_stepped(tmp_path / "s", tiny(), disk)
    topic = store.create_topic("t", 1)
    stored(store, topic.id, at(7, b"a", 0, epoch=3))
    appended, epoch, position = store.take_producer(5, 9)
    assert appended is not None and (epoch, position) == (9, 7)
    store.wait(appended)
    for flushed in (False, True):
        if flushed:
            flush(store)
        abandon(store)
        disk = disk.kill()
        store = open_stepped(tmp_path / "s", tiny(), disk)
        assert store.take_producer(5, 9) == (None, 9, 7), "once more, as after a lost answer"
        with pytest.raises(ProducerFenced):
            store.take_producer(5, 8)
        with pytest.raises(ProducerFenced):
            store.append(topic.id, at(8, b"old", 1, epoch=3))
    assert not stored(store, topic.id, at(8, b"b", 0, epoch=9)).duplicate
    with pytest.raises(ProducerFenced):
        store.take_producer(5, 9)
    assert store.take_producer(5, 21, new=True)[1:] == (21, 8)
    with pytest.raises(ProducerFenced):
        store.take_producer(5, 21, new=True)
    abandon(store)


def test_behind_the_last_epoch_nobody_takes_over(tmp_path: Path, disk: Drive) -> None:
    store = open_stepped(tmp_path / "s", tiny(), disk)
    topic = store.create_topic("t", 1)
    stored(store, topic.id, at(7, b"a", 0, epoch=LAST_EPOCH))
    with pytest.raises(InvalidRequest, match="new producer id") as refused:
        store.take_producer(5)
    assert refused.value.details["limit"] == LAST_EPOCH
    appended, epoch, _ = store.take_producer(6, LAST_EPOCH)
    assert appended is not None and epoch == LAST_EPOCH
    store.wait(appended)
    flush(store)
    abandon(store)
    store = open_stepped(tmp_path / "s", tiny(), disk.kill())
    assert store.take_producer(6, LAST_EPOCH) == (None, LAST_EPOCH, -1)
    assert not stored(store, topic.id, at(8, b"b", 1, epoch=LAST_EPOCH)).duplicate
    abandon(store)


def test_behind_the_last_sequence_of_an_epoch_no_batch_is_taken(tmp_path: Path, disk: Drive) -> None:
    store = open_stepped(tmp_path / "s", tiny(), disk)
    topic = store.create_topic("t", 1)
    now_ms = stored(store, topic.id, sent(b"another", 0, producer=4)).stored_ms
    before = StoredBatch(0, LAST_SEQUENCE - 1, 0, 0, now_ms, np.zeros(1, np.int64))
    store._state.producers.record(5, before)
    last = stored(store, topic.id, sent(b"last", LAST_SEQUENCE))
    with pytest.raises(OutOfOrderSequence, match="new producer id"):
        store.append(topic.id, sent(b"beyond", LAST_SEQUENCE + 1))
    flush(store)
    assert store._state.producers.answer(5, 0, LAST_SEQUENCE) is not None
    abandon(store)
    store = open_stepped(tmp_path / "s", tiny(), disk.kill())
    again = stored(store, topic.id, sent(b"last", LAST_SEQUENCE))
    assert again.duplicate and again.offsets.tolist() == last.offsets.tolist()
    with pytest.raises(OutOfOrderSequence):
        store.append(topic.id, sent(b"beyond", LAST_SEQUENCE + 1))
    assert not stored(store, topic.id, sent(b"anew", 0, epoch=1)).duplicate
    abandon(store)


def test_a_taking_over_that_is_dropped_has_not_happened(tmp_path: Path, disk: Drive) -> None:
    store = open_stepped(tmp_path / "s", tiny(), disk)
    topic = store.create_topic("t", 1)
    stored(store, topic.id, at(1, b"a", 0, epoch=1))
    store.take_producer(5)
    disk.at(1, errno.ENOSPC, ("write",))
    with pytest.raises(DiskFull):
        store.commit()
    keep_house(store)
    assert stored(store, topic.id, at(2, b"b", 1, epoch=1)).offsets.tolist() == [1]
    assert store.take_producer(5)[1:] == (2, 2)
    abandon(store)
