"""What groups have committed, how far behind they are, and who may commit. It lies where the queues lie."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict

import numpy as np
from aiohttp import web
from numpy.typing import NDArray

from lsmq import runtime
from lsmq.errors import (
    ConnectionFailed,
    FencedMember,
    GroupHasMembers,
    GroupModeMismatch,
    InvalidRequest,
    NotLeader,
    OffsetOutOfRange,
    StaleGeneration,
    TooManyGroups,
    TopicReplaced,
    Unavailable,
    UnknownMember,
    UnknownQueue,
    UnknownTopic,
)
from lsmq_node.broker.loop_work import to_its_end
from lsmq_node.groups import Mode
from lsmq_node.groups.ranges import RangePairs, intersect, normal, parse
from lsmq_node.monitoring import EVERY_S
from lsmq_node.rights import Action, ResourceKind
from lsmq_node.storage import StoredTopic

from . import group_schemas, schemas
from .arrays import is_number, parse_ranges
from .codec import Format, answer, answer_format
from .forwarding import ShardPart, each_at_leader, is_split
from .many_queues import QueueColumns, read_queues, write_queues
from .routing import QUEUES, TOPIC, Call, Content, Parameter, Routes
from .schema import integer, text

_MAX_RANGES = 1_000

#: A member of a broadcast group has offsets of its own, under the group's name and its own.
GROUP = Parameter(
    "group",
    text(
        "A group's name has 1 to 249 letters, digits, dots, underscores and hyphens, and is neither '.' nor '..'",
        pattern=r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}(/[A-Za-z0-9._:-]{1,100})?",
    ),
    "Name of the consumer group; of a broadcast group with `/` (as `%2F`) and the member's static id.",
)

ROUTES = Routes("groups")
_RANGES = Parameter("ranges", text(), "Such as `0-99,200`. Without it, all queues.")
_SLOTS = Parameter(
    "slots", text(), "Of a named topic, in place of `queues`: those whose names lie in slots such as `0-99`."
)
_SHARD = Parameter("shard", integer(0, 1_023), "Number of the shard.", required=True)


@ROUTES.post(
    "/v1/groups/{group}/offsets",
    Content("Stored, as durably as messages.", schemas.COMMIT_ANSWER),
    parameters=(GROUP,),
    request=Content("The next offset to read of each queue.", group_schemas.COMMIT),
    errors=(
        UnknownTopic,
        TopicReplaced,
        UnknownQueue,
        StaleGeneration,
        UnknownMember,
        FencedMember,
        GroupHasMembers,
        GroupModeMismatch,
        OffsetOutOfRange,
        TooManyGroups,
        NotLeader,
    ),
)
async def commit_offsets(call: Call) -> web.StreamResponse:
    """Commit offsets of a group.

    With `member` and `epoch`: for queues that the group has given to this member. Without: for a group whose
    members do not live, or with `reset`.
    """
    group = call.path("group")
    document = await call.checked_document()
    topic = await call.topic(document["topic"])
    if document["reset"]:
        call.asker.check(ResourceKind.GROUP, group.partition("/")[0], Action.ALTER)
    queues, offsets = await call.queue_offsets(document)
    member = document.get("member")
    await check_offsets(call, group, topic, member)
    if (member is None) != (document.get("epoch") is None):
        raise InvalidRequest("member and epoch come together: the generation the member has heard of", field="epoch")
    call.broker.admission.queues(topic, queues)
    epoch = document.get("epoch") or 0

    async def commit(some: NDArray[np.uint32], at: NDArray[np.int64]) -> None:
        if document["reset"]:
            await reset_offsets(call, group, topic, some, at, member, epoch)
        else:
            call.node.push.committing(group, topic, reset=False)
            await call.node.groups.commit(group, topic, some, at, reset=False, member=member, epoch=epoch)

    await write_queues(call, topic, document, (queues, offsets), commit)
    return answer(call.request, {"committed": len(queues)})


async def check_offsets(call: Call, group: str, topic: StoredTopic, member: str | None = None) -> None:
    """Raises ``GroupModeMismatch`` for a group that has none on the topic.

    One with members, or that has committed in the topic before, does not work on it; of others those are asked who may
    know.
    """
    work = call.node.work
    works = work.is_work_queue(group, topic)
    if not works and member is None and topic.id not in call.node.groups.topics_of(group):
        with suppress(Unavailable, ConnectionFailed):  # Who commits does not wait for a shard that is not his.
            works = await work.is_work_queue_anywhere(group, topic)
    if works:
        raise GroupModeMismatch(
            f"group {group!r} is a work queue on topic {topic.name!r}, which settles single messages: acknowledge "
            "them, or delete the group to begin anew",
            group=group,
            mode=Mode.WORK_QUEUE.value,
        )


@to_its_end
async def reset_offsets(
    call: Call,
    group: str,
    topic: StoredTopic,
    queues: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    member: str | None = None,
    epoch: int = 0,
) -> None:
    """Commit offsets that may lie before those there are. Streams that are held end, and begin again there."""
    streams = call.node.push
    streams.committing(group, topic, reset=True)
    await call.node.groups.commit(group, topic, queues, offsets, reset=True, member=member, epoch=epoch)
    streams.committing(group, topic, reset=True)  # Again: those that have begun meanwhile, at the old offsets.


@ROUTES.get(
    "/v1/groups/{group}/offsets",
    Content("Those queues that have one.", schemas.COMMITTED),
    parameters=(GROUP, TOPIC, QUEUES, _SLOTS),
    errors=(UnknownTopic, TopicReplaced, UnknownQueue),
)
async def get_committed_offsets(call: Call) -> web.StreamResponse:
    """Committed offsets of a group."""
    query = call.query
    group, topic = call.path("group"), await call.topic(query["topic"])
    if query["slots"] is not None:
        if not topic.named or query["queues"] is not None:
            raise InvalidRequest(
                "slots are of a topic whose queues have names, and stand in place of queues", field="slots"
            )
        slots = normal(parse_runs(query["slots"], "slots"))
        return await call.answer_columns(await _committed_in(call, group, topic, slots))

    async def read(some: NDArray[np.int64]) -> QueueColumns:
        queues, offsets = await call.broker.committed_offsets(group, topic, some)
        return {"queues": queues, "offsets": offsets}

    queues = parse_ranges(query["queues"] or "", topic, call.broker.admission)
    return await call.answer_columns(await read_queues(call, topic, queues, read))


async def _committed_in(call: Call, group: str, topic: StoredTopic, slots: RangePairs) -> QueueColumns:
    """Of the queues that lie in these slots, here and at the leaders of the others."""
    call.node.groups.check_ranges(topic, slots, limited=False)
    cut = [(part.shard, intersect(slots, ((part.first, part.end),))) for part in call.broker.ranges(topic)]
    parts = [(shard, own) for shard, own in cut if own]

    async def read(some: RangePairs) -> QueueColumns:
        queues, offsets = await call.node.groups.committed_in(group, topic, some)
        return {"queues": queues, "offsets": offsets}

    def part(shard: int, own: RangePairs) -> ShardPart:
        text = ",".join(f"{first}-{end - 1}" for first, end in own)
        return ShardPart(shard, lambda: read(own), path=call.request.rel_url.update_query(slots=text).raw_path_qs)

    if not is_split(call, (shard for shard, _ in parts)):
        return await read(slots)
    answers = await each_at_leader(call, [part(*each) for each in parts])
    return {name: np.concatenate([np.asarray(found[name], np.int64) for found in answers]) for name in answers[0]}


@ROUTES.delete("/v1/groups/{group}/offsets", Content("Dropped, durably.", status=204), parameters=(GROUP, _SHARD))
async def delete_offsets(call: Call) -> web.StreamResponse:
    """Drop all committed offsets of a group in one shard, and its fence."""
    shard, shards = call.query["shard"], call.broker.topology.shard_count
    if shard >= shards:
        raise InvalidRequest(f"shard is {shard}; there are {shards}, from 0", field="shard")
    await drop_offsets(call, call.path("group"), shard)
    return web.Response(status=204)


@to_its_end
async def drop_offsets(call: Call, group: str, shard: int) -> None:
    """Of a group in one shard, durably. Streams that are held end, and begin again."""
    streams, work = call.node.push, call.node.work
    streams.forgetting(group)
    await call.node.groups.forget_offsets(group, shard, lambda: work.forget(group, shard))
    streams.forgetting(group)  # Again: those that have begun meanwhile, at the old offsets.


@ROUTES.post(
    "/v1/groups/{group}/fence",
    Content("Where to go on, once no earlier commit can come any more.", group_schemas.COMMITTED),
    parameters=(GROUP,),
    request=Content("The queues and the generation they were assigned in.", group_schemas.FENCE),
    errors=(UnknownTopic, TopicReplaced, UnknownQueue, StaleGeneration, UnknownMember, FencedMember, NotLeader),
)
async def fence_group(call: Call) -> web.StreamResponse:
    """Take over queues: refuse commits of earlier generations.

    At the leader of the queues' shards, all of whose commits of the group are fenced.
    """
    group, document = call.path("group"), await call.checked_document()
    topic = await call.topic(document["topic"])
    ranges = parse(document["queues"], "queues")
    queues, offsets = await call.node.groups.fence(group, document["member"], topic, ranges, document["epoch"])
    if answer_format(call.request) is Format.MSGPACK:
        return answer(
            call.request, {"queues": queues.astype("<u4").tobytes(), "offsets": offsets.astype("<i8").tobytes()}
        )
    return await call.answer_columns({"queues": queues, "offsets": offsets})


@ROUTES.get(
    "/v1/groups/{group}/lag",
    Content("Counted at this moment.", group_schemas.LAG),
    parameters=(GROUP, TOPIC, _RANGES),
    errors=(UnknownTopic, TopicReplaced, UnknownQueue),
)
async def get_lag(call: Call) -> web.StreamResponse:
    """How far a group is behind.

    In all queues that are asked for, whichever nodes lead them. Costs what these cost to look at.
    """
    group, topic = call.path("group"), await call.topic(call.query["topic"])
    given = call.query["ranges"]
    ranges = ((0, topic.queues),) if given is None else parse_runs(given)
    lag, committed_at = await call.node.groups.lag(group, topic, ranges)
    return answer(
        call.request,
        {
            **asdict(lag),
            "last_commit_age_ms": None
            if committed_at is None
            else max(0, round(1000 * (runtime.wall_time() - committed_at))),
        },
    )


@ROUTES.get(
    "/v1/groups/{group}/lag/history",
    Content("As it was counted in the background.", group_schemas.LAG_HISTORY),
    parameters=(GROUP, TOPIC),
    errors=(
        UnknownTopic,
        TopicReplaced,
    ),
)
async def get_lag_history(call: Call) -> web.StreamResponse:
    """How far a group was behind in the last hour.

    In all shards, whichever nodes lead them: each leader remembers it in memory, for a bounded number of groups, those
    that are furthest behind and those that somebody asked for here. It begins anew with another leader.
    """
    group, topic = call.path("group"), await call.topic(call.query["topic"])
    lags = await call.node.monitoring.lag_history.of(group, topic)
    return answer(call.request, {"every_ms": round(1000 * EVERY_S), "lags": lags})


def parse_runs(given: str, field: str = "ranges") -> RangePairs:
    """``0-99,200``: both ends included; in order and disjoint, so that the answer's are the same."""
    pieces = []
    for piece in given.split(","):
        first, dash, last = piece.partition("-")
        if not is_number(first) or (dash and not is_number(last)):
            raise InvalidRequest(f"{field} has {piece[:40]!r}; it must be such as 0-99,200", field=field)
        if int(last or first) < int(first):
            raise InvalidRequest(f"{field} has the range {piece}, whose end is before its start", field=field)
        pieces.append((int(first), int(last or first) + 1))
    found = normal(pieces)
    if len(pieces) > _MAX_RANGES or sum(end - first for first, end in pieces) != sum(
        end - first for first, end in found
    ):
        raise InvalidRequest(f"{field} must be disjoint, and {_MAX_RANGES} at most", field=field)
    return tuple(sorted(pieces))
