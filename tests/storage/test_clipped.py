"""Tables in the middle of a merge: what the new generation has taken over is read there, the rest where it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from lsmq_lab.world.drive import Drive
from lsmq_node.storage.edits import Edit
from support.clock import SimClock

from .harness import KIB, Put, abandon, batch_of, bodies, body, flush, open_stepped, small_parts, tiny

QUEUES = 4
ROUNDS = 32
OPTIONS = tiny(level0_merge=2, generation_bytes=64 << 20, cache_bytes=16 * KIB)


class Filled:
    """A store of many generations, some of whose messages were deleted or trimmed, and what must be read of it."""

    def __init__(self, root: Path) -> None:
        self.path = root / "shard"
        self.disk, self.clock = Drive(root), SimClock()
        self.store = open_stepped(self.path, OPTIONS, self.disk, self.clock)
        self.topic = self.store.create_topic("t", QUEUES).id
        self.sent: list[dict[int, tuple[bytes, int]]] = [{} for _ in range(QUEUES)]
        serial = 0
        for turn in range(ROUNDS):
            puts = []
            self.clock.time_ms += 1_000
            for queue in range(QUEUES):
                for _ in range(1 + (queue + turn) % 4):
                    serial += 1
                    content = body(serial, 700 + 900 * queue)
                    puts.append(Put(queue, content))
                    self.sent[queue][len(self.sent[queue])] = content, self.clock.time_ms
            self.store.wait(self.store.append(self.topic, batch_of(puts)))
            flush(self.store)
            while self.store._merger.due_level0() is not None:
                self.store._merger.merge_level0()
        self.delete(1, list(range(5, 40, 3)))
        self.delete(2, [0, 1, 2, 30, 31])
        self.store.wait(self.store.trim(self.topic, 3, 17))
        self.sent[3] = {offset: item for offset, item in self.sent[3].items() if offset >= 17}
        flush(self.store)

    def delete(self, queue: int, offsets: list[int]) -> None:
        self.store.wait(self.store.delete(self.topic, np.full(len(offsets), queue, np.uint32), np.array(offsets)))
        for offset in offsets:
            del self.sent[queue][offset]

    def clipped(self) -> int:
        """How many tables have left records to a merge that is not over."""
        tables = [(table.meta, table.root()) for table in self.store._tables.version.tables()]
        return sum(
            (meta.first_key, meta.first_offset) > (root.first_keys[0], root.first_offsets[0]) for meta, root in tables
        )

    def reopen(self, disk: Drive) -> None:
        abandon(self.store)
        self.disk = disk
        self.store = open_stepped(self.path, OPTIONS, disk, self.clock)

    def check(self) -> None:
        """All ways to read say what was sent, whatever is being merged."""
        store = self.store
        for queue, sent in enumerate(self.sent):
            latest = store.bounds(self.topic, queue)[1]
            kept = {offset: content for offset, (content, _) in sent.items()}
            assert bodies(store, self.topic, queue) == kept
            assert store.read_bytes(self.topic, queue, 0, 1_000) == list(kept.values())
            for offset in range(min(kept), latest, 3):
                wanted = [kept[offset]] if offset in kept else []
                assert store.read_bytes(self.topic, queue, offset, 1) == wanted
            for _, stored_ms in list(sent.values())[::7]:
                found_at = int(store.offsets_for_time(self.topic, np.array([queue], np.uint32), stored_ms)[0])
                assert next(ms for at, (_, ms) in sent.items() if at >= found_at) == stored_ms
                assert all(ms < stored_ms for at, (_, ms) in sent.items() if at < found_at)
        queues = np.arange(QUEUES, dtype=np.uint32)
        for start in (0, 11, 33):
            found: list[dict[int, bytes]] = [{} for _ in range(QUEUES)]
            read = store.read_many(self.topic, queues, np.full(QUEUES, start), max_records=10_000, max_bytes=64 << 20)
            for batch in read.batches():
                for message in batch.messages("t"):
                    if message.offset >= max(start, store.bounds(self.topic, message.queue)[0]):
                        assert message.offset not in found[message.queue], "no message comes twice"
                        found[message.queue][message.offset] = message.body
            for queue, sent in enumerate(self.sent):
                assert found[queue] == {at: content for at, (content, _) in sent.items() if at >= start}


def merge_step_by_step(filled: Filled, step: Callable[[], None]) -> None:
    """All generations become one, a table at a time; ``step`` comes before each is put in place, and at the end."""
    store = filled.store
    edit = store._tables.edit

    def after_a_step(change: Edit) -> None:
        step()
        edit(change)

    with mock.patch.object(store._tables, "edit", after_a_step):
        while store._merger.due_rest() is not None:
            store._merger.merge_rest()
    step()


def merge_until_clipped(filled: Filled, times: int) -> None:
    """Leave a merge after so many of its steps that clipped tables."""

    def step() -> None:
        nonlocal times
        times -= filled.clipped() > 0
        if times == 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        merge_step_by_step(filled, step)
    assert filled.clipped()


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Filled]:
    with mock.patch("lsmq_node.storage.merger.PIECE_TABLES", 1), small_parts():
        filled = Filled(tmp_path)
        yield filled
        abandon(filled.store)


@pytest.mark.part(3)
def test_whatever_part_of_a_merge_is_done_every_way_to_read_finds_each_message_once(filled: Filled) -> None:
    filled.check()
    most = 0

    def step() -> None:
        nonlocal most
        most = max(most, filled.clipped())
        filled.check()

    merge_step_by_step(filled, step)
    assert most >= 3
    assert filled.clipped() == 0


@pytest.mark.parametrize("times", [1, 3])
def test_clipped_tables_are_read_as_before_after_a_power_cut(filled: Filled, times: int) -> None:
    merge_until_clipped(filled, times)
    clipped = filled.clipped()
    filled.reopen(filled.disk.power_cut(times))
    assert filled.clipped() == clipped
    filled.check()


def test_the_index_of_a_clipped_table_is_made_again_without_what_the_table_has_left(filled: Filled) -> None:
    merge_until_clipped(filled, 2)
    tables = filled.store._tables.version.tables()
    disk = filled.disk.kill()
    for table in tables:
        content = bytearray(disk.content(table.path))
        content[table.meta.root_position + 9] ^= 0xFF
        disk.put(table.path, bytes(content))
    filled.reopen(disk)
    filled.check()
    assert filled.store.stats().rebuilt_indexes_total >= len(tables)
