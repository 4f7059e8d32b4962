"""Memory that is used again, and never while anybody can see it."""

import gc

import numpy as np
import pytest

from lsmq_node.storage.memtable import Memtable, slabs_for
from lsmq_node.storage.slabs import Slabs


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


@pytest.mark.part(2)
def test_a_slab_comes_back_when_its_last_view_is_gone() -> None:
    slabs = Slabs(1 << 16)
    slab = slabs.take()
    slab[:] = 7
    view = slab[100:200][::3].view(np.uint8)
    place = address(slab)
    del slab
    gc.collect()
    other = slabs.take()
    other[:] = 9
    assert address(other) != place
    assert set(view.tolist()) == {7}
    del view
    gc.collect()
    again = slabs.take()
    assert address(again) == place
    assert set(again.tolist()) == {7}


def test_only_so_many_spares_are_kept_and_they_go_when_nobody_wants_them() -> None:
    slabs = Slabs(1 << 16, spares=2)
    taken = [slabs.take() for _ in range(5)]
    taken.clear()
    gc.collect()
    assert len(slabs._spares) == 2
    slabs.trim()
    assert len(slabs._spares) == 2, "some were wanted since the last time"
    slabs.trim()
    assert len(slabs._spares) == 0
    assert len(slabs.take()) == 1 << 16


def test_a_memtable_begins_empty_in_memory_that_was_used() -> None:
    slabs = slabs_for(1 << 16)
    keys, offsets, lengths = np.array([5, 6], np.uint64), np.array([0, 0]), np.array([3, 2], np.uint32)
    first = Memtable(0, 1 << 16, slabs)
    first.apply(10, keys, offsets, lengths, 99, memoryview(b"abcde"), {})
    (kept,) = first.sorted()
    place = address(first.arena)
    del first
    gc.collect()
    second = Memtable(10, 1 << 16, slabs)
    assert address(second.arena) == place
    assert second.size_bytes == 0
    assert list(second.holding(5)) == []
    second.apply(20, keys[:1], offsets[:1] + 1, lengths[:1], 100, memoryview(b"xyz"), {})
    assert kept.payload.tobytes() == b"abcde"
    assert [piece.payload.tobytes() for piece in second.sorted()] == [b"xyz"]
