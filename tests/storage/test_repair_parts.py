"""The decisions of a repair: where entries behind a hole belong, which of several tables counts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq_node.storage import ShardStore
from lsmq_node.storage.columns import wrap64
from lsmq_node.storage.deletions import Deletions
from lsmq_node.storage.repair import repair_store
from lsmq_node.storage.repair.merged import runs_of
from lsmq_node.storage.repair.placing import ends_before
from lsmq_node.storage.repair.table_scan import Gap, Gaps, TableSource, joined
from support.clock import SimClock

from .harness import abandon, bodies, body, flush, merge, open_stepped, put, tiny

# -- placing ---------------------------------------------------------------------------------------------


def check_of(counts: list[int], ends: list[int]) -> int:
    """What an entry with so many records of queues of these lengths carries."""
    return wrap64(sum(sum(range(end, end + count)) for count, end in zip(counts, ends, strict=True)))


def place(counts: list[int], ends: list[int], sure: list[bool], check: int) -> list[int] | None:
    found = ends_before(np.array(counts), np.array(ends), np.array(sure), check)
    return None if found is None else found.tolist()


def test_an_entry_whose_queues_did_not_move_is_placed_whatever_is_sure() -> None:
    assert place([2, 1], [10, 4], [False, False], check_of([2, 1], [10, 4])) == [10, 4]


def test_one_queue_that_moved_is_placed_by_the_sum() -> None:
    assert place([2], [10], [False], check_of([2], [17])) == [17]
    assert place([2, 3], [10, 4], [True, False], check_of([2, 3], [10, 9])) == [10, 9]


def test_two_queues_that_may_have_moved_are_not_placed() -> None:
    assert place([1, 1], [10, 4], [False, False], check_of([1, 1], [11, 4])) is None


def test_what_is_sure_cannot_have_moved_and_nothing_goes_back() -> None:
    assert place([1], [10], [True], check_of([1], [11])) is None
    assert place([1], [10], [False], check_of([1], [9])) is None
    assert place([2], [10], [False], check_of([2], [10]) + 1) is None


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 1 << 40), st.integers(0, 3)), min_size=1, max_size=5))
def test_what_is_placed_is_placed_right(queues: list[tuple[int, int, int]]) -> None:
    counts, known, moved = map(list, zip(*queues, strict=True))
    true = [end + steps for end, steps in zip(known, moved, strict=True)]
    sure = [steps == 0 for steps in moved]
    found = place(counts, known, sure, check_of(counts, true))
    assert found is None or found == true
    if sum(not one for one in sure) <= 1:
        assert found == true


# -- ranges ----------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9))))
def test_ranges_that_touch_are_one(parts: list[tuple[int, int]]) -> None:
    ranges = [(first, first + size) for first, size in parts]
    found = joined(ranges)
    assert {at for low, high in found for at in range(low, high)} == {
        at for low, high in ranges for at in range(low, high)
    }
    assert all(one[1] < two[0] for one, two in itertools.pairwise(found))


def test_a_gap_between_queues_concerns_all_of_those_between_and_parts_of_the_outer() -> None:
    gaps = Gaps()
    gaps.add(Gap((5, 10), (8, 3), None))
    assert gaps.concerned(5, 0, 20) == [(10, 20)]
    assert gaps.concerned(7, 0, 20) == [(0, 20)]
    assert gaps.concerned(8, 0, 20) == [(0, 4)]
    assert gaps.concerned(9, 0, 20) == []


def test_hidden_offsets_raise_the_floor_or_stand_ahead_of_it() -> None:
    deletions = Deletions(2)
    deletions.hide(0, 5, 9, 0)
    assert (deletions.floor[0], deletions.end[0], deletions.stretches(0)) == (0, 9, [(5, 9)])
    deletions.hide(0, 0, 5, 0)
    assert (deletions.floor[0], deletions.end[0], deletions.stretches(0)) == (9, 9, [])


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), min_size=1, max_size=12))
def test_runs_hold_every_table_once_and_none_overlaps(spans: list[tuple[int, int]]) -> None:
    tables = [
        TableSource(Path(f"{number}"), number, (first, 0), (first + size, 0), 0, 0, None)
        for number, (first, size) in enumerate(spans)
    ]
    runs = runs_of(tables)
    assert sorted(table.number for run in runs for table in run) == list(range(len(tables)))
    for run in runs:
        assert all(one.last < two.first for one, two in itertools.pairwise(run))


# -- tables without a manifest ---------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "s"


def stored(path: Path) -> ShardStore:
    return open_stepped(path, tiny(level0_merge=2), clock=SimClock())


def test_tables_that_a_merge_has_used_up_bring_nothing_back(path: Path, tmp_path: Path) -> None:
    """A merge drops deleted messages and their tombstones; what it was made of may still lie there."""
    store = stored(path)
    topic = store.create_topic("t", 3).id
    for turn in range(3):
        put(store, topic, *((queue, body(10 * turn + queue, 20)) for queue in range(3) for _ in range(70)))
        if turn == 2:
            store.wait(store.delete(topic, np.full(100, 1, np.uint32), np.arange(1, 200, 2)))
        flush(store)
    # The newest, which has the tombstones, is gone; and they are too many to be remembered otherwise.
    old = {file: file.read_bytes() for file in sorted(path.glob("tables/*.tbl"))[:-1]}
    merge(store)
    expected = {queue: bodies(store, topic, queue) for queue in range(3)}
    store.close()
    abandon(store)
    assert len(expected[1]) == 110
    for file, raw in old.items():
        file.write_bytes(raw)
    (path / "MANIFEST").unlink()
    summary = repair_store(path, tmp_path / "out")
    assert summary.lost == 0
    again = stored(tmp_path / "out")
    assert {queue: bodies(again, topic, queue) for queue in range(3)} == expected
    abandon(again)


def test_a_table_that_its_merge_did_not_finish_adds_nothing_twice(path: Path, tmp_path: Path) -> None:
    store = stored(path)
    topic = store.create_topic("t", 2).id
    for turn in range(2):
        put(store, topic, *((queue, body(10 * turn + queue, 100)) for queue in range(2) for _ in range(8)))
        flush(store)
    expected = {queue: bodies(store, topic, queue) for queue in range(2)}
    (first, *_) = sorted(path.glob("tables/*.tbl"))
    store.close()
    abandon(store)
    (path / "tables" / "000000000099.tbl").write_bytes(first.read_bytes()[:700])
    for lost in ((), ("MANIFEST",)):
        for name in lost:
            (path / name).unlink()
        out = tmp_path / f"out{len(lost)}"
        repair_store(path, out)
        again = stored(out)
        assert {queue: bodies(again, topic, queue) for queue in range(2)} == expected
        abandon(again)
