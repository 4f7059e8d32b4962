"""The index of deduplication ids of full files, and the files it is made of."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from lsmq.errors import CorruptFile
from lsmq_lab.world.drive import Drive
from lsmq_node.storage.dedupe_file import IdFile, IdWriter, newest_of
from lsmq_node.storage.dedupe_index import IdIndex, join
from lsmq_node.storage.dedupe_layer import ROW, IdRows

from .golden_files import GOLDEN
from .test_dedupe import rows_of


def written(disk: Drive, number: int, rows: IdRows, expected: int | None = None) -> IdFile:
    path = Path(f"/d/{number}.ids")
    writer = IdWriter(disk, path, len(rows) if expected is None else expected)
    writer.add(newest_of(rows))
    writer.finish()
    return IdFile(disk, path)


def some_rows(seed: int, count: int) -> IdRows:
    random = np.random.default_rng(seed)
    rows = np.zeros(count, ROW)
    rows["high"], rows["low"] = random.integers(0, 1 << 64, (2, count), np.uint64)
    rows["offset"], rows["topic"] = np.arange(count), 1
    return rows


class Indexed:
    """Files, and an index that some have joined."""

    def __init__(self) -> None:
        self.disk = Drive(Path("/d"))
        self.index = IdIndex()
        self.shown = 0

    def hold(self, index: IdIndex) -> None:
        self.index = index
        self.shown += 1

    def join(self, *files: IdFile, stop_at: int | None = None) -> None:
        begin = self.shown

        def check() -> None:
            if stop_at is not None and self.shown - begin >= stop_at:
                raise InterruptedError

        join(lambda: self.index, self.hold, files, check)

    def finds_all(self) -> None:
        """All ids of the files that have joined, at their seats."""
        for file, seat in self.index.seats.items():
            rows = np.concatenate(list(file.scan()))
            places, seats = self.index.find(rows["high"].copy(), rows["low"].copy())
            assert set(places[seats == seat].tolist()) == set(range(len(rows)))
            few, seats = self.index.find(rows["high"][-3:].copy(), rows["low"][-3:].copy())
            assert set(few[seats == seat].tolist()) == {0, 1, 2}


def test_an_index_knows_the_ids_of_all_files_while_they_come_and_go() -> None:
    """It grows, buckets are made anew, seats are shared, files of other sizes join, and what is stale is left out."""
    indexed = Indexed()
    files: list[IdFile] = []
    shapes, stale = set(), 0
    for number in range(40):
        size = 200 + 1_000 * (number % 3)
        files.append(written(indexed.disk, number, some_rows(number, size), expected=3 * size))
        indexed.join(files[-1])
        assert not indexed.index.is_worn()
        if number % 4 == 3:
            indexed.index = indexed.index.without({files.pop(0), files.pop(1)})
            stale = max(stale, indexed.index.stale)
        if indexed.index.is_worn():
            indexed.join()
            assert not indexed.index.is_worn() and indexed.index.stale == 0
            assert indexed.index.count == sum(file.count for file in files)
        indexed.finds_all()
        assert set(indexed.index.seats) == set(files)
        shapes.add(indexed.index.parts[0].shape)
        assert indexed.index.stale <= indexed.index.count // 4
    assert len(shapes) > 3 and stale > 0 and len(files) > 16
    absent = some_rows(99, 100_000)
    places, _ = indexed.index.find(absent["high"].copy(), absent["low"].copy())
    assert len(places) < 100_000 * 16 / 4_096
    indexed.index = indexed.index.without(files)
    assert indexed.index == IdIndex()


def test_ids_that_somebody_chose_to_fall_together_are_found_all_the_same() -> None:
    indexed = Indexed()
    rows = rows_of([(7 << 50, low) for low in range(400)] + [(7 << 50 | high, 5) for high in range(1, 400)])
    file = written(indexed.disk, 1, rows)
    other = written(indexed.disk, 2, some_rows(1, 5_000))
    indexed.join(other, file)
    indexed.finds_all()
    places, offsets, _ = file.find(rows["high"].copy(), rows["low"].copy())
    assert dict(zip(places.tolist(), offsets.tolist(), strict=True)) == {at: at for at in range(len(rows))}
    file.forget_filter()
    again, offsets, _ = file.find(rows["high"].copy(), rows["low"].copy())
    assert dict(zip(again.tolist(), offsets.tolist(), strict=True)) == {at: at for at in range(len(rows))}


@pytest.mark.parametrize("stop_at", [1, 7, 15])
def test_what_stops_joining_half_way_leaves_what_is_there(stop_at: int) -> None:
    indexed = Indexed()
    first, second, third = (written(indexed.disk, number, some_rows(number, 3_000)) for number in range(3))
    with pytest.raises(InterruptedError):
        indexed.join(first, stop_at=stop_at)
    assert not indexed.index.seats and indexed.index.lacks(first)
    indexed.join(first)
    for _ in range(3):
        with pytest.raises(InterruptedError):
            indexed.join(second, third, stop_at=stop_at)
        indexed.finds_all()
        assert set(indexed.index.seats) == {first} and indexed.index.lacks(second)
    assert indexed.index.is_worn()
    indexed.join(second, third)
    indexed.finds_all()
    assert set(indexed.index.seats) == {first, second, third}
    assert (indexed.index.count, indexed.index.stale) == (9_000, 0)


def rotten(disk: Drive, file: IdFile) -> None:
    """A bit of the file's marks is another on the disk."""
    raw = disk.read_all(file.path)
    with closing(disk.open(file.path, write=True)) as opened:
        opened.pwrite(bytes([raw[-7_000] ^ 1]), len(raw) - 7_000)


def test_a_filter_that_is_damaged_on_the_disk_joins_nothing() -> None:
    indexed = Indexed()
    whole, broken = (written(indexed.disk, number, some_rows(number, 3_000)) for number in range(2))
    rotten(indexed.disk, broken)
    with pytest.raises(CorruptFile, match="its filter is damaged"):
        indexed.join(whole, broken)
    assert not indexed.index.seats and not indexed.index.lacks(broken)
    rows = np.concatenate(list(broken.scan()))
    assert len(broken.find(rows["high"].copy(), rows["low"].copy())[0]) == 3_000, "by what it read before"
    indexed.join(whole)
    indexed.finds_all()


def test_a_filter_that_is_cut_off_joins_nothing() -> None:
    indexed = Indexed()
    file = written(indexed.disk, 1, some_rows(1, 3_000))
    raw = indexed.disk.read_all(file.path)
    indexed.disk.remove(file.path)
    with closing(indexed.disk.create(file.path)) as opened:
        opened.pwrite(raw[:-2_000], 0)
    with pytest.raises(CorruptFile, match="its filter is"):
        indexed.join(file)
    assert file.damage is not None


@pytest.mark.parametrize("has_joined", [False, True])
def test_whoever_reads_all_of_a_file_finds_a_filter_that_is_damaged_on_the_disk(has_joined: bool) -> None:
    indexed = Indexed()
    file = written(indexed.disk, 1, some_rows(1, 3_000))
    if has_joined:
        indexed.join(file)
        file.forget_filter()
    file.verify()
    rotten(indexed.disk, file)
    with pytest.raises(CorruptFile, match="its filter is damaged"):
        file.verify()
    assert file.damage is not None


def test_a_file_without_parts_is_read_as_ever_and_joins_nothing() -> None:
    """As releases before wrote it, with 37 buckets for 300 rows."""
    raw = (GOLDEN.parent / "earlier" / "000000000008.ids").read_bytes()
    indexed = Indexed()
    path = Path("/d/8.ids")
    with closing(indexed.disk.create(path)) as file:
        file.pwrite(raw, 0)
    ids = IdFile(indexed.disk, path)
    ids.verify()
    assert not indexed.index.lacks(ids)
    rows = np.concatenate(list(ids.scan()))
    high, low = rows["high"].copy(), rows["low"].copy()
    assert ids.find(high, low)[1].tolist() == rows["offset"].tolist()
    assert not len(ids.find(high + np.uint64(1), low)[0])
    many = np.resize(high, 20), np.resize(low, 20)
    assert len(ids.find(*many)[0]) == 20
