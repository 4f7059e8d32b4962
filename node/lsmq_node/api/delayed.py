"""Delayed messages that are pending: listed, looked at, cancelled, put at another time."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from lsmq.errors import AlreadyDelivered, InvalidRequest, NotEnoughReplicas, TopicReplaced, UnknownMessage, UnknownTopic
from lsmq.message_times import due_time, due_value
from lsmq.record_batch import message_id
from lsmq_node.delayed import DelayedId, PendingMessage
from lsmq_node.storage import StoredTopic
from lsmq_node.storage.later_names import name_of

from . import delayed_schemas as schemas
from .codec import Format, answer, answer_format
from .rendering import RENDERED_TIMES, render_message
from .routing import Call, Content, Parameter, Routes

ROUTES = Routes("delayed")
_ERRORS = (UnknownTopic, TopicReplaced)
_ONE_ERRORS = (*_ERRORS, UnknownMessage, AlreadyDelivered)
_CHANGES = (*_ONE_ERRORS, NotEnoughReplicas)


@ROUTES.get(
    "/v1/topics/{topic}/delayed",
    Content("Messages in the order in which they are due.", schemas.PENDING),
    parameters=(
        Parameter("after", schemas.ID, "Go on behind here: `next` of the answer before."),
        Parameter("max", schemas.MAX, "At most this many."),
    ),
    errors=(*_ERRORS, UnknownMessage),
)
async def list_delayed(call: Call) -> web.StreamResponse:
    """List messages of a topic that are not due yet.

    Those due next come first. There may be fewer than `max`, and more behind them: `next` is null at the end.
    """
    topic, given = await call.topic(), call.query["after"]
    after = None if given is None else _id(call, given)
    found, reached = await call.node.delayed.pending(topic, after, call.query["max"])
    call.hold.resize_made(RENDERED_TIMES * sum(len(each.record) for _, each in found))
    form = answer_format(call.request)
    messages = [_rendered(topic, shard, each, form) for shard, each in found]
    return answer(call.request, {"messages": messages, "next": None if reached is None else str(reached)})


@ROUTES.get("/v1/topics/{topic}/delayed/{id}", Content("The message.", schemas.DELAYED_MESSAGE), errors=_ONE_ERRORS)
async def get_delayed(call: Call) -> web.StreamResponse:
    """Look at a message that is not due yet."""
    topic, id = await call.topic(), _id(call, call.path("id"))
    found = await call.node.delayed.get(topic, id)
    return answer(call.request, _rendered(topic, id.shard, found, answer_format(call.request)))


@ROUTES.delete("/v1/topics/{topic}/delayed/{id}", Content("Cancelled, durably.", schemas.CANCELLED), errors=_CHANGES)
async def cancel_delayed(call: Call) -> web.StreamResponse:
    """Cancel a message that is not due yet.

    It never comes. One that came before is answered with 409.
    """
    topic, id = await call.topic(), _id(call, call.path("id"))
    await call.node.delayed.cancel(topic, id)
    return answer(call.request, {"cancelled": str(id)})


@ROUTES.put(
    "/v1/topics/{topic}/delayed/{id}",
    Content("At another time, under another id, durably.", schemas.RESCHEDULED),
    request=Content("When it is to come.", schemas.RESCHEDULE),
    errors=_CHANGES,
)
async def reschedule_delayed(call: Call) -> web.StreamResponse:
    """Put a message that is not due yet at another time.

    The message has the id of the answer from then on: an id says when a message is due.
    """
    topic, id = await call.topic(), _id(call, call.path("id"))
    document: dict[str, Any] = await call.checked_document(filled=False)
    if not document.keys() & {"delay_ms", "deliver_at_ms"}:
        raise InvalidRequest("neither delay_ms nor deliver_at_ms is given; say when it is to come", field="delay_ms")
    now_ms = call.broker.admission.present_ms(id.shard)
    value = due_value(document.get("delay_ms"), document.get("deliver_at_ms"), now_ms)
    moved = await call.node.delayed.reschedule(topic, id, value or 1)
    queue = moved.queue if moved.name is None else moved.name
    due_ms = due_time(value or 1, moved.stored_ms)
    if due_ms:
        again = DelayedId(id.shard, due_ms, moved.offset)
        return answer(call.request, {"queue": queue, "offset": None, "id": str(again), "due_ms": due_ms})
    own = message_id(topic.id, moved.queue, moved.offset)
    return answer(call.request, {"queue": queue, "offset": moved.offset, "id": own})


def _id(call: Call, text: str) -> DelayedId:
    return DelayedId.parse(text, call.broker.topology.shard_count)


def _rendered(topic: StoredTopic, shard: int, found: PendingMessage, form: Format) -> dict[str, Any]:
    header, body = found.record[: found.header_length], found.record[found.header_length :]
    rest = found.priority, found.stored_ms, found.flags, form
    message = render_message(topic.id, found.queue, 0, header, body, *rest, found.expires_ms)
    if topic.named:
        message["queue"] = name_of(header)
    due_ms, offset = found.place
    return {**message, "offset": None, "id": str(DelayedId(shard, due_ms, offset)), "due_ms": due_ms}
