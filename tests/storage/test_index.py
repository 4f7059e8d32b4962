"""Index pages and their filters: what they find, how large they may grow, and that no damage is missed."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any
from unittest import mock

import crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from lsmq.errors import CorruptFile
from lsmq.record_batch import Codec
from lsmq_node.storage.bloom import PROBES, bloom_build, bloom_build_each, bloom_probe, bloom_probes
from lsmq_node.storage.columns import queue_keys
from lsmq_node.storage.disk import OsDisk
from lsmq_node.storage.index import PAGE_HEAD_BYTES, IndexColumn, IndexPage, PageRows, encode_index, encode_page
from lsmq_node.storage.sorted_records import select
from lsmq_node.storage.sstable import TableWriter

from .golden_files import table_records
from .harness import profile

u64 = st.integers(0, 2**64 - 1)


# -- bloom filter ----------------------------------------------------------------------------------------


def index_page(keys: NDArray[np.uint64], probes: int = PROBES) -> IndexPage:
    """A page of one row, with a filter over ``keys``."""
    raw = bytearray(encode_page([np.array([at]) for at in (0, 0, 9, 9, 0, 100, 1)], keys))
    raw[14:16] = probes.to_bytes(2, "little")
    raw[:4] = crc32c.crc32c(raw[4:]).to_bytes(4, "little")
    return IndexPage.parse(bytes(raw), "table", 0)


def may_have(keys: NDArray[np.uint64], page: IndexPage) -> NDArray[np.bool_]:
    return PageRows([page]).may_contain_many(bloom_probes(keys), np.zeros(len(keys), np.int64))


@profile(100)
@given(st.lists(u64, min_size=1, max_size=300, unique=True))
def test_a_bloom_filter_knows_all_that_it_was_built_from(keys: list[int]) -> None:
    page = index_page(np.array(keys, np.uint64))
    assert page.probes == PROBES
    assert all(page.may_contain(key, bloom_probe(key)) for key in keys)
    assert may_have(np.array(keys, np.uint64), page).all()


def test_a_bloom_filter_errs_seldom_and_alike_for_one_and_for_many() -> None:
    page = index_page(queue_keys(7, np.arange(0, 20_000, 2)))
    others = queue_keys(7, np.arange(1, 20_000, 2))
    found = may_have(others, page)
    assert np.count_nonzero(found) < 10_000 * 0.04
    assert [page.may_contain(key, bloom_probe(key)) for key in others.tolist()] == found.tolist()


def test_a_filter_of_another_number_of_probes_passes_nothing_over() -> None:
    page = index_page(queue_keys(7, np.arange(10)), PROBES + 1)
    others = queue_keys(7, np.arange(1_000))
    assert all(page.may_contain(key, bloom_probe(key)) for key in others.tolist())
    assert may_have(others, page).all()


@profile(60)
@given(st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=40), st.sampled_from((1, 7, 4_096)))
def test_filters_over_ranges_of_keys_are_those_over_each_range_alone(ranges: list[tuple[int, bool]], step: int) -> None:
    """A range may begin with the last key of the one before, as where a queue goes on in the next page."""
    begins, ends = [], [0]
    for count, shares in ranges:
        begins.append(max(0, ends[-1] - shares))
        ends.append(begins[-1] + count)
    keys = queue_keys(7, np.arange(max(ends)) * 3)
    with mock.patch("lsmq_node.storage.bloom._CHUNK_KEYS", step):
        found = bloom_build_each(keys, np.array(begins), np.array(ends[1:]))
    assert len(found) == len(ranges)
    for words, begin, end in zip(found, begins, ends[1:], strict=True):
        assert words.tolist() == bloom_build(keys[begin:end])[0].tolist()


@pytest.mark.parametrize("step", [1, 2, 5, 14])
def test_a_queue_is_in_the_filters_once_however_many_pieces_it_comes_in(tmp_path: Path, step: int) -> None:
    records = table_records()
    writer = TableWriter(OsDisk(), tmp_path / "a.tbl", 4, block_bytes=120, codec=Codec.NONE)
    for first in range(0, len(records), step):
        writer.add(select(records, np.arange(first, min(first + step, len(records)))))
    with mock.patch("lsmq_node.storage.sstable.encode_index", wraps=encode_index) as encoded:
        writer.finish(31, 4_096, 31)
    assert encoded.call_args.args[1].tolist() == np.unique(records.keys).tolist()


# -- index -----------------------------------------------------------------------------------------------


def block_rows(sizes: list[int]) -> tuple[list[NDArray[Any]], NDArray[np.uint64]]:
    """The index's columns for blocks of so many records, queues of five records each; and the queues."""
    ends = np.cumsum(sizes)
    begins = ends - sizes
    records = np.arange(ends[-1])
    keys, offsets = queue_keys(7, records // 5), records % 5
    lasts = ends - 1
    columns = [keys[begins], offsets[begins], keys[lasts], offsets[lasts], begins * 100, np.array(sizes) * 100, sizes]
    return [np.array(column) for column in columns], np.unique(keys)


@profile(60)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=120), st.sampled_from((80, 300, 2_000)))
def test_an_index_in_pages_says_what_one_of_a_single_page_would(sizes: list[int], page_bytes: int) -> None:
    columns, keys = block_rows(sizes)
    whole = IndexPage.parse(encode_page(columns, keys), "table", 0)
    with mock.patch("lsmq_node.storage.index.PAGE_BYTES", page_bytes):
        raws, root_raw = encode_index(columns, keys, 1_000)
    root = IndexPage.parse(root_raw, "table", 0, root=True)
    pages = [IndexPage.parse(raw, "table", 0) for raw in raws]
    assert root.count == len(pages)
    assert list(root.sizes) == [len(raw) for raw in raws]
    assert list(root.positions) == [1_000 + sum(map(len, raws[:number])) for number in range(len(raws))]
    assert [page.count for page in pages] == [len(list(group)) for _, group in groupby(row_pages(pages))]
    assert list(root.records) == [sum(page.records) for page in pages]
    assert root.column(IndexColumn.BLOCKS).tolist() == [page.positions[0] for page in pages]
    starts = [0, *np.cumsum([page.count for page in pages]).tolist()]
    for key in keys.tolist():
        for offset in range(6):
            number = root.seek(key, offset)
            row = starts[number] + (pages[number].seek(key, offset) if number < root.count else 0)
            assert row == whole.seek(key, offset)
            if number < root.count and root.first_keys[number] <= key and offset < 5:
                assert pages[number].may_contain(key, bloom_probe(key))


def row_pages(pages: list[IndexPage]) -> list[int]:
    return [number for number, page in enumerate(pages) for _ in range(page.count)]


def test_however_many_the_blocks_the_root_is_bounded() -> None:
    columns, keys = block_rows([1] * 40_000)
    with mock.patch("lsmq_node.storage.index.PAGE_BYTES", 64), mock.patch("lsmq_node.storage.index.MAX_PAGES", 50):
        raws, root_raw = encode_index(columns, keys, 0)
    assert len(raws) <= 50
    assert len(root_raw) <= PAGE_HEAD_BYTES + 50 * 8 * 8
    assert max(map(len, raws)) <= 2 * min(map(len, raws[:-1]))


def test_any_flipped_bit_of_an_index_page_is_found() -> None:
    columns, keys = block_rows([3, 5, 7])
    raw = encode_page(columns, keys)
    for at in range(len(raw)):
        changed = bytearray(raw)
        changed[at] ^= 1 << at % 8
        with pytest.raises(CorruptFile, match="index page at byte 77 is damaged"):
            IndexPage.parse(bytes(changed), "table", 77)
    for end in range(len(raw)):
        with pytest.raises(CorruptFile):
            IndexPage.parse(raw[:end], "table", 77)
