"""The commands that change the cluster state: pure, total and deterministic.

:func:`apply` never raises and uses no clock and no randomness: every voter applies the same log and must come
to the same bytes. A command is a map with ``op``, ``request_id`` and the fields of its function below; times
and chosen values come with it. A result is ``{"ok": True, "version": n, ...}`` or ``{"ok": False, "code": ..,
"message": ..}``. A refused command changes nothing but the memory of results.

A command whose answer was lost may have been applied. Sending it again with the same ``request_id`` gives the
first answer, as long as it is among the latest 1,000; beyond that the compare-and-set fields refuse it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import msgpack

from . import election
from .state import (
    MAX_NAME_BYTES,
    MAX_NODES,
    MAX_OPTIONS_BYTES,
    MAX_QUEUES,
    MAX_RANGES,
    MAX_REPLICAS,
    MAX_SHARDS,
    MAX_TOPICS,
    MAX_URL_BYTES,
    REMEMBERED_RESULTS,
    ClusterState,
    Node,
    NodeState,
    Settings,
    Shard,
    Topic,
    grown_ranges,
)

Command = Mapping[str, Any]
Result = dict[str, Any]


class Refused(Exception):
    """Ends a command: nothing is changed. ``code`` is stable, the message says what to do."""

    def __init__(self, code: str, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.result: Result = {"ok": False, "code": code, "message": message, **facts}


def apply(state: ClusterState, command: Command) -> tuple[ClusterState, Result]:
    """The state after ``command``, and the command's result."""
    request_id = command.get("request_id")
    if not isinstance(request_id, str) or not 0 < len(request_id.encode()) <= MAX_NAME_BYTES:
        return state, Refused("invalid_command", "a command needs a request_id, a text of 1 to 255 bytes").result
    if request_id in state.results:
        return state, {**state.results[request_id], "repeated": True}
    changed, result = _run(state, command)
    results = changed.results | {request_id: MappingProxyType(result)}
    while len(results) > REMEMBERED_RESULTS:
        del results[next(iter(results))]
    return replace(changed, results=MappingProxyType(results)), dict(result)


def _run(state: ClusterState, command: Command) -> tuple[ClusterState, Result]:
    try:
        operation = _OPERATIONS.get(command.get("op"))
        if operation is None:
            raise Refused("invalid_command", f"there is no command {command.get('op')!r}")
        if not state.bootstrapped and operation is not _bootstrap:
            raise Refused("not_bootstrapped", "the cluster has no state yet; it is founded by the command bootstrap")
        changed, facts = operation(state, command)
    except Refused as refused:
        return state, refused.result
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        return state, Refused("invalid_command", f"{type(error).__name__}: {error}").result
    if changed is not state and operation is not _batch:
        version = state.version + 1
        topics_version = state.topics_version if changed.topics is state.topics else version
        changed = replace(changed, version=version, topics_version=topics_version)
    return changed, {"ok": True, "version": changed.version, **facts}


Outcome = tuple[ClusterState, dict[str, Any]]

MAX_BATCH = 1_024


def _batch(state: ClusterState, command: Command) -> Outcome:
    """``commands``: up to 1,024 of the others, without request ids, each refused or applied by itself.

    One batch is one entry of the log: the elections after the loss of a node cost one round.
    """
    entries = command["commands"]
    if len(entries) > MAX_BATCH:
        raise Refused("limit_reached", f"a batch holds at most {MAX_BATCH} commands")
    results = []
    for entry in entries:
        if entry.get("op") in ("batch", "bootstrap"):
            raise Refused("invalid_command", f"{entry['op']} cannot be part of a batch")
        state, result = _run(state, entry)
        results.append(result)
    return state, {"results": results}


def _bootstrap(state: ClusterState, command: Command) -> Outcome:
    """``settings``, ``nodes``; optional ``shards``: replicas and first leader of each, else placed evenly."""
    if state.bootstrapped:
        raise Refused("already_bootstrapped", f"the cluster {state.settings.cluster!r} was founded before")
    fields = command["settings"]
    settings = Settings(
        _text(fields["cluster"], "cluster", MAX_NAME_BYTES),
        _number(fields["shards"], "shards", 1, MAX_SHARDS),
        _number(fields["replicas"], "replicas", 1, MAX_REPLICAS),
        _number(fields["min_in_sync"], "min_in_sync", 1, MAX_REPLICAS),
    )
    nodes = {id: _node(id, entry, bool(entry.get("voter", True))) for id, entry in command["nodes"].items()}
    _number(len(nodes), "number of nodes", 1, MAX_NODES)
    if not settings.min_in_sync <= settings.replicas <= len(nodes):
        raise Refused(
            "invalid_command",
            f"min_in_sync ({settings.min_in_sync}) must not be above replicas ({settings.replicas}), nor replicas "
            f"above the number of nodes ({len(nodes)})",
        )
    given = command.get("shards") or {}
    placed = election.place_replicas(sorted(nodes), settings.shards, settings.replicas)
    shards = {}
    for id in range(settings.shards):
        replicas = _members(given.get(id, {}).get("replicas", placed[id]), "replicas", set(nodes))
        leader = given.get(id, {}).get("leader", replicas[0])
        if leader not in replicas:
            raise Refused("invalid_command", f"shard {id}: the leader {leader!r} is none of {list(replicas)}")
        shards[id] = Shard(id, replicas, leader, epoch=1, in_sync=replicas, version=1)
    return replace(state, settings=settings, nodes=_frozen(nodes), shards=_frozen(shards)), {}


def _register_node(state: ClusterState, command: Command) -> Outcome:
    """``node``, ``url``, ``internal_url``: a node makes itself known, or its new addresses."""
    id = _text(command["node"], "node", MAX_NAME_BYTES)
    known = state.nodes.get(id)
    if known is not None and known.state is NodeState.REMOVED:
        raise Refused("node_removed", f"node {id!r} was removed from the cluster; start it under a new id")
    if known is None and len(state.nodes) >= MAX_NODES:
        raise Refused("limit_reached", f"the cluster has {MAX_NODES} nodes, the most it can have")
    node = _node(id, command, known.voter if known else False)
    if known is not None:
        node = replace(node, state=known.state)
    if node == known:
        return state, {}
    return replace(state, nodes=_with(state.nodes, id, node)), {}


def _create_topic(state: ClusterState, command: Command) -> Outcome:
    """``name``, ``queues``, ``options``, ``created_ms``. The same again is the same topic."""
    name = _text(command["name"], "name", MAX_NAME_BYTES)
    queues = _number(command["queues"], "queues", 1, MAX_QUEUES)
    options = dict(command.get("options") or {})
    if len(msgpack.packb(options)) > MAX_OPTIONS_BYTES:
        raise Refused("limit_reached", f"the options of a topic take at most {MAX_OPTIONS_BYTES} bytes")
    known = state.topics.get(name)
    if known is not None:
        if known.queues != queues or known.options != options:
            raise Refused(
                "topic_exists",
                f"topic {name!r} exists with {known.queues} queues and options {dict(known.options)}",
            )
        return state, {"topic_id": known.id, "created": False}
    if len(state.topics) >= MAX_TOPICS:
        raise Refused("limit_reached", f"the cluster has {MAX_TOPICS} topics, the most it can have")
    topic = Topic(
        state.next_topic_id,
        name,
        queues,
        MappingProxyType(options),
        _number(command["created_ms"], "created_ms", 0, 1 << 62),
        grown_ranges((), queues, state.settings.shards),
    )
    changed = replace(state, topics=_with(state.topics, name, topic), next_topic_id=topic.id + 1)
    return changed, {"topic_id": topic.id, "created": True}


def _delete_topic(state: ClusterState, command: Command) -> Outcome:
    """``name``; optional ``topic_id``: delete only that incarnation of the name."""
    topic = _topic(state, command)
    topics = {name: other for name, other in state.topics.items() if name != topic.name}
    return replace(state, topics=_frozen(topics)), {"topic_id": topic.id}


def _grow_topic(state: ClusterState, command: Command) -> Outcome:
    """``name``, ``queues``, ``expected_queues``: more queues; those there are stay where they are."""
    topic = _topic(state, command)
    queues = _number(command["queues"], "queues", 1, MAX_QUEUES)
    if topic.queues != command["expected_queues"]:
        raise Refused("stale", f"topic {topic.name!r} has {topic.queues} queues now", queues=topic.queues)
    if queues <= topic.queues:
        raise Refused("invalid_command", f"topic {topic.name!r} has {topic.queues} queues; it can only grow")
    ranges = grown_ranges(topic.ranges, queues, state.settings.shards)
    if len(ranges) > MAX_RANGES:
        raise Refused("limit_reached", f"topic {topic.name!r} would lie in more than {MAX_RANGES} ranges")
    grown = replace(topic, queues=queues, ranges=ranges)
    return replace(state, topics=_with(state.topics, topic.name, grown)), {"topic_id": topic.id}


def _elect(state: ClusterState, command: Command) -> Outcome:
    """``shard``, ``candidate``, ``expected_epoch``; optional ``suspects``, ``min_epoch``.

    The candidate must be in sync: it holds every write acknowledged at quorum. Suspects leave the in-sync set
    with the election, so that the new leader need not wait for them. ``min_epoch`` lifts the epoch above one
    that a replica has seen, should this state ever have gone back.
    """
    shard = _shard(state, command)
    if shard.epoch != command["expected_epoch"]:
        raise Refused("stale", f"shard {shard.id} is at epoch {shard.epoch}", epoch=shard.epoch, leader=shard.leader)
    candidate, suspects = command["candidate"], set(command.get("suspects") or ())
    if candidate not in shard.in_sync or candidate in suspects:
        raise Refused("not_in_sync", f"shard {shard.id}: {candidate!r} is not in sync: {list(shard.in_sync)}")
    epoch = max(shard.epoch + 1, _number(command.get("min_epoch") or 0, "min_epoch", 0, 1 << 62))
    in_sync = tuple(node for node in shard.in_sync if node not in suspects)
    changed = replace(shard, leader=candidate, epoch=epoch, in_sync=in_sync, version=shard.version + 1)
    return _with_shard(state, changed), {"epoch": epoch, "shard_version": changed.version}


def _set_in_sync(state: ClusterState, command: Command) -> Outcome:
    """``shard``, ``epoch``, ``expected_version``, ``in_sync``: the leader says who is in sync."""
    shard = _shard(state, command)
    _expect_version(shard, command)
    if shard.epoch != command["epoch"]:
        raise Refused("stale", f"shard {shard.id} is at epoch {shard.epoch}", epoch=shard.epoch, leader=shard.leader)
    wanted = set(_members(command["in_sync"], "in_sync", set(shard.replicas)))
    if shard.leader is None or shard.leader not in wanted:
        raise Refused("not_in_sync", f"shard {shard.id}: the in-sync set must hold its leader {shard.leader!r}")
    if wanted == set(shard.in_sync):
        return state, {"shard_version": shard.version}
    changed = replace(
        shard,
        in_sync=tuple(node for node in shard.replicas if node in wanted),
        adding=tuple(node for node in shard.adding if node not in wanted),
        version=shard.version + 1,
    )
    return _with_shard(state, changed), {"shard_version": changed.version}


def _set_replicas(state: ClusterState, command: Command) -> Outcome:
    """``shard``, ``expected_version``, ``replicas``: add and drop replicas; the first is the preferred leader.

    A new replica is ``adding`` until it is in sync. The leader stays: hand leadership over first. A replica may
    be dropped only when those left in sync are enough for quorum writes.
    """
    shard = _shard(state, command)
    _expect_version(shard, command)
    active = set(state.active_nodes())
    replicas = _members(command["replicas"], "replicas", active | set(shard.replicas))
    _number(len(replicas), "number of replicas", 1, MAX_REPLICAS)
    if shard.leader is not None and shard.leader not in replicas:
        raise Refused("is_leader", f"shard {shard.id}: {shard.leader!r} leads it; elect another one first")
    in_sync = tuple(node for node in shard.in_sync if node in replicas)
    lost = len(in_sync) < len(shard.in_sync)
    if not in_sync or (lost and len(in_sync) < state.settings.min_in_sync):
        raise Refused(
            "not_enough_replicas",
            f"shard {shard.id}: only {list(in_sync)} would stay in sync; wait until new replicas have caught up",
        )
    fresh = set(replicas) - set(shard.replicas)
    adding = tuple(node for node in replicas if node in fresh or node in shard.adding)
    changed = replace(shard, replicas=replicas, in_sync=in_sync, adding=adding)
    if changed == shard:
        return state, {"shard_version": shard.version}
    changed = replace(changed, version=shard.version + 1)
    return _with_shard(state, changed), {"shard_version": changed.version}


def _leave_in_sync(state: ClusterState, command: Command) -> Outcome:
    """``shard``, ``node``, ``expected_version``: a replica whose log is damaged takes itself out.

    A leader that does so leads no more. The sole member in sync may not: nobody else has all the writes.
    """
    shard = _shard(state, command)
    _expect_version(shard, command)
    node = command["node"]
    if node not in shard.in_sync:
        return state, {"shard_version": shard.version}
    in_sync = tuple(member for member in shard.in_sync if member != node)
    if not in_sync:
        raise Refused("sole_in_sync", f"shard {shard.id}: {node!r} alone is in sync; its log is the only whole one")
    leader = None if shard.leader == node else shard.leader
    changed = replace(shard, in_sync=in_sync, leader=leader, version=shard.version + 1)
    return _with_shard(state, changed), {"shard_version": changed.version}


def _drain_node(state: ClusterState, command: Command) -> Outcome:
    """``node``: it gets no new replicas, and those it has are to be moved away."""
    return _with_node_state(state, command, NodeState.DRAINING)


def _undrain_node(state: ClusterState, command: Command) -> Outcome:
    return _with_node_state(state, command, NodeState.ACTIVE)


def _remove_node(state: ClusterState, command: Command) -> Outcome:
    """``node``: refused while it holds replicas, and for voters, of which the configuration decides."""
    node = _known_node(state, command)
    held = [shard.id for shard in state.replicas_on(node.id)]
    if held:
        raise Refused(
            "holds_replicas", f"node {node.id!r} holds replicas of shards {held}; drain it first", shards=held
        )
    if node.voter:
        raise Refused("is_voter", f"node {node.id!r} is a voter; voters are fixed. Drained, it only votes")
    return _with_node_state(state, command, NodeState.REMOVED)


_OPERATIONS: dict[Any, Callable[[ClusterState, Command], Outcome]] = {
    "batch": _batch,
    "bootstrap": _bootstrap,
    "register_node": _register_node,
    "create_topic": _create_topic,
    "delete_topic": _delete_topic,
    "grow_topic": _grow_topic,
    "elect": _elect,
    "set_in_sync": _set_in_sync,
    "set_replicas": _set_replicas,
    "leave_in_sync": _leave_in_sync,
    "drain_node": _drain_node,
    "undrain_node": _undrain_node,
    "remove_node": _remove_node,
}


def _frozen(entries: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(entries)


def _with(entries: MappingProxyType[Any, Any], key: Any, entry: Any) -> MappingProxyType[Any, Any]:
    return MappingProxyType(entries | {key: entry})


def _with_shard(state: ClusterState, shard: Shard) -> ClusterState:
    return replace(state, shards=_with(state.shards, shard.id, shard))


def _with_node_state(state: ClusterState, command: Command, wanted: NodeState) -> Outcome:
    node = _known_node(state, command)
    if node.state is wanted:
        return state, {}
    if node.state is NodeState.REMOVED:
        raise Refused("node_removed", f"node {node.id!r} was removed from the cluster")
    return replace(state, nodes=_with(state.nodes, node.id, replace(node, state=wanted))), {}


def _known_node(state: ClusterState, command: Command) -> Node:
    node: Node | None = state.nodes.get(command["node"])
    if node is None:
        raise Refused("unknown_node", f"there is no node {command['node']!r}")
    return node


def _topic(state: ClusterState, command: Command) -> Topic:
    topic: Topic | None = state.topics.get(command["name"])
    if topic is None or topic.id != command.get("topic_id", topic.id):
        raise Refused("unknown_topic", f"there is no topic {command['name']!r}")
    return topic


def _shard(state: ClusterState, command: Command) -> Shard:
    shard: Shard | None = state.shards.get(command["shard"])
    if shard is None:
        raise Refused("unknown_shard", f"there is no shard {command['shard']!r}")
    return shard


def _expect_version(shard: Shard, command: Command) -> None:
    if shard.version != command["expected_version"]:
        raise Refused("stale", f"shard {shard.id} is at version {shard.version}", shard_version=shard.version)


def _node(id: str, fields: Mapping[str, Any], voter: bool) -> Node:
    _text(id, "node id", MAX_NAME_BYTES)
    url = _text(fields["url"], "url", MAX_URL_BYTES)
    return Node(id, url, _text(fields["internal_url"], "internal_url", MAX_URL_BYTES), voter)


def _members(members: Sequence[str], what: str, allowed: set[str]) -> tuple[str, ...]:
    found = tuple(members)
    if not found or len(set(found)) != len(found) or not set(found) <= allowed:
        raise Refused("invalid_command", f"{what} {list(found)} must be different ones of {sorted(allowed)}")
    return found


def _text(value: Any, what: str, limit: int) -> str:
    if not isinstance(value, str) or not 0 < len(value.encode()) <= limit:
        raise Refused("invalid_command", f"{what} must be a text of 1 to {limit} bytes")
    return value


def _number(value: Any, what: str, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise Refused("invalid_command", f"{what} is {value!r}; it must be an integer from {low} to {high}")
    return value
