"""Checkpoints: increments hold what changed, stay as they were taken, and a chain of them is the state."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgpack
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lsmq.errors import CorruptFile
from lsmq.record_batch import Column
from lsmq_node.storage.applier import Applier
from lsmq_node.storage.checkpoint import (
    MAX_INCREMENTS,
    IncrementMeta,
    load_state,
    merge_count,
    merge_increments,
    open_checkpoint,
    write_increment,
)
from lsmq_node.storage.columns import encode_columns
from lsmq_node.storage.disk import OsDisk
from lsmq_node.storage.documents import encode_changes
from lsmq_node.storage.epochs import encode_life
from lsmq_node.storage.keyed_file import KeyedFile
from lsmq_node.storage.producers import (
    WINDOW,
    Head,
    StoredBatch,
    merge_values,
    pack_offsets,
    producer_key,
    unpack_offsets,
)
from lsmq_node.storage.state import ShardState, StateChange, StoredTopic, TopicOptions
from lsmq_node.storage.stats import Counters
from lsmq_node.storage.wal import EntryKind, LogEntry

from .harness import known_deleted, profile

DAY_MS = 24 * 3_600_000
EXPIRY_MS = 3 * DAY_MS

topics = st.integers(1, 3)
queues = st.integers(0, 6)
groups = st.sampled_from(["g", "g\0", "other"])
keys = st.sampled_from(["a", "ab", "b/1", "é"])


def described(state: ShardState) -> dict[str, Any]:
    """All that a state says, but for its producers."""
    return {
        "topics": {
            topic_id: (
                item.topic,
                item.first,
                item.end,
                known_deleted(item),
                item.committed[: item.end - item.first].tolist(),
                item.start[: item.end - item.first].tolist(),
            )
            for topic_id, item in state.topics.items()
        },
        "names": set(state.by_name),
        "offsets": {
            key: np.trim_zeros(values.first(7), "b").tolist()
            for key in state.offsets
            if (values := state.offsets.get(*key)) is not None
        },
        "documents": state.documents.items(),
        "epochs": list(state.epochs),
        "time_ms": state.time_ms,
        "next_topic_id": state.next_topic_id,
    }


class CheckpointMachine(RuleBasedStateMachine):
    """A state that changes, increments of it that wait to be written, and a chain of files that is merged."""

    def __init__(self) -> None:
        super().__init__()
        self._scratch = tempfile.TemporaryDirectory()
        self._directory = Path(self._scratch.name)
        self._small = contextlib.ExitStack()
        for module in ("state", "checkpoint", "group_offsets"):
            self._small.enter_context(mock.patch(f"lsmq_node.storage.{module}.PAGE_BITS", 1))
        self._small.enter_context(mock.patch("lsmq_node.storage.group_offsets.FEW", 1))
        self._small.enter_context(mock.patch("lsmq_node.storage.keyed_file.BLOCK_BYTES", 100))
        self._state = ShardState()
        tables: Any = SimpleNamespace(applied_lsn=0)
        self._applier = Applier(self._state, tables, Counters(), "test")
        self._lsn = 0
        self._time_ms = 0
        self._sent: dict[int, tuple[int, int]] = {}
        self._answers: dict[tuple[int, int, int], StoredBatch] = {}
        self._last_ms: dict[int, int] = {}
        self._waiting: list[tuple[StateChange, dict[str, Any]]] = []
        self._metas: list[IncrementMeta] = []
        self._written = described(ShardState())
        self._number = 0
        for topic_id in (1, 2):
            self._catalog("put", topic_id, f"t{topic_id}", 3, {}, 0, 0, 3)

    def teardown(self) -> None:
        self._small.close()
        self._scratch.cleanup()

    def _apply(self, kind: EntryKind, topic_id: int, body: bytes) -> None:
        begin, self._lsn = self._lsn, self._lsn + 10
        entry = LogEntry(begin, self._lsn, kind, len(self._state.epochs), 0, self._time_ms, topic_id, 0, 0, body)
        self._applier.apply_entry(entry)

    def _catalog(self, *fields: Any) -> None:
        self._apply(EntryKind.CATALOG, 0, msgpack.packb(list(fields)))

    @rule(topic_id=topics, queue=queues, count=st.integers(1, 70_000))
    def append(self, topic_id: int, queue: int, count: int) -> None:
        item = self._state.topics.get(topic_id)
        if item is not None and queue < item.end:
            self._state.land(item, np.array([queue]), item.committed[[queue]] + count)
            self._lsn += 10

    @rule(topic_id=topics, queue=queues)
    def trim(self, topic_id: int, queue: int) -> None:
        item = self._state.topics.get(topic_id)
        if item is not None and queue < item.end:
            body = encode_columns(1, {Column.QUEUE: queue, Column.OFFSET: int(item.committed[queue])})
            self._apply(EntryKind.TRIM, topic_id, body)

    @rule(topic_id=topics, queue=queues, back=st.integers(1, 5))
    def delete(self, topic_id: int, queue: int, back: int) -> None:
        item = self._state.topics.get(topic_id)
        if item is not None and queue < item.end and item.committed[queue] >= back:
            self._state.delete(topic_id, np.array([queue], np.uint32), item.committed[[queue]] - back)
            self._lsn += 10

    @rule(topic_id=topics)
    def put_or_grow(self, topic_id: int) -> None:
        item = self._state.topics.get(topic_id)
        end = 1 if item is None else min(item.end + 1, 7)
        self._catalog("put", topic_id, f"t{topic_id}", end, {}, 0, 0, end)

    @rule(topic_id=topics)
    def drop(self, topic_id: int) -> None:
        self._catalog("drop", topic_id)

    @rule(group=groups, topic_id=topics, queue=queues, reset=st.booleans(), offset=st.integers(0, 300))
    def commit(self, group: str, topic_id: int, queue: int, reset: bool, offset: int) -> None:
        item = self._state.topics.get(topic_id)
        if item is not None and queue < item.end:
            position = encode_columns(1, {Column.QUEUE: queue, Column.OFFSET: offset})
            self._apply(EntryKind.OFFSETS, topic_id, msgpack.packb([group, position, reset]))

    @rule(group=groups)
    def forget_group(self, group: str) -> None:
        self._apply(EntryKind.OFFSETS, 0, msgpack.packb([group, None, True]))

    @rule(changes=st.dictionaries(keys, st.none() | st.binary(max_size=300), min_size=1))
    def document(self, changes: dict[str, bytes | None]) -> None:
        self._apply(EntryKind.DOCUMENT, 0, encode_changes(changes))

    @rule()
    def epoch(self) -> None:
        self._apply(EntryKind.EPOCH, 0, encode_life(7, 1))

    @rule(days=st.integers(1, 2))
    def later(self, days: int) -> None:
        self._time_ms += days * DAY_MS

    @rule(producer=st.integers(1, 4), anew=st.integers(0, 9).map(lambda number: number == 0), count=st.integers(0, 40))
    def send(self, producer: int, anew: bool, count: int) -> None:
        epoch, sequence = self._sent.get(producer, (0, 0))
        # Who was idle for too long is told so, and begins anew: nothing is recorded of him that goes on.
        anew = anew or self._time_ms - self._last_ms.get(producer, self._time_ms) > EXPIRY_MS
        epoch, sequence = (epoch + 1, 0) if anew else (epoch, sequence)
        self._lsn += 10
        offsets = np.cumsum(np.arange(count) % 7) + producer
        stored = StoredBatch(epoch, sequence, sequence * 1_000_003 % 2**32, self._lsn, self._time_ms, offsets)
        self._state.producers.record(producer, stored)
        self._state.time_ms = self._time_ms
        self._sent[producer] = epoch, sequence + 1
        self._answers[producer, epoch, sequence] = stored
        self._last_ms[producer] = self._time_ms

    @rule()
    def take(self) -> None:
        if len(self._waiting) < 3:
            expected = described(self._state)
            self._waiting.append((self._state.take_change(self._lsn), expected))

    @precondition(lambda self: self._waiting)
    @rule(fails=st.booleans())
    def write(self, fails: bool) -> None:
        change, expected = self._waiting[0]
        self._number += 1
        meta = write_increment(OsDisk(), self._directory, self._number, change)
        if not fails:  # else it is written again later
            self._waiting.pop(0)
            self._metas.append(meta)
            self._state.producers.replace((change.producers,), self._open(meta))
            self._written = expected

    def _open(self, meta: IncrementMeta) -> KeyedFile:
        return KeyedFile(OsDisk(), self._directory / meta.name, meta.number)

    @precondition(lambda self: len(self._metas) > 1)
    @rule(choice=st.data())
    def merge(self, choice: st.DataObject) -> None:
        begin = choice.draw(st.integers(0, len(self._metas) - 2))
        end = choice.draw(st.integers(begin + 2, len(self._metas)))
        files = [source.file for source in self._state.producers._sources if hasattr(source, "file")]
        chosen = [file for file in files[::-1] if file.number in {meta.number for meta in self._metas[begin:end]}]
        self._number += 1
        meta = merge_increments(OsDisk(), self._directory, self._number, chosen, oldest=begin == 0, expiry_ms=EXPIRY_MS)
        self._metas[begin:end] = [meta]
        self._state.producers.replace(chosen, self._open(meta))

    @invariant()
    def the_chain_is_the_state_of_its_last_increment(self) -> None:
        if self._metas:
            files = open_checkpoint(OsDisk(), self._directory, self._metas, self._metas[-1].end_lsn)
            for file in files:
                file.verify()
            assert described(load_state(files)) == self._written

    @invariant()
    def producers_are_known_until_they_expire(self) -> None:
        producers = self._state.producers
        for producer, (epoch, following) in self._sent.items():
            if self._state.time_ms - self._last_ms[producer] > EXPIRY_MS:
                continue
            assert producers.head(producer) == Head(epoch, following, self._last_ms[producer])
            for sequence in range(following):
                found = producers.answer(producer, epoch, sequence)
                if sequence < following - WINDOW:
                    assert found is None
                else:
                    expected = self._answers[producer, epoch, sequence]
                    assert found is not None and found.offsets.tolist() == expected.offsets.tolist()
                    assert (found.lsn, found.stored_ms, found.fingerprint) == (
                        expected.lsn,
                        expected.stored_ms,
                        expected.fingerprint,
                    )


TestCheckpoints = CheckpointMachine.TestCase
TestCheckpoints.settings = profile(120, steps=50)


# -- sizes -----------------------------------------------------------------------------------------------


def test_a_chain_stays_short_and_its_increments_are_rewritten_seldom() -> None:
    sizes: list[int] = []
    written = added = 0
    longest = 0
    for number in range(5_000):
        size = 1_000 + number * 7_919 % 300_000
        sizes.append(size)
        added += size
        while count := merge_count(sizes):
            sizes[-count:] = [sum(sizes[-count:])]
            written += sizes[-1]
        longest = max(longest, len(sizes))
    assert longest < 25 < MAX_INCREMENTS
    assert written < 8 * added


def test_an_increment_holds_what_changed_and_nothing_else(tmp_path: Path) -> None:
    state = ShardState()
    state.put_topic(StoredTopic(1, "t", 1_000_000, TopicOptions(), 0), 0, 1_000_000)
    state.put_topic(StoredTopic(2, "u", 16, TopicOptions(), 0), 0, 16)
    item = state.topics[1]
    state.land(item, np.arange(1_000_000), np.arange(1_000_000) % 1_000)
    for number in range(2_000):
        state.documents.put(f"d/{number}", bytes(100))
        state.commit_offsets(f"g{number}", 2, np.array([7], np.uint32), np.array([1]), reset=False)
        offsets = np.random.default_rng(number).integers(0, 1 << 40, 1_000)
        state.producers.record(number + 1, StoredBatch(0, 0, 0, 10, 0, offsets))
    whole = write_increment(OsDisk(), tmp_path, 1, state.take_change(100))
    state.land(item, np.array([5]), np.array([10_000]))
    little = write_increment(OsDisk(), tmp_path, 2, state.take_change(200))
    assert whole.size_bytes > 5_000_000
    assert little.size_bytes < 20_000


def test_answers_take_a_few_bytes_where_offsets_follow_one_another() -> None:
    assert len(pack_offsets(np.arange(10_000) + 12_345_678)) == 21
    for offsets in ([], [7], [7, 7], [3, 2**62, 5], list(np.random.default_rng(1).integers(0, 1 << 62, 500))):
        assert unpack_offsets(pack_offsets(np.array(offsets, np.int64))).tolist() == offsets


# -- damage ----------------------------------------------------------------------------------------------


@pytest.fixture
def chain(tmp_path: Path) -> list[IncrementMeta]:
    state = ShardState()
    metas = []
    for number in (1, 2, 3):
        state.documents.put("d", b"%d" % number)
        state.producers.record(9, StoredBatch(0, number - 1, 0, number, 0, np.arange(number)))
        metas.append(write_increment(OsDisk(), tmp_path, number, state.take_change(100 * number)))
    return metas


def test_a_chain_with_a_gap_is_refused(tmp_path: Path, chain: list[IncrementMeta]) -> None:
    with pytest.raises(CorruptFile, match="begins at LSN 200, the one before ends at 100"):
        open_checkpoint(OsDisk(), tmp_path, [chain[0], chain[2]], 300)
    with pytest.raises(CorruptFile, match="is of LSN 200, the manifest of 300"):
        open_checkpoint(OsDisk(), tmp_path, chain[:2], 300)


def test_every_byte_of_an_increment_is_under_a_checksum(tmp_path: Path, chain: list[IncrementMeta]) -> None:
    path = tmp_path / chain[1].name
    raw = path.read_bytes()
    for at in range(len(raw)):
        path.write_bytes(raw[:at] + bytes((raw[at] ^ 0x10,)) + raw[at + 1 :])
        with pytest.raises(CorruptFile, match=chain[1].name):
            KeyedFile(OsDisk(), path, 2).verify()
    for length in range(len(raw)):
        path.write_bytes(raw[:length])
        with pytest.raises(CorruptFile):
            KeyedFile(OsDisk(), path, 2).verify()


def test_a_missing_increment_is_named(tmp_path: Path, chain: list[IncrementMeta]) -> None:
    (tmp_path / chain[1].name).unlink()
    with pytest.raises(CorruptFile, match=f"{chain[1].name}: the checkpoint that the manifest names is missing"):
        open_checkpoint(OsDisk(), tmp_path, chain, 300)


def test_a_look_up_finds_its_way_to_the_file_that_others_were_merged_into(
    tmp_path: Path, chain: list[IncrementMeta]
) -> None:
    state = ShardState()
    files = open_checkpoint(OsDisk(), tmp_path, chain, 300)
    state.producers.open(files[::-1])
    merged = merge_increments(OsDisk(), tmp_path, 4, files, oldest=True, expiry_ms=EXPIRY_MS)
    other = KeyedFile(OsDisk(), tmp_path / merged.name, 4)
    for meta in chain:
        (tmp_path / meta.name).unlink()
    with pytest.raises(CorruptFile, match="disappeared"):
        state.producers.head(9)
    read = files[2].get

    def removed(key: bytes) -> bytes | None:
        state.producers.replace(files, other)
        return read(key)

    with mock.patch.object(files[2], "get", removed):
        assert state.producers.head(9) == Head(0, 3, 0)
    found = state.producers.answer(9, 0, 1)
    assert found is not None and found.offsets.tolist() == [0, 1]


def test_values_of_a_producer_merge_to_its_last_batches(tmp_path: Path, chain: list[IncrementMeta]) -> None:
    files = open_checkpoint(OsDisk(), tmp_path, chain, 300)
    values = [value for file in files[::-1] if (value := file.get(producer_key(9))) is not None]
    assert len(values) == 3
    assert merge_values([merge_values(values[:2]), values[2]]) == merge_values(values)
