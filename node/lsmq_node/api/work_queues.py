"""Work queues: pop, and settle what was popped. See docs/work-queues.md."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from operator import itemgetter
from typing import Any, Final
from urllib.parse import quote

from aiohttp import web
from yarl import URL

from lsmq.errors import (
    DocumentsFull,
    GroupModeMismatch,
    InvalidFilter,
    InvalidRequest,
    InvalidTopicName,
    NotEnoughReplicas,
    NotLeader,
    TooManyFilters,
    TooManyGroups,
    TopicReplaced,
    UnknownGroup,
    UnknownTopic,
)
from lsmq.record_batch import message_id
from lsmq_node.config import Forward
from lsmq_node.rights import Action, ResourceKind
from lsmq_node.storage import StoredTopic
from lsmq_node.workers import LARGE_BYTES
from lsmq_node.workqueue import Refusal
from lsmq_node.workqueue.receipts import DeliveryReceipt, encode_receipt, group_hash
from lsmq_node.workqueue.service import PlacedReceipts
from lsmq_node.workqueue.settings import Order
from lsmq_node.workqueue.shard_work import ShardWork, ShardWorkState, WorkDelivery

from . import work_schemas as schemas
from .codec import Format, answer, answer_format, encode
from .filters import filter_of
from .forwarding import ShardPart, asked_at_leader, each_at_leader, is_split
from .rendering import RENDERED_TIMES, render_message
from .routing import TOPIC, Call, Content, Parameter, Routes
from .schema import integer, text

#: So many small messages are packed within a millisecond or two.
_MANY_MESSAGES = 200
_MOST_HELD: Final = 1_000

_MESSAGES = {
    Refusal.EXPIRED: "the delivery is over: its visibility ended, it was given back, the group was deleted, or another "
    "leader has delivered the message anew, which may be with another consumer by now",
    Refusal.UNKNOWN: "this is no receipt of this group and topic",
}

How = Callable[[DeliveryReceipt, int], Refusal | None]

ROUTES = Routes("work")
_ERRORS = (UnknownTopic, TopicReplaced, NotLeader, GroupModeMismatch, NotEnoughReplicas, DocumentsFull)
_SETTLED = Content("What became of the receipts; durable.", schemas.SETTLED)
_SHARD = Parameter("shard", integer(0, 1_023), "This shard alone.")
_DESCRIBED = Content("Of the shards meant.", schemas.WORK_QUEUE)


@ROUTES.post(
    "/v1/groups/{group}/pop",
    Content("Hidden from others until they are settled, or their visibility ends.", schemas.POPPED),
    request=Content("How many, and how long to wait for them.", schemas.POP),
    errors=(*_ERRORS, InvalidFilter, TooManyFilters, TooManyGroups),
)
async def pop_messages(call: Call) -> web.StreamResponse:
    """Take messages to work on.

    Of the topic's shards that the node leads, unless others are named; `other_leaders` lead the rest, and are to be
    asked as well. Costs what it returns, not the queues there are. The first pop makes the group, with the mode
    `work_queue`. With `tag`, `type` or `filter` it takes only what that picks, and looks at about
    160,000 messages at most; what it does not pick stays for others.
    """
    group, document = call.path("group"), await call.checked_document()
    topic = await call.topic(document["topic"])
    service, request = call.node.work, call.request
    shards = service.wanted(topic, document.get("shards"))
    if call.forward is not Forward.REFUSE and len(service.leaders(shards)) > 1:
        raise InvalidRequest(
            f"shards names {', '.join(map(str, shards))}, which several nodes lead; pop from those of one node: the "
            "topic's routes say who leads which",
            field="shards",
        )
    found = await service.pop(
        group,
        topic,
        shards,
        limit=document["max"],
        max_bytes=document["max_bytes"],
        visibility_ms=document.get("visibility_ms"),
        wait_ms=document["wait_ms"],
        order=Order(document["order"]) if "order" in document else None,
        wanted=filter_of(document),
        gone=lambda: request.transport is None or request.transport.is_closing(),
        hold=call.hold,
    )
    try:
        others = set() if "shards" in document else service.leaders(service.holding(topic), others=True)
        popped = await _popped(call, topic, group, found, {"other_leaders": sorted(others)} if others else {})
        call.asker.check_again()  # Who may not any more is not given it.
        return popped
    except BaseException:
        service.take_back(group, topic, found)
        raise


async def _popped(
    call: Call, topic: StoredTopic, group: str, found: list[WorkDelivery], besides: Mapping[str, Any]
) -> web.StreamResponse:
    names: Mapping[int, str] = {}
    if topic.named:
        # A delivery of a queue that was deleted meanwhile has no message any more.
        named = await call.broker.names.names_of(topic, (delivery.record.queue for delivery in found))
        found = [
            delivery
            for delivery in found
            if delivery.record.queue in named and delivery.record.offset >= named[delivery.record.queue].earliest
        ]
        names = {queue: each.name for queue, each in named.items()}
    form, owner = answer_format(call.request), group_hash(group)
    size = sum(delivery.record.size_bytes for delivery in found)
    call.hold.resize_made(RENDERED_TIMES * size)

    def pack() -> bytes:
        messages = [_message(topic, owner, delivery, form, names) for delivery in found]
        return encode({"messages": messages, **besides}, form)

    body = await call.workers.run(pack, large=size >= LARGE_BYTES or len(found) >= _MANY_MESSAGES)
    return web.Response(body=body, headers={"Content-Type": form.value})


def _message(
    topic: StoredTopic, owner: int, delivery: WorkDelivery, form: Format, names: Mapping[int, str]
) -> dict[str, Any]:
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
        record.expires_ms,
    )
    if names:
        message["queue"] = names[record.queue]
    message["shard"] = delivery.shard
    message["receipt"] = encode_receipt(receipt, owner, topic.id)
    message["deliveries"] = receipt.count
    message["visibility_ms"] = delivery.visibility_ms
    return message


async def _settle(call: Call, document: dict[str, Any], how: Callable[[ShardWork], How]) -> web.StreamResponse:
    """At the leader of each receipt's shard."""
    group, topic = call.path("group"), await call.topic(document["topic"])
    work, texts = call.node.work, document["receipts"]
    placed = work.receipts(group, topic, texts)

    async def settled(some: PlacedReceipts) -> list[dict[str, Any]]:
        refusals = await work.settle(group, topic, some, how)
        return [_refused(place, refusal) for place, refusal in refusals.items() if refusal is not None]

    def part(shard: int) -> ShardPart:
        places = list(placed[shard])

        async def here() -> dict[str, Any]:
            refused = await settled({shard: placed[shard]})
            return {"refused": [{**each, "index": places.index(each["index"])} for each in refused]}

        some = {**document, "receipts": [texts[place] for place in places]}
        return ShardPart(shard, here, lambda: encode(some, Format.MSGPACK))

    known = {place for some in placed.values() for place in some}
    refused = [_refused(place, Refusal.UNKNOWN) for place in range(len(texts)) if place not in known]
    if is_split(call, placed):
        answers = await each_at_leader(call, [part(shard) for shard in placed])
        for places, found in zip(map(list, placed.values()), answers, strict=True):
            refused += [{**each, "index": places[each["index"]]} for each in found["refused"]]
    else:
        refused += await settled(placed)
    refused.sort(key=itemgetter("index"))
    return answer(call.request, {"done": len(texts) - len(refused), "refused": refused})


def _refused(place: int, refusal: Refusal) -> dict[str, Any]:
    return {"index": place, "code": refusal.value, "message": _MESSAGES[refusal]}


@ROUTES.post("/v1/groups/{group}/ack", _SETTLED, request=Content("The receipts.", schemas.ACK), errors=_ERRORS)
async def ack_messages(call: Call) -> web.StreamResponse:
    """Messages are done.

    They never come again.
    """
    return await _settle(call, await call.checked_document(), lambda work: work.ledger.ack)


@ROUTES.post("/v1/groups/{group}/nack", _SETTLED, request=Content("The receipts.", schemas.NACK), errors=_ERRORS)
async def nack_messages(call: Call) -> web.StreamResponse:
    """Messages are to be delivered again.

    After a delay that doubles with each delivery, or `delay_ms`. The last one makes a dead letter.
    """
    document = await call.checked_document()
    if document["dead_letter"] and "delay_ms" in document:
        raise InvalidRequest(
            "delay_ms is given beside dead_letter, and a dead letter is not delivered again; leave out one of the two",
            field="delay_ms",
        )
    if document["release"]:
        if document.keys() & {"delay_ms", "reason"} or document["dead_letter"]:
            raise InvalidRequest(
                "release stands alone: the delivery does not count, so it has no reason", field="release"
            )
        return await _settle(call, document, lambda work: work.ledger.release)
    given: dict[str, Any] = {
        "delay_ms": document.get("delay_ms"),
        "reason": document.get("reason", ""),
        "bury": document["dead_letter"],
    }
    return await _settle(call, document, lambda work: partial(work.ledger.nack, **given))


@ROUTES.post("/v1/groups/{group}/extend", _SETTLED, request=Content("The receipts.", schemas.EXTEND), errors=_ERRORS)
async def extend_messages(call: Call) -> web.StreamResponse:
    """Work takes longer.

    Hidden for so long from now on.
    """
    document = await call.checked_document()
    given = document.get("visibility_ms")

    def how(work: ShardWork) -> How:
        visibility_ms = work.settings.visibility_ms if given is None else given
        return partial(work.ledger.extend, visibility_ms=visibility_ms)

    return await _settle(call, document, how)


@ROUTES.put(
    "/v1/groups/{group}/work-queue",
    _DESCRIBED,
    request=Content("The settings.", schemas.CONFIGURE),
    errors=(*_ERRORS, InvalidTopicName),
)
async def configure_work_queue(call: Call) -> web.StreamResponse:
    """Say how a work queue behaves.

    In all of the topic's shards, or those named, whichever nodes lead them. What is left out: the default.
    """
    group, document = call.path("group"), await call.checked_document(filled=False)
    topic, service = await call.topic(document["topic"]), call.node.work
    given = {name: value for name, value in document.items() if name in schemas.SETTINGS_FIELDS}
    if given.get("dead_letter") is not None:  # What he refuses goes there, with what he wrote into it.
        call.asker.check(ResourceKind.TOPIC, given["dead_letter"], Action.WRITE)
    if given.get("delete_on_ack"):  # For every reader of the topic.
        call.asker.check(ResourceKind.TOPIC, topic.name, Action.DELETE)

    async def put(shards: Sequence[int]) -> dict[str, Any]:
        works = await service.configure(group, topic, shards, given)
        return _description(group, topic, [await work.state() for work in works])

    def part(shard: int) -> ShardPart:
        return ShardPart(shard, partial(put, [shard]), partial(encode, {**document, "shards": [shard]}, Format.MSGPACK))

    return answer(call.request, await _of_shards(call, topic, document.get("shards"), put, part))


@ROUTES.get(
    "/v1/groups/{group}/work-queue",
    _DESCRIBED,
    parameters=(TOPIC, _SHARD),
    errors=(*_ERRORS, UnknownGroup),
)
async def describe_work_queue(call: Call) -> web.StreamResponse:
    """How a work queue behaves, and how many messages are in which state.

    Of all of the topic's shards, whichever nodes lead them; where nobody has popped yet, all messages are new. Costs
    what their queues cost to look at.
    """
    group, topic = call.path("group"), await call.topic(call.query["topic"])
    asked = call.query["shard"]
    await _check_known(call, topic)

    async def read(shards: Sequence[int]) -> dict[str, Any]:
        return _description(group, topic, [await call.node.work.state(group, topic, shard) for shard in shards])

    def part(shard: int) -> ShardPart:
        url = call.request.rel_url.update_query(shard=str(shard))
        return ShardPart(shard, partial(read, [shard]), path=url.raw_path_qs)

    return answer(call.request, await _of_shards(call, topic, None if asked is None else [asked], read, part))


async def _of_shards(
    call: Call,
    topic: StoredTopic,
    named: Sequence[int] | None,
    here: Callable[[Sequence[int]], Awaitable[dict[str, Any]]],
    part: Callable[[int], ShardPart],
) -> dict[str, Any]:
    """A description of the shards named, or all: each as its leader has it. Who asks leaders himself is told of those
    that are led here."""
    service = call.node.work
    shards = service.wanted(topic, service.holding(topic) if named is None else named)
    if not is_split(call, shards):
        return await here(service.wanted(topic, named))
    found = await each_at_leader(call, [part(shard) for shard in shards])
    return {**found[0], "shards": [each for one in found for each in one["shards"]]}


@ROUTES.get(
    "/v1/groups/{group}/held",
    Content("Delivered, and not settled.", schemas.HELD),
    parameters=(
        TOPIC,
        _SHARD,
        Parameter("limit", integer(1, _MOST_HELD, default=100), "At most so many."),
        Parameter("after", text(pattern=r"[0-9]{1,4}\.[0-9]{1,10}\.[0-9]{1,19}"), "`next` of the answer before."),
    ),
    errors=(*_ERRORS, UnknownGroup),
)
async def list_held(call: Call) -> web.StreamResponse:
    """List messages of a work queue that somebody has, and has not settled yet.

    Of all shards, whichever nodes lead them. Each has the receipt of its delivery: whoever may take messages may settle
    those of others as well, to end what hangs. Costs what a look at all that its queues have in flight costs.
    """
    query, topic = call.query, await call.topic(call.query["topic"])
    service = call.node.work
    shards = service.wanted(topic, service.holding(topic) if query["shard"] is None else [query["shard"]])
    behind = (-1, -1, -1) if query["after"] is None else tuple(map(int, query["after"].split(".")))
    found: dict[str, Any] = {"messages": [], "next": None}
    for shard in (each for each in shards if each >= behind[0]):
        place = (behind[1], behind[2]) if shard == behind[0] else (-1, -1)
        part = await _held_in(call, topic, shard, place, query["limit"] - len(found["messages"]))
        found["messages"] += part["messages"]
        if part["next"] is not None:
            return answer(call.request, {**found, "next": part["next"]})
    if not found["messages"]:
        await _check_known(call, topic)
    return answer(call.request, found)


async def _held_in(call: Call, topic: StoredTopic, shard: int, behind: tuple[int, int], limit: int) -> dict[str, Any]:
    """Of one shard, here or at its leader. ``next`` is the last one's place where there may be more of them."""
    group, service = call.path("group"), call.node.work

    async def here() -> dict[str, Any]:
        work = await service.made(group, topic, shard)
        if work is None:  # Nobody has popped from this shard.
            return {"messages": [], "next": None}
        held = work.ledger.in_flight(behind, limit)
        last = f"{shard}.{held[-1].queue}.{held[-1].offset}" if len(held) == limit else None
        names: Mapping[int, str] = {}
        if topic.named:
            known = await call.broker.names.names_of(topic, (each.queue for each in held))
            names = {queue: each.name for queue, each in known.items()}
            held = [each for each in held if each.queue in names and each.offset >= known[each.queue].earliest]
        owner = group_hash(group)
        messages = [
            {
                "queue": names.get(each.queue, each.queue),
                "offset": each.offset,
                "id": message_id(topic.id, each.queue, each.offset),
                "shard": shard,
                "deliveries": each.count,
                "until_ms": each.expires_ms,
                "receipt": encode_receipt(each, owner, topic.id),
            }
            for each in held
        ]
        return {"messages": messages, "next": last}

    after = None if behind[0] < 0 else f"{shard}.{behind[0]}.{behind[1]}"
    wanted = {"topic": topic.name, "shard": shard, "limit": limit, "after": after}
    path = URL.build(path=f"/v1/groups/{quote(group, safe='')}/held", encoded=True).with_query(
        {name: str(value) for name, value in wanted.items() if value is not None}
    )
    return await asked_at_leader(call, shard, here, path.raw_path_qs)


async def _check_known(call: Call, topic: StoredTopic) -> None:
    """Raises ``UnknownGroup`` where no shard of the topic knows the group's work."""
    group = call.path("group")
    if not await call.node.work.is_work_queue_anywhere(group, topic):
        raise UnknownGroup(
            f"group {group!r} is no work queue on topic {topic.name!r}; the first pop makes it one", group=group
        )


def _description(group: str, topic: StoredTopic, states: Sequence[ShardWorkState]) -> dict[str, Any]:
    return {
        "group": group,
        "topic": topic.name,
        "dead_letter_topic": states[0].settings.dead_letter_topic(topic.name),
        "shards": [_shard(state) for state in states],
    }


def _shard(state: ShardWorkState) -> dict[str, Any]:
    figures = {item.name: getattr(state, item.name) for item in fields(state)}
    undelivered = state.new + state.ready + state.waiting + state.blocked
    return {**figures, "settings": state.settings.to_dict(), "undelivered": undelivered}
