"""Whole blocks of a backlog: verified where they lie, read to a block's end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from lsmq.errors import CorruptFile
from lsmq_node.storage import FileRange, ShardStore, Slice

from .harness import KIB, body, flush, open_stepped, put, small, small_parts

PIECE_BYTES = 4 * KIB


@pytest.fixture(params=(300, 3_000, 20_000), ids=("blocks of many", "blocks of some", "blocks larger than a piece"))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ShardStore]:
    """About 200 kB in one queue of two, in a table."""
    size = request.param
    with (
        small_parts(),
        mock.patch("lsmq_node.storage.file_range._PIECE_BYTES", PIECE_BYTES),
        open_stepped(tmp_path / "s", small(block_bytes=2 * KIB)) as opened,
    ):
        topic = opened.create_topic("t", 2)
        for number in range(200_000 // size):
            put(opened, topic.id, (0, body(number, size)))
        flush(opened)
        yield opened


def whole(store: ShardStore, max_bytes: int = 1 << 20, offset: int = 0) -> Slice:
    (topic,) = store.topics()
    queues, offsets = np.arange(2, dtype=np.uint32), np.array((offset, 0))
    return store.read_many(topic.id, queues, offsets, max_records=10_000, max_bytes=max_bytes)


def ranges(found: Slice) -> list[FileRange]:
    return [part for part in found.parts if isinstance(part, FileRange)]


def test_a_range_is_verified_a_piece_at_a_time(store: ShardStore) -> None:
    (part,) = ranges(whole(store))
    part.verify()
    content = Path(part.path).read_bytes()
    assert part.load() == content[part.position : part.position + part.length]
    assert part.table.damage is None


def test_every_damaged_byte_is_found_and_its_block_named(store: ShardStore) -> None:
    (part,) = ranges(whole(store))
    path = Path(part.path)
    content = path.read_bytes()
    for at in range(part.position, part.position + part.length, 997):
        path.write_bytes(content[:at] + bytes((content[at] ^ 4,)) + content[at + 1 :])
        for look in (part.verify, part.load):
            with pytest.raises(CorruptFile, match=path.name) as raised:
                look()
            assert part.position <= raised.value.details["position"] <= at
            assert part.table.damage is raised.value
    path.write_bytes(content)
    part.verify()


@pytest.mark.parametrize("missing", [1, 30, PIECE_BYTES + 1])
def test_a_range_that_was_cut_off_is_damaged(store: ShardStore, missing: int) -> None:
    (part,) = ranges(whole(store))
    path = Path(part.path)
    path.write_bytes(path.read_bytes()[: part.position + part.length - missing])
    for look in (part.verify, part.load):
        with pytest.raises(CorruptFile, match="cut off"):
            look()


def test_a_range_that_ends_within_a_block_is_damaged(store: ShardStore) -> None:
    (part,) = ranges(whole(store))
    shorter = replace(part, length=part.length - 10)
    for look in (shorter.verify, shorter.load):
        with pytest.raises(CorruptFile, match=Path(part.path).name):
            look()


def test_a_read_that_has_whole_blocks_ends_with_one(store: ShardStore) -> None:
    """What half a block costs is decoding it now and reading it again by the next read."""
    (everything,) = ranges(whole(store))
    offset, position = 0, everything.position
    while position < everything.position + everything.length - 50_000:
        found = whole(store, max_bytes=50_000, offset=offset)
        (part,) = found.parts
        assert isinstance(part, FileRange)
        assert part.position == position
        assert 25_000 < part.length <= 50_000
        (moved,), (offset,) = found.positions
        assert moved == 0
        position += part.length
        assert found.record_count > 0


def test_a_limit_of_records_is_kept_within_a_block(store: ShardStore) -> None:
    (topic,) = store.topics()
    for count in (1, 3, 7):
        found = store.read(topic.id, 0, 0, max_records=count, max_bytes=1 << 20)
        assert found.record_count == count
        assert found.positions[1].tolist() == [count]
