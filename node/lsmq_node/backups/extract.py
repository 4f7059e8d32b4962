"""Messages of one topic of a backup, sent to another topic: what there was of it, up to a moment.

The shards that hold the topic are placed in a directory for the time being and read there as replicas, which drop
nothing by themselves: what retention would have taken by now is still to be had. Messages are sent anew, queue by queue
in their order, so they get new offsets, ids and times. What groups had committed is committed for them anew, where that
is asked for, as the offset that the same message has now (:mod:`.extract_groups`).
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lsmq import runtime
from lsmq.client import Client
from lsmq.errors import (
    GroupHasMembers,
    GroupModeMismatch,
    InvalidBatch,
    InvalidRequest,
    TopicExists,
    UnknownTopic,
)
from lsmq.messages import split_priority
from lsmq.producer import Producer
from lsmq.record_batch import Flag, decode_header, split_batches
from lsmq_node.broker.placement import queue_ranges
from lsmq_node.storage import ShardStore, StoredTopic
from lsmq_node.storage.passing_files import passing_directory
from lsmq_node.storage.repair import Advance

from .extract_groups import GroupPlaces
from .manifest import BackupManifest, ShardBackup
from .repository import Repository
from .restore import open_restored, place_shard

#: So much is read at a time.
_READ_BYTES = 4 << 20
_READ_RECORDS = 10_000
#: Of a queue, as it is written.
_NUMBER = re.compile("0|[1-9][0-9]{0,9}")
#: Says when a message was stored, on those that were sent anew.
STORED_PROPERTY = "restored.stored_ms"


@dataclass(frozen=True, slots=True)
class WantedMessages:
    """Which messages: of ``topic``, of ``queues`` (their names, or numbers as text; None: all), stored in
    ``[from_ms, until_ms)``."""

    topic: str
    queues: frozenset[str] | None = None
    from_ms: int = 0
    until_ms: int | None = None


@dataclass(slots=True)
class Extracted:
    """What came of it. ``passed_over`` could not be sent anew: their headers are nothing that a client makes.

    ``groups``: in how many queues each group's offset was set. ``refused``: groups that could not be set, and why.
    ``missing``: names of queues that were asked for, and that the backup has not.
    """

    messages: int = 0
    passed_over: int = 0
    groups: dict[str, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)


async def extract_topic(
    client: Client,
    repository: Repository,
    wanted: WantedMessages,
    name: str,
    id: str | None = None,
    *,
    work: Path | None = None,
    groups: bool = False,
    begin: Callable[[int], Advance] = lambda total: lambda size: None,
) -> Extracted:
    """Send what is wanted of a backup to a new topic ``name`` of the client's nodes, with the options of the old one.

    Args:
        work: where there is space for the shards meanwhile; the system's directory for such files without it.
        groups: have groups go on there where they had been in the backup, at or behind the same message.

    Raises ``InvalidRequest`` for a topic that the backup does not have, for numbers that are no queues of it, and for a
    time that ends before it begins; ``TopicExists`` for a ``name`` that is taken;
    ``CorruptFile``, ``DiskFull``, and what sending raises: then the new topic holds a part.
    """
    backup = await asyncio.to_thread(repository.load, id)
    topic = next((found for found in backup.topics if found.name == wanted.topic), None)
    if topic is None:
        names = ", ".join(sorted(found.name for found in backup.topics)[:20])
        raise InvalidRequest(f"the backup {backup.id} has no topic {wanted.topic!r}; it has {names or 'none'}")
    _check(wanted, topic)
    await _create(client, topic, name)
    held = {part.shard for part in queue_ranges(topic, backup.home_shards)}
    shards = [shard for shard in backup.shards if shard.shard in held]
    advance = begin(sum(file.size_bytes for shard in shards for file in shard.files))
    done = Extracted(missing=set(wanted.queues or ()) if topic.named else set())
    with passing_directory("extract", work) as directory:
        async with Producer(client, name) as producer:
            for shard in shards:
                placed = directory / f"shard-{shard.shard}"
                await asyncio.to_thread(place_shard, repository, shard, placed, advance)
                await _send_shard(client, name, producer, backup, shard, placed, topic, wanted, groups, done)
                await asyncio.to_thread(shutil.rmtree, placed)
    return done


def _check(wanted: WantedMessages, topic: StoredTopic) -> None:
    if wanted.until_ms is not None and wanted.until_ms <= wanted.from_ms:
        raise InvalidRequest("what is wanted ends before it begins: no message is stored from then on and before that")
    for queue in sorted(wanted.queues or ()) if not topic.named else ():
        if not _NUMBER.fullmatch(queue) or int(queue) >= topic.queues:
            raise InvalidRequest(
                f"the topic {topic.name!r} of the backup has no queue {queue[:60]!r}; its queues are numbers from 0 to "
                f"{topic.queues - 1}",
                field="queue",
            )


async def _create(client: Client, topic: StoredTopic, name: str) -> None:
    try:
        await client.topic(name)
    except UnknownTopic:
        pass
    else:
        raise TopicExists(
            f"there is a topic {name!r} already; what is extracted goes to a new one: choose another name", topic=name
        )
    options: dict[str, Any] = {key: value for key, value in topic.options.set().items() if key != "named"}
    queues: int | str = "named" if topic.named else topic.queues
    await client.ask("PUT", f"/v1/topics/{quote(name, safe='')}", {"queues": queues, **options})


async def _send_shard(
    client: Client,
    name: str,
    producer: Producer,
    backup: BackupManifest,
    shard: ShardBackup,
    directory: Path,
    topic: StoredTopic,
    wanted: WantedMessages,
    groups: bool,
    done: Extracted,
) -> None:
    store = await asyncio.to_thread(open_restored, directory, shard, replicated=True)
    try:
        if not store.has_topic(topic.id):
            return  # nothing was ever sent to it here
        queues = await asyncio.to_thread(_queues, store, backup, shard, topic, wanted)
        stood = await asyncio.to_thread(
            GroupPlaces.of, store, topic, [number for number, _ in queues] if groups else []
        )
        done.missing.difference_update(queue for _, queue in queues if isinstance(queue, str))
        for number, queue in queues:
            offset = 0
            stood.enter(number)
            while True:
                found = await asyncio.to_thread(_read, store, topic, number, offset, wanted, done)
                for at, body, options in found.messages:
                    stood.sent(at, await producer.send(body, queue=queue, **options))
                done.messages += len(found.messages)
                if found.ended:
                    break
                offset = found.next_offset
        await producer.flush()
    finally:
        await asyncio.to_thread(store.close)
    for group, offsets in (await stood.offsets()).items():
        try:
            await client.commit_offsets(group, name, offsets)
        except (GroupHasMembers, GroupModeMismatch) as error:  # The others' are set.
            done.refused[group] = error.message
        else:
            done.groups[group] = done.groups.get(group, 0) + len(offsets)


def _queues(
    store: ShardStore, backup: BackupManifest, shard: ShardBackup, topic: StoredTopic, wanted: WantedMessages
) -> list[tuple[int, int | str]]:
    """Numbers of the shard's queues that are wanted, and what messages to them name."""
    if topic.named:
        names = store.names(topic.id)
        names.refresh()
        numbers = names.all_numbers()
        pairs = list(zip(numbers.tolist(), names.names(numbers), strict=True))
        found: list[tuple[int, int | str]] = [(number, name) for number, name in pairs if name is not None]
    else:
        parts = [part for part in queue_ranges(topic, backup.home_shards) if part.shard == shard.shard]
        found = [(number, number) for part in parts for number in range(part.first, part.end)]
    return [(number, queue) for number, queue in found if wanted.queues is None or str(queue) in wanted.queues]


@dataclass(frozen=True, slots=True)
class _Piece:
    messages: list[tuple[int, bytes, dict[str, Any]]]
    next_offset: int
    ended: bool


def _read(
    store: ShardStore, topic: StoredTopic, queue: int, offset: int, wanted: WantedMessages, done: Extracted
) -> _Piece:
    earliest, latest = store.bounds(topic.id, queue)
    offset = max(offset, earliest)
    found = store.read(topic.id, queue, offset, max_records=_READ_RECORDS, max_bytes=_READ_BYTES)
    next_offset = max([offset, *found.next_offsets[found.queues == queue].tolist()])
    messages: list[tuple[int, bytes, dict[str, Any]]] = []
    for fields in _rows(b"".join(part if isinstance(part, bytes) else part.load() for part in found.parts), topic.id):
        owner, number, at, header, body, stored_ms, priority, flags, expires_ms = fields
        if (owner, number) != (topic.id, queue) or not offset <= at < next_offset:
            continue
        if wanted.until_ms is not None and stored_ms >= wanted.until_ms:  # times never go back within a queue
            return _Piece(messages, next_offset, True)
        if stored_ms >= wanted.from_ms:
            try:
                messages.append((at, body, _options(header, stored_ms, priority, flags, expires_ms)))
            except InvalidBatch:
                done.passed_over += 1
    return _Piece(messages, next_offset, next_offset >= latest or next_offset == offset)


def _rows(content: bytes, topic_id: int) -> Iterator[tuple[Any, ...]]:
    for batch in split_batches(content, source="backup"):
        payload = batch.payload
        for owner, queue, offset, start, body_at, end, stored_ms, priority, flags, expires_ms in batch.rows(topic_id):
            header, body = payload[start:body_at], payload[body_at:end].tobytes()
            yield owner, queue, offset, header, body, stored_ms, priority, flags, expires_ms


def _options(header: memoryview, stored_ms: int, priority: int, flags: int, expires_ms: int) -> dict[str, Any]:
    """What the message was sent with. Raises ``InvalidBatch``."""
    key, tag, properties, headers, kind = decode_header(header) if header else (None, None, {}, (), None)
    first, second = split_priority(priority)
    options: dict[str, Any] = {
        "key": key,
        "tag": tag,
        "type": kind,
        "properties": {**properties, STORED_PROPERTY: str(stored_ms)},
        "headers": headers,
        "priority": first,
        "subpriority": second,
        "delete": bool(flags & Flag.DELETE),
        "ttl_ms": max(1, expires_ms - runtime.wall_ms()) if expires_ms else None,
    }
    return {name: value for name, value in options.items() if value}
