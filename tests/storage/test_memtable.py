"""Readers of one memtable, at the same time."""

import threading
from typing import Any
from unittest import mock

import numpy as np

from lsmq_node.storage import memtable
from lsmq_node.storage.memtable import CHUNK_RECORDS, Memtable

READERS = 5


def filled(count: int) -> Memtable:
    table = Memtable(0, 1 << 22)
    keys = np.arange(count, dtype=np.uint64)[::-1].copy()
    lengths = np.full(count, 8, np.uint32)
    table.apply(1, keys, np.zeros(count, np.int64), lengths, 1, memoryview(bytes(8 * count)), {})
    return table


def test_what_many_readers_want_sorted_is_sorted_once() -> None:
    table = filled(CHUNK_RECORDS)
    sort, sorted_counts, another = memtable.stable_sort, [], threading.Event()

    def counted(keys: Any) -> Any:
        sorted_counts.append(len(keys))
        if len(sorted_counts) > 1:
            another.set()
        another.wait(0.2)  # time for another reader to begin as well
        return sort(keys)

    found: list[list[int]] = []
    with mock.patch.object(memtable, "stable_sort", counted), mock.patch.object(memtable, "_SORT_WAIT_SECONDS", 60):
        readers = [
            threading.Thread(
                target=lambda: found.append([int(k) for parts in table.newest_first() for k in parts[0].keys[:3]])
            )
            for _ in range(READERS)
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
    assert sorted_counts == [CHUNK_RECORDS]
    assert found == [[0, 1, 2]] * READERS
