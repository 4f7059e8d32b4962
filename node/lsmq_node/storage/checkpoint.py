"""Checkpoints: a shard's state as of a flush, in one file.

All integers are little-endian::

    offset width field
     0      8    magic ``LSMQCKP1``
     8      4    version (2; in version 1 the body has no documents)
    12      4    crc      CRC32C of version, length and body
    16      8    length of the body
    24      n    body     a msgpack map; arrays of queue ends are zstd over int64

Packing costs only for what changed since the last checkpoint: the packed arrays of a topic that nothing was
written to are used again.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import crc32c
import msgpack
import numpy as np
import zstandard

from lsmq.errors import CorruptFile, UnsupportedFormat

from .columns import I64, WIDTH_DTYPES, width_of
from .disk import Disk, replace_file
from .documents import Documents
from .state import Producers, ShardState, Topic, TopicOptions

MAGIC = b"LSMQCKP1"
VERSION = 3
_PLAIN_ARRAYS_VERSION = 2
HEAD = struct.Struct("<8sIIQ")
_ARRAY = struct.Struct("<Bq")


def checkpoint_name(number: int) -> str:
    return f"{number:012d}.ckp"


@dataclass(slots=True)
class _TopicPart:
    header: list[Any]
    starts: tuple[int, int]  # what ``start`` follows from: trims, and the number of queues
    next: I64 | bytes
    start: I64 | bytes


@dataclass(frozen=True, slots=True)
class _Packed:
    """Arrays of a topic as they were at a version of it."""

    version: int
    starts: tuple[int, int]
    next: bytes
    start: bytes


@dataclass(slots=True)
class Snapshot:
    """State frozen at an LSN: what changed is copied, the rest refers to packed bytes of the last one."""

    lsn: int
    next_topic_id: int
    topics: list[_TopicPart]
    offsets: list[tuple[str, int, I64 | bytes]]
    producers: list[Any]
    epochs: list[tuple[int, int]]
    documents: list[tuple[str, bytes]]


class Checkpointer:
    """Takes snapshots of a state and writes them; keeps packed arrays by the version they were packed at.

    One thread takes while another may write.
    """

    def __init__(self) -> None:
        self._topics: dict[int, _Packed] = {}
        self._spare: I64 = np.empty(0, np.int64)  # the longest array that was copied to: fresh memory costs more
        self._offsets: dict[tuple[str, int], tuple[int, bytes]] = {}
        self._versions: list[tuple[Any, int]] = []

    def take(self, state: ShardState, lsn: int) -> Snapshot:
        """Copy what changed. Call between two entries; costs a memory copy of the arrays written to."""
        topics = []
        for topic_id, item in state.topics.items():
            topic = item.topic
            header = [
                topic.id,
                topic.name,
                topic.queues,
                topic.options.to_dict(),
                topic.created_ms,
                item.first,
                item.end,
                item.deletes,
                item.version,
            ]
            packed = self._topics.get(topic_id)
            count = item.end - item.first
            starts = (item.trims, count)
            if packed is not None and packed.version == item.version:
                topics.append(_TopicPart(header, starts, packed.next, packed.start))
            elif packed is not None and packed.starts == starts:
                topics.append(_TopicPart(header, starts, self._copy(item.committed[:count]), packed.start))
            else:
                start = item.start[:count].copy()
                topics.append(_TopicPart(header, starts, self._copy(item.committed[:count]), start))
        for gone in self._offsets.keys() - state.offsets.keys():
            del self._offsets[gone]
        offsets: list[tuple[str, int, I64 | bytes]] = []
        for key, values in state.offsets.items():
            known = self._offsets.get(key)
            version = state.offsets_version[key]
            if known is not None and known[0] == version:
                offsets.append((*key, known[1]))
            else:
                packed_offsets = _pack(values)
                self._offsets[key] = (version, packed_offsets)
                offsets.append((*key, packed_offsets))
        return Snapshot(
            lsn,
            state.next_topic_id,
            topics,
            offsets,
            state.producers.dump(),
            list(state.epochs),
            state.documents.items(),
        )

    def _copy(self, values: I64) -> I64:
        spare, self._spare = self._spare, np.empty(0, np.int64)
        if len(spare) < len(values):
            spare = np.empty(len(values), np.int64)
        np.copyto(spare[: len(values)], values)
        return spare[: len(values)]

    def done(self, snapshot: Snapshot) -> None:
        """The snapshot will not be written again: its memory is used for another."""
        for part in snapshot.topics:
            if isinstance(part.next, np.ndarray) and isinstance(part.next.base, np.ndarray):
                self._spare = max(self._spare, part.next.base, key=len)

    def write(self, disk: Disk, directory: Path, number: int, snapshot: Snapshot) -> int:
        """Write a checkpoint file; durable on return. Returns its size in bytes."""
        topics = []
        for part in snapshot.topics:
            topic_id, version = part.header[0], part.header[8]
            packed_next, packed_start = _pack(part.next), _pack(part.start)
            self._topics[topic_id] = _Packed(version, part.starts, packed_next, packed_start)
            topics.append([*part.header, packed_next, packed_start])
        live = {part.header[0] for part in snapshot.topics}
        for topic_id in [topic_id for topic_id in self._topics if topic_id not in live]:
            del self._topics[topic_id]
        body = msgpack.packb(
            {
                "lsn": snapshot.lsn,
                "next_topic_id": snapshot.next_topic_id,
                "topics": topics,
                "offsets": [[group, topic_id, packed] for group, topic_id, packed in snapshot.offsets],
                "producers": snapshot.producers,
                "epochs": snapshot.epochs,
                "documents": snapshot.documents,
            }
        )
        raw = HEAD.pack(MAGIC, VERSION, _crc(VERSION, body), len(body)) + body
        replace_file(disk, directory / checkpoint_name(number), raw)
        return len(raw)


def _crc(version: int, body: bytes | memoryview) -> int:
    return crc32c.crc32c(body, crc32c.crc32c(struct.pack("<IQ", version, len(body))))


def load_checkpoint(disk: Disk, path: Path) -> tuple[int, ShardState]:
    """LSN and state of a checkpoint file. Raises ``CorruptFile`` or ``UnsupportedFormat``."""
    source = str(path)
    try:
        raw = disk.read_all(path)
    except FileNotFoundError:
        raise CorruptFile(
            f"{source}: the checkpoint that the manifest names is missing. Restore this directory from a replica "
            "or a backup; nothing was changed.",
            file=source,
            position=0,
        ) from None
    if len(raw) < HEAD.size or raw[:8] != MAGIC:
        raise CorruptFile(f"{source}: not a checkpoint ({len(raw)} bytes)", file=source, position=0)
    _, version, crc, length = HEAD.unpack_from(raw)
    body = memoryview(raw)[HEAD.size :]
    if len(body) != length or _crc(version, body) != crc:
        raise CorruptFile(
            f"{source}: the checkpoint is damaged. Restore this directory from a replica or a backup; "
            "nothing was changed.",
            file=source,
            position=HEAD.size,
        )
    if version > VERSION:
        raise UnsupportedFormat(
            f"{source}: checkpoint version {version}; this release reads {VERSION}. "
            "Start the release that wrote it, or a newer one."
        )
    values = msgpack.unpackb(body)
    unpack = _unpack_plain if version <= _PLAIN_ARRAYS_VERSION else _unpack
    state = ShardState()
    for topic_id, name, queues, options, created_ms, first, end, deletes, changes, ends, starts in values["topics"]:
        topic = Topic(topic_id, name, queues, TopicOptions.from_dict(options), created_ms)
        state.put_topic(topic, first, end)
        item = state.topics[topic_id]
        item.restore(unpack(ends), unpack(starts))
        item.deletes, item.version = deletes, changes
    state.next_topic_id = values["next_topic_id"]
    for group, topic_id, packed in values["offsets"]:
        state.offsets[group, topic_id] = unpack(packed)
        state.offsets_version[group, topic_id] = 0
    state.producers = Producers.load(values["producers"])
    state.epochs = [(epoch, lsn) for epoch, lsn in values["epochs"]]
    state.documents = Documents(values.get("documents", ()))
    return values["lsn"], state


def _pack(values: I64 | bytes) -> bytes:
    """Most offsets are small, or near one another: few bytes each, before zstd sees them."""
    if isinstance(values, bytes):
        return values
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    width = width_of(high - low)
    narrow = np.empty(len(values), WIDTH_DTYPES[width])
    np.subtract(values, low, out=narrow, casting="unsafe")
    return _ARRAY.pack(width, low) + zstandard.compress(narrow.data, 1)


def _unpack(packed: bytes) -> I64:
    width, low = _ARRAY.unpack_from(packed)
    values = np.frombuffer(zstandard.decompress(memoryview(packed)[_ARRAY.size :]), WIDTH_DTYPES[width])
    widened: I64 = values.astype(np.int64)
    widened += low
    return widened


def _unpack_plain(packed: bytes) -> I64:
    return np.frombuffer(zstandard.decompress(packed), np.int64).copy()
