"""Having a group go on from somewhere else: what that changes, shown before, and done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from lsmq.errors import (
    GroupHasMembers,
    GroupModeMismatch,
    InvalidRequest,
    NotLeader,
    TopicReplaced,
    UnknownQueue,
    UnknownTopic,
)
from lsmq_node.broker.requests import ReadStart
from lsmq_node.groups.ranges import RangePairs, normal
from lsmq_node.groups.resets import Cursor, Moves, ResetTo, next_moves
from lsmq_node.storage import StoredTopic

from . import group_schemas
from .codec import answer
from .offsets import GROUP, check_offsets, parse_runs, reset_offsets
from .routing import TOPIC, Call, Content, Parameter, Routes

#: Queues whose offset changes, so many of them, are shown one by one.
_SHOWN: Final = 100
_WHERE: Final = tuple(
    Parameter(name, schema, schema["description"]) for name, schema in group_schemas.RESET_WHERE.items()
)
_ERRORS: Final = (UnknownTopic, TopicReplaced, UnknownQueue, GroupModeMismatch, NotLeader)

ROUTES = Routes("groups")


@ROUTES.get(
    "/v1/groups/{group}/reset",
    Content("What would change.", group_schemas.RESET_ANSWER),
    parameters=(GROUP, TOPIC, *_WHERE),
    errors=_ERRORS,
)
async def preview_reset(call: Call) -> web.StreamResponse:
    """See what a reset would change, queue by queue and in sum.

    As the reset itself, in several requests.
    """
    group, topic = call.path("group"), await call.topic(call.query["topic"])
    return await _answer(call, topic, *await _moves(call, group, topic, call.query))


@ROUTES.post(
    "/v1/groups/{group}/reset",
    Content("What has changed, durably.", group_schemas.RESET_ANSWER),
    parameters=(GROUP,),
    request=Content("Where to.", group_schemas.RESET),
    errors=(*_ERRORS, GroupHasMembers),
)
async def reset_group(call: Call) -> web.StreamResponse:
    """Have a group go on from somewhere else.

    At any node, for all shards. It takes several requests, each for some queues of one shard: until `next` is null.
    Queues that nothing was ever sent to are left alone. Members that live go on from where they are until they are
    started again.
    """
    group, document = call.path("group"), await call.checked_document()
    topic = await call.topic(document["topic"])
    if not document["force"]:
        await call.node.groups.check_no_members(group)
    moves, following = await _moves(call, group, topic, document)
    if len(moves.queues):
        await reset_offsets(call, group, topic, moves.queues, moves.to)
    return await _answer(call, topic, moves, following)


async def _moves(call: Call, group: str, topic: StoredTopic, given: Mapping[str, Any]) -> tuple[Moves, Cursor | None]:
    await check_offsets(call, group, topic)
    end, offset, time_ms = (given.get(name) for name in ("to", "offset", "time_ms"))
    if sum(each is not None for each in (end, offset, time_ms)) != 1:
        raise InvalidRequest("say where to: one of to, offset and time_ms", field="to")
    shard, row = (given.get("after") or "0:0").split(":")
    only = None if given.get("queues") is None else _only(call, topic, given["queues"])
    to = ResetTo(None if end is None else ReadStart(end), offset, time_ms)
    return await next_moves(call.broker, group, topic, to, only, (int(shard), int(row)))


def _only(call: Call, topic: StoredTopic, queues: str) -> RangePairs:
    if topic.named:
        raise InvalidRequest(
            f"queues is given, and topic {topic.name!r} has named queues: leave it out, or set single ones with 'lsmq "
            "group reset --queue NAME'",
            field="queues",
        )
    ranges = normal(parse_runs(queues, "queues"))
    call.broker.admission.queue(topic, ranges[-1][1] - 1)
    return ranges


async def _answer(call: Call, topic: StoredTopic, moves: Moves, following: Cursor | None) -> web.StreamResponse:
    numbers = moves.queues[:_SHOWN].tolist()
    called = await call.broker.names.names_of(topic, numbers) if topic.named else {}
    columns = (moves.earliest, moves.latest, moves.committed, moves.to)
    rows = zip(numbers, *(column[:_SHOWN].tolist() for column in columns), strict=True)
    return answer(
        call.request,
        {
            "queues": len(moves.queues),
            "read_again": moves.read_again,
            "skipped": moves.skipped,
            "moves": [
                {
                    "queue": called[queue].name if queue in called else queue,
                    "earliest": earliest,
                    "latest": latest,
                    "committed": None if committed < 0 else committed,
                    "to": to,
                }
                for queue, earliest, latest, committed, to in rows
            ],
            "next": None if following is None else "{}:{}".format(*following),
        },
    )
