"""Record batches over HTTP, the way clients send and fetch: bytes pass through, nothing is unpacked.

A batch that comes in is checked as a whole, by columns. What goes out is what the store has: parts in memory
are written, whole table blocks leave by sendfile without passing through this process.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import zstandard
from aiohttp import web
from numpy.typing import NDArray

from lsmq.errors import (
    DiskFull,
    EmptyBody,
    InvalidBatch,
    InvalidRequest,
    MessageTooLarge,
    NotEnoughReplicas,
    NotLeader,
    OutOfOrderSequence,
    StaleSequence,
    StoreBusy,
    TooManyMessages,
    TopicReplaced,
    UnknownProducer,
    UnknownQueue,
    UnknownTopic,
)
from lsmq.record_batch import HEADER, HEADER_BYTES, Codec, Column, Flag, RecordBatch
from lsmq_node.broker import Ack, Broker, Fetched
from lsmq_node.broker.placement import split_by_shard
from lsmq_node.config import NodeConfig
from lsmq_node.storage import Topic
from lsmq_node.storage.columns import DTYPES, decode_column, encode_columns

from . import schemas
from .arrays import queue_offsets
from .codec import BATCH_TYPE, BATCHES_TYPE
from .routing import Call, Content, Parameter, Route, path_parameters
from .sending import send_parts

_SENT_COLUMNS = frozenset(
    {
        Column.QUEUE,
        Column.LENGTH,
        Column.HEADER_LENGTH,
        Column.KEY_HASH,
        Column.TAG_HASH,
        Column.TYPE_HASH,
        Column.PRIORITY,
        Column.DUE_MS,
        Column.EXPIRES_MS,
    }
)


def decode_sent_batch(body: bytes, config: NodeConfig) -> RecordBatch:
    """The batch a producer sent, whole and within limits, its payload decompressed.

    What decoding would cost is known from the header and checked first. Raises :class:`InvalidBatch`,
    :class:`TooManyMessages`, :class:`InvalidRequest`.
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
    batch = RecordBatch(body, source="request")
    for column in batch.directory:
        if column not in _SENT_COLUMNS:
            raise InvalidBatch(f"the batch has column {column}, which a producer cannot send")
    return batch


def _frame_bytes(payload: bytes) -> int:
    """Bytes a zstd frame says it holds, which decompressing allocates at once."""
    try:
        size = zstandard.frame_content_size(payload)
    except zstandard.ZstdError as error:
        raise InvalidBatch("the batch's payload is not a zstd frame") from error
    if size < 0:
        raise InvalidBatch("the batch's zstd frame does not say its size; compress it in one piece")
    return size


def check_bodies(batch: RecordBatch) -> None:
    """Raises :class:`EmptyBody` naming the first record without a body."""
    lengths, headers = _column(batch, Column.LENGTH), _column(batch, Column.HEADER_LENGTH)
    if bool((lengths == headers).any()):
        record = int(np.argmax(lengths == headers))
        raise EmptyBody(
            f"record {record} of the batch has an empty body; a message needs at least one byte",
            record=record,
        )


def _column(batch: RecordBatch, column: Column) -> NDArray[Any]:
    return decode_column(batch.buffer, batch.directory.get(column), batch.record_count, DTYPES[column])


def _only_shard(broker: Broker, topic: Topic, batch: RecordBatch) -> int:
    """The shard of all the batch's queues. Raises :class:`InvalidRequest` when there is more than one."""
    if broker.topology.shard_count == 1:
        return 0
    queues = _column(batch, Column.QUEUE)
    broker.check_queues(topic, queues)
    parts = split_by_shard(queues, topic.queues, broker.topology.shard_count)
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
    if not request.headers.get("Content-Type", "").startswith(BATCH_TYPE):
        raise InvalidRequest(f"Content-Type is {request.content_type!r}; a batch is sent as {BATCH_TYPE}")
    body = await call.body()
    batch = decode_sent_batch(body, broker.config)
    if len(batch.payload) > call.hold.held_bytes:
        call.hold.resize(len(body) + len(batch.payload))
    check_bodies(batch)
    ack = call.query["ack"]
    parts = [(_only_shard(broker, topic, batch), batch)]
    (appended,) = await broker.append(topic, parts, None if ack is None else Ack(ack))
    columns: dict[int, NDArray[Any] | int] = {Column.OFFSET: appended.offsets, Column.STORED_MS: appended.stored_ms}
    headers = {"Content-Type": BATCH_TYPE}
    if appended.duplicate:
        headers["Lsmq-Duplicate"] = "1"
    return web.Response(body=encode_columns(batch.record_count, columns), headers=headers)


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
    queues, offsets = queue_offsets(document, config.max_queues_per_request)
    found = await broker.fetch(
        topic,
        queues,
        offsets,
        max_records=min(document.get("max_messages", config.max_messages_per_request), config.max_messages_per_request),
        max_bytes=min(document.get("max_bytes", config.max_response_bytes), config.max_response_bytes),
        wait_ms=document.get("wait_ms", 0),
        hold=call.hold,
    )
    parts = found.parts
    if 0 < found.file_bytes < config.sendfile_min_bytes:
        call.hold.resize(found.size_bytes)
        parts = [await broker.in_readers(found.load)]
    return await send_parts(call, [positions_batch(found), *parts], BATCHES_TYPE)


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
                EmptyBody,
                MessageTooLarge,
                TooManyMessages,
                OutOfOrderSequence,
                StaleSequence,
                UnknownProducer,
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
                    "pass over them. Empty when the wait was over.",
                    media_types=(BATCHES_TYPE,),
                )
            },
            description="Costs what it returns, not what it asks for: idle queues are free.",
            parameters=topic,
            request=Content("Queues, and the offset wanted of each.", schemas.fetch(config)),
            errors=(UnknownTopic, UnknownQueue, NotLeader, TopicReplaced),
        ),
    )
