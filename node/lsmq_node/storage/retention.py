"""Retention: which messages have expired, and which whole tables can go.

A topic's messages expire by age (``retention_ms``) and by size (``retention_bytes``). A table whose records
have all expired has its queues' log starts moved past them, and is then dropped as a file, without rewriting
anything. Expired records that share a table with others go when the table is merged.

Nothing is dropped that a log start does not say is gone: the log start is logged first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from lsmq.errors import CorruptFile

from .columns import I64, U32, group_starts
from .memtable import TOMBSTONE_TOPIC
from .state import ShardState, TopicState
from .table import Table
from .version import Version


@dataclass(slots=True)
class RetentionPlan:
    """Log starts to move (topic, queues, offsets), and tables that hold nothing readable after that."""

    trims: list[tuple[int, U32, I64]] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)


def expired_tables(version: Version, state: ShardState, now_ms: int) -> RetentionPlan:
    """Decide what has expired. Looks at table metadata; opens only the tables that are to go."""
    plan = RetentionPlan()
    oversize = _oversize(version, state)
    for run in reversed(version.runs()):
        for table in run.tables:
            owners = [topic & ~TOMBSTONE_TOPIC for topic in table.meta.topics]
            items = [state.topics.get(topic_id) for topic_id in owners]
            if all(item is None or _expired(item, table, now_ms, oversize) for item in items):
                try:
                    if any(item is not None for item in items):
                        plan.trims.extend(_trims(table, state))
                except CorruptFile:  # what it holds cannot be told, so it stays; the table remembers the damage
                    continue
                plan.tables.append(table)
    return plan


def _expired(item: TopicState, table: Table, now_ms: int, oversize: dict[int, set[int]]) -> bool:
    options = item.topic.options
    if options.retention_ms is not None and table.meta.max_ms < now_ms - options.retention_ms:
        return True
    return table.meta.number in oversize.get(item.topic.id, ())


def _oversize(version: Version, state: ShardState) -> dict[int, set[int]]:
    """For topics over their size: the numbers of the tables that have to go, the oldest ones."""
    limits = {
        topic_id: item.topic.options.retention_bytes
        for topic_id, item in list(state.topics.items())
        if item.topic.options.retention_bytes is not None
    }
    beyond: dict[int, set[int]] = {}
    for topic_id, limit in limits.items():
        newer = 0
        for run in version.runs():
            mine = [table for table in run.tables if topic_id in table.meta.topics]
            if newer >= limit:
                beyond.setdefault(topic_id, set()).update(table.meta.number for table in mine)
            newer += sum(table.meta.size_bytes // len(table.meta.topics) for table in mine)
    return beyond


def _trims(table: Table, state: ShardState) -> list[tuple[int, U32, I64]]:
    trims = []
    for block in table.scan():
        keys, offsets = block.keys, block.offsets
        lasts = np.append(group_starts(keys)[1:], len(keys)) - 1
        # A tombstone that goes takes the log start with it, or its message would come back.
        topics = (keys[lasts] >> np.uint64(32)).astype(np.int64) & ~TOMBSTONE_TOPIC
        for topic_id in np.unique(topics).tolist():
            if topic_id in state.topics:
                mine = lasts[topics == topic_id]
                trims.append((topic_id, keys[mine].astype(np.uint32), offsets[mine] + 1))
    return trims
