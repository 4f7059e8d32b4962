"""Stores to be damaged and repaired: small, with everything in them, and a model of what they hold."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lsmq_node.storage import QueueStore, ShardStore, StoreOptions
from lsmq_node.storage.disk import File, OsDisk, OsFile
from lsmq_node.storage.repair import Damage, Finding, Loss, Renamed, Summary, Unknown, Unplaced, repair_store
from support.clock import SimClock

from .harness import Put, abandon, batch_of, body, flush, merge, no_threads, open_stepped, read_queue, tiny

Places = dict[tuple[int, int], dict[int, bytes]]  # topic id, queue: offset: body
LOG_ENTRIES = 70


class _QuickFile(OsFile):
    def sync(self) -> None:
        """Nothing here is meant to outlive the machine."""


class QuickDisk(OsDisk):
    """Real files that are never synced: hundreds of stores are written."""

    def create(self, path: Path) -> File:
        return _QuickFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644), write=True)

    def sync_directory(self, path: Path) -> None:
        pass


def options() -> StoreOptions:
    return tiny(level0_merge=3, table_bytes=64 * 1024)


@dataclass
class Repaired:
    """What a repair found, and what the new store shows."""

    summary: Summary
    findings: list[Finding]
    shown: Places
    topics: dict[int, str]
    path: Path

    def of(self, kind: type) -> list[Finding]:
        return [found for found in self.findings if isinstance(found, kind)]

    def reported(self, topic_id: int, queue: int, offset: int) -> bool:
        return any(
            isinstance(found, Loss)
            and (found.topic_id, found.queue) == (topic_id, queue)
            and found.first <= offset < found.end
            for found in self.findings
        )


@dataclass
class Filled:
    """A closed store: two topics, tables of both levels, several files of a checkpoint, a log of several segments."""

    path: Path
    live: Places = field(default_factory=dict)
    gone: Places = field(default_factory=dict)
    serial: int = 0
    #: Of each log entry with records, where it ends and what is in it.
    entries: list[tuple[int, list[tuple[int, int, int]]]] = field(default_factory=list)

    @classmethod
    def make(cls, path: Path, *, close: bool = True, log_entries: int = LOG_ENTRIES) -> Filled:
        filled = cls(path)
        store = open_stepped(path, options(), QuickDisk(), SimClock())
        try:
            filled._fill(store, log_entries)
            if close:
                with no_threads():
                    store.close()
        finally:
            abandon(store)
        return filled

    def _fill(self, store: ShardStore, log_entries: int) -> None:
        first, second = store.create_topic("t", 6), store.create_topic("u", 3)
        for turn in range(8):
            for _ in range(3):
                self.put(store, first.id, [number % 6 for number in range(12)], 180)
            self.put(store, second.id, [turn % 3], 400, producer_id=7, producer_epoch=0, sequence=turn)
            store.wait(store.put_documents({f"group/{turn % 3}": b"%d" % turn, f"group-used/{turn}": b"1"}))
            store.wait(store.commit_offsets("g", first.id, np.array([turn % 6], np.uint32), np.array([turn + 1])))
            if turn % 2:
                self.delete(store, first.id, 2, [6 * turn + 1, 6 * turn + 3])
            if turn == 5:
                self.trim(store, first.id, 4, 17)
            flush(store)
            if turn == 4:
                merge(store)
        for number in range(log_entries):
            queues = [number % 6] if number % 3 else [number % 6, (number + 1) % 6, (number + 1) % 6]
            self.put(store, first.id, queues, 900 + number)
            if number == 30:
                self.delete(store, first.id, 1, [60, 62])
            store._maintenance._check_space()
        self.put(store, second.id, [0], 50, producer_id=7, producer_epoch=0, sequence=8)

    def put(self, store: ShardStore, topic_id: int, queues: list[int], size: int, **producer: int) -> None:
        puts = []
        for queue in queues:
            self.serial += 1
            puts.append(Put(queue, body(self.serial, size), key=f"k{self.serial}"))
        appended = store.append(topic_id, batch_of(puts, **producer))
        store.wait(appended)
        offsets = appended.offsets.tolist()
        rows = [(topic_id, item.queue, offset) for item, offset in zip(puts, offsets, strict=True)]
        self.entries.append((appended.lsn, rows))
        for item, offset in zip(puts, offsets, strict=True):
            self.live.setdefault((topic_id, item.queue), {})[offset] = item.body

    def delete(self, store: ShardStore, topic_id: int, queue: int, offsets: list[int]) -> None:
        store.wait(store.delete(topic_id, np.full(len(offsets), queue, np.uint32), np.array(offsets)))
        for offset in offsets:
            self._drop(topic_id, queue, offset)

    def trim(self, store: ShardStore, topic_id: int, queue: int, start: int) -> None:
        store.wait(store.trim(topic_id, queue, start))
        for offset in [offset for offset in self.live[topic_id, queue] if offset < start]:
            self._drop(topic_id, queue, offset)

    def _drop(self, topic_id: int, queue: int, offset: int) -> None:
        self.gone.setdefault((topic_id, queue), {})[offset] = self.live[topic_id, queue].pop(offset)

    # -- damage ------------------------------------------------------------------------------------------

    def files(self, *patterns: str) -> list[Path]:
        return sorted(path for pattern in patterns for path in self.path.glob(pattern))

    @contextmanager
    def changed(self, path: Path, change: Callable[[bytearray], object] | None) -> Iterator[None]:
        """A file is changed for a while; without ``change`` it is gone."""
        whole = path.read_bytes()
        if change is None:
            path.unlink()
        else:
            changed = bytearray(whole)
            change(changed)
            path.write_bytes(changed)
        try:
            yield
        finally:
            path.write_bytes(whole)

    def repaired(self, out: Path) -> Repaired:
        """Repair into ``out``, see that the old store was not touched, and read all of the new one."""
        shutil.rmtree(out, ignore_errors=True)
        before = snapshot(self.path)
        findings: list[Finding] = []
        summary = repair_store(self.path, out, tell=findings.append, disk=QuickDisk())
        assert snapshot(self.path) == before, "the damaged store is only read"
        store = open_stepped(out, options(), QuickDisk(), SimClock())
        try:
            shown = everything(store)
            topics = {topic.id: topic.name for topic in store.topics()}
        finally:
            abandon(store)
        return Repaired(summary, findings, shown, topics, out)

    def check(self, repaired: Repaired) -> set[tuple[int, int, int]]:
        """Nothing wrong is served, all that is missing is reported. Returns what is missing."""
        for place, rows in repaired.shown.items():
            for offset, content in rows.items():
                was = self.live.get(place, {}).get(offset) or self.gone.get(place, {}).get(offset)
                assert content == was, f"{place} {offset}"
        back = {
            (*place, offset)
            for place, rows in self.gone.items()
            for offset in rows
            if offset in repaired.shown.get(place, {})
        }
        assert not back or repaired.of(Unknown) or repaired.of(Damage), "deleted messages came back without a word"
        missing = {
            (*place, offset)
            for place, rows in self.live.items()
            for offset in rows
            if offset not in repaired.shown.get(place, {})
        }
        unreported = {where for where in missing if not repaired.reported(*where)}
        if unreported and any(isinstance(found, Unknown | Unplaced) for found in repaired.findings):
            unreported -= self.tails(repaired, unreported)
        assert not unreported, sorted(unreported)
        if missing or back:
            assert repaired.summary.damaged
        return missing

    def tails(self, repaired: Repaired, missing: set[tuple[int, int, int]]) -> set[tuple[int, int, int]]:
        """Those behind all that is left of their queue: how long it was nobody knows, which is said in words."""
        return {
            (topic_id, queue, offset)
            for topic_id, queue, offset in missing
            if offset > max(repaired.shown.get((topic_id, queue), {}), default=-1)
        }


def snapshot(path: Path) -> dict[str, tuple[int, bytes]]:
    """Time and bytes of every file, and times of directories."""
    return {
        str(found): (found.stat().st_mtime_ns, found.read_bytes() if found.is_file() else b"")
        for found in [path, *path.rglob("*")]
    }


def everything(store: ShardStore) -> Places:
    """All messages of all queues that a store shows."""
    found: Places = {}
    for topic in store.topics():
        for queue in np.flatnonzero(store.latest_offsets(topic.id)).tolist():
            found[topic.id, queue] = {message.offset: message.body for message in read_queue(store, topic.id, queue)}
    return found


class Named:
    """A closed queue store, and the messages of each queue."""

    def __init__(self, path: Path, *, queues: int = 60) -> None:
        self.path = path
        self.model: dict[str, list[bytes]] = {}
        serial = 0
        with QueueStore(path, **_queue_options()) as store:
            for turn in range(4):
                pairs = []
                for number in range(queues):
                    serial += 1
                    name = f"queue-{(number * (turn + 1)) % queues}" + "-with-a-long-name" * (number % 2)
                    pairs.append((name, body(serial, 100 + number)))
                store.put_many(pairs)
                for name, content in pairs:
                    self.model.setdefault(name, []).append(content)
                if turn < 3:
                    store.flush()

    def shown(self, path: Path) -> dict[str, list[bytes]]:
        """By name, what a repaired store shows of each queue that it has."""
        with QueueStore(path, **_queue_options()) as store:
            names = [store._owner.writer._names.name(number) for number in range(len(store))]
            return {name: store.get(name, 0, 1000) for name in names}


def _queue_options() -> dict[str, Any]:
    values = options()
    return {
        name: getattr(values, name)
        for name in ("memtable_bytes", "segment_bytes", "block_bytes", "max_message_bytes", "min_free_bytes")
    } | {"flush_mode": "async"}


def renamed(findings: list[Finding]) -> dict[int, str]:
    return {found.queue: found.name for found in findings if isinstance(found, Renamed) and found.queue is not None}
