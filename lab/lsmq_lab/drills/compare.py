"""Whether replicas are equal up to the high watermark: their logs byte for byte, and what they have made of them.

The nodes are stopped before. Stores are opened as copies, so what a drill leaves behind stays as it was.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from lsmq.errors import UnknownQueue
from lsmq.record_batch import split_batches
from lsmq_node.storage import ShardStore, StoredTopic, StoreOptions

_CHUNK_BYTES = 1 << 20
_READ_RECORDS = 10_000


@dataclass(frozen=True, slots=True)
class ReplicaDirectory:
    """One replica's directory. ``node`` names it in findings."""

    node: str
    path: Path


@dataclass(frozen=True, slots=True)
class Comparison:
    """``compared`` replicas; those that ``differ`` from the shard's first, each with a finding in words."""

    compared: int
    differ: int
    findings: tuple[str, ...]


def compare(shards: Mapping[int, tuple[int, list[ReplicaDirectory]]], options: StoreOptions) -> Comparison:
    """Compare the replicas of each shard up to the shard's high watermark.

    ``shards`` gives the high watermark, which must be an LSN at which an entry ends, and the replicas.
    """
    compared, findings, wrong = 0, [], set()
    for shard, (high_watermark, replicas) in sorted(shards.items()):
        with tempfile.TemporaryDirectory(prefix="lsmq-compare-") as scratch:
            pictures = []
            for replica in replicas:
                compared += 1
                try:
                    pictures.append((replica.node, _picture(replica, Path(scratch), high_watermark, options)))
                except Exception as error:
                    wrong.add((shard, replica.node))
                    findings.append(f"shard {shard} on {replica.node}: {type(error).__name__}: {error}")
            for node, finding in _differences(pictures):
                wrong.add((shard, node))
                findings.append(f"shard {shard} on {node}: {finding}")
    return Comparison(compared, len(wrong), tuple(findings))


@dataclass(frozen=True, slots=True)
class _Picture:
    """A replica's content up to the high watermark. ``log`` is a digest of its last part from ``log_start_lsn``."""

    log_start_lsn: int
    end_lsn: int
    high_watermark: int
    log: bytes
    content: dict[str, Any]


def _picture(replica: ReplicaDirectory, scratch: Path, high_watermark: int, options: StoreOptions) -> _Picture:
    copy = scratch / replica.node
    shutil.copytree(replica.path, copy)
    with ShardStore.open(copy, options, replicated=True) as store:
        log = store.replica
        end_lsn = log.end_lsn
        if end_lsn < high_watermark:
            return _Picture(end_lsn, end_lsn, high_watermark, b"", {})
        log.advance(high_watermark)
        start_lsn = min(log.first_lsn(), high_watermark)
        picture = b"".join(_read_log(store, start_lsn, high_watermark))
        return _Picture(start_lsn, end_lsn, high_watermark, picture, dict(_content(store)))


def _read_log(store: ShardStore, lsn: int, end_lsn: int) -> Iterator[bytes]:
    while lsn < end_lsn:
        piece = store.replica.read(lsn, min(_CHUNK_BYTES, end_lsn - lsn))
        if not piece:
            raise ValueError(f"the log gives nothing at LSN {lsn}, below the high watermark {end_lsn}")
        yield piece
        lsn += len(piece)


def _content(store: ShardStore) -> Iterator[tuple[str, Any]]:
    """Everything a reader could see, by what it is."""
    for topic in store.topics():
        yield f"topic {topic.name}", str(topic)
        for queue in range(topic.queues):
            try:
                earliest, latest = store.bounds(topic.id, queue)
            except UnknownQueue:
                continue  # Another shard's.
            yield f"offsets of {topic.name} queue {queue}", (earliest, latest)
            yield f"messages of {topic.name} queue {queue}", _digest(store, topic, queue, earliest, latest)
        for group in store.groups():
            committed = store.committed_offsets(group, topic.id)
            yield f"committed offsets of {group} in {topic.name}", committed.tolist()


def _digest(store: ShardStore, topic: StoredTopic, queue: int, offset: int, latest: int) -> tuple[int, int]:
    """How many messages, and a hash of all that they hold."""
    hasher, count = xxhash.xxh64(), 0
    while offset < latest:
        found = store.read(topic.id, queue, offset, max_records=_READ_RECORDS, max_bytes=_CHUNK_BYTES)
        before = offset
        for batch in split_batches(found.load()):
            for message in batch.messages(topic.name):
                if message.queue == queue and message.offset >= offset:
                    hasher.update(
                        repr((message.offset, message.stored_ms, message.key, message.tag, message.body)).encode()
                    )
                    offset = message.offset + 1
                    count += 1
        if offset == before:
            raise ValueError(f"{topic.name} queue {queue}: nothing is read at offset {offset} of {latest}")
    return count, hasher.intdigest()


def _differences(pictures: list[tuple[str, _Picture]]) -> Iterator[tuple[str, str]]:
    """What differs from the first replica that has everything, by node."""
    for node, picture in pictures:
        if picture.end_lsn < picture.high_watermark:
            yield node, f"its log ends at LSN {picture.end_lsn}, below the high watermark {picture.high_watermark}"
    complete = [(node, picture) for node, picture in pictures if picture.end_lsn >= picture.high_watermark]
    if not complete:
        return
    first_node, first = complete[0]
    for node, picture in complete[1:]:
        # Of logs that begin at different LSNs, the common end is compared; what lies before is in tables.
        length = min(len(first.log), len(picture.log))
        if first.log[len(first.log) - length :] != picture.log[len(picture.log) - length :]:
            yield node, f"its log differs from that of {first_node} below LSN {picture.high_watermark}"
        for name in sorted(first.content.keys() | picture.content.keys()):
            ours, theirs = picture.content.get(name), first.content.get(name)
            if ours != theirs:
                yield node, f"{name}: {_short(ours)}; on {first_node}: {_short(theirs)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
