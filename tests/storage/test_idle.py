"""What a store does while nothing happens to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lsmq_lab.world.drive import Drive
from lsmq_node.storage import ShardStore, maintenance
from support.waiting import eventually

from .harness import abandon, keep_house, open_stepped, put, small


def test_an_idle_store_wakes_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "_TICK_SECONDS", 0.01)
    with ShardStore.open(tmp_path, small()) as store:
        put(store, store.create_topic("t", 4).id, (0, b"x"))
        merger, changed = store._merger, store._tables.changed
        looks, woken = [0], [0]
        look, wake = merger.due_level0, changed.notify_all

        def counted_look() -> object:
            looks[0] += 1
            return look()

        def counted_wake() -> None:
            woken[0] += 1
            wake()

        def it_looks_and_wakes_nobody() -> bool:
            looks_before, woken_before = looks[0], woken[0]
            eventually(lambda: looks[0] > looks_before + 20, "it has looked often")
            return woken[0] == woken_before

        monkeypatch.setattr(merger, "due_level0", counted_look)
        monkeypatch.setattr(changed, "notify_all", counted_wake)
        eventually(it_looks_and_wakes_nobody, "who looks and finds nothing wakes nobody")
        monkeypatch.undo()


def test_a_store_has_one_segment_until_a_quarter_of_it_is_used(tmp_path: Path) -> None:
    """What holds nothing takes the disk space of one segment; the next one is there long before it is needed."""
    options, disk = small(), Drive(tmp_path)
    store = open_stepped(tmp_path / "shard", options, disk)

    def segments() -> int:
        keep_house(store)
        return len([name for name in disk.list(store.path / "wal") if name.endswith(".wal")])

    assert segments() == 1
    topic = store.create_topic("t", 1).id
    quarter = options.segment_bytes // 4
    put(store, topic, (0, bytes(quarter // 2)))
    assert segments() == 1
    put(store, topic, (0, bytes(quarter // 2)))
    assert quarter <= store.stats().committed_lsn < 2 * quarter
    assert segments() == 2
    abandon(store)
