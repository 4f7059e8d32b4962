"""Record batches over HTTP, the way clients send and fetch: bytes pass through, nothing is unpacked.

A batch that comes in is checked as a whole, by columns. What goes out is what the store has: parts in memory
are written, whole table blocks leave by sendfile without passing through this process, where there is no TLS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import structlog
from aiohttp import web
from numpy.typing import NDArray

from lsmq.errors import (
    DiskFull,
    InvalidBatch,
    InvalidFilter,
    InvalidQueueName,
    InvalidRequest,
    LsmqError,
    MessageTooLarge,
    NotEnoughReplicas,
    NotLeader,
    OutOfOrderSequence,
    ProducerFenced,
    QuotaExceeded,
    ReadElsewhere,
    SequenceReused,
    StaleSequence,
    StoreBusy,
    TooManyDelayed,
    TooManyMessages,
    TooManyProducers,
    TooManyQueues,
    TopicReplaced,
    UnknownFetchSession,
    UnknownProducer,
    UnknownQueue,
    UnknownTopic,
    from_dict,
)
from lsmq.record_batch import Column, Flag
from lsmq.topics import FETCH_SESSION_HEADER, FETCH_SHARDS_HEADER
from lsmq_node.broker import Fetched, FetchRequest, Hold, ProduceRequest, ReadFrom
from lsmq_node.broker.forwarding import shard_to_ask
from lsmq_node.config import Forward
from lsmq_node.storage import StoredTopic
from lsmq_node.storage.columns import encode_columns, encode_one

from . import schemas
from .codec import (
    BATCH_TYPE,
    BATCHES_TYPE,
    MSGPACK_TYPE,
    NAMED_BATCH_TYPE,
    Format,
    encode,
    media_type,
    request_format,
)
from .failures import error_fields, internal_error
from .filters import FILTER_FIELDS, filter_of
from .forwarding import ShardPart, each_at_leader
from .routing import FROM, Call, Content, Parameter, Routes
from .schema import text
from .selecting import SELECTING, selected_of
from .sending import send_parts

#: What a batch of an idempotent producer may be refused with.
PRODUCER_ERRORS = (OutOfOrderSequence, StaleSequence, SequenceReused, ProducerFenced, UnknownProducer, TooManyProducers)

ROUTES = Routes("batches")
_log = structlog.get_logger("lsmq.http")
_SHARDS = Parameter(
    FETCH_SHARDS_HEADER,
    text(pattern="[0-9]+(,[0-9]+)*"),
    "Where queues are named: the shards that it is to read, all of which the node is to lead.",
    header=True,
)
_FETCH = {**schemas.FETCH, "properties": {**schemas.FETCH["properties"], **FILTER_FIELDS}}
#: More names than these are looked at in a thread.
_MANY = 1_000
#: So many batches are put in line in a few milliseconds.
_AT_ONCE = 32
_ACK = Parameter("ack", schemas.ACK, "As in sending messages.")
_FLUSH = Parameter("flush", schemas.FLUSH, "As in sending messages.")


@ROUTES.post(
    "/v1/topics/{topic}/batches",
    Content(
        "Stored. A batch of as many records with the columns OFFSET and STORED_MS; where queues are named also QUEUE, "
        "their numbers; and FLAGS where messages were not stored since their ids had been, whose offsets it has.",
        media_types=(BATCH_TYPE,),
        headers={"Lsmq-Duplicate": "`1` when the producer's batch had been stored before."},
    ),
    parameters=(_ACK, _FLUSH),
    request=Content(
        "One record batch, without the columns TOPIC and OFFSET. Where queues are named there come before it the "
        "length of the names (4 bytes, little-endian) and the names joined by NUL, and QUEUE says which of them.",
        media_types=(BATCH_TYPE, NAMED_BATCH_TYPE),
    ),
    errors=(
        UnknownTopic,
        UnknownQueue,
        InvalidBatch,
        MessageTooLarge,
        TooManyMessages,
        TooManyDelayed,
        TooManyQueues,
        *PRODUCER_ERRORS,
        NotLeader,
        NotEnoughReplicas,
        TopicReplaced,
        StoreBusy,
        DiskFull,
        QuotaExceeded,
    ),
)
async def send_batch(call: Call) -> web.StreamResponse:
    """Send one record batch.

    All queues of the batch belong to one shard. It is stored whole or not at all. A message whose `DUE_MS` (a delay
    up to ten years, or a time) is after the answer's `STORED_MS` comes later; its `OFFSET` is part of its id.
    """
    topic = await call.topic()
    wanted = NAMED_BATCH_TYPE if topic.named else BATCH_TYPE
    if (found := media_type(call.request)) != wanted:
        raise InvalidRequest(f"Content-Type is {found!r}; a batch for topic {topic.name!r} is sent as {wanted}")
    stored, duplicate = await _store(call, topic, await call.body(), call.hold)
    headers = {"Content-Type": BATCH_TYPE}
    if duplicate:
        headers["Lsmq-Duplicate"] = "1"
    return web.Response(body=stored, headers=headers)


@ROUTES.post(
    "/v1/batches",
    Content("What became of each batch, in their order.", schemas.STORED_BATCHES, media_types=(MSGPACK_TYPE,)),
    parameters=(_ACK, _FLUSH),
    request=Content("Batches.", schemas.SEND_BATCHES, media_types=(MSGPACK_TYPE,)),
    errors=(TooManyMessages,),
)
async def send_batches(call: Call) -> web.StreamResponse:
    """Send record batches of several topics.

    Each is stored, or refused, by itself, as one that is sent alone; the answer comes when all are done. Two batches
    of one producer are not sent together: which of them is stored first is not said.
    """
    if request_format(call.request) is not Format.MSGPACK:
        raise InvalidRequest(f"batches are bytes, which JSON has not; send {MSGPACK_TYPE} as Content-Type")
    batches = (await call.checked_document())["batches"]
    call.broker.admission.batches(_packed(each["batch"]) for each in batches)
    outcomes = await _outcomes(call, batches)
    if call.forward is Forward.PASS:
        await _pass_on(call, batches, outcomes)
    elif call.proof is not None:
        _check_led(outcomes)
    call.refusals += [each for each in outcomes if isinstance(each, LsmqError)]
    body = encode({"results": _results(outcomes)}, Format.MSGPACK)
    return web.Response(body=body, headers={"Content-Type": MSGPACK_TYPE})


async def _outcomes(call: Call, batches: Sequence[dict[str, Any]]) -> list[dict[str, Any] | LsmqError]:
    """What became of each batch here."""
    tasks = []
    async with asyncio.TaskGroup() as work:
        for number, each in enumerate(batches, 1):
            tasks.append(work.create_task(_outcome(call, each)))
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)  # Others have turns in between.
    return [task.result() for task in tasks]


async def _outcome(call: Call, part: Mapping[str, Any]) -> dict[str, Any] | LsmqError:
    try:
        topic = await call.topic(part["topic"], part.get("topic_id"), part.get("topic_created_ms"))
        with call.broker.budget.hold(call.hold.client) as hold:
            stored, duplicate = await _store(call, topic, _packed(part["batch"]), hold)
    except LsmqError as error:
        return error
    except Exception as error:  # It takes no other with it.
        _log.error("batch_failed", topic=part["topic"], exc_info=error)
        return internal_error(error)
    return {"batch": stored, "duplicate": duplicate}


def _packed(batch: str | bytes) -> bytes:
    return batch.encode(errors="surrogatepass") if isinstance(batch, str) else batch


def _results(outcomes: Sequence[dict[str, Any] | LsmqError]) -> list[dict[str, Any]]:
    return [error_fields(each) if isinstance(each, LsmqError) else each for each in outcomes]


def _shard_elsewhere(outcome: dict[str, Any] | LsmqError) -> int | None:
    return shard_to_ask(outcome) if isinstance(outcome, LsmqError) else None


def _check_led(outcomes: Sequence[dict[str, Any] | LsmqError]) -> None:
    """Raises ``NotLeader`` where that became of all, and so nothing was done."""
    first = outcomes[0]
    if isinstance(first, LsmqError) and all(_shard_elsewhere(each) is not None for each in outcomes):
        raise first


async def _pass_on(call: Call, batches: Sequence[dict[str, Any]], outcomes: list[dict[str, Any] | LsmqError]) -> None:
    """Have those that are led elsewhere stored there, and put what became of them in the place of the refusals."""
    elsewhere: dict[int, list[int]] = {}
    for place, outcome in enumerate(outcomes):
        if (shard := _shard_elsewhere(outcome)) is not None:
            elsewhere.setdefault(shard, []).append(place)

    async def ask(shard: int, places: Sequence[int]) -> None:
        given = [batches[place] for place in places]

        async def here() -> dict[str, Any]:
            found = await _outcomes(call, given)
            _check_led(found)
            return {"results": _results(found)}

        part = ShardPart(shard, here, lambda: encode({"batches": given}, Format.MSGPACK))
        try:
            (answer,) = await each_at_leader(call, [part])
            results = answer["results"]
            found = [from_dict(each["error"]) if "error" in each else each for each in results]
        except LsmqError as error:
            found = [error] * len(places)
        for place, each in zip(places, found, strict=True):
            outcomes[place] = each

    async with asyncio.TaskGroup() as work:
        for shard, places in elsewhere.items():
            work.create_task(ask(shard, places))


async def _store(call: Call, topic: StoredTopic, body: bytes, hold: Hold) -> tuple[bytes, bool]:
    """Have a batch stored: what it is answered with, and whether it had been stored before."""
    broker, ack, flush = call.broker, call.ack(call.query["ack"]), call.flush(call.query["flush"])
    columns: dict[int, NDArray[Any] | int]
    if topic.named:
        shard, names, batch = await broker.unpack_named(topic, body, hold)
        request = ProduceRequest(topic, ((shard, batch),), ack, flush, (names,))
        ((appended, numbers),) = await broker.produce_named(request)
        columns = {Column.QUEUE: numbers}
    else:
        part = await broker.unpack(topic, body, hold)
        (appended,) = await broker.produce(ProduceRequest(topic, (part,), ack, flush))
        columns = {}
    columns |= {Column.OFFSET: np.maximum(appended.offsets, 0), Column.STORED_MS: appended.stored_ms}
    flags = np.where(appended.offsets < 0, np.uint8(Flag.DROPPED), np.uint8(0))
    if appended.repeats is not None:
        flags |= appended.repeats * np.uint8(Flag.REPEAT)
    if flags.any():
        columns[Column.FLAGS] = flags
    return encode_columns(len(appended.offsets), columns), appended.duplicate


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
        if each.offsets is not None:
            columns[Column.OFFSET] = each.offsets
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


@ROUTES.post(
    "/v1/topics/{topic}/fetch",
    Content(
        "Record batches one after another: first the next offsets of all queues that moved "
        "(QUEUE, OFFSET, FLAGS=2), then messages. Some may lie below the offset asked for, or have another tag or type "
        "with the same hash; pass over them. Empty when the wait was over. With `from=auto` batches (QUEUE, FLAGS=4) "
        "may come before: read these queues at the node whose URL is the payload from now on, and where that is "
        "empty at the leader. Where they were selected by name, OFFSET says from where on, and the session goes on "
        "without them. Where queues are selected by name, a batch (QUEUE, OFFSET, LENGTH, FLAGS=16) before the "
        "messages has the names of their queues one after another as its payload, and from which offset on there are "
        "messages; a queue that it leaves out was deleted. Queues of such a topic may be fetched by number, too.",
        media_types=(BATCHES_TYPE,),
        headers={FETCH_SESSION_HEADER: "With `keep`: the `session` of the next request."},
    ),
    parameters=(FROM, _SHARDS),
    request=Content("Queues, and the offset wanted of each.", _FETCH),
    errors=(
        UnknownTopic,
        UnknownQueue,
        UnknownFetchSession,
        InvalidFilter,
        InvalidQueueName,
        NotLeader,
        ReadElsewhere,
        TopicReplaced,
    ),
)
async def fetch_batches(call: Call) -> web.StreamResponse:
    """Read messages of many queues, long polling if asked to.

    Costs what it returns, not what it asks for: idle queues are free. Name the queues once, with `keep`, and go on with
    the `session` of each answer: the node remembers where it ended. What is picked is said each time. Where queues are
    named, select them by `names`, a `pattern` or `slots`: queues that come later join by themselves. Of these, the
    shards that this node leads answer.
    """
    config = call.broker.config
    topic = await call.topic()
    document = await call.checked_document()
    limits: Any = {
        "topic": topic,
        "max_records": document.get("max_messages", config.max_messages_per_request),
        "max_bytes": document.get("max_bytes", config.max_response_bytes),
        "wait_ms": document["wait_ms"],
        "source": ReadFrom(call.query["from"]),
        "filter": filter_of(document),
        # What is encrypted passes through this process anyway: it is read and verified in one go, and not twice.
        "files": call.proof is None and call.request.scheme != "https",
    }
    if "session" in document:
        request = FetchRequest(**limits, session=document["session"])
    elif any(field in document for field in SELECTING):
        selected = await call.workers.run(
            lambda: selected_of(document, topic, call.broker.admission), large=len(document.get("names", ())) > _MANY
        )
        selected = replace(selected, shards=call.integers_of(FETCH_SHARDS_HEADER, "the numbers of shards"))
        request = FetchRequest(**limits, selected=selected, keep=document["keep"])
    else:
        for name in ("queues", "offsets"):
            if name not in document:
                raise InvalidRequest(
                    f"{name} is missing; a fetch names queues and offsets, or the session of an earlier answer",
                    field=name,
                )
        queues, offsets = await call.queue_offsets(document)
        request = FetchRequest(**limits, queues=queues, offsets=offsets, keep=document["keep"] and call.proof is None)
    found = await call.broker.fetch(request, call.hold)
    headers = {FETCH_SESSION_HEADER: found.session} if found.session else {}
    batches = [*elsewhere_batches(found), positions_batch(found), *found.names, *found.parts]
    return await send_parts(call, batches, {"Content-Type": BATCHES_TYPE, **headers})
