"""Collectors: messages put one at a time and stored many at a time."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from lsmq.errors import DiskFull, InvalidRequest
from lsmq_lab.world.drive import Drive
from lsmq_node.storage import QueueStore
from support.clock import SimClock

from .harness import TINY, abandon, keep_house, no_threads


def test_messages_are_stored_when_there_are_so_many_or_so_large_and_at_the_end_of_the_block(tmp_path: Path) -> None:
    with QueueStore(tmp_path / "s") as store:
        with store.collector(messages=3, size_bytes=100) as collected:
            for number in range(5):
                collected.put("q", str(number).encode())
            assert (store.length("q"), len(collected)) == (3, 2)
            collected.put("large", b"x" * 100)
            assert (store.length("q"), store.length("large"), len(collected)) == (5, 1, 0)
            collected.put("q", b"5")
            assert store.length("q") == 5
        assert store.get("q", 0, 10) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_what_was_put_before_a_block_raises_is_stored(tmp_path: Path) -> None:
    with QueueStore(tmp_path / "s") as store:
        with pytest.raises(KeyError), store.collector() as collected:
            collected.put("q", b"x")
            raise KeyError("of the caller's own")
        assert store.get("q", 0, 1) == [b"x"]


def test_threads_with_collectors_of_their_own_keep_their_order(tmp_path: Path) -> None:
    with QueueStore(tmp_path / "s", flush_mode="async") as store:

        def work(name: int) -> None:
            with store.collector(messages=7) as collected:
                for number in range(1_000):
                    collected.put(f"own {name}", str(number).encode())
                    collected.put("all", b"%d %d" % (name, number))

        threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for name in range(8):
            assert store.get(f"own {name}", 0, 2_000) == [str(number).encode() for number in range(1_000)]
        found = [tuple(map(int, message.split())) for message in store.get("all", 0, 20_000)]
        assert len(found) == 8_000
        assert all([n for name, n in found if name == own] == list(range(1_000)) for own in range(8))


def test_what_the_store_refuses_stays_collected_and_can_be_tried_again(tmp_path: Path) -> None:
    disk = Drive(tmp_path)
    with no_threads():
        store = QueueStore(tmp_path / "s", disk=disk, clock=SimClock(), **TINY)
    store.put("q", b"before")
    collected = store.collector(messages=100)
    collected.put("q", b"first")
    collected.put("q", b"second")
    disk.at(1, errno.ENOSPC, ("write",))
    with pytest.raises(DiskFull):
        collected.flush()
    assert (len(collected), store.length("q")) == (2, 1)
    keep_house(store.store)
    collected.flush()
    assert (len(collected), store.get("q", 0, 10)) == (0, [b"before", b"first", b"second"])
    abandon(store)


def test_a_message_that_cannot_be_stored_is_taken_out(tmp_path: Path) -> None:
    with QueueStore(tmp_path / "s") as store:
        collected = store.collector()
        collected.put("q", b"good")
        collected.put("q", "text")  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="is text; encode it"):
            collected.flush()
        assert collected.discard() == [("q", b"good"), ("q", "text")]
        collected.flush()
        assert store.length("q") == 0


def test_a_collector_that_is_dropped_says_what_is_lost(tmp_path: Path) -> None:
    with QueueStore(tmp_path / "s") as store:
        collected = store.collector()
        collected.put("q", b"x")
        with pytest.warns(ResourceWarning, match="1 messages that were never stored"):
            del collected


@pytest.mark.parametrize("wrong", [{"messages": 0}, {"messages": 1_000_001}, {"size_bytes": 0}])
def test_limits_that_make_no_sense_are_refused(tmp_path: Path, wrong: dict[str, int]) -> None:
    with QueueStore(tmp_path / "s") as store, pytest.raises(InvalidRequest, match=next(iter(wrong))):
        store.collector(**wrong)
