"""``lsmq pipeline lagreport``: how far every group is behind, in messages and in time.

Lag in messages is what lies between a group's committed offset and the end of each queue that it has committed; what is
kept in the others of the topic is ``uncommitted_lag``. Lag in time is the age of the oldest message not read yet, of
the queues that are furthest behind.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np

from lsmq.record_batch import Column, split_batches
from lsmq.topics import Topic
from lsmq_pipeline.client import Bounds, PipelineClient, Want
from lsmq_pipeline.decode import column, positions
from lsmq_pipeline.errors import GONE
from lsmq_pipeline.jobs.report import JobProgress, JobReport, Quiet, Sheet, reader_options
from lsmq_pipeline.options import read_options

LOOKED_AT = 64  # queues of a group and topic whose oldest unread message is looked at
COLUMNS = (
    "group",
    "topic",
    "queues",
    "queues_behind",
    "lag",
    "largest_lag",
    "queue",
    "oldest_unread_s",
    "uncommitted_lag",
)


def lagreport(
    connection: Mapping[str, Any],
    topics: Sequence[str] | None = None,
    *,
    plot: str | None = None,
    progress: JobProgress | None = None,
) -> JobReport:
    """Lag of every group in these topics, all when none are named. Needs no Spark."""
    shown = progress or Quiet()
    options = read_options(reader_options(connection, topicPattern=".*"))
    rows: list[tuple[Any, ...]] = []
    with PipelineClient(options.connection) as cluster:
        found = cluster.topics(list(dict.fromkeys(topics)), None) if topics else cluster.topics((), ".*")
        groups = cluster.groups()
        for topic in found:
            # Of all topics some may go meanwhile.
            with nullcontext() if topics else suppress(*GONE):
                bounds = None if topic.named else cluster.bounds(topic)
                for group in groups:
                    with shown.step(f"{group} in {topic.name}"):
                        row = _row(cluster, group, topic, bounds)
                    if row is not None:
                        rows.append(row)
    rows.sort(key=lambda row: -row[4])
    if plot:
        _plot(rows, plot)
    facts = {"groups": len({row[0] for row in rows}), "topics": len(found), "lag": sum(row[4] for row in rows)}
    return JobReport("lagreport", facts, Sheet(COLUMNS, rows))


def _row(cluster: PipelineClient, group: str, topic: Topic, bounds: Bounds | None) -> tuple[Any, ...] | None:
    if bounds is None:
        return _named_row(cluster, group, topic)
    found = cluster.committed(group, topic.name)
    committed = {queue: offset for queue, offset in found.items() if queue < len(bounds.latest)}  # Others came since.
    if not committed:
        return None
    queues = np.array(sorted(committed), np.int64)
    offsets = np.array([committed[queue] for queue in queues.tolist()], np.int64)
    lag = np.maximum(bounds.latest[queues] - np.maximum(offsets, bounds.earliest[queues]), 0)
    worst = int(np.argmax(lag))
    behind = np.flatnonzero(lag > 0)
    chosen = np.sort(behind[np.argsort(-lag[behind], kind="stable")[:LOOKED_AT]])
    oldest = _oldest_ms(cluster, topic, queues[chosen], np.maximum(offsets, bounds.earliest[queues])[chosen])
    kept = bounds.latest - bounds.earliest
    age_s = None if oldest is None else round(max(0.0, time.time() - oldest / 1000), 1)
    return (
        group,
        topic.name,
        len(queues),
        len(behind),
        int(lag.sum()),
        int(lag[worst]),
        int(queues[worst]) if lag[worst] else None,
        age_s,
        int(kept.sum() - kept[queues].sum()),
    )


def _named_row(cluster: PipelineClient, group: str, topic: Topic) -> tuple[Any, ...] | None:
    """Of a topic whose queues have names: counted where the queues are, without saying which is the worst."""
    lag = cluster.lag(group, topic)
    if lag.uncommitted == lag.queues:
        return None
    queues, behind = lag.queues - lag.uncommitted, lag.behind - lag.uncommitted_behind
    committed_lag, rest = lag.lag - lag.uncommitted_lag, (None, None, lag.uncommitted_lag)
    return group, topic.name, queues, behind, committed_lag, lag.committed_largest, *rest


def _oldest_ms(cluster: PipelineClient, topic: Topic, queues: Any, offsets: Any) -> int | None:
    """When the oldest of the messages at these places was stored."""
    oldest: int | None = None
    for route in topic.routes:
        inside = (queues >= route.first) & (queues < route.end)
        for queue, offset in zip(queues[inside].tolist(), offsets[inside].tolist(), strict=True):
            want = Want(np.array([queue]), np.array([offset]), 1, 1)
            answer = cluster.fetch(topic, route.shard, want, None).result()
            for batch in split_batches(answer):
                if positions(batch) is not None:
                    continue
                found = column(batch, Column.STORED_MS, np.int64)
                wanted = found[column(batch, Column.OFFSET, np.int64) >= offset]
                if len(wanted):
                    oldest = int(wanted.min()) if oldest is None else min(oldest, int(wanted.min()))
    return oldest


def _plot(rows: Sequence[tuple[Any, ...]], path: str) -> None:
    from lsmq_pipeline.jobs.plots import bars

    labels = [f"{row[0]}\n{row[1]}" for row in rows[:30]]
    bars(labels, {"messages behind": [row[4] for row in rows[:30]]}, title="Lag of groups", path=path)
