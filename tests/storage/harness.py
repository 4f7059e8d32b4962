"""What the storage tests share: small stores, batches from plain tuples, and everything a store holds as dicts.

A *stepped* store runs no threads: flushing, merging and housekeeping happen where a test calls for them, so
that a test does the same operations on its disk every time.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from lsmq.messages import dedupe_hash
from lsmq.record_batch import BatchBuilder, Message, RecordBatch
from lsmq_node.storage import Appended, QueueStore, ShardStore, StoreOptions
from lsmq_node.storage.disk import Clock, Disk
from lsmq_node.storage.maintenance import Maintenance
from lsmq_node.storage.pages import PAGE_BITS, PAGE_QUEUES
from lsmq_node.storage.producers import Head, Layer, decode_answers, decode_head, merge_values
from lsmq_node.storage.state import TopicState
from support.extent import part_in_number

KIB = 1024
_most_descriptors = [200]  # more are a reason to look for what was dropped
SMALL: dict[str, Any] = {
    "min_free_bytes": 0,
    "max_message_bytes": 96 * KIB,
    "memtable_bytes": 256 * KIB,
    "segment_bytes": 64 * KIB,
    "block_bytes": 2 * KIB,
    "table_bytes": 64 * KIB,
    "generation_bytes": 512 * KIB,
    "level0_merge": 3,
    "slow_level0": 40,
    "max_level0": 80,
    "slow_memtables": 40,
    "max_memtables": 80,
    "cache_bytes": 64 * KIB,
}
TINY: dict[str, Any] = {**SMALL, "max_message_bytes": 8 * KIB, "memtable_bytes": 64 * KIB, "block_bytes": 512}


def profile(examples: int, steps: int = 40) -> settings:
    """Hypothesis settings: a tenth of the examples, others each time; in a soak all."""
    return settings(
        max_examples=part_in_number(examples, 10),
        stateful_step_count=steps,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )


def small(**changes: Any) -> StoreOptions:
    return StoreOptions(**{**SMALL, **changes})


def tiny(**changes: Any) -> StoreOptions:
    return StoreOptions(**{**TINY, **changes})


@contextlib.contextmanager
def small_parts() -> Iterator[None]:
    """Merges in many parts, memtables in many chunks, file ranges of few blocks: what takes gigabytes otherwise."""
    with (
        mock.patch("lsmq_node.storage.compaction.PARTITION_BYTES", 3 * KIB),
        mock.patch("lsmq_node.storage.memtable.CHUNK_RECORDS", 10),
        mock.patch("lsmq_node.storage.memtable.CHUNK_LIMIT", 3),
        mock.patch("lsmq_node.storage.reader.MIN_FILE_RANGE_BYTES", 3 * KIB),
    ):
        yield


# -- stepped stores --------------------------------------------------------------------------------------


@contextlib.contextmanager
def no_threads() -> Iterator[None]:
    """Stores opened within run no background threads."""
    with mock.patch.object(Maintenance, "start", lambda self: None):
        yield


def open_stepped(
    path: Path,
    options: StoreOptions,
    disk: Disk | None = None,
    clock: Clock | None = None,
    *,
    replicated: bool = False,
) -> ShardStore:
    with no_threads():
        return ShardStore.open(path, options, disk=disk, clock=clock, replicated=replicated)


def freeze(store: ShardStore) -> None:
    store._writer.commit()
    store._commits.between_entries(store._tables.freeze)


def flush(store: ShardStore) -> None:
    """All that is in memory to tables, here and now."""
    freeze(store)
    while store._tables.frozen:
        store._tables.flush_oldest()


def merge(store: ShardStore) -> int:
    """All merges that are due."""
    merger, count = store._merger, -1
    while True:
        count += 1
        if merger.due_level0() is not None:
            merger.merge_level0()
        elif merger.due_rest() is not None:
            merger.merge_rest()
        else:
            merge_checkpoint(store)
            return count


def known_deleted(state: TopicState) -> dict[int, tuple[list[int], list[int], list[tuple[int, int, int]]]]:
    """What is known of a topic's deleted messages, by page."""
    if state.deletions is None:
        return {}
    count = state.end - state.first
    found = state.deletions.take(range(count // PAGE_QUEUES + 1), PAGE_BITS, state.start[:count])
    return {page: (part.floors.tolist(), part.ends.tolist(), part.stretches) for page, part in found.items()}


def merge_checkpoint(store: ShardStore) -> None:
    """All merges of the checkpoint, and of deduplication ids, that are due."""
    while store._tables.checkpoint.merge_due():
        store._tables.checkpoint.merge()
    while store._tables.ids.is_due():
        store._tables.ids.work()


def keep_house(store: ShardStore) -> None:
    """A round of housekeeping: the next segment, free space."""
    store._maintenance._check_space()


def house_round(store: ShardStore) -> None:
    """One whole round of the housekeeper and of the retainer, as their threads do it."""
    tables, house = store._tables, store._maintenance

    def no_second_round(timeout: float | None = None) -> bool:
        tables.closing = True
        return True

    with mock.patch.object(tables.changed, "wait", no_second_round):
        house._guard(house._house_loop)
    tables.closing = False
    background(store, store._maintenance._retain)


def sync(store: ShardStore) -> None:
    """Asynchronous mode: what its thread does once the interval is over."""
    store._maintenance._guard(store._writer.sync_now)


def retain(store: ShardStore) -> None:
    store._maintenance._retain()


def abandon(store: ShardStore | QueueStore) -> None:
    """Drop a store as a dying process does: nothing more is written, and the directory is free."""
    inner = store.store if isinstance(store, QueueStore) else store
    inner._writer._closed = inner._closed = True
    if isinstance(store, QueueStore):
        store.close()  # its thread ends
    with contextlib.suppress(Exception):
        inner._maintenance.close()
    inner._lock_file.release()
    _let_go()


def _let_go() -> None:
    """A dead process has no files open; a store that was dropped has, until its circles are found."""
    if _count_descriptors() > _most_descriptors[0]:
        gc.collect()
        _most_descriptors[0] = _count_descriptors() + 200


def _count_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


# -- records ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Put:
    """A message to store."""

    queue: int
    body: bytes
    key: str | None = None
    tag: str | None = None
    priority: int = 0
    dedupe_id: str | None = None


def batch_of(puts: Sequence[Put], **fields: Any) -> RecordBatch:
    builder = BatchBuilder()
    for put in puts:
        hashed = 0 if put.dedupe_id is None else dedupe_hash(put.dedupe_id)
        builder.add(put.queue, put.body, key=put.key, tag=put.tag, priority=put.priority, dedupe_hash=hashed)
    return RecordBatch(builder.build(**fields))


def body(seed: int, size: int) -> bytes:
    """Bytes that say all along which message they are, none of them zero."""
    return (b"%07d." % seed * (size // 8 + 1))[:size]


def sent(content: bytes, sequence: int, *, producer: int = 5, epoch: int = 0, queue: int = 0) -> RecordBatch:
    """A producer's batch of one message."""
    return batch_of([Put(queue, content)], producer_id=producer, producer_epoch=epoch, sequence=sequence)


def stored(store: ShardStore, topic_id: int, batch: RecordBatch) -> Appended:
    """Append a batch, and wait for it."""
    appended = store.append(topic_id, batch)
    store.wait(appended)
    return appended


def append(store: ShardStore, topic_id: int, *puts: tuple[int, bytes]) -> Appended:
    """Append (queue, body) pairs; not committed yet."""
    return store.append(topic_id, batch_of([Put(queue, content) for queue, content in puts]))


def put(store: ShardStore, topic_id: int, *puts: tuple[int, bytes]) -> list[int]:
    """Append and commit; returns the offsets."""
    appended = append(store, topic_id, *puts)
    store.wait(appended)
    return [int(offset) for offset in appended.offsets]


# -- reading everything ----------------------------------------------------------------------------------


def read_queue(
    store: ShardStore, topic_id: int, queue: int, *, max_records: int = 1000, max_bytes: int = 1 << 20
) -> list[Message]:
    """All messages of a queue, checked to come in order, from the earliest on, and at most once."""
    earliest, latest = store.bounds(topic_id, queue)
    offset, found = earliest, []
    while offset < latest:
        part = store.read(topic_id, queue, offset, max_records=max_records, max_bytes=max_bytes)
        for batch in part.batches():
            for message in batch.messages("t"):
                assert message.queue == queue
                if message.offset >= offset:
                    found.append(message)
                    offset = message.offset + 1
        moved = int(part.next_offsets[0])
        assert moved >= offset, "a read must not stop before what it returned"
        assert part.record_count or moved == latest or moved > offset, "a read must make progress"
        offset = moved
    offsets = [message.offset for message in found]
    assert offsets == sorted(set(offsets))
    return found


def bodies(store: ShardStore, topic_id: int, queue: int) -> dict[int, bytes]:
    """Offset to body of all messages of a queue."""
    return {message.offset: message.body for message in read_queue(store, topic_id, queue)}


def contents(store: ShardStore) -> dict[tuple[str, int], dict[int, bytes]]:
    """Everything readable: (topic name, queue) to offset to body; queues that never had a message left out."""
    found = {}
    for topic in store.topics():
        latest = store.latest_offsets(topic.id)
        for queue in np.flatnonzero(latest).tolist():
            found[topic.name, queue] = bodies(store, topic.id, queue)
    return found


def remembered(store: ShardStore) -> dict[int, tuple[Head, list[tuple[Any, ...]]]]:
    """What a store knows of idempotent producers, wherever it is kept."""
    values: dict[int, list[bytes]] = {}
    for source in store._state.producers._sources:
        if isinstance(source, Layer):
            items = list(source.items())
        else:
            items = [(int.from_bytes(key[1:], "big"), value) for key, value in source.file.scan(b"p") if value]
        for producer_id, value in items:
            values.setdefault(producer_id, []).append(value)
    return {
        producer_id: (
            decode_head(found[0]),
            [
                (each.sequence, each.fingerprint, each.lsn, each.stored_ms, each.offsets.tolist())
                for each in decode_answers(merge_values(found))
            ],
        )
        for producer_id, found in sorted(values.items())
    }


def spoil(store: ShardStore, disk: Any, content: bytes) -> None:
    """The disk gives something else where the only table has this; once it is opened again."""
    (table,) = store._tables.version.tables()
    whole = disk.content(table.path)
    at = whole.index(content)
    disk.put(table.path, whole[:at] + b"?" + whole[at + 1 :])


def table_files(disk: Any, path: Path) -> list[str]:
    return [name for name in disk.list(path / "tables") if name.endswith(".tbl")]


def assert_no_orphans(store: ShardStore, disk: Disk, path: Path) -> None:
    """Every file there is belongs to the store."""
    manifest = store._tables.manifest
    numbers = manifest.numbers()
    tables = disk.list(path / "tables")
    assert {int(name.split(".")[0]) for name in tables} == numbers, (tables, numbers)
    assert all(name.endswith((".tbl", ".ckp", ".ids")) for name in tables)
    assert set(disk.list(path)) - {"LOCK"} == {"LOG_MARK", "MANIFEST", "tables", "wal"}
    assert all(name.endswith((".wal", ".spare")) for name in disk.list(path / "wal"))


def background(store: ShardStore, work: Callable[[], object], kind: str = "test") -> None:
    """Do background work as the store's own threads do it: a full disk is waited out, anything else stops it."""
    house = store._maintenance
    with mock.patch("lsmq_node.storage.maintenance._TICK_SECONDS", 0.0):
        house._guard(lambda: (house._retry_in_want(work, kind), None)[1])


@contextlib.contextmanager
def torn_out_of(kind: type[Any], name: str) -> Iterator[None]:
    """Whoever calls this method is torn out of it once all is done, as by a signal; the block is expected to be."""
    real = getattr(kind, name)

    def torn(*given: Any) -> None:
        real(*given)
        raise KeyboardInterrupt

    with mock.patch.object(kind, name, torn), pytest.raises(KeyboardInterrupt):
        yield
