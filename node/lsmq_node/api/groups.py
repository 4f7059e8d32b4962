"""Consumer groups: membership, and what operators see and change of it. Their offsets are in :mod:`.offsets`."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from aiohttp import web

from lsmq.errors import (
    GroupHasMembers,
    GroupModeMismatch,
    GroupPatternMismatch,
    InvalidQueueName,
    InvalidRequest,
    NotLeader,
    StaleGeneration,
    TooManyGroups,
    TooManyMembers,
    UnknownGroup,
    UnknownMember,
    UnknownTopic,
)
from lsmq.queue_names import check_pattern
from lsmq_node.groups import Beat, BeatAnswer, CoordinatedGroup, Mode
from lsmq_node.groups.group import HEARTBEATS_PER_SESSION
from lsmq_node.groups.holdings import Owned
from lsmq_node.groups.ranges import count, intersect, pairs, parse
from lsmq_node.rights import ResourceKind

from . import group_schemas as schemas
from .codec import answer
from .offsets import GROUP
from .pages import PAGE, names_page, page
from .routing import Call, Content, Parameter, Routes
from .topics import own_url

ROUTES = Routes("groups")
_FORCE = Parameter("force", {"enum": ["true", "false"], "default": "false"}, "Though members live.")
_DESCRIBED = Content("Its members and what they own, as its coordinator knows it.", schemas.GROUP)


@ROUTES.get("/v1/groups", Content("Names, and what this node coordinates.", schemas.GROUPS), parameters=PAGE)
async def list_groups(call: Call) -> web.StreamResponse:
    """Consumer groups of the shards at this node."""
    coordinated, sees = [shard.groups for shard in call.node.groups.shards()], call.asker.sees
    names, following = names_page(
        call, call.node.groups.names, lambda name: sees(ResourceKind.GROUP, name.partition("/")[0])
    )
    details = [
        {
            "group": name,
            "mode": group.mode.value,
            "state": group.state,
            "generation": group.plan.generation,
            "members": len(group.members),
            "stalled": sum(member.stalled for member in group.members.values()),
        }
        for name in names
        if (group := next((groups[name] for groups in coordinated if name in groups), None)) is not None
    ]
    return answer(call.request, {"groups": names, "details": details, "next": following})


@ROUTES.get(
    "/v1/groups/{group}/topics",
    Content("Names, in order.", schemas.TOPICS_OF_GROUP),
    parameters=(GROUP, *PAGE),
)
async def list_topics_of_group(call: Call) -> web.StreamResponse:
    """Topics that a group has committed offsets of, or works on, in the shards at this node."""
    group, sees, works = call.path("group"), call.asker.sees, call.node.work.is_work_queue
    read = call.node.groups.topics_of(group)
    topics = call.broker.topology.topics.all()
    names = [topic.name for topic in topics if topic.id in read or works(group, topic)]
    found, following = page(call, names, shows=lambda name: sees(ResourceKind.TOPIC, name))
    return answer(call.request, {"topics": found, "next": following})


@ROUTES.get(
    "/v1/groups/{group}/coordinator",
    Content("As far as this node knows: the leader of the group's shard.", schemas.COORDINATOR),
    parameters=(GROUP,),
)
async def get_coordinator(call: Call) -> web.StreamResponse:
    """Which node coordinates a group."""
    shard, leads = call.node.groups.coordinator(call.path("group"))
    url = own_url(call) if leads.here else leads.url
    return answer(call.request, {"shard": shard, "leader": url, "epoch": leads.epoch})


@ROUTES.post(
    "/v1/groups/{group}/heartbeat",
    Content("What is the member's now. Durable before it is answered.", schemas.ASSIGNMENT),
    request=Content("Who the member is, what it has read and what it owns.", schemas.HEARTBEAT),
    errors=(
        UnknownMember,
        UnknownTopic,
        StaleGeneration,
        GroupModeMismatch,
        GroupPatternMismatch,
        InvalidQueueName,
        TooManyMembers,
        TooManyGroups,
        NotLeader,
    ),
)
async def heartbeat(call: Call) -> web.StreamResponse:
    """Join a group, stay in it, leave it.

    Only at the group's coordinator. docs/groups.md describes the protocol.
    """
    name, document = call.path("group"), await call.checked_document()
    for topic in (*document["topics"], *document.get("owned", {})):
        call.asker.check_named(ResourceKind.TOPIC, topic)
    beat = _beat(call, document)
    if document["leave"]:
        await call.node.groups.leave(name, beat)
        return answer(call.request, _assignment(BeatAnswer(beat.member, beat.epoch, beat.version, 0, {}, {}, 0, True)))
    longest_ms = min(beat.session_ms // HEARTBEATS_PER_SESSION, call.broker.config.max_wait_ms)
    wait_ms = min(document["wait_ms"], longest_ms)
    return answer(call.request, _assignment(await call.node.groups.heartbeat(name, beat, wait_ms)))


def _beat(call: Call, document: dict[str, Any]) -> Beat:
    given, remote = document.get("client"), call.request.remote or ""
    pattern = document.get("pattern")
    return Beat(
        document["member"],
        tuple(document["topics"]),
        document["epoch"],
        document["version"],
        _owned(document.get("owned", {})),
        document.get("static_id"),
        document["session_ms"],
        document["stalled"],
        f"{given} ({remote})" if given else remote,
        Mode(document["mode"]),
        None if pattern is None else check_pattern(pattern),
    )


def _owned(given: dict[str, Any]) -> Owned:
    """Raises ``InvalidRequest`` for more ranges than a member may have, of all topics together."""
    if sum(map(len, given.values())) > schemas.MAX_RANGES:
        raise InvalidRequest(
            f"owned has {sum(map(len, given.values()))} ranges, the limit is {schemas.MAX_RANGES}",
            field="owned",
            limit=schemas.MAX_RANGES,
        )
    return {topic: parse(pieces, f"owned.{topic}") for topic, pieces in given.items()}


def _assignment(found: BeatAnswer) -> dict[str, Any]:
    return {
        "member": found.member,
        "epoch": found.epoch,
        "version": found.version,
        "heartbeat_ms": found.heartbeat_ms,
        "assigned": {topic: pairs(ranges) for topic, ranges in found.assigned.items()},
        "topics": {topic: {"id": id, "queues": queues} for topic, (id, queues) in found.topics.items()},
        "waiting_for": found.waiting_for,
        "standby": found.standby,
    }


@ROUTES.get("/v1/groups/{group}", _DESCRIBED, parameters=(GROUP,), errors=(UnknownGroup, NotLeader))
async def describe_group(call: Call) -> web.StreamResponse:
    """Members of a group and what they own.

    Only at the group's coordinator. Topics are named that one may describe; counts are of all.
    """
    return answer(call.request, await _description(call))


async def _description(call: Call) -> dict[str, Any]:
    shard, group = await call.node.groups.group(call.path("group"))
    topics = {name for name in _topics(group) if call.asker.sees(ResourceKind.TOPIC, name)}
    return {
        "group": group.name,
        "mode": group.mode.value,
        "state": group.state,
        "generation": group.plan.generation,
        "shard": shard.port.number,
        "topics": [
            {"topic": name, "id": topic.id, "queues": topic.queues, "members": len(topic.shares)}
            for name, topic in group.plan.topics.items()
            if group.plan.members and name in topics
        ],
        "patterns": {
            name: pattern for name, pattern in group.plan.patterns.items() if call.asker.sees(ResourceKind.TOPIC, name)
        },
        "members": [_member(group, id, shard.now, topics) for id in sorted(group.members)],
    }


def _topics(group: CoordinatedGroup) -> set[str]:
    return set(group.plan.topics).union(*(member.spec.topics for member in group.members.values()))


def _member(group: CoordinatedGroup, id: str, now: float, topics: Container[str]) -> dict[str, Any]:
    member, holder = group.members[id], group.holdings.by_member.get(id)
    shares = {name: topic.shares[id] for name, topic in group.plan.topics.items() if id in topic.shares}
    held = {} if holder is None else holder.held
    assigned = (
        shares
        if group.mode is not Mode.CLUSTERED
        else {name: own for name, ranges in shares.items() if (own := intersect(ranges, held.get(name, ())))}
    )
    return {
        "id": id,
        "static_id": member.spec.static_id,
        "client": member.spec.client,
        "session_ms": member.spec.session_ms,
        "topics": [name for name in member.spec.topics if name in topics],
        "assigned": {name: pairs(ranges) for name, ranges in assigned.items() if name in topics},
        "queues": sum(count(ranges) for ranges in assigned.values()),
        "pending": sum(count(ranges) - count(assigned.get(name, ())) for name, ranges in held.items()),
        "heartbeat_age_ms": max(0, round(1000 * (now - member.seen_at))),
        "stalled": member.stalled,
    }


@ROUTES.put(
    "/v1/groups/{group}",
    _DESCRIBED,
    request=Content("How its members share messages.", schemas.DECLARE),
    errors=(GroupModeMismatch, TooManyGroups, NotLeader),
)
async def declare_group(call: Call) -> web.StreamResponse:
    """Make a group that shares messages in a certain way.

    Only at the group's coordinator. Groups of consumers make themselves.
    """
    name, document = call.path("group"), await call.checked_document()
    await call.node.groups.declare(name, Mode(document["mode"]))
    return answer(call.request, await _description(call))


@ROUTES.delete(
    "/v1/groups/{group}",
    Content("Forgotten, durably.", status=204),
    parameters=(_FORCE,),
    errors=(UnknownGroup, GroupHasMembers, NotLeader),
)
async def delete_group(call: Call) -> web.StreamResponse:
    """Forget a group's members and generation.

    Only at the group's coordinator. Delete its offsets in all shards first.
    """
    await call.node.groups.delete(call.path("group"), force=call.query["force"] == "true")
    return web.Response(status=204)
