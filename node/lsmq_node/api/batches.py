"""Record batches over HTTP, the way clients send and fetch: bytes pass through, nothing is unpacked.

A batch that comes in is checked as a whole, by columns. What goes out is what the store has: parts in memory
are written, whole table blocks leave by sendfile without passing through this process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import zstandard
from aiohttp import web
from numpy.typing import NDArray

from lsmq.errors import (
    DiskFull,
    InvalidBatch,
    InvalidRequest,
    MessageTooLarge,
    NotEnoughReplicas,
    NotLeader,
    OutOfOrderSequence,
    ProducerFenced,
    ReadElsewhere,
    SequenceReused,
    StaleSequence,
    StoreBusy,
    TooManyMessages,
    TooManyProducers,
    TopicReplaced,
    UnknownFetchSession,
    UnknownProducer,
    UnknownQueue,
    UnknownTopic,
)
from lsmq.record_batch import HEADER, HEADER_BYTES, Codec, Column, Flag, RecordBatch
from lsmq.topics import FETCH_SESSION_HEADER
from lsmq_node.broker import Ack, Broker, Fetched, ReadFrom, client_of
from lsmq_node.broker.placement import split_by_shard
from lsmq_node.config import NodeConfig
from lsmq_node.storage import Topic
from lsmq_node.storage.batch_checks import check_obeyed
from lsmq_node.storage.columns import DTYPES, decode_column, encode_columns, encode_one
from lsmq_node.transactions.lanes import BROKER_PRODUCERS

from . import schemas
from .codec import BATCH_TYPE, BATCHES_TYPE, media_type
from .routing import Call, Content, Parameter, Route, path_parameters
from .sending import send_parts

#: What a batch of an idempotent producer may be refused with.
PRODUCER_ERRORS = (
    OutOfOrderSequence,
    StaleSequence,
    SequenceReused,
    ProducerFenced,
    UnknownProducer,
    TooManyProducers,
)

_SENT_COLUMNS = frozenset(
    {
        Column.QUEUE,
        Column.LENGTH,
        Column.HEADER_LENGTH,
        Column.KEY_HASH,
        Column.TAG_HASH,
        Column.PRIORITY,
        Column.FLAGS,
    }
)
#: A smaller payload is decompressed within a millisecond.
_LARGE_PAYLOAD_BYTES = 512 * 1024
_MOST: dict[int, int] = {
    column: int(np.iinfo(DTYPES[column]).max) for column in _SENT_COLUMNS if DTYPES[column].itemsize < 8
}


def payload_bytes_of(body: bytes, config: NodeConfig) -> int:
    """What the payload of a batch that was sent takes once it is decompressed; the header is checked, and this limit.

    Raises :class:`InvalidBatch`, :class:`TooManyMessages`, :class:`InvalidRequest`.
    """
    if len(body) < HEADER_BYTES:
        raise InvalidBatch(f"the body has {len(body)} bytes, too few for a record batch ({HEADER_BYTES})")
    _, total, _, codec, _, record_count, payload_bytes, raw_bytes, *_ = HEADER.unpack_from(body)
    if total != len(body):
        raise InvalidBatch(f"the batch says {total} bytes, the body has {len(body)}; send one batch a request")
    if record_count == 0:
        raise InvalidBatch("the batch holds no records; send at least one")
    if record_count > config.max_messages_per_request:
        raise TooManyMessages(
            f"the batch holds {record_count} messages, the limit is {config.max_messages_per_request} a "
            "request (max_messages_per_request); send smaller batches",
            limit=config.max_messages_per_request,
            count=record_count,
        )
    if codec == Codec.ZSTD and payload_bytes <= total:
        raw_bytes = max(raw_bytes, _frame_bytes(body[total - payload_bytes : total]))
    if raw_bytes > config.max_request_bytes:
        raise InvalidRequest(
            f"the batch holds {raw_bytes} bytes after decompression, the limit is {config.max_request_bytes} "
            "(max_request_bytes); send smaller batches",
            limit=config.max_request_bytes,
        )
    return int(raw_bytes)


def decode_sent_batch(body: bytes, config: NodeConfig) -> RecordBatch:
    """The batch a producer sent, whole and within limits, its payload decompressed.

    What decoding would cost is known from the header and checked first. Raises as :func:`payload_bytes_of`.
    """
    payload_bytes_of(body, config)
    batch = RecordBatch(body, source="request")
    if batch.producer_id >= BROKER_PRODUCERS:
        raise InvalidBatch(f"producer id {batch.producer_id} is the broker's; choose one below 2**63")
    check_obeyed(batch)
    for column, (position, width, base) in batch.directory.items():
        if column not in _SENT_COLUMNS:
            raise InvalidBatch(f"the batch has column {column}, which a producer cannot send")
        most = _MOST.get(column)
        if most is not None and base + (1 << 8 * width) - 1 > most:
            largest = base + _largest(batch, position, width)
            if largest > most:
                raise InvalidBatch(f"column {Column(column).name} of the batch has a {largest}; the limit is {most}")
    return batch


def _largest(batch: RecordBatch, position: int, width: int) -> int:
    """The largest delta of a column."""
    if not width:
        return 0
    return int(np.frombuffer(batch.buffer, f"<u{width}", batch.record_count, position).max())


def _frame_bytes(payload: bytes) -> int:
    """Bytes a zstd frame says it holds, which decompressing allocates at once."""
    try:
        size = zstandard.frame_content_size(payload)
    except zstandard.ZstdError as error:
        raise InvalidBatch("the batch's payload is not a zstd frame") from error
    if size < 0:
        raise InvalidBatch("the batch's zstd frame does not say its size; compress it in one piece")
    return size


def _column(batch: RecordBatch, column: Column) -> NDArray[Any]:
    return decode_column(batch.buffer, batch.directory.get(column), batch.record_count, DTYPES[column])


def _only_shard(broker: Broker, topic: Topic, batch: RecordBatch) -> int:
    """The shard of all the batch's queues. Raises :class:`InvalidRequest` when there is more than one."""
    if broker.topology.shard_count == 1:
        return 0
    queues = _column(batch, Column.QUEUE)
    broker.check_queues(topic, queues)
    parts = split_by_shard(queues, topic, broker.topology.shard_count)
    if len(parts) > 1:
        shards = ", ".join(str(shard) for shard, _ in parts)
        raise InvalidRequest(
            f"the batch has queues of the shards {shards}; send one batch a shard (see the topic's routes)"
        )
    return parts[0][0]


async def send_batch(call: Call) -> web.StreamResponse:
    """POST /v1/topics/{topic}/batches"""
    broker, request = call.broker, call.request
    topic = await call.topic(request.match_info["topic"])
    if media_type(request) != BATCH_TYPE:
        raise InvalidRequest(f"Content-Type is {media_type(request)!r}; a batch is sent as {BATCH_TYPE}")
    body = await call.body()
    config = broker.config
    unpacked_bytes = payload_bytes_of(body, config)
    if unpacked_bytes > len(body):
        call.hold.resize_within(len(body) + unpacked_bytes)
    packs = HEADER.unpack_from(body)[3] != Codec.NONE and unpacked_bytes >= _LARGE_PAYLOAD_BYTES
    batch = await call.workers.run(lambda: decode_sent_batch(body, config), large=packs)
    ack = call.query["ack"]
    parts = [(_only_shard(broker, topic, batch), batch)]
    (appended,) = await broker.append(topic, parts, None if ack is None else Ack(ack))
    columns: dict[int, NDArray[Any] | int] = {Column.OFFSET: appended.offsets, Column.STORED_MS: appended.stored_ms}
    headers = {"Content-Type": BATCH_TYPE}
    if appended.duplicate:
        headers["Lsmq-Duplicate"] = "1"
    return web.Response(body=encode_columns(batch.record_count, columns), headers=headers)


def elsewhere_batches(found: Fetched) -> Iterator[bytes]:
    """A batch for each other node that queues are to be read at: no messages, and its URL as the payload.

    The payload is empty where it is the leader.
    """
    for each in found.elsewhere:
        url = (each.url or "").encode()
        lengths = np.zeros(len(each.queues), np.uint32)
        lengths[0] = len(url)
        columns: dict[int, NDArray[Any]] = {
            Column.QUEUE: each.queues,
            Column.LENGTH: lengths,
            Column.FLAGS: np.full(len(each.queues), Flag.ELSEWHERE, np.uint8),
        }
        yield encode_one(columns, np.frombuffer(url, np.uint8))


def positions_batch(found: Fetched) -> bytes:
    """The batch that says the next offset of every queue that moved; no bytes when none did."""
    if not found.queues:
        return b""
    queues = np.concatenate(found.queues)
    columns: dict[int, NDArray[Any] | int] = {
        Column.QUEUE: queues,
        Column.OFFSET: np.concatenate(found.next_offsets),
        Column.FLAGS: int(Flag.POSITION),
    }
    return encode_columns(len(queues), columns)


async def fetch(call: Call) -> web.StreamResponse:
    """POST /v1/topics/{topic}/fetch"""
    broker, config = call.broker, call.broker.config
    topic = await call.topic(call.request.match_info["topic"])
    document = await call.checked_document()
    limits: Any = {
        "max_records": min(
            document.get("max_messages", config.max_messages_per_request), config.max_messages_per_request
        ),
        "max_bytes": min(document.get("max_bytes", config.max_response_bytes), config.max_response_bytes),
        "wait_ms": document.get("wait_ms", 0),
        "hold": call.hold,
        "source": ReadFrom(call.query["from"]),
    }
    if "session" in document:
        found, token = await broker.reads.go_on(topic, document["session"], **limits)
    else:
        for name in ("queues", "offsets"):
            if name not in document:
                raise InvalidRequest(
                    f"{name} is missing; a fetch names queues and offsets, or the session of an earlier answer",
                    field=name,
                )
        queues, offsets = await call.queue_offsets(document)
        found = await broker.fetch(topic, queues, offsets, **limits)
        client = client_of(call.request.remote)
        token = broker.reads.open_session(topic, queues, offsets, found, client) if document.get("keep") else None
    headers = {FETCH_SESSION_HEADER: token} if token else {}
    batches = [*elsewhere_batches(found), positions_batch(found), *found.parts]
    return await send_parts(call, batches, {"Content-Type": BATCHES_TYPE, **headers})


def routes(config: NodeConfig) -> tuple[Route, ...]:
    """The routes of this module."""
    topic = path_parameters("topic")
    ack = Parameter("ack", "query", schemas.ACK, "As in sending messages.")
    return (
        Route(
            "POST",
            "/v1/topics/{topic}/batches",
            "sendBatch",
            "batches",
            "Send one record batch",
            send_batch,
            {
                200: Content(
                    "Stored. A batch of as many records with the columns OFFSET and STORED_MS only.",
                    media_types=(BATCH_TYPE,),
                    headers={"Lsmq-Duplicate": "`1` when the producer's batch had been stored before."},
                )
            },
            description="All queues of the batch belong to one shard. It is stored whole or not at all.",
            parameters=(*topic, ack),
            request=Content("One record batch, without the columns TOPIC and OFFSET.", media_types=(BATCH_TYPE,)),
            errors=(
                UnknownTopic,
                UnknownQueue,
                InvalidBatch,
                MessageTooLarge,
                TooManyMessages,
                *PRODUCER_ERRORS,
                NotLeader,
                NotEnoughReplicas,
                TopicReplaced,
                StoreBusy,
                DiskFull,
            ),
        ),
        Route(
            "POST",
            "/v1/topics/{topic}/fetch",
            "fetchBatches",
            "batches",
            "Read messages of many queues, long polling if asked to",
            fetch,
            {
                200: Content(
                    "Record batches one after another: first the next offsets of all queues that moved "
                    "(QUEUE, OFFSET, FLAGS=2), then messages. Some may lie below the offset asked for; "
                    "pass over them. Empty when the wait was over. With `from=auto` batches (QUEUE, FLAGS=4) may come "
                    "before: read these queues at the node whose URL is the payload from now on, and where that is "
                    "empty at the leader.",
                    media_types=(BATCHES_TYPE,),
                    headers={FETCH_SESSION_HEADER: "With `keep`: the `session` of the next request."},
                )
            },
            description="Costs what it returns, not what it asks for: idle queues are free. Name the queues once, with "
            "`keep`, and go on with the `session` of each answer: the node remembers where it ended.",
            parameters=path_parameters("topic", "from"),
            request=Content("Queues, and the offset wanted of each.", schemas.fetch(config)),
            errors=(UnknownTopic, UnknownQueue, UnknownFetchSession, NotLeader, ReadElsewhere, TopicReplaced),
        ),
    )
