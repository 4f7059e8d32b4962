"""Moments of a shard, and what came to the queues of a named topic between two: for readers that remember no queues."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from lsmq.errors import (
    DiskFull,
    InvalidQueueName,
    InvalidRequest,
    NotLeader,
    ShardStopped,
    StoreBusy,
    TopicReplaced,
    UnknownTopic,
)
from lsmq_node.broker.arrivals import MAX_QUEUES, ArrivedQueues, ReadPlace
from lsmq_node.broker.queue_lists import need_names
from lsmq_node.broker.selection import ByPattern, Selection
from lsmq_node.storage import StoredTopic
from lsmq_node.storage.name_patterns import NamePrefix

from . import schemas
from .codec import Format, answer, answer_format, encode
from .routing import Call, Content, Routes
from .schema import flag, integer, list_of, object_of, text
from .selecting import selection_of

ROUTES = Routes("messages")
_PICKING = ("names", "pattern", "prefix")
_SHARD = integer(0, 1_023, "One of the topic's `routes`.")
_PLACE = object_of(
    {
        "time_ms": schemas.TIME_MS,
        "until_ms": integer(0, 2**63 - 1, "A later moment, of queues whose numbers are below `queue`."),
        "queue": schemas.QUEUE,
        "offset": {**schemas.OFFSET, "description": "Of `queue`. Those behind it are at `time_ms`."},
    },
    required=("time_ms",),
)
_ASKED = object_of(
    {
        "shard": _SHARD,
        "since": {**_PLACE, "description": "From here on. Without it, all that is kept."},
        "until": {**_PLACE, "description": "Up to here. Without it, all that is there now."},
        "names": list_of(schemas.TEXT, "Of these queues alone.", minItems=1, maxItems=MAX_QUEUES),
        "pattern": text("Of these alone, such as `agents.*.inbox`."),
        "prefix": text("Of those alone whose names begin so."),
        "after": {**schemas.QUEUE, "default": 0, "description": "`next` of the page before."},
        "limit": integer(
            1, MAX_QUEUES, default=MAX_QUEUES, description="Look at so many queues that messages came to."
        ),
        "with_names": flag("Say the names of the queues.", default=False),
    },
    required=("shard",),
)
_U32, _I64 = "u32 little-endian, one after another", "i64 little-endian, as many as queues"
_ARRIVED = object_of(
    {
        "queues": schemas.packed_list(schemas.QUEUE, _U32),
        "starts": schemas.packed_list(schemas.OFFSET, _I64),
        "ends": schemas.packed_list(schemas.OFFSET, _I64),
        "earliest": schemas.packed_list(schemas.OFFSET, _I64),
        "names": list_of(text(null=True), "With `with_names`; null: the queue was deleted."),
        "messages": integer(0, description="How many came, whichever are picked, on all pages."),
        "exact": flag("False: where queues begin some may have gone that `messages` still counts, or does not."),
        "next": integer(0, 2**32 - 1, "`after` of the next page; null: there is none.", null=True),
    },
    required=("queues", "starts", "ends", "earliest", "messages", "exact", "next"),
)


@ROUTES.post(
    "/v1/topics/{topic}/moments",
    Content(
        "Noted, durably. All that was acknowledged before was stored before `time_ms`, and all that comes is not.",
        object_of(
            {
                "shard": _SHARD,
                "time_ms": schemas.TIME_MS,
                "messages": integer(0, description="So many came to the topic's queues on the shard before it, ever."),
            }
        ),
    ),
    request=Content("The shard.", object_of({"shard": _SHARD})),
    errors=(UnknownTopic, NotLeader, TopicReplaced, StoreBusy, DiskFull, ShardStopped),
)
async def note_moment(call: Call) -> web.StreamResponse:
    """Note a moment in the log of a shard of a topic with named queues.

    For readers that remember it in place of an offset for each queue. Writes a few bytes where messages came since the
    last one.
    """
    document, topic = await call.checked_document(), await call.topic()
    shard = _shard(call, topic, document)
    moment = await call.broker.arrivals.note(topic, shard)
    return answer(call.request, {"shard": shard, "time_ms": moment.time_ms, "messages": moment.messages})


@ROUTES.post(
    "/v1/topics/{topic}/arrivals",
    Content(
        "By the numbers of queues, ascending: messages with the offsets from `starts` to before `ends` came. Below "
        "`earliest` they have gone.",
        _ARRIVED,
    ),
    request=Content("Between which places of which shard.", _ASKED),
    errors=(UnknownTopic, InvalidQueueName, NotLeader, TopicReplaced),
)
async def read_arrivals(call: Call) -> web.StreamResponse:
    """Ask which queues of a topic with named queues got messages between two moments, and which.

    The answer is the same each time, but for what has gone. A page may be empty and say that there is another. Where
    nothing is remembered of a moment the last message of each queue is looked at.
    """
    document, topic = await call.checked_document(), await call.topic()
    found = await call.broker.arrivals.between(
        topic,
        _shard(call, topic, document),
        _place(document, "since"),
        _place(document, "until"),
        _picked(document),
        after=document["after"],
        limit=document["limit"],
        with_names=document["with_names"],
    )
    form = answer_format(call.request)
    body = await call.workers.run(lambda: encode(_shown(found, form), form), large=len(found.numbers) > 1_000)
    return web.Response(body=body, headers={"Content-Type": form.value})


def _shard(call: Call, topic: StoredTopic, document: dict[str, Any]) -> int:
    """Raises ``InvalidRequest`` for a topic without named queues, or a shard that is none of it."""
    need_names(topic)
    shard: int = document["shard"]
    shards = sorted({part.shard for part in call.broker.ranges(topic)})
    if shard not in shards:
        raise InvalidRequest(
            f"shard is {shard}; topic {topic.name!r} lies on the shards {', '.join(map(str, shards))}", field="shard"
        )
    return shard


def _place(document: dict[str, Any], field: str) -> ReadPlace | None:
    given = document.get(field)
    if given is None:
        return None
    place = ReadPlace(given["time_ms"], given.get("until_ms"), given.get("queue", 0), given.get("offset", 0))
    if place.until_ms is None and (place.queue or place.offset):
        raise InvalidRequest(f"{field}.until_ms is missing; queue and offset stand between two moments", field=field)
    if place.until_ms is not None and place.until_ms < place.time_ms:
        raise InvalidRequest(f"{field}.until_ms is {place.until_ms}, before time_ms, {place.time_ms}", field=field)
    return place


def _picked(document: dict[str, Any]) -> Selection | None:
    given = [field for field in _PICKING if field in document]
    if len(given) > 1:
        raise InvalidRequest(f"{given[1]} is given beside {given[0]}; pick queues one way", field=given[1])
    if not given:
        return None
    return ByPattern(NamePrefix(document["prefix"])) if given == ["prefix"] else selection_of(document)


def _shown(found: ArrivedQueues, form: Format) -> dict[str, Any]:
    columns = {
        "queues": found.numbers.astype("<u4"),
        "starts": found.starts.astype("<i8"),
        "ends": found.ends.astype("<i8"),
        "earliest": found.earliest.astype("<i8"),
    }
    shown: dict[str, Any] = {
        name: column.tobytes() if form is Format.MSGPACK else column.tolist() for name, column in columns.items()
    }
    if found.names is not None:
        shown["names"] = found.names
    return {**shown, "messages": found.messages, "exact": found.exact, "next": found.following}
