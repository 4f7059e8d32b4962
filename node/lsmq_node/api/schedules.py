"""Schedules of a topic: messages again and again, by cron expressions."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from lsmq.errors import (
    DocumentsFull,
    InvalidQueueName,
    LsmqError,
    MessageTooLarge,
    NotEnoughReplicas,
    TooManyQueues,
    TooManySchedules,
    TopicReplaced,
    UnknownQueue,
    UnknownSchedule,
    UnknownTopic,
)
from lsmq.messages import priority_value
from lsmq.record_batch import Flag, RecordBatch, encode_header
from lsmq_node.rights import Action, ResourceKind
from lsmq_node.schedules import Schedule
from lsmq_node.schedules.cron import Cron, zone_to_keep
from lsmq_node.storage.later_names import with_names

from . import schedule_schemas as schemas
from .codec import Format, answer, answer_format
from .pages import LIMIT
from .produce import Packer
from .rendering import RENDERED_TIMES, render_message
from .routing import Call, Content, Parameter, Routes
from .schema import text

ROUTES = Routes("schedules")
_ERRORS = (UnknownTopic, TopicReplaced)
#: What a message is called by who packs several.
_FIRST = "messages[0]"
#: Of so many shards a page of all topics' is made at most, one after another.
_SHARDS_A_PAGE = 64
_NAME = Parameter("name", schemas.NAME, "Name of the schedule.")


@ROUTES.put(
    "/v1/topics/{topic}/schedules/{name}",
    Content("In place of the one of this name; durable.", schemas.SCHEDULE),
    Content("Made; durable.", schemas.SCHEDULE, status=201),
    parameters=(_NAME,),
    request=Content("When, and what.", schemas.PUT),
    errors=(
        *_ERRORS,
        UnknownQueue,
        InvalidQueueName,
        MessageTooLarge,
        TooManyQueues,
        TooManySchedules,
        DocumentsFull,
        NotEnoughReplicas,
    ),
)
async def put_schedule(call: Call) -> web.StreamResponse:
    """Have a message sent again and again.

    All go to one queue: what the message says, or its key; else to one of the topic's. Where queues are named it must
    say one, which is made again where it is gone.
    """
    topic, name = await call.topic(), call.path("name")
    document = await call.checked_document()
    cron, zone = Cron.parse(document["cron"]), zone_to_keep(document["tz"])
    packer = Packer(call.broker, topic)
    try:
        packer.add(0, document["message"])
    except LsmqError as error:
        told = {name: value.replace(_FIRST, "message") for name, value in error.details.items() if name == "field"}
        raise type(error)(error.message.replace(_FIRST, "message"), **{**error.details, **told}) from error
    (part,) = packer.parts.values()
    packed = part.builder.build()
    now_ms = part.now_ms
    schedule = Schedule(
        topic.id,
        name,
        document["cron"],
        document["tz"],
        next(iter(part.names), part.builder.queues[0]),
        packed,
        now_ms,
        cron.next_ms(now_ms, zone),
    )
    due = RecordBatch(schedule.due(1), verify=False)
    call.broker.admission.message_sizes(topic, with_names(due, list(part.names)) if topic.named else due)
    known = await call.node.schedules.put(topic, schedule)
    return answer(call.request, _described(schedule, answer_format(call.request)), status=200 if known else 201)


@ROUTES.get(
    "/v1/topics/{topic}/schedules",
    Content("By name.", schemas.SCHEDULES),
    parameters=(
        Parameter("after", schemas.NAME, "Go on behind this name."),
        Parameter("max", schemas.MAX, "At most this many."),
    ),
    errors=_ERRORS,
)
async def list_schedules(call: Call) -> web.StreamResponse:
    """List the schedules of a topic."""
    topic, limit = await call.topic(), call.query["max"]
    found = await call.node.schedules.some(topic, call.query["after"] or "", limit)
    call.hold.resize_made(RENDERED_TIMES * sum(len(each.batch) for each in found))
    form = answer_format(call.request)
    document = {
        "schedules": [_described(each, form) for each in found],
        "next": found[-1].name if len(found) == limit else None,
    }
    return answer(call.request, document)


@ROUTES.get(
    "/v1/schedules",
    Content(
        "By shard. A page may be short, or empty, where `next` says that there may be more.", schemas.ALL_SCHEDULES
    ),
    parameters=(
        Parameter(
            "after", text(pattern="([0-9]{1,4}/.{0,300})?", default=""), "Go on behind: `next` of the page before."
        ),
        LIMIT,
    ),
)
async def list_all_schedules(call: Call) -> web.StreamResponse:
    """List the schedules of all topics.

    Of those topics alone that the caller may read; others with schedules that he may know of are named.
    """
    topics = {topic.id: topic.name for topic in await call.broker.topics()}
    sees, shards, limit = call.asker.sees, call.broker.topology.shard_count, call.query["limit"]
    first, _, after = call.query["after"].partition("/")
    found: list[Schedule] = []
    following: str | None = None
    for shard in range(int(first or 0), min(int(first or 0) + _SHARDS_A_PAGE, shards)):
        some = await call.node.schedules.of_all_topics(shard, after, limit - len(found))
        found, after = found + some, ""
        following = f"{shard + 1}/" if shard + 1 < shards else None
        if len(found) >= limit:
            following = f"{shard}/{found[-1].key}"
            break
    known = [(topics[each.topic_id], each) for each in found if each.topic_id in topics]
    readable = {name for name, _ in known if sees(ResourceKind.TOPIC, name, Action.READ)}
    hidden = {name for name, _ in known if name not in readable and sees(ResourceKind.TOPIC, name)}
    shown = [(name, each) for name, each in known if name in readable]
    call.hold.resize_made(RENDERED_TIMES * sum(len(each.batch) for each in found))
    form = answer_format(call.request)
    listed = [{"topic": name, **_described(each, form)} for name, each in shown]
    return answer(call.request, {"schedules": listed, "not_readable": sorted(hidden), "next": following})


@ROUTES.get(
    "/v1/topics/{topic}/schedules/{name}",
    Content("The schedule.", schemas.SCHEDULE),
    parameters=(_NAME,),
    errors=(*_ERRORS, UnknownSchedule),
)
async def get_schedule(call: Call) -> web.StreamResponse:
    """Look at a schedule: when it is due next, and how often it was."""
    topic = await call.topic()
    found = await call.node.schedules.get(topic, call.path("name"))
    return answer(call.request, _described(found, answer_format(call.request)))


@ROUTES.delete(
    "/v1/topics/{topic}/schedules/{name}",
    Content("Deleted, durably; a message that is due within a second may still come.", status=204),
    parameters=(_NAME,),
    errors=(*_ERRORS, UnknownSchedule, NotEnoughReplicas),
)
async def delete_schedule(call: Call) -> web.StreamResponse:
    """Delete a schedule."""
    await call.node.schedules.delete(await call.topic(), call.path("name"))
    return web.Response(status=204)


def _described(schedule: Schedule, form: Format) -> dict[str, Any]:
    found = schedule.message()
    header = encode_header(found.key, found.tag, found.properties, found.headers, found.type)
    flags, ranked = int(Flag.DELETE) if found.delete else 0, priority_value(found.priority, found.subpriority)
    message = render_message(schedule.topic_id, 0, 0, header, found.body, ranked, 0, flags, form)
    message["queue"] = schedule.queue
    if schedule.ttl_ms:
        message["ttl_ms"] = schedule.ttl_ms
    return {
        "name": schedule.name,
        "cron": schedule.cron,
        "tz": schedule.tz,
        "queue": schedule.queue,
        "created_ms": schedule.created_ms,
        "next_ms": schedule.next_ms,
        "last_ms": schedule.last_ms,
        "count": schedule.count,
        "message": {name: value for name, value in message.items() if name not in ("offset", "id", "stored_ms")},
    }
