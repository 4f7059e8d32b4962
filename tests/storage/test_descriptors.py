"""File descriptors: how they are shared out, that tables keep to their share, and that want of them stops nothing."""

from __future__ import annotations

import errno
import gc
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from lsmq.errors import StoreBusy
from lsmq_node.descriptors import Descriptors, shares
from lsmq_node.storage import FileRange, QueueStore, ShardStore, Slice
from lsmq_node.storage.disk import File, OsDisk
from lsmq_node.storage.open_tables import OpenTables
from support.waiting import eventually

from .harness import KIB, TINY, assert_no_orphans, body, flush, merge, open_stepped, put, small, small_parts

T = TypeVar("T")


@pytest.mark.parametrize("limit", [64, 256, 1024, 65_536, 1 << 20, -1])
def test_all_descriptors_are_shared_out_and_everybody_gets_some(limit: int) -> None:
    found = shares(limit)
    assert found.tables + found.store + found.connections == found.limit
    assert found.limit == (limit if limit > 0 else 1 << 20)
    assert 0 < found.reserve <= found.store
    assert min(found.tables, found.connections) >= found.limit // 4 or found.tables == 4096


class Starved(Descriptors):
    """A process in which no file can be opened while ``out`` is set."""

    def __init__(self) -> None:
        super().__init__(reserve=0)
        self.out = False

    def opening(self, attempt: Callable[[], T]) -> T:
        def refused() -> T:
            if self.out:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return attempt()

        return super().opening(refused)


def tables_of(store: ShardStore, count: int, size: int = 100) -> int:
    """Tables of level 0, each with a message of two queues; the topic."""
    topic = store.create_topic("t", 2).id
    for number in range(count):
        put(store, topic, (0, body(number, size)), (1, body(number, size)))
        flush(store)
    return topic


def test_no_more_tables_are_open_than_may_be_and_all_can_be_read(tmp_path: Path) -> None:
    options = small(cache_bytes=0, max_open_tables=3, level0_merge=50, slow_level0=60)
    with open_stepped(tmp_path / "s", options) as store:
        topic = tables_of(store, 20)
        for offset in (*range(20), *range(0, 20, 7)):
            assert store.read_bytes(topic, 0, offset, 1) == [body(offset, 100)]
            assert store.stats().open_tables <= 3
        assert store.stats().open_tables == 3


def test_a_table_that_is_gone_is_not_held_open(tmp_path: Path) -> None:
    with open_stepped(tmp_path / "s", small(level0_merge=3, slow_level0=60)) as store:
        topic = tables_of(store, 4)
        assert store.read_bytes(topic, 0, 0, 4) == [body(number, 100) for number in range(4)]
        assert store.stats().open_tables == 4
        merge(store)
        gc.collect()
        assert store.stats().open_tables <= 1
        descriptors = [fd for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
        held = [str(fd.readlink()) for fd in descriptors if fd.is_symlink()]
        assert not [name for name in held if name.startswith(str(tmp_path)) and "deleted" in name]


def ranges_of(found: Slice) -> list[FileRange]:
    return [part for part in found.parts if isinstance(part, FileRange)]


def test_what_was_lent_can_be_sent_when_its_table_was_closed_and_removed(tmp_path: Path) -> None:
    options = small(max_open_tables=1, level0_merge=3, slow_level0=60, block_bytes=2 * KIB)
    with small_parts(), open_stepped(tmp_path / "s", options) as store:
        topic = store.create_topic("t", 1).id
        for number in range(4):
            put(store, topic, *((0, body(number * 100 + at, 300)) for at in range(60)))
            flush(store)
        found = [store.read(topic, 0, 60 * number, max_records=60) for number in range(4)]
        lent = [part for answer in found for part in ranges_of(answer)]
        assert lent
        expected = [store.read_bytes(topic, 0, 60 * number, 60) for number in range(4)]
        merge(store)
        assert store.stats().level0_tables < 4
        assert store.stats().open_tables <= 1
        for answer, wanted in zip(found, expected, strict=True):
            assert [message.body for batch in answer.batches() for message in batch.messages("t")] == wanted


def test_answers_that_are_held_for_long_do_not_hold_every_table_open(tmp_path: Path) -> None:
    options = small(max_open_tables=2, level0_merge=30, slow_level0=60, block_bytes=2 * KIB)
    with small_parts(), open_stepped(tmp_path / "s", options) as store:
        topic = store.create_topic("t", 1).id
        for number in range(8):
            put(store, topic, *((0, body(number * 100 + at, 300)) for at in range(60)))
            flush(store)
        answers = [store.read(topic, 0, 60 * number, max_records=60) for number in range(8)]
        assert sum(len(ranges_of(answer)) for answer in answers) == 2
        for number, answer in enumerate(answers):
            assert [message.body for batch in answer.batches() for message in batch.messages("t")] == [
                body(number * 100 + at, 300) for at in range(60)
            ]
        del answers, answer
        assert ranges_of(store.read(topic, 0, 0, max_records=60)), "given back"


class Table:
    """A file that can be opened, with or without a descriptor left."""

    def __init__(self, disk: OsDisk, path: Path) -> None:
        self.disk, self.path = disk, path
        self.opened: File | None = None
        self.used = False

    def open_file(self) -> File:
        return self.disk.open(self.path)


def test_tables_are_closed_before_the_reserve_is_lent_and_the_reserve_fills_up_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    descriptors = Descriptors(reserve=3)
    opened = OpenTables(10, descriptors)
    (tmp_path / "file").write_bytes(b"x")
    table = Table(OsDisk(descriptors), tmp_path / "file")
    assert opened.open(table) is table.opened
    failures = 1

    def attempt() -> str:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise OSError(errno.EMFILE, "none left")
        return "opened"

    assert len(descriptors._reserve) == 3
    with caplog.at_level(logging.WARNING, "lsmq.storage"):
        assert descriptors.opening(attempt) == "opened"
        assert (table.opened, len(opened), len(descriptors._reserve)) == (None, 0, 3)
        failures = 3
        assert descriptors.opening(attempt) == "opened"
        assert len(descriptors._reserve) == 3, "filled up as soon as there are some"
        failures = 5
        with pytest.raises(OSError, match="none left"):
            descriptors.opening(attempt)
        assert descriptors._reserve == []
        failures = 0
        assert descriptors.opening(attempt) == "opened"
        assert len(descriptors._reserve) == 3
    assert descriptors.shortages == 3
    assert len(caplog.messages) == 1, "once a minute"
    opened.close()
    assert descriptors._reserve == []


def test_without_any_descriptor_reads_and_writes_are_refused_and_go_on_when_there_is_one(tmp_path: Path) -> None:
    starved = Starved()
    options = small(cache_bytes=0, max_open_tables=1, level0_merge=30, slow_level0=60)
    store = ShardStore.open(tmp_path / "s", options, disk=OsDisk(starved))
    topic = tables_of_threads(store, 3)
    flushed = store._tables.manifest.flushed_lsn
    eventually(lambda: store._segments._mark.durable_lsn >= flushed, "the last flush has let go of the log")
    starved.out = True
    store._tables.open_tables.give_back()
    for read in (
        lambda: store.read_bytes(topic, 0, 0, 1),
        lambda: store.read(topic, 0, 0),
        lambda: store.read_many(topic, np.array([0, 1], np.uint32), np.zeros(2, np.int64)),
        lambda: store.offsets_for_time(topic, np.array([0, 1], np.uint32), 1),
    ):
        with pytest.raises(StoreBusy, match="ulimit -n") as refusal:
            read()
        assert refusal.value.retriable
    put(store, topic, (0, b"in the log"), (1, b"in the log"))
    with pytest.raises(StoreBusy, match="ulimit -n"):
        store.flush()
    assert not store.stopped
    assert not store.disk_full
    starved.out = False
    store.flush()
    assert store.read_bytes(topic, 0, 0, 9) == [*(body(number, 100) for number in range(3)), b"in the log"]
    store.close()
    assert_no_orphans(store, OsDisk(), tmp_path / "s")


def tables_of_threads(store: ShardStore, count: int) -> int:
    topic = store.create_topic("t", 2).id
    for number in range(count):
        put(store, topic, (0, body(number, 100)), (1, body(number, 100)))
        store.flush()
    return topic


SOCKETS = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
from lsmq_node.storage import QueueStore
from storage.harness import TINY
store = QueueStore(sys.argv[1], **{**TINY, "level0_merge": 4, "segment_bytes": 65536})
held = []
for round in range(4):
    try:
        while True:
            held.append(socket.socket())
    except OSError:
        pass
    for number in range(60):
        store.put_many([(f"queue {number}", b"%d/%d" % (round, number) + bytes(2000))])
    store.flush()
    for number in range(60):
        found = store.get(f"queue {number}", 0, 10)
        assert [item.rstrip(b"\\0") for item in found] == [b"%d/%d" % (at, number) for at in range(round + 1)]
assert len(held) > 30
store.close()
print("well")
"""


@pytest.mark.part(2)
def test_sockets_that_take_all_descriptors_stop_neither_writes_nor_flushes_nor_reads(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    command = [sys.executable, "-c", SOCKETS, str(tmp_path / "q")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "well\n"), done.stderr[-3000:]
    assert done.stderr.count("no file descriptor is left") <= 1
    with QueueStore(tmp_path / "q", **TINY) as store:
        assert len(store.get("queue 7", 0, 10)) == 4
