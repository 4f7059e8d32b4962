"""What a store does while nothing happens to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lsmq_node.storage import ShardStore, maintenance
from support.waiting import eventually

from .harness import put, small


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
