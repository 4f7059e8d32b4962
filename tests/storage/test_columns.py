"""The columnar parts against plain Python: gather, offsets, sorting, packing, bloom filter, names, cache."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lsmq.record_batch import Codec, Column, RecordBatch, encode_batch
from lsmq_node.storage import queue_names
from lsmq_node.storage.bloom import bloom_build, bloom_may_contain
from lsmq_node.storage.cache import BlockCache
from lsmq_node.storage.columns import (
    DTYPES,
    Columns,
    assign_offsets,
    block_cuts,
    decode_column,
    encode_batches,
    encode_one,
    gather,
    group_starts,
    queue_keys,
    stable_order,
    wrap64,
)
from lsmq_node.storage.memtable import Memtable
from lsmq_node.storage.queue_names import QueueNames

from .harness import profile

u64 = st.integers(0, 2**64 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
lengths = st.one_of(
    st.lists(st.integers(0, 40), max_size=60),
    st.lists(st.sampled_from((0, 58)), max_size=60),
    st.lists(st.sampled_from((3, 4_096, 4_097, 70_000)), max_size=12),
)


@profile(150)
@given(sizes=lengths, order=st.randoms(use_true_random=False), repeat=st.booleans())
def test_gather_is_slicing(sizes: list[int], order: object, repeat: bool) -> None:
    arena = np.frombuffer(np.random.default_rng(len(sizes)).bytes(sum(sizes) + 7), np.uint8)
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    chosen = list(range(len(sizes))) * (2 if repeat else 1)
    order.shuffle(chosen)  # type: ignore[attr-defined]
    found = gather(
        arena, np.array([starts[at] for at in chosen], np.int64), np.array([sizes[at] for at in chosen], np.uint32)
    )
    assert found.tobytes() == b"".join(arena[starts[at] : starts[at] + sizes[at]].tobytes() for at in chosen)


@profile(150)
@given(keys=st.one_of(st.lists(u64, min_size=1), st.lists(st.integers(5, 9), min_size=1, max_size=300)))
@example(keys=[0, 2**64 - 1, 0])
def test_stable_order_is_a_stable_sort(keys: list[int]) -> None:
    expected = sorted(range(len(keys)), key=lambda at: keys[at])
    assert stable_order(np.array(keys, np.uint64)).tolist() == expected


@given(values=st.lists(st.integers(0, 6), min_size=1))
def test_group_starts_are_where_values_change(values: list[int]) -> None:
    values.sort()
    expected = [at for at, value in enumerate(values) if at == 0 or values[at - 1] != value]
    assert group_starts(np.array(values)).tolist() == expected


@profile(100)
@given(batches=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=30), max_size=8))
def test_offsets_are_dense_in_each_queue_in_order_of_arrival(batches: list[list[int]]) -> None:
    following = np.zeros(10, np.int64)
    model = dict.fromkeys(range(10), 0)
    for batch in batches:
        expected = []
        for queue in batch:
            expected.append(model[queue])
            model[queue] += 1
        offsets, touched, ends = assign_offsets(np.array(batch, np.uint32), following)
        assert offsets.tolist() == expected
        assert touched.tolist() == sorted(set(batch))
        assert ends.tolist() == [model[queue] for queue in sorted(set(batch))]
        assert following.tolist() == list(model.values())


@dataclass
class Records:
    """Columns and payload of some records."""

    columns: Columns
    payload: bytes


@st.composite
def records(draw: st.DrawFn) -> Records:
    count = draw(st.integers(1, 40))
    sizes = draw(st.lists(st.integers(0, 30), min_size=count, max_size=count))
    columns: Columns = {Column.LENGTH: np.array(sizes, np.uint32)}
    for column, dtype in DTYPES.items():
        if column in (Column.LENGTH, Column.HEADER_LENGTH) or not draw(st.booleans()):
            continue
        limits = np.iinfo(dtype)
        low = draw(st.integers(limits.min, limits.max))
        span = draw(st.sampled_from((0, 1, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**64 - 1)))
        high = min(int(limits.max), low + span)
        values = draw(st.lists(st.integers(low, high), min_size=count, max_size=count))
        columns[column] = np.array(values, dtype)
    return Records(columns, draw(st.binary(min_size=sum(sizes), max_size=sum(sizes))))


@profile(150)
@given(records=records(), codec=st.sampled_from(Codec), pieces=st.integers(1, 5))
@example(
    records=Records({Column.LENGTH: np.array([0, 0], np.uint32), Column.DUE_MS: np.array([-(2**63), 2**63 - 1])}, b""),
    codec=Codec.NONE,
    pieces=1,
)
def test_packed_batches_decode_to_what_went_in(records: Records, codec: Codec, pieces: int) -> None:
    count = len(records.columns[Column.LENGTH])
    cuts = np.unique(np.linspace(0, count, pieces + 1).astype(np.int64))
    packed = encode_batches(records.columns, np.frombuffer(records.payload, np.uint8), cuts, codec)
    ends = np.concatenate(([0], np.cumsum(records.columns[Column.LENGTH], dtype=np.int64)))
    for first, end, raw in zip(cuts[:-1].tolist(), cuts[1:].tolist(), packed, strict=True):
        batch = RecordBatch(raw)
        assert (batch.record_count, batch.total_bytes) == (end - first, len(raw))
        assert bytes(batch.payload) == records.payload[ends[first] : ends[end]]
        for column, values in records.columns.items():
            found = decode_column(raw, batch.directory.get(column), batch.record_count, DTYPES[column])
            np.testing.assert_array_equal(found, values[first:end])
            assert list(batch.column(column)) == [int(value) & 2**64 - 1 for value in values[first:end]]


@profile(60)
@given(records=records())
def test_both_encoders_make_the_same_bytes(records: Records) -> None:
    """The client's, which knows no numpy, and the engine's; for values that are not negative."""
    columns = {column: values for column, values in records.columns.items() if int(values.min()) >= 0}
    present = {
        column: [int(value) for value in values]
        for column, values in columns.items()
        if values.any() or column in (Column.LENGTH, Column.TOPIC, Column.QUEUE, Column.OFFSET, Column.STORED_MS)
    }
    count = len(columns[Column.LENGTH])
    packed = encode_one(columns, np.frombuffer(records.payload, np.uint8))
    assert packed == encode_batch(count, present, records.payload)


@profile(60)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 900)), min_size=1, max_size=200))
def test_block_cuts_cover_all_records_and_give_a_large_queue_its_own(items: list[tuple[int, int]]) -> None:
    items.sort(key=lambda item: item[0])
    keys = np.array([key for key, _ in items], np.uint64)
    sizes = np.array([size for _, size in items], np.uint32)
    cuts = block_cuts(sizes, keys, 2_048).tolist()
    assert cuts[0] == 0
    assert cuts[-1] == len(items)
    assert cuts == sorted(set(cuts))
    for key in set(keys.tolist()):
        mine = np.flatnonzero(keys == key)
        if int((sizes[mine].astype(np.int64) + 12).sum()) >= 2_048:
            assert {int(mine[0]), int(mine[-1]) + 1} <= set(cuts)


@given(i64)
def test_wrap64_is_modulo_two_to_the_64(value: int) -> None:
    assert wrap64(value) == value % 2**64


# -- bloom filter ----------------------------------------------------------------------------------------


@profile(100)
@given(st.lists(u64, min_size=1, max_size=300, unique=True))
def test_a_bloom_filter_knows_all_that_it_was_built_from(keys: list[int]) -> None:
    bits, probes = bloom_build(np.array(keys, np.uint64))
    words = bits.view(np.dtype("<u8"))
    assert all(bloom_may_contain(words, probes, key) for key in keys)


def test_a_bloom_filter_errs_seldom() -> None:
    bits, probes = bloom_build(queue_keys(7, np.arange(0, 20_000, 2)))
    words = bits.view(np.dtype("<u8"))
    wrong = sum(bloom_may_contain(words, probes, 7 << 32 | queue) for queue in range(1, 20_000, 2))
    assert wrong < 10_000 * 0.04


# -- names -----------------------------------------------------------------------------------------------

name_lists = st.lists(st.lists(st.text("abé水", min_size=1, max_size=3), min_size=1, max_size=20), max_size=12)


def check_names(batches: list[list[str]], forget: int) -> None:
    names, model = QueueNames(), dict[str, int]()
    for batch in batches:
        assert names.find(batch).tolist() == [model.get(name, -1) for name in batch]
        fresh = [name for name in dict.fromkeys(batch) if name not in model]
        if fresh:
            names.add(fresh)
            model.update((name, len(model)) for name in fresh)
        assert names.find(batch).tolist() == [model[name] for name in batch]
        assert [names.find_one(name) for name in batch] == [model[name] for name in batch]
        assert [names.name(model[name]) for name in batch] == batch
    kept = max(0, len(model) - forget)
    names.truncate(kept)
    assert len(names) == kept
    for name, number in model.items():
        expected = number if number < kept else -1
        assert names.find_one(name) == expected
        assert names.find([name, "other"]).tolist()[0] == expected


@profile(80)
@given(batches=name_lists, forget=st.integers(0, 30))
def test_names_are_a_dict(batches: list[list[str]], forget: int) -> None:
    check_names(batches, forget)


@profile(80)
@given(batches=name_lists, forget=st.integers(0, 30), hashes=st.sampled_from((1, 2, 3)))
def test_names_are_a_dict_when_hashes_collide(batches: list[list[str]], forget: int, hashes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue_names, "hash", lambda name: len(name) % hashes * 4_096, raising=False)
        check_names(batches, forget)


def test_many_names_keep_their_numbers_while_the_table_grows() -> None:
    names = QueueNames()
    for first in range(0, 30_000, 5_000):
        names.add([f"queue {number}" for number in range(first, first + 5_000)])
    every = [f"queue {number}" for number in range(30_000)]
    assert names.find(every).tolist() == list(range(30_000))
    assert names.find_one("queue 30000") == -1


# -- cache -----------------------------------------------------------------------------------------------


@dataclass
class Item:
    """Something of a size."""

    memory_bytes: int


@profile(60)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6), st.sampled_from((10, 60, 120, 200))), max_size=80))
def test_the_cache_stays_within_its_limit_and_keeps_what_was_used_last(uses: list[tuple[int, int, int]]) -> None:
    cache = BlockCache(1_000)
    sizes: dict[tuple[int, int], int] = {}
    for owner, part, drawn in uses:
        size = sizes.setdefault((owner, part), drawn)
        assert cache.get(owner, part, lambda size=size: Item(size)).memory_bytes == size  # type: ignore[misc]
        assert cache.has(owner, part) == (size <= 125)
        assert cache.used_bytes <= 1_000
    for owner in range(4):
        cache.drop(owner)
        assert not any(cache.has(owner, part) for part in range(7))
    assert cache.used_bytes == 0
    assert cache.hits + cache.misses == len(uses)


# -- memtable --------------------------------------------------------------------------------------------


@profile(60)
@given(
    batches=st.lists(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), min_size=1, max_size=12), max_size=12),
    chunk=st.sampled_from((1, 5, 30)),
    look=st.integers(1, 4),
)
def test_a_memtable_finds_each_queue_in_order_however_it_is_chunked(
    batches: list[list[tuple[int, int]]], chunk: int, look: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lsmq_node.storage.memtable.CHUNK_RECORDS", chunk)
        patch.setattr("lsmq_node.storage.memtable.CHUNK_LIMIT", 3)
        memtable, model, ends = Memtable(0, 1 << 16), dict[int, list[bytes]](), np.zeros(5, np.int64)
        for number, batch in enumerate(batches):
            queues = np.array([queue for queue, _ in batch], np.uint32)
            contents = [b"%d" % size * size for _, size in batch]
            offsets, _, _ = assign_offsets(queues, ends)
            sizes = np.array([len(content) for content in contents], np.uint32)
            memtable.apply(number + 1, queue_keys(1, queues), offsets, sizes, 5, memoryview(b"".join(contents)), {})
            for (queue, _), content in zip(batch, contents, strict=True):
                model.setdefault(queue, []).append(content)
            if number % look == 0:
                check_memtable(memtable, model)
        if batches:
            check_memtable(memtable, model)
            table = memtable.sorted()
            expected = [content for queue in sorted(model) for content in model[queue]]
            assert table.payload.tobytes() == b"".join(expected)
            assert table.keys.tolist() == sorted(table.keys.tolist())


def test_a_memtable_gets_a_new_column_without_touching_the_dict_that_a_reader_walks() -> None:
    memtable = Memtable(0, 1 << 16)
    queues, sizes = queue_keys(1, np.array([0])), np.array([1], np.uint32)
    memtable.apply(1, queues, np.array([0]), sizes, 5, memoryview(b"a"), {})
    walk = iter(memtable._columns.items())
    next(walk)
    memtable.apply(2, queues, np.array([1]), sizes, 5, memoryview(b"b"), {Column.PRIORITY: np.array([3], np.uint8)})
    assert Column.PRIORITY not in dict(walk)
    found = memtable.records(memtable.find(1 << 32, 0, 9))
    assert found.columns[Column.PRIORITY].tolist() == [0, 3]


def check_memtable(memtable: Memtable, model: dict[int, list[bytes]]) -> None:
    for queue in range(5):
        contents = model.get(queue, [])
        for offset in (0, len(contents) // 2, len(contents)):
            found = memtable.records(memtable.find(1 << 32 | queue, offset, 1_000))
            assert found.payload.tobytes() == b"".join(contents[offset:])
            assert found.columns[Column.OFFSET].tolist() == list(range(offset, len(contents)))
    wanted = [queue for queue in range(5) if model.get(queue)]
    positions, owners = memtable.find_many(queue_keys(1, np.array(wanted)), np.zeros(len(wanted), np.int64))
    found = memtable.records(positions)
    assert (found.keys & np.uint64(0xFFFFFFFF)).tolist() == [queue for queue in wanted for _ in model[queue]]
    assert owners.tolist() == [at for at, queue in enumerate(wanted) for _ in model[queue]]
    assert found.payload.tobytes() == b"".join(content for queue in wanted for content in model[queue])
