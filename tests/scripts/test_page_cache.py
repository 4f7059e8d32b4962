"""The page cache is filled with what takes no room on the disk."""

from __future__ import annotations

import os
from pathlib import Path

from lsmq_lab.benchmarks.page_cache import page_cache


def test_free_memory_becomes_pages_of_a_file_that_takes_no_room(tmp_path: Path) -> None:
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    with page_cache(tmp_path) as cache:
        hole = tmp_path / "hole"
        assert cache.fill(free_bytes=max(free // 2, free - (64 << 20))) > 0
        assert hole.stat().st_blocks == 0
        assert hole.stat().st_size > 0
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_read_when_no_more_is_free_than_may_be(tmp_path: Path) -> None:
    with page_cache(tmp_path) as cache:
        assert cache.fill(free_bytes=1 << 62) == 0
