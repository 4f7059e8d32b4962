"""Work queues: pop, and settle what was popped. See docs/work-queues.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from aiohttp import web

from lsmq.errors import (
    DocumentsFull,
    GroupModeMismatch,
    InvalidRequest,
    NotEnoughReplicas,
    NotLeader,
    TopicReplaced,
    UnknownGroup,
    UnknownTopic,
)
from lsmq_node.config import NodeConfig
from lsmq_node.storage import Topic
from lsmq_node.workqueue import Refusal, WorkService
from lsmq_node.workqueue.receipts import Receipt, encode_receipt, group_hash
from lsmq_node.workqueue.shard_work import Delivery, ShardWork

from . import work_schemas as schemas
from .codec import Format, answer, answer_format, encode
from .rendering import RENDERED_TIMES, render_message
from .routing import Call, Content, Parameter, Route, path_parameters
from .workers import LARGE_BYTES

#: So many small messages are packed within a millisecond or two.
_MANY_MESSAGES = 200
WORK_KEY = web.AppKey("work", WorkService)

_MESSAGES = {
    Refusal.EXPIRED: "the delivery is over: its visibility ended, or it was given back; the message may be with "
    "another consumer by now",
    Refusal.UNKNOWN: "this is no receipt of this group and topic",
}

How = Callable[[Receipt, int], Refusal | None]


async def pop(call: Call) -> web.StreamResponse:
    """POST /v1/groups/{group}/pop"""
    group, document = call.path("group"), await call.checked_document()
    topic, config = await call.topic(document["topic"]), call.broker.config
    service, request = call.request.app[WORK_KEY], call.request
    found = await service.pop(
        group,
        topic,
        service.wanted(topic, document.get("shards")),
        limit=document.get("max", min(schemas.DEFAULT_MESSAGES, config.max_messages_per_request)),
        max_bytes=document.get("max_bytes", min(schemas.DEFAULT_BYTES, config.max_response_bytes)),
        visibility_ms=document.get("visibility_ms"),
        wait_ms=document.get("wait_ms", 0),
        gone=lambda: request.transport is None or request.transport.is_closing(),
        hold=call.hold,
    )
    form, owner = answer_format(request), group_hash(group)
    size = sum(delivery.record.size_bytes for delivery in found)
    call.hold.resize_made(RENDERED_TIMES * size)

    def pack() -> bytes:
        return encode({"messages": [_message(topic, owner, delivery, form) for delivery in found]}, form)

    body = await call.workers.run(pack, large=size >= LARGE_BYTES or len(found) >= _MANY_MESSAGES)
    return web.Response(body=body, headers={"Content-Type": form.value})


def _message(topic: Topic, owner: int, delivery: Delivery, form: Format) -> dict[str, Any]:
    record, receipt = delivery.record, delivery.receipt
    message = render_message(
        topic.id,
        record.queue,
        record.offset,
        record.header,
        record.body,
        record.priority,
        record.stored_ms,
        record.flags,
        form,
    )
    message["shard"] = delivery.shard
    message["receipt"] = encode_receipt(receipt, owner, topic.id)
    message["deliveries"] = receipt.count
    message["visibility_ms"] = delivery.visibility_ms
    return message


async def _settle(call: Call, document: dict[str, Any], how: Callable[[ShardWork], How]) -> web.StreamResponse:
    topic = await call.topic(document["topic"])
    refusals = await call.request.app[WORK_KEY].settle(call.path("group"), topic, document["receipts"], how)
    refused = [
        {"index": index, "code": refusal.value, "message": _MESSAGES[refusal]}
        for index, refusal in enumerate(refusals)
        if refusal is not None
    ]
    return answer(call.request, {"done": len(refusals) - len(refused), "refused": refused})


async def ack(call: Call) -> web.StreamResponse:
    """POST /v1/groups/{group}/ack"""
    return await _settle(call, await call.checked_document(), lambda work: work.ledger.ack)


async def nack(call: Call) -> web.StreamResponse:
    """POST /v1/groups/{group}/nack"""
    document = await call.checked_document()
    if document.get("release", False):
        if document.keys() & {"delay_ms", "reason", "dead_letter"}:
            raise InvalidRequest(
                "release stands alone: the delivery does not count, so it has no reason", field="release"
            )
        return await _settle(call, document, lambda work: work.ledger.release)
    given: dict[str, Any] = {
        "delay_ms": document.get("delay_ms"),
        "reason": document.get("reason", ""),
        "bury": document.get("dead_letter", False),
    }
    return await _settle(call, document, lambda work: partial(work.ledger.nack, **given))


async def extend(call: Call) -> web.StreamResponse:
    """POST /v1/groups/{group}/extend"""
    document = await call.checked_document()
    given = document.get("visibility_ms")

    def how(work: ShardWork) -> How:
        visibility_ms = work.settings.visibility_ms if given is None else given
        return partial(work.ledger.extend, visibility_ms=visibility_ms)

    return await _settle(call, document, how)


async def configure(call: Call) -> web.StreamResponse:
    """PUT /v1/groups/{group}/work-queue"""
    group, document = call.path("group"), await call.checked_document()
    topic, service = await call.topic(document["topic"]), call.request.app[WORK_KEY]
    given = {name: value for name, value in document.items() if name in schemas.SETTINGS_FIELDS}
    works = await service.configure(group, topic, service.wanted(topic, document.get("shards")), given)
    return answer(call.request, await _description(group, topic, works))


async def describe(call: Call) -> web.StreamResponse:
    """GET /v1/groups/{group}/work-queue"""
    group, topic = call.path("group"), await call.topic(call.query["topic"])
    service = call.request.app[WORK_KEY]
    shards = service.wanted(topic, None)
    if not service.is_work_queue(group, topic):
        raise UnknownGroup(
            f"group {group!r} is no work queue on topic {topic.name!r}; the first pop makes it one", group=group
        )
    works = [await service.work(group, topic, shard) for shard in shards]
    return answer(call.request, await _description(group, topic, works))


async def _description(group: str, topic: Topic, works: list[ShardWork]) -> dict[str, Any]:
    return {
        "group": group,
        "topic": topic.name,
        "dead_letter_topic": works[0].settings.dead_letter_topic(topic.name),
        "shards": [await _shard(work) for work in works],
    }


async def _shard(work: ShardWork) -> dict[str, Any]:
    new = await work.count_new()
    figures = work.figures()
    return {
        "shard": work.port.number,
        "settings": asdict(work.settings),
        **figures,
        "new": new,
        "undelivered": new + figures["ready"] + figures["waiting"],
    }


def routes(config: NodeConfig) -> tuple[Route, ...]:
    """The routes of this module."""
    group = path_parameters("group")
    topic = Parameter("topic", "query", {"type": "string"}, "Name of the topic.", required=True)
    errors = (UnknownTopic, TopicReplaced, NotLeader, GroupModeMismatch, NotEnoughReplicas, DocumentsFull)
    settled = Content("What became of the receipts; durable.", schemas.SETTLED)
    described = Content("Of the shards meant.", schemas.WORK_QUEUE)

    def settling(name: str, summary: str, handler: Any, schema: Any, description: str) -> Route:
        return Route(
            "POST",
            f"/v1/groups/{{group}}/{name}",
            f"{name}Messages",
            "work",
            summary,
            handler,
            {200: settled},
            description=f"At the leader of the queues' shards. {description}",
            parameters=group,
            request=Content("The receipts.", schema),
            errors=errors,
        )

    return (
        Route(
            "POST",
            "/v1/groups/{group}/pop",
            "popMessages",
            "work",
            "Take messages to work on",
            pop,
            {200: Content("Hidden from others until they are settled, or their visibility ends.", schemas.POPPED)},
            description="At the leaders of the topic's shards. Costs what it returns, not the queues there are. The "
            "first pop makes the group, with the mode `work_queue`.",
            parameters=group,
            request=Content("How many, and how long to wait for them.", schemas.pop(config)),
            errors=errors,
        ),
        settling("ack", "Messages are done", ack, schemas.settle(config), "They never come again."),
        settling(
            "nack",
            "Messages are to be delivered again",
            nack,
            schemas.nack(config),
            "After a delay that doubles with each delivery, or `delay_ms`. The last one makes a dead letter.",
        ),
        settling("extend", "Work takes longer", extend, schemas.extend(config), "Hidden for so long from now on."),
        Route(
            "PUT",
            "/v1/groups/{group}/work-queue",
            "configureWorkQueue",
            "work",
            "Say how a work queue behaves",
            configure,
            {200: described},
            description="At the leaders of the topic's shards, each of which keeps it. What is left out: the default.",
            parameters=group,
            request=Content("The settings.", schemas.CONFIGURE),
            errors=errors,
        ),
        Route(
            "GET",
            "/v1/groups/{group}/work-queue",
            "describeWorkQueue",
            "work",
            "How a work queue behaves, and how many messages are in which state",
            describe,
            {200: described},
            description="Of the topic's shards that the node leads. Costs what their queues cost to look at.",
            parameters=(*group, topic),
            errors=(*errors, UnknownGroup),
        ),
    )
