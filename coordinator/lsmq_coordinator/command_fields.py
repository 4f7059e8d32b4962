"""What commands share: refusals, checks of their fields, and how a changed state is put together. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from .pieces import Pieces
from .state import ClusterState, NodeRecord, Shard, TopicRecord

Command = Mapping[str, Any]
Result = dict[str, Any]
#: The state after a command, and what the result says besides ``ok`` and ``version``.
Change = tuple[ClusterState, dict[str, Any]]


class Refused(Exception):
    """Ends a command: nothing is changed. ``code`` is stable, the message says what to do."""

    def __init__(self, code: str, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.result: Result = {"ok": False, "code": code, "message": message, **facts}


# What a command speaks of


def known_node(state: ClusterState, command: Command) -> NodeRecord:
    node: NodeRecord | None = state.nodes.get(command["node"])
    if node is None:
        raise Refused("unknown_node", f"there is no node {command['node']!r}")
    return node


def known_topic(state: ClusterState, command: Command) -> TopicRecord:
    topic: TopicRecord | None = state.topics.get(command["name"])
    if topic is None or topic.id != command.get("topic_id", topic.id):
        raise Refused("unknown_topic", f"there is no topic {command['name']!r}")
    return topic


def known_shard(state: ClusterState, command: Command) -> Shard:
    shard: Shard | None = state.shards.get(command["shard"])
    if shard is None:
        raise Refused("unknown_shard", f"there is no shard {command['shard']!r}")
    return shard


# Compare and set


def expect_version(shard: Shard, command: Command) -> None:
    if shard.version != command["expected_version"]:
        raise Refused("stale", f"shard {shard.id} is at version {shard.version}", shard_version=shard.version)


def expect_epoch(shard: Shard, expected: Any) -> None:
    if shard.epoch != expected:
        raise Refused("stale", f"shard {shard.id} is at epoch {shard.epoch}", epoch=shard.epoch, leader=shard.leader)


# Values


def members(given: Sequence[str], what: str, allowed: set[str]) -> tuple[str, ...]:
    found = tuple(given)
    if not found or len(set(found)) != len(found) or not set(found) <= allowed:
        raise Refused("invalid_command", f"{what} {list(found)} must be different ones of {sorted(allowed)}")
    return found


def text(value: Any, what: str, limit: int) -> str:
    if not isinstance(value, str) or not 0 < len(value.encode()) <= limit:
        raise Refused("invalid_command", f"{what} must be a text of 1 to {limit} bytes")
    return value


def number(value: Any, what: str, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise Refused("invalid_command", f"{what} is {value!r}; it must be an integer from {low} to {high}")
    return value


# The changed state


def frozen(entries: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(entries)


def with_entry(entries: MappingProxyType[Any, Any], key: Any, entry: Any) -> MappingProxyType[Any, Any]:
    return MappingProxyType(entries | {key: entry})


def with_shard(state: ClusterState, former: Shard, **fields: Any) -> Change:
    """The state with fields of a shard changed and its version raised; the same state when nothing changes.

    A target ends with the command that reaches it.
    """
    shard = replace(former, **fields)
    if shard.target == shard.replicas and not shard.adding:
        shard = replace(shard, target=())
    if shard == former:
        return state, {"shard_version": former.version}
    shard = replace(shard, version=former.version + 1)
    return replace(state, shards=Pieces.of(state.shards).with_entry(shard.id, shard)), {"shard_version": shard.version}
