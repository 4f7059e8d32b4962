"""The commands that change the cluster state: pure, total and deterministic.

:func:`apply` never raises and uses no clock and no randomness: every voter applies the same log and must come
to the same bytes. A command is a map with ``op``, ``request_id`` and the fields of its function below; times
and chosen values come with it. A result is ``{"ok": True, "version": n, ...}`` or ``{"ok": False, "code": ..,
"message": ..}``. A refused command changes nothing but the memory of results.

A command whose answer was lost may have been applied. Sending it again with the same ``request_id`` gives the
first answer, as long as it is among the latest 1,000; beyond that the compare-and-set fields refuse it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import msgpack

from lsmq.differences import asked_topic, differences

from . import election, shard_commands, start_commands
from .command_fields import (
    Change,
    Command,
    Refused,
    Result,
    frozen,
    known_node,
    known_topic,
    members,
    number,
    text,
    with_entry,
)
from .growth import GROW_SHARDS, grow_shards
from .lives import UNCLAIMED, InSyncMember
from .pieces import Pieces
from .placement import places_of
from .raft_membership import Electorate
from .state import (
    MAX_LABEL_BYTES,
    MAX_NAME_BYTES,
    MAX_NODES,
    MAX_OPTIONS_BYTES,
    MAX_QUEUES,
    MAX_RANGES,
    MAX_REPLICAS,
    MAX_RIGHT_BYTES,
    MAX_RIGHT_KEY_BYTES,
    MAX_RIGHTS_BYTES,
    MAX_SEGMENT_BYTES,
    MAX_SHARDS,
    MAX_TOPICS,
    MAX_URL_BYTES,
    REMEMBERED_RESULTS,
    ClusterSettings,
    ClusterState,
    NodeRecord,
    NodeState,
    Shard,
    TopicRecord,
    grown_ranges,
    leveled_ranges,
)

MAX_BATCH = 1_024
#: Which of a topic's options counts how often they were altered.
REVISION = "revision"
#: Which of a topic's options says among how many queues, the first, that of a key is chosen.
KEY_QUEUES = "key_queues"
#: Options that nobody asks for: of two who ask for a topic with the same others both get it.
_NOT_ASKED_FOR = frozenset((REVISION, "made_by"))


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
        rights_version = state.rights_version if changed.rights is state.rights else version
        changed = replace(changed, version=version, topics_version=topics_version, rights_version=rights_version)
    return changed, {"ok": True, "version": changed.version, **facts}


def _batch(state: ClusterState, command: Command) -> Change:
    """``commands``: up to 1,024 of the others, without request ids, each refused or applied by itself.

    One batch is one entry of the log: the elections after the loss of a node cost one round.
    """
    entries = command["commands"]
    if len(entries) > MAX_BATCH:
        raise Refused("limit_reached", f"a batch holds at most {MAX_BATCH} commands")
    results = []
    for entry in entries:
        if entry.get("op") in ("batch", "bootstrap", "set_voters"):
            raise Refused("invalid_command", f"{entry['op']} cannot be part of a batch")
        state, result = _run(state, entry)
        results.append(result)
    return state, {"results": results}


def _bootstrap(state: ClusterState, command: Command) -> Change:
    """``settings``, ``nodes``; optional ``shards``: replicas and first leader of each, else placed evenly.

    A node may have ``state`` ``draining``: it is given no replicas, and only votes.
    """
    if state.bootstrapped:
        raise Refused("already_bootstrapped", f"the cluster {state.settings.cluster!r} was founded before")
    fields = command["settings"]
    settings = ClusterSettings(
        text(fields["cluster"], "cluster", MAX_NAME_BYTES),
        number(fields["shards"], "shards", 1, MAX_SHARDS),
        number(fields["replicas"], "replicas", 1, MAX_REPLICAS),
        number(fields["min_in_sync"], "min_in_sync", 1, MAX_REPLICAS),
        number(fields["segment_bytes"], "segment_bytes", 1, MAX_SEGMENT_BYTES),
    )
    nodes = {
        id: replace(_node(id, entry, bool(entry.get("voter", True))), state=NodeState(entry.get("state", "active")))
        for id, entry in command["nodes"].items()
    }
    number(len(nodes), "number of nodes", 1, MAX_NODES)
    if not settings.min_in_sync <= settings.replicas <= len(nodes):
        raise Refused(
            "invalid_command",
            f"min_in_sync ({settings.min_in_sync}) must not be above replicas ({settings.replicas}), nor replicas "
            f"above the number of nodes ({len(nodes)})",
        )
    given = command.get("shards") or {}
    holding = {id: node for id, node in nodes.items() if node.state is NodeState.ACTIVE}
    placed = election.place_replicas(
        sorted(holding), settings.shards, settings.replicas, places=places_of(holding.values())
    )
    shards = {}
    for id in range(settings.shards):
        replicas = members(given.get(id, {}).get("replicas", placed[id]), "replicas", set(nodes))
        leader = given.get(id, {}).get("leader", replicas[0])
        if leader not in replicas:
            raise Refused("invalid_command", f"shard {id}: the leader {leader!r} is none of {list(replicas)}")
        number(len(replicas), f"number of replicas of shard {id}", settings.min_in_sync, MAX_REPLICAS)
        in_sync = tuple(InSyncMember(node, UNCLAIMED) for node in replicas)
        shards[id] = Shard(id, replicas, leader, epoch=1, in_sync=in_sync, version=1)
    return replace(state, settings=settings, nodes=frozen(nodes), shards=Pieces(shards)), {}


def _register_node(state: ClusterState, command: Command) -> Change:
    """``node``, ``url``, ``internal_url``, ``life``: a start of a node makes itself known, with its addresses.

    ``host``, ``rack``: its labels, if it has any.
    ``former``: the life before it, which the leader of the control plane found to be over.
    ``forget``: a node that was removed, which gives way where there are as many as can be; by the leader as well.
    """
    id = text(command["node"], "node", MAX_NAME_BYTES)
    known = state.nodes.get(id)
    if known is not None and known.state is NodeState.REMOVED:
        raise Refused("node_removed", f"node {id!r} was removed from the cluster; start it under a new id")
    if known is None and len(state.nodes) >= MAX_NODES:
        state = _without_removed(state, command.get("forget"))
    life = text(command["life"], "life", MAX_NAME_BYTES)
    if known is not None and known.life not in ("", life, command.get("former")):
        raise Refused("stale", f"another start of node {id!r} was registered", life=known.life)
    node = _node(id, command, known.voter if known else False)
    node = replace(node, life=life)
    if known is not None:
        node = replace(node, state=known.state)
    if node == known:
        return state, {}
    return replace(state, nodes=with_entry(state.nodes, id, node)), {}


def _without_removed(state: ClusterState, removed: Any) -> ClusterState:
    """Without a node that was removed: a process of it that starts after that is a new one."""
    known = state.nodes.get(removed)
    if known is None or known.state is not NodeState.REMOVED:
        raise Refused("limit_reached", f"the cluster has {MAX_NODES} nodes, the most it can have")
    return replace(state, nodes=frozen({id: node for id, node in state.nodes.items() if id != removed}))


def _create_topic(state: ClusterState, command: Command) -> Change:
    """``name``, ``queues``, ``options``, ``created_ms``. The same again is the same topic, whoever made it.

    Optional ``expected_topics_version``: that of the topics by which it was decided that there may be one more.
    """
    name = text(command["name"], "name", MAX_NAME_BYTES)
    queues = number(command["queues"], "queues", 1, MAX_QUEUES)
    options = dict(command.get("options") or {})
    if len(msgpack.packb(options)) > MAX_OPTIONS_BYTES:
        raise Refused("limit_reached", f"the options of a topic take at most {MAX_OPTIONS_BYTES} bytes")
    known = state.topics.get(name)
    if known is not None:
        there, asked = (
            asked_topic(count, {name: value for name, value in each.items() if name not in _NOT_ASKED_FOR})
            for count, each in ((known.queues, known.options), (queues, options))
        )
        if different := differences(there, asked):
            raise Refused(
                "topic_exists",
                f"topic {name!r} exists, and is another one than asked for: {different}. Delete it first, or create it "
                "with the same options",
                queues=there.pop("queues"),
                options=there,
            )
        return state, {"topic_id": known.id, "created": False}
    _check_topics_version(state, command)
    if len(state.topics) >= MAX_TOPICS:
        raise Refused("limit_reached", f"the cluster has {MAX_TOPICS} topics, the most it can have")
    topic = TopicRecord(
        state.next_topic_id,
        name,
        queues,
        MappingProxyType(options),
        number(command["created_ms"], "created_ms", 0, 1 << 62),
        grown_ranges((), queues, len(state.shards)),
    )
    changed = replace(state, topics=state.topics.with_entry(name, topic), next_topic_id=topic.id + 1)
    return changed, {"topic_id": topic.id, "created": True}


def _check_topics_version(state: ClusterState, command: Command) -> None:
    """Refuse what was decided by looking at other topics, where these are not as they were."""
    if command.get("expected_topics_version", state.topics_version) != state.topics_version:
        raise Refused("stale", "topics were changed meanwhile", topics_version=state.topics_version)


def _delete_topic(state: ClusterState, command: Command) -> Change:
    """``name``; optional ``topic_id``: delete only that incarnation of the name."""
    topic = known_topic(state, command)
    return replace(state, topics=state.topics.without(topic.name)), {"topic_id": topic.id}


def _grow_topic(state: ClusterState, command: Command) -> Change:
    """``name``, ``queues``, ``expected_queues``: more queues; those there are stay where they are.

    Optional ``expected_topics_version`` as for ``create_topic``.
    """
    topic = known_topic(state, command)
    queues = number(command["queues"], "queues", 1, MAX_QUEUES)
    _check_topics_version(state, command)
    if topic.queues != command["expected_queues"]:
        raise Refused("stale", f"topic {topic.name!r} has {topic.queues} queues now", queues=topic.queues)
    if topic.named:
        raise Refused("invalid_command", f"topic {topic.name!r} has named queues; there is no number to grow")
    if queues <= topic.queues:
        raise Refused("invalid_command", f"topic {topic.name!r} has {topic.queues} queues; it can only grow")
    ranges = grown_ranges(topic.ranges, queues, len(state.shards))
    if len(ranges) > MAX_RANGES:
        raise Refused("limit_reached", f"topic {topic.name!r} would lie in more than {MAX_RANGES} ranges")
    grown = replace(topic, queues=queues, ranges=ranges)
    return replace(state, topics=state.topics.with_entry(topic.name, grown)), {"topic_id": topic.id}


def _spread_topic(state: ClusterState, command: Command) -> Change:
    """``name``, ``expected_queues``, ``expected_shards``, ``keys``: more queues, on shards that hold fewer.

    ``keys``: ``stay`` has the queue of a key chosen for ever among those there were, ``move`` among all.
    Optional ``expected_topics_version`` as for ``create_topic``.
    """
    topic = known_topic(state, command)
    _check_topics_version(state, command)
    if (topic.queues, len(state.shards)) != (command["expected_queues"], command["expected_shards"]):
        raise Refused("stale", f"topic {topic.name!r} has {topic.queues} queues now", queues=topic.queues)
    if topic.named:
        raise Refused("invalid_command", f"topic {topic.name!r} has named queues, which stay on their shards")
    if command["keys"] not in ("stay", "move"):
        raise Refused("invalid_command", f"keys stay or move; {command['keys']!r} they cannot")
    ranges = leveled_ranges(topic.ranges, len(state.shards))
    if ranges == topic.ranges:
        return state, {"topic_id": topic.id}
    queues = number(ranges[-1].end, "queues", 1, MAX_QUEUES)
    if len(ranges) > MAX_RANGES:
        raise Refused("limit_reached", f"topic {topic.name!r} would lie in more than {MAX_RANGES} ranges")
    options = dict(topic.options)
    if command["keys"] == "stay" and not options.get(KEY_QUEUES):
        options |= {KEY_QUEUES: topic.queues, REVISION: options.get(REVISION, 0) + 1}
    spread = replace(topic, queues=queues, ranges=ranges, options=MappingProxyType(options))
    return replace(state, topics=state.topics.with_entry(topic.name, spread)), {"topic_id": topic.id}


def _alter_topic(state: ClusterState, command: Command) -> Change:
    """``name``, ``options``, ``expected_revision``: all options of the topic from here on, its next revision."""
    topic = known_topic(state, command)
    revision = topic.options.get(REVISION, 0)
    if revision != command["expected_revision"]:
        raise Refused("stale", f"topic {topic.name!r} was altered meanwhile", revision=revision)
    options = {**command["options"], REVISION: revision + 1}
    if len(msgpack.packb(options)) > MAX_OPTIONS_BYTES:
        raise Refused("limit_reached", f"the options of a topic take at most {MAX_OPTIONS_BYTES} bytes")
    altered = replace(topic, options=MappingProxyType(options))
    return replace(state, topics=state.topics.with_entry(topic.name, altered)), {"topic_id": topic.id}


def _pause_moves(state: ClusterState, command: Command) -> Change:
    """No replica is added anywhere until ``resume_moves``. Those that are being filled are, and then old ones go."""
    return (state if state.moves_paused else replace(state, moves_paused=True)), {}


def _resume_moves(state: ClusterState, command: Command) -> Change:
    return (replace(state, moves_paused=False) if state.moves_paused else state), {}


def _change_rights(state: ClusterState, command: Command) -> Change:
    """``changes``: bytes by key, nil deletes; ``expected_version``: of the rights they rest on. All or none."""
    if state.rights_version != command["expected_version"]:
        raise Refused("stale", "rights were changed meanwhile", rights_version=state.rights_version)
    rights = dict(state.rights)
    for key, body in command["changes"].items():
        text(key, "key", MAX_RIGHT_KEY_BYTES)
        if body is None:
            rights.pop(key, None)
        elif isinstance(body, bytes) and len(body) <= MAX_RIGHT_BYTES:
            rights[key] = body
        else:
            raise Refused("invalid_command", f"{key} must be nil or up to {MAX_RIGHT_BYTES} bytes")
    size = sum(len(key.encode()) + len(body) for key, body in rights.items())
    if size > MAX_RIGHTS_BYTES:
        raise Refused(
            "limit_reached",
            f"tokens, roles and grants would take {size} bytes, of {MAX_RIGHTS_BYTES}; revoke what nobody needs",
        )
    return (state if rights == state.rights else replace(state, rights=frozen(rights))), {}


def _drain_node(state: ClusterState, command: Command) -> Change:
    """``node``: it gets no new replicas, and those it has are to be moved away."""
    return _with_node_state(state, command, NodeState.DRAINING)


def _undrain_node(state: ClusterState, command: Command) -> Change:
    """``node``: it may be given replicas again, and keeps those that are still to be moved away."""
    node = known_node(state, command).id
    changed, facts = _with_node_state(state, command, NodeState.ACTIVE)
    for shard in state.replicas_on(node) if changed is not state else ():
        if shard.target and node not in shard.target:
            changed, _ = shard_commands.stay(changed, shard)
    return changed, facts


def _remove_node(state: ClusterState, command: Command) -> Change:
    """``node``: refused while it holds replicas or votes."""
    node = known_node(state, command)
    held = [id for id, shard in sorted(state.shards.items()) if node.id in (*shard.replicas, *shard.target)]
    if held:
        raise Refused(
            "holds_replicas", f"node {node.id!r} holds replicas of shards {held}; drain it first", shards=held
        )
    if node.voter:
        raise Refused(
            "is_voter",
            f"node {node.id!r} is a voter; have another one take its vote first: lsmq voter replace {node.id} NEW",
        )
    return _with_node_state(state, command, NodeState.REMOVED)


def _set_voters(state: ClusterState, command: Command) -> Change:
    """``membership``: who votes. Raft has agreed on it with this very entry, so nothing is refused here that can be
    read: see :mod:`~.raft_membership`."""
    membership = Electorate.from_dict(command["membership"])
    nodes = {id: replace(node, voter=id in membership.voters) for id, node in state.nodes.items()}
    return replace(state, membership=membership, nodes=frozen(nodes)), {"number": membership.number}


_OPERATIONS: dict[Any, Callable[[ClusterState, Command], Change]] = {
    "batch": _batch,
    "bootstrap": _bootstrap,
    "register_node": _register_node,
    "create_topic": _create_topic,
    "delete_topic": _delete_topic,
    "grow_topic": _grow_topic,
    "spread_topic": _spread_topic,
    "alter_topic": _alter_topic,
    "elect": shard_commands.elect,
    "transfer_leader": shard_commands.transfer_leader,
    "set_in_sync": shard_commands.set_in_sync,
    "leave_in_sync": shard_commands.leave_in_sync,
    "set_replicas": shard_commands.set_replicas,
    "set_target": shard_commands.set_target,
    "cancel_target": shard_commands.cancel_target,
    GROW_SHARDS: grow_shards,
    "unpin": shard_commands.unpin,
    "pause_moves": _pause_moves,
    "resume_moves": _resume_moves,
    "register_start": start_commands.register_start,
    "note_floors": start_commands.note_floors,
    "trust": start_commands.trust,
    "revive": start_commands.revive,
    "drain_node": _drain_node,
    "undrain_node": _undrain_node,
    "remove_node": _remove_node,
    "change_rights": _change_rights,
    "set_voters": _set_voters,
}


def _with_node_state(state: ClusterState, command: Command, wanted: NodeState) -> Change:
    node = known_node(state, command)
    if node.state is wanted:
        return state, {}
    if node.state is NodeState.REMOVED:
        raise Refused("node_removed", f"node {node.id!r} was removed from the cluster")
    return replace(state, nodes=with_entry(state.nodes, node.id, replace(node, state=wanted))), {}


def _node(id: str, fields: Mapping[str, Any], voter: bool) -> NodeRecord:
    text(id, "node id", MAX_NAME_BYTES)
    url = text(fields["url"], "url", MAX_URL_BYTES)
    host, rack = (text(fields[name], name, MAX_LABEL_BYTES) if fields.get(name) else "" for name in ("host", "rack"))
    internal_url = text(fields["internal_url"], "internal_url", MAX_URL_BYTES)
    return NodeRecord(id, url, internal_url, voter, host=host, rack=rack)
