"""Checkpoints: a shard's state as of a flush, in a chain of files.

Each file is an *increment*: what changed between two LSNs, as sorted keys and values (:mod:`.keyed_file`). A flush adds
one, so that it costs what changed since the last, whatever the state holds. Increments that follow one another are
merged into one as they come to be many, like tables: sizes grow by fours with age, a fact is written a logarithmic
number of times, and the chain stays short. What is read at a start is the chain from the oldest to the newest;
idempotent producers alone stay where they are, and are looked up there.

A key begins with its kind; numbers in keys are big-endian::

    key                                            value
    c topic (4)                                    msgpack [name, queues, options, created_ms, first, end], and
                                                   where messages went by :mod:`.losses` how many, by reason
    c topic (4) page (4)                           the ends of a page of queues, their log starts, and where messages of
                                                   them are deleted the floors, ends and stretches of :mod:`.deletions`
    d document's key                               the document
    g length (4) group topic (4) page (4)          committed offsets + 1 of a page of queues
    p producer (8)                                 see :mod:`.producers`

A page is ``PAGE_QUEUES`` queues. Its numbers are written as count (4), width (1), least (8), and each less the least in
``width`` bytes. *Erased* prefixes come with an increment: what older ones hold under them is gone.
"""

from __future__ import annotations

import heapq
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from lsmq.errors import CorruptFile

from .columns import I64, WIDTH_DTYPES, width_of
from .deletions import Deleted
from .disk import Disk
from .epochs import StoredEpochStart
from .failures import damaged
from .keyed_file import KeyedFile, KeyedItem, KeyedWriter
from .pages import PAGE_BITS
from .producers import KIND as PRODUCER
from .producers import decode_answers, decode_head, merge_values, producer_key
from .state import PageChange, ShardState, StateChange, StoredTopic
from .tiers import joined_tier
from .topic_options import TopicOptions

CATALOG, DOCUMENT, OFFSETS = b"c", b"d", b"g"
_TOPIC_FIELDS = ("name", "queues", "options", "created_ms", "first", "end", "gone")
_ARRAY = struct.Struct("<IBq")
#: So many increments of about one size become one.
_FAN = 4
#: Increments below this count as if they were of one size.
_SMALL_BYTES = 64 * 1024
#: Writes are refused while the chain is so long: merges do not keep up.
MAX_INCREMENTS = 64
#: After every stamp.
LATEST_MS = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class IncrementMeta:
    """An increment as the manifest lists it: the state's changes in the log's ``[first_lsn, end_lsn)``."""

    number: int
    size_bytes: int
    first_lsn: int
    end_lsn: int

    @property
    def name(self) -> str:
        return checkpoint_name(self.number)


def checkpoint_name(number: int) -> str:
    return f"{number:012d}.ckp"


def merge_count(sizes: Sequence[int]) -> int:
    """How many of the newest increments to merge; 0 for none. ``sizes`` in bytes, the oldest first."""
    return joined_tier(sizes, _FAN, _SMALL_BYTES)


# -- keys and values -------------------------------------------------------------------------------------


def _number(value: int) -> bytes:
    return value.to_bytes(4, "big")


def _group_prefix(group: str, topic_id: int | None) -> bytes:
    name = group.encode(errors="surrogatepass")
    prefix = OFFSETS + _number(len(name)) + name
    return prefix if topic_id is None else prefix + _number(topic_id)


def _pack_page(page: PageChange) -> bytes:
    packed = _pack(page.ends) + _pack(page.starts)
    if page.deleted is None:
        return packed
    stretches = np.array(page.deleted.stretches, np.int64).ravel()
    return packed + _pack(page.deleted.floors) + _pack(page.deleted.ends) + _pack(stretches)


def _unpack_page(number: int, packed: bytes) -> PageChange:
    ends, position = _unpack(packed)
    starts, position = _unpack(packed, position)
    if position == len(packed):
        return PageChange(number, ends, starts, None)
    floors, position = _unpack(packed, position)
    deleted_ends, position = _unpack(packed, position)
    stretches, _ = _unpack(packed, position)
    rows = [(row, first, end) for row, first, end in stretches.reshape(-1, 3).tolist()]
    return PageChange(number, ends, starts, Deleted(floors, deleted_ends, rows))


def _pack(values: I64) -> bytes:
    """Most offsets are small, or near one another: few bytes each, before they are compressed."""
    low, high = (int(np.minimum.reduce(values)), int(np.maximum.reduce(values))) if len(values) else (0, 0)
    width = width_of(high - low)
    narrow = np.empty(len(values), WIDTH_DTYPES[width])
    np.subtract(values, low, out=narrow, casting="unsafe")
    return _ARRAY.pack(len(values), width, low) + narrow.tobytes()


def _unpack(packed: bytes, position: int = 0) -> tuple[I64, int]:
    """The values, and where they end."""
    count, width, low = _ARRAY.unpack_from(packed, position)
    position += _ARRAY.size
    values: I64 = np.frombuffer(packed, WIDTH_DTYPES[width], count, position).astype(np.int64)
    values += low
    return values, position + count * width


def items_of(change: StateChange) -> list[KeyedItem]:
    """All that a file holds of a change but the producers, sorted."""
    items: list[KeyedItem] = []
    for topic in change.topics:
        of = topic.topic
        key = CATALOG + _number(of.id)
        header = [of.name, of.queues, of.options.to_dict(), of.created_ms, topic.first, topic.end]
        items.append((key, msgpack.packb([*header, topic.gone] if topic.gone else header)))
        items += ((key + _number(page.number), _pack_page(page)) for page in topic.pages)
    items += ((DOCUMENT + key.encode(), value) for key, value in change.documents.items())
    items += (
        (_group_prefix(group, topic_id) + _number(page), _pack(values))
        for group, topic_id, page, values in change.offsets
    )
    items.sort()
    return items


def properties_of(change: StateChange) -> dict[str, Any]:
    """What a file says of itself."""
    erased = [CATALOG + _number(topic_id) for topic_id in change.dropped]
    erased += (_group_prefix(group, topic_id) for group, topic_id in change.dropped_groups)
    return {
        "first_lsn": change.first_lsn,
        "end_lsn": change.end_lsn,
        "time_ms": change.time_ms,
        "next_topic_id": change.next_topic_id,
        "epochs": change.epochs,
        "erased": _outermost(erased),
        "producers": len(change.producers),
    }


def _outermost(prefixes: Iterable[bytes]) -> list[bytes]:
    """Sorted, without those that begin with another."""
    found: list[bytes] = []
    for prefix in sorted(prefixes):
        if not found or not prefix.startswith(found[-1]):
            found.append(prefix)
    return found


def page_key(topic_id: int, page: int) -> bytes:
    """Of the numbers of a topic's queues from ``PAGE_QUEUES * page`` on."""
    return CATALOG + _number(topic_id) + _number(page)


def topic_of(key: bytes) -> int | None:
    """The topic that must be there before what is under a key can be put in."""
    if key[:1] == CATALOG:
        return int.from_bytes(key[1:5], "big") if len(key) > 5 else None
    if key[:1] == OFFSETS:
        end = 5 + int.from_bytes(key[1:5], "big")
        return int.from_bytes(key[end : end + 4], "big")
    return None


def page_size(value: bytes) -> int:
    """Of how many queues a page is."""
    return int(_ARRAY.unpack_from(value)[0])


def describe_key(key: bytes) -> str:
    """What a key, or an erased prefix, is about, in words."""
    kind, number = key[:1], int.from_bytes(key[1:5], "big")
    if kind == CATALOG:
        return f"topic {number}" + (f" queues {_queues_of(key[5:])}" if len(key) > 5 else "")
    if kind == DOCUMENT:
        return f"document {key[1:].decode()}"
    if kind == PRODUCER:
        return f"producer {int.from_bytes(key[1:], 'big')}"
    group, rest = key[5 : 5 + number].decode(errors="backslashreplace"), key[5 + number :]
    topic = f" topic {int.from_bytes(rest[:4], 'big')}" if rest else ""
    return f"group {group}{topic}" + (f" queues {_queues_of(rest[4:])}" if rest[4:] else "")


def _queues_of(page: bytes) -> str:
    first = int.from_bytes(page, "big") << PAGE_BITS
    return f"from {first}"


def describe_value(key: bytes, value: bytes | None) -> dict[str, Any]:
    """What it is now. Of producers where they have come to, and the LSNs of their last batches."""
    if value is None:
        return {"deleted": True}
    kind = key[:1]
    if kind == PRODUCER:
        lsns = [answer.lsn for answer in decode_answers(value)]
        head = decode_head(value)._asdict()
        if head["position"] < 0:
            del head["position"]
        return {**head, "answers": len(lsns), "lsns": lsns}
    if kind == CATALOG and len(key) == 5:
        return dict(zip(_TOPIC_FIELDS, _unpack_topic(value), strict=False))
    return {"bytes": len(value)}


def _unpack_topic(value: bytes) -> list[Any]:
    fields: list[Any] = msgpack.unpackb(value, strict_map_key=False)
    return fields


# -- writing ---------------------------------------------------------------------------------------------


def write_increment(disk: Disk, directory: Path, number: int, change: StateChange) -> IncrementMeta:
    """Write what changed; durable on return. Leaves nothing behind when it raises ``OSError``."""
    return write_keyed(disk, directory, number, lambda writer: _fill(writer, change))


def _fill(writer: KeyedWriter, change: StateChange) -> dict[str, Any]:
    for key, value in items_of(change):
        writer.add(key, value)
    for producer_id, value in change.producers.items():
        writer.add(producer_key(producer_id), value, producer_id)
    return properties_of(change)


def write_keyed(
    disk: Disk, directory: Path, number: int, fill: Callable[[KeyedWriter], dict[str, Any]]
) -> IncrementMeta:
    """Write an increment that ``fill`` fills, and of which it returns the properties; durable on return."""
    path = directory / checkpoint_name(number)
    writer = KeyedWriter(disk, path)
    try:
        properties = fill(writer)
        size = writer.finish(properties)
        disk.sync_directory(directory)
    except BaseException:
        writer.abandon()
        disk.remove(path)
        raise
    return IncrementMeta(number, size, properties["first_lsn"], properties["end_lsn"])


def merge_increments(
    disk: Disk,
    directory: Path,
    number: int,
    files: Sequence[KeyedFile],
    *,
    oldest: bool,
    expiry_ms: int,
    expired_before_ms: int = LATEST_MS,
    check: Callable[[], None] = lambda: None,
) -> IncrementMeta:
    """Write ``files``, increments that follow one another, the oldest first, as one; durable on return.

    Args:
        oldest: nothing is older than these, so what is gone needs no mention.
        expiry_ms: producers that sent nothing for so long, up to the end of these, are dropped
        expired_before_ms: if they sent nothing since then: stamps say of time that the clock skipped that it passed.
        check: called now and then; may raise to end it.
    """
    alive_ms = min(expired_before_ms, files[-1].properties["time_ms"] - expiry_ms)
    return write_keyed(disk, directory, number, lambda writer: _fill_merged(writer, files, oldest, alive_ms, check))


def _fill_merged(
    writer: KeyedWriter, files: Sequence[KeyedFile], oldest: bool, alive_ms: int, check: Callable[[], None]
) -> dict[str, Any]:
    """``alive_ms``: producers that sent nothing since then are dropped."""
    newest_first = files[::-1]
    first, last = files[0].properties, files[-1].properties
    erased: list[list[bytes]] = []  # by age, what newer ones erase
    for file in newest_first:
        erased.append(_outermost([*(erased[-1] if erased else ()), *file.properties["erased"]]))
    erased_by_newer = [[], *erased[:-1]]
    scans = [_aged(file, age) for age, file in enumerate(newest_first)]
    producers = 0
    for key, found in groupby(heapq.merge(*scans), itemgetter(0)):
        values = [value for _, age, value in found if not _is_under(key, erased_by_newer[age])]
        if not values:
            continue
        value = values[0]
        if key[:1] == PRODUCER:
            value = merge_values([each for each in values if each is not None])
            if decode_head(value).last_ms < alive_ms:
                continue
            writer.add(key, value, int.from_bytes(key[1:], "big"))
            producers += 1
        elif value is not None or not oldest:
            writer.add(key, value)
        if writer.count % 1024 == 0:
            check()
    return {
        **last,
        "first_lsn": first["first_lsn"],
        "erased": [] if oldest else erased[-1],
        "producers": producers,
    }


def _aged(file: KeyedFile, age: int) -> Iterator[tuple[bytes, int, bytes | None]]:
    return ((key, age, value) for key, value in file.scan())


def _is_under(key: bytes, prefixes: list[bytes]) -> bool:
    """Whether the key begins with one of the sorted prefixes, none of which begins with another."""
    at = bisect_right(prefixes, key) - 1
    return at >= 0 and key.startswith(prefixes[at])


# -- reading ---------------------------------------------------------------------------------------------


def open_checkpoint(disk: Disk, directory: Path, metas: Sequence[IncrementMeta], lsn: int) -> list[KeyedFile]:
    """The files of a chain that ends at ``lsn``, the oldest first.

    Raises ``CorruptFile`` when one is missing, damaged or not of this chain, ``UnsupportedFormat``.
    """
    files = []
    for meta in metas:
        path = directory / meta.name
        try:
            file = KeyedFile(disk, path, meta.number)
        except FileNotFoundError:
            raise damaged(path, "the checkpoint that the manifest names is missing") from None
        check_increment(file, meta)
        files.append(file)
    end_lsn = 0
    for meta in metas:
        if meta.first_lsn != end_lsn:
            raise _not_of_here(
                directory / meta.name, f"begins at LSN {meta.first_lsn}, the one before ends at {end_lsn}"
            )
        end_lsn = meta.end_lsn
    if metas and end_lsn != lsn:
        raise _not_of_here(directory / metas[-1].name, f"is of LSN {end_lsn}, the manifest of {lsn}")
    return files


def check_increment(file: KeyedFile, meta: IncrementMeta) -> None:
    """Raises ``CorruptFile`` unless the file is what the manifest says."""
    found = (file.size_bytes, file.properties["first_lsn"], file.properties["end_lsn"])
    if found != (meta.size_bytes, meta.first_lsn, meta.end_lsn):
        raise _not_of_here(
            file.path,
            f"has {found[0]} bytes of LSN {found[1]} to {found[2]}, the manifest says {meta.size_bytes} bytes of "
            f"{meta.first_lsn} to {meta.end_lsn}",
        )


def _not_of_here(path: Path, what: str) -> CorruptFile:
    return damaged(path, f"the checkpoint {what}: they do not belong together")


def load_state(files: Sequence[KeyedFile]) -> ShardState:
    """The state of a chain of increments, the oldest first, all but its producers. Raises ``CorruptFile``."""
    state = ShardState()
    for file in files:
        properties = file.properties
        for prefix in properties["erased"]:
            erase(state, prefix)
        for key, value in file.scan(b"", PRODUCER):
            restore_item(state, key, value)
        state.epochs = [StoredEpochStart(*epoch) for epoch in properties["epochs"]]
        state.next_topic_id = properties["next_topic_id"]
    if files:
        state.restored(properties["end_lsn"], properties["time_ms"])
    return state


def erase(state: ShardState, prefix: bytes) -> None:
    """Forget what is under a prefix."""
    if prefix[:1] == CATALOG:
        state.drop_topic(int.from_bytes(prefix[1:5], "big"))
        return
    end = 5 + int.from_bytes(prefix[1:5], "big")
    group = prefix[5:end].decode(errors="surrogatepass")
    state.offsets.drop(group, int.from_bytes(prefix[end:], "big") if len(prefix) > end else None)


def restore_item(state: ShardState, key: bytes, value: bytes | None) -> None:
    """Put in what a file holds under a key, unless it is a producer. The topic that it is about must be there."""
    kind = key[:1]
    if kind == DOCUMENT:
        state.documents.put(key[1:].decode(), value)
        return
    assert value is not None, "of these only prefixes are erased"
    if kind == OFFSETS:
        end = 5 + int.from_bytes(key[1:5], "big")
        topic_id, page = int.from_bytes(key[end : end + 4], "big"), int.from_bytes(key[end + 4 :], "big")
        values, _ = _unpack(value)
        state.offsets.restore(key[5:end].decode(errors="surrogatepass"), topic_id, page, values)
        return
    topic_id = int.from_bytes(key[1:5], "big")
    if len(key) == 5:
        name, queues, options, created_ms, first, end, *gone = _unpack_topic(value)
        state.put_topic(StoredTopic(topic_id, name, queues, TopicOptions.from_dict(options), created_ms), first, end)
        state.topics[topic_id].gone = gone[0] if gone else {}
        return
    state.topics[topic_id].restore(_unpack_page(int.from_bytes(key[5:], "big"), value))
