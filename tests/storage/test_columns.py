"""The columnar parts against plain Python: gather, offsets, sorting, packing, blocks, cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lsmq.record_batch import Codec, Column, RecordBatch, encode_batch
from lsmq_node.storage.backlog import first_in_memory
from lsmq_node.storage.block import Block
from lsmq_node.storage.cache import BlockCache
from lsmq_node.storage.columns import (
    DTYPES,
    OPTIONAL,
    Columns,
    assign_offsets,
    block_cuts,
    decode_column,
    encode_batches,
    encode_one,
    gather,
    group_starts,
    queue_keys,
    stable_sort,
    wrap64,
)
from lsmq_node.storage.memtable import Memtable
from lsmq_node.storage.point_reads import Places, point_rows
from lsmq_node.storage.ranges import RangeReader
from lsmq_node.storage.reader import read_queue
from lsmq_node.storage.version import Version

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
def test_stable_sort_is_one(keys: list[int]) -> None:
    expected = sorted(range(len(keys)), key=lambda at: keys[at])
    order, ordered = stable_sort(np.array(keys, np.uint64))
    assert (order.tolist(), ordered.tolist()) == (expected, sorted(keys))


@pytest.mark.parametrize("dtype", [np.uint64, np.uint32, np.int64])
@pytest.mark.parametrize("bits", [1, 16, 17, 31, 33, 48, 54, 55, 64])
@pytest.mark.parametrize("count", [511, 512, 3_000])
def test_stable_sort_of_many_keys(bits: int, count: int, dtype: type[Any]) -> None:
    """Both sides of each limit: few keys, sixteen bits, and no room for the position."""
    random = np.random.default_rng(bits)
    size = np.dtype(dtype).itemsize * 8 - (dtype is np.int64)
    wide = (random.integers(0, 1 << 63, count, np.uint64) << np.uint64(1)) >> np.uint64(64 - min(bits, size))
    keys = wide.astype(dtype)
    for some in (keys, keys | dtype(1 << (size - 1)), keys[random.integers(0, 9, count)], np.sort(keys)):
        order, ordered = stable_sort(some)
        assert order.tolist() == np.argsort(some, kind="stable").tolist()
        assert ordered.dtype == some.dtype and ordered.tolist() == sorted(some.tolist())
        assert not np.shares_memory(ordered, some)


@given(values=st.lists(st.integers(0, 6), min_size=1))
def test_group_starts_are_where_values_change(values: list[int]) -> None:
    values.sort()
    expected = [at for at, value in enumerate(values) if at == 0 or values[at - 1] != value]
    assert group_starts(np.array(values)).tolist() == expected


@profile(100)
@given(
    batches=st.lists(st.lists(st.integers(0, 29), min_size=1, max_size=30), max_size=8),
    apart=st.sampled_from([1, 100]),
)
def test_offsets_are_dense_in_each_queue_in_order_of_arrival(batches: list[list[int]], apart: int) -> None:
    rows = np.zeros((30 * apart, 2), np.int64)
    following, scratch = rows.T
    model = dict.fromkeys(range(0, 30 * apart, apart), 0)
    for batch in batches:
        expected = []
        for queue in batch:
            expected.append(model[queue * apart])
            model[queue * apart] += 1
        queues = np.array(batch, np.uint32) * np.uint32(apart)
        offsets, touched, ends = assign_offsets(queues, following, scratch)
        assert offsets.tolist() == expected
        assert set(touched.tolist()) == set(queues.tolist())
        assert ends.tolist() == [model[queue] for queue in touched.tolist()]
        assert following[::apart].tolist() == list(model.values())


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


@pytest.mark.part(2)
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
        if values.any() or column not in OPTIONAL
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
    weights = np.cumsum(sizes + np.int64(12))
    cuts = block_cuts(weights, group_starts(keys), 2_048).tolist()
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


# -- blocks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 300, 70_000])
@pytest.mark.parametrize("more", [(), (Column.PRIORITY,), (Column.PRIORITY, Column.TAG_HASH), (Column.KEY_HASH,)])
def test_a_block_finds_its_queues_wherever_its_columns_lie(step: int, more: tuple[Column, ...]) -> None:
    queues = np.repeat(np.arange(0, 9 * step, step, np.uint32), 3)
    count = len(queues)
    columns: Columns = {
        Column.TOPIC: np.full(count, 7, np.uint32),
        Column.QUEUE: queues,
        Column.OFFSET: np.tile(np.arange(3), 9),
        Column.LENGTH: np.zeros(count, np.uint32),
        Column.STORED_MS: np.zeros(count, np.int64),
        **{column: np.arange(1, count + 1).astype(DTYPES[column]) for column in more},
    }
    block = Block(encode_one(columns, np.empty(0, np.uint8)), "block", 0)
    for at in range(9):
        assert block.span(7 << 32 | at * step) == (3 * at, 3 * at + 3)
        assert block.place(7 << 32 | at * step, 2) == 3 * at + 2


# -- cache -----------------------------------------------------------------------------------------------


@dataclass
class Item:
    """Something of a size."""

    CHANCES: ClassVar[int] = 1
    memory_bytes: int
    recent: int = 0


class LastingItem(Item):
    CHANCES: ClassVar[int] = 3


@profile(60)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6), st.sampled_from((10, 60, 120, 200))), max_size=80))
def test_the_cache_stays_within_its_limit_and_keeps_what_was_used_last(uses: list[tuple[int, int, int]]) -> None:
    cache = BlockCache(1_000)
    sizes: dict[tuple[int, int], int] = {}
    for owner, part, drawn in uses:
        size = sizes.setdefault((owner, part), drawn)
        assert cache.get(owner, part, Item, size).memory_bytes == size
        assert cache.has(owner, part) == (size <= 125)
        assert cache.used_bytes <= 1_000
    for owner in range(4):
        cache.drop(owner)
        assert not any(cache.has(owner, part) for part in range(7))
    assert cache.used_bytes == 0
    assert cache.hits + cache.misses == len(uses)


def test_what_was_used_since_outlives_what_was_not() -> None:
    cache = BlockCache(1_000)
    for part in range(10):
        cache.get(0, part, Item, 100)
    cache.get(0, 10, Item, 100)  # none was used more than once: the oldest goes
    assert not cache.has(0, 0)
    for part in (1, 3, 5):
        cache.get(0, part, Item, 100)
    for part in range(11, 15):
        cache.get(0, part, Item, 100)
    assert [part for part in range(1, 7) if cache.has(0, part)] == [1, 3, 5]


def test_what_leads_to_the_rest_is_passed_by_more_often_and_not_for_ever() -> None:
    cache = BlockCache(1_000)
    cache.get(1, 0, LastingItem, 100)
    lived = 0
    while cache.has(1, 0):
        cache.get(0, lived, Item, 100)
        lived += 1
    assert lived == 28  # three times round nine others, and the one that takes its place


# -- memtable --------------------------------------------------------------------------------------------


@pytest.mark.part(2)
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
            offsets, _, _ = assign_offsets(queues, ends, np.zeros(5, np.int64))
            sizes = np.array([len(content) for content in contents], np.uint32)
            memtable.apply(number + 1, queue_keys(1, queues), offsets, sizes, 5, memoryview(b"".join(contents)), {})
            for (queue, _), content in zip(batch, contents, strict=True):
                model.setdefault(queue, []).append(content)
            if number % look == 0:
                check_memtable(memtable, model)
        if batches:
            check_memtable(memtable, model)
            for piece_bytes in (1 << 20, 100):
                patch.setattr("lsmq_node.storage.memtable.PIECE_BYTES", piece_bytes)
                pieces = list(memtable.sorted())
                assert len(pieces) == 1 or piece_bytes == 100
                expected = [content for queue in sorted(model) for content in model[queue]]
                assert b"".join(piece.payload.tobytes() for piece in pieces) == b"".join(expected)
                keys = [key for piece in pieces for key in piece.keys.tolist()]
                assert keys == sorted(keys)


def test_a_memtable_gets_a_new_column_without_touching_the_dict_that_a_reader_walks() -> None:
    memtable = Memtable(0, 1 << 16)
    queues, sizes = queue_keys(1, np.array([0])), np.array([1], np.uint32)
    memtable.apply(1, queues, np.array([0]), sizes, 5, memoryview(b"a"), {})
    walk = iter(memtable.columns.items())
    next(walk)
    memtable.apply(2, queues, np.array([1]), sizes, 5, memoryview(b"b"), {Column.PRIORITY: np.array([3], np.uint8)})
    assert Column.PRIORITY not in dict(walk)
    ((chunk, first),) = memtable.holding(1 << 32)
    found = chunk.records(first, chunk.end_of(first))
    assert found.columns[Column.PRIORITY].tolist() == [0, 3]


def check_memtable(memtable: Memtable, model: dict[int, list[bytes]]) -> None:
    """As each reader looks into it: for a queue with columns, or as bytes; for many queues at once."""
    version = Version((memtable,), (), ())
    for queue in range(5):
        contents, key = model.get(queue, []), 1 << 32 | queue
        for offset in (0, len(contents) // 2, len(contents)):
            for end in (offset, (offset + len(contents) + 1) // 2, len(contents)):
                if offset < end:
                    rows = point_rows(version, key, offset, end, Places())
                    assert [each for part, *lies in rows for each in part.record_bytes(*lies)] == contents[offset:end]
                found = read_queue(version, key, offset, end, 1_000, 1 << 20, holes=False)
                assert found.next_offset == offset + found.record_count == end
                assert list(found.record_bytes(offset)) == contents[offset:end]
    keys = queue_keys(1, np.arange(5))
    for first, last in ((0, 100), (1, 3), (2, 2)):
        ends = np.array([min(last, len(model.get(queue, []))) for queue in range(5)])
        part = RangeReader(keys, np.minimum(first, ends), ends, 1 << 20).read(version)
        wanted = [(queue, content) for queue in range(5) for content in model.get(queue, [])[first:last]]
        assert (part is None) == (not wanted)
        if part is not None:
            records, owners = part
            assert owners.tolist() == (records.keys & np.uint64(0xFFFFFFFF)).tolist() == [queue for queue, _ in wanted]
            assert records.payload.tobytes() == b"".join(content for _, content in wanted)
    ends = np.array([len(model.get(queue, [])) for queue in range(5)])
    assert first_in_memory(version, keys, ends).tolist() == [0] * 5
