"""How much of the agreed state topics may take. Most of it are the ranges of their queues.

Nodes are told the state in one answer, and voters keep it in one snapshot, which both have a limit: beyond that nobody
could follow, and no voter go on. So what makes topics take more is refused long before, by the leader of the control
plane as it comes, and not as it is applied: releases before apply the same log and know of no such limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgpack

from lsmq.errors import TooManyTopics

from .commands import apply
from .pieces import NamedPieces
from .state import ClusterState, TopicRecord

#: An answer has room for 64 MiB, of which nodes, shards and rights take a few.
MAX_TOPICS_BYTES = 48 << 20
_TOPIC_BYTES = 64  # besides its name, options and ranges, at the most
_MAKES_MORE = frozenset({"create_topic", "grow_topic", "spread_topic", "alter_topic"})


class TopicRoom:
    """What topics take is counted once, and then what becomes of them."""

    def __init__(self) -> None:
        self._counted: NamedPieces[TopicRecord] = NamedPieces()
        self._bytes = 0

    def check(self, state: ClusterState, command: Mapping[str, Any]) -> None:
        """Raises ``TooManyTopics`` where the command would make topics take more than there is room for."""
        if command.get("op") not in _MAKES_MORE:
            return
        after, _ = apply(state, {"request_id": "not given yet", **command})
        self._bytes += _growth(self._counted, state.topics)
        self._counted = state.topics
        growth = _growth(state.topics, after.topics)
        if growth > 0 and self._bytes + growth > MAX_TOPICS_BYTES:
            raise TooManyTopics(
                f"{len(after.topics)} topics, with where their queues lie, would take {self._bytes + growth} bytes of "
                f"what all nodes know, of {MAX_TOPICS_BYTES}; delete some, or make them of fewer queues than there are "
                "shards",
                limit=MAX_TOPICS_BYTES,
            )


def _growth(former: NamedPieces[TopicRecord], topics: NamedPieces[TopicRecord]) -> int:
    """How many bytes more than ``former`` ones topics take."""
    if topics is former:
        return 0
    changed, gone = topics.changed_since(former), topics.gone_since(former)
    replaced = [former[name] for name in changed if name in former]
    return sum(map(_size, changed.values())) - sum(map(_size, (*replaced, *gone.values())))


def _size(topic: TopicRecord) -> int:
    """Bytes of it in the encoded state, hardly less."""
    packed: bytes = msgpack.packb((topic.name, dict(topic.options), topic.ranges))
    return _TOPIC_BYTES + len(packed)
